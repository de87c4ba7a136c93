from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc

from inferlens.stats.distributions import fractional_rank, student_quantile


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


def test_rank_of_whole_numbers_is_the_binomial_one():
    probability = sum(math.comb(10, k) for k in range(2, 11)) / 2**10  # two or more of ten below the median
    assert fractional_rank(10, 0.5, probability) == pytest.approx(2.0)


@given(st.floats(2, 1e5), st.floats(0.01, 0.99), st.floats(0.001, 0.999))
def test_rank_is_what_it_says(count, share, probability):
    rank = fractional_rank(count, share, probability)
    first, last = betainc(1, count, share), betainc(count, 1, share)
    if 1 <= rank <= count:
        assert betainc(rank, count + 1 - rank, share) == pytest.approx(probability, abs=1e-6)
    else:  # there is no such sample
        assert (first <= probability + 1e-9) if rank == 0 else (rank == count + 1 and last >= probability - 1e-9)
