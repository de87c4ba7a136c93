"""Which GPUs an engine is built for: the one here, or (TensorRT for RTX) compute capabilities that are named."""

from __future__ import annotations

from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.options import words
from inferlens.errors import InferlensError, Unsupported
from inferlens.record.record import Gpu

OTHERS = "a machine with a GPU, or --backend tensorrt:rtx"


def targets(compute_capability: str, flavour: Flavour, gpu: Gpu | None) -> tuple[str, ...]:
    """Compute capabilities to build for, from ``8.0+8.9``, in ascending order; empty is the GPU here.

    Raises:
        InferlensError: if the text is not empty and names none.
        Unsupported: if the flavour cannot build for them, or there is no GPU and none is named.
    """
    known = flavour.targets
    named = words(compute_capability)
    if not named and compute_capability:
        raise InferlensError(
            "The option compute_capability names no GPU.", expected="compute capabilities, such as 8.9 or 8.0+8.9"
        )
    if not named:
        if gpu is None:
            raise Unsupported(
                f"There is no GPU here that {flavour.name} could build an engine for.",
                hint=f"--option tensorrt.compute_capability={'+'.join(known)}, or some of these" if known else OTHERS,
            )
        return ()
    if not known:
        raise Unsupported(
            f"{flavour.title} builds for the GPU of the machine alone, not for {', '.join(named)}.",
            hint="leave the option compute_capability out, or --backend tensorrt:rtx",
        )
    unknown = [name for name in named if name not in known]
    if unknown:
        raise Unsupported(
            f"{flavour.title} cannot build for compute capability {', '.join(unknown)}.",
            expected=f"some of {', '.join(known)}",
            hint="leave the option out on a machine with such a GPU: it builds for the GPU there",
        )
    return tuple(name for name in known if name in named)
