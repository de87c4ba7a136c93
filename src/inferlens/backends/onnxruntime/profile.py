"""The layers of ONNX Runtime from its own profile, traced back to the nodes of the file.

ONNX Runtime profiles a session from its creation to its end, and can write the optimised graph. Events named
``model_run`` separate the runs; the requested runs are the last ones. The time of a node with a graph inside, such as
``If``, is without the time of that graph.

Optimisers rename, fuse and insert nodes, but keep the names of most tensors. A node of the optimised graph stands for
all that the original graph computes between its inputs and outputs. The original name of a renamed tensor follows from
the nodes around it:
- An inserted node only changes type, device, shape or memory order, and the original graph lacks it. Its input and
  output are the same tensor.
- A convolution in blocked memory order (NCHWc) has the name of its output in the original graph: ``relu_nchwc`` for
  ``relu``. The inputs of its readers show what else was fused into it.
- A node that kept its name writes the outputs of the original node.
- With fp16 computed in fp32, the tensor before a cast has the name of the tensor behind it, with a prefix.

Nodes that only quantize or dequantize belong to the modules of the tensor that they convert. A node without any known
output, such as a part of a decomposed operator, has the origin of its readers.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.base import GpuLaunch, KernelOrigin
from inferlens.backends.onnx.graph import OnnxNode, OnnxNodes, module_paths, read_nodes
from inferlens.backends.profiling.kernels import MatchedKernels
from inferlens.backends.profiling.runs import LayerTimes, TracedRun, time_runs
from inferlens.errors import Unsupported
from inferlens.record.profile import Layer, Layers, Tensor
from inferlens.trace.kernels import first_precision

CLOCK = "ONNX Runtime's profiler, in whole microseconds"
EVENT_SUFFIX = "_kernel_time"
INSERTED = "by ONNX Runtime, to change type, device, shape or memory order"
TYPES = {"float": "float32", "double": "float64"}
OPTIMISED = "optimised.onnx"
CONVERSIONS = ("ReorderInput", "ReorderOutput", "Cast", "Transpose", "MemcpyToHost", "MemcpyFromHost")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
CAST_PREFIX = "InsertedPrecisionFreeCast_"
BLOCKED_NAME = re.compile(r"_nchwc(_token_\d+)?$")
TOKEN_SUFFIX = re.compile(r"_token_\d+$")  # after the name of a rewritten node
# Operators on quantized factors.
INTEGER_OPERATORS = re.compile(r"QLinear|QGemm|QAttention|\w+Integer|DynamicQuantize(?!Linear)")
QUANTIZE_KINDS = ("QuantizeLinear", "DequantizeLinear")
INSERTED_BY_QUANTIZING = "by quantization, to change type"
KNOWN_PROVIDERS = ("CPUExecutionProvider", "CUDAExecutionProvider")  # others choose their precision themselves


class NodeArguments(Struct):
    """The arguments of a node's event."""

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
        """The identity of a node: names may be missing, or equal in graphs inside of nodes."""
        return self.name, self.args.node_index, self.args.op_name


def enable_profile(settings: Any, folder: Path) -> None:
    """Make a session with ``settings`` write its profile and its optimised graph into ``folder``."""
    settings.enable_profiling = True
    settings.profile_file_prefix = str(folder / "profile")
    settings.optimized_model_filepath = str(folder / OPTIMISED)
    # Weights go into a second file, because one ONNX file holds less than 2 GiB.
    settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.data")
    settings.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")


def read_profile(path: Path) -> list[ProfileEvent]:
    return msgspec.json.decode(path.read_bytes(), type=list[ProfileEvent])


def profile_nodes(
    runner: Any, session: Any, folder: Path, path: Path, feed: Any, runs: int, *, parallel: bool
) -> Layers:
    """Time the nodes of a session in ``runs`` calls of ``runner.infer(feed)``, and end its profile.

    The session was made from the file ``path`` with :func:`enable_profile` and writes into ``folder``. Raises
    Unsupported if the profile lacks runs: it ends after a million events.
    """
    timed_runs = time_runs(runner, feed, runs)
    profile = Path(session.end_profiling())
    events = read_profile(profile)
    profile.unlink()
    graph = read_nodes(path)
    fusion = Fusion(graph, read_nodes(folder / OPTIMISED))
    nodes = times_by_node(last_runs(events, runs))
    layers = tuple(replace(node_layer(event, fusion), **times.timing(runs)) for event, times in nodes)
    absent = unknown_modules(layers, graph)
    if parallel:
        absent["sum"] = "execution_mode=parallel: layers run side by side, and their times overlap."
    return timed_runs.layers(layers, clock=CLOCK, absent=absent)


