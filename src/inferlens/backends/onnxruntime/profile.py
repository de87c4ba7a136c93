"""The layers of ONNX Runtime, from the profile that it writes itself.

ONNX Runtime profiles a session from its creation until it is told to stop, and writes the optimised graph where it is
asked to. Both files lie in a temporary folder that goes with the runner. An event of a node has its name, its kind, its
provider, its tensors' shapes and its time in whole microseconds; events named ``model_run`` say which run it belongs
to. The last runs are those that were asked for. A node with a graph inside, such as ``If``, is timed without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.backends.onnx.fusion import Fusion
from inferlens.backends.onnx.modules import modules_among, operators_among, origins
from inferlens.backends.profiling.layer_runs import Taken, clocked_runs
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer, Layers, Tensor

CLOCK = "ONNX Runtime's profiler, in whole microseconds"
ENDING = "_kernel_time"
INSERTED = "by ONNX Runtime, to change type, device, shape or memory order"
SIDE_BY_SIDE = "execution_mode=parallel: layers run side by side, and their times overlap."
UNNAMED = "not known for {} layers: ONNX Runtime took operators apart and gave the parts no names that lead back."
TYPES = {"float": "float32", "double": "float64"}
OPTIMISED = "optimised.onnx"


class NodeArguments(Struct):
    """What an event of a node tells beside its time."""

    op_name: str = ""
    provider: str = ""
    node_index: str = ""
    input_type_shape: list[dict[str, list[int]]] = []
    output_type_shape: list[dict[str, list[int]]] = []


class ProfileEvent(Struct):
    """An event of the profile; ``ts`` and ``dur`` are microseconds."""

    cat: str
    name: str
    ts: int = 0
    dur: int = 0
    tid: int = 0
    args: NodeArguments = msgspec.field(default_factory=NodeArguments)

    @property
    def end(self) -> int:
        """When it was over."""
        return self.ts + self.dur

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells nodes apart: names may be missing, or the same in the graphs inside of nodes."""
        return self.name, self.args.node_index, self.args.op_name


def ask_for_profile(settings: Any, folder: Path) -> None:
    """Has a session, made with ``settings``, write its profile and its optimised graph into ``folder``.

    Weights go into a file of their own, because one ONNX file holds less than 2 GiB.
    """
    settings.enable_profiling = True
    settings.profile_file_prefix = str(folder / "profile")
    settings.optimized_model_filepath = str(folder / OPTIMISED)
    settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.data")
    settings.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")


def layers_of(runner: Any, loaded: Any, folder: Path, path: Path, feed: Any, runs: int, *, parallel: bool) -> Layers:
    """Times the nodes of a session in ``runs`` calls of ``runner.infer(feed)``, and ends its profile.

    Args:
        loaded: the session that ``infer`` runs, made with :func:`ask_for_profile`.
        folder: where it writes to.
        path: the ONNX file that it was made from.
        parallel: whether it runs branches side by side.

    Raises:
        Unsupported: if the profile lacks runs; ONNX Runtime stops writing after a million events.
    """
    clocked = clocked_runs(runner, feed, runs)
    written = Path(loaded.end_profiling())
    events = msgspec.json.decode(written.read_bytes(), type=list[ProfileEvent])
    written.unlink()
    timed = by_node(runs_of(events, runs))
    graph = origins(path)
    fusion = Fusion(graph, origins(folder / OPTIMISED))
    layers = tuple(layer(*each, fusion, runs) for each in timed)
    lost = sum(not each.modules and "inserted" not in each.details for each in layers)
    absent = {"modules": graph.absent or UNNAMED.format(lost)} if graph.absent or lost else {}
    return clocked.layers(layers, clock=CLOCK, absent=absent | ({"sum": SIDE_BY_SIDE} if parallel else {}))


def runs_of(events: list[ProfileEvent], runs: int) -> list[tuple[int, list[ProfileEvent]]]:
    """When each of the last ``runs`` runs began, and the events of its nodes, in order.

    Raises:
        Unsupported: if there are fewer.
    """
    begun = sorted((event for event in events if event.name == "model_run"), key=lambda event: event.ts)[-runs:]
    nodes = sorted(
        (event for event in events if event.cat == "Node" and event.name.endswith(ENDING)),
        key=lambda event: (event.ts, -event.dur),
    )
    found = [(run.ts, [node for node in nodes if run.ts <= node.ts and node.end <= run.end]) for run in begun]
    if len(begun) < runs or not all(inside for _, inside in found):
        raise Unsupported(
            f"ONNX Runtime's profile has {sum(bool(inside) for _, inside in found)} of {runs} runs.",
            hint="fewer runs, or a shorter warm-up",
        )
    return found


def by_node(runs: list[tuple[int, list[ProfileEvent]]]) -> list[tuple[ProfileEvent, Taken]]:
    """The first event of each node, in the order in which they first began, with the node's own times."""
    found: dict[tuple[str, str, str], tuple[ProfileEvent, Taken]] = {}
    for number, (begin, events) in enumerate(runs):
        for event, own in zip(events, own_durations(events), strict=True):
            _, taken = found.setdefault(event.key, (event, Taken()))
            taken.add(number, own / 1e6, (event.ts - begin) / 1e6)
    return list(found.values())


def own_durations(events: list[ProfileEvent]) -> list[int]:
    """Microseconds of each event without those inside of it on the same thread; ``events`` in order of their begins."""
    own = [event.dur for event in events]
    open_: defaultdict[int, list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        outer = open_[event.tid]
        while outer and events[outer[-1]].end < event.end:
            outer.pop()
        if outer and events[outer[-1]].ts < event.ts:
            own[outer[-1]] = max(own[outer[-1]] - event.dur, 0)
        outer.append(place)
    return own


def layer(first: ProfileEvent, taken: Taken, fusion: Fusion, runs: int) -> Layer:
    """One node's layer."""
    arguments = first.args
    name = first.name.removesuffix(ENDING)
    nodes = fusion.sources(name)
    inserted = fusion.inserted(name)
    ran = fusion.node(name, arguments.op_name)
    return Layer(
        name=name,
        kind=arguments.op_name,
        modules=modules_among(nodes),
        operators=operators_among(nodes) or (() if inserted else (arguments.op_name,)),
        inputs=tensors(arguments.input_type_shape, ran.inputs if ran else (), fusion.written),
        outputs=tensors(arguments.output_type_shape, ran.outputs if ran else ()),
        details={"provider": arguments.provider} | ({"inserted": INSERTED} if inserted else {}),
        **taken.timing(runs),
    )


def tensors(
    shapes: list[dict[str, list[int]]], names: tuple[str, ...], written: Container[str] = ()
) -> tuple[Tensor, ...]:
    """Tensors from a profile's ``[{"float": [1, 3, 224, 224]}]`` and the graph's names, where the two fit together.

    An input that may be left out and is has an empty name in the graph, and is not told. Nor are weights that ONNX
    Runtime has packed: they come before what it does not pack, and behind the first input. ``written``: names of what
    nodes write, which cannot be weights.
    """
    found = [(TYPES.get(kind, kind), tuple(shape)) for entry in shapes for kind, shape in entry.items()]
    given = [name for name in names if name]
    weights = [name for name in given[1:] if name not in written]
    packed = set(weights[: max(len(given) - len(found), 0)])
    named = [name for name in given if name not in packed]
    if len(named) != len(found):
        named = [""] * len(found)
    return tuple(Tensor(name=name, shape=shape, dtype=kind) for name, (kind, shape) in zip(named, found, strict=True))
