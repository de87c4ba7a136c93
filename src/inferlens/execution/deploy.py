"""Models as files, and measured cases ready to use: ``inferlens export``, ``build``, ``partition``, ``load``.

``save``, ``build`` and ``partition`` run in a process of their own; backends are chosen by their abilities.
``load`` and ``export --best`` need a record of a case that ran and was right, on the same kind of GPU and with the same
versions, and the files in its folder have to be whole. They use a compiled file if there is one, then a quantized or
exported one. Else they load the model by its name, and its weights must be the same. An exported script first runs in a
fresh process: its outputs must be those of the case.
"""

from __future__ import annotations

import dataclasses
import math
import os
import runpy
import shutil
import sys
import tempfile
import warnings
import weakref
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.backends.availability import is_installed
from inferlens.backends.base import Backend, Builder, Deployer, Partitioner, Preparation, Runner, Saver
from inferlens.backends.onnx.quantize import QUANTIZED_FOLDER
from inferlens.errors import InferlensError, Unsupported, library, suggestion, unwritable
from inferlens.execution import child
from inferlens.execution.cases import ModelHandle
from inferlens.execution.protocol import CaseJob, Event, PhaseStart, PlannedCase, TaskResult, Value
from inferlens.execution.tasks import Reference, ReferenceJob, ReferenceRun, TaskContext, inputs_sha256, reference
from inferlens.measure import environment
from inferlens.measure.output_check import compare, judge
from inferlens.models import inputs, resolve
from inferlens.models.compiled import provenance_path
from inferlens.models.inputs import array_of, flatten, read_arrays
from inferlens.models.model import Array, Model, ModelInfo
from inferlens.models.weights import buffers, restore
from inferlens.record.builds import BuildReport, Partition
from inferlens.record.display import Displayed
from inferlens.record.files import make_folder
from inferlens.record.record import KEEPS_STATE, RANDOM, ModelFacts, PhaseName, Record
from inferlens.spec.case import QUANTIZED, Case, TensorSpec
from inferlens.spec.hints import alternatives
from inferlens.units import listing

CACHE = Path("results/.cache")
TIMEOUT = 900.0


# The tasks, which run in child processes.


class FileJob(CaseJob, frozen=True, kw_only=True):
    """Write the case's model to the new file ``path``; of engines, build ``builds``."""

    path: str
    builds: int = 1


def save_model(job: FileJob, context: TaskContext) -> None:
    """Write the model as the backend runs it."""
    cast("Saver", context.backend).save(context.load(), job.case, context.preparation, Path(job.path))


def build_engines(job: FileJob, context: TaskContext) -> BuildReport:
    return cast("Builder", context.backend).build(
        context.load(), job.case, context.preparation, Path(job.path), job.builds
    )


def deploy_model(job: FileJob, context: TaskContext) -> None:
    """Write the file that the backend's script loads; the measured one, unless it is to be built anew."""
    context.preparation.cached_only = not job.rebuild
    cast("Deployer", context.backend).deploy(context.load(), job.case, context.preparation, Path(job.path))


def partition_model(job: CaseJob, context: TaskContext) -> Partition:
    """Return which operators would be compiled."""
    return cast("Partitioner", context.backend).partition(context.load(), job.case, context.preparation)


# The functions that start these tasks.


def save(path: Path, case: Case, **more: Any) -> TaskResult[None]:
    """Let the backend of ``case`` write its model to ``path``; an older file stays if that fails.

    ``more`` is as in :func:`partition`. Files that belong to it, such as its provenance, are written to its folder.
    """
    return write_with(path, "save", FileJob, type(None), Saver, case, **more)


def build(path: Path, case: Case, builds: int, **more: Any) -> TaskResult[BuildReport]:
    """Let the backend of ``case`` build an engine ``builds`` times and write one to ``path``, as :func:`save` does."""
    result = write_with(path, "build", FileJob, BuildReport, Builder, case, builds=builds, **more)
    assert result.value
    return replace(result, value=replace(result.value, path=str(path)))


def partition(case: Case, **more: Any) -> TaskResult[Partition]:
    """Return which operators the backend of ``case`` would compile. Raises InferlensError if it cannot tell.

    ``more`` may have ``trust`` and ``rebuild``, as on the command line; ``cache``, a folder; ``timeout``, seconds after
    which the process is killed; and ``phase``, which is called with the names of phases.
    """
    return run_task("partition", CaseJob, Partition, Partitioner, case, **more)


