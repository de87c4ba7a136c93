"""``inferlens ab``: a comparison of two cases with the same inputs, in rounds, until one is faster.

The sides are two cases of a model, two models, or one model in two checkouts of its code or in two environments. A
round is a fresh process of A and one of B. On the CPU they are measured in turns, so that whatever slows the machine
down slows down both. On a GPU they are measured one by one in the first round, which shows how much memory they take,
and then in turns if both fit. The side that goes first alternates. Every process has its record. A side that fails, or
has wrong outputs, ends the race without a verdict on speed, because the processes that succeed would mostly be fast.

:class:`ABRun` is the policy of the race, and makes its engine.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.analysis.ab_result import ABResult, ABRule, ABSteps, End, ab_notes
from inferlens.analysis.comparison import CAPACITY, MISSING, WRONG, Side, Verdict, environment_differences, read_side
from inferlens.analysis.load import as_record
from inferlens.analysis.measures import accuracy_of, accuracy_pair, measure_value
from inferlens.analysis.samples import CaseRuns
from inferlens.backends import BACKENDS, reference_backend
from inferlens.backends.base import TOLERANCES
from inferlens.errors import InferlensError
from inferlens.execution.cases import (
    EVERY_VARIANT,
    ModelHandle,
    check_interpreters,
    find,
    live_files,
    model_handle,
    probe_plans,
)
from inferlens.execution.load.run import measure_capacity
from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.race import Entrant, RaceEngine, RacePolicy
from inferlens.execution.scheduler import MeasureOptions, Process, Scheduler, open_scheduler
from inferlens.execution.tasks import Reference
from inferlens.measure import environment, output_check
from inferlens.measure.monitor import wait_for_quiet
from inferlens.models.model import ModelInfo
from inferlens.record.load import LoadRecord
from inferlens.record.record import Agreement, Record
from inferlens.spec.case import Case, TensorSpec, environment_of
from inferlens.spec.commands import own_options
from inferlens.spec.options import texts
from inferlens.spec.plan import Duration, Plan, Texts, option_values, words_of
from inferlens.stats.comparison import Comparison
from inferlens.stats.race_rule import LEAST_VERDICT_ROUNDS, MOST_ROUNDS
from inferlens.units import listing, parse_duration

COSTS = ("memory", "build", "error")
CAPACITIES = 2 * LEAST_VERDICT_ROUNDS  # in the time of a comparison


def ab(
    model: Any,
    a: Any = None,
    b: str | None = None,
    example_inputs: Any = None,
    *,
    observer: Observer | None = None,
    on_round: Callable[[ABResult], None] = lambda _: None,
    **words: Any,
) -> ABResult:
    """Measure two things in turns, as :func:`inferlens.ab` describes; ``words`` are the options of ``inferlens ab``.

    Raises InferlensError for bad input, or models of different inputs. A side that fails is a verdict, not an error.
    """
    checkouts, pythons = (_two_texts(words.get(name)) for name in ("checkout", "python"))
    options, words = own_options("ab", words)
    parts = ("metric", "threshold", "level", "max_rounds", "within", "limit")
    rule = ABRule.parse(*(options[name] for name in parts))
    sides = side_specs(model, a, b, checkouts, pythons)
    observer = observer or Observer()
    _wait(words.pop("wait", 0.0), observer, words.get("device"))
    if options["backend"]:
        words["backend"] = options["backend"]
    return _measure(sides, example_inputs, words, rule, observer, on_round)


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
    """Measure a case in several environments, one against the one before, as :func:`inferlens.ab_steps` describes.

    ``within`` is the time for all of it. Raises InferlensError for bad input. A side that fails is a verdict.
    """
    pythons, observer = _two_texts(python), observer or Observer()
    if len(pythons) < 2:
        raise InferlensError("One environment has no step to another.", expected="two interpreters or more")
    check_interpreters(pythons)
    count = len(pythons) - 1
    options, _ = own_options("ab", {"level": level, "within": within})
    rule = ABRule.parse("latency", 0.02, options["level"], MOST_ROUNDS, options["within"])
    _wait(wait, observer, words.get("device"))
    end = time.monotonic() + rule.within
    steps: list[ABResult] = []

    def on_step(so_far: ABResult) -> None:
        on_round(ABSteps(steps=(*steps, so_far), level=rule.level))

    for place, pair in enumerate(itertools.pairwise(pythons)):
        observer.part(" to ".join(map(environment_of, pair)))
        seconds = max(end - time.monotonic(), 0.0) / (count - place)
        step_level = 1 - (1 - rule.level) / count
        step_words = {**words, "python": pair, "level": step_level, "within": seconds}
        steps.append(ab(model, case, None, example_inputs, observer=observer, on_round=on_step, **step_words))
    return ABSteps(steps=tuple(steps), level=rule.level)


def _wait(wait: Duration, observer: Observer, device: str | None) -> None:
    """Wait for a quiet machine, if the options want it."""
    if limit := parse_duration(str(wait)):
        wait_for_quiet(limit, observer.remark, observer.doing, gpu=device != "cpu")


def _measure(
    sides: Sequence[SideSpec],
    example: Any,
    words: dict[str, Any],
    rule: ABRule,
    observer: Observer,
    on_round: Callable[[ABResult], None],
) -> ABResult:
    begin = time.monotonic()
    observer.doing("looking at the models and both backends")
    with ExitStack() as stack:
        models = model_handles(sides, example, stack)
        words["mode"] = "throughput" if rule.metric == "throughput" else "latency"
        plans, pair = planned_pair(sides, models, words)
        budget = replace(plans[0].budget, threshold=rule.threshold, level=rule.level)
        observer.planned(pair)
        scheduler = stack.enter_context(
            open_scheduler(replace(plans[0], budget=budget), observer, pair, live_files(*models))
        )
        outputs = compared_outputs(pair, scheduler.references.of)
        policy = CapacityABRun if rule.metric == CAPACITY else ABRun
        return policy(scheduler, pair, rule, on_round, begin, outputs).run()


def _two_texts(value: Texts | None) -> tuple[str, ...]:
    """Return texts. Raises InferlensError if one is missing, such as an empty variable of the shell."""
    result = texts(value or ())
    if isinstance(value, str) and len(result) <= value.count(","):
        raise InferlensError(f"A side is missing in '{value}'.", expected="OLD,NEW, or one of them")
    return result


class ABRun(RacePolicy):
    """A policy of rounds of A and B until B has a verdict. A side that fails ends the race."""

    def __init__(
        self,
        scheduler: Scheduler,
        pair: tuple[PlannedCase, ...],
        rule: ABRule,
        on_round: Callable[[ABResult], None],
        begin: float,
        outputs: Agreement | None = None,
    ) -> None:
        self.sides = [Entrant(planned) for planned in pair]
        least, most = LEAST_VERDICT_ROUNDS, rule.max_rounds
        super().__init__(least=least, most=most, metric=rule.measured, strict=True)
        self.scheduler, self.pair, self.rule, self.outputs = scheduler, pair, rule, outputs
        self._on_round, self._begin = on_round, begin
        self._engine = RaceEngine(scheduler, self.sides, begin + rule.within, self)
        checkouts = [planned.case.checkout for planned in pair]
        a, b = (checkout and environment.git_revision(checkout) for checkout in checkouts)
        self._revisions = a, b
        self._over = False

    @property
    def _records(self) -> list[list[Record]]:
        """The records of both sides."""
        return [side.records for side in self.sides]

    def next_round(self, engine: RaceEngine, number: int) -> Sequence[str]:
        a, b = (side.id for side in self.sides)
        if not {a, b} <= engine.ranked.keys():
            return []
        decided = number >= self.least and engine.race.comparison(a, b).verdict != "UNDECIDED"
        return [] if decided else [a, b]

    def report(self, engine: RaceEngine, number: int, cases: Sequence[Case]) -> None:  # noqa: ARG002
        if self.outputs and not self.failed:  # the inputs of compiled files were unknown before
            check_inputs(*(side.records[-1].model.inputs for side in self.sides))
        self._on_round(self.so_far())

    def run(self) -> ABResult:
        """Hold rounds until one of the ends is reached; return the result."""
        self._engine.run()
        self._over = True
        return self.so_far()

    @property
    def failed(self) -> bool:
        """True if a side has nothing to compare."""
        return any(side.records and not self._read_side(side.records).ok for side in self.sides)

    @property
    def _rounds(self) -> int:
        """The number of rounds in which both sides have samples."""
        return min(sum(record.ranked for record in records) for records in self._records)

    def _comparison(self) -> tuple[Comparison | None, dict[str, float]]:
        """Return the verdict on B by the rounds so far, once there are enough of them, and its odds."""
        if self.failed or self._rounds < 2:
            return None, {}
        race, (a, b) = self._engine.race, (side.id for side in self.sides)
        difference = race.data.difference(a, b)
        odds = difference.odds(self.rule.threshold) if difference else {}
        return race.comparison(a, b) if self._rounds >= LEAST_VERDICT_ROUNDS else None, odds

    def _end(self, comparison: Comparison | None) -> End:
        if self.failed:
            return "a side did not run"
        if comparison and comparison.verdict != "UNDECIDED":
            return "decided"
        if self._rounds >= self.rule.max_rounds:
            return "rounds"
        return "time" if self._over else ""

    def so_far(self) -> ABResult:
        """Return the result by the rounds so far."""
        base, candidate = map(self._read_side, self._records)
        comparison, odds = self._comparison()
        verdict: Verdict = comparison.verdict if comparison else "UNDECIDED"
        reason = comparison.reason if comparison else f"There is no verdict before {LEAST_VERDICT_ROUNDS} rounds."
        if self.failed:
            verdict = "DID NOT RUN"
            reason = " ".join(
                f"{name}, {'outputs wrong' if side.state == WRONG else side.state}: {side.reason.rstrip('.')}."
                for name, side in (("A", base), ("B", candidate))
                if not side.ok and side.state != MISSING
            )
        return ABResult(
            a=self.pair[0].case,
            b=self.pair[1].case,
            verdict=verdict,
            reason=reason,
            end=self._end(comparison),
            rule=self.rule,
            rounds=self._rounds,
            seconds=time.monotonic() - self._begin,
            ratio=comparison.ratio if comparison else None,
            interval=comparison.interval if comparison else None,
            base=base,
            candidate=candidate,
            notes=ab_notes(*self._records) if all(self._records) else (),
            run=self.scheduler.state.run,
            output=self.scheduler.plan.output,
            outputs=self.outputs,
            accuracy=accuracy_pair(*(accuracy_of(CaseRuns(tuple(records))) for records in self._records)),
            revisions=self._revisions,
            odds=odds,
            **self._environment_fields(),
        )

    def _environment_fields(self) -> dict[str, Any]:
        """Return the differences of two environments, and the costs of both, as fields of the result."""
        a, b = (planned.case.python for planned in self.pair)
        if a == b or not all(self._records):
            return {}
        costs = [{name: measure_value(CaseRuns(tuple(records)), name) for name in COSTS} for records in self._records]
        first, second = (records[0] for records in self._records)
        return {"differences": environment_differences([(first, second)]), "costs": (costs[0], costs[1])}

    def _read_side(self, records: Sequence[Record]) -> Side:
        if not records:
            return Side(state=MISSING, reason="It was not measured.")
        return read_side(CaseRuns(tuple(records)), self.rule.measured, self.rule.level)[0]


class CapacityABRun(ABRun):
    """A comparison of the capacities under load.

    A process of a round is a search for the capacity, with the same arrivals for both sides. The first round finds the
    best deployment of each side, which the other rounds use.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.in_turns = False
        self._first: dict[str, LoadRecord] = {}

    def measure(
        self, scheduler: Scheduler, processes: Sequence[Process], options: MeasureOptions, *, in_turns: bool
    ) -> Iterator[Record]:
        del options, in_turns
        for planned, number in processes:
            end, first = time.monotonic() + self.rule.within / CAPACITIES, self._first.get(planned.case.digest)
            record = measure_capacity(scheduler, planned, self.rule.limit, number - 1, end, first)
            self._first.setdefault(planned.case.digest, record)
            yield as_record(record)


