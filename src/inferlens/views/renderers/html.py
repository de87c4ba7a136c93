"""One HTML file that loads nothing, for a table or a whole report.

The templates in ``page/`` escape every text. A page can be read without its script, which sorts, filters, folds and
copies. Charts are inline SVG; their colours follow the page's theme, except for colours that stand for data.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from inferlens.errors import InferlensError, reason
from inferlens.views.table import Block, Column, Document, Line, Picture, Report, Table, cut_end, group_maxima, plain

FILES = Path(__file__).parent / "page"
_LONGEST, _SENTENCE, _SHORT = 300, 3000, 13  # characters of a text, of a sentence, of names that never run on
_ROWS = 300  # visible rows of a table, as in page.js
_PLAIN = "!()*,-./:;=?@_~+$|"  # characters that an address keeps
_HEAD = re.compile(r"^(|[^A-Z]*?: )([A-Z]{4,}(?: [A-Z]{4,})*)(?: · )?")
_JOINT = re.compile(r"(?<=\w):(?=\w)")  # where a name may be broken: torch_compile:default
_BLOCKS = {chr(code) for code in range(0x2581, 0x2590)}  # characters of the bars on a terminal
_COMMAND = re.compile(r"^([A-Z][^:?]*[:?] +)?inferlens[ .]\w+")


def render_html(document: Document) -> str:
    return page(document.title, f"{_page_header(document.title)}<main>{fragment(document.blocks(), _ROWS)}</main>")


def render_report(report: Report) -> str:
    """Return the page of a report with links to its sections."""
    links = "".join(f'<a href="#{section.name}">{_escape(section.title)}</a>' for section in report.sections)
    return page(report.title, f"{_page_header(report.title, links)}<main>{fragment(report.sections, _ROWS)}</main>")


def _page_header(title: str, links: str = "") -> str:
    return f'<header><h1>{_escape(title)}</h1></header>\n<nav aria-label="sections">{links}</nav>\n'


def _page_file(name: str) -> str:
    return (FILES / name).read_text("utf-8")


def picture_page(title: str, picture: Picture, about: str = "", *, name: str = "", theme: str = "") -> str:
    """Return the page of one picture; :func:`page` describes ``name`` and ``theme``."""
    body = f'{_page_header(title)}<main>{fragment([picture])}<p class="soft">{_escape(about)}</p></main>'
    return page(f"{title} – Inferlens", body, name=name, theme=theme)


def page(title: str, body: str, *, name: str = "", theme: str = "") -> str:
    """Return one HTML file. Its policy forbids requests and foreign styles and scripts.

    Args:
        body: HTML, escaped already.
        name: names a style and a script that this page has in addition to those of every page.
        theme: the first theme, ``light`` or ``dark``; empty: the system's.
    """
    style = _page_file("page.css") + (_page_file(f"{name}.css") if name else "")
    scripts = [*([_page_file(f"{name}.js")] if name else []), _page_file("page.js")]
    allowed = [f"style-src {_digest(style)}", f"script-src {' '.join(map(_digest, scripts))}"]
    policy = "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])
    template = _environment().get_template("page.html")
    text: str = template.render(title=title, style=style, body=body, scripts=scripts, policy=policy, theme=theme)
    return text


def fragment(blocks: Sequence[Block], max_rows: int | None = None, level: int = 2) -> str:
    """Return blocks as HTML for a page with its own style, such as a notebook.

    Rows after the first ``max_rows`` stay hidden until the page's script shows them.
    """
    text: str = _environment().get_template("blocks.html").render(every=blocks, level=level, max_rows=max_rows)
    return text.strip()


def notebook_html(blocks: Sequence[Block]) -> str:
    """Return blocks as HTML with a style for notebooks."""
    return f'<div class="inferlens"><style>{_page_file("notebook.css")}</style>{fragment(blocks, level=4)}</div>'


@cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES), autoescape=True, trim_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "escaped": _escape, "sentence": partial(_escape, length=_SENTENCE), "name": _breakable_name,
        "cell": _cell_html, "answer": _answer_html, "kind": lambda block: type(block).__name__,
        "command": _COMMAND.match, "columns": _used_columns, "classes": _column_classes, "row": _row_attributes,
        "bars": _cell_bars, "units": _heading_html, "shape": _table_classes, "svg": _inline_svg,
        "link": lambda download: _link(download.data, download.kind),
    }  # fmt: skip
    return environment


def _escape(value: str, length: int = _LONGEST) -> Any:
    """Return an escaped text on one line, cut to ``length``."""
    from markupsafe import escape

    return escape(cut_end(plain(value), length))


def _breakable_name(value: str, length: int = _LONGEST) -> Any:
    """Return a name that may break between its words."""
    return _safe(_JOINT.sub(":<wbr>", str(_escape(value, length))))


def _cell_html(value: str, column: Column) -> Any:
    """Return a cell. A bar of characters is coloured, and hidden from screen readers."""
    if value and _BLOCKS.issuperset(value):
        return _safe(f'<span class="blocks" aria-hidden="true">{value}</span>')
    return _breakable_name(value, _SENTENCE) if column.fold else _escape(value)


def _answer_html(line: str) -> Any:
    """Separate the parts of an answer and emphasize its first words in capitals."""
    text = str(_escape(line.replace(":  ", ": ").replace("  ", " · ")))
    return _safe(_HEAD.sub(r"\1<b>\2</b> ", text, count=1))


def _safe(html: str) -> Any:
    from markupsafe import Markup

    return Markup(html)


def _used_columns(table: Table) -> list[tuple[int, Column]]:
    return [(place, table.columns[place]) for place in table.used()]


def _table_classes(table: Table) -> str:
    """Return the classes of a table for numbered and for short names."""
    placed = any(line.indent.strip() for line in table.lines)
    short = not placed and max(len(line.name) for line in table.lines) < _SHORT
    return " placed" if placed else " short" if short else ""


def _column_classes(column: Column) -> Any:
    names = ["number"] * column.numeric + ["fold"] * column.fold + ["extra"] * column.wide
    return _safe(f' class="{" ".join(names)}"' if names else "")


def _heading_html(heading: str) -> Any:
    """Keep the unit of a heading on one line."""
    title, bracket, unit = heading.partition(" (")
    return _escape(title) + (_safe(" <span>(") + _escape(unit) + _safe("</span>") if bracket else "")


def _row_attributes(line: Line) -> Any:
    names = [name for name in ("bold", "dim", "green", "red") if name in line.style]
    names += ["ends"] * line.ends + ["sums"] * line.sums
    classes = f' class="{" ".join(names)}"' if names else ""
    return _safe(classes + (f' data-depth="{min(len(line.indent) // 2, 6)}"' if line.full else ""))


def _cell_bars(table: Table) -> dict[int, Sequence[str]]:
    """Return a bar per cell of the drawn columns."""
    numbers = {place: table.numbers(place) for place, column in _used_columns(table) if column.bars}
    return {
        place: list(map(_cell_bar, values, group_maxima(table, values)))
        for place, values in numbers.items()
        if len(values) - values.count(None) > 1
    }


def _cell_bar(value: float | None, maximum: float) -> Any:
    if value is None:
        return ""
    width = 100 * min(max(value / maximum, 0.0), 1.0)
    # Sizes and color are for pages without this one's style, such as a notebook.
    sizes, rect = 'width="60" height="4" fill="steelblue"', f'<rect width="{width:.3g}%" height="4"/>'
    return _safe(f'<svg class="bar" {sizes} aria-hidden="true">{rect}</svg>')


def _inline_svg(picture: Picture, phone: bool = False) -> Any:
    """Return the picture as inline SVG with unique identifiers."""
    name = re.sub(r"\W", "-", picture.name) + "-phone" * phone
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", picture.svg(phone))
    return _safe(re.sub(r"^(<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*|<!--.*?-->\s*)*", "", svg, flags=re.S))


def _link(data: bytes, kind: str) -> str:
    """Return a data URL. Base64 is shorter for binary data alone."""
    if kind.startswith("text/"):
        return f"data:{kind},{quote(data, safe=_PLAIN)}"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# A page as PDF: Chromium prints it with a temporary profile and without a network.

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
TIMEOUT = 120.0  # seconds for a page
_QUIET = (
    "--headless", "--disable-gpu", "--disable-extensions", "--disable-sync", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--no-default-browser-check", "--no-pdf-header-footer",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


def find_browser() -> str:
    """Return the Chromium of this machine. Raise InferlensError if there is none."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not path:
        problem = "A PDF is printed by Chromium or Chrome, and neither is on the PATH."
        hint = "apt install chromium; or a file that ends in .html, which any browser prints"
        raise InferlensError(problem, hint=hint)
    return path


def print_pdf(page: str, folder: Path) -> bytes:
    """Print the page as PDF. Temporary files lie in ``folder``, because some browsers have their own ``/tmp``.

    Raises:
        InferlensError: if there is no Chromium, or it does not print.
    """
    command = [find_browser(), *_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # root has no sandbox
    problem, pdf = "", b""
    try:
        with TemporaryDirectory(prefix="inferlens-pdf-", dir=folder, ignore_cleanup_errors=True) as inside:
            source, target = Path(inside).resolve() / "page.html", Path(inside).resolve() / "page.pdf"
            source.write_text(page, encoding="utf-8")
            command += [f"--user-data-dir={inside}/profile", f"--print-to-pdf={target}", source.as_uri()]
            process = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
            problem = reason("\n".join(process.stderr.decode(errors="replace").splitlines()[-3:]))
            pdf = target.read_bytes() if target.is_file() else b""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = reason(error)
    if not pdf.startswith(b"%PDF"):
        hint = "a file that ends in .html, to print by hand"
        raise InferlensError(f"{command[0]} printed no PDF: {problem}.", hint=hint)
    return pdf
