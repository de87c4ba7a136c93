"""One HTML file that loads nothing, of a table or of a whole report.

What it looks like is in ``page/``, as templates in which every text is escaped. All of it reads without scripts: charts
are inline SVG, whose colours follow the page where they are no data. The script sorts, filters, folds and copies.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from inferlens.units import number
from inferlens.views.plain import plain, without_end
from inferlens.views.report.blocks import Block, Picture, Report
from inferlens.views.table import Column, Document, Line, Table, longest

FILES = Path(__file__).parent / "page"
_LONGEST, _SENTENCE, _SHORT = 300, 3000, 13  # characters of a text, of a sentence, of names that never run on
_ROWS = 300  # of a table, until all are asked for: as page.js has it
_PLAIN = "!()*,-./:;=?@_~+$|"  # in an address, as they are
_HEAD = re.compile(r"^(|[^A-Z]*?: )([A-Z]{4,}(?: [A-Z]{4,})*)(?: · )?")
_JOINT = re.compile(r"(?<=\w):(?=\w)")  # where a name may be broken: torch_compile:default
_BLOCKS = {chr(code) for code in range(0x2581, 0x2590)}  # that a terminal draws bars of
_COMMAND = re.compile(r"^([A-Z][^:?]*[:?] +)?inferlens[ .]\w+")


def render(document: Document, width: int = 0, color: bool = False) -> str:  # noqa: ARG001 - as every format
    """The page of a document."""
    return page(
        document.title, f"{_head(document.title)}<main>{fragment(document.blocks(), _ROWS)}</main>", scripts=[script()]
    )


def render_report(report: Report) -> str:
    """The page of a report, with links to its sections."""
    links = "".join(f'<a href="#{section.name}">{_said(section.title)}</a>' for section in report.sections)
    body = f"{_head(report.title, links)}<main>{fragment(report.sections, _ROWS)}</main>"
    return page(report.title, body, scripts=[script()])


def _head(title: str, links: str = "") -> str:
    """What every page begins with; the script adds a button for the theme."""
    return f'<header><h1>{_said(title)}</h1></header>\n<nav aria-label="sections">{links}</nav>\n'


def script() -> str:
    """What a page can do with its own tables and pictures."""
    return (FILES / "page.js").read_text("utf-8")


def pictured(
    title: str, picture: Picture, about: str = "", *, style: str = "", scripts: Sequence[str] = (), theme: str = ""
) -> str:
    """The page of one picture, with scripts of its own; ``theme`` is that of the system unless it is said."""
    body = f'{_head(title)}<main>{fragment([picture])}<p class="soft">{_said(about)}</p></main>'
    return page(f"{title} – Inferlens", body, style=style, scripts=[*scripts, script()], theme=theme)


def page(title: str, body: str, *, style: str = "", scripts: Sequence[str] = (), theme: str = "") -> str:
    """One HTML file: its policy forbids every request, and every style and script but these.

    Args:
        body: HTML, escaped already.
        style: what it has besides ``page.css``.
        scripts: JavaScript, which stands at its end.
        theme: ``light`` or ``dark`` to begin with; empty: the system's.
    """
    style = (FILES / "page.css").read_text("utf-8") + style
    allowed = [f"style-src {_digest(style)}", f"script-src {' '.join(map(_digest, scripts))}"]
    policy = "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])
    found: str = (
        _environment()
        .get_template("page.html")
        .render(title=title, style=style, body=body, scripts=scripts, policy=policy, theme=theme)
    )
    return found


def fragment(blocks: Sequence[Block], most: int | None = None, level: int = 2) -> str:
    """What the page shows, for a page that has its own style, such as a notebook.

    Rows of a table after the first ``most`` are hidden, until the page's script is asked for them.
    """
    found: str = _environment().get_template("blocks.html").render(every=blocks, level=level, most=most)
    return found.strip()


def for_notebook(blocks: Sequence[Block]) -> str:
    """The same with the little style that a notebook lacks, in whose colours it is."""
    style = (FILES / "notebook.css").read_text("utf-8")
    return f'<div class="inferlens"><style>{style}</style>{fragment(blocks, level=4)}</div>'


@cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES), autoescape=True, trim_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "said": _said, "sentence": partial(_said, longest=_SENTENCE), "named": _named, "cell": _cell,
        "answered": _answered,
        "kind": lambda item: type(item).__name__, "command": _COMMAND.match,
        "columns": _columns, "classes": _classes, "row": _row, "bars": _bars, "units": _units,
        "shape": _shape,
        "drawn": _drawn, "link": lambda item: _link(item.data, item.kind),
    }  # fmt: skip
    return environment


def _said(value: str, longest: int = _LONGEST) -> Any:
    """A text as it is shown: of one line, not of thousands of characters, and escaped."""
    from markupsafe import escape

    return escape(without_end(plain(value), longest))


def _named(value: str, longest: int = _LONGEST) -> Any:
    """A name, which is broken between its words if it has to be."""
    return _safe(_JOINT.sub(":<wbr>", str(_said(value, longest))))


def _cell(value: str, column: Column) -> Any:
    """What stands in a cell; a bar of characters is in a bar's colour, and nothing to a screen reader."""
    if value and _BLOCKS.issuperset(value):
        return _safe(f'<span class="blocks" aria-hidden="true">{value}</span>')
    return _named(value, _SENTENCE) if column.fold else _said(value)


