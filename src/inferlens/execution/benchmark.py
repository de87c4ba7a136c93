"""The whole flow of one case, from its description to its record; runs in a process of its own (see ``worker``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferlens.backends import BACKENDS
from inferlens.backends.base import TOLERANCES, Outputs, Preparation, Runner
from inferlens.backends.host_io import HostIo
from inferlens.execution.protocol import Answer, CaseJob
from inferlens.measure import agreement, memory, series, stopping
from inferlens.measure.feeding import Feeding
from inferlens.measure.turn import Turn
from inferlens.models import inputs, resolve
from inferlens.models.model import Model
from inferlens.record.record import EMPTY_KERNEL, Agreement, Measurement, ModelFacts
from inferlens.spec.case import MAX_TIME, Case
from inferlens.stats.quantiles import median
from inferlens.units import duration

Progress = Callable[[float], None]
THROUGHPUT_SECONDS = 2.0  # where throughput alone is measured
LEAST_THROUGHPUT = 0.5  # beside a short series of latencies
KEPT_WARMUP = stopping.MOST_SAMPLES
ONE_IN_FLIGHT = (
    "one-in-flight",
    "Calls of this backend cannot overlap on the CPU: one is in flight, whatever the depth.",
    "Compare its throughput with the others' at --depth 1.",
)
STATIC = (
    "static-shape",
    "Prepared for the measured shape alone: ranges of sizes mean nothing to this backend.",
    "Compare with care: a model prepared for many shapes may be slower at one of them.",
)


class Flight:
    """One case under way: what has been learned so far, kept even if the next step fails."""

    def __init__(
        self,
        job: CaseJob,
        preparation: Preparation,
        progress: Progress,
        deliver: Callable[[Answer], None],
        keep: Callable[[Answer], None] = lambda _: None,
        turn: Turn | None = None,
    ) -> None:
        self.job = job
        self.turn = turn or Turn()
        self.preparation = preparation
        self.progress = progress
        self.deliver = deliver
        self.keep = keep
        self.model: ModelFacts | None = None
        self.runner: Runner | None = None
        self.measurements: tuple[Measurement, ...] = ()
        self.agreement: Agreement | None = None

    def answer(self, status: Any, reason: str = "", hint: str = "") -> Answer:
        """What is known now, as the worker's answer."""
        return Answer(
            status=status,
            reason=reason,
            hint=hint,
            model=self.model,
            phases=tuple(self.preparation.phases),
            measurements=self.measurements,
            agreement=self.agreement,
            memory=memory.peak(self.runner),
            facts=self.preparation.facts,
            artefacts=tuple(self.preparation.artefacts),
            warnings=tuple(self.preparation.warnings),
        )


def run_case(flight: Flight) -> None:
    """Loads, prepares, warms up, measures and checks one case.

    The answer is delivered before the runner lets go of its device, which is where libraries like to crash.

    Raises:
        Exception: whatever the model or the backend raises; ``flight`` then has what was learned until there.
    """
    job, preparation, phase = flight.job, flight.preparation, flight.preparation.phase
    flight.turn.wait()
    backend = BACKENDS.get(job.case.backend)()
    with phase("load"):
        model = resolve.load(job.case, trust=job.trust, live=_path(job.live))
    flight.model = model.facts
    arrays = inputs.make_inputs(model, job.case.seed)
    runner = backend.prepare(model, job.case, preparation)
    if any(spec.dynamic for spec in model.inputs) and not backend.capabilities().dynamic_shapes:
        preparation.warn(*STATIC)
    with HostIo(runner) if job.case.io == "host" else runner as runner:
        flight.runner = runner
        feeding = Feeding(runner, model, job.case, arrays, preparation)
        with phase("first inference"):
            outputs = runner.infer(feeding.first)
            runner.synchronize()
        first = runner.collect(outputs)
        judge = partial(_agreement, model, job, backend.tolerance(job.case))
        with phase("warm-up"):
            flight.measurements = _warm_up(runner, feeding, job, preparation)
        flight.turn.wait()
        with phase("steady state"):
            _measure(flight, runner, feeding, lambda: judge(first))
        floor = runner.clock.floor()
        if floor is not None:
            preparation.facts[EMPTY_KERNEL] = {"gpu_seconds": floor}
        last = runner.collect(runner.infer(feeding.first))
        flight.agreement = judge(first, last)
        _tell_lower_precision(flight.agreement, job.case, preparation)
        flight.deliver(flight.answer("ok"))


