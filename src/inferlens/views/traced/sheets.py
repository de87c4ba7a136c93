"""The sheets of each view: which columns it has, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inferlens.analysis.profile.kernels import short_name
from inferlens.trace import memory
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import Columns
from inferlens.trace.modules import module_tree
from inferlens.trace.timeline import stepping, timeline, trend
from inferlens.units import byte_count, duration, milliseconds, plural
from inferlens.views.traced.overview import sheets as overview
from inferlens.views.traced.sheet import (
    Column,
    Sheet,
    bar,
    count,
    microseconds,
    number,
    shapes,
    share,
    size,
    text,
    time,
    whether,
    yes,
)

TOP = 20
MODULES = 40
BY = ("name", "shapes", "stack", "operator")

_OPERATORS = (
    Column("calls", "calls", "", count, 1),
    Column("host_self", "host self", "ms", time, 2),
    Column("host_total", "host total", "ms", time, 4),
    Column("device_self", "GPU self", "ms", time, 0),
    Column("device_total", "GPU total", "ms", time, 3),
    Column("eligible", "tensor cores possible", "", yes, 6),
    Column("tensor_share", "tensor cores used", "", share, 5),
)
UNTOLD = "?: the kernel's name does not tell whether it uses tensor cores."
_KERNELS = (
    Column("kind", "kind", "", text, 9),
    Column("calls", "calls", "", count, 1),
    Column("total", "total", "ms", time, 0),
    Column("share", "share", "", share, 2),
    Column("mean", "mean", "µs", microseconds, 3),
    Column("min", "min", "µs", microseconds, 7),
    Column("max", "max", "µs", microseconds, 6),
    Column("blocks_per_sm", "blocks per SM", "", number, 5),
    Column("occupancy", "occupancy", "est.", share, 5),
    Column("tensor_cores", "tensor cores", "", whether, 4),
    Column("registers", "registers", "", count, 10),
    Column("shared_memory", "shared memory", "", size, 11),
)
_LAUNCHED = (
    Column("operator", "operator", "", text, 0),
    *_KERNELS,
    Column("grid", "grid", "", text, 12),
    Column("block", "block", "", text, 13),
)
_MODULES = (
    Column("calls", "calls", "", count, 2),
    Column("host_total", "host total", "ms", time, 1),
    Column("host_self", "host self", "ms", time, 4),
    Column("device_total", "GPU total", "ms", time, 0),
    Column("device_self", "GPU self", "ms", time, 3),
)
_STEPS = (
    Column("time", "time", "ms", time, 0),
    Column("utilization", "GPU utilization", "", share, 1),
    Column("launched", "GPU events", "", count, 8),
    Column("kernel", "kernel", "ms", time, 2),
    Column("copy", "copy", "ms", time, 4),
    Column("fill", "fill", "ms", time, 9),
    Column("communication", "communication", "ms", time, 7),
    Column("runtime", "runtime", "ms", time, 6),
    Column("data loader", "data loader", "ms", time, 5),
    Column("CPU", "CPU", "ms", time, 5),
    Column("other", "other", "ms", time, 7),
    Column("note", "note", "", text, 3),
)
_HOLDERS = (
    Column("device", "device", "", text, 0),
    Column("held", "held", "", size, 1),
    Column("allocations", "allocations", "", count, 2),
)
_TIMELINE = (
    Column("kernel", "kernel", "", share, 1),
    Column("drawn", "", "", bar, 0),
    Column("copy", "copy", "", share, 4),
    Column("sm_efficiency", "SM efficiency", "est.", share, 3),
    Column("operator", "operator", "", share, 2),
    Column("runtime", "runtime", "", share, 5),
)


@dataclass(frozen=True)
class Choice:
    """What of a view is shown.

    Attributes:
        by: what operators (``shapes``, ``stack``) or kernels (``operator``) are told apart by, beside their names.
        top: rows of a table; ``None``: all.
        depth: how deep modules are unfolded; ``None``: to about :data:`MODULES` rows where ``top`` is given, else all.
    """

    by: tuple[str, ...] = ()
    top: int | None = TOP
    depth: int | None = None


def sheets_of(analysis: Analysis, view: str, choice: Choice) -> list[Sheet]:
    """The sheets of a view, one of ``VIEWS``, in the order in which they are read."""
    return _MAKERS[view](analysis, choice)


def _operators(analysis: Analysis, choice: Choice) -> list[Sheet]:
    keys = tuple(key for key in choice.by if key in ("shapes", "stack"))
    table = analysis.operators(*keys)
    more = tuple(Column(key, key, "", shapes if key == "shapes" else text, 1, 40) for key in keys)
    calls = plural(int(sum(table.columns["calls"])), "call")
    about = f"{plural(len(table), 'row')} · {calls} · GPU time is of all that was launched, added up"
    return [Sheet("operators", "Operators", ("name", "operator"), (*more, *_OPERATORS), table, about, top=choice.top)]


def _kernels(analysis: Analysis, choice: Choice) -> list[Sheet]:
    table = analysis.kernels(by_operator="operator" in choice.by)
    calls = plural(int(sum(table.columns["calls"])), "launch")
    about = f"{plural(len(table), 'row')} · {calls} · {milliseconds(float(sum(table.columns['total'])))} ms in all"
    columns = _LAUNCHED if "operator" in choice.by else _KERNELS
    open_ = None in table.columns.get("tensor_cores", ())
    return [
        Sheet(
            "kernels",
            "Kernels, copies and fills",
            ("name", "name"),
            columns,
            table,
            about,
            notes=(UNTOLD,) if open_ else (),
            shown=short,
            top=choice.top,
        )
    ]


def short(row: Mapping[str, Any]) -> str:
    """A kernel's name without its namespaces and most of its arguments; copies and fills have none."""
    return short_name(row["name"])


