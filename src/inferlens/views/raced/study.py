"""A study as a screen: what the option does, and a row for each of its values against the default."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from inferlens.analysis.interference import mean_load
from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError
from inferlens.stats.intervals import ends
from inferlens.units import ABSENT, percent, ratio, ratio_range
from inferlens.views.picture import PALETTE, Theme, drawn, field, finished, layered, marks, title
from inferlens.views.plain import plain
from inferlens.views.records import COLUMNS, fields_of, headline
from inferlens.views.rows import Row, rows
from inferlens.views.table import Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.execution.tuning.study import StudiedValue, Study

SCHEMA = "inferlens.study/1"
WIDTH, HEIGHT = 640, 280  # of the picture, in pixels
SHOWN = ("latency", "items/s", "speed-up", "build", "memory", "outputs", "")  # titles of the columns of records


def document(study: Study, where: str) -> Document:
    """What there is to show of a study whose records lie in the folder ``where``."""
    shown = _rows(study)
    return Document(
        blocks=lambda: [_table(study, shown, where)],
        data=lambda: {
            "schema": SCHEMA,
            "knob": study.request.name,
            "default": study.request.default,
            "answer": answer(study),
            "threshold": study.threshold,
            "machine_load": mean_load(row.machine_load for row in shown),
            "values": [
                {
                    "value": studied_value.value,
                    "is_default": studied_value.is_default,
                    "verdict": studied_value.verdict or None,
                    "row": row,
                }
                for studied_value, row in zip(study.values, shown, strict=True)
            ],
        },
        csv=lambda: _csv(study, shown),
        title=answer(study),
    )


def answer(study: Study) -> str:
    """What the option does, in a sentence."""
    knob = study.request.knob
    found = {value.text: value.comparison for value in study.values if value.comparison}
    if not found:
        able = any(value.is_default and CaseRuns(value.records).ranked for value in study.values)
        return f"{'No other value of' if able else 'Not even the default of'} {knob} ran with right outputs."
    if {comparison.verdict for comparison in found.values()} == {"SAME"}:
        return f"{knob} makes no difference (within {percent(study.threshold)})."
    faster = _fastest(study)
    value = faster.text if faster else max(found, key=lambda value: found[value].speedup or 0.0)
    interval = f" ({ratio_range(*ends(found[value].speedup_interval))})" if found[value].interval else ""
    said = f"{knob}={value} is {ratio(found[value].speedup)} its default{interval}"
    if not faster and any(comparison.verdict == "UNDECIDED" for comparison in found.values()):
        return f"{said}: not decided; more with --within."
    return f"{said}." if faster or len(found) == 1 else f"No value of {knob} is faster than its default: {said}."


def _fastest(study: Study) -> StudiedValue | None:
    """The fastest of the values that are faster than the default."""
    faster = [value for value in study.values if value.verdict == "FASTER"]
    return max(
        faster,
        key=lambda studied_value: studied_value.comparison.speedup or 0.0 if studied_value.comparison else 0.0,
        default=None,
    )


def _rows(study: Study) -> list[Row]:
    """A row for each value, its speed-up that against the default."""
    every = {row.folder: row for row in rows([record for value in study.values for record in value.records])}
    return [_against(value, every[value.records[0].case.folder]) for value in study.values]


def _against(value: StudiedValue, row: Row) -> Row:
    comparison = value.comparison
    low, high = ends(comparison.speedup_interval) if comparison else (None, None)
    return msgspec.structs.replace(
        row,
        is_reference=value.is_default,
        speedup=1.0 if value.is_default else comparison.speedup if comparison else None,
        speedup_low=low,
        speedup_high=high,
        sure=bool(comparison and comparison.interval),
    )


def _table(study: Study, shown: Sequence[Row], where: str) -> Table:
    request = study.request
    columns = [_column(column) for column in COLUMNS if column.title in SHOWN]
    best, load = _fastest(study), mean_load(row.machine_load for row in shown)
    lines = []
    for studied_value, row in zip(study.values, shown, strict=True):
        style = "dim" if not row.ok else "red" if row.agrees is False else "bold green" if studied_value is best else ""
        lines.append(Line.of(_name(studied_value), columns, row, style=style))
    return Table(
        headline(shown), request.name.replace(".", " "), columns, lines,
        answer=[answer(study)], sentences=[*filter(None, [load.sentence, _next(study, where)])], fold=True,
    )  # fmt: skip


def _next(study: Study, where: str) -> str:
    """How to use the fastest value, if one is faster, and where the records are."""
    request, records = study.request, f"The records: inferlens show {shlex.quote(where)}"
    value = _fastest(study)
    if value is None:
        return records
    name = "--threads " if request.knob == "threads" else f"--option {request.name}="
    return f"Use it: {name}{plain(value.text)} · {records}"


def _name(value: StudiedValue) -> str:
    return plain(f"{value.text} (default)" if value.is_default and value.value is not None else value.text)


def _column(column: Column) -> Column:
    """A column of records as it is here."""
    if column.title == "speed-up":
        return replace(column, title="vs default", write=_speedup)
    return replace(column, wide=False)


def _speedup(row: Row) -> str:
    if row.is_reference or row.speedup is None:
        return ABSENT
    return ratio(row.speedup) + (f" ({ratio_range(row.speedup_low, row.speedup_high)})" if row.sure else "")


def _csv(study: Study, shown: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    names, lines = fields_of(shown)
    return ["value", *names], [
        [studied_value.value, *line] for studied_value, line in zip(study.values, lines, strict=True)
    ]


def picture(study: Study, format: str) -> str | bytes:
    """The values beside each other: how many times as fast as the default each is, with its interval.

    Raises:
        InferlensError: if no value can be compared with the default.
    """
    shown = _rows(study)
    values = [
        {
            "value": _name(studied_value),
            "speedup": row.speedup,
            "low": row.speedup_low or 1.0,
            "high": row.speedup_high or 1.0,
        }
        for studied_value, row in zip(study.values, shown, strict=True)
        if studied_value.comparison or studied_value.is_default
    ]
    if len(values) < 2:
        raise InferlensError(f"There is nothing to draw. {answer(study)}")
    return drawn(lambda theme: _chart(values, study, headline(shown), theme), format, answer(study))


def _chart(values: Sequence[dict[str, Any]], study: Study, about: str, theme: Theme) -> dict[str, Any]:
    x = field("value:N", sort=None, title=study.request.name, axis={"labelAngle": 0})
    scale = {"zero": False, "nice": True}
    y = field("speedup:Q", title="speed-up against the default, 95 % interval", scale=scale)
    interval = {"x": x, "y": field("low:Q", scale=scale), "y2": {"field": "high"}}
    layers = [
        marks("rule", interval, strokeWidth=1.5),
        marks("line", {"x": x, "y": y}, strokeWidth=2, color=PALETTE[0]),
        marks("point", {"x": x, "y": y}, filled=True, size=60, opacity=1, color=PALETTE[0]),
    ]
    return finished(layered(layers, values, width=WIDTH, height=HEIGHT, title=title(answer(study), about)), theme)