def able(ability: type[ABC]) -> list[str]:
    """Return the names of the backends that have an ability, such as :class:`inferlens.backends.base.Builder`."""
    return [name for name in BACKENDS.names() if issubclass(BACKENDS.get(name), ability)]


def saver(path: Path, backend: str | None = None) -> str:
    """Return the backend that writes files with the suffix of ``path``: ``backend``, or else the first that does."""
    names = [backend.partition(":")[0]] if backend else BACKENDS.names()
    kinds = [(name, BACKENDS.get(name)) for name in reversed(names)]
    backend_by_suffix = {suffix: name for name, kind in kinds if issubclass(kind, Saver) for suffix in kind.saves}
    if path.suffix not in backend_by_suffix:
        raise InferlensError(
            f"{f'{names[0]} writes no' if backend else 'Nothing writes'} models to files named "
            f"'{path.suffix or path.name}'.",
            expected=alternatives(sorted(backend_by_suffix)) if backend_by_suffix else "another --backend",
            hint=suggestion(path.suffix, backend_by_suffix),
        )
    return backend or backend_by_suffix[path.suffix]


def run_task(
    task: str,
    form: type[CaseJob],
    returns: type[Value],
    ability: type[ABC],
    case: Case,
    *,
    cache: Path = CACHE,
    timeout: float = TIMEOUT,
    phase: Callable[[PhaseName], None] = lambda _: None,
    **fields: Any,
) -> TaskResult[Value]:
    """Return the result of a task that ended well; ``form`` is its job, with the case and ``fields``."""
    if case.backend not in able(ability):
        hint = alternatives([f"--backend {name}" for name in able(ability)])
        raise InferlensError(f"The backend '{case.backend}' cannot do that.", hint=hint)

    def hear(event: Event) -> None:
        if isinstance(event, PhaseStart):
            phase(event.phase)

    new = [path for path in (cache, *cache.parents) if not path.exists()]
    make_folder(cache, "another folder to work in")
    try:
        with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
            job = form(case=case, folder=folder, cache=str(cache.resolve()), **fields)
            outcome = child.launch(task, job, returns, timeout=timeout, on_event=hear)
    finally:
        for path in new:  # where nothing was kept
            with suppress(OSError):
                path.rmdir()
    outcome.value(case.label)
    return outcome.result


def write_with(
    path: Path, task: str, form: type[FileJob], returns: type[Value], ability: type[ABC], case: Case, **more: Any
) -> TaskResult[Value]:
    """Let a task write into a folder next to ``path`` and, once everything is there, move it to its place.

    The folder belongs to this process: it is removed also if the process that writes into it was killed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".inferlens-") as folder:
            new = Path(folder).resolve() / path.name
            result = run_task(task, form, returns, ability, case, path=str(new), **more)
            for file in sorted(Path(folder).iterdir(), reverse=True):
                os.replace(file, path.parent / file.name)
        return result
    except OSError as error:
        raise unwritable(path, error, "another name, or a folder that you may write to") from error


ANEW = "rebuild=True, which prepares it anew here and checks its outputs; on the command line --rebuild"


@dataclass(frozen=True)
class LoadPlan:
    """The plan to load a record's case: from a compiled or exported file, or the model by its name."""

    record: Record
    folder: Path
    backend: Backend
    case: Case  # as it is run here: of a compiled file, if one was kept; called from the device, with warm caches
    info: ModelInfo  # by which backends decide whether they take the model
    exported: Path | None = None  # the record's folder, if it has the model's ONNX graph or quantized file
    live: Path | None = None  # the file of the model, if it is a live one

    def job_fields(self, **fields: Any) -> dict[str, Any]:
        """Return fields of a job on the case, with those by which it finds the exported model."""
        return {"exported_model": self.model_facts, "exported": str(self.exported or ""), **fields}

    @property
    def model_facts(self) -> ModelFacts | None:
        """The facts of the model, if they suffice to load it."""
        return self.record.model if self.exported else None

    @property
    def cache(self) -> Path | None:
        """The cache folder next to the records, if it exists."""
        path = self.folder.parents[1] / ".cache"
        return path if path.is_dir() else None

    def check_weights(self, sha256: str) -> None:
        """Refuse another model than the one that was measured."""
        if self.case.model == self.record.case.model and self.record.model.weights_sha256 not in ("", sha256):
            raise InferlensError(
                f"{self.case.model} has other weights than the model that was measured.",
                expected=f"the file or the version that the record names: {self.record.model.source or 'the same'}",
                hint=ANEW,
            )


