"""Interference of other programs and of heat with a measurement: disturbed samples, machine load, energy per item.

A sample of an instant stands for the time from the sample before to the one after, because a disturbance may have begun
and ended anywhere there. A mean over an interval stands for that interval.

Samples are marked by the time at which they ran, never by their value, so no sample is discarded for being slow.
Disturbed samples are discarded if they are at most :data:`DISCARD_AT_MOST` of all (:data:`DISCARD_HOT` if heat or a
clock is among the causes) and enough remain. Otherwise all count. Effects of the case itself, at its power limit or CPU
quota, are reported and not removed: they are its speed on this machine.

Energy is that of the whole board or package, whoever used it, idle power included: from a GPU's energy counter (Volta
and later have one), and from the RAPL counters of CPUs. It is the mean power in the span times the seconds per item, so
items must be spread evenly. The bounds are no confidence interval: they hold the value if sensors are right within
:data:`SENSOR_ERROR` and readings are no older than one update. NVML's counter is updated about every 100 ms (ml.energy,
"Thermally Stable Profiling for Accurate GPU Energy Measurement"). A100 and H100 sample their power during only 25 % of
the time (Yang, Adamek and Armour, "Part-time Power Measurements: nvidia-smi's Lack of Attention", arXiv 2312.02741),
which is right for loads that repeat faster than that.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from inferlens.record.machine import (
    DISCARD_AT_MOST,
    DISCARD_HOT,
    LEAST_KEPT,
    OTHER_PROGRAMS,
    CpuSamples,
    Energy,
    GpuProcesses,
    GpuSamples,
    Kind,
    MachineLog,
    Marks,
    Span,
)
from inferlens.record.record import Record, Warning
from inferlens.units import listing, percent

# NVML's clocks event reasons (nvml.h). Not slowdowns: 0x01 idle, 0x02 clocks that somebody asked
# for, 0x10 sync boost, 0x100 a display's clocks.
IDLE = 0x01
POWER_CAP = 0x04
SLOWDOWNS = {
    0x08: "hardware slowdown (heat or power)",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
# The SM clock boosts in steps of 15 MHz with temperature, under 1 % each; 5 % is several steps, and no less than
# differences of latency that people act on.
CLOCK_CHANGE = 0.05
FOREIGN_ACTIVE = 0.02  # NVML reports whole percent, and single ones are noise of its sampling
# Numbers of CPUs. If less than half of a CPU is free, a thread of the case may have had to wait. A quarter of a CPU is
# well above the noise of counting in ticks of 10 ms over half a second (0.02 for each CPU), and above idle desktops.
LEAST_FREE = 0.5
OTHERS_BUSY = 0.25
# If others use this share of the CPUs there is less boost clock, cache and memory bandwidth, although CPUs are free;
# with many free ones a case hardly notices.
OTHERS_SHARE = 0.5
FREE_ENOUGH = 2.0
# The share of the CPUs' working time that a hypervisor took away, and at least two ticks of 10 ms in half a second.
STOLEN = 0.05
LEAST_STEAL = 0.04
QUOTA_WAIT = 0.05  # of an interval, in which the control group had used up its quota

HINTS: dict[Kind, str] = {
    "throttled": "Let it cool down, or see to its cooling; fewer cases in a row help as well.",
    "clock change": "Where you may, lock the GPU's clocks (nvidia-smi --lock-gpu-clocks).",
    "power cap": "This is the speed at this power limit; compare it only with the same limit.",
    "cpu quota": "This is the speed within the container's CPU limit; raise it, or choose fewer --threads.",
}
# Effects of the case itself: the code of the warning, and when samples were taken.
OWN_EFFECTS: dict[Kind, tuple[str, str]] = {
    "power cap": ("power-cap", "at the GPU's power limit"),
    "cpu quota": ("cpu-quota", "while the CPU quota of the control group was used up"),
}

UPDATE = 0.1  # seconds between two values of NVML's energy counter
RAPL_UPDATE = 0.001  # seconds; Intel's Software Developer's Manual, volume 3, on RAPL's energy status
# NVML documents 5 % for nvmlDeviceGetPowerUsage on old GPUs, and nothing for newer ones; Intel documents nothing for
# RAPL. Assume the same for all.
SENSOR_ERROR = 0.05
LEAST_SPAN = 1.0  # ten updates of NVML's counter: with fewer, the two ends are more than a tenth of the whole
MOST_RELATIVE = 0.25  # half-width of the bounds, as a share of the value, that is of use
LEAST_READINGS = 5


def all_spans(log: MachineLog, begin: float, end: float) -> list[Span]:
    """Return all disturbances from ``begin`` to ``end``, in the order in which they began."""
    gpu, cpu = log.gpu or GpuSamples(), log.cpu or CpuSamples()
    spans = [
        *_instants("power cap", gpu.times, _reasons(gpu, {POWER_CAP: "power limit"})),
        *_instants("throttled", gpu.times, _reasons(gpu, SLOWDOWNS)),
        *_clock_changes(gpu, begin, end),
        *foreign_spans(log),
        *cpu_busy_spans(log),
        *_slow_cpu_spans(cpu),
    ]
    return sorted((span for span in spans if span.end > begin and span.begin < end), key=lambda span: span.begin)


def foreign_spans(log: MachineLog) -> list[Span]:
    """Return the spans in which another process came to the GPU, or used it.

    A process that was there all the time and did nothing is no disturbance. If its activity is unknown, a new process
    counts for as long as it stays.
    """
    if log.processes is None:
        return []
    samples = log.processes
    unknown = (None,) * len(samples.times)
    words: list[str] = []
    counts: list[int] = []
    for share, count in zip(samples.foreign_utilisation or unknown, samples.foreign or unknown, strict=False):
        word = ""
        if share is not None and share > FOREIGN_ACTIVE:
            word = f"other programs used {share:.0%} of the GPU's time"
        elif count is not None and counts and count > (counts[-1] if share is not None else min(counts)):
            word = "another process came to the GPU"
        words.append(word)
        counts += [] if count is None else [count]
    return _instants("foreign process", samples.times, words)


def cpu_busy_spans(log: MachineLog) -> list[Span]:
    """Return the spans in which others left the case too few CPUs, or shared its caches and its boost clock."""
    cpu, cpus = log.cpu, log.cpus
    if cpu is None or not cpus:
        return []

    def why(_: int, i: int) -> str:
        others, free = cpu.others[i] or 0.0, cpus - (cpu.busy[i] or 0.0)
        crowded = others > OTHERS_BUSY and free < LEAST_FREE
        shared = others > OTHERS_SHARE * cpus and free < FREE_ENOUGH
        return f"other programs used {others:.1f} of {cpus} CPUs" if crowded or shared else ""

    return _intervals("cpu busy", cpu.times, cpu.others, why)


def _slow_cpu_spans(cpu: CpuSamples) -> list[Span]:
    """Return the spans in which heat, a quota or a hypervisor slowed the CPUs down."""

    def throttled(before: int, i: int) -> str:
        return "a CPU core was slowed down by heat" if _growth(cpu.throttle_events, before, i) > 0 else ""

    def waited(before: int, i: int) -> str:
        long = _growth(cpu.quota_wait, before, i) > QUOTA_WAIT * (cpu.times[i] - cpu.times[before])
        return "the CPU quota of the control group was used up" if long else ""

    def stolen(_: int, i: int) -> str:
        steal, busy = cpu.steal[i] or 0.0, cpu.busy[i] or 0.0
        share = steal / (steal + busy) if steal else 0.0
        many = steal >= LEAST_STEAL and share > STOLEN
        return f"{share:.0%} of the CPUs' time was stolen by the hypervisor" if many else ""

    return [
        *_intervals("throttled", cpu.times, cpu.throttle_events, throttled),
        *_intervals("cpu quota", cpu.times, cpu.quota_wait, waited),
        *_intervals("steal", cpu.times, cpu.steal, stolen),
    ]


def _clock_changes(gpu: GpuSamples, begin: float, end: float) -> list[Span]:
    """Return the spans in which the SM clock of the busy GPU was more than :data:`CLOCK_CHANGE` off its median.

    The median is of all samples: a running one would follow a lasting change, and so forget it. Samples at and next to
    the power limit are left to ``power cap``, which is why the clock moved.
    """
    clocks = {
        i: clock for i, clock in enumerate(gpu.sm_clock)
        if clock and begin <= gpu.times[i] <= end and _is_busy(gpu, i)
    }  # fmt: skip
    if len(clocks) < 3:
        return []
    usual = median(clocks.values())
    words = [""] * len(gpu.times)
    for i, clock in clocks.items():
        capped = any((mask or 0) & POWER_CAP for mask in gpu.reasons[max(0, i - 1) : i + 2])
        if abs(clock / usual - 1) > CLOCK_CHANGE and not capped:
            words[i] = f"SM clock {clock / 1e6:.0f} MHz, usually {usual / 1e6:.0f} MHz"
    return _instants("clock change", gpu.times, words)


def _is_busy(gpu: GpuSamples, i: int) -> bool:
    mask = gpu.reasons[i] if gpu.reasons else None
    used = gpu.utilisation[i] if gpu.utilisation else None
    return not mask & IDLE if mask is not None else used is None or used > 0


def _reasons(gpu: GpuSamples, names: Mapping[int, str]) -> list[str | None]:
    """Return the reasons of each sample in words; ``None`` without a sample."""
    return [
        None if mask is None else ", ".join(name for bit, name in names.items() if mask & bit) for mask in gpu.reasons
    ]


def _growth(counter: Sequence[float | None], before: int, i: int) -> float:
    first, last = counter[before], counter[i]
    return 0.0 if first is None or last is None else last - first


def _instants(kind: Kind, times: Sequence[float], words: Sequence[str | None]) -> list[Span]:
    """Return spans around the samples that have a word, up to the neighboring samples; ``None`` is no sample."""
    samples = [(time, word) for time, word in zip(times, words, strict=False) if word is not None]
    neighbors = zip([*samples[:1], *samples], samples, [*samples[1:], *samples[-1:]], strict=False)
    return _join(Span(before[0], after[0], kind, word) for before, (_, word), after in neighbors if word)


def _intervals(
    kind: Kind, times: Sequence[float], values: Sequence[float | None], why: Callable[[int, int], str]
) -> list[Span]:
    """Return spans of the intervals between neighboring samples for which ``why`` has a word.

    The first interval begins with the log.
    """
    indices = [0, *(i for i, value in enumerate(values) if i and value is not None)]
    words = ((before, i, why(before, i)) for before, i in itertools.pairwise(indices))
    return _join(Span(times[before], times[i], kind, word) for before, i, word in words if word)


def _join(spans: Iterable[Span]) -> list[Span]:
    """Join spans that touch. The words of the first span stay."""
    joined: list[Span] = []
    for span in spans:
        if joined and span.begin <= joined[-1].end:
            first = joined.pop()
            span = Span(first.begin, max(first.end, span.end), first.kind, first.why)
        joined.append(span)
    return joined


def mark_samples(
    begins: Sequence[float], latencies: Sequence[float], log: MachineLog, *, least: int = LEAST_KEPT
) -> Marks:
    """Mark the disturbed samples; ``begins`` are in the log's time, and ``least`` samples have to remain."""
    count = len(begins)
    ends = [begin + latency for begin, latency in zip(begins, latencies, strict=True)]
    spans = all_spans(log, begins[0], ends[-1])
    touched: dict[str, set[int]] = {}
    for span in spans:
        indices = range(bisect_left(ends, span.begin), bisect_left(begins, span.end))
        touched.setdefault(span.kind, set()).update(indices)
    touched = {kind: indices for kind, indices in touched.items() if indices}
    kinds = touched.keys() - OWN_EFFECTS.keys()
    disturbed = tuple(sorted(set().union(*(touched[kind] for kind in kinds))))
    most_discarded = DISCARD_AT_MOST if kinds <= {*OTHER_PROGRAMS} else DISCARD_HOT
    discardable = len(disturbed) <= most_discarded * count and count - len(disturbed) >= least
    return Marks(
        count=count, disturbed=disturbed, discarded=disturbed if discardable else (), spans=tuple(spans),
        touched={kind: len(indices) for kind, indices in touched.items()},
    )  # fmt: skip


