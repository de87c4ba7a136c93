"""The layers of an engine: the inspector's entries, and the kernels that belong to them.

The origin of a layer is in its ``Metadata``, one entry per fused layer of the network; where that is empty, in its
name, or in the names of its outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from inferlens.analysis.graph import GraphSource
from inferlens.backends.base import GpuLaunch, KernelOrigin, KernelSources
from inferlens.backends.onnx.graph import OnnxNodes, module_paths, operator_kinds, read_nodes
from inferlens.backends.profiling.kernels import longest_common_pairs
from inferlens.errors import InferlensError
from inferlens.record.profile import Layer, Tensor
from inferlens.trace.kernels import first_precision, kernel_precision

ONLY_NAMES = "The engine keeps only the names of its layers: build it with ProfilingVerbosity.DETAILED."
NO_DETAILS = "the engine keeps only the names of its layers; {}"
UNNAMED_NOTE = "the modules of {} layers are unknown"
NO_ONNX = "the modules of layers are in the ONNX file, and this engine comes without it."
DETAILED = "build it with --option tensorrt.profiling_verbosity=detailed"
SEPARATORS = re.compile(r"[\x1e\x1f]")
WRAPPED_NAME = re.compile(r"^\[(?:ONNX|TF|PyTorch) Layer: (.*)\]\w*$", re.S)  # with a suffix if it was rewritten
MYELIN_SUFFIX = re.compile(r"_myl\d+(?:_\d+)?$")  # Myelin's suffix of layers and tensors
OUTPUT_SUFFIX = re.compile(r"_output(?:\.\d+)?(?:_\d+)?$")
TYPES = {
    "float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16",
    "bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8", "int32": "int32", "int64": "int64",
    "bool": "bool", "uint8": "uint8", "int4": "int4", "fp4": "float4",
}  # fmt: skip
# From names of the network's layers to their modules and operators.
Lookup = Callable[[Sequence[str]], tuple[tuple[str, ...], tuple[str, ...]]]


def layers_and_bindings(text: str | bytes) -> tuple[list[Any], list[str]]:
    """Return the inspector's layer entries, and the names of the engine's inputs and outputs."""
    written = msgspec.json.decode(text)
    return (list(written.get("Layers", [])), list(map(str, written.get("Bindings", [])))) if written else ([], [])


def is_engine_information(data: bytes) -> bool:
    """Return whether this looks like an engine's information: a JSON object with layers."""
    return data.lstrip()[:1] == b"{" and b'"Layers"' in data and b'"schema"' not in data[:100]


def engine_source(data: bytes, title: str) -> GraphSource:
    """Return the layers of ``trt_engine_info.json``, without times. Raise InferlensError for another file."""
    try:
        entries, bindings = layers_and_bindings(data)
        layers = tuple(inspected_layers(entries, lambda names: ((), tuple(dict.fromkeys(names)))))
        if not layers:
            raise ValueError("it has no layers")
    except (msgspec.MsgspecError, RecursionError, AttributeError, TypeError, ValueError) as error:
        form = 'JSON of an engine\'s inspector: {"Layers": [...], "Bindings": [...]}'
        raise InferlensError(f"{title} cannot be read: {error}.", expected=form) from error
    read = {tensor.name: tensor for layer in layers for tensor in layer.inputs}
    written = {tensor.name: tensor for layer in layers for tensor in layer.outputs}
    return GraphSource(
        title=title,
        about="engine · no times",
        layers=layers,
        inputs=tuple(tensor for name, tensor in read.items() if name in bindings and name not in written),
        outputs=tuple(tensor for name, tensor in written.items() if name in bindings),
        notes=() if read or written else (ONLY_NAMES,),
    )


def inspected_layers(entries: Iterable[Any], lookup: Lookup) -> list[Layer]:
    """Return layers in execution order, from the entries of the inspector's ``Layers``."""
    return [_layer({"Name": str(entry)} if not isinstance(entry, dict) else entry, lookup) for entry in entries]


