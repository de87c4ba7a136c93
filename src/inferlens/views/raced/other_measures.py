"""What is best by other measures than the median: who has the shortest p95, and where throughput stops growing."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.units import duration, listing, rate
from inferlens.views.plain import plain
from inferlens.views.rows import Row


def shortest_p95(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Where another way than the fastest has the shortest p95 for sure."""
    told = []
    for each in comparisons:
        known = [row for row in each if row.ranked and row.p95 and row.p95_low and row.p95_high]
        fastest = [row for row in known if row.fastest]
        if not fastest:
            continue
        first, least = fastest[0], min(known, key=lambda row: row.p95 or 0.0)
        if not least.fastest and (least.p95_high or 0.0) < (first.p95_low or 0.0):
            where = f" at batch {first.batch}" if len(comparisons) > 1 else ""
            both = duration(least.p95 or 0.0), duration(first.p95 or 0.0)
            told.append(f"{plain(least.way)}{where}, {both[0]} ({plain(first.way)} {both[1]})")
    return [f"Shortest p95: {listing(told)}."] if told else []


def growth(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Of several batch sizes, where throughput stops growing."""
    rated = [[row for row in each if row.ranked and row.items_per_second] for each in comparisons]
    best = {row.batch: (row.items_per_second or 0.0, row) for each in rated if each for row in [max(each, key=_rate)]}
    sizes = sorted(size for size in best if size is not None)
    if len(sizes) < 2 or len(sizes) < len(comparisons):
        return []
    most = max(best[size][0] for size in sizes)
    enough = next(size for size in sizes if best[size][0] >= 0.95 * most)
    grows = "still grows" if enough == sizes[-1] else "stops growing"
    row = best[enough][1]
    by = f" by {plain(row.way)}" if any(len(each) > 1 for each in rated) else ""
    return [f"Throughput {grows} at batch {enough}: {rate(_rate(row))} items a second{by}."]


def _rate(row: Row) -> float:
    return row.items_per_second or 0.0
