"""What the flavours can and cannot do with quantized models."""

from __future__ import annotations

from inferlens.backends.tensorrt.flavours import Flavour

QDQ = "as an ONNX file with QuantizeLinear and DequantizeLinear nodes"


def limits(flavour: Flavour) -> dict[str, str]:
    """What INT8 and FP8 can and cannot do, by the keys of :attr:`Capabilities.limits`."""
    variant = flavour.variant
    if flavour.jit:
        return {
            f"{variant}/cuda/int8": f"{QDQ}: matrix products, and convolutions from version 1.7 on ({flavour.title})",
            f"{variant}/cuda/fp8": f"{QDQ}: matrix products run in FP8; convolutions too, but with wrong outputs on "
            f"compute capability 9.0 ({flavour.name})",
        }
    calibrated = "" if flavour.strongly_typed_only else ", or weakly_typed with a range for every tensor"
    return {
        f"{variant}/cuda/int8": f"{QDQ}{calibrated}: matrix products and convolutions",
        f"{variant}/cuda/fp8": f"{QDQ}: matrix products, and convolutions, from compute capability 8.9",
    }
