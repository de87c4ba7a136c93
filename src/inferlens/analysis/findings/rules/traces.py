"""What a trace shows that could be better; ``seconds`` are of a step, and what a finding is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import HostWait
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import SECOND
from inferlens.trace.steps import synchronising
from inferlens.trace.tables import kernels
from inferlens.trace.trace import Category

_ELEMENTWISE_NAMES = ("elementwise_kernel", "vectorized_elementwise", "unrolled_elementwise", "CatArrayBatchedCopy")
_ALLOCATES = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister")


class TraceEvidence:
    """What the rules look at; times are seconds of one step."""

    record = None

    def __init__(self, analysis: Analysis) -> None:
        overview = analysis.overview
        self.analysis, self.step, self.bound = analysis, overview.step_time, overview.bound
        self.parts, self.idle = overview.parts, overview.idle
        self.kernels = list(kernels(analysis).rows())
        self.kernel_time = sum(row["total"] for row in self.kernels if row["kind"] == "kernel") / analysis.tables_of

    def found(self, template: str, seconds: float, over: float, **more: Any) -> list[Finding]:
        """A finding about so many seconds of a step, ``{step}`` in its template, if they are over a share of it."""
        share = seconds / self.step
        template = template.replace("{step}", "{share:percent} of a step ({time:duration})")
        numbers = {"time": seconds, "share": share}
        return [found(template, numbers, seconds=seconds, whole=self.step, share=share, **more)] if share > over else []

    @property
    def host_wait(self) -> HostWait | None:
        """How long the GPU waits for the host, the data loader aside."""
        idle = self.idle["waiting for the host"] - self.parts["data loader"]
        calls, total = (sum(row[name] for row in self.kernels) for name in ("calls", "total"))
        if not calls:
            return None
        numbers = {"time": idle, "share": idle / self.step}
        return HostWait(idle, self.step, round(calls / self.analysis.tables_of), total / calls, numbers, traced=True)


@rule("data-loader", of="trace", hint="Load data in other processes: num_workers of DataLoader, and pin_memory.")
def data_loader(seen: TraceEvidence) -> list[Finding]:
    """The loader works while no GPU does."""
    said = "{step} goes to the data loader while no GPU works."
    return seen.found(said, seen.parts["data loader"], thresholds.LOADER)


@rule("communication", of="trace", hint="Communicate while kernels run: larger buckets, gradients sent as they come.")
def communication(seen: TraceEvidence) -> list[Finding]:
    """Communication that no kernel runs beside."""
    said = "{step} goes to communication while no other kernel runs."
    return seen.found(said, seen.parts["communication"], thresholds.COMMUNICATION)


@rule("copies", of="trace")
def copies(seen: TraceEvidence) -> list[Finding]:
    """Copies that no kernel runs beside."""
    names = [row["name"] for row in seen.kernels if row["kind"] == "copy"]
    pageable = any("Pageable" in name for name in names)
    how = "from and to pinned memory (pin_memory, non_blocking=True)" if pageable else "on a stream beside the kernels"
    said = "{step} goes to copies while no kernel runs, most to {name}."
    name, hint = next(iter(names), "none"), f"Copy less, or {how}."
    return seen.found(said, seen.parts["copy"], thresholds.COPIES, name=name, hint=hint)


@rule("synchronising", of="trace", hint="Wait for the GPU less often: no .item(), .cpu() or print of a tensor.")
def synchronises(seen: TraceEvidence) -> list[Finding]:
    """The host waits for the GPU, which then waits for the host."""
    trace = seen.analysis.trace
    rows = synchronising(trace)
    place = seen.analysis.launch_links.innermost(trace.thread[rows], trace.begin[rows], Category.OPERATOR)
    most = Counter(trace.names_of(trace.scopes.row[place[place >= 0]])).most_common(1)
    said = "The GPU is idle for {step} while the host is in {calls:#waiting call}{by}."
    by = f", most by {most[0][0]}" if most else ""
    return seen.found(said, seen.idle["synchronising"], thresholds.SYNCHRONISING, calls=len(rows), by=by)


@rule(
    "tensor-cores-unused",
    of="trace",
    hint="Use tensor cores: fp16 or bf16 (autocast), or TF32 (torch.set_float32_matmul_precision('high')).",
)
def tensor_cores_unused(seen: TraceEvidence) -> list[Finding]:
    """Kernels of operators that could use tensor cores, on a GPU that has them."""
    trace, costs = seen.analysis.trace, seen.analysis.costs
    if not trace.about.devices or trace.about.devices[0].major < 7:
        return []
    launched = costs.operator >= 0
    durations = trace.duration[trace.gpu.row]
    could = np.zeros(len(launched), bool)
    could[launched] = costs.eligible[costs.operator[launched]]
    unused = float(durations[could & costs.tells_tensor_cores & ~costs.uses_tensor_cores].sum())
    time = unused / max(float(durations.sum()), 1.0) * (seen.parts["kernel"] or 0.0)
    said = "Kernels that could use them and do not, as their names tell, take {step}."
    return seen.found(said, time, thresholds.WITHOUT_TENSOR_CORES)


@rule("allocations", of="trace", hint="Warm up before profiling, or keep memory between steps.")
def allocations(seen: TraceEvidence) -> list[Finding]:
    """Calls of the driver that allocate or free, within steps."""
    trace, steps = seen.analysis.trace, seen.analysis.counted
    rows = trace.calls.row[trace.starting(trace.calls.row, *_ALLOCATES)]
    inside = np.zeros(len(rows), bool)
    for low, high in zip(steps.host_begin.tolist(), steps.host_end.tolist(), strict=True):
        inside |= (trace.begin[rows] >= low) & (trace.begin[rows] < high)
    time = float(trace.duration[rows[inside]].sum()) / max(len(steps), 1) / SECOND
    said = "{calls:#call} that allocate or free take {step}."
    return seen.found(said, time, thresholds.ALLOCATING, calls=int(inside.sum()))


@rule("elementwise", of="trace", hint="Fuse what is done element by element: compile the model.")
def elementwise(seen: TraceEvidence) -> list[Finding]:
    """Kernels that do little but read and write memory."""
    rows = [row for row in seen.kernels if any(part in row["name"] for part in _ELEMENTWISE_NAMES)]
    time = sum(row["total"] for row in rows) / seen.analysis.tables_of
    of_kernels = time / seen.kernel_time if seen.kernel_time else 0.0
    said = "{of_kernels:percent} of the kernels' time is in elementwise ones, which mostly read and write memory."
    return seen.found(said, time, 0.0, of_kernels=of_kernels) if of_kernels > thresholds.ELEMENTWISE else []


@rule("gpu-not-filled", of="trace", hint="Give the GPU more at a time: a larger batch.")
def gpu_not_filled(seen: TraceEvidence) -> Iterator[Finding]:
    """A GPU that is the bottleneck, with too few blocks for its multiprocessors."""
    said = "GPU {device} runs kernels for {busy:percent} of the time, and has blocks for {filled:percent} of its units."
    for gpu in seen.analysis.gpu_use if seen.bound == "GPU" else ():
        busy, filled = gpu.utilization or 0.0, gpu.sm_efficiency
        if filled is not None and filled < thresholds.FILLED * busy:
            time = (busy - filled) * seen.step
            yield from seen.found(said, time, 0.0, device=gpu.device, busy=busy, filled=filled)
