"""Profiles as a trace for Perfetto and other viewers of Chrome's Trace Event Format (JSON).

Each profile is a process that begins at zero. Its threads are rows for runs, modules, and layers or kernels; parallel
slices have several rows. Times are whole nanoseconds inside, and microseconds in the trace.

Layers with an unknown begin follow each other in order, and their row says so. Several calls in a run are one slice. A
module's slice spans its consecutive layers. A fused layer belongs to the deepest module that contains all its modules.
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

from inferlens.analysis.modules import Path as ModulePath
from inferlens.analysis.modules import ancestor, module_path
from inferlens.analysis.profile_table import are_times, profile_runs
from inferlens.errors import InferlensError
from inferlens.record.profile import Kernel, Layer, Profile
from inferlens.record.store import LoadedProfiles
from inferlens.stats.samples import Array
from inferlens.views.profiles.cases import THE_MODEL, cases_of_level, cut_name, tensor_shapes
from inferlens.views.table import cut_middle, plain

SCHEMA = "inferlens.perfetto/1"
FORMATS = (".json", ".json.gz")
LONGEST_NAME = 120
IN_ORDER = "laid out in order, when each began is not known"
_ENCODER = msgspec.json.Encoder()
_FIRST_THREAD = 1001  # never a process's number: viewers take such a thread for the main one

Moments = NDArray[np.int64]


class Slice(Struct, gc=False):  # there are hundreds of thousands, and no cycles
    """A run, a layer or kernel (``part`` is its index), or a module (``path``, with ``layers`` that took ``time``)."""

    begin: int
    end: int
    run: int
    part: int | None = None
    path: ModulePath | None = None
    layers: int = 0
    time: int = 0


class TimelineRow(NamedTuple):
    """Slices in order, their kind and stream, and a note on estimated positions."""

    kind: str
    where: str
    slices: Sequence[Slice]
    note: str = ""

    @property
    def title(self) -> str:
        """Return ``GPU stream 7 · kernels (laid out in order, when each began is not known)``."""
        words = " · ".join(filter(None, (self.where, self.kind)))
        return f"{words} ({self.note})" if self.note else words


def check_file(path: Path) -> None:
    """Raise InferlensError for an unknown file ending."""
    if not path.name.lower().endswith(FORMATS):
        raise InferlensError(
            f"A trace cannot be written as '{path.name}'.", expected=" or ".join(FORMATS), hint="--trace trace.json.gz"
        )


def render_timeline(loaded: LoadedProfiles, *, compressed: bool = False) -> tuple[bytes, list[str]]:
    """Return the trace of the latest profiles at each level, and a sentence per omitted case.

    ``compressed`` uses gzip, which Perfetto reads directly.

    Raises:
        InferlensError: if there is nothing to draw.
    """
    result = []
    for level in dict.fromkeys(profile.level for profile in loaded.profiles):
        of_level = replace(loaded, profiles=[profile for profile in loaded.profiles if profile.level == level])
        result += [(case, timeline(case.profile)) for case in cases_of_level(of_level, None)]
    drawn = [(case, rows) for case, rows in result if not isinstance(rows, str)]
    missing = [plain(f"Not drawn: {case.name}. {why}") for case, why in result if isinstance(why, str)]
    if not drawn:
        raise InferlensError(f"There is nothing to trace. {' '.join(missing)}".strip(), hint="inferlens profile MODEL")
    events: list[bytes] = []
    thread = _FIRST_THREAD
    for process, (case, rows) in enumerate(drawn, start=1):
        name = f"{case.headline[:200]} · {case.name[:200]} · {case.profile.level}s"
        events += _name_events("process", process, 0, name, process)
        for number, row in enumerate(rows, start=1):
            events += _name_events("thread", process, thread, row.title, number)
            events += _slices(row, case.profile, process, thread)
            thread += 1
    profiles = [
        {
            "case": profile.case.label, "level": profile.level, "model": profile.case.model, "profile": profile.id,
            "created": profile.created, "first run began": profile.timed_runs.started if profile.timed_runs else "",
            "clock": profile.clock, "without a time": sum(not part.times for part in profile.parts),
        }
        for profile in (case.profile for case, _ in drawn)
    ]  # fmt: skip
    other = {"schema": SCHEMA, "profiles": profiles}
    head = b'{"displayTimeUnit":"ns","otherData":' + msgspec.json.encode(other) + b',"traceEvents":[\n'
    whole = head + b",\n".join(events) + b"\n]}\n"
    return gzip.compress(whole, 6, mtime=0) if compressed else whole, missing


# From a profile to rows


def timeline(profile: Profile) -> list[TimelineRow] | str:
    """Return rows of runs, modules, and layers or kernels; or the reason for none."""
    runs, result, parts = profile_runs(profile), profile.timed_runs, profile.parts
    if isinstance(runs, str) or result is None:
        return str(runs)
    available = [result.begun, *(part.begins for part in parts if part.begins)]
    if any(len(values) != runs.count or not are_times(values) for values in available):
        return "Its begins are no times, or not as many as there were runs."
    timed = [index for index, part in enumerate(parts) if part.times]
    begins, after = np.zeros_like(runs.layers), np.zeros_like(runs.whole)
    for index, part in enumerate(parts):
        begins[index] = part.begins or after  # parts without a begin follow each other
        after = after if part.begins else after + runs.layers[index]
    starts = np.array(result.begun)
    begin, end = _nanoseconds(starts + begins), _nanoseconds(starts + begins + runs.layers)
    whole = zip(_nanoseconds(starts).tolist(), _nanoseconds(starts + runs.whole).tolist(), strict=True)
    slices = [Slice(first, last, run) for run, (first, last) in enumerate(whole)]
    rows = [TimelineRow("runs", "host", lane) for lane in _lanes(slices)]
    if paths := {index: ancestor([*map(module_path, parts[index].modules)]) for index in timed if parts[index].modules}:
        note = f"from their {profile.level}s" + f", {IN_ORDER}" * any(not parts[index].begins for index in timed)
        rows.append(TimelineRow("modules", "", list(_modules(timed, paths, begin, end)), note))
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
        note = IN_ORDER if any(not parts[index].begins for index in members) else ""
        lanes = _lanes(sorted(slices, key=lambda piece: (piece.begin, piece.run)))
        for number, lane in enumerate(lanes, start=1):
            notes = [note, f"{number} of {len(lanes)} side by side" if len(lanes) > 1 else ""]
            rows.append(TimelineRow(f"{profile.level}s", where, lane, ", ".join(filter(None, notes))))
    return rows


def _nanoseconds(seconds: Array) -> Moments:
    """Round each time by itself, so that adjacent slices stay adjacent."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _lanes(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Put slices, sorted by begin, into the first free lane. An overlap of a nanosecond is rounding."""
    result: list[list[Slice]] = []
    for piece in slices:
        lane = next((lane for lane in result if lane[-1].end <= piece.begin + 1), None)
        if lane is None:
            result.append([piece])
            continue
        piece.begin = max(piece.begin, lane[-1].end)
        piece.end = max(piece.end, piece.begin)
        lane.append(piece)
    return result


