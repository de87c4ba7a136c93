"""Two cases against each other, in rounds, until it is known which is faster: ``inferlens ab``.

A round is a fresh process of A and one of B. On the CPU both are there at once and take turns, some calls each
(``interleaver``), so that whatever slows the machine down for a while slows down both. On a GPU, where what two
processes hold and draw could not be told apart, one comes after the other, unless turns are asked for. Who goes first
alternates. Each process leaves its record. A process that does not run to its end, or whose outputs are wrong, ends it
without a verdict on speed: those that are left would mostly be the fast ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferlens.analysis.compare.ab_result import LEAST_ROUNDS, ABResult, ABRule, End, other_work
from inferlens.analysis.compare.cases import MISSING, Side, Verdict, notes_of, read
from inferlens.analysis.interference.samples import CaseRuns, in_common, steady_samples
from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned, backends_named, expand
from inferlens.execution.protocol import Observer
from inferlens.execution.scheduler import Scheduler, scheduled
from inferlens.execution.survey import found, named, probe
from inferlens.record.record import Record
from inferlens.spec.plan import Plan, option_values, words_of
from inferlens.stats.compare import Sequential
from inferlens.units import listing

INTERLEAVE = ("calls", "processes")


def ab(
    model: Any,
    a: str,
    b: str,
    example_inputs: Any = None,
    *,
    observer: Observer | None = None,
    on_round: Callable[[ABResult], None] = lambda _: None,
    metric: str = "latency",
    threshold: float | str = 0.02,
    level: float | str = 0.95,
    max_rounds: int = 20,
    within: float | str = 600.0,
    interleave: str | None = None,
    **words: Any,
) -> ABResult:
    """Measures two cases of one model against each other, in turns, until it is decided or time is over.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``.
        a: a case in the words of its label, such as ``"pytorch fp16 batch=8"``: what B is compared with.
        b: the other one.
        example_inputs: for a live module, as of :func:`inferlens.bench`.
        observer: told what happens; by default nothing is shown.
        on_round: told after each round how it stands.
        metric: ``latency``, ``throughput`` or ``GPU time``.
        threshold: the smallest difference that matters.
        level: how sure the verdict is to be.
        max_rounds: rounds at most, each a process of A and one of B.
        within: seconds, or text such as ``"10m"``, for all of it.
        interleave: ``calls``, where both processes of a round are there at once and take turns, or ``processes``, where
            one comes after the other; by default ``calls`` on the CPU. On a GPU ``calls`` tell no memory and no energy.
        words: those of a plan, for both cases alike; what a case says itself takes precedence.

    Raises:
        InferlensError: if the model, a case or a word means nothing. A side that fails is a verdict, not an error.
    """
    begin = time.monotonic()
    rule = ABRule.from_words(metric, threshold, level, max_rounds, within)
    observer = observer or Observer()
    observer.doing("looking at the model and both backends")
    with named(model, example_inputs) as model:
        words = {**words, "model": model.spec, "mode": "throughput" if rule.metric == "throughput" else "latency"}
        plans = _plans(words, a, b)
        capabilities = probe(list(dict.fromkeys(name for plan in plans for name in backends_named(plan))))
        models = found(plans[0], model)
        pair = _pair([expand(plan, models, capabilities) for plan in plans])
        by_default = "calls" if all(planned.case.device == "cpu" for planned in pair) else "processes"
        if (interleave or by_default) not in INTERLEAVE:
            raise InferlensError(f"'{interleave}' cannot be interleaved.", expected=listing(INTERLEAVE))
        calls = (interleave or by_default) == "calls"
        observer.planned(pair * rule.max_rounds)
        with scheduled(plans[0], observer, pair, model) as scheduler:
            return ABRun(scheduler, pair, rule, on_round, begin, calls).run()


def _plans(words: Mapping[str, Any], a: str, b: str) -> list[Plan]:
    """A plan for each side: the words that both share, and its own."""
    own = [words_of(text, BACKENDS.names()) for text in (a, b)]
    backends = [each["backend"].partition(":")[0] for each in own]
    shared = option_values(words.get("option") or {})
    for name in shared:
        if name.partition(".")[0] not in backends:
            raise InferlensError(
                f"The option '{name}' is for a backend of neither case.", expected=f"one of {listing(sorted(backends))}"
            )
    plans = []
    for backend, mine in zip(backends, own, strict=True):
        options = {name: values for name, values in shared.items() if name.partition(".")[0] == backend}
        plans.append(Plan.from_words({**words, **mine, "option": {**options, **mine["option"]}}))
    return plans


def _pair(sides: Sequence[Sequence[Planned]]) -> tuple[Planned, Planned]:
    """The one case of each side."""
    for name, side in zip("AB", sides, strict=True):
        if len(side) > 1:
            raise InferlensError(
                f"{name} means {len(side)} cases, such as {side[0].case.label} and {side[-1].case.label}.",
                expected="one value of each axis and one variant",
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


@dataclass
class ABRun:
    """Rounds under way."""

    scheduler: Scheduler
    pair: tuple[Planned, ...]
    rule: ABRule
    on_round: Callable[[ABResult], None]
    begin: float
    calls: bool = False

    def __post_init__(self) -> None:
        rule = self.rule
        self._looks = Sequential(rule.threshold, rule.level, rule.max_rounds, rounds_min=LEAST_ROUNDS)
        self._records: tuple[list[Record], list[Record]] = ([], [])
        self._failed = False
        self._longest = 0.0

    def run(self) -> ABResult:
        """Rounds until one of the ends is reached."""
        while not self._end():
            begin = time.monotonic()
            self._round(self._looks.rounds)
            self._longest = max(self._longest, time.monotonic() - begin)
            self.on_round(self.so_far())
        return self.so_far()

    def _round(self, number: int) -> None:
        """Measures both sides once, and looks at all rounds so far."""
        order = [0, 1] if number % 2 == 0 else [1, 0]
        order.sort(key=lambda place: self.pair[place].refusal is None)  # nothing is measured beside what cannot run
        for place, record in zip(order, self._measured(order, number), strict=False):
            self._records[place].append(record)
            self._failed |= not read(CaseRuns((record,)), self.rule.metric, self.rule.level)[0].ok
        if self._failed:
            return
        series = [steady_samples(records[-1], self.rule.metric) for records in self._records]
        base, candidate = in_common(series) if self.calls else [one.samples for one in series]
        # More calls per second is less time for each, so of throughput A's is the numerator.
        self._looks.add(*((candidate, base) if self.rule.metric == "throughput" else (base, candidate)))

    def _measured(self, order: Sequence[int], number: int) -> Iterator[Record]:
        """The records of a round; none after one that does not run to its end, if they come one after the other."""
        pair = [self.pair[place] for place in order]
        if self.calls and not any(planned.refusal for planned in pair):
            yield from self.scheduler.measure_interleaved(pair, number)
            return
        for planned in pair:
            yield self.scheduler.measure(planned, number)[0]
            if self._failed:
                return

    def _end(self) -> End:
        if self._failed:
            return "a side did not run"
        if self._looks.comparison and self._looks.comparison.verdict != "UNDECIDED":
            return "decided"
        if self._looks.finished:
            return "rounds"
        spent = time.monotonic() - self.begin
        return "time" if self._looks.rounds and spent + self._longest > self.rule.within else ""

    def so_far(self) -> ABResult:
        """How it stands."""
        base, candidate = map(self._side, self._records)
        found = None if self._failed else self._looks.comparison
        verdict: Verdict = "DID NOT RUN" if self._failed else found.verdict if found else "UNDECIDED"
        reason = found.reason if found else f"There is no verdict before {LEAST_ROUNDS} rounds."
        if self._failed:
            failed = {"A": base, "B": candidate}.items()
            said = [f"{name}, {side.state}: {side.reason.rstrip('.')}." for name, side in failed if not side.ok]
            reason = " ".join(each for each in said if MISSING not in each)
        return ABResult(
            a=self.pair[0].case,
            b=self.pair[1].case,
            verdict=verdict,
            reason=reason,
            end=self._end(),
            rule=self.rule,
            rounds=self._looks.rounds,
            seconds=time.monotonic() - self.begin,
            ratio=found.ratio if found else None,
            interval=found.interval if found else None,
            base=base,
            candidate=candidate,
            notes=(*other_work(self.pair[0].case, self.pair[1].case), *notes_of(A=base, B=candidate)),
            run=self.scheduler.id,
        )

    def _side(self, records: Sequence[Record]) -> Side:
        if not records:
            return Side(state=MISSING, reason="It was not measured.")
        return read(CaseRuns(tuple(records)), self.rule.metric, self.rule.level)[0]
