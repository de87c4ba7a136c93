"""Records as points: the latency of every way against the error of its outputs, its accuracy, memory or energy.

A panel for each comparison. Ways that are wrong are there and crossed out: one sees how fast the wrong answer is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferlens.errors import InferlensError, check_choice
from inferlens.record.record import Record
from inferlens.units import error_size, mebibytes, millijoules, milliseconds, plural, ratio
from inferlens.views import picture
from inferlens.views.answer import accuracy
from inferlens.views.chart import (
    LETTER,
    LETTER_OF_TITLE,
    WIDTH,
    colours_by_backend,
    labels,
    names_of,
    title_of,
    where_of,
)
from inferlens.views.picture import Theme, finished, stacked, title
from inferlens.views.plain import plain
from inferlens.views.raced.scatter import ACCURACY, ENERGY, ERROR, MEMORY, PanelAxis, least_error, of_accuracy, panel
from inferlens.views.records import headline
from inferlens.views.renderers.terminal import wrap
from inferlens.views.rows import Row, by, rows

HEIGHT = 340
MOST = 6  # comparisons of a table that are drawn, the first
AGAINST = {"error": ERROR, "accuracy": ACCURACY, "memory": MEMORY, "energy": ENERGY}
LATENCY = PanelAxis("x", "median latency (ms)")
_MIB = 2.0**-20
_TOOLTIP = (
    ("name", "way"), ("said", "latency (ms)"), ("speedup", "speed-up"), ("error_said", "error"),
    ("accuracy_said", "accuracy"), ("memory_said", "memory (MiB)"), ("energy_said", "energy (mJ)"),
    ("outputs", "outputs"),
)  # fmt: skip


def render(
    records: Sequence[Record],
    measure: str,
    format: str,
    *,
    reference: str | None = None,
    theme: str = "auto",
) -> str | bytes:
    """The picture, as :func:`inferlens.views.picture.drawn`; InferlensError if there is nothing to draw."""
    check_choice("measure", measure, AGAINST)
    picture.check(format, theme=theme)
    shown = rows(records, reference)
    if not any(drawable(row, measure) for row in shown):
        what = f"There is nothing to draw: no case has both a latency and its {AGAINST[measure].title}."
        raise InferlensError(what, hint="inferlens show --wide")
    return picture.drawn(lambda look: chart_of(shown, measure, look), format, shown[0].model, theme)


def chart_of(
    shown: Sequence[Row], measure: str, theme: Theme, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The Vega-Lite document; ``colours`` are those of backends, by their names."""
    colours = colours or colours_by_backend(shown)
    able = [table for table in by(shown, "table") if any(drawable(row, measure) for row in table)]
    blocks = [_block(table, measure, theme, colours) for table in able]
    return finished(stacked(blocks, apart=("color", "shape"), spacing=44), theme)


def drawable(row: Row, measure: str) -> bool:
    """Whether a row is a point; wrong ones are, too."""
    values = {"error": row.error, "accuracy": row.accuracy, "memory": _memory(row), "energy": row.energy}
    return row.ok and row.median is not None and values[measure] is not None


def _memory(row: Row) -> int | None:
    """The GPU's, of what runs there."""
    return row.host_peak if row.device == "cpu" else row.device_peak


def _block(table: Sequence[Row], measure: str, theme: Theme, colours: Mapping[str, str]) -> dict[str, Any]:
    """One model on one machine, a panel for each comparison."""
    comparisons = by(table, "comparison")
    names = names_of(table)
    metrics = [(row.metric, row.accuracy_share) for row in table if drawable(row, "accuracy")]
    axis = of_accuracy(metrics) if measure == "accuracy" else AGAINST[measure]
    panels = []
    counts = [sum(drawable(row, measure) for row in comparison) for comparison in comparisons]
    able = [item for item, count in zip(comparisons, counts, strict=True) if count >= min(2, max(counts))]
    for item in able[:MOST]:
        points = [row for row in item if drawable(row, measure)]
        drawn = panel(_values(points, names), LATENCY, axis, theme, (WIDTH, HEIGHT), _TOOLTIP, colours)
        panels.append({**drawn, "title": where_of(item, comparisons)} if len(able) > 1 else drawn)
    missing = sum(not drawable(row, measure) for row in table)
    words = ["dashed: nothing is better in both"]
    wrong = any(row.agrees is False for row in table if drawable(row, measure))
    words += ["crossed out: wrong"] * wrong
    codes = {note.code for row in table for note in row.notes}
    words += ["calibrated with noise, so errors mean little"] * (measure == "error" and "random-calibration" in codes)
    words += [f"{plural(missing, 'way')} without these numbers not drawn"] * bool(missing)
    words += headline(table).split(" · ")[1:-1]  # the model is in the title
    room = WIDTH + 90  # with what stands beside the axis
    answer, about = title_of(comparisons, names, room / LETTER_OF_TITLE), wrap(" · ".join(words), int(room / LETTER))
    return stacked(panels, spacing=30, title=title(answer, about))


def _values(points: Sequence[Row], names: dict[str, str]) -> list[dict[str, Any]]:
    """What is drawn of each row."""
    least, values = least_error([row.error for row in points]), []
    for row, label in zip(points, labels(points, names), strict=True):
        right, memory = row.agrees is not False, _memory(row)
        role = label.removeprefix(names[row.id]).strip(" ()")
        values.append(
            {
                "name": plain(row.name),
                "x": 1e3 * (row.median or 0.0),
                "said": milliseconds(row.median),
                "error": None if row.error is None else max(row.error, least),
                "error_said": error_size(row.error),
                "accuracy": row.accuracy and row.accuracy * (100 if row.accuracy_share else 1),
                "accuracy_said": f"{row.metric} {accuracy(row)}" if row.metric else "",
                "memory": memory and memory * _MIB,
                "memory_said": mebibytes(memory),
                "energy": row.energy and 1e3 * row.energy,
                "energy_said": millijoules(row.energy),
                "speedup": ratio(row.speedup),
                "outputs": row.outputs,
                "colour": plain(row.backend),
                "precision": row.precision,
                "role": role,
                "label": label + " (wrong)" * (not right),
                "filled": right,
                "wrong": not right,
            }
        )
    return values