def load_plan(record: Record, folder: Path, *, rebuild: bool, model: ModelHandle | None = None) -> LoadPlan:
    """Return the plan to load a record's case. With ``rebuild`` the machine may differ from that of the record.

    ``model`` is the live model of the record, if it has one. Raises InferlensError if the case does not fit here.
    """
    label = f"{record.model.name}, {record.case.label}"
    why = record.reason.rstrip(".")
    if record.status != "ok":
        raise InferlensError(f"{label} did not run: {why}.", hint="the folder of a case that ran")
    if not record.ranked and record.agreement:
        raise InferlensError(f"The outputs of {label} are wrong: {record.agreement.reason}.", hint="another case")
    backend = BACKENDS.get(record.case.backend)()
    case = replace(record.case, io="device", cold=False, rotate=False, depth=None, python="")
    folder = folder.resolve()
    file = _compiled(record, folder, backend, rebuild=rebuild)
    quantized = any(phase.name == "quantize" for phase in record.phases)
    graph = False
    if file is None and not (rebuild and quantized):  # else the model is quantized anew
        kind = QUANTIZED_FOLDER if quantized else "onnx"
        graph = _intact_artefact(record, folder, kind, rebuild=rebuild) is not None
    if not rebuild:
        _check_machine(record, backend, with_file=graph or file is not None)
    formats = backend.capabilities().formats  # a backend takes the files that it wrote
    info = ModelInfo(spec=case.model, name=record.model.name, format=formats[0], precision=case.precision)
    if file is not None:
        info = resolve.find(str(file))
        supports = [support for support in backend.capabilities().takes(info.format) if support.device == case.device]
        variants = [support.variant for support in supports]
        variant = case.variant if case.variant in variants or not variants else variants[0]
        case = replace(case, model=info.spec, variant=variant, weights=None, inputs=(), batch=None)
    elif not graph and model and model.infos:
        (info,) = model.infos
    elif not graph:
        if case.model.startswith("live:") or case.checkout:
            whose = f"is in the checkout {case.checkout}" if case.checkout else "was handed over by a program"
            raise InferlensError(
                f"The model of {label} {whose}, so it cannot be loaded by its name.",
                expected="a model by a name, or in a file",
                hint="inferlens.bench('package.module:factory')",
            )
        path = _intact_artefact(record, folder, "model", rebuild=rebuild)
        info = resolve.find(str(path or case.model))
        case = replace(case, model=info.spec)
    if file or graph or not quantized:  # the data that the model was calibrated with need not be there
        case = replace(case, calibration="")
    live = Path(model.live) if model and model.live else None
    return LoadPlan(record, folder, backend, case, info, folder if graph else None, live)


def _intact_artefact(record: Record, folder: Path, *kinds: str, rebuild: bool) -> Path | None:
    """Return the first artefact of some kinds; ``None`` without one, or if a file has changed with ``rebuild``.

    Raises InferlensError if a file has changed or is missing.
    """
    artefacts = [artefact for artefact in record.artefacts if artefact.kind.startswith(kinds)]
    for artefact in artefacts:
        path = folder / artefact.path
        if not path.is_file() or path.stat().st_size != artefact.size:
            if rebuild:
                return None
            what = f"{path} is missing, or not the file that was measured."
            raise InferlensError(what, expected=f"{artefact.size} bytes, as its record says", hint=ANEW)
    return next((folder / artefact.path for artefact in artefacts if artefact.kind in kinds), None)


def _compiled(record: Record, folder: Path, backend: Backend, *, rebuild: bool) -> Path | None:
    """Return the file that the backend saved the case's model to; ``None`` if there is none, or it is compiled anew."""
    kinds = tuple(backend.saves.values()) if isinstance(backend, Saver) else ()
    path = _intact_artefact(record, folder, *kinds, rebuild=rebuild)
    return None if path is None or (rebuild and provenance_path(path).is_file()) else path


