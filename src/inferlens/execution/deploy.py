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
from inferlens.execution.cases import ModelHandle, cases_on, find, probe
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
from inferlens.spec.hints import one_of
from inferlens.spec.plan import Plan
from inferlens.units import listing

CACHE = Path("results/.cache")
TIMEOUT = 900.0


# The tasks: what the process does.


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


# The parents.


def cases(words: Mapping[str, Any], backend: str) -> list[Case]:
    """Return the cases that ``words`` mean for one model on ``backend``, whether they can be measured here or not."""
    plan = Plan.from_words({**words, "backend": backend})
    if len(plan.model) != 1:
        raise InferlensError("This command takes one model.", expected="a single name or file")
    (model,) = find(plan.model, plan=plan)
    name = backend.partition(":")[0]
    BACKENDS.get(name)  # report an unknown name before its abilities are checked
    return cases_on(plan, model, probe([name]))


def single(words: Mapping[str, Any], backend: str) -> Case:
    """Return the one case that ``words`` mean on ``backend``. Raises InferlensError for several, or none."""
    every = cases(words, backend)
    if len(every) != 1:
        raise InferlensError(f"This command takes one case, not {len(every)}.", expected="single values, no commas")
    return every[0]


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

    ``more``: ``trust`` and ``rebuild`` as on the command line; ``cache``, the folder of what is worth keeping;
    ``timeout``, seconds after which the process is killed; ``phase``, called with the names of phases.
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
            expected=one_of(sorted(backend_by_suffix)) if backend_by_suffix else "another --backend",
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
        hint = one_of([f"--backend {name}" for name in able(ability)])
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
    info: ModelInfo  # what the model is, for what backends can take
    exported: Path | None = None  # the record's folder, if the model's ONNX graph is in it, or what was quantized
    live: Path | None = None  # the file of the model, if it is a live one

    def job_fields(self, **fields: Any) -> dict[str, Any]:
        """Return fields of a job on the case, with those by which it finds what the record's folder has."""
        return {"known": self.model_facts, "exported": str(self.exported or ""), **fields}

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
    """Return how to load a record's case, checked to fit this machine; with ``rebuild`` it may differ.

    ``model`` is that of the record, where it is a live one. Raises InferlensError if it does not fit, in one sentence.
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
    graph = file is None and not (rebuild and quantized)  # which is quantized anew
    graph = graph and _whole(record, folder, QUANTIZED_FOLDER if quantized else "onnx", rebuild=rebuild) is not None
    if not rebuild:
        _check_machine(record, backend, with_file=graph or file is not None)
    formats = backend.capabilities().formats  # what the backend wrote it takes
    info = ModelInfo(spec=case.model, name=record.model.name, format=formats[0], precision=case.precision)
    if file is not None:
        info = resolve.find(str(file))
        variants = [one.variant for one in backend.capabilities().takes(info.format) if one.device == case.device]
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
        path = _whole(record, folder, "model", rebuild=rebuild)
        info = resolve.find(str(path or case.model))
        case = replace(case, model=info.spec)
    if file or graph or not quantized:  # then the data that the model was calibrated with need not be there
        case = replace(case, calibration="")
    live = Path(model.live) if model and model.live else None
    return LoadPlan(record, folder, backend, case, info, folder if graph else None, live)


def _whole(record: Record, folder: Path, *kinds: str, rebuild: bool) -> Path | None:
    """Return the first artefact of the record of some kinds; ``None`` if there is none, or with ``rebuild`` it is gone.

    Raises InferlensError if it is not there as it was.
    """
    for artefact in record.artefacts:
        if not any(artefact.kind.startswith(kind) for kind in kinds):
            continue
        path = folder / artefact.path
        if not path.is_file() or path.stat().st_size != artefact.size:
            if rebuild:
                return None
            what = f"{path} is missing, or not the file that was measured."
            raise InferlensError(what, expected=f"{artefact.size} bytes, as its record says", hint=ANEW)
    return next((folder / one.path for one in record.artefacts if one.kind in kinds), None)


def _compiled(record: Record, folder: Path, backend: Backend, *, rebuild: bool) -> Path | None:
    """Return the file that the backend saved the case's model to; ``None`` if there is none, or it is compiled anew."""
    kinds = tuple(backend.saves.values()) if isinstance(backend, Saver) else ()
    path = _whole(record, folder, *kinds, rebuild=rebuild) if kinds else None
    return None if path is None or (rebuild and provenance_path(path).is_file()) else path


