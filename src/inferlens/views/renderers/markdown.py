"""GitHub's Markdown, for a README, an issue or a comment: each table's sentences first, then it with full names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from inferlens.views.plain import plain, without_middle
from inferlens.views.report.blocks import Block, Picture, Report, Section
from inferlens.views.table import Column, Document, Line, Table, chosen

# What GitHub would take for a table's edge, a tag, an entity, emphasis, code, a link, a formula or a mention.
_SPECIAL = re.compile(r"([\\|<>&*_`\[\]~$#])")
# A name of thousands of characters would hide the numbers beside it; JSON and CSV have all of it.
_LONGEST = 200


def render(document: Document, width: int = 0, color: bool = False) -> str:  # noqa: ARG001 - as every format
    """The document's tables and sentences."""
    blocks = (
        block for item in document.blocks() for block in ([escape(item)] if isinstance(item, str) else _table(item))
    )
    return "\n\n".join(block for block in blocks if block) + "\n"


def escape(text: str) -> str:
    """``text`` on one line, every character that means something to Markdown or HTML made harmless."""
    return _SPECIAL.sub(r"\\\1", plain(text)).replace("@", "&#64;").replace("://", "&#58;//")


def _table(table: Table) -> Iterator[str]:
    yield _bold(escape(table.title))
    yield escape(table.about)
    yield from map(escape, (*table.answer, *table.sentences))
    if table.lines:
        shown = table.used()
        columns = [table.columns[place] for place in shown]
        head = [_row([table.first.strip(), *(escape(column.heading) for column in columns)])]
        head.append(_row(["---", *("---:" if column.numeric else "---" for column in columns)]))
        yield "\n".join([*head, *(_line(line, shown, columns) for line in table.lines)])
    yield "  \n".join(map(escape, table.notes))


def _line(line: Line, shown: Sequence[int], columns: Sequence[Column]) -> str:
    cells = [escape(without_middle(line.full or line.name, _LONGEST))]
    for place, column in zip(shown, columns, strict=True):  # what folds is a sentence, and needed whole
        cells.append(escape(without_middle(line.cells[place], _LONGEST * (5 if column.fold else 1))))
    return _row(map(_bold, cells) if "bold" in line.style else cells)


def _command(text: str) -> str:
    """What says a command, with that as it is to be typed; nothing where it says none."""
    words, name, rest = plain(text).partition("inferlens ")
    said = name and "`" not in rest and (not words or words.endswith((": ", "? ")))
    return f"{escape(words)} `{name}{rest}`".lstrip() if said else ""


def _bold(text: str) -> str:
    return f"**{text}**" if text else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def render_report(report: Report, folder: str) -> tuple[str, dict[str, bytes]]:
    """A report, and its pictures by the names that it has for them in ``folder``."""
    pictures: dict[str, bytes] = {}

    def written(blocks: Sequence[Block], level: int) -> Iterator[str]:
        for block in blocks:
            if isinstance(block, Section):
                yield f"{'#' * level} {escape(block.title)}"
                yield from written(block.blocks, level + 1)
            elif isinstance(block, Picture):
                pictures[f"{block.name}.svg"] = block.svg(False).encode()
                yield f"![{escape(block.how)}]({folder}/{block.name}.svg)"
                yield escape(block.how)
            elif isinstance(block, Table):
                yield from _table(chosen([block], None)[0])  # type: ignore[arg-type]
            elif isinstance(block, str):
                yield _command(block) or escape(block)

    text = [f"# {escape(report.title)}", *written(report.sections, 2)]
    return "\n\n".join(block for block in text if block) + "\n", pictures
