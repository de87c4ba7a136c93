"""Fills the tables of what an H200 measured, and draws their plots, from what is stored: ``python docs/tables.py``.

A table stands between ``<!-- table FOLDER [PICTURE] -->`` and ``<!-- end -->``: what ``inferlens show FOLDER --format
markdown`` prints; the picture is what ``inferlens plot FOLDER`` draws. Instead of ``table`` it may say ``findings``,
``modules``, ``layers`` or ``kernels``: what those commands print, the most telling rows alone. ``against FOLDER CASE
...`` puts side by side what ``inferlens show FOLDER --reference CASE`` tells. ``attributed FOLDER`` says how much of
the kernels' time is traced to modules. ``trace WORDS`` is what ``inferlens trace`` prints of these words, paths being
relative to the folder of traces. ``loops FILE`` is what ``python -m benchmarks.engine_loop`` kept. No number
is typed in.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from inferlens import load_records
from inferlens.analysis.profile.kernels import KernelTable, kernel_table
from inferlens.analysis.profile.modules import ModuleTable
from inferlens.cli.commands import app
from inferlens.record.profile_store import load_profiles
from inferlens.stats.intervals import ends, median_interval
from inferlens.units import change, change_range, listing, milliseconds, percent, rate, ratio, ratio_range, significant
from inferlens.views.chart import Chart
from inferlens.views.columns import headline, outcome
from inferlens.views.profiled import findings, kernels, layers, markdown, modules
from inferlens.views.profiled.cases import groups
from inferlens.views.profiled.grid import Grid, Heading, Line
from inferlens.views.profiled.module_columns import columns
from inferlens.views.records import document
from inferlens.views.rows import rows
from inferlens.views.table import render
from inferlens.views.verdict import verdict

ROOT = Path(__file__).parent.parent
PAGES = tuple(ROOT / "docs" / name for name in ("h200.md", "h200-traces.md", "how-it-measures.md"))
TRACES = ROOT / "examples" / "h200" / "traces"
PICTURES = ROOT / "docs" / "pictures"
KINDS = "table|against|findings|modules|attributed|layers|kernels|trace|loops"
BLOCK = re.compile(rf"(<!-- (?P<kind>{KINDS}) (?P<words>[^\n]+) -->\n).*?(?P<end><!-- end -->)", re.S)


def filled(page: str) -> str:
    """``page`` with every table made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{drawn(match['kind'], match['words'])}\n{match['end']}", page)


def drawn(kind: str, words: str) -> str:
    """What stands in one block."""
    return DRAWN[kind](*shlex.split(words))


def table(folder: str, _picture: str = "") -> str:
    """The records under ``folder``, which is relative to the repository, as Markdown."""
    return render(document(load_records([ROOT / folder]).records), "markdown")


def against(folder: str, *references: str) -> str:
    """Times, rate and the speed-up against each reference of the records under ``folder``, the fastest first."""
    records = load_records([ROOT / folder]).records
    compared = [rows(records, reference) for reference in references]
    outcomes = [{row.id: outcome(row) for row in each} for each in compared]
    lines = []
    for row in sorted(compared[0], key=lambda row: row.pace or math.inf):
        times = milliseconds(row.mean), milliseconds(row.median), rate(row.iterations_per_second)
        lines.append(Line.of(row.name, (*times, *(each[row.id] for each in outcomes))))
    titles = "mean (ms)", "median (ms)", "iterations (per s)", *(f"against {reference}" for reference in references)
    headings = tuple(map(Heading, titles))
    sure = next(each for each in verdict(compared[0]) if each.startswith("Medians"))
    return markdown.render(
        [Grid(headline(compared[0]), "", "backend", headings, tuple(lines), (f"Speed-ups are of medians. {sure}",))]
    )


def findings_of(folder: str) -> str:
    """The findings of the profiles under ``folder``."""
    return findings.render(findings.judged(load_profiles([ROOT / folder])), "markdown", top=5)


def modules_of(folder: str, depth: str = "1") -> str:
    """The modules of the profiles under ``folder``, of the level that ``inferlens modules`` takes by itself."""
    return modules.render(groups(load_profiles([ROOT / folder])), "markdown", depth=int(depth))


