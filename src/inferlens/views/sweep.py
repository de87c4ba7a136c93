"""Option sweeps (``bench --option X=1,5,100``) as documents and charts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from inferlens.analysis.interference import mean_load
from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError
from inferlens.stats.intervals import ends
from inferlens.units import ABSENT, percent, ratio, ratio_range
from inferlens.views.picture import PALETTE, Theme, draw_chart, field, marks, overlay, title, vega_document
from inferlens.views.records import COLUMNS, headline, row_fields, row_values
from inferlens.views.rows import Row, rows
from inferlens.views.table import Document, Line, Table, plain

if TYPE_CHECKING:
    from inferlens.execution.tuning.tune import StudiedValue, Study


STUDY_SCHEMA = "inferlens.study/1"
STUDY_WIDTH, STUDY_HEIGHT = 640, 280  # of the picture, in pixels
STUDY_COLUMNS = ("latency", "items/s", "speed-up", "build", "memory", "outputs", "")  # titles of the columns of records


def study_document(study: Study, where: str) -> Document:
    shown = _study_rows(study)
    pairs = list(zip(study.values, shown, strict=True))

    def data() -> dict[str, Any]:
        values = [
            {"value": value.value, "is_default": value.is_default, "verdict": value.verdict or None, "row": row}
            for value, row in pairs
        ]
        return {
            "schema": STUDY_SCHEMA, "knob": study.request.name, "default": study.request.default,
            "answer": study_answer(study), "threshold": study.threshold,
            "machine_load": mean_load(row.machine_load for row in shown), "values": values,
        }  # fmt: skip

    return Document(
        lambda: [_study_table(study, shown, where)],
        data,
        lambda: ({"value": value.value, **row_values(row)} for value, row in pairs),
        fields=["value", *row_fields(shown)],
        title=study_answer(study),
    )


def study_answer(study: Study) -> str:
    """Return the effect of the option in a sentence."""
    knob = study.request.knob
    comparisons = {value.text: value.comparison for value in study.values if value.comparison}
    if not comparisons:
        default_ran = any(value.is_default and CaseRuns(value.records).ranked for value in study.values)
        return f"{'No other value of' if default_ran else 'Not even the default of'} {knob} ran with right outputs."
    if {comparison.verdict for comparison in comparisons.values()} == {"SAME"}:
        return f"{knob} makes no difference (within {percent(study.threshold)})."
    faster = _fastest_value(study)
    value = faster.text if faster else max(comparisons, key=lambda value: comparisons[value].speedup or 0.0)
    interval = f" ({ratio_range(*ends(comparisons[value].speedup_interval))})" if comparisons[value].interval else ""
    sentence = f"{knob}={value} is {ratio(comparisons[value].speedup)} its default{interval}"
    if not faster and any(comparison.verdict == "UNDECIDED" for comparison in comparisons.values()):
        return f"{sentence}: not decided; more with --within."
    one = faster or len(comparisons) == 1
    return f"{sentence}." if one else f"No value of {knob} is faster than its default: {sentence}."


def _fastest_value(study: Study) -> StudiedValue | None:
    """Return the fastest value that beats the default."""
    faster = [(value, value.comparison) for value in study.values if value.verdict == "FASTER"]
    best = max(faster, key=lambda pair: (pair[1] and pair[1].speedup) or 0.0, default=None)
    return best[0] if best else None


def _study_rows(study: Study) -> list[Row]:
    """Return a row per value with its speed-up over the default."""
    rows_by_folder = {row.folder: row for row in rows([record for value in study.values for record in value.records])}
    return [_value_row(value, rows_by_folder[value.records[0].case.folder]) for value in study.values]


def _value_row(value: StudiedValue, row: Row) -> Row:
    comparison = value.comparison
    speedup = 1.0 if value.is_default else comparison.speedup if comparison else None
    low, high = ends(comparison.speedup_interval) if comparison else (None, None)
    row = structs.replace(row, is_reference=value.is_default, speedup=speedup, speedup_low=low, speedup_high=high)
    return structs.replace(row, sure=bool(comparison and comparison.interval))


def _study_table(study: Study, shown: Sequence[Row], where: str) -> Table:
    request = study.request
    columns = [replace(column, wide=False) for column in COLUMNS if column.title in STUDY_COLUMNS]
    place = next(place for place, column in enumerate(columns) if column.title == "speed-up")
    columns[place] = replace(columns[place], title="vs default", write=_speedup_text)
    best, load = _fastest_value(study), mean_load(row.machine_load for row in shown)
    lines = []
    for value, row in zip(study.values, shown, strict=True):
        style = "dim" if not row.ok else "red" if row.agrees is False else "bold green" if value is best else ""
        lines.append(Line.from_row(_value_name(value), columns, row, style=style))
    return Table(
        headline(shown), request.name.replace(".", " "), columns, lines,
        answer=[study_answer(study)], fold=True,
        sentences=[*filter(None, [load.sentence, _use_sentence(study, where)])],
    )  # fmt: skip


def _use_sentence(study: Study, where: str) -> str:
    """Return the command that uses the fastest value, and the one that shows the records."""
    request, records = study.request, f"The records: inferlens show {shlex.quote(where)}"
    value = _fastest_value(study)
    if value is None:
        return records
    name = "--threads " if request.knob == "threads" else f"--option {request.name}="
    return f"Use it: {name}{plain(value.text)} · {records}"


def _value_name(value: StudiedValue) -> str:
    return plain(f"{value.text} (default)" if value.is_default and value.value is not None else value.text)


def _speedup_text(row: Row) -> str:
    if row.is_reference or row.speedup is None:
        return ABSENT
    return ratio(row.speedup) + (f" ({ratio_range(row.speedup_low, row.speedup_high)})" if row.sure else "")


def study_picture(study: Study, format: str) -> str | bytes:
    """Draw the speed-up of each value over the default with its interval.

    Raises:
        InferlensError: if no value can be compared with the default.
    """
    shown = _study_rows(study)
    values = [
        {"value": _value_name(value), "speedup": row.speedup,
         "low": row.speedup_low or 1.0, "high": row.speedup_high or 1.0}
        for value, row in zip(study.values, shown, strict=True)
        if value.comparison or value.is_default
    ]  # fmt: skip
    if len(values) < 2:
        raise InferlensError(f"There is nothing to draw. {study_answer(study)}")
    return draw_chart(lambda theme: _study_chart(values, study, headline(shown), theme), format, study_answer(study))


def _study_chart(values: Sequence[dict[str, Any]], study: Study, about: str, theme: Theme) -> dict[str, Any]:
    x = field("value:N", sort=None, title=study.request.name, axis={"labelAngle": 0})
    scale = {"zero": False, "nice": True}
    y = field("speedup:Q", title="speed-up against the default, 95 % interval", scale=scale)
    interval = {"x": x, "y": field("low:Q", scale=scale), "y2": {"field": "high"}}
    layers = [
        marks("rule", interval, strokeWidth=1.5),
        marks("line", {"x": x, "y": y}, strokeWidth=2, color=PALETTE[0]),
        marks("point", {"x": x, "y": y}, filled=True, size=60, opacity=1, color=PALETTE[0]),
    ]
    heading = title(study_answer(study), about)
    return vega_document(overlay(layers, values, width=STUDY_WIDTH, height=STUDY_HEIGHT, title=heading), theme)
