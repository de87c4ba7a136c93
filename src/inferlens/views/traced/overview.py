"""The overview of a trace as sheets: the GPUs, where a step's time goes, why GPUs were idle, and what to try."""

from __future__ import annotations

from inferlens.trace.advice import advice_of
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import Columns
from inferlens.units import ABSENT, byte_count, milliseconds, percent, plural
from inferlens.views.plain import plain
from inferlens.views.traced.sheet import Column, Sheet, bar, count, share, span, span_notes, text, time

_GPUS = (
    Column("utilization", "GPU utilization", "", share, 0),
    Column("sm_efficiency", "SM efficiency", "est.", share, 1),
    Column("occupancy", "occupancy", "est.", share, 2),
    Column("tensor_span", "tensor cores", "of kernel time", span, 3),
    Column("compute_capability", "compute capability", "", text, 6),
    Column("multiprocessors", "SMs", "", count, 5),
    Column("memory", "memory", "", byte_count, 4),
)
_SHARES = (
    Column("time", "time", "ms", time, 0),
    Column("share", "share", "", share, 1),
    Column("drawn", "", "", bar, 2),
)
_BOUND = {
    "GPU": "The GPU sets the pace: it works in {busy} of a step.",
    "host": "The host sets the pace: the GPU works in only {busy} of a step, and waits for the host in {host}.",
    "both": "Neither the host nor the GPU alone sets the pace: the GPU works in {busy} of a step.",
    "CPU only": "No kernel ran on a GPU in this trace.",
}


def sheets(analysis: Analysis) -> list[Sheet]:
    """The overview's sheets; those that would be empty are left out."""
    made = analysis.overview
    found = []
    if made.gpus:
        gpus = _gpus(made)
        notes = span_notes(gpus.columns["tensor_span"])
        found.append(Sheet("gpus", "GPUs", ("name", "GPU"), _GPUS, gpus, notes=notes))
    left_out = f" · {plural(made.left_out, 'step')} cut off by the profiler not counted" if made.left_out else ""
    about = f"{milliseconds(made.step_time)} ms each, mean of {plural(made.steps, 'step')}{left_out}"
    idle = made.idle if made.gpus else {}
    said = sentences(analysis)
    parts = _shares(made.parts, made.step_time)
    found.append(
        Sheet(
            "parts",
            "What a step's time goes to",
            ("what", "part"),
            _SHARES,
            parts,
            about,
            sentences=() if idle else said,
        )
    )
    if idle:
        whole = milliseconds(sum(idle.values()))
        about = f"{whole} ms of a step"
        table = _shares(idle, made.step_time)
        title = "Why the GPU is idle"
        found.append(Sheet("idle", title, ("what", "cause"), _SHARES, table, about, sentences=said))
    return found


def sentences(analysis: Analysis) -> tuple[str, ...]:
    """What sets the pace, and the advice in order."""
    made = analysis.overview
    step = made.step_time or 1.0
    host = made.idle["waiting for the host"] + made.idle["synchronising"]
    busy = percent(max(0.0, 1 - sum(made.idle.values()) / step))
    said = [_BOUND[made.bound].format(busy=busy, host=percent(host / step))]
    for number, advice in enumerate(advice_of(analysis), 1):
        said.append(plain(f"{number}. {advice.what} {advice.evidence}"))
    return tuple(said)


def _gpus(made: Overview) -> Columns:
    known = [gpu.properties for gpu in made.gpus]
    capabilities = [each.compute_capability if each and each.major else ABSENT for each in known]
    return Columns(
        {
            "name": [f"{gpu.device}: {gpu.name}" if gpu.name else f"GPU {gpu.device}" for gpu in made.gpus],
            "utilization": [gpu.utilization for gpu in made.gpus],
            "sm_efficiency": [gpu.sm_efficiency for gpu in made.gpus],
            "occupancy": [gpu.occupancy for gpu in made.gpus],
            "tensor_share": [gpu.tensor_share for gpu in made.gpus],
            "tensor_untold": [gpu.tensor_untold for gpu in made.gpus],
            "tensor_span": [(gpu.tensor_share, gpu.tensor_untold) for gpu in made.gpus],
            "compute_capability": capabilities,
            "multiprocessors": [each.multiprocessors if each else None for each in known],
            "memory": [each.memory if each else None for each in known],
        }
    )


def _shares(parts: dict[str, float], step: float) -> Columns:
    shares = [seconds / step if step else 0.0 for seconds in parts.values()]
    return Columns({"what": list(parts), "time": list(parts.values()), "share": shares, "drawn": shares})
