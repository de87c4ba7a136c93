"""A comparison in GitHub's Markdown, for a summary or a comment: a table for each model, notes, what else differs."""

from __future__ import annotations

from inferlens.analysis.compare.cases import Compared
from inferlens.analysis.compare.environment_diff import about
from inferlens.units import percent
from inferlens.views.compared.lines import Group, groups, unit
from inferlens.views.compared.notes import Notes
from inferlens.views.compared.sentences import sentences
from inferlens.views.markdown import escape

_BOLD = ("SLOWER", "DID NOT RUN", "FASTER")


def render(compared: Compared) -> str:
    """``compared`` as Markdown; the sentences come first, for they are what is read."""
    notes = Notes()
    blocks = [escape(sentence) for sentence in sentences(compared)]
    for group in groups(compared):
        blocks += [f"**{escape(group.headline)}**", _table(group, compared, notes)]
    blocks.append("  \n".join(f"{mark} {escape(text)}" for mark, text in notes.numbered()))
    if compared.differences:
        blocks.append(_differences(compared))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(group: Group, compared: Compared, notes: Notes) -> str:
    shown, interval = unit(compared.metric), f"interval ({percent(compared.level)})"
    lines = [_row(["case", f"base ({shown})", f"candidate ({shown})", "change", interval, "verdict"])]
    lines.append(_row(["---", "---:", "---:", "---:", "---:", "---"]))
    for line in group.lines:
        cells = [line.name + notes.marks(line.notes), line.base, line.candidate, line.change, line.interval]
        verdict = f"**{line.verdict}**" if line.verdict in _BOLD else line.verdict
        lines.append(_row([*map(escape, cells), verdict]))
    return "\n".join(lines)


def _differences(compared: Compared) -> str:
    lines = [_row(["what else differs", "base", "candidate"]), _row(["---"] * 3)]
    for one in compared.differences:
        field = escape(one.field) + about(one, compared.on_both)
        lines.append(_row([f"**{field}**" if one.unlike else field, escape(one.base), escape(one.candidate)]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
