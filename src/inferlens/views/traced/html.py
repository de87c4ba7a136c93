"""Sheets as one HTML file that loads nothing and has no script; bars are drawn by the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from inferlens.units import ABSENT
from inferlens.views.plain import plain
from inferlens.views.profiled.grid import used
from inferlens.views.traced.sheet import Column, Sheet, bar

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --paper: #ffffff; --bar: #3b76d6; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117; --bar: #5b8fe8; }}
}}
body {{ margin: 2rem auto; max-width: 90rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin: 2rem 0 .2rem; }}
p {{ margin: .3rem 0; }} .soft {{ color: var(--soft); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .6rem 0; }}
th, td {{ padding: .25rem .7rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }}
th {{ vertical-align: bottom; color: var(--soft); font-weight: 600; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
td.name {{ max-width: 34rem; overflow: hidden; text-overflow: ellipsis; }}
.bar {{ width: 12rem; height: .8rem; background: linear-gradient(var(--bar), var(--bar)) no-repeat left; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
_LONGEST = 300


def page(parts: Sequence[tuple[str, Sequence[Sheet], Sequence[str]]], view: str) -> str:
    """The file: for each trace its name, its sheets and the notes on how it was read."""
    blocks = []
    for name, sheets, notes in parts:
        blocks.append(f"<h1>{_text(name)}</h1>")
        blocks += [f'<p class="soft">{_text(note)}</p>' for note in notes]
        blocks += [_sheet(sheet) for sheet in sheets]
    title = escape(f"{view} of {parts[0][0] if parts else 'nothing'} – Inferlens")
    return _PAGE.format(title=title, body="\n".join(blocks))


def _sheet(sheet: Sheet) -> str:
    grid = sheet.grid()
    blocks = [f"<h2>{_text(grid.headline)}</h2>"]
    blocks += [f'<p class="soft">{_text(grid.about)}</p>'] if grid.about else []
    if grid.lines:
        columns = [sheet.columns[place] for place in used(grid, ABSENT)]
        head = "".join(_head(column) for column in columns)
        rows = "\n".join(_row(sheet, columns, row) for row in sheet.rows())
        blocks.append(f'<div class="wide"><table>\n<tr><th>{_text(grid.first)}</th>{head}</tr>\n{rows}\n</table></div>')
    blocks += [f'<p class="soft">{_text(note)}</p>' for note in grid.notes]
    blocks += [f"<p>{_text(sentence)}</p>" for sentence in grid.sentences]
    return "\n".join(blocks)


def _head(column: Column) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return f"<th{_kind(column)}>{_text(column.title + unit)}</th>"


def _row(sheet: Sheet, columns: Sequence[Column], row: dict[str, Any]) -> str:
    name = plain(str(row[sheet.first[0]] if row[sheet.first[0]] is not None else ABSENT))
    depth = len(sheet.indent(row)) / 2
    style = f' style="padding-left: {depth + 0.7:g}rem"' if depth else ""
    shown = plain(str(sheet.shown(row))) if sheet.shown else name
    cells = "".join(_cell(column, row[column.key]) for column in columns)
    return f'<tr><td class="name" title="{escape(_cut(name))}"{style}>{escape(_cut(shown))}</td>{cells}</tr>'


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _cell(column: Column, value: Any) -> str:
    if column.written is bar:
        size = max(0.0, min(float(value or 0.0), 1.0)) * 100
        return f'<td><div class="bar" style="background-size: {size:.1f}% 100%"></div></td>'
    return f"<td{_kind(column)}>{_text(column.written(value))}</td>"


def _kind(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _text(value: str) -> str:
    text = plain(value)
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
