"""A comparison of two sets of records as a document, as annotations of GitHub, and as a test report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

import msgspec

from inferlens.analysis.compare.cases import Compared, ComparedCase, Side, Verdict, notes_of
from inferlens.analysis.compare.environment_diff import about
from inferlens.errors import check_choice
from inferlens.record.record import Metric
from inferlens.spec.case import Case
from inferlens.units import ABSENT, change, change_range, listing, milliseconds, percent, plural, significant
from inferlens.views import table
from inferlens.views.plain import plain
from inferlens.views.table import Column, Document, Notes, Table

SCHEMA = "inferlens.comparison/1"
DIGITS = 4  # one more than elsewhere: the two medians of a line are to be told apart
_MOST_NAMES = 3
_STYLES = {"FASTER": "green", "SLOWER": "bold red", "UNDECIDED": "yellow", "DID NOT RUN": "bold magenta", "SAME": ""}
# What a case is to GitHub and to JUnit. Those that ran on neither side do not say that the candidate is worse.
_KINDS: dict[Verdict, str] = {"SLOWER": "error", "DID NOT RUN": "error", "UNDECIDED": "warning"}
_OUTCOMES: dict[Verdict, str] = {"SLOWER": "failure", "DID NOT RUN": "error", "UNDECIDED": "skipped"}
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


@dataclass(frozen=True)
class CaseLine:
    """One case, as text; ``full`` tells it from the cases of all models."""

    of: ComparedCase
    name: str
    full: str
    base: str
    candidate: str
    change: str
    interval: str
    notes: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Group:
    """The cases of one model, under a headline that says what all have in common."""

    model: str
    headline: str
    lines: tuple[CaseLine, ...]


def render(compared: Compared, format: str = "table", *, width: int = 120, color: bool = False) -> str:
    """``compared``, which is what ``inferlens.compare`` returns, as text; ``width`` and ``color`` are the terminal's.

    Raises:
        InferlensError: if there is no such format.
    """
    check_choice("format", format, FORMATS)
    if format in OWN:
        return OWN[format](compared)
    return table.render(document(compared), format, width=width, color=color)


def document(compared: Compared) -> Document:
    """A table for each model, the verdict, and what else differs."""
    return Document(
        blocks=lambda: [*_tables(compared), *sentences(compared), *_differences(compared)],
        data=lambda: _data(compared),
        title="Comparison – Inferlens",
    )


def groups(compared: Compared) -> list[Group]:
    """The lines of each model, in the order of the cases."""
    models: dict[str, list[ComparedCase]] = {}
    for each in compared.cases:
        models.setdefault(each.case.model, []).append(each)
    found = []
    for model, cases in models.items():
        batches = {each.case.batch for each in cases}
        batch = f"batch {cases[0].case.batch}" if len(batches) == 1 and cases[0].case.batch is not None else ""
        sides = [side for each in cases for side in (each.base, each.candidate) if side.device]
        devices = dict.fromkeys(side.device for side in [side for side in sides if side.ok] or sides)
        headline = " · ".join(plain(word) for word in (model, listing(list(devices)), batch) if word)
        start = f"{plain(model)} " if len(models) > 1 else ""
        pairs = zip(cases, _names([each.case for each in cases]), strict=True)
        lines = (_line(each, name, f"{start}{name}", compared.metric) for each, name in pairs)
        found.append(Group(plain(model), headline, tuple(lines)))
    return found


def _lines(compared: Compared) -> list[CaseLine]:
    return [line for group in groups(compared) for line in group.lines]


def _line(of: ComparedCase, name: str, full: str, metric: Metric) -> CaseLine:
    found, settled = of.change_interval, of.verdict in ("FASTER", "SAME", "SLOWER")
    interval = change_range(found.low, found.high) if found else ABSENT
    notes = [*([] if settled else [of.reason]), *notes_of(Base=of.base, Candidate=of.candidate)]
    base, candidate = (_median(side, metric) for side in (of.base, of.candidate))
    return CaseLine(of, name, full, base, candidate, change(of.change), interval, tuple(map(plain, notes)), of.verdict)


def _median(side: Side, metric: Metric) -> str:
    if not side.ok or side.median is None:
        return side.state
    return significant(side.median, DIGITS) if metric == "throughput" else milliseconds(side.median, DIGITS)


def _unit(metric: Metric) -> str:
    return "per s" if metric == "throughput" else "ms"


def _names(cases: Sequence[Case]) -> list[str]:
    """Names of one model's cases: backend, precision, and what else tells them apart."""
    batches, devices = len({case.batch for case in cases}) > 1, len({case.device for case in cases}) > 1
    found = []
    for case in cases:
        batch = [] if case.batch is None else [f"batch {case.batch}"]
        start = [case.backend_label, case.precision]
        rest = case.label.removeprefix(" ".join([*start, *batch, case.device])).strip()
        words = [*start, *(batch if batches else []), *([case.device] if devices else []), rest]
        found.append(" ".join(word for word in words if word))
    hidden = [(", ".join(map(str, case.inputs)), case.weights or "", f"seed {case.seed}") for case in cases]
    for words_of in zip(*hidden, strict=True):
        counts, differ = Counter(found), len(set(words_of)) > 1
        pairs = zip(found, words_of, strict=True)
        found = [f"{name} {word}".strip() if differ and counts[name] > 1 else name for name, word in pairs]
    return [plain(name) for name in found]


