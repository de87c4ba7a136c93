"""An engine's layers: what its inspector says of them, and their times in runs.

What a layer came from stands in its ``Metadata``, one entry for each layer of the network that was fused into it; where
that is empty, in its name, or in the names of the tensors that it writes. Times are reported by name, after each run.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from inferlens.analysis.graph import GraphSource
from inferlens.backends.base import KernelOrigin, Launched, Origins
from inferlens.backends.onnx.graph import OnnxNodes, modules_among, operators_among, origins
from inferlens.backends.profiling.kernels import common
from inferlens.backends.profiling.layers import clocked_runs
from inferlens.errors import InferlensError, Unsupported
from inferlens.record.layer_profile import Layer, Layers, Tensor
from inferlens.trace.precision import first_precision, kernel_precision

ONLY_NAMES = "The engine keeps only the names of its layers: build it with ProfilingVerbosity.DETAILED."
NO_DETAILS = "the engine keeps no more of its layers than their names; {}"
UNNAMED = "from which modules {} of the layers came is not known"
NO_ONNX = "the modules of layers stand in the ONNX file, and this engine is given without it."
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
CLOCK = "TensorRT's IProfiler: CUDA events around every layer"
Report = list[tuple[str, float]]  # of one run: names and milliseconds, in the order of execution
# From names of layers of the network to the modules and operators that they came from.
Lookup = Callable[[Sequence[str]], tuple[tuple[str, ...], tuple[str, ...]]]


def layers_and_bindings(text: str | bytes) -> tuple[list[Any], list[str]]:
    """The entries of layers in what an inspector wrote as JSON, and the names of the engine's inputs and outputs."""
    written = msgspec.json.decode(text)
    return (list(written.get("Layers", [])), list(map(str, written.get("Bindings", [])))) if written else ([], [])


def is_engine_information(data: bytes) -> bool:
    """Whether this may be an engine's information: a JSON object with layers in it."""
    return data.lstrip()[:1] == b"{" and b'"Layers"' in data and b'"schema"' not in data[:100]


def engine_source(data: bytes, title: str) -> GraphSource:
    """Return the layers of ``trt_engine_info.json``, without times. Raises InferlensError if it is no such file."""
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
    """Layers in the order of execution, from the entries of the inspector's ``Layers``."""
    return [_layer({"Name": str(entry)} if not isinstance(entry, dict) else entry, lookup) for entry in entries]


def onnx_lookup(onnx: Path | None) -> tuple[Lookup, str]:
    """Modules and operators of nodes of the ONNX file an engine was built from, by name or output; why none, if so."""
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
        absent["details"] = NO_DETAILS.format(help)
    lost = sum(1 for layer in layers if not layer.modules and not only_orders(layer) and any(layer.times))
    if missing or lost:
        absent["modules"] = missing or UNNAMED.format(lost) + (f"; {help}" if help != DETAILED else "")
    return absent


def sources(entry: dict[str, Any]) -> list[str]:
    """The names of the network's layers that became this one, as far as the entry has them."""
    written = [name.strip() for name in SEPARATORS.split(str(entry.get("Metadata") or "")) if name.strip()]
    if written:
        return [WRAPPED.sub(r"\1", name) for name in written]
    return [BRANCH.sub("", name.strip()) for name in str(entry.get("Name", "")).split(" + ")]


def _layer(entry: dict[str, Any], lookup: Lookup) -> Layer:
    modules, operators = lookup(sources(entry))
    outputs = _tensors(entry.get("Outputs"))
    if not (modules or operators):  # a tensor that is written is named by the layer of the network that writes it
        modules, operators = lookup([OUTPUT.sub("", BRANCH.sub("", tensor.name)) for tensor in outputs])
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
    """What a layer computes in: as its tactic is named, else the type of what it reads.

    Myelin's own kernels convert within, and are not named by it.
    """
    told = kernel_precision(str(entry.get("TacticName") or ""))
    if told or str(entry.get("TacticName", "")).startswith("__myl_"):
        return told
    return first_precision(tensor.dtype for tensor in tensors)


