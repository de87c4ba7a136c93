"""The task of measuring one case: warm up, take latencies, then throughput, and check what came out.

The timed loops are in ``backends.clocks``, and what is wrong is decided in ``measure.agreement``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.base import TOLERANCES, Inputs, Outputs, Preparation, Runner
from inferlens.backends.profiling.kernels import kernel_families
from inferlens.backends.pytorch.runner import HostIo
from inferlens.errors import InferlensError
from inferlens.execution.protocol import CaseJob
from inferlens.execution.worker import Child
from inferlens.measure import accuracy, agreement, series, stopping
from inferlens.measure.accuracy import Evaluation
from inferlens.measure.agreement import Expected
from inferlens.measure.feeding import Feeding
from inferlens.measure.series import Turn
from inferlens.models import inputs
from inferlens.models.model import Model, Problem
from inferlens.models.weights import buffers, restore
from inferlens.record.record import (
    EMPTY_KERNEL,
    KEEPS_STATE,
    KERNEL_FAMILIES,
    WRITES_INPUTS,
    Agreement,
    Behavior,
    Measurement,
)
from inferlens.spec.case import MAX_TIME, Budget, Case, TensorSpec
from inferlens.stats.samples import median
from inferlens.units import duration

THROUGHPUT_SECONDS = 2.0  # where throughput alone is measured
LEAST_THROUGHPUT = 0.5  # beside a short series of latencies
LATENCY_SHARE = 0.8  # of the time, where both are measured
LONGER = "A longer --max-time, or more --repeats."
KEPT_WARMUP = stopping.MOST_SAMPLES


class ReferenceJob(CaseJob, frozen=True, kw_only=True):
    """Write the case's inputs and outputs to ``path`` (.npz); inputs have their own seed, a compiled file its weights'.

    ``accuracy`` names data that it is to be evaluated on besides.
    """

    path: str
    inputs_seed: int
    accuracy: str = ""


class ReferenceOrigin(Struct, frozen=True, kw_only=True):
    """Hashes of what outputs came from, and how the model behaves."""

    weights_sha256: str = ""
    inputs_sha256: str = ""
    behavior: Behavior = {}


class ReferenceRun(ReferenceOrigin, frozen=True, kw_only=True):
    """The same, and what the reference's answers are worth."""

    evaluation: Evaluation | None = None


class Reference(ReferenceOrigin, frozen=True, kw_only=True):
    """Where the reference's outputs are kept for this run, and to which ``inputs``; or why there are none.

    ``memory`` is the most that its process had, in bytes.
    """

    name: str
    path: str = ""
    missing: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    memory: int = 0

    def expected(self) -> Expected:
        """Return the outputs of the reference's calls."""
        with np.load(self.path, allow_pickle=False) as file:
            calls = [[file[name] for name in file.files if name.startswith(kind)] for kind in ("output", "second")]
        return Expected(self.name, self.behavior, calls if KEEPS_STATE in self.behavior else calls[:1])


class BenchmarkJob(CaseJob, frozen=True, kw_only=True):
    """Measure the case within ``budget`` and compare its outputs with those of ``reference``.

    ``only_right``: wrong outputs of the first call end it, before anything is timed. ``one_turn``: it takes one, for
    all that the device is used for. ``accuracy`` names data that it is evaluated on once it is timed. ``kernels``: the
    kinds of its kernels are looked at after that.
    """

    budget: Budget
    reference: Reference
    only_right: bool = False
    one_turn: bool = False
    accuracy: str = ""
    kernels: bool = False


class Measured(Struct, frozen=True, kw_only=True):
    """What was measured, and whether the outputs were right."""

    measurements: tuple[Measurement, ...] = ()
    agreement: Agreement | None = None
    evaluation: Evaluation | None = None


def reference(job: ReferenceJob, child: Child) -> ReferenceRun:
    """Write the inputs and the outputs, and return the hashes of what they came from."""
    model = child.load()
    arrays = inputs.make_inputs(model, job.inputs_seed)
    with child.prepare(model) as runner:
        behavior, calls = agreement.observe(runner, model, arrays, partial(child.infer_first, runner))
        found = None
        if job.accuracy:
            try:
                found = accuracy.evaluated(job.accuracy, job.case, model, runner)
            except InferlensError as error:
                found = Evaluation(problem=Problem.of(error))
    files: dict[str, Any] = {f"input{index}": value for index, value in enumerate(arrays.values())}
    for kind, outputs in zip(("output", "second"), calls, strict=False):
        files |= {f"{kind}{index}": value for index, value in enumerate(outputs)}
    np.savez(job.path, **files)
    return ReferenceRun(
        weights_sha256=model.weights_sha256, inputs_sha256=fed_sha256(arrays), behavior=behavior, evaluation=found
    )


