"""A comparison for systems of continuous integration: annotations of GitHub, and a JUnit report."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree as Xml

from inferlens.analysis.compare.cases import Compared, Verdict
from inferlens.analysis.compare.environment_diff import about
from inferlens.record.record import Metric
from inferlens.views.compared import CaseLine, lines, sentences, unit
from inferlens.views.plain import plain

# What a case is to GitHub and to JUnit. Those that ran on neither side do not say that the candidate is worse.
_KINDS: dict[Verdict, str] = {"SLOWER": "error", "DID NOT RUN": "error", "UNDECIDED": "warning"}
_OUTCOMES: dict[Verdict, str] = {"SLOWER": "failure", "DID NOT RUN": "error", "UNDECIDED": "skipped"}
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _figures(line: CaseLine, metric: Metric) -> str:
    """``9.42 to 10.1 ms, +7.22 ± 1.1 %``, or nothing where nothing was compared."""
    if line.of.change is None:
        return ""
    return f"{line.base} to {line.candidate} {unit(metric)}, {line.change}"


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
    for line in sorted(lines(compared), key=lambda line: -(line.of.ratio or 0.0)):
        verdict = line.of.verdict
        if verdict in _KINDS and not line.of.on_neither:
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


def junit(compared: Compared) -> str:
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
            told[f"differs: {one.field}{about(one, compared.on_both)}"] = f"{one.base} / {one.candidate}"
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
    kind = "skipped" if line.of.on_neither else _OUTCOMES.get(verdict)
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
