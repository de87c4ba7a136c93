"""Records as a table of two axes: ways down, the values of one axis across, such as precisions.

A cell is compared with the first one of its line: by the one rule of ``analysis.race`` where both do the same work,
else by their processes. Machines are never compared: there a cell's speed-up is against its own machine's reference.
Of machines, and where there are several models, a line is a model, and its cells are the fastest ways that are right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from inferlens.analysis.race import Race, race
from inferlens.analysis.samples import CaseRuns, latest
from inferlens.errors import InferlensError, check_choice
from inferlens.record.record import Record, machine_name
from inferlens.spec.case import DEVICES, PRECISIONS, QUANTIZED, Case, bare, shown_together
from inferlens.stats.comparison import LogRatio, unpaired_difference
from inferlens.stats.intervals import ends
from inferlens.units import ABSENT, drop, error_size, listing, milliseconds, plural, ratio, ratio_spread
from inferlens.views.answer import FEW, answers, doubts
from inferlens.views.compared import names_of
from inferlens.views.plain import plain
from inferlens.views.records import WIDTH, headline, measured_again, notes_beneath
from inferlens.views.renderers import terminal
from inferlens.views.rows import SAID_PARTLY, Row, at, by, noted, rows, varying
from inferlens.views.table import Column, Document, Line, Screen, Table

MOST_NAMED = 3  # ways in a sentence
LEVEL = 0.95


class CrossedAxis(NamedTuple):
    """Something that cases differ in: its value of a row, and the same case without it."""

    value: Callable[[Row, Case], Any]
    without: Callable[[Case], dict[str, Any]]
    order: Sequence[Any] = ()


def _field(name: str, nothing: Any, order: Sequence[Any] = ()) -> CrossedAxis:
    return CrossedAxis(lambda _, case: getattr(case, name), lambda _: {name: nothing}, order)


# Cases that are equal without the axis stand in one line. Sizes are axes too, by their names.
AXES = {
    "precision": _field("precision", "", (*PRECISIONS, *QUANTIZED)),
    "batch": CrossedAxis(lambda row, _: row.batch, lambda _: {}),
    "threads": _field("threads", None),
    "device": CrossedAxis(
        lambda _, case: case.device,
        lambda case: {"device": "", "variant": case.variant.replace(case.device, "")},
        DEVICES,
    ),
    "backend": CrossedAxis(lambda row, _: row.backend, lambda _: {"backend": "", "variant": "", "options": {}}),
    "calibration": _field("calibration", ""),
    "python": _field("python", ""),
    "model": _field("model", ""),
    "machine": CrossedAxis(lambda row, _: row.machine, lambda _: {}),
}


@dataclass(frozen=True)
class CrossedCell:
    """A way at one value of the axis: its ``row``, and how many times as fast it is, from ``low`` to ``high``."""

    row: Row
    speedup: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def word(self) -> str:
        """Why there is no time; empty where there is one."""
        row = self.row
        if not row.ok:
            return row.status
        return "wrong" if row.agrees is False else "" if row.seconds_per_call is not None else "not measured"

    @property
    def times(self) -> str:
        """The speed-up and how sure it is."""
        return ratio(self.speedup) + ratio_spread(self.speedup, self.low, self.high)

    @property
    def per_item(self) -> str:
        """The same, below 1 as ``1.27x slower``."""
        if self.speedup is None or self.speedup >= 1:
            return self.times
        low, high = (end and 1 / end for end in (self.high, self.low))
        return f"{ratio(1 / self.speedup)}{ratio_spread(1 / self.speedup, low, high)} slower"


@dataclass(frozen=True)
class CrossedLine:
    """A way, or a model, and its cells by the values of the axis."""

    name: str
    cells: Mapping[Any, CrossedCell]


@dataclass(frozen=True)
class Crossed:
    """Rows of one machine, or of all if the axis is that; ``values`` of the axis in their order, with their names."""

    axis: str
    of: CrossedAxis
    rows: Sequence[Row]
    runs: Mapping[tuple[str, str], CaseRuns]
    names: Mapping[Any, str]

    @cached_property
    def of_models(self) -> bool:
        """Whether a line is a model."""
        return self.axis == "machine" or (self.axis != "model" and len({row.model for row in self.rows}) > 1)

    def case(self, row: Row) -> Case:
        """The case of a row."""
        return self.runs[row.id, row.machine].first.case

    @cached_property
    def values(self) -> list[Any]:
        """Those that there are here, in their order."""
        there = {self.of.value(row, self.case(row)) for row in self.rows}
        return [value for value in self.names if value in there]

    @cached_property
    def lines(self) -> list[CrossedLine]:
        """The lines, those with the fastest rows first."""
        groups: dict[Any, dict[Any, list[Row]]] = {}
        cases: dict[Any, Case] = {}
        for row in self.rows:
            case = self.case(row)
            bare = replace(case, **self.of.without(case), **self._own_precisions)
            if self.axis != "model":  # the inputs of two models may differ
                bare = replace(bare, batch=None, inputs=())
            key = self._work(row) if self.of_models else (bare.digest, *self._sizes_and_form(row))
            cases.setdefault(key, bare)
            groups.setdefault(key, {}).setdefault(self.of.value(row, case), []).append(row)
        if self.of_models:
            names = self._works(list(cases))
        else:
            shared = ["precision"] * (len({case.precision for case in cases.values()}) == 1)
            names = names_of(list(cases.values()), unsaid=(self.axis, *shared))
            names = [f"{name} {sizes}" for name, (_, sizes, _) in zip(names, groups, strict=True)]
        return [
            CrossedLine(plain(name) or "all", self._cells({value: _best(item) for value, item in entry.items()}))
            for name, entry in zip(names, groups.values(), strict=True)
        ]

    @cached_property
    def noted(self) -> list[Row]:
        """The rows of the cells, with their notes."""
        return noted([cell.row for line in self.lines for cell in line.cells.values()], self.runs)

    @cached_property
    def _own_precisions(self) -> dict[str, str]:
        """No precision, where the axis is models of one precision each, such as a file and the same quantized."""
        several = len({(row.model, row.precision) for row in self.rows}) > len({row.model for row in self.rows})
        return {} if self.axis != "model" or several else {"precision": ""}

    @property
    def of_one(self) -> bool:
        """Whether the cells of a line are one model's, or of a file and the same quantized."""
        quantized = {row.precision for row in self.rows} & {*QUANTIZED}
        return self.axis != "model" or bool(self._own_precisions and quantized)

    def _work(self, row: Row) -> tuple[str, ...]:
        """What a line of models is of: rows that share it do the same work but for the axis; all but the last named."""
        io = "" if row.io == "device" else f"{row.io} io"
        sizes, form = self._sizes_and_form(row)
        return row.model, sizes, io, row.call_mode, form

    def _sizes_and_form(self, row: Row) -> tuple[str, str]:
        """Return the sizes that tell a row from others of its model, in words, and its inputs but for the axis."""
        if self.axis == "model":
            return "", ""
        return at(row, self._sizes[row.model]), row.inputs_but([self.axis])

    @cached_property
    def _sizes(self) -> dict[str, list[str]]:
        return {rows[0].model: [name for name in varying(rows) if name != self.axis] for rows in by(self.rows, "model")}

    def _works(self, every: Sequence[tuple[str, ...]]) -> list[str]:
        """The names of the lines of models, with what they do not share."""
        models = list(dict.fromkeys(model for model, *_ in every))
        names = dict(zip(models, _short(models), strict=True))
        return [" ".join(filter(None, [names[model], *words])) for model, *words, _ in every]

    def _cells(self, found: Mapping[Any, Row]) -> dict[Any, CrossedCell]:
        base = found.get(self.values[0])
        return {value: self._cell(found[value], base) for value in self.values if value in found}

    def _cell(self, row: Row, base: Row | None) -> CrossedCell:
        if self.axis == "machine":
            low, high = (row.speedup_low, row.speedup_high) if row.sure else (None, None)
            return CrossedCell(row, None if row.is_reference else row.speedup, low, high)
        if base is None or row is base or not self.of_one:
            return CrossedCell(row)
        return CrossedCell(row, *self._times(base, row))

    def _times(self, base: Row, row: Row) -> tuple[float | None, float | None, float | None]:
        """How many times as fast a row is as another one, and the interval of that; of batch sizes for one item."""
        log_ratio = self._ratio(base, row)
        if log_ratio is None:
            return None, None, None
        items = (row.batch or 1) / (base.batch or 1)
        low, high = ends(log_ratio.interval(LEVEL) if log_ratio.replicated else None)
        return items / log_ratio.ratio, high and items / high, low and items / low

    def _ratio(self, base: Row, row: Row) -> LogRatio | None:
        """A row's time over another one's; ``None`` where the two may not be compared."""
        if not (base.ranked and row.ranked):
            return None
        if base.comparison == row.comparison:
            return self._races[row.comparison].data.difference(base.id, row.id)
        one, entry = (self._races[item.comparison].entries.get(item.id) for item in (base, row))
        if not (one and entry):
            return None
        first, second = (list(entry.rounds.values()) or list(entry.separate) for entry in (one, entry))
        return unpaired_difference(first, second, one.usual)

    @cached_property
    def _races(self) -> dict[Any, Race]:
        every = by(self.rows, "comparison")
        return {item[0].comparison: race({row.id: self.runs[row.id, row.machine] for row in item}) for item in every}

    # What it comes to

    @cached_property
    def sentences(self) -> list[str]:
        """What each value does to the ways, and what a way does at each value."""
        return [*(self._of_value(value) for value in self._others if self._of_value(value)), *self._of_ways()]

    @property
    def _others(self) -> list[Any]:
        """Those that are told of: of numbers the last."""
        if self.axis == "machine" or not self.of_one:
            return []
        return self.values[-1:] if all(isinstance(value, int) for value in self.values[1:]) else self.values[1:]

    def _of_value(self, value: Any) -> str:
        """``int8 against fp32: 1.92x in openvino, 1.21x in onnxruntime``."""
        cells = [(line.name, line.cells[value]) for line in self.lines if value in line.cells]
        told = [(name, cell) for name, cell in cells if cell.speedup is not None]
        told.sort(key=lambda each: -(each[1].speedup or 0.0))
        times = attrgetter("per_item" if self.axis == "batch" else "times")
        words = [f"{times(cell)} in {name}" + f" {SAID_PARTLY}" * (SAID_PARTLY in cell.row.name) for name, cell in told]
        if len(told) > MOST_NAMED:
            words = [f"{words[0]} to {words[-1]}"]
        wrong = [name for name, cell in cells if cell.word == "wrong"]
        words += [f"wrong in {listing(wrong[:MOST_NAMED])}"] if wrong else []
        item = ", for one item" * (self.axis == "batch")
        return f"{self.said(value)} against {self.said(self.values[0])}{item}: {', '.join(words)}." if words else ""

    def said(self, value: Any) -> str:
        """A value with its axis where it is a number."""
        number = isinstance(value, int)
        return f"{self.axis} {value}" if number else self.names[value]

    def _where(self, value: Any) -> str:
        where = "at" if isinstance(value, int) else "on" if self.axis in ("machine", "device") else "in"
        return f"{where} {self.said(value)}"

    def _of_ways(self) -> list[str]:
        """The way that is fastest at the last value against the reference's, or the next one, at each value."""
        if self.of_models or len(by(self.rows, "comparison")) > len(self.values):
            return []
        whole = [line for line in self.lines if all(value in line.cells for value in self.values)]
        able = [line for line in whole if not any(cell.word for cell in line.cells.values())]
        able.sort(key=lambda line: line.cells[self.values[-1]].row.seconds_per_call or 0.0)
        if len(able) < 2:
            return []
        best = able[0]
        crossed_line = next(
            (line for line in able if any(cell.row.is_reference for cell in line.cells.values())), able[1]
        )
        crossed_line = able[1] if crossed_line is best else crossed_line
        found = {
            value: CrossedCell(row, *self._times(crossed_line.cells[value].row, row))
            for value, row in ((value, best.cells[value].row) for value in self.values)
        }
        words = [f"{cell.times} {self._where(value)}" for value, cell in found.items() if cell.speedup is not None]
        return [f"{best.name} against {crossed_line.name}: {', '.join(words)}."] if words else []


