"""Results of comparing A with B in turns: an :class:`ABResult`, or :class:`ABSteps` for a series of environments.

They are data; ``views`` shows them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Literal, NamedTuple

from inferlens.analysis import notes
from inferlens.analysis.comparison import (
    CAPACITY,
    MISSING,
    WRONG,
    ComparedMetric,
    Difference,
    Side,
    Verdict,
    check_limits,
    differences_sentence,
    parse_metric,
    side_notes,
    worst_exit_code,
)
from inferlens.analysis.interference import MachineLoad, mean_load
from inferlens.analysis.measures import AccuracyPair
from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError
from inferlens.record.display import Struct
from inferlens.record.record import Agreement, Metric, Record
from inferlens.spec.case import Case, shown_together, split_shared_words
from inferlens.spec.objective import MEASURES
from inferlens.stats.intervals import Interval, ends
from inferlens.stats.race_rule import LEAST_VERDICT_ROUNDS, MOST_VERDICT_ROUNDS
from inferlens.units import drop, duration, error_size, listing, percent, plural, rate, ratio, ratio_range, score

End = Literal["", "decided", "rounds", "time", "a side did not run"]
PROBABLE = 0.75  # probability from which on an outcome is called probable
# Codes of notes that the interval over several rounds covers, or that the verdict implies.
_COVERED = (
    "busy", "disturbed", "unsteady", "few-samples", "not-reached", "two-modes", "uneven-throughput", "repeat-failed",
    "cut-short",
)  # fmt: skip
_WORK = ("batch", "inputs", "weights", "seed", "io", "cold", "rotate")  # fields of a case that change its work


class ABRule(Struct, frozen=True, kw_only=True):
    """The metric, and when to stop."""

    metric: ComparedMetric = "latency"
    limit: str = ""  # on the latency of requests, if the metric is the capacity
    threshold: float = 0.02  # the smallest relative difference that matters
    level: float = 0.95  # confidence that the verdict is right, whenever it comes
    max_rounds: int = 20
    within: float = 600.0  # seconds at most; no round but the first begins if it would probably end later

    @staticmethod
    def parse(metric: str, threshold: float, level: float, max_rounds: int, within: float, limit: str = "") -> ABRule:
        """Return a rule from values as users write them; raise an :class:`InferlensError` for bad ones."""
        check_limits(threshold, level)
        if threshold >= 1:
            raise InferlensError("The threshold is out of range.", expected="such as 2%: a difference that matters")
        if not LEAST_VERDICT_ROUNDS <= max_rounds <= MOST_VERDICT_ROUNDS:
            expected = f"{LEAST_VERDICT_ROUNDS} to {MOST_VERDICT_ROUNDS}"
            raise InferlensError(f"--max-rounds {max_rounds} is out of range.", expected=expected)
        capacity = metric == CAPACITY
        return ABRule(
            metric=CAPACITY if capacity else parse_metric(metric), limit=limit if capacity else "",
            threshold=threshold, level=level, max_rounds=max_rounds, within=within,
        )  # fmt: skip

    @property
    def measured(self) -> Metric:
        """The metric of the records: a capacity is kept as the throughput of a record."""
        return "throughput" if self.metric == "capacity" else self.metric


class ABResult(Struct, frozen=True, kw_only=True):
    """The comparison of B with A after some rounds; ``print`` shows it."""

    a: Case
    b: Case
    verdict: Verdict  # of B against A; ``base`` and ``candidate`` are the measurements of A and of B
    reason: str
    end: End  # why there is no further round; empty while there is
    rule: ABRule
    rounds: int  # rounds with samples of both sides; ``seconds``: the time they took, everything included
    seconds: float
    # B's time over A's, of throughput the time of a call: above 1 B is slower. ``None`` before
    # :data:`LEAST_VERDICT_ROUNDS` rounds.
    ratio: float | None
    interval: Interval | None  # of ``ratio``; those of all looks hold together with confidence ``rule.level``
    base: Side
    candidate: Side
    notes: tuple[str, ...]
    run: str  # shared by their records; ``output``: the folder of these
    # Probabilities that B is faster or slower by the threshold, or neither (``SAME``); empty before the second
    # round.
    odds: dict[str, float] = {}
    outputs: Agreement | None = None  # of two models, the agreement of B's outputs with A's
    accuracy: AccuracyPair | None = None  # the accuracy of both, if the user asked for it
    revisions: tuple[str, str] = ("", "")  # of both checkouts, by git; empty without
    # Between two environments; ``costs``: memory, build and error of A and of B.
    differences: tuple[Difference, ...] = ()
    costs: tuple[dict[str, float | None], dict[str, float | None]] = ({}, {})
    output: str = "results"

    def __repr__(self) -> str:
        return f"<ABResult: {self.sentence}>"

    @property
    def exit_code(self) -> int:
        return worst_exit_code([self.verdict])

    @property
    def machine_load(self) -> MachineLoad:
        return mean_load((self.base.machine_load, self.candidate.machine_load))

    @property
    def ratio_text(self) -> str:
        """The speed of B in words: ``1.91x as fast as A (1.87 to 1.96)``."""
        if self.ratio is None or self.interval is None:
            return "no ratio yet"
        how = "as fast" if self.rule.metric != CAPACITY else "as many requests/s"
        return f"{ratio(1 / self.ratio)} {how} as A ({ratio_range(1 / self.interval.high, 1 / self.interval.low)})"

    @property
    def likely_verdict(self) -> str:
        """The likeliest verdict: ``B is probably faster (92 %)``."""
        verdict = max(self.odds, key=lambda name: self.odds[name], default="")
        if not verdict or self.odds[verdict] < PROBABLE:
            return "which is faster is not known yet"
        same = f"A and B are probably equally fast within {percent(self.rule.threshold)}"
        outcome = same if verdict == "SAME" else f"B is probably {verdict.lower()}"
        return f"{outcome} ({min(100 * self.odds[verdict], 99.0):.0f} %)"

    @property
    def sentence(self) -> str:
        effort = f"{plural(self.rounds, 'round')}, {duration(self.seconds)}"
        if self.verdict == "DID NOT RUN":
            return f"DID NOT RUN: {self.reason}"
        if self.verdict == "UNDECIDED":
            return f"UNDECIDED, {self.likely_verdict}: {self.ratio_text}, {effort}"
        same = f"A and B are EQUALLY FAST within {percent(self.rule.threshold)}: B is"
        answer = same if self.verdict == "SAME" else f"B is {self.verdict}:"
        return f"{answer} {self.ratio_text}, {percent(self.rule.level)} sure, {effort}"

    @property
    def sides(self) -> tuple[str, tuple[str, str], tuple[str, str]]:
        """The description that A and B share, then the description and the measurements of both sides."""

        def measurements(side: Side, costs: dict[str, float | None]) -> str:
            figure = {WRONG: "outputs wrong", MISSING: "not measured"}.get(side.state, side.state)
            if side.median is not None:
                unit = {"throughput": "calls/s", CAPACITY: "requests/s"}.get(self.rule.metric)
                figure = f"{rate(side.median)} {unit}" if unit else duration(side.median)
            shown = (f"{name} {MEASURES[name].show(value)}" for name, value in costs.items() if value is not None)
            return "  ".join([figure, *shown])

        common, names = distinguish_cases((self.a, self.b), self.revisions)
        return common, names, (measurements(self.base, self.costs[0]), measurements(self.candidate, self.costs[1]))

    @property
    def environments_sentence(self) -> str:
        if self.a.python == self.b.python or not (self.base.records and self.candidate.records):
            return ""
        if not self.differences:
            return "No library that records have the version of differs, nor Python, the driver or a variable."
        return f"What differs: {differences_sentence(self.differences)}."

    @property
    def outputs_sentence(self) -> str:
        """The agreement of the outputs of two models, in a sentence; empty for one model, or if unknown."""
        agreement = self.outputs
        if not agreement:
            return ""
        if agreement.rel_l2 is None:
            return f"Outputs of A and B were not compared: {agreement.reason}."
        allowed = f", tolerance {error_size(agreement.tolerance)}" if agreement.tolerance else ""
        size = f"(relative L2 difference {error_size(agreement.rel_l2)}{allowed})"
        return f"A and B give {'the same outputs' if agreement.agrees else 'DIFFERENT OUTPUTS'} {size}."

    @property
    def accuracy_sentence(self) -> str:
        pair = self.accuracy
        if not pair:
            return ""
        a, b = (score(value, share=pair.share) for value in (pair.a, pair.b))
        loss = f", drop {drop(pair.drop, *ends(pair.drop_interval))}" if pair.drop is not None else ""
        return f"{pair.metric} of {plural(pair.count, 'sample')}: A {a}, B {b}{loss}"

    @property
    def retry_options(self) -> dict[str, str]:
        """Options of a second attempt with three times as many rounds; empty if it is decided."""
        if self.verdict != "UNDECIDED" or not self.rounds:
            return {}
        if self.rounds == MOST_VERDICT_ROUNDS:
            return {"threshold": f"{200 * self.rule.threshold:g}%"}
        rounds = min(max(3 * self.rounds, LEAST_VERDICT_ROUNDS), MOST_VERDICT_ROUNDS)
        minutes = math.ceil(1.2 * rounds * self.seconds / self.rounds / 60)
        options = {"within": f"{minutes}m"} if 60 * minutes > self.rule.within else {}
        return options | ({"max-rounds": f"{rounds}"} if rounds > self.rule.max_rounds else {})

    @property
    def remarks(self) -> list[str]:
        """Two sentences at most that change or weaken the answer, and the number of the others."""
        remarks = [*filter(None, [self.environments_sentence, self.outputs_sentence]), *self.notes]
        omitted = f"({len(remarks) - 2} more: inferlens show {shlex.quote(self.output)} --view notes)"
        return remarks if len(remarks) < 3 else [*remarks[:2], omitted]


def distinguish_cases(cases: Sequence[Case], revisions: Sequence[str]) -> tuple[str, tuple[str, str]]:
    """Return the description that two cases share, and the descriptions that tell them apart."""
    short = len({case.model for case in cases}) == len({case.model.partition(":")[2] for case in cases})
    words: list[dict[str, str]] = []
    for case, revision in zip(shown_together(cases), revisions, strict=True):
        model = case.model.partition(":")[2] if short else case.model
        checkout = f"{case.checkout} ({revision})" if revision else case.checkout
        identity = case.identity_words()
        identity.pop("checkout", "")
        words.append({"model": model, **({"checkout": checkout} if checkout else {}), **identity})
    shared, (first, second) = split_shared_words(words)
    if not (first and second):  # they differ in an option that one has by default
        backend = shared.pop("backend")
        first, second = f"{backend} {first}".strip(), f"{backend} {second}".strip()
    return " · ".join(shared.values()), (first, second)


def ab_notes(a: Sequence[Record], b: Sequence[Record]) -> tuple[str, ...]:
    """Return the notes that change or weaken the answer beyond its interval, with their sides."""
    differing = [name for name in _WORK if getattr(a[0].case, name) != getattr(b[0].case, name)]
    work = [f"A and B do not do the same work: they differ in {listing(differing)}."] if differing else []

    def weakening_notes(records: Sequence[Record]) -> list[str]:
        case_notes = notes.case_notes(CaseRuns(tuple(records))) if records[-1].ranked else ()
        return [str(note) for note in case_notes if note.level != "know" and note.code not in _COVERED]

    return (*work, *side_notes(A=weakening_notes(a), B=weakening_notes(b)))


class Step(NamedTuple):
    """The comparison of an environment with the next: their names, the result, the measurements of the later one."""

    before: str
    after: str
    ab_result: ABResult
    figure: str


class ABSteps(Struct, frozen=True, kw_only=True):
    """The comparisons of consecutive environments; ``print`` shows them.

    A difference that is also in a step without an effect is not the cause of a change.
    """

    steps: tuple[ABResult, ...]  # consecutive comparisons; B of one step is A of the next one
    level: float  # confidence that all verdicts together are right

    def __repr__(self) -> str:
        return f"<ABSteps: {self.sentences[0]}>"

    @property
    def exit_code(self) -> int:
        return worst_exit_code([step.verdict for step in self.steps])

    @property
    def machine_load(self) -> MachineLoad:
        return mean_load(step.machine_load for step in self.steps)

    @property
    def named_steps(self) -> list[Step]:
        """The steps, with the shortest distinct names of the environments."""
        cases = shown_together([self.steps[0].a, *(step.b for step in self.steps)])
        names = [case.python or "this one" for case in cases]
        figures = [step.sides[2][1] for step in self.steps]
        return [Step(*step) for step in zip(names, names[1:], self.steps, figures, strict=False)]

    @property
    def sentences(self) -> list[str]:
        """The answer: the steps that changed the time, and their changes; or that none did."""
        steps = [(f"{step.before} to {step.after}", step.ab_result) for step in self.named_steps]
        sentences = [
            f"{name} is {result.verdict}: {result.ratio_text.replace(' as A', '')}. {self._cause(result)}"
            for name, result in steps
            if result.verdict in ("FASTER", "SLOWER")
        ]
        for verdict in ("DID NOT RUN", "UNDECIDED"):
            names = [name for name, result in steps if result.verdict == verdict]
            sentences += [f"{verdict}: {listing(names)}."] if names else []
        threshold = percent(self.steps[0].rule.threshold)
        return sentences or [f"No step changed the time by {threshold} or more, {percent(self.level)} sure."]

    def _cause(self, ab_result: ABResult) -> str:
        """Return the differences of a step, and which of them are also in a step without an effect."""
        steps = [step for step in self.steps if step.verdict == "SAME"]
        harmless = {_change(difference) for step in steps for difference in step.differences}
        causes = [difference for difference in ab_result.differences if _change(difference) not in harmless]
        cleared = [difference.field for difference in ab_result.differences if _change(difference) in harmless]
        if not (causes and cleared):  # nothing is ruled out, or everything is
            return ab_result.environments_sentence or "The difference between the environments is not known."
        sentence = differences_sentence(causes)
        return f"What differs: {sentence}; and {listing(cleared)}, which made no difference in another step."


def _change(difference: Difference) -> tuple[str, frozenset[str]]:
    return difference.field, frozenset((difference.base, difference.candidate))
