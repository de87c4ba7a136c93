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
from inferlens.record.kernel_profile import Kernel
from inferlens.record.layer_profile import Layer
from inferlens.record.profile_store import LoadedProfiles
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import Profiled, groups
from inferlens.views.profiled.layers import shapes
from inferlens.views.profiled.sentences import name_of

FORMATS = (".json", ".json.gz")
LONGEST_NAME = 120

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


def every_level(loaded: LoadedProfiles) -> list[Profiled]:
    """The latest profile of each case at each level, named; cases that can be compared are together."""
    found: list[Profiled] = []
    for level in dict.fromkeys(one.level for one in loaded.profiles):
        part = replace(loaded, profiles=[one for one in loaded.profiles if one.level == level])
        found += [case for group in groups(part) for case in group]
    return found


def render(cases: Sequence[Profiled], *, compressed: bool = False) -> bytes:
    """The trace of all cases that have layers or kernels.

    Args:
        cases: profiles, named.
        compressed: with gzip, which Perfetto opens as it is.

    Raises:
        InferlensError: if there is nothing to draw.
    """
    drawn = [(case, each) for case in cases if not isinstance(each := timeline(case.profile), str)]
    if not drawn:
        reasons = " ".join(not_drawn(cases))
        raise InferlensError(f"There is nothing to trace. {reasons}".strip(), hint="inferlens profile MODEL")
    events: list[bytes] = []
    threads = 0
    for process, (case, made) in enumerate(drawn, start=1):
        name = f"{case.headline[:200]} · {case.name[:200]} · {made.level}s"
        events += _named("process", process, 0, name, process)
        for number, row in enumerate(made.rows, start=1):
            threads += 1
            thread = 1000 + threads  # never a process's number: viewers take such a thread for the main one
            events += _named("thread", process, thread, _title(row, made), number)
            events += _slices(row, made, process, thread)
    about = msgspec.json.encode([_about(case, made) for case, made in drawn])
    whole = (
        b'{"displayTimeUnit":"ns","otherData":{"schema":"inferlens.perfetto/1","profiles":'
        + about
        + b'},"traceEvents":[\n'
        + b",\n".join(events)
        + b"\n]}\n"
    )
    return gzip.compress(whole, 6, mtime=0) if compressed else whole


def not_drawn(cases: Sequence[Profiled]) -> list[str]:
    """A sentence for each case that is not in the trace, and why."""
    found = ((case, timeline(case.profile)) for case in cases)
    return [plain(f"Not drawn: {case.name}. {why}") for case, why in found if isinstance(why, str)]


def _named(what: str, process: int, thread: int, name: str, place: int) -> Iterator[bytes]:
    """The name of a process or a thread, and its place among its like."""
    for key, value in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place})):
        event = {"ph": "M", "pid": process, "tid": thread, "name": key, "args": value}
        yield msgspec.json.encode(event)


def _title(row: TimelineRow, made: Timeline) -> str:
    """The name of a row: whose times they are, of what, and how they were laid out if not as they were."""
    said = row.note or ("" if row.what != "runs" or made.gaps == RUNS_KNOWN else made.gaps)
    words = " · ".join(word for word in (row.where, row.what) if word)
    return f"{words} ({said})" if said else words


def _slices(row: TimelineRow, made: Timeline, process: int, thread: int) -> Iterator[bytes]:
    """The slices of a row."""
    head = f'{{"ph":"X","pid":{process},"tid":{thread},"cat":"{row.what}",'.encode()
    fixed: dict[tuple[object, bool], bytes] = {}
    for each in row.slices:
        first = each.run == 0
        is_module = each.path is not None
        key = (each.path if is_module else each.run if each.of is None else each.of, first)
        if key not in fixed:
            fixed[key] = _fixed(each, made, full=first)
        inside = f',"layers":{each.layers},"in layers, ms":{_micro(each.time // 1000)}' if is_module else ""
        stamp = f'"ts":{_micro(each.begin)},"dur":{_micro(each.end - each.begin)},"args":{{"run":{each.run + 1}{inside}'
        yield head + stamp.encode() + fixed[key]


def _fixed(each: Slice, made: Timeline, *, full: bool) -> bytes:
    """What of an event is the same in every run: the rest of the arguments, and the name."""
    arguments: Json
    if each.path is not None:
        name = each.path[-1] if each.path else "the model"
        arguments = {"module": ".".join(each.path)}
    elif each.of is None:
        name = f"run {each.run + 1}"
        arguments = {"clock of the layers": made.clock, "runs": made.gaps}
    else:
        part = made.parts[each.of]
        name = part.name
        arguments = {"place": each.of + 1, **(_layer(part) if isinstance(part, Layer) else _kernel(part))}
    shown = _short(name_of(name))
    if full and shown != name:
        arguments["name"] = name
    texts = {key: value if full else _cut(value) for key, value in arguments.items() if value not in ("", None)}
    encoded = msgspec.json.encode(texts)[1:-1]
    return (b"," + encoded if encoded else b"") + b'},"name":' + msgspec.json.encode(shown) + b"}"


def _layer(layer: Layer) -> Json:
    """What is told of a layer."""
    return {
        "kind": layer.kind,
        "modules": ", ".join(path or "the model" for path in layer.modules),
        "operators": ", ".join(layer.operators),
        "input": shapes(layer.inputs) if layer.inputs else "",
        "output": shapes(layer.outputs) if layer.outputs else "",
        "calls": layer.calls,
    }


def _kernel(kernel: Kernel) -> Json:
    """What is told of a kernel."""
    return {
        "kind": kernel.kind,
        "layer": kernel.layer,
        "operator": kernel.operator,
        "modules": ", ".join(path or "the model" for path in kernel.modules),
        "calls": kernel.calls,
        "grid": "x".join(map(str, kernel.grid)),
        "block": "x".join(map(str, kernel.block)),
        "registers": kernel.registers,
        "shared memory, bytes": kernel.shared_memory,
        "occupancy": kernel.occupancy,
        "achieved occupancy, estimated": kernel.achieved,
        "tensor cores": kernel.tensor_cores,
    }


def _about(case: Profiled, made: Timeline) -> Json:
    """Where a process of the trace comes from, and how its time stamps came about."""
    profile = case.profile
    told = {row.note for row in made.rows if row.note}
    return {
        "case": profile.case.label,
        "level": made.level,
        "model": profile.case.model,
        "profile": profile.id,
        "created": profile.created,
        "first run began": made.started,
        "clock": made.clock,
        "runs": made.gaps,
        "rows": sorted(told),
        "without a time": made.undrawn,
    }


def _micro(nanoseconds: int) -> str:
    """Microseconds with three decimals, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _cut(value: Any) -> Any:
    return _short(value) if isinstance(value, str) else value


def _short(text: str) -> str:
    half = LONGEST_NAME // 2
    return text if len(text) <= LONGEST_NAME else f"{text[: half - 1]}…{text[-half:]}"
