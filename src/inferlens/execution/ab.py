"""Two things of the same inputs against each other, in rounds, until it is known which is faster: ``inferlens ab``.

They are two cases of a model, two models, or one model in two checkouts of its code or in two environments. A round is
a fresh process of A and one of B. On the CPU both are there at once, in turns, some calls each (``interleaver``), so
that whatever slows the machine down slows down both. On a GPU one comes after the other in the first round, which tells
what each holds and draws; then they take turns, if both fit. Who goes first alternates. Each process leaves its record.
One that does not run to its end, or whose outputs are wrong, ends it without a verdict on speed: those left would
mostly be fast.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any, Literal

from msgspec.structs import replace

from inferlens.analysis.ab_result import ABResult, ABRule, ABSteps, End, ab_notes
from inferlens.analysis.comparison import MISSING, WRONG, Side, Verdict, environment_differences, read_side
from inferlens.analysis.measures import accuracy_of, accuracy_pair, measure_value
from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned
from inferlens.execution.protocol import Observer
from inferlens.execution.rounds import BaseRule, Entrant, Rounds
from inferlens.execution.scheduler import Scheduler, scheduled
from inferlens.execution.sides import Asked, asked_for, check_inputs, compared_outputs, named_models, planned_pair
from inferlens.execution.survey import check_interpreters, live_files
from inferlens.measure import environment
from inferlens.measure.monitor.quiet import wait_for_quiet
from inferlens.record.record import Agreement, Record
from inferlens.spec.case import Case, environment_of
from inferlens.spec.plan import Duration, Texts, texts
from inferlens.stats.comparison import Comparison
from inferlens.stats.race_rule import LEAST_VERDICT_ROUNDS, MOST_ROUNDS
from inferlens.units import parse_duration

COSTS = ("memory", "build", "error")


def ab(
    model: Any,
    a: Any = None,
    b: str | None = None,
    example_inputs: Any = None,
    *,
    checkout: Texts | None = None,
    python: Texts | None = None,
    backend: str | None = None,
    precision: str | None = None,
    batch: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    io: str | None = None,
    cold: bool | None = None,
    rotate: bool | None = None,
    option: Texts | Mapping[str, Any] | None = None,
    input: Texts | None = None,
    dim: Texts | Mapping[str, int | str] | None = None,
    weights: str | PathLike[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    accuracy: str | PathLike[str] | None = None,
    trust: bool | None = None,
    seed: int | None = None,
    metric: Literal["latency", "throughput", "GPU time"] = "latency",
    threshold: float | str = 0.02,
    level: float | str = 0.95,
    max_rounds: int = 20,
    within: Duration = 600.0,
    wait: Duration = 0.0,
    iterations: int | None = None,
    seconds: Duration | None = None,
    max_time: Duration | None = None,
    warmup: int | None = None,
    timeout: Duration | None = None,
    output: str | PathLike[str] = "results",
    observer: Observer | None = None,
    on_round: Callable[[ABResult], None] = lambda _: None,
) -> ABResult:
    """Measures two things in turns, until it is decided which is faster or time is over::

        ab("resnet18", "pytorch", "onnxruntime:cpu fp16")
        ab("mypackage.models:build", checkout=("../old", "."))
        ab("resnet18", "onnxruntime", python=("old/bin/python", "new/bin/python"))

    Args:
        model, a, b: a name, a file, a factory or a live ``nn.Module``, and two cases in words; or two models.
        checkout: folders that the model's code is imported from; with one, the other is the working directory.
        python: interpreters of two environments; with one, the other is this one. See :func:`ab_steps` for more.
        backend: of a side that names none; by default the one that reference outputs come from.
        threshold, level: the smallest difference that matters, and how sure the verdict is to be.
        wait: time to wait for a quiet machine first, which is no time of the rounds.
        max_rounds, within: rounds at most, each a process of A and one of B; and seconds, or text such as ``"10m"``.
            The others are those of :func:`inferlens.bench`, of both sides; what a case says takes precedence.

    Raises InferlensError for bad input, or models of different inputs. A side that fails is a verdict, not an error.
    """
    words = {name: value for name, value in locals().items() if name in _SHARED and value is not None}
    rule = ABRule.parse(metric, threshold, level, max_rounds, within)
    asked, observer = asked_for(model, a, b, _sides(checkout), _sides(python)), observer or Observer()
    _wait(wait, observer, device)
    return _measured(asked, example_inputs, words, rule, observer, on_round)


def ab_steps(
    model: Any,
    case: Any = None,
    example_inputs: Any = None,
    *,
    python: Texts,
    level: float | str = 0.95,
    within: Duration = 600.0,
    wait: Duration = 0.0,
    observer: Observer | None = None,
    on_round: Callable[[ABSteps], None] = lambda _: None,
    **words: Any,
) -> ABSteps:
    """Measures a case in several environments, each against the one before: which change made it slower, or faster::

        ab_steps("resnet18", "onnxruntime", python=("old/bin/python", "one_more/bin/python", "new/bin/python"))

    Args:
        model, case, example_inputs: as of :func:`ab`.
        python: interpreters of the environments, in the order in which one became the other.
        within: seconds for all of it, or text such as ``"10m"``.
        wait: as of :func:`ab`.
        words: others of :func:`ab`.

    Raises InferlensError for bad input. A side that fails is a verdict, not an error.
    """
    pythons, observer = _sides(python), observer or Observer()
    if len(pythons) < 2:
        raise InferlensError("One environment has no step to another.", expected="two interpreters or more")
    check_interpreters(pythons)
    count = len(pythons) - 1
    rule = ABRule.parse("latency", 0.02, level, MOST_ROUNDS, within)
    _wait(wait, observer, words.get("device"))
    end = time.monotonic() + rule.within
    steps: list[ABResult] = []

    def looked(so_far: ABResult) -> None:
        on_round(ABSteps(steps=(*steps, so_far), level=rule.level))

    for place, pair in enumerate(itertools.pairwise(pythons)):
        observer.part(" to ".join(map(environment_of, pair)))
        left = max(end - time.monotonic(), 0.0) / (count - place)
        sure = 1 - (1 - rule.level) / count
        given: dict[str, Any] = {"python": pair, "level": sure, "within": left, "observer": observer}
        given["on_round"] = looked
        steps.append(ab(model, case, example_inputs=example_inputs, **given, **words))
    return ABSteps(steps=tuple(steps), level=rule.level)


def _wait(wait: Duration, observer: Observer, device: str | None) -> None:
    """Wait for a quiet machine, if that is asked for."""
    if limit := parse_duration(str(wait)):
        wait_for_quiet(limit, observer.remark, observer.doing, gpu=device != "cpu")


_SHARED = (
    "backend", "precision", "batch", "device", "threads", "io", "cold", "rotate", "option", "input", "dim",
    "weights", "calibration", "accuracy", "trust", "seed", "iterations", "seconds", "max_time", "warmup",
    "timeout", "output",
)  # fmt: skip


def _measured(
    asked: Sequence[Asked],
    example: Any,
    words: dict[str, Any],
    rule: ABRule,
    observer: Observer,
    on_round: Callable[[ABResult], None],
) -> ABResult:
    begin = time.monotonic()
    observer.doing("looking at the models and both backends")
    with ExitStack() as stack:
        models = named_models(asked, example, stack)
        words["mode"] = "throughput" if rule.metric == "throughput" else "latency"
        plans, pair = planned_pair(asked, models, words)
        budget = replace(plans[0].budget, threshold=rule.threshold, level=rule.level)
        observer.planned(pair)
        scheduler = stack.enter_context(
            scheduled(replace(plans[0], budget=budget), observer, pair, live_files(*models))
        )
        outputs = compared_outputs(pair, scheduler.references.of)
        return ABRun(scheduler, pair, rule, on_round, begin, outputs).run()


def _sides(given: Texts | None) -> tuple[str, ...]:
    """Texts, none of which may be missing, as where a variable of the shell is empty: sides would change places."""
    found = texts(given or ())
    if isinstance(given, str) and len(found) <= given.count(","):
        raise InferlensError(f"A side is missing in '{given}'.", expected="OLD,NEW, or one of them")
    return found


def _revision(case: Case) -> str:
    return environment.git_revision(case.checkout) if case.checkout else ""


class ABRun:
    """Rounds of A and B, until B has a verdict."""

    def __init__(
        self,
        scheduler: Scheduler,
        pair: tuple[Planned, ...],
        rule: ABRule,
        on_round: Callable[[ABResult], None],
        begin: float,
        outputs: Agreement | None = None,
    ) -> None:
        self.scheduler, self.pair, self.rule, self.outputs = scheduler, pair, rule, outputs
        self._begin = begin
        self._sides = [Entrant(planned) for planned in pair]
        race_rule = BaseRule(self._sides[0], LEAST_VERDICT_ROUNDS, rule.max_rounds)
        race_rule.metric, race_rule.strict = rule.metric, True

        def tell(_: int, __: Sequence[Case]) -> None:
            if outputs and not self._failed:  # of compiled files nothing was known of their inputs before
                check_inputs(*(side.records[-1].model.inputs for side in self._sides))
            on_round(self.so_far())

        self._rounds = Rounds(scheduler, self._sides, begin + rule.within, race_rule, on_round=tell)
        self._revisions = _revision(pair[0].case), _revision(pair[1].case)
        self._over = False

    @property
    def _records(self) -> list[list[Record]]:
        return [side.records for side in self._sides]

    def run(self) -> ABResult:
        """Hold rounds until one of the ends is reached."""
        self._rounds.run()
        self._over = True
        return self.so_far()

    @property
    def _failed(self) -> bool:
        """Whether a side has nothing to compare."""
        return any(side.records and not self._side(side.records).ok for side in self._sides)

    @property
    def _shared(self) -> int:
        """Rounds of which both sides have samples."""
        return min(sum(record.ranked for record in records) for records in self._records)

    def _comparison(self) -> tuple[Comparison | None, dict[str, float]]:
        """Return the verdict on B by the rounds so far, and its odds."""
        if self._failed or not self._shared:
            return None, {}
        race, (a, b) = self._rounds.race, (side.id for side in self._sides)
        difference = race.data.difference(a, b)
        odds = difference.odds(self.rule.threshold) if difference and self._shared > 1 else {}
        return race.comparison(a, b), odds

    def _end(self, comparison: Comparison | None) -> End:
        if self._failed:
            return "a side did not run"
        if comparison and comparison.verdict != "UNDECIDED" and self._shared >= LEAST_VERDICT_ROUNDS:
            return "decided"
        if self._shared >= self.rule.max_rounds:
            return "rounds"
        return "time" if self._over else ""

    def so_far(self) -> ABResult:
        """Return how it stands."""
        base, candidate = map(self._side, self._records)
        comparison, odds = self._comparison()
        found = comparison if self._shared >= LEAST_VERDICT_ROUNDS else None
        verdict: Verdict = "DID NOT RUN" if self._failed else found.verdict if found else "UNDECIDED"
        reason = found.reason if found else f"There is no verdict before {LEAST_VERDICT_ROUNDS} rounds."
        if self._failed:
            failed = {"A": base, "B": candidate}.items()
            words = {WRONG: "outputs wrong"}
            said = [
                f"{name}, {words.get(side.state, side.state)}: {side.reason.rstrip('.')}."
                for name, side in failed
                if not side.ok and side.state != MISSING
            ]
            reason = " ".join(said)
        return ABResult(
            a=self.pair[0].case,
            b=self.pair[1].case,
            verdict=verdict,
            reason=reason,
            end=self._end(comparison),
            rule=self.rule,
            rounds=self._shared,
            seconds=time.monotonic() - self._begin,
            ratio=found.ratio if found else None,
            interval=found.interval if found else None,
            base=base,
            candidate=candidate,
            notes=ab_notes(*self._records) if all(self._records) else (),
            run=self.scheduler.id,
            output=self.scheduler.plan.output,
            outputs=self.outputs,
            accuracy=accuracy_pair(*(accuracy_of(CaseRuns(tuple(records))) for records in self._records)),
            revisions=self._revisions,
            odds=odds,
            **self._of_environments(),
        )

    def _of_environments(self) -> dict[str, Any]:
        """What differs between two environments, and what each costs."""
        a, b = (planned.case.python for planned in self.pair)
        if a == b or not all(self._records):
            return {}
        costs = [{name: measure_value(CaseRuns(tuple(each)), name) for name in COSTS} for each in self._records]
        first, second = (records[0] for records in self._records)
        return {"differences": environment_differences([(first, second)]), "costs": (costs[0], costs[1])}

    def _side(self, records: Sequence[Record]) -> Side:
        if not records:
            return Side(state=MISSING, reason="It was not measured.")
        return read_side(CaseRuns(tuple(records)), self.rule.metric, self.rule.level)[0]
