"""A trace of the runs of profiles, for Perfetto and every other viewer of Chrome's Trace Event Format (JSON).

Each profile is a process of the trace, and begins at zero, so that profiles lie above each other. Its threads are rows:
the runs, the modules, and layers or kernels. Time stamps are microseconds with three decimals, which is nanoseconds.
Where a row is not as it was but laid out by a rule, its name says so, and so does ``otherData``.

Long names are shortened, and stand whole in the arguments of the first run's slice. Of a slice's arguments all but the
run are the same in every run, so they are written as JSON once: a trace may have hundreds of thousands of slices.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from inferlens.analysis.profile.timeline import RUNS_KNOWN, Slice, Timeline, TimelineRow, timeline
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Layer
from inferlens.record.profile_store import LoadedProfiles
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import ProfiledCase, of_level
from inferlens.views.profiled.sentences import THE_MODEL, cut, shapes, short

SCHEMA = "inferlens.perfetto/1"
FORMATS = (".json", ".json.gz")
LONGEST_NAME = 120
_FIRST_THREAD = 1001  # never a process's number: viewers take such a thread for the main one

Json = dict[str, Any]


def check_file(path: Path) -> None:
    """Refuses a file name whose ending is no format of a trace.

    Raises:
        InferlensError: if it does not end in one of ``FORMATS``.
    """
    if not path.name.lower().endswith(FORMATS):
        raise InferlensError(
            f"A trace cannot be written as '{path.name}'.", expected=" or ".join(FORMATS), hint="--trace trace.json.gz"
        )


def every_level(loaded: LoadedProfiles) -> list[ProfiledCase]:
    """The latest profile of each case at each level, named; cases that can be compared are together."""
    levels = dict.fromkeys(one.level for one in loaded.profiles)
    parts = [replace(loaded, profiles=[one for one in loaded.profiles if one.level == level]) for level in levels]
    return [case for part in parts for case in of_level(part, None)]


def render(cases: Sequence[ProfiledCase], *, compressed: bool = False) -> bytes:
    """The trace of all cases that have layers or kernels.

    Args:
        cases: profiles, named.
        compressed: with gzip, which Perfetto opens as it is.

    Raises:
        InferlensError: if there is nothing to draw.
    """
    drawn = [(case, made) for case in cases if not isinstance(made := timeline(case.profile), str)]
    if not drawn:
        reasons = " ".join(not_drawn(cases))
        raise InferlensError(f"There is nothing to trace. {reasons}".strip(), hint="inferlens profile MODEL")
    events: list[bytes] = []
    thread = _FIRST_THREAD
    for process, (case, made) in enumerate(drawn, start=1):
        name = f"{case.headline[:200]} · {case.name[:200]} · {made.level}s"
        events += _named("process", process, 0, name, process)
        for number, row in enumerate(made.rows, start=1):
            events += _named("thread", process, thread, _title(row, made), number)
            events += _slices(row, made, process, thread)
            thread += 1
    other = {"schema": SCHEMA, "profiles": [_about(case, made) for case, made in drawn]}
    head = b'{"displayTimeUnit":"ns","otherData":' + msgspec.json.encode(other) + b',"traceEvents":[\n'
    whole = head + b",\n".join(events) + b"\n]}\n"
    return gzip.compress(whole, 6, mtime=0) if compressed else whole


def not_drawn(cases: Sequence[ProfiledCase]) -> list[str]:
    """A sentence for each case that is not in the trace, and why."""
    found = ((case, timeline(case.profile)) for case in cases)
    return [plain(f"Not drawn: {case.name}. {why}") for case, why in found if isinstance(why, str)]


def _named(what: str, process: int, thread: int, name: str, place: int) -> Iterator[bytes]:
    """The name of a process or a thread, and its place among its like."""
    for key, value in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place})):
        yield msgspec.json.encode({"ph": "M", "pid": process, "tid": thread, "name": key, "args": value})


def _title(row: TimelineRow, made: Timeline) -> str:
    """The name of a row: whose times they are, of what, and how they were laid out if not as they were."""
    note = row.note or (made.gaps if row.what == "runs" and made.gaps != RUNS_KNOWN else "")
    words = " · ".join(word for word in (row.where, row.what) if word)
    return f"{words} ({note})" if note else words


def _slices(row: TimelineRow, made: Timeline, process: int, thread: int) -> Iterator[bytes]:
    """The slices of a row."""
    head = f'{{"ph":"X","pid":{process},"tid":{thread},"cat":"{row.what}",'.encode()
    fixed: dict[object, bytes] = {}
    for each in row.slices:
        first = each.run == 0
        key = (each.path, each.run if row.what == "runs" else each.of, first)
        if key not in fixed:
            fixed[key] = _fixed(each, made, full=first)
        inside = f',"layers":{each.layers},"in layers, ms":{_micro(each.time // 1000)}' if each.path is not None else ""
        stamp = f'"ts":{_micro(each.begin)},"dur":{_micro(each.end - each.begin)},"args":{{"run":{each.run + 1}{inside}'
        yield head + stamp.encode() + fixed[key]


def _fixed(each: Slice, made: Timeline, *, full: bool) -> bytes:
    """What of an event is the same in every run: the rest of the arguments, and the name."""
    arguments: Json
    if each.path is not None:
        name = each.path[-1] if each.path else THE_MODEL
        arguments = {"module": ".".join(each.path)}
    elif each.of is None:
        name = f"run {each.run + 1}"
        arguments = {"clock of the layers": made.clock, "runs": made.gaps}
    else:
        part = made.parts[each.of]
        name = part.name
        arguments = {"place": each.of + 1, "kind": part.kind, "calls": part.calls}
        arguments["modules"] = ", ".join(path or THE_MODEL for path in part.modules)
        if isinstance(part, Layer):
            arguments["operators"] = ", ".join(part.operators)
            arguments["input"] = shapes(part.inputs) if part.inputs else ""
            arguments["output"] = shapes(part.outputs) if part.outputs else ""
        else:
            arguments |= {
                "layer": part.layer,
                "operator": part.operator,
                "grid": "x".join(map(str, part.grid)),
                "block": "x".join(map(str, part.block)),
                "registers": part.registers,
                "shared memory, bytes": part.shared_memory,
                "occupancy": part.occupancy,
                "achieved occupancy, estimated": part.achieved,
                "tensor cores": part.tensor_cores,
            }
    shown = short(name, LONGEST_NAME)
    if full and shown != name:
        arguments["name"] = name
    texts = {
        key: cut(value, LONGEST_NAME) if isinstance(value, str) and not full else value
        for key, value in arguments.items()
        if value not in ("", None)
    }
    encoded = msgspec.json.encode(texts)[1:-1]
    return (b"," + encoded if encoded else b"") + b'},"name":' + msgspec.json.encode(shown) + b"}"


def _about(case: ProfiledCase, made: Timeline) -> Json:
    """Where a process of the trace comes from, and how its time stamps came about."""
    profile = case.profile
    return {
        "case": profile.case.label,
        "level": made.level,
        "model": profile.case.model,
        "profile": profile.id,
        "created": profile.created,
        "first run began": made.started,
        "clock": made.clock,
        "runs": made.gaps,
        "rows": sorted({row.note for row in made.rows if row.note}),
        "without a time": made.undrawn,
    }


def _micro(nanoseconds: int) -> str:
    """Microseconds with three decimals, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
