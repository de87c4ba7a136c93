"""Columns of the tables for people: what each is called and how a row is written in it.

The text table and the Markdown table share them. Numbers become text through ``units`` alone, and names and reasons,
which may come from anywhere, through :func:`~inferlens.views.plain.plain`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferlens.units import (
    ABSENT,
    bare_seconds,
    error_size,
    half_width,
    listing,
    mebibytes,
    millijoules,
    milliseconds,
    rate,
    ratio,
    ratio_range,
)
from inferlens.views.plain import plain
from inferlens.views.row import Row

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
FASTEST = "★"
FIGURE = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-\d+)?(?!\w|[.,]\d)")
# Figures, and what a backend may be asked for, in brackets: (tensorrt.tf32=true), (torch_compile:reduce-overhead).
FILLED = re.compile(rf"{FIGURE.pattern}|(?<=\()[a-z]\w*(?:\.\w+=\w+|:[a-z-]+)(?=\))")


@dataclass(frozen=True)
class Column:
    """One column: ``keep`` orders what stays on a narrow screen, lowest first."""

    title: str
    unit: str
    text: Callable[[Row], str]
    keep: int
    numeric: bool = True


COLUMNS = (
    Column("precision", "", lambda row: row.precision, 1, numeric=False),
    Column("batch", "", lambda row: ABSENT if row.batch is None else str(row.batch), 6),
    Column("mean", "ms", lambda row: milliseconds(row.mean), 10),
    Column("median", "ms", lambda row: milliseconds(row.median), 0),
    Column("±", "95 %", lambda row: half_width(row.median, row.median_low, row.median_high), 3),
    Column("p95", "ms", lambda row: milliseconds(row.p95), 7),
    Column("p99", "ms", lambda row: milliseconds(row.p99), 11),
    Column("GPU time", "ms", lambda row: milliseconds(row.gpu_time), 9),
    Column("enqueue", "ms", lambda row: milliseconds(row.enqueue if row.io == "host" else None), 3),
    Column("H2D", "ms", lambda row: milliseconds(row.h2d), 3),
    Column("compute", "ms", lambda row: milliseconds(row.compute), 3),
    Column("D2H", "ms", lambda row: milliseconds(row.d2h), 3),
    Column("iterations", "per s", lambda row: rate(row.iterations_per_second), 8),
    Column("items", "per s", lambda row: rate(row.items_per_second), 5),
    Column("in flight", "", lambda row: _in_flight(row), 5),
    Column("energy", "mJ per item", lambda row: _energy(row), 9),
    Column("bound by", "", lambda row: row.bound or ABSENT, 12, numeric=False),
    Column("speed-up", "", lambda row: outcome(row), 0),
    Column("interval", "95 %", lambda row: ratio_range(row.speedup_low, row.speedup_high), 14),
    Column("error", "rel. L2", lambda row: error(row), 4),
    Column("build", "s", lambda row: bare_seconds(row.build) + (" cached" if row.cached else ""), 12),
    Column("memory", "host MiB", lambda row: mebibytes(row.host_peak), 13),
    Column("memory", "GPU MiB", lambda row: mebibytes(row.device_peak), 13),
)


def _in_flight(row: Row) -> str:
    """Calls in flight where there was a choice: on a CPU one is the rule."""
    return ABSENT if row.in_flight is None or (row.in_flight == 1 and row.device == "cpu") else str(row.in_flight)


def _energy(row: Row) -> str:
    """With how far it may be off; the bounds contain what the sensor does not tell."""
    bounds = half_width(row.energy, row.energy_low, row.energy_high)
    return millijoules(row.energy) + (f" ± {bounds}" if bounds != ABSENT else "")


def outcome(row: Row) -> str:
    """The speed-up, or the word for why there is none."""
    if not row.ok:
        return row.status
    if row.agrees is False:
        return "wrong"
    return "reference" if row.is_reference else ratio(row.speedup)


def error(row: Row) -> str:
    """The error of the outputs, or that it is not known."""
    if not row.ok:
        return ABSENT
    return "unchecked" if row.agrees is None else error_size(row.error)


def used(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> list[Column]:
    """Columns in which at least one row has something to say."""
    return [column for column in columns if any(column.text(row) != ABSENT for row in rows)]


def backend(row: Row, marks: str = "") -> str:
    """First column: backend, what tells the row from its like, the mark of the fastest, marks of notes."""
    words = row.name.replace(f"{row.backend} {row.precision}", row.backend, 1)
    return f"{plain(words)}{marks}{f' {FASTEST}' if row.fastest else ''}"


def headline(table_rows: Sequence[Row]) -> str:
    """Model, device and inputs of a table."""
    ran = [row for row in table_rows if row.ok] or table_rows
    devices = listing(list(dict.fromkeys(row.device_name for row in ran)))
    several = len({row.batch for row in table_rows}) > 1
    inputs = ran[0].inputs_any_batch if several else ran[0].inputs
    prepared = {row.prepared for row in table_rows}
    sizes = f"prepared for {min(prepared)}" if len(prepared) == 1 and any(prepared) else ""
    return " · ".join(plain(part) for part in (ran[0].model, devices, inputs, sizes) if part)


class Notes:
    """Numbered notes beneath a table; those that differ in figures, or in what to ask for, alone share a number.

    Figures are given as ranges, and what the rows' backends may be asked for one after the other.
    """

    def __init__(self) -> None:
        self._figures: dict[str, list[list[str]]] = {}  # by a note's words, what each row that has it fills in

    def marks(self, row: Row) -> str:
        """Numbers of a row's notes, adding those that are new."""
        numbers = []
        for text in notes_of(row):
            text = text.replace("{", "(").replace("}", ")")
            words = FILLED.sub("{}", text)
            self._figures.setdefault(words, []).append(FILLED.findall(text))
            numbers.append(list(self._figures).index(words) + 1)
        return "˙".join(str(number).translate(_SUPERSCRIPTS) for number in dict.fromkeys(numbers))

    @property
    def texts(self) -> list[str]:
        """Every note, once."""
        return [words.format(*map(_range, zip(*figures, strict=True))) for words, figures in self._figures.items()]

    def numbered(self) -> list[tuple[str, str]]:
        """Mark and text of each note."""
        return [(str(number).translate(_SUPERSCRIPTS), text) for number, text in enumerate(self.texts, 1)]


def _range(figures: Sequence[str]) -> str:
    """What several notes have in one place: a figure, or the least and the greatest; or all that may be asked for."""
    if not all(map(FIGURE.fullmatch, figures)):
        return ", ".join(dict.fromkeys(figures))
    least, greatest = min(figures, key=_value), max(figures, key=_value)
    return least if _value(least) == _value(greatest) else f"{least} to {greatest}"


def _value(figure: str) -> float:
    return float(figure.replace(",", ""))


def notes_of(row: Row) -> list[str]:
    """What must be said of a row: why it did not run, or is wrong or unchecked, and its warnings."""
    notes = []
    if not row.ok:
        why = f"{(row.reason or 'No reason is known').rstrip('.')}."
        notes.append(f"{why} Try: {row.hint}" if row.hint else why)
    elif row.agrees is False:
        notes.append(f"Wrong outputs: {row.agreement_reason or 'they differ from the reference'}")
    elif row.agrees is None:
        notes.append(f"Outputs not checked: {row.agreement_reason or 'nothing was there to compare them with'}")
    return [plain(note) for note in (*notes, *row.warnings)]
