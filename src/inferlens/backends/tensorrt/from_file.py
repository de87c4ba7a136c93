"""An engine from a file: what tells of it, and what running it needs that its file alone does not say.

Whatever runs code is refused unless the user asks for it: the host code of a version-compatible plan needs trust, and
libraries of plugins are loaded only if an option of this run names them. What the file's own JSON names is not enough:
nobody knows who wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.engine_check import check_plan
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.gpu import current_gpu
from inferlens.backends.tensorrt.ignored_options import warn_of_built
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.profiles import check_shapes
from inferlens.errors import InferlensError, one_line
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.spec.case import Case

TRUST = "--trust, if you trust who built it"


@dataclass(frozen=True)
class PlanFile:
    """A file, what lies beside it, and the options that the engine in it runs with."""

    path: Path
    made: Provenance | None
    flavour: Flavour
    options: Options

    def plan(self) -> bytes:
        """The content, if it can run on the GPU here.

        Raises:
            Unsupported: if it was built for something else.
        """
        check_plan(self.path, self.made, self.flavour, current_gpu())
        return self.path.read_bytes()

    def hint(self, trusted: bool) -> str:
        """What may help if TensorRT cannot open it: nothing but the runtime tells that a file holds code."""
        return f"if it is version-compatible, {TRUST}" if self.made is None and not trusted else ""


def engine_file(model: Model, case: Case, options: Options, flavour: Flavour, preparation: Preparation) -> PlanFile:
    """The engine of ``model``, with the case's ``options``; where they name no profile, with that it was built to run.

    What is known of the file without a GPU is checked.

    Raises:
        InferlensError: if it would run code that was not asked for, has no such profile, or takes other shapes.
        Unsupported: if it is damaged, or was built by another flavour or version.
    """
    assert model.path is not None
    made = provenance.read(model.path)
    check_plan(model.path, made, flavour, None)
    warn_of_built(case, made, flavour, preparation)
    if made is None:
        preparation.warn(
            "unknown-origin",
            "Nothing tells what this engine was built from: its precision is not known, its outputs not checked.",
            "Build engines with inferlens build, which writes that beside them.",
        )
        return PlanFile(model.path, None, flavour, options)
    _check_code(model.path, made, case, preparation.trust)
    own = made.options.get("profile")
    if "profile" not in case.options and isinstance(own, int) and 0 <= own < len(made.profiles):
        options = msgspec.structs.replace(options, profile=own)
    if all(spec.name in profile for spec in model.inputs for profile in made.profiles) and made.profiles:
        check_shapes(made.profiles, options.profile, model.inputs)
    preparation.facts["built"] = {
        "flavour": made.flavour, "version": made.version, "gpu": made.gpu, "seconds": made.build_seconds,
        "options": made.options, "model": made.case.model,
    }  # fmt: skip
    return PlanFile(model.path, made, flavour, options)


def _check_code(path: Path, made: Provenance, case: Case, trusted: bool) -> None:
    """What would run code is asked for.

    Raises:
        InferlensError: saying how to, if it is not.
    """
    if made.options.get("version_compatible") and not trusted:
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
