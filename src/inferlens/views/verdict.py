"""The closing sentences: what was fastest, by how much, how sure that is, and what was left out.

Two rows whose 95 % intervals of the median overlap are not told apart, whatever their medians are; where one of them
has no interval, what nine tenths of its samples span takes its place. How far apart intervals of one process each have
to be is in ``certainty``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from inferlens.units import duration, listing, rate, ratio, ratio_range
from inferlens.views.certainty import how_sure
from inferlens.views.row import Row


@dataclass(frozen=True)
class Comparison:
    """Rows that are compared with each other, and what can be said of them."""

    rows: tuple[Row, ...]

    @cached_property
    def ranked(self) -> list[Row]:
        """Rows that may win, fastest first."""
        able = [row for row in self.rows if row.ranked and row.pace is not None]
        return sorted(able, key=lambda row: row.pace or 0.0)

    @cached_property
    def winner(self) -> Row | None:
        """The row with the lowest median latency, or the highest rate where there are but rates."""
        return self.ranked[0] if self.ranked else None

    @cached_property
    def rivals(self) -> list[Row]:
        """Rows that cannot be told apart from the winner."""
        return [row for row in self.ranked[1:] if row.fastest]

    @cached_property
    def faster_but_wrong(self) -> list[Row]:
        """Rows left out for their wrong outputs that would have won."""
        best = self.winner
        wrong = [row for row in self.rows if row.ok and row.agrees is False and row.pace is not None]
        return [row for row in wrong if best is None or (_faster(row, best) and not row.overlaps(best))]

    @property
    def kind(self) -> tuple[str, ...]:
        """What can be said; comparisons that share it are told in one sentence."""
        if self.winner is None:
            return ("wrong",) if any(row.ok for row in self.rows) else ("none",)
        if self.rivals:
            return ("tied", *sorted(_marked(row) for row in (self.winner, *self.rivals)))
        if len(self.ranked) == 1:
            return ("alone", self.winner.name)
        if self.winner.is_reference:
            return ("reference", self.winner.name)
        return ("no reference" if self.winner.speedup is None else "won", self.winner.name, self.winner.reference)


def verdict(rows: Sequence[Row]) -> list[str]:
    """Sentences on each model and machine among ``rows``, as :func:`inferlens.views.rows.rows` gives them."""
    tables: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        tables.setdefault(row.table, []).append(row)
    sentences = [sentence for table in tables.values() for sentence in of_table(table)]
    if len({row.machine for row in rows}) > 1:
        sentences.append("Rows of different machines are not compared with each other.")
    return sentences


def of_table(rows: Sequence[Row], named: bool = True) -> list[str]:
    """Sentences on the rows of one model and machine; where these stand in a title already, not ``named`` again."""
    by_batch: dict[object, list[Row]] = {}
    for row in rows:
        by_batch.setdefault(row.comparison, []).append(row)
    comparisons = [Comparison(tuple(each)) for each in by_batch.values()]
    merged: dict[tuple[str, ...], list[Comparison]] = {}
    for comparison in comparisons:
        merged.setdefault(comparison.kind, []).append(comparison)
    several = len({comparison.rows[0].batch for comparison in comparisons}) > 1
    sentences = [_where(same, named, several) + _said(kind, same) for kind, same in merged.items()]
    return [
        *sentences,
        *_left_out(comparisons),
        *_unchecked(comparisons),
        *how_sure([comparison.ranked for comparison in comparisons]),
        *_cards(comparisons),
    ]


def _said(kind: tuple[str, ...], same: Sequence[Comparison]) -> str:
    """One sentence on comparisons of the same kind."""
    winners = [comparison.winner for comparison in same if comparison.winner]
    times = listing([_pace(row) for row in winners])
    if kind[0] == "won":
        return _won(same, winners)
    if kind[0] == "reference":
        return f"{kind[1]}, the reference, was fastest: {times}.{_next(same[0]) if len(same) == 1 else ''}"
    if kind[0] == "tied":
        doubt = "within each other's doubt, so none is called the fastest"
        word = "lowest median" if winners[0].median is not None else "highest rate"
        lowest = f" The {word} is {winners[0].name}'s, {times}." if len(same) == 1 else ""
        return f"{listing(kind[1:])} are {doubt}.{lowest}"
    if kind[0] == "alone":
        return f"{kind[1]} is the only one to rank: {times}."
    if kind[0] == "no reference":
        return f"{kind[1]} was fastest: {times}. No reference ran to compare it with."
    return f"no case ran{' with right outputs' if kind[0] == 'wrong' else ''}, so nothing is ranked."


def _won(same: Sequence[Comparison], winners: Sequence[Row]) -> str:
    """A winner that is faster than the reference beyond doubt, at one or several batch sizes."""
    first = winners[0]
    by = listing([ratio(row.speedup) for row in winners])
    spans = [
        ratio_range(row.speedup_low, row.speedup_high) if row.speedup_low is not None else "none" for row in winners
    ]
    doubt = f" (95 % interval{'s' * (len(winners) > 1)} {listing(spans)})" if {*spans} != {"none"} else ""
    text = f"{first.name} was fastest: {by} as fast as {first.reference}{doubt}"
    if len(same) > 1:
        return f"{text}."
    base = next((row for row in same[0].rows if row.is_reference and row.name == first.reference), None)
    against = f" against {_pace(base)}" if base else ""
    return f"{text}, {_pace(first)}{against}."


def _pace(row: Row) -> str:
    """The median latency, or the rate where no latency was measured."""
    return duration(row.median) if row.median is not None else f"{rate(row.iterations_per_second)} calls/s"


def _next(comparison: Comparison) -> str:
    """The second, where the reference itself is first; how much slower only if it has that reference."""
    first, second = comparison.ranked[:2]
    if second.is_reference or second.reference != first.name or second.speedup is None:
        return f" Next is {second.name}, {_pace(second)}."
    doubt = "" if second.speedup_low is None else f" ({ratio_range(second.speedup_low, second.speedup_high)})"
    return f" Next is {second.name}, {ratio(second.speedup)} as fast{doubt}."


def _left_out(comparisons: Sequence[Comparison]) -> list[str]:
    names = dict.fromkeys(row.name for comparison in comparisons for row in comparison.faster_but_wrong)
    if not names:
        return []
    verb = "was" if len(names) == 1 else "were"
    anyone = any(comparison.winner for comparison in comparisons)
    return [f"{listing(list(names))} {verb} {'faster but ' if anyone else ''}wrong, so not ranked."]


def _unchecked(comparisons: Sequence[Comparison]) -> list[str]:
    """The winners whose outputs could not be compared with anything."""
    rows = [row for c in comparisons if c.winner for row in (c.winner, *c.rivals) if row.agrees is None]
    names = list(dict.fromkeys(row.name for row in rows))
    return [f"The outputs of {listing(names)} were not checked."] if names else []


def _cards(comparisons: Sequence[Comparison]) -> list[str]:
    cards = {row.card for comparison in comparisons for row in comparison.ranked if row.card}
    return [f"Measured on {len(cards)} GPUs of one name: how far these differ is in no interval."] * (len(cards) > 1)


def _where(same: Sequence[Comparison], named: bool, several: bool) -> str:
    """``model on device, at batch 1 and 8: ``, or less of it, or nothing."""
    rows = [comparison.winner or comparison.rows[0] for comparison in same]
    batches = list(dict.fromkeys(str(row.batch) for row in rows if row.batch is not None))
    words = [f"{rows[0].model} on {rows[0].device_name}"] if named else []
    words += [f"{'at' if named else 'At'} batch {listing(batches)}"] if batches and several else []
    return f"{', '.join(words)}: " if words else ""


def _faster(row: Row, other: Row) -> bool:
    return (row.pace or 0.0) < (other.pace or 0.0)


def _marked(row: Row) -> str:
    return f"{row.name} (the reference)" if row.is_reference else row.name
