"""Kernels as rows, and the account of the GPU's time, from real traces and from kernels whose times are known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.analysis.profile.kernel_profiles import kernel, made
from tests.analysis.profile.samples import layer

from inferlens.analysis.modules import module_table
from inferlens.analysis.profile_table import KernelTable, ProfileTable, kernel_table, layer_table, profile_runs
from inferlens.record.layer_profile import Kernel
from tests.analysis.kernel_profiles import of_kernels, traced
from tests.analysis.profiles import eager, profile
from tests.backends.profiling.samples import EAGER, ENGINE, GRAPH
from tests.views.samples import case


def table(profile, **options) -> KernelTable:
    found = kernel_table(profile, **options)
    assert isinstance(found, ProfileTable), found
    return found


@pytest.mark.parametrize("name", [EAGER, GRAPH, ENGINE])
@pytest.mark.parametrize("by", ["name", "launch"])
def test_rows_add_up_to_the_kernels_and_these_and_idle_to_the_whole(name, by):
    found = table(traced(name), by=by)
    account = found.reconciliation
    total = sum(row.times.typical for row in found.rows)
    assert total == pytest.approx(account.kernels.typical)
    assert found.sum_of(found.rows).typical == pytest.approx(total)
    assert total + account.overlap.typical == pytest.approx(account.busy.typical)
    assert account.busy.typical + account.idle.typical == pytest.approx(account.whole.typical)
    assert sum(row.of_busy for row in found.rows) == pytest.approx(total / account.busy.typical)
    assert sum(row.calls for row in found.rows) == account.calls
    assert [row.place for row in found.rows] == sorted(row.place for row in found.rows)


def test_a_row_for_each_name_or_each_launch():
    by_name, by_launch = table(traced()), table(traced(), by="launch")
    assert (len(by_name.rows), len(by_launch.rows)) == (14, 162)
    (layout,) = [row for row in by_name.rows if "nchwToNhwcKernel" in row.name]
    assert (layout.calls, len(layout.modules), layout.shapes) == (35, 19, 11)
    assert layout.grid in {row.grid for row in by_launch.rows if row.name == layout.name}
    assert all(row.shapes == 1 and len(row.modules) == 1 for row in by_launch.rows)


def test_the_account_of_a_real_trace():
    account = table(traced(), unprofiled=[2e-3] * 20).reconciliation
    assert (account.calls, account.launches, account.attributed) == (162, 162, 1.0)
    assert account.with_tensor_cores + account.without_tensor_cores == pytest.approx(1)
    assert 0.2 < account.with_tensor_cores < 0.5
    assert account.cost == pytest.approx(3.74, abs=0.01)
    engine = table(traced(ENGINE)).reconciliation
    assert engine.with_tensor_cores == 0
    assert engine.without_tensor_cores < 0.05, "names of generated kernels do not tell"
    assert engine.attributed == 0


def test_of_several_shapes_the_one_that_takes_most_is_shown():
    few = kernel("k", 1e-4, grid=(1, 1, 1), block=(32,), occupancy=0.1)
    many = kernel("k", 3e-4, grid=(9, 1, 1), block=(64,), occupancy=0.5)
    (row,) = table(of_kernels("pytorch", made(few, many, few))).rows
    assert (row.calls, row.shapes, row.grid, row.block, row.occupancy) == (3, 2, (9, 1, 1), (64,), 0.5)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"busy": (1.0,)}, "busy"),
        ({"busy": (float("nan"),) * 40}, "busy"),
        ({"kernels": (Kernel(name="k", times=(1.0, 2.0)),)}, "not as many times"),
        ({"kernels": (Kernel(name="k", times=(-1.0,) * 40),)}, "negative"),
    ],
)
def test_times_that_cannot_be_right_are_refused(broken, reason):
    assert reason in kernel_table(of_kernels("pytorch", replace(made(kernel("k", 1e-3)), **broken)))


def test_profiles_of_another_level_say_so():
    assert "--level kernel" in kernel_table(eager())
    assert "--level layer" in layer_table(traced())
    assert kernel_table(of_kernels("pytorch", None, status="failed", reason="It broke.")) == "It broke."


def test_modules_from_kernels():
    of = traced()
    found = module_table([(of, profile_runs(of).with_kernel_shares())])
    times = {".".join(row.path): row.cells[0].times for row in found.rows if row.kind == "module"}
    rows = table(of, by="launch").rows
    for module in ("conv1", "layer4", "layer4.1", "layer4.1.conv2", "fc"):
        own = [row for row in rows if row.modules[0] == module or row.modules[0].startswith(f"{module}.")]
        assert times[module].typical == pytest.approx(sum(row.times.typical for row in own))
    assert found.rows[0].cells[0].times.typical == pytest.approx(table(of).reconciliation.kernels.typical)
    assert found.rows[0].cells[0].times.share == 1
    assert [row.kind for row in found.rows[-2:]] == ["module", "not attributed"]
    assert found.rows[-1].cells[0].times.share == 0


def test_how_much_is_of_no_known_module():
    half = profile(case("fake"), [layer("a", 1e-3, "a"), layer("b", 3e-3)], timed="GPU")
    assert profile_runs(half).unattributed_share(half) == pytest.approx(0.75, rel=0.01)
    assert profile_runs(traced()).unattributed_share(traced()) == 0
    nothing = of_kernels("pytorch", made(Kernel(name="k", modules=("a",), times=(0.0,) * 4)))
    assert profile_runs(nothing).unattributed_share(nothing) == 1
