"""How busy other programs kept the machine while cases were measured: a few numbers, and one sentence for a whole run.

Libraries suffer differently where a core or a share of the GPU is taken, so a busy machine has an answer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from inferlens.analysis.interference.spans import FOREIGN_ACTIVE, OTHERS_BUSY, STOLEN
from inferlens.record.machine import OTHER_PROGRAMS, CpuSamples, GpuProcesses, MachineLog
from inferlens.record.record import Record
from inferlens.units import listing, percent


class MachineLoad(Struct, frozen=True, kw_only=True):
    """What other programs used while samples were taken; means, ``None`` where the machine does not say."""

    busy: bool = False  # whether too many samples were disturbed by other programs to leave them out
    other_cpus: float | None = None  # CPUs in use by other programs, of the ``cpus`` that the case may use
    cpus: int | None = None
    gpu_share: float | None = None  # share of the GPU's time that other processes used, 0 to 1
    steal: float | None = None  # share of the CPUs' working time that a hypervisor gave to other machines, 0 to 1

    @property
    def cause(self) -> str:
        """What other programs used, such as ``Other programs used 1.0 of 2 CPUs.``; empty on a quiet machine."""
        cpus, share, steal = self.other_cpus or 0.0, self.gpu_share or 0.0, self.steal or 0.0
        used = [f"{cpus:.1f} of {self.cpus} CPUs"] if cpus > OTHERS_BUSY else []
        used += [f"{percent(share)} of the GPU's time"] if share > FOREIGN_ACTIVE else []
        used += [f"{percent(steal)} of the CPUs' time outside of this virtual machine"] if steal > STOLEN else []
        said = f"Other programs used {listing(used)}." if used else "Other programs disturbed the machine."
        return said if self.busy else ""

    @property
    def sentence(self) -> str:
        """The cause, and what it means for the answer; empty on a quiet machine."""
        return f"{self.cause} This is the answer for the machine as busy as it was." if self.busy else ""


def record_load(record: Record) -> MachineLoad:
    """Return what other programs used while the samples of a record were taken."""
    marks = [marks for marks in (record.marks, record.window_marks) if marks and not marks.clean]
    log = record.machine or MachineLog(interval=0.0)
    cpu, gpu = log.cpu or CpuSamples(), log.processes or GpuProcesses()
    working, stolen = _mean(cpu.times, cpu.busy), _mean(cpu.times, cpu.steal)
    return MachineLoad(
        busy=any(kind in mark.touched for mark in marks for kind in OTHER_PROGRAMS),
        other_cpus=_mean(cpu.times, cpu.others),
        cpus=log.cpus,
        gpu_share=_mean(gpu.times, gpu.foreign_utilisation),
        steal=stolen / (stolen + working) if stolen and working else stolen,
    )


def mean_load(loads: Iterable[MachineLoad]) -> MachineLoad:
    """Return the means over several records or cases; busy if half of those that were watched are."""
    known = [load for load in loads if load != MachineLoad()]

    def mean(name: str) -> float | None:
        values = [value for load in known if (value := getattr(load, name)) is not None]
        return round(sum(values) / len(values), 3) if values else None

    return MachineLoad(
        busy=0 < len(known) <= 2 * sum(load.busy for load in known),
        cpus=max((load.cpus for load in known if load.cpus), default=None),
        **{name: mean(name) for name in ("other_cpus", "gpu_share", "steal")},
    )


def _mean(times: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Return the mean of values that each stand for the interval since the time before; ``None`` without any."""
    every = zip(times, times[1:], values[1:], strict=False)
    spans = [(end - begin, value) for begin, end, value in every if value is not None]
    seconds = sum(span for span, _ in spans)
    return round(sum(span * value for span, value in spans) / seconds, 3) if seconds else None
