"""``inferlens profile --torch-profiler``: traces of cases, each in a process of its own.

They lie as ``<output>/<model>/<case>/trace.json.gz``, or in log folders for TensorBoard, which have short names;
each is whole or not there at all. Every file is read again before the case's process ends, which says what it shows.
What an unprofiled call takes is known from a few calls of the same process, before the profiler.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.backends import BACKENDS, reference_of
from inferlens.backends.availability import imported
from inferlens.backends.profiling.traces import STEP, Tracing, write_steps
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.expand import Planned
from inferlens.execution.protocol import CaseJob, Observer, TaskResult, refused
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.survey import cases_of
from inferlens.execution.worker import Child
from inferlens.models.model import Format
from inferlens.record.record import Status, Warning
from inferlens.record.store import LOG, claimed, safe_name
from inferlens.spec.case import Case, environment_of
from inferlens.spec.plan import Plan
from inferlens.stats.samples import median
from inferlens.trace import Category, Trace, read
from inferlens.trace.steps import Intervals
from inferlens.trace.trace import Ints
from inferlens.units import percent

UNTRACED = 10  # calls before the profiler, which warm up and say what a call takes without it
SETTLED = 5  # of these, the last ones
LITTLE = 0.5  # a smaller share of a step in operators on the CPU is said
UNSEEN = (
    "The traces of {} have {} of a step in operators of PyTorch{}: torch.profiler saw no more. "
    "All its layers: inferlens profile MODEL --level {}"
)


class TraceJob(CaseJob, frozen=True, kw_only=True):
    """Trace steps of the case with torch.profiler, after ten calls without it; files go to ``folder``."""

    tracing: Tracing


class TraceContent(Struct, frozen=True, kw_only=True):
    """What a trace file, ``name``, shows."""

    name: str
    steps: tuple[float, ...]
    operators: float  # share of a step in operators of PyTorch; the largest, for a busy machine lengthens some
    gpu: float  # share of a step in which a GPU was at work, in the same way
    events: int
    notes: tuple[str, ...]  # what was amiss when it was read, a sentence each


class Files(Struct, frozen=True, kw_only=True):
    """What is in the trace files, one for each cycle, and median seconds of the last calls before the profiler."""

    shown: tuple[TraceContent, ...] = ()
    untraced: float | None = None


def trace_case(job: TraceJob, child: Child) -> Files:
    """Trace the case. Raises Unsupported without PyTorch, and InferlensError if the profiler wrote no steps."""
    _, missing = imported("torch", "PyTorch", "torch")
    if missing:
        raise Unsupported(f"Traces are torch.profiler's. {missing.reason}", hint=missing.hint)
    from torch.profiler import ProfilerActivity, supported_activities

    on_gpu = job.case.device == "cuda" and ProfilerActivity.CUDA in supported_activities()
    model = child.load()
    about = {"case": job.case.label, "model": model.name, "inputs": [str(spec) for spec in model.inputs]}
    with child.prepare(model) as runner:
        feed, untraced = child.ready(model, runner, UNTRACED)
        with child.preparation.phase("steady state"):
            text = msgspec.json.encode(about).decode()
            files = write_steps(runner, feed, job.tracing, Path(job.folder), on_gpu=on_gpu, about=text)
    shown = tuple(content_of(file.name, read(file)) for file in files)
    if not any(each.steps for each in shown):
        raise InferlensError("torch.profiler wrote no trace.", hint="more --active steps")
    return Files(shown=shown, untraced=median(untraced[-SETTLED:]))


def content_of(name: str, trace: Trace) -> TraceContent:
    """What a trace file, ``name``, shows."""
    rows = trace.rows(Category.ANNOTATION)
    steps = rows[trace.starting(rows, STEP)]
    return TraceContent(
        name=name,
        steps=tuple((trace.duration[steps] / 1e9).tolist()),
        operators=_covered(trace, trace.rows(Category.OPERATOR), steps),
        gpu=_covered(trace, trace.gpu.row, steps),
        events=len(trace),
        notes=trace.notes,
    )


def _covered(trace: Trace, rows: Ints, steps: Ints) -> float:
    covered = Intervals.of(trace, rows).covered(trace.begin[steps], trace.ends(steps))
    return max((covered / trace.duration[steps].clip(min=1)).tolist(), default=0.0)


class Traced(Files, frozen=True, kw_only=True):
    """One case's traces, or why there are none."""

    case: Case
    model: str
    status: Status  # how it ended; ``reason`` says why if not ``ok``
    reason: str = ""
    hint: str = ""
    files: tuple[Path, ...] = ()  # one for each cycle of the profiler's schedule, in order
    warnings: tuple[Warning, ...] = ()
    log: Path | None = None

    @property
    def step(self) -> float | None:
        """Median seconds of the traced steps."""
        steps = [seconds for each in self.shown for seconds in each.steps]
        return median(steps) if steps else None

    @property
    def cost(self) -> float | None:
        """How many times as long a step took as a call before the profiler."""
        return self.step / self.untraced if self.step and self.untraced else None

    @property
    def unseen(self) -> str:
        """What the traces do not show, and what does; empty if there is nothing to say."""
        if not self.shown:
            return ""
        operators, gpu = mean(each.operators for each in self.shown), mean(each.gpu for each in self.shown)
        on_gpu = self.case.device == "cuda"
        if (operators and gpu) if on_gpu else operators >= LITTLE:
            return ""
        also = f" and {percent(gpu)} on the GPU" if on_gpu else ""
        return UNSEEN.format(self.case.backend_label, percent(operators), also, "kernel" if on_gpu else "layer")


