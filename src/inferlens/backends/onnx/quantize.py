"""From an ONNX file in fp32 to one with quantized products.

The ranges of its tensors are found once for each model and data, by running the model on them, and kept in the cache as
``calibration.json``. How they become QuantizeLinear and DequantizeLinear nodes differs from runtime to runtime, for
what one of them computes in int8 another one refuses, or computes in fp32 with conversions around it: a
:class:`Dialect` says what a runtime wants.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from inferlens.backends.availability import refused
from inferlens.backends.base import Inputs, Noted, Preparation
from inferlens.backends.onnx.graph import OnnxNode, origins
from inferlens.errors import Unsupported, library
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.sources.onnx import QUANTIZED_OPERATORS, onnx_file_precision, onnx_graph, weight_files
from inferlens.models.work.onnx_graph import PRODUCTS, VIEWS, inferred, product_shares
from inferlens.record.files import write_whole
from inferlens.record.quantization import LayerError
from inferlens.spec.case import QUANTIZED, Case, TensorSpec
from inferlens.stats.samples import flatten, relative_l2

FOLDER = "quantized"
LARGEST_FP8 = 448.0  # of E4M3
TYPED = 19  # the opset since which QuantizeLinear takes fp16 and makes FP8
Ranges = dict[str, tuple[float, float]]
METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}  # as ONNX Runtime calls them


@dataclass(frozen=True)
class Dialect:
    """What a runtime wants a quantized graph to be."""

    name: str  # in the names of files
    types: tuple[str, str]  # ``QuantType`` of activations (empty: ranges are found in every call) and of weights
    operators: tuple[str, ...]  # those that are quantized
    rest: str = "fp32"  # the precision of all that is not quantized, inputs and outputs too
    per_channel: bool = True  # whether weights have a scale for each output channel
    seven_bits: bool = False  # whether weights are kept to 7 of their 8 bits
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dynamic(self) -> bool:
        return not self.types[0]

    @property
    def fp8(self) -> bool:
        return self.types[1].startswith("QFLOAT8")


def for_cpu(*, dynamic: bool = False) -> Dialect:
    """ONNX Runtime's on the CPU."""
    if dynamic:
        return Dialect("cpu-dynamic", ("", "QInt8"), ("MatMul",), seven_bits=seven_bits())
    return Dialect("cpu", ("QUInt8", "QInt8"), OPERATORS, seven_bits=seven_bits())


def for_tensorrt(precision: str) -> Dialect:
    """TensorRT's: symmetric, at the inputs of what it fuses, a pair of nodes for each reader, biases as they are."""
    operators = ("Conv", "Gemm", "MatMul") if precision == "fp8" else ("Conv", "Gemm", "MatMul", "Add")
    kind = {"int8": "QInt8", "fp8": "QFLOAT8E4M3FN"}[precision]
    extra = {
        "ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False, "DedicatedQDQPair": True,
        "OpTypesToExcludeOutputQuantization": list(operators),
    }  # fmt: skip
    return Dialect(f"tensorrt-{precision}", (kind, kind), operators, "fp16", precision == "int8", extra=extra)


def quantized_onnx(
    path: Path,
    model: Model,
    case: Case,
    preparation: Preparation,
    dialect: Dialect,
    ranges: str = "minmax",
    keep: Sequence[str] = (),
) -> Path:
    """Return the fp32 graph in ``path`` as a runtime wants it quantized, from the cache or made and put there.

    Raises Unsupported if the graph is in another precision already, or nothing of it can be quantized.
    """
    onnxruntime = library("onnxruntime", extra="onnx")
    if (own := onnx_file_precision(path)) != "fp32":
        what = f"{path.name} is in {own}, and what is quantized here is a graph in fp32."
        raise Unsupported(what, hint="the model that it was made from")
    key = key_of(model, case, ranges, onnxruntime.__version__)
    calibrated = preparation.cache / FOLDER / key
    made = calibrated / f"{dialect.name}-{_digest(repr(dialect), *sorted(keep))[:8]}.onnx"

    def write(written: Path, noted: Noted) -> None:
        plain = written.with_name("plain.onnx")
        with refused("The graph cannot be quantized"), _quiet():
            make_quantizable(path, plain)
            if dialect.dynamic:
                _quantize_dynamic(plain, written, dialect, keep)
            else:
                found = _ranges(plain, calibrated / "calibration.json", ranges, model, case, preparation, noted)
                _quantize(plain, written, dialect, found, keep)

    from_cache(made, preparation, write)
    products = " or ".join(operator for operator in dialect.operators if operator in PRODUCTS)
    share, why = quantized_share(made, model.inputs), f"no {products} has weights"
    check_share(share, model, case, preparation, why, calibrated=not dialect.dynamic)
    return made


