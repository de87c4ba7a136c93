"""Whether an engine can run here, told before TensorRT opens it: one that does not fit can take the process down.

What would run code is refused unless the user asks for it: the host code of a version-compatible engine needs trust,
libraries of plugins must be named by an option. What the JSON beside the file names is not enough.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import msgspec

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.flavours import KINDS, Flavour, condensed, log
from inferlens.backends.tensorrt.options import TensorRTOptions, warn_of_built
from inferlens.backends.tensorrt.profiles import check_shapes
from inferlens.errors import InferlensError, Unsupported, one_line
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.models.sources.compiled import AGAIN, SIZE, whole
from inferlens.record.record import Gpu
from inferlens.spec.case import Case

TRUST = "--trust, if you trust who built it"


def checked_file(
    model: Model, case: Case, options: TensorRTOptions, flavour: Flavour, preparation: Preparation
) -> tuple[Provenance | None, TensorRTOptions]:
    """The provenance of the engine of ``model``, which is checked, if there is one; and the case's ``options``.

    Where those name no profile, they get that which the engine was built to run.
    """
    path = cast("Path", model.path)
    made = provenance.read(path)
    check_engine(path, made, flavour, None)
    warn_of_built(case, made, flavour, preparation)
    if made is None:
        preparation.warn(
            "unknown-origin",
            "What this engine was built from is not known, nor its precision; its outputs are not checked.",
            "Build it with inferlens build, which writes that beside it.",
        )
        return None, options
    if made.options.get("version_compatible") and not preparation.trust:
        raise InferlensError(
            f"{path} was built for later versions as well, so it holds code of its own, which runs when it is opened.",
            hint=TRUST,
        )
    libraries = one_line(str(made.options.get("plugins") or ""))
    if libraries and "plugins" not in case.options:
        raise InferlensError(
            f"{path} was built with plugins of {libraries}, which are code and loaded only if they are named.",
            hint=f"--option tensorrt.plugins={libraries}",
        )
    own = made.options.get("profile")
    if "profile" not in case.options and isinstance(own, int) and 0 <= own < len(made.profiles):
        options = msgspec.structs.replace(options, profile=own)
    if all(spec.name in profile for spec in model.inputs for profile in made.profiles) and made.profiles:
        check_shapes(made.profiles, options.profile, model.inputs)
    preparation.facts["built"] = {
        "flavour": made.flavour, "version": made.version, "gpu": made.gpu, "seconds": made.build_seconds,
        "options": made.options, "model": made.case.model,
    }  # fmt: skip
    return made, options


def check_engine(path: Path, provenance: Provenance | None, flavour: Flavour, gpu: Gpu | None) -> None:
    """Refuses an engine's file that is not whole, or not for this flavour and version, or, if it is given, this GPU.

    ``made`` is its provenance, if there is one: reading that told whether the file is the one it was made for.
    """
    header = whole(path)
    if header.variant != flavour.variant:
        raise Unsupported(
            f"{path} was built by {KINDS[header.variant].name} {header.version}; {flavour.title} cannot run it.",
            hint=f"--backend tensorrt:{header.variant}",
        )
    # Engines belong to one version (three numbers; the fourth is the build), unless built to be compatible.
    version = provenance.version if provenance is not None and provenance.version else header.version
    own, here = _numbers(version), _numbers(flavour.version)
    compatible = provenance is not None and provenance.options.get("version_compatible") and own < here
    if version and own != here and not compatible:
        raise Unsupported(
            f"{path} was built by {flavour.name} {version:.40}; {flavour.title} cannot run it.", hint=AGAIN
        )
    if gpu is not None:
        _check_gpu(path, provenance, flavour, gpu)
        _ask_runtime(path, flavour, gpu)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if re.fullmatch("[0-9]{1,9}", part))


def _check_gpu(path: Path, provenance: Provenance | None, flavour: Flavour, gpu: Gpu) -> None:
    """An engine built for one GPU runs on that model alone, unless it was built to be compatible."""
    if provenance is None or flavour.jit or not provenance.gpu:  # kernels compiled when it runs: the runtime knows
        return
    same = provenance.compute_capability == gpu.compute_capability
    fits = {
        "none": provenance.gpu == gpu.name and same,
        "same_compute_capability": same,
        "ampere_plus": int(gpu.compute_capability.partition(".")[0] or 0) >= 8,
    }
    if not fits.get(str(provenance.options.get("hardware_compatible", "none")), False):
        raise Unsupported(
            one_line(
                f"{path} was built on and for {provenance.gpu} (compute capability "
                f"{provenance.compute_capability}); here is {gpu.name} ({gpu.compute_capability})."
            ),
            hint=AGAIN,
        )


def _ask_runtime(path: Path, flavour: Flavour, gpu: Gpu) -> None:
    """The runtime's own check of a header, where the flavour has one; of the compute capability it knows too little."""
    trt: Any = flavour.module
    if not hasattr(trt.Runtime, "get_engine_validity"):
        return
    heard = log(flavour)
    with path.open("rb") as file:
        validity, causes = trt.Runtime(heard).get_engine_validity(file.read(SIZE))
    members = trt.EngineInvalidityDiagnostics.__members__
    named = [name.lower().replace("_", " ") for name, word in members.items() if int(causes) & int(word)]
    if validity == trt.EngineValidity.INVALID and named != ["unsupported cc"]:
        why = ", ".join(named) or condensed(heard.errors)
        raise Unsupported(f"{path} cannot run here, on {gpu.name} with {flavour.title}: {why}.", hint=AGAIN)
