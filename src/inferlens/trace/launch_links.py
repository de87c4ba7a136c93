"""Which events belong together: GPU events and their launches, launches and the operators and scopes around them.

A scope is around a moment when it runs on the same thread, has begun by then and has not ended. That is so for events
that overlap without one being inside the other, too. Everything is linear but for sorting.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from inferlens.trace.trace import Bools, Category, Codes, Ints, Trace

NONE = -1
_NEVER = 2**63 - 1
# Intervals that are Python's numbers at a time: these take five times the memory.
_AT_ONCE = 2**16


class LaunchLinks:
    """What belongs together in one trace, each made when first asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def nest(self) -> Nest:
        """The scopes, as intervals in each other, by their places in ``trace.scopes``."""
        return Nest(self.trace, self.trace.scopes.row)

    @cached_property
    def launch(self) -> Ints:
        """For each GPU event the place, in ``trace.calls``, of the call that launched it; -1 where it is not known.

        Of several calls with its correlation it is the last that began before it, or else the first.
        """
        calls, gpu = self.trace.calls, self.trace.gpu
        if not len(calls):
            return np.full(len(gpu), NONE, dtype=np.int64)
        order = np.argsort(calls.correlation, kind="stable")  # of equal ones, in the order of their begins
        known = calls.correlation[order]
        first = np.searchsorted(known, gpu.correlation, "left")
        last = np.searchsorted(known, gpu.correlation, "right")
        found = (first < last) & (gpu.correlation > 0)
        place = np.where(found, order[np.minimum(first, len(order) - 1)], NONE)
        for index in np.flatnonzero(found & (last - first > 1)).tolist():
            several = order[first[index] : last[index]]
            begins = self.trace.begin[calls.row[several]]
            before = np.searchsorted(begins, self.trace.begin[gpu.row[index]], "right")
            place[index] = several[max(int(before) - 1, 0)]
        return place

    @cached_property
    def operator(self) -> Ints:
        """For each GPU event the place, in ``trace.scopes``, of the operator around its launch; -1 without one."""
        found = np.full(len(self.trace.gpu), NONE, dtype=np.int64)
        launched = self.launch >= 0
        found[launched] = self.around_calls(Category.OPERATOR)[self.launch[launched]]
        return found

    def around_calls(self, category: Category | None = None) -> Ints:
        """For each of ``trace.calls`` the innermost scope of that category around its begin."""
        rows = self.trace.calls.row
        return self.innermost(self.trace.thread[rows], self.trace.begin[rows], category)

    def innermost(self, thread: Codes, time: Ints, category: Category | None = None) -> Ints:
        """For each moment of a thread the place of the innermost scope, of that category, around it; -1 without one."""
        wanted = None if category is None else self.trace.category[self.trace.scopes.row] == category
        return self.nest.innermost(thread, time, wanted)

    def scopes_around(self, place: int, time: int) -> tuple[int, ...]:
        """All scopes around a moment, outermost first; ``place`` is the innermost one."""
        found = []
        while place >= 0:
            if self.nest.end[place] > time:  # one that only overlaps may have ended
                found.append(place)
            place = int(self.nest.parent[place])
        return tuple(reversed(found))


class Nest:
    """Some events of a trace as intervals on threads, and which are in which.

    Args:
        trace: whose events they are.
        rows: theirs, sorted by thread, then by begin, outer ones first.
    """

    def __init__(self, trace: Trace, rows: Ints) -> None:
        self.thread, self.begin, self.end = trace.thread[rows], trace.begin[rows], trace.ends(rows)
        # For each interval the innermost one around its begin, -1 without one, and how many are around it.
        self.parent, depth = nested(self.thread, self.begin, self.end)
        order = np.argsort(depth, kind="stable")
        # The intervals' places by how many are around them, those without any first.
        self.levels: list[Ints] = np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []

    def innermost(self, thread: Codes, time: Ints, wanted: Bools | None = None) -> Ints:
        """For each moment of a thread the innermost interval around it, of those that are wanted; -1 without one."""
        found = np.full(len(time), NONE, dtype=np.int64)
        for each in np.unique(thread).tolist():
            here = thread == each
            low, high = np.searchsorted(self.thread, [each, each + 1])
            found[here] = np.searchsorted(self.begin[low:high], time[here], "right") + low - 1
            found[here & (found < low)] = NONE
        open_ones = np.flatnonzero(found >= 0)
        while len(open_ones):
            places = found[open_ones]
            fits = time[open_ones] < self.end[places]
            if wanted is not None:
                fits &= wanted[places]
            open_ones = open_ones[~fits]
            found[open_ones] = self.parent[found[open_ones]]
            open_ones = open_ones[found[open_ones] >= 0]
        return found


def nested(thread: Codes, begin: Ints, end: Ints) -> tuple[Ints, Codes]:
    """For each interval the place of the innermost one around its begin, -1 without one, and how many are around it.

    ``thread``, ``begin``, ``end``: sorted by thread, then by begin, outer ones first.
    """
    parent, depth = np.empty(len(begin), dtype=np.int64), np.empty(len(begin), dtype=np.int32)
    # The last one and all around it, outermost first: what has ended by a begin has ended for all that come later.
    places, ends, now = [NONE], [_NEVER], None
    for low in range(0, len(begin), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        above, around = [], []
        intervals = zip(thread[part].tolist(), begin[part].tolist(), end[part].tolist(), strict=True)
        for place, (of, start, stop) in enumerate(intervals, low):
            if of != now:
                places, ends, now = [NONE], [_NEVER], of
            while ends[-1] <= start:
                ends.pop()
                places.pop()
            above.append(places[-1])
            around.append(len(places) - 1)
            places.append(place)
            ends.append(stop)
        parent[part], depth[part] = above, around
    return parent, depth
