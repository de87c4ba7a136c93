"""Sets of moments, as sorted intervals that do not touch: two arrays, begins and ends, in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferlens.trace.trace import Ints, Trace


@dataclass(frozen=True, eq=False)
class Intervals:
    """Half-open intervals, sorted, none empty, none touching the next."""

    begin: Ints
    end: Ints

    @classmethod
    def union(cls, begin: Ints, end: Ints) -> Intervals:
        """Every moment that is in at least one of some intervals, which may overlap and be in any order."""
        kept = end > begin
        order = np.argsort(begin[kept], kind="stable")
        begin, end = begin[kept][order], end[kept][order]
        if not len(begin):
            return cls(begin, end)
        reach = np.maximum.accumulate(end)
        starts = np.concatenate([[True], begin[1:] > reach[:-1]])
        lasts = np.concatenate([starts[1:], [True]])
        return cls(begin[starts], reach[lasts])

    @classmethod
    def of(cls, trace: Trace, rows: Ints) -> Intervals:
        """Every moment in which at least one of some events ran."""
        return cls.union(trace.begin[rows], trace.ends(rows))

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def total(self) -> int:
        """Nanoseconds."""
        return int((self.end - self.begin).sum())

    def both(self, other: Intervals) -> Intervals:
        """The moments that are in both."""
        # The intervals of the other that meet each of these are neighbours there.
        first = np.searchsorted(other.end, self.begin, "right")
        last = np.searchsorted(other.begin, self.end, "left")
        count = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(len(self)), count)
        its = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        begin = np.maximum(self.begin[mine], other.begin[its])
        end = np.minimum(self.end[mine], other.end[its])
        kept = end > begin
        return Intervals(begin[kept], end[kept])

    def without(self, other: Intervals) -> Intervals:
        """The moments that are in this and not in the other."""
        if not len(self) or not len(other):
            return self
        begin = np.concatenate([[min(self.begin[0], other.begin[0])], other.end])
        end = np.concatenate([other.begin, [max(self.end[-1], other.end[-1])]])
        kept = end > begin
        return self.both(Intervals(begin[kept], end[kept]))

    def covered(self, begin: Ints, end: Ints) -> Ints:
        """For each of some intervals, how many of its nanoseconds are in this."""
        sums = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        return self._until(end, sums) - self._until(begin, sums)

    def _until(self, time: Ints, sums: Ints) -> Ints:
        place = np.searchsorted(self.begin, time, "right") - 1
        safe = np.maximum(place, 0)
        if not len(self):
            return np.zeros(len(time), dtype=np.int64)
        inside = np.minimum(time, self.end[safe]) - self.begin[safe]
        return np.where(place >= 0, sums[safe] + inside, 0)