def _tables(compared: Compared) -> Iterator[Table]:
    metric, notes, found = _unit(compared.metric), Notes(), groups(compared)
    columns = (
        Column("base", "base", metric, keep=1),
        Column("candidate", "candidate", metric, keep=1),
        Column("change", "change"),
        Column("interval", "interval", percent(compared.level), keep=2),
        Column("verdict", "verdict", numeric=False),
    )
    for group in found:
        lines = [
            table.Line.of(line.name + notes.marks(line.notes), columns, line, style=_STYLES[line.verdict])
            for line in group.lines
        ]
        numbered = notes.numbered() if group is found[-1] else ()
        yield Table(group.headline, "case", columns, lines, notes=numbered, fold=True)


def _differences(compared: Compared) -> Iterator[Table]:
    columns = [Column(side, side, numeric=False, fold=True) for side in ("base", "candidate")]
    lines = []
    for one in compared.differences:
        name, style = plain(one.field) + about(one, compared.on_both), "bold red" if one.unlike else ""
        lines.append(table.Line.of(name, columns, one, style=style))
    if lines:
        yield Table("", "what else differs", columns, lines, fold=True)


def _data(compared: Compared) -> dict[str, object]:
    """Every field of every case, the exit code, and the closing sentences."""
    cases = [
        {"name": line.full, "digest": line.of.case.digest, **msgspec.structs.asdict(line.of)}
        for line in _lines(compared)
    ]
    return {
        "schema": SCHEMA,
        "exit_code": compared.exit_code,
        "sentences": sentences(compared),
        **msgspec.structs.asdict(compared),
        "cases": cases,
    }


def sentences(compared: Compared) -> list[str]:
    """What is to be said of ``compared``, the most important first."""
    lines = _lines(compared)
    slower, faster, same, undecided, stopped = (
        [line for line in lines if line.verdict == verdict]
        for verdict in ("SLOWER", "FASTER", "SAME", "UNDECIDED", "DID NOT RUN")
    )
    neither = [line for line in stopped if line.of.on_neither]
    none = "None is slower." if compared.comparisons else ""
    found = [_changed("slower", slower) or none, _changed("faster", faster)]
    counted = {f"the same within {percent(compared.threshold)}": same, "undecided": undecided}
    parts = [f"{len(mine):,} {what}" for what, mine in {**counted, "on neither side": neither}.items() if mine]
    found += [f"{listing(parts)}." if parts else ""]
    alone = [f"{line.full} ({_where(line)})" for line in stopped if not line.of.on_neither]
    found += [f"{len(alone):,} cannot be compared: {_first(alone)}." if alone else ""]
    fields = list(dict.fromkeys(one.field for one in compared.differences if one.unlike))
    if fields:
        found.append(f"The two sides differ in {listing(fields)}: the changes are not those of the software alone.")
    return [sentence for sentence in (*found, _how_sure(compared)) if sentence]


def _changed(what: str, found: Sequence[CaseLine]) -> str:
    """``1 slower: NAME, +7.22 % (+6.10 to +8.30 %).``"""
    worst = sorted(found, key=lambda line: -abs(line.of.change or 0.0))
    told = [f"{line.full}, {line.change} ({line.interval})" for line in worst]
    return f"{len(found):,} {what}: {_first(told)}." if found else ""


def _first(names: Sequence[str]) -> str:
    """The first few of them."""
    more = [f"and {len(names) - _MOST_NAMES:,} more"] if len(names) > _MOST_NAMES else []
    return "; ".join([*names[:_MOST_NAMES], *more])