def _tensors(entries: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor(entry) for entry in entries or () if isinstance(entry, dict))


def _tensor(entry: dict[str, Any]) -> Tensor:
    """A tensor; ``Format/Datatype`` is a type alone, or words such as ``Channel major FP16 format where ...``."""
    text = str(entry.get("Format/Datatype") or entry.get("Datatype") or entry.get("Format") or "")
    words = re.findall(r"\w+", text.lower())
    kind = next((TYPES[word] for word in words if word in TYPES), "")
    shape = tuple(size for size in entry.get("Dimensions") or () if isinstance(size, int))
    return Tensor(
        name=str(entry.get("Name", "")), shape=shape, dtype=kind, format="" if len(words) == 1 and kind else text
    )


def timed_layers(
    runner: Any, feed: Any, runs: int, layers: Sequence[Layer], take: Callable[[], Report], lookup: Lookup
) -> Layers:
    """The ``known`` layers in ``runs`` calls of ``infer``; ``take`` gives the report of the one that has just ended."""
    reports: list[Report] = []
    clocked = clocked_runs(runner, feed, runs, lambda: reports.append(take()))
    return clocked.layers(with_times(layers, reports, lookup), clock=CLOCK, on_gpu=True)


def with_times(layers: Sequence[Layer], reports: Sequence[Report], lookup: Lookup) -> tuple[Layer, ...]:
    """The layers with their times in each run; one that is reported and not known is added."""
    runs = [numbered(report) for report in reports]
    if not any(runs):
        raise Unsupported(
            "The runtime reports no times of layers.", hint="--level kernel, which does not need its help"
        )
    reported = dict.fromkeys(key for run in runs for key in run)
    found = dict(zip(numbered([(layer.name, 0.0) for layer in layers]), layers, strict=True))
    found |= {key: inspected_layers([key[0]], lookup)[0] for key in reported if key not in found}
    return tuple(
        replace(layer, times=tuple(run.get(key, 0.0) / 1e3 for run in runs)) if key in reported else layer
        for key, layer in found.items()
    )


def inspectors_names(report: Report, layers: Sequence[Layer]) -> Report:
    """A report under the names that the inspector has; where those are written otherwise, they go by their order."""
    if len(report) != len(layers) or {name for name, _ in report} & {layer.name for layer in layers}:
        return report
    return [(layer.name, milliseconds) for layer, (_, milliseconds) in zip(layers, report, strict=True)]


def numbered(report: Report) -> dict[tuple[str, int], float]:
    """The times of a report by name and, of those of one name, their number."""
    count: Counter[str] = Counter()
    found = {}
    for name, time in report:
        found[name, count[name]] = max(time, 0.0)
        count[name] += 1
    return found


@functools.lru_cache(maxsize=2)
def recorder(module: Any) -> Any:
    """The class of profilers that keep what is reported; it must be a subclass of the module's own ``IProfiler``."""

    class _Recorder(module.IProfiler):  # type: ignore[misc]
        """Keeps the reports of one run, until they are taken."""

        def __init__(self) -> None:
            module.IProfiler.__init__(self)
            self._report: Report = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self._report.append((layer_name, ms))

        def take(self) -> Report:
            report, self._report = self._report, []
            return report

    return _Recorder


# The layers of kernels. No library reports them, but an engine launches its layers in their order. A kernel that has
# the name of a layer's tactic is an anchor. Between two anchors, layers and kernels are paired one to one if they are
# equally many. Otherwise convolutions and matrix products are further anchors: layers of TensorRT for RTX and kernels
# both have names that say which of the two they are. The other kernels of such a stretch belong to its layers jointly.

