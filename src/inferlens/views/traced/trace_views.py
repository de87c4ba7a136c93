"""The tables of each view of a trace: what programs get, what people see of it, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from inferlens.analysis.findings import trace_findings
from inferlens.trace import memory
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import Columns
from inferlens.trace.modules import module_tree
from inferlens.trace.steps import PARTS
from inferlens.trace.tables import kernels, operators, stepping, timeline
from inferlens.units import (
    ABSENT,
    byte_count,
    duration,
    listing,
    microseconds,
    milliseconds,
    percent,
    plural,
    significant,
)
from inferlens.views.plain import plain
from inferlens.views.table import Column, Line, Table, count, share, text

TOP = 20
MODULE_ROWS = 40
BY = ("name", "shapes", "stack", "operator")
_BAR = 24  # characters of a bar at 1
_EIGHTHS = " ▏▎▍▌▋▊▉█"
Row = Mapping[str, Any]


def shapes(value: str) -> str:
    """Dimensions of tensors from JSON, ``8x4, 4x4``; what is no tensor is a dash."""
    lists = re.sub(r"\[([\d,]*)\]", lambda match: match[1].replace(",", "x") or ABSENT, value)
    return text(lists.removeprefix("[").removesuffix("]").rstrip(f",{ABSENT}").replace(",", ", "))


def bar(value: float | None) -> str:
    """A share as a bar, as wide as the column at 1."""
    eighths = round(max(0.0, min(value or 0.0, 1.0)) * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


_ms = partial(Column, unit="ms", write=milliseconds)
_us = partial(Column, unit="µs", write=microseconds)
_bytes = partial(Column, write=byte_count)
_count = partial(Column, write=count)
_share = partial(Column, write=share)
_words = partial(Column, numeric=False)
_COLUMNS = {
    column.key: column
    for column in (
        _count("calls", "calls", keep=1),
        _ms("host_self", "host self", keep=2),
        _ms("host_total", "host total", keep=4),
        _ms("device_self", "GPU self"),
        _ms("device_total", "GPU total", keep=3),
        _words("eligible", "tensor cores possible", keep=6, write=lambda value: "yes" if value else ABSENT),
        _share("tensor_share", "tensor cores used", keep=5),
        _share("tensor_untold", "unknown", keep=6),
        _words("kind", "kind", keep=9),
        _ms("total", "total"),
        _ms("time", "time"),
        _share("share", "share", keep=2),
        _us("mean", "mean", keep=3),
        _us("min", "min", keep=7),
        _us("max", "max", keep=6),
        Column("blocks_per_sm", "blocks per SM", "", lambda value: ABSENT if value is None else significant(value), 5),
        _share("utilization", "GPU utilization", keep=1),
        _share("sm_efficiency", "SM efficiency", unit="est.", keep=3),
        _share("occupancy", "occupancy", unit="est.", keep=5),
        _words("tensor_cores", "tensor cores", keep=4, write={True: "yes", False: "no", None: ABSENT}.__getitem__),
        _count("registers", "registers", keep=10),
        _bytes("shared_memory", "shared memory", keep=11),
        _words("operator", "operator"),
        _words("grid", "grid", keep=12),
        _words("block", "block", keep=13),
        _words("compute_capability", "compute capability", keep=9),
        _count("multiprocessors", "SMs", keep=8),
        _bytes("memory", "memory", keep=7),
        _count("launched", "GPU events", keep=8),
        *(_ms(part, part, keep=keep) for part, keep in zip(PARTS, (2, 4, 9, 7, 6, 5, 5, 7), strict=True)),
        _ms("cpu", "CPU", keep=9),
        _words("note", "note", keep=3),
        _words("device", "device"),
        _bytes("held", "held", keep=1),
        _count("allocations", "allocations", keep=2),
        _count("rank", "rank", keep=1),
        _ms("step_time", "step"),
        _words("bound", "pace set by", keep=4),
        _ms("computing", "computing", keep=3),
        _ms("communicating", "communicating", keep=4),
        _share("overlapped", "overlapped", keep=5),
        _ms("waiting", "waiting for the host", keep=6),
    )
}


def _columns(*keys: str) -> tuple[Column, ...]:
    return tuple(_COLUMNS[key] for key in keys)


_USE = ("utilization", "sm_efficiency", "occupancy", "tensor_share", "tensor_untold")
_TIMES = ("calls", "host_self", "host_total", "device_self", "device_total")
GPUS = _columns(*_USE, "compute_capability", "multiprocessors", "memory")
SHARES = (*_columns("time", "share"), _words("share", "", keep=3, write=bar))
OPERATORS = _columns(*_TIMES, "eligible", "tensor_share")
KERNELS = _columns(
    *("kind", "calls", "total", "share", "mean", "min", "max", "blocks_per_sm", "occupancy"),
    *("tensor_cores", "registers", "shared_memory"),
)
LAUNCHED = (*_columns("operator"), *KERNELS, *_columns("grid", "block"))
MODULES = _columns(*_TIMES)
STEPS = _columns("time", "utilization", "launched", *PARTS, "note")
HOLDERS = _columns("device", "held", "allocations")
TIMELINE = (
    _share("kernel", "kernel", keep=1),
    _words("kernel", "", keep=0, write=bar),
    _share("copy", "copy", keep=4),
    *_columns("sm_efficiency"),
    _share("operator", "operator", keep=2),
    _share("runtime", "runtime", keep=5),
)
RANKS = _columns("rank", "step_time", "utilization", "computing", "communicating", "overlapped", "waiting")
RUNS = _columns("step_time", "bound", *_USE, "kernel", "copy", "runtime", "cpu", "waiting")
_BOUND = {
    "GPU": "The GPU sets the pace: it works in {busy} of a step.",
    "host": "The host sets the pace: the GPU works in only {busy} of a step, and waits for the host in {host}.",
    "both": "Neither the host nor the GPU alone sets the pace: the GPU works in {busy} of a step.",
    "CPU only": "No kernel ran on a GPU in this trace.",
}


@dataclass(frozen=True)
class TraceTable:
    """Rows for programs, and how they become a table for people.

    Attributes:
        name: for programs.
        first: heading of the rows' names.
        label: a row's name; or the key of it.
        tree: whether rows are a tree, each ``depth`` deep, whose full names are their ``path``.
        top: rows that are shown; ``None``: all.
    """

    name: str
    title: str
    first: str
    columns: Sequence[Column]
    data: Columns
    label: str | Callable[[Row], str] = "name"
    about: str = ""
    sentences: Sequence[str] = ()
    tree: bool = False
    top: int | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Those to show."""
        return list(self.data.rows(self.top))

    def table(self, of: str = "") -> Table:
        """The table for people; ``of`` names the trace where there are several."""
        lines = []
        for row in self.rows():
            name = text(row[self.label] if isinstance(self.label, str) else self.label(row))
            tree = {"indent": "  " * int(row["depth"]), "full": text(row["path"])} if self.tree else {}
            lines.append(Line.of(name, self.columns, row, **tree))
        left = len(self.data) - len(lines)
        more = [f"{plural(left, 'more row')}: --top {len(self.data)} shows all."] if left else []
        title = f"{self.title} · {of}" if of else self.title
        return Table(title, self.first, self.columns, lines, self.about, more, self.sentences)


