"""In which precision something is computed, as far as types and names of kernels say: ``int8``, ``fp8``, ``fp16`` ...

Names are those of cuDNN, cuBLAS, CUTLASS, TensorRT and PyTorch. What several types are in is computed in that of its
factors, which names have first: ``gemm_i8i8_i8i32_f32`` multiplies bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

# The first that is found in a text counts. Backends write "channel major FP16 format", or "f16".
_WORDS = (
    (r"bfloat16|bf16", "bf16"),
    (r"float8|fp8|f8", "fp8"),
    (r"float4|fp4|f4", "fp4"),
    (r"float16|fp16|half|f16", "fp16"),
    (r"tf32", "tf32"),
    (r"float64|fp64|double|f64", "fp64"),
    (r"float32|fp32|float|f32", "fp32"),
    (r"u?int8|[iu]8", "int8"),
    (r"u?int4|[iu]4", "int4"),
    (r"u?int(16|32|64)?|[iu](16|32|64)", "int"),
    (r"bool(ean)?", "bool"),
)
# In this order: kernels of bytes and FP8 write floats, and name those too.
_KERNELS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"e[45]m[23]|qgmma|qmma|fp8|nvjet(_sm\d+)?_qq", "fp8"),
        (
            r"i8816|i16832|imma|s8s8|s8u8|u8s8|(?<![a-z0-9])i8(i8|i32|f32)|igemm|int8|(?<![a-z0-9])[su]8(?![a-z0-9])|dp4a",
            "int8",
        ),
        (r"bf16|bfloat16|nvjet(_sm\d+)?_t|^cijk(_[a-z]{4}){2}_b_?b?s_", "bf16"),
        (r"tf32", "tf32"),
        (r"(?<![a-z0-9b])f16|fp16|half|hmma|hgemm|[hs]884|h1688|h16816|s1688gemm_fp16|nvjet(_sm\d+)?_h", "fp16"),
        (r"sgemm|f32f32|fp32|_ffma|scudnn|(?<![a-z])float(?![a-z0-9])", "fp32"),
    )
)
# Generated for one model at a time, and named by what was fused.
_SAYS_NOTHING = re.compile(r"^(?:cudnn_generated_|triton_|generated)")


def precision_in(text: str) -> str:
    """The precision in a text, such as ``float16`` or ``Row major linear FP16 format``; empty if there is none."""
    words = re.findall(r"[a-z]+\d*", text[:300].lower())
    found = (name for pattern, name in _WORDS if any(re.fullmatch(pattern, word) for word in words))
    return next(found, "")


def first_precision(texts: Iterable[str]) -> str:
    """That of the first type that numbers are computed in, as indices and truth values are not; empty without any."""
    return next((name for name in map(precision_in, texts) if name not in ("", "int", "bool")), "")


@lru_cache(maxsize=1024)  # it is asked more than once of every name, and names are few
def kernel_precision(kernel: str) -> str:
    """The precision that a kernel of that name computes in; empty where the name does not say."""
    low = kernel[:2000].lower()
    if _SAYS_NOTHING.match(low):
        return ""
    return next((name for pattern, name in _KERNELS if pattern.search(low)), "")