def match_kernels(
    run: TracedRun, events: list[ProfileEvent], began: int, graph: OnnxNodes, optimised: OnnxNodes
) -> MatchedKernels:
    """Return the launches of a traced run with the nodes that they came from.

    Args:
        events: the events of a profile of the same run, which began at ``began`` nanoseconds since 1970.
        graph: the graph in the model's file; ``optimised`` is the graph that ran.
    """
    ((_, nodes),) = last_runs(events, 1)
    fusion = Fusion(graph, optimised)
    begins = [began + 1000 * node.ts - run.begin for node in nodes]
    if begins[0] < 0 or begins[-1] > run.whole * 1e9:
        why = "unknown: the clocks of ONNX Runtime's profile and of torch.profiler's trace differ."
        return MatchedKernels([], {"modules": why})
    kernels: list[tuple[GpuLaunch, KernelOrigin]] = []
    layers: dict[str, Layer] = {}
    for event in run.events:
        index = bisect(begins, event.launch_time) - 1
        if index >= 0:
            layer = node_layer(nodes[index], fusion)
            kernels.append((event.gpu_launch, KernelOrigin(layer.name, layer.modules)))
            layers.setdefault(layer.name, layer)
    return MatchedKernels(kernels, unknown_modules(layers.values(), graph), tuple(layers.values()))


def unknown_modules(layers: Iterable[Layer], graph: OnnxNodes) -> dict[str, str]:
    """Return how many layers have no modules, and why, or nothing if all have."""
    if graph.absent:
        return {"modules": graph.absent}
    count = sum(not layer.modules and "inserted" not in layer.details for layer in layers)
    why = f"unknown for {count} layers: ONNX Runtime split operators and gave the parts new names."
    return {"modules": why} if count else {}


def last_runs(events: list[ProfileEvent], runs: int) -> list[tuple[int, list[ProfileEvent]]]:
    """Return begin and node events of each of the last ``runs`` runs. Raise Unsupported if there are fewer."""
    events = sorted(events, key=lambda event: (event.ts, -event.dur))
    nodes = [event for event in events if event.cat == "Node" and event.name.endswith(EVENT_SUFFIX)]
    profiled = []
    for run in [event for event in events if event.name == "model_run"][-runs:]:
        profiled.append((run.ts, [node for node in nodes if run.ts <= node.ts and node.end <= run.end]))
    count = sum(bool(run_nodes) for _, run_nodes in profiled)
    if count < runs:
        message = f"ONNX Runtime's profile has {count} of {runs} runs."
        raise Unsupported(message, hint="fewer runs, or a shorter warm-up")
    return profiled


def times_by_node(runs: list[tuple[int, list[ProfileEvent]]]) -> list[tuple[ProfileEvent, LayerTimes]]:
    """Return the first event and the times of each node, in the order of their first begins."""
    nodes: dict[tuple[str, str, str], tuple[ProfileEvent, LayerTimes]] = {}
    for number, (begin, events) in enumerate(runs):
        for event, duration in zip(events, own_durations(events), strict=True):
            _, times = nodes.setdefault(event.key, (event, LayerTimes()))
            times.add(number, duration / 1e6, (event.ts - begin) / 1e6)
    return list(nodes.values())


def own_durations(events: list[ProfileEvent]) -> list[int]:
    """Return the microseconds of each event without those nested in it on the same thread.

    ``events`` are in the order of their begins.
    """
    durations = [event.dur for event in events]
    enclosing: defaultdict[int, list[int]] = defaultdict(
        list
    )  # indices of the events around the current one, by thread
    for index, event in enumerate(events):
        outer = enclosing[event.tid]
        while outer and events[outer[-1]].end < event.end:
            outer.pop()
        if outer and events[outer[-1]].ts < event.ts:
            durations[outer[-1]] = max(durations[outer[-1]] - event.dur, 0)
        outer.append(index)
    return durations


