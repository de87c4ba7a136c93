"""What a trace shows that could be better; ``seconds`` are of a step, and what a finding is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import HostWait
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import SECOND
from inferlens.trace.steps import synchronising
from inferlens.trace.trace import Category

_ELEMENTWISE_NAMES = ("elementwise_kernel", "vectorized_elementwise", "unrolled_elementwise", "CatArrayBatchedCopy")
_ALLOCATES = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister")
_STEP = "{share:percent} of a step ({time:duration})"


class TraceEvidence:
    """What the rules look at; times are seconds of one step."""

    case = record = None
    facts: Mapping[str, Any] = {}

    def __init__(self, analysis: Analysis) -> None:
        overview = analysis.overview
        self.analysis, self.step, self.bound = analysis, overview.step_time, overview.bound
        self.parts, self.idle = overview.parts, overview.idle
        self.kernels = list(analysis.kernels().rows())
        self.kernel_time = sum(row["total"] for row in self.kernels if row["kind"] == "kernel") / analysis.tables_of

    def found(self, template: str, seconds: float, **more: Any) -> Finding:
        """A finding about so many seconds of a step: ``{step}`` in its template."""
        share = seconds / self.step
        numbers = {"time": seconds, "share": share}
        return found(template.replace("{step}", _STEP), numbers, seconds=seconds, whole=self.step, share=share, **more)

    @property
    def host_wait(self) -> HostWait | None:
        """How long the GPU waits for the host, the data loader aside."""
        idle = self.idle["waiting for the host"] - self.parts["data loader"]
        calls, total = (sum(row[name] for row in self.kernels) for name in ("calls", "total"))
        numbers = {"time": idle, "share": idle / self.step}
        return (
            HostWait(idle, self.step, round(calls / self.analysis.tables_of), total / calls, numbers) if calls else None
        )


@rule("data-loader", of="trace", hint="Load data in other processes: num_workers of DataLoader, and pin_memory.")
def data_loader(seen: TraceEvidence) -> Iterator[Finding]:
    """The loader works while no GPU does."""
    time = seen.parts["data loader"]
    if time > thresholds.LOADER * seen.step:
        yield seen.found("{step} goes to the data loader while no GPU works.", time)


@rule(
    "synchronising",
    of="trace",
    hint="Wait for the GPU less often: no .item(), .cpu() or print of a tensor within a step.",
)
def synchronises(seen: TraceEvidence) -> Iterator[Finding]:
    """The host waits for the GPU, which then waits for the host."""
    trace, time = seen.analysis.trace, seen.idle["synchronising"]
    rows = synchronising(trace)
    if time > thresholds.SYNCHRONISING * seen.step and len(rows):
        links = seen.analysis.launch_links
        place = links.innermost(trace.thread[rows], trace.begin[rows], Category.OPERATOR)
        names = trace.names_of(trace.scopes.row[place[place >= 0]])
        most = max(set(names), key=names.count) if names else ""
        yield seen.found(
            "The GPU is idle for {step} while the host is in {calls:#waiting call}{by}.",
            time, calls=len(rows), by=f", most by {most}" if most else "",
        )  # fmt: skip


@rule(
    "tensor-cores-unused",
    of="trace",
    hint="Use tensor cores: fp16 or bf16 (autocast), or TF32 (torch.set_float32_matmul_precision('high')).",
)
def tensor_cores_unused(seen: TraceEvidence) -> Iterator[Finding]:
    """Kernels of operators that could use tensor cores, on a GPU that has them."""
    trace, costs = seen.analysis.trace, seen.analysis.costs
    if not trace.about.devices or trace.about.devices[0].major < 7:
        return
    launched = costs.operator >= 0
    durations = trace.duration[trace.gpu.row]
    could = np.zeros(len(launched), bool)
    could[launched] = costs.eligible[costs.operator[launched]]
    unused = float(durations[could & costs.tells_tensor_cores & ~costs.uses_tensor_cores].sum())
    time = unused / max(float(durations.sum()), 1.0) * (seen.parts["kernel"] or 0.0)
    if time > thresholds.WITHOUT_TENSOR_CORES * seen.step:
        yield seen.found("Kernels that could use them and do not, as their names tell, take {step}.", time)


@rule("copies", of="trace")
def copies(seen: TraceEvidence) -> Iterator[Finding]:
    """Copies that no kernel runs beside."""
    time = seen.parts["copy"]
    if time > thresholds.COPIES * seen.step:
        rows = [row for row in seen.kernels if row["kind"] == "copy"]
        pageable = any("Pageable" in row["name"] for row in rows)
        how = "from and to pinned memory (pin_memory, non_blocking=True)"
        yield seen.found(
            "{step} goes to copies while no kernel runs, most to {name}.",
            time, name=rows[0]["name"], hint=f"Copy less, or {how if pageable else 'on a stream beside the kernels'}.",
        )  # fmt: skip


@rule("communication", of="trace", hint="Communicate while kernels run: larger buckets, gradients sent as they come.")
def communication(seen: TraceEvidence) -> Iterator[Finding]:
    """Communication that no kernel runs beside."""
    time = seen.parts["communication"]
    if time > thresholds.COMMUNICATION * seen.step:
        yield seen.found("{step} goes to communication while no other kernel runs.", time)


@rule(
    "allocations",
    of="trace",
    hint="Warm up before profiling, or keep memory: the allocator asks the driver within steps.",
)
def allocations(seen: TraceEvidence) -> Iterator[Finding]:
    """Calls of the driver that allocate or free, within steps."""
    trace, steps = seen.analysis.trace, seen.analysis.counted
    rows = trace.calls.row[trace.starting(trace.calls.row, *_ALLOCATES)]
    inside = np.zeros(len(rows), bool)
    for low, high in zip(steps.host_begin.tolist(), steps.host_end.tolist(), strict=True):
        inside |= (trace.begin[rows] >= low) & (trace.begin[rows] < high)
    time = float(trace.duration[rows[inside]].sum()) / max(len(steps), 1) / SECOND
    if time > thresholds.ALLOCATING * seen.step:
        yield seen.found("{calls:#call} that allocate or free take {step}.", time, calls=int(inside.sum()))


@rule("elementwise", of="trace", hint="Fuse what is done element by element: compile the model.")
def elementwise(seen: TraceEvidence) -> Iterator[Finding]:
    """Kernels that do little but read and write memory."""
    rows = [row for row in seen.kernels if any(part in row["name"] for part in _ELEMENTWISE_NAMES)]
    time = sum(row["total"] for row in rows) / seen.analysis.tables_of
    if seen.kernel_time and time > thresholds.ELEMENTWISE * seen.kernel_time:
        yield seen.found(
            "{of_kernels:percent} of the kernels' time ({time:duration} of a step) is in elementwise kernels, which do "
            "little but read and write memory.",
            time, of_kernels=time / seen.kernel_time,
        )  # fmt: skip


@rule("gpu-not-filled", of="trace", hint="Give the GPU more at a time: a larger batch.")
def gpu_not_filled(seen: TraceEvidence) -> Iterator[Finding]:
    """A GPU that sets the pace, with too few blocks for its multiprocessors."""
    for gpu in seen.analysis.gpu_use if seen.bound == "GPU" else ():
        if (
            gpu.sm_efficiency is not None
            and gpu.utilization
            and gpu.sm_efficiency < thresholds.FILLED * gpu.utilization
        ):
            yield seen.found(
                "GPU {device} runs kernels for {busy:percent} of the time, with blocks for only {filled:percent} of "
                "its multiprocessors.",
                (gpu.utilization - gpu.sm_efficiency) * seen.step,
                device=gpu.device, busy=gpu.utilization, filled=gpu.sm_efficiency,
            )  # fmt: skip
