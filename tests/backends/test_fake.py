"""The planted space of the fake backend: exact latencies, one best, and what each knob costs."""

import itertools

import numpy as np
import pytest

from inferlens.backends.base import TOLERANCES
from inferlens.backends.fake import BEST, FACTORS, Fake, FakeOptions, factor
from inferlens.models.model import Model
from inferlens.spec.case import Case, TensorSpec
from tests.backends import small


def case(**more):
    return Case(model="fake:demo", backend="fake", variant="steady", **more)


def prepared(preparation, **options):
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    return Fake().prepare(model, case(options=options), preparation)


@pytest.mark.parametrize(
    ("options", "milliseconds"),
    [
        ({}, 4.0), ({"knob_a": 1}, 3.2), ({"knob_a": 3}, 5.0), ({"knob_b": 1}, 3.4),
        ({"knob_a": 1, "knob_b": 1}, 3.536), ({"knob_a": 1, "knob_b": 2}, 3.04), ({"knob_d": 1}, 4.0),
        ({"knob_c": 1, "knob_d": 1}, 2.88), ({"knob_e": 1}, 2.0), ({"knob_f": 2, "latency": 10.0}, 9.4),
        (BEST, 2.057472),
    ],
    ids=str,
)  # fmt: skip
def test_latencies_are_as_planted(options, milliseconds, preparation):
    with prepared(preparation, **options) as runner:
        times = runner.clock.time(runner.infer, itertools.repeat({}), 3).latency
    assert times == pytest.approx([milliseconds / 1e3] * 3)


def test_the_best_that_is_right_is_known_and_ahead_of_the_next():
    values = itertools.product(*(range(len(item)) for item in FACTORS.values()))
    ways = [dict(zip(FACTORS, value, strict=True)) for value in values]
    ways = [way for way in ways if way["knob_c"] or not way["knob_d"]]
    assert len(ways) == 504
    right = sorted((way for way in ways if not way["knob_e"]), key=lambda way: factor(FakeOptions(**way)))
    best, second = (factor(FakeOptions(**way)) for way in right[:2])
    assert {name: value for name, value in right[0].items() if value} == BEST
    assert (round(best, 3), round(second / best, 2)) == (0.514, 1.03)


@pytest.mark.parametrize(("knob", "wrong"), [("knob_e", True), ("knob_a", False)])
def test_one_knob_makes_outputs_wrong(knob, wrong, preparation):
    inputs = {"x": np.ones((1, 3, 1), np.float32)}
    with prepared(preparation, **{knob: 1}) as runner:
        error = small.error(runner.collect(runner.infer(runner.place(inputs))), [np.full(1, 3.0)])
    assert error > max(TOLERANCES.values()) if wrong else error == 0.0


@pytest.mark.parametrize(("value", "seconds"), [(0, 0), (1, 10), (2, 60)])
def test_one_knob_makes_the_build_long(value, seconds, preparation):
    preparation.now = itertools.count().__next__
    with prepared(preparation, knob_f=value):
        assert [(phase.name, phase.seconds) for phase in preparation.phases] == [("build", seconds + 1)]
