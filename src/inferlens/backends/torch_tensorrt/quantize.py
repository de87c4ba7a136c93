"""Quantizes a module for Torch-TensorRT, by NVIDIA ModelOpt: its layers become ones that round, and are exported so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inferlens.backends.availability import refused
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.export import example_feed, tensor_of
from inferlens.backends.quantized import check_share, flops_by_module, share_of
from inferlens.backends.torch_tensorrt.library import EXTRA
from inferlens.errors import library
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.spec.case import Case
from inferlens.spec.keep import check_kept, kept

CONFIGS = {"int8": "INT8_DEFAULT_CFG", "fp8": "FP8_DEFAULT_CFG"}


def quantize_module(model: Model, case: Case, preparation: Preparation) -> None:
    """Quantizes convolutions and linear layers of the model's module, in place, on the CPU and in fp32."""
    import torch

    check_kept(case, dict(model.module.named_modules()) if model.module is not None else ())
    work = flops_by_module(model.module, example_feed(model, case, "fp32"))
    modelopt = library("modelopt.torch.quantization", extra=EXTRA)  # late: it takes seconds

    def calibrate(module: Any) -> None:
        for feed in calibration_feeds(model, case):
            module(*(tensor_of(feed[spec.name], spec, "fp32") for spec in model.inputs))

    with preparation.phase("quantize"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with refused(f"ModelOpt cannot quantize '{model.name}'"):
            modelopt.quantize(model.module, getattr(modelopt, CONFIGS[case.precision]), forward_loop=calibrate)
            for layer in kept(case):
                modelopt.disable_quantizer(model.module, lambda name, layer=layer: name.startswith(f"{layer}."))
        share = share_of(work, quantized_layers(model.module))
        check_share(share, model, case, preparation, "it has no modules of convolutions or linear layers")


def quantized_layers(module: Any) -> list[str]:
    """The paths of the layers whose inputs and weights are both quantized."""
    return [
        path
        for path, each in module.named_modules()
        if all(getattr(getattr(each, f"{name}_quantizer", None), "is_enabled", False) for name in ("input", "weight"))
    ]


@contextmanager
def exporting() -> Iterator[None]:
    """While it lasts, what ModelOpt quantized is exported as TensorRT's own operator, which computes nothing.

    Torch-TensorRT calls it with weights as it folds constants, and does not use what it gives. Its own code is CUDA's,
    which ModelOpt compiles on each machine by nvcc before the first call, in minutes.
    """
    module = library("modelopt.torch.quantization.tensor_quant", extra=EXTRA)
    own = {name: getattr(module, name) for name in ("fake_quant_impl", "scaled_e4m3_impl")}
    for name in own:
        setattr(module, name, lambda inputs, *_, **__: inputs.clone())
    try:
        with library("modelopt.torch.quantization.utils", extra=EXTRA).export_torch_mode():
            yield
    finally:
        for name, code in own.items():
            setattr(module, name, code)