def _modules(analysis: Analysis, choice: Choice) -> list[Sheet]:
    table = module_tree(analysis, depth=choice.depth, most_rows=None if choice.top is None else MODULES)
    about = f"{plural(len(table), 'row')} · in the order in which they are first called"
    sheet = Sheet(
        "modules",
        "Modules",
        ("name", "module"),
        _MODULES,
        table,
        about,
        notes=() if len(table) else ("No module is known: profile with stacks and modules, or name scopes.",),
        indent=lambda row: "  " * int(row["depth"]),
        full="path",
    )
    return [sheet]


def _memory(analysis: Analysis, choice: Choice) -> list[Sheet]:
    peaks = memory.peaks(analysis)
    said = []
    for peak in peaks:
        what = "" if peak.absolute else " on top of what was there before"
        reserved = "" if peak.reserved is None else f", of {byte_count(peak.reserved)} reserved"
        said.append(
            f"{peak.device}: the peak is {byte_count(peak.peak)}{what}{reserved}, {duration(peak.time)} after the "
            f"first of {plural(peak.events, 'event')}."
        )
    if not peaks:
        said = ["The trace has no memory events: profile with profile_memory=True."]
    titles = ("Memory at the peak, by operator", "Memory over time")
    held = Sheet("holders", titles[0], ("operator", "operator"), _HOLDERS, memory.holders(analysis), top=choice.top)
    table = memory.curves(analysis)
    most = {peak.device: max(peak.peak, 1) for peak in peaks}
    columns = dict(table.columns)
    pairs = zip(columns["device"], columns["allocated"], strict=True)
    columns["of_peak"] = [allocated / most[device] for device, allocated in pairs]
    columns["at"] = [
        f"{device}, {milliseconds(at)} ms" for device, at in zip(columns["device"], columns["time"], strict=True)
    ]
    drawn = (Column("allocated", "allocated", "", size, 0), Column("of_peak", "", "", bar, 1))
    curve = Sheet("curve", titles[1], ("at", "time"), drawn, _thinned(Columns(columns), choice.top), sentences=said)
    return [held, curve]


def _thinned(table: Columns, top: int | None) -> Columns:
    """Every so many of the points where only some are wanted, of each device alike."""
    if top is None or len(table) <= 2 * top:
        return table
    import numpy as np

    devices = list(table.columns["device"])
    places = []
    for device in dict.fromkeys(devices):
        of = np.array([place for place, each in enumerate(devices) if each == device])
        level = np.asarray(table.columns["allocated"])[of]
        places += [int(part[level[part - of[0]].argmax()]) for part in np.array_split(of, min(top, len(of)))]
    return table.taken(np.array(places))


def _steps(analysis: Analysis, choice: Choice) -> list[Sheet]:
    table = stepping(analysis)
    grows = trend(table)
    said = []
    if grows is not None:
        way = "longer" if grows > 0 else "shorter"
        said.append(f"Over the trace a step becomes {duration(abs(grows))} {way} each time.")
    sheet = Sheet(
        "steps", "Steps", ("step", "step"), _STEPS, table, plural(len(table), "step"), sentences=said, top=choice.top
    )
    return [sheet]


def _timeline(analysis: Analysis, _: Choice) -> list[Sheet]:
    table = timeline(analysis)
    columns = dict(table.columns)
    columns["drawn"] = columns.get("kernel", [])
    columns["at"] = [milliseconds(float(at)) for at in columns["begin"]]
    about = f"{plural(len(table), 'slice')} of {duration(float(columns['length'][0]))}" if len(table) else "nothing ran"
    return [Sheet("timeline", "What ran when", ("at", "from (ms)"), _TIMELINE, Columns(columns), about)]


_Maker = Callable[[Analysis, Choice], list[Sheet]]
_MAKERS: dict[str, _Maker] = {
    "overview": lambda analysis, _: overview(analysis),
    "operators": _operators,
    "kernels": _kernels,
    "modules": _modules,
    "memory": _memory,
    "steps": _steps,
    "timeline": _timeline,
}
