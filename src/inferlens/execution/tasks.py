"""The tasks of measuring one case, and the context that every task gets.

:class:`TaskContext` has the first half of every task on a case: load, prepare, first inference. It also sends the
result, however the task ends. ``reference`` computes the outputs that cases are compared with. ``benchmark`` warms up,
takes latencies, then throughput, and checks the outputs. The timed loops are in ``backends.clocks``, and
``measure.output_check`` decides whether outputs are right.
"""

from __future__ import annotations

import hashlib
import math
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.backends.base import TOLERANCES, Backend, Inputs, Outputs, Preparation, Runner
from inferlens.backends.profiling.kernels import kernel_families
from inferlens.backends.profiling.runs import time_runs
from inferlens.backends.pytorch.runner import HostIoRunner
from inferlens.errors import InferlensError
from inferlens.execution.cases import LATENCY_SHARE
from inferlens.execution.child import status_of_error
from inferlens.execution.protocol import (
    CaseJob,
    Event,
    Job,
    PhaseStart,
    ProgressReport,
    TaskAnswer,
    TaskResult,
    as_json,
)
from inferlens.measure import output_check, series
from inferlens.measure.monitor import default_threads
from inferlens.measure.output_check import Evaluation, Expected
from inferlens.measure.series import Feeding, Turn
from inferlens.models import inputs, resolve
from inferlens.models.model import Model
from inferlens.models.weights import buffers, restore
from inferlens.record.record import (
    EMPTY_KERNEL,
    KEEPS_STATE,
    KERNEL_FAMILIES,
    WRITES_INPUTS,
    Agreement,
    Behavior,
    Measurement,
    Memory,
    ModelFacts,
    Status,
)
from inferlens.spec.case import MAX_TIME, Budget, Case, TensorSpec
from inferlens.stats.samples import median
from inferlens.units import duration, plural


