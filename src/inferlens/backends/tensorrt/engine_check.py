"""Whether a plan can run here, told before TensorRT opens it: a plan that does not fit can take the process down.

What is known of a plan is its header and, where Inferlens built it, its provenance; the last word has the runtime's own
check, in flavours that have one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferlens.backends.tensorrt import log
from inferlens.backends.tensorrt.flavours import KINDS, Flavour
from inferlens.errors import Unsupported, one_line
from inferlens.models.engine_header import AGAIN, Library, check_version, start_of, whole
from inferlens.models.provenance import Provenance
from inferlens.record.record import Gpu

AMPERE = (8, 0)


def check_plan(plan: Path | bytes, made: Provenance | None, flavour: Flavour, gpu: Gpu | None, name: str = "") -> None:
    """Checks that ``plan``, a file or its content, is whole and for this flavour, version and GPU.

    ``made`` is its provenance, if there is one: reading that told whether the file is the one it was made for. ``gpu``
    is ``None`` where only flavour and wholeness matter; ``name`` is what messages call a plan that is no file.

    Raises:
        Unsupported: saying what it is, what would run here, and what to do.
    """
    name = name or (str(plan) if isinstance(plan, Path) else "The plan")
    header = whole(plan, name)
    if header.variant != flavour.variant:
        other = f"{KINDS[header.variant].name} {header.version}".strip()
        raise Unsupported(
            f"{name} was built by {other}; {flavour.title} cannot run it.", hint=f"--backend tensorrt:{header.variant}"
        )
    check_version(name, header, made, Library(flavour.name, flavour.version))
    if gpu is not None:
        _check_gpu(name, made, flavour, gpu)
        _ask_runtime(name, start_of(plan)[0], flavour, gpu)


def _check_gpu(name: str, made: Provenance | None, flavour: Flavour, gpu: Gpu) -> None:
    """An engine built for one GPU runs on that model alone, unless it was built to be compatible."""
    if made is None or flavour.jit or not made.gpu:  # kernels compiled when it runs: the runtime knows
        return
    level = made.options.get("hardware_compatible", "none")
    same = made.compute_capability == gpu.compute_capability
    fits = {
        "none": made.gpu == gpu.name and same,
        "same_compute_capability": same,
        "ampere_plus": _capability(gpu.compute_capability) >= AMPERE,
    }
    if not fits.get(str(level), False):
        raise Unsupported(
            f"{name} was built on {one_line(f'{made.gpu} (compute capability {made.compute_capability})')} and for it; "
            f"here is {gpu.name} ({gpu.compute_capability}).",
            hint=AGAIN,
        )


def _capability(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _ask_runtime(name: str, start: bytes, flavour: Flavour, gpu: Gpu) -> None:
    """The runtime's own check of a header, where the flavour has one.

    What it says of the compute capability alone is not taken for an answer: TensorRT for RTX has names for some only,
    and plans for 8.0 were seen to run on 9.0. Opening such a plan tells, with an error and no crash.
    """
    trt: Any = flavour.module
    if not hasattr(trt.Runtime, "get_engine_validity"):
        return
    heard = log.log(flavour)
    validity, causes = trt.Runtime(heard).get_engine_validity(start)
    if validity != trt.EngineValidity.INVALID:
        return
    members = trt.EngineInvalidityDiagnostics.__members__
    named = [name.lower().replace("_", " ") for name, word in members.items() if int(causes) & int(word)]
    if named == ["unsupported cc"]:
        return
    raise Unsupported(
        f"{name} cannot run here, on {gpu.name} with {flavour.title}: "
        f"{', '.join(named) or log.condensed(heard.errors)}.",
        hint=AGAIN,
    )