def _check_machine(record: Record, backend: Backend, *, with_file: bool) -> None:
    """Refuse another kind of GPU and other versions; if a file is loaded, only the libraries that load it matter."""
    here, measured = environment.collect(), record.environment
    if record.case.device == "cuda":
        before, now = (machine.gpus[0].name if machine.gpus else "no GPU" for machine in (measured, here))
        if before != now:
            raise InferlensError(f"It was measured on {before}; here is {now}.", hint=ANEW)
    libraries = {*backend.distributions, "torch"}
    if with_file and isinstance(backend, Deployer):
        libraries = {*backend.packages(record.case)} - {"numpy"}
    versions = []
    for name in sorted(libraries & measured.libraries.keys() & here.libraries.keys()):  # a backend reports missing ones
        if measured.libraries[name] != here.libraries[name]:
            versions.append(f"{name} {measured.libraries[name]} (here: {here.libraries[name]})")
    if versions:
        raise InferlensError(f"It was measured with {listing(versions)}.", hint=ANEW)


class ScriptJob(CaseJob, frozen=True, kw_only=True):
    """Run ``script`` on the inputs in ``arrays`` (.npz) and compare its outputs with those in there."""

    script: str
    arrays: str
    tolerance: float


def measured_outputs(job: ReferenceJob, context: TaskContext) -> ReferenceRun:
    """Write the outputs of the build that was measured, or of a new one if the job says so."""
    context.preparation.cached_only = not job.rebuild
    return reference(job, context)


def run_script(job: ScriptJob, context: TaskContext) -> None:
    """Run a script as an import would. Raises InferlensError if it fails, or an output is wrong."""
    inputs, expected = read_arrays(job.arrays, "input", "output")
    try:
        with context.preparation.phase("first inference"):
            script = runpy.run_path(job.script)
            outputs = _arrays(script["run"](*map(_converted, script["inputs"], inputs)))
    except Exception as error:
        raise InferlensError(f"The script that was written fails: {type(error).__name__}: {error}") from error
    result = compare(outputs, expected, job.tolerance, "")
    if result.agrees is False:
        raise InferlensError(f"The outputs of the script that was written are wrong: {result.reason}.")


def _converted(script_input: Any, array: Array) -> Any:
    """Return ``array`` with the type, device and memory order of an input that the script draws."""
    if isinstance(script_input, np.ndarray):
        return array.astype(script_input.dtype)
    import torch

    return torch.empty_like(script_input).copy_(torch.from_numpy(array))


def _arrays(outputs: Any) -> list[Array]:
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [*values] if isinstance(values[0], np.ndarray) else [array_of(tensor) for tensor in flatten(outputs)]


def export_best(
    record: Record, folder: Path, output: Path, *, rebuild: bool = False, trust: bool = False, **words: Any
) -> TaskResult[None]:
    """Write the model's file, ``run.py`` and ``requirements.txt`` of a record's case into the new folder ``output``.

    The script is run once, and its outputs are checked; nothing is left if that fails, or the case does not fit this
    machine. ``words`` are ``timeout`` and ``phase``, as in :func:`partition`.
    """
    plan = load_plan(record, folder, rebuild=rebuild)
    with new_folder(output):
        words["cache"] = plan.cache or CACHE
        fields = plan.job_fields(trust=trust, rebuild=rebuild, **words)
        versions = environment.collect().libraries if rebuild else record.environment.libraries
        result = write_script(output, plan.case, record.model.inputs, versions, **fields)
        if not (rebuild or plan.model_facts):
            plan.check_weights(result.model.weights_sha256 if result.model else "")
        _check_script(output / "run.py", plan, trust=trust, rebuild=rebuild, **words)
    return result


@contextmanager
def new_folder(output: Path) -> Iterator[None]:
    """Remove the folder again if writing into it fails. Raises InferlensError if something is in it before."""
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise InferlensError(f"{output} is there already.", expected="a new folder, or an empty one")
    try:
        yield
    except BaseException:
        shutil.rmtree(output, ignore_errors=True)
        raise


