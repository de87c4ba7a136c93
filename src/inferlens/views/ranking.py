"""Which row is the fastest of its comparison, which one the others are compared with, and how much faster they are.

The reference is the plainest row of the backend that outputs were checked against: fp32, no options, the library's own
number of threads. Each device has its own, or else takes another device's. Words may name another one: of several that
they fit it is the plainest.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from inferlens.analysis.race import FinalsAim, Race, race
from inferlens.analysis.runs import CaseRuns
from inferlens.record.record import IN_TURNS
from inferlens.spec.case import bare
from inferlens.spec.plan import ab_words, plainness, unknown, words
from inferlens.stats.intervals import ends

if TYPE_CHECKING:
    from inferlens.views.rows import Row, RowStanding


def check_named(named: str | None, rows: Sequence[Row]) -> None:
    """Raises InferlensError for words that are to name the reference, and fit no row."""
    if named and rows and not any(fits(row, named) for row in rows):
        raise unknown(named, [row.label for row in rows])


def ranked(
    rows: Sequence[Row],
    runs: Mapping[tuple[str, str], CaseRuns],
    named: str | None,
    aim: FinalsAim | None = None,
) -> list[Row]:
    """The rows of a comparison with speed-ups, the fastest marked: the reference, ranked rows, wrong ones, failures.

    ``runs`` are what was measured, by id and machine of its row; words that are ``named`` name the reference, if they
    fit a row.
    """
    among = race({row.id: runs[row.id, row.machine] for row in rows}, aim=aim)
    metric = "median" if any(row.median is not None for row in rows) else "iterations_per_second"
    able = [
        replace(row, ranked=row.ranked and runs[row.id, row.machine].ranked and getattr(row, metric) is not None)
        for row in rows
    ]
    chosen = _references(able, runs, named)
    done = [_against(row, chosen[row.device], among) if row.device in chosen else row for row in able]
    placed = _placed(done, among)
    return [_with_hint(row, runs, placed) for row in placed]


def _with_hint(row: Row, runs: Mapping[tuple[str, str], CaseRuns], rows: Sequence[Row]) -> Row:
    """A row that is the likeliest beside others: with the command that decides between it and the next of them."""
    rivals = [each for each in rows if each.standing == "open"]
    if row.standing != "likeliest":
        return row
    one, other = (runs[each.id, each.machine].first for each in (row, rivals[0]))
    budget = replace(one.budget, max_time=None) if IN_TURNS in one.facts else one.budget
    words = ab_words(one.case, other.case, budget, device="cuda" if one.environment.gpus else "cpu")
    return replace(row, hint=shlex.join(["inferlens", "ab", bare(row.model), *words]))


def _against(row: Row, base: Row, among: Race) -> Row:
    if row.id == base.id:
        return replace(row, reference=base.name, reference_id=base.id, is_reference=True, speedup=1.0)
    found = among.difference(base.id, row.id) if row.ranked else None
    if found is None:
        return replace(row, reference=base.name)
    interval = found.interval(among.level) if found.replicated else None
    return replace(
        row,
        reference=base.name,
        reference_id=base.id,
        speedup=1 / found.ratio,
        speedup_low=1 / interval.high if interval else None,
        speedup_high=1 / interval.low if interval else None,
        sure=found.replicated,
    )


def _placed(rows: Sequence[Row], among: Race) -> list[Row]:
    """The rows in order: ranked ones by speed, the fastest first, wrong ones by speed, what did not run."""
    answer = among.answer
    rivals = among.state.rivals if among.state else {}
    order = [answer.best, *rivals]

    def place(row: Row) -> tuple[int, bool, float]:
        return order.index(row.id) if row.ranked and row.id in order else len(order), not row.ok, _seconds(row)

    placed = []
    for number, row in enumerate(sorted(rows, key=place), 1):
        if not row.ranked or row.id not in order:
            placed.append(row)
            continue
        standing: RowStanding = answer.kind
        if row.id in rivals:
            rival = rivals[row.id]
            low, high = ends(rival.interval(among.level) if rival.replicated else None)
            row = replace(row, behind=rival.ratio, behind_low=low, behind_high=high)
            standing = "equal" if row.id in answer.equal else "open" if row.id in answer.open else "slower"
        placed.append(
            replace(
                row,
                place=number,
                standing=standing,
                fastest=row.id in answer.fastest,
                chance=answer.chance if row.id == answer.best else None,
                rounds=answer.rounds,
                threshold=answer.threshold,
            )
        )
    return placed


def _seconds(row: Row) -> float:
    return math.inf if row.seconds_per_call is None else row.seconds_per_call


def _references(rows: Sequence[Row], runs: Mapping[tuple[str, str], CaseRuns], named: str | None) -> dict[str, Row]:
    """The reference of each device, by the one order that there is; of rows that are as plain, the shortest name."""
    checked = (record.agreement for row in rows for record in runs[row.id, row.machine].records)
    usual = {agreement.reference.partition(" ")[0] for agreement in checked if agreement}
    able = [row for row in rows if row.ranked]
    if named:
        able = [row for row in rows if row.ok and row.seconds_per_call is not None and fits(row, named)]

    def place(row: Row, device: str) -> tuple[Any, ...]:
        case = runs[row.id, row.machine].first.case
        return named not in (row.label, row.name), *plainness(case, device, usual), len(row.name), row.name

    return {device: min(able, key=partial(place, device=device)) for device in {row.device for row in rows} if able}


def fits(row: Row, named: str) -> bool:
    """Whether every word of ``named`` is a word of the row's label, or its backend without the variant."""
    return words(named) <= words(row.label) | words(row.name) | {row.backend.partition(":")[0]}
