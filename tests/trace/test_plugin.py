"""Our numbers beside those of TensorBoard's own loader, torch-tb-profiler 0.4.3, of real traces taken on an H200.

The plugin is older than the names that events' categories have today; where it does not know one, the trace it reads
says the older one.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from inferlens.trace import read
from inferlens.trace.analysis import Analysis

TRACES = Path(__file__).parents[2] / "examples" / "h200" / "traces"
OLDER = {
    "cpu_op": "Operator", "cuda_runtime": "Runtime", "cuda_driver": "Runtime", "kernel": "Kernel",
    "gpu_memcpy": "Memcpy", "gpu_memset": "Memset",
}  # fmt: skip
MICRO = 1e6
PARTS = ("kernel", "copy", "fill", "communication", "runtime", "data loader", "CPU", "other")


def plugin(path: Path, folder: Path) -> Any:
    """What the plugin makes of a trace."""
    from torch_tb_profiler.consts import WORKER_PATTERN
    from torch_tb_profiler.profiler.data import RunProfileData

    content = json.loads(gzip.decompress(path.read_bytes()))
    for event in content["traceEvents"]:
        event["cat"] = OLDER.get(event.get("cat", ""), event.get("cat", ""))
    file = folder / path.name.removesuffix(".gz")
    file.write_text(json.dumps(content))
    named = WORKER_PATTERN.match(file.name)
    assert named
    return RunProfileData.parse(*named.groups(), str(file), str(folder))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(path.name for path in TRACES.iterdir()))
def test_numbers_are_the_plugins(name: str, tmp_path: Path) -> None:
    (path,) = (TRACES / name).glob("*.gz")
    theirs, analysis = plugin(path, tmp_path), Analysis(read(path))
    vars(analysis.costs)["occupancy"] = analysis.trace.gpu.occupancy  # zeros for large kernels too, as it was written
    made = analysis.overview
    gpu, use = made.gpus[0], theirs.gpu_metrics_parser
    assert gpu.utilization == near(use.gpu_utilization[0])
    assert gpu.sm_efficiency == near(use.avg_approximated_sm_efficiency_per_device[0])
    assert 100 * (gpu.occupancy or 0) == near(use.avg_occupancy_per_device[0])
    *parts, whole = theirs.avg_costs.costs
    assert made.step_time * MICRO == near(whole)
    assert [made.parts[part] * MICRO for part in PARTS] == near(parts)
    kernels = {row["name"]: row for row in analysis.kernels().rows() if row["kind"] == "kernel"}
    assert set(kernels) == set(theirs.kernel_stat.index)
    for kernel, row in theirs.kernel_stat.iterrows():
        assert [kernels[kernel]["calls"], kernels[kernel]["total"] * MICRO] == near([row["count"], row["sum"]])

    ours = {row["name"]: row for row in analysis.operators().rows()}
    assert {one.name for one in theirs.op_list_groupby_name} == set(ours)
    for one in theirs.op_list_groupby_name:
        mine = ours[one.name]
        times = [mine[key] * MICRO for key in ("host_total", "host_self", "device_total", "device_self")]
        known = [one.host_duration, one.self_host_duration, one.device_duration, one.self_device_duration]
        assert [mine["calls"], *times] == near([one.calls, *known]), one.name


def near(value: Any) -> Any:
    """But for the rounding of times to microseconds, which the plugin does on the way."""
    return pytest.approx(value, rel=1e-4, abs=1e-6 if isinstance(value, float) and value < 100 else 0.5)