def run(plan: Plan, tracing: Tracing, tensorboard: Path | None, observer: Observer) -> Iterator[Traced]:
    """Trace every case of ``plan``; each is on disk before the next one starts."""
    if plan.repeats > 1:
        raise InferlensError("A case is traced in one process.", hint="--repeat for several cycles, not --repeats")
    observer.doing("looking at models and backends")
    cases = cases_of(plan)
    observer.planned(cases)
    scheduler = Scheduler(plan, observer)
    several = len({planned.found.spec for planned in cases}) > 1
    for planned in cases:
        observer.began(planned.case)
        model = safe_name(planned.found.name)
        if tensorboard is None:
            yield _traced(scheduler, planned, tracing, Path(plan.output) / model, planned.case.folder)
        else:
            parent = tensorboard / model if several else tensorboard
            yield _traced(scheduler, planned, tracing, parent, run_name(planned.case, planned.found.format), True)


def run_name(case: Case, format: Format) -> str:
    """Name of a case's log folder, such as ``pytorch_bs1`` or ``ttrt_fp16_bs8``; different cases of a model differ.

    Backend and precision, batch, and what else is not as usual: a variant that is not the backend's first, a device
    other than CUDA, threads, options. Of what a model of that format is compared with, fp32 is not said.
    """
    backend = BACKENDS.get(case.backend)
    words = [backend.short or case.backend]
    words += [case.variant] if case.variant not in ("", backend.variants[0]) else []
    words += [] if case.backend == reference_of(format) and case.precision == "fp32" else [case.precision]
    words += [f"bs{case.batch}"] * (case.batch is not None) + [case.device] * (case.device != "cuda")
    words += [f"t{case.threads}"] * (case.threads is not None)
    words += [word.replace(" ", "") for word in case.call_mode] + [environment_of(case.python)] * bool(case.python)
    if any((case.options, case.inputs, case.weights, case.seed, case.python)):
        options = case.options_label.replace(" ", "_")
        words += [*([options] if 0 < len(options) <= 60 else []), case.digest[:6]]
    return re.sub(r"[^\w.=-]+", "_", "_".join(words))


def _traced(
    scheduler: Scheduler, planned: Planned, tracing: Tracing, parent: Path, name: str, own_names: bool = False
) -> Traced:
    """Trace one case into the folder ``name`` in ``parent``, with the file names of PyTorch or ours."""

    def ended(result: TaskResult[Files], **more: Any) -> Traced:
        how = {key: getattr(result, key) for key in ("status", "reason", "hint", "warnings")}
        return Traced(case=planned.case, model=planned.found.name, **how, **more)

    if planned.refusal:
        return ended(refused(planned))
    folder = claimed(parent, name, hint="another folder")
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".inferlens-") as scratch:
            job = TraceJob(**scheduler.given(planned.case, Path(scratch)), tracing=tracing)
            printed = Path(scratch) / LOG
            outcome = scheduler.do(trace_case, job, log=printed)
            made = outcome.result.found or Files()
            log = None
            if outcome.result.status != "ok" and printed.exists():  # beside the folder, which will not be there
                log = printed.replace(folder.with_name(f"{folder.name}.log"))
            files = []
            for number, shown in enumerate(made.shown, 1):  # moved on one disk, so that each is whole or not there
                ours = "trace.json.gz" if number == 1 else f"trace-{number}.json.gz"
                files.append((Path(scratch) / shown.name).replace(folder / (shown.name if own_names else ours)))
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    found = {"files": tuple(files), "shown": made.shown, "untraced": made.untraced}
    return ended(outcome.result, log=log, **found)
