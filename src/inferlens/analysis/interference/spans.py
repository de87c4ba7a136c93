"""Spans of time in which something outside the model changed how fast it could run.

A sample of an instant stands for the time since the sample before it and until the one after it, because what it shows
may have begun and ended anywhere there. A mean over an interval stands for that interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from inferlens.record.machine import CpuSamples, GpuSamples, Kind, MachineLog, Span

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
# The SM clock boosts in steps of 15 MHz with temperature, under 1 % each; 5 % is several steps, and is no less than
# the differences of latency that people act on.
CLOCK_CHANGE = 0.05
# NVML's figure comes in whole percent, of which single ones are noise of its sampling.
FOREIGN_ACTIVE = 0.02
# Processors' worth. Under half a free one, a thread of the case may have had to wait; others of a quarter are well
# above the noise of counting in ticks of 10 ms over half a second (0.02 for each CPU), and above idle desktops.
LEAST_FREE = 0.5
OTHERS_BUSY = 0.25
# Where others use this share of the CPUs there is less boost clock, cache and memory bandwidth, although CPUs are free;
# with many of these, one case hardly notices.
OTHERS_SHARE = 0.5
FREE_ENOUGH = 2.0
# Of the time that the CPUs had work: the share of it that a hypervisor gave away, and at least two ticks of 10 ms in
# half a second.
STOLEN = 0.05
LEAST_STEAL = 0.04
# Share of an interval in which the control group had used up its quota.
QUOTA_WAIT = 0.05


def all_spans(log: MachineLog, begin: float, end: float) -> list[Span]:
    """Everything that happened from ``begin`` to ``end``, by the time it began."""
    gpu, cpu = log.gpu or GpuSamples(), log.cpu or CpuSamples()
    every = [
        *_instants("power cap", gpu.times, _reasons(gpu, {POWER_CAP: "power limit"})),
        *_instants("throttled", gpu.times, _reasons(gpu, SLOWDOWNS)),
        *_throttled(cpu),
        *_clock_changes(gpu, begin, end),
        *foreign(log),
        *cpu_busy(log),
        *_cpu_quota(cpu),
        *_steal(cpu),
    ]
    return sorted((span for span in every if span.end > begin and span.begin < end), key=lambda span: span.begin)


def foreign(log: MachineLog) -> list[Span]:
    """Another process came to the GPU, or used it.

    One that was there all the time and did nothing is no disturbance. Where its activity is not told, a newcomer counts
    for as long as it stays.
    """
    if log.processes is None:
        return []
    times, count, active = log.processes.times, log.processes.foreign, log.processes.foreign_utilisation
    words = [""] * len(times)
    known: list[int] = []
    for i in range(len(times)):
        share = active[i] if active else None
        here = count[i] if count else None
        if share is not None and share > FOREIGN_ACTIVE:
            words[i] = f"other programs used {share:.0%} of the GPU's time"
        elif here is not None and known and here > (known[-1] if share is not None else min(known)):
            words[i] = "another process came to the GPU"
        known += [] if here is None else [here]
    return _instants("foreign process", times, words)


def cpu_busy(log: MachineLog) -> list[Span]:
    """Others kept the CPUs so busy that the case may have had to wait for one, or shared its caches and its boost."""
    cpu, cpus = log.cpu, log.cpus
    if cpu is None or not cpus:
        return []

    def why(_: int, i: int) -> str:
        others, free = cpu.others[i] or 0.0, cpus - (cpu.busy[i] or 0.0)
        crowded = others > OTHERS_BUSY and free < LEAST_FREE
        shared = others > OTHERS_SHARE * cpus and free < FREE_ENOUGH
        return f"other programs used {others:.1f} of {cpus} CPUs" if crowded or shared else ""

    return _intervals("cpu busy", cpu.times, cpu.others, why)


def _throttled(cpu: CpuSamples) -> list[Span]:
    def why(before: int, i: int) -> str:
        return "a CPU core was slowed down by heat" if _growth(cpu.throttle_events, before, i) > 0 else ""

    return _intervals("throttled", cpu.times, cpu.throttle_events, why)


def _cpu_quota(cpu: CpuSamples) -> list[Span]:
    """The case's control group had used up its CPU quota and had to wait."""

    def why(before: int, i: int) -> str:
        waited = _growth(cpu.quota_wait, before, i) > QUOTA_WAIT * (cpu.times[i] - cpu.times[before])
        return "the CPU quota of the control group was used up" if waited else ""

    return _intervals("cpu quota", cpu.times, cpu.quota_wait, why)