def to_quantize(model: Model, case: Case) -> bool:
    """Whether ``case`` wants a model quantized that is not yet."""
    if case.precision not in QUANTIZED:
        return False
    return model.format != "onnx" or model.path is None or onnx_file_precision(model.path) not in QUANTIZED


# Products, and what passes bytes on as it finds them or picks the largest. Sums, means, powers and quotients stay in
# fp32: they gain nothing by it, and where a normalization or an activation function is made of such operators, eight
# bits are too few for what lies between them. Quantizing all that the quantizer knows how to, its own default, took the
# accuracy of magika's network from 98 to 43 %, and that of RapidOCR's network that reads from 96 to 76 %; with these
# they have 97 and 93 %, and ResNet-18 is as fast as with all.
OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul",
    "AveragePool", "Clip", "Concat", "Gather", "GlobalAveragePool", "MaxPool", "Pad", "Relu",
    "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
PER_CHANNEL = 13  # the first opset in which a tensor has several scales


def make_quantizable(path: Path, written: Path) -> None:
    """Writes the graph in ``path``, with constants folded and shapes inferred, as the quantizer takes it.

    The opset of an old graph is raised, and biases have one dimension: with two, and weights with a scale for each
    channel, ONNX Runtime's quantizer fails.
    """
    onnx = library("onnx", extra="onnx")
    graph = onnx.load(str(path), load_external_data=False)
    if any(item.domain in ("", "ai.onnx") and item.version < PER_CHANNEL for item in graph.opset_import):
        onnx.external_data_helper.load_external_data_for_model(graph, str(path.parent))
        path = written.with_name("raised.onnx")
        onnx.save(onnx.version_converter.convert_version(graph, PER_CHANNEL), str(path))
    fold(path, written)
    graph = onnx.load(str(written))
    if _flat_biases(graph.graph):
        onnx.save(graph, str(written))


def fold(path: Path, written: Path) -> None:
    """Writes the graph in ``path`` with constants folded and shapes inferred, and all of its weights in one file."""
    import onnx

    shape_inference = library("onnxruntime.quantization.shape_inference", extra="onnx")
    # Of a graph by its name, weights in files beside it are looked for in a folder where they are not.
    given = onnx.load(str(path)) if weight_files(path, onnx_graph(path)) else str(path)
    shape_inference.quant_pre_process(given, str(written), skip_symbolic_shape=True)


def _flat_biases(graph: Any) -> bool:
    """Whether there were biases of more than one dimension, which have one now."""
    biases = {node.input[2] for node in graph.node if node.op_type == "Gemm" and len(node.input) > 2}
    found = [item for item in graph.initializer if item.name in biases and len(item.dims) == 2 and item.dims[0] == 1]
    for bias in found:
        bias.dims[:] = bias.dims[1:]
    return bool(found)


# Ranges, which are every dialect's


def _ranges(
    plain: Path, path: Path, how: str, model: Model, case: Case, preparation: Preparation, noted: Noted
) -> Ranges:
    """The range of every tensor that some dialect may quantize, from the cache or found and put there."""
    if path.exists() and not preparation.rebuild:
        noted.note = "ranges cached"
        return {name: (low, high) for name, (low, high) in json.loads(path.read_text("utf-8")).items()}
    found = calibrated_ranges(plain, calibration_feeds(model, case), how)
    write_whole(path, json.dumps(found, indent=0).encode())
    return found


def calibrated_ranges(path: Path, feeds: Iterator[Any], how: str = "minmax") -> Ranges:
    """The lowest and highest values of the tensors around a graph's operators, over all feeds; see :data:`METHODS`."""
    from onnxruntime.quantization import CalibrationMethod, calibrate, registry

    operators = sorted({*registry.QDQRegistry, *registry.QLinearOpsRegistry})
    with tempfile.TemporaryDirectory() as folder:
        calibrator = calibrate.create_calibrator(
            path,
            operators,
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=getattr(CalibrationMethod, METHODS[how]),
        )
        for feed in feeds:  # one by one: the values of each are in memory until they are counted
            calibrator.collect_data(SimpleNamespace(get_next=iter([feed, None]).__next__))
        values = {name: data.range_value for name, data in calibrator.compute_data().items()}
        del calibrator  # which has the file open
    return {name: (float(low.squeeze()), float(high.squeeze())) for name, (low, high) in sorted(values.items())}


