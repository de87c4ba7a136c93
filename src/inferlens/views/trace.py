"""Views of a trace: tables for programs and people, and their answers in sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from inferlens.analysis.trace import trace_findings
from inferlens.errors import InferlensError
from inferlens.trace import distributed
from inferlens.trace.analysis import PARTS, WHOLE_TRACE, Analysis, Overview
from inferlens.trace.distributed import USE
from inferlens.trace.model import Columns
from inferlens.trace.tables import (
    CUT_OFF,
    NO_MODULE,
    kernels,
    memory_curves,
    memory_devices,
    memory_holders,
    module_tree,
    operators,
    stepping,
    timeline,
)
from inferlens.units import (
    ABSENT,
    bare,
    byte_count,
    duration,
    listing,
    microseconds,
    milliseconds,
    percent,
    plural,
    significant,
)
from inferlens.views.renderers.terminal import bar
from inferlens.views.table import Column, ColumnSet, Line, Table, count, cut_middle, more_rows_note, plain, share, text

_BAR = 24  # characters of a bar at 1
STRIP = 60  # characters of what went on over time
_LEVELS = "▁▂▃▄▅▆▇█"
_LONGEST = 40  # characters of a name in a sentence
TOP = 10
GROUPINGS = ("name", "shapes", "stack", "operator")
MAX_ADVICE = 2
MIN_SHARE = 0.0005  # of a step: people do not see smaller parts
_LEAST_CHANGE = 0.05  # of the time of a row: smaller changes have no colour
COMPARED = ("overview", "operators", "kernels", "modules", "timeline")
_SPEED = "Tracing slows the host: inferlens bench measures the speed."


def call_count(value: float | None) -> str:
    """Return calls per step, which need not be whole."""
    return ABSENT if not value else significant(value) if value % 1 else f"{value:,.0f}"


def shapes_text(value: str) -> str:
    """Return tensor dimensions from JSON: ``8x4, 4x4``."""
    lists = re.sub(r"\[([\d,]*)\]", lambda match: match[1].replace(",", "x") or ABSENT, value)
    return text(lists.removeprefix("[").removesuffix("]").rstrip(f",{ABSENT}").replace(",", ", "))


def innermost_call(value: str) -> str:
    """Return the innermost call outside PyTorch's own code."""
    calls = value.split(";")
    return text(next((call for call in calls if not re.search(r"(^|/)torch/|^nn\.Module: ", call)), calls[0]))


def sparkline(values: Sequence[float | None], most: float = 1.0) -> str:
    """Return values over time as one line of at most :data:`STRIP` characters."""
    samples = np.array([value or 0.0 for value in values], dtype=np.float64)
    parts = np.array_split(samples, min(STRIP, max(len(samples), 1)))
    shares = (float(part.mean()) / (most or 1.0) for part in parts if len(part))
    return "".join(_LEVELS[round(max(0.0, min(share, 1.0)) * (len(_LEVELS) - 1))] for share in shares)


def _bar_column(key: str, keep: int) -> Column:
    """Return a column of bars of another column's shares."""
    return Column("bar", "", write_row=lambda row: bar(row[key] or 0.0, _BAR), keep=keep, numeric=False)


_ms = partial(Column, unit="ms", write=milliseconds)
_us = partial(Column, unit="µs", write=microseconds)
_bytes = partial(Column, write=byte_count)
_count = partial(Column, write=count)
_share = partial(Column, write=share)
_words = partial(Column, numeric=False)
_COLUMNS = ColumnSet((
    Column("calls", "calls", write=call_count, keep=1),
    _ms("host_self", "host self", keep=2),
    _ms("host_total", "host total", keep=4),
    _ms("device_self", "GPU self"),
    _ms("device_total", "GPU total", keep=3),
    _words("eligible", "tensor cores possible", keep=6, write=lambda value: "yes" if value else ABSENT),
    _share("tensor_share", "tensor cores used", keep=5),
    _share("tensor_untold", "unknown", keep=6),
    _words("kind", "kind", keep=9),
    _ms("total", "per step"),
    _ms("time", "time"),
    _share("share", "share", keep=2),
    _us("mean", "mean", keep=3),
    _us("min", "min", keep=7),
    _us("max", "max", keep=6),
    Column("blocks_per_sm", "blocks per SM", write=bare, keep=5),
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
    _ms("step_time", "traced step"),
    _words("bound", "bound by", unit="traced", keep=4),
    _ms("computing", "computing", keep=3),
    _ms("communicating", "communicating", keep=4),
    _share("overlapped", "overlapped", keep=5),
    _ms("waiting", "waiting for the host", keep=6),
))  # fmt: skip


