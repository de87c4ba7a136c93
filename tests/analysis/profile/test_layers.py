from __future__ import annotations

import msgspec
import numpy as np
import pytest

from inferlens.analysis.profile_table import LayerTable, ProfileTable, layer_table
from tests.analysis.profile.samples import RUNS, eager, failed, fused, layer, profile, times
from tests.views.samples import case


def table(of, unprofiled=()) -> LayerTable:
    found = layer_table(of, unprofiled)
    assert isinstance(found, ProfileTable)
    return found


def of_times(*layers: tuple[float, ...], whole: tuple[float, ...]):
    made = profile(case(), [layer(str(i), None, times=item) for i, item in enumerate(layers)])
    assert made.layers is not None
    return msgspec.structs.replace(made, layers=msgspec.structs.replace(made.layers, whole=whole))


def test_a_row_says_what_the_layer_is_and_how_its_time_spreads():
    made = profile(case(), [layer("a", 2e-3, "m.a", calls=3), layer("b", 1e-3)])
    row = table(made).rows[0]
    assert (row.place, row.name, row.kind, row.modules, row.calls) == (1, "a", "Conv", ("m.a",), 3)
    taken = made.layers.layers[0].times
    assert row.times.mean == pytest.approx(np.mean(taken))
    assert row.times.median == pytest.approx(np.median(taken))
    assert row.times.p95 == pytest.approx(np.quantile(taken, 0.95))
    assert row.times.median_low < row.times.median < row.times.median_high
    assert row.inputs[0].shape == (1, 64, 56, 56)


def test_the_median_of_the_sum_is_no_sum_of_medians():
    """Three layers that take turns being slow: each one's median is 1, and every run's sum is 12."""
    slow = [tuple(10.0 if run % 3 == turn else 1.0 for run in range(12)) for turn in range(3)]
    reconciliation = table(of_times(*slow, whole=(13.0,) * 12)).reconciliation
    assert sum(row.times.median for row in table(of_times(*slow, whole=(13.0,) * 12)).rows) == 3.0
    assert reconciliation.layers.median == 12.0
    assert reconciliation.outside.median == 1.0
    assert reconciliation.outside.share == pytest.approx(1 / 13)


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 9, 40])
def test_typical_times_and_shares_add_up_to_the_whole(runs):
    parts = [times(1e-3, runs, seed) for seed in range(4)]
    whole = tuple(float(sum(item)) + 1e-4 for item in zip(*parts, strict=True))
    found = table(of_times(*parts, whole=whole))
    account = found.reconciliation
    assert sum(row.times.typical for row in found.rows) == pytest.approx(account.layers.typical)
    assert account.layers.typical + account.outside.typical == pytest.approx(account.whole.typical)
    assert sum(row.times.share for row in found.rows) + account.outside.share == pytest.approx(1)
    assert account.runs == runs
    assert (account.whole.p95 is None) == (runs < 20)
    assert (account.whole.median_low is None) == (runs < 10)


def test_a_few_disturbed_runs_do_not_change_shares():
    calm = of_times((1.0,) * 40, (3.0,) * 40, whole=(4.0,) * 40)
    hit = of_times((1.0,) * 35 + (100.0,) * 5, (3.0,) * 40, whole=(4.0,) * 35 + (103.0,) * 5)
    assert [row.times.share for row in table(hit).rows] == [row.times.share for row in table(calm).rows] == [0.25, 0.75]


def test_what_profiling_cost():
    made = of_times((1.0,) * 40, whole=tuple(2.4 + 0.001 * (run % 5) for run in range(40)))
    calls = tuple(2.0 + 0.001 * (run % 7) for run in range(200))
    account = table(made, calls).reconciliation
    assert account.unprofiled == pytest.approx(2.003)
    assert account.cost == pytest.approx(2.402 / 2.003)
    assert account.cost_low <= account.cost <= account.cost_high
    assert table(made).reconciliation.cost is None
    assert table(made, calls[:3]).reconciliation.cost_low is None


def test_rows_without_a_time_and_the_sum_of_some_rows():
    assert table(fused()).rows[-1].times is None
    assert table(fused()).reconciliation.untimed == 1
    found = table(eager())
    assert found.sum_of(found.rows).median == pytest.approx(found.reconciliation.layers.median)
    assert found.sum_of([]).typical == 0.0
    assert table(of_times((3.0,) * 12, (3.0,) * 12, whole=(4.0,) * 12)).reconciliation.overlaps
    assert not found.reconciliation.overlaps


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (failed(case(), "No memory."), "No memory."),
        (of_times((1.0,) * 3, whole=(2.0,) * 4), "not as many times"),
        (of_times((1.0,) * 3, whole=()), "no runs"),
        (of_times((-1.0,) * 3, whole=(2.0,) * 3), "negative"),
        (of_times((1.0,) * 3, whole=(float("nan"),) * 3), "not finite"),
        (of_times((1e308,) * 3, whole=(1.0,) * 3), "more than a day"),
    ],
)
def test_what_cannot_be_right_is_refused(made, why):
    found = layer_table(made)
    assert isinstance(found, str)
    assert why in found


def test_no_layers_and_no_time_are_no_error():
    account = table(of_times(whole=(1.0,) * RUNS)).reconciliation
    assert account.layers.median == 0.0
    assert account.outside.share == 1.0
    assert table(of_times((0.0,) * 5, whole=(0.0,) * 5)).rows[0].times.share is None
