"""What a layer or a kernel does, from its name: backends use different words for the same.

A word that is not known has no family, and no rule speaks of it. Kernels' names are those of cuDNN, cuBLAS, CUTLASS,
TensorRT, PyTorch and Triton.
"""

from __future__ import annotations

import re
from typing import Literal

from inferlens.record.layer_profile import Kernel, Layer
from inferlens.trace.precision import kernel_precision

Family = Literal[
    "", "convolution", "matrix product", "normalisation", "activation", "elementwise",
    "reformat", "cast", "quantize", "copy",
]  # fmt: skip
POINTWISE: tuple[Family, ...] = ("normalisation", "activation", "elementwise")
DENSE: tuple[Family, ...] = ("convolution", "matrix product")
MOVING: tuple[Family, ...] = ("reformat", "cast", "quantize", "copy")

_LAYERS: tuple[tuple[Family, str], ...] = (
    ("reformat", r"reorder(input|output)?|reformat|reformatting|transpose|permute|shuffle"),
    ("cast", r"cast|convert"),
    ("quantize", r"(dynamic|fake)?(re|de)?quantize(linear)?(_per_(tensor|channel|token)(_group)?)?"),
    ("copy", r"memcpy(from|to)host"),
    (
        "convolution",
        r"(lazy)?conv(transpose)?[123]d|((nhwc|fused|qlinear|cask|group|de)*conv(olution|transpose|integer)?)"
        r"|(group)?convolutionbackpropdata|correlation",  # the last as TensorRT's compiler calls them
    ),
    (
        "matrix product",
        r"(lazy|nondynamicallyquantizable|bi)?linear|(fused|qlinear|cask|transpose|batch)*(gemm|matmul)(integer|nbits)?"
        r"|matrix_?multiply|fullyconnected|inner_?product",
    ),
    (
        "normalisation",
        r"\w*(batch|layer|group|instance|rms)_?norm(alization)?(act)?([123]d)?|mvn|localresponsenorm|lrn",
    ),
    (
        "activation",
        r"(leaky|p|r|fused)?relu6?|(bias|fast|quick)?gelu(activation)?|[ces]elu|silu|swish|hard(swish|sigmoid|tanh)"
        r"|(log)?sigmoid|tanh|mish|softplus|softsign|clip|clamp|activation",
    ),
    (
        "elementwise",
        r"add|sub(tract)?|mul(tiply)?|div(ide)?|pow(er)?|sqrt|exp|neg|abs|erf|where|sum|eltwise|elementwise"
        r"|pointwise(v2)?|unary|scale|dropout",
    ),
)
_KERNELS: tuple[tuple[Family, str], ...] = (
    ("", r"resample|pool(ing|2d|3d|fwd)|pool_"),
    ("reformat", r"nchwto|nhwcto|tonchw|tonhwc|transpose|permute|reformat|copypacked|copyvectorized"),
    ("convolution", r"conv|fprop|winograd|implicit_?gemm|dgrad"),
    ("matrix product", r"gemm|gemv|cutlass|cublas|matmul|nvjet|splitk|_(badd|add|b)?mm_"),
    ("normalisation", r"batch_?norm|bn_fw|layer_?norm|group_?norm|rms_?norm"),
    ("activation", r"relu|gelu|silu|sigmoid|tanh|clamp"),
    ("elementwise", r"elementwise|pointwise|triton_poi|pwgen"),
)
# Inductor names a kernel after all that it was fused from: only templates compute convolutions and products, and what
# changes memory order does other things too.
_INDUCTOR = re.compile(r"triton_(?!tem_)")
_SPLIT = re.compile(r"[\s:]")
BATCH_NORM = re.compile(r"batch_?norm", re.IGNORECASE)
_NO_TENSOR_CORES = re.compile(r"gemv|depthwise|dwconv|conv_?dw|_dw_|splitk_?reduce|reduce_?split", re.IGNORECASE)


def of_layer(kind: str, name: str) -> Family:
    """The family of a layer of that kind; of one whose kind is not known, if its name is that of an inserted copy."""
    if name.startswith("Reformatting CopyNode"):  # as TensorRT calls them
        return "reformat"
    word = _SPLIT.split(kind.strip().rpartition(".")[2])[0].lower()
    return next((family for family, pattern in _LAYERS if re.fullmatch(pattern, word)), "")


def of_kernel(name: str) -> Family:
    """The family of a kernel of that name."""
    low = name[:2000].lower()
    known = [item for item in _KERNELS if item[0] not in (*DENSE, "reformat")] if _INDUCTOR.match(low) else _KERNELS
    return next((family for family, pattern in known if re.search(pattern, low)), "")


def computed_in(part: Layer | Kernel) -> str:
    """The precision that a layer or kernel computes in; empty where that is not known, or if it only converts."""
    if is_conversion(part):
        return ""
    return part.precision if isinstance(part, Layer) else kernel_precision(part.name)


def is_conversion(part: Layer | Kernel) -> bool:
    """Whether it only changes type or memory order, and the model does not ask for it."""
    if isinstance(part, Kernel):
        return of_kernel(part.name) == "reformat"
    family = of_layer(part.kind, part.name)
    added = "inserted" in part.details or not part.modules
    return family == "quantize" or "inserted" in part.details or (family in ("reformat", "cast") and added)


def could_use_tensor_cores(name: str) -> bool:
    """Whether a kernel of a convolution or matrix product has work for tensor cores.

    Products with a vector, depthwise convolutions and sums of partial products have not.
    """
    return _NO_TENSOR_CORES.search(name[:2000]) is None