def interference_warnings(marks: Marks) -> tuple[Warning, ...]:
    """Return warnings about a series: ``disturbed`` by heat or a clock, and effects of the case itself.

    Other programs have the code ``busy``, which follows from the machine's log: see :class:`MachineLoad`.
    """
    warnings = []
    hot = {kind: marks.touched[kind] for kind in HINTS if kind in marks.touched and kind not in OWN_EFFECTS}
    if hot and not marks.clean:
        kind = max(hot, key=lambda kind: hot[kind])
        why = next((span.why for span in marks.spans if span.kind == kind and span.why), kind)
        message = f"{why[:1].upper()}{why[1:]} during {percent(hot[kind] / marks.count)} of the samples."
        warnings.append(Warning("disturbed", message, HINTS[kind]))
    for kind, (code, when) in OWN_EFFECTS.items():
        if kind in marks.touched:
            message = f"{percent(marks.touched[kind] / marks.count)} of the samples were taken {when}."
            warnings.append(Warning(code, message, HINTS[kind]))
    return tuple(warnings)


class MachineLoad(Struct, frozen=True, kw_only=True):
    """Mean use of the machine by other programs during the samples; ``None`` if the machine does not report it."""

    busy: bool = False  # whether too many samples were disturbed by other programs to discard them
    other_cpus: float | None = None  # CPUs that other programs used, of the ``cpus`` that the case may use
    cpus: int | None = None
    gpu_share: float | None = None  # share of the GPU's time that other processes used, 0 to 1
    steal: float | None = None  # share of the CPUs' working time that a hypervisor gave to other machines, 0 to 1

    @property
    def cause(self) -> str:
        """The use by others, such as ``Other programs used 1.0 of 2 CPUs.``; empty on a quiet machine."""
        cpus, share, steal = self.other_cpus or 0.0, self.gpu_share or 0.0, self.steal or 0.0
        used = [f"{cpus:.1f} of {self.cpus} CPUs"] if cpus > OTHERS_BUSY else []
        used += [f"{percent(share)} of the GPU's time"] if share > FOREIGN_ACTIVE else []
        used += [f"{percent(steal)} of the CPUs' time outside of this virtual machine"] if steal > STOLEN else []
        cause = f"Other programs used {listing(used)}." if used else "Other programs disturbed the machine."
        return cause if self.busy else ""

    @property
    def sentence(self) -> str:
        """The cause, and its meaning for the answer; empty on a quiet machine."""
        return f"{self.cause} This is the answer for the machine as busy as it was." if self.busy else ""