def _steal(cpu: CpuSamples) -> list[Span]:
    """A hypervisor gave the CPUs to others while they had work."""

    def why(_: int, i: int) -> str:
        stolen, busy = cpu.steal[i] or 0.0, cpu.busy[i] or 0.0
        share = stolen / (stolen + busy) if stolen else 0.0
        many = stolen >= LEAST_STEAL and share > STOLEN
        return f"{share:.0%} of the CPUs' time was stolen by the hypervisor" if many else ""

    return _intervals("steal", cpu.times, cpu.steal, why)


def _clock_changes(gpu: GpuSamples, begin: float, end: float) -> list[Span]:
    """The busy GPU's SM clock away from its median, from ``begin`` to ``end``, by more than :data:`CLOCK_CHANGE`.

    The median is of all these samples, and not a running one, which would follow a change that lasts, and so forget it.
    Samples at the power limit, and beside them, are left to ``power cap``, which is why the clock moved.
    """
    clocks = {i: clock for i, clock in enumerate(gpu.sm_clock) if clock and begin <= gpu.times[i] <= end}
    clocks = {i: clock for i, clock in clocks.items() if _busy(gpu, i)}
    if len(clocks) < 3:
        return []
    usual = median(clocks.values())
    words = [""] * len(gpu.times)
    for i, clock in clocks.items():
        capped = any((mask or 0) & POWER_CAP for mask in gpu.reasons[max(0, i - 1) : i + 2])
        if abs(clock / usual - 1) > CLOCK_CHANGE and not capped:
            words[i] = f"SM clock {clock / 1e6:.0f} MHz, usually {usual / 1e6:.0f} MHz"
    return _instants("clock change", gpu.times, words)


def _busy(gpu: GpuSamples, i: int) -> bool:
    """Whether the GPU had work, as far as it tells."""
    mask = gpu.reasons[i] if gpu.reasons else None
    used = gpu.utilisation[i] if gpu.utilisation else None
    return not mask & IDLE if mask is not None else used is None or used > 0


def _reasons(gpu: GpuSamples, names: Mapping[int, str]) -> list[str | None]:
    """Which of the named reasons each sample has, in words."""
    return [
        None if mask is None else ", ".join(name for bit, name in names.items() if mask & bit) for mask in gpu.reasons
    ]


def _growth(counter: Sequence[float | None], before: int, i: int) -> float:
    first, last = counter[before], counter[i]
    return 0.0 if first is None or last is None else last - first


def _instants(kind: Kind, times: Sequence[float], words: Sequence[str | None]) -> list[Span]:
    """Spans around the samples that have a word, from the sample before to the one after; ``None`` is no sample."""
    known = [(time, word) for time, word in zip(times, words, strict=False) if word is not None]
    last = len(known) - 1
    return _joined(
        Span(known[max(0, i - 1)][0], known[min(last, i + 1)][0], kind, word)
        for i, (_, word) in enumerate(known)
        if word
    )


def _intervals(
    kind: Kind, times: Sequence[float], values: Sequence[float | None], why: Callable[[int, int], str]
) -> list[Span]:
    """Spans of the intervals for which ``why`` has a word, of the places of two known values that follow each other.

    The first interval begins with the log.
    """
    known = [0, *(i for i, value in enumerate(values) if i and value is not None)]
    words = ((before, i, why(before, i)) for before, i in itertools.pairwise(known))
    return _joined(Span(times[before], times[i], kind, word) for before, i, word in words if word)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans that touch, made one; it keeps the first one's words."""
    found: list[Span] = []
    for span in spans:
        if found and span.begin <= found[-1].end:
            first = found.pop()
            span = Span(first.begin, max(first.end, span.end), first.kind, first.why)
        found.append(span)
    return found
