"""Draws the README's pictures from stored records: ``python docs/pictures.py``.

The table is what ``inferlens show`` prints, at the smallest batch size; the page is what ``inferlens report`` writes,
photographed by Chromium. Nothing is measured here and no number is typed in: the same records give the same pictures.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from inferlens import Record, load_records
from inferlens.views.records import records_document
from inferlens.views.renderers import render
from inferlens.views.renderers.html import find_browser

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
SHOWN = DOCS.parent / "examples" / "h200" / "tensorrt" / "vit_b_16"
WIDTH = 100  # columns of the terminal
PAGE = "1200,1720"  # pixels of the page that are seen: down to its first chart
# Rich's own frame, but for its web font: a picture that asks for nothing from the network. Every line's length is set,
# so any monospaced font fits.
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> list[Path]:
    """Writes the pictures; their paths."""
    records = load_records([SHOWN]).records
    smallest = min(record.batch or 0 for record in records)
    table = [record for record in records if (record.batch or 0) == smallest]
    PICTURES.mkdir(exist_ok=True)
    terminal, page = PICTURES / "table.svg", PICTURES / "page.png"
    terminal.write_text(table_picture(table, f"{table[0].model.name}, batch {smallest}"), encoding="utf-8")
    photograph(page)
    return [terminal, page]


def photograph(picture: Path) -> None:
    """The top of the page, as Chromium shows it."""
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        root = DOCS.parent  # the page names paths as they are given
        command = [sys.executable, "-m", "inferlens", "report", str(SHOWN.relative_to(root)), "-o", str(page)]
        subprocess.run(command, check=True, cwd=root)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={PAGE}"]
        shot = [f"--user-data-dir={folder}/profile", f"--screenshot={picture}", page.as_uri()]
        subprocess.run([find_browser(), *options, *shot], check=True, capture_output=True, timeout=120)


def table_picture(records: Sequence[Record], title: str) -> str:
    """The table as a terminal shows it, dark on any page."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False, _environ={})
    console.print(Text.from_ansi(render(records_document(records), width=WIDTH, color=True)))
    svg = console.export_svg(title=title, theme=SVG_EXPORT_THEME, code_format=FRAME, unique_id="inferlens")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    for path in main():
        print(path)
