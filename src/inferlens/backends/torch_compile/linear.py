"""Quantizes the linear layers of a module for Inductor on a GPU, by torchao; inputs get their ranges in every call."""

from __future__ import annotations

import math
from typing import Any

from inferlens.backends.availability import refused
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.export import example_feed
from inferlens.backends.pytorch.quantize import flops_by_module, note_share
from inferlens.errors import library
from inferlens.models.model import Model
from inferlens.spec.case import Case
from inferlens.spec.keep import check_kept, kept

LEAST_ROWS, MULTIPLE = 17, 8  # of inputs, and of both sizes of weights, that torch._int_mm takes on a GPU


def quantize_linear(
    module: Any, model: Model, case: Case, preparation: Preparation, fp8_scales: str = "tensor"
) -> None:
    """Gives the linear layers of ``module``, in place, weights in the case's precision, which their inputs get too.

    Args:
        module: that of ``model``, on the device, in the type of all that is not quantized.
        fp8_scales: what has one scale in fp8, ``tensor`` or ``row``.
    """
    import torch

    quantization = library("torchao.quantization", extra="quantize")
    known, keep = dict(module.named_modules()), kept(case)
    check_kept(case, known)

    def is_taken(each: Any, path: str) -> bool:
        # Attention calls the weights of its last layer, which is of a subclass, itself.
        return type(each) is torch.nn.Linear and not any(f"{path}.".startswith(f"{layer}.") for layer in keep)

    def fits(path: str) -> bool:
        sizes = known[path].in_features, known[path].out_features
        rows = work.get(path, math.inf) / (2 * math.prod(sizes))
        return rows >= LEAST_ROWS and not any(size % MULTIPLE for size in sizes)

    linear, what = [path for path, each in known.items() if is_taken(each, path)], "linear layers"
    with preparation.phase("quantize"):
        device = next((each.device for each in module.parameters()), "cpu")
        feed = (tensor.to(device) for tensor in example_feed(model, case, _floats(module)))
        work = flops_by_module(module, tuple(feed))
        if linear and case.precision == "int8":
            linear, what = [*filter(fits, linear)], f"linear layers of {LEAST_ROWS} rows or more and sizes in eights"
        note_share(model, work, linear, what, preparation)
        if case.precision == "int8":
            config = quantization.Int8DynamicActivationInt8WeightConfig()
        else:
            scales = {"tensor": quantization.PerTensor, "row": quantization.PerRow}[fp8_scales]()
            config = quantization.Float8DynamicActivationFloat8WeightConfig(granularity=scales)
        with refused(f"torchao cannot quantize '{model.name}'"):
            quantization.quantize_(module, config, lambda _, path: path in linear)


def _floats(module: Any) -> str:
    """The precision of a module's weights."""
    import torch

    kinds = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    return next((kinds[each.dtype] for each in module.parameters() if each.dtype in kinds), "fp32")
