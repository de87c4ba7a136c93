"""A comparison of two sets of records as a document.

The answer is first: how many are slower, and by how much at most. Then the cases, the worst first, each with one word
where it must not be relied on.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from xml.etree import ElementTree as Xml

from inferlens.analysis.comparison import (
    MISSING,
    REVISION,
    CaseComparison,
    Difference,
    RecordComparison,
    Side,
    Verdict,
    case_count_label,
    side_notes,
)
from inferlens.errors import check_choice
from inferlens.record.display import fields_by_key
from inferlens.record.record import Metric
from inferlens.spec import plan
from inferlens.spec.case import Case, shown_together
from inferlens.stats.intervals import ends
from inferlens.units import (
    ABSENT,
    change,
    change_range,
    change_spread,
    listing,
    milliseconds,
    percent,
    plural,
    significant,
)
from inferlens.views import table
from inferlens.views.plain import plain, profile_command, without_middle
from inferlens.views.table import Column, Document, Table

SCHEMA = "inferlens.comparison/1"
TOP = 10
_MOST_NAMES = 3
_LONGEST = 44  # characters of a reason, and of a value in a list of what else differs
_STYLES = {"FASTER": "green", "SLOWER": "bold red", "UNDECIDED": "yellow", "DID NOT RUN": "bold magenta", "SAME": ""}
_WORST_FIRST: tuple[Verdict, ...] = ("SLOWER", "DID NOT RUN", "UNDECIDED", "FASTER", "SAME")
FOR_CI = ("github", "junit")  # formats of this document alone, which ``ci`` beside it writes
FORMATS = (*table.FORMATS, *FOR_CI)


@dataclass(frozen=True)
class CaseLine:
    """One case, as text; ``full`` tells it from the cases of all models, ``why`` has what is to be said of it."""

    of: CaseComparison
    model: str
    name: str
    full: str
    base: str
    candidate: str
    change: str
    interval: str
    why: str
    notes: tuple[str, ...]

    @property
    def processes(self) -> str:
        """How many each side has."""
        return f"{self.of.base.processes} / {self.of.candidate.processes}" if self.of.comparable else ABSENT


def render(
    compared: RecordComparison,
    format: str = "table",
    *,
    top: int | None = None,
    **how: Any,
) -> str:
    """``compared``, which is what ``inferlens.compare`` returns, as text, its first ``top`` rows for people.

    ``how`` is as :func:`inferlens.views.table.render` takes it.

    Raises:
        InferlensError: if there is no such format.
    """
    check_choice("format", format, FORMATS)
    if format in FOR_CI:
        written: str = getattr(import_module("inferlens.views.compared"), format)(compared)
        return written
    return table.render(document(compared, top), format, **how)


def document(compared: RecordComparison, top: int | None = None) -> Document:
    """The answer, the cases with the worst first, and what else differs; of the cases ``top``, by default ten."""
    return Document(
        blocks=lambda: [table_of(compared, top or TOP), *notes(compared), *next_steps(compared)],
        data=lambda: _data(compared),
        csv=lambda: _csv(compared),
        title="Comparison – Inferlens",
    )


def lines(compared: RecordComparison) -> list[CaseLine]:
    """A line for each case, model by model."""
    models: dict[str, list[CaseComparison]] = {}
    for case in compared.cases:
        models.setdefault(case.case.model, []).append(case)
    return [
        _line(compared, of, name, several=len(models) > 1)
        for cases in models.values()
        for of, name in zip(cases, names_of([case.case for case in cases]), strict=True)
    ]


def _line(compared: RecordComparison, of: CaseComparison, name: str, *, several: bool) -> CaseLine:
    interval, settled, model = of.change_interval, of.verdict in ("FASTER", "SAME", "SLOWER"), plain(of.case.model)
    return CaseLine(
        of=of,
        model=model,
        name=name,
        full=f"{model} {name}" if several else name,
        base=_median(of.base, compared.metric),
        candidate=_median(of.candidate, compared.metric),
        change=_change(of),
        interval=change_range(interval.low, interval.high) if interval else ABSENT,
        why=plain(_why(compared, of)),
        notes=tuple(map(plain, [*([] if settled else [of.reason]), *side_notes(Base=of.base, Candidate=of.candidate)])),
    )


def _change(of: CaseComparison) -> str:
    """The change with how far it may be off, where that is known of processes: ``+10.0 ± 0.4 %``."""
    if of.change is None or of.change_interval is None or not of.replicated:
        return change(of.change)
    return change_spread(of.change, of.change_interval.low, of.change_interval.high)


def _why(compared: RecordComparison, of: CaseComparison) -> str:
    """What is to be said of a case, in few words; empty for most. What is so of all stands in the headline."""
    if of.ran_on_neither:
        return f"on neither side, {_stopped(of.candidate)}"
    for name, side in (("candidate", of.candidate), ("base", of.base)):
        if not side.ok:
            return "" if side.state == MISSING else f"{name} {_stopped(side)}"
    words = [f"likely {of.likely_verdict(compared.threshold)}"] if of.verdict == "UNDECIDED" else []
    words += ["measured once"] if of.measured_once and not compared.measured_once else []
    return ", ".join([*words, *(["outputs unchecked"] if of.outputs_unchecked else [])])


def _verdict(of: CaseComparison) -> str:
    """The verdict, or on which side alone a case is."""
    only = [name for name, side in (("BASE", of.candidate), ("CANDIDATE", of.base)) if side.state == MISSING]
    return f"ONLY IN {only[0]}" if len(only) == 1 else of.verdict


def _stopped(side: Side) -> str:
    reason = plain(side.reason).rstrip(".")
    return f"{side.state} ({reason})" if reason else side.state


def _median(side: Side, metric: Metric) -> str:
    if not side.ok or side.median is None:
        return ABSENT
    return significant(side.median) if metric == "throughput" else milliseconds(side.median)


def unit(metric: Metric) -> str:
    """That of the medians."""
    return "per s" if metric == "throughput" else "ms"


def names_of(cases: Sequence[Case], *, unsaid: Sequence[str] = ()) -> list[str]:
    """Names of one model's cases: backend, precision, and what else tells them apart, without the axes ``unsaid``."""
    alike = {*unsaid, *(name for name in ("batch", "device") if len({getattr(case, name) for case in cases}) == 1)}
    alike |= {name for name in cases[0].sizes if len({case.sizes.get(name) for case in cases}) == 1} if cases else {*()}
    found = [" ".join(case.words(*alike)) for case in shown_together(cases)]
    hidden = [(", ".join(map(str, case.inputs)), case.weights or "", f"seed {case.seed}") for case in cases]
    for words in zip(*hidden, strict=True):
        counts, differ = Counter(found), len(set(words)) > 1
        pairs = zip(found, words, strict=True)
        found = [f"{name} {word}".strip() if differ and counts[name] > 1 else name for name, word in pairs]
    return [plain(name) for name in found]


