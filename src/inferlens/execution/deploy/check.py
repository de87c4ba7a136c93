"""The check of an exported script: in a fresh process its outputs must be those of the case that it was written for."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.backends.abilities import Deployer
from inferlens.errors import InferlensError
from inferlens.execution.deploy import build
from inferlens.execution.deploy.chosen import Chosen
from inferlens.execution.expand import Planned
from inferlens.execution.protocol import CaseJob
from inferlens.execution.worker import Child
from inferlens.measure.agreement import compare
from inferlens.models.inputs import array_of, flatten, make_inputs
from inferlens.models.model import Array
from inferlens.spec.case import QUANTIZED


class OutputsJob(CaseJob, frozen=True, kw_only=True):
    """Write the inputs of the case's seed, and the outputs for them, to the new file ``arrays`` (.npz)."""

    arrays: str


class ScriptJob(CaseJob, frozen=True, kw_only=True):
    """Run ``script`` on the inputs in ``arrays`` and compare its outputs with those in there."""

    script: str
    arrays: str
    tolerance: float


def save_outputs(job: OutputsJob, child: Child) -> None:
    """Run the case once and write inputs and outputs."""
    model = child.load()
    given = make_inputs(model, job.case.seed)
    with child.prepare(model) as runner:
        outputs = runner.collect(child.infer_first(runner, runner.place(given)))
    inputs = {f"input{place}": value for place, value in enumerate(given.values())}
    np.savez(job.arrays, **inputs, **{f"output{place}": value for place, value in enumerate(outputs)})  # type: ignore[arg-type]


def run_script(job: ScriptJob, child: Child) -> None:
    """Run a script as an import would. Raises InferlensError if it fails, or an output is wrong."""
    with np.load(job.arrays) as file:
        arrays = dict(file)
    expected = [arrays[f"output{place}"] for place in range(sum(name.startswith("output") for name in arrays))]
    try:
        with child.preparation.phase("build"):
            script = runpy.run_path(job.script)
        given = [_like(own, arrays[f"input{place}"]) for place, own in enumerate(script["inputs"])]
        with child.preparation.phase("first inference"):
            outputs = _arrays(script["run"](*given))
    except Exception as error:
        raise InferlensError(f"The script that was written fails: {type(error).__name__}: {error}") from error
    if len(outputs) != len(expected):
        raise InferlensError(f"The script that was written returns {len(outputs)} outputs, not {len(expected)}.")
    for place, (output, right) in enumerate(zip(outputs, expected, strict=True), 1):
        result = compare([output], [right], job.tolerance, "")
        if result.agrees is False:
            which = f"Output {place} of {len(expected)}" if len(expected) > 1 else "The output"
            what = f"{which} of the script that was written is wrong: {result.reason}."
            raise InferlensError(what, hint="another case, or inferlens.load")


def check_script(script: Path, way: Chosen, *, trust: bool, **words: Any) -> None:
    """Run a script that was written for a case in a process of its own.

    Its outputs are compared with those of the reference, by the backend's tolerance. A case whose model was exported,
    compiled or quantized before is its own reference: the original need not be there, and its record says that it was
    right. Raises InferlensError if the script fails, or an output is wrong. ``words`` are as of ``build.run_task``.
    """
    is_own = way.known or way.info.origin or way.case.precision in QUANTIZED
    reference = None if is_own else Planned(way.case, way.info, None).reference
    tolerance = way.backend.tolerance(way.case)
    given: dict[str, Any] = {**words, "trust": trust}
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        arrays = str(Path(folder) / "arrays.npz")
        if not reference:
            given |= {"known": way.known, "exported": str(way.exported or "")}
        build.run_task(save_outputs, OutputsJob, Deployer, reference or way.case, arrays=arrays, **given)
        given = {**words, "script": str(script.resolve()), "arrays": arrays, "tolerance": tolerance}
        build.run_task(run_script, ScriptJob, Deployer, way.case, **given)


def _like(own: Any, array: Array) -> Any:
    """Return ``array`` as an input of the kind that the script draws: its type, device and memory order."""
    if isinstance(own, np.ndarray):
        return array.astype(own.dtype)
    import torch

    return torch.empty_like(own).copy_(torch.from_numpy(array))


def _arrays(outputs: Any) -> list[Array]:
    """Return all outputs as arrays on the host."""
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    if all(isinstance(value, np.ndarray) for value in values):
        return list(values)
    return [array_of(tensor) for tensor in flatten(outputs)]