def write_script(
    output: Path, case: Case, specs: tuple[TensorSpec, ...], versions: Mapping[str, str], **fields: Any
) -> TaskResult[None]:
    """Write the model's file, ``run.py`` and ``requirements.txt`` of a case; ``fields`` are those of its job."""
    backend = BACKENDS.get(case.backend)()
    if not isinstance(backend, Deployer):
        hint = listing(able(Deployer))
        raise Unsupported(f"What {case.backend_label} runs is in no file.", expected=f"a case of {hint}")
    path = output / f"model{backend.deploy_suffix(case)}"
    result = write_with(path, "deploy", FileJob, type(None), Deployer, case, **fields)
    (output / "run.py").write_text(backend.script(case, path.name, specs), "utf-8")
    lines = [f"{name}=={versions[name]}\n" for name in backend.packages(case) if name in versions]
    (output / "requirements.txt").write_text("".join(lines), "utf-8")
    return result


def _check_script(script: Path, plan: LoadPlan, *, trust: bool, rebuild: bool, **words: Any) -> None:
    """Run a script that was written for a case in a process of its own; ``words`` are as of :func:`run_task`.

    Its outputs are compared with those of the reference, by the backend's tolerance. A case whose model was exported,
    compiled or quantized before is its own reference: the original need not be there, and its record says that it was
    right. Raises InferlensError if the script fails, or an output is wrong.
    """
    case = replace(plan.case, inputs=plan.record.model.inputs) if plan.info.origin else plan.case
    if not (plan.model_facts or plan.info.origin or plan.case.precision in QUANTIZED):
        case = PlannedCase(plan.case, plan.info, None).reference or case
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        arrays = str(Path(folder) / "arrays.npz")
        fields = plan.job_fields(trust=trust, rebuild=rebuild, path=arrays, inputs_seed=case.seed, **words)
        run_task("measured outputs", ReferenceJob, ReferenceRun, Deployer, case, **fields)
        agreement = plan.record.agreement
        tolerance = plan.backend.tolerance(plan.case) if agreement is None or agreement.repeatable else math.inf
        fields = {**words, "script": str(script.resolve()), "arrays": arrays, "tolerance": tolerance}
        run_task("script", ScriptJob, type(None), Deployer, plan.case, **fields)


FLOATS = {"float64", "float32", "float16", "bfloat16"}  # one is cast to the other
NOTHING = nullcontext()
WARMUP = 3  # calls, by which libraries compile and capture for tensors of this kind