def _check_machine(record: Record, backend: Backend, *, with_file: bool) -> None:
    here, then = environment.collect(), record.environment
    if record.case.device == "cuda":
        names = [one.gpus[0].name if one.gpus else "no GPU" for one in (then, here)]
        if names[0] != names[1]:
            raise InferlensError(f"It was measured on {names[0]}; here is {names[1]}.", hint=ANEW)
    needed = {*backend.distributions, "torch"}
    if with_file and isinstance(backend, Deployer):
        needed = {*backend.packages(record.case)} - {"numpy"}
    both = sorted(needed & then.libraries.keys() & here.libraries.keys())  # what is missing the backend itself tells
    others = [name for name in both if then.libraries[name] != here.libraries[name]]
    if others:
        versions = [f"{name} {then.libraries[name]} (here: {here.libraries[name]})" for name in others]
        raise InferlensError(f"It was measured with {listing(versions)}.", hint=ANEW)


class ScriptJob(CaseJob, frozen=True, kw_only=True):
    """Run ``script`` on the inputs in ``arrays`` (.npz) and compare its outputs with those in there."""

    script: str
    arrays: str
    tolerance: float


def measured_outputs(job: ReferenceJob, context: TaskContext) -> ReferenceRun:
    """Write the outputs of the measured build, unless it is to be built anew."""
    context.preparation.cached_only = not job.rebuild
    return reference(job, context)


def run_script(job: ScriptJob, context: TaskContext) -> None:
    """Run a script as an import would. Raises InferlensError if it fails, or an output is wrong."""
    inputs, expected = read_arrays(job.arrays, "input", "output")
    try:
        with context.preparation.phase("first inference"):
            script = runpy.run_path(job.script)
            outputs = _arrays(script["run"](*map(_like, script["inputs"], inputs)))
    except Exception as error:
        raise InferlensError(f"The script that was written fails: {type(error).__name__}: {error}") from error
    result = compare(outputs, expected, job.tolerance, "")
    if result.agrees is False:
        raise InferlensError(f"The outputs of the script that was written are wrong: {result.reason}.")


def _like(own: Any, array: Array) -> Any:
    """Return ``array`` as an input of the kind that the script draws: its type, device and memory order."""
    if isinstance(own, np.ndarray):
        return array.astype(own.dtype)
    import torch

    return torch.empty_like(own).copy_(torch.from_numpy(array))


def _arrays(outputs: Any) -> list[Array]:
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [*values] if isinstance(values[0], np.ndarray) else [array_of(tensor) for tensor in flatten(outputs)]


def export_best(
    record: Record, folder: Path, output: Path, *, rebuild: bool = False, trust: bool = False, **words: Any
) -> TaskResult[None]:
    """Write the model's file, ``run.py`` and ``requirements.txt`` of a record's case into the new folder ``output``.

    The script is run once, and its outputs are checked; nothing is left if that fails, or the case does not fit this
    machine. ``words``: ``timeout`` and ``phase``, as of :func:`partition`.
    """
    way = load_plan(record, folder, rebuild=rebuild)
    with new_folder(output):
        words["cache"] = way.cache or CACHE
        fields = way.job_fields(trust=trust, rebuild=rebuild, **words)
        versions = environment.collect().libraries if rebuild else record.environment.libraries
        result = write_script(output, way.case, record.model.inputs, versions, **fields)
        if not (rebuild or way.model_facts):
            way.check_weights(result.model.weights_sha256 if result.model else "")
        _check_script(output / "run.py", way, trust=trust, rebuild=rebuild, **words)
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