def table_of(compared: RecordComparison, top: int) -> Table:
    """The first ``top`` cases, the worst first, under the answer."""
    metric = unit(compared.metric)
    columns = (
        Column("base", "base", metric, keep=1),
        Column("candidate", "candidate", metric, keep=1),
        Column("change", "change", f"± at {percent(compared.level)}"),
        Column("interval", "interval", percent(compared.level), keep=4, wide=True),
        Column("processes", "processes", "of each", keep=4, wide=True),
        Column(
            "",
            "verdict",
            "",
            lambda line: ": ".join(filter(None, [_verdict(line.of), line.why])),
            numeric=False,
            fold=True,
        ),
    )
    found = lines(compared)
    found.sort(
        key=lambda line: (line.of.ran_on_neither, _WORST_FIRST.index(line.of.verdict), -abs(line.of.change or 0.0))
    )
    one = len({case.case.precision for case in compared.cases}) == 1  # and the line above says which
    shown = []
    for line in found[:top]:
        label = line.of.case.backend_label
        name = line.full.replace(f"{label} {line.of.case.precision}", label, 1) if one else line.full
        shown.append(table.Line.of(name, columns, line, style=_STYLES[line.of.verdict]))
    left = len(found) - len(shown)
    more = [f"{plural(left, 'more row')}: --top {len(found)}, or --format csv"] if left > 0 else []
    return Table(answer(compared), "case", columns, shown, about=headline(compared), notes=more, fold=True)


