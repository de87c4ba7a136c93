"""Which records of two sets belong together: the latest runs of the same case, on the same machine if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlens.analysis.interference.samples import CaseRuns, latest
from inferlens.errors import InferlensError, one_line
from inferlens.record.record import Record, machine_name
from inferlens.spec.case import Case


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
    for repeats in latest(records):
        first = repeats.first
        found.setdefault(first.case.digest, {})[machine_name(first.environment)] = repeats
    return found


def _of_case(base: dict[str, CaseRuns], candidate: dict[str, CaseRuns]) -> list[Match]:
    same = [Match(base[where], candidate[where]) for where in base if where in candidate]
    mine = [repeats for where, repeats in base.items() if where not in candidate]
    theirs = [repeats for where, repeats in candidate.items() if where not in base]
    if len(mine) == len(theirs) == 1:
        return [*same, Match(mine[0], theirs[0])]
    return [*same, *(Match(repeats, None) for repeats in mine), *(Match(None, repeats) for repeats in theirs)]


def _labels(records: Sequence[Record]) -> str:
    names = list(dict.fromkeys(one_line(f"{record.case.model} {record.case.label}") for record in records))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more if names else "none"
