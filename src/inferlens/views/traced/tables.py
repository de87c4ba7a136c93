"""The tables of each view of a trace: what programs get, what people see of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from inferlens.analysis.findings import trace_findings
from inferlens.trace import memory
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import Columns
from inferlens.trace.modules import module_tree
from inferlens.trace.steps import PARTS
from inferlens.trace.timeline import stepping, timeline, trend
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


def shapes(value: str | None) -> str:
    """Dimensions of tensors from JSON, ``8x4, 4x4``; what is no tensor is a dash."""
    try:
        found = msgspec.json.decode(value) if value else None
    except msgspec.DecodeError:
        return text(value)
    if not isinstance(found, list):
        return text(value)
    words = [_dimensions(each) for each in found]
    while words and words[-1] == ABSENT:
        words.pop()
    return plain(", ".join(words)) or ABSENT


def _dimensions(shape: Any) -> str:
    """Of a tensor, or of a list of them."""
    if not isinstance(shape, list) or not shape:
        return ABSENT
    if any(isinstance(each, list) for each in shape):
        return f"({', '.join(map(_dimensions, shape))})"
    return "x".join(map(str, shape))


def bar(value: float | None) -> str:
    """A share as a bar, as wide as the column at 1."""
    eighths = round(max(0.0, min(value or 0.0, 1.0)) * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _ms(key: str, title: str, keep: int) -> Column:
    return Column(key, title, "ms", milliseconds, keep)


def _bytes(key: str, title: str, keep: int) -> Column:
    return Column(key, title, "", byte_count, keep)


def _count(key: str, title: str, keep: int) -> Column:
    return Column(key, title, "", count, keep)


def _share(key: str, title: str, keep: int, unit: str = "") -> Column:
    return Column(key, title, unit, share, keep)


def _words(key: str, title: str, keep: int, write: Callable[[Any], str] = text, most: int = 28) -> Column:
    return Column(key, title, "", write, keep, numeric=False, most=most)


_USE = (
    _share("utilization", "GPU utilization", 0),
    _share("sm_efficiency", "SM efficiency", 1, "est."),
    _share("occupancy", "occupancy", 2, "est."),
)
_TENSOR_CORES = (
    _share("tensor_share", "tensor cores", 3, "of kernel time"),
    _share("tensor_untold", "unknown", 4),
)
GPUS = (
    *_USE,
    *_TENSOR_CORES,
    _words("compute_capability", "compute capability", 6),
    _count("multiprocessors", "SMs", 5),
    _bytes("memory", "memory", 4),
)
SHARES = (_ms("time", "time", 0), _share("share", "share", 1), _words("share", "", 2, bar))
OPERATORS = (
    _count("calls", "calls", 1),
    _ms("host_self", "host self", 2),
    _ms("host_total", "host total", 4),
    _ms("device_self", "GPU self", 0),
    _ms("device_total", "GPU total", 3),
    _words("eligible", "tensor cores possible", 6, lambda value: "yes" if value else ABSENT),
    _share("tensor_share", "tensor cores used", 5),
)
KERNELS = (
    _words("kind", "kind", 9),
    _count("calls", "calls", 1),
    _ms("total", "total", 0),
    _share("share", "share", 2),
    *(Column(name, name, "µs", microseconds, keep) for name, keep in (("mean", 3), ("min", 7), ("max", 6))),
    Column("blocks_per_sm", "blocks per SM", "", lambda value: ABSENT if value is None else significant(value), 5),
    _share("occupancy", "occupancy", 5, "est."),
    _words("tensor_cores", "tensor cores", 4, {True: "yes", False: "no", None: ABSENT}.__getitem__),
    _count("registers", "registers", 10),
    _bytes("shared_memory", "shared memory", 11),
)
LAUNCHED = (_words("operator", "operator", 0), *KERNELS, _words("grid", "grid", 12), _words("block", "block", 13))
MODULES = (
    _count("calls", "calls", 2),
    _ms("host_total", "host total", 1),
    _ms("host_self", "host self", 4),
    _ms("device_total", "GPU total", 0),
    _ms("device_self", "GPU self", 3),
)
STEPS = (
    _ms("time", "time", 0),
    _share("utilization", "GPU utilization", 1),
    _count("launched", "GPU events", 8),
    *(_ms(part, part, keep) for part, keep in zip(PARTS, (2, 4, 9, 7, 6, 5, 5, 7), strict=True)),
    _words("note", "note", 3),
)
HOLDERS = (_words("device", "device", 0), _bytes("held", "held", 1), _count("allocations", "allocations", 2))
TIMELINE = (
    _share("kernel", "kernel", 1),
    _words("kernel", "", 0, bar),
    _share("copy", "copy", 4),
    _share("sm_efficiency", "SM efficiency", 3, "est."),
    _share("operator", "operator", 2),
    _share("runtime", "runtime", 5),
)
RANKS = (
    _count("rank", "rank", 1),
    _ms("step_time", "step", 0),
    _share("utilization", "GPU utilization", 2),
    _ms("computing", "computing", 3),
    _ms("communicating", "communicating", 4),
    _share("overlapped", "overlapped", 5),
    _ms("waiting", "waiting for the host", 6),
)
RUNS = (
    _ms("step_time", "step", 0),
    _words("bound", "pace set by", 4),
    *_USE,
    *_TENSOR_CORES,
    _ms("kernel", "kernel", 6),
    _ms("copy", "copy", 10),
    _ms("runtime", "runtime", 8),
    _ms("cpu", "CPU", 9),
    _ms("waiting", "GPU waits", 7),
)
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
        lines = [self._line(row) for row in self.rows()]
        left = len(self.data) - len(lines)
        more = [f"{plural(left, 'more row')}: --top {len(self.data)} shows all."] if left else []
        title = f"{self.title} · {of}" if of else self.title
        return Table(title, self.first, self.columns, lines, self.about, more, self.sentences)

    def _line(self, row: Row) -> Line:
        name = text(row[self.label] if isinstance(self.label, str) else self.label(row))
        tree = {"indent": "  " * int(row["depth"]), "full": text(row["path"])} if self.tree else {}
        return Line.of(name, self.columns, row, **tree)


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


def tables_of(analysis: Analysis, view: str, selection: Selection) -> list[TraceTable]:
    """The tables of a view, one of :data:`VIEWS`, in the order in which they are read."""
    return VIEWS[view](analysis, selection)


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
    used = ("utilization", "sm_efficiency", "occupancy", "tensor_share", "tensor_untold")
    rows = []
    for gpu in made.gpus:
        known = gpu.properties
        name = f"{gpu.device}: {gpu.name}" if gpu.name else f"GPU {gpu.device}"
        capability = known.compute_capability if known and known.major else ABSENT
        size = (known.multiprocessors, known.memory) if known else (None, None)
        rows.append((name, *(getattr(gpu, each) for each in used), capability, *size))
    return Columns.named(("name", *used, "compute_capability", "multiprocessors", "memory"), rows)


def _shares(name: str, title: str, first: str, parts: Mapping[str, float], step: float, about: str) -> TraceTable:
    rows = [(what, seconds, seconds / step) for what, seconds in parts.items()]
    return TraceTable(name, title, first, SHARES, Columns.named(("what", "time", "share"), rows), "what", about)


def _operators(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    keys = [key for key in selection.by if key in ("shapes", "stack")]
    data = analysis.operators(*keys)
    more = (_words(key, key, 1, shapes if key == "shapes" else text, most=40) for key in keys)
    calls = plural(int(sum(data.columns["calls"])), "call")
    about = f"{plural(len(data), 'row')} · {calls} · GPU time is of all that was launched, added up"
    columns = (*more, *OPERATORS)
    return [TraceTable("operators", "Operators", "operator", columns, data, about=about, top=selection.top)]


def _kernels(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    by_operator = "operator" in selection.by
    data = analysis.kernels(by_operator=by_operator)
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
        reserved = f", of {byte_count(each.reserved)} reserved" if each.reserved > 0 else ""
        said.append(
            f"{each.name}: the peak is {byte_count(each.peak)}{what}{reserved}, {duration(each.time)} after the "
            f"first of {plural(len(each.places), 'event')}."
        )
    most = {each.name: max(each.peak, 1) for each in devices}
    drawn = (
        _bytes("allocated", "allocated", 0),
        _words("", "", 1, lambda row: bar(row["allocated"] / most[row["device"]])),
    )
    held, curve = memory.holders(analysis), memory.curves(analysis, selection.top)
    title = "Memory at the peak, by operator"
    return [
        TraceTable("holders", title, "operator", HOLDERS, held, "operator", top=selection.top),
        TraceTable("curve", "Memory over time", "time", drawn, curve, _moment, sentences=said),
    ]


def _moment(row: Row) -> str:
    return f"{row['device']}, {milliseconds(row['time'])} ms"


def _steps(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    data = stepping(analysis)
    grows = trend(data)
    way = "longer" if grows and grows > 0 else "shorter"
    said = [] if grows is None else [f"Over the trace a step becomes {duration(abs(grows))} {way} each time."]
    about = plural(len(data), "step")
    return [TraceTable("steps", "Steps", "step", STEPS, data, "step", about, said, top=selection.top)]


def _timeline(analysis: Analysis, _: Selection) -> list[TraceTable]:
    data = timeline(analysis)
    about = f"{plural(len(data), 'slice')} of {duration(float(data.columns['length'][0]))}" if len(data) else ""
    label = ("timeline", "What ran when", "from (ms)")
    return [TraceTable(*label, TIMELINE, data, lambda row: milliseconds(row["begin"]), about)]


VIEWS: dict[str, Callable[[Analysis, Selection], list[TraceTable]]] = {
    "overview": _overview,
    "operators": _operators,
    "kernels": _kernels,
    "modules": _modules,
    "memory": _memory,
    "steps": _steps,
    "timeline": _timeline,
}


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
