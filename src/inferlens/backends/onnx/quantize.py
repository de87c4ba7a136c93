"""Quantization of ONNX graphs, the errors of quantized layers, and the cache of quantized files.

The ranges of tensors are calibrated once for each model and data, and cached as ``calibration.json``. Every runtime
needs other QuantizeLinear and DequantizeLinear nodes: a graph that one runtime computes in int8 is refused by another,
or computed in fp32 with conversions around it. A :class:`Dialect` describes the nodes for a runtime.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from inferlens.backends.availability import unsupported_on_error
from inferlens.backends.base import Inputs, PhaseNote, Preparation
from inferlens.backends.onnx.graph import OnnxNode, read_nodes
from inferlens.errors import LateModule, Unsupported, library
from inferlens.models.files import QUANTIZED_OPERATORS, onnx_file_precision, onnx_graph, weight_files
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.work import PRODUCTS, VIEWS, infer_shapes, product_shares
from inferlens.record.builds import LayerError
from inferlens.record.files import write_whole
from inferlens.spec.case import QUANTIZED, Case, TensorSpec
from inferlens.stats.samples import flatten, relative_l2

onnx: Any = LateModule("onnx", extra="onnx")
onnxruntime: Any = LateModule("onnxruntime", extra="onnx")

QUANTIZED_FOLDER = "quantized"  # in the cache and in a record, and the kind of the artefact
LARGEST_FP8 = 448.0  # of E4M3
TYPED_OPSET = 19  # the first opset in which QuantizeLinear takes fp16 and makes FP8
Ranges = dict[str, tuple[float, float]]
METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}  # names in ONNX Runtime


@dataclass(frozen=True)
class Dialect:
    """The form of a quantized graph that a runtime needs."""

    name: str  # part of file names
    types: tuple[str, str]  # ``QuantType`` of activations (empty: their ranges are computed in every call) and weights
    operators: tuple[str, ...]  # the quantized operators
    rest: str = "fp32"  # the precision of everything else, inputs and outputs too
    per_channel: bool = True  # whether weights have a scale per output channel
    seven_bits: bool = False  # whether weights use 7 of 8 bits
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dynamic(self) -> bool:
        return not self.types[0]

    @property
    def fp8(self) -> bool:
        return self.types[1].startswith("QFLOAT8")


def cpu_dialect(*, dynamic: bool = False) -> Dialect:
    """Return the dialect of ONNX Runtime on the CPU."""
    if dynamic:
        return Dialect("cpu-dynamic", ("", "QInt8"), ("MatMul",), seven_bits=seven_bits())
    return Dialect("cpu", ("QUInt8", "QInt8"), OPERATORS, seven_bits=seven_bits())


def tensorrt_dialect(precision: str) -> Dialect:
    """Return TensorRT's dialect: symmetric, with a pair of nodes for every reader, and without quantized biases."""
    operators = ("Conv", "Gemm", "MatMul") if precision == "fp8" else ("Conv", "Gemm", "MatMul", "Add")
    kind = {"int8": "QInt8", "fp8": "QFLOAT8E4M3FN"}[precision]
    extra = {
        "ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False, "DedicatedQDQPair": True,
        "OpTypesToExcludeOutputQuantization": list(operators),
    }  # fmt: skip
    return Dialect(f"tensorrt-{precision}", (kind, kind), operators, "fp16", precision == "int8", extra=extra)