def record_load(record: Record) -> MachineLoad:
    marks = [marks for marks in (record.marks, record.window_marks) if marks and not marks.clean]
    log = record.machine or MachineLog(interval=0.0)
    cpu, gpu = log.cpu or CpuSamples(), log.processes or GpuProcesses()
    working, stolen = mean_value(cpu.times, cpu.busy), mean_value(cpu.times, cpu.steal)
    return MachineLoad(
        busy=any(kind in mark.touched for mark in marks for kind in OTHER_PROGRAMS),
        other_cpus=mean_value(cpu.times, cpu.others),
        cpus=log.cpus,
        gpu_share=mean_value(gpu.times, gpu.foreign_utilisation),
        steal=stolen / (stolen + working) if stolen and working else stolen,
    )


def mean_load(loads: Iterable[MachineLoad]) -> MachineLoad:
    """Return the means over several records or cases; busy if half of those with a log are."""
    logged = [load for load in loads if load != MachineLoad()]

    def mean(name: str) -> float | None:
        values = [value for load in logged if (value := getattr(load, name)) is not None]
        return round(sum(values) / len(values), 3) if values else None

    return MachineLoad(
        busy=0 < len(logged) <= 2 * sum(load.busy for load in logged),
        cpus=max((load.cpus for load in logged if load.cpus), default=None),
        **{name: mean(name) for name in ("other_cpus", "gpu_share", "steal")},
    )


