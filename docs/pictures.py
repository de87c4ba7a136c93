"""Draws the README's pictures from stored records: ``python docs/pictures.py examples/h200/resnet18``.

The table is what ``inferlens show`` prints, at the model's smallest batch size; the chart is what ``inferlens plot``
draws. Nothing is measured here and no number is typed in: the same
records give the same files.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from inferlens import Record, load_records
from inferlens.views.chart import Chart
from inferlens.views.records import document
from inferlens.views.table import render

PICTURES = Path(__file__).parent / "pictures"
FAVOURITE = "resnet18"
WIDTH = 100  # columns of the terminal
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


def main(folder: Path, model: str | None = None) -> list[Path]:
    """Writes the pictures; their paths."""
    records = records_of(folder, model)
    smallest = min(record.batch or 0 for record in records)
    table = [record for record in records if (record.batch or 0) == smallest]
    drawn = {
        "table.svg": table_picture(table, f"{table[0].model.name}, batch {smallest}"),
        "compare.svg": Chart(format="svg", theme="light").render(records),
        "compare-dark.svg": Chart(format="svg", theme="dark").render(records),
    }
    PICTURES.mkdir(exist_ok=True)
    for name, picture in drawn.items():
        (PICTURES / name).write_text(str(picture), encoding="utf-8")
    return [PICTURES / name for name in drawn]


def records_of(folder: Path, model: str | None) -> list[Record]:
    """Records of one model: the one named, or else the favourite, or else the first there is."""
    records = load_records([folder]).records
    names = sorted({record.model.name for record in records})
    wanted = model or (FAVOURITE if FAVOURITE in names else names[0])
    if wanted not in names:
        raise SystemExit(f"{folder} has no records of {wanted}, only of {', '.join(names)}.")
    return [record for record in records if record.model.name == wanted]


def table_picture(records: Sequence[Record], title: str) -> str:
    """The table as a terminal shows it, dark on any page."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False, _environ={})
    console.print(Text.from_ansi(render(document(records), width=WIDTH, color=True)))
    svg = console.export_svg(title=title, theme=SVG_EXPORT_THEME, code_format=FRAME, unique_id="inferlens")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    for path in main(Path(sys.argv[1]), *sys.argv[2:]):
        print(path)
