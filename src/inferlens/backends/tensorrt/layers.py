"""The layers of an engine: the inspector's entries, and the kernels that belong to them.

The origin of a layer is in its ``Metadata``, which has an entry for every fused layer of the network. If that is empty,
the origin is in the layer's name, or in the names of its outputs.
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
from inferlens.backends.onnx.graph import OnnxNodes, module_paths, read_nodes
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


def parse_inspection(text: str | bytes) -> tuple[list[Any], list[str]]:
    """Return the inspector's layer entries, and the names of the engine's inputs and outputs."""
    information = msgspec.json.decode(text) or {}
    return list(information.get("Layers", [])), list(map(str, information.get("Bindings", [])))


def is_engine_information(data: bytes) -> bool:
    """Return whether this looks like an engine's information: a JSON object with layers."""
    return data.lstrip()[:1] == b"{" and b'"Layers"' in data and b'"schema"' not in data[:100]


def engine_source(data: bytes, title: str) -> GraphSource:
    """Return the layers of ``trt_engine_info.json``, without times. Raise InferlensError for another file."""
    try:
        entries, bindings = parse_inspection(data)
        layers = tuple(inspected_layers(entries, lambda names: ((), tuple(dict.fromkeys(names)))))
        if not layers:
            raise ValueError("it has no layers")
    except (msgspec.MsgspecError, RecursionError, AttributeError, TypeError, ValueError) as error:
        form = 'JSON of an engine\'s inspector: {"Layers": [...], "Bindings": [...]}'
        raise InferlensError(f"{title} cannot be read: {error}.", expected=form) from error
    inputs = {tensor.name: tensor for layer in layers for tensor in layer.inputs}
    outputs = {tensor.name: tensor for layer in layers for tensor in layer.outputs}
    return GraphSource(
        title=title,
        about="engine · no times",
        layers=layers,
        inputs=tuple(tensor for name, tensor in inputs.items() if name in bindings and name not in outputs),
        outputs=tuple(tensor for name, tensor in outputs.items() if name in bindings),
        notes=() if inputs or outputs else (ONLY_NAMES,),
    )


def inspected_layers(entries: Iterable[Any], lookup: Lookup) -> list[Layer]:
    """Return layers in execution order, from the entries of the inspector's ``Layers``."""
    return [_layer({"Name": str(entry)} if not isinstance(entry, dict) else entry, lookup) for entry in entries]


