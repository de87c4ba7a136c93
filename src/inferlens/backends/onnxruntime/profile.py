"""The layers of ONNX Runtime, from the profile that it writes itself, traced back to the nodes of its file.

ONNX Runtime profiles a session from its creation until it is told to stop, and writes the optimised graph where it is
asked to. Events named ``model_run`` say which run the event of a node belongs to; the last runs are those that were
asked for. A node with a graph inside, such as ``If``, is timed without it.

Optimisers rename, fuse and insert nodes, and keep the names of most tensors. A node of the optimised graph covers
everything that the original graph computes between the tensors that it reads and the ones that it writes. Where a
tensor has a new name, its old one is found from what is around it:

- A node that only changes type, device, shape or memory order, and that the original graph does not have, was inserted:
  what it reads is what it writes.
- A convolution in blocked memory order (NCHWc) is named after the tensor that it wrote before, ``relu_nchwc`` for
  ``relu``. What was fused into it as well is told by its readers, whose inputs are those of their originals.
- A node that kept its name writes what the original of that name wrote.
- Computing fp16 in fp32, ONNX Runtime names the tensor before a cast after the one behind it, with a prefix.

Quantizing adds nodes that quantize and dequantize; alone, they belong to the modules of what they convert.

A node that writes nothing known, such as a part of an operator that was taken apart, came from what its readers did.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.onnx.graph import OnnxNode, OnnxNodes, modules_among, operators_among, origins
from inferlens.backends.profiling.layers import Taken, clocked_runs
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer, Layers, Tensor
from inferlens.trace.precision import first_precision

CLOCK = "ONNX Runtime's profiler, in whole microseconds"
ENDING = "_kernel_time"
INSERTED = "by ONNX Runtime, to change type, device, shape or memory order"
SIDE_BY_SIDE = "execution_mode=parallel: layers run side by side, and their times overlap."
UNNAMED = "not known for {} layers: ONNX Runtime took operators apart and gave the parts no names that lead back."
TYPES = {"float": "float32", "double": "float64"}
OPTIMISED = "optimised.onnx"
CHANGERS = ("ReorderInput", "ReorderOutput", "Cast", "Transpose", "MemcpyToHost", "MemcpyFromHost")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
CAST = "InsertedPrecisionFreeCast_"
BLOCKED = re.compile(r"_nchwc(_token_\d+)?$")
TOKEN = re.compile(r"_token_\d+$")  # behind the name of a node that was rewritten
OF_BYTES = re.compile(r"QLinear|QGemm|QAttention|\w+Integer|DynamicQuantize(?!Linear)")  # of quantized factors
CONVERTING = ("QuantizeLinear", "DequantizeLinear")
QUANTIZED = "by quantization, to change type"
OWN_KERNELS = ("CPUExecutionProvider", "CUDAExecutionProvider")  # others choose by themselves what they compute in


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
        return self.ts + self.dur

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells nodes apart: names may be missing, or the same in the graphs inside of nodes."""
        return self.name, self.args.node_index, self.args.op_name


def ask_for_profile(settings: Any, folder: Path) -> None:
    """Has a session, made with ``settings``, write its profile and its optimised graph into ``folder``."""
    settings.enable_profiling = True
    settings.profile_file_prefix = str(folder / "profile")
    settings.optimized_model_filepath = str(folder / OPTIMISED)
    # Weights go into a file of their own, because one ONNX file holds less than 2 GiB.
    settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.data")
    settings.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")


def layers_of(runner: Any, loaded: Any, folder: Path, path: Path, feed: Any, runs: int, *, parallel: bool) -> Layers:
    """Times the nodes of a session in ``runs`` calls of ``runner.infer(feed)``, and ends its profile.

    The session was made of the file ``path`` with :func:`ask_for_profile`, writes into ``folder``, and runs branches
    side by side where it is ``parallel``. Refuses if the profile lacks runs: it ends after a million events.
    """
    clocked = clocked_runs(runner, feed, runs)
    written = Path(loaded.end_profiling())
    events = msgspec.json.decode(written.read_bytes(), type=list[ProfileEvent])
    written.unlink()
    timed = by_node(runs_of(events, runs))
    graph = origins(path)
    fusion = Fusion(graph, origins(folder / OPTIMISED))
    layers = tuple(replace(layer(first, fusion), **item.timing(runs)) for first, item in timed)
    absent = unknown_modules(layers, graph)
    return clocked.layers(layers, clock=CLOCK, absent=absent | ({"sum": SIDE_BY_SIDE} if parallel else {}))