def _modules(indices: Sequence[int], paths: dict[int, ModulePath], begin: Moments, end: Moments) -> Iterator[Slice]:
    """Yield the slices of modules in all runs by begin, parents first; none reaches into the next run."""
    next_runs = [*begin[indices].min(axis=0)[1:].tolist(), int(end.max())]
    for run, next_run in enumerate(next_runs):
        result: list[Slice] = []
        stack: list[Slice] = []
        for index in sorted(indices, key=begin[:, run].__getitem__):
            first, last, path = int(begin[index, run]), int(end[index, run]), paths.get(index)
            keep = 0  # number of modules in the stack, from the model down, that contain the layer
            while path is not None and keep < len(stack) and stack[keep].path == path[:keep]:
                keep += 1
            for piece in stack[keep:]:
                piece.end = max(min(piece.end, first), piece.begin)
            del stack[keep:]
            for depth in range(keep, 0 if path is None else len(path) + 1):
                stack.append(Slice(first, last, run, path=(path or ())[:depth]))
                result.append(stack[-1])
            for piece in stack:
                piece.end, piece.layers = max(piece.end, last), piece.layers + 1
                piece.time += last - first
        for piece in result:
            piece.begin, piece.end = min(piece.begin, next_run), min(piece.end, next_run)
            yield piece


# From rows to events


def _name_events(kind: str, process: int, thread: int, name: str, place: int) -> Iterator[bytes]:
    """Yield the name and the sort index of a process or thread."""
    for key, value in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": place})):
        yield msgspec.json.encode({"ph": "M", "pid": process, "tid": thread, "name": key, "args": value})


def _slices(row: TimelineRow, profile: Profile, process: int, thread: int) -> Iterator[bytes]:
    texts: dict[object, tuple[str, dict[str, Any]]] = {}
    for piece in row.slices:
        key = piece.part if piece.path is None else piece.path
        if key not in texts:
            texts[key] = _describe_slice(piece, profile)
        name, labels = texts[key]
        inside = {} if piece.path is None else {"layers": piece.layers, "in layers, ms": piece.time // 1000 / 1000}
        yield _ENCODER.encode({
            "ph": "X", "pid": process, "tid": thread, "cat": row.kind, "ts": piece.begin / 1000,
            "dur": (piece.end - piece.begin) / 1000, "args": {"run": piece.run + 1, **inside, **labels},
            "name": name or f"run {piece.run + 1}",
        })  # fmt: skip


def _describe_slice(piece: Slice, profile: Profile) -> tuple[str, dict[str, Any]]:
    """Return the name of a slice, and the arguments that all runs share."""
    texts: dict[str, Any]
    if piece.path is not None:
        name, texts = piece.path[-1] if piece.path else THE_MODEL, {"module": ".".join(piece.path)}
    elif piece.part is None:
        return "", {}
    else:
        part = profile.parts[piece.part]
        name, texts = part.name, {"place": piece.part + 1, **_describe_part(part)}
    available = {key: value for key, value in texts.items() if value not in ("", None)}
    return cut_name(name, LONGEST_NAME), {
        key: cut_middle(value, LONGEST_NAME) if isinstance(value, str) else value for key, value in available.items()
    }


def _describe_part(part: Layer | Kernel) -> dict[str, Any]:
    modules = ", ".join(path or THE_MODEL for path in part.modules)
    both = {"kind": part.kind, "calls": part.calls, "modules": modules}
    if isinstance(part, Layer):
        tensors = {"input": part.inputs, "output": part.outputs}
        shapes = {key: tensor_shapes(values) for key, values in tensors.items() if values}
        return {**both, "operators": ", ".join(part.operators), **shapes}
    return {
        **both, "layer": part.layer, "operator": part.operator, "grid": "x".join(map(str, part.grid)),
        "block": "x".join(map(str, part.block)), "registers": part.registers,
        "shared memory, bytes": part.shared_memory, "occupancy": part.occupancy,
        "achieved occupancy, estimated": part.achieved, "tensor cores": part.tensor_cores,
    }  # fmt: skip
