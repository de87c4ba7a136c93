"""How two things compare that were measured in turns: an :class:`ABResult`, data, which ``views/comparison.py`` shows."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from inferlens.analysis import notes
from inferlens.analysis.comparison import MISSING, WRONG, Difference, Side, Verdict, check, metric_of, sentence
from inferlens.analysis.interference import MachineLoad, mean_load
from inferlens.analysis.measures import AccuracyPair
from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError
from inferlens.record.display import Struct
from inferlens.record.record import Agreement, Metric, Record
from inferlens.spec.case import AXES, Case, shown_together
from inferlens.spec.objective import MEASURES
from inferlens.stats.intervals import Interval, ends
from inferlens.stats.race_rule import LEAST_VERDICT_ROUNDS, MOST_ASKED_FOR
from inferlens.units import (
    drop,
    duration,
    error_size,
    listing,
    parse_duration,
    parse_share,
    percent,
    plural,
    rate,
    ratio,
    ratio_range,
    score,
)

End = Literal["", "decided", "rounds", "time", "a side did not run"]
LARGEST_THRESHOLD = 0.1  # that is proposed to whom more rounds would not help
PROBABLE = 0.75  # from which probability on something is called probable
_CODES = {"FASTER": 0, "SAME": 0, "SLOWER": 1, "UNDECIDED": 3, "DID NOT RUN": 4}
# Notes of what the interval over several rounds covers, or the verdict says.
_COVERED = (
    "busy", "disturbed", "unsteady", "few-samples", "not-reached", "two-modes", "uneven-throughput", "repeat-failed",
    "cut-short",
)  # fmt: skip
# Where two cases differ in one of these, a call of theirs is not the same work.
_WORK = ("batch", "inputs", "weights", "seed", "io", "cold", "rotate")


class ABRule(Struct, frozen=True, kw_only=True):
    """When it is over."""

    metric: Metric = "latency"
    threshold: float = 0.02  # the smallest relative difference that matters
    level: float = 0.95  # confidence that the verdict is right, whenever it comes
    max_rounds: int = 20
    within: float = 600.0  # seconds at most; a round that would probably end later is not begun, but for the first

    @staticmethod
    def from_words(
        metric: str, threshold: float | str, level: float | str, max_rounds: int, within: float | str
    ) -> ABRule:
        """A rule from values as a person writes them; an :class:`InferlensError` if one does not fit."""
        rule = ABRule(
            metric=metric_of(metric),
            threshold=parse_share(threshold) if isinstance(threshold, str) else threshold,
            level=parse_share(level) if isinstance(level, str) else level,
            max_rounds=max_rounds,
            within=parse_duration(within) if isinstance(within, str) else within,
        )
        check(rule.threshold, rule.level)
        if rule.threshold >= 1:
            raise InferlensError("The threshold is out of range.", expected="such as 2%: a difference that matters")
        if not LEAST_VERDICT_ROUNDS <= max_rounds <= MOST_ASKED_FOR:
            expected = f"{LEAST_VERDICT_ROUNDS} to {MOST_ASKED_FOR}"
            raise InferlensError(f"--max-rounds {max_rounds} is out of range.", expected=expected)
        return rule


class ABResult(Struct, frozen=True, kw_only=True):
    """How B compares with A, after the rounds so far; ``print`` shows it.

    Attributes:
        verdict: of B against A; ``base`` and ``candidate`` are what is known of A and of B.
        end: why there is no further round; empty while there is.
        rounds: rounds of which both sides have samples; ``seconds``: the time they took, everything included.
        ratio: B's time over A's, of throughput the time of a call: above 1 B is slower. ``None`` before
            :data:`LEAST_VERDICT_ROUNDS` rounds.
        interval: of ``ratio``; those of all looks hold together with confidence ``rule.level``.
        odds: probabilities, by the rounds so far, that B is faster or slower by the threshold, or neither (``SAME``);
            empty before there are two.
        outputs: of two models, how far B's outputs agree with those of A.
        accuracy: what the answers of both are worth, where that was asked for.
        revisions: of both checkouts, by git; empty where there are none.
        differences: of two environments, what differs between them; ``costs``: memory, build and error of A and of B.
        run: shared by their records; ``output``: the folder where they are.
    """

    a: Case
    b: Case
    verdict: Verdict
    reason: str
    end: End
    rule: ABRule
    rounds: int
    seconds: float
    ratio: float | None
    interval: Interval | None
    base: Side
    candidate: Side
    notes: tuple[str, ...]
    run: str
    odds: dict[str, float] = {}
    outputs: Agreement | None = None
    accuracy: AccuracyPair | None = None
    revisions: tuple[str, str] = ("", "")
    differences: tuple[Difference, ...] = ()
    costs: tuple[dict[str, float | None], dict[str, float | None]] = ({}, {})
    output: str = "results"

    def __repr__(self) -> str:
        return f"<ABResult: {self.sentence}>"

    @property
    def exit_code(self) -> int:
        """As of a comparison: 1 if B is slower, 4 if a side did not run, 3 if it is undecided, else 0."""
        return _CODES[self.verdict]

    @property
    def machine_load(self) -> MachineLoad:
        """What other programs used while A and B were measured."""
        return mean_load((self.base.machine_load, self.candidate.machine_load))

    @property
    def standing(self) -> str:
        """How fast B is in words: ``1.91x as fast as A (1.87 to 1.96)``, as long as its interval says something."""
        if self.ratio is None or self.interval is None:
            return "no ratio yet"
        return f"{ratio(1 / self.ratio)} as fast as A ({ratio_range(1 / self.interval.high, 1 / self.interval.low)})"

    @property
    def likeliest(self) -> str:
        """What is probably so: ``B is probably faster (92 %)``."""
        if not self.odds:
            return "which is faster is not known yet"
        verdict = max(self.odds, key=lambda name: self.odds[name])
        if self.odds[verdict] < PROBABLE:
            return "which is faster is not known yet"
        same = f"A and B are probably equally fast within {percent(self.rule.threshold)}"
        said = same if verdict == "SAME" else f"B is probably {verdict.lower()}"
        return f"{said} ({min(100 * self.odds[verdict], 99.0):.0f} %)"

    @property
    def sentence(self) -> str:
        """The answer: the verdict, the ratio with its interval, rounds and time, in one sentence."""
        spent = f"{plural(self.rounds, 'round')}, {duration(self.seconds)}"
        if self.verdict == "DID NOT RUN":
            return f"DID NOT RUN: {self.reason}"
        if self.verdict == "UNDECIDED":
            return f"UNDECIDED, {self.likeliest}: {self.standing}, {spent}"
        same = f"A and B are EQUALLY FAST within {percent(self.rule.threshold)}: B is"
        answer = same if self.verdict == "SAME" else f"B is {self.verdict}:"
        return f"{answer} {self.standing}, {percent(self.rule.level)} sure, {spent}"

    @property
    def sides(self) -> tuple[str, tuple[str, str], tuple[str, str]]:
        """What A and B have in common; what each of them is; and what was measured of each."""
        common, names = names_of_cases((self.a, self.b), self.revisions)
        figures = [
            "  ".join([self._figure(side), *_costs(costs)])
            for side, costs in zip((self.base, self.candidate), self.costs, strict=True)
        ]
        return common, names, (figures[0], figures[1])

    def _figure(self, side: Side) -> str:
        if side.median is None:
            return {WRONG: "outputs wrong", MISSING: "not measured"}.get(side.state, side.state)
        return f"{rate(side.median)} calls/s" if self.rule.metric == "throughput" else duration(side.median)

    @property
    def of_environments(self) -> str:
        """What differs between two environments, in a sentence; empty of one."""
        if self.a.python == self.b.python or not (self.base.records and self.candidate.records):
            return ""
        if not self.differences:
            return "No library that records have the version of differs, nor Python, the driver or a variable."
        return f"What differs: {sentence(self.differences)}."

    @property
    def of_outputs(self) -> str:
        """Whether two models answer alike, in a sentence; empty of one model, or where it is not known."""
        agreement = self.outputs
        if not agreement:
            return ""
        if agreement.rel_l2 is None:
            return f"Outputs of A and B were not compared: {agreement.reason}."
        allowed = f", tolerance {error_size(agreement.tolerance)}" if agreement.tolerance else ""
        size = f"(relative L2 difference {error_size(agreement.rel_l2)}{allowed})"
        return f"A and B give {'the same outputs' if agreement.agrees else 'DIFFERENT OUTPUTS'} {size}."

    @property
    def of_accuracy(self) -> str:
        """What the answers of both are worth, in a sentence; empty where it is not known."""
        worth_of_two = self.accuracy
        if not worth_of_two:
            return ""
        values = [score(value, share=worth_of_two.share) for value in (worth_of_two.a, worth_of_two.b)]
        lost = (
            f", drop {drop(worth_of_two.drop, *ends(worth_of_two.drop_interval))}"
            if worth_of_two.drop is not None
            else ""
        )
        return f"{worth_of_two.metric} of {plural(worth_of_two.count, 'sample')}: A {values[0]}, B {values[1]}{lost}"

    @property
    def more(self) -> dict[str, str]:
        """Options of a second attempt that probably decides it; none where it is decided."""
        if self.verdict != "UNDECIDED" or not self.rounds:
            return {}
        rounds = 3.0 * self.rounds
        if self.ratio and self.interval:
            width = math.log(self.interval.high / self.interval.low) / 2
            apart, matters = abs(math.log(self.ratio)), math.log1p(self.rule.threshold)
            wanted = apart if apart >= matters else matters - apart
            rounds = self.rounds * (width / wanted) ** 2 * 1.2 if wanted else math.inf
            enough = math.expm1(apart + width)
            if rounds > MOST_ASKED_FOR and enough <= LARGEST_THRESHOLD:  # about as large as the smallest that matters
                return {"threshold": f"{math.ceil(200 * enough) / 2:g}%"}
            rounds = min(rounds, MOST_ASKED_FOR)
        rounds = max(LEAST_VERDICT_ROUNDS, math.ceil(rounds), self.rounds + 1)
        minutes = math.ceil(1.2 * rounds * self.seconds / self.rounds / 60)
        found = {"within": f"{minutes}m"} if 60 * minutes > self.rule.within else {}
        return found | ({"max-rounds": f"{min(rounds, MOST_ASKED_FOR)}"} if rounds > self.rule.max_rounds else {})

    @property
    def remarks(self) -> list[str]:
        """What changes or weakens the answer: two sentences at most, and how many more there are."""
        every = [*filter(None, [self.of_environments, self.of_outputs]), *self.notes]
        more = f"({len(every) - 2} more: inferlens show {shlex.quote(self.output)} --view notes)"
        return every if len(every) < 3 else [*every[:2], more]


def _costs(costs: dict[str, float | None]) -> list[str]:
    """What is known of them, in words."""
    return [f"{name} {MEASURES[name].show(value)}" for name, value in costs.items() if value is not None]


def names_of_cases(cases: Sequence[Case], revisions: Sequence[str]) -> tuple[str, tuple[str, str]]:
    """What two cases have in common, and what each of them is."""
    short = len({case.model for case in cases}) == len({case.model.partition(":")[2] for case in cases})
    parts = []
    for case, revision in zip(shown_together(cases), revisions, strict=True):
        said: dict[str, Any] = {
            "model": case.model.partition(":")[2] if short else case.model,
            "checkout": f"{case.checkout} ({revision})" if revision else case.checkout,
            "backend": case.backend_label,
            **{axis.name: " ".join(axis.words(case)) for axis in AXES},
            "inputs": ", ".join(map(str, case.inputs)),
            "weights": f"weights={case.weights}" if case.weights else "",
            "seed": f"seed={case.seed}" if case.seed else "",
            **{f"{case.backend}.{name}": f"{name}={value}".lower() for name, value in case.options.items()},
        }
        parts.append(said)
    one, other = parts
    same = [name for name in one if one[name] == other.get(name)]
    own = [" ".join(part[name] for name in part if name not in same and part[name]) for part in parts]
    if not all(own):  # they differ in an option that one has by default
        same.remove("backend")
        own = [" ".join(part[name] for name in part if name not in same and part[name]) for part in parts]
    return " · ".join(one[name] for name in same if one[name]), (own[0], own[1])


def notes_of(a: Sequence[Record], b: Sequence[Record]) -> tuple[str, ...]:
    """What changes or weakens the answer, beyond what the interval covers, each with whose it is."""
    differ = [name for name in _WORK if getattr(a[0].case, name) != getattr(b[0].case, name)]
    whose: dict[str, list[str]] = {}
    for name, records in (("A", a), ("B", b)):
        for note in notes.case_notes(CaseRuns(tuple(records))) if records[-1].ranked else ():
            if note.level != "know" and note.code not in _COVERED:
                whose.setdefault(str(note), []).append(name)
    said = [f"{listing(names)}: {text}" for text, names in whose.items()]
    return (*([f"A and B do not do the same work: they differ in {listing(differ)}."] if differ else []), *said)


# Which of several changes did it: environments, in the order of the changes, each against the one before.
#
# What changed between two neighbours whose times differ did it; what changed between two that are as fast as each other,
# in whichever direction, did not.

WORST_FIRST = (1, 4, 3, 0)


class Step(NamedTuple):
    """From one environment to the next: their names, what was found, and what is measured of the later one."""

    before: str
    after: str
    ab_result: ABResult
    figure: str


class ABSteps(Struct, frozen=True, kw_only=True):
    """How each environment compares with the one before; ``print`` shows it.

    Attributes:
        steps: B of each is A of the next.
        level: confidence that all verdicts together are right.
    """

    steps: tuple[ABResult, ...]
    level: float

    def __repr__(self) -> str:
        return f"<ABSteps: {self.sentences[0]}>"

    @property
    def exit_code(self) -> int:
        """1 if a step is slower; else 4 if one did not run; else 3 if one is undecided; else 0."""
        return next(code for code in WORST_FIRST if code in {step.exit_code for step in self.steps})

    @property
    def machine_load(self) -> MachineLoad:
        """What other programs used meanwhile."""
        return mean_load(step.machine_load for step in self.steps)

    @property
    def named(self) -> list[Step]:
        """The steps, with environments by names as short as tells them apart."""
        cases = shown_together([self.steps[0].a, *(step.b for step in self.steps)])
        names = [case.python or "this one" for case in cases]
        figures = [step.sides[2][1] for step in self.steps]
        return [Step(*item) for item in zip(names, names[1:], self.steps, figures, strict=False)]

    @property
    def sentences(self) -> list[str]:
        """The answer: the steps that changed the time, and what changed there; or that none did."""
        said = [
            f"{step.before} to {step.after} is {step.ab_result.verdict}: "
            f"{step.ab_result.standing.replace(' as A', '')}. " + self._cause(step.ab_result)
            for step in self.named
            if step.ab_result.verdict in ("FASTER", "SLOWER")
        ]
        for verdict in ("DID NOT RUN", "UNDECIDED"):
            steps = [f"{step.before} to {step.after}" for step in self.named if step.ab_result.verdict == verdict]
            said += [f"{verdict}: {listing(steps)}."] if steps else []
        threshold = percent(self.steps[0].rule.threshold)
        return said or [f"No step changed the time by {threshold} or more, {percent(self.level)} sure."]

    def _cause(self, ab_result: ABResult) -> str:
        """What differs in a step, and what of it did not do it, since the same change is in a step that is SAME."""
        harmless = {
            _change(difference) for step in self.steps if step.verdict == "SAME" for difference in step.differences
        }
        left = [difference for difference in ab_result.differences if _change(difference) not in harmless]
        cleared = [difference.field for difference in ab_result.differences if _change(difference) in harmless]
        if not (left and cleared):  # all of it together, where each by itself did nothing
            return ab_result.of_environments or "What differs there is not known."
        return f"What differs: {sentence(left)}; and {listing(cleared)}, which made no difference in another step."


def _change(of: Difference) -> tuple[str, frozenset[str]]:
    return of.field, frozenset((of.base, of.candidate))