def attributed_of(folder: str) -> str:
    """How much of the kernels' time is traced to modules in each profile under ``folder``, and what profiling cost."""
    lines, least, off = dict[tuple[str, int], list[Line]](), dict[str, float](), 0.0
    for group in groups(load_profiles([ROOT / folder]), "kernel"):
        tree = modules.tree(columns(group, "kernel", None), "whole", None, None)
        for place, one in enumerate(tree.columns.shown):
            found, profile = kernel_table(one.case.profile, one.case.unprofiled, "launch"), one.case.profile
            if not isinstance(found, KernelTable) or tree.table is None:
                raise ValueError(f"no kernels: {profile.case.label}")
            account, label = found.account, profile.case.backend_label
            off = max(off, abs(sum_of_modules(tree.table, place) - 1))
            least[label] = min(least.get(label, 1.0), account.attributed)
            texts = (str(profile.case.batch), one.case.name, milliseconds(account.kernels.typical),
                     percent(account.attributed), significant(modules_of_a_kernel(found)),
                     ratio(account.cost), ratio_range(account.cost_low, account.cost_high))  # fmt: skip
            of_the_case = profile.model.name, profile.case.batch or 0
            lines.setdefault(of_the_case, []).append(Line.of(profile.model.name, texts))
    titles = ("all kernels (ms)", "attributed", "modules of a kernel", "profiled call", "interval (95 %)")
    table = Grid(
        headline="The kernels' time that is traced to modules",
        about="",
        first="model",
        headings=(Heading("batch"), Heading("backend", numeric=False), *map(Heading, titles)),
        lines=tuple(itertools.chain(*lines.values())),
        notes=("modules of a kernel: how many it came from, on average over the time that is attributed.",
               "profiled call: how many times as long as an untouched one."),
        sentences=(
            f"Least attributed: {listing([f'{percent(share)} with {label}' for label, share in least.items()])}.",
            f"What modules took, and what is of none, differs from the time of all kernels by at most {percent(off)}.",
        ),
    )  # fmt: skip
    return markdown.render([table])


def sum_of_modules(table: ModuleTable, place: int) -> float:
    """What the rows of a column that have none below them add up to, as a share of its whole."""
    after = [row.depth for row in table.rows[1:]] + [0]
    cells = [row.cells[place] for row, depth in zip(table.rows, after, strict=True) if depth <= row.depth]
    return sum(cell.times.share for cell in cells if cell and cell.times and cell.times.share is not None)


def modules_of_a_kernel(table: KernelTable) -> float:
    """The mean, over the time that is attributed; ``table`` is by launch."""
    known = [(len(row.modules), row.times.typical) for row in table.rows if row.modules and row.times]
    return sum(count * time for count, time in known) / sum(time for _, time in known)


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
    paths = [str(TRACES / word) if (TRACES / word).exists() else word for word in words]
    return CliRunner().invoke(app, ["trace", *paths, "--format", "markdown", "--no-cache"]).stdout


def loops(file: str) -> str:
    """What ``python -m benchmarks.engine_loop`` found, of the file it kept."""
    kept = msgspec.json.decode((ROOT / file).read_bytes())
    lines = []
    for one in kept["rounds"]:
        apart = [ours / bare - 1 for bare, ours in zip(one["bare"], one["ours"], strict=True)]
        times = [significant(statistics.median(one[loop]) * 1e6, 4) for loop in ("bare", "ours")]
        told = change(statistics.median(apart)), change_range(*ends(median_interval(apart)))
        lines.append(Line.of(one["model"].split(":")[-1], (one["precision"], str(one["batch"]), *times, *told)))
    titles = ("batch", "bare loop (µs)", "inferlens (µs)", "difference", "interval (95 %)")
    headings = (Heading("precision", numeric=False), *map(Heading, titles))
    return markdown.render([Grid(kept["title"], "", "model", headings=headings, lines=tuple(lines))])


DRAWN: dict[str, Callable[..., str]] = {
    "table": table,
    "against": against,
    "findings": findings_of,
    "modules": modules_of,
    "attributed": attributed_of,
    "layers": layers_of,
    "kernels": kernels_of,
    "trace": trace_of,
    "loops": loops,
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