# From ranges to nodes


def _quantize(plain: Path, written: Path, dialect: Dialect, ranges: Ranges, keep: Sequence[str]) -> None:
    import numpy as np
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantType, calibrate
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    model = onnx.load(str(plain))
    if (dialect.fp8 or dialect.rest != "fp32") and model.opset_import[0].version < TYPED:
        model = onnx.version_converter.convert_version(model, TYPED)
    model = onnx.shape_inference.infer_shapes(model)
    own = {name: tuple(np.array(end, np.float32) for end in ends) for name, ends in ranges.items()}
    activations, weights = (getattr(QuantType, name) for name in dialect.types)
    quantizer = QDQQuantizer(
        model,
        dialect.per_channel,
        dialect.seven_bits,
        weights,
        activations,
        calibrate.TensorsData(CalibrationMethod.MinMax, own),
        [],
        [*keep, *_left_out(model.graph)],
        list(dialect.operators),
        {**dialect.extra, **({"TensorQuantOverrides": _fp8_scales(model.graph, ranges)} if dialect.fp8 else {})},
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    made = quantizer.model.model
    if "Add" in dialect.operators:
        _fuse_sums(made.graph)
        quantizer.model.clean_initializers()
    if dialect.rest == "fp16":
        made = library("onnxruntime.transformers.float16", extra="onnx").convert_float_to_float16(made)
    onnx.save(made, str(written))


def _quantize_dynamic(plain: Path, written: Path, dialect: Dialect, keep: Sequence[str]) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(plain))
    del model.graph.value_info[:]  # shapes of weights among them, which it transposes
    quantize_dynamic(
        model,
        str(written),
        op_types_to_quantize=list(dialect.operators),
        per_channel=dialect.per_channel,
        reduce_range=dialect.seven_bits,
        weight_type=getattr(QuantType, dialect.types[1]),
        nodes_to_exclude=list(keep),
    )


def _left_out(graph: Any) -> list[str]:
    """Nodes that a dialect leaves as they are.

    A product of two activations is part of attention, which has fused kernels in fp16; adding a constant is part of the
    product before; and another sum than the one behind a convolution is fused with nothing that is quantized.
    """
    constants = {weight.name for weight in graph.initializer}
    products = {name for node in graph.node if node.op_type == "Conv" for name in node.output}

    def as_it_is(node: Any) -> bool:
        if node.op_type == "Add":
            return bool(constants.intersection(node.input)) or not products.intersection(node.input)
        return node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] not in constants

    return [node.name for node in graph.node if as_it_is(node)]


def _fuse_sums(graph: Any) -> None:
    """Takes the nodes between a convolution and the sum behind it away again: both are one kernel of TensorRT's."""
    makers = {name: node for node in graph.node for name in node.output}

    def maker(node: Any, kind: str) -> Any:
        made = makers.get(node.input[0]) if node is not None and node.input else None
        return made if made is not None and made.op_type == kind else None

    for node in [node for node in graph.node if node.op_type == "Add"]:
        for place, read in enumerate(makers.get(name) for name in node.input):
            quantized = maker(read, "QuantizeLinear")
            if maker(quantized, "Conv") is not None:
                node.input[place] = quantized.input[0]
                graph.node.remove(read)
                graph.node.remove(quantized)
                break


def _fp8_scales(graph: Any, ranges: Ranges) -> dict[str, list[dict[str, Any]]]:
    """Scales by which the largest value of each tensor is the largest of FP8's.

    ONNX Runtime's own follow from the standard deviation, and cut off whatever is beyond some four of them. A bias has
    none: it would be quantized by it.
    """
    import numpy as np
    import onnx
    from ml_dtypes import float8_e4m3fn

    largest = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
    biases = {name for node in graph.node if node.op_type in PRODUCTS for name in node.input[2:]}
    for weight in graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and weight.name not in biases:
            values = onnx.numpy_helper.to_array(weight)
            largest[weight.name] = float(np.abs(values).max()) if values.size else 0.0
    zero = np.array(0, float8_e4m3fn)
    return {
        name: [{"scale": np.array(most / LARGEST_FP8 or 1.0, np.float32), "zero_point": zero}]
        for name, most in largest.items()
    }


