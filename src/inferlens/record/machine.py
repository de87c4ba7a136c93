"""The state of the machine while a case ran: a :class:`MachineLog`, samples taken outside the case's process.

Times are seconds of ``time.perf_counter()``, on Linux those of ``CLOCK_MONOTONIC``, which counts from one point for the
whole system (clock_gettime(2)), so that times of different processes can be compared. A column is empty where the
machine does not tell, and ``absent`` says why; a single value is ``None`` where one reading failed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Literal, TypeVar

import msgspec

from inferlens.record.display import Struct

NOT_USED = "not watched: the case does not use it"  # in ``absent`` of a case that needs no GPU
Kind = Literal["throttled", "power cap", "clock change", "foreign process", "cpu busy", "cpu quota", "steal"]
Floats = tuple[float | None, ...]
Ints = tuple[int | None, ...]


class GpuSamples(Struct, frozen=True, kw_only=True):
    """The GPU at ``times``, from NVML.

    Attributes:
        energy: joules since the first sample, of the whole board, from NVML's counter.
        sm_clock, temperature: hertz, and degrees Celsius of the GPU's core.
        reasons: NVML's clocks event reasons as a bit mask.
        utilisation: share of NVML's last sampling period (1/6 to 1 s) in which any kernel ran, 0 to 1.
        memory_used: bytes in use on the whole device, by whomever.
    """

    times: tuple[float, ...] = ()
    energy: Floats = ()
    sm_clock: Ints = ()
    temperature: Ints = ()
    reasons: Ints = ()
    utilisation: Floats = ()
    memory_used: Ints = ()


class GpuProcesses(Struct, frozen=True, kw_only=True):
    """The processes on the GPU at ``times``, from NVML.

    Attributes:
        case_memory: bytes of device memory in use by the case's processes.
        foreign: number of processes on the GPU that are surely not the case's; ``None`` if unknown.
        foreign_utilisation: share of the multiprocessors' time that they used, 0 to 1.
    """

    times: tuple[float, ...] = ()
    case_memory: Ints = ()
    foreign: Ints = ()
    foreign_utilisation: Floats = ()


class CpuSamples(Struct, frozen=True, kw_only=True):
    """The CPUs that the case may use. Loads are means over the interval since the time before.

    Attributes:
        busy, case, others: processors' worth of work done on these CPUs by anybody, the case's processes, and the rest.
        steal: processors' worth of time that a hypervisor gave to others while these CPUs had work (proc_stat(5)).
        throttle_events: how often a core or its package was throttled for heat, since the machine started.
        quota_wait: seconds, summed over CPUs, that the case's control group waited because its quota was used up.
        energy: joules since the first sample of all CPU packages, whoever used them (RAPL).
    """

    times: tuple[float, ...] = ()
    busy: Floats = ()
    case: Floats = ()
    others: Floats = ()
    steal: Floats = ()
    throttle_events: Ints = ()
    quota_wait: Floats = ()
    energy: Floats = ()


class Before(Struct, frozen=True, kw_only=True):
    """The GPU just before a case's process was started.

    Attributes:
        processes: process numbers on the device, as NVML names them.
    """

    memory_used: int | None = None
    processes: tuple[int, ...] | None = None
    absent: dict[str, str] = {}


class MachineLog(Struct, frozen=True, kw_only=True):
    """The state of the machine while a case ran.

    Attributes:
        interval: seconds between two samples of the GPU, as requested; processes and CPUs are sampled less often.
        gpu, processes, cpu: the samples; ``None`` where there are none at all.
        cpus: how many logical CPUs the case may use.
        before: the GPU before the case's process started.
        peak_memory_used, peak_case_memory: the largest of all samples, also of samples that are not kept.
        absent: the missing values, and why they are missing.
    """

    interval: float
    gpu: GpuSamples | None = None
    processes: GpuProcesses | None = None
    cpu: CpuSamples | None = None
    gpu_uuid: str = ""
    cpus: int | None = None
    before: Before = Before()
    peak_memory_used: int | None = None
    peak_case_memory: int | None = None
    absent: dict[str, str] = {}

    def between(self, begin: float, end: float) -> MachineLog:
        """Return the log with only the samples from ``begin`` to ``end``, and one more on either side."""
        return msgspec.structs.replace(
            self,
            gpu=_between(self.gpu, begin, end),
            processes=_between(self.processes, begin, end),
            cpu=_between(self.cpu, begin, end),
        )


class Span(Struct, frozen=True):
    """An event of the machine from ``begin`` to ``end`` in seconds of the log's clock, with a reason in words."""

    begin: float
    end: float
    kind: Kind
    why: str = ""


OTHER_PROGRAMS: tuple[Kind, ...] = ("cpu busy", "foreign process", "steal")
# Shares of a series, which are choices, not results. Without the moments of other programs the quiet half is enough for
# a median. Heat and clocks are the case's own doing in part: with more left out, the rest would be too fast.
DISCARD_AT_MOST, DISCARD_HOT = 0.50, 0.20
LEAST_KEPT = 20  # as many as a series has at least, and as a 95th percentile needs


class Marks(Struct, frozen=True, kw_only=True):
    """The disturbed samples of a series.

    Attributes:
        disturbed: indices of the samples that something disturbed, other than the case itself.
        discarded: indices of the samples to leave out of statistics: ``disturbed``, or none.
        touched: number of samples per kind of disturbance, including those that the case itself caused.
    """

    count: int
    disturbed: tuple[int, ...] = ()
    discarded: tuple[int, ...] = ()
    touched: dict[str, int] = {}
    spans: tuple[Span, ...] = ()

    @property
    def clean(self) -> bool:
        """Return whether the kept samples were not disturbed, as far as the log shows."""
        return len(self.disturbed) == len(self.discarded)

    @property
    def short(self) -> bool:
        """Return whether half of the series or more was quiet, so that a second attempt may be quiet."""
        return not self.clean and len(self.disturbed) <= DISCARD_AT_MOST * self.count


class Energy(Struct, frozen=True, kw_only=True):
    """Joules for one item.

    Attributes:
        joules: the value, ``None`` where there is none; ``reason`` then says why.
        low, high: bounds of it, sensor included.
        seconds: the span it was read over.
    """

    joules: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str = ""
    seconds: float = 0.0
    items: int = 0
    reason: str = ""


def peak_device_memory(log: MachineLog, *, shared: bool = False) -> tuple[int, str] | None:
    """Return the largest device memory of a case's process in bytes, and its basis; ``None`` if NVML has no value.

    It counts everything that the process holds on the device: context, code, workspaces, and the cache of an allocator.
    A peak that is shorter than the time between two samples is missed. If other cases use the device, too, (``shared``)
    NVML must name the processes.
    """
    if log.peak_case_memory:
        return log.peak_case_memory, "NVML: memory of the case's processes, the largest sample"
    if shared or log.peak_memory_used is None or log.before.memory_used is None:
        return None
    more = max(0, log.peak_memory_used - log.before.memory_used)
    return more, "NVML: memory in use on the whole device, the largest sample, less what was in use before the case"


Samples = TypeVar("Samples", GpuSamples, GpuProcesses, CpuSamples)


def _between(samples: Samples | None, begin: float, end: float) -> Samples | None:
    if samples is None:
        return None
    first = max(0, bisect_left(samples.times, begin) - 1)
    last = bisect_right(samples.times, end) + 1
    columns: dict[str, Any] = {
        name: value[first:last] for name, value in msgspec.structs.asdict(samples).items() if isinstance(value, tuple)
    }
    return msgspec.structs.replace(samples, **columns)