def _columns_of(keys: str) -> tuple[Column, ...]:
    """Return columns by key, separated by commas; a star makes one ``wide``."""
    return tuple(column for key in keys.split(", ") for column in _COLUMNS.pick(key.rstrip("*"), wide=key[-1] == "*"))


GPU_COLUMNS = _columns_of(", ".join((*USE, "compute_capability", "multiprocessors", "memory")))
SHARE_COLUMNS = (*_columns_of("time, share"), _bar_column("share", 3))
OPERATOR_COLUMNS = _columns_of("calls, device_self, device_total, host_self, host_total*, eligible*, tensor_share")
KERNEL_COLUMNS = _columns_of(
    "kind*, calls, total, share, mean, min*, max*, blocks_per_sm*, occupancy, tensor_cores, registers*, shared_memory*"
)
LAUNCH_COLUMNS = (*KERNEL_COLUMNS, *_columns_of("operator, grid*, block*"))
MODULE_COLUMNS = _columns_of("calls, device_total, device_self, host_total, host_self")
STEP_COLUMNS = _columns_of(f"time, utilization, launched*, {', '.join(PARTS)}, note")
HOLDER_COLUMNS = _columns_of("device, held, allocations")
TIMELINE_COLUMNS = (
    _share("kernel", "kernel", keep=1),
    _bar_column("kernel", 0),
    _share("copy", "copy", keep=4),
    *_columns_of("sm_efficiency"),
    _share("operator", "operator", keep=2),
    _share("runtime", "runtime", keep=5),
)
CURVE_COLUMNS = (_bytes("allocated", "allocated"),)
SPARKLINE_COLUMNS = (_share("mean", "mean"), _words("strip", "over time", max_width=STRIP, write=str))
PEAK_COLUMNS = (
    _bytes("peak", "peak"),
    Column("time", "at", write=duration),
    _words("strip", "over time", max_width=STRIP, write=str),
)
RANK_COLUMNS = _columns_of("rank, step_time, utilization, computing, communicating, overlapped, waiting")
RUN_COLUMNS = _columns_of(
    "step_time, bound, utilization, sm_efficiency*, occupancy*, tensor_share*, tensor_untold*, "
    "kernel, copy*, runtime*, cpu*, waiting"
)


# Sentences about traces.

Row = Mapping[str, Any]


def dominant_names(
    times: Iterable[tuple[str, float]], whole_name: str, label: Callable[[Row], str] = lambda row: str(row["name"])
) -> list[str]:
    """Name up to three entries that take half of a step's time."""
    sums: dict[str, float] = {}
    for name, seconds in times:
        sums[name] = sums.get(name, 0.0) + seconds
    whole, part, names = sum(sums.values()), 0.0, []
    if whole <= 0:
        return ["Nothing here takes any time."]
    for name, seconds in sorted(sums.items(), key=lambda pair: -pair[1])[:3]:
        names.append(cut_middle(plain(label({"name": name})), _LONGEST))
        part += seconds
        if part >= whole / 2:
            break
    took = f"{milliseconds(part)} of {milliseconds(whole)} ms a step"
    return [f"{percent(part / whole)} of {whole_name} ({took}) goes to {listing(list(dict.fromkeys(names)))}."]


def kernel_label(data: Columns, top: int | None = None) -> Callable[[Row], str]:
    """Return short kernel names; the ``top`` ones stay distinct."""
    from inferlens.analysis.profile_table import short_kernel_name, short_kernel_names

    names = short_kernel_names(dict.fromkeys(data.columns["name"][:top]))
    return lambda row: names.get(row["name"]) or short_kernel_name(row["name"])


