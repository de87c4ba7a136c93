"""Which samples of a case were disturbed, what is to be done about it, and the warnings that say so.

The rule. Samples are judged by when they were taken, never by their own value, so nothing is left out for being slow.

* Samples that a disturbance touched are left out, if they are at most :data:`DISCARD_AT_MOST` of all and at least
  :data:`LEAST_KEPT` remain.
* Otherwise the whole case is to be measured again, once; and if that is disturbed as much, all samples are kept, with a
  warning: numbers of a disturbed machine are marked, not polished.
* What the case does to itself is told and not removed: at its power limit, or with its CPU quota used up, the model is
  as slow as it will be on this machine, and measuring again would not help.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from inferlens.analysis.interference.spans import all_spans
from inferlens.record.machine import (
    DISCARD_AT_MOST,
    LEAST_KEPT,
    NOT_USED,
    CpuSamples,
    GpuProcesses,
    GpuSamples,
    Kind,
    MachineLog,
    Marks,
)
from inferlens.record.record import Warning

ADVICE: dict[Kind, str] = {
    "throttled": "Let it cool down, or see to its cooling; fewer cases in a row help as well.",
    "clock change": "Where you may, lock the GPU's clocks (nvidia-smi --lock-gpu-clocks).",
    "foreign process": "End the other processes on the GPU (nvidia-smi lists them).",
    "cpu busy": "End other programs, or leave the case CPUs of its own (taskset).",
    "steal": "Measure on a machine whose CPUs are not shared, or when its neighbours rest.",
    "power cap": "This is the speed at this power limit; compare it only with the same limit.",
    "cpu quota": "This is the speed within the container's CPU limit; raise it, or choose fewer --threads.",
}
# What a case does to itself: the warning's code, and when samples were taken.
OWN_DOING: dict[Kind, tuple[str, str]] = {
    "power cap": ("power-cap", "at the GPU's power limit"),
    "cpu quota": ("cpu-quota", "while the CPU quota of the control group was used up"),
}
UNCOVERED = "the watch did not cover the whole series"
SLACK = 1.0  # seconds that a log may miss of a series' begin and end, and be held to cover it


def mark(
    begins: Sequence[float],
    latencies: Sequence[float],
    log: MachineLog | None,
    *,
    repeated: bool = False,
    last: bool = False,
    least: int = LEAST_KEPT,
) -> Marks:
    """Marks the samples that a disturbance touched.

    Args:
        begins: when each sample began, in order, in seconds of the log's clock.
        latencies: how long each took, in seconds.
        log: what the machine did; ``None`` where it was not watched.
        repeated: whether the case was measured again already.
        last: whether it will not be, for another reason.
        least: how many samples have to remain; fewer than by default where a sample is itself a window of many calls.
    """
    count = len(begins)
    if log is None:
        return Marks(count=count, unseen={"all": "the machine was not watched"})
    if not count:
        return Marks(count=0)
    ends = [begin + latency for begin, latency in zip(begins, latencies, strict=True)]
    spans = all_spans(log, begins[0], ends[-1])
    touched: dict[str, set[int]] = {}
    for span in spans:
        places = range(bisect_left(ends, span.begin), bisect_left(begins, span.end))
        touched.setdefault(span.kind, set()).update(places)
    disturbed = sorted(set().union(*(places for kind, places in touched.items() if kind not in OWN_DOING)))
    discards, why = _decide(count, len(disturbed), repeated, last, least)
    return Marks(
        count=count,
        disturbed=tuple(disturbed),
        discarded=tuple(disturbed) if discards else (),
        touched={kind: len(places) for kind, places in touched.items() if places},
        spans=tuple(spans),
        unseen=unseen(log, begins[0], ends[-1]),
        repeat=bool(disturbed) and not discards and not repeated and not last,
        why=why,
    )


def _decide(count: int, disturbed: int, repeated: bool, last: bool, least: int) -> tuple[bool, str]:
    """Whether to leave the disturbed samples out, and the decision in words."""
    if not disturbed:
        return False, ""
    share = f"{disturbed} of {count} samples were taken while something else disturbed the machine"
    if disturbed <= DISCARD_AT_MOST * count and count - disturbed >= least:
        return True, f"{share}; they are left out"
    if repeated:
        return False, f"{share}, also when the case was measured again; all are kept"
    return False, f"{share}, which is too many to leave out{'; all are kept' if last else ''}"


def unseen(log: MachineLog, begin: float, end: float) -> dict[str, str]:
    """Kinds of disturbance that could not be looked for from ``begin`` to ``end``, and why."""
    gpu, processes, cpu = log.gpu or GpuSamples(), log.processes or GpuProcesses(), log.cpu or CpuSamples()
    wanted: list[tuple[Kind, Sequence[float], Sequence[object], tuple[str, ...]]] = [
        ("cpu busy", cpu.times, cpu.others, ("cpu_load",)),
        ("steal", cpu.times, cpu.steal, ("cpu_load",)),
    ]
    if log.absent.get("gpu") != NOT_USED:  # a case without a GPU has nothing to be seen on one
        wanted += [
            ("throttled", gpu.times, gpu.reasons, ("reasons", "gpu")),
            ("clock change", gpu.times, gpu.sm_clock, ("clocks", "gpu")),
            ("foreign process", processes.times, processes.foreign, ("processes", "foreign", "gpu")),
        ]
    return {
        kind: next((log.absent[name] for name in (*names, "watch") if name in log.absent), UNCOVERED)
        for kind, times, column, names in wanted
        if not _told(times, column, begin, end)
    }


def _told(times: Sequence[float], column: Sequence[object], begin: float, end: float) -> bool:
    """Whether a column has values from ``begin`` to ``end``: of at least half of its samples there."""
    if not column or times[0] > begin + SLACK or times[-1] < end - SLACK:
        return False
    inside = [value for time, value in zip(times, column, strict=True) if begin <= time <= end]
    return 2 * sum(value is not None for value in inside) >= len(inside)


def warnings(marks: Marks, late: int = 0) -> tuple[Warning, ...]:
    """Warnings of what disturbed a series of samples, the worst first.

    ``late`` samples at the end, a slower level with most of the disturbed ones in it, are left out as a whole.

    Codes: ``disturbed`` where disturbed samples are kept, ``samples-left-out`` where they are not, ``power-cap`` and
    ``cpu-quota`` for what the case does to itself.
    """
    found = []
    if marks.disturbed:
        kinds = [kind for kind in ADVICE if kind in marks.touched and kind not in OWN_DOING]
        reasons = ", ".join(f"{kind}{_more(marks, kind)}" for kind in kinds)
        worst = max(kinds, key=lambda kind: marks.touched[kind])
        code = "samples-left-out" if marks.clean or late else "disturbed"
        share = f"{len(marks.disturbed):,} of {marks.count:,} samples were disturbed, by {reasons}"
        again = ", measuring again was no better" if "measured again" in marks.why else ""
        decision = "they are left out" if marks.clean else f"all are kept{again}"
        if late:
            decision = f"they are left out, with all of the slower level that the last {late:,} samples are"
        found.append(Warning(code, f"{share}; {decision}.", ADVICE[worst]))
    for kind, (code, when) in OWN_DOING.items():
        if kind in marks.touched:
            message = f"{marks.touched[kind]:,} of {marks.count:,} samples were taken {when}."
            found.append(Warning(code, message, ADVICE[kind]))
    return tuple(found)


def _more(marks: Marks, kind: Kind) -> str:
    """The first span's words, in brackets."""
    why = next((span.why for span in marks.spans if span.kind == kind and span.why), "")
    return f" ({why})" if why and why != kind else ""