class TaskContext:
    """A running task. Its results so far are kept even if the next step fails.

    ``runner`` is set once it was entered, because only then it can tell how much memory it takes. ``value`` is the
    result so far.
    """

    def __init__(self, job: Job, send: Callable[[Event], None], turn: Turn | None = None) -> None:
        self.turn = turn or Turn()
        self.model: ModelFacts | None = None
        self.runner: Runner | None = None
        self.value: Any = None
        self.answered = False
        self._memory: Memory | None = None
        self.send = send
        self.preparation = Preparation(Path(), Path())
        if isinstance(job, CaseJob):
            self.job = job
            self.preparation = Preparation(
                Path(job.folder), Path(job.cache), lambda phase: send(PhaseStart(phase)), time.perf_counter,
                job.rebuild, job.level, job.trust, Path(job.exported) if job.exported else None,
                Path(job.export_by) if job.export_by else None, job.built,
            )  # fmt: skip

    def load(self) -> Model:
        """Return the case's model, without its module if an earlier process has exported it."""
        job = self.job
        if job.exported_model:
            self.model = job.exported_model
            return resolve.exported_model(job.case, job.exported_model)
        with self.preparation.phase("load"):
            model = resolve.load(job.case, trust=job.trust, live=Path(job.live) if job.live else None)
        self.model = model.facts
        return model

    @property
    def backend(self) -> Backend:
        return BACKENDS.get(self.job.case.backend)()

    def prepare(self, model: Model) -> Runner:
        """Return the model, prepared by the case's backend. The device has not been used yet.

        All ways on the CPU get the same number of threads. The record's case keeps the user's number.
        """
        case = self.job.case
        if case.device == "cpu" and case.threads is None:
            threads, limit = default_threads()
            case = replace(case, threads=threads)
            if limit:
                message = f"{limit}: every way ran with {plural(threads, 'thread')}."
                self.preparation.warn("limited-threads", message, "--threads N measures with another number.")
        return self.backend.prepare(model, case, self.preparation)

    def infer_first(self, runner: Runner, feed: Any) -> Any:
        """Return the outputs of the first call, in which libraries do much that they do once."""
        with self.preparation.phase("first inference"):
            outputs = runner.infer(feed)
            runner.synchronize()
        return outputs

    def warm_up(self, model: Model, runner: Runner, calls: int) -> tuple[Any, tuple[float, ...]]:
        """Call an entered runner a few times; return the inputs, and the seconds of all calls but the first."""
        feed = runner.place(inputs.make_inputs(model, self.job.case.seed))
        self.infer_first(runner, feed)
        with self.preparation.phase("warm-up"):
            return feed, time_runs(runner, feed, calls).whole

    def progress(self, share: float) -> None:
        """Report the share of the steady state that is over."""
        self.send(ProgressReport(share))

    def keep_memory(self) -> None:
        """Remember the peak memory so far as that of the case; later allocations are not its own."""
        self._memory = peak_memory(self.runner)

    def deliver(self, value: Any) -> None:
        """Send the result, once, while the runner still holds its device: libraries crash when they let go of it."""
        if not self.answered:
            self.send(TaskAnswer(self._result("ok", value=value)))
        self.answered = True

    def fail(self, error: BaseException) -> None:
        """Send the result until ``error``, with the meaning of the error for the case."""
        if not isinstance(error, InferlensError) or error.__cause__:  # the whole text of a library's error
            traceback.print_exc()
        if self.answered:  # the exit code says that something went wrong afterwards
            sys.exit(1)
        problem = error if isinstance(error, InferlensError) else None
        self.send(TaskAnswer(self._result(*status_of_error(error), value=self.value, problem=problem)))

    def _result(
        self, status: Status, reason: str = "", hint: str = "", *, value: Any, problem: InferlensError | None = None
    ) -> msgspec.Raw:
        preparation = self.preparation
        result = TaskResult(
            status=status,
            reason=reason,
            hint=hint,
            problem=problem,
            model=self.model,
            phases=tuple(preparation.phases),
            warnings=tuple(preparation.warnings),
            facts=preparation.facts,
            artefacts=tuple(preparation.artefacts),
            memory=self._memory or peak_memory(self.runner),
            value=value,
        )
        return msgspec.Raw(as_json(result))


def peak_memory(runner: Runner | None) -> Memory:
    """Return the peak memory so far, by the account of this process and of the library."""
    library = runner.device_memory() if runner else None
    return Memory(
        host_peak=host_peak(),
        host_basis="peak resident set of the case's process, libraries included",
        library_peak=library[0] if library else None,
        library_basis=library[1] if library else "",
        parts=runner.memory_parts() if runner else {},
    )


def host_peak() -> int:
    """Return the peak resident memory of this process in bytes: interpreter, libraries, model, buffers.

    ``VmHWM`` of proc_pid_status(5), where there is one: it begins anew with the program. ``ru_maxrss`` does not, on
    Linux: there a process inherits that of the one that started it (getrusage(2); KiB on Linux, bytes on macOS).
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


THROUGHPUT_SECONDS = 2.0  # where throughput alone is measured
LEAST_THROUGHPUT = 0.5  # with a short series of latencies
LONGER = "A longer --max-time, or more --repeats."


class ReferenceJob(CaseJob, frozen=True, kw_only=True):
    """Write the case's inputs and outputs to ``path`` (.npz); the seed of the inputs may differ from the weights'.

    ``accuracy`` names data to evaluate the case on, too.
    """

    path: str
    inputs_seed: int
    accuracy: str = ""


class ReferenceRun(Struct, frozen=True, kw_only=True):
    """The hashes of the weights and inputs of the reference's outputs, how the model behaves, and its accuracy."""

    weights_sha256: str = ""
    inputs_sha256: str = ""
    behavior: Behavior = {}
    evaluation: Evaluation | None = None


