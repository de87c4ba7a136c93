"""The steps of a trace, as torch-tb-profiler delimits them: from the host's annotation to the end of what it launched.

``torch.profiler.profile.step()`` writes ``ProfilerStep#N`` around each. A step lasts until the last GPU event that was
launched in it has ended, and begins when the one before has. A trace without steps is one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferlens.errors import InferlensError
from inferlens.trace.launch_links import LaunchLinks
from inferlens.trace.trace import Bools, Category, Ints, Trace

PREFIX = "ProfilerStep#"
WHOLE = "whole trace"
# A last step with fewer of the GPU events of the one before was cut off by the profiler's end.
_CUT_OFF = 0.8


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps in the order of time; times in nanoseconds.

    Attributes:
        names: numbers as the trace has them, or :data:`WHOLE`.
        host_begin, host_end: of the annotation.
        begin, end: with what was launched.
        launched: GPU events that were.
        kept: whether it counts in means; what the profiler has cut off does not.
    """

    names: tuple[str, ...]
    host_begin: Ints
    host_end: Ints
    begin: Ints
    end: Ints
    launched: Ints
    kept: Bools

    def __len__(self) -> int:
        return len(self.names)

    def only(self, name: str) -> Steps:
        """The step of that number alone.

        Raises:
            InferlensError: if there is none.
        """
        if name not in self.names:
            known = ", ".join(self.names[:20])
            raise InferlensError(f"The trace has no step {name}.", expected=f"one of {known}")
        return self.taken(np.array([self.names.index(name)]))

    def taken(self, places: Ints) -> Steps:
        """Some of the steps; they all count."""
        return Steps(
            names=tuple(self.names[place] for place in places.tolist()),
            host_begin=self.host_begin[places],
            host_end=self.host_end[places],
            begin=self.begin[places],
            end=self.end[places],
            launched=self.launched[places],
            kept=np.ones(len(places), bool),
        )

    def counted(self) -> Steps:
        """The steps that count in means."""
        return self.taken(np.flatnonzero(self.kept))


def steps_of(trace: Trace, launch_links: LaunchLinks) -> Steps:
    """All steps of a trace; there is at least one, unless it has no events."""
    names, begin, end = _on_the_host(trace)
    inside = _launched_in(trace, launch_links, begin, end)
    launched = np.bincount(inside[inside >= 0], minlength=len(names))
    ends = trace.ends(trace.gpu.row)
    begins = trace.begin[trace.gpu.row]
    from_, until = begin.copy(), end.copy()
    if launched.any():
        before = begin[0]
        if launched[0]:
            first = begins[inside == 0].min()
            earlier = ends[(inside < 0) & (ends < first)]
            before = max(before, earlier.max(initial=before))
        for place in range(len(names)):
            from_[place] = max(before, begin[place])
            until[place] = max(end[place], ends[inside == place].max(initial=end[place]), from_[place])
            before = until[place]
    return Steps(names, begin, end, from_, until, launched, _kept(launched))


def _on_the_host(trace: Trace) -> tuple[tuple[str, ...], Ints, Ints]:
    rows = trace.scopes.row[trace.category[trace.scopes.row] == Category.ANNOTATION]
    rows = rows[trace.named(rows, lambda name: name.startswith(PREFIX))]
    if len(rows):
        # A trace of several processes has each step several times; those of the first thread are the steps.
        rows = rows[trace.thread[rows] == trace.thread[rows[0]]]
        rows = rows[np.argsort(trace.begin[rows], kind="stable")]
        names = tuple(name.removeprefix(PREFIX) for name in trace.names_of(rows))
        return names, trace.begin[rows], trace.ends(rows)
    rows = trace.rows(Category.OPERATOR, Category.ANNOTATION)
    if not len(rows):
        rows = trace.rows(*(each for each in Category if each is not Category.SPAN))
    if not len(rows):
        return (), np.empty(0, np.int64), np.empty(0, np.int64)
    return (WHOLE,), trace.begin[rows].min(keepdims=True), trace.ends(rows).max(keepdims=True)


def _launched_in(trace: Trace, launch_links: LaunchLinks, begin: Ints, end: Ints) -> Ints:
    """For each GPU event the step in which the call that launched it began and ended; -1 without one."""
    found = np.full(len(trace.gpu), -1, dtype=np.int64)
    known = launch_links.launch >= 0
    if not len(begin) or not known.any():
        return found
    rows = trace.calls.row[launch_links.launch[known]]
    place = np.searchsorted(begin, trace.begin[rows], "right") - 1
    fits = (place >= 0) & (trace.ends(rows) <= end[np.maximum(place, 0)])
    found[known] = np.where(fits, place, -1)
    return found


def _kept(launched: Ints) -> Bools:
    """All but the last steps that launched nothing, and a last one that launched far less than the one before."""
    kept = np.ones(len(launched), bool)
    if len(launched) < 2 or not launched.any():
        return kept
    last = int(np.flatnonzero(launched)[-1])
    kept[last + 1 :] = False
    if last > 0 and launched[last - 1] * _CUT_OFF > launched[last]:
        kept[last] = False
    return kept