def unknown_modules(layers: Iterable[Layer], graph: OnnxNodes) -> dict[str, str]:
    """Return how many layers of the optimised ``graph`` have no modules, and why; nothing if all have."""
    lost = sum(not layer.modules and "inserted" not in layer.details for layer in layers)
    return {"modules": graph.absent or UNNAMED.format(lost)} if graph.absent or lost else {}


def runs_of(events: list[ProfileEvent], runs: int) -> list[tuple[int, list[ProfileEvent]]]:
    """When each of the last ``runs`` runs began, and the events of its nodes, in order; refuses if there are fewer."""
    begun = sorted((event for event in events if event.name == "model_run"), key=lambda event: event.ts)[-runs:]
    nodes = sorted(
        (event for event in events if event.cat == "Node" and event.name.endswith(ENDING)),
        key=lambda event: (event.ts, -event.dur),
    )
    found = [(run.ts, [node for node in nodes if run.ts <= node.ts and node.end <= run.end]) for run in begun]
    if len(begun) < runs or not all(inside for _, inside in found):
        whole = sum(bool(inside) for _, inside in found)
        raise Unsupported(
            f"ONNX Runtime's profile has {whole} of {runs} runs.", hint="fewer runs, or a shorter warm-up"
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


def layer(first: ProfileEvent, fusion: Fusion) -> Layer:
    """Return the layer of a node's event, without times."""
    arguments = first.args
    name = first.name.removesuffix(ENDING)
    nodes, inserted = fusion.sources(name), fusion.inserted(name)
    own = [node for node in nodes if node.kind not in CONVERTING]
    ran = fusion.node(name, arguments.op_name)
    inputs = tensors(arguments.input_type_shape, ran.inputs if ran else (), fusion.written)
    outputs = tensors(arguments.output_type_shape, ran.outputs if ran else ())
    return Layer(
        name=name,
        kind=arguments.op_name,
        modules=modules_among(nodes) or (fusion.beside(name) if inserted == QUANTIZED else ()),
        operators=operators_among(own or nodes) or (() if inserted else (arguments.op_name,)),
        inputs=inputs,
        outputs=outputs,
        precision=precision_of(arguments, (*inputs, *outputs)),
        details={"provider": arguments.provider} | ({"inserted": inserted} if inserted else {}),
    )


def precision_of(arguments: NodeArguments, tensors: Sequence[Tensor]) -> str:
    """What a node computes in: int8 where its operator is one of quantized factors, else the type of what it reads."""
    if arguments.provider not in OWN_KERNELS:
        return ""
    return "int8" if OF_BYTES.match(arguments.op_name) else first_precision(tensor.dtype for tensor in tensors)


def tensors(
    shapes: list[dict[str, list[int]]], names: tuple[str, ...], written: Container[str] = ()
) -> tuple[Tensor, ...]:
    """Tensors from a profile's ``[{"float": [1, 3, 224, 224]}]`` and the graph's names, where the two fit together.

    An input that is left out has an empty name in the graph, and is not told. Nor are weights that ONNX Runtime has
    packed: they come before what it does not pack, and behind the first input. What nodes write cannot be weights.
    """
    found = [(TYPES.get(kind, kind), tuple(shape)) for entry in shapes for kind, shape in entry.items()]
    given = [name for name in names if name]
    weights = [name for name in given[1:] if name not in written]
    packed = set(weights[: max(len(given) - len(found), 0)])
    named = [name for name in given if name not in packed]
    if len(named) != len(found):
        named = [""] * len(found)
    return tuple(Tensor(name=name, shape=shape, dtype=kind) for name, (kind, shape) in zip(named, found, strict=True))


class Fusion:
    """The original graph and the optimised one, side by side; nodes of the optimised graph go by their names."""

    def __init__(self, original: OnnxNodes, optimised: OnnxNodes) -> None:
        self._original = original
        self._optimised = optimised
        self._names = Counter(node.name for node in optimised.nodes)
        self.written = optimised.by_output.keys()  # the tensors that nodes of the optimised graph write
        self._known: dict[str, str] = {}  # tensors of the optimised graph: their names in the original one
        self._found: dict[str, list[OnnxNode]] = {}
        self._read_by: dict[str, list[OnnxNode]] = {}
        for node in optimised.nodes:
            for name in node.inputs:
                self._read_by.setdefault(name, []).append(node)
        for name in self.written:
            if name.removeprefix(CAST) in original.by_output:
                self._known[name] = name.removeprefix(CAST)
        self._follow_inserted()
        self._ask_readers()
        self._keep_own()
        self._stops = set(self._known.values())

    def node(self, name: str, kind: str) -> OnnxNode | None:
        """The node of the optimised graph of that name and kind, if there is only one."""
        onnx_node = self._optimised.by_name.get(name)
        return onnx_node if onnx_node is not None and onnx_node.kind == kind and self._names[name] == 1 else None

    def inserted(self, name: str) -> str:
        """By whom, and what for, if a node of the optimised graph is none of the model's own; else empty."""
        node = self._optimised.by_name.get(name)
        if node is None or not self._is_inserted(node):
            only = {source.kind for source in self.sources(name)} <= set(CONVERTING)
            return QUANTIZED if node is not None and node.kind in CONVERTING and only else ""
        return INSERTED

    def beside(self, name: str) -> tuple[str, ...]:
        """The modules of what a node converts the output of, or else of what reads what it writes."""
        node = self._optimised.by_name[name]
        while (maker := self._optimised.by_output.get(node.inputs[0])) is not None and maker.name != name:
            if found := modules_among(self.sources(maker.name)):
                return found
            node = maker
        readers = self._read_by.get(self._optimised.by_name[name].outputs[0], [])
        while len(readers) == 1 and not self.sources(readers[0].name):
            readers = self._read_by.get(readers[0].outputs[0], [])
        return modules_among(source for reader in readers for source in self.sources(reader.name))

    def sources(self, name: str) -> list[OnnxNode]:
        """The original nodes that a node of the optimised graph came from; none if that is not known."""
        if name not in self._found:
            self._found[name] = []  # where names are not unique, a node may seem to read what it writes
            self._found[name] = self._sources(name)
        return self._found[name]

    def _sources(self, name: str) -> list[OnnxNode]:
        node = self._optimised.by_name.get(name)
        if node is None:
            onnx_node = self._original.by_name.get(name)
            return [onnx_node] if onnx_node else []
        if self._is_inserted(node):
            return []
        writes = {self._known[output] for output in node.outputs if output in self._known}
        if not writes:
            readers = {onnx_node.name for output in node.outputs for onnx_node in self._read_by.get(output, ())} - {
                "",
                name,
            }
            return self._original.in_order(source for reader in readers for source in self.sources(reader))
        reads = {self._known.get(item, item) for item in node.inputs}
        return self._original.between(writes, (self._stops | reads) - writes)

    def _is_inserted(self, node: OnnxNode) -> bool:
        if node.kind not in (*CHANGERS, *VIEWS) or len(node.outputs) != 1:
            return False
        same = VIEWS if node.kind in VIEWS else (node.kind,)
        own = self._original.by_name.get(node.name)
        onnx_node = self._original.by_output.get(node.outputs[0])
        return not any(onnx_node is not None and onnx_node.kind in same for onnx_node in (own, onnx_node))

    def _follow_inserted(self) -> None:
        """Gives what an inserted node reads the name of what it writes, and the other way round."""
        for node in reversed(self._optimised.nodes):
            if self._is_inserted(node) and node.outputs[0] in self._known:
                self._known.setdefault(node.inputs[0], self._known[node.outputs[0]])
        for node in self._optimised.nodes:
            if self._is_inserted(node) and node.inputs[0] in self._known:
                self._known.setdefault(node.outputs[0], self._known[node.inputs[0]])

    def _ask_readers(self) -> None:
        """Names what is read by a node from what its original reads, if that one is of the same kind."""
        for node in self._optimised.nodes:
            base = self._base(node)
            if base is None:
                continue
            for name, was in zip(node.inputs, base.inputs, strict=False):
                if name in self._optimised.by_output and was in self._original.by_output:
                    self._known.setdefault(name, was)
        self._follow_inserted()

    def _base(self, node: OnnxNode) -> OnnxNode | None:
        """The original of a node in blocked memory order: of its kind, the last before the tensor in its name."""
        tensor, found = BLOCKED.subn("", node.name.removeprefix(CAST))
        maker = self._original.by_output.get(tensor) if found else None
        while maker is not None and maker.kind != node.kind:
            maker = self._original.by_output.get(maker.inputs[0]) if maker.inputs else None
        return maker

    def _own(self, node: OnnxNode) -> OnnxNode | None:
        """The original of a node by its name, with what stands behind the name of one that was rewritten."""
        return self._original.by_name.get(node.name) or self._original.by_name.get(TOKEN.sub("", node.name))

    def _keep_own(self) -> None:
        """Names what is still unknown by the node that writes it: its name, or the tensor in its name."""
        for node in self._optimised.nodes:
            own = self._own(node)
            tensor, found = BLOCKED.subn("", node.name.removeprefix(CAST))
            for place, output in enumerate(node.outputs):
                if output in self._known:
                    continue
                if own is not None and place < len(own.outputs):
                    self._known[output] = own.outputs[place]
                elif found and tensor in self._original.by_output:
                    self._known[output] = tensor
        self._follow_inserted()