def crossed(records: Sequence[Record], axis: str, reference: str | None = None) -> list[Crossed]:
    """Records by one of :data:`AXES`, or by a size: a table for each machine, or one of all of them.

    Raises:
        InferlensError: if there is no such axis, all cases are alike in it, or ``reference`` names no row.
    """
    shown = rows(records, reference, notes=False)
    axes = AXES | {name: CrossedAxis(partial(_size, name), lambda _: {}) for row in shown for name in row.sizes}
    check_choice("axis", axis, axes)
    runs = {(case_runs.first.id, machine_name(case_runs.first.environment)): case_runs for case_runs in latest(records)}
    said = {name: _values(shown, runs, name, of) for name, of in axes.items()}
    if len(said[axis]) < 2:
        alike = f" All are of {listing(list(said[axis].values()))}." if said[axis] else ""
        able = [name for name, values in said.items() if len(values) > 1]
        what = f"There is nothing to show by {axis}.{alike}"
        raise InferlensError(what, expected=f"something that differs: {listing(able) or 'nothing does here'}")
    if axis != "machine":  # there the notes of the fastest ways are enough
        shown = noted(shown, runs)
    machines = [[row for row in shown if row.machine == name] for name in said["machine"]]
    groups = [shown] if axis == "machine" else machines
    found = [Crossed(axis, axes[axis], group, runs, said[axis]) for group in groups]
    return [crossed for crossed in found if len(crossed.values) > 1] or found


