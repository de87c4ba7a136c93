"""Kernels as rows, and the account of the GPU's time, from real traces and from kernels whose times are known."""

import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from inferlens.analysis import profile_table as tables
from inferlens.record.profile import Kernel
from inferlens.trace import kernels
from tests.analysis.profiles import eager, failed, fused, kernel, layer, made, of_kernels, profile, times, traced
from tests.backends.profiling.samples import EAGER, ENGINE, GRAPH
from tests.snapshots import screens_test
from tests.views.samples import case


def table(of, unprofiled=()) -> tables.LayerTable:
    found = tables.layer_table(of, unprofiled)
    assert isinstance(found, tables.ProfileTable)
    return found


def of_times(*layers: tuple[float, ...], whole: tuple[float, ...]):
    made = profile(case(), [layer(str(i), None, times=item) for i, item in enumerate(layers)])
    return replace(made, layers=replace(made.layers, whole=whole))


def test_the_median_of_the_sum_is_no_sum_of_medians():
    """Three layers that take turns being slow: each one's median is 1, and every run's sum is 12."""
    slow = [tuple(10.0 if run % 3 == turn else 1.0 for run in range(12)) for turn in range(3)]
    found = table(of_times(*slow, whole=(13.0,) * 12))
    account = found.reconciliation
    assert (sum(row.times.median for row in found.rows), account.layers.median) == (3.0, 12.0)
    assert (account.outside.median, account.outside.share) == (1.0, pytest.approx(1 / 13))


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
    assert (account.unprofiled, account.cost) == pytest.approx((2.003, 2.402 / 2.003))
    assert account.cost_low <= account.cost <= account.cost_high
    assert table(made).reconciliation.cost is None
    assert table(made, calls[:3]).reconciliation.cost_low is None


def test_rows_without_a_time_and_the_sum_of_some_rows():
    assert (table(fused()).rows[-1].times, table(fused()).reconciliation.untimed) == (None, 1)
    found = table(eager())
    assert found.sum_of(found.rows).median == pytest.approx(found.reconciliation.layers.median)
    assert found.sum_of([]).typical == 0.0
    assert table(of_times((3.0,) * 12, (3.0,) * 12, whole=(4.0,) * 12)).reconciliation.overlaps
    assert not found.reconciliation.overlaps


@pytest.mark.parametrize(("made", "why"), [
    (failed(case(), "No memory."), "No memory."), (of_times((1.0,) * 3, whole=(2.0,) * 4), "not as many times"),
    (of_times((1.0,) * 3, whole=()), "no runs"), (of_times((-1.0,) * 3, whole=(2.0,) * 3), "negative"),
    (of_times((1.0,) * 3, whole=(float("nan"),) * 3), "not finite"),
    (of_times((1e308,) * 3, whole=(1.0,) * 3), "more than a day"),
])  # fmt: skip
def test_what_cannot_be_right_is_refused(made, why):
    assert why in tables.layer_table(made)


def kernels_of(profile, **options) -> tables.KernelTable:
    found = tables.kernel_table(profile, **options)
    assert isinstance(found, tables.ProfileTable), found
    return found


def test_of_several_shapes_the_one_that_takes_most_is_shown():
    few = kernel("k", 1e-4, grid=(1, 1, 1), block=(32,), occupancy=0.1)
    many = kernel("k", 3e-4, grid=(9, 1, 1), block=(64,), occupancy=0.5)
    (row,) = kernels_of(of_kernels("pytorch", made(few, many, few))).rows
    assert (row.calls, row.shapes, row.grid, row.block, row.occupancy) == (3, 2, (9, 1, 1), (64,), 0.5)


@pytest.mark.parametrize(("broken", "reason"), [
    ({"busy": (1.0,)}, "busy"), ({"kernels": (Kernel(name="k", times=(1.0, 2.0)),)}, "not as many times"),
    ({"kernels": (Kernel(name="k", times=(-1.0,) * 40),)}, "negative"),
])  # fmt: skip
def test_times_that_cannot_be_right_are_refused(broken, reason):
    assert reason in tables.kernel_table(of_kernels("pytorch", replace(made(kernel("k", 1e-3)), **broken)))


def test_profiles_of_another_level_say_so():
    assert "--level kernel" in tables.kernel_table(eager())
    assert "--level layer" in tables.layer_table(traced())
    assert tables.kernel_table(of_kernels("pytorch", None, status="failed", reason="It broke.")) == "It broke."


# Names of real kernels, of cuDNN, cuBLAS, CUTLASS, TensorRT, PyTorch and Inductor, and what they tell. Inductor names a
# kernel after all that was fused into it: what follows a convolution is of that name, too.

NAMES = (Path(__file__).parent / "kernel_names.txt").read_text("utf-8").splitlines()
USES = {True: "tensor cores", False: "no tensor cores", None: "perhaps tensor cores"}


def facts(name: str) -> str:
    uses, family = USES[kernels.uses_tensor_cores(name)], tables.kernel_family(name)
    short, precision = tables.short_kernel_name(name), kernels.kernel_precision(name) or "?"
    return f"{name}\n    {precision}, {uses}, {family or '?'}: {short}\n"


test_screen = screens_test("kernels", {"names": lambda: "".join(map(facts, NAMES))})


def test_indices_and_truth_values_are_computed_in_nothing():
    assert kernels.first_precision(["int64", "bool", "uint8", "float32"]) == "int8"
    assert kernels.first_precision(["", "int32"]) == ""


@pytest.mark.parametrize(("names", "expected"), [
    (["void lib::f<int, 64>(int)", "void lib::f<int, 128>(int)"], ["f<…> #1", "f<…> #2"]),
    (["void a::f(int)", "void b::f(int)"], ["f #1", "f #2"]), (["gemm", "relu"], ["gemm", "relu"]),
])  # fmt: skip
def test_different_kernels_have_different_names(names, expected):
    assert [tables.short_kernel_names(names)[name] for name in names] == expected


def test_hostile_names_are_shortened_at_once_and_stay_apart():
    names = [
        "<" * 50_000, "a<" * 20_000, "::" * 20_000, "(anonymous namespace)::" * 5_000, "x" * 100_000, "_a" * 50_000,
        f"a<{'b,' * 50_000}>", f"a<{'b,' * 50_000}c>",
    ]  # fmt: skip
    begin = time.perf_counter()
    short = tables.short_kernel_names(names)
    used = {kernels.uses_tensor_cores(name) for name in names}
    assert time.perf_counter() - begin < 10, "a table of them comes at once, a quadratic rule would take minutes"
    assert all(short.values())
    assert len(set(short.values())) == len(names)
    assert used == {None}


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


@pytest.mark.parametrize("name", [EAGER, GRAPH, ENGINE])
@pytest.mark.parametrize("by", ["name", "launch"])
def test_rows_add_up_to_the_kernels_and_these_and_idle_to_the_whole(name, by):
    found = kernels_of(traced(name), by=by)
    account = found.reconciliation
    total = sum(row.times.typical for row in found.rows)
    assert total == pytest.approx(account.kernels.typical)
    assert found.sum_of(found.rows).typical == pytest.approx(total)
    assert total + account.overlap.typical == pytest.approx(account.busy.typical)
    assert account.busy.typical + account.idle.typical == pytest.approx(account.whole.typical)
    assert sum(row.of_busy for row in found.rows) == pytest.approx(total / account.busy.typical)
    assert sum(row.calls for row in found.rows) == account.calls
    assert [row.place for row in found.rows] == sorted(row.place for row in found.rows)