def quantize_onnx(
    path: Path,
    model: Model,
    case: Case,
    preparation: Preparation,
    dialect: Dialect,
    ranges: str = "minmax",
    keep: Sequence[str] = (),
) -> Path:
    """Return the fp32 graph in ``path`` in a runtime's dialect, from the cache or newly quantized.

    Raise Unsupported if the graph is not in fp32, or nothing of it can be quantized.
    """
    if (precision := onnx_file_precision(path)) != "fp32":
        message = f"{path.name} is in {precision}, but only graphs in fp32 can be quantized."
        raise Unsupported(message, hint="the original model")
    calibrated = quantized_folder(model, case, preparation, ranges, onnxruntime.__version__)
    quantized = calibrated / f"{dialect.name}-{_digest(repr(dialect), *sorted(keep))[:8]}.onnx"

    def write(file: Path, phase_note: PhaseNote) -> None:
        plain = file.with_name("plain.onnx")
        with unsupported_on_error("The graph cannot be quantized"), _errors_only():
            make_quantizable(path, plain)
            if dialect.dynamic:
                _quantize_dynamic(plain, file, dialect, keep)
            else:
                cached = calibrated / "calibration.json"
                tensor_ranges = _cached_ranges(plain, cached, ranges, model, case, preparation, phase_note)
                _quantize(plain, file, dialect, tensor_ranges, keep)

    cached_file(quantized, preparation, write)
    products = " or ".join(operator for operator in dialect.operators if operator in PRODUCTS)
    share, why = quantized_share(quantized, model.inputs), f"no {products} has weights"
    check_share(share, model, case, preparation, why, calibrated=not dialect.dynamic)
    return quantized


def needs_quantizing(model: Model, case: Case) -> bool:
    """Return whether ``case`` needs a model quantized that is not quantized yet."""
    if case.precision not in QUANTIZED:
        return False
    return model.format != "onnx" or model.path is None or onnx_file_precision(model.path) not in QUANTIZED


# Products, and operators that pass values on or select the largest. Sums, means, powers and quotients stay in fp32:
# they gain no speed, and eight bits are too few inside a normalization or an activation function of such operators.
# With all operators, the quantizer's default, the accuracy of magika's network fell from 98 to 43 %, and that of
# RapidOCR's recognition network from 96 to 76 %. With these operators they have 97 and 93 %, and ResNet-18 is as fast.
OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul",
    "AveragePool", "Clip", "Concat", "Gather", "GlobalAveragePool", "MaxPool", "Pad", "Relu",
    "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
PER_CHANNEL_OPSET = 13  # the first opset with several scales per tensor


def make_quantizable(path: Path, target: Path) -> None:
    """Write the graph in ``path`` as the quantizer takes it: constants folded, shapes inferred, weights in one file.

    Old opsets are raised. Biases get one dimension, because ONNX Runtime's quantizer fails at two with a scale per
    channel.
    """
    graph = onnx.load(str(path), load_external_data=False)
    if any(opset.domain in ("", "ai.onnx") and opset.version < PER_CHANNEL_OPSET for opset in graph.opset_import):
        onnx.external_data_helper.load_external_data_for_model(graph, str(path.parent))
        path = target.with_name("raised.onnx")
        onnx.save(onnx.version_converter.convert_version(graph, PER_CHANNEL_OPSET), str(path))
    shape_inference = library("onnxruntime.quantization.shape_inference", extra="onnx")
    # Given a path, the library searches external weights in the wrong folder.
    source = onnx.load(str(path)) if weight_files(path, onnx_graph(path)) else str(path)
    shape_inference.quant_pre_process(source, str(target), skip_symbolic_shape=True)
    graph = onnx.load(str(target))
    biases = {node.input[2] for node in graph.graph.node if node.op_type == "Gemm" and len(node.input) > 2}
    for tensor in graph.graph.initializer:
        if tensor.name in biases and len(tensor.dims) == 2 and tensor.dims[0] == 1:
            tensor.dims[:] = tensor.dims[1:]
    onnx.save(graph, str(target))


# Ranges, which all dialects share


def _cached_ranges(
    plain: Path, cached: Path, method: str, model: Model, case: Case, preparation: Preparation, phase_note: PhaseNote
) -> Ranges:
    """Return the range of every tensor that some dialect may quantize, from the cache or newly calibrated."""
    if cached.exists() and not preparation.rebuild:
        phase_note.note = "ranges cached"
        return {name: (low, high) for name, (low, high) in json.loads(cached.read_text("utf-8")).items()}
    ranges = calibrated_ranges(plain, calibration_feeds(model, case), method)
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_whole(cached, json.dumps(ranges, indent=0).encode())
    return ranges


