"""What all drawings of a comparison share: its cases under their models, in words, and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from inferlens.analysis.compare.cases import Compared, ComparedCase, Verdict
from inferlens.analysis.compare.side import Side, notes_of
from inferlens.record.record import Metric
from inferlens.spec.case import Case
from inferlens.units import ABSENT, change, change_range, listing, milliseconds, percent, significant
from inferlens.views.plain import plain

UNITS: dict[Metric, str] = {"throughput": "per s"}  # milliseconds otherwise
_MOST_NAMES = 3
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
    verdict: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """The cases of one model, under a headline that says what all have in common."""

    model: str
    headline: str
    lines: tuple[Line, ...]


Named = Sequence[tuple[str, Line]]


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
    batches, devices = len({each.case.batch for each in cases}) > 1, len({each.case.device for each in cases}) > 1
    found = [_name(each.case, batches, devices) for each in cases]
    hidden = [
        (", ".join(map(str, of.inputs)), of.weights or "", f"seed {of.seed}") for of in (each.case for each in cases)
    ]
    for words in zip(*hidden, strict=True):
        counts = Counter(found)
        if len(set(words)) > 1:
            pairs = zip(found, words, strict=True)
            found = [f"{name} {word}".strip() if counts[name] > 1 else name for name, word in pairs]
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
        verdict=of.verdict,
        notes=tuple(plain(note) for note in (*reasons, *notes_of(Base=of.base, Candidate=of.candidate))),
    )


def _median(side: Side, metric: Metric) -> str:
    if not side.ok:
        return side.state
    if side.median is None:
        return ABSENT
    return significant(side.median, DIGITS) if metric == "throughput" else milliseconds(side.median, DIGITS)


def sentences(compared: Compared) -> list[str]:
    """What is to be said of ``compared``, the most important first."""
    lines = full_names(compared)
    found = (
        _changed(lines, "SLOWER"),
        _changed(lines, "FASTER"),
        _rest(compared, lines),
        _stopped(lines),
        _unlike(compared),
        _how_sure(compared),
    )
    return [sentence for sentence in found if sentence]


def _of(lines: Named, verdict: Verdict) -> Named:
    return [(name, line) for name, line in lines if line.verdict == verdict]


def _changed(lines: Named, verdict: Verdict) -> str:
    """``1 of 12 compared cases is slower: NAME, +7.22 % (+6.10 to +8.30 %).``"""
    compared = sum(line.of.compared for _, line in lines)
    found = sorted(_of(lines, verdict), key=lambda pair: -abs(pair[1].of.change or 0.0))
    if not found:
        return f"None of {compared:,} compared cases is slower." if verdict == "SLOWER" and compared > 1 else ""
    told = [f"{name}, {line.change} ({line.interval})" for name, line in found[:_MOST_NAMES]]
    of = f" of {compared:,} compared cases" if verdict == "SLOWER" and compared > 1 else ""
    return f"{len(found):,}{of} {_are(len(found))} {verdict.lower()}: {'; '.join([*told, *_more(found)])}."


def _rest(compared: Compared, lines: Named) -> str:
    """How many are the same, undecided, or ran on neither side."""
    same, undecided = (len(_of(lines, verdict)) for verdict in ("SAME", "UNDECIDED"))
    neither = sum(line.of.on_neither for _, line in lines)
    parts = [f"{same:,} {_are(same)} the same within {percent(compared.threshold)}"] if same else []
    parts += [f"{undecided:,} {_are(undecided)} undecided"] if undecided else []
    parts += [f"{neither:,} ran on neither side"] if neither else []
    return f"{listing(parts)}." if parts else ""


def _stopped(lines: Named) -> str:
    """What has figures on one side alone."""
    found = [(name, line) for name, line in _of(lines, "DID NOT RUN") if not line.of.on_neither]
    if not found:
        return ""
    told = [f"{name} ({_where(line)})" for name, line in found[:_MOST_NAMES]]
    return f"{len(found):,} cannot be compared: {'; '.join([*told, *_more(found)])}."


def _where(line: Line) -> str:
    return f"base: {line.of.base.state}" if line.of.candidate.ok else f"candidate: {line.of.candidate.state}"


def _unlike(compared: Compared) -> str:
    fields = list(dict.fromkeys(difference.field for difference in compared.differences if difference.unlike))
    if not fields:
        return ""
    return f"The two sides differ in {listing(fields)}: the changes are not those of the software alone."


def _how_sure(compared: Compared) -> str:
    """What the changes are of, and what their intervals cover."""
    better = "above 0 is faster" if compared.metric == "throughput" else "above 0 is slower"
    start = f"Changes are of the median {compared.metric}; {better}."
    ran = [case for case in compared.cases if case.compared]
    if not ran:
        return "Nothing could be compared."
    counts = {side.processes for case in ran for side in (case.base, case.candidate)}
    if max(counts) == 1:
        return (
            f"{start} One process on each side: how much processes differ is not known, so only large changes are "
            "believed."
        )
    each = f"{max(counts):,} processes" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,} processes"
    together = "The interval holds" if compared.comparisons == 1 else "All intervals together hold"
    return f"{start} {each} on each side. {together} with {percent(compared.level)} confidence."


def _more(found: Sequence[object]) -> list[str]:
    return [f"and {len(found) - _MOST_NAMES:,} more"] if len(found) > _MOST_NAMES else []


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
