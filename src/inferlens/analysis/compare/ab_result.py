"""How two cases compare that were measured in turns: a :class:`ABResult`, by a :class:`Rule`. Data, and its words."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from inferlens.analysis.compare.cases import Side, Verdict, check, metric_of
from inferlens.errors import InferlensError
from inferlens.record.record import Metric
from inferlens.spec.case import Case
from inferlens.stats.intervals import Interval
from inferlens.units import duration, listing, parse_duration, parse_share, percent, plural

LEAST_ROUNDS, MOST_ROUNDS = 3, 100
End = Literal["", "decided", "rounds", "time", "a side did not run"]
_CODES = {"FASTER": 0, "SAME": 0, "SLOWER": 1, "UNDECIDED": 3, "DID NOT RUN": 4}
# Where two cases differ in one of these, a call of theirs is not the same work.
_WORK = ("batch", "inputs", "weights", "seed", "io", "cold", "rotate")


class ABRule(Struct, frozen=True, kw_only=True):
    """When it is over.

    Attributes:
        metric: what is compared.
        threshold: the smallest relative difference that matters.
        level: confidence that the verdict is right, whenever it comes.
        max_rounds: rounds at most.
        within: seconds at most; a round that would probably end later is not begun, but for the first.
    """

    metric: Metric = "latency"
    threshold: float = 0.02
    level: float = 0.95
    max_rounds: int = 20
    within: float = 600.0

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
        if not LEAST_ROUNDS <= max_rounds <= MOST_ROUNDS:
            what = f"{plural(max_rounds, 'round')} at most is out of range."
            raise InferlensError(what, expected=f"{LEAST_ROUNDS} to {MOST_ROUNDS}")
        return rule


class ABResult(Struct, frozen=True, kw_only=True):
    """How B compares with A, after the rounds so far.

    Attributes:
        verdict: of B against A; ``base`` and ``candidate`` are what is known of A and of B.
        end: why there is no further round; empty while there is.
        rounds: rounds of which both sides have samples; ``seconds``: the time they took, everything included.
        ratio: B's time over A's, of throughput the time of a call: above 1 B is slower. ``None`` before
            :data:`LEAST_ROUNDS` rounds.
        interval: of ``ratio``; those of all looks hold together with confidence ``rule.level``.
        run: shared by their records.
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

    @property
    def exit_code(self) -> int:
        """As of a comparison: 1 if B is slower, 4 if a side did not run, 3 if it is undecided, else 0."""
        return _CODES[self.verdict]

    @property
    def standing(self) -> str:
        """The ratio in words: ``B takes 0.523 times as long as A (0.511 to 0.534)``."""
        if self.ratio is None or self.interval is None:
            return "no ratio yet"
        ratio, low, high, words = self.ratio, self.interval.low, self.interval.high, "takes {} times as long as A"
        if self.rule.metric == "throughput":
            ratio, low, high, words = 1 / ratio, 1 / high, 1 / low, "does {} times as many calls a second as A"
        places = next((n for n in (3, 4, 5) if f"{low:.{n}f}" != f"{high:.{n}f}"), 3)
        return f"B {words.format(f'{ratio:.{places}f}')} ({low:.{places}f} to {high:.{places}f})"

    @property
    def sentence(self) -> str:
        """The verdict, the ratio with its interval, rounds and time, in one sentence."""
        after = f"after {plural(self.rounds, 'round')} in {duration(self.seconds)}"
        if self.verdict == "DID NOT RUN":
            return f"DID NOT RUN: {self.reason} It ended {after}."
        sure = f", with {percent(self.rule.level)} confidence" if self.interval else ""
        hint = " Try: --within with more time." if self.end == "time" else ""
        why = f" {self.reason}{hint}" if self.verdict == "UNDECIDED" else ""
        return f"{self.verdict}: {self.standing}{sure}, {after}.{why}"


def other_work(a: Case, b: Case) -> list[str]:
    """What the reader must know if a call of A is not the same work as one of B."""
    differ = [name for name in _WORK if getattr(a, name) != getattr(b, name)]
    return [f"A and B do not do the same work: they differ in {listing(differ)}."] if differ else []
