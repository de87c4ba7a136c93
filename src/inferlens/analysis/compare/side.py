"""The sides of a compared case: which runs of two sets belong together, and what was measured on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct

from inferlens.analysis.findings.warnings import warnings_of
from inferlens.analysis.interference.samples import CaseRuns, Series, latest, steady_samples
from inferlens.errors import InferlensError, one_line
from inferlens.record.record import Metric, Record, machine_name
from inferlens.spec.case import Case
from inferlens.stats.between_process import estimate
from inferlens.stats.intervals import Interval
from inferlens.units import listing, plural

OK = "ok"
MISSING = "missing"
WRONG = "wrong"
NOT_MEASURED = "not measured"
AUTOCORRELATED = (
    "Successive processes are correlated, so the interval is wider; inferlens ab, which measures in turns, avoids that."
)
# In seconds, or calls per second; what is beyond would leave the range of numbers as a ratio.
_LEAST, _MOST = 1e-100, 1e100
# Warnings that say nothing against the number, or what the interval or the state says already.
_QUIET = (
    "host-bound", "copy-bound", "gpu-floor", "in-turns", "not-narrow-enough", "samples-left-out", "repeat-failed",
    "not-finite",
)  # fmt: skip


class Side(Struct, frozen=True, kw_only=True):
    """What one side has of a case.

    Attributes:
        state: ``ok``; or the status of a process that did not run to its end; or ``missing``, ``wrong`` (outputs) or
            ``not measured`` (the metric). All but ``ok`` have nothing to compare.
        reason: why, if not ``ok``.
        device: name of the GPU, or of the CPU for cases on the CPU.
        records: the ids of its records, one for each process.
        created: when the last of them started.
        processes, samples: how many the median is of.
        median: over its processes, in seconds, or calls per second; ``None`` unless ``ok``.
        interval: of ``median``, at the comparison's confidence.
        notes: what the reader of the number must know.
    """

    state: str
    reason: str = ""
    device: str = ""
    records: tuple[str, ...] = ()
    created: str = ""
    processes: int = 0
    samples: int = 0
    median: float | None = None
    interval: Interval | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is something to compare."""
        return self.state == OK


def read(
    runs: CaseRuns | None, metric: Metric, level: float, taken: Sequence[Sequence[float]] = ()
) -> tuple[Side, list[Sequence[float]]]:
    """A side, and the samples of each of its processes; none of them if there is nothing to compare.

    One process of several that failed is enough for that: those that are left are not like it, and mostly faster.
    ``taken`` are the samples to go by, where they are not all that
    :func:`inferlens.analysis.interference.samples.steady_samples` tells.
    """
    if runs is None:
        return Side(state=MISSING, reason="There is no record of it."), []
    series = [steady_samples(record, metric) for record in runs.ran]
    state, reason = _state(runs, series, metric)
    processes = list(taken or [each.samples for each in series]) if state == OK else []
    found = estimate(processes, level)
    if state == OK and not (found and _LEAST < found.median < _MOST):
        state, reason, processes, found = NOT_MEASURED, f"The median of {metric} is no number to compare.", [], None
    side = Side(
        state=state,
        reason=reason,
        device=_device(runs.first),
        records=tuple(record.id for record in runs.records),
        created=max(record.created for record in runs.records),
        processes=len(processes),
        samples=sum(map(len, processes)),
        median=found.median if found else None,
        interval=found.interval if found else None,
        notes=tuple(dict.fromkeys(_notes(runs, series))) if state == OK else (),
    )
    return side, processes


def _device(record: Record) -> str:
    gpus = record.environment.gpus
    return (record.environment.cpu or "CPU") if record.case.device == "cpu" else gpus[0].name if gpus else "GPU"


def _state(runs: CaseRuns, series: Sequence[Series], metric: Metric) -> tuple[str, str]:
    failed = [record for record in runs.records if record.status != OK]
    if failed:
        share = f" ({len(failed)} of {len(runs.records)} processes)" if runs.ran else ""
        hint = f" Try: {failed[0].hint}" if failed[0].hint else ""
        return failed[0].status, f"{failed[0].reason or 'No reason is known.'}{hint}{share}"
    wrong = [record.agreement for record in runs.records if not record.ranked and record.agreement]
    if wrong:
        why = wrong[0].reason or "they differ from the reference"
        return WRONG, f"{why[:1].upper()}{why[1:].rstrip('.')}."
    if not all(each.samples for each in series):
        left_out = any(each.not_finite for each in series)
        return NOT_MEASURED, f"The samples of {metric} are {'negative or not finite' if left_out else 'not there'}."
    return OK, ""


