"""What is derived: against brute force on small traces, and against torch-tb-profiler's numbers on real ones."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.analysis.trace import trace_findings
from inferlens.record.profile import GpuLimits
from inferlens.trace.analysis import Analysis
from inferlens.trace.distributed import execution, rows_compared
from inferlens.trace.kernels import achieved, theoretical
from inferlens.trace.model import LaunchLinks
from inferlens.trace.read import read_trace
from inferlens.trace.tables import (
    CUT_OFF,
    SLOW,
    kernels,
    memory_devices,
    memory_holders,
    module_tree,
    operators,
    stepping,
)
from tests.backends.profiling.samples import H200, NAMES, runs
from tests.refusals import refusal
from tests.trace.samples import GPU, H100, REAL, event, faster, kernel, launch, of_torch, shared, step, text, training


def rows(table):
    return {row["name"]: row for row in table.rows()}


def micros(row, *names):
    return [round(row[name] * 1e6) for name in names]


@pytest.fixture
def training_analysis():
    return Analysis(read_trace(training()))


def test_operators_by_hand(training_analysis):
    found = rows(operators(training_analysis))
    linear, mm = found["aten::linear"], found["aten::mm"]
    assert micros(linear, "host_total", "host_self", "device_total", "device_self") == [600, 380, 600, 400]
    assert (linear["calls"], micros(mm, "host_self", "device_self"), mm["tensor_share"]) == (2, [180, 200], 1.0)
    assert linear["tensor_share"] == pytest.approx(1 / 3)
    assert (linear["eligible"], found["aten::copy_"]["eligible"]) == (True, False)
    by_shape = operators(training_analysis, "shapes", "stack")
    apart = {(row["name"], row["shapes"], row["stack"]) for row in by_shape.rows()}
    assert {("aten::linear", "[[8,4],[4,4]]", "a.py(1): f"), ("aten::copy_", "", "")} <= apart


def test_stacks_are_of_python_calls_where_operators_have_none():
    calls = [("<built-in method mm>", 40, 20), ("model.py(7): forward", 20, 100), ("nn.Module: Net_0", 10, 150)]
    events = [event(*call, "python_function") for call in calls]
    trace = read_trace(text(*events, event("aten::mm", 45, 10), event("aten::add", 130, 5), event("aten::mul", 300, 5)))
    stacks = {row["name"]: row["stack"] for row in operators(Analysis(trace), "stack").rows()}
    assert stacks == {
        "aten::mm": "model.py(7): forward;nn.Module: Net_0", "aten::add": "nn.Module: Net_0", "aten::mul": "",
    }  # fmt: skip


def test_kernels_by_hand(training_analysis):
    found = rows(kernels(training_analysis))
    gemm = found["s16816gemm"]
    assert (gemm["kind"], gemm["calls"], micros(gemm, "total", "mean")) == ("kernel", 2, [200, 100])
    assert (gemm["blocks_per_sm"], gemm["occupancy"], gemm["tensor_cores"]) == (0.5, 0.0, True)
    assert (gemm["grid"], gemm["block"], found["add"]["grid"]) == ("8x1x1", "128x1x1", None)
    assert found["Memcpy DtoH (Device -> Pageable)"]["kind"] == "copy"
    launchers = {row["operator"] for row in kernels(training_analysis, by_operator=True).rows()}
    assert launchers == {"aten::mm", "aten::linear", "aten::copy_"}


def test_one_step_alone(training_analysis):
    one = Analysis(training_analysis.trace, 1)
    assert rows(operators(one))["aten::mm"]["calls"] == rows(kernels(one))["add"]["calls"] == one.overview.steps == 1
    refusal("no step 7", Analysis, training_analysis.trace, 7)


def test_the_overview_by_hand(training_analysis):
    overview = training_analysis.overview
    assert overview.step_time == pytest.approx(600e-6)
    # Kernels 200-300 and 320-520, copy 530-570, host: loader 1-50, calls 160-170, 300-310, 460-465, 470-590.
    expected = {"kernel": 300, "copy": 40, "fill": 0, "communication": 0, "runtime": 50, "data loader": 49, "CPU": 100}
    assert {name: round(overview.parts[name] * 1e6) for name in expected} == expected
    assert sum(overview.parts.values()) == pytest.approx(overview.step_time)
    # The GPU has nothing to do before the call at 160 has ended, and after the last copy; then the host synchronises.
    assert {cause: round(time * 1e6) for cause, time in overview.idle.items()} == {
        "waiting for the host": 190, "synchronising": 20, "between kernels": 50,
    }  # fmt: skip
    (gpu,) = overview.gpus
    assert gpu.utilization == pytest.approx(600 / 1600)
    assert gpu.sm_efficiency == pytest.approx((2 * 100 * 0.5 + 2 * 200) / 1600)
    assert (gpu.occupancy, gpu.tensor_share, gpu.name) == (0.0, pytest.approx(1 / 3), "Test GPU")
    at_stake = [finding.seconds for finding in trace_findings(training_analysis)]
    assert at_stake == sorted(at_stake, reverse=True)


def test_kernels_that_wait_for_the_host_could_save_less():
    """Those without tensor cores take more of a step than the GPU waits for the host."""
    analysis = Analysis(read_trace(next(path for path in REAL if path.parent.name == "pytorch_bs32")))
    assert analysis.overview.bound == "host"
    codes = [finding.code for finding in trace_findings(analysis)]
    assert codes == ["host-bound", "tensor-cores-unused", "elementwise"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.sampled_from("kckr"), st.integers(0, 3)), max_size=20)
)
def test_parts_add_up_however_events_overlap(spans):
    """Against a count of every microsecond."""
    events = [step(0, 5, 30)]
    for begin, length, kind, stream in spans:
        if kind == "r":
            events.append(event("cudaMalloc", begin, length, "cuda_runtime", tid=stream))
        else:
            events.append(kernel(0, begin, length, "k", "kernel" if kind == "k" else "gpu_memcpy", stream))
    overview = Analysis(read_trace(text(*events))).overview

    def moments(kind):
        found = {at for begin, length, item, _ in spans if item == kind for at in range(begin, begin + length)}
        return found & set(range(5, 35))

    kernels, copies, calls = moments("k"), moments("c"), moments("r")
    assert round(overview.parts["kernel"] * 1e6) == len(kernels)
    assert round(overview.parts["copy"] * 1e6) == len(copies - kernels)
    assert round(overview.parts["runtime"] * 1e6) == len(calls - copies - kernels)
    assert sum(overview.parts.values()) == pytest.approx(30e-6)
    if spans and any(kind != "r" for _, _, kind, _ in spans):
        assert sum(overview.idle.values()) == pytest.approx((30 - len(kernels | copies)) * 1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 20), st.integers(1, 2)), max_size=15)
)
def test_host_times_are_never_lost(spans):
    trace = read_trace(text(*[event(name, begin, length, tid=tid) for name, begin, length, tid in spans]))
    table = operators(Analysis(trace))
    own, total = (float(np.sum(table.columns[name])) for name in ("host_self", "host_total"))
    assert 0 <= own <= total + 1e-12
    assert sum(table.columns["calls"]) <= len(spans)


def test_steps_their_outliers_and_those_that_the_profiler_cut_off():
    lengths = [100, 101, 99, 100, 250, 100, 101]
    steps = [step(number, 300 * number, length) for number, length in enumerate(lengths)]
    rows = list(stepping(Analysis(read_trace(text(*steps)))).rows())
    assert [round(row["time"] * 1e6) for row in rows] == lengths
    assert [row["note"] for row in rows] == ["", "", "", "", SLOW, "", ""]
    events = []
    for number, launches in enumerate((10, 10, 3)):
        at = 1000.0 * number
        events.append(step(number, at, 100))
        for place in range(1, 1 + launches):
            key = 100 * number + place
            events += [launch(key, at + place), kernel(key, at + 200 + 10 * place, 5)]
    analysis = Analysis(read_trace(text(*events)))
    assert [row["note"] for row in stepping(analysis).rows()] == ["", "", CUT_OFF]
    assert analysis.overview.left_out == 1


def test_occupancy_that_the_profiler_lacks_is_computed():
    """100 KiB a block let two of 128 threads on each of Hopper's multiprocessors."""
    large = {"grid": [300, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 100 * 1024}
    holds = {"regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 228 * 1024}
    nothing = {"est. achieved occupancy %": 0}
    events = [
        kernel(1, 10, 100, "large", **large, **nothing),
        kernel(2, 200, 100, "small", **{**large, "shared memory": 1024, **nothing}),
        kernel(3, 400, 100, "known", **large, **{"est. achieved occupancy %": 7}),
    ]
    found = rows(kernels(Analysis(read_trace(text(*events, deviceProperties=[{**GPU, **holds}])))))
    assert [found[name]["occupancy"] for name in ("large", "small", "known")] == [0.125, 0, pytest.approx(0.07)]
    assert rows(kernels(Analysis(read_trace(text(*events)))))["large"]["occupancy"] is None


def test_what_names_do_not_say_of_tensor_cores_is_open():
    names = {"s16816gemm": True, "cudnn_generated_fort_native_sm90_convFwd": None, "ampere_sgemm_128x64_tn": False}
    events = [step(0, 0, 300)]
    for number, name in enumerate(names):
        at = 100.0 * number
        events += [event("aten::mm", at, 90), launch(number + 1, number + 1), kernel(number + 1, at + 5, 80, name)]
    analysis = Analysis(read_trace(text(*events, deviceProperties=[GPU])))
    assert {name: row["tensor_cores"] for name, row in rows(kernels(analysis)).items()} == names
    (gpu,) = analysis.overview.gpus
    assert (gpu.tensor_share, gpu.tensor_untold) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    (advice,) = [finding for finding in trace_findings(analysis) if finding.code == "tensor-cores-unused"]
    assert advice.seconds == pytest.approx(80e-6)  # of the one that by its name does not use them


def test_modules_and_memory_of_torch():
    analysis = Analysis(read_trace(of_torch()))
    tree = list(module_tree(analysis).rows())
    assert [(row["name"].split("_")[0], row["depth"], row["calls"]) for row in tree] == [
        ("Sequential", 0, 3), ("Linear", 1, 3), ("ReLU", 1, 3), ("Linear", 1, 3),
    ]  # fmt: skip
    below = sum(row["host_total"] for row in tree[1:])
    assert tree[0]["host_total"] == pytest.approx(tree[0]["host_self"] + below)
    assert len(list(module_tree(analysis, depth=1).rows())) == 1
    changes = [item["args"]["Bytes"] for item in json.loads(of_torch())["traceEvents"] if item["name"] == "[memory]"]
    (device,) = memory_devices(analysis)
    assert len(device.places) == len(changes)
    held = list(memory_holders(analysis).rows())
    assert sum(row["held"] for row in held) == device.peak
    assert {row["operator"] for row in held} >= {"aten::addmm"}


# Two traces compared


def test_kernels_and_operators_of_one_step_are_compared(training_analysis):
    both = training_analysis, Analysis(read_trace(faster()))
    table = list(rows_compared("kernels", *both).rows())
    last = "Memcpy DtoH (Device -> Pageable)"
    assert [(row["name"], *micros(row, "change", "accumulated"), row["state"]) for row in table] == [
        ("add", -200, -200, "gone"), ("relu", 80, -120, "new"), ("s16816gemm", -50, -170, ""),
        (last, -40, -210, "gone"),
    ]  # fmt: skip
    assert (table[2]["calls_before"], table[2]["calls_after"]) == (1.0, 1.0)
    found = {(row["name"], row["shapes"]): row for row in rows_compared("operators", *both).rows()}
    assert micros(found["aten::mm", "[[8,4],[4,4]]"], "change") == [-50]
    assert micros(found["aten::linear", "[[8,4],[4,4]]"], "change") == [-120]
    assert found["aten::copy_", ""]["state"] == "gone"
    beside = [(row["name"], row["state"]) for row in execution(*both).rows()]
    assert beside == [("s16816gemm", ""), ("add", "gone"), (last, "gone"), ("relu", "new")]


@pytest.mark.parametrize("data", [training(), None], ids=["GPU", "torch"])
def test_a_trace_is_no_different_from_itself(data):
    one = Analysis(read_trace(data or of_torch()))
    tables = [rows_compared(view, one, one) for view in ("kernels", "operators", "modules")]
    for table in (*tables, execution(one, one)):
        assert all(row["change"] == 0 and row["state"] == "" for row in table.rows())


def test_launches_say_which_operator_a_kernel_is_of():
    """Also of a graph, which launches many, and of numbers that come again."""
    events = [
        event("first", 0, 20), launch(5, 2, name="cudaGraphLaunch"), kernel(5, 9, 1, "a"),
        kernel(5, 11, 1, "b", stream=8), event("second", 100, 20), launch(5, 102), kernel(5, 110, 1, "c"),
        kernel(8, 204, 1, "d"),
    ]  # fmt: skip
    trace = read_trace(text(*events))
    links, names = LaunchLinks(trace), trace.names_of(trace.scopes.row)
    assert [names[place] if place >= 0 else "" for place in links.operator] == ["first", "first", "second", ""]
    assert links.launch.tolist() == [0, 0, 1, -1]


# Beside the numbers of TensorBoard's own loader, torch-tb-profiler 0.4.3, which is older than the names that events'
# categories have today: where it does not know one, the trace that it reads says the older one.
OLDER = {
    "cpu_op": "Operator", "cuda_runtime": "Runtime", "cuda_driver": "Runtime", "kernel": "Kernel",
    "gpu_memcpy": "Memcpy", "gpu_memset": "Memset",
}  # fmt: skip
SEVERAL = [path for path in REAL if "_bs" not in path.parent.name or path.parent.name.endswith("_bs1")]
PLUGINS_PARTS = ("kernel", "copy", "fill", "communication", "runtime", "data loader", "CPU", "other")


def plugin(path, folder):
    """What the plugin makes of a trace."""
    from torch_tb_profiler.profiler.data import RunProfileData

    content = json.loads(gzip.decompress(path.read_bytes()))
    for item in content["traceEvents"]:
        item["cat"] = OLDER.get(item.get("cat", ""), item.get("cat", ""))
    (folder / "trace.json").write_text(json.dumps(content))
    return RunProfileData.parse("worker", "1", str(folder / "trace.json"), str(folder))


def near(value):
    """But for the rounding of times to microseconds, which the plugin does on the way."""
    return pytest.approx(value, rel=1e-4, abs=1e-6 if isinstance(value, float) and value < 100 else 0.5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", SEVERAL, ids=lambda path: path.parent.name)
def test_numbers_are_the_plugins(path, tmp_path):
    theirs, analysis = plugin(shared(path), tmp_path), Analysis(read_trace(path))
    vars(analysis.costs)["occupancy"] = analysis.trace.gpu.occupancy  # zeros for large kernels too, as it was written
    overview = analysis.overview
    gpu, use = overview.gpus[0], theirs.gpu_metrics_parser
    assert gpu.utilization == near(use.gpu_utilization[0])
    assert gpu.sm_efficiency == near(use.avg_approximated_sm_efficiency_per_device[0])
    assert 100 * (gpu.occupancy or 0) == near(use.avg_occupancy_per_device[0])
    *parts, whole = theirs.avg_costs.costs
    assert overview.step_time * 1e6 == near(whole)
    count = 5 if path == H100 else len(parts)  # its data loader is one that the plugin does not know
    assert [overview.parts[part] * 1e6 for part in PLUGINS_PARTS[:count]] == near(parts[:count])
    found = {name: row for name, row in rows(kernels(analysis)).items() if row["kind"] == "kernel"}
    assert set(found) == set(theirs.kernel_stat.index)
    for name, row in theirs.kernel_stat.iterrows():
        assert [found[name]["calls"], found[name]["total"] * 1e6] == near([row["count"], row["sum"]])
    ours = rows(operators(analysis))
    assert {one.name for one in theirs.op_list_groupby_name} == set(ours)
    for one in theirs.op_list_groupby_name:
        times = micros(ours[one.name], "host_total", "host_self", "device_total", "device_self")
        known = [one.host_duration, one.self_host_duration, one.device_duration, one.self_device_duration]
        assert [ours[one.name]["calls"], *times] == near([one.calls, *known]), one.name


# Occupancy against NVIDIA's own calculator and against the profiler's estimates in real traces

# Of cudaOccMaxActiveBlocksPerMultiprocessor in cuda_occupancy.h, CUDA 13.0: compute capability, threads and shared
# memory of a multiprocessor; threads of a block, registers, shared memory of a block; and how many blocks fit.
NVIDIAS = {
    ("10.0", 2048, 233472): [(512, 128, 5120, 1), (96, 118, 2112, 5), (192, 128, 16384, 2), (512, 168, 81920, 0)],
    ("12.0", 1536, 102400): [(64, 32, 5120, 16), (192, 64, 2112, 5), (192, 16, 0, 8), (32, 92, 40000, 2)],
    ("7.0", 2048, 98304): [(128, 64, 5120, 8), (768, 168, 2112, 0), (128, 64, 40000, 2), (192, 92, 5120, 3)],
    ("7.5", 1024, 65536): [(256, 53, 2048, 4), (512, 255, 5120, 0), (96, 255, 5120, 2), (32, 168, 5120, 12)],
    ("8.0", 2048, 167936): [(1, 92, 2112, 20), (128, 118, 16384, 4), (64, 32, 2048, 32), (64, 92, 65536, 2)],
    ("8.6", 1536, 102400): [(1, 16, 1024, 16), (96, 168, 2112, 4), (384, 53, 0, 3), (384, 16, 65536, 1)],
    ("8.9", 1536, 102400): [(96, 92, 0, 6), (512, 53, 1024, 2), (96, 53, 2112, 12), (1024, 118, 1024, 0)],
    ("9.0", 2048, 233472): [(768, 64, 2112, 1), (1, 118, 65536, 3), (96, 40, 16384, 13), (256, 118, 2112, 2)],
}  # fmt: skip


@pytest.mark.parametrize(("capability", "threads", "memory"), NVIDIAS)
def test_as_many_blocks_fit_as_nvidia_says(capability, threads, memory):
    gpu = GpuLimits(
        threads_per_multiprocessor=threads, registers_per_multiprocessor=65536, shared_memory_per_multiprocessor=memory,
        compute_capability=capability,
    )  # fmt: skip
    for block, registers, memory_of, expected in NVIDIAS[capability, threads, memory]:
        occupancy = min(expected * block / threads, 1.0) or None
        assert theoretical(gpu, (block, 1, 1), registers, memory_of) == occupancy


@pytest.mark.parametrize("name", NAMES)
def test_the_estimate_is_the_profilers_where_that_has_one(name):
    """In whole per cents; with more than 48 KiB of shared memory the profiler thinks that nothing fits, and says 0."""
    for traced in runs(name)[0].events:
        if (launch := traced.gpu_launch).kind == "kernel":
            own = achieved(H200, launch.grid, launch.block, traced.registers, traced.shared_memory)
            lost = traced.occupancy == 0 and (traced.shared_memory or 0) > 49152
            assert lost or traced.occupancy == pytest.approx(own, abs=0.00501)


def test_few_blocks_leave_most_of_the_gpu_empty_and_what_is_not_known_has_no_occupancy():
    assert achieved(H200, (66, 1, 1), (1024, 1, 1), 32, 0) == pytest.approx(0.5 * 1024 / 2048)
    assert achieved(H200, (10_000, 1, 1), (1024, 1, 1), 32, 0) == theoretical(H200, (1024, 1, 1), 32, 0) == 1
    unknown = [(H200, (), 32, 0), (H200, (128,), None, 0), (H200, (128,), 32, None), (GpuLimits(), (128,), 32, 0)]
    unknown += [(H200, (128, 128, 128), 32, 0), (GpuLimits(compute_capability="gfx90a"), (128,), 32, 0)]
    assert [theoretical(*launch) for launch in unknown] == [None] * 6
    assert achieved(H200, (), (128,), 32, 0) is None