def calibrated_ranges(path: Path, feeds: Iterator[Any], method: str = "minmax") -> Ranges:
    """Return the lowest and highest value of every operator's tensors over all feeds; see :data:`METHODS`."""
    from onnxruntime.quantization import CalibrationMethod, calibrate, registry

    operators = sorted({*registry.QDQRegistry, *registry.QLinearOpsRegistry})
    with tempfile.TemporaryDirectory() as folder:
        calibrator = calibrate.create_calibrator(
            path,
            operators,
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=getattr(CalibrationMethod, METHODS[method]),
        )
        for feed in feeds:  # one at a time, because all values of a feed are kept in memory
            calibrator.collect_data(SimpleNamespace(get_next=iter([feed, None]).__next__))
        values = {name: data.range_value for name, data in calibrator.compute_data().items()}
        del calibrator  # it keeps the file open
    return {name: (float(low.squeeze()), float(high.squeeze())) for name, (low, high) in sorted(values.items())}


# From ranges to nodes


def _quantize(plain: Path, target: Path, dialect: Dialect, ranges: Ranges, keep: Sequence[str]) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantType, calibrate
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    model = onnx.load(str(plain))
    if (dialect.fp8 or dialect.rest != "fp32") and model.opset_import[0].version < TYPED_OPSET:
        model = onnx.version_converter.convert_version(model, TYPED_OPSET)
    model = onnx.shape_inference.infer_shapes(model)
    arrays = {name: tuple(np.array(bound, np.float32) for bound in bounds) for name, bounds in ranges.items()}
    activations, weights = (getattr(QuantType, name) for name in dialect.types)
    scales = {"TensorQuantOverrides": _fp8_scales(model.graph, ranges)} if dialect.fp8 else {}
    quantizer = QDQQuantizer(
        model,
        dialect.per_channel,
        dialect.seven_bits,
        weights,
        activations,
        calibrate.TensorsData(CalibrationMethod.MinMax, arrays),
        [],
        [*keep, *_excluded_nodes(model.graph)],
        list(dialect.operators),
        {**dialect.extra, **scales},
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    quantized = quantizer.model.model
    if "Add" in dialect.operators:
        _fuse_sums(quantized.graph)
        quantizer.model.clean_initializers()
    if dialect.rest == "fp16":
        quantized = library("onnxruntime.transformers.float16", extra="onnx").convert_float_to_float16(quantized)
    onnx.save(quantized, str(target))


def _quantize_dynamic(plain: Path, target: Path, dialect: Dialect, keep: Sequence[str]) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(plain))
    del model.graph.value_info[:]  # they include shapes of weights that the quantizer transposes
    quantize_dynamic(
        model,
        str(target),
        op_types_to_quantize=list(dialect.operators),
        per_channel=dialect.per_channel,
        reduce_range=dialect.seven_bits,
        weight_type=getattr(QuantType, dialect.types[1]),
        nodes_to_exclude=list(keep),
    )


def _excluded_nodes(graph: Any) -> list[str]:
    """Return the names of the nodes that stay in the precision of the rest.

    A product of two activations is part of attention, which has fused kernels in fp16. The addition of a constant is
    part of the product before it. A sum that does not follow a convolution is not fused with a quantized operator.
    """
    constants = {weight.name for weight in graph.initializer}
    convolved = {name for node in graph.node if node.op_type == "Conv" for name in node.output}
    names = []
    for node in graph.node:
        is_bias = node.op_type == "Add" and constants.intersection(node.input)
        is_lone_sum = node.op_type == "Add" and not convolved.intersection(node.input)
        is_attention = node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] not in constants
        if is_bias or is_lone_sum or is_attention:
            names.append(node.name)
    return names


