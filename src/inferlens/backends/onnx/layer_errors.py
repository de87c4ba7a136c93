"""Which layers of a quantized graph lose most: each is quantized alone, and outputs are compared with those in fp32.

One graph does that for all of them. It is the quantized one, with a switch at every tensor that is quantized: an input
chooses between the tensor and what is left of it. Switches belong to the operators beside the tensor, so that what is
computed is what a graph would compute in which these operators alone were quantized, rounded in the same way; sums of
integers are computed in fp32. A session is made once, and a layer costs one call for each feed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.backends.base import Inputs, Preparation
from inferlens.backends.onnx.modules import OnnxNode, origins
from inferlens.backends.onnx.quantize import fold, for_cpu, for_tensorrt, quantized_onnx
from inferlens.models.model import Model
from inferlens.models.work.onnx_graph import VIEWS, inferred, product_shares
from inferlens.record.quantization import LayerError
from inferlens.spec.case import Case, TensorSpec
from inferlens.stats.samples import flatten, relative_l2

SAMPLES = 8  # that are looked at for each layer
ABSORBED = ("Relu", "Clip")  # which the rounding behind them can do
PICKING = ("MaxPool",)  # as a view does, it gives values that it was given


def ranked(
    plain: Path, model: Model, case: Case, preparation: Preparation, feeds: Sequence[Inputs]
) -> list[LayerError]:
    """The layers of the graph in ``plain``, those that lose most first.

    It is quantized to int8 as ONNX Runtime does on the CPU, to fp8 as TensorRT wants it, whoever quantizes it then.
    """
    dialect = for_cpu() if case.precision == "int8" else replace(for_tensorrt(case.precision), rest="fp32")
    quantized = quantized_onnx(plain, model, case, preparation, dialect)
    with tempfile.TemporaryDirectory() as folder:  # as it is before it is quantized
        path = Path(folder) / "plain.onnx"
        fold(plain, path)
        return layer_errors(path, quantized, model.inputs, feeds)


def layer_errors(
    plain: Path, quantized: Path, inputs: tuple[TensorSpec, ...], feeds: Sequence[Inputs]
) -> list[LayerError]:
    """The layers of ``quantized``, which has QuantizeLinear and DequantizeLinear nodes, those that lose most first.

    ``plain`` is the graph that was quantized, with the same names of nodes; both are fed with ``feeds``.
    """
    switched = Switched(plain, quantized)
    shares = product_shares(inferred(plain, inputs))
    layers = named_layers([node for node in origins(plain).nodes if node.name in switched.switches])
    expected = [switched.run(feed, ()) for feed in feeds]
    found = []
    for name, nodes in layers.items():
        alone = [switched.run(feed, [node.name for node in nodes]) for feed in feeds]
        kinds = tuple(dict.fromkeys(node.kind for node in nodes))
        share = sum(shares.get(node.outputs[0], 0.0) for node in nodes)
        found.append(LayerError(name, kinds, share, _error(alone, expected)))
    return sorted(found, key=lambda layer: -layer.error)


def named_layers(nodes: Sequence[OnnxNode]) -> dict[str, list[OnnxNode]]:
    """Nodes by the name of their layer: their module's path, or their own name where other modules are inside of it."""
    inner = {node: next((path for path in node.modules if path), "") for node in nodes}
    paths = {*inner.values()}
    found: dict[str, list[OnnxNode]] = {}
    for node, path in inner.items():
        around = any(item.startswith(f"{path}.") for item in paths)
        found.setdefault(node.name if around or not path else path, []).append(node)
    return found


class Switched:
    """A quantized graph whose operators can be quantized, or not, from call to call.

    ``switches`` has the operators, by name, each with the tensors that are quantized if it is.
    """

    def __init__(self, plain: Path, quantized: Path) -> None:
        import onnx
        import onnxruntime

        model, given = onnx.load(str(quantized)), onnx.load(str(plain))
        self.switches: dict[str, set[str]] = {}
        self._tensors = _put_in_switches(model, given)
        for node in given.graph.node:
            beside = {name for name in (*node.input, *node.output) if name in self._tensors}
            if beside.intersection(node.input) and node.op_type not in (*VIEWS, *ABSORBED, *PICKING):
                self.switches[node.name] = beside
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "switched.onnx"
            onnx.save(model, str(path), save_as_external_data=True, location="weights")
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, feed: Inputs, quantized: Collection[str]) -> list[Any]:
        """The outputs if these operators alone are quantized."""
        on = {name for operator in quantized for name in self.switches[operator]}
        flags = {_flag(place): np.array(name in on) for place, name in enumerate(self._tensors)}
        return [np.array(item) for item in self._session.run(None, {**feed, **flags})]


def _flag(place: int) -> str:
    return f"inferlens_quantized_{place}"


def _put_in_switches(model: Any, given: Any) -> list[str]:
    """Puts a switch behind every DequantizeLinear node of ``model``; the names that the tensors have in ``given``."""
    from onnx import TensorProto, helper

    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    here = {node.name for node in graph.node}
    own = {node.name: node for node in given.graph.node}
    given_makers = {name: node for node in given.graph.node for name in node.output}
    floats = {item.name: item for item in given.graph.initializer}
    read = {  # of what is dequantized, the tensor that the same operator reads in the plain graph
        name: own[node.name].input[place]
        for node in graph.node
        if node.name in own
        for place, name in enumerate(node.input)
        if name in makers and makers[name].op_type == "DequantizeLinear" and place < len(own[node.name].input)
    } | {item.name: item.name for item in given.graph.output}
    names: list[str] = []
    nodes: list[Any] = []
    for node in graph.node:
        nodes.append(node)
        made = node.output[0]
        if node.op_type != "DequantizeLinear" or made not in read:
            continue
        source, name = makers.get(node.input[0]), read[made]
        if source is not None and source.op_type == "QuantizeLinear":
            raw = source.input[0]
            before = given_makers.get(name)
            if before is not None and before.op_type in ABSORBED and before.name not in here:
                absorbed = [raw, *before.input[1:]]
                raw = f"{name}_plain"
                if name not in names:
                    nodes.append(helper.make_node(before.op_type, absorbed, [raw], raw))
        elif name in floats:
            raw = f"{name}_plain"
        else:
            continue  # without its values in fp32 it stays as it is
        if name not in names:
            names.append(name)
        node.output[0] = f"{made}_rounded"
        flag = _flag(names.index(name))
        nodes.append(helper.make_node("Where", [flag, node.output[0], raw], [made], f"{made}_switch"))
    del graph.node[:]
    graph.node.extend(nodes)
    for name in names:
        if name in floats:
            graph.initializer.add().CopyFrom(floats[name])
            graph.initializer[-1].name = f"{name}_plain"
    graph.input.extend(helper.make_tensor_value_info(_flag(place), TensorProto.BOOL, []) for place in range(len(names)))
    return names


def _error(ours: Sequence[Sequence[Any]], theirs: Sequence[Sequence[Any]]) -> float:
    """Relative L2 error over all feeds, of the worst output."""
    pairs = zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
    return max(relative_l2(flatten(*own), flatten(*reference)) for own, reference in pairs)