@dataclass(frozen=True)
class Selection:
    """What of a view is shown.

    Attributes:
        by: what operators (``shapes``, ``stack``) or kernels (``operator``) are told apart by, beside their names.
        top: rows of a table; ``None``: all.
        depth: how deep modules are unfolded; ``None``: to some :data:`MODULE_ROWS` rows if ``top`` is given, else all.
    """

    by: tuple[str, ...] = ()
    top: int | None = TOP
    depth: int | None = None


def _overview(analysis: Analysis, _: Selection) -> list[TraceTable]:
    made = analysis.overview
    step = made.step_time or 1.0
    left_out = f" · {plural(made.left_out, 'step')} cut off by the profiler not counted" if made.left_out else ""
    about = f"{milliseconds(made.step_time)} ms each, mean of {plural(made.steps, 'step')}{left_out}"
    busy = percent(max(0.0, 1 - sum(made.idle.values()) / step))
    advice = enumerate(trace_findings(analysis), 1)
    said = [_BOUND[made.bound].format(busy=busy, host=percent(made.waiting / step))]
    said += [plain(f"{number}. {each.hint} {each.sentence}") for number, each in advice]
    parts = _shares("parts", "What a step's time goes to", "part", made.parts, step, about)
    if not made.gpus:
        return [replace(parts, sentences=said)]
    about = f"{milliseconds(sum(made.idle.values()))} ms of a step"
    idle = _shares("idle", "Why the GPU is idle", "cause", made.idle, step, about)
    return [TraceTable("gpus", "GPUs", "GPU", GPUS, _gpus(made)), parts, replace(idle, sentences=said)]


def _gpus(made: Overview) -> Columns:
    rows = []
    for gpu in made.gpus:
        known = gpu.properties
        name = f"{gpu.device}: {gpu.name}" if gpu.name else f"GPU {gpu.device}"
        capability = known.compute_capability if known and known.major else ABSENT
        size = (known.multiprocessors, known.memory) if known else (None, None)
        rows.append((name, *(getattr(gpu, each) for each in _USE), capability, *size))
    return Columns.named(("name", *_USE, "compute_capability", "multiprocessors", "memory"), rows)


def _shares(name: str, title: str, first: str, parts: Mapping[str, float], step: float, about: str) -> TraceTable:
    rows = [(what, seconds, seconds / step) for what, seconds in parts.items()]
    return TraceTable(name, title, first, SHARES, Columns.named(("what", "time", "share"), rows), "what", about)