def _fuse_sums(graph: Any) -> None:
    """Remove the nodes between a convolution and the sum behind it: TensorRT has one kernel for both."""
    producers = {name: node for node in graph.node for name in node.output}

    def producer(node: Any, kind: str) -> Any:
        """Return the node that computes the first input of ``node``, if it is of this kind."""
        source = producers.get(node.input[0]) if node is not None and node.input else None
        return source if source is not None and source.op_type == kind else None

    for node in [node for node in graph.node if node.op_type == "Add"]:
        for index, dequantize in enumerate(producers.get(name) for name in node.input):
            quantize = producer(dequantize, "QuantizeLinear")
            if producer(quantize, "Conv") is not None:
                node.input[index] = quantize.input[0]
                graph.node.remove(dequantize)
                graph.node.remove(quantize)
                break


def _fp8_scales(graph: Any, ranges: Ranges) -> dict[str, list[dict[str, Any]]]:
    """Return scales that map the largest value of each tensor to the largest value of FP8.

    ONNX Runtime's own scales clip values beyond about four standard deviations. Biases have no scale, with which they
    would be quantized.
    """
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


# The quantized share


def quantized_share(path: Path, inputs: tuple[TensorSpec, ...]) -> float | None:
    """Return the share of multiply-adds with two quantized factors; ``None`` if they cannot be counted."""
    model = infer_shapes(path, inputs)
    shares = product_shares(model)
    if not any(node.op_type in (*PRODUCTS, *QUANTIZED_OPERATORS) for node in model.graph.node):
        return 0.0
    if not shares:
        return None
    producers = {name: node for node in model.graph.node for name in node.output}

    def is_quantized(name: str) -> bool:
        node = producers.get(name)
        while node is not None and node.op_type in VIEWS and node.op_type != "DequantizeLinear":
            node = producers.get(node.input[0])
        return node is not None and node.op_type == "DequantizeLinear"

    share = 0.0
    for node in model.graph.node:
        factors = [node.input[index] for index in PRODUCTS.get(node.op_type, ())]
        if node.op_type in QUANTIZED_OPERATORS or all(map(is_quantized, factors)):
            share += shares.get(node.output[0], 0.0)
    return share


def quantized_folder(model: Model, case: Case, preparation: Preparation, *settings: str) -> Path:
    """Return the cache's folder for a quantized model; ``settings`` are options and versions that it depends on."""
    data = model.samples.digest if model.samples else f"{case.calibration} {case.seed}"
    parts = (model.spec, model.weights_sha256, model.source, *map(str, model.inputs), data)
    return preparation.cache / QUANTIZED_FOLDER / _digest(*parts, "7 bits" * seven_bits(), *settings)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextmanager
def _errors_only() -> Iterator[None]:
    """Keep ONNX Runtime's advice out of the log."""
    logger = logging.getLogger()
    former = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(former)


# The error that the quantization of a single layer adds

LAYER_SAMPLES = 8  # samples per layer
PASSED_ON = (*VIEWS, "Clip", "MaxPool", "Relu")  # operators that are quantized only behind a quantized one


def rank_layers(
    plain: Path, model: Model, case: Case, preparation: Preparation, feeds: Sequence[Inputs]
) -> list[LayerError]:
    """Return the layers with products of the graph in ``plain``, those with the largest quantization error first.

    Each layer is quantized by itself, to int8 in the dialect of the CPU and to fp8 in that of TensorRT.
    """
    dialect = cpu_dialect() if case.precision == "int8" else replace(tensorrt_dialect(case.precision), rest="fp32")
    calibrated = quantized_folder(model, case, preparation, "minmax", onnxruntime.__version__) / "calibration.json"
    with tempfile.TemporaryDirectory() as folder, _errors_only():
        path, quantized = Path(folder) / "plain.onnx", Path(folder) / "quantized.onnx"
        make_quantizable(plain, path)
        ranges = _cached_ranges(path, calibrated, "minmax", model, case, preparation, PhaseNote())
        nodes, expected = read_nodes(path).nodes, _outputs(path, feeds)
        shares = product_shares(infer_shapes(path, model.inputs))
        excluded = _excluded_nodes(onnx.load(str(path)).graph)
        products = [node for node in nodes if node.kind in PRODUCTS and node.name not in excluded]
        errors = []
        for name, layer in group_by_layer(products).items():
            keep = [node.name for node in nodes if node not in layer and node.kind not in PASSED_ON]
            _quantize(path, quantized, dialect, ranges, keep)
            kinds = tuple(dict.fromkeys(node.kind for node in layer))
            share = sum(shares.get(node.outputs[0], 0.0) for node in layer)
            errors.append(LayerError(name, kinds, share, _largest_error(_outputs(quantized, feeds), expected)))
    return sorted(errors, key=lambda layer: -layer.error)