class Reference(ReferenceRun, frozen=True, kw_only=True):
    """The file of the reference's outputs for this run, and its ``inputs``; or why there are none.

    ``memory`` is the peak memory of its process in bytes.
    """

    name: str
    path: str = ""
    missing: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    memory: int = 0

    def expected(self) -> Expected:
        """Return the outputs of the reference's calls."""
        calls = inputs.read_arrays(self.path, "output", "second")
        return Expected(self.name, self.behavior, calls if KEEPS_STATE in self.behavior else calls[:1])


class BenchmarkJob(CaseJob, frozen=True, kw_only=True):
    """Measure the case within ``budget`` and compare its outputs with those of ``reference``.

    ``only_right``: wrong outputs of the first call end the task before anything is timed. ``accuracy`` names data to
    evaluate the case on after it was timed. ``kernels``: record the kinds of its kernels after that.
    """

    budget: Budget
    reference: Reference
    only_right: bool = False
    accuracy: str = ""
    kernels: bool = False

    @property
    def mode(self) -> str:
        return "latency" if self.case.one_at_a_time else self.budget.mode

    @property
    def keeps_state(self) -> bool:
        """Return whether the model keeps state between calls."""
        return KEEPS_STATE in self.reference.behavior

    @property
    def renews_inputs(self) -> bool:
        """Return whether every call needs new inputs. Copies from the host are new in every call."""
        return WRITES_INPUTS in self.reference.behavior and self.case.io != "host"


class BenchmarkResult(Struct, frozen=True, kw_only=True):
    """The measurements of a case, and whether the outputs were right."""

    measurements: tuple[Measurement, ...] = ()
    agreement: Agreement | None = None
    evaluation: Evaluation | None = None


def reference(job: ReferenceJob, context: TaskContext) -> ReferenceRun:
    """Write the inputs and the outputs, and return the hashes of what they came from."""
    model = context.load()
    arrays = inputs.make_inputs(model, job.inputs_seed)
    with context.prepare(model) as runner:
        behavior, calls = output_check.observe(runner, model, arrays, partial(context.infer_first, runner))
        evaluation = None
        if job.accuracy:
            try:
                evaluation = output_check.evaluate(job.accuracy, job.case, model, runner)
            except InferlensError as error:
                evaluation = Evaluation(problem=error)
    files: dict[str, Any] = {f"input{index}": value for index, value in enumerate(arrays.values())}
    for kind, outputs in zip(("output", "second"), calls, strict=False):
        files |= {f"{kind}{index}": value for index, value in enumerate(outputs)}
    np.savez(job.path, **files)
    return ReferenceRun(
        weights_sha256=model.weights_sha256,
        inputs_sha256=inputs_sha256(arrays),
        behavior=behavior,
        evaluation=evaluation,
    )