def onnx_lookup(onnx: Path | None) -> tuple[Lookup, str]:
    """Return a lookup of modules and operators by node name or output, and why modules are unknown, if so."""
    graph = read_nodes(onnx) if onnx is not None else OnnxNodes((), NO_ONNX)

    def lookup(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        nodes = [node for name in names if (node := graph.by_name.get(name) or graph.by_output.get(name)) is not None]
        ordered = graph.in_graph_order(nodes)
        return module_paths(ordered), operator_kinds(ordered)

    return lookup, graph.absent


def absences(
    entries: Sequence[Any], layers: Sequence[Layer], missing: str = "", help: str = DETAILED
) -> dict[str, str]:
    """Return what is unknown of the layers, and why.

    ``missing`` is why no modules are known, and ``help`` is what would keep more.
    """
    absent = {}
    if not any(isinstance(entry, dict) for entry in entries):
        absent["details"] = NO_DETAILS.format(help)
    lost = sum(1 for layer in layers if not layer.modules and not is_synchronization(layer) and any(layer.times))
    if missing or lost:
        absent["modules"] = missing or UNNAMED_NOTE.format(lost) + (f"; {help}" if help != DETAILED else "")
    return absent


def _layer(entry: dict[str, Any], lookup: Lookup) -> Layer:
    written = [name.strip() for name in SEPARATORS.split(str(entry.get("Metadata") or "")) if name.strip()]
    fused = [WRAPPED_NAME.sub(r"\1", name) for name in written]
    modules, operators = lookup(
        fused or [MYELIN_SUFFIX.sub("", name.strip()) for name in str(entry.get("Name", "")).split(" + ")]
    )
    outputs = _tensors(entry.get("Outputs"))
    if not (modules or operators):  # an output has the name of the network's layer that writes it
        modules, operators = lookup([OUTPUT_SUFFIX.sub("", MYELIN_SUFFIX.sub("", tensor.name)) for tensor in outputs])
    inputs = _tensors(entry.get("Inputs"))
    return Layer(
        name=str(entry.get("Name", "")),
        kind=str(entry.get("LayerType", "")),
        modules=modules,
        operators=operators,
        inputs=inputs,
        outputs=outputs,
        precision=precision_of(entry, (*inputs, *outputs)),
        details={"inspector": entry} if len(entry) > 1 else {},
    )


def precision_of(entry: dict[str, Any], tensors: Sequence[Tensor]) -> str:
    """Return a layer's compute precision: from its tactic's name, else the type of its tensors.

    Myelin's own kernels convert internally, and their names do not say so.
    """
    precision = kernel_precision(str(entry.get("TacticName") or ""))
    if precision or str(entry.get("TacticName", "")).startswith("__myl_"):
        return precision
    return first_precision(tensor.dtype for tensor in tensors)


def _tensors(entries: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor(entry) for entry in entries or () if isinstance(entry, dict))


def _tensor(entry: dict[str, Any]) -> Tensor:
    """Return a tensor; ``Format/Datatype`` is a type, or words such as ``Channel major FP16 format where ...``."""
    text = str(entry.get("Format/Datatype") or entry.get("Datatype") or entry.get("Format") or "")
    words = re.findall(r"\w+", text.lower())
    kind = next((TYPES[word] for word in words if word in TYPES), "")
    shape = tuple(size for size in entry.get("Dimensions") or () if isinstance(size, int))
    return Tensor(
        name=str(entry.get("Name", "")), shape=shape, dtype=kind, format="" if len(words) == 1 and kind else text
    )


# The layers of kernels. No library reports them, but an engine launches its layers in their order. A kernel that has
# the name of a layer's tactic is an anchor. Between two anchors, layers and kernels are paired one to one if they are
# equally many. Otherwise convolutions and matrix products are further anchors: layers of TensorRT for RTX and kernels
# both have names that say which of the two they are. The other kernels of such a stretch belong to its layers jointly.

FRAMEWORK_OPERATORS = ("aten::", "prims::", "torchvision::")  # prefixes of operators that launch their own kernels
SHARED_NOTE = "{} of {} kernels are in stretches with another number of layers, and belong to all layers there, if any."
SYNCHRONIZATION_KINDS = ("signal", "wait")  # types of layers of Myelin that only order others
MYELIN_NAME = re.compile(r"(?:^|/)__mye\d")  # prefix of names that Myelin makes up
PRODUCT_KINDS = ("correlation", "gemm", "runtime_fusion")  # types of layers; a fusion is of other operators into these
OTHER_KINDS = ("kgen", "maxpool")
PRODUCT_KERNEL = re.compile(r"convFwd|matMul")
Owners = tuple[Layer, ...]


def kernel_sources(launched: Sequence[GpuLaunch], layers: Sequence[Layer], absent: dict[str, str]) -> KernelSources:
    """Return the origin of each kernel of one run; ``absent`` is what is unknown of the layers.

    Kernels launched by an operator of the framework are not an engine's, nor are copies and fills.
    """
    places = [
        place
        for place, item in enumerate(launched)
        if item.kind == "kernel" and not item.operator.startswith(FRAMEWORK_OPERATORS)
    ]
    names = [launched[place].name for place in places]
    owners = narrow_owners(names, align_kernels(names, layers))
    origins = [KernelOrigin()] * len(launched)
    for place, own in zip(places, owners, strict=True):
        modules = dict.fromkeys(path for layer in own for path in layer.modules)
        origins[place] = KernelOrigin(" + ".join(layer.name for layer in own), tuple(modules))
    joint = sum(len(own) != 1 for own in owners)
    return KernelSources(tuple(origins), absent | ({"layers": SHARED_NOTE.format(joint, len(owners))} if joint else {}))


def tactic(layer: Layer) -> str:
    """Return the name of the layer's tactic, or an empty string."""
    return str(layer.details.get("inspector", {}).get("TacticName", ""))


def is_synchronization(layer: Layer) -> bool:
    """Return whether the layer only makes others wait, by its type or by a made-up name without a tactic."""
    return layer.kind in SYNCHRONIZATION_KINDS or (MYELIN_NAME.search(layer.name) is not None and not tactic(layer))


def align_kernels(kernels: Sequence[str], layers: Sequence[Layer]) -> list[Owners]:
    """Return for each kernel the layer that it belongs to, or the several that share it.

    Kernels are names in launch order; synchronization layers are skipped.
    """
    candidates = [layer for layer in layers if not is_synchronization(layer)]
    owners: list[Owners] = []
    begin, above = 0, 0
    anchors = longest_common_pairs(kernels, [tactic(layer) for layer in candidates])
    for place, index in [*anchors, (len(kernels), len(candidates))]:
        between, count = candidates[above:index], place - begin
        owners += [(layer,) for layer in between] if count == len(between) else [tuple(between)] * count
        if place < len(kernels):
            owners.append((candidates[index],))
        begin, above = place + 1, index + 1
    return owners


def narrow_owners(kernels: Sequence[str], owners: Sequence[Owners]) -> list[Owners]:
    """Return fewer layers for each kernel where products tell them apart; shared layers are one object."""
    narrowed: list[Owners] = []
    for _, stretch in groupby(zip(kernels, owners, strict=True), key=lambda pair: id(pair[1])):
        names, layers = zip(*stretch, strict=True)
        narrowed += _split_at_products(names, layers[0])
    return narrowed


def _split_at_products(kernels: Sequence[str], layers: Owners) -> list[Owners]:
    """Return the layers of kernels that share these; they stay shared if any layer type is another."""
    places = [place for place, name in enumerate(kernels) if PRODUCT_KERNEL.search(name)]
    owners = [index for index, layer in enumerate(layers) if layer.kind in PRODUCT_KINDS]
    if len(places) != len(owners) or not all(layer.kind in PRODUCT_KINDS + OTHER_KINDS for layer in layers):
        return [layers] * len(kernels)
    split: list[Owners] = []
    before, above = -1, -1
    for place, index in [*zip(places, owners, strict=True), (len(kernels), len(layers))]:
        within, count = layers[above + 1 : index], place - before - 1
        one_each = [(layer,) for layer in within]
        split += one_each if count == len(within) else [layers[max(above, 0) : index + 1]] * count
        split += [layers[index : index + 1]] * (place < len(kernels))
        before, above = place, index
    return split
