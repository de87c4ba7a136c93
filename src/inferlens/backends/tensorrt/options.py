"""Options of the backend ``tensorrt``, and warnings of those that do nothing: of a flavour, or for a built engine.

Several values in one option are joined by ``+``, profiles by ``;`` (commas make axes of a plan).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from inferlens.backends.availability import warn_unheeded
from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.models.provenance import Provenance
from inferlens.spec.case import Case

# TensorRT for RTX 1.6 gave the same engine, byte for byte, at every value of these (docs/tensorrt.md).
OF_TACTICS = ("optimization_level", "max_num_tactics", "tactic_sources", "avg_timing_iterations", "sparsity")
LARGEST = 2**31 - 2
Compatible = Literal["none", "ampere_plus", "same_compute_capability"]
Verbosity = Literal["detailed", "layer_names_only", "none"]


class TensorRTOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of TensorRT and TensorRT for RTX."""

    optimization_level: Annotated[int, Meta(description="how long the builder searches, 0 to 5 (trt)", ge=0, le=5)] = 3
    max_num_tactics: Annotated[
        int, Meta(description="most tactics that are tried for a layer; 0: TensorRT's choice (trt)", ge=0, le=LARGEST)
    ] = 0
    tactic_sources: Annotated[
        str, Meta(description="where tactics come from, joined by +, or none; empty: TensorRT's choice (trt)")
    ] = ""
    workspace: Annotated[
        int, Meta(description="most GPU memory for a tactic, in MiB; 0: all of it", ge=0, le=2**43 - 1)
    ] = 0
    avg_timing_iterations: Annotated[
        int, Meta(description="how often a tactic is timed; the mean counts (trt)", ge=1, le=LARGEST)
    ] = 1
    timing_cache: Annotated[str, Meta(description="file that keeps timings of tactics (rtx: compiled kernels)")] = ""
    profiles: Annotated[
        str, Meta(description="optimization profiles, as MIN/OPT/MAX shapes; empty: one, from the inputs")
    ] = ""
    profile: Annotated[int, Meta(description="which of the profiles runs, from 0", ge=0)] = 0
    version_compatible: Annotated[bool, Meta(description="an engine for later versions of TensorRT too (trt)")] = False
    hardware_compatible: Annotated[Compatible, Meta(description="an engine for more models of GPU (trt)")] = "none"
    compute_capability: Annotated[
        str,
        Meta(
            description="GPUs to build for, such as 8.0+8.9; also without a GPU (rtx); empty: the GPU here",
            pattern="^$|[0-9]",
        ),
    ] = ""
    sparsity: Annotated[bool, Meta(description="let tactics use weights of which two in four are zero (trt)")] = False
    plugins: Annotated[str, Meta(description="libraries of plugins to load, joined by +")] = ""
    refittable: Annotated[bool, Meta(description="an engine whose weights can be replaced")] = False
    profiling_verbosity: Annotated[Verbosity, Meta(description="what the engine keeps of its layers")] = "detailed"
    weakly_typed: Annotated[
        bool, Meta(description="let the builder lower the precision of an fp32 graph (TensorRT 10)")
    ] = False
    tf32: Annotated[bool, Meta(description="TF32 in fp32 convolutions and matrix products; off: fp32 is fp32")] = False
    ranges: Annotated[
        Literal["minmax", "entropy", "percentile"],
        Meta(description="how the range of a tensor to quantize follows from its values in the calibration"),
    ] = "minmax"
    cuda_graph: Annotated[bool, Meta(description="capture the call in a CUDA graph once and replay it")] = False
    streams: Annotated[int, Meta(description="calls side by side for throughput, each with its own context", ge=1)] = 1


def heeded(jit: bool) -> tuple[str, ...]:
    """The options that an engine from a file has; ``jit``: of a flavour that compiles kernels when it runs."""
    return ("profile", "cuda_graph", "streams", "plugins", *(["timing_cache"] * jit))


def warn_of_tactics(options: TensorRTOptions, flavour: Flavour, preparation: Preparation) -> None:
    """Warns of options for the choice of tactics where none are timed."""
    if flavour.jit:
        warn_unheeded(options, OF_TACTICS, f"{flavour.name} times no tactics.", preparation)


def warn_of_built(case: Case, provenance: Provenance | None, flavour: Flavour, preparation: Preparation) -> None:
    """Warns of options of the builder for an engine from a file, unless it was built with those values."""
    own = msgspec.structs.asdict(TensorRTOptions()) | (provenance.options if provenance is not None else {})
    for name, value in case.options.items():
        if name not in heeded(flavour.jit) and own.get(name) != value:
            preparation.warn("no-effect", f"{name} does nothing: the engine is built already.", "Leave it out there.")