FRAMEWORK = ("aten::", "prims::", "torchvision::")  # operators that launch kernels of their own, beside an engine
JOINT = "{} of {} kernels lie where layers and kernels are not equally many, and belong to all layers there, if any."
ORDERS = ("signal", "wait")  # types of layers of Myelin that only order others
MADE_UP = re.compile(r"(?:^|/)__mye\d")  # begins the names that Myelin makes up, for those and for what it rewrote
MULTIPLY = ("correlation", "gemm", "runtime_fusion")  # types of layers; a fusion is of other operators into these
OTHERS = ("kgen", "maxpool")
KERNEL = re.compile(r"convFwd|matMul")
Owners = tuple[Layer, ...]


def kernel_origins(launched: Sequence[Launched], layers: Sequence[Layer], absent: dict[str, str]) -> Origins:
    """Where each kernel of one run came from; ``absent`` is what is not known of the layers.

    Kernels that an operator of the framework launched are not an engine's, nor are copies and fills.
    """
    places = [
        place
        for place, item in enumerate(launched)
        if item.kind == "kernel" and not item.operator.startswith(FRAMEWORK)
    ]
    names = [launched[place].name for place in places]
    owners = narrowed(names, aligned(names, layers))
    found = [KernelOrigin()] * len(launched)
    for place, layers_of in zip(places, owners, strict=True):
        modules = dict.fromkeys(path for layer in layers_of for path in layer.modules)
        found[place] = KernelOrigin(" + ".join(layer.name for layer in layers_of), tuple(modules))
    joint = sum(len(layers_of) != 1 for layers_of in owners)
    return Origins(tuple(found), absent | ({"layers": JOINT.format(joint, len(owners))} if joint else {}))


def tactic(layer: Layer) -> str:
    """The name of the layer's tactic; empty if it has none, or the engine keeps none."""
    return str(layer.details.get("inspector", {}).get("TacticName", ""))


def only_orders(layer: Layer) -> bool:
    """Whether the layer only makes others wait: it has a name that Myelin made up, and no tactic, or such a type."""
    return layer.kind in ORDERS or (MADE_UP.search(layer.name) is not None and not tactic(layer))


def aligned(kernels: Sequence[str], layers: Sequence[Layer]) -> list[Owners]:
    """For each kernel the layer that it belongs to, or several of which it is one's; none where no layer is left.

    Kernels go by their names, in the order of their launches; layers that only order others are passed over.
    """
    able = [layer for layer in layers if not only_orders(layer)]
    found: list[Owners] = []
    begin, above = 0, 0
    for place, index in [*common(kernels, [tactic(layer) for layer in able]), (len(kernels), len(able))]:
        between, count = able[above:index], place - begin
        found += [(layer,) for layer in between] if count == len(between) else [tuple(between)] * count
        if place < len(kernels):
            found.append((able[index],))
        begin, above = place + 1, index + 1
    return found


def narrowed(kernels: Sequence[str], owners: Sequence[Owners]) -> list[Owners]:
    """The layers of each kernel, fewer where products tell them apart; in ``owners`` shared layers are one object."""
    found: list[Owners] = []
    for _, stretch in groupby(zip(kernels, owners, strict=True), key=lambda pair: id(pair[1])):
        names, layers = zip(*stretch, strict=True)
        found += _apart(names, layers[0])
    return found


def _apart(kernels: Sequence[str], layers: Owners) -> list[Owners]:
    """The layers of each of some kernels that share these; they stay shared if any type of layer is another."""
    places = [place for place, name in enumerate(kernels) if KERNEL.search(name)]
    owners = [index for index, layer in enumerate(layers) if layer.kind in MULTIPLY]
    if len(places) != len(owners) or not all(layer.kind in MULTIPLY + OTHERS for layer in layers):
        return [layers] * len(kernels)
    found: list[Owners] = []
    before, above = -1, -1
    for place, index in [*zip(places, owners, strict=True), (len(kernels), len(layers))]:
        within, count = layers[above + 1 : index], place - before - 1
        one_each = [(layer,) for layer in within]
        found += one_each if count == len(within) else [layers[max(above, 0) : index + 1]] * count
        found += [layers[index : index + 1]] * (place < len(kernels))
        before, above = place, index
    return found