def _size(name: str, row: Row, _: Case) -> int | None:
    return row.sizes.get(name)


def _values(
    shown: Sequence[Row], runs: Mapping[tuple[str, str], CaseRuns], name: str, axis: CrossedAxis
) -> dict[Any, str]:
    """The values of an axis in their order, and what they are called."""
    found = list(dict.fromkeys(axis.value(row, runs[row.id, row.machine].first.case) for row in shown))
    if all(isinstance(value, int) or value is None for value in found):
        found.sort(key=lambda value: value or 0)
    found.sort(key=lambda value: axis.order.index(value) if value in axis.order else len(axis.order))
    if name == "machine":
        said = {row.machine: row.device_name for row in sorted(shown, key=lambda row: row.device != "cpu")}
        return {value: said[value] for value in found}
    if name == "python":
        cases = [runs[row.id, row.machine].first.case for row in shown]
        pairs = zip(cases, shown_together(cases), strict=True)
        return {case.python: plain(short.python) or "this one" for case, short in pairs}
    if name == "model":
        return dict(zip(found, _short(found), strict=True))
    return {value: plain(str(value)) if value not in (None, "") else "default" for value in found}


def _short(models: Sequence[str]) -> list[str]:
    """Names of models without what is before them, where that tells them apart."""
    short = [plain(re.split(r"[:/]", model)[-1]) or plain(model) for model in models]
    return short if len({*short}) == len(short) else list(map(plain, models))