def node_layer(event: ProfileEvent, fusion: Fusion) -> Layer:
    """Return the layer of a node's event, without times."""
    arguments = event.args
    name = event.name.removesuffix(EVENT_SUFFIX)
    sources, inserted = fusion.sources(name), fusion.insertion_reason(name)
    computing = [node for node in sources if node.kind not in QUANTIZE_KINDS]
    node = fusion.node(name, arguments.op_name)
    inputs = node_tensors(arguments.input_type_shape, node.inputs if node else (), fusion.written_tensors)
    outputs = node_tensors(arguments.output_type_shape, node.outputs if node else ())
    operators = tuple(node.kind for node in computing or sources)
    modules = module_paths(sources)
    if inserted == INSERTED_BY_QUANTIZING and not modules:
        modules = fusion.adjacent_modules(name)
    return Layer(
        name=name,
        kind=arguments.op_name,
        modules=modules,
        operators=operators or (() if inserted else (arguments.op_name,)),
        inputs=inputs,
        outputs=outputs,
        precision=precision_of(arguments, (*inputs, *outputs)),
        details={"provider": arguments.provider} | ({"inserted": inserted} if inserted else {}),
    )


def precision_of(arguments: NodeArguments, tensors: Sequence[Tensor]) -> str:
    """Return a node's compute precision: int8 for operators on integers, else the type of its tensors."""
    if arguments.provider not in KNOWN_PROVIDERS:
        return ""
    return "int8" if INTEGER_OPERATORS.match(arguments.op_name) else first_precision(tensor.dtype for tensor in tensors)


def node_tensors(
    shapes: list[dict[str, list[int]]], names: tuple[str, ...], written: Container[str] = ()
) -> tuple[Tensor, ...]:
    """Return tensors with the shapes of a profile and, if as many can be told apart, the names of the graph.

    An omitted input has an empty name in the graph, and no shape. Weights that ONNX Runtime has packed have no shape
    either: they come before unpacked ones and after the first input. Tensors that nodes write cannot be weights.
    """
    profiled = [(TYPES.get(kind, kind), tuple(shape)) for entry in shapes for kind, shape in entry.items()]
    present = [name for name in names if name]
    weights = [name for name in present[1:] if name not in written]
    packed = set(weights[: max(len(present) - len(profiled), 0)])
    shown = [name for name in present if name not in packed]
    if len(shown) != len(profiled):
        shown = [""] * len(profiled)
    pairs = zip(shown, profiled, strict=True)
    return tuple(Tensor(name=name, shape=shape, dtype=kind) for name, (kind, shape) in pairs)


