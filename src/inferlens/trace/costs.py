"""What each call of an operator cost: on the host and on the GPU, by itself and with what it called.

The definitions are torch-tb-profiler's. Host time by itself is without the operators that it called and without calls
of the CUDA runtime. Time on the GPU is that of everything that was launched, added up, also where it ran at the same
time. An operator that only calls one of the same name is one call.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from inferlens.trace.category import Category
from inferlens.trace.launch_links import NONE, LaunchLinks, nested
from inferlens.trace.occupancy import occupancy_of
from inferlens.trace.room import in_parts, kept
from inferlens.trace.tensor_cores import eligible, told, uses
from inferlens.trace.trace import Bools, Floats, Ints, Trace


class Costs:
    """Costs of every scope of a trace in nanoseconds; those that are no operators have none."""

    def __init__(self, trace: Trace, launch_links: LaunchLinks) -> None:
        self.trace, self.launch_links = trace, launch_links

    @kept
    def is_operator(self) -> Bools:
        """Which scopes are calls of operators; those merged into the one around them are none."""
        found: Bools = self._operators & ~self._merged
        return found

    @kept
    def parent(self) -> Ints:
        """The operator around each scope, merged ones left out; -1 without one."""
        parent = self.launch_links.parent.copy()
        for level in self.launch_links.nest.levels[1:]:
            others = level[~self._operators[parent[level]]]
            parent[others] = parent[parent[others]]
        return parent

    @kept
    def host_total(self) -> Ints:
        """From begin to end."""
        duration: Ints = self.trace.duration[self.trace.scopes.row]
        return duration

    @kept
    def host_self(self) -> Ints:
        """Without operators that it called and calls of the runtime."""
        nest, own = self.launch_links.nest, self.host_total.copy()
        for child in in_parts(np.flatnonzero(self._called)):
            above = self.parent[child]
            # What only overlaps the operator around its begin is in it for that long.
            np.subtract.at(own, above, np.minimum(nest.end[child], nest.end[above]) - nest.begin[child])
        calls = self._outer_calls
        around = self.launch_links.around_calls(Category.OPERATOR)[calls]
        known = around >= 0
        np.subtract.at(own, around[known], self.trace.duration[self.trace.calls.row[calls[known]]])
        own = self._given_on(own, self._merged)
        least_zero: Ints = np.maximum(own, 0)
        return least_zero

    @kept
    def device_self(self) -> Ints:
        """Of GPU events that it launched itself."""
        return self._launched(np.ones(len(self.trace.gpu), bool))

    @kept
    def device_total(self) -> Ints:
        """Of GPU events that it or what it called launched."""
        return self._given_on(self.device_self, self._called)

    @kept
    def tensor_self(self) -> Ints:
        """Of kernels with tensor cores among ``device_self``."""
        return self._launched(self.uses_tensor_cores)

    @kept
    def tensor_total(self) -> Ints:
        """Likewise among ``device_total``."""
        return self._given_on(self.tensor_self, self._called)

    @kept
    def uses_tensor_cores(self) -> Bools:
        """For each GPU event, as far as its name tells."""
        return _by_name(self.trace, self.trace.gpu.row, uses)

    @kept
    def occupancy(self) -> Floats:
        """For each GPU event, estimated, in per cent."""
        return occupancy_of(self.trace)

    @kept
    def tells_tensor_cores(self) -> Bools:
        """For each GPU event whether its name tells if it uses tensor cores."""
        return _by_name(self.trace, self.trace.gpu.row, lambda name: told(name) is not None)

    @kept
    def eligible(self) -> Bools:
        """Which operators could use tensor cores, or call one that could."""
        own = _by_name(self.trace, self.trace.scopes.row, eligible) & self._operators
        found: Bools = self._given_on((own | (self.tensor_self > 0)).astype(np.int64), self._called) > 0
        return found

    @kept
    def operator(self) -> Ints:
        """For each GPU event the operator that launched it, merged ones counted to the one around; -1 without one."""
        found = self.launch_links.operator.copy()
        if not len(self._merged):
            return found
        while (merged := (found >= 0) & self._merged[found]).any():
            found[merged] = self.parent[found[merged]]
        return found

    @kept
    def _operators(self) -> Bools:
        found: Bools = self.trace.category[self.trace.scopes.row] == Category.OPERATOR
        return found

    @kept
    def _called(self) -> Bools:
        """Operators that another one called."""
        found: Bools = self._operators & (self.parent >= 0)
        return found

    @kept
    def _merged(self) -> Bools:
        """Operators that are all that an operator of the same name calls."""
        children = np.bincount(self.parent[self._called], minlength=len(self.parent))
        rows = self.trace.scopes.row
        names, end = self.trace.name[rows], self.trace.ends(rows)
        above = np.maximum(self.parent, 0)
        alone = children[above] == 1 if len(children) else np.zeros(0, bool)
        found: Bools = self._called & alone & (names == names[above]) & (end <= end[above])
        return found

    @cached_property
    def _outer_calls(self) -> Ints:
        """Places of the calls that are not within another one: the runtime calls the driver."""
        rows = self.trace.calls.row
        begin, duration, thread = self.trace.begin[rows], self.trace.duration[rows], self.trace.thread[rows]
        order = np.lexsort((-duration, begin, thread))
        outer: Ints = order[nested(thread[order], begin[order], (begin + duration)[order])[0] == NONE]
        return outer

    def _launched(self, which: Bools) -> Ints:
        durations = np.where(which, self.trace.duration[self.trace.gpu.row], 0)
        return self._sums(self.operator, durations)

    def _sums(self, places: Ints, values: NDArray[np.int64]) -> Ints:
        """Whole numbers added up by scope; those of no scope are left out."""
        sums = np.zeros(len(self.trace.scopes), dtype=np.int64)
        known = places >= 0
        np.add.at(sums, places[known], values[known])
        return sums

    def _given_on(self, own: Ints, which: Bools) -> Ints:
        """Values of scopes, those of ``which`` given on to the operator around, inner ones first."""
        total = own.copy()
        for level in reversed(self.launch_links.nest.levels):
            given = level[which[level]]
            np.add.at(total, self.parent[given], total[given])
        return total


def _by_name(trace: Trace, rows: Ints, holds: object) -> Bools:
    """What holds of names, asked once for each name."""
    told = np.zeros(len(trace.strings), dtype=bool)
    codes = np.unique(trace.name[rows])
    told[codes] = [holds(trace.strings[code]) for code in codes.tolist()]  # type: ignore[operator]
    found: Bools = told[trace.name[rows]]
    return found