def _best(rows: Sequence[Row]) -> Row:
    """The fastest that is right, else the first."""
    able = [row for row in rows if row.ranked and row.seconds_per_call is not None]
    return min(able, key=lambda row: row.seconds_per_call or 0.0, default=rows[0])


# A table of two axes as a document: for people columns for each value of the axis, for programs a cell a line.

SCHEMA = "inferlens.crossed/1"
LEAST_ROWS = 5  # of each table, though it be more than a screen: they were asked for
_LONGEST = 12  # letters of a value in a heading
_OF_OUTPUTS = ("precision", "calibration", "backend")  # axes that outputs differ by


def document(
    records: Sequence[Record], axis: str, reference: str | None = None, *, where: str = "", top: int | None = None
) -> Document:
    """What there is to show of records by an axis, as of :func:`crossed`; ``where`` is the folder that they lie in.

    ``top`` is how many lines of each table a screen shows; ``None``: as many as fit.
    """
    found = crossed(records, axis, reference)

    def blocks(most: int | None = None, width: int | None = None, *, said: bool = True) -> list[Table | str]:
        every = [row for crossed in found for row in crossed.rows]
        again = measured_again([(row.model, row.runs) for row in every])
        costs = axis in _OF_OUTPUTS and where and any(row.error is not None for row in every)
        cost = "accuracy" if any(row.accuracy is not None for row in every) else "error"
        picture = [f"A chart of what it costs: inferlens show {where} --plot chart.svg --against {cost}"] * bool(costs)
        return [*(_table(crossed, where, most, width, said=said) for crossed in found), *again, *picture]

    def fitted(screen: Screen) -> list[Table | str]:
        if top is not None:
            return blocks(top, screen.width)
        longest = max(len(table.lines) for table in blocks() if isinstance(table, Table))
        fewer = [(longest, True), *((most, False) for most in range(longest, LEAST_ROWS, -1))]
        shown = terminal.fitting((blocks(most, screen.width, said=item) for most, item in fewer), screen)
        return shown or blocks(LEAST_ROWS, screen.width, said=False)

    return Document(blocks, lambda: _data(found, axis), lambda: _csv(found, axis), f"By {axis} – Inferlens", fitted)


