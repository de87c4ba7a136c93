"""Spans of time in which something outside the model changed how fast it could run.

A sample of an instant stands for the time since the sample before it and until the one after it, because what it shows
may have begun and ended anywhere there. A mean over an interval stands for that interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from inferlens.record.machine import GpuSamples, Kind, MachineLog, Span

# NVML's clocks event reasons (nvml.h, nvmlClocksEventReason*). They make the GPU slower than its own clocks would.
POWER_CAP = 0x04
SLOWDOWNS = {
    0x08: "hardware slowdown (heat or power)",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
# Not slowdowns: 0x01 idle, 0x02 clocks that somebody asked for, 0x10 sync boost, 0x100 a display's clocks.
IDLE = 0x01

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
    found = [
        *throttled(log),
        *clock_changes(log, begin, end),
        *foreign(log),
        *cpu_busy(log),
        *cpu_quota(log),
        *steal(log),
    ]
    return sorted((span for span in found if span.end > begin and span.begin < end), key=lambda span: span.begin)


def throttled(log: MachineLog) -> list[Span]:
    """The GPU slowed down by heat, by a power brake or at its power limit; a CPU core slowed down by heat."""
    found: list[Span] = []
    if log.gpu:
        times, reasons = log.gpu.times, log.gpu.reasons
        capped = [None if mask is None else "power limit" * bool(mask & POWER_CAP) for mask in reasons]
        slowed = [None if mask is None else _slowdown(mask) for mask in reasons]
        found += [*_instants(times, capped, "power cap"), *_instants(times, slowed, "throttled")]
    if log.cpu:
        why = "a CPU core was slowed down by heat"
        grown = _growth(log.cpu.times, log.cpu.throttle_events)
        found += _joined(Span(begin, end, "throttled", why) for begin, end, events in grown if events > 0)
    return found


def clock_changes(log: MachineLog, begin: float, end: float) -> list[Span]:
    """The busy GPU's SM clock away from its median, from ``begin`` to ``end``, by more than :data:`CLOCK_CHANGE`.

    The median is of all these samples, and not a running one: a running median follows a change that lasts, and so
    forgets it. Samples at the power limit, and beside them, are left to ``power cap``, which is why the clock moved.
    """
    gpu = log.gpu
    if gpu is None or not gpu.sm_clock:
        return []
    inside = [i for i, time in enumerate(gpu.times) if begin <= time <= end and gpu.sm_clock[i] and _busy(gpu, i)]
    if len(inside) < 3:
        return []
    usual = median(gpu.sm_clock[i] or 0 for i in inside)
    words = [""] * len(gpu.times)
    for i in inside:
        clock = gpu.sm_clock[i] or 0
        capped = any((mask or 0) & POWER_CAP for mask in gpu.reasons[max(0, i - 1) : i + 2])
        if abs(clock / usual - 1) > CLOCK_CHANGE and not capped:
            words[i] = f"SM clock {clock / 1e6:.0f} MHz, usually {usual / 1e6:.0f} MHz"
    return _instants(gpu.times, words, "clock change")


def foreign(log: MachineLog) -> list[Span]:
    """Another process came to the GPU, or used it.

    One that was there all the time and did nothing is no disturbance. Where its activity is not told, a newcomer counts
    for as long as it stays.
    """
    processes = log.processes
    if processes is None:
        return []
    times, count, active = processes.times, processes.foreign, processes.foreign_utilisation
    words = [""] * len(times)
    known: list[int] = []
    for i in range(len(times)):
        share = active[i] if active else None
        here = count[i] if count else None
        if share is not None and share > FOREIGN_ACTIVE:
            words[i] = f"others used {share:.0%} of the GPU's time"
        elif here is not None and known and here > (known[-1] if share is not None else min(known)):
            words[i] = "another process came to the GPU"
        known += [] if here is None else [here]
    return _instants(times, words, "foreign process")


def cpu_busy(log: MachineLog) -> list[Span]:
    """Others kept the CPUs so busy that the case may have had to wait for one, or shared its caches and its boost."""
    cpu, cpus = log.cpu, log.cpus
    if cpu is None or not cpu.others or not cpus:
        return []
    spans = []
    for begin, end, i in _means(cpu.times, cpu.others):
        others, busy = cpu.others[i] or 0.0, cpu.busy[i] or 0.0
        crowded = others > OTHERS_BUSY and cpus - busy < LEAST_FREE
        if crowded or (others > OTHERS_SHARE * cpus and cpus - busy < FREE_ENOUGH):
            spans.append(Span(begin, end, "cpu busy", f"others used {others:.1f} of {cpus} CPUs"))
    return list(_joined(spans))


def cpu_quota(log: MachineLog) -> list[Span]:
    """The case's control group had used up its CPU quota and had to wait."""
    if log.cpu is None:
        return []
    why = "the CPU quota of the control group was used up"
    grown = _growth(log.cpu.times, log.cpu.quota_wait)
    return list(
        _joined(Span(begin, end, "cpu quota", why) for begin, end, wait in grown if wait > QUOTA_WAIT * (end - begin))
    )