def reference_outputs(
    case: Case, *, trust: bool, live: str | None, folder: Path, inputs_seed: int | None = None
) -> tuple[Outputs, str]:
    """Outputs of ``case``, and the hash of the weights they came from.

    Inputs may have a seed of their own: what a compiled file was made from keeps the seed of its weights.
    """
    backend = BACKENDS.get(case.backend)()
    model = resolve.load(case, trust=trust, live=_path(live))
    arrays = inputs.make_inputs(model, case.seed if inputs_seed is None else inputs_seed)
    with backend.prepare(model, case, Preparation(folder, folder)) as runner:
        return runner.collect(runner.infer(runner.place(arrays))), model.weights_sha256


def _warm_up(runner: Runner, feeding: Feeding, job: CaseJob, preparation: Preparation) -> tuple[Measurement, ...]:
    """The latencies of the calls before the first sample, until they are steady."""
    rule = stopping.warmup_rule(job.budget)
    taken = series.latency(runner, feeding.latency, rule, lambda _: None, "warm-up")
    preparation.facts["warm-up calls"] = len(rule.samples)
    preparation.facts["warm-up seconds"] = round(rule.spent, 6)
    # Enqueue and GPU times of the warm-up are of no use, nor is the beginning of a very long one.
    return tuple(
        msgspec.structs.replace(one, samples=one.samples[-KEPT_WARMUP:], begins=one.begins[-KEPT_WARMUP:])
        for one in taken[:1]
    )


def _measure(flight: Flight, runner: Runner, feeding: Feeding, agreement_so_far: Callable[[], Agreement]) -> None:
    """Latency first, then throughput for a quarter of the time that the latency took; each is kept once it is known.

    Should the deadline come in the middle of throughput, latencies are the answer: they are whole, and the outputs
    before them were compared.
    """
    job, budget, progress = flight.job, flight.job.budget, flight.progress
    # Caches are cold, or inputs rotate, for one call at a time alone.
    mode = "latency" if job.case.cold or job.case.rotate else budget.mode
    share = {"latency": 1.0, "throughput": 0.0, "both": 0.8}[mode]
    if mode == "throughput":
        typical = series.typical_latency(runner, feeding.throughput)
        seconds = min(budget.seconds or THROUGHPUT_SECONDS, budget.max_time or math.inf)
        if budget.seconds and seconds < budget.seconds:
            message = f"Throughput was measured for {duration(seconds)} of {duration(budget.seconds)}: the time was up."
            flight.preparation.warn("not-reached", message, stopping.LONGER)
    else:
        rule = stopping.sampling_rule(budget)
        latencies = series.latency(runner, feeding.latency, rule, lambda part: progress(share * part), turn=flight.turn)
        flight.measurements += latencies
        if rule.missed:
            flight.preparation.warn("not-reached", rule.missed.message, rule.missed.advice)
        samples = latencies[0].values
        typical, seconds = median(samples), max(0.25 * sum(samples), LEAST_THROUGHPUT)
    if mode == "latency":
        return
    if mode == "both":
        flight.keep(msgspec.structs.replace(flight.answer("ok"), agreement=agreement_so_far()))
    callers = feeding.callers(job.case.depth)
    if (job.case.depth or 1) > 1 and not (runner.clock.asynchronous or callers):
        flight.preparation.warn(*ONE_IN_FLIGHT)
    rates = series.throughput(
        runner,
        feeding.throughput,
        typical,
        seconds,
        lambda part: progress(share + (1 - share) * part),
        job.case.depth,
        callers,
        max(budget.max_time or MAX_TIME, seconds),
        flight.turn,
    )
    flight.measurements += (rates,)


def _agreement(model: Model, job: CaseJob, tolerance: float, *taken: Outputs) -> Agreement:
    """Agreement of outputs with the reference, the worst of those taken at several times."""
    name = job.reference.name
    if not job.reference.path:
        return agreement.unchecked(name, job.reference.missing)
    with np.load(job.reference.path, allow_pickle=False) as file:
        reference = [file[f"output{index}"] for index in range(len(file.files))]
    if job.reference.weights_sha256 != model.weights_sha256:
        reason = "the weights differ from the reference's: building the model twice does not give the same weights"
        return agreement.unchecked(name, reason)
    return reduce(agreement.worse, (agreement.compare(outputs, reference, tolerance, name) for outputs in taken))


def _tell_lower_precision(found: Agreement, case: Case, preparation: Preparation) -> None:
    """Warns of fp32 that is none: some libraries compute in TF32 although that is off."""
    error = found.rel_l2 or 0.0
    if case.precision == "fp32" and found.agrees and error > TOLERANCES["fp32"] and not case.options.get("tf32"):
        preparation.warn(
            "lower-precision",
            f"Asked for fp32, but the outputs differ by {error:.1g} (relative L2), as in TF32: the library computes in "
            "a lower precision than it was told to.",
            "Compare it with the others' TF32, such as --option pytorch.tf32=true.",
        )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
