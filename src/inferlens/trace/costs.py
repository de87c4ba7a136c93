"""What each call of an operator cost: on the host and on the GPU, by itself and with what it called.

The definitions are torch-tb-profiler's. Host time by itself is without the operators that it called and without calls
of the CUDA runtime. Time on the GPU is that of everything that was launched, added up, also where it ran at the same
time. An operator that only calls one of the same name is one call.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from inferlens.trace.launch_links import NONE, LaunchLinks, nested
from inferlens.trace.occupancy import occupancy_of
from inferlens.trace.tensor_cores import ELIGIBLE, uses_tensor_cores
from inferlens.trace.trace import Bools, Category, Floats, Ints, Trace


class Costs:
    """Costs of every scope of a trace in nanoseconds; those that are no operators have none.

    Attributes:
        parent: the operator around each scope, merged ones left out; -1 without one.
        is_operator: which scopes are calls of operators; those merged into the one around them are none.
        host_total: from begin to end.
    """

    def __init__(self, trace: Trace, launch_links: LaunchLinks) -> None:
        self.trace, self.launch_links = trace, launch_links
        rows, nest = trace.scopes.row, launch_links.nest
        self.host_total: Ints = trace.duration[rows]
        self._operators: Bools = trace.category[rows] == Category.OPERATOR
        self.parent = nest.parent.copy()
        for level in nest.levels[1:]:
            others = level[~self._operators[self.parent[level]]]
            self.parent[others] = self.parent[self.parent[others]]
        # Operators that another one called, and those that are all that an operator of the same name calls.
        self._called: Bools = self._operators & (self.parent >= 0)
        alone = np.bincount(self.parent[self._called], minlength=len(rows))[self.parent] == 1
        names = trace.name[rows]
        inside = (names == names[self.parent]) & (nest.end <= nest.end[self.parent])
        self._merged: Bools = self._called & alone & inside
        self.is_operator: Bools = self._operators & ~self._merged

    @cached_property
    def host_self(self) -> Ints:
        """Without operators that it called and calls of the runtime."""
        nest, own = self.launch_links.nest, self.host_total.copy()
        child = np.flatnonzero(self._called)
        above = self.parent[child]
        # What only overlaps the operator around its begin is in it for that long.
        np.subtract.at(own, above, np.minimum(nest.end[child], nest.end[above]) - nest.begin[child])
        rows = self.trace.calls.row  # the runtime calls the driver: what is within another call does not count
        begin, duration, thread = self.trace.begin[rows], self.trace.duration[rows], self.trace.thread[rows]
        order = np.lexsort((-duration, begin, thread))
        calls = order[nested(thread[order], begin[order], (begin + duration)[order])[0] == NONE]
        around = self.launch_links.around_calls(Category.OPERATOR)[calls]
        known = around >= 0
        np.subtract.at(own, around[known], duration[calls[known]])
        least_zero: Ints = np.maximum(self._given_on(own, self._merged), 0)
        return least_zero

    @cached_property
    def device_self(self) -> Ints:
        """Of GPU events that it launched itself."""
        return self._launched(np.ones(len(self.trace.gpu), bool))

    @cached_property
    def device_total(self) -> Ints:
        """Of GPU events that it or what it called launched."""
        return self._given_on(self.device_self, self._called)

    @cached_property
    def tensor_total(self) -> Ints:
        """Of kernels with tensor cores among them."""
        return self._given_on(self._launched(self.uses_tensor_cores), self._called)

    @cached_property
    def eligible(self) -> Bools:
        """Which operators could use tensor cores, or call one that could."""
        could = self.trace.named(self.trace.scopes.row, ELIGIBLE.__contains__) & self._operators
        own = could | (self._launched(self.uses_tensor_cores) > 0)
        found: Bools = self._given_on(own.astype(np.int64), self._called) > 0
        return found

    @cached_property
    def uses_tensor_cores(self) -> Bools:
        """For each GPU event, as far as its name says."""
        return self.trace.named(self.trace.gpu.row, lambda name: uses_tensor_cores(name) is True)

    @cached_property
    def tells_tensor_cores(self) -> Bools:
        """For each GPU event whether its name says if it uses tensor cores."""
        return self.trace.named(self.trace.gpu.row, lambda name: uses_tensor_cores(name) is not None)

    @cached_property
    def occupancy(self) -> Floats:
        """For each GPU event, estimated, in per cent."""
        return occupancy_of(self.trace)

    @cached_property
    def operator(self) -> Ints:
        """For each GPU event the operator that launched it, merged ones counted to the one around; -1 without one."""
        found = self.launch_links.operator.copy()
        while len(self._merged) and (merged := (found >= 0) & self._merged[found]).any():
            found[merged] = self.parent[found[merged]]
        return found

    def _launched(self, which: Bools) -> Ints:
        sums = np.zeros(len(self.trace.scopes), dtype=np.int64)
        known = which & (self.operator >= 0)
        np.add.at(sums, self.operator[known], self.trace.duration[self.trace.gpu.row[known]])
        return sums

    def _given_on(self, own: Ints, which: Bools) -> Ints:
        """Values of scopes, those of ``which`` given on to the operator around, inner ones first."""
        total = own.copy()
        for level in reversed(self.launch_links.nest.levels):
            given = level[which[level]]
            np.add.at(total, self.parent[given], total[given])
        return total
