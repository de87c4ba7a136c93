"""What to try, from what a trace shows: each piece of advice with its evidence and how much time it is about.

The order is that of the time of a step that is at stake, which is not what will be gained.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import SECOND
from inferlens.trace.shares import synchronising
from inferlens.trace.trace import Category
from inferlens.units import duration, percent, plural

_LOADER, _SYNCHRONISING, _COPY, _COMMUNICATION, _ALLOCATING = 0.05, 0.05, 0.05, 0.1, 0.02
_HOST, _TENSOR, _ELEMENTWISE, _ONE_KERNEL, _LOW_EFFICIENCY = 0.2, 0.2, 0.3, 0.3, 0.5
_ELEMENTWISE_NAMES = ("elementwise_kernel", "vectorized_elementwise", "unrolled_elementwise", "CatArrayBatchedCopy")
_ALLOCATES = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister")
_LONGEST = 70


class Advice(Struct, frozen=True, kw_only=True):
    """One thing to try.

    Attributes:
        what: what to do.
        evidence: what in the trace speaks for it.
        at_stake: seconds of a step that it is about.
    """

    what: str
    evidence: str
    at_stake: float


class _Look:
    """What the rules look at; times are seconds of one step."""

    def __init__(self, analysis: Analysis, overview: Overview) -> None:
        self.analysis, self.step = analysis, overview.step_time
        self.parts, self.idle = overview.parts, overview.idle
        self.count = max(len(analysis.counted), 1)
        self.kernels = list(analysis.kernels().rows())
        # Tables are of all of the trace, or of the one step that was chosen.
        self.tables_of = max(len(analysis.steps), 1) if analysis.step is None else 1
        self.kernel_time = sum(row["total"] for row in self.kernels if row["kind"] == "kernel") / self.tables_of

    def share(self, seconds: float) -> str:
        return f"{percent(seconds / self.step)} of a step ({duration(seconds)})"

    def kernels_named(self, parts: tuple[str, ...]) -> float:
        found: float = sum(row["total"] for row in self.kernels if any(part in row["name"] for part in parts))
        return found / self.tables_of


def advice_of(analysis: Analysis) -> list[Advice]:
    """Advice on a trace, what is about the most time first."""
    overview = analysis.overview
    if not overview.step_time:
        return []
    look = _Look(analysis, overview)
    rules = (_loader, _host, _synchronises, _tensor_cores, _copies, _communicates, _allocates, _fuses, _dominated)
    found = [advice for rule in rules for advice in rule(look)]
    if overview.bound == "GPU":
        found += _fills_gpu(look)
    return sorted(found, key=lambda each: -each.at_stake)


def _loader(look: _Look) -> Iterator[Advice]:
    time = look.parts["data loader"]
    if time > _LOADER * look.step:
        yield Advice(
            what="Load data in other processes: num_workers of DataLoader, and pin_memory.",
            evidence=f"{look.share(time)} goes to the data loader while no GPU works.",
            at_stake=time,
        )


def _host(look: _Look) -> Iterator[Advice]:
    time = look.idle["waiting for the host"] - look.parts["data loader"]
    if time <= _HOST * look.step or not look.kernels:
        return
    calls = sum(row["calls"] for row in look.kernels)
    mean = sum(row["total"] for row in look.kernels) / calls
    each = round(calls / look.tables_of)
    yield Advice(
        what="Launch less from Python: torch.compile(mode='reduce-overhead'), a CUDA graph, or a larger batch.",
        evidence=f"The GPU waits for the host for {look.share(time)}; a step gives it {plural(each, 'piece')} of work "
        f"of {duration(mean)} on average.",
        at_stake=time,
    )


def _synchronises(look: _Look) -> Iterator[Advice]:
    analysis = look.analysis
    time = look.idle["synchronising"]
    rows = synchronising(analysis.trace)
    if time <= _SYNCHRONISING * look.step or not len(rows):
        return
    trace = analysis.trace
    place = analysis.launch_links.innermost(trace.thread[rows], trace.begin[rows], Category.OPERATOR)
    names = trace.names_of(trace.scopes.row[place[place >= 0]])
    most = max(set(names), key=names.count) if names else ""
    by = f", most by {most}" if most else ""
    yield Advice(
        what="Wait for the GPU less often: no .item(), .cpu() or print of a tensor within a step.",
        evidence=f"The GPU is idle for {look.share(time)} while the host is in {plural(len(rows), 'waiting call')}"
        f"{by}.",
        at_stake=time,
    )


def _tensor_cores(look: _Look) -> Iterator[Advice]:
    costs = look.analysis.costs
    devices = look.analysis.trace.about.devices
    if not devices or devices[0].major < 7:
        return
    launched = costs.operator >= 0
    durations = look.analysis.trace.duration[look.analysis.trace.gpu.row]
    could = np.zeros(len(launched), bool)
    could[launched] = costs.eligible[costs.operator[launched]]
    unused = float(durations[could & costs.tells_tensor_cores & ~costs.uses_tensor_cores].sum())
    time = unused / max(float(durations.sum()), 1.0) * (look.parts["kernel"] or 0.0)
    if time > _TENSOR * look.step:
        yield Advice(
            what="Use tensor cores: fp16 or bf16 (autocast), or TF32 (torch.set_float32_matmul_precision('high')).",
            evidence=f"Kernels that could use them and do not, as their names tell, take {look.share(time)}.",
            at_stake=time,
        )


def _copies(look: _Look) -> Iterator[Advice]:
    time = look.parts["copy"]
    if time <= _COPY * look.step:
        return
    copies = [row for row in look.kernels if row["kind"] == "copy"]
    pageable = any("Pageable" in row["name"] for row in copies)
    how = "from and to pinned memory (pin_memory, non_blocking=True)" if pageable else "on a stream beside the kernels"
    yield Advice(
        what=f"Copy less, or {how}.",
        evidence=f"{look.share(time)} goes to copies while no kernel runs, most to {copies[0]['name']}.",
        at_stake=time,
    )


def _communicates(look: _Look) -> Iterator[Advice]:
    time = look.parts["communication"]
    if time > _COMMUNICATION * look.step:
        yield Advice(
            what="Communicate while kernels run: larger buckets, gradients sent as they come.",
            evidence=f"{look.share(time)} goes to communication while no other kernel runs.",
            at_stake=time,
        )


def _allocates(look: _Look) -> Iterator[Advice]:
    trace = look.analysis.trace
    fits = np.array([name.startswith(_ALLOCATES) for name in trace.strings], dtype=bool)
    rows = trace.calls.row[fits[trace.name[trace.calls.row]]] if len(trace.calls) else trace.calls.row
    steps = look.analysis.counted
    inside = np.zeros(len(rows), bool)
    for low, high in zip(steps.host_begin.tolist(), steps.host_end.tolist(), strict=True):
        inside |= (trace.begin[rows] >= low) & (trace.begin[rows] < high)
    time = float(trace.duration[rows[inside]].sum()) / look.count / SECOND
    if time > _ALLOCATING * look.step:
        yield Advice(
            what="Warm up before profiling, or keep memory: the allocator asks the driver within steps.",
            evidence=f"{plural(int(inside.sum()), 'call')} that allocate or free take {look.share(time)}.",
            at_stake=time,
        )


def _fuses(look: _Look) -> Iterator[Advice]:
    time = look.kernels_named(_ELEMENTWISE_NAMES)
    if look.kernel_time and time > _ELEMENTWISE * look.kernel_time:
        yield Advice(
            what="Fuse what is done element by element: torch.compile, or TensorRT.",
            evidence=f"{percent(time / look.kernel_time)} of the kernels' time ({duration(time)} of a step) is in "
            "elementwise kernels, which do little but read and write memory.",
            at_stake=time,
        )


def _dominated(look: _Look) -> Iterator[Advice]:
    kernels = [row for row in look.kernels if row["kind"] == "kernel"]
    if not kernels or not look.kernel_time:
        return
    first = kernels[0]
    share = first["total"] / sum(row["total"] for row in kernels)
    if share > _ONE_KERNEL:
        name = first["name"] if len(first["name"]) <= _LONGEST else first["name"][: _LONGEST - 1] + "…"
        yield Advice(
            what="Look at one kernel first; '--view kernels --by operator' says what launches it.",
            evidence=f"{name} takes {percent(share)} of the kernels' time in {plural(first['calls'], 'call')}.",
            at_stake=share * look.kernel_time,
        )


def _fills_gpu(look: _Look) -> Iterator[Advice]:
    for gpu in look.analysis.gpu_use:
        if gpu.sm_efficiency is not None and gpu.utilization and gpu.sm_efficiency < _LOW_EFFICIENCY * gpu.utilization:
            time = (gpu.utilization - gpu.sm_efficiency) * look.step
            yield Advice(
                what="Give the GPU more at a time: a larger batch.",
                evidence=f"GPU {gpu.device} runs kernels for {percent(gpu.utilization)} of the time, with blocks for "
                f"only {percent(gpu.sm_efficiency)} of its multiprocessors.",
                at_stake=time,
            )