def _check_script(script: Path, way: LoadPlan, *, trust: bool, rebuild: bool, **words: Any) -> None:
    """Run a script that was written for a case in a process of its own; ``words`` are as of :func:`run_task`.

    Its outputs are compared with those of the reference, by the backend's tolerance. A case whose model was exported,
    compiled or quantized before is its own reference: the original need not be there, and its record says that it was
    right. Raises InferlensError if the script fails, or an output is wrong.
    """
    own = replace(way.case, inputs=way.record.model.inputs) if way.info.origin else way.case
    is_own = way.model_facts or way.info.origin or way.case.precision in QUANTIZED
    case = (None if is_own else PlannedCase(way.case, way.info, None).reference) or own
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        arrays = str(Path(folder) / "arrays.npz")
        fields = way.job_fields(trust=trust, rebuild=rebuild, path=arrays, inputs_seed=case.seed, **words)
        run_task("measured outputs", ReferenceJob, ReferenceRun, Deployer, case, **fields)
        agreement = way.record.agreement
        tolerance = way.backend.tolerance(way.case) if agreement is None or agreement.repeatable else math.inf
        fields = {**words, "script": str(script.resolve()), "arrays": arrays, "tolerance": tolerance}
        run_task("script", ScriptJob, type(None), Deployer, way.case, **fields)


FLOATS = {"float64", "float32", "float16", "bfloat16"}  # one is cast to the other
NOTHING = nullcontext()
WARMUP = 3  # calls: what is compiled for tensors of such a kind, and captured, is so then


class Deployed(Displayed):
    """A measured case as a callable, with the signature of its model: tensors by position, or by their names.

    It takes PyTorch's tensors and NumPy's arrays, of the shapes and types in ``inputs``, floats in any precision.
    What lies on its device, in its type and memory order, is read where it lies; all else is copied there first. So is
    every input, on the device, of a call that replays a CUDA graph or runs ONNX Runtime on a GPU.

    It gives PyTorch's tensors on its device, in the structure that the model returns, or a list of them where a graph
    does not keep that, or the only one. Where the library is not PyTorch and runs on the CPU, arrays give arrays. On a
    GPU outputs are written in order with PyTorch's current stream, as any operator's are: what is enqueued there next,
    and a copy to the host, sees them whole. Where a library writes to the same memory in every call, they are copies of
    that, unless ``copy`` was turned off: then the next call overwrites them.

    One thread calls it at a time. While it is open, PyTorch has the case's threads, TF32 and cuDNN settings in all of
    this process. ``close``, or leaving it as a context, gives everything back.

    Attributes:
        record: what was measured.
        inputs: names, shapes and types of the inputs.
    """

    def __init__(self, way: LoadPlan, runner: Runner, stack: ExitStack, *, copy: bool) -> None:
        """Enter ``runner`` and take over ``stack``; modes and stream of PyTorch stay as they were."""
        self.record = way.record
        self.inputs: tuple[TensorSpec, ...] = way.record.model.inputs
        self._runner, self._on_gpu = runner, way.case.device == "cuda"
        with _thread_kept(self._on_gpu):
            before = _stream(self._on_gpu)
            stack.enter_context(_entered(runner, self._on_gpu))
            own = _stream(self._on_gpu)
            if own == before or runner.follows_stream:
                own = None
            ordered = self._on_gpu and (own or runner.reuses_outputs)
            self._on_stream: AbstractContextManager[None] = _OnStream(own, before) if ordered else NOTHING
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

    A call also waits for the stream of the call before: work there may still read what a call writes.
    """

    def __init__(self, own: Any, current: Any) -> None:
        self._cuda = sys.modules["torch"].cuda
        self._own, self._current = own, current
        self._before, self._after = self._cuda.Event(), self._cuda.Event()

    def __enter__(self) -> None:
        current = self._cuda.current_stream()
        if current != self._current:
            (self._own or current).wait_stream(self._current)
            self._current = current
        if self._own:
            self._before.record(current)
            self._before.wait(self._own)
            self._cuda.set_stream(self._own)

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._cuda.set_stream(self._current)
            self._after.record(self._own)
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
    way = load_plan(record, folder, rebuild=rebuild, model=model)
    if record.model.weights_note:
        warnings.warn(record.model.weights_note, stacklevel=3)
    if refusal := way.backend.capabilities().refusal(way.case, way.info):
        raise refusal
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inferlens-")))
        preparation = Preparation(scratch, way.cache or scratch, trust=trust, export_folder=way.exported)
        preparation.cached_only = not rebuild
        loaded = _model(way, trust=trust, rebuild=rebuild)
        fast = Deployed(way, way.backend.prepare(loaded, way.case, preparation), stack, copy=copy)
    arrays = inputs.make_inputs(loaded, way.case.seed)
    torch = sys.modules.get("torch")
    placed = {name: torch.from_numpy(value).to(way.case.device) for name, value in arrays.items()} if torch else arrays
    agreement = way.record.agreement
    state = {} if agreement is None or agreement.repeatable else buffers(loaded.module)
    try:
        for _ in range(WARMUP):
            fast(**placed)
        restore(loaded.module, state)  # the first call of the user begins with the state of the model
        if rebuild:
            _check_outputs(fast, way, loaded, trust=trust)
    except BaseException:
        fast.close()
        raise
    return fast


def _model(way: LoadPlan, *, trust: bool, rebuild: bool) -> Model:
    """Return the model that was measured; random weights leave PyTorch's generator as it was."""
    if way.model_facts:
        return resolve.exported_model(way.case, way.model_facts)
    with library("torch", extra="torch").random.fork_rng(devices=[]) if is_installed("torch") else nullcontext():
        model = resolve.load(way.case, trust=trust, live=way.live)
    if not rebuild:
        way.check_weights(model.weights_sha256)
    return dataclasses.replace(model, inputs=way.record.model.inputs)


