"""Traces of cases by torch.profiler: each case in a process of its own, its files whole or not there at all.

They lie as ``<output>/<model>/<case>/trace.json.gz``, or in log folders for TensorBoard, which have short names.
Nothing is measured for them: what an ordinary call takes is told by a few calls of the same process, before the
profiler.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.backends import BACKENDS, reference_of
from inferlens.backends.profiling.step_traces import Tracing
from inferlens.errors import InferlensError
from inferlens.execution import run as api
from inferlens.execution.expand import Planned, backends_named, expand
from inferlens.execution.observer import Observer, Silent
from inferlens.execution.protocol import Began, Event, Shown, TraceAnswer, TraceJob
from inferlens.execution.subprocess import Outcome, launch
from inferlens.models.model import Format
from inferlens.record.record import Status, Warning
from inferlens.record.store import LOG, cache_in, claimed, safe_name
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan
from inferlens.spec.plan_words import count, flag
from inferlens.stats.quantiles import median
from inferlens.units import percent

UNTRACED = 10  # calls before the profiler, which warm up and say what a call takes without it
SETTLED = 5  # of these, the last ones
LITTLE = 0.5  # a smaller share of a step in what the profiler sees is told
TRACE = "trace.json.gz"
LEAST = {"wait": 0, "warmup": 0, "active": 1, "repeat": 1}
FLAGS = ("stacks", "memory", "shapes")
STEPS_ALONE = (
    "The traces of {} have the steps alone: on the CPU torch.profiler sees operators of PyTorch, and it calls none. "
    "Its layers: inferlens profile MODEL --level layer"
)
LITTLE_SEEN = (
    "The traces of {} have {} of a step in operators of PyTorch, and torch.profiler sees no others on the CPU. "
    "All its layers: inferlens profile MODEL --level layer"
)
NO_GPU = (
    "The traces of {} have nothing that ran on the GPU: torch.profiler saw none of it. It needs a PyTorch built with "
    "CUPTI, and no other profiler at the same time."
)
NO_OPERATORS = (
    "The traces of {} have what ran on the GPU, but no operators: it calls none of PyTorch's. Which layers its kernels "
    "came from: inferlens profile MODEL --level kernel"
)


class Traced(Struct, frozen=True, kw_only=True):
    """One case's traces, or why there are none.

    Attributes:
        model: its name.
        status: how it ended; ``reason`` says why if not ``ok``, ``output_tail`` has the last lines it printed.
        files: one for each cycle of the profiler's schedule, in order.
        shown: what is in each.
        before: seconds of calls in the same process, before the profiler was there.
        log: what the process printed, if it failed.
    """

    case: Case
    model: str
    status: Status
    reason: str = ""
    hint: str = ""
    output_tail: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    shown: tuple[Shown, ...] = ()
    before: tuple[float, ...] = ()
    warnings: tuple[Warning, ...] = ()
    log: Path | None = None

    @property
    def step(self) -> float | None:
        """Median seconds of the traced steps."""
        steps = [seconds for each in self.shown for seconds in each.steps]
        return median(steps) if steps else None

    @property
    def untraced(self) -> float | None:
        """Median seconds of the last calls before the profiler."""
        return median(self.before[-SETTLED:]) if self.before else None

    @property
    def cost(self) -> float | None:
        """How many times as long a step took as a call before the profiler."""
        return self.step / self.untraced if self.step and self.untraced else None

    @property
    def unseen(self) -> str:
        """What the traces do not show, and what does; empty if there is nothing to say."""
        if not self.shown:
            return ""
        label = self.case.backend_label
        operators, gpu = (mean(map(attrgetter(name), self.shown)) for name in ("operators", "gpu"))
        if self.case.device == "cuda":
            missing = NO_OPERATORS if gpu else NO_GPU
            return "" if gpu and operators else missing.format(label)
        if not operators:
            return STEPS_ALONE.format(label)
        return LITTLE_SEEN.format(label, percent(operators)) if operators < LITTLE else ""


def tracing_of(**words: Any) -> Tracing:
    """Which steps to trace, from values as a person writes them.

    Raises:
        InferlensError: for a value that does not fit.
    """
    values: dict[str, Any] = {name: count(name, words[name], least) for name, least in LEAST.items() if name in words}
    return Tracing(**values, **{name: flag(name, words[name]) for name in FLAGS if name in words})


def trace(
    model: Any,
    *,
    tensorboard: str | Path | None = None,
    observer: Observer | None = None,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    stacks: bool = False,
    memory: bool = False,
    shapes: bool = False,
    **words: Any,
) -> list[Traced]:
    """Traces a model on the backends of this machine.

    Args:
        model: a name, a file or a factory, or several.
        tensorboard: folder for log folders of TensorBoard, one for each case; by default traces are kept as records
            are.
        observer: told what happens; by default nothing is shown.
        wait, warmup, active, repeat, stacks, memory, shapes: as in :class:`Tracing`.
        words: as of :func:`inferlens.bench`, as far as they say what to run.

    Raises:
        InferlensError: if the model or the words mean nothing. A case that cannot be traced says why.
    """
    tracing = tracing_of(
        wait=wait, warmup=warmup, active=active, repeat=repeat, stacks=stacks, memory=memory, shapes=shapes
    )
    plan = Plan.from_words({**words, "model": model})
    folder = None if tensorboard is None else Path(tensorboard)
    return list(run(plan, tracing, folder, observer or Silent()))


def run(plan: Plan, tracing: Tracing, tensorboard: Path | None, observer: Observer) -> Iterator[Traced]:
    """Traces every case of ``plan``; each is on disk before the next one starts.

    Raises:
        InferlensError: if the plan asks for several processes of each case, or a folder cannot be written.
    """
    if plan.repeats > 1:
        raise InferlensError("A case is traced in one process.", hint="--repeat for several cycles, not --repeats")
    observer.doing("looking at models and backends")
    cases = expand(plan, api.find(plan.model), api.probe(backends_named(plan)))
    observer.planned(cases)
    several = len({planned.found.spec for planned in cases}) > 1
    for planned in cases:
        observer.began(planned.case)
        yield _traced(plan, planned, tracing, _home(plan, planned, tensorboard, several), observer)


def run_name(case: Case, format: Format) -> str:
    """Name of a case's log folder, such as ``pytorch_bs1`` or ``ttrt_fp16_bs8``; different cases of a model differ.

    Backend and precision, batch, and what else is not as usual: a variant that is not the backend's first, a device
    other than CUDA, threads, options. Of what a model of that format is compared with, fp32 is not said.
    """
    backend = BACKENDS.get(case.backend)
    reference = reference_of(format)
    words = [backend.short or case.backend]
    words += [case.variant] if case.variant not in ("", backend.variants[0]) else []
    words += [] if case.backend == reference and case.precision == "fp32" else [case.precision]
    words += [] if case.batch is None else [f"bs{case.batch}"]
    words += [] if case.device == "cuda" else [case.device]
    words += [] if case.threads is None else [f"t{case.threads}"]
    words += [word.replace(" ", "") for word in case.manner]
    if any((case.options, case.inputs, case.weights, case.seed)):
        options = case.options_label.replace(" ", "_")
        words += [*([options] if 0 < len(options) <= 60 else []), case.digest[:6]]
    return re.sub(r"[^\w.=-]+", "_", "_".join(words))


class _Home(Struct, frozen=True):
    """Where the folder of a case's traces is to be, what it is to be called, and whether files keep PyTorch's names."""

    parent: Path
    name: str
    own_names: bool


def _home(plan: Plan, planned: Planned, tensorboard: Path | None, several: bool) -> _Home:
    model = safe_name(planned.found.name)
    if tensorboard is None:
        return _Home(Path(plan.output) / model, planned.case.folder, own_names=False)
    parent = tensorboard / model if several else tensorboard
    return _Home(parent, run_name(planned.case, planned.found.format), own_names=True)


def _traced(plan: Plan, planned: Planned, tracing: Tracing, home: _Home, observer: Observer) -> Traced:
    """Traces one case in a fresh process; its folder is there if its traces are."""
    made = Traced(case=planned.case, model=planned.found.name, status="unsupported")
    if why := planned.refusal:
        reason = f"{why.what} Expected: {why.expected}." if why.expected else why.what
        return msgspec.structs.replace(made, reason=reason, hint=why.hint)
    folder = claimed(home.parent, home.name, hint="another folder")
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".inferlens-") as scratch:
            outcome, answer = _asked(plan, planned, tracing, Path(scratch), observer)
            log = _kept_log(Path(scratch), folder) if answer.status != "ok" else None
            files = tuple(_moved(Path(scratch), answer.files, folder, own_names=home.own_names))
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    return msgspec.structs.replace(
        made,
        status=answer.status,
        reason=answer.reason,
        hint=answer.hint,
        output_tail=outcome.tail if answer.status != "ok" else (),
        files=files,
        shown=answer.shown,
        before=answer.before,
        warnings=answer.warnings,
        log=log,
    )


def _asked(
    plan: Plan, planned: Planned, tracing: Tracing, scratch: Path, observer: Observer
) -> tuple[Outcome, TraceAnswer]:
    """How the case's process ended, and what it answers, its files in ``scratch``."""
    job = TraceJob(
        case=planned.case,
        tracing=tracing,
        untraced=UNTRACED,
        folder=str(scratch.resolve()),
        cache=str(cache_in(Path(plan.output))),
        trust=plan.trust,
        rebuild=plan.rebuild,
    )

    def tell(event: Event) -> None:
        if isinstance(event, Began):
            observer.phase(event.phase)

    outcome = launch(job, timeout=plan.budget.timeout, log=scratch / LOG, on_event=tell)
    if outcome.answer:
        return outcome, msgspec.json.decode(outcome.answer, type=TraceAnswer)
    return outcome, TraceAnswer(status=outcome.status, reason=outcome.reason)


def _kept_log(scratch: Path, folder: Path) -> Path | None:
    """What the process printed, moved beside the folder, which will not be there; ``None`` if it printed nothing."""
    if not (scratch / LOG).exists():
        return None
    return (scratch / LOG).replace(folder.with_name(f"{folder.name}.log"))


def _moved(scratch: Path, names: Sequence[str], folder: Path, *, own_names: bool) -> Iterator[Path]:
    """Moves trace files to their place, which is on the same disk, so that each is there whole or not at all."""
    for number, name in enumerate(names, 1):
        plain = TRACE if number == 1 else TRACE.replace(".", f"-{number}.", 1)
        yield (scratch / name).replace(folder / (name if own_names else plain))
