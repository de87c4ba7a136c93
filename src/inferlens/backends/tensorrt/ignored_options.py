"""Options that were asked for and do nothing: a flavour that does not heed them, an engine that is built already."""

from __future__ import annotations

import msgspec

from inferlens.backends.availability import warn_unheeded
from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.options import Options
from inferlens.models.provenance import Provenance
from inferlens.spec.case import Case

# TensorRT for RTX 1.6 gave the same plan, byte for byte, at every value of these: for a convolution with ReLU, for
# resnet18 in fp32 and fp16, for mobilenet_v2 in fp16, and (sparsity) for weights of which two in four are zero.
OF_TACTICS = ("optimization_level", "max_num_tactics", "tactic_sources", "avg_timing_iterations", "sparsity")


def heeded(jit: bool) -> tuple[str, ...]:
    """The options that an engine from a file has; ``jit``: of a flavour that compiles kernels when it runs."""
    return ("profile", "cuda_graph", "streams", "plugins", *(["timing_cache"] * jit))


def warn_of_tactics(options: Options, flavour: Flavour, preparation: Preparation) -> None:
    """Says of options for the choice of tactics that they do nothing where none are timed."""
    if flavour.jit:
        why = f"{flavour.name} times no tactics, and its plan is the same at any value."
        warn_unheeded(options, OF_TACTICS, why, preparation)


def warn_of_kernels(options: Options, flavour: Flavour, preparation: Preparation) -> None:
    """Says of a file for kernels that a build, which compiles none, does not touch it."""
    if flavour.jit and options.timing_cache:
        preparation.warn(
            "no-effect",
            f"timing_cache does nothing in a build: {flavour.name} compiles its kernels when an engine runs.",
            "Leave it out here, and give it to what runs the engine.",
        )


def warn_of_built(case: Case, made: Provenance | None, flavour: Flavour, preparation: Preparation) -> None:
    """Says of options of the builder that they do nothing for an engine from a file, unless it has those values."""
    own = msgspec.structs.asdict(Options()) | (made.options if made is not None else {})
    for name, value in case.options.items():
        if name not in heeded(flavour.jit) and own.get(name) != value:
            preparation.warn(
                "no-effect",
                f"{name} does nothing: {case.model.partition(':')[2]} is built already.",
                "Leave it out, or build the engine again with it.",
            )
