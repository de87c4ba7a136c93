"""One HTML file that loads nothing; of tables without a script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape

from inferlens.views.plain import plain
from inferlens.views.table import Column, Document, Line, Table

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{allowed}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
_STYLE = """\
:root { --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117; }
}
body { margin: 2rem auto; max-width: 90rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .2rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { padding: .25rem .7rem; text-align: left; border-bottom: 1px solid var(--line); white-space: pre; }
th { vertical-align: bottom; color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.name { max-width: 34rem; overflow: hidden; text-overflow: ellipsis; }
tr.bold { font-weight: 600; }
"""
_LONGEST = 300


def render(document: Document, width: int = 0, color: bool = False) -> str:  # noqa: ARG001 - as every format
    """The page."""
    return page(document.title, _STYLE, f"<h1>{_text(document.title)}</h1>\n{fragment(document.blocks())}")


def page(title: str, style: str, body: str, *scripts: str) -> str:
    """One HTML file: its policy forbids every request, and every script but these, which stand at its end."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = "; script-src " + " ".join(f"'sha256-{digest}'" for digest in digests) + "; img-src data: blob:"
    body = "\n".join([body, *(f"<script>{script}</script>" for script in scripts)])
    return _PAGE.format(title=_text(title), allowed=allowed * bool(scripts), style=style, body=body)


def fragment(blocks: Sequence[Table | str]) -> str:
    """What the page shows, for a page that has its own style, such as a notebook."""
    return "\n".join(
        block for each in blocks for block in ([f"<p>{_text(each)}</p>"] if isinstance(each, str) else _table(each))
    )


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"<h2>{_text(table.title)}</h2>"
    if table.about:
        yield f'<p class="soft">{_text(table.about)}</p>'
    yield from (f"<p><b>{_text(line)}</b></p>" for line in table.answer)
    if table.lines:
        shown = table.used()
        columns = [table.columns[place] for place in shown]
        head = "".join(f"<th{_kind(column)}>{_text(column.heading)}</th>" for column in columns)
        rows = "\n".join(_line(line, shown, columns) for line in table.lines)
        yield f'<div class="wide"><table>\n<tr><th>{_text(table.first.strip())}</th>{head}</tr>\n{rows}\n</table></div>'
    yield from (f'<p class="soft">{_text(note)}</p>' for note in table.notes)
    yield from (f"<p>{_text(sentence)}</p>" for sentence in table.sentences)


def _line(line: Line, shown: Sequence[int], columns: Sequence[Column]) -> str:
    cells = "".join(
        f"<td{_kind(column)}>{_text(line.cells[place])}</td>" for place, column in zip(shown, columns, strict=True)
    )
    bold = ' class="bold"' if "bold" in line.style else ""
    name = f'<td class="name" title="{_text(line.full or line.name)}">{escape(line.indent)}{_text(line.name)}</td>'
    return f"<tr{bold}>{name}{cells}</tr>"


def _kind(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _text(value: str) -> str:
    text = plain(value)
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
