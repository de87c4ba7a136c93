"""The closing sentences: what was fastest, by how much, how sure that is, and what was left out.

Two rows whose 95 % intervals of the median overlap are not told apart, whatever their medians are; where a row is of a
single process, what such processes are taken to differ by comes on top: ``stats.compare.unseen_on``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from inferlens.units import duration, listing, percent, rate, ratio, ratio_range
from inferlens.views.rows import Row, by


def verdict(rows: Sequence[Row]) -> list[str]:
    """Sentences on each model and machine among ``rows``, as :func:`inferlens.views.rows.rows` gives them."""
    sentences = [sentence for table in by(rows, "table") for sentence in of_table(table)]
    if len({row.machine for row in rows}) > 1:
        sentences.append("Rows of different machines are not compared with each other.")
    return sentences


def of_table(rows: Sequence[Row], named: bool = True) -> list[str]:
    """Sentences on the rows of one model and machine; where these stand in a title already, not ``named`` again."""
    comparisons = by(rows, "comparison")
    several = len({each[0].batch for each in comparisons}) > 1
    said = [_where(each, named, several) + _said(each) for each in comparisons]
    return [*said, *_wrong(comparisons), *_not_told_apart([_ranked(each) for each in comparisons])]


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Rows that may win, fastest first."""
    return sorted((row for row in rows if row.ranked and row.seconds_per_call is not None), key=_seconds)


def _said(rows: Sequence[Row]) -> str:
    """What was fastest in one comparison."""
    ranked = _ranked(rows)
    if not ranked:
        return f"no case ran{' with right outputs' if any(row.ok for row in rows) else ''}, so nothing is ranked."
    best, tied = ranked[0], [row.name for row in ranked if row.fastest]
    if len(tied) > 1:
        return f"{listing(sorted(tied))} cannot be told apart. The lowest is {best.name}, {_written(best)}."
    if best.is_reference or best.speedup is None:
        following = f" Next is {ranked[1].name}, {_written(ranked[1])}." if len(ranked) > 1 else ""
        return f"{best.name} was fastest: {_written(best)}.{following}"
    interval = f" (95 % interval {ratio_range(low, best.speedup_high)})" if (low := best.speedup_low) else ""
    base = next(row for row in rows if row.is_reference and row.name == best.reference)
    faster = f"{ratio(best.speedup)} as fast as {best.reference}{interval}"
    return f"{best.name} was fastest: {faster}, {_written(best)} against {_written(base)}."


def _wrong(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Rows that would have won, were their outputs not wrong."""
    wrong = []
    for rows in comparisons:
        best = next(iter(_ranked(rows)), None)
        for row in rows:
            if row.ok and row.agrees is False and row.seconds_per_call is not None:
                would_win = best is None or (_seconds(row) < _seconds(best) and not row.overlaps(best))
                wrong += [row.name] if would_win else []
    names = list(dict.fromkeys(wrong))
    return [f"Not ranked, because outputs were wrong: {listing(names)}."] if names else []


def _not_told_apart(every: Sequence[Sequence[Row]]) -> list[str]:
    """How far apart single processes have to be to be told apart."""
    pairs = [pair for ranked in every for pair in itertools.combinations(ranked, 2)]
    apart = max((one.least_apart(other) for one, other in pairs), default=1.0) - 1
    if apart <= 0:
        return []
    return [
        f"One process each, so {percent(apart)} and less is not told apart; --repeats 5 measures how far runs differ."
    ]


def _where(rows: Sequence[Row], named: bool, several: bool) -> str:
    """``model on device, at batch 1: ``, or less of it, or nothing."""
    row = next(iter(_ranked(rows)), rows[0])
    words = [f"{row.model} on {row.device_name}"] if named else []
    words += [f"{'at' if named else 'At'} batch {row.batch}"] if several and row.batch is not None else []
    return f"{', '.join(words)}: " if words else ""


def _written(row: Row) -> str:
    """The median latency, or the rate where no latency was measured."""
    return duration(row.median) if row.median is not None else f"{rate(row.iterations_per_second)} calls/s"


def _seconds(row: Row) -> float:
    return row.seconds_per_call or 0.0