def _answered(line: str) -> Any:
    """An answer's parts, which two spaces part, with its first words in capitals set apart."""
    said = str(_said(line.replace(":  ", ": ").replace("  ", " · ")))
    return _safe(_HEAD.sub(r"\1<b>\2</b> ", said, count=1))


def _safe(html: str) -> Any:
    from markupsafe import Markup

    return Markup(html)


def _columns(table: Table) -> list[tuple[int, Column]]:
    return [(place, table.columns[place]) for place in table.used()]


def _shape(table: Table) -> str:
    """Classes of a table: whether places stand before its names, and whether these are short."""
    placed = any(line.indent.strip() for line in table.lines)
    short = not placed and max(len(line.name) for line in table.lines) < _SHORT
    return " placed" if placed else " short" if short else ""


def _classes(column: Column) -> Any:
    """Attributes of a column's cells."""
    names = ["number"] * column.numeric + ["fold"] * column.fold + ["extra"] * column.wide
    return _safe(f' class="{" ".join(names)}"' if names else "")


def _units(heading: str) -> Any:
    """A heading whose unit is not cut in two."""
    title, bracket, unit = heading.partition(" (")
    return _said(title) + (_safe(" <span>(") + _said(unit) + _safe("</span>") if bracket else "")


def _row(line: Line) -> Any:
    """Attributes of a row; those of a tree have a depth."""
    names = (
        [name for name in ("bold", "dim", "green", "red") if name in line.style]
        + ["ends"] * line.ends
        + ["sums"] * line.sums
    )
    classes = f' class="{" ".join(names)}"' if names else ""
    return _safe(classes + (f' data-depth="{min(len(line.indent) // 2, 6)}"' if line.full else ""))


def _bars(table: Table) -> dict[int, Sequence[str]]:
    """A bar for each cell of the columns that are drawn as bars, where there are several; of trees all with times."""
    tree = any(line.full for line in table.lines)
    places = [
        place
        for place, column in _columns(table)
        if column.bars == "drawn" or (tree and column.bars and column.title and column.unit)
    ]
    found = {place: [None if line.sums else number(line.cells[place]) for line in table.lines] for place in places}
    return {
        place: [_bar(*item) for item in zip(numbers, longest(table, numbers), strict=True)]
        for place, numbers in found.items()
        if sum(item is not None for item in numbers) > 1
    }


def _bar(value: float | None, most: float) -> Any:
    if value is None:
        return ""
    width = 100 * min(max(value / most, 0.0), 1.0)
    # Sizes and color are for pages without this one's style, such as a notebook.
    sizes, rect = 'width="60" height="4" fill="steelblue"', f'<rect width="{width:.3g}%" height="4"/>'
    return _safe(f'<svg class="bar" {sizes} aria-hidden="true">{rect}</svg>')


def _drawn(picture: Picture, phone: bool = False) -> Any:
    """The picture as part of a page: its identifiers are its own."""
    name = re.sub(r"\W", "-", picture.name) + "-phone" * phone
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", picture.svg(phone))
    return _safe(re.sub(r"^(<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*|<!--.*?-->\s*)*", "", svg, flags=re.S))


def _link(data: bytes, kind: str) -> str:
    """The file as an address; text as it is, for other bytes take a third more."""
    if kind.startswith("text/"):
        return f"data:{kind},{quote(data, safe=_PLAIN)}"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