def group_by_layer(nodes: Sequence[OnnxNode]) -> dict[str, list[OnnxNode]]:
    """Return nodes by their module's path, or by their own name if that module contains other modules."""
    paths = {node: next((path for path in node.modules if path), "") for node in nodes}
    layers: dict[str, list[OnnxNode]] = {}
    for node, path in paths.items():
        is_container = any(inner.startswith(f"{path}.") for inner in paths.values())
        layers.setdefault(node.name if is_container or not path else path, []).append(node)
    return layers


def _outputs(path: Path, feeds: Sequence[Inputs]) -> list[list[Any]]:
    """Return the outputs of a graph for each feed, by ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [[np.array(output) for output in session.run(None, feed)] for feed in feeds]


def _largest_error(outputs: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> float:
    """Return the relative L2 error over all feeds of the output with the largest one."""
    pairs = zip(zip(*outputs, strict=True), zip(*expected, strict=True), strict=True)
    return max(relative_l2(flatten(*arrays), flatten(*reference)) for arrays, reference in pairs)


# The cache of quantized files. A record keeps its quantized model, so that it can be loaded without calibration data.


def seven_bits() -> bool:
    """Return whether a factor may only use 7 bits, because a CPU without VNNI adds two products in 16 bits."""
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return True


def check_share(
    share: float | None, model: Model, case: Case, preparation: Preparation, why: str, *, calibrated: bool = True
) -> None:
    """Refuse a model of which nothing is quantized, else note the quantized share of its multiply-adds.

    ``calibrated`` says whether ranges come from data and are not computed in every call.
    """
    if share == 0 and not case.keep:
        raise Unsupported(f"Nothing of '{model.name}' can be quantized: {why}.")
    preparation.facts["quantized_share"] = None if share is None else round(float(share), 3)
    preparation.facts["calibrated"] = calibrated


def cached_file(path: Path, preparation: Preparation, write: Callable[[Path, PhaseNote], None]) -> Path:
    """Return the quantized file ``path`` of the cache; if it is missing, ``write`` makes it in a scratch folder.

    Files with its stem, such as weights, are moved first, so that the file never exists without them.
    """
    with preparation.phase("quantize") as phase_note:
        if path.exists() and not preparation.rebuild:
            phase_note.note = "cached"
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            new_file = Path(scratch) / path.name
            write(new_file, phase_note)
            for file in sorted(new_file.parent.glob(f"{path.stem}.*"), key=lambda file: file == new_file):
                file.rename(path.with_name(file.name))
    return path


def recorded_file(preparation: Preparation, suffix: str) -> Path | None:
    """Return the quantized file with ``suffix`` that the loaded record keeps, or ``None``."""
    folder = preparation.export_folder if preparation.cached_only else None
    return next((folder / QUANTIZED_FOLDER).glob(f"*{suffix}"), None) if folder else None


def keep_in_record(preparation: Preparation, path: Path) -> Path:
    """Link a cached quantized file and those of its stem into the record's folder, and return ``path``."""
    if preparation.already_built:
        return path
    folder = preparation.folder / QUANTIZED_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(path.parent.glob(f"{path.stem}.*")):
        target = folder / file.name
        target.unlink(missing_ok=True)  # from an earlier preparation
        try:
            os.link(file, target)
        except OSError:
            shutil.copyfile(file, target)
        preparation.keep(target, QUANTIZED_FOLDER if file == path else f"{QUANTIZED_FOLDER} weights")
    return path
