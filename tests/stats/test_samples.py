from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.stats.samples import median, quantile, summarise

SAMPLES = st.lists(st.floats(min_value=1e-9, max_value=1e3, allow_nan=False), min_size=1, max_size=300)


def test_known_quantiles_and_summary():
    assert quantile([1, 2, 3, 4], 0.25) == 1.75  # type 7: position 0.75 between the first and the second
    assert (quantile([4, 1, 3, 2], 1.0), median([3, 1, 2]), median([4, 1, 3, 2])) == (4, 2, 2.5)
    summary = summarise([1.0, 2.0, 3.0, 6.0])
    assert (summary.count, summary.mean, summary.median, summary.minimum, summary.maximum) == (4, 3.0, 2.5, 1.0, 6.0)
    assert summary.deviation == pytest.approx((14 / 3) ** 0.5)
    assert summarise([]) is None
    with pytest.raises(ValueError, match="no samples"):
        median([])


@pytest.mark.parametrize(("count", "p95", "p99"), [(1, 0, 0), (19, 0, 0), (20, 1, 0), (99, 1, 0), (100, 1, 1)])
def test_percentiles_need_enough_samples(count, p95, p99):
    summary = summarise(list(np.linspace(1, 2, count)))
    assert [value is not None for value in (summary.p5, summary.p95, summary.p99)] == [p95, p95, p99]


@given(SAMPLES)
def test_summary_is_in_order(samples):
    summary = summarise(samples)
    known = [summary.minimum, summary.p5, summary.median, summary.p95, summary.p99, summary.maximum]
    assert all(low <= high * (1 + 1e-12) for low, high in pairwise(value for value in known if value is not None))
    assert summary.minimum <= summary.mean <= summary.maximum
