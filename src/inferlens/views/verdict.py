"""The closing sentences: what was fastest, by how much, how sure that is, and what was left out.

Two rows whose 95 % intervals of the median overlap are not told apart, whatever their medians are; where one of them
has no interval, what nine tenths of its samples span takes its place. Where a row is of a single process its interval
does not contain how far runs differ; what they are taken to differ by is told then: ``stats.compare.unseen_on``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from inferlens.units import duration, listing, percent, plural, rate, ratio, ratio_range
from inferlens.views.row import Row


def verdict(rows: Sequence[Row]) -> list[str]:
    """Sentences on each model and machine among ``rows``, as :func:`inferlens.views.rows.rows` gives them."""
    sentences = [sentence for table in by(rows, "table") for sentence in of_table(table)]
    if len({row.machine for row in rows}) > 1:
        sentences.append("Rows of different machines are not compared with each other.")
    return sentences


def by(rows: Sequence[Row], field: str) -> list[list[Row]]:
    """The rows of each ``table`` or ``comparison``, in their order."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(getattr(row, field), []).append(row)
    return list(groups.values())


def of_table(rows: Sequence[Row], named: bool = True) -> list[str]:
    """Sentences on the rows of one model and machine; where these stand in a title already, not ``named`` again."""
    comparisons = by(rows, "comparison")
    several = len({each[0].batch for each in comparisons}) > 1
    return [
        *(_where(each, named, several) + _said(each) for each in comparisons),
        *_left_out(comparisons),
        *_how_sure([_ranked(each) for each in comparisons]),
    ]


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Rows that may win, fastest first."""
    return sorted((row for row in rows if row.ranked and row.seconds_per_call is not None), key=_seconds)


def _said(rows: Sequence[Row]) -> str:
    """What was fastest in one comparison."""
    ranked = _ranked(rows)
    if not ranked:
        return f"no case ran{' with right outputs' if any(row.ok for row in rows) else ''}, so nothing is ranked."
    best, tied = ranked[0], [row for row in ranked if row.fastest]
    if len(tied) > 1:
        names = listing(sorted(f"{row.name} (the reference)" if row.is_reference else row.name for row in tied))
        word = "lowest median" if best.median is not None else "highest rate"
        doubt = "within each other's doubt, so none is called the fastest"
        return f"{names} are {doubt}. The {word} is {best.name}'s, {_written(best)}."
    if len(ranked) == 1:
        return f"{best.name} is the only one to rank: {_written(best)}."
    if best.is_reference:
        return f"{best.name}, the reference, was fastest: {_written(best)}.{_next(ranked[1], best)}"
    if best.speedup is None:
        return f"{best.name} was fastest: {_written(best)}. No reference ran to compare it with."
    interval = ratio_range(best.speedup_low, best.speedup_high) if best.speedup_low is not None else "none"
    base = next((row for row in rows if row.is_reference and row.name == best.reference), None)
    against = f" against {_written(base)}" if base else ""
    text = f"{best.name} was fastest: {ratio(best.speedup)} as fast as {best.reference} (95 % interval {interval})"
    return f"{text}, {_written(best)}{against}."


def _next(second: Row, first: Row) -> str:
    """The second, where the reference itself is first; how much slower only if it has that reference."""
    if second.is_reference or second.reference != first.name or second.speedup is None:
        return f" Next is {second.name}, {_written(second)}."
    doubt = "" if second.speedup_low is None else f" ({ratio_range(second.speedup_low, second.speedup_high)})"
    return f" Next is {second.name}, {ratio(second.speedup)} as fast{doubt}."


def _left_out(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Rows left out for their wrong outputs that would have won."""
    wrong = []
    for rows in comparisons:
        best = next(iter(_ranked(rows)), None)
        for row in rows:
            if row.ok and row.agrees is False and row.seconds_per_call is not None:
                would_win = best is None or (_seconds(row) < _seconds(best) and not row.overlaps(best))
                wrong += [row.name] if would_win else []
    names, anyone = list(dict.fromkeys(wrong)), any(map(_ranked, comparisons))
    faster = "faster but " if anyone else ""
    return [f"{listing(names)} {'was' if len(names) == 1 else 'were'} {faster}wrong, so not ranked."] if names else []


def _how_sure(every: Sequence[Sequence[Row]]) -> Iterator[str]:
    """Of how many samples and processes the ranking is, and how far apart rows have to be to be told apart."""
    rows = [row for ranked in every for row in ranked]
    if len(rows) < 2:
        return
    timed = [row for row in rows if row.median is not None]
    of = f"Medians of {_span([row.samples for row in timed], 'sample')}" if timed else "Rates"
    single = sum(not row.between for row in rows)
    processes = "one process each" if single == len(rows) else _span([row.processes for row in rows], "process")
    covered = "all" if not single else "no" if single == len(rows) else "some"
    yield f"{of}, {processes}: variation between runs is in {covered} intervals.{_least_apart(every)}"
    lacking = [row for row in rows if (row.iterations_low if row.median is None else row.median_low) is None]
    if lacking:
        yield f"{listing(list(dict.fromkeys(row.name for row in lacking)))} had too few samples for an interval."


def _least_apart(every: Sequence[Sequence[Row]]) -> str:
    """How far apart single processes have to be to be told apart, if any are told apart at all."""
    pairs = [pair for rows in every for pair in itertools.combinations([row for row in rows if row.seconds_range], 2)]
    apart = sorted({found for one, other in pairs if (found := one.least_apart(other)) > 1})
    if not apart:
        return ""
    within = " to ".join(dict.fromkeys(percent(math.floor((each - 1) * 1000) / 1000) for each in (apart[0], apart[-1])))
    advice = "" if any(row.between for rows in every for row in rows) else "; --repeats 5 measures how far runs differ"
    return f" So what is within {within} is not told apart{advice}."


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


def _span(counts: Sequence[int], thing: str) -> str:
    """``100 samples`` or ``50 to 100 samples``."""
    least, most = min(counts), max(counts)
    return plural(most, thing) if least == most else f"{least:,} to {plural(most, thing)}"
