"""Cross tables of records: ways down, and the values of one axis across, such as precisions.

The first cell of a line is the base of its speed-ups. Cells of the same work are compared by the rule of
``analysis.race``, others by their processes. Machines are never compared: each has its own reference. With several
models or machines, a line is a model, and its cells are the fastest right ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from inferlens.analysis.race import Race, race
from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError, check_choice
from inferlens.record.record import Record
from inferlens.spec.case import DEVICES, PRECISIONS, QUANTIZED, Case, bare, shown_together
from inferlens.stats.comparison import LogRatio, unpaired_difference
from inferlens.stats.intervals import ends
from inferlens.units import ABSENT, drop, error_size, listing, milliseconds, plural, ratio, ratio_spread
from inferlens.views.answer import FEW, answers, doubts
from inferlens.views.comparison import distinct_names
from inferlens.views.records import headline, rerun_notes, table_notes
from inferlens.views.rows import PARTLY, Row, RowKey, group_rows, rows, runs_by_row, sizes_text, varying_sizes
from inferlens.views.table import Column, Document, Line, Screen, Table, more_rows_note, plain

MAX_NAMES = 3  # ways in a sentence
LEVEL = 0.95


class CrossAxis(NamedTuple):
    """A property in which cases differ: its value, and the fields of a case without it."""

    value: Callable[[Row, Case], Any]
    without: Callable[[Case], dict[str, Any]]
    order: Sequence[Any] = ()


def _case_axis(name: str, nothing: Any, order: Sequence[Any] = ()) -> CrossAxis:
    return CrossAxis(lambda _, case: getattr(case, name), lambda _: {name: nothing}, order)


# Cases that are equal without the axis form a line. Names of sizes are axes, too.
AXES = {
    "precision": _case_axis("precision", "", (*PRECISIONS, *QUANTIZED)),
    "batch": CrossAxis(lambda row, _: row.batch, lambda _: {}),
    "threads": _case_axis("threads", None),
    "device": _case_axis("device", "", DEVICES)._replace(
        without=lambda case: {"device": "", "variant": case.variant.replace(case.device, "")}
    ),
    "backend": CrossAxis(lambda row, _: row.backend, lambda _: {"backend": "", "variant": "", "options": {}}),
    "calibration": _case_axis("calibration", ""),
    "python": _case_axis("python", ""),
    "model": _case_axis("model", ""),
    "machine": CrossAxis(lambda row, _: row.machine, lambda _: {}),
}


@dataclass(frozen=True)
class CrossCell:
    """A row at one value of the axis, and its speed-up from ``low`` to ``high``."""

    row: Row
    speedup: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def word(self) -> str:
        """Return the reason for no time, or nothing."""
        row = self.row
        if not row.ok:
            return row.status
        return "wrong" if row.agrees is False else "" if row.seconds_per_call is not None else "not measured"

    @property
    def times(self) -> str:
        return ratio(self.speedup) + ratio_spread(self.speedup, self.low, self.high)


@dataclass(frozen=True)
class CrossLine:
    """A way or a model, and its cells by axis value."""

    name: str
    cells: Mapping[Any, CrossCell]


@dataclass(frozen=True)
class CrossTable:
    """Rows of one machine, or of all machines, by the ordered values of an axis."""

    axis: str
    dimension: CrossAxis
    rows: Sequence[Row]
    runs: Mapping[RowKey, CaseRuns]
    names: Mapping[Any, str]

    @cached_property
    def by_model(self) -> bool:
        return self.axis == "machine" or (self.axis != "model" and len({row.model for row in self.rows}) > 1)

    def case(self, row: Row) -> Case:
        return self.runs[row.id, row.machine].first.case

    @cached_property
    def values(self) -> list[Any]:
        present = {self.dimension.value(row, self.case(row)) for row in self.rows}
        return [value for value in self.names if value in present]

    @cached_property
    def lines(self) -> list[CrossLine]:
        """Return the lines, the fastest first."""
        groups: dict[Any, dict[Any, list[Row]]] = {}
        cases: dict[Any, Case] = {}
        for row in self.rows:
            case = self.case(row)
            common = replace(case, **self.dimension.without(case), **self._dropped_precision)
            if self.axis != "model":  # the inputs of two models may differ
                common = replace(common, batch=None, inputs=())
            key = self._workload(row) if self.by_model else (common.digest, *self._sizes_and_form(row))
            cases.setdefault(key, common)
            groups.setdefault(key, {}).setdefault(self.dimension.value(row, case), []).append(row)
        if self.by_model:
            models = list(dict.fromkeys(model for model, *_ in cases))
            short_names = dict(zip(models, _short_models(models), strict=True))
            names = [" ".join(filter(None, [short_names[model], *words])) for model, *words, _ in cases]
        else:
            shared = ["precision"] * (len({case.precision for case in cases.values()}) == 1)
            names = distinct_names(list(cases.values()), omitted=(self.axis, *shared))
            names = [f"{name} {sizes}" for name, (_, sizes, _) in zip(names, groups, strict=True)]
        return [
            CrossLine(plain(name) or "all", self._cells({value: _fastest_row(rows) for value, rows in group.items()}))
            for name, group in zip(names, groups.values(), strict=True)
        ]

    @cached_property
    def _dropped_precision(self) -> dict[str, str]:
        """Drop the precision if each model has one, such as a file and its quantized copy."""
        mixed = len({(row.model, row.precision) for row in self.rows}) > len({row.model for row in self.rows})
        return {} if self.axis != "model" or mixed else {"precision": ""}

    @property
    def same_model(self) -> bool:
        """Return whether a line compares one model, or a file and its quantized copy."""
        quantized = {row.precision for row in self.rows} & {*QUANTIZED}
        return self.axis != "model" or bool(self._dropped_precision and quantized)

    def _workload(self, row: Row) -> tuple[str, ...]:
        """Return the key of a line of models: the work without the axis. All but the last part is shown."""
        io = "" if row.io == "device" else f"{row.io} io"
        sizes, form = self._sizes_and_form(row)
        return row.model, sizes, io, row.call_mode, form

    def _sizes_and_form(self, row: Row) -> tuple[str, str]:
        """Return the sizes in which a row differs from others of its model, and its inputs without the axis."""
        if self.axis == "model":
            return "", ""
        return sizes_text(row, self._sizes[row.model]), row.inputs_without([self.axis])

    @cached_property
    def _sizes(self) -> dict[str, list[str]]:
        return {
            rows[0].model: [name for name in varying_sizes(rows) if name != self.axis]
            for rows in group_rows(self.rows, "model")
        }

    def _cells(self, rows: Mapping[Any, Row]) -> dict[Any, CrossCell]:
        base = rows.get(self.values[0])
        return {value: self._cell(rows[value], base) for value in self.values if value in rows}

    def _cell(self, row: Row, base: Row | None) -> CrossCell:
        if self.axis == "machine":
            low, high = (row.speedup_low, row.speedup_high) if row.sure else (None, None)
            return CrossCell(row, None if row.is_reference else row.speedup, low, high)
        if base is None or row is base or not self.same_model:
            return CrossCell(row)
        return CrossCell(row, *self._times(base, row))

    def _times(self, base: Row, row: Row) -> tuple[float | None, float | None, float | None]:
        """Return the speed-up of a row over another and its interval; of batch sizes per item."""
        log_ratio = self._ratio(base, row)
        if log_ratio is None:
            return None, None, None
        items = (row.batch or 1) / (base.batch or 1)
        low, high = ends(log_ratio.interval(LEVEL) if log_ratio.replicated else None)
        return items / log_ratio.ratio, high and items / high, low and items / low

    def _ratio(self, base: Row, row: Row) -> LogRatio | None:
        """Return the time ratio of two rows; ``None`` if they are not comparable."""
        if not (base.ranked and row.ranked):
            return None
        if base.comparison == row.comparison:
            return self._races[row.comparison].data.difference(base.id, row.id)
        base_entry, entry = (self._races[cell.comparison].entries.get(cell.id) for cell in (base, row))
        if base_entry is None or entry is None:
            return None
        before, after = (list(side.rounds.values()) or list(side.separate) for side in (base_entry, entry))
        return unpaired_difference(before, after, base_entry.usual)

    @cached_property
    def _races(self) -> dict[Any, Race]:
        return {
            comparison[0].comparison: race({row.id: self.runs[row.id, row.machine] for row in comparison})
            for comparison in group_rows(self.rows, "comparison")
        }

    @cached_property
    def sentences(self) -> list[str]:
        """Return the effect of each value, or of numbers that of the last, and of the fastest way at each value."""
        numeric = all(isinstance(value, int) for value in self.values[1:])
        compared = self.values[-1:] if numeric else self.values[1:]
        compared = [] if self.axis == "machine" or not self.same_model else compared
        return [*filter(None, map(self._value_sentence, compared)), *self._way_sentences()]

    def _value_sentence(self, value: Any) -> str:
        """Return ``int8 against fp32: 1.92x in openvino, 1.21x in onnxruntime``."""
        cells = [(line.name, line.cells[value]) for line in self.lines if value in line.cells]
        texts = [(name, cell) for name, cell in cells if cell.speedup is not None]
        texts.sort(key=lambda pair: -(pair[1].speedup or 0.0))
        words = [f"{cell.times} in {name}" + f" {PARTLY}" * (PARTLY in cell.row.name) for name, cell in texts]
        if len(texts) > MAX_NAMES:
            words = [f"{words[0]} to {words[-1]}"]
        wrong = [name for name, cell in cells if cell.word == "wrong"]
        words += [f"wrong in {listing(wrong[:MAX_NAMES])}"] if wrong else []
        per_item = ", for one item" * (self.axis == "batch")
        pair = f"{self.label(value)} against {self.label(self.values[0])}"
        return f"{pair}{per_item}: {', '.join(words)}." if words else ""

    def _way_sentences(self) -> list[str]:
        """Compare the fastest way with the reference or the next one: what the runtime adds at each value."""
        if self.by_model or len(group_rows(self.rows, "comparison")) > len(self.values):
            return []
        complete = [line for line in self.lines if all(value in line.cells for value in self.values)]
        complete = [line for line in complete if not any(cell.word for cell in line.cells.values())]
        complete.sort(key=lambda line: line.cells[self.values[-1]].row.seconds_per_call or 0.0)
        if len(complete) < 2:
            return []
        best, following, *_ = complete
        references = (line for line in complete[1:] if any(cell.row.is_reference for cell in line.cells.values()))
        base, words = next(references, following), []
        for value in self.values:
            row = best.cells[value].row
            cell = CrossCell(row, *self._times(base.cells[value].row, row))
            where = "at" if isinstance(value, int) else "on" if self.axis in ("machine", "device") else "in"
            words += [f"{cell.times} {where} {self.label(value)}"] if cell.speedup is not None else []
        return [f"{best.name} against {base.name}: {', '.join(words)}."] if words else []

    def label(self, value: Any) -> str:
        return f"{self.axis} {value}" if isinstance(value, int) else self.names[value]


def crosstabs(records: Sequence[Record], axis: str, reference: str | None = None) -> list[CrossTable]:
    """Return a table for each machine, or one for all, by one of :data:`AXES` or a size.

    Raises:
        InferlensError: if there is no such axis, all cases are alike in it, or ``reference`` names no row.
    """
    shown = rows(records, reference)

    def size_axis(name: str) -> CrossAxis:
        return CrossAxis(lambda row, _: row.sizes.get(name), lambda _: {})

    axes = AXES | {name: size_axis(name) for row in shown for name in row.sizes}
    check_choice("axis", axis, axes)
    runs = runs_by_row(records)
    names = {name: _axis_values(shown, runs, name, dimension) for name, dimension in axes.items()}
    if len(names[axis]) < 2:
        shared = f" All are of {listing(list(names[axis].values()))}." if names[axis] else ""
        differing = [name for name, values in names.items() if len(values) > 1]
        problem = f"There is nothing to show by {axis}.{shared}"
        raise InferlensError(problem, expected=f"something that differs: {listing(differing) or 'nothing does here'}")
    machines = [[row for row in shown if row.machine == name] for name in names["machine"]]
    groups = [shown] if axis == "machine" else machines
    result = [CrossTable(axis, axes[axis], group, runs, names[axis]) for group in groups]
    return [crosstab for crosstab in result if len(crosstab.values) > 1] or result


def _axis_values(shown: Sequence[Row], runs: Mapping[RowKey, CaseRuns], name: str, axis: CrossAxis) -> dict[Any, str]:
    """Return the ordered values of an axis and their names."""
    cases = [runs[row.id, row.machine].first.case for row in shown]
    values = list(dict.fromkeys(axis.value(row, case) for row, case in zip(shown, cases, strict=True)))
    if all(isinstance(value, int) or value is None for value in values):
        values.sort(key=lambda value: value or 0)
    values.sort(key=lambda value: axis.order.index(value) if value in axis.order else len(axis.order))
    if name == "machine":
        devices = {row.machine: row.device_name for row in sorted(shown, key=lambda row: row.device != "cpu")}
        return {value: devices[value] for value in values}
    if name == "python":
        pairs = zip(cases, shown_together(cases), strict=True)
        return {case.python: plain(short.python) or "this one" for case, short in pairs}
    if name == "model":
        return dict(zip(values, _short_models(values), strict=True))
    return {value: plain(str(value)) if value not in (None, "") else "default" for value in values}


def _short_models(models: Sequence[str]) -> list[str]:
    """Return model names without their prefixes, if they stay distinct."""
    short = [plain(re.split(r"[:/]", model)[-1]) or plain(model) for model in models]
    return short if len({*short}) == len(short) else list(map(plain, models))


def _fastest_row(rows: Sequence[Row]) -> Row:
    """Return the fastest right row, else the first."""
    eligible = [row for row in rows if row.ranked and row.seconds_per_call is not None]
    return min(eligible, key=lambda row: row.seconds_per_call or 0.0, default=rows[0])


SCHEMA = "inferlens.crossed/1"
LEAST_ROWS = 5  # rows that a table keeps even if it exceeds the screen
_OUTPUT_AXES = ("precision", "calibration", "backend")  # axes that outputs differ by


def crosstab_document(
    records: Sequence[Record], axis: str, reference: str | None = None, *, where: str = "", top: int | None = None
) -> Document:
    """Return a cross table of records as :func:`crosstabs`; ``where`` is their folder.

    ``top`` limits the lines of each table on a screen; ``None`` fits them.
    """
    result = crosstabs(records, axis, reference)

    def blocks(limit: int | None = None) -> list[Table | str]:
        again = rerun_notes([row.runs for crossed in result for row in crossed.rows])
        return [*(_crosstab_table(crossed, where, limit) for crossed in result), *again]

    def tries(_: Screen) -> Iterator[list[Table | str]]:
        longest = max(len(crossed.lines) for crossed in result)
        yield blocks(top or longest)
        if top is None:
            yield from (blocks(limit) for limit in range(longest - 1, LEAST_ROWS - 1, -1))

    data, csv_rows = partial(_crosstab_data, result, axis), partial(_crosstab_rows, result, axis)
    return Document(blocks, data, csv_rows, title=f"By {axis} – Inferlens", tries=tries)


def _crosstab_table(crosstab: CrossTable, where: str, limit: int | None) -> Table:
    columns = [column for value in crosstab.values for column in _value_columns(crosstab, value)]
    single = len(group_rows(crosstab.rows, "comparison")) == 1
    lines = []
    for line in crosstab.lines[:limit]:
        fastest = any(cell.row.fastest for cell in line.cells.values())
        lines.append(Line.from_row(line.name, columns, line, style="bold green" * (single and fastest)))
    few_samples = [row for row in crosstab.rows if FEW in doubts(row)]
    notes = [
        *more_rows_note(len(crosstab.lines) - len(lines), len(crosstab.lines)),
        *_caveats(crosstab),
        *table_notes(crosstab.rows, where, few_samples),
    ]
    words = [cell.word for line in crosstab.lines for cell in line.cells.values() if cell.word]
    if words and not any("--view notes" in note for note in notes):
        notes.append(f"Why {listing(list(dict.fromkeys(words)))}: inferlens show {where or 'RESULTS'} --view notes")
    return Table(
        _crosstab_title(crosstab), "model" if crosstab.by_model else "way", columns, lines, notes=notes, fold=True,
        answer=answers(crosstab.rows)[0].lines if single else (), sentences=crosstab.sentences,
    )  # fmt: skip


def _caveats(crosstab: CrossTable) -> list[str]:
    """Return notes on all cells."""
    compared = [cell for line in crosstab.lines for cell in line.cells.values() if cell.speedup is not None]
    once = "Cases were measured once: how far speed-ups may be off is not known."
    sentences = [once] if compared and all(cell.low is None for cell in compared) else []
    noise = [row for row in crosstab.rows if any(note.code == "random-calibration" for note in row.notes)]
    if noise:
        precisions = sorted({row.precision for row in noise})
        sentences.append(f"Calibrated with noise, accuracy meaningless: {listing(precisions)}.")
    model_note = "The outputs of each model are compared with its own reference; inferlens ab A B compares two models'."
    return [*sentences, *([model_note] if crosstab.axis == "model" and crosstab.same_model else [])]


def _crosstab_title(crosstab: CrossTable) -> str:
    models, machines = ({getattr(row, name) for row in crosstab.rows} for name in ("model", "machine"))
    if len(models) == len(machines) == 1:
        return headline(crosstab.rows)
    inputs = {row.inputs_without(varying_sizes(crosstab.rows)) for row in crosstab.rows}
    words = [bare(min(models)) if len(models) == 1 else plural(len(models), "model")]
    words += [min(inputs).replace(":float32", "")] if len(inputs) == 1 else []
    words.append(listing(list(dict.fromkeys(row.device_name for row in crosstab.rows))) if len(machines) == 1 else "")
    return " · ".join(plain(word) for word in words if word)


def _value_columns(crosstab: CrossTable, value: Any) -> list[Column]:
    """Return the columns of one value: time, speed-up, and error of the outputs."""
    name, first = crosstab.names[value], value == crosstab.values[0]

    def column(unit: str, write: Callable[[CrossCell], str], **how: Any) -> Column:
        def cell_text(line: CrossLine) -> str:
            return write(line.cells[value]) if value in line.cells else ABSENT

        return Column(f"{name} {unit}".strip(), name, unit, write_row=cell_text, **how)

    if crosstab.axis == "machine":  # each has its own reference

        def fastest(cell: CrossCell) -> str:
            times = f" {cell.times}" if cell.speedup else " reference" * cell.row.is_reference
            return cell.word or f"{cell.row.name} {milliseconds(cell.row.seconds_per_call)} ms{times}"

        return [column("", fastest, numeric=False, fold=True)]
    against = "per item" if crosstab.axis == "batch" else f"vs {crosstab.names[crosstab.values[0]]}"
    shown = [column("ms", lambda cell: cell.word or milliseconds(cell.row.seconds_per_call))]
    if crosstab.same_model and not first:
        shown.append(column(against, attrgetter("times"), keep=1))
    if crosstab.by_model:
        way = "way" if crosstab.axis == "precision" else "name"
        shown.append(column("way", lambda cell: "" if cell.word else getattr(cell.row, way), keep=2, numeric=False))
    cost = crosstab.axis in _OUTPUT_AXES and not first
    rated = cost and any(row.drop is not None for row in crosstab.rows)
    if rated:
        shown.append(column("drop", lambda cell: drop(cell.row.drop, cell.row.drop_low, cell.row.drop_high), keep=2))
    error = column("error", lambda cell: error_size(cell.row.error) if cell.row.ok else ABSENT, keep=3)
    shown.append(changed(error, wide=not cost or rated))
    return shown


def _cell_fields(cell: CrossCell) -> dict[str, Any]:
    """Return a cell for programs in seconds and factors."""
    row = cell.row
    return {
        "id": row.id, "case": row.name, "status": row.status, "agrees": row.agrees,
        "seconds": row.seconds_per_call, "items_per_second": row.items_per_second, "error": row.error,
        "speedup": cell.speedup, "speedup_low": cell.low, "speedup_high": cell.high, "fastest": row.fastest,
        "reason": row.reason or row.agreement_reason,
    }  # fmt: skip


def _crosstab_data(crosstabs: Sequence[CrossTable], axis: str) -> dict[str, Any]:
    tables = []
    for crosstab in crosstabs:
        machine = "" if axis == "machine" else crosstab.rows[0].machine
        lines = [
            {"name": line.name, "cells": [{axis: value, **_cell_fields(cell)} for value, cell in line.cells.items()]}
            for line in crosstab.lines
        ]
        tables.append({"machine": machine, "lines": lines, "sentences": crosstab.sentences})
    return {"schema": SCHEMA, "axis": axis, "tables": tables}


def _crosstab_rows(crosstabs: Sequence[CrossTable], axis: str) -> Iterator[dict[str, object]]:
    for line in (line for crosstab in crosstabs for line in crosstab.lines):
        for value, cell in line.cells.items():
            about = {"machine": cell.row.machine, "model": cell.row.model, "line": line.name}
            yield {**about, "axis": axis, "value": value, **_cell_fields(cell)}