def _check_outputs(fast: Deployed, way: LoadPlan, model: Model, *, trust: bool) -> None:
    """Refuse outputs that are not those of the reference; without a reference accept them."""
    info = replace(way.info, format=model.format)
    case = PlannedCase(way.case, info, None).reference
    if case is None:
        return
    arrays = inputs.make_inputs(model, way.case.seed)
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = str(Path(folder) / "reference.npz")
        job = ReferenceJob(
            case=case, folder=folder, cache=folder, trust=trust, path=path, inputs_seed=way.case.seed,
            live=str(way.live) if way.live else None,
        )  # fmt: skip
        timeout = way.record.budget.timeout
        outputs = child.launch("reference", job, ReferenceRun, timeout=timeout).result.value
        if outputs is None or outputs.weights_sha256 != model.weights_sha256:
            return
        if outputs.inputs_sha256 != inputs_sha256(arrays):
            return
        expected = Reference(name=case.label, path=path).expected()
    agreement = way.record.agreement
    by_accuracy = agreement is not None and agreement.agrees and agreement.tolerance is None
    comparable = not by_accuracy and not expected.behavior.keys() & {RANDOM, KEEPS_STATE}
    tolerance = way.backend.tolerance(way.case) if comparable else math.inf
    result = judge([fast.on_host(arrays)], expected, tolerance)
    if result.agrees is False:
        raise InferlensError(f"Prepared anew here, its outputs are wrong: {result.reason}.", hint="another case")


def named_inputs(specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs of a call by name. Raises InferlensError for the first that ``specs`` do not describe."""
    given = dict(zip([spec.name for spec in specs], args, strict=False), **named) if args else named
    if len(given) != len(specs) or len(args) + len(named) != len(specs):
        raise _misfit(specs, args, named)
    for spec in specs:
        value = given.get(spec.name)
        if getattr(value, "shape", None) != spec.shape or not _reads(spec.dtype, getattr(value, "dtype", None)):
            raise _misfit(specs, args, named)
    return given


def _misfit(specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]) -> InferlensError:
    """Return the error of a call whose inputs do not fit."""
    given = [*map(_described, args), *(f"{name}={_described(value)}" for name, value in named.items())]
    return InferlensError(f"These inputs do not fit: {listing(given) or 'none'}.", expected=listing([*map(str, specs)]))


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
        own = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
        return dataclasses.replace(outputs, **{name: _map_outputs(function, value) for name, value in own.items()})
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
    """Keep PyTorch's modes and current stream as before; inside, modes and stream are the usual ones.

    Its guards restore the state, whatever was entered and not left inside.
    """
    with ExitStack() as stack:
        if torch := sys.modules.get("torch"):
            stack.enter_context(torch.inference_mode(mode=False))
            if on_gpu:
                stack.enter_context(torch.cuda.stream(torch.cuda.default_stream()))
        yield


def _stream(on_gpu: bool) -> Any:
    return sys.modules["torch"].cuda.current_stream() if on_gpu else None