FORMS = "MODEL A B, MODEL_A MODEL_B, MODEL [CASE] --checkout OLD,NEW, or MODEL [CASE] --python OLD,NEW"


@dataclass(frozen=True)
class SideSpec:
    """A side in the words of the user: its model, its case in words, and the folder of its code."""

    model: Any
    words: Mapping[str, Any]
    checkout: str = ""

    @property
    def python(self) -> str:
        return str(self.words.get("python", ""))


def side_specs(
    model: Any, a: Any, b: str | None, checkouts: Sequence[str], pythons: Sequence[str] = ()
) -> tuple[SideSpec, SideSpec]:
    """Return both sides: two cases, two models, two checkouts, or two environments."""
    if folders := checkouts or pythons:
        one_case = b is None and (a is None or isinstance(a, str))
        if not one_case or len(folders) > 2 or (checkouts and (pythons or not isinstance(model, str))):
            what = "Checkouts" if checkouts else "Environments"
            raise InferlensError(f"{what} are compared in one case of one model.", expected=FORMS)
    if checkouts:
        old, new = [*checkouts, "."][:2]
        return _side_spec(model, a or "", old), _side_spec(model, a or "", new)
    if pythons:
        old, new = [*pythons, ""][:2]
        return _side_spec(model, a or "", python=old), _side_spec(model, a or "", python=new)
    if b is not None:
        return _side_spec(model, a), _side_spec(model, b)
    if a is None or (isinstance(a, str) and _is_case(a)):
        raise InferlensError(f"What to compare {a or model} with is missing.", expected=FORMS)
    return _side_spec(model), _side_spec(a)