def _where(line: CaseLine) -> str:
    return f"base: {line.of.base.state}" if line.of.candidate.ok else f"candidate: {line.of.candidate.state}"


def _how_sure(compared: Compared) -> str:
    """What the changes are of, and what their intervals cover."""
    counts = [side.processes for case in compared.cases if case.compared for side in (case.base, case.candidate)]
    if not counts:
        return "Nothing could be compared."
    better = "faster" if compared.metric == "throughput" else "slower"
    start = f"Changes are of the median {compared.metric}; above 0 is {better}."
    if max(counts) == 1:
        return f"{start} With one process on each side only large changes are believed."
    most = plural(max(counts), "process")
    processes = most if min(counts) == max(counts) else f"{min(counts):,} to {most}"
    return f"{start} {processes} on each side; all intervals hold with {percent(compared.level)} confidence."


def _figures(line: CaseLine, metric: Metric) -> str:
    """``9.420 to 10.10 ms, +7.22 % (+6.10 to +8.30 %)``, or less where there is less."""
    if line.of.change is None:
        return ""
    interval = f" ({line.interval})" if line.interval != ABSENT else ""
    return f"{line.base} to {line.candidate} {_unit(metric)}, {line.change}{interval}"


def github(compared: Compared) -> str:
    """Commands of GitHub Actions, one on each line, which show as annotations of the run.

    GitHub shows ten of a kind for a step, so what was slowed down most comes first. The form of a command:
    https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    commands = [command("notice", "inferlens compare", " ".join(sentences(compared)))]
    for one in compared.differences:
        if one.unlike:
            text = f"{plain(one.field)}: {plain(one.base)} and {plain(one.candidate)}"
            commands.append(command("warning", "Not measured under the same conditions", text))
    for line in sorted(_lines(compared), key=lambda line: -(line.of.ratio or 0.0)):
        if line.verdict in _KINDS and not line.of.on_neither:
            said = _figures(line, compared.metric)
            message = "\n".join([*([f"Median {compared.metric}: {said}."] if said else []), *line.notes])
            commands.append(command(_KINDS[line.verdict], f"{line.verdict}: {line.full}", message))
    return "\n".join(commands) + "\n"


def command(kind: str, title: str, message: str) -> str:
    """``::KIND title=TITLE::MESSAGE``, each part escaped as it has to be at its place."""
    named = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={named}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit(compared: Compared) -> str:
    """A JUnit report, which most systems of continuous integration read: a suite a model, a test case a case."""
    root = Xml.Element("testsuites", name="inferlens compare")
    for group in groups(compared):
        suite = Xml.SubElement(root, "testsuite", name=group.model)
        created = max((side.created for line in group.lines for side in (line.of.base, line.of.candidate)), default="")
        if created:
            suite.set("timestamp", plain(created)[:19])
        properties = Xml.SubElement(suite, "properties")
        told = {"metric": compared.metric, "threshold": f"{compared.threshold:g}", "level": f"{compared.level:g}"}
        for one in compared.differences:
            told[f"differs: {one.field}{about(one, compared.on_both)}"] = f"{one.base} / {one.candidate}"
        for name, value in told.items():
            Xml.SubElement(properties, "property", name=plain(name), value=plain(value))
        for line in group.lines:
            _test_case(suite, group, line, compared.metric)
        _count(suite)
        Xml.SubElement(suite, "system-out").text = "\n".join(sentences(compared))
    _count(root)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _test_case(suite: Xml.Element, group: Group, line: CaseLine, metric: Metric) -> None:
    case = Xml.SubElement(suite, "testcase", classname=group.model, name=line.name)
    median = line.of.candidate.median
    if median is not None and metric != "throughput":
        case.set("time", f"{median:.9f}")
    kind = "skipped" if line.of.on_neither else _OUTCOMES.get(line.verdict)
    message = f"{line.verdict}: {_figures(line, metric) or next(iter(line.notes), '')}"
    if kind:
        Xml.SubElement(case, kind, message=message, type=line.verdict).text = "\n".join(line.notes) or line.of.reason
    else:
        Xml.SubElement(case, "system-out").text = "\n".join([message, *line.notes])


def _count(element: Xml.Element) -> None:
    """Sets how many test cases there are in it, and how many of each outcome."""
    element.set("tests", str(len(list(element.iter("testcase")))))
    for name, tag in _COUNTS.items():
        element.set(name, str(len(list(element.iter(tag)))))


OWN = {"github": github, "junit": junit}
FORMATS = (*(name for name in table.FORMATS if name != "csv"), *OWN)
