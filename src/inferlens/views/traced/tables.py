"""The tables of each view of a trace: what programs get, what people see of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferlens.analysis.findings import trace_findings
from inferlens.trace import memory
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import Columns
from inferlens.trace.folders import Rank, Run
from inferlens.trace.modules import module_tree
from inferlens.trace.timeline import stepping, timeline, trend
from inferlens.units import ABSENT, byte_count, duration, listing, milliseconds, percent, plural
from inferlens.views.plain import plain
from inferlens.views.table import Column, Line, Table, text
from inferlens.views.traced import columns
from inferlens.views.traced.columns import Row, bar, shapes, span

TOP = 20
MODULE_ROWS = 40
BY = ("name", "shapes", "stack", "operator")


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
        indent: whether rows are a tree, each ``depth`` deep, whose full names are their ``path``.
        top: rows that are shown; ``None``: all.
    """

    name: str
    title: str
    first: str
    columns: Sequence[Column]
    data: Columns
    label: str | Callable[[Row], str] = "name"
    about: str = ""
    notes: Sequence[str] = ()
    sentences: Sequence[str] = ()
    tree: bool = False
    top: int | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Those to show."""
        return list(self.data.rows(self.top))

    def table(self, of: str = "") -> Table:
        """The table for people; ``of`` names the trace where there are several."""
        rows = self.rows()
        left = len(self.data) - len(rows)
        more = [f"{plural(left, 'more row')}: --top {len(self.data)} shows all."] if left else []
        return Table(
            f"{self.title} · {of}" if of else self.title,
            self.first,
            self.columns,
            [self._line(row) for row in rows],
            self.about,
            (*self.notes, *more),
            self.sentences,
        )

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
    left_out = f" · {plural(made.left_out, 'step')} cut off by the profiler not counted" if made.left_out else ""
    about = f"{milliseconds(made.step_time)} ms each, mean of {plural(made.steps, 'step')}{left_out}"
    parts = _shares("parts", "What a step's time goes to", "part", made.parts, made.step_time, about)
    if not made.gpus:
        return [replace(parts, sentences=_said(analysis))]
    about = f"{milliseconds(sum(made.idle.values()))} ms of a step"
    idle = _shares("idle", "Why the GPU is idle", "cause", made.idle, made.step_time, about)
    gpus = _gpus(made)
    return [
        TraceTable("gpus", "GPUs", "GPU", columns.GPUS, gpus, notes=_span_notes(gpus)),
        parts,
        replace(idle, sentences=_said(analysis)),
    ]


def _gpus(made: Overview) -> Columns:
    names = (
        "name", "utilization", "sm_efficiency", "occupancy", "tensor_share", "tensor_untold", "compute_capability",
        "multiprocessors", "memory",
    )  # fmt: skip
    rows = []
    for gpu in made.gpus:
        name = f"{gpu.device}: {gpu.name}" if gpu.name else f"GPU {gpu.device}"
        known = gpu.properties
        capability = known.compute_capability if known and known.major else ABSENT
        used = (gpu.utilization, gpu.sm_efficiency, gpu.occupancy, gpu.tensor_share, gpu.tensor_untold)
        rows.append((name, *used, capability, *((known.multiprocessors, known.memory) if known else (None, None))))
    return Columns.named(names, rows)


def _shares(name: str, title: str, first: str, parts: Mapping[str, float], step: float, about: str) -> TraceTable:
    rows = [(what, seconds, seconds / step if step else 0.0) for what, seconds in parts.items()]
    return TraceTable(name, title, first, columns.SHARES, Columns.named(("what", "time", "share"), rows), "what", about)


def _span_notes(table: Columns) -> tuple[str, ...]:
    return (columns.SPANNED,) if any(" to " in span(row) for row in table.rows()) else ()


def _said(analysis: Analysis) -> list[str]:
    """What sets the pace, and the advice in order."""
    made = analysis.overview
    step = made.step_time or 1.0
    busy = percent(max(0.0, 1 - sum(made.idle.values()) / step))
    advice = (
        plain(f"{number}. {each.hint} {each.sentence}") for number, each in enumerate(trace_findings(analysis), 1)
    )
    return [_BOUND[made.bound].format(busy=busy, host=percent(made.waiting / step)), *advice]


def _operators(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    keys = tuple(key for key in selection.by if key in ("shapes", "stack"))
    data = analysis.operators(*keys)
    more = (Column(key, key, "", shapes if key == "shapes" else text, 1, numeric=False, most=40) for key in keys)
    calls = plural(int(sum(data.columns["calls"])), "call")
    about = f"{plural(len(data), 'row')} · {calls} · GPU time is of all that was launched, added up"
    wanted = (*more, *columns.OPERATORS)
    return [TraceTable("operators", "Operators", "operator", wanted, data, about=about, top=selection.top)]


def _kernels(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    by_operator = "operator" in selection.by
    data = analysis.kernels(by_operator=by_operator)
    calls = plural(int(sum(data.columns["calls"])), "launch")
    about = f"{plural(len(data), 'row')} · {calls} · {milliseconds(float(sum(data.columns['total'])))} ms in all"
    notes = (columns.UNTOLD,) if None in data.columns["tensor_cores"] else ()
    wanted = columns.LAUNCHED if by_operator else columns.KERNELS
    title = "Kernels, copies and fills"
    return [TraceTable("kernels", title, "name", wanted, data, short, about, notes, top=selection.top)]


def short(row: Row) -> str:
    """A kernel's name without its namespaces and most of its arguments; copies and fills have none."""
    from inferlens.analysis.profile.kernels import short_name

    return short_name(row["name"])


