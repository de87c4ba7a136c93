"""A profile becomes a timeline: its runs, and in each of them modules, layers and kernels, each from when to when.

Nothing is made up. What the profile does not tell is laid out by a rule, and the row that holds it says so: layers of
which it is not told when they began follow each other in their order; runs of which it is not told follow each other
without a gap. A time that is not one piece (several calls, or a module's own time around the modules in it) is drawn as
one from its first begin, on a row of its own. Times are seconds in a profile, and whole nanoseconds here.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from msgspec import Struct

from inferlens.analysis.profile.attribution import Path, ancestor, path_of
from inferlens.analysis.profile.module_spans import ModuleSpan, Placed, module_spans
from inferlens.analysis.profile.runs import Array, are_times
from inferlens.record.kernel_profile import Kernel, Kernels
from inferlens.record.layer_profile import Layer, Layers, Level, Profile

RUNS_TOLD = "each run stands where it was on the host's clock"
RUNS_NOT_TOLD = "how long it took from one run to the next is not told: runs follow each other without a gap"
LAID_OUT = "laid out in order, when each began is not told"
IN_PIECES = "in several pieces or side by side, each drawn as one from its first begin"

# Ends of one layer and begins of the next are rounded to nanoseconds by themselves.
_ROUNDING = 1e-9
_NEVER = 2**62


class Slice(Struct, frozen=True, gc=False):  # there are hundreds of thousands, and no cycles
    """Something that ran, from ``begin`` to ``end`` in nanoseconds since the first run began.

    Attributes:
        run: in which run, from 0.
        of: the index of the layer or kernel; ``None`` for a run itself.
        span: the module, where it is one.
    """

    begin: int
    end: int
    run: int
    of: int | None = None
    span: ModuleSpan | None = None


@dataclass(frozen=True)
class Row:
    """Slices that do not overlap, in order; those of modules lie within each other.

    Attributes:
        what: ``runs``, ``modules``, ``layers`` or ``kernels``.
        where: ``host`` or ``GPU``, whose times they are; with the stream.
        said: how its slices were laid out, where that is not as they were; empty otherwise.
    """

    what: str
    where: str
    slices: tuple[Slice, ...]
    said: str = ""


@dataclass(frozen=True)
class Timeline:
    """The runs of one profile at one level.

    Attributes:
        level: ``layer`` or ``kernel``.
        rows: the runs first.
        of: the layers or the kernels, which slices name by their index.
        runs_told: whether it is told when each run began.
        clock: what timed them.
        started: UTC time at which the first run began; may be empty.
        undrawn: how many layers or kernels have no time.
    """

    level: Level
    rows: tuple[Row, ...]
    of: tuple[Layer, ...] | tuple[Kernel, ...]
    runs_told: bool
    clock: str
    started: str
    undrawn: int

    @property
    def gaps(self) -> str:
        """How the runs were laid out."""
        return RUNS_TOLD if self.runs_told else RUNS_NOT_TOLD


def timelines(profile: Profile) -> list[Timeline] | str:
    """A timeline for each of a profile's levels, or the sentence that says why there is none."""
    if profile.status != "ok" or not (profile.layers or profile.kernels):
        return profile.reason or f"It ended as '{profile.status}', and no reason is known."
    found = []
    for told in (profile.layers, profile.kernels):
        if told is not None:
            wrong = _wrong(told, _parts(told))
            if wrong:
                return wrong
            found.append(_timeline(told, _parts(told)))
    return found


def _parts(told: Layers | Kernels) -> Sequence[Layer] | Sequence[Kernel]:
    return told.layers if isinstance(told, Layers) else told.kernels


def _wrong(told: Layers | Kernels, parts: Sequence[Layer | Kernel]) -> str:
    """The sentence that says what cannot be right; empty if nothing is wrong."""
    runs = len(told.whole)
    if not runs:
        return "It has no runs."
    if len(told.begun) not in (0, runs):
        return f"It tells when {len(told.begun)} runs began, and there were {runs}."
    for part in parts:
        for what, values in (("times", part.times), ("begins", part.begins)):
            if len(values) not in (0, runs):
                return f"A part of it has {len(values)} {what}, and there were {runs} runs."
            if not are_times(values):
                return f"Its {what} are no times: one is negative, not finite, or more than a day."
    if list(told.begun) != sorted(told.begun):
        return "Its runs do not begin one after the other."
    return "" if are_times((*told.whole, *told.begun)) else "Its runs have no times: one is negative or not finite."


def _timeline(told: Layers | Kernels, parts: Sequence[Layer | Kernel]) -> Timeline:
    level: Level = "layer" if isinstance(told, Layers) else "kernel"
    starts = told.begun or _one_after_another(told.whole, parts)
    timed = [index for index, part in enumerate(parts) if part.times]
    runs = [Slice(*_ends(start, 0.0, told.whole[run]), run) for run, start in enumerate(starts)]
    rows = [Row("runs", "host", tuple(lane)) for lane in lanes(runs)]
    begins = _begins(parts, timed)
    rows += _modules(level, parts, timed, begins, starts)
    for where, members in _places(told, parts, timed):
        told_when = [index for index in members if parts[index].begins]
        pieces = _in_pieces(parts, told_when, begins)
        groups = (
            ("", [index for index in told_when if index not in pieces]),
            (IN_PIECES, [index for index in told_when if index in pieces]),
            (LAID_OUT, [index for index in members if not parts[index].begins]),
        )
        for said, group in groups:
            slices = _slices(parts, group, begins, starts)
            rows += [Row(f"{level}s", where, tuple(lane), said) for lane in lanes(slices)]
    return Timeline(
        level=level,
        rows=tuple(rows),
        of=tuple(parts),  # type: ignore[arg-type]
        runs_told=bool(told.begun),
        clock=told.clock,
        started=told.started,
        undrawn=len(parts) - len(timed),
    )


