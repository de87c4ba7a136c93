"""What the reader of a record must know of disturbances: warnings, each with what to do."""

from __future__ import annotations

from inferlens.record.machine import Kind, Marks
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


def warnings(marks: Marks, late: int = 0) -> tuple[Warning, ...]:
    """Warnings of what disturbed a series of samples, the worst first.

    ``late`` samples at the end, a slower level with most of the disturbed ones in it, are left out as a whole.

    Codes: ``disturbed`` where disturbed samples are kept, ``samples-left-out`` where they are not, ``power-cap`` and
    ``cpu-quota`` for what the case does to itself.
    """
    found = []
    if marks.disturbed:
        kinds = [kind for kind in ADVICE if kind in marks.touched and kind not in ("power cap", "cpu quota")]
        reasons = ", ".join(f"{kind}{_more(marks, kind)}" for kind in kinds)
        worst = max(kinds, key=lambda kind: marks.touched[kind])
        code = "samples-left-out" if marks.clean or late else "disturbed"
        share = f"{len(marks.disturbed):,} of {marks.count:,} samples were disturbed, by {reasons}"
        again = ", measuring again was no better" if "measured again" in marks.why else ""
        decision = "they are left out" if marks.clean else f"all are kept{again}"
        if late:
            decision = f"they are left out, with all of the slower level that the last {late:,} samples are"
        found.append(Warning(code, f"{share}; {decision}.", ADVICE[worst]))
    if "power cap" in marks.touched:
        found.append(
            Warning("power-cap", f"{_share(marks, 'power cap')} at the GPU's power limit.", ADVICE["power cap"])
        )
    if "cpu quota" in marks.touched:
        message = f"{_share(marks, 'cpu quota')} while the CPU quota of the control group was used up."
        found.append(Warning("cpu-quota", message, ADVICE["cpu quota"]))
    return tuple(found)


def _share(marks: Marks, kind: Kind) -> str:
    return f"{marks.touched[kind]:,} of {marks.count:,} samples were taken"


def _more(marks: Marks, kind: Kind) -> str:
    """The first span's words, in brackets."""
    why = next((span.why for span in marks.spans if span.kind == kind and span.why), "")
    return f" ({why})" if why and why != kind else ""
