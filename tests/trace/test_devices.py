"""Traces of every kind of device: their kernels, copies, waits and calls, and what is said of unknown categories."""

import json

import pytest

from inferlens import load_trace
from inferlens.trace.analysis import HOST, Analysis, synchronising
from inferlens.trace.model import Category, LaunchLinks
from inferlens.trace.read import read_trace
from tests.trace.samples import event, kernel, launch, step, text, training


def steps_of_a_device(runtime, work):
    """Return three steps, each with four operators that launch one event of the device."""
    events = []
    for number in range(3):
        begin = 1_700_000_000_000_000.0 + number * 1000
        events.append(step(number, begin, 900))
        for place in range(4):
            at, correlation = begin + place * 200, 4 * number + place + 1
            events += [
                event("aten::mm", at + 10, 100),
                event("launch", at + 20, 10, runtime, correlation=correlation),
                kernel(correlation, at + 40, 120, category=work),
            ]
    return text(*events)


def kinds(*events, write=text):
    """Return the trace of these events, and the kind of each name."""
    trace = read_trace(write(*events))
    return trace, {trace.name_of(row): Category(int(trace.category[row])).name for row in range(len(trace))}


def plain(*events):
    """The events alone, as torch_npu and ONNX Runtime write them."""
    return json.dumps(events).encode()


@pytest.mark.parametrize(("runtime", "work"), [
    *((name, "kernel") for name in ("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "privateuse1_runtime",
                                    "privateuse1_driver", "hpu_op", "glow_runtime")),
    ("mtia_runtime", "mtia_ccp_events"), ("hpu_runtime", "hpu_op"), ("mlu_runtime", "mlu_kernel"),
    ("gcu_driver", "Kernel"), ("Runtime", "Kernel"),
])  # fmt: skip
def test_kernels_and_calls_of_all_devices_are_the_same(runtime, work):
    cuda, device = (
        Analysis(read_trace(steps_of_a_device(*pair))) for pair in (("cuda_runtime", "kernel"), (runtime, work))
    )
    assert device.overview == cuda.overview
    assert device.overview.gpus[0].utilization == pytest.approx(1440 / 2900)
    assert device.overview.idle[HOST] > 0
    assert device.costs.device_total.sum() == cuda.costs.device_total.sum() == 1440 * 1000


def test_copies_waits_and_markers_of_all_devices_are_told_apart():
    names = {
        "gpu_memcpy": "MEMCPY", "mlu_memcpy": "MEMCPY", "gpu_memset": "MEMSET", "xpu_sync": "SYNCHRONISATION",
        "cuda_sync": "SYNCHRONISATION", "cuda_event": "MARKER", "mtia_insight": "MARKER", "mtia_counters": "MARKER",
        "xpu_scope_profiler": "MARKER", "hardware_counters": "MARKER", "cuda_profiler_range": "MARKER",
        "gpu_user_annotation": "GPU_ANNOTATION", "mlu_user_annotation": "GPU_ANNOTATION", "overhead": "OVERHEAD",
        "user_annotation": "ANNOTATION", "collective_comm": "OPERATOR", "mtia_workloadd": "RUNTIME",
    }  # fmt: skip
    trace, found = kinds(*(event(name, place, 1, name) for place, name in enumerate(names)))
    assert (found, trace.notes) == (names, ())


def test_work_of_mtia_is_told_apart_by_its_name():
    """The process is the device; streams are in the arguments."""

    def work(name, at, takes, **args):
        return {**event(name, at, takes, "mtia_ccp_events", 408, stream=102, **args), "pid": 9}

    trace, found = kinds(
        event("enqueueCommand memcpyHtoDAsync", 1, 1, "mtia_runtime", correlation=5, device=9, stream_id=102),
        event("synchronizeStream", 2, 20, "mtia_runtime", correlation=6, device=9, stream_id="102"),
        work("dma_request", 3, 4, correlation=5, direction="HOST_TO_DEVICE", size=1852),
        work("batch_matmul-dtype_Float", 8, 10, correlation=7, column="0", row="0"),
        work("event_wait", 19, 3, wait_on_stream=104, sqid=11),
    )
    assert found == {
        "enqueueCommand memcpyHtoDAsync": "RUNTIME", "synchronizeStream": "RUNTIME", "dma_request": "MEMCPY",
        "batch_matmul-dtype_Float": "KERNEL", "event_wait": "SYNCHRONISATION",
    }  # fmt: skip
    assert (trace.gpu.device.tolist(), trace.gpu.stream.tolist()) == ([9, 9], [102, 102])
    assert trace.names_of(synchronising(trace, LaunchLinks(trace))) == ["synchronizeStream"]


def test_events_of_hpu_without_a_device_are_calls_of_the_host():
    events = (event("graph_launch", 1, 2, "hpu_op"), kernel(1, 5, 2, "convolution", "hpu_op"))
    assert kinds(*events)[1] == {"graph_launch": "RUNTIME", "convolution": "KERNEL"}