def _one_after_another(whole: Sequence[float], parts: Sequence[Layer | Kernel]) -> tuple[float, ...]:
    """When each run begins if it does once the one before it, and what is laid out in that, is over."""
    sums = np.sum([part.times for part in parts if part.times and not part.begins] or [(0.0,) * len(whole)], axis=0)
    return tuple(accumulate(map(max, whole[:-1], sums.tolist()[:-1]), initial=0.0))


def _begins(parts: Sequence[Layer | Kernel], timed: Sequence[int]) -> dict[int, Array]:
    """Begins in each run, in seconds: those that are told, and for the others that each follows on the one before."""
    begins: dict[int, Array] = {}
    end: Array | float = 0.0
    for index in timed:
        if parts[index].begins:
            begins[index] = np.asarray(parts[index].begins, dtype=np.float64)
            continue
        times = np.asarray(parts[index].times, dtype=np.float64)
        begins[index] = np.zeros_like(times) + end
        end = begins[index] + times
    return begins


def _places(
    told: Layers | Kernels, parts: Sequence[Layer | Kernel], timed: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Where things ran, and which did there: one place for layers, one for each stream of kernels."""
    if isinstance(told, Layers):
        return [(told.timed, list(timed))]
    streams: dict[int | None, list[int]] = {}
    for index in timed:
        streams.setdefault(getattr(parts[index], "stream", None), []).append(index)
    ordered = sorted(streams.items(), key=lambda entry: (entry[0] is None, entry[0] or 0))
    return [("GPU" if stream is None else f"GPU stream {stream}", members) for stream, members in ordered]


def _in_pieces(parts: Sequence[Layer | Kernel], members: Sequence[int], begins: dict[int, Array]) -> set[int]:
    """Those that are called several times in a run, or within which, in any run, another one began."""
    found = {index for index in members if parts[index].calls > 1}
    if len(members) < 2:
        return found
    begin = np.asarray([begins[index] for index in members])
    end = begin + np.asarray([parts[index].times for index in members])
    order = np.argsort(begin, axis=0, kind="stable")
    following = np.take_along_axis(begin, order[1:], axis=0)
    over = np.take_along_axis(end, order[:-1], axis=0) > following + _ROUNDING
    return found | {members[place] for place in np.unique(order[:-1][over]).tolist()}


def _slices(
    parts: Sequence[Layer | Kernel], group: Sequence[int], begins: dict[int, Array], starts: Sequence[float]
) -> list[Slice]:
    """The slices of a group in all runs, by their begins."""
    found = [
        Slice(*_ends(start, begin, time), run, index)
        for index in group
        for run, (start, begin, time) in enumerate(zip(starts, begins[index].tolist(), parts[index].times, strict=True))
    ]
    return sorted(found, key=lambda one: (one.begin, one.run))


def _ends(start: float, begin: float, time: float) -> tuple[int, int]:
    """Begin and end in nanoseconds, each rounded, so that what follows on another does so in nanoseconds too."""
    return round((start + begin) * 1e9), round((start + begin + time) * 1e9)


def lanes(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Slices in order of their begins, each in the first lane that is free; a nanosecond of overlap is a rounding."""
    found: list[list[Slice]] = []
    busy: list[tuple[int, int]] = []  # until when, and which lane
    free: list[int] = []
    for each in slices:
        while busy and busy[0][0] <= each.begin + 1:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(found))
            found.append([])
        lane = heapq.heappop(free)
        begin = max(each.begin, found[lane][-1].end) if found[lane] else each.begin
        found[lane].append(Slice(begin, max(each.end, begin), each.run, each.of))
        heapq.heappush(busy, (max(each.end, begin), lane))
    return found


def _modules(
    level: Level,
    parts: Sequence[Layer | Kernel],
    timed: Sequence[int],
    begins: dict[int, Array],
    starts: Sequence[float],
) -> list[Row]:
    """The row of the modules, if any is known."""
    if not any(parts[index].modules for index in timed):
        return []
    found: list[Slice] = []
    paths = {index: _path(parts[index].modules) for index in timed}
    for run, start in enumerate(starts):
        placed = [
            Placed(*_ends(start, float(begins[index][run]), parts[index].times[run]), paths[index]) for index in timed
        ]
        placed.sort(key=lambda one: one.begin)
        limit = round(starts[run + 1] * 1e9) if run + 1 < len(starts) else _NEVER
        found += [Slice(min(span.begin, limit), min(span.end, limit), run, None, span) for span in module_spans(placed)]
    laid = any(not parts[index].begins for index in timed)
    return [Row("modules", "", tuple(found), f"from their {level}s, {LAID_OUT}" if laid else f"from their {level}s")]


def _path(modules: Sequence[str]) -> Path | None:
    """The deepest module that contains all of them; ``None`` if none is known."""
    return ancestor([path_of(module) for module in modules]) if modules else None
