"""``inferlens profile``: where the time of cases goes, by a backend's own profiler or by torch.profiler.

A case is measured first without a profiler, and then profiled, in one process per level. So the record next to a
profile shows the cost of profiling.

With ``--torch-profiler`` the traces of a case lie in ``<output>/<model>/<case>/trace.json.gz``, or in log folders for
TensorBoard, which have short names. A file is complete or absent. Every file is read again before the case's
process ends. A few calls of the same process before the profiler tell how long a call takes without it.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends import BACKENDS, reference_backend
from inferlens.backends.availability import import_library
from inferlens.backends.base import LayerProfiler
from inferlens.backends.onnx.graph import read_nodes
from inferlens.backends.profiling import kernels as kernel_runs
from inferlens.backends.profiling.runs import STEP_SPAN, Tracing, write_steps
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution import child
from inferlens.execution.cases import Environments, ModelHandle, cases_of, live_files
from inferlens.execution.child import Outcome
from inferlens.execution.protocol import CaseJob, Job, Observer, PlannedCase, ResultCollector, TaskResult, refused
from inferlens.execution.resume import RunState, profile_file, reuse_earlier
from inferlens.execution.scheduler import Scheduler, open_scheduler
from inferlens.execution.tasks import TaskContext
from inferlens.measure.monitor import default_threads
from inferlens.models.model import Format
from inferlens.models.work import count as count_work
from inferlens.record.files import write_whole
from inferlens.record.profile import Ceilings, Kernels, Layers, Level, Profile, Work, decode_profile
from inferlens.record.record import WRITES_INPUTS, ModelFacts, Record, Status, Warning
from inferlens.record.store import LOG, claim_folder, safe_name, save_profile
from inferlens.spec.case import Case, environment_of
from inferlens.spec.options import checked_texts
from inferlens.spec.plan import Plan
from inferlens.stats.samples import median
from inferlens.trace.model import Category, Trace
from inferlens.trace.read import read_trace

LEVELS: tuple[Level, ...] = get_args(Level)
ALSO: dict[str, Level] = {"module": "layer"}  # words for a level by what it shows
RUNS = 50
WARMUP = 10
RECIPE = "2"  # part of the name of ceilings that are kept: another way of measuring has another
CEILINGS_TIMEOUT = 120.0
CEILINGS_LIBRARY = "torch"


class ProfileJob(CaseJob, frozen=True, kw_only=True):
    """Profile the case at ``level``, in ``runs`` calls after :data:`WARMUP` others."""

    runs: int


class ProfileResult(Struct, frozen=True, kw_only=True):
    """The fields of a profile that its process tells."""

    layers: Layers | None = None
    kernels: Kernels | None = None
    work: Work | None = None


def profile_case(job: ProfileJob, context: TaskContext) -> ProfileResult:
    """Profile the layers or the kernels of the case. Raises Unsupported if the backend cannot tell these here."""
    label = job.case.backend_label
    if job.level == "kernel":
        if job.case.device != "cuda":
            what = f"Kernels are what a GPU runs, and {label} runs on the {job.case.device} here."
            raise Unsupported(what, hint="--level layer, or --device cuda")
        kernel_runs.check_profiler()
    model = context.load()
    context.value = result = ProfileResult(work=count_work(model, job.case, makers))
    runner = context.prepare(model)
    if job.level == "layer" and not isinstance(runner, LayerProfiler):
        raise Unsupported(f"{label} does not report its layers.")
    with runner:
        feed, _ = context.warm_up(model, runner, WARMUP)
        with context.preparation.phase("steady state"):
            if isinstance(runner, LayerProfiler) and job.level == "layer":
                return replace(result, layers=runner.profile_layers(feed, job.runs))
            return replace(result, kernels=kernel_runs.trace_kernels(runner, feed, job.runs, label))


def makers(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the paths of the modules that compute the tensors of an ONNX file, by the name of the tensor."""
    return {name: node.modules for node in read_nodes(path).nodes for name in node.outputs}


def levels_of(value: Any) -> tuple[Level, ...]:
    """Return the levels that words name. Modules are no level of their own: layers are traced to them."""
    words = checked_texts("level", value, (*LEVELS, *ALSO))
    return tuple(dict.fromkeys(ALSO.get(word, word) for word in words))  # type: ignore[arg-type]