def fed_sha256(arrays: Inputs) -> str:
    """Hash of the values of inputs."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())).hexdigest()


def benchmark(job: BenchmarkJob, child: Child) -> Measured:
    """Measures and checks the case: latency first, then throughput for a quarter of the time that the latency took."""
    case, phase = job.case, child.preparation.phase
    mode = "latency" if case.one_at_a_time else job.budget.mode
    model = child.load()
    arrays = inputs.make_inputs(model, case.seed)
    start = buffers(model.module) if KEEPS_STATE in job.reference.behavior else {}
    runner = child.prepare(model)
    _warn_of_one_shape(model, child)
    if alone := child.backend.times_kernels(case, built=job.built):  # nothing else may use the device meanwhile
        _wait(job, child)
    with HostIo(runner) if case.io == "host" else runner as runner:
        child.runner = runner
        feeding = Feeding(runner, model, case, arrays, child.preparation, renews=_renews(job))
        child.turn.ready(gpu=case.device != "cpu")
        restore(model.module, start)
        calls = _first_calls(job, child, runner, feeding)
        if not (alone and job.one_turn):
            _wait(job, child)
        tolerance = child.backend.tolerance(case)
        if job.only_right and (found := _agreement(model, job, tolerance, calls)).agrees is False:
            child.deliver(Measured(agreement=found))
            return Measured(agreement=found)
        with phase("warm-up"):
            rule = stopping.warmup_rule(job.budget)
            # Enqueue and GPU times of the warm-up are of no use, nor is the beginning of a very long one.
            warmed = series.latency(runner, feeding.latency, rule, lambda _: None, "warm-up")[:1]
            kept = slice(-KEPT_WARMUP, None)
            taken = tuple(replace(one, samples=one.samples[kept], begins=one.begins[kept]) for one in warmed)
        facts = child.preparation.facts
        facts |= {"warm-up calls": len(rule.samples), "warm-up seconds": round(rule.spent, 6)}
        child.found = Measured(measurements=taken)
        child.turn.wait()
        with phase("steady state"):
            latencies: Sequence[float] = ()
            if mode != "throughput":
                rule, share = stopping.sampling_rule(job.budget), LATENCY_SHARE if mode == "both" else 1.0
                series_taken = series.latency(
                    runner, feeding.latency, rule, lambda part: child.progress(share * part), turn=child.turn
                )
                if rule.missed:
                    child.preparation.warn("not-reached", rule.missed, LONGER)
                taken, latencies = (*taken, *series_taken), series_taken[0].values
            if mode == "both" and _one_by_one(runner, case):
                taken = (*taken, series.rate_of(series_taken[0]))
            elif mode == "throughput" or (mode == "both" and not (runner.clock.asynchronous and child.turn.shared)):
                taken = (*taken, _throughput(job, child, runner, feeding, latencies))
            child.found = Measured(measurements=taken)
        if not child.turn.shared and (floor := runner.clock.floor()) is not None:
            facts[EMPTY_KERNEL] = {"gpu_seconds": floor}
        found = _agreement(model, job, tolerance, [*calls, *_last_call(job, runner, feeding)])
        _warn_of_lower_precision(found, case, child.preparation)
        measured = child.found = Measured(measurements=taken, agreement=found)
        if job.accuracy:
            child.keep_memory()  # before there are samples in it
            with phase("accuracy"):
                measured = replace(measured, evaluation=accuracy.evaluated(job.accuracy, case, model, runner))
        if job.kernels:
            _look_at_kernels(child, runner, feeding.first)
        child.deliver(measured)  # before the runner lets go of its device
    return measured


def _one_by_one(runner: Runner, case: Case) -> bool:
    """Return whether calls that are timed one by one follow each other as calls back to back do."""
    return not runner.clock.asynchronous and (case.depth or 1) == 1 and not case.rotate


def _renews(job: BenchmarkJob) -> bool:
    """Return whether each call needs its inputs anew; copies from the host are new in every call."""
    return WRITES_INPUTS in job.reference.behavior and job.case.io != "host"


def _first_calls(job: BenchmarkJob, child: Child, runner: Runner, feeding: Feeding) -> list[Outputs]:
    """Return the outputs of the first call, and of a model that keeps state those of the second."""
    calls = [runner.collect(child.infer_first(runner, feeding.first))]
    if KEEPS_STATE in job.reference.behavior:
        calls.append(runner.collect(runner.infer(feeding.renewed(feeding.first))))
    return calls


def _last_call(job: BenchmarkJob, runner: Runner, feeding: Feeding) -> list[Outputs]:
    """Return the outputs of a call after the last sample; nothing of a model that keeps state, which has moved on."""
    if KEEPS_STATE in job.reference.behavior:
        return []
    return [runner.collect(runner.infer(feeding.renewed(feeding.first)))]


def _wait(job: BenchmarkJob, child: Child) -> None:
    """Wait for the process's turn; with ``one_turn`` it lasts until the process ends."""
    child.turn.wait()
    if job.one_turn:
        child.turn = Turn()


