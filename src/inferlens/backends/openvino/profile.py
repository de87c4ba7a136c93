"""The layers of OpenVINO, from the counters of a request whose model was compiled with ``PERF_COUNT``.

OpenVINO tells of every node of its own graph what it is, whether it ran and for how long. That time is a mean over all
runs since the model was compiled, cut down to whole microseconds. A run's own time is therefore what it adds to mean
times count, which is the less exact the higher the count; so the model is compiled anew every few runs, and no time is
more than :data:`RUNS_OF_ONE` microseconds off.

Which of the original nodes a node came from stands in the runtime model, as ``originalLayersNames``: names of ONNX
nodes, some with an ending such as ``/WithoutBiases``. Nodes that did not run are no layers.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.backends.onnx.modules import OnnxNode, OnnxNodes, modules_among, operators_among, origins
from inferlens.backends.profiling.layer_runs import NO_RUNS, clocked_runs
from inferlens.errors import Unsupported
from inferlens.models.work.onnx_graph import PRODUCTS
from inferlens.record.layer_profile import Layer, Layers, Tensor
from inferlens.trace.precision import first_precision

SETTLING = 2  # runs of a fresh model that are not kept: memory and caches are cold
KEPT = 3  # runs of it that are
RUNS_OF_ONE = SETTLING + KEPT
CLOCK = f"OpenVINO's performance counters; each run's own time, within {RUNS_OF_ONE} microseconds, from their means"
INSERTED = "by OpenVINO, to change type or memory order"
QUANTIZED = "by quantization, to change type"
PRODUCT_KINDS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
TENSOR_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i8": "int8",
         "u8": "uint8", "boolean": "bool"}  # fmt: skip


class NodeCounter(Struct):
    """A node of the compiled graph, and its time in each run that is kept."""

    name: str
    kind: str
    primitive: str = ""
    ran: bool = False
    total: int = 0  # at least that many microseconds since the model was compiled
    times: list[float] = []  # seconds

    def read(self, counted: Any, count: int, *, keep: bool) -> None:
        """Takes what OpenVINO tells after ``count`` runs of the model; keeps the last run's time if asked to."""
        executed = counted.status == counted.Status.EXECUTED
        before = self.total if count > 1 else 0
        total = round(counted.real_time.total_seconds() * 1e6) * count if executed else before
        if executed and keep:
            self.ran, self.primitive = True, counted.exec_type
        if keep:
            self.times.append(max(total - before, 0) / 1e6)
        self.total = max(total, before)


def layers_of(runner: Any, path: Path, feed: Any, runs: int) -> Layers:
    """Time the nodes of a model that was compiled with ``PERF_COUNT``; refuse several streams, or graphs that vary."""
    if int(runner.compiled.get_property("NUM_STREAMS")) != 1:
        raise Unsupported("OpenVINO counts for each of several streams by itself.", hint="hint=latency, streams=1")
    counters: list[NodeCounter] = []
    described: dict[str, Any] = {}  # of the first model: some names are others in the next
    clocked, done = NO_RUNS, 0

    def after() -> None:
        nonlocal done
        done += 1
        info = runner.request.profiling_info
        if not counters:
            counters.extend(NodeCounter(node.node_name, node.node_type) for node in info)
        if [node.node_type for node in info] != [counter.kind for counter in counters]:
            raise Unsupported("OpenVINO compiled the same model into different graphs, so runs cannot be put together.")
        for counter, node in zip(counters, info, strict=True):
            counter.read(node, done, keep=done > SETTLING)

    while len(clocked.whole) < runs:
        runner.compile_anew()
        nodes = runner.compiled.get_runtime_model().get_ordered_ops()
        described = described or {node.get_friendly_name(): node for node in nodes}
        done = 0
        clocked_runs(runner, feed, SETTLING, after)
        clocked += clocked_runs(runner, feed, min(KEPT, runs - len(clocked.whole)), after)
    graph = origins(path)
    ran = {counter.name for counter in counters if counter.ran}
    return clocked.layers(
        (_layer(counter, described.get(counter.name), graph, ran) for counter in counters if counter.ran),
        clock=CLOCK,
        absent={"begins": "the library does not report when a layer began"}
        | ({"modules": graph.absent} if graph.absent else {}),
    )


