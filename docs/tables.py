"""Fills the tables of docs/h200.md, and draws its plots, from stored records: ``python docs/tables.py``.

A table stands between ``<!-- table FOLDER [PICTURE] -->`` and ``<!-- end -->``: what ``inferlens show FOLDER --format
markdown`` prints; the picture is what ``inferlens plot FOLDER`` draws. Instead of ``table`` it may say ``findings``,
``modules``, ``layers`` or ``kernels``: what those commands print, the most telling rows alone. No number is typed in.
"""

from __future__ import annotations

import re
from pathlib import Path

from inferlens import load_records
from inferlens.profile_store import load_profiles
from inferlens.views.chart import Chart
from inferlens.views.markdown import Markdown
from inferlens.views.profiled import findings, kernels, layers, modules
from inferlens.views.profiled.cases import groups

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "h200.md"
PICTURES = ROOT / "docs" / "pictures"
KINDS = "table|findings|modules|layers|kernels"
BLOCK = re.compile(
    rf"(<!-- (?P<kind>{KINDS}) (?P<folder>\S+)(?: (?P<picture>\S+))? -->\n).*?(?P<end><!-- end -->)", re.S
)


def filled(page: str) -> str:
    """``page`` with every table made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{DRAWN[match['kind']](match['folder'])}\n{match['end']}", page)


def table(folder: str) -> str:
    """The records under ``folder``, which is relative to the repository, as Markdown."""
    return Markdown().render(load_records([ROOT / folder]).records)


def findings_of(folder: str) -> str:
    """The findings of the profiles under ``folder``."""
    return findings.render(findings.judged(load_profiles([ROOT / folder])), "markdown", top=5)


def modules_of(folder: str) -> str:
    """The modules of the profiles under ``folder``, of the level that ``inferlens modules`` takes by itself."""
    return modules.render(groups(load_profiles([ROOT / folder])), "markdown", depth=1)


def layers_of(folder: str) -> str:
    """The layers that take most under ``folder``."""
    cases = [case for group in groups(load_profiles([ROOT / folder]), "layer") for case in group]
    return layers.render(cases, "markdown", top=10)


def kernels_of(folder: str) -> str:
    """The kernels that take most under ``folder``."""
    cases = [case for group in groups(load_profiles([ROOT / folder]), "kernel") for case in group]
    return kernels.render(cases, "markdown", top=10)


DRAWN = {"table": table, "findings": findings_of, "modules": modules_of, "layers": layers_of, "kernels": kernels_of}


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