class Fusion:
    """The mapping from nodes of the optimised graph, by name, to nodes of the original one."""

    def __init__(self, original: OnnxNodes, optimised: OnnxNodes) -> None:
        self._original = original
        self._optimised = optimised
        self._names = Counter(node.name for node in optimised.nodes)
        self.written_tensors = optimised.by_output.keys()  # outputs of the optimised graph's nodes
        self._original_names: dict[str, str] = {}  # original names by names in the optimised graph
        self._sources_by_name: dict[str, list[OnnxNode]] = {}
        self._readers: dict[str, list[OnnxNode]] = {}
        for node in optimised.nodes:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)
        for name in self.written_tensors:
            if name.removeprefix(CAST_PREFIX) in original.by_output:
                self._original_names[name] = name.removeprefix(CAST_PREFIX)
        self._follow_inserted()
        self._name_inputs()
        self._name_outputs()
        self._stops = set(self._original_names.values())

    def node(self, name: str, kind: str) -> OnnxNode | None:
        """Return the node of the optimised graph with this name and kind, if it is the only one."""
        node = self._optimised.by_name.get(name)
        return node if node is not None and node.kind == kind and self._names[name] == 1 else None

    def insertion_reason(self, name: str) -> str:
        """Return why the optimiser inserted a node, or an empty string for a node of the model."""
        node = self._optimised.by_name.get(name)
        if node is None:
            return ""
        if self._is_inserted(node):
            return INSERTED
        only_converts = {node.kind, *(source.kind for source in self.sources(name))} <= set(QUANTIZE_KINDS)
        return INSERTED_BY_QUANTIZING if only_converts else ""

    def adjacent_modules(self, name: str) -> tuple[str, ...]:
        """Return the modules of the node before a conversion, or else of its readers."""
        node = self._optimised.by_name[name]
        while (writer := self._optimised.by_output.get(node.inputs[0])) is not None and writer.name != name:
            if modules := module_paths(self.sources(writer.name)):
                return modules
            node = writer
        readers = self._readers.get(self._optimised.by_name[name].outputs[0], [])
        while len(readers) == 1 and not self.sources(readers[0].name):
            readers = self._readers.get(readers[0].outputs[0], [])
        return module_paths(source for reader in readers for source in self.sources(reader.name))

    def sources(self, name: str) -> list[OnnxNode]:
        """Return the original nodes of a node of the optimised graph, or none if unknown."""
        if name not in self._sources_by_name:
            self._sources_by_name[name] = []  # with duplicate names a node may seem to read its own output
            self._sources_by_name[name] = self._sources(name)
        return self._sources_by_name[name]

    def _sources(self, name: str) -> list[OnnxNode]:
        node = self._optimised.by_name.get(name)
        if node is None:
            original = self._original.by_name.get(name)
            return [original] if original else []
        if self._is_inserted(node):
            return []
        writes = {self._original_names[output] for output in node.outputs if output in self._original_names}
        if not writes:
            readers = {reader.name for output in node.outputs for reader in self._readers.get(output, ())}
            sources = (source for reader in readers - {"", name} for source in self.sources(reader))
            return self._original.in_graph_order(sources)
        reads = {self._original_names.get(tensor, tensor) for tensor in node.inputs}
        return self._original.nodes_between(writes, (self._stops | reads) - writes)

    def _is_inserted(self, node: OnnxNode) -> bool:
        if node.kind not in (*CONVERSIONS, *VIEWS) or len(node.outputs) != 1:
            return False
        kinds = VIEWS if node.kind in VIEWS else (node.kind,)
        originals = self._original.by_name.get(node.name), self._original.by_output.get(node.outputs[0])
        return not any(original is not None and original.kind in kinds for original in originals)

    def _follow_inserted(self) -> None:
        """Give the input and the output of an inserted node the same original name."""
        for node in reversed(self._optimised.nodes):
            if self._is_inserted(node) and node.outputs[0] in self._original_names:
                self._original_names.setdefault(node.inputs[0], self._original_names[node.outputs[0]])
        for node in self._optimised.nodes:
            if self._is_inserted(node) and node.inputs[0] in self._original_names:
                self._original_names.setdefault(node.outputs[0], self._original_names[node.inputs[0]])

    def _name_inputs(self) -> None:
        """Name the inputs of a node by the inputs of its original, if that is of the same kind."""
        for node in self._optimised.nodes:
            original = self._original_of_blocked(node)
            for name, original_name in zip(node.inputs, original.inputs if original else (), strict=False):
                if name in self._optimised.by_output and original_name in self._original.by_output:
                    self._original_names.setdefault(name, original_name)
        self._follow_inserted()

    def _original_of_blocked(self, node: OnnxNode) -> OnnxNode | None:
        """Return the original of a node in blocked order: the last of its kind before the tensor in its name."""
        tensor, count = BLOCKED_NAME.subn("", node.name.removeprefix(CAST_PREFIX))
        original = self._original.by_output.get(tensor) if count else None
        while original is not None and original.kind != node.kind:
            original = self._original.by_output.get(original.inputs[0]) if original.inputs else None
        return original

    def _name_outputs(self) -> None:
        """Name the remaining outputs by the original of their node, or the tensor in the node's name."""
        for node in self._optimised.nodes:
            by_name = self._original.by_name
            original = by_name.get(node.name) or by_name.get(TOKEN_SUFFIX.sub("", node.name))
            tensor, count = BLOCKED_NAME.subn("", node.name.removeprefix(CAST_PREFIX))
            for index, output in enumerate(node.outputs):
                if original is not None and index < len(original.outputs):
                    self._original_names.setdefault(output, original.outputs[index])
                elif count and tensor in self._original.by_output:
                    self._original_names.setdefault(output, tensor)
        self._follow_inserted()