def _table(of: Crossed, where: str, most: int | None, width: int | None, *, said: bool = True) -> Table:
    if of.axis == "machine":
        return _fleet(of, where, most, width)
    columns = [column for value in of.values for column in _columns(of, value)]
    columns.append(Column("", "", "", partial(_few_samples, of), 6, numeric=False, fold=True))
    alone = len(by(of.rows, "comparison")) == 1
    lines = [
        Line.of(line.name, columns, line, style="bold green" * (alone and _fastest(line))) for line in of.lines[:most]
    ]
    left = len(of.lines) - len(lines)
    notes = [f"{plural(left, 'more row')}: --top {len(of.lines)}, or --format csv"] if left else []
    few = [row for row in of.rows if FEW in doubts(row)]
    notes += [*_caveats(of, answered=alone), *notes_beneath(of.rows, where, few)]
    words = [cell.word for line in of.lines for cell in line.cells.values() if cell.word]
    if words and not any("--view notes" in note for note in notes):
        notes.append(f"Why {listing(list(dict.fromkeys(words)))}: inferlens show {where or 'RESULTS'} --view notes")
    return Table(
        _title(of), "model" if of.of_models else "way", columns, lines, notes=notes, fold=True,
        answer=answers(of.rows)[0].folded(WIDTH) if alone else (), sentences=of.sentences * said,
    )  # fmt: skip


def _fleet(of: Crossed, where: str, most: int | None, width: int | None) -> Table:
    """Models and machines, in each cell the fastest way with its speed-up there; what there are more of goes down.

    Those with most cells come first, for they are seen where there is no room for all.
    """
    cells = {(line.name, plain(of.names[value])): cell for line in of.lines for value, cell in line.cells.items()}
    models, machines = [line.name for line in of.lines], [plain(of.names[value]) for value in of.values]
    turned = len(machines) > len(models)
    down, across = (machines, models) if turned else (models, machines)
    met = Counter(name for pair in cells for name in pair)
    across = sorted(across, key=lambda name: -met[name])
    rows = {entry: {item: cells.get((item, entry) if turned else (entry, item)) for item in across} for entry in down}
    way = partial(_way, brief=bool(width))
    ways = [Column(item, item, "", way, numeric=False, most=32) for item in across]
    fits = len(across)
    if width:  # of a table that is too wide the first columns
        room = width - terminal.widest(down)
        widths = [terminal.widest([column.text(rows[item]) for item in down]) for column in ways]
        sizes = [terminal.GAP + min(item, column.most) for item, column in zip(widths, ways, strict=True)]
        fits = max(1, sum(sum(sizes[: place + 1]) <= room for place in range(fits)))
    shown = sorted(down, key=lambda entry: not any(rows[entry][item] for item in across[:fits]))[:most]
    columns = [*ways[:fits], *(Column(item, item, "ms", _time, wide=True) for item in across)]
    nouns = ("machine", "model") if turned else ("model", "machine")
    left = dict(zip(nouns, (len(down) - len(shown), len(across) - fits), strict=True))
    more = listing([plural(count, f"more {noun}") for noun, count in left.items() if count])
    notes = [f"{more}: --format csv, or --output FILE.html"] if more else []
    return Table(
        _title(of), next(iter(left)), columns, [Line.of(item, columns, rows[item]) for item in shown],
        notes=[*notes, *_caveats(of), *notes_beneath(of.noted, where)], fold=True,
    )  # fmt: skip


def _way(cell: CrossedCell | None, *, brief: bool) -> str:
    """The fastest way and how many times as fast as its machine's reference it is; ``brief``: without the interval."""
    if cell is None:
        return ABSENT
    times = "" if cell.speedup is None else ratio(cell.speedup) if brief else cell.times
    return cell.word or f"{cell.row.name} {'reference' if cell.row.is_reference else times}".strip()


def _time(cell: CrossedCell | None) -> str:
    return ABSENT if cell is None or cell.word else milliseconds(cell.row.seconds_per_call)


def _few_samples(of: Crossed, line: CrossedLine) -> str:
    values = [of.names[value] for value, cell in line.cells.items() if FEW in doubts(cell.row)]
    return FEW if len(values) == len(line.cells) else f"{FEW}: {listing(values)}" if values else ""


def _fastest(line: CrossedLine) -> bool:
    return any(cell.row.fastest for cell in line.cells.values())


