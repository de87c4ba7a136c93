"""What all drawings of a comparison share: its cases under their models, named and written out as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferlens.analysis.compare.cases import Compared, ComparedCase
from inferlens.analysis.compare.side import Side
from inferlens.record.record import Metric
from inferlens.spec.case import Case
from inferlens.units import ABSENT, change, change_range, listing, milliseconds, significant
from inferlens.views.plain import plain

UNITS: dict[Metric, str] = {"throughput": "per s"}  # milliseconds otherwise
DIGITS = 4  # one more than elsewhere: the two medians of a line are to be told apart


@dataclass(frozen=True)
class Line:
    """One case, as text."""

    of: ComparedCase
    name: str
    base: str
    candidate: str
    change: str
    interval: str
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The verdict's word."""
        return self.of.verdict


@dataclass(frozen=True)
class Group:
    """The cases of one model, under a headline that says what all have in common."""

    model: str
    headline: str
    lines: tuple[Line, ...]


def groups(compared: Compared) -> list[Group]:
    """The lines of each model, in the order of the cases."""
    models: dict[str, list[ComparedCase]] = {}
    for case in compared.cases:
        models.setdefault(case.case.model, []).append(case)
    found = []
    for model, cases in models.items():
        batches = {each.case.batch for each in cases}
        batch = f"batch {cases[0].case.batch}" if len(batches) == 1 and cases[0].case.batch is not None else ""
        words = (model, listing(_devices(cases)), batch)
        lines = (_line(each, name, compared.metric) for each, name in zip(cases, names(cases), strict=True))
        found.append(Group(plain(model), " · ".join(plain(word) for word in words if word), tuple(lines)))
    return found


def full_names(compared: Compared) -> list[tuple[str, Line]]:
    """Every line, with a name that tells it from all others: with its model where there are several."""
    found = groups(compared)
    return [
        (f"{group.model} {line.name}" if len(found) > 1 else line.name, line) for group in found for line in group.lines
    ]


def figures(line: Line, metric: Metric) -> str:
    """``9.420 to 10.10 ms, +7.22 % (+6.10 to +8.30 %)``, or less where there is less."""
    if line.of.change is None:
        return ""
    interval = f" ({line.interval})" if line.interval != ABSENT else ""
    return f"{line.base} to {line.candidate} {unit(metric)}, {line.change}{interval}"


def unit(metric: Metric) -> str:
    """The unit that medians of a metric are shown in."""
    return UNITS.get(metric, "ms")


def names(cases: Sequence[ComparedCase]) -> list[str]:
    """Names of one model's cases: backend, precision, and what else tells them apart."""
    several = [len({value(each.case) for each in cases}) > 1 for value in (lambda c: str(c.batch), lambda c: c.device)]
    found = [_name(each.case, *several) for each in cases]
    hidden: tuple[Callable[[Case], str], ...] = (
        lambda case: ", ".join(map(str, case.inputs)),
        lambda case: case.weights or "",
        lambda case: f"seed {case.seed}",
    )
    for word in hidden:
        counts = Counter(found)
        words = [word(each.case) if counts[name] > 1 else "" for each, name in zip(cases, found, strict=True)]
        if len(set(words) - {""}) > (0 if "" in words else 1):
            found = [" ".join(filter(None, pair)) for pair in zip(found, words, strict=True)]
    return [plain(name) for name in found]


def _name(case: Case, several_batches: bool, several_devices: bool) -> str:
    """The case's label without its batch and its device, where all share them."""
    batch = [] if case.batch is None else [f"batch {case.batch}"]
    start = [case.backend_label, case.precision]
    rest = case.label.removeprefix(" ".join([*start, *batch, case.device]))
    words = [*start, *(batch if several_batches else []), *([case.device] if several_devices else []), rest.strip()]
    return " ".join(word for word in words if word)


def _devices(cases: Sequence[ComparedCase]) -> list[str]:
    """Names of the devices, those of cases that ran first."""
    sides = [side for each in cases for side in (each.base, each.candidate) if side.device]
    return list(dict.fromkeys(side.device for side in [side for side in sides if side.ok] or sides))


def _line(of: ComparedCase, name: str, metric: Metric) -> Line:
    interval = of.change_interval
    reasons = () if of.verdict in ("FASTER", "SAME", "SLOWER") else (of.reason,)
    return Line(
        of=of,
        name=name,
        base=_median(of.base, metric),
        candidate=_median(of.candidate, metric),
        change=change(of.change),
        interval=change_range(interval.low, interval.high) if interval else ABSENT,
        notes=tuple(plain(note) for note in (*reasons, *_notes(of.base, of.candidate))),
    )


def _median(side: Side, metric: Metric) -> str:
    if not side.ok:
        return side.state
    if side.median is None:
        return ABSENT
    return significant(side.median, DIGITS) if metric == "throughput" else milliseconds(side.median, DIGITS)


def _notes(base: Side, candidate: Side) -> list[str]:
    """What must be known of both sides, and of one alone."""
    both = [note for note in base.notes if note in candidate.notes]
    return [
        *(f"Both sides: {note}" for note in both),
        *(f"Base: {note}" for note in base.notes if note not in both),
        *(f"Candidate: {note}" for note in candidate.notes if note not in both),
    ]