def heaviest_module(rows: Sequence[Row], key: str, steps: int) -> list[str]:
    """Return the innermost module with half of the time, or the largest."""
    if not rows:
        return ["No module is known: profile with stacks and modules, or name scopes."]
    whole = sum(row[key] or 0.0 for row in rows if not row["depth"]) or 1.0
    dominant = [row for row in rows if (row[key] or 0.0) >= whole / 2]
    heaviest = max(dominant or rows, key=lambda row: (row["depth"] if dominant else 0, row[key] or 0.0))
    whole_name = "the modules' GPU time" if key == "device_total" else "the modules' time"
    took = heaviest[key] or 0.0
    times = f"{milliseconds(took / steps)} of {milliseconds(whole / steps)} ms a step"
    return [f"{percent(took / whole)} of {whole_name} ({times}) is in {plain(heaviest['path'])}."]


_BOUND = {
    "GPU": "GPU busy {busy} of a traced step: the GPU is the bottleneck.",
    "host": "GPU busy {busy} of a traced step, waiting for the host {host}; tracing adds to that.",
    "both": "GPU busy {busy} of a traced step: neither the host nor the GPU alone is the bottleneck.",
    "CPU only": "No kernel ran on a GPU.",
}


@dataclass(frozen=True)
class TraceTable:
    """Rows for programs, which can become a table for people.

    Attributes:
        label: a row's name, or its key.
        tree: whether rows form a tree by ``depth`` with their ``path`` as full name.
        top: number of rows; ``None``: all.
        rank: key that selects the ``top`` rows, which keep their order; empty: the first ones.
        brief: selects and orders rows for people.
        steps: number of steps in calls and milliseconds; people see one step.
        wide: whether people see the table only on request.
        style: the style of a row's line.
    """

    name: str
    title: str
    first: str
    columns: Sequence[Column]
    data: Columns
    label: str | Callable[[Row], str] = "name"
    sentences: Sequence[str] = ()
    tree: bool = False
    top: int | None = None
    rank: str = ""
    brief: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list
    steps: int = 1
    wide: bool = False
    style: Callable[[Row], str] = lambda _: ""

    def rows(self) -> list[dict[str, Any]]:
        if not self.rank or self.top is None:
            return list(self.data.rows(self.top))
        rows = list(self.data.rows())
        largest = sorted(range(len(rows)), key=lambda place: -(rows[place][self.rank] or 0.0))[: self.top]
        return [rows[place] for place in sorted(largest)]

    def table(self) -> Table:
        rows, lines = self.rows(), []
        sums = [column.key for column in self.columns if column.key == "calls" or column.unit == "ms"]
        for row in self.brief(rows):
            if self.steps > 1:
                row = {**row, **{key: row[key] / self.steps for key in sums if row[key] is not None}}
            name = text(row[self.label] if isinstance(self.label, str) else self.label(row))
            tree = {"indent": "  " * int(row["depth"]), "full": text(row["path"])} if self.tree else {}
            lines.append(Line.from_row(name, self.columns, row, style=self.style(row), **tree))
        more = more_rows_note(len(self.data) - len(rows), len(self.data))
        return Table(self.title, self.first, self.columns, lines, notes=more, sentences=self.sentences)


@dataclass(frozen=True)
class TraceView:
    """One view of a trace.

    Attributes:
        about: heading after the trace's name.
        answer: sentences above the tables.
        tables: plain :class:`Table` objects are for people alone.
        next_step: a question, and the options that answer it.
    """

    about: str
    answer: Sequence[str]
    tables: Sequence[TraceTable | Table]
    next_step: tuple[str, str]


_NOTHING_MORE = ("", "")
_WHICH_KERNELS = ("Which kernels take it?", "--view kernels")
_WHICH_OPERATORS = ("Which operators take it?", "--view operators")


@dataclass(frozen=True)
class Selection:
    """The selected part of a view.

    Attributes:
        by: further keys of operators (``shapes``, ``stack``) or kernels (``operator``).
        top: number of rows; ``None``: all.
        depth: depth of modules, with all rows; ``None``: the ``top`` largest rows.
    """

    by: tuple[str, ...] = ()
    top: int | None = TOP
    depth: int | None = None