def run(
    plan: Plan, levels: Sequence[Level], runs: int, observer: Observer, model: ModelHandle | None = None
) -> list[tuple[Profile, Path]]:
    """Measure and profile every case of ``plan``; return the profiles with their folders.

    Each profile is on disk before the next case. Profiles of earlier runs of the same request are used again.
    """
    check_repeats(plan)
    results = ResultCollector(observer)
    results.doing("looking at models and backends")
    cases = cases_of(plan, model)
    results.planned(cases)
    environments = Environments()
    state = reuse_earlier(RunState(), "profile", plan, cases, model, environments, results, levels, runs)
    with open_scheduler(plan, results, cases, live_files(model), state, environments) as scheduler:
        profile_cases(scheduler, cases, levels, runs)
    return profiles_of(results, levels)


def check_repeats(plan: Plan) -> None:
    """Refuse a plan of several processes per case."""
    if plan.repeats > 1:
        raise InferlensError("A case is profiled in one process for each level.", hint="without --repeats")


def profiles_of(results: ResultCollector, levels: Sequence[Level]) -> list[tuple[Profile, Path]]:
    """Return the profiles of a run with their folders."""
    folders = [results.folders[record.id] for record in results.records]
    return [
        (decode_profile(profile_file(folder, level).read_bytes()), folder) for folder in folders for level in levels
    ]


def profile_cases(scheduler: Scheduler, cases: Sequence[PlannedCase], levels: Sequence[Level], runs: int) -> None:
    """Measure and profile the cases that have no record yet."""
    digests = {record.case.digest for record in scheduler.state.records}
    ceilings: dict[tuple[str, int | None], Ceilings] = {}
    for planned in (planned for planned in cases if planned.case.digest not in digests):
        record, folder = scheduler.measure(planned)
        for level in levels:
            scheduler.observer.doing(f"{planned.case.label}: profiling {level}s")
            profile = _profile(scheduler, record, folder, level, runs)
            save_profile(folder, profile)
            if profile.status == "ok" and profile.work and profile.work.modules:
                key = planned.case.device, planned.case.threads
                if key not in ceilings:
                    scheduler.observer.doing("what the device reaches at best")
                    ceilings[key] = ceilings_of(planned.case, scheduler)
                save_profile(folder, replace(profile, ceilings=ceilings[key]))
        scheduler.observer.kept(folder)


def _profile(scheduler: Scheduler, record: Record, folder: Path, level: Level, runs: int) -> Profile:
    """Return the profile of a case that was measured; if measuring failed, with the reason of that."""
    outcome: Outcome[ProfileResult] = Outcome(
        TaskResult(status=record.status, reason=record.reason, hint=record.hint, model=record.model)
    )
    if record.status == "ok":  # the build that was measured is profiled
        fields = {**scheduler.job_fields(record.case, folder), "rebuild": False}
        job = ProfileJob(**fields, level=level, runs=runs)
        outcome = scheduler.launch("profile", job, ProfileResult, log=folder / f"profile-{level}.log")
    result = outcome.result
    model_facts = result.model or ModelFacts(name="") if outcome.answered else record.model
    return Profile(
        id=uuid.uuid4().hex,
        record=record.id,
        created=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        case=record.case,
        level=level,
        runs=runs,
        status=result.status,
        reason=result.reason,
        hint=result.hint,
        output_tail=outcome.tail,
        model=replace(model_facts, name=record.model.name),
        environment=record.environment,
        phases=result.phases,
        facts=result.facts,
        warnings=(*result.warnings, *(_input_warnings(record) if record.status == "ok" else ())),
        **msgspec.structs.asdict(result.value or ProfileResult()),
    )


def _input_warnings(record: Record) -> Iterator[Warning]:
    """Yield a warning of a model that writes into its inputs."""
    behavior = record.agreement.behavior if record.agreement else {}
    if why := behavior.get(WRITES_INPUTS):
        message = f"{why[0].upper()}{why[1:]}. Each profiled call goes on with what the call before wrote."
        yield Warning("inputs-not-renewed", message, "A model that copies its input first.")


class CeilingsJob(Job, frozen=True, kw_only=True):
    """The arguments of :func:`inferlens.measure.ceilings.measure`."""

    device: str
    name: str
    threads: int | None = None


def measure_ceilings(job: CeilingsJob, context: TaskContext) -> Ceilings:  # noqa: ARG001 - there is no case
    from inferlens.measure import ceilings

    return ceilings.measure(job.device, job.name, job.threads)


