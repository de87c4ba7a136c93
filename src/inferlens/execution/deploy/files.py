"""``inferlens export --best``: the model's file, a short script that runs it, and the packages that this needs.

The script is run in a fresh process before it is handed over: its outputs must be those of the case.
"""

from __future__ import annotations

import math
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from inferlens.backends.base import Deployer
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.deploy import build
from inferlens.execution.deploy.chosen import Chosen, chosen
from inferlens.execution.expand import Planned
from inferlens.execution.measure_case import ReferenceJob, ReferenceRun, reference
from inferlens.execution.protocol import CaseJob, TaskResult
from inferlens.execution.worker import Child
from inferlens.measure import environment
from inferlens.measure.agreement import compare
from inferlens.models.inputs import array_of, flatten
from inferlens.models.model import Array
from inferlens.record.record import Record
from inferlens.spec.case import QUANTIZED
from inferlens.units import listing


class ScriptJob(CaseJob, frozen=True, kw_only=True):
    """Run ``script`` on the inputs in ``arrays`` (.npz) and compare its outputs with those in there."""

    script: str
    arrays: str
    tolerance: float


def measured_outputs(job: ReferenceJob, child: Child) -> ReferenceRun:
    """Write the outputs of what was measured, unless it is to be built anew."""
    child.preparation.kept_only = not job.rebuild
    return reference(job, child)


def run_script(job: ScriptJob, child: Child) -> None:
    """Run a script as an import would. Raises InferlensError if it fails, or an output is wrong."""
    with np.load(job.arrays) as file:
        inputs, expected = (
            [file[name] for name in file.files if name.startswith(kind)] for kind in ("input", "output")
        )
    try:
        with child.preparation.phase("first inference"):
            script = runpy.run_path(job.script)
            outputs = _arrays(script["run"](*map(_like, script["inputs"], inputs)))
    except Exception as error:
        raise InferlensError(f"The script that was written fails: {type(error).__name__}: {error}") from error
    pairs = {"its outputs": (outputs, expected)}
    if len(outputs) == len(expected):
        each = enumerate(zip(outputs, expected, strict=True), 1)
        pairs = {f"output {place} of {len(expected)}": ([output], [right]) for place, (output, right) in each}
    for which, pair in pairs.items():
        result = compare(*pair, job.tolerance, "")
        if result.agrees is False:
            raise InferlensError(f"The script that was written is wrong in {which}: {result.reason}.")


def _like(own: Any, array: Array) -> Any:
    """Return ``array`` as an input of the kind that the script draws: its type, device and memory order."""
    if isinstance(own, np.ndarray):
        return array.astype(own.dtype)
    import torch

    return torch.empty_like(own).copy_(torch.from_numpy(array))


def _arrays(outputs: Any) -> list[Array]:
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [*values] if isinstance(values[0], np.ndarray) else [array_of(tensor) for tensor in flatten(outputs)]


def write(
    record: Record, folder: Path, output: Path, *, rebuild: bool = False, trust: bool = False, **words: Any
) -> TaskResult[None]:
    """Write the model's file, ``run.py`` and ``requirements.txt`` of a record's case into the new folder ``output``.

    The script is run once, and its outputs are checked; nothing is left if that fails, or the case does not fit this
    machine. ``words``: ``timeout`` and ``phase``, as of :func:`inferlens.execution.deploy.build.partition`.
    """
    way = chosen(record, folder, rebuild=rebuild)
    if not isinstance(way.backend, Deployer):
        hint = listing(build.able(Deployer))
        raise Unsupported(f"What {way.case.backend_label} runs is in no file.", expected=f"a case of {hint}")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise InferlensError(f"{output} is there already.", expected="a new folder, or an empty one")
    path = output / f"model{way.backend.deployed_as(way.case)}"
    try:
        words["cache"] = way.cache or build.CACHE
        given = {"known": way.known, "exported": str(way.exported or ""), "trust": trust, "rebuild": rebuild, **words}
        done: TaskResult[None] = build.written(path, build.deploy_model, Deployer, way.case, **given)
        if not (rebuild or way.known):
            way.check_weights(done.model.weights_sha256 if done.model else "")
        (output / "run.py").write_text(way.backend.script(way.case, path.name, record.model.inputs), "utf-8")
        versions = environment.collect().libraries if rebuild else record.environment.libraries
        lines = [f"{name}=={versions[name]}\n" for name in way.backend.packages(way.case) if name in versions]
        (output / "requirements.txt").write_text("".join(lines), "utf-8")
        _check_script(output / "run.py", way, trust=trust, rebuild=rebuild, **words)
    except BaseException:
        shutil.rmtree(output, ignore_errors=True)
        raise
    return done


def _check_script(script: Path, way: Chosen, *, trust: bool, rebuild: bool, **words: Any) -> None:
    """Run a script that was written for a case in a process of its own; ``words`` are as of ``build.run_task``.

    Its outputs are compared with those of the reference, by the backend's tolerance. A case whose model was exported,
    compiled or quantized before is its own reference: the original need not be there, and its record says that it was
    right. Raises InferlensError if the script fails, or an output is wrong.
    """
    own = replace(way.case, inputs=way.record.model.inputs) if way.info.origin else way.case
    is_own = way.known or way.info.origin or way.case.precision in QUANTIZED
    case = (None if is_own else Planned(way.case, way.info, None).reference) or own
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        arrays = str(Path(folder) / "arrays.npz")
        given = {**words, "known": way.known, "exported": str(way.exported or ""), "trust": trust, "rebuild": rebuild}
        build.run_task(measured_outputs, ReferenceJob, Deployer, case, path=arrays, inputs_seed=case.seed, **given)
        given = {**words, "script": str(script.resolve()), "arrays": arrays}
        known = way.record.agreement
        tolerance = way.backend.tolerance(way.case) if known is None or known.repeatable else math.inf
        build.run_task(run_script, ScriptJob, Deployer, way.case, tolerance=tolerance, **given)