def _overview_view(analysis: Analysis, _: Selection) -> TraceView:
    overview = analysis.overview
    step = overview.step_time or 1.0
    busy = percent(max(0.0, 1 - sum(overview.idle.values()) / step))
    findings = enumerate(trace_findings(analysis), 1)
    advice = [plain(f"{place}. {finding.sentence} {finding.hint}") for place, finding in findings]
    sentences = [_BOUND[overview.bound].format(busy=busy, host=percent(overview.waiting / step)), *advice[:MAX_ADVICE]]
    names = dict.fromkeys(plain(gpu.name) or f"GPU {gpu.device}" for gpu in overview.gpus)
    length = duration(overview.step_time)
    steps = f"{plural(overview.steps, 'traced step')} of {length}"
    if WHOLE_TRACE in analysis.counted.names:
        steps = f"no marked steps: the whole trace of {length} counts as one"
    about = [listing([*names]), steps]
    about += [f"{plural(overview.left_out, 'step')} cut off"] if overview.left_out else []
    parts = _shares_table("parts", "", "a step's time", overview.parts, step)
    if not overview.gpus:
        data = operators(analysis)
        times, whole_name = _own_seconds(analysis, data)
        sentences[1:1] = dominant_names(zip(data.columns["name"], times, strict=True), whole_name)
        return TraceView(" · ".join(filter(None, about)), sentences, [parts], _WHICH_OPERATORS)
    counts = {"more hint": len(advice) - MAX_ADVICE, "more GPU": len(overview.gpus) - 1}
    more = ", ".join(plural(count, noun) for noun, count in counts.items() if count > 0)
    hidden = [f"({more}: --format json)"] if more else []
    gpu, tensor_cores = overview.gpus[0], list[str]()
    if gpu.tensor_share is not None:
        unknown = f" ({percent(gpu.tensor_untold)} unknown)" if gpu.tensor_untold else ""
        tensor_cores = [f"GPU {gpu.device}: tensor cores in {percent(gpu.tensor_share)} of the kernels' time{unknown}."]
    tables = [
        replace(parts, sentences=[*tensor_cores, *hidden]),
        TraceTable("gpus", "GPUs", "GPU", GPU_COLUMNS, _gpus(overview), wide=True),
        replace(_shares_table("idle", "Why the GPU is idle", "cause", overview.idle, step), wide=True),
    ]
    on_gpu = overview.bound in ("GPU", "both") or not analysis.costs.is_operator.any()
    return TraceView(" · ".join(about), sentences, tables, _WHICH_KERNELS if on_gpu else _WHICH_OPERATORS)


def _gpus(overview: Overview) -> Columns:
    rows = []
    for gpu in overview.gpus:
        name, properties = f"{gpu.device}: {gpu.name}" if gpu.name else f"GPU {gpu.device}", gpu.properties
        capability = properties.compute_capability if properties and properties.major else ABSENT
        size = (properties.multiprocessors, properties.memory) if properties else (None, None)
        rows.append((name, *(getattr(gpu, measure) for measure in USE), capability, *size))
    return Columns.named(("name", *USE, "compute_capability", "multiprocessors", "memory"), rows)


def _shares_table(name: str, title: str, first: str, parts: Mapping[str, float], step: float) -> TraceTable:
    def largest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted((row for row in rows if row["share"] >= MIN_SHARE), key=lambda row: -row["share"])

    rows = [(part, seconds, seconds / step) for part, seconds in parts.items()]
    data = Columns.named(("what", "time", "share"), rows)
    return TraceTable(name, title, first, SHARE_COLUMNS, data, "what", brief=largest)


_KEY_TEXTS = {"shapes": shapes_text, "stack": innermost_call}


def _operators_view(analysis: Analysis, selection: Selection) -> TraceView:
    keys = [key for key in selection.by if key in ("shapes", "stack")]
    data = operators(analysis, *keys)
    more = (Column(key, key, keep=1, write=_KEY_TEXTS[key], max_width=36, numeric=False) for key in keys)
    times, whole_name = _own_seconds(analysis, data)
    sentences = dominant_names(zip(data.columns["name"], times, strict=True), whole_name)
    table = TraceTable("operators", "", "operator", (*OPERATOR_COLUMNS, *more), data, top=selection.top,
                       steps=analysis.tables_of)  # fmt: skip
    about = f"operators · {_call_count_text(analysis, data, 'call')}"
    next_step = _NOTHING_MORE
    if not keys and any(analysis.trace.texts[code] for code in np.unique(analysis.trace.scopes.shapes)):
        next_step = ("Of which shapes?", "--view operators --by shapes")
    return TraceView(about, sentences, [table], next_step)