class Deployed(Displayed):
    """A measured case as a callable, with the signature of its model: tensors by position, or by their names.

    It takes PyTorch's tensors and NumPy's arrays, of the shapes and types in ``inputs``, floats in any precision. An
    input on its device, in its type and memory order, is read in place; all others are copied there first. A call that
    replays a CUDA graph or runs ONNX Runtime on a GPU copies every input, on the device.

    It returns PyTorch's tensors on its device, in the structure of the model's outputs. If a graph does not keep the
    structure, that is a list, or the only tensor. Arrays give arrays if the library is not PyTorch and runs on the CPU.
    On a GPU outputs are written in order with PyTorch's current stream, as those of any operator: calls that are
    enqueued there later, and a copy to the host, see them complete. If a library writes to the same memory in every
    call, outputs are copies, unless ``copy`` was turned off: then the next call overwrites them.

    One thread calls it at a time. While it is open, PyTorch has the case's threads, TF32 and cuDNN settings in all of
    this process. ``close``, or leaving it as a context, restores everything.

    Attributes:
        record: what was measured.
        inputs: names, shapes and types of the inputs.
    """

    def __init__(self, plan: LoadPlan, runner: Runner, stack: ExitStack, *, copy: bool) -> None:
        """Enter ``runner`` and take over ``stack``; modes and stream of PyTorch stay as they were."""
        self.record = plan.record
        self.inputs: tuple[TensorSpec, ...] = plan.record.model.inputs
        self._runner, self._on_gpu = runner, plan.case.device == "cuda"
        with _thread_kept(self._on_gpu):
            before = _stream(self._on_gpu)
            stack.enter_context(_entered(runner, self._on_gpu))
            runner_stream = _stream(self._on_gpu)
            if runner_stream == before or runner.follows_stream:
                runner_stream = None
            ordered = self._on_gpu and (runner_stream or runner.reuses_outputs)
            self._on_stream: AbstractContextManager[None] = _OnStream(runner_stream, before) if ordered else NOTHING
            torch = sys.modules.get("torch")
            mode = torch and (torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad)
        self._mode: Callable[[], Any] = mode or nullcontext
        self._copy = copy and runner.reuses_outputs
        self._open = weakref.finalize(self, stack.pop_all().close)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the outputs. Raises InferlensError if inputs are missing, unknown, or of other shapes or types."""
        if not self._open.alive:
            raise InferlensError("This callable was closed.", hint="inferlens.load, once more")
        values = named_inputs(self.inputs, args, named)
        with self._on_stream:
            # In the caller's mode: compiled code distinguishes tensors of another mode.
            feed = self._runner.take(values)
            with self._mode():
                outputs = self._runner.give(self._runner.infer(feed))
                outputs = _map_outputs(_copy, outputs) if self._copy else outputs
        for value in values.values():
            if hasattr(value, "detach"):
                return _map_outputs(_tensor, outputs)
        return outputs

    def __repr__(self) -> str:
        case = self.record.case
        return f"<{self.record.model.name} by {case.label}: {listing([spec.brief for spec in self.inputs])}>"

    __str__ = __repr__

    def on_host(self, arrays: Mapping[str, Any]) -> list[Any]:
        """Return the outputs as arrays in order, floats as float32, as a comparison needs them."""
        with self._on_stream, self._mode():
            return self._runner.answer(dict(arrays))

    def close(self) -> None:
        """Let go of the device and of the model."""
        self._open()

    def __enter__(self) -> Deployed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _OnStream:
    """Runs one call after the other, on a stream of its own in order with the current one, or on the current one.

    A call also waits for the stream of the previous call, because work there may still read what this call writes.
    """

    def __init__(self, stream: Any, current: Any) -> None:
        self._cuda = sys.modules["torch"].cuda
        self._stream, self._current = stream, current
        self._before, self._after = self._cuda.Event(), self._cuda.Event()

    def __enter__(self) -> None:
        current = self._cuda.current_stream()
        if current != self._current:
            (self._stream or current).wait_stream(self._current)
            self._current = current
        if self._stream:
            self._before.record(current)
            self._before.wait(self._stream)
            self._cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._stream:
            self._cuda.set_stream(self._current)
            self._after.record(self._stream)
            self._after.wait(self._current)


def load(
    record: Record,
    folder: Path,
    *,
    rebuild: bool = False,
    trust: bool = False,
    copy: bool = True,
    model: ModelHandle | None = None,
) -> Deployed:
    """Return the case of a record in ``folder``, prepared in this process and called a few times."""
    plan = load_plan(record, folder, rebuild=rebuild, model=model)
    if record.model.weights_note:
        warnings.warn(record.model.weights_note, stacklevel=3)
    if refusal := plan.backend.capabilities().refusal(plan.case, plan.info):
        raise refusal
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inferlens-")))
        preparation = Preparation(scratch, plan.cache or scratch, trust=trust, export_folder=plan.exported)
        preparation.cached_only = not rebuild
        loaded = _model(plan, trust=trust, rebuild=rebuild)
        deployed = Deployed(plan, plan.backend.prepare(loaded, plan.case, preparation), stack, copy=copy)
    arrays = inputs.make_inputs(loaded, plan.case.seed)
    torch = sys.modules.get("torch")
    placed = {name: torch.from_numpy(value).to(plan.case.device) for name, value in arrays.items()} if torch else arrays
    agreement = plan.record.agreement
    state = {} if agreement is None or agreement.repeatable else buffers(loaded.module)
    try:
        for _ in range(WARMUP):
            deployed(**placed)
        restore(loaded.module, state)  # the first call of the user begins with the state of the model
        if rebuild:
            _check_outputs(deployed, plan, loaded, trust=trust)
    except BaseException:
        deployed.close()
        raise
    return deployed


def _model(plan: LoadPlan, *, trust: bool, rebuild: bool) -> Model:
    """Return the model that was measured; random weights leave PyTorch's generator as it was."""
    if plan.model_facts:
        return resolve.exported_model(plan.case, plan.model_facts)
    with library("torch", extra="torch").random.fork_rng(devices=[]) if is_installed("torch") else nullcontext():
        model = resolve.load(plan.case, trust=trust, live=plan.live)
    if not rebuild:
        plan.check_weights(model.weights_sha256)
    return dataclasses.replace(model, inputs=plan.record.model.inputs)


