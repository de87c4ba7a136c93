"""A profile becomes a timeline: its runs, and in each of them modules, layers and kernels, each from when to when.

Nothing is made up. What the profile does not say is laid out by a rule, and the row that holds it says so: layers of
which it is not known when they began follow each other in their order; runs of which it is not known follow each other
without a gap. A time that is not one piece (several calls, or a module's own time around the modules in it) is drawn as
one from its first begin, on a row of its own. Times are seconds in a profile, and whole nanoseconds here.

A module's slice reaches from the first of its consecutive layers to the last, those of modules in it included. A layer
of another module, or of none that is known, ends it: a module that goes on after that has another slice. A fused layer
belongs to the deepest module that contains all of those it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.analysis.profile.layers import Array, Runs, are_times, parts_of, runs_of
from inferlens.analysis.profile.modules import Path, ancestor, path_of
from inferlens.record.kernel_profile import Kernel, Kernels
from inferlens.record.layer_profile import Layer, Layers, Level, Profile

RUNS_KNOWN = "each run stands where it was on the host's clock"
RUNS_NOT_KNOWN = "how long it took from one run to the next is not known: runs follow each other without a gap"
LAID_OUT = "laid out in order, when each began is not known"
IN_PIECES = "in several pieces or side by side, each drawn as one from its first begin"

# Ends of one layer and begins of the next are rounded to nanoseconds by themselves.
_ROUNDING = 1e-9

Moments = NDArray[np.int64]


class Slice(Struct, gc=False):  # there are hundreds of thousands, and no cycles
    """Something that ran, from ``begin`` to ``end`` in nanoseconds since the first run began.

    Attributes:
        run: in which run, from 0.
        of: the index of the layer or kernel; ``None`` for a run itself, and for a module.
        path: of a module; ``layers`` and ``time``: how many layers it has, and what they took, in nanoseconds.
    """

    begin: int
    end: int
    run: int
    of: int | None = None
    path: Path | None = None
    layers: int = 0
    time: int = 0


@dataclass(frozen=True)
class TimelineRow:
    """Slices that do not overlap, in order; those of modules lie within each other.

    Attributes:
        what: ``runs``, ``modules``, ``layers`` or ``kernels``.
        where: ``host`` or ``GPU``, whose times they are; with the stream.
        note: how its slices were laid out, where that is not as they were; empty otherwise.
    """

    what: str
    where: str
    slices: tuple[Slice, ...]
    note: str = ""


@dataclass(frozen=True)
class Timeline:
    """The runs of one profile.

    Attributes:
        rows: the runs first.
        parts: the layers or the kernels, which slices name by their index.
        gaps: how the runs were laid out.
        clock: what timed them.
        started: UTC time at which the first run began; may be empty.
        undrawn: how many layers or kernels have no time.
    """

    level: Level
    rows: tuple[TimelineRow, ...]
    parts: Sequence[Layer | Kernel]
    gaps: str
    clock: str
    started: str
    undrawn: int


def timeline(profile: Profile) -> Timeline | str:
    """The timeline of a profile, or the sentence that says why there is none."""
    runs, found, parts = runs_of(profile), profile.layers or profile.kernels, parts_of(profile)
    if isinstance(runs, str) or found is None:
        return str(runs)
    if wrong := _wrong(found, parts, runs.count):
        return wrong
    level: Level = "layer" if isinstance(found, Layers) else "kernel"
    timed = [index for index, part in enumerate(parts) if part.times]
    in_order = [index for index in timed if not parts[index].begins]
    begins = _begins(parts, runs)
    starts = np.asarray(found.begun or _one_after_another(runs, in_order), dtype=np.float64)
    begin, end = _nanoseconds(starts + begins), _nanoseconds(starts + begins + runs.layers)
    whole = zip(_nanoseconds(starts).tolist(), _nanoseconds(starts + runs.whole).tolist(), strict=True)
    slices = [Slice(first, last, run) for run, (first, last) in enumerate(whole)]
    rows = [TimelineRow("runs", "host", lane) for lane in _lanes(slices)]
    if any(parts[index].modules for index in timed):
        note = f"from their {level}s" + (f", {LAID_OUT}" if in_order else "")
        paths = {index: ancestor([*map(path_of, parts[index].modules)]) for index in timed if parts[index].modules}
        rows.append(TimelineRow("modules", "", tuple(_modules(timed, paths, begin, end, starts)), note))
    for where, members in _places(found, parts, timed):
        known = [index for index in members if parts[index].begins]
        pieces = _in_pieces(parts, known, begins, runs)
        groups = {
            "": [index for index in known if index not in pieces],
            IN_PIECES: [index for index in known if index in pieces],
            LAID_OUT: [index for index in members if index in in_order],
        }
        for note, group in groups.items():
            rows += [TimelineRow(f"{level}s", where, lane, note) for lane in _lanes(_slices(group, begin, end))]
    return Timeline(
        level=level,
        rows=tuple(rows),
        parts=parts,
        gaps=RUNS_KNOWN if found.begun else RUNS_NOT_KNOWN,
        clock=found.clock,
        started=found.started,
        undrawn=len(parts) - len(timed),
    )


def _wrong(found: Layers | Kernels, parts: Sequence[Layer | Kernel], runs: int) -> str:
    """The sentence that says what of the begins cannot be right; empty if nothing is wrong."""
    for values in (found.begun, *(part.begins for part in parts)):
        if len(values) not in (0, runs):
            return f"It has {len(values)} begins, and there were {runs} runs."
        if not are_times(values):
            return "Its begins are no times: one is negative, not finite, or more than a day."
    return "" if list(found.begun) == sorted(found.begun) else "Its runs do not begin one after the other."


def _nanoseconds(seconds: Array) -> Moments:
    """Begins and ends are rounded each by itself, so that what follows on another does so in nanoseconds too."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _one_after_another(runs: Runs, in_order: Sequence[int]) -> list[float]:
    """When each run begins if it does once the one before it, and what is laid out in that, is over."""
    taken = np.maximum(runs.whole, runs.layers[in_order].sum(axis=0))
    return list(accumulate(taken[:-1].tolist(), initial=0.0))


