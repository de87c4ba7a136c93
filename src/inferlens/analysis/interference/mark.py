"""Mark the samples of a case that something disturbed, decide what to do about them, and warn of what remains.

Samples are judged by when they were taken, never by their own value, so nothing is left out for being slow. Disturbed
samples are left out if they are at most :data:`DISCARD_AT_MOST` of all (:data:`DISCARD_HOT` if heat or a clock is among
the causes) and enough remain. Otherwise all are kept. If half of the series was quiet, the case is measured again
first, once; a second attempt on a machine that stays busy would change nothing. What the case does to itself, at its
power limit or with its CPU quota used up, is reported and not removed: that is its speed on this machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from inferlens.analysis.interference.spans import all_spans
from inferlens.record.machine import DISCARD_AT_MOST, DISCARD_HOT, LEAST_KEPT, OTHER_PROGRAMS, Kind, MachineLog, Marks
from inferlens.record.record import Warning
from inferlens.units import percent

ADVICE: dict[Kind, str] = {
    "throttled": "Let it cool down, or see to its cooling; fewer cases in a row help as well.",
    "clock change": "Where you may, lock the GPU's clocks (nvidia-smi --lock-gpu-clocks).",
    "power cap": "This is the speed at this power limit; compare it only with the same limit.",
    "cpu quota": "This is the speed within the container's CPU limit; raise it, or choose fewer --threads.",
}
# What a case does to itself: the warning's code, and when samples were taken.
OWN_DOING: dict[Kind, tuple[str, str]] = {
    "power cap": ("power-cap", "at the GPU's power limit"),
    "cpu quota": ("cpu-quota", "while the CPU quota of the control group was used up"),
}


def mark(begins: Sequence[float], latencies: Sequence[float], log: MachineLog, *, least: int = LEAST_KEPT) -> Marks:
    """Mark the samples, begun at ``begins`` in the log's time, that a disturbance touched; ``least`` have to remain."""
    count = len(begins)
    ends = [begin + latency for begin, latency in zip(begins, latencies, strict=True)]
    spans = all_spans(log, begins[0], ends[-1])
    touched: dict[str, set[int]] = {}
    for span in spans:
        places = range(bisect_left(ends, span.begin), bisect_left(begins, span.end))
        touched.setdefault(span.kind, set()).update(places)
    kinds = {kind for kind, places in touched.items() if places} - OWN_DOING.keys()
    disturbed = sorted(set().union(*(touched[kind] for kind in kinds)))
    most = DISCARD_AT_MOST if kinds <= {*OTHER_PROGRAMS} else DISCARD_HOT
    few = len(disturbed) <= most * count and count - len(disturbed) >= least
    return Marks(
        count=count,
        disturbed=tuple(disturbed),
        discarded=tuple(disturbed) if few else (),
        touched={kind: len(places) for kind, places in touched.items() if places},
        spans=tuple(spans),
    )


def warnings(marks: Marks) -> tuple[Warning, ...]:
    """Return warnings of a series: ``disturbed`` by heat or a clock, and what the case does to itself.

    What other programs used is the code ``busy``, which follows from the machine's log (``interference.load``).
    """
    found = []
    hot = {kind: marks.touched[kind] for kind in ADVICE if kind in marks.touched and kind not in OWN_DOING}
    if hot and not marks.clean:
        kind = max(hot, key=lambda kind: hot[kind])
        why = next((span.why for span in marks.spans if span.kind == kind and span.why), kind)
        message = f"{why[:1].upper()}{why[1:]} during {percent(hot[kind] / marks.count)} of the samples."
        found.append(Warning("disturbed", message, ADVICE[kind]))
    for kind, (code, when) in OWN_DOING.items():
        if kind in marks.touched:
            message = f"{percent(marks.touched[kind] / marks.count)} of the samples were taken {when}."
            found.append(Warning(code, message, ADVICE[kind]))
    return tuple(found)