def _side_spec(model: Any, case: str = "", checkout: str = "", python: str = "") -> SideSpec:
    """Return a side; a model in text may have words of a case behind it: ``base:build fp16``."""
    words: dict[str, Any] = {}
    if isinstance(model, str) and not os.path.exists(model):
        model, _, text = model.strip().partition(" ")
        words = _words(text) if text.strip() else {}
    if case:
        words |= _words(case)
    if python:
        words["python"] = python
    checkout = words.pop("checkout", "") or checkout
    if checkout and not os.path.isdir(checkout):
        raise InferlensError(
            f"There is no folder {checkout}.",
            expected="a checkout of the model's code",
            hint=f"git worktree add ../{Path(checkout).name} REVISION",
        )
    return SideSpec(model, words, checkout)


def _words(text: str) -> dict[str, Any]:
    return words_of(text, BACKENDS.names())


def _is_case(text: str) -> bool:
    """Return whether a text is a case rather than a model: ``fake:fast`` is one, ``fake:demo`` is not."""
    try:
        words = _words(text)
    except InferlensError:
        return False
    name, _, variant = words.get("backend", "").partition(":")
    return not name or variant in ("", EVERY_VARIANT, *BACKENDS.get(name).variants)


def model_handles(sides: Sequence[SideSpec], example: Any, stack: ExitStack) -> list[ModelHandle]:
    """Return the models of both sides; files of live modules exist until ``stack`` is closed."""
    a, b = (side.model for side in sides)
    live = [not isinstance(model, (str, Path)) for model in (a, b)]
    first = stack.enter_context(model_handle(a, example if live[0] or not live[1] else None))
    if a is b:
        return [first, first]
    second = stack.enter_context(model_handle(b, example if live[1] or not live[0] else None))
    if first.infos and second.infos and first.spec == second.spec:  # two modules of one class
        info = replace(second.infos[0], spec=f"{second.spec} (B)")
        second = dataclasses.replace(second, spec=info.spec, infos=[info])
    return [first, second]