def _own_seconds(analysis: Analysis, data: Columns) -> tuple[list[float], str]:
    """Return seconds per step of each row's own on the GPU or host, and their name."""
    key, whole_name = ("device_self", "the GPU's time") if len(analysis.trace.gpu) else ("host_self", "the host's time")
    return [float(value) / analysis.tables_of for value in data.columns[key]], whole_name


def _steps_text(analysis: Analysis) -> str:
    return f"mean of {plural(analysis.tables_of, 'step')}" if analysis.step is None else f"step {analysis.step}"


def _call_count_text(analysis: Analysis, data: Columns, what: str) -> str:
    number = plural(round(sum(data.columns["calls"]) / analysis.tables_of), what)
    return f"{number} a step · {_steps_text(analysis)}"


def _kernels_view(analysis: Analysis, selection: Selection) -> TraceView:
    by_operator = "operator" in selection.by
    data = kernels(analysis, by_operator=by_operator)
    label = kernel_label(data, selection.top)
    steps, columns = analysis.tables_of, LAUNCH_COLUMNS if by_operator else KERNEL_COLUMNS
    times = [(row["name"], row["total"] / steps) for row in data.rows()]
    table = TraceTable("kernels", "", "kernel", columns, data, label, top=selection.top, steps=steps)
    about = f"kernels, copies and fills · {_call_count_text(analysis, data, 'launch')}"
    sentences = dominant_names(times, "the GPU's time", label) if len(data) else ["No kernel ran on a GPU."]
    next_step = _NOTHING_MORE
    if not len(data):
        next_step = _WHICH_OPERATORS
    elif by_operator and any(path != NO_MODULE for path in module_tree(analysis).columns["path"]):
        next_step = ("Of which modules?", "--view modules")
    elif not by_operator and (analysis.launch_links.operator >= 0).any():
        next_step = ("Who launches them?", "--view kernels --by operator")
    return TraceView(about, sentences, [table], next_step)


def _modules_view(analysis: Analysis, selection: Selection) -> TraceView:
    data = module_tree(analysis, depth=selection.depth)
    rank = "device_total" if len(analysis.trace.gpu) else "host_total"
    top = None if selection.depth else selection.top
    steps = analysis.tables_of
    table = TraceTable("modules", "", "module", MODULE_COLUMNS, data, tree=True, top=top, rank=rank, steps=steps)
    sentences = heaviest_module([row for row in data.rows() if row["path"] != NO_MODULE], rank, steps)
    return TraceView(f"modules · {_steps_text(analysis)}", sentences, [table], _NOTHING_MORE)


def _memory_view(analysis: Analysis, selection: Selection) -> TraceView:
    devices = sorted(memory_devices(analysis), key=lambda device: -device.peak)
    top = TOP - 1 - len(devices) if selection.top == TOP else selection.top  # beneath the devices' own rows
    columns, curve = memory_holders(analysis), memory_curves(analysis)

    def moment(row: Row) -> str:
        return f"{row['device']}, {milliseconds(row['time'])} ms"

    lines = []
    for device in devices:
        levels = [row["allocated"] for row in curve.rows() if row["device"] == device.name]
        row = {"peak": device.peak, "time": device.time, "strip": sparkline(levels, device.peak)}
        lines.append(Line.from_row(device.name, PEAK_COLUMNS, row))
    tables: list[TraceTable | Table] = [
        Table("", "device", PEAK_COLUMNS, lines),
        TraceTable("holders", "", "held at the peak by", HOLDER_COLUMNS, columns, "operator", top=top),
        TraceTable("curve", "Memory over time", "time", CURVE_COLUMNS, curve, moment, wide=True),
    ]
    if not devices:
        sentence = "The trace has no memory events: profile with profile_memory=True."
        return TraceView("memory", [sentence], tables, _NOTHING_MORE)
    holders = [row for row in columns.rows() if row["device"] == devices[0].name]
    sentence = f"{devices[0].name} holds {byte_count(devices[0].peak)} at its peak"
    if largest := max(holders, key=lambda row: row["held"], default=None):
        sentence += f", {byte_count(largest['held'])} of it for {plain(largest['operator'])}"
    return TraceView("memory", [f"{sentence}."], tables, _NOTHING_MORE)


