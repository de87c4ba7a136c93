"""What an engine's inspector says of its layers, as layers without times.

TensorRT writes a mapping for each layer if the engine was built to keep details, or else its name alone. What a layer
came from stands in its ``Metadata``, one entry for each layer of the network that was fused into it; where that is
empty, in its name, or in the names of the tensors that it writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.onnx.modules import OnnxNodes, modules_among, operators_among, origins
from inferlens.record.layer_profile import Layer, Tensor

NAMES_ONLY = "the engine keeps no more of its layers than their names; {}"
NOTHING = "the engine keeps nothing of its layers; {}"
UNNAMED = "from which modules {} of the layers came is not known"
NO_ONNX = (
    "the modules that layers came from stand in the ONNX file, and this engine is given without it. "
    "Profile the model, or the ONNX file."
)
DETAILED = "build it with --option tensorrt.profiling_verbosity=detailed"
SEPARATORS = re.compile(r"[\x1e\x1f]")
WRAPPED = re.compile(r"^\[(?:ONNX|TF|PyTorch) Layer: (.*)\]\w*$", re.S)  # with what it was rewritten to behind it
BRANCH = re.compile(r"_myl\d+(?:_\d+)?$")  # what Myelin puts behind the name of a layer or tensor
OUTPUT = re.compile(r"_output(?:\.\d+)?(?:_\d+)?$")
TYPES = {
    "float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16",
    "bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8", "int32": "int32", "int64": "int64",
    "bool": "bool", "uint8": "uint8", "int4": "int4", "fp4": "float4",
}  # fmt: skip
ORDERS = ("signal", "wait")  # types of layers of Myelin that only order others
MADE_UP = re.compile(r"(?:^|/)__mye\d")  # begins the names that Myelin makes up, for those and for what it rewrote

# From names of layers of the network to the modules and operators that they came from.
Lookup = Callable[[Sequence[str]], tuple[tuple[str, ...], tuple[str, ...]]]


def layers_and_bindings(text: str) -> tuple[list[Any], list[str]]:
    """The entries of layers in what an inspector wrote as JSON, and the names of the engine's inputs and outputs."""
    written = msgspec.json.decode(text)
    return (list(written.get("Layers", [])), list(map(str, written.get("Bindings", [])))) if written else ([], [])


def inspected_layers(entries: Iterable[Any], lookup: Lookup) -> list[Layer]:
    """Layers in the order of execution, from the entries of the inspector's ``Layers``."""
    return [_layer({"Name": str(entry)} if not isinstance(entry, dict) else entry, lookup) for entry in entries]


def onnx_lookup(onnx: Path | None) -> tuple[Lookup, str]:
    """Modules and operators of nodes of the ONNX file an engine was built from, by their names or by what they write.

    And why there are no modules, if so: such as that the file is not known.
    """
    graph = origins(onnx) if onnx is not None else OnnxNodes((), NO_ONNX)

    def lookup(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        nodes = [node for name in names if (node := graph.by_name.get(name) or graph.by_output.get(name)) is not None]
        ordered = graph.in_order(nodes)
        return modules_among(ordered), operators_among(ordered)

    return lookup, graph.absent


def absences(
    entries: Sequence[Any], layers: Sequence[Layer], missing: str = "", help: str = DETAILED
) -> dict[str, str]:
    """What is not known of the layers, and why; ``missing``: why no modules are known, ``help``: what keeps more."""
    absent = {}
    if not any(isinstance(entry, dict) for entry in entries):
        absent["details"] = (NAMES_ONLY if entries else NOTHING).format(help)
    lost = sum(1 for layer in layers if not layer.modules and not only_orders(layer) and any(layer.times))
    if missing or lost:
        absent["modules"] = missing or UNNAMED.format(lost) + (f"; {help}" if help != DETAILED else "")
    return absent


def tactic(layer: Layer) -> str:
    """The name of the layer's tactic; empty if it has none, or the engine keeps none."""
    return str(layer.details.get("inspector", {}).get("TacticName", ""))


def only_orders(layer: Layer) -> bool:
    """Whether the layer only makes others wait, and so launches nothing.

    A name that Myelin made up does not tell such a layer from a convolution that became a matrix product; a tactic
    does, for only what computes has one. Where an engine keeps names alone, a layer of such a name is taken to order.
    """
    return layer.kind in ORDERS or (MADE_UP.search(layer.name) is not None and not tactic(layer))


def sources(entry: dict[str, Any]) -> list[str]:
    """The names of the network's layers that became this one, as far as the entry has them."""
    written = [name.strip() for name in SEPARATORS.split(str(entry.get("Metadata") or "")) if name.strip()]
    if written:
        return [WRAPPED.sub(r"\1", name) for name in written]
    return [BRANCH.sub("", name.strip()) for name in str(entry.get("Name", "")).split(" + ")]


def _layer(entry: dict[str, Any], lookup: Lookup) -> Layer:
    modules, operators = lookup(sources(entry))
    outputs = _tensors(entry.get("Outputs"))
    if not modules:  # a tensor that is written is named by the layer of the network that writes it
        modules, operators = lookup([OUTPUT.sub("", BRANCH.sub("", tensor.name)) for tensor in outputs])
    return Layer(
        name=str(entry.get("Name", "")),
        kind=str(entry.get("LayerType", "")),
        modules=modules,
        operators=operators,
        inputs=_tensors(entry.get("Inputs")),
        outputs=outputs,
        details={"inspector": entry} if len(entry) > 1 else {},
    )


def _tensors(entries: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor(entry) for entry in entries or () if isinstance(entry, dict))


def _tensor(entry: dict[str, Any]) -> Tensor:
    """A tensor; ``Format/Datatype`` is a type alone, or words such as ``Channel major FP16 format where ...``."""
    text = str(entry.get("Format/Datatype", entry.get("Format", "")))
    words = re.findall(r"\w+", text.lower())
    kind = next((TYPES[word] for word in words if word in TYPES), "")
    shape = tuple(size for size in entry.get("Dimensions") or () if isinstance(size, int))
    return Tensor(
        name=str(entry.get("Name", "")), shape=shape, dtype=kind, format="" if len(words) == 1 and kind else text
    )
