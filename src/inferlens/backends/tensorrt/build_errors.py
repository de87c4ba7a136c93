"""What the builder says when it fails, turned into a reason and what to try, where its own words tell neither."""

from __future__ import annotations

import re

from inferlens.backends.tensorrt.log import condensed

NO_INT8_CONVOLUTION = (
    "TensorRT for RTX has no INT8 convolutions before version 1.7: its compiler takes fp32, fp16, bf16 and FP8 there"
)
# All words of an error, its reason, and what to try.
KNOWN = (
    (
        ("cudnn_impl.cpp", "myelinTypeFP8E4M3"),
        NO_INT8_CONVOLUTION,
        "TensorRT for RTX 1.7, or quantize the convolutions to FP8, or only the matrix products to INT8",
    ),
    (
        ("sm_vers_.size() == 1",),
        "with these options it builds for one compute capability at a time",
        "--option tensorrt.compute_capability with one of them",
    ),
)
# It looked for a GPU, which it does for some networks and options also where targets are named.
LOOKED_FOR_GPU = ("generateForCurrent", "status == CUDA_SUCCESS")
NO_TYPE = re.compile(
    r"Cannot compile for target\(s\) ([\w, ]+), because the model contains HW-specific datatypes: (\w+)"
)


def explained(errors: list[str], *, has_gpu: bool) -> tuple[str, str]:
    """Reason and cure (which may be empty) of a build that failed with ``errors``."""
    for error in errors:
        for words, reason, cure in KNOWN:
            if all(word in error for word in words):
                return reason, cure
        if lacks := NO_TYPE.search(error):
            names = ", ".join(f"{name[:-1]}.{name[-1]}" for name in re.findall(r"sm(\d+)", lacks[1]))
            type = lacks[2].partition("_")[0].upper()
            return f"GPUs of compute capability {names} have no {type}", "--option tensorrt.compute_capability=8.9"
        if not has_gpu and any(words in error for words in LOOKED_FOR_GPU):
            return "this network, or these options, it builds on a GPU alone", "a machine with a GPU"
    return condensed(errors), ""
