"""The verdicts: which cases became faster or slower, and which stopped working.

Cases match if all that was asked for is the same. Of each side the latest run of a case counts, and its repeats are its
processes. What is wrong, or did not run to its end in every process, has no verdict on its speed: it is never faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.compare.environment_diff import Difference, differences, refusal
from inferlens.analysis.compare.side import AUTOCORRELATED, MISSING, WRONG, Side, matches, pair_of, read
from inferlens.analysis.interference.samples import CaseRuns
from inferlens.errors import InferlensError
from inferlens.record.record import Metric, Record
from inferlens.record.store import load_records
from inferlens.spec.case import Case
from inferlens.stats import compare as statistics
from inferlens.stats.intervals import Interval
from inferlens.units import listing

METRICS: tuple[Metric, ...] = ("latency", "throughput", "GPU time")
LEVELS = (0.5, 0.9999)
Verdict = Literal["FASTER", "SAME", "SLOWER", "UNDECIDED", "DID NOT RUN"]
Given = str | PathLike[str] | Sequence[Record]

DISTURBED = (
    "Something else disturbed the machine, and one process on each side does not tell how much: measure again, each in "
    "several processes."
)


class ComparedCase(Struct, frozen=True, kw_only=True):
    """One case on both sides.

    Attributes:
        case: what was run.
        verdict: FASTER, SAME, SLOWER, UNDECIDED or DID NOT RUN.
        reason: why.
        base, candidate: what each side measured, or why there is nothing to compare.
        ratio: the candidate's time over the base's, of throughput the time of a call: above 1 it is slower.
        interval: of ``ratio``, at a level that allows for the number of comparisons.
        change: the candidate's median over the base's, less 1: of throughput above 0 is faster, of times slower.
        change_interval: of ``change``.
        between: whether the interval covers variation between processes.
    """

    case: Case
    verdict: Verdict
    reason: str
    base: Side
    candidate: Side
    ratio: float | None = None
    interval: Interval | None = None
    change: float | None = None
    change_interval: Interval | None = None
    between: bool = False

    @property
    def compared(self) -> bool:
        """Whether both sides have something to compare."""
        return self.base.ok and self.candidate.ok

    @property
    def on_neither(self) -> bool:
        """Whether no side has anything to compare: that is no news of the candidate."""
        return not self.base.ok and not self.candidate.ok


class Compared(Struct, frozen=True, kw_only=True):
    """All cases of two sets of records, compared.

    Attributes:
        metric: what was compared.
        threshold: the smallest relative difference that matters.
        level: confidence that all verdicts together are right.
        comparisons: how many cases both sides have something to compare of; they share the error 1 - ``level``.
        cases: in the order of the base, then those that only the candidate has.
        differences: in what base and candidate differ besides.
        problems: files that could not be read.
    """

    metric: Metric
    threshold: float
    level: float
    comparisons: int
    cases: tuple[ComparedCase, ...]
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, verdict: Verdict) -> tuple[ComparedCase, ...]:
        """The cases with that verdict."""
        return tuple(case for case in self.cases if case.verdict == verdict)

    @property
    def on_both(self) -> int:
        """How many cases have records on both sides."""
        return sum(MISSING not in (case.base.state, case.candidate.state) for case in self.cases)

    @property
    def exit_code(self) -> int:
        """1 if a case is slower; else 4 if one did not run, or none ran; else 3 if one is undecided; else 0.

        Cases that ran on neither side do not count beside others that ran on both.
        """
        if self.of("SLOWER"):
            return 1
        if not self.comparisons or any(not case.on_neither for case in self.of("DID NOT RUN")):
            return 4
        return 3 if self.of("UNDECIDED") else 0


def compare(
    base: Given,
    candidate: Given,
    *,
    metric: str = "latency",
    threshold: float = 0.02,
    level: float = 0.95,
    unlike: bool = False,
) -> Compared:
    """The verdict on each case of ``candidate`` against the same case of ``base``.

    Args:
        base: a folder with records, at any height, or a record file, or records.
        candidate: as ``base``.
        metric: ``latency``, ``throughput`` or ``GPU time``.
        threshold: the smallest relative difference that matters.
        level: confidence that all verdicts together are right, from 0.5 to 0.9999.
        unlike: whether to compare although machines, drivers or inputs differ.

    Raises:
        InferlensError: if there is nothing to compare, the machines differ, or an argument is out of range.
    """
    shown = metric_of(metric)
    check(threshold, level)
    (before, problems), (after, more) = _records(base), _records(candidate)
    found = matches(before, after)
    pairs = [pair for match in found if (pair := pair_of(match))]
    differ = differences(pairs)
    refused = [difference for difference in differ if difference.unlike]
    if refused and not unlike:
        raise refusal(refused, len(pairs))
    taken = [(match, read(match[0], shown, level), read(match[1], shown, level)) for match in found]
    count = sum(mine.ok and theirs.ok for _, (mine, _), (theirs, _) in taken)
    cases = []
    for match, (mine, one), (theirs, other) in taken:
        case = next(runs.first.case for runs in reversed(match) if runs)
        if not (mine.ok and theirs.ok):
            cases.append(_did_not_run(case, mine, theirs))
            continue
        # More calls per second is less time for each, so of throughput the base's is the numerator.
        one, other = (other, one) if shown == "throughput" else (one, other)
        unseen = statistics.unseen_on(case.device)
        result = statistics.compare(one, other, threshold=threshold, level=level, comparisons=count, unseen=unseen)
        if not result.between and any(map(_disturbed, match)):
            result = replace(result, verdict="UNDECIDED", reason=DISTURBED)
        cases.append(_judged(case, mine, theirs, result, shown))
    return Compared(
        metric=shown,
        threshold=threshold,
        level=level,
        comparisons=count,
        cases=tuple(cases),
        differences=differ,
        problems=(*problems, *more),
    )


def _disturbed(runs: CaseRuns | None) -> bool:
    """Whether samples that count were taken while something else disturbed the machine."""
    return runs is not None and any(record.marks is not None and not record.marks.clean for record in runs.ran)


def _did_not_run(case: Case, base: Side, candidate: Side) -> ComparedCase:
    reason = " ".join(
        f"{name}: {'wrong outputs' if side.state == WRONG else side.state}. {side.reason}"
        for name, side in (("Base", base), ("Candidate", candidate))
        if not side.ok
    )
    return ComparedCase(case=case, verdict="DID NOT RUN", reason=reason, base=base, candidate=candidate)


def _judged(case: Case, base: Side, candidate: Side, result: statistics.Comparison, metric: Metric) -> ComparedCase:
    shown, interval = result.ratio, result.interval
    if result.autocorrelation:
        base, candidate = (replace(side, notes=(*side.notes, AUTOCORRELATED)) for side in (base, candidate))
    if metric == "throughput":
        shown, interval = result.speedup, result.speedup_interval
    return ComparedCase(
        case=case,
        verdict=result.verdict,
        reason=result.reason,
        base=base,
        candidate=candidate,
        ratio=result.ratio,
        interval=result.interval,
        change=None if shown is None else shown - 1,
        change_interval=None if interval is None else Interval(interval.low - 1, interval.high - 1),
        between=result.between,
    )


def metric_of(word: str) -> Metric:
    """The metric that a word means, however it is spelled: ``GPU time``, ``gpu-time``.

    Raises:
        InferlensError: if it means none.
    """
    spelled = word.strip().lower().replace("-", " ").replace("_", " ")
    found = next((metric for metric in METRICS if metric.lower() == spelled), None)
    if found is None:
        raise InferlensError(f"'{word}' cannot be compared.", expected=listing(METRICS))
    return found


def check(threshold: float, level: float) -> None:
    """Refuses a threshold or a level that is out of range, with an :class:`InferlensError`."""
    if not (threshold > 0 and math.isfinite(threshold)):
        raise InferlensError("The threshold is not above 0.", expected="such as 2%: a difference that matters")
    if not LEVELS[0] <= level <= LEVELS[1]:
        raise InferlensError("The level is out of range.", expected="50% to 99.99%", hint="95%")


def _records(given: Given) -> tuple[Sequence[Record], list[str]]:
    """Records, and what could not be read."""
    if not isinstance(given, (str, PathLike)):
        return given, []
    loaded = load_records([Path(given)])
    return loaded.records, loaded.problems