def _layer(counter: NodeCounter, described: Any, graph: OnnxNodes, ran: set[str]) -> Layer:
    """One layer; ``described`` is its node in the runtime model, ``ran`` the names of all nodes that ran."""
    notes = information(described)
    from_names = originals(notes.get("originalLayersNames", counter.name), counter.kind, graph)
    details: dict[str, Any] = {"primitive": counter.primitive}
    for key, note in (("layouts", "outputLayouts"), ("precision", "runtimePrecision")):
        if notes.get(note):
            details[key] = notes[note]
    if described is not None and not notes.get("originalLayersNames"):
        details["inserted"] = INSERTED
    if counter.name.rpartition("/")[2].startswith("fq_"):  # as NNCF calls what it adds
        details["inserted"] = QUANTIZED
    return Layer(
        name=counter.name,
        kind=counter.kind,
        modules=modules_among(from_names),
        operators=operators_among(from_names),
        inputs=tuple(one for port in described.inputs() for one in read(port, ran)) if described else (),
        outputs=tuple(map(tensor, described.outputs())) if described else (),
        precision=first_precision([notes.get("runtimePrecision", "")]),
        details=details,
        times=tuple(counter.times),
    )


def information(node: Any) -> dict[str, str]:
    """What the runtime model says of a node, as texts."""
    return {} if node is None else {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}


def originals(names: str, kind: str, graph: OnnxNodes) -> list[OnnxNode]:
    """The ONNX nodes in a list of names with commas between them, each by its name or by a tensor that it writes.

    A convolution that OpenVINO changed, to have a normalization in it, has a name of its own and those of what follows;
    so of a layer that is a product, by its ``kind``, the product before these is one of them.
    """
    known = {**graph.by_output, **graph.by_name}
    found = [known[name] for part in names.split(",") if (name := original(part, known))]
    if kind in PRODUCT_KINDS and found and not any(node.kind in PRODUCTS for node in found):
        found += graph.product_before(found[0])
    return graph.in_order(found)


def original(name: str, nodes: Collection[str]) -> str:
    """The one of the ONNX ``nodes`` that an operation such as ``node_Conv_1/WithoutBiases`` came from, if any."""
    while name and name not in nodes:
        name = name.rpartition("/")[0]
    return name


def read(port: Any, ran: set[str]) -> list[Tensor]:
    """What a node reads at ``port``, by the name of the node that wrote it: nodes that did not run wrote nothing.

    A reshape hands on what it was given, and a concatenation in place has the tensors of all its inputs.
    """
    source = port.get_source_output()
    found: list[Any] = []
    open_ = [source]
    while open_:
        output = open_.pop()
        node = output.get_node()
        inputs = [item.get_source_output() for item in node.inputs()]
        if node.get_friendly_name() in ran or not inputs:
            found.append(output)
        else:
            varying = [item for item in inputs if information(item.get_node()).get("layerType") != "Const"]
            open_ += reversed(varying or inputs[:1])
    if len(found) == 1:
        return [msgspec.structs.replace(tensor(source), name=tensor(found[0]).name)]
    return [tensor(item) for item in found]


def tensor(port: Any) -> Tensor:
    """A port of the runtime model; a dimension that is free is -1."""
    kind = port.get_element_type().get_type_name()
    shape = port.get_partial_shape()
    return Tensor(
        name=port.get_node().get_friendly_name(),
        shape=tuple(size.get_length() if size.is_static else -1 for size in shape) if shape.rank.is_static else (),
        dtype=TENSOR_TYPES.get(kind, kind),
    )
