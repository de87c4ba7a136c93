"""A trace of the runs of profiles, for Perfetto and every other viewer of Chrome's Trace Event Format (JSON).

Each profile is a process of the trace, and begins at zero, so that profiles lie above each other. Its threads are rows:
the runs, the modules, and layers or kernels; what runs side by side has rows beneath each other. Inside, times are
whole nanoseconds since the first run began; in the trace they are microseconds.

What the profile does not say is laid out by a rule, and the row that holds it says so: layers of which it is not known
when they began follow each other in their order. Several calls in a run are drawn as one. A module's slice
reaches from the first of its consecutive layers to the last, those of modules in it included. A fused layer belongs to
the deepest module that contains all of those it came from.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.analysis import modules
from inferlens.analysis.modules import ancestor, module_path
from inferlens.analysis.profile_table import are_times, profile_runs
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Kernel, Layer, Profile
from inferlens.record.store import LoadedProfiles
from inferlens.stats.samples import Array
from inferlens.views.plain import plain, without_middle
from inferlens.views.profiled.cases import of_level
from inferlens.views.profiled.profile_tables import THE_MODEL, shapes, short

SCHEMA = "inferlens.perfetto/1"
FORMATS = (".json", ".json.gz")
LONGEST_NAME = 120
LAID_OUT = "laid out in order, when each began is not known"
_ENCODER = msgspec.json.Encoder()
_FIRST_THREAD = 1001  # never a process's number: viewers take such a thread for the main one

Moments = NDArray[np.int64]


class Slice(Struct, gc=False):  # there are hundreds of thousands, and no cycles
    """A run, ``of`` a layer or kernel by its index, or of a module (``path``, so many layers that took ``time``)."""

    begin: int
    end: int
    run: int
    of: int | None = None
    path: modules.Path | None = None
    layers: int = 0
    time: int = 0


class TimelineRow(NamedTuple):
    """Slices in order, whose times they are, with the stream, and how they were laid out, if not as they were."""

    what: str
    where: str
    slices: Sequence[Slice]
    note: str = ""

    @property
    def title(self) -> str:
        """``GPU stream 7 · kernels (laid out in order, when each began is not known)``."""
        words = " · ".join(filter(None, (self.where, self.what)))
        return f"{words} ({self.note})" if self.note else words


def check_file(path: Path) -> None:
    """Refuses a file name whose ending is none of ``FORMATS``, with an InferlensError."""
    if not path.name.lower().endswith(FORMATS):
        raise InferlensError(
            f"A trace cannot be written as '{path.name}'.", expected=" or ".join(FORMATS), hint="--trace trace.json.gz"
        )


def render(loaded: LoadedProfiles, *, compressed: bool = False) -> tuple[bytes, list[str]]:
    """The trace of the latest profile of each case at each level, and a sentence on each that is not in it.

    ``compressed``: with gzip, which Perfetto opens as it is.

    Raises:
        InferlensError: if there is nothing to draw.
    """
    levels = dict.fromkeys(one.level for one in loaded.profiles)
    parts = [replace(loaded, profiles=[one for one in loaded.profiles if one.level == level]) for level in levels]
    found = [(case, timeline(case.profile)) for part in parts for case in of_level(part, None)]
    drawn = [(case, rows) for case, rows in found if not isinstance(rows, str)]
    missing = [plain(f"Not drawn: {case.name}. {why}") for case, why in found if isinstance(why, str)]
    if not drawn:
        raise InferlensError(f"There is nothing to trace. {' '.join(missing)}".strip(), hint="inferlens profile MODEL")
    events: list[bytes] = []
    thread = _FIRST_THREAD
    for process, (case, rows) in enumerate(drawn, start=1):
        name = f"{case.headline[:200]} · {case.name[:200]} · {case.profile.level}s"
        events += _named("process", process, 0, name, process)
        for number, row in enumerate(rows, start=1):
            events += _named("thread", process, thread, row.title, number)
            events += _slices(row, case.profile, process, thread)
            thread += 1
    other = {"schema": SCHEMA, "profiles": [_about(case.profile) for case, _ in drawn]}
    head = b'{"displayTimeUnit":"ns","otherData":' + msgspec.json.encode(other) + b',"traceEvents":[\n'
    whole = head + b",\n".join(events) + b"\n]}\n"
    return gzip.compress(whole, 6, mtime=0) if compressed else whole, missing


# From a profile to rows


def timeline(profile: Profile) -> list[TimelineRow] | str:
    """The runs of a profile, their modules, and their layers or kernels; or the sentence that says why not."""
    runs, found, parts = profile_runs(profile), profile.found, profile.parts
    if isinstance(runs, str) or found is None:
        return str(runs)
    known = [found.begun, *(part.begins for part in parts if part.begins)]
    if any(len(values) != runs.count or not are_times(values) for values in known):
        return "Its begins are no times, or not as many as there were runs."
    timed = [index for index, part in enumerate(parts) if part.times]
    begins, after = np.zeros_like(runs.layers), np.zeros_like(runs.whole)
    for index, part in enumerate(parts):
        begins[index] = part.begins or after  # what has no begin follows on the one before that has none
        after = after if part.begins else after + runs.layers[index]
    starts = np.array(found.begun)
    begin, end = _nanoseconds(starts + begins), _nanoseconds(starts + begins + runs.layers)
    whole = zip(_nanoseconds(starts).tolist(), _nanoseconds(starts + runs.whole).tolist(), strict=True)
    slices = [Slice(first, last, run) for run, (first, last) in enumerate(whole)]
    rows = [TimelineRow("runs", "host", lane) for lane in _lanes(slices)]
    paths = {index: ancestor([*map(module_path, parts[index].modules)]) for index in timed if parts[index].modules}
    if paths:
        laid_out = any(not parts[index].begins for index in timed)
        note = f"from their {profile.level}s" + f", {LAID_OUT}" * laid_out
        rows.append(TimelineRow("modules", "", list(_modules(timed, paths, begin, end, starts)), note))
    places: dict[tuple[bool, int], list[int]] = {}
    for index in timed:
        stream = getattr(parts[index], "stream", None)
        places.setdefault((stream is None, stream or 0), []).append(index)
    for (unknown, stream), members in sorted(places.items()):
        where = str(profile.timed) if unknown else f"GPU stream {stream}"
        slices = [
            Slice(first, last, run, index)
            for index in members
            for run, (first, last) in enumerate(zip(begin[index].tolist(), end[index].tolist(), strict=True))
        ]
        note = LAID_OUT if any(not parts[index].begins for index in members) else ""
        lanes = _lanes(sorted(slices, key=lambda one: (one.begin, one.run)))
        for number, lane in enumerate(lanes, start=1):
            notes = [note, f"{number} of {len(lanes)} side by side" if len(lanes) > 1 else ""]
            rows.append(TimelineRow(f"{profile.level}s", where, lane, ", ".join(filter(None, notes))))
    return rows


def _nanoseconds(seconds: Array) -> Moments:
    """Begins and ends are rounded each by itself, so that what follows on another does so in nanoseconds too."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _lanes(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Slices in order of their begins, each in the first lane that is free; a nanosecond of overlap is a rounding."""
    found: list[list[Slice]] = []
    for item in slices:
        lane = next((lane for lane in found if lane[-1].end <= item.begin + 1), None)
        if lane is None:
            found.append(lane := [])
        item.begin = max(item.begin, lane[-1].end) if lane else item.begin
        item.end = max(item.end, item.begin)
        lane.append(item)
    return found


