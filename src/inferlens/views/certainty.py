"""How sure a ranking is: of how many samples and processes it is, and how far apart rows have to be to be told apart.

Where a row is of a single process its interval does not contain how far runs differ. What they are taken to differ by
is told then: ``stats.compare.unseen_on``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from inferlens.units import listing, percent, plural
from inferlens.views.row import Row


def how_sure(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Sentences on the ranked rows of each comparison."""
    rows = [row for ranked in comparisons for row in ranked]
    timed = [row for row in rows if row.median is not None]
    windows = _too_few("windows", [row.name for row in rows if row.median is None and row.iterations_low is None])
    if len(rows) < 2:
        return windows
    short = [row.name for row in timed if row.median_low is None]
    none = bool(timed) and len(short) == len(timed)
    both = any(row.iterations_per_second for row in timed)
    return [
        _basis(rows, timed, none) + _least_apart(comparisons),
        *(_too_few("samples", short) if not none or _between(rows) else []),
        *windows,
        *["Latencies are of one call at a time, rates (throughput) of calls back to back."] * both,
    ]


def _basis(rows: Sequence[Row], timed: Sequence[Row], none: bool) -> str:
    """What the medians, or rates, are of; ``none`` if no median has an interval."""
    word = "Medians" if timed else "Rates"
    count = _span([row.samples for row in timed], "sample") if timed else ""
    single = list(dict.fromkeys(row.name for row in rows if not row.between))
    if not single:
        each = f", {count} each row" if timed else ""
        processes = _span([row.processes for row in rows], "process")
        return f"{word} over {processes}{each}: variation between processes is in the intervals."
    of = f"{word} of {count}" if timed else word
    if _between(rows):
        its = "its interval" if len(single) == 1 else "their intervals"
        return f"{of}, of {listing(single)} in one process: variation between runs is not in {its}."
    lacks = "too few for an interval" if none else "variation between runs is not in the intervals"
    return f"{of}, one process each: {lacks}."


def _least_apart(comparisons: Sequence[Sequence[Row]]) -> str:
    """How far apart single processes have to be to be told apart, if any are told apart at all."""
    known = [[row for row in ranked if row.pace_range] for ranked in comparisons]
    pairs = [pair for rows in known for pair in itertools.combinations(rows, 2)]
    apart = sorted({found for one, other in pairs if (found := one.least_apart(other)) > 1})
    shares = [percent(math.floor((least - 1) * 1000) / 1000) for least in apart]
    if not shares:
        return ""
    within = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]} (by device and number of processes)"
    advice = "" if any(map(_between, known)) else "; --repeats 5 measures how far runs differ"
    return f" So what is within {within} is not told apart{advice}."


def _between(rows: Sequence[Row]) -> bool:
    """Whether some of the rows have intervals that contain how far processes differ."""
    return any(row.between for row in rows)


def _too_few(what: str, names: Sequence[str]) -> list[str]:
    return [f"{listing(list(dict.fromkeys(names)))} had too few independent {what} for an interval."] if names else []


def _span(counts: Sequence[int], thing: str) -> str:
    """``100 samples`` or ``50 to 100 samples``."""
    least, most = min(counts), max(counts)
    return plural(most, thing) if least == most else f"{least:,} to {plural(most, thing)}"
