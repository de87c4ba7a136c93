"""What an engine's inspector tells of its layers, as layers without times.

TensorRT writes a mapping for each layer if the engine was built to tell details, or else its name alone. What a layer
came from stands in its ``Metadata``, one entry for each layer of the network that was fused into it; where that is
empty, in its name, or in the names of the tensors that it writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from inferlens.record.layer_profile import Layer, Tensor

NAMES_ONLY = (
    "the engine tells no more of its layers than their names: it was built with profiling_verbosity=layer_names_only. "
    "Build it with --option tensorrt.profiling_verbosity=detailed."
)
TELLS_NOTHING = "the engine tells nothing of its layers: build it with --option tensorrt.profiling_verbosity=detailed"
SEPARATORS = re.compile(r"[\x1e\x1f]")
WRAPPED = re.compile(r"^\[(?:ONNX|TF|PyTorch) Layer: (.*)\]\w*$", re.S)  # with what it was rewritten to behind it
BRANCH = re.compile(r"_myl\d+(?:_\d+)?$")  # what Myelin puts behind the name of a layer or tensor
REGION = re.compile(r"\{ForeignNode\[(.*?)\.\.\.(.*?)\]\}", re.S)
TYPES = {
    "float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16",
    "bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8", "int32": "int32", "int64": "int64",
    "bool": "bool", "uint8": "uint8", "int4": "int4", "fp4": "float4",
}  # fmt: skip
ORDERS = ("signal", "wait")  # types of layers of Myelin that only order others
MADE_UP = re.compile(r"(?:^|/)__mye\d")  # begins the names that Myelin makes up, for those and for what it rewrote

Origin = Callable[[Sequence[str]], tuple[tuple[str, ...], tuple[str, ...]]]


def told_layers(told: Iterable[Any], origin: Origin) -> list[Layer]:
    """Layers in the order of execution.

    Args:
        told: the entries of the inspector's ``Layers``.
        origin: modules and operators of some layers of the network, by their names.
    """
    return [_layer({"Name": str(entry)} if not isinstance(entry, dict) else entry, origin) for entry in told]


def named_layer(origin: Origin) -> Callable[[str], Layer]:
    """What makes a layer of a name alone: of one that the profiler reports and the inspector does not tell."""
    return lambda name: _layer({"Name": name}, origin)


def is_detailed(told: Sequence[Any]) -> bool:
    """Whether the inspector tells more than names."""
    return any(isinstance(entry, dict) for entry in told)


def tactic(layer: Layer) -> str:
    """The name of the layer's tactic; empty if it has none, or the engine tells none."""
    return str(layer.details.get("inspector", {}).get("TacticName", ""))


def only_orders(layer: Layer) -> bool:
    """Whether the layer only makes others wait, and so launches nothing.

    A name that Myelin made up does not tell such a layer from a convolution that became a matrix product; a tactic
    does, for only what computes has one. Where an engine tells names alone, a layer of such a name is taken to order.
    """
    return layer.kind in ORDERS or (MADE_UP.search(layer.name) is not None and not tactic(layer))


def sources(entry: dict[str, Any]) -> list[str]:
    """The names of the network's layers that became this one, as far as it tells; of those a region is given by two."""
    written = [name for name in SEPARATORS.split(str(entry.get("Metadata") or "")) if name.strip()]
    if written:
        return [_unwrapped(name.strip()) for name in written]
    own = str(entry.get("Name", ""))
    region = REGION.search(own)
    names = [*region.groups()] if region else own.split(" + ")
    return [BRANCH.sub("", name.strip()) for name in names]


def _layer(entry: dict[str, Any], origin: Origin) -> Layer:
    modules, operators = origin(sources(entry))
    outputs = _tensors(entry.get("Outputs"))
    if not modules:  # a tensor that is written is named by the layer of the network that writes it
        modules, operators = origin([_writer(tensor.name) for tensor in outputs])
    return Layer(
        name=str(entry.get("Name", "")),
        kind=str(entry.get("LayerType", "")),
        modules=modules,
        operators=operators,
        inputs=_tensors(entry.get("Inputs")),
        outputs=outputs,
        details={"inspector": entry} if len(entry) > 1 else {},
    )


def _unwrapped(name: str) -> str:
    found = WRAPPED.match(name)
    return found.group(1) if found else name


def _writer(tensor: str) -> str:
    return re.sub(r"_output(?:\.\d+)?(?:_\d+)?$", "", BRANCH.sub("", tensor))


def _tensors(told: Any) -> tuple[Tensor, ...]:
    entries = [entry for entry in told or () if isinstance(entry, dict)]
    return tuple(_tensor(entry) for entry in entries)


def _tensor(entry: dict[str, Any]) -> Tensor:
    """A tensor; ``Format/Datatype`` is a type alone, or words such as ``Channel major FP16 format where ...``."""
    text = str(entry.get("Format/Datatype", entry.get("Format", "")))
    words = re.findall(r"\w+", text.lower())
    kind = next((TYPES[word] for word in words if word in TYPES), "")
    sizes = entry.get("Dimensions") or ()
    shape = tuple(size for size in sizes if isinstance(size, int)) if isinstance(sizes, (list, tuple)) else ()
    return Tensor(
        name=str(entry.get("Name", "")), shape=shape, dtype=kind, format="" if len(words) == 1 and kind else text
    )