def _caveats(of: Crossed, *, answered: bool = False) -> list[str]:
    """What has to be known of all cells; ``answered``: beside the answer, which says what is known of the fastest."""
    told = [cell for line in of.lines for cell in line.cells.values() if cell.speedup is not None]
    once = "Cases were measured once: how far speed-ups may be off is not known."
    said = [once] if told and all(cell.low is None for cell in told) else []
    noise = [row for row in of.noted if any(note.code == "random-calibration" for note in row.notes)]
    if noise and not (answered and any(row.place == 1 for row in noise)):
        precisions = sorted({row.precision for row in noise})
        said.append(f"Calibrated with noise, accuracy meaningless: {listing(precisions)}.")
    own = "The outputs of each model are compared with its own reference; inferlens ab A B compares two models'."
    return [*said, *([own] if of.axis == "model" and of.of_one else [])]


def _title(of: Crossed) -> str:
    """What all lines share."""
    models, machines = ({getattr(row, name) for row in of.rows} for name in ("model", "machine"))
    if len(models) == len(machines) == 1:
        return headline(of.rows)
    inputs = {row.inputs_but(varying(of.rows)) for row in of.rows}
    words = [bare(min(models)) if len(models) == 1 else plural(len(models), "model")]
    words += [min(inputs).replace(":float32", "")] if len(inputs) == 1 else []
    words.append(listing(list(dict.fromkeys(row.device_name for row in of.rows))) if len(machines) == 1 else "")
    return " · ".join(plain(word) for word in words if word)


def _columns(of: Crossed, value: Any) -> list[Column]:
    """The columns of one value: the time, how many times as fast that is, and what it costs in the outputs."""
    name, first = of.names[value], value == of.values[0]

    def column(unit: str, write: Callable[[CrossedCell], str], **how: Any) -> Column:
        return Column("", name, unit, lambda line: write(line.cells[value]) if value in line.cells else ABSENT, **how)

    against = of.names[of.values[0]]
    against = f"vs {against if len(against) <= _LONGEST else 'first'}"
    shown = [column("ms", lambda cell: cell.word or milliseconds(cell.row.seconds_per_call))]
    if of.of_one and not first:
        against, times = ("per item", "per_item") if of.axis == "batch" else (against, "times")
        shown.append(column(against, attrgetter(times), keep=1))
    if of.of_models:
        way = "way" if of.axis == "precision" else "name"
        shown.append(column("way", lambda cell: "" if cell.word else getattr(cell.row, way), keep=2, numeric=False))
    cost = of.axis in _OF_OUTPUTS and not first
    rated = cost and any(row.drop is not None for row in of.rows)
    if rated:
        shown.append(column("drop", lambda cell: drop(cell.row.drop, cell.row.drop_low, cell.row.drop_high), keep=2))
    error = column("error", lambda cell: error_size(cell.row.error) if cell.row.ok else ABSENT, keep=3)
    shown.append(changed(error, wide=not cost or rated))
    return shown


def _fields(cell: CrossedCell) -> dict[str, Any]:
    """A cell for programs: seconds, and factors."""
    row = cell.row
    return {
        "id": row.id, "case": row.name, "status": row.status, "agrees": row.agrees,
        "seconds": row.seconds_per_call, "items_per_second": row.items_per_second, "error": row.error,
        "speedup": cell.speedup, "speedup_low": cell.low, "speedup_high": cell.high, "fastest": row.fastest,
        "reason": row.reason or row.agreement_reason,
    }  # fmt: skip


def _data(crosseds: Sequence[Crossed], axis: str) -> dict[str, Any]:
    tables = [
        {
            "machine": "" if axis == "machine" else of.rows[0].machine,
            "lines": [
                {"name": line.name, "cells": [{axis: value, **_fields(cell)} for value, cell in line.cells.items()]}
                for line in of.lines
            ],
            "sentences": of.sentences,
        }
        for of in crosseds
    ]
    return {"schema": SCHEMA, "axis": axis, "tables": tables}


def _csv(crosseds: Sequence[Crossed], axis: str) -> tuple[list[str], list[list[object]]]:
    """A line for each cell."""
    every = [(of, line, *item) for of in crosseds for line in of.lines for item in line.cells.items()]
    lines = [
        [cell.row.machine, cell.row.model, line.name, axis, value, *_fields(cell).values()]
        for _, line, value, cell in every
    ]
    return ["machine", "model", "line", "axis", "value", *_fields(every[0][-1])], lines