def _check_outputs(deployed: Deployed, plan: LoadPlan, model: Model, *, trust: bool) -> None:
    """Refuse outputs that differ from the reference's; accept them without a reference."""
    info = replace(plan.info, format=model.format)
    case = PlannedCase(plan.case, info, None).reference
    if case is None:
        return
    arrays = inputs.make_inputs(model, plan.case.seed)
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = str(Path(folder) / "reference.npz")
        job = ReferenceJob(
            case=case, folder=folder, cache=folder, trust=trust, path=path, inputs_seed=plan.case.seed,
            live=str(plan.live) if plan.live else None,
        )  # fmt: skip
        timeout = plan.record.budget.timeout
        outputs = child.launch("reference", job, ReferenceRun, timeout=timeout).result.value
        if outputs is None or outputs.weights_sha256 != model.weights_sha256:
            return
        if outputs.inputs_sha256 != inputs_sha256(arrays):
            return
        expected = Reference(name=case.label, path=path).expected()
    agreement = plan.record.agreement
    by_accuracy = agreement is not None and agreement.agrees and agreement.tolerance is None
    comparable = not by_accuracy and not expected.behavior.keys() & {RANDOM, KEEPS_STATE}
    tolerance = plan.backend.tolerance(plan.case) if comparable else math.inf
    result = judge([deployed.on_host(arrays)], expected, tolerance)
    if result.agrees is False:
        raise InferlensError(f"Prepared anew here, its outputs are wrong: {result.reason}.", hint="another case")


def named_inputs(specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs of a call by name. Raises InferlensError for the first that ``specs`` do not describe."""
    values = dict(zip([spec.name for spec in specs], args, strict=False), **named) if args else named
    if len(values) != len(specs) or len(args) + len(named) != len(specs):
        raise _misfit(specs, args, named)
    for spec in specs:
        value = values.get(spec.name)
        if getattr(value, "shape", None) != spec.shape or not _reads(spec.dtype, getattr(value, "dtype", None)):
            raise _misfit(specs, args, named)
    return values


def _misfit(specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]) -> InferlensError:
    """Return the error of a call whose inputs do not fit."""
    values = [*map(_described, args), *(f"{name}={_described(value)}" for name, value in named.items())]
    expected = listing([*map(str, specs)])
    return InferlensError(f"These inputs do not fit: {listing(values) or 'none'}.", expected=expected)


def _described(value: Any) -> str:
    """Return shape and type of a tensor or an array, or the name of another type."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return f"a {type(value).__name__}"
    return f"{'x'.join(map(str, value.shape)) or 'scalar'}:{_plain(value.dtype)}"


@cache
def _reads(taken: str, dtype: Any) -> bool:
    """Return whether an input of the type ``taken`` may have another type."""
    return _plain(dtype) == taken or {_plain(dtype), taken} <= FLOATS


def _plain(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _map_outputs(function: Callable[[Any], Any], outputs: Any) -> Any:
    """Return the same structure with ``function`` applied to every tensor and array in it."""
    if isinstance(outputs, np.ndarray) or hasattr(outputs, "detach"):
        return function(outputs)
    if isinstance(outputs, Mapping):
        return {name: _map_outputs(function, value) for name, value in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        values = [_map_outputs(function, value) for value in outputs]
        return type(outputs)(*values) if hasattr(outputs, "_fields") else type(outputs)(values)
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        names = [field.name for field in dataclasses.fields(outputs)]
        return dataclasses.replace(outputs, **{name: _map_outputs(function, getattr(outputs, name)) for name in names})
    return outputs


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value.clone()


def _tensor(value: Any) -> Any:
    return sys.modules["torch"].from_numpy(value) if isinstance(value, np.ndarray) else value


@contextmanager
def _entered(runner: Runner, on_gpu: bool) -> Iterator[None]:
    """Enter the runner, and leave it without a trace in any thread."""
    runner.__enter__()
    try:
        yield
    finally:
        with _thread_kept(on_gpu):
            runner.__exit__(None, None, None)


@contextmanager
def _thread_kept(on_gpu: bool) -> Iterator[None]:
    """Keep PyTorch's modes and current stream as before; in the context they are the usual ones.

    PyTorch's guards restore the state, also if something was entered in the context and not left.
    """
    with ExitStack() as stack:
        if torch := sys.modules.get("torch"):
            stack.enter_context(torch.inference_mode(mode=False))
            if on_gpu:
                stack.enter_context(torch.cuda.stream(torch.cuda.default_stream()))
        yield


def _stream(on_gpu: bool) -> Any:
    return sys.modules["torch"].cuda.current_stream() if on_gpu else None
