"""Kernels are of the node of ONNX Runtime that was running when they were launched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime
import pytest

from inferlens.backends.onnx.modules import origins
from inferlens.backends.onnxruntime.profile import OPTIMISED, ProfileEvent, ask_for_profile, runs_of
from inferlens.backends.onnxruntime.runner import kernels_by_node
from inferlens.backends.profiling.kernel_matching import MatchedKernels, origins_by_match
from inferlens.backends.profiling.traced_runs import traced_runs
from inferlens.trace import read
from tests.backends import small
from tests.backends.profiling.layered import Attention, model, prepared

BASE = 1_700_000_000_000_000_000  # of the trace, nanoseconds since 1970
LATER = 5_000_000_000  # the profile began so long after that
THREAD = {"pid": 3, "tid": 4, "ph": "X"}


def trace_of(events: list[ProfileEvent], late: float = 1.5) -> bytes:
    """What torch.profiler would write of the last run: each node launches two kernels and a copy within its time."""
    ((_, nodes),) = runs_of(events, 1)
    offset = LATER / 1e3
    begin, end = offset + nodes[0].ts - 50, offset + nodes[-1].end + 50
    written: list[dict[str, Any]] = [
        {**THREAD, "cat": "user_annotation", "name": "inferlens run", "ts": begin, "dur": end - begin}
    ]
    for place, node in enumerate(nodes):
        for number, kind in enumerate(("kernel", "kernel", "gpu_memcpy")):
            arguments = {"correlation": 1 + place * 3 + number}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": offset + node.ts + late, "dur": 0.1}
            written.append({**THREAD, **launch, "args": arguments})
            name, moment = f"{node.args.op_name}_{number}", end - 40 + place + number / 9
            ran = {"cat": kind, "name": name, "ts": moment, "dur": 0.1}
            shape = {"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1]}
            written.append({**THREAD, **ran, "pid": 0, "tid": 7, "args": arguments | shape})
    return json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": written}).encode()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], MatchedKernels]:
    """The kernels of a small model, run and profiled on the CPU, by clocks that differ by so many nanoseconds."""
    folder = tmp_path_factory.mktemp("profiled")
    network = model(Attention)
    preparation = prepared(folder)
    with small.backend("onnxruntime:cpu").prepare(network, small.case("onnxruntime:cpu"), preparation):
        path = preparation.folder / "model.onnx"
    options = onnxruntime.SessionOptions()
    ask_for_profile(options, folder)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, small.arrays(network))
    events = msgspec.json.decode(Path(session.end_profiling()).read_bytes(), type=list[ProfileEvent])
    (run,) = traced_runs(read(trace_of(events)))
    graphs = origins(path), origins(folder / OPTIMISED)
    return lambda item: kernels_by_node(run, events, BASE + LATER + item, *graphs)


@pytest.fixture
def matched(profiled: Callable[[int], MatchedKernels]) -> MatchedKernels:
    return profiled(0)


def test_a_kernel_is_of_the_node_that_was_running_at_its_launch(matched: MatchedKernels) -> None:
    assert len(matched.kernels) == 3 * len(matched.layers)
    kinds = {layer.name: layer.kind for layer in matched.layers}
    assert len(kinds) > 5
    assert {kinds[origin.layer] for kernel, origin in matched.kernels if kernel.name == "MatMul_1"} <= {"MatMul"}
    for kernel, origin in matched.kernels:
        assert kernel.name.rpartition("_")[0] == kinds[origin.layer]
    assert {"stem", "block"} <= {module for _, origin in matched.kernels for module in origin.modules}


def test_the_same_kernels_of_a_replay_have_the_same_nodes(matched: MatchedKernels) -> None:
    replayed = [kernel for kernel, _ in matched.kernels]
    assert list(origins_by_match(replayed, matched).of) == [origin for _, origin in matched.kernels]


@pytest.mark.parametrize("apart", [-1_000_000_000, 1_000_000_000])
def test_clocks_that_differ_are_said(apart: int, profiled: Callable[[int], MatchedKernels]) -> None:
    matched_kernels = profiled(apart)
    assert not matched_kernels.kernels
    assert "clocks" in origins_by_match([], matched_kernels).absent["modules"]
