"""What there is of a record's case, and whether it fits this machine.

The record has to be of a case that ran and was right, on such a GPU and with such versions as are here, and what lies
beside it has to be whole. What was compiled for it is used if it was kept there, then what was quantized or exported;
else the model is loaded by its name, and must have the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferlens.backends import BACKENDS
from inferlens.backends.base import Backend, Deployer, Saver
from inferlens.backends.onnx.quantize import BESIDE
from inferlens.errors import InferlensError
from inferlens.execution.survey import Named
from inferlens.measure import environment
from inferlens.models import provenance, resolve
from inferlens.models.model import ModelInfo
from inferlens.record.record import ModelFacts, Record
from inferlens.spec.case import Case
from inferlens.units import listing

ANEW = "rebuild=True, which prepares it anew here and checks its outputs; on the command line --rebuild"


@dataclass(frozen=True)
class Chosen:
    """A record and what there is of its case."""

    record: Record
    folder: Path
    backend: Backend
    case: Case  # as it is run here: of a compiled file, if one was kept; called from the device, with warm caches
    info: ModelInfo  # what the model is, for what backends can take
    exported: Path | None = None  # the record's folder, if the model's ONNX graph is in it, or what was quantized
    live: Path | None = None  # the file of the model, if it is a live one

    @property
    def known(self) -> ModelFacts | None:
        """What is known of the model, if that is all that has to be."""
        return self.record.model if self.exported else None

    @property
    def cache(self) -> Path | None:
        """The folder beside the records of what is worth keeping between cases, if it is there."""
        path = self.folder.parents[1] / ".cache"
        return path if path.is_dir() else None

    def check_weights(self, sha256: str) -> None:
        """Refuses another model than the one that was measured."""
        if self.case.model == self.record.case.model and self.record.model.weights_sha256 not in ("", sha256):
            raise InferlensError(
                f"{self.case.model} has other weights than the model that was measured.",
                expected=f"the file or the version that the record names: {self.record.model.source or 'the same'}",
                hint=ANEW,
            )


def chosen(record: Record, folder: Path, *, rebuild: bool, model: Named | None = None) -> Chosen:
    """What there is of a record's case, checked to fit this machine; that may differ if it is to be built anew.

    ``model`` is that of the record, where it is a live one. Raises InferlensError if it does not fit, in one sentence.
    """
    label = f"{record.model.name}, {record.case.label}"
    why = record.reason.rstrip(".")
    if record.status != "ok":
        raise InferlensError(f"{label} did not run: {why}.", hint="the folder of a case that ran")
    if not record.ranked and record.agreement:
        raise InferlensError(f"The outputs of {label} are wrong: {record.agreement.reason}.", hint="another case")
    backend = BACKENDS.get(record.case.backend)()
    case = msgspec.structs.replace(record.case, io="device", cold=False, rotate=False, depth=None, python="")
    folder = folder.resolve()
    file = _compiled(record, folder, backend, rebuild=rebuild)
    quantized = any(phase.name == "quantize" for phase in record.phases)
    graph = file is None and not (rebuild and quantized)  # which is quantized anew
    graph = graph and _whole(record, folder, BESIDE if quantized else "onnx", rebuild=rebuild) is not None
    if not rebuild:
        _check_machine(record, backend, with_file=graph or file is not None)
    formats = backend.capabilities().formats  # what the backend wrote it takes
    info = ModelInfo(spec=case.model, name=record.model.name, format=formats[0], precision=case.precision)
    if file is not None:
        info = resolve.find(str(file))
        able = backend.capabilities().takes(info.format)
        own = any((one.variant, one.device) == (case.variant, case.device) for one in able)
        other = next((one.variant for one in able if one.device == case.device), case.variant)
        variant = case.variant if own else other
        case = msgspec.structs.replace(case, model=info.spec, variant=variant, weights=None, inputs=(), batch=None)
    elif not graph and model and model.found:
        (info,) = model.found
    elif not graph:
        if case.model.startswith("live:") or case.checkout:
            whose = f"is in the checkout {case.checkout}" if case.checkout else "was handed over by a program"
            raise InferlensError(
                f"The model of {label} {whose}, so it cannot be loaded by its name.",
                expected="a model by a name, or in a file",
                hint="inferlens.bench('package.module:factory')",
            )
        kept = _whole(record, folder, "model", rebuild=rebuild)
        info = resolve.find(str(kept or case.model))
        case = msgspec.structs.replace(case, model=info.spec)
    if file or graph or not quantized:  # then the data that the model was calibrated with need not be there
        case = msgspec.structs.replace(case, calibration="")
    live = Path(model.live) if model and model.live else None
    return Chosen(record, folder, backend, case, info, folder if graph else None, live)


def _whole(record: Record, folder: Path, *kinds: str, rebuild: bool) -> Path | None:
    """The first artefact of the record of these kinds; ``None`` if it has none, or what it has is gone and need not be.

    Raises InferlensError if it is not there as it was.
    """
    for artefact in record.artefacts:
        if not any(artefact.kind.startswith(kind) for kind in kinds):
            continue
        path = folder / artefact.path
        if not path.is_file() or path.stat().st_size != artefact.size:
            if rebuild:
                return None
            how = "is not the file that was measured" if path.is_file() else "is missing"
            raise InferlensError(f"{path} {how}.", expected=f"{artefact.size} bytes, as its record says", hint=ANEW)
    return next((folder / each.path for each in record.artefacts if each.kind in kinds), None)


def _compiled(record: Record, folder: Path, backend: Backend, *, rebuild: bool) -> Path | None:
    """The file that the backend saved the case's model to, if the record has one; what is compiled is compiled anew."""
    kinds = tuple(backend.saves.values()) if isinstance(backend, Saver) else ()
    path = _whole(record, folder, *kinds, rebuild=rebuild) if kinds else None
    return None if path is None or (rebuild and provenance.beside(path).is_file()) else path


def _check_machine(record: Record, backend: Backend, *, with_file: bool) -> None:
    here, then = environment.collect(), record.environment
    if record.case.device == "cuda":
        names = [each.gpus[0].name if each.gpus else "no GPU" for each in (then, here)]
        if names[0] != names[1]:
            raise InferlensError(f"It was measured on {names[0]}; here is {names[1]}.", hint=ANEW)
    needed = {*backend.distributions, "torch"}
    if with_file and isinstance(backend, Deployer):
        needed = {*backend.packages(record.case)} - {"numpy"}
    both = sorted(needed & then.libraries.keys() & here.libraries.keys())  # what is missing the backend itself tells
    others = [name for name in both if then.libraries[name] != here.libraries[name]]
    if others:
        said = [f"{name} {then.libraries[name]} (here: {here.libraries[name]})" for name in others]
        raise InferlensError(f"It was measured with {listing(said)}.", hint=ANEW)
