"""Quantizes a module for Inductor, by torchao: to int8 on x86 CPUs, exported, calibrated, and converted; on a GPU its
linear layers, whose inputs get their ranges in every call.

On the CPU Inductor computes a product in int8 where its weights are constants, so that is compiled with ``freezing``.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

from inferlens.backends.availability import refused
from inferlens.backends.base import Noted, Preparation
from inferlens.backends.onnx.quantize import FOLDER, key_of
from inferlens.backends.pytorch.export import example_feed, tensor_of
from inferlens.backends.quantized import (
    beside_record,
    check_share,
    flops_by_module,
    from_cache,
    measured,
    seven_bits,
    share_of,
)
from inferlens.errors import library
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.work.torch_module import taken_apart
from inferlens.spec.case import Case
from inferlens.spec.keep import check_kept, kept

SUFFIX = ".pt2"
# The operators of a quantized program, and how Inductor computes them in int8: without it they run, in fp32.
OPERATORS = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"
LEAST_ROWS, MULTIPLE = 17, 8  # of inputs, and of both sizes of weights, that torch._int_mm takes on a GPU
PRODUCTS = ("convolution", "conv1d", "conv2d", "conv3d", "linear", "addmm", "mm", "matmul", "bmm")


def quantized_module(model: Model, case: Case, preparation: Preparation) -> Any:
    """The model's module with its convolutions and linear layers in int8, for inputs of the case's shape.

    It is read from a file in any case, so that what is measured is what is loaded later.
    """
    import torch

    library(OPERATORS, extra="quantize")
    path = measured(preparation, SUFFIX) or beside_record(preparation, quantized_program(model, case, preparation))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(str(path)).module(check_guards=False)
    share = int8_share(module, example_feed(model, case, "fp32"))
    check_share(share, model, case, preparation, "no convolution or linear layer is")
    return module


def _keeping(x86: Any, layers: list[str]) -> Any:
    """The quantizer for x86, which leaves alone what is in these modules.

    Its own ``set_module_name_qconfig`` holds for what lies in one module as a whole: not for a convolution and the ReLU
    after it, which it quantizes together.
    """
    keeps = [x86.get_module_name_filter(layer) for layer in layers]

    class Keeping(x86.X86InductorQuantizer):  # type: ignore[misc]
        def annotate(self, model: Any) -> Any:
            kept = [node for node in model.graph.nodes if any(keep(node) for keep in keeps)]
            x86._annotate_nodes_not_quantize(kept)  # what is annotated already is not looked at again
            return super().annotate(model)

    return Keeping()


def quantized_program(model: Model, case: Case, preparation: Preparation) -> Path:
    """The file of the exported program with its products in int8, from the cache or made and put there."""
    torch, torchao = library("torch", extra="torch"), library("torchao", extra="quantize")
    key = key_of(model, case, f"torchao {torchao.__version__}", f"torch {torch.__version__}", case.keep)
    made = preparation.cache / FOLDER / key / f"torch_compile{SUFFIX}"

    def write(path: Path, _: Noted) -> None:
        with refused(f"'{model.name}' cannot be quantized"):
            torch.export.save(_quantized(model, case), str(path))

    return from_cache(made, preparation, write)


def _quantized(model: Model, case: Case) -> Any:
    import torch

    pt2e = library("torchao.quantization.pt2e.quantize_pt2e", extra="quantize")
    x86 = library(OPERATORS, extra="quantize")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # Strict: the quantizer tells calls of one module from each other. Guards are nodes that it does not know.
        feed = example_feed(model, case, "fp32")
        exported = torch.export.export(model.module, feed, strict=True).module(check_guards=False)
        check_kept(case, [path for path, _ in model.module.named_modules()] if model.module is not None else ())
        quantizer = _keeping(x86, list(kept(case)))
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(reduce_range=seven_bits()))
        observed = pt2e.prepare_pt2e(exported, quantizer)
        for arrays in calibration_feeds(model, case):
            observed(*(tensor_of(arrays[spec.name], spec, "fp32") for spec in model.inputs))
        module = pt2e.convert_pt2e(observed)
        read = {node.target for node in module.graph.nodes if node.op == "get_attr"}
        for name in [name for name, _ in module.named_parameters() if name not in read]:  # in fp32, as it was
            owner, _, last = name.rpartition(".")
            delattr(module.get_submodule(owner), last)
        return torch.export.export(module, feed)


def int8_share(module: Any, feed: tuple[Any, ...]) -> float:
    """The share of a graph's multiply-adds whose factors are quantized; tensors have no values meanwhile."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    whole = quantized = 0.0

    class Counting(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            nonlocal whole, quantized
            name = getattr(node.target, "__name__", "").partition(".")[0]
            with FlopCounterMode(display=False) as counter:
                made = super().run_node(node)
            if node.op == "call_function" and name in PRODUCTS:
                factors = node.args[1:3] if name == "addmm" else node.args[:2]
                whole += counter.get_total_flops()
                quantized += counter.get_total_flops() * all("dequantize" in str(factor.target) for factor in factors)
            return made

    with taken_apart(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        Counting(module).run(*feed)
    return quantized / whole if whole else 0.0


def quantize_linear(
    module: Any, model: Model, case: Case, preparation: Preparation, fp8_scales: str = "tensor"
) -> None:
    """Give the linear layers of ``module``, in place and on the device, weights and inputs in the case's precision."""
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

    linear, what = [path for path, item in known.items() if is_taken(item, path)], "linear layers"
    with preparation.phase("quantize"):
        device = next((parameter.device for parameter in module.parameters()), "cpu")
        feed = (tensor.to(device) for tensor in example_feed(model, case, _floats(module)))
        work = flops_by_module(module, tuple(feed))
        if linear and case.precision == "int8":
            linear, what = [*filter(fits, linear)], f"linear layers of {LEAST_ROWS} rows or more and sizes in eights"
        why = f"it has no modules of {what}"
        check_share(share_of(work, linear), model, case, preparation, why, calibrated=False)
        if case.precision == "int8":
            config = quantization.Int8DynamicActivationInt8WeightConfig()
        else:
            scales = {"tensor": quantization.PerTensor, "row": quantization.PerRow}[fp8_scales]()
            config = quantization.Float8DynamicActivationFloat8WeightConfig(granularity=scales)
        with refused(f"torchao cannot quantize '{model.name}'"):
            quantization.quantize_(module, config, lambda _, path: path in linear)


def _floats(module: Any) -> str:
    import torch

    kinds = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    return next((kinds[parameter.dtype] for parameter in module.parameters() if parameter.dtype in kinds), "fp32")