def _operators(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    keys = [key for key in selection.by if key in ("shapes", "stack")]
    data = operators(analysis, *keys)
    more = (_words(key, key, keep=1, write=shapes if key == "shapes" else text, most=40) for key in keys)
    calls = plural(int(sum(data.columns["calls"])), "call")
    about = f"{plural(len(data), 'row')} · {calls} · GPU time is of all that was launched, added up"
    columns = (*more, *OPERATORS)
    return [TraceTable("operators", "Operators", "operator", columns, data, about=about, top=selection.top)]


def _kernels(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    by_operator = "operator" in selection.by
    data = kernels(analysis, by_operator=by_operator)
    calls = plural(int(sum(data.columns["calls"])), "launch")
    about = f"{plural(len(data), 'row')} · {calls} · {milliseconds(float(sum(data.columns['total'])))} ms in all"
    columns = LAUNCHED if by_operator else KERNELS
    return [TraceTable("kernels", "Kernels, copies and fills", "name", columns, data, short, about, top=selection.top)]


def short(row: Row) -> str:
    """A kernel's name without its namespaces and most of its arguments; copies and fills have none."""
    from inferlens.analysis.profile.kernels import short_name

    return short_name(row["name"])


def _modules(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    data = module_tree(analysis, depth=selection.depth, most_rows=None if selection.top is None else MODULE_ROWS)
    about = f"{plural(len(data), 'row')} · in the order in which they are first called"
    said = [] if len(data) else ["No module is known: profile with stacks and modules, or name scopes."]
    return [TraceTable("modules", "Modules", "module", MODULES, data, about=about, sentences=said, tree=True)]


def _memory(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    devices = memory.devices(analysis)
    said = [] if devices else ["The trace has no memory events: profile with profile_memory=True."]
    for each in devices:
        what = "" if each.absolute else " on top of what was there before"
        said.append(f"{each.name}: the peak is {byte_count(each.peak)}{what}, {duration(each.time)} after the start.")

    def moment(row: Row) -> str:
        return f"{row['device']}, {milliseconds(row['time'])} ms"

    most = {each.name: max(each.peak, 1) for each in devices}
    drawn = (
        _bytes("allocated", "allocated", keep=0),
        _words("", "", keep=1, write=lambda row: bar(row["allocated"] / most[row["device"]])),
    )
    held, curve = memory.holders(analysis), memory.curves(analysis, selection.top)
    title = "Memory at the peak, by operator"
    return [
        TraceTable("holders", title, "operator", HOLDERS, held, "operator", top=selection.top),
        TraceTable("curve", "Memory over time", "time", drawn, curve, moment, sentences=said),
    ]


def _steps(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    data = stepping(analysis)
    return [TraceTable("steps", "Steps", "step", STEPS, data, "step", plural(len(data), "step"), top=selection.top)]


def _timeline(analysis: Analysis, _: Selection) -> list[TraceTable]:
    data = timeline(analysis)
    about = f"{plural(len(data), 'slice')} of {duration(float(data.columns['length'][0]))}" if len(data) else ""
    name, title, first = "timeline", "What ran when", "from (ms)"
    return [TraceTable(name, title, first, TIMELINE, data, lambda row: milliseconds(row["begin"]), about)]


VIEWS: dict[str, Callable[[Analysis, Selection], list[TraceTable]]] = {
    "overview": _overview, "operators": _operators, "kernels": _kernels, "modules": _modules, "memory": _memory,
    "steps": _steps, "timeline": _timeline,
}  # fmt: skip


def together(rows: Sequence[Row], ranks: bool) -> TraceTable:
    """The ranks of a job, or runs, a row for each, and how far they are apart."""
    by_time = sorted(rows, key=lambda row: float(row["step_time"]))
    fast, slow = by_time[0], by_time[-1]
    said = [
        f"Steps take {milliseconds(fast['step_time'])} ms in {plain(fast['name'])} and up to "
        f"{milliseconds(slow['step_time'])} ms in {plain(slow['name'])}."
    ]
    data = Columns.named([*rows[0]], [[*row.values()] for row in rows])
    if ranks:
        times = sorted(row["communicating"] for row in rows)
        if times[-1] > 0:
            said.append(
                f"Communication takes {milliseconds(times[0])} to {milliseconds(times[-1])} ms of a step; the rank "
                "that communicates least is the one that the others wait for."
            )
        return TraceTable("ranks", "Ranks", "trace", RANKS, data, about=f"{len(rows)} traces", sentences=said)
    hosts = [plain(row["name"]) for row in rows if row["bound"] == "host"]
    if hosts:
        said.append(f"The host sets the pace of {listing(hosts)}: the GPU waits for it.")
    return TraceTable("runs", "Runs", "run", RUNS, data, about=f"{len(rows)} traces", sentences=said)
