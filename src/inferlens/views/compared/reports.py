"""A comparison as what systems of continuous integration read.

``github``: commands of GitHub Actions, which show as annotations of the run.

One notice with the closing sentences; an error for each case that is slower or ran on one side alone, a warning for
each that is undecided. GitHub shows ten of a kind for a step, so what was slowed down most comes first. The form of a
command: https://docs.github.com/actions/reference/workflow-commands-for-github-actions.

``junit``: a JUnit report, which most systems of continuous integration read: one test case a case.

SLOWER is a failure, DID NOT RUN an error. UNDECIDED is skipped, and so is what ran on neither side: they do not say
that the candidate is worse. Characters that XML has no form for are left out.
"""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from inferlens.analysis.compare.cases import Compared, Verdict
from inferlens.analysis.compare.environment_diff import about
from inferlens.views.compared.lines import Group, Line, figures, full_names, groups, sentences
from inferlens.views.plain import plain

_KINDS: dict[Verdict, str] = {"SLOWER": "error", "DID NOT RUN": "error", "UNDECIDED": "warning"}
_OUTCOMES = {"SLOWER": "failure", "DID NOT RUN": "error", "UNDECIDED": "skipped"}
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def github(compared: Compared) -> str:
    """One command on each line."""
    commands = [command("notice", "inferlens compare", " ".join(sentences(compared)))]
    unlike = [difference for difference in compared.differences if difference.unlike]
    for one in unlike:
        text = f"{plain(one.field)}: {plain(one.base)} and {plain(one.candidate)}"
        commands.append(command("warning", "Not measured under the same conditions", text))
    # Python sorts stably: the order of the cases remains where changes are equal, or there are none.
    for name, line in sorted(full_names(compared), key=lambda pair: -(pair[1].of.ratio or 0.0)):
        if line.verdict in _KINDS and not line.of.on_neither:
            commands.append(command(_KINDS[line.of.verdict], f"{line.verdict}: {name}", _message(line, compared)))
    return "\n".join(commands) + "\n"


def command(kind: str, title: str, message: str) -> str:
    """``::KIND title=TITLE::MESSAGE``, each part escaped as it has to be at its place."""
    told = _escaped(message)
    named = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={named}::{told}"


def _message(line: Line, compared: Compared) -> str:
    said = figures(line, compared.metric)
    return "\n".join([*([f"Median {compared.metric}: {said}."] if said else []), *line.notes])


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit(compared: Compared) -> str:
    """``compared`` as XML, one suite for each model."""
    root = Xml.Element("testsuites", name="inferlens compare")
    for group in groups(compared):
        _suite(root, group, compared)
    _count(root)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(root: Xml.Element, group: Group, compared: Compared) -> None:
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
        _case(suite, group, line, compared)
    _count(suite)
    Xml.SubElement(suite, "system-out").text = "\n".join(sentences(compared))


def _case(suite: Xml.Element, group: Group, line: Line, compared: Compared) -> None:
    case = Xml.SubElement(suite, "testcase", classname=group.model, name=line.name)
    median = line.of.candidate.median
    if median is not None and compared.metric != "throughput":
        case.set("time", f"{median:.9f}")
    said = figures(line, compared.metric)
    kind = "skipped" if line.of.on_neither else _OUTCOMES.get(line.verdict)
    if kind:
        first = line.notes[0] if line.notes else line.of.reason
        message = f"{line.verdict}: {said or first}"
        Xml.SubElement(case, kind, message=message, type=line.verdict).text = "\n".join(line.notes) or line.of.reason
    else:
        Xml.SubElement(case, "system-out").text = "\n".join([f"{line.verdict}: {said}", *line.notes])


def _count(element: Xml.Element) -> None:
    """Sets how many test cases there are in it, and how many of each outcome."""
    element.set("tests", str(len(list(element.iter("testcase")))))
    for name, tag in _COUNTS.items():
        element.set(name, str(len(list(element.iter(tag)))))