def ceilings_of(case: Case, scheduler: Scheduler) -> Ceilings:
    """Return the ceilings of the device and threads of ``case``; without a bandwidth, and with the reason, if unknown.

    They are measured in a process of their own, and kept in the cache folder for as long as machine and library stay,
    unless something else on the machine lowered them.
    """
    machine, threads = scheduler.environments.here, None
    if case.device == "cpu":
        name, threads = machine.cpu or "CPU", case.threads or default_threads()[0]
        device_key: list[object] = [machine.cpu_threads, threads]
    else:
        name, device_key = machine.gpus[0].name if machine.gpus else case.device, [machine.driver]
    key = [RECIPE, name, *device_key, machine.libraries.get(CEILINGS_LIBRARY), sorted(machine.variables.items())]
    file = scheduler.cache / f"ceilings-{hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:12]}.json"
    if not scheduler.plan.rebuild:
        with suppress(OSError, msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(file.read_bytes(), type=Ceilings)
    job = CeilingsJob(device=case.device, name=name, threads=threads)
    result = child.launch("ceilings", job, Ceilings, timeout=CEILINGS_TIMEOUT).result
    ceilings = result.value or Ceilings(device=name, bandwidth=0.0, rates={}, absent={"all": result.reason})
    if result.value and not ceilings.disturbed:
        write_whole(file, msgspec.json.format(msgspec.json.encode(ceilings), indent=1) + b"\n")
    return ceilings


UNTRACED = 10  # calls before the profiler, which warm up and show how long a call takes without it
SETTLED = 5  # the number of the last ones, from which that time is taken
UNSEEN = "The traces of {} have no operators of PyTorch. Its layers: inferlens profile MODEL"


class TraceJob(CaseJob, frozen=True, kw_only=True):
    """Trace steps of the case with torch.profiler, after ten calls without it; files go to ``folder``."""

    tracing: Tracing


class TraceContent(Struct, frozen=True):
    """A summary of the trace file ``name``."""

    name: str
    steps: tuple[float, ...]
    operators: int  # number of calls of operators of PyTorch
    events: int
    notes: tuple[str, ...]  # sentences on damage to the file


class TraceFiles(Struct, frozen=True, kw_only=True):
    """Summaries of the trace files, one per cycle, and median seconds of the last calls before the profiler."""

    contents: tuple[TraceContent, ...] = ()
    untraced: float | None = None


def trace_case(job: TraceJob, context: TaskContext) -> TraceFiles:
    """Trace the case. Raises Unsupported without PyTorch, and InferlensError if the profiler wrote no steps."""
    _, missing = import_library("torch", "PyTorch", "torch")
    if missing:
        raise Unsupported(f"Traces are torch.profiler's. {missing.reason}", hint=missing.hint)
    from torch.profiler import ProfilerActivity, supported_activities

    on_gpu = job.case.device == "cuda" and ProfilerActivity.CUDA in supported_activities()
    model = context.load()
    metadata = {"case": job.case.label, "model": model.name, "inputs": [str(spec) for spec in model.inputs]}
    with context.prepare(model) as runner:
        feed, untraced = context.warm_up(model, runner, UNTRACED)
        with context.preparation.phase("steady state"):
            text = msgspec.json.encode(metadata).decode()
            files = write_steps(runner, feed, job.tracing, Path(job.folder), on_gpu=on_gpu, about=text)
    contents = tuple(_content_of(file.name, read_trace(file)) for file in files)
    if not any(content.steps for content in contents):
        raise InferlensError("torch.profiler wrote no trace.", hint="more --active steps")
    return TraceFiles(contents=contents, untraced=median(untraced[-SETTLED:]))


def _content_of(name: str, trace: Trace) -> TraceContent:
    rows = trace.rows(Category.ANNOTATION)
    steps = rows[trace.starting(rows, STEP_SPAN)]
    seconds = tuple((trace.duration[steps] / 1e9).tolist())
    return TraceContent(name, seconds, len(trace.rows(Category.OPERATOR)), len(trace), trace.notes)


class CaseTrace(TraceFiles, frozen=True, kw_only=True):
    """The traces of a case, or why there are none."""

    case: Case
    model: str
    status: Status  # how it ended; ``reason`` says why if not ``ok``
    reason: str = ""
    hint: str = ""
    files: tuple[Path, ...] = ()  # one per cycle of the profiler's schedule, in order
    warnings: tuple[Warning, ...] = ()
    log: Path | None = None

    @property
    def step(self) -> float | None:
        """Median seconds of the traced steps."""
        steps = [seconds for content in self.contents for seconds in content.steps]
        return median(steps) if steps else None

    @property
    def cost(self) -> float | None:
        """The factor between a step and a call before the profiler."""
        return self.step / self.untraced if self.step and self.untraced else None

    @property
    def unseen(self) -> str:
        """A sentence about traces of a backend whose work torch.profiler does not see; else empty."""
        if not self.contents or any(content.operators for content in self.contents):
            return ""
        return UNSEEN.format(self.case.backend_label)


def trace_cases(plan: Plan, tracing: Tracing, tensorboard: Path | None, observer: Observer) -> Iterator[CaseTrace]:
    """Trace every case of ``plan``; a trace is on disk before the next case starts."""
    if plan.repeats > 1:
        raise InferlensError("A case is traced in one process.", hint="--repeat for several cycles, not --repeats")
    observer.doing("looking at models and backends")
    cases = cases_of(plan)
    observer.planned(cases)
    scheduler = Scheduler(plan, observer)
    several = len({planned.model.spec for planned in cases}) > 1
    for planned in cases:
        observer.began(planned.case)
        model = safe_name(planned.model.name)
        if tensorboard is None:
            yield _trace(scheduler, planned, tracing, Path(plan.output) / model, planned.case.folder)
        else:
            parent = tensorboard / model if several else tensorboard
            yield _trace(scheduler, planned, tracing, parent, run_name(planned.case, planned.model.format), True)


def run_name(case: Case, format: Format) -> str:
    """Return the name of a case's log folder, such as ``pytorch_bs1``; different cases of a model differ.

    It has backend, precision and batch, and all that is unusual: a variant that is not the backend's first, a device
    other than CUDA, threads, and a hash of the rest. fp32 is left out for models that are compared in fp32.
    """
    backend = BACKENDS.get(case.backend)
    words = [backend.short or case.backend]
    words += [case.variant] if case.variant not in ("", backend.variants[0]) else []
    words += [] if case.backend == reference_backend(format) and case.precision == "fp32" else [case.precision]
    words += [f"bs{case.batch}"] * (case.batch is not None) + [case.device] * (case.device != "cuda")
    words += [f"t{case.threads}"] * (case.threads is not None)
    words += [word.replace(" ", "") for word in case.call_mode] + [environment_of(case.python)] * bool(case.python)
    if any((case.options, case.inputs, case.weights, case.seed, case.python)):
        words += [case.digest[:6]]
    return re.sub(r"[^\w.=-]+", "_", "_".join(words))


def _trace(
    scheduler: Scheduler, planned: PlannedCase, tracing: Tracing, parent: Path, name: str, own_names: bool = False
) -> CaseTrace:
    """Trace one case into the folder ``name`` in ``parent``, with the file names of PyTorch or ours."""

    def case_trace(result: TaskResult[TraceFiles], **fields: Any) -> CaseTrace:
        fields |= {name: getattr(result, name) for name in ("status", "reason", "hint", "warnings")}
        return CaseTrace(case=planned.case, model=planned.model.name, **fields)

    if planned.refusal:
        return case_trace(refused(planned))
    folder = claim_folder(parent, name, hint="another folder")
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".inferlens-") as scratch:
            job = TraceJob(**scheduler.job_fields(planned.case, Path(scratch)), tracing=tracing)
            printed = Path(scratch) / LOG
            outcome = scheduler.launch("trace", job, TraceFiles, log=printed)
            traces = outcome.result.value or TraceFiles()
            log = None
            if outcome.result.status != "ok" and printed.exists():  # next to the folder, which is removed if empty
                log = printed.replace(folder.with_name(f"{folder.name}.log"))
            files = []
            for number, content in enumerate(traces.contents, 1):  # a move on one disk is never half done
                ours = "trace.json.gz" if number == 1 else f"trace-{number}.json.gz"
                files.append((Path(scratch) / content.name).replace(folder / (content.name if own_names else ours)))
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    fields = {"files": tuple(files), "contents": traces.contents, "untraced": traces.untraced}
    return case_trace(outcome.result, log=log, **fields)