def inputs_sha256(arrays: Inputs) -> str:
    """Return the hash of the values of inputs."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())).hexdigest()


def benchmark(job: BenchmarkJob, context: TaskContext) -> BenchmarkResult:
    """Measure and check the case, step by step. It waits for its turn only if other processes run (see ``turns``)."""
    case = job.case
    model = context.load()
    arrays = inputs.make_inputs(model, case.seed)
    state = buffers(model.module) if job.keeps_state else {}
    runner = context.prepare(model)
    _warn_of_one_shape(model, context)
    if context.backend.times_kernels(case, cached=job.built):  # nothing else may use the device during the build
        context.turn.wait()
    with HostIoRunner(runner) if case.io == "host" else runner as runner:
        context.runner = runner
        feeding = Feeding(runner, model, case, arrays, context.preparation, renews=job.renews_inputs)
        steps = BenchmarkSteps(job, context, model, runner, feeding)
        context.turn.ready(gpu=case.device != "cpu")
        restore(model.module, state)
        outputs = steps.first_calls()
        context.turn.wait()
        if job.only_right:
            agreement = steps.check(outputs)
            if agreement.agrees is False:
                context.deliver(BenchmarkResult(agreement=agreement))
                return BenchmarkResult(agreement=agreement)
        measurements = steps.warm_up()
        context.value = BenchmarkResult(measurements=measurements)
        context.turn.wait()
        with context.preparation.phase("steady state"):
            latencies = steps.latencies()
            measurements = (*measurements, *latencies, *steps.throughput(latencies))
        context.value = BenchmarkResult(measurements=measurements)
        steps.time_empty_kernel()
        outputs += steps.last_call()
        agreement = steps.check(outputs)
        _warn_of_lower_precision(agreement, case, context.preparation)
        result = context.value = BenchmarkResult(measurements=measurements, agreement=agreement)
        if job.accuracy:
            context.keep_memory()  # before there are samples in it
            with context.preparation.phase("accuracy"):
                result = replace(result, evaluation=output_check.evaluate(job.accuracy, case, model, runner))
        if job.kernels:
            steps.look_at_kernels()
        context.deliver(result)  # before the runner lets go of its device
    return result


@dataclass(frozen=True)
class BenchmarkSteps:
    """The steps of :func:`benchmark` for a runner that was entered."""

    job: BenchmarkJob
    context: TaskContext
    model: Model
    runner: Runner
    feeding: Feeding

    def first_calls(self) -> list[Outputs]:
        """Return the outputs of the first call; for a model that keeps state, also the outputs of the second call."""
        first = self.runner.collect(self.context.infer_first(self.runner, self.feeding.checked_feed))
        return [first, self._call()] if self.job.keeps_state else [first]

    def last_call(self) -> list[Outputs]:
        """Return the outputs of a call after the last sample; nothing if the model keeps state, which has changed."""
        return [] if self.job.keeps_state else [self._call()]

    def _call(self) -> Outputs:
        return self.runner.collect(self.runner.infer(self.feeding.renewed(self.feeding.checked_feed)))

    def check(self, calls: Sequence[Outputs]) -> Agreement:
        """Return how far the outputs of calls agree with the reference's, or the reason why that is unknown."""
        reference = self.job.reference
        if not reference.path:
            return Agreement(reference=reference.name, reason=reference.missing)
        if reference.weights_sha256 != self.model.weights_sha256:
            reason = "the weights differ from the reference's: building the model twice does not give the same weights"
            return Agreement(reference=reference.name, reason=reason)
        return output_check.judge(calls, reference.expected(), self.context.backend.tolerance(self.job.case))

    def warm_up(self) -> tuple[Measurement, ...]:
        """Call the runner until its times are steady, and return the last of these times; none without calls."""
        with self.context.preparation.phase("warm-up"):
            rule = series.warmup_rule(self.job.budget)
            # Enqueue and GPU times of the warm-up are of no use, nor is the beginning of a very long one.
            warmup = series.latency(self.runner, self.feeding.latency, rule, lambda _: None, "warm-up")[:1]
        facts, most = self.context.preparation.facts, series.MOST_SAMPLES
        facts |= {"warm-up calls": len(rule.samples), "warm-up seconds": round(rule.spent, 6)}
        return tuple(replace(part, samples=part.samples[-most:], begins=part.begins[-most:]) for part in warmup)

    def latencies(self) -> tuple[Measurement, ...]:
        """Return the times of calls one at a time, the latency first; nothing if only throughput is measured."""
        job, context = self.job, self.context
        if job.mode == "throughput":
            return ()
        rule, share = series.sampling_rule(job.budget), LATENCY_SHARE if job.mode == "both" else 1.0
        latencies = series.latency(
            self.runner, self.feeding.latency, rule, lambda part: context.progress(share * part), turn=context.turn
        )
        if rule.missed:
            context.preparation.warn("not-reached", rule.missed, LONGER)
        return latencies

    def throughput(self, latencies: Sequence[Measurement]) -> tuple[Measurement, ...]:
        """Return the calls per second, if the mode wants it; nothing for a GPU in turns, whose rounds are short."""
        clock, case = self.runner.clock, self.job.case
        if self.job.mode == "latency":
            return ()
        if self.job.mode == "throughput":
            return (self._timed_windows(()),)
        if clock.asynchronous and self.context.turn.in_turns:
            return ()
        if not clock.asynchronous and (case.depth or 1) == 1 and not case.rotate:
            return (series.rate_of(latencies[0]),)  # calls that are timed one by one follow as closely
        return (self._timed_windows(latencies[0].values),)

    def _timed_windows(self, latencies: Sequence[float]) -> Measurement:
        """Return the throughput of calls back to back, for a quarter of the latencies' time, or else by the budget."""
        budget, depth, preparation = self.job.budget, self.job.case.depth, self.context.preparation
        caller, feeds = self.feeding.caller, self.feeding.throughput
        if latencies:
            typical, share_before = median(latencies), LATENCY_SHARE
            seconds = max(0.25 * sum(latencies), LEAST_THROUGHPUT)
        else:
            typical, share_before = series.typical_latency(caller, feeds), 0.0
            seconds = min(budget.seconds or THROUGHPUT_SECONDS, budget.max_time or math.inf)
            if budget.seconds and seconds < budget.seconds:
                spent = f"{duration(seconds)} of {duration(budget.seconds)}"
                preparation.warn("not-reached", f"Throughput was measured for {spent}: the time was up.", LONGER)
        callers = self.feeding.callers(depth)
        renewed = caller is not self.runner
        if renewed:
            preparation.warn(
                "timed-copies",
                "The model writes into its inputs: "
                "each call of the throughput begins with a copy of them, which is timed.",
                "Judge by the latency, which is without it.",
            )
        if (depth or 1) > 1 and not (self.runner.clock.asynchronous or callers):
            calls = f"Calls {'of a model that writes into its inputs' if renewed else 'of this backend'}"
            preparation.warn(
                "one-in-flight",
                f"{calls} cannot overlap here: one is in flight, whatever the depth.",
                "Compare its throughput with the others' at --depth 1.",
            )
        return series.throughput(
            caller,
            feeds,
            typical,
            seconds,
            lambda part: self.context.progress(share_before + (1 - share_before) * part),
            depth,
            callers,
            max(budget.max_time or MAX_TIME, seconds),
            self.context.turn,
        )

    def time_empty_kernel(self) -> None:
        """Add the GPU time of an empty kernel as a fact, if the clock knows it and no other process is there."""
        floor = None if self.context.turn.in_turns else self.runner.clock.floor()
        if floor is not None:
            self.context.preparation.facts[EMPTY_KERNEL] = {"gpu_seconds": floor}

    def look_at_kernels(self) -> None:
        """Add the fact which kinds of kernels a call runs. Whatever the profiler raises, the case was measured."""
        self.context.keep_memory()
        with suppress(Exception):
            self.context.preparation.facts[KERNEL_FAMILIES] = kernel_families(self.runner, self.feeding.checked_feed)


def _warn_of_one_shape(model: Model, context: TaskContext) -> None:
    if any(spec.dynamic for spec in model.inputs) and not context.backend.capabilities().dynamic_shapes:
        context.preparation.warn(
            "static-shape",
            "Prepared for the measured shape alone: ranges of sizes mean nothing to this backend.",
            "Compare with care: a model prepared for many shapes may be slower at one of them.",
        )


def _warn_of_lower_precision(agreement: Agreement, case: Case, preparation: Preparation) -> None:
    """Warn of fp32 that is none: some libraries compute in TF32 although that is off."""
    error = agreement.rel_l2 or 0.0
    if case.precision == "fp32" and agreement.agrees and error > TOLERANCES["fp32"] and not case.options.get("tf32"):
        preparation.warn(
            "lower-precision",
            f"Asked for fp32, but the outputs differ by {error:.1g} (relative L2), as in TF32.",
            "Compare it with the others' TF32, their option tf32=true.",
        )
