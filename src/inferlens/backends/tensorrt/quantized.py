"""What the flavours can and cannot do with quantized models, and the words for it where a build finds out."""

from __future__ import annotations

import re

from inferlens.backends.tensorrt.flavours import Flavour

QDQ = "as an ONNX file with QuantizeLinear and DequantizeLinear nodes"
NO_INT8_CONVOLUTION = "TensorRT for RTX has no INT8 convolutions: its compiler takes fp32, fp16, bf16 and FP8 there"
NO_TYPE = re.compile(
    r"Cannot compile for target\(s\) ([\w, ]+), because the model contains HW-specific datatypes: (\w+)"
)
# What the compiler of TensorRT for RTX says of an INT8 convolution.
INT8_CONVOLUTION = ("cudnn_impl.cpp", "myelinTypeFP8E4M3")


def limits(flavour: Flavour) -> dict[str, str]:
    """What INT8 and FP8 can and cannot do, by the keys of :attr:`Capabilities.limits`."""
    variant = flavour.variant
    if flavour.jit:
        return {
            f"{variant}/cuda/int8": f"{QDQ}: matrix products run in INT8, convolutions are refused ({flavour.name})",
            f"{variant}/cuda/fp8": f"{QDQ}: matrix products and convolutions run in FP8 ({flavour.name})",
        }
    calibrated = "" if flavour.strongly_typed_only else ", or weakly_typed with a range for every tensor"
    return {
        f"{variant}/cuda/int8": f"{QDQ}{calibrated}: matrix products and convolutions",
        f"{variant}/cuda/fp8": f"{QDQ}: matrix products, and convolutions, from compute capability 8.9",
    }


def explained(errors: list[str]) -> tuple[str, str] | None:
    """Reason and cure for a build that failed on a quantized type; ``None`` if it failed on something else."""
    for error in errors:
        if all(word in error for word in INT8_CONVOLUTION):
            return NO_INT8_CONVOLUTION, "quantize the convolutions to FP8, or only the matrix products to INT8"
        if lacks := NO_TYPE.search(error):
            names = ", ".join(f"{name[:-1]}.{name[-1]}" for name in re.findall(r"sm(\d+)", lacks[1]))
            type = lacks[2].partition("_")[0].upper()
            return f"GPUs of compute capability {names} have no {type}", "--option tensorrt.compute_capability=8.9"
    return None