def _modules(
    timed: Sequence[int], paths: dict[int, modules.Path], begin: Moments, end: Moments, starts: Array
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
            for item in open_[keep:]:
                item.end = max(min(item.end, begun[index]), item.begin)
            del open_[keep:]
            for depth in range(keep, -1 if path is None else len(path) + 1):
                open_.append(Slice(begun[index], over[index], run, path=(path or ())[:depth]))
                found.append(open_[-1])
            for item in open_:
                item.end = max(item.end, over[index])
                item.layers += 1
                item.time += over[index] - begun[index]
        for item in found:
            if next_run is not None:
                item.begin, item.end = min(item.begin, next_run), min(item.end, next_run)
            yield item


# From rows to events


def _named(what: str, process: int, thread: int, name: str, place: int) -> Iterator[bytes]:
    """The name of a process or a thread, and its place among its like."""
    for key, value in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place})):
        yield msgspec.json.encode({"ph": "M", "pid": process, "tid": thread, "name": key, "args": value})


def _slices(row: TimelineRow, profile: Profile, process: int, thread: int) -> Iterator[bytes]:
    """The slices of a row; long texts are shortened."""
    texts: dict[object, tuple[str, dict[str, Any]]] = {}
    for item in row.slices:
        key = item.of if item.path is None else item.path
        if key not in texts:
            texts[key] = _named_slice(item, profile)
        name, told = texts[key]
        inside = {} if item.path is None else {"layers": item.layers, "in layers, ms": item.time // 1000 / 1000}
        yield _ENCODER.encode(
            {
                "ph": "X", "pid": process, "tid": thread, "cat": row.what, "ts": item.begin / 1000,
                "dur": (item.end - item.begin) / 1000, "args": {"run": item.run + 1, **inside, **told},
                "name": name or f"run {item.run + 1}",
            }
        )  # fmt: skip


def _named_slice(each: Slice, profile: Profile) -> tuple[str, dict[str, Any]]:
    """The name of a slice, none of a run, and its arguments that are the same in every run."""
    told: dict[str, Any]
    if each.path is not None:
        name, told = each.path[-1] if each.path else THE_MODEL, {"module": ".".join(each.path)}
    elif each.of is None:
        return "", {}
    else:
        part = profile.parts[each.of]
        name, told = part.name, {"place": each.of + 1, **_told(part)}
    known = {key: value for key, value in told.items() if value not in ("", None)}
    return short(name, LONGEST_NAME), {
        key: without_middle(value, LONGEST_NAME) if isinstance(value, str) else value for key, value in known.items()
    }


def _told(part: Layer | Kernel) -> dict[str, Any]:
    """What the profile says of a layer or a kernel."""
    modules = ", ".join(path or THE_MODEL for path in part.modules)
    both = {"kind": part.kind, "calls": part.calls, "modules": modules}
    if isinstance(part, Layer):
        tensors = {"input": part.inputs, "output": part.outputs}
        drawn = {key: shapes(item) for key, item in tensors.items() if item}
        return {**both, "operators": ", ".join(part.operators), **drawn}
    return {
        **both, "layer": part.layer, "operator": part.operator, "grid": "x".join(map(str, part.grid)),
        "block": "x".join(map(str, part.block)), "registers": part.registers,
        "shared memory, bytes": part.shared_memory, "occupancy": part.occupancy,
        "achieved occupancy, estimated": part.achieved, "tensor cores": part.tensor_cores,
    }  # fmt: skip


def _about(profile: Profile) -> dict[str, Any]:
    """Where a process of the trace comes from."""
    return {
        "case": profile.case.label, "level": profile.level, "model": profile.case.model, "profile": profile.id,
        "created": profile.created, "first run began": profile.found.started if profile.found else "",
        "clock": profile.clock, "without a time": sum(not part.times for part in profile.parts),
    }  # fmt: skip