def answer(compared: RecordComparison) -> str:
    """How many cases are slower, faster, and so on, and by how much at most: in one line."""
    of = {
        verdict: [case for case in compared.with_verdict(verdict) if not case.ran_on_neither]
        for verdict in _WORST_FIRST
    }
    neither = sum(case.ran_on_neither for case in compared.cases)
    if not compared.comparisons:
        return "Nothing could be compared."
    words = {
        "SLOWER": "slower", "FASTER": "faster", "SAME": f"the same within {percent(compared.threshold)}",
        "UNDECIDED": "undecided", "DID NOT RUN": "did not run",
    }  # fmt: skip
    parts = [] if of["SLOWER"] or of["UNDECIDED"] else ["none slower"]
    alone = Counter(_verdict(case) for case in of["DID NOT RUN"])
    missing = [f"{alone.pop(only):,} {only.lower()}" for only in ("ONLY IN BASE", "ONLY IN CANDIDATE") if alone[only]]
    of["DID NOT RUN"] = of["DID NOT RUN"][: alone["DID NOT RUN"]]
    for verdict in ("SLOWER", "FASTER", "SAME", "UNDECIDED", "DID NOT RUN"):
        if cases := of[verdict]:
            most = max(abs(case.change or 0.0) for case in cases)
            by = f" by {'up to ' if len(cases) > 1 else ''}{percent(most)}" if verdict in ("SLOWER", "FASTER") else ""
            if verdict == "UNDECIDED" and (
                likely := sum(case.likely_verdict(compared.threshold) == "slower" for case in cases)
            ):
                by = f" ({likely:,} likely slower)"
            parts.append(f"{len(cases):,} {words[verdict]}{by}")
    text = ", ".join([*parts, *missing, *([f"{neither:,} on neither side"] if neither else [])])
    return f"{text[0].upper()}{text[1:]}."


def headline(compared: RecordComparison) -> str:
    """What all cases have in common: model, device, batch; and what was compared."""
    sides = [side for case in compared.cases for side in (case.base, case.candidate) if side.device]
    devices = list(dict.fromkeys(side.device for side in [side for side in sides if side.ok] or sides))
    models, batches, precisions = (
        {getattr(case.case, name) for case in compared.cases} for name in ("model", "batch", "precision")
    )
    counts = [side.processes for case in compared.cases if case.comparable for side in (case.base, case.candidate)]
    words = [next(iter(models)) if len(models) == 1 else plural(len(models), "model"), listing(devices)]
    words += [*(precisions if len(precisions) == 1 else [])]
    words += [f"batch {batch}" for batch in batches if len(batches) == 1 and batch is not None]
    sizes = [case.case.sizes.items() for case in compared.cases]
    words += [f"{name} {size}" for name, size in sizes[:1] and sizes[0] if all((name, size) in item for item in sizes)]
    if counts:
        most = plural(max(counts), "process")
        of = most if min(counts) == max(counts) else f"{min(counts):,} to {most}"
        once = compared.measured_once
        words.append(f"{compared.metric}, {'each side measured once' if once else f'{of} on each side'}")
    return " · ".join(plain(word) for word in words if word)


def notes(compared: RecordComparison) -> list[str]:
    """Return at most three: how busy the machine was, what else differs, and which runs count."""
    found = [_difference(one, compared.common_cases) for one in compared.differences[:_MOST_NAMES]]
    left = len(compared.differences) - len(found)
    unlike = [one.field for one in compared.differences if one.unlike]
    start = "Not the same conditions, so changes are not the software's alone" if unlike else "What else differs"
    more = f" ({left:,} more: --format json)" if left else ""
    notes = [*busy(compared), *([f"{start}: {'; '.join(found)}{more}."] if found else [])]
    again = sum(max(case.base.runs, case.candidate.runs) > 1 for case in compared.cases)
    return [*notes, *([f"{plural(again, 'case')} measured several times: the newest run counts."] if again else [])]