def planned_pair(
    sides: Sequence[SideSpec], models: Sequence[ModelHandle], shared: Mapping[str, Any]
) -> tuple[list[Plan], tuple[PlannedCase, PlannedCase]]:
    """Return the plans of both sides, with the ``shared`` words and those of the side, and their cases."""
    check_interpreters(side.python for side in sides)
    shared_options = option_values(shared.get("option") or {})
    plans: list[Plan] = []
    backends: list[str] = []
    looked_up: dict[object, list[ModelInfo]] = {}
    for side, model in zip(sides, models, strict=True):
        names, infos = texts(model.spec), model.infos or []
        label = side.words.get("backend") or shared.get("backend")
        if not label:
            key = names, side.checkout, side.python
            if not infos and key not in looked_up:
                looked_up[key] = find(names, side.checkout, side.python)
            label = reference_backend((infos or looked_up[key])[0].format)
        backend = label.partition(":")[0]
        backends.append(backend)
        options = {name: values for name, values in shared_options.items() if name.partition(".")[0] == backend}
        for name, value in side.words.get("option", {}).items():
            options[name if "." in name else f"{backend}.{name}"] = value
        words = {**shared, **side.words, "model": [info.spec for info in infos] or names, "checkout": side.checkout}
        for name in ("weights", "accuracy") if side.checkout else ():
            if name in words and Path(words[name]).exists():  # a file here, not one in the checkout
                words[name] = str(Path(words[name]).resolve())
        plans.append(Plan.from_words({**words, "backend": label, "option": options}))
    for name in shared_options:
        if name.partition(".")[0] not in backends:
            raise InferlensError(
                f"The option '{name}' is for a backend of neither case.", expected=f"one of {listing(sorted(backends))}"
            )
    return plans, _pair([part.cases() for part in probe_plans(plans, models)])