def _modules(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    data = module_tree(analysis, depth=selection.depth, most_rows=None if selection.top is None else MODULE_ROWS)
    about = f"{plural(len(data), 'row')} · in the order in which they are first called"
    notes = () if len(data) else ("No module is known: profile with stacks and modules, or name scopes.",)
    return [TraceTable("modules", "Modules", "module", columns.MODULES, data, about=about, notes=notes, tree=True)]


def _memory(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    peaks = memory.peaks(analysis)
    said = [] if peaks else ["The trace has no memory events: profile with profile_memory=True."]
    for peak in peaks:
        what = "" if peak.absolute else " on top of what was there before"
        reserved = "" if peak.reserved is None else f", of {byte_count(peak.reserved)} reserved"
        said.append(
            f"{peak.device}: the peak is {byte_count(peak.peak)}{what}{reserved}, {duration(peak.time)} after the "
            f"first of {plural(peak.events, 'event')}."
        )
    most = {peak.device: max(peak.peak, 1) for peak in peaks}
    drawn = (
        Column("allocated", "allocated", "", byte_count, 0),
        Column("", "", "", lambda row: bar(row["allocated"] / most[row["device"]]), 1, numeric=False),
    )
    held, curve = memory.holders(analysis), memory.curves(analysis, selection.top)
    title = "Memory at the peak, by operator"
    return [
        TraceTable("holders", title, "operator", columns.HOLDERS, held, "operator", top=selection.top),
        TraceTable("curve", "Memory over time", "time", drawn, curve, _moment, sentences=said),
    ]


def _moment(row: Row) -> str:
    return f"{row['device']}, {milliseconds(row['time'])} ms"


def _steps(analysis: Analysis, selection: Selection) -> list[TraceTable]:
    data = stepping(analysis)
    grows = trend(data)
    said = []
    if grows is not None:
        way = "longer" if grows > 0 else "shorter"
        said.append(f"Over the trace a step becomes {duration(abs(grows))} {way} each time.")
    about = plural(len(data), "step")
    return [TraceTable("steps", "Steps", "step", columns.STEPS, data, "step", about, sentences=said, top=selection.top)]


def _timeline(analysis: Analysis, _: Selection) -> list[TraceTable]:
    data = timeline(analysis)
    slices = f"{plural(len(data), 'slice')} of {duration(float(data.columns['length'][0]))}" if len(data) else ""
    about = slices or "nothing ran"
    label = ("timeline", "What ran when", "from (ms)")
    return [TraceTable(*label, columns.TIMELINE, data, lambda row: milliseconds(row["begin"]), about)]


VIEWS: dict[str, Callable[[Analysis, Selection], list[TraceTable]]] = {
    "overview": _overview,
    "operators": _operators,
    "kernels": _kernels,
    "modules": _modules,
    "memory": _memory,
    "steps": _steps,
    "timeline": _timeline,
}


def ranks_table(ranks: Sequence[Rank]) -> TraceTable:
    """The ranks of a job, a row for each, and how far they are apart."""
    slow, fast = max(ranks, key=lambda rank: rank.step_time), min(ranks, key=lambda rank: rank.step_time)
    said = []
    if fast.step_time:
        apart = percent(slow.step_time / fast.step_time - 1)
        said.append(
            f"The slowest is {plain(slow.name)} with {milliseconds(slow.step_time)} ms a step, {apart} more than the "
            f"fastest, {plain(fast.name)}."
        )
    times = sorted(rank.communicating for rank in ranks)
    if times[-1] > 0:
        said.append(
            f"Communication takes {milliseconds(times[0])} to {milliseconds(times[-1])} ms of a step; the rank that "
            "communicates least is the one that the others wait for."
        )
    about = f"{len(ranks)} traces"
    return TraceTable("ranks", "Ranks", "trace", columns.RANKS, Columns.of(ranks), about=about, sentences=said)


def runs_table(runs: Sequence[Run]) -> TraceTable:
    """Runs, a row for each log folder, and which took the longest and the shortest steps."""
    slow, fast = max(runs, key=lambda run: run.step_time), min(runs, key=lambda run: run.step_time)
    said = []
    if fast.step_time:
        said.append(
            f"Steps take {milliseconds(fast.step_time)} ms in {plain(fast.name)} and up to "
            f"{milliseconds(slow.step_time)} ms in {plain(slow.name)}."
        )
    hosts = [plain(run.name) for run in runs if run.bound == "host"]
    if hosts:
        said.append(f"The host sets the pace of {listing(hosts)}: the GPU waits for it.")
    data = Columns.of(runs)
    return TraceTable("runs", "Runs", "run", columns.RUNS, data, "name", f"{len(runs)} traces", _span_notes(data), said)