def _steps_view(analysis: Analysis, selection: Selection) -> TraceView:
    data = stepping(analysis)
    rows = list(data.rows())
    times = [row["time"] for row in rows if row["note"] != CUT_OFF]
    shortest, longest = duration(min(times, default=0.0)), duration(max(times, default=0.0))
    took = shortest if shortest == longest else f"{duration(sum(times) / len(times))}, from {shortest} to {longest}"
    sentences = [f"A traced step takes {took}."] if times else ["There is none."]
    outliers = [f"Step {row['step']} is {row['note']}" for row in rows if row["note"] not in ("", CUT_OFF)]
    sentences += [f"{listing(outliers[:2])}."] if outliers else []
    table = TraceTable("steps", "", "step", STEP_COLUMNS, data, "step", top=selection.top, rank="time")
    slowest = max(rows, key=lambda row: float(row["time"]))["step"] if rows else ""
    view = "kernels" if len(analysis.trace.gpu) else "operators"
    next_step = ("What is in the slowest?", f"--view {view} --step {slowest}")
    return TraceView(plural(len(data), "step"), sentences, [table], next_step if slowest.isdecimal() else _NOTHING_MORE)


def _timeline_view(analysis: Analysis, _: Selection) -> TraceView:
    data = timeline(analysis)
    rows = list(data.rows())
    whole = sum(row["length"] for row in rows)
    columns = (SPARKLINE_COLUMNS[0], replace(SPARKLINE_COLUMNS[1], title=f"from 0 to {duration(whole)}"))
    lines = []
    for column in (column for column in TIMELINE_COLUMNS if column.key != "bar"):
        values = [row[column.key] for row in rows]
        if any(values):
            mean = sum((row[column.key] or 0.0) * row["length"] for row in rows) / whole
            lines.append(Line.from_row(column.title, columns, {"mean": mean, "strip": sparkline(values)}))
    busy = "kernel" if any(row["kernel"] for row in rows) else "operator"
    label, title = (lambda row: milliseconds(row["begin"])), "Slices of the time"
    slices = TraceTable("timeline", title, "from (ms)", TIMELINE_COLUMNS, data, label, wide=True)
    tables: list[TraceTable | Table] = [Table("", "what ran", columns, lines), slices]
    sentence = "There is nothing in this trace."
    if whole:
        share = percent(sum(row[busy] * row["length"] for row in rows) / whole)
        sentence = f"{'A kernel' if busy == 'kernel' else 'An operator'} runs {share} of the time."
    return TraceView(f"timeline of {duration(whole)}", [sentence], tables, ("What is in a step?", "--view steps"))


VIEWS: dict[str, Callable[[Analysis, Selection], TraceView]] = {
    "overview": _overview_view, "operators": _operators_view, "kernels": _kernels_view, "modules": _modules_view,
    "memory": _memory_view, "steps": _steps_view, "timeline": _timeline_view,
}  # fmt: skip


# Two traces compared, the largest change of the candidate first.