def test_a_trace_of_ascend_has_kernels_copies_and_waits():
    """torch_npu writes times as text and no categories; processes and task types say what events are."""

    def process(pid, name):
        return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}

    def work(name, pid, at, takes, **args):
        made = event(name, 0, takes, tid=3, **args)
        del made["cat"]
        return {**made, "pid": pid, "ts": f"16995296231060{at}"}

    trace, found = kinds(
        process(4, "Ascend Hardware"), process(5, "CANN"), process(6, "Overlap Analysis"),
        {**event("ProfilerStep#6", 0, 90, "user_annotation"), "ts": "1699529623106000.000"},
        work("Node@launch", 5, "01.125", 4, connection_id=117),
        work("aclnnMatmul_MatMulV2", 4, "10.250", 50, Task__Type="AI_CORE", connection_id=117),
        work("MEMCPY_ASYNC", 4, "60.375", 9, Task__Type="MEMCPY_ASYNC"),
        work("EVENT_WAIT", 4, "70.500", 5, Task__Type="EVENT_WAIT"), work("Computing", 6, "10.250", 50), write=plain,
    )  # fmt: skip
    assert found == {
        "ProfilerStep#6": "ANNOTATION", "Node@launch": "RUNTIME", "aclnnMatmul_MatMulV2": "KERNEL",
        "MEMCPY_ASYNC": "MEMCPY", "EVENT_WAIT": "SYNCHRONISATION", "Computing": "MARKER",
    }  # fmt: skip
    analysis = Analysis(trace)
    assert (trace.begin[2] - trace.begin[1], trace.notes) == (9125, ())
    assert analysis.launch_links.launch.tolist() == [0, -1]
    assert analysis.overview.parts["kernel"] == pytest.approx(50e-6)


@pytest.mark.parametrize(("name", "arguments", "named"), [
    ("operators", ("shapes", "stack"), {}), ("kernels", (), {"by_operator": True}),
    *((name, (), {}) for name in ("operators", "kernels", "modules", "memory", "steps", "timeline", "events")),
])  # fmt: skip
def test_data_frames_of_all_ranks_have_one_schema(tmp_path, name, arguments, named):
    polars = pytest.importorskip("polars")
    ranks = {
        "all": training(), "no GPU": text(step(0, 0, 90), event("aten::mm", 10, 20)), "nothing": b'{"traceEvents": []}',
        "no operator": text(launch(1, 1), kernel(1, 5, 2)),
        "no shapes": text(event("aten::mm", 10, 20), launch(1, 12), kernel(1, 15, 9)),
    }  # fmt: skip
    frames = []
    for rank, data in ranks.items():
        (tmp_path / f"{rank}.json").write_bytes(data)
        frames.append(getattr(load_trace(tmp_path / f"{rank}.json"), name)(*arguments, **named))
    assert [frame.schema for frame in frames] == [frames[0].schema] * len(frames)
    assert len(polars.concat(frames)) == sum(map(len, frames))


def test_unknown_categories_are_said_with_their_shares():
    unknown = kernel(3, 100, 40, "conv", "ipu_work")
    trace = read_trace(text(event("op", 1, 5), launch(1, 2), kernel(1, 10, 60), unknown))
    assert trace.notes == ("25 % of the events, 40 % of the device time are of unknown categories: ipu_work.",)
    assert Analysis(trace).overview.notes == trace.notes


def test_unknown_categories_of_the_host_and_events_without_one_are_said():
    without = {key: value for key, value in event("a", 1, 1).items() if key != "cat"}
    many = [event("x", 1, 1, f"other{number}") for number in range(7)]
    (note,) = read_trace(text(event("op", 1, 5), *many, without, without)).notes
    assert note == "90 % of the events are of unknown categories: none, other0, other1, other2, other3 and 3 more."


def test_a_profile_of_onnx_runtime_has_a_step_for_each_run():
    events = [event("session_initialization", 0, 900, "Session")]
    for number in range(3):
        events += [event("model_run", 1000 + 100 * number, 50, "Session")]
        events += [event("mm_kernel_time", 1010 + 100 * number, 30, "Node", op_name="MatMul", provider="CPU")]
    trace, found = kinds(*events, write=plain)
    assert (trace.notes, found["mm_kernel_time"]) == ((), "OPERATOR")
    assert Analysis(trace).steps.names.tolist() == ["0", "1", "2"]


def test_launches_whose_kernels_the_profiler_lost_are_counted():
    events = [launch(number, 10 * number) for number in range(1, 11)]
    events += [kernel(number, 10 * number + 5, 2) for number in range(1, 8)]
    (note,) = read_trace(text(*events)).notes
    assert note == "3 events launch kernels that are missing in the trace: it shows less work than there was."
    assert read_trace(text(*events[:17], *events[10:], *(kernel(n, 10 * n + 5, 2) for n in (8, 9, 10)))).notes == ()


def test_launches_into_a_graph_run_nothing():
    events = [launch(1, 0, name="cudaStreamBeginCapture")] + [launch(number, 10 * number) for number in range(2, 9)]
    events += [launch(9, 95, name="cudaStreamEndCapture"), launch(10, 100), kernel(10, 105, 2)]
    assert read_trace(text(*events)).notes == ()


def test_a_step_that_the_profiler_left_open_does_not_count():
    events = [step(number, 1000 * number, 900) for number in range(3)] + [step(3, 3000, -1)]
    events += [event("aten::mm", 1000 * number + 10, 100) for number in range(4)]
    assert Analysis(read_trace(text(*events))).steps.counted().names.tolist() == ["0", "1", "2"]
