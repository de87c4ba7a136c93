"""The sides of a compared case: which runs of two sets belong together, and what was measured on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.findings.warnings import warnings_of
from inferlens.analysis.interference.samples import CaseRuns, device_name, latest, steady_samples
from inferlens.errors import InferlensError, one_line
from inferlens.record.record import Metric, Record, machine_name
from inferlens.stats.between_process import estimate
from inferlens.stats.intervals import Interval
from inferlens.units import listing

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
)  # fmt: skip

# One case: what base and candidate have of it, or ``None``.
Match = tuple[CaseRuns | None, CaseRuns | None]


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


def read(runs: CaseRuns | None, metric: Metric, level: float) -> tuple[Side, list[Sequence[float]]]:
    """A side, and the samples of each of its processes; none of them if there is nothing to compare.

    One process of several that failed is enough for that: those that are left are not like it, and mostly faster.
    """
    if runs is None:
        return Side(state=MISSING, reason="There is no record of it."), []
    processes: list[Sequence[float]] = [steady_samples(record, metric).samples for record in runs.ran]
    found = estimate(processes, level) if all(processes) else None
    state, reason = _unable(runs)
    if not state and not (found and _LEAST < found.median < _MOST):
        state, reason = NOT_MEASURED, f"There are no samples of {metric}, or none that are times."
    side = Side(
        state=state or OK,
        reason=reason,
        device=device_name(runs.first),
        records=tuple(record.id for record in runs.records),
        created=max(record.created for record in runs.records),
    )
    if state or found is None:
        return side, []
    measured = {"median": found.median, "interval": found.interval, "notes": tuple(dict.fromkeys(_notes(runs)))}
    return replace(side, processes=len(processes), samples=sum(map(len, processes)), **measured), processes


def _unable(runs: CaseRuns) -> tuple[str, str]:
    """The state of a side of which a process failed or was wrong, and why; empty for others."""
    failed = [record for record in runs.records if record.status != OK]
    if failed:
        share = f" ({len(failed)} of {len(runs.records)} processes)" if runs.ran else ""
        hint = f" Try: {failed[0].hint}" if failed[0].hint else ""
        return failed[0].status, f"{failed[0].reason or 'No reason is known.'}{hint}{share}"
    wrong = [record.agreement for record in runs.records if not record.ranked and record.agreement]
    if wrong:
        why = wrong[0].reason or "they differ from the reference"
        return WRONG, f"{why[:1].upper()}{why[1:].rstrip('.')}."
    return "", ""


def _notes(runs: CaseRuns) -> Iterator[str]:
    for record in runs.ran:
        if record.agreement is None or record.agreement.agrees is None:
            why = record.agreement.reason if record.agreement else ""
            yield f"Outputs not checked: {why or 'nothing was there to compare them with'}"
    # Their codes alone: figures differ from case to case, and with them there would be a note for each.
    if codes := [warning.code for warning in warnings_of(runs) if warning.code not in _QUIET]:
        yield f"warned of {listing(list(dict.fromkeys(codes)))}; inferlens show says more."


def notes_of(**sides: Side) -> list[str]:
    """Notes of both sides, each with whose it is: of both, or of the one of that name."""
    (first, one), (second, other) = sides.items()
    both = [note for note in one.notes if note in other.notes]
    found = [f"{first} and {second}: {note}" for note in both]
    return found + [f"{name}: {note}" for name, side in sides.items() for note in side.notes if note not in both]


def pair_of(match: Match) -> tuple[Record, Record] | None:
    """The record of each side that speaks for it; ``None`` where one has nothing."""
    return (match[0].first, match[1].first) if match[0] and match[1] else None


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
    pairs = [pair for match in found if (pair := pair_of(match))]
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
        found.setdefault(runs.first.case.digest, {})[machine_name(runs.first.environment)] = runs
    return found


def _of_case(base: dict[str, CaseRuns], candidate: dict[str, CaseRuns]) -> list[Match]:
    same: list[Match] = [(base[where], candidate[where]) for where in base if where in candidate]
    mine = [runs for where, runs in base.items() if where not in candidate]
    theirs = [runs for where, runs in candidate.items() if where not in base]
    if len(mine) == len(theirs) == 1:
        return [*same, (mine[0], theirs[0])]
    return [*same, *((runs, None) for runs in mine), *((None, runs) for runs in theirs)]


def _labels(records: Sequence[Record]) -> str:
    names = list(dict.fromkeys(one_line(f"{record.case.model} {record.case.label}") for record in records))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more if names else "none"