def _signed(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{milliseconds(abs(value))}"


_TIME_COLUMNS = (
    Column("before", "base", "ms", write=milliseconds, keep=1),
    Column("after", "candidate", "ms", write=milliseconds, keep=2),
    Column("change", "change", "ms", write=_signed, keep=0),
)
_COMPARED_COLUMNS = (
    *_TIME_COLUMNS,
    Column("accumulated", "so far", "ms", write=_signed, keep=3, wide=True),
    Column("calls_before", "calls, base", write=call_count, keep=5, wide=True),
    Column("calls_after", "calls, candidate", write=call_count, keep=6, wide=True),
    Column("state", "", write=text, keep=4, numeric=False),
)
_EVENT_COLUMNS = (
    Column("begin_before", "from, base", "ms", write=milliseconds, keep=4, wide=True),
    Column("before", "base", "µs", write=microseconds, keep=1),
    Column("begin_after", "from, candidate", "ms", write=milliseconds, keep=5, wide=True),
    Column("after", "candidate", "µs", write=microseconds, keep=0),
    Column("state", "", write=text, keep=2, numeric=False),
)
_SHAPES_COLUMN = Column("shapes", "shapes", write=shapes_text, keep=4, numeric=False, max_width=36)


def compare_view(before: Analysis, after: Analysis, view: str, selection: Selection) -> TraceView:
    """Return one view of two traces. Raise InferlensError if the view does not compare."""
    if view not in COMPARED:
        raise InferlensError(f"The view '{view}' does not compare traces.", expected=", ".join(COMPARED))
    if view == "overview":
        return _compare_overviews(before, after)
    if view == "timeline":
        return _compare_events(before, after, selection)
    data = distributed.rows_compared(view, before, after)
    columns = (*_COMPARED_COLUMNS, _SHAPES_COLUMN) if view == "operators" else _COMPARED_COLUMNS
    label = kernel_label(data, selection.top) if view == "kernels" else "path" if view == "modules" else "name"
    table = TraceTable(view, "", view[:-1], columns, data, label, top=selection.top, style=_change_style)
    where = "GPU" if len(before.trace.gpu) and len(after.trace.gpu) else "host"
    subject = "Kernels, copies and fills" if view == "kernels" else f"{view.capitalize()} on the {where}"
    total = _time_change(*(sum(data.columns[key]) for key in ("before", "after")))
    states = _states(data)
    if view == "modules" and distributed.BOTH not in data.columns["state"]:
        states = "none is in both. inferlens modules compares engines"
    answer = f"{subject}: {total} a step; {states}." if len(data) else f"Neither has {view}."
    in_order = ("In the order of a step?", "--view timeline")
    next_step = ("By module?", "--view modules") if view == "kernels" else in_order
    return TraceView(f"{view}, what changed most first", [answer], [table], next_step)


def _compare_overviews(before: Analysis, after: Analysis) -> TraceView:
    first, second = before.overview, after.overview
    times = [{**overview.parts, "step": overview.step_time} for overview in (first, second)]
    sentences = []
    if first.step_time and second.step_time:
        took = f"Traced step: {_time_change(first.step_time, second.step_time)}."
        kernels = _time_change(first.parts["kernel"], second.parts["kernel"])
        sentences = [f"{took} Kernels: {kernels}." if first.gpus or second.gpus else took, _SPEED]

    def table(name: str, heading: str, base: Mapping[str, float], candidate: Mapping[str, float]) -> TraceTable:
        data = distributed.parts_compared(base, candidate)
        return TraceTable(name, "", heading, _TIME_COLUMNS, data, brief=_largest_changes, style=_change_style)

    tables = [table("parts", "a step's time", *times)]
    if first.gpus or second.gpus:
        tables.append(table("idle", "why the GPU is idle", first.idle, second.idle))
    changed = "kernels" if first.gpus and second.gpus else "operators"
    return TraceView("", sentences, tables, (f"Which {changed} changed?", f"--view {changed}"))


def _time_change(before: float, after: float) -> str:
    """Return ``17.1 -> 2.40 ms``."""
    first, second = duration(before), duration(after)
    number, _, unit = first.partition(" ")
    return f"{number if second.endswith(f' {unit}') else first} -> {second}"


def _change_style(row: Row) -> str:
    """Return green for at least 5 % less, red for 5 % more."""
    change = row["change"] or 0.0
    if abs(change) < _LEAST_CHANGE * max(row["before"] or 0.0, row["after"] or 0.0):
        return ""
    return "green" if change < 0 else "red" if change > 0 else ""


def _largest_changes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts with any time, the largest change first, the step last."""
    least = MIN_SHARE * max(row[key] for row in rows for key in ("before", "after"))
    relevant = [row for row in rows if max(row["before"], row["after"]) > least]
    return sorted(relevant, key=lambda row: (row["name"] == "step", -abs(row["change"])))


def _compare_events(before: Analysis, after: Analysis, selection: Selection) -> TraceView:
    data = distributed.execution(before, after)
    sentence = f"{_states(data)}, of {plural(len(data), 'event')}."
    label, top = kernel_label(data, selection.top), selection.top
    table = TraceTable("execution", "", "event", _EVENT_COLUMNS, data, label, top=top, style=_change_style)
    return TraceView("one step of each, side by side", [sentence], [table], ("Added up?", "--view kernels"))


def _states(data: Columns) -> str:
    counts = Counter(data.columns["state"])
    both, new, gone = (counts[state] for state in (distributed.BOTH, distributed.NEW, distributed.REMOVED))
    return f"{both:,} in both, {new:,} new, {gone:,} gone"
