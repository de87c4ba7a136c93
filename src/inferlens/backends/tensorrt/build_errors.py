"""What the builder says when it fails, turned into a reason and what to try, where its own words tell neither."""

from __future__ import annotations

import re
from typing import Any

from inferlens.backends.tensorrt.log import condensed
from inferlens.backends.tensorrt.network import Network
from inferlens.units import byte_count

NO_INT8_CONVOLUTION = (
    "TensorRT for RTX has no INT8 convolutions before version 1.7: its compiler takes fp32, fp16, bf16 and FP8 there"
)
LARGER = "a larger --option tensorrt.workspace, or none, which is all memory of the GPU"
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
    (
        ("no tactics to implement the operation within workspace limit",),
        "for one of the layers no tactic does with the memory of the workspace",
        LARGER,
    ),
)
# It looked for a GPU, which it does for some networks and options also where targets are named.
LOOKED_FOR_GPU = ("generateForCurrent", "status == CUDA_SUCCESS")
NO_TYPE = re.compile(
    r"Cannot compile for target\(s\) ([\w, ]+), because the model contains HW-specific datatypes: (\w+)"
)
REQUESTED = re.compile(r"OutOfMemory \(Requested size was (\d+) bytes")


def explained(errors: list[str], *, has_gpu: bool, refittable: bool = False) -> tuple[str, str]:
    """Reason and hint (which may be empty) of a build that failed with ``errors``."""
    for error in errors:
        for words, reason, hint in KNOWN:
            if all(word in error for word in words):
                return reason, hint
        if lacks := NO_TYPE.search(error):
            names = ", ".join(f"{name[:-1]}.{name[-1]}" for name in re.findall(r"sm(\d+)", lacks[1]))
            type = lacks[2].partition("_")[0].upper()
            fits = "12.0" if type == "FP4" else "8.9"
            return f"GPUs of compute capability {names} have no {type}", f"--option tensorrt.compute_capability={fits}"
        if not has_gpu and any(words in error for words in LOOKED_FOR_GPU):
            if refittable:
                return "with the option refittable it builds on a GPU alone", "no refittable, or a machine with a GPU"
            return "this network it builds on a GPU alone", "a machine with a GPU"
    return condensed(errors), ""


def refittable(network: Network, config: Any) -> bool:
    """Whether the engine of ``config`` is to have weights that can be replaced."""
    flag = getattr(network.flavour.module.BuilderFlag, "REFIT", None)
    return flag is not None and bool(config.get_flag(flag))


def beyond_workspace(network: Network, config: Any, errors: list[str]) -> tuple[str, str] | None:
    """Reason and hint where memory ran out at the workspace that was asked for; ``None`` if it was the machine's."""
    sizes = [int(size) for error in errors for size in REQUESTED.findall(error)]
    pool = network.flavour.module.MemoryPoolType.WORKSPACE
    limit = int(config.get_memory_pool_limit(pool)) if sizes else 0
    if not sizes or max(sizes) <= limit or limit >= network.builder.create_builder_config().get_memory_pool_limit(pool):
        return None
    # What was requested is the workspace and something more, at any size of it: it does not tell how much is needed.
    return f"a workspace of {byte_count(limit)} is too small for it", LARGER