def steal(log: MachineLog) -> list[Span]:
    """A hypervisor gave the CPUs to others while they had work."""
    cpu = log.cpu
    if cpu is None or not cpu.steal:
        return []
    spans = []
    for begin, end, i in _means(cpu.times, cpu.steal):
        stolen, busy = cpu.steal[i] or 0.0, cpu.busy[i] or 0.0
        share = stolen / (stolen + busy) if stolen else 0.0
        if stolen >= LEAST_STEAL and share > STOLEN:
            spans.append(Span(begin, end, "steal", f"{share:.0%} of the CPUs' time was stolen by the hypervisor"))
    return list(_joined(spans))


def _slowdown(mask: int) -> str:
    return ", ".join(name for bit, name in SLOWDOWNS.items() if mask & bit)


def _busy(gpu: GpuSamples, i: int) -> bool:
    """Whether the GPU had work, as far as it tells."""
    if gpu.reasons and gpu.reasons[i] is not None:
        return not (gpu.reasons[i] or 0) & IDLE
    return not gpu.utilisation or gpu.utilisation[i] is None or (gpu.utilisation[i] or 0) > 0


def _instants(times: Sequence[float], words: Sequence[str | None], kind: Kind) -> list[Span]:
    """Spans around the samples that have a word, from the sample before to the one after; ``None`` is no sample."""
    known = [(time, word) for time, word in zip(times, words, strict=False) if word is not None]
    last = len(known) - 1
    spans = (
        Span(known[max(0, i - 1)][0], known[min(last, i + 1)][0], kind, word)
        for i, (_, word) in enumerate(known)
        if word
    )
    return list(_joined(spans))


def _means(times: Sequence[float], values: Sequence[float | None]) -> Iterator[tuple[float, float, int]]:
    """Begin, end and place of every mean: it is of the time since the last one, or since the log began."""
    begin = times[0]
    for i in range(1, len(values)):
        if values[i] is not None:
            yield begin, times[i], i
            begin = times[i]


def _growth(times: Sequence[float], counter: Sequence[float | None]) -> Iterator[tuple[float, float, float]]:
    """Begin and end of every interval between two counts, and by how much the counter grew in it."""
    known = [(time, count) for time, count in zip(times, counter, strict=False) if count is not None]
    for (begin, before), (end, after) in itertools.pairwise(known):
        yield begin, end, after - before


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans that touch, made one; it keeps the first one's words."""
    whole: Span | None = None
    for span in spans:
        if whole and span.begin <= whole.end:
            whole = Span(whole.begin, max(whole.end, span.end), whole.kind, whole.why)
            continue
        if whole:
            yield whole
        whole = span
    if whole:
        yield whole
