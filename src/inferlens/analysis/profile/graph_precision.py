"""The precision of a layer, in few words: from its tensors' types and whatever else the backend tells of it."""

from __future__ import annotations

import re

from inferlens.record.layer_profile import Layer

# The first that is found in a text counts. "channel major FP16 format" is TensorRT's, "f16" OpenVINO's.
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
KNOWN = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4", "int", "bool")
_FLOATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")


def precision_of(layer: Layer) -> str:
    """What a layer computes in: what the backend says of it, or else the type of its first output; empty if not known.

    A layer that only turns out indices or truth values is ``int`` or ``bool``.
    """
    told = named(str(layer.details.get("precision", "")))
    written = [named(f"{tensor.dtype} {tensor.format}") for tensor in (*layer.outputs, *layer.inputs)]
    if told in _FLOATS:
        return told
    return next((word for word in (told, *written) if word), "")


def named(text: str) -> str:
    """The precision in a text, such as ``float16`` or ``Row major linear FP16 format``; empty if there is none."""
    words = re.findall(r"[a-z]+\d*", text[:300].lower())
    for pattern, name in _WORDS:
        if any(re.fullmatch(pattern, word) for word in words):
            return name
    return ""
