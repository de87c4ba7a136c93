"""Notes on records, for ``inferlens show --view notes``: as many as a screen holds, or all of them case by case.

On the screen notes that differ in figures alone are one, with the cases that have it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from inferlens.analysis.notes import LEVELS, Note
from inferlens.analysis.samples import latest
from inferlens.record.record import Record, machine_name
from inferlens.spec.case import short_name
from inferlens.units import listing, plural
from inferlens.views.plain import plain
from inferlens.views.renderers import terminal
from inferlens.views.rows import Row, at, rows, varying
from inferlens.views.table import Column, Document, Line, Screen, Table

SCHEMA = "inferlens.warnings/1"
# Figures, and what a backend may be asked for, in brackets: (tensorrt.tf32=true), (torch_compile:reduce-overhead).
_FIGURE = r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e-\d+)?(?!\w|[.,]\d)"
_FILLED = re.compile(_FIGURE + r"|(?<=\()[a-z]\w*(?:\.\w+=\w+|:[a-z-]+)(?=\))")
_COUNTED = {"changes": "changing the answer", "weakens": "weakening it", "know": "good to know"}
_NAMES = 36  # columns
_WORST = ("wrong-outputs", "state-lost", "did-not-run")
_COLUMNS = [Column("", "", numeric=False, fold=True)]


def document(
    records: Sequence[Record], *, every: bool = False, paths: str = "RESULTS", made: Sequence[Row] | None = None
) -> Document:
    """The notes of the latest run of each case, on a screen as many as it holds, or with ``every`` case by case.

    ``paths`` are the words that the records were asked for by, ``made`` their rows, where somebody has them.
    """
    shown = rows(records) if made is None else made
    runs = {(run.first.id, machine_name(run.first.environment)): run for run in latest(records)}

    def data() -> dict[str, Any]:
        cases = []
        for row in shown:
            run = runs[row.id, row.machine]
            cases.append({
                "model": row.model, "label": row.label, "digest": run.first.case.digest,
                "records": [record.id for record in run.records], "status": row.status, "warnings": row.notes,
            })  # fmt: skip
        return {"schema": SCHEMA, "cases": cases}

    return Document(
        blocks=lambda: [_head(shown), *_by_case(shown)],
        data=data,
        csv=lambda: (
            ("model", "case", "code", "level", "message", "hint"),
            [(row.model, row.label, one.code, one.level, one.message, one.hint) for row in shown for one in row.notes],
        ),
        title="Notes – Inferlens",
        screen=None if every else lambda screen: [_head(shown), *_screen(shown, paths, screen)],
    )


def _head(shown: Sequence[Row]) -> str:
    models = list(dict.fromkeys(plain(row.model) for row in shown))
    what = models[0] if len(models) == 1 else plural(len(models), "model")
    counts: Counter[str] = Counter(one.level for row in shown for one in row.notes)
    said = [f"{counts[level]:,} {words}" for level, words in _COUNTED.items() if counts[level]]
    return f"{what}, {plural(len(shown), 'case')}. Notes: {listing(said) or 'none'}."


def _screen(shown: Sequence[Row], paths: str, screen: Screen) -> list[Table | str]:
    """As many notes as a screen holds, and how many more there are."""
    groups, (height, width) = _grouped(shown), screen
    groups = [(replace(one, hint=one.hint.replace("RESULTS", paths)), who) for one, who in groups]
    for count in range(len(groups), 0, -1):
        table = _by_level(groups[:count])
        rest = len(groups) - count
        more = [f"{rest} more: inferlens show {paths} --view notes --all"] if rest else []
        if count <= height and terminal.height([_head(shown), table, *more], width) < height:
            return [table, *more]
    return []


def _by_level(groups: Sequence[tuple[Note, str]]) -> Table:
    lines: list[Line] = []
    for level, words in LEVELS.items():
        mine = [line for one, who in groups if one.level == level for line in _lines(one, who)]
        lines += [Line(words.upper(), ("",), style="bold"), *mine] if mine else []
    return Table("", "", _COLUMNS, lines, fold=True)


def _by_case(shown: Sequence[Row]) -> list[Table]:
    lines = [[line for one in row.notes for line in _lines(one, LEVELS[one.level])] for row in shown]
    return [Table(f"{row.model} {row.label}", "", _COLUMNS, of) for row, of in zip(shown, lines, strict=True) if of]


def _lines(one: Note, first: str) -> list[Line]:
    hint = [Line("", (f"→ {one.hint}",), style="dim")] if one.hint else []
    return [Line(first, (one.message,), indent="  "), *hint]


def _grouped(shown: Sequence[Row]) -> list[tuple[Note, str]]:
    """Notes with the cases that have them, by level and then by how many these are."""
    groups: dict[tuple[str, str, str], list[tuple[Note, str]]] = {}
    for row, name in zip(shown, _names(shown), strict=True):
        for one in row.notes:
            groups.setdefault((one.level, one.code, _FILLED.sub("", one.message)), []).append((one, name))
    order, found = list(LEVELS), []
    for group in sorted(groups.values(), key=len, reverse=True):
        first, who = group[0][0], list(dict.fromkeys(name for _, name in group))
        alike = [one.hint for one, _ in group if _FILLED.sub("", one.hint) == _FILLED.sub("", first.hint)]
        together = replace(first, message=_together([one.message for one, _ in group]), hint=_together(alike))
        found.append((together, _who(who, len(shown))))
    return sorted(found, key=lambda item: (order.index(item[0].level), item[0].code not in _WORST))


def _who(names: Sequence[str], cases: int) -> str:
    """Their names where these are short; a screen has no room for more."""
    if len(names) == cases > 2:
        return f"all {cases} cases"
    if len(said := listing(names)) <= _NAMES or len(names) == 1:
        return said
    return f"{names[0]} and {len(names) - 1:,} more"


def _names(shown: Sequence[Row]) -> list[str]:
    """What tells each case from the others, its backend first."""
    models = len({row.model for row in shown}) > 1
    sizes = varying(shown)
    every = [row.name.split() for row in shown]
    common = set(every[0][1:]).intersection(*every) if every else set()
    names = []
    for row, words in zip(shown, every, strict=True):
        own = [words[0], *(word for word in words[1:] if word not in common)]
        model = [short_name(row.model)] if models else []
        names.append(plain(" ".join([*model, *own, at(row, sizes)])))
    return names


def _together(texts: Sequence[str]) -> str:
    """What texts of the same words say together."""
    filled = [*map(_range, zip(*map(_FILLED.findall, texts), strict=True)), ""]
    return "".join(part for pair in zip(_FILLED.split(texts[0]), filled, strict=True) for part in pair)


def _range(filled: Iterable[str]) -> str:
    """A figure, or the least and the greatest; or all that may be asked for."""
    once = list(dict.fromkeys(filled))
    if not once[0][0].isdigit():
        return ", ".join(once)
    once.sort(key=lambda figure: float(figure.replace(",", "")))
    return once[0] if len(once) == 1 else f"{once[0]} to {once[-1]}"
