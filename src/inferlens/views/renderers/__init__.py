"""The formats of documents: terminal tables, Markdown, CSV, JSON and HTML pages.

A new format is a function of a document; add it to :func:`render` and its name to ``FORMATS`` in ``table.py``. Markdown
is GitHub's, for a README, an issue or a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from inferlens.errors import check_choice
from inferlens.views.renderers.html import render_html
from inferlens.views.renderers.terminal import fit, render_terminal
from inferlens.views.table import (
    FORMATS,
    SCREEN,
    Block,
    Column,
    Document,
    Line,
    Picture,
    Report,
    Screen,
    Section,
    Table,
    column_names,
    cut_middle,
    plain,
    select_columns,
)


def render(
    document: Document,
    format: str = "table",
    *,
    width: int = SCREEN.width,
    lines: int = SCREEN.lines,
    color: bool = False,
    wide: bool = False,
    columns: str | None = None,
) -> str:
    """Write ``document`` in a format.

    Args:
        format: one of :data:`FORMATS`.
        width: columns of the terminal; ``lines``: its lines.
        color: whether to use the terminal's colours.
        wide: whether to show all columns, also those that are ``Column.wide``.
        columns: the columns to show instead, by title or key, with commas; ``help`` lists them. Formats for programs
            always have all columns.

    Raises:
        InferlensError: if there is no such format or column, or the document cannot be written in it.
    """
    check_choice("format", format, FORMATS)
    if columns == "help":
        return column_names(document.blocks()) + "\n"
    if format == "csv":
        return document.csv()
    if format == "json":
        return json_text(document.data())
    shown = fit(document, Screen(lines, width), tables=bool(columns)) if format == "table" else document.blocks()
    every_column = wide or format == "html"  # pages show wide columns on request
    blocks = shown if every_column and not columns else select_columns(shown, columns)
    if wide or columns:
        blocks = [block if isinstance(block, str) else replace(block, all_columns=True) for block in blocks]
    document = replace(document, blocks=lambda: blocks)
    if format == "table":
        return render_terminal(document, width, color)
    return render_html(document) if format == "html" else render_markdown(document)


def json_text(data: object) -> str:
    """Return data as JSON, indented by one."""
    return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"


# Characters with a meaning in GitHub's Markdown.
_SPECIAL = re.compile(r"([\\|<>&*_`\[\]~$#])")
_LONGEST = 200


def render_markdown(document: Document) -> str:
    texts = list[str]()
    for block in document.blocks():
        texts += [escape(block)] if isinstance(block, str) else _markdown_table(block)
    return "\n\n".join(filter(None, texts)) + "\n"


def escape(text: str) -> str:
    """Return ``text`` on one line with Markdown and HTML characters escaped."""
    return _SPECIAL.sub(r"\\\1", plain(text)).replace("@", "&#64;").replace("://", "&#58;//")


def _markdown_table(table: Table) -> Iterator[str]:
    yield _bold(escape(table.title))
    yield escape(table.about)
    yield from map(escape, (*table.answer, *table.sentences))
    if table.lines:
        shown = table.used()
        columns = [table.columns[place] for place in shown]
        head = [_markdown_row([table.first.strip(), *(escape(column.heading) for column in columns)])]
        head.append(_markdown_row(["---", *("---:" if column.numeric else "---" for column in columns)]))
        yield "\n".join([*head, *(_markdown_line(line, shown, columns) for line in table.lines)])
    yield "  \n".join(map(escape, table.notes))


def _markdown_line(line: Line, shown: Sequence[int], columns: Sequence[Column]) -> str:
    cells = [escape(cut_middle(line.full or line.name, _LONGEST))]
    for place, column in zip(shown, columns, strict=True):  # cells that fold hold sentences, which must stay whole
        cells.append(escape(cut_middle(line.cells[place], _LONGEST * (5 if column.fold else 1))))
    return _markdown_row(map(_bold, cells) if "bold" in line.style else cells)


def _command(text: str) -> str:
    """Return a text with its command as code; empty without a command."""
    words, name, rest = plain(text).partition("inferlens ")
    is_command = name and "`" not in rest and (not words or words.endswith((": ", "? ")))
    return f"{escape(words)} `{name}{rest}`".lstrip() if is_command else ""


def _bold(text: str) -> str:
    return f"**{text}**" if text else ""


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def render_markdown_report(report: Report, folder: str) -> tuple[str, dict[str, bytes]]:
    """Return a report, and its pictures by their names in ``folder``."""
    pictures: dict[str, bytes] = {}

    def written(blocks: Sequence[Block], level: int) -> Iterator[str]:
        for block in blocks:
            if isinstance(block, Section):
                yield f"{'#' * level} {escape(block.title)}"
                yield from written(block.blocks, level + 1)
            elif isinstance(block, Picture):
                pictures[f"{block.name}.svg"] = block.svg(False).encode()
                yield f"![{escape(block.caption)}]({folder}/{block.name}.svg)"
                yield escape(block.caption)
            elif isinstance(block, Table):
                yield from _markdown_table(select_columns([block], None)[0])  # type: ignore[arg-type]
            elif isinstance(block, str):
                yield _command(block) or escape(block)

    text = [f"# {escape(report.title)}", *written(report.sections, 2)]
    return "\n\n".join(block for block in text if block) + "\n", pictures
