"""Fills the tables of docs/h200.md, and draws its plots, from stored records: ``python docs/tables.py``.

A table stands between ``<!-- table FOLDER [PICTURE] -->`` and ``<!-- end -->``: what ``inferlens show FOLDER --format
markdown`` prints; the picture is what ``inferlens plot FOLDER`` draws. No number is typed in.
"""

from __future__ import annotations

import re
from pathlib import Path

from inferlens import load_records
from inferlens.views.chart import Chart
from inferlens.views.markdown import Markdown

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "h200.md"
PICTURES = ROOT / "docs" / "pictures"
BLOCK = re.compile(r"(<!-- table (?P<folder>\S+)(?: (?P<picture>\S+))? -->\n).*?(<!-- end -->)", re.S)


def filled(page: str) -> str:
    """``page`` with every table made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match['folder'])}\n{match[4]}", page)


def table(folder: str) -> str:
    """The records under ``folder``, which is relative to the repository, as Markdown."""
    return Markdown().render(load_records([ROOT / folder]).records)


def main() -> None:
    """Writes the page and its pictures."""
    page = PAGE.read_text(encoding="utf-8")
    for match in BLOCK.finditer(page):
        if match["picture"]:
            records = load_records([ROOT / match["folder"]]).records
            drawn = Chart(format="svg", theme="light").render(records)
            (PICTURES / match["picture"]).write_text(str(drawn), encoding="utf-8")
    PAGE.write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