def _look_at_kernels(child: Child, runner: Runner, feed: Any) -> None:
    """Add the fact which kinds of kernels a call runs. Whatever the profiler raises, the case was measured."""
    child.keep_memory()
    with suppress(Exception):
        child.preparation.facts[KERNEL_FAMILIES] = kernel_families(runner, feed)


def _warn_of_one_shape(model: Model, child: Child) -> None:
    if any(spec.dynamic for spec in model.inputs) and not child.backend.capabilities().dynamic_shapes:
        child.preparation.warn(
            "static-shape",
            "Prepared for the measured shape alone: ranges of sizes mean nothing to this backend.",
            "Compare with care: a model prepared for many shapes may be slower at one of them.",
        )


def _throughput(
    job: BenchmarkJob, child: Child, runner: Runner, feeding: Feeding, latencies: Sequence[float]
) -> Measurement:
    """Calls per second, for a time that follows from the latencies; without any, for the time that was asked for."""
    budget, depth = job.budget, job.case.depth
    if latencies:
        typical, seconds, done = median(latencies), max(0.25 * sum(latencies), LEAST_THROUGHPUT), LATENCY_SHARE
    else:
        typical, done = series.typical_latency(feeding.caller, feeding.throughput), 0.0
        seconds = min(budget.seconds or THROUGHPUT_SECONDS, budget.max_time or math.inf)
        if budget.seconds and seconds < budget.seconds:
            message = f"Throughput was measured for {duration(seconds)} of {duration(budget.seconds)}: the time was up."
            child.preparation.warn("not-reached", message, LONGER)
    callers = feeding.callers(depth)
    if feeding.caller is not runner:
        child.preparation.warn(
            "timed-copies",
            "The model writes into its inputs: each call of the throughput begins with a copy of them, which is timed.",
            "Judge by the latency, which is without it.",
        )
    if (depth or 1) > 1 and not (runner.clock.asynchronous or callers):
        renewed = feeding.caller is not runner
        why = f"Calls {'of a model that writes into its inputs' if renewed else 'of this backend'} cannot overlap here"
        child.preparation.warn(
            "one-in-flight",
            f"{why}: one is in flight, whatever the depth.",
            "Compare its throughput with the others' at --depth 1.",
        )
    return series.throughput(
        feeding.caller,
        feeding.throughput,
        typical,
        seconds,
        lambda part: child.progress(done + (1 - done) * part),
        depth,
        callers,
        max(budget.max_time or MAX_TIME, seconds),
        child.turn,
    )


def _agreement(model: Model, job: BenchmarkJob, tolerance: float, calls: Sequence[Outputs]) -> Agreement:
    """Return how far the outputs of calls agree with the reference's, or why that is not known."""
    reference = job.reference
    if not reference.path:
        return Agreement(reference=reference.name, reason=reference.missing)
    if reference.weights_sha256 != model.weights_sha256:
        reason = "the weights differ from the reference's: building the model twice does not give the same weights"
        return Agreement(reference=reference.name, reason=reason)
    return agreement.judge(calls, reference.expected(), tolerance)


def _warn_of_lower_precision(found: Agreement, case: Case, preparation: Preparation) -> None:
    """Warns of fp32 that is none: some libraries compute in TF32 although that is off."""
    error = found.rel_l2 or 0.0
    if case.precision == "fp32" and found.agrees and error > TOLERANCES["fp32"] and not case.options.get("tf32"):
        preparation.warn(
            "lower-precision",
            f"Asked for fp32, but the outputs differ by {error:.1g} (relative L2), as in TF32.",
            "Compare it with the others' TF32, their option tf32=true.",
        )