def busy(compared: RecordComparison) -> list[str]:
    """Return how busy the machine was; of one side alone, which changes may come from instead."""
    alone = [name for name, load in compared.loads.items() if load.busy]
    if len(alone) == 1:
        return [f"Of the {alone[0]} alone: {compared.loads[alone[0]].cause} Changes may come from that."]
    return [*filter(None, [compared.machine_load.sentence])]


def _difference(one: Difference, cases: int) -> str:
    base, candidate = (without_middle(plain(value), _LONGEST) for value in (one.base, one.candidate))
    return f"{plain(one.field)}{case_count_label(one, cases)} {base} / {candidate}"


def next_steps(compared: RecordComparison) -> list[str]:
    """What to do now."""
    slower = max(compared.with_verdict("SLOWER"), key=lambda case: abs(case.change or 0.0), default=None)
    if slower:
        case = slower.case
        return [*_commits(compared, case), f"Why slower:  {profile_command(case, gpu=case.device != 'cpu')}"]
    if undecided := compared.with_verdict("UNDECIDED"):
        again = plain(plan.command("bench", [undecided[0].case.model, "--repeats", "5"]))
        return [f"To decide, measure both sides again:  {again}"]
    return []


def _commits(compared: RecordComparison, case: Case) -> list[str]:
    """The command that shows what changed in the code of a model, where both sides have a revision of it."""
    difference = next((one for one in compared.differences if one.field == REVISION and case.runs_own_code), None)
    if difference is None or not all(
        re.fullmatch(r"[0-9a-f]+\+?", item) for item in (difference.base, difference.candidate)
    ):
        return []
    revisions = [difference.base.rstrip("+"), *([] if difference.candidate.endswith("+") else [difference.candidate])]
    folder = ["-C", case.checkout] if case.checkout else []
    return [f"What changed:  {plain(shlex.join(['git', *folder, 'diff', *revisions]))}"]


def _data(compared: RecordComparison) -> dict[str, object]:
    """Every field of every case, the exit code, and what is said."""
    cases = [{"name": line.full, "digest": line.of.case.digest, **fields_by_key(line.of)} for line in lines(compared)]
    return {
        "schema": SCHEMA,
        "exit_code": compared.exit_code,
        "sentences": sentences(compared),
        "machine_load": compared.machine_load,
        **fields_by_key(compared),
        "cases": cases,
    }


def _csv(compared: RecordComparison) -> tuple[list[str], list[list[object]]]:
    """A line for each case: seconds, or calls per second; the change as a share."""
    names = ["model", "case", "verdict", "reason", "change", "change_low", "change_high", "ratio"]
    of_side = ("state", "median", "processes", "samples")
    values: list[list[object]] = []
    for line in lines(compared):
        of = line.of
        found = [of.case.model, line.name, of.verdict, of.reason, of.change, *ends(of.change_interval), of.ratio]
        values.append([*found, *(getattr(side, name) for side in (of.base, of.candidate) for name in of_side)])
    return [*names, *(f"{side}_{name}" for side in ("base", "candidate") for name in of_side)], values


def sentences(compared: RecordComparison) -> list[str]:
    """What is to be said of ``compared`` where there is no table, the most important first."""
    told = [f"{line.full}, {line.change}" for line in changed(compared, "SLOWER")]
    alone = [
        f"{line.full} ({line.why or _verdict(line.of).lower()})"
        for line in lines(compared)
        if line.of.verdict == "DID NOT RUN" and not line.of.ran_on_neither
    ]
    found = [answer(compared), f"Slower: {first(told)}." if told else ""]
    found += [f"Not compared: {first(alone)}." if alone else "", *notes(compared)]
    return [sentence for sentence in found if sentence]


def changed(compared: RecordComparison, *verdicts: Verdict) -> list[CaseLine]:
    """The cases of some verdicts, those that changed most first."""
    return sorted(
        (line for verdict in verdicts for line in lines(compared) if line.of.verdict == verdict),
        key=lambda line: -abs(line.of.change or 0.0),
    )


def first(names: Sequence[str]) -> str:
    """The first few of them."""
    more = [f"and {len(names) - _MOST_NAMES:,} more"] if len(names) > _MOST_NAMES else []
    return "; ".join([*names[:_MOST_NAMES], *more])


