"""Fills the tables of the pages on the H200, and draws their plots, from stored records: ``python docs/tables.py``.

A table stands between ``<!-- table FOLDER [PICTURE] -->`` and ``<!-- end -->``: what ``inferlens show FOLDER --format
markdown`` prints; the picture is what ``inferlens plot FOLDER`` draws. Instead of ``table`` it may say ``findings``,
``modules``, ``layers`` or ``kernels``: what those commands print, the most telling rows alone. ``trace WORDS`` is what
``inferlens trace`` prints of these words, paths being relative to the folder of traces. No number is typed in.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from inferlens import load_records
from inferlens.cli import trace_words
from inferlens.profile_store import load_profiles
from inferlens.views.chart import Chart
from inferlens.views.markdown import Markdown
from inferlens.views.profiled import findings, kernels, layers, modules
from inferlens.views.profiled.cases import groups
from inferlens.views.traced.show import Wanted, render

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "h200.md", ROOT / "docs" / "h200-traces.md")
TRACES = ROOT / "examples" / "h200" / "traces"
PICTURES = ROOT / "docs" / "pictures"
KINDS = "table|findings|modules|layers|kernels|trace"
BLOCK = re.compile(rf"(<!-- (?P<kind>{KINDS}) (?P<words>[^\n]+) -->\n).*?(?P<end><!-- end -->)", re.S)


def filled(page: str) -> str:
    """``page`` with every table made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{drawn(match['kind'], match['words'])}\n{match['end']}", page)


def drawn(kind: str, words: str) -> str:
    """What stands in one block."""
    return DRAWN[kind](*shlex.split(words))


def table(folder: str, _picture: str = "") -> str:
    """The records under ``folder``, which is relative to the repository, as Markdown."""
    return Markdown().render(load_records([ROOT / folder]).records)


def findings_of(folder: str) -> str:
    """The findings of the profiles under ``folder``."""
    return findings.render(findings.judged(load_profiles([ROOT / folder])), "markdown", top=5)


def modules_of(folder: str, depth: str = "1") -> str:
    """The modules of the profiles under ``folder``, of the level that ``inferlens modules`` takes by itself."""
    return modules.render(groups(load_profiles([ROOT / folder])), "markdown", depth=int(depth))


def layers_of(folder: str) -> str:
    """The layers that take most under ``folder``."""
    cases = [case for group in groups(load_profiles([ROOT / folder]), "layer") for case in group]
    return layers.render(cases, "markdown", top=10)


def kernels_of(folder: str) -> str:
    """The kernels that take most under ``folder``."""
    cases = [case for group in groups(load_profiles([ROOT / folder]), "kernel") for case in group]
    return kernels.render(cases, "markdown", top=10)


def trace_of(*words: str) -> str:
    """What a trace shows, or two of them."""
    found = trace_words.told([str(TRACES / word) if (TRACES / word).exists() else word for word in words])
    if found is None:
        raise ValueError(f"no words of inferlens trace: {words}")
    shown, notes = render(Wanted(**found, cache=False), "markdown")
    return "\n\n".join((*notes, shown))


DRAWN = {
    "table": table,
    "findings": findings_of,
    "modules": modules_of,
    "layers": layers_of,
    "kernels": kernels_of,
    "trace": trace_of,
}


def main() -> None:
    """Writes the pages and their pictures."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for match in BLOCK.finditer(page):
            folder, *picture = match["words"].split()
            if picture and match["kind"] == "table":
                records = load_records([ROOT / folder]).records
                chart = Chart(format="svg", theme="light").render(records)
                (PICTURES / picture[0]).write_text(str(chart), encoding="utf-8")
        path.write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
