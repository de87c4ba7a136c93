from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.stats.distributions import (
    fractional_rank,
    incomplete_beta,
    normal_quantile,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),  # from printed tables of Student's t
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 5, 2.5706),
        (0.995, 5, 4.0321),
        (0.95, 10, 1.8125),
        (0.9995, 10, 4.5869),
        (0.975, 30, 2.0423),
        (0.975, 1000, 1.9623),
        (0.975, 1e7, 1.9600),
    ],
)
def test_student_quantiles_of_the_tables(probability, freedom, value):
    assert student_quantile(probability, freedom) == pytest.approx(value, abs=6e-5)
    assert student_quantile(1 - probability, freedom) == pytest.approx(-value, abs=6e-5)


def test_the_middle_and_the_tails():
    assert student_quantile(0.5, 3) == 0
    assert student_quantile(0.975, math.inf) == normal_quantile(0.975)
    assert student_quantile(0.975, 0.001) == math.inf


@given(st.floats(0.51, 0.99999), st.floats(1, 1e4))
def test_quantile_and_probability_are_inverse(probability, freedom):
    assert student_cdf(student_quantile(probability, freedom), freedom) == pytest.approx(probability, abs=1e-9)


def test_incomplete_beta_is_the_binomial_sum():
    direct = sum(math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(8, 21))
    assert incomplete_beta(8, 13, 0.3) == pytest.approx(direct, rel=1e-12)
    assert (incomplete_beta(2, 3, 0.0), incomplete_beta(2, 3, 1.0)) == (0.0, 1.0)


def test_rank_of_whole_numbers_is_the_binomial_one():
    probability = sum(math.comb(10, k) for k in range(2, 11)) / 2**10  # two or more of ten below the median
    assert fractional_rank(10, 0.5, probability) == pytest.approx(2.0)


@given(st.floats(2, 1e5), st.floats(0.01, 0.99), st.floats(0.001, 0.999))
def test_rank_is_what_it_says(count, share, probability):
    rank = fractional_rank(count, share, probability)
    assert 0 < rank < count + 1
    assert incomplete_beta(rank, count + 1 - rank, share) == pytest.approx(probability, abs=1e-6) or rank < 1e-8