def onnx_lookup(onnx: Path | None) -> tuple[Lookup, str]:
    """Return a lookup of modules and operators by node name or output, and the reason if modules are unknown."""
    graph = read_nodes(onnx) if onnx is not None else OnnxNodes((), NO_ONNX)

    def lookup(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        nodes = [node for name in names if (node := graph.by_name.get(name) or graph.by_output.get(name)) is not None]
        ordered = graph.in_graph_order(nodes)
        return module_paths(ordered), tuple(node.kind for node in ordered)

    return lookup, graph.absent


def absences(
    entries: Sequence[Any], layers: Sequence[Layer], missing: str = "", help: str = DETAILED
) -> dict[str, str]:
    """Return what is unknown of the layers, and why.

    ``missing`` is the reason why no modules are known, and ``help`` says how to get more details.
    """
    absent = {}
    if not any(isinstance(entry, dict) for entry in entries):
        absent["details"] = NO_DETAILS.format(help)
    timed = [layer for layer in layers if any(layer.times) and not is_synchronization(layer)]
    count = sum(not layer.modules for layer in timed)
    if missing or count:
        absent["modules"] = missing or UNNAMED_NOTE.format(count) + (f"; {help}" if help != DETAILED else "")
    return absent


def _layer(entry: dict[str, Any], lookup: Lookup) -> Layer:
    fused = [name.strip() for name in SEPARATORS.split(str(entry.get("Metadata") or "")) if name.strip()]
    names = [WRAPPED_NAME.sub(r"\1", name) for name in fused]
    if not names:
        names = [MYELIN_SUFFIX.sub("", name.strip()) for name in str(entry.get("Name", "")).split(" + ")]
    modules, operators = lookup(names)
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

    It is unknown for Myelin's own kernels, which may convert internally.
    """
    precision = kernel_precision(str(entry.get("TacticName") or ""))
    if precision or str(entry.get("TacticName", "")).startswith("__myl_"):
        return precision
    return first_precision(tensor.dtype for tensor in tensors)


def _tensors(entries: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor(entry) for entry in entries or () if isinstance(entry, dict))


def _tensor(entry: dict[str, Any]) -> Tensor:
    """Return a tensor. ``Format/Datatype`` is a type, or a text such as ``Channel major FP16 format where ...``."""
    text = str(entry.get("Format/Datatype") or entry.get("Datatype") or entry.get("Format") or "")
    words = re.findall(r"\w+", text.lower())
    kind = next((TYPES[word] for word in words if word in TYPES), "")
    shape = tuple(size for size in entry.get("Dimensions") or () if isinstance(size, int))
    return Tensor(
        name=str(entry.get("Name", "")), shape=shape, dtype=kind, format="" if len(words) == 1 and kind else text
    )


# The layers of kernels. No library reports them, but an engine launches its layers in their order. A kernel that has
# the name of a layer's tactic is an anchor. Between two anchors, layers and kernels are paired one to one if there are
# as many layers as kernels. Otherwise convolutions and matrix products are further anchors, because the kinds of the
# layers of TensorRT for RTX and the names of kernels identify them. The other kernels belong to all layers between the
# anchors.

FRAMEWORK_OPERATORS = ("aten::", "prims::", "torchvision::")  # prefixes of operators that launch their own kernels
SHARED_NOTE = "{} of {} kernels are in stretches with another number of layers, and belong to all layers there, if any."
SYNCHRONIZATION_KINDS = ("signal", "wait")  # types of layers of Myelin that only order others
MYELIN_NAME = re.compile(r"(?:^|/)__mye\d")  # prefix of names that Myelin makes up
PRODUCT_KINDS = ("correlation", "gemm", "runtime_fusion")  # types of layers; a fusion is of other operators into these
OTHER_KINDS = ("kgen", "maxpool")
PRODUCT_KERNEL = re.compile(r"convFwd|matMul")
Owners = tuple[Layer, ...]


def kernel_sources(launched: Sequence[GpuLaunch], layers: Sequence[Layer], absent: dict[str, str]) -> KernelSources:
    """Return the origin of each kernel of one run; ``absent`` has what is unknown of the layers.

    Copies, fills and kernels that an operator of the framework launched do not belong to an engine.
    """
    indices = [
        index
        for index, launch in enumerate(launched)
        if launch.kind == "kernel" and not launch.operator.startswith(FRAMEWORK_OPERATORS)
    ]
    names = [launched[index].name for index in indices]
    owners = narrow_owners(names, align_kernels(names, layers))
    origins = [KernelOrigin()] * len(launched)
    for index, owner_layers in zip(indices, owners, strict=True):
        modules = dict.fromkeys(path for layer in owner_layers for path in layer.modules)
        origins[index] = KernelOrigin(" + ".join(layer.name for layer in owner_layers), tuple(modules))
    shared = sum(len(owner_layers) != 1 for owner_layers in owners)
    if shared:
        absent = absent | {"layers": SHARED_NOTE.format(shared, len(owners))}
    return KernelSources(tuple(origins), absent)


def tactic(layer: Layer) -> str:
    """Return the name of the layer's tactic, or an empty string."""
    return str(layer.details.get("inspector", {}).get("TacticName", ""))


def is_synchronization(layer: Layer) -> bool:
    """Return whether the layer only makes others wait, by its type or by a made-up name without a tactic."""
    return layer.kind in SYNCHRONIZATION_KINDS or (MYELIN_NAME.search(layer.name) is not None and not tactic(layer))


def align_kernels(kernels: Sequence[str], layers: Sequence[Layer]) -> list[Owners]:
    """Return for each kernel the layer that it belongs to, or the layers that share it.

    Kernels are names in launch order; synchronization layers are skipped.
    """
    candidates = [layer for layer in layers if not is_synchronization(layer)]
    owners: list[Owners] = []
    next_kernel, next_layer = 0, 0
    anchors = longest_common_pairs(kernels, [tactic(layer) for layer in candidates])
    for kernel, layer_index in [*anchors, (len(kernels), len(candidates))]:
        between, count = candidates[next_layer:layer_index], kernel - next_kernel
        owners += [(layer,) for layer in between] if count == len(between) else [tuple(between)] * count
        if kernel < len(kernels):
            owners.append((candidates[layer_index],))
        next_kernel, next_layer = kernel + 1, layer_index + 1
    return owners


def narrow_owners(kernels: Sequence[str], owners: Sequence[Owners]) -> list[Owners]:
    """Return fewer layers for each kernel if products tell them apart. Kernels that share layers share one object."""
    narrowed: list[Owners] = []
    for _, group in groupby(zip(kernels, owners, strict=True), key=lambda pair: id(pair[1])):
        names, layers = zip(*group, strict=True)
        narrowed += _split_at_products(names, layers[0])
    return narrowed


def _split_at_products(kernels: Sequence[str], layers: Owners) -> list[Owners]:
    """Return for each kernel its part of the shared ``layers``; all of them if a layer is of an unknown kind."""
    product_kernels = [index for index, name in enumerate(kernels) if PRODUCT_KERNEL.search(name)]
    product_layers = [index for index, layer in enumerate(layers) if layer.kind in PRODUCT_KINDS]
    can_split = all(layer.kind in PRODUCT_KINDS + OTHER_KINDS for layer in layers)
    if len(product_kernels) != len(product_layers) or not can_split:
        return [layers] * len(kernels)
    split: list[Owners] = []
    last_kernel, last_layer = -1, -1
    for kernel, layer in [*zip(product_kernels, product_layers, strict=True), (len(kernels), len(layers))]:
        between, count = layers[last_layer + 1 : layer], kernel - last_kernel - 1
        if count == len(between):
            split += [(between_layer,) for between_layer in between]
        else:
            split += [layers[max(last_layer, 0) : layer + 1]] * count
        if kernel < len(kernels):
            split.append(layers[layer : layer + 1])
        last_kernel, last_layer = kernel, layer
    return split