def _notes(runs: CaseRuns, series: Sequence[Series]) -> Iterator[str]:
    for record in runs.ran:
        if record.agreement is None or record.agreement.agrees is None:
            why = record.agreement.reason if record.agreement else ""
            yield f"Outputs not checked: {why or 'nothing was there to compare them with'}"
    # Their codes alone: figures differ from case to case, and with them there would be a note for each.
    if codes := [warning.code for warning in warnings_of(runs) if warning.code not in _QUIET]:
        yield f"warned of {listing(list(dict.fromkeys(codes)))}; inferlens show says more."
    left_out = sum(each.not_finite for each in series)
    if left_out:
        yield f"{plural(left_out, 'sample')} left out: negative or not finite."


def notes_of(**sides: Side) -> list[str]:
    """Notes of both sides, each with whose it is: of both, or of the one of that name."""
    (first, one), (second, other) = sides.items()
    both = [note for note in one.notes if note in other.notes]
    found = [f"{first} and {second}: {note}" for note in both]
    return found + [f"{name}: {note}" for name, side in sides.items() for note in side.notes if note not in both]


@dataclass(frozen=True)
class Match:
    """One case, and what each side has of it: ``None`` for nothing."""

    base: CaseRuns | None
    candidate: CaseRuns | None

    @property
    def case(self) -> Case:
        """What was run."""
        (case, *_) = {side.first.case.digest: side.first.case for side in (self.base, self.candidate) if side}.values()
        return case

    @property
    def pair(self) -> tuple[Record, Record] | None:
        """The record of each side that speaks for it; ``None`` where one has nothing."""
        return (self.base.first, self.candidate.first) if self.base and self.candidate else None


def matches(base: Sequence[Record], candidate: Sequence[Record]) -> list[Match]:
    """The cases of both sides, in the order of the base, then those that only the candidate has.

    A side may hold records of several machines: each is compared with the other side's of the same one. What is left
    over of a case after that is one match if it is one run on each side, whatever their machines are.

    Raises:
        InferlensError: if the sides share a record that would be compared with itself, or no case at all.
    """
    mine, theirs = (_by_case(side) for side in (base, candidate))
    found = [
        match
        for digest in dict.fromkeys([*mine, *theirs])
        for match in _of_case(mine.get(digest, {}), theirs.get(digest, {}))
    ]
    pairs = [match.pair for match in found if match.pair]
    if any(one.id == other.id for one, other in pairs):
        raise InferlensError(
            "Base and candidate have records in common.", expected="two folders, neither of them inside the other"
        )
    if not pairs:
        raise InferlensError(
            f"No case is on both sides: the base has {_labels(base)}, the candidate {_labels(candidate)}.",
            expected="the same model, backend, precision, batch, device, options, inputs and weights on both",
            hint="inferlens show BASE CANDIDATE, which sets different cases side by side",
        )
    return found


def _by_case(records: Sequence[Record]) -> dict[str, dict[str, CaseRuns]]:
    """Digest of the case, then machine, then its latest run there."""
    found: dict[str, dict[str, CaseRuns]] = {}
    for runs in latest(records):
        first = runs.first
        found.setdefault(first.case.digest, {})[machine_name(first.environment)] = runs
    return found


def _of_case(base: dict[str, CaseRuns], candidate: dict[str, CaseRuns]) -> list[Match]:
    same = [Match(base[where], candidate[where]) for where in base if where in candidate]
    mine = [runs for where, runs in base.items() if where not in candidate]
    theirs = [runs for where, runs in candidate.items() if where not in base]
    if len(mine) == len(theirs) == 1:
        return [*same, Match(mine[0], theirs[0])]
    return [*same, *(Match(runs, None) for runs in mine), *(Match(None, runs) for runs in theirs)]


def _labels(records: Sequence[Record]) -> str:
    names = list(dict.fromkeys(one_line(f"{record.case.model} {record.case.label}") for record in records))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more if names else "none"