def _begins(parts: Sequence[Layer | Kernel], runs: Runs) -> Array:
    """Begins in each run, in seconds: those that are known, and for the others that each follows on the one before."""
    begins, end = np.zeros_like(runs.layers), np.zeros_like(runs.whole)
    for index, part in enumerate(parts):
        begins[index] = part.begins or end
        if not part.begins:
            end = end + runs.layers[index]
    return begins


def _places(
    found: Layers | Kernels, parts: Sequence[Layer | Kernel], timed: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Where things ran, and which did there: one place for layers, one for each stream of kernels."""
    if isinstance(found, Layers):
        return [(found.timed, list(timed))]
    streams: dict[int | None, list[int]] = {}
    for index in timed:
        streams.setdefault(getattr(parts[index], "stream", None), []).append(index)
    ordered = sorted(streams.items(), key=lambda entry: (entry[0] is None, entry[0] or 0))
    return [("GPU" if stream is None else f"GPU stream {stream}", members) for stream, members in ordered]


def _in_pieces(parts: Sequence[Layer | Kernel], members: Sequence[int], begins: Array, runs: Runs) -> set[int]:
    """Those that are called several times in a run, or within which, in any run, another one began."""
    begin = begins[members]
    order = np.argsort(begin, axis=0, kind="stable")
    end = np.take_along_axis(begin + runs.layers[members], order, axis=0)
    over = end[:-1] > np.take_along_axis(begin, order, axis=0)[1:] + _ROUNDING
    found = {members[place] for place in np.unique(order[:-1][over]).tolist()}
    return found | {index for index in members if parts[index].calls > 1}


def _slices(group: Sequence[int], begin: Moments, end: Moments) -> list[Slice]:
    """The slices of a group in all runs, by their begins."""
    found = [
        Slice(first, last, run, index)
        for index in group
        for run, (first, last) in enumerate(zip(begin[index].tolist(), end[index].tolist(), strict=True))
    ]
    return sorted(found, key=lambda one: (one.begin, one.run))


def _lanes(slices: Sequence[Slice]) -> list[tuple[Slice, ...]]:
    """Slices in order of their begins, each in the first lane that is free; a nanosecond of overlap is a rounding."""
    found: list[list[Slice]] = []
    for each in slices:
        lane = next((lane for lane in found if lane[-1].end <= each.begin + 1), None)
        if lane is None:
            found.append(lane := [])
        each.begin = max(each.begin, lane[-1].end) if lane else each.begin
        each.end = max(each.end, each.begin)
        lane.append(each)
    return [tuple(lane) for lane in found]


def _modules(
    timed: Sequence[int], paths: dict[int, Path], begin: Moments, end: Moments, starts: Array
) -> Iterator[Slice]:
    """The slices of the modules in all runs, in the order of their begins, each before those within it."""
    for run, next_run in enumerate([*_nanoseconds(starts[1:]).tolist(), None]):
        found: list[Slice] = []
        open_: list[Slice] = []
        begun, over = begin[:, run].tolist(), end[:, run].tolist()
        for index in sorted(timed, key=begun.__getitem__):
            path = paths.get(index)
            keep = 0  # of the open slices, from the model down, those that the layer is in
            while path is not None and keep < len(open_) and open_[keep].path == path[:keep]:
                keep += 1
            for each in open_[keep:]:
                each.end = max(min(each.end, begun[index]), each.begin)
            del open_[keep:]
            for depth in range(keep, -1 if path is None else len(path) + 1):
                open_.append(Slice(begun[index], over[index], run, path=(path or ())[:depth]))
                found.append(open_[-1])
            for each in open_:
                each.end = max(each.end, over[index])
                each.layers += 1
                each.time += over[index] - begun[index]
        for each in found:
            if next_run is not None:
                each.begin, each.end = min(each.begin, next_run), min(each.end, next_run)
            yield each
