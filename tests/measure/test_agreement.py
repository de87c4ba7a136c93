"""Whether outputs are right: the check passes what is right and fails what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.measure.output_check import compare, worse
from inferlens.record.record import Agreement

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((4, 1000)).astype(np.float32)


def test_equal_outputs_agree_exactly() -> None:
    agreement = compare([SCORES], [SCORES], 1e-4, "pytorch fp32")
    assert agreement == Agreement(
        reference="pytorch fp32", max_abs=0.0, rel_l2=0.0, cosine=1.0, top1=1.0, tolerance=1e-4, agrees=True
    )


@given(st.floats(1e-3, 1.0))
def test_a_known_relative_error_is_measured_as_that(error: float) -> None:
    agreement = compare([SCORES.astype(np.float64) * (1 + error)], [SCORES], 1e-4, "x")
    assert agreement.rel_l2 == pytest.approx(error, rel=1e-6)
    assert agreement.cosine == pytest.approx(1.0)
    assert agreement.agrees is False
    assert "above the tolerance" in agreement.reason


def test_the_worst_output_counts_and_top1_is_the_share_of_rows_with_the_same_class() -> None:
    assert compare([SCORES, SCORES * np.float32(1.5)], [SCORES, SCORES], 1e-4, "x").rel_l2 == pytest.approx(
        0.5, rel=1e-5
    )
    ours = SCORES.copy()
    ours[0, (SCORES[0].argmax() + 1) % 1000] = 100.0
    assert compare([ours], [SCORES], 10.0, "x").top1 == 0.75


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_must_be_where_the_reference_has_them(bad: float) -> None:
    masked = SCORES.copy()
    masked[1, 1] = bad
    assert compare([masked], [SCORES], 1e9, "x").agrees is False
    assert compare([SCORES], [masked], 1e9, "x").agrees is False
    assert compare([-masked], [masked], 1e9, "x").agrees is bool(np.isnan(bad))
    assert compare([masked], [masked], 1e-4, "x").agrees is True
    assert compare([masked * np.float32(1.5)], [masked], 1e-4, "x").rel_l2 == pytest.approx(0.5, rel=1e-5)


def test_a_reference_without_a_finite_number_proves_nothing() -> None:
    assert compare([SCORES * np.nan], [SCORES * np.nan], 1e-4, "x").agrees is None


@pytest.mark.parametrize("outputs", [[], [SCORES[:2]], [SCORES, SCORES]])
def test_other_shapes_are_wrong(outputs: list[np.ndarray]) -> None:
    agreement = compare(outputs, [SCORES], 1.0, "x")
    assert agreement.agrees is False
    assert "4x1000" in agreement.reason


@pytest.mark.parametrize(
    ("ours", "theirs", "agrees"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), True),
        (np.ones((2, 3)), np.zeros((2, 3)), False),
        (np.array([3, 4]), np.array([3, 4]), True),
        (np.array([4, 5]), np.array([3, 4]), False),
        (np.array([1 + 2j, 3j]), np.array([1 + 2j, 3j]), True),
        (np.array([1 - 2j, -3j]), np.array([1 + 2j, 3j]), False),
        (np.zeros((0, 4)), np.zeros((0, 4)), None),
    ],
)
def test_zero_integer_complex_and_empty_outputs(ours: np.ndarray, theirs: np.ndarray, agrees: bool | None) -> None:
    assert compare([ours], [theirs], 1e-4, "x").agrees is agrees


def test_outputs_that_go_wrong_while_the_case_runs_are_seen() -> None:
    right, wrong = compare([SCORES], [SCORES], 1e-4, "x"), compare([SCORES * 2], [SCORES], 1e-4, "x")
    assert worse(right, wrong) is wrong
    assert worse(wrong, right) is wrong
    assert worse(*[Agreement(reference="x", reason="no reference")] * 2).agrees is None