def mean_value(
    times: Sequence[float], values: Sequence[float | None], since: float = -math.inf, until: float = math.inf
) -> float | None:
    """Return the mean of the values at times between two; ``None`` without any.

    A value stands for the interval since the time before its own.
    """
    intervals = zip(times, times[1:], values[1:], strict=False)
    spans = [(end - begin, value) for begin, end, value in intervals if value is not None and since <= end <= until]
    seconds = sum(span for span, _ in spans)
    return round(sum(span * value for span, value in spans) / seconds, 3) if seconds else None


def energy_per_item(log: MachineLog, device: str, begin: float, end: float, items: int) -> Energy:
    """Return the energy for one item of a GPU or of all CPU packages, from ``begin`` to ``end`` in the log's seconds.

    Only calls ran in this span, with so many ``items``: batch times calls. The energy is that between the first and the
    last reading of the counter inside the span. Both may be as old as one update, so up to one update's energy is
    missing, or too much. Without a sound value, return the reason.
    """
    samples: GpuSamples | CpuSamples | None = log.cpu
    if device == "cuda":
        samples, spans, update, basis = log.gpu, foreign_spans(log), UPDATE, "NVML: counter of the board's energy"
        unknown = log.absent.get("gpu") or log.absent.get("energy", "NVML has no counter of this GPU's energy")
    else:
        spans, update, basis = cpu_busy_spans(log), RAPL_UPDATE, "RAPL: all CPU packages, whoever used them"
        unknown = log.absent.get("cpu_energy", "the CPUs were not watched")
    if not samples or not samples.energy:
        return Energy(reason=unknown)
    if any(other.end > begin and other.begin < end for other in spans):
        return Energy(reason="other processes used the device meanwhile, and their energy cannot be separated")
    span = end - begin
    counter = zip(samples.times, samples.energy, strict=True)
    readings = [(time, joules) for time, joules in counter if joules is not None and begin <= time <= end]
    reason = _unsound(readings, begin, end, items)
    if reason:
        return Energy(reason=reason, seconds=span, items=items)
    duration = readings[-1][0] - readings[0][0]
    watts = (readings[-1][1] - readings[0][1]) / duration
    error = watts * (update / duration + SENSOR_ERROR)
    if watts <= 0 or error > MOST_RELATIVE * watts:
        reason = f"{watts:.3g} W over {span:.2g} s, uncertain by {error:.2g} W: too coarse to be of use"
        return Energy(reason=reason, basis=basis, seconds=span, items=items)
    joules, margin = watts * span / items, error * span / items
    return Energy(joules=joules, low=joules - margin, high=joules + margin, basis=basis, seconds=span, items=items)


def _unsound(readings: Sequence[tuple[float, float]], begin: float, end: float, items: int) -> str:
    """Return the reason why readings of a counter give no energy from ``begin`` to ``end``; empty for sound ones."""
    if items <= 0 or end - begin < LEAST_SPAN or len(readings) < LEAST_READINGS:
        return f"{max(0, items)} items and {len(readings)} readings in {end - begin:.2g} s are too few"
    pairs = list(itertools.pairwise(readings))
    if max(readings[0][0] - begin, end - readings[-1][0]) > 2 * max(later[0] - earlier[0] for earlier, later in pairs):
        return "the watch did not cover the whole span"
    went_back = any(later[1] < earlier[1] for earlier, later in pairs)
    return "the counter of energy went back, as when the driver is loaded anew" if went_back else ""