# A comparison for systems of continuous integration: annotations of GitHub, and a JUnit report.

# What a case is to GitHub and to JUnit. Those that ran on neither side do not say that the candidate is worse.
_KINDS: dict[Verdict, str] = {"SLOWER": "error", "DID NOT RUN": "error", "UNDECIDED": "warning"}
_OUTCOMES: dict[Verdict, str] = {"SLOWER": "failure", "DID NOT RUN": "error", "UNDECIDED": "skipped"}
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _figures(line: CaseLine, metric: Metric) -> str:
    """``9.42 to 10.1 ms, +7.22 ± 1.1 %``, or nothing where nothing was compared."""
    if line.of.change is None:
        return ""
    return f"{line.base} to {line.candidate} {unit(metric)}, {line.change}"


def github(compared: RecordComparison) -> str:
    """Commands of GitHub Actions, one on each line, which show as annotations of the run.

    GitHub shows ten of a kind for a step, so what was slowed down most comes first. The form of a command:
    https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    commands = [command("notice", "inferlens compare", " ".join(sentences(compared)))]
    for one in compared.differences:
        if one.unlike:
            text = f"{plain(one.field)}: {plain(one.base)} and {plain(one.candidate)}"
            commands.append(command("warning", "Not measured under the same conditions", text))
    for line in sorted(lines(compared), key=lambda line: -(line.of.ratio or 0.0)):
        verdict = line.of.verdict
        if verdict in _KINDS and not line.of.ran_on_neither:
            said = _figures(line, compared.metric)
            message = "\n".join([*([f"Median {compared.metric}: {said}."] if said else []), *line.notes])
            commands.append(command(_KINDS[verdict], f"{verdict}: {line.full}", message))
    return "\n".join(commands) + "\n"


def command(kind: str, title: str, message: str) -> str:
    """``::KIND title=TITLE::MESSAGE``, each part escaped as it has to be at its place."""
    named = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={named}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit(compared: RecordComparison) -> str:
    """A JUnit report, which most systems of continuous integration read: a suite a model, a test case a case."""
    root = Xml.Element("testsuites", name="inferlens compare")
    for model, group in itertools.groupby(lines(compared), key=lambda line: line.model):
        mine = list(group)
        suite = Xml.SubElement(root, "testsuite", name=model)
        created = max(side.created for line in mine for side in (line.of.base, line.of.candidate))
        if created:
            suite.set("timestamp", plain(created)[:19])
        properties = Xml.SubElement(suite, "properties")
        told = {"metric": compared.metric, "threshold": f"{compared.threshold:g}", "level": f"{compared.level:g}"}
        for one in compared.differences:
            told[f"differs: {one.field}{case_count_label(one, compared.common_cases)}"] = (
                f"{one.base} / {one.candidate}"
            )
        for name, value in told.items():
            Xml.SubElement(properties, "property", name=plain(name), value=plain(value))
        for line in mine:
            _test_case(suite, line, compared.metric)
        _count(suite)
        Xml.SubElement(suite, "system-out").text = "\n".join(sentences(compared))
    _count(root)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _test_case(suite: Xml.Element, line: CaseLine, metric: Metric) -> None:
    case = Xml.SubElement(suite, "testcase", classname=line.model, name=line.name)
    median, verdict = line.of.candidate.median, line.of.verdict
    if median is not None and metric != "throughput":
        case.set("time", f"{median:.9f}")
    kind = "skipped" if line.of.ran_on_neither else _OUTCOMES.get(verdict)
    message = f"{verdict}: {_figures(line, metric) or next(iter(line.notes), '')}"
    if kind:
        Xml.SubElement(case, kind, message=message, type=verdict).text = "\n".join(line.notes) or line.of.reason
    else:
        Xml.SubElement(case, "system-out").text = "\n".join([message, *line.notes])


def _count(element: Xml.Element) -> None:
    """Sets how many test cases there are in it, and how many of each outcome."""
    element.set("tests", str(len(list(element.iter("testcase")))))
    for name, tag in _COUNTS.items():
        element.set(name, str(len(list(element.iter(tag)))))