def _pair(sides: Sequence[Sequence[PlannedCase]]) -> tuple[PlannedCase, PlannedCase]:
    """Return the cases of both sides. Raises InferlensError if a side has several, or both are the same."""
    for name, side in zip("AB", sides, strict=True):
        if len(side) > 1:
            raise InferlensError(
                f"{name} means {len(side)} cases, such as {side[0].case.label} and {side[-1].case.label}.",
                expected="one model, one value of each axis and one variant",
                hint="inferlens bench, for more than two cases",
            )
    (a,), (b,) = sides
    if a.case == b.case:
        raise InferlensError(
            f"A and B are the same case: {a.case.label}.",
            expected="two that differ",
            hint="inferlens bench --repeats 5, which says how far processes of one case differ",
        )
    return a, b


def compared_outputs(pair: Sequence[PlannedCase], reference: Callable[[PlannedCase], Reference]) -> Agreement | None:
    """Return how far the reference outputs of B's model agree with those of A's; ``None`` for the same model.

    The tolerance is that of the coarser of the two precisions: a quantized file is not its source to the bit.
    Raises InferlensError if the inputs of the two differ.
    """
    a, b = (planned.case for planned in pair)
    if (a.model, a.checkout) == (b.model, b.checkout) or any(planned.refusal for planned in pair):
        return None
    references = [reference(planned) for planned in pair]
    first, second = references
    if first.inputs and second.inputs:
        check_inputs(first.inputs, second.inputs)
    for name, outputs in zip("AB", references, strict=True):
        if not outputs.path:
            return Agreement(reference="A", reason=f"{name} has no reference outputs: {outputs.missing}")
    if first.inputs_sha256 != second.inputs_sha256:
        return Agreement(reference="A", reason="each brings example inputs of its own")
    tolerance = max(TOLERANCES[planned.reference.precision if planned.reference else "fp32"] for planned in pair)
    return output_check.judge(second.expected().calls, first.expected()._replace(name="A"), tolerance)


def check_inputs(a: Sequence[TensorSpec], b: Sequence[TensorSpec]) -> None:
    """Refuse two models that do not take the same shapes and types, in whatever names."""
    if [(spec.shape, spec.dtype) for spec in a] != [(spec.shape, spec.dtype) for spec in b]:
        raise InferlensError(
            f"A and B take different inputs: {listing([*map(str, a)])} of A, {listing([*map(str, b)])} of B.",
            expected="two models that are fed alike",
            hint=f"--input {a[0]}, for both",
        )
