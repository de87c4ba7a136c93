"""A comparison as commands of GitHub Actions, which show as annotations of the run.

One notice with the closing sentences; an error for each case that is slower or ran on one side alone, a warning for
each that is undecided. GitHub shows ten of a kind for a step, so what was slowed down most comes first. The form of a
command: https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from __future__ import annotations

from inferlens.analysis.compare.cases import Compared, Verdict
from inferlens.views.compared.lines import Line, figures, full_names, sentences
from inferlens.views.plain import plain

_KINDS: dict[Verdict, str] = {"SLOWER": "error", "DID NOT RUN": "error", "UNDECIDED": "warning"}


def render(compared: Compared) -> str:
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
