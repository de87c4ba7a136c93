"""Which row the others of a comparison are compared with: a plain one of the backend that outputs were checked against.

Plain is fp32 with no options and the library's own number of threads. Each device of a comparison has its reference:
its own plain row, or else the one of another device, or else the first row that ran. Words may name another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import Case
from inferlens.views.row import Row


def references(comparisons: Sequence[Sequence[Row]], named: str | None, usual: Set[str]) -> list[dict[str, Row]]:
    """For each comparison the reference of each device; devices without one are left out.

    Args:
        comparisons: the rows of each.
        named: words that name it.
        usual: the backends of which a plain row is it where none is named.

    Raises:
        InferlensError: if ``named`` fits no row of any comparison, or more than one of a comparison and device.
    """
    if not named or not any(comparisons):
        return [_defaults(rows, usual) for rows in comparisons]
    every = [row for rows in comparisons for row in rows]
    if not any(_fits(row, named) for row in every):
        raise _unknown(named, [row.label for row in every], [f"{row.backend} {row.precision}" for row in every])
    return [_matching(rows, named) for rows in comparisons]


def refuse_unknown(cases: Sequence[Case], named: str | None) -> None:
    """Refuses, before anything is measured, a reference that no case can fit.

    Options, sizes and what is known only once a case ran are left for then.

    Raises:
        InferlensError: if of no case all words of ``named`` are words of its label.
    """
    if not named or not cases or any(spec.dynamic for case in cases for spec in case.inputs):
        return
    wanted = {word for word in _words(named) if not re.search(r"[=(]", word)}
    if not any(wanted <= _words(case.label) | {case.backend} for case in cases):
        raise _unknown(
            named, [case.label for case in cases], [f"{each.backend_label} {each.precision}" for each in cases]
        )


def _unknown(named: str, labels: Sequence[str], short: Sequence[str]) -> InferlensError:
    return InferlensError(
        f"No case fits the reference '{named}'.",
        expected=f"one of {_listed(labels)}",
        hint=suggestion(named, {*labels, *(each.partition(" ")[0] for each in short)}) or f"--reference '{short[0]}'",
    )


def _defaults(rows: Sequence[Row], usual: Set[str]) -> dict[str, Row]:
    able = [row for row in rows if row.ranked]
    plain = [row for row in able if row.backend in usual and _is_plain(row)]
    if not able:
        return {}
    fallback = sorted(plain or able, key=lambda row: row.device != "cpu" if plain else False)[0]
    return {device: next((r for r in plain if r.device == device), fallback) for device in {r.device for r in rows}}


def _matching(rows: Sequence[Row], named: str) -> dict[str, Row]:
    """The row that fits ``named`` for each device: on that device, or else the only one that fits on another."""
    fitting = [row for row in rows if _fits(row, named)]
    by_device: dict[str, list[Row]] = {}
    for row in fitting:
        by_device.setdefault(row.device, []).append(row)
    single = {device: _single(found, named) for device, found in by_device.items()}
    able = {device: row for device, row in single.items() if row.ok and row.seconds_per_call is not None}
    if len(single) == 1 and able:
        (only,) = able.values()
        return {row.device: only for row in rows}
    return able


def _single(fitting: Sequence[Row], named: str) -> Row:
    """The one row meant: an exact label, the only one that fits, or the only plain one."""
    exact = [row for row in fitting if named.strip() in (row.label, row.name)]
    for choice in (exact, fitting, [row for row in fitting if _is_plain(row)]):
        if len(choice) == 1:
            return choice[0]
    raise InferlensError(
        f"The reference '{named}' fits {len(fitting)} cases.",
        expected=f"one of {_listed([row.label for row in fitting])}",
        hint=f"--reference '{fitting[0].name}'",
    )


def _is_plain(row: Row) -> bool:
    return row.precision == "fp32" and not row.options and row.threads is None


def _fits(row: Row, named: str) -> bool:
    """Whether every word of ``named`` is a word of the row's label, or its backend without the variant."""
    return _words(named) <= _words(row.label) | _words(row.name) | {row.backend.partition(":")[0]}


def _words(text: str) -> set[str]:
    text = re.sub(r"\bbatch[ =]?(\d+)", r"batch=\1", text.replace(",", " "))
    return set(re.sub(r"\b(\d+) threads?\b", r"threads=\1", text).split())


def _listed(labels: Sequence[str]) -> str:
    labels = list(dict.fromkeys(labels))
    more = f" and {len(labels) - 12} more" if len(labels) > 12 else ""
    return ", ".join(f"'{label}'" for label in labels[:12]) + more
