"""Small traces: written by hand, event by event, by torch.profiler itself, and with something wrong by chance."""

from __future__ import annotations

import json
import random
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inferlens.trace.analysis import Analysis
from inferlens.trace.model import Trace
from inferlens.views.renderers import render
from inferlens.views.trace import VIEWS, Selection
from inferlens.views.trace_documents import ShownTrace, traces_document

# Public traces that lie beside the checkout where somebody has put them; they are no part of it.
SHARED = Path(__file__).parents[3] / "shared" / "traces"
V100 = SHARED / "v100_resnet50_train.json.gz"
H100 = SHARED / "h100_owlv2.json.gz"
REAL = (V100, H100, *sorted(Path(__file__).parents[2].glob("examples/h200/traces/*/*.gz")))


def shared(path: Path) -> Path:
    """The file, or a skipped test."""
    if not path.exists():
        pytest.skip(f"{path.name} is not here: it is a public trace that is not part of the checkout")
    return path


def drawn(trace: Trace, view: str, format: str = "table", selection: Selection | None = None) -> str:
    """A view of a trace as text."""
    trace_view = VIEWS[view](Analysis(trace), selection or Selection())
    return render(traces_document([ShownTrace("trace", ("trace",), [trace_view])], [view], all_tables=True), format)


def event(
    name: str, begin: float, duration: float, category: str = "cpu_op", tid: Any = 1, **args: Any
) -> dict[str, Any]:
    """A complete event of the host, in microseconds; ``__`` in the name of an argument is a blank."""
    named = {key.replace("__", " "): value for key, value in args.items()}
    made = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": tid, "ts": begin, "dur": duration}
    return {**made, "args": named} if named else made


def launch(
    number: int, begin: float, duration: float = 1.0, name: str = "cudaLaunchKernel", tid: Any = 1
) -> dict[str, Any]:
    """A call of the CUDA runtime."""
    return event(name, begin, duration, "cuda_runtime", tid, correlation=number)


def kernel(
    number: int, at: float, takes: float, name: str = "gemm", category: str = "kernel", stream: int = 7, **args: Any
) -> dict[str, Any]:
    """An event of GPU 0."""
    given = {"device": 0, "stream": stream, "correlation": number, **args}
    named = {key.replace("__", " "): value for key, value in given.items()}
    return {**event(name, at, takes, category, stream), "pid": 0, "args": named}


def step(number: int, begin: float, duration: float) -> dict[str, Any]:
    """A step's annotation."""
    return event(f"ProfilerStep#{number}", begin, duration, "user_annotation")


def text(*events: dict[str, Any], **about: Any) -> bytes:
    """The events as Kineto writes them."""
    whole = {"schemaVersion": 1, **about, "traceEvents": list(events), "traceName": "t.json"}
    return json.dumps(whole, indent=2).encode()


GPU = {
    "id": 0, "name": "Test GPU", "totalGlobalMem": 2**34, "computeMajor": 9, "computeMinor": 0, "numSms": 100,
    "maxThreadsPerMultiprocessor": 2048, "warpSize": 32,
}  # fmt: skip


def training() -> bytes:
    """Two steps, each of two operators, one in the other, three kernels on two streams, and a copy."""
    events = []
    known = {"est. achieved occupancy %": 0, "grid": [8, 1, 1], "block": [128, 1, 1]}
    for number, at in ((0, 0.0), (1, 1000.0)):
        first = 10 * number
        events += [
            step(number, at, 600),
            event("enumerate(DataLoader)#X.__next__", at + 1, 49, "user_annotation"),
            event("aten::linear", at + 100, 300, Input__Dims=[[8, 4], [4, 4]], Call__stack="a.py(1): f"),
            event("aten::mm", at + 150, 100, Input__Dims=[[8, 4], [4, 4]]),
            launch(first + 1, at + 160, 10),
            launch(first + 2, at + 300, 10),
            event("aten::copy_", at + 450, 50),
            launch(first + 3, at + 460, 5, "cudaMemcpyAsync"),
            event("cudaStreamSynchronize", at + 470, 120, "cuda_runtime", correlation=first + 4),
            kernel(first + 1, at + 200, 100, "s16816gemm", blocks__per__SM=0.5, **known),
            kernel(first + 2, at + 320, 200, "add", stream=8, blocks__per__SM=2.0),
            kernel(first + 3, at + 530, 40, "Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", bytes=4096),
        ]
    return text(*events, deviceProperties=[GPU])


def faster() -> bytes:
    """One step of what training() does: the gemm twice as fast, the addition gone, something new at the end."""
    return text(
        step(7, 0, 400), event("aten::linear", 100, 200, Input__Dims=[[8, 4], [4, 4]]),
        event("aten::mm", 150, 100, Input__Dims=[[8, 4], [4, 4]]), launch(1, 160, 10), launch(2, 260, 10),
        kernel(1, 200, 50, "s16816gemm"), kernel(2, 300, 80, "relu"),
    )  # fmt: skip


@cache
def of_torch() -> bytes:
    """What torch.profiler writes of a few steps of a small model on the CPU."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, record_shapes=True, profile_memory=True, with_stack=True) as profiler:
        for _ in range(3):
            with torch.profiler.record_function("forward"):
                model(torch.randn(2, 8))
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_bytes()


def mutated(data: bytes, of: random.Random) -> bytes:
    """``data`` with a few bytes changed, taken out, put in, doubled, or numbers and texts replaced by odd ones."""
    made = bytearray(data)
    words = rb'NaN -Infinity 1e999 " { } [ ] , \ud800 \x null },{ }],'.split()
    odd = [*b'0 -1 1e300 "7" null [] {} true -9223372036854775808'.split(), b'"%s"' % (b"x" * 9999)]
    for _ in range(of.randint(1, 6)):
        at, other = of.randrange(len(made) + 1), of.randrange(len(made) + 1)
        values = list(re.finditer(rb'\d+(?:\.\d+)?|"[^"\n]*"', bytes(made))) or [re.match(b"", b"")]
        start, end = of.choice(values).span()  # type: ignore[union-attr]
        place, new = of.choice(
            [
                (slice(at, at + 1), bytes([of.randrange(256)])),
                (slice(at, at + of.randrange(1, 200)), b""),
                (slice(at, at), of.choice(words)),
                (slice(at, None), b""),
                (slice(at, at), bytes(made[other : other + of.randrange(1, 500)])),
                (slice(start, end), of.choice(odd)),
            ]
        )
        made[place] = new
    return bytes(made)
