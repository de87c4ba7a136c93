"""Inferlens: which way of running a deep-learning model is fastest on this hardware, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike
    from pathlib import Path

    from inferlens.analysis.ab_result import ABResult, ABSteps
    from inferlens.analysis.comparison import RecordComparison, compare
    from inferlens.analysis.evidence import Finding
    from inferlens.analysis.findings import findings
    from inferlens.analysis.loaded_trace import load_trace
    from inferlens.errors import InferlensError
    from inferlens.execution.ab import ab, ab_steps
    from inferlens.execution.deploy.call import Deployed
    from inferlens.execution.deploy.quantize import quantize
    from inferlens.execution.profile import profile
    from inferlens.execution.protocol import Observer
    from inferlens.record.layer_profile import Profile
    from inferlens.record.quantization import Quantization
    from inferlens.record.record import Record
    from inferlens.record.store import load_profiles
    from inferlens.spec.case import Budget, Case, TensorSpec
    from inferlens.spec.plan import Duration, Numbers, Plan, Texts
    from inferlens.views.python import Records, Tuning, load_records

__version__ = "0.1.0"
__all__ = [
    "ABResult",
    "ABSteps",
    "Budget",
    "Case",
    "Finding",
    "InferlensError",
    "Plan",
    "Profile",
    "Quantization",
    "Record",
    "RecordComparison",
    "Records",
    "TensorSpec",
    "Tuning",
    "__version__",
    "ab",
    "ab_steps",
    "bench",
    "compare",
    "export",
    "findings",
    "load",
    "load_profiles",
    "load_records",
    "load_trace",
    "profile",
    "quantize",
    "tune",
]  # fmt: skip

_HOMES = {
    "Budget": "spec.case", "Case": "spec.case", "TensorSpec": "spec.case", "Plan": "spec.plan",
    "InferlensError": "errors",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import inferlens`` stays instant."""
    if name not in __all__:
        raise AttributeError(f"module 'inferlens' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"inferlens.{_HOMES.get(name, 'views.notebook')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def bench(
    model: Any,
    example_inputs: Any = None,
    *,
    backend: Texts | None = None,
    precision: Texts | None = None,
    batch: Numbers | None = None,
    device: Texts | None = None,
    threads: Numbers | None = None,
    io: Texts | None = None,
    cold: bool = False,
    rotate: bool = False,
    depth: Numbers | None = None,
    python: Texts | None = None,
    option: Texts | Mapping[str, Any] | None = None,
    input: Texts | None = None,
    dim: Texts | Mapping[str, Numbers] | None = None,
    weights: str | PathLike[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    keep: Texts | None = None,
    accuracy: str | PathLike[str] | None = None,
    trust: bool = False,
    rebuild: bool = False,
    seed: int = 0,
    mode: Literal["latency", "throughput", "both"] | None = None,
    quick: bool = False,
    thorough: bool = False,
    within: Duration | None = None,
    threshold: float | str | None = None,
    repeats: int | None = None,
    half_width: float | str | None = None,
    iterations: int | None = None,
    seconds: Duration | None = None,
    max_time: Duration | None = None,
    warmup: int | None = None,
    timeout: Duration | None = None,
    wait: Duration | None = None,
    devices: Texts | None = None,
    ray: str | None = None,
    on: Texts | None = None,
    output: str | PathLike[str] = "results",
    reference: str | None = None,
    observer: Observer | None = None,
) -> Records:
    """Measures a model on the backends of this machine: ``print`` of what it returns shows the table.

    The keywords are the options of ``inferlens bench``: lists, text with commas, ``option={"backend.option": values}``.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``; a list of names for several models.
        example_inputs: for a live module: a tensor, a tuple of tensors, or a dict of tensors by argument name.
        observer: told what happens; by default nothing is shown.

    Returns:
        A record of each process, in the order they ended, failed ones included; they are on disk too, in ``output``.
    Raises InferlensError if the model or the keywords mean nothing. A case that fails is a record, not an error.
    """
    words = {name: value for name, value in locals().items() if name not in ("model", "example_inputs", "observer")}
    from inferlens.execution.bench import measured
    from inferlens.views.notebook import Records

    return Records(measured(model, example_inputs, words, observer), reference=reference, where=str(output))


def tune(
    model: Any,
    example_inputs: Any = None,
    *,
    backend: Texts | None = None,
    precision: Texts | None = None,
    batch: Numbers | None = None,
    device: Texts | None = None,
    threads: Numbers | None = None,
    python: Texts | None = None,
    option: Texts | Mapping[str, Any] | None = None,
    input: Texts | None = None,
    dim: Texts | Mapping[str, Numbers] | None = None,
    weights: str | PathLike[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    keep: Texts | None = None,
    accuracy: str | PathLike[str] | None = None,
    trust: bool = False,
    seed: int = 0,
    objective: Literal["latency", "latency.p95", "latency.p99", "throughput", "energy", "memory"] = "latency",
    within: Texts = (),
    budget: Duration = "10m",
    space: str | PathLike[str] | None = None,
    only: Texts = (),
    without: Texts = (),
    timeout: Duration | None = None,
    wait: Duration | None = None,
    devices: Texts | None = None,
    ray: str | None = None,
    on: Texts | None = None,
    output: str | PathLike[str] = "results",
    observer: Observer | None = None,
) -> Tuning:
    """Finds the fastest right way among all backends and their options: ``print`` of what it returns shows the answer.

    The keywords are the options of ``inferlens tune``, and mean the same. The same call goes on where one was stopped.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``; a list of names for several models.
        example_inputs: for a live module: a tensor, a tuple of tensors, or a dict of tensors by argument name.
        objective: what is to be best, such as ``"latency.p99"``.
        within: limits that the answer keeps, such as ``["error=1e-2", "memory=2GiB"]``.
        budget: seconds for all of it, or a text such as ``"15m"``.
        space: a file that says what is tried; ``only`` and ``without`` are names of what alone is tried, or is not.
        observer: told what happens; by default nothing is shown.

    Returns:
        The records of the last rounds, in which the fastest few met. ``.load()`` makes the winner ready to be called.

    Raises InferlensError if the model or the keywords mean nothing, or nothing can run here.
    """
    words = {name: value for name, value in locals().items() if name not in ("model", "example_inputs", "observer")}
    from inferlens.execution.protocol import Observer as Silent
    from inferlens.execution.tuning.several import tuned
    from inferlens.views.notebook import Tuning

    return Tuning(tuned(model, example_inputs, words, observer or Silent()), (model, example_inputs))


def load(results: str | PathLike[str], *, rebuild: bool = False, trust: bool = False, copy: bool = True) -> Deployed:
    """The fastest case of a folder of results, or the case of a folder, as a callable with its model's signature.

    It is made ready in this process as it was when it was measured, for the shapes that it was measured with, and then
    called a few times. What it takes and gives, and what is copied, stands at ``inferlens.execution.deploy.call``.

    Args:
        results: such as ``results/resnet50``, or the folder of one case in it.
        rebuild: prepare it anew where GPU, versions, weights or files are not those of the record, instead of refusing
            that; its outputs are then checked against the reference, where that can be computed.
        trust: open files that can run code.
        copy: copy outputs that the next call would overwrite.

    Raises InferlensError if it did not run or was wrong, or cannot run here as it was measured.
    """
    from inferlens.views.notebook import load as loaded
    from inferlens.views.python import best_case

    record, folder = best_case(results)
    return loaded(record, folder, rebuild=rebuild, trust=trust, copy=copy)


def export(
    results: str | PathLike[str], output: str | PathLike[str], *, rebuild: bool = False, trust: bool = False
) -> Path:
    """Write the fastest case of a folder of results, or the case of a folder, as files that run without Inferlens.

    The new folder ``output`` gets the model, ``run.py`` and ``requirements.txt``. The script is run once, and its
    outputs are checked.

    Args:
        results: such as ``results/resnet50``, or the folder of one case in it.
        output: a folder that is new or empty.
        rebuild, trust: as of :func:`load`.

    Returns:
        The folder.

    Raises InferlensError if the case is in no file, does not fit this machine, or the script's outputs are wrong.
    """
    from pathlib import Path

    from inferlens.execution.deploy.files import write
    from inferlens.views.python import best_case

    folder = Path(output)
    write(*best_case(results), folder, rebuild=rebuild, trust=trust)
    return folder
