"""From an ONNX file to one that is quantized to int8: QuantizeLinear and DequantizeLinear nodes around its products.

The ranges of its tensors are found once for each model and data, by running the model on them, and kept in the cache as
``calibration.json``. How the nodes are written differs from runtime to runtime: what one of them computes in int8,
another one refuses, or computes in fp32 with conversions around it.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferlens.backends.availability import refused
from inferlens.backends.base import Preparation
from inferlens.errors import library
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.sources.onnx import onnx_file_precision
from inferlens.models.work.onnx_graph import PRODUCTS, VIEWS, GraphTensors, flops, inferred, tensors
from inferlens.spec.case import QUANTIZED, Case, TensorSpec

FOLDER = "quantized"
RANGES = ("minmax", "entropy", "percentile")
_METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}


def quantized_onnx(
    path: Path,
    model: Model,
    case: Case,
    preparation: Preparation,
    ranges: str = "minmax",
    keep: Sequence[str] = (),
) -> Path:
    """The graph in ``path`` as ONNX Runtime computes it in int8: unsigned activations, a scale for each channel.

    Args:
        path: a graph in fp32.
        ranges: how the range of a tensor follows from its values, one of :data:`RANGES`.
        keep: names of nodes that are not quantized.
    """
    quantization = library("onnxruntime.quantization", extra="onnx")
    key = key_of(model, case, ranges, library("onnxruntime", extra="onnx").__version__)
    calibrated = preparation.cache / FOLDER / key
    others = f"-{hashlib.sha256(chr(0).join(keep).encode()).hexdigest()[:8]}" if keep else ""
    made = calibrated / f"{case.backend}{others}.onnx"
    with preparation.phase("quantize") as noted:
        if made.exists() and not preparation.rebuild:
            noted.note = "cached"
        else:
            calibrated.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(dir=calibrated)
            with folder as scratch, refused("The graph cannot be quantized"), _quiet():
                plain, written = Path(scratch) / "plain.onnx", Path(scratch) / "quantized.onnx"
                quantization.shape_inference.quant_pre_process(str(path), str(plain), skip_symbolic_shape=True)
                quantization.quantize_static(
                    str(plain),
                    str(written),
                    _Feeds(calibration_feeds(model, case)),
                    per_channel=True,
                    # Without VNNI sums of two products of 8 bits overflow 16.
                    reduce_range=not _has_vnni(),
                    activation_type=quantization.QuantType.QUInt8,
                    weight_type=quantization.QuantType.QInt8,
                    nodes_to_exclude=[*keep],
                    calibrate_method=getattr(quantization.CalibrationMethod, _METHODS[ranges]),
                    calibration_cache_path=str(calibrated / "calibration.json"),
                )
                shutil.move(written, made)
    share = int8_share(made, model.inputs)
    if share is not None:
        preparation.facts["quantized_share"] = round(share, 3)
    return made


def to_quantize(model: Model, case: Case) -> bool:
    """Whether ``case`` wants a model quantized that is not yet."""
    if case.precision not in QUANTIZED:
        return False
    return model.format != "onnx" or model.path is None or onnx_file_precision(model.path) not in QUANTIZED


def int8_share(path: Path, inputs: tuple[TensorSpec, ...]) -> float | None:
    """The share of a graph's multiply-adds whose both factors are quantized; ``None`` where nothing can be counted."""
    loaded = inferred(path, inputs)
    graph = GraphTensors(tensors(loaded, 4))
    makers = {name: node for node in loaded.graph.node for name in node.output}
    whole = quantized = 0.0
    for node in loaded.graph.node:
        work = flops(node, graph) or 0.0
        whole += work
        if work and all(_is_quantized(node.input[place], makers) for place in PRODUCTS[node.op_type]):
            quantized += work
    return quantized / whole if whole else None


def _is_quantized(name: str, makers: dict[str, Any]) -> bool:
    node = makers.get(name)
    while node is not None and node.op_type in VIEWS and node.op_type != "DequantizeLinear":
        node = makers.get(node.input[0])
    return node is not None and node.op_type == "DequantizeLinear"


class _Feeds:
    """What ONNX Runtime's calibration reads: the next feed, or ``None``."""

    def __init__(self, feeds: Iterator[Any]) -> None:
        self._feeds = feeds

    def get_next(self) -> Any:
        """The next feed."""
        return next(self._feeds, None)


def key_of(model: Model, case: Case, *made_with: str) -> str:
    """Digits that stand for all that what is quantized follows from, options and versions among it."""
    data = model.samples.digest if model.samples else f"{case.calibration} {case.seed}"
    parts = (model.spec, model.weights_sha256, model.source, *map(str, model.inputs), data, *made_with)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _has_vnni() -> bool:
    """Whether the CPU multiplies and adds bytes in one step."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


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