# What was quantized


def quantized_share(path: Path, inputs: tuple[TensorSpec, ...]) -> float | None:
    """The share of a graph's multiply-adds whose both factors are quantized; ``None`` where they cannot be counted."""
    loaded = inferred(path, inputs)
    shares = product_shares(loaded)
    if not any(node.op_type in (*PRODUCTS, *QUANTIZED_OPERATORS) for node in loaded.graph.node):
        return 0.0
    makers = {name: node for node in loaded.graph.node for name in node.output}
    quantized = [
        shares.get(node.output[0], 0.0)
        for node in loaded.graph.node
        if node.op_type in QUANTIZED_OPERATORS
        or all(_is_quantized(node.input[place], makers) for place in PRODUCTS.get(node.op_type, ()))
    ]
    return sum(quantized) if shares else None


def _is_quantized(name: str, makers: dict[str, Any]) -> bool:
    node = makers.get(name)
    while node is not None and node.op_type in VIEWS and node.op_type != "DequantizeLinear":
        node = makers.get(node.input[0])
    return node is not None and node.op_type == "DequantizeLinear"


def key_of(model: Model, case: Case, *made_with: str) -> str:
    """Digits that stand for all that what is quantized follows from, options and versions among it."""
    data = model.samples.digest if model.samples else f"{case.calibration} {case.seed}"
    given = (model.spec, model.weights_sha256, model.source, *map(str, model.inputs), data)
    return _digest(*given, "7 bits" * seven_bits(), *made_with)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps ONNX Runtime's advice about how it is to be called out of the log."""
    logger = logging.getLogger()
    former = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(former)


# The error that quantizing one layer adds, for every layer.
#
# One session serves all layers: the quantized graph with a switch at every quantized tensor, which selects the tensor
# or its quantized copy. The switches of an operator are set together, so the outputs are those of a graph in which only
# this operator is quantized. Sums of integers are computed in fp32.

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


# The cache of quantized files. A record keeps its quantized model, so that it can be loaded without calibration data.

BESIDE = "quantized"  # the folder beside a record, and the kind of the artefact


def seven_bits() -> bool:
    """Whether one factor of a product has to do with 7 bits: without VNNI, CPUs add two products up in 16 bits."""
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return True


def check_share(
    share: float | None, model: Model, case: Case, preparation: Preparation, why: str, *, calibrated: bool = True
) -> None:
    """Refuses a model of which nothing is quantized; else notes the share of its multiply-adds that is, if known.

    ``calibrated``: whether ranges were found with data, rather than are in every call.
    """
    if share == 0 and not case.keep:
        raise Unsupported(f"Nothing of '{model.name}' can be quantized: {why}.")
    preparation.facts["quantized_share"] = None if share is None else round(float(share), 3)
    preparation.facts["calibrated"] = calibrated


def from_cache(made: Path, preparation: Preparation, write: Callable[[Path, Noted], None]) -> Path:
    """The quantized file ``made`` of the cache; if it is not there ``write`` makes it, in a folder of its own.

    What lies beside it with its stem, such as weights, comes along first: where the file is, all is.
    """
    with preparation.phase("quantize") as noted:
        if made.exists() and not preparation.rebuild:
            noted.note = "cached"
            return made
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            written = Path(scratch) / made.name
            write(written, noted)
            for path in sorted(written.parent.glob(f"{made.stem}.*"), key=lambda path: path == written):
                path.rename(made.with_name(path.name))
    return made


def measured(preparation: Preparation, suffix: str) -> Path | None:
    """The quantized file with ``suffix`` beside the record whose case is loaded; ``None`` where there is none."""
    path = preparation.exported / BESIDE if preparation.kept_only and preparation.exported else Path()
    return next(path.glob(f"*{suffix}"), None) if path.name else None


def beside_record(preparation: Preparation, made: Path) -> Path:
    """``made``, a quantized file of the cache; an artefact of the case's first process, as is what has its stem."""
    if preparation.built:
        return made
    folder = preparation.folder / BESIDE
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.parent.glob(f"{made.stem}.*")):
        (folder / path.name).unlink(missing_ok=True)  # of the same case, prepared once more
        try:
            os.link(path, folder / path.name)  # which takes no room
        except OSError:
            shutil.copyfile(path, folder / path.name)
        preparation.keep(folder / path.name, BESIDE if path == made else f"{BESIDE} weights")
    return made
