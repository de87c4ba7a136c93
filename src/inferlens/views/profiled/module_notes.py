"""Notes beneath a tree of modules: what its marks mean, what is not compared and why, what another level would show."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.profile.layers import timed_of
from inferlens.analysis.profile.modules import MOST_UNKNOWN, ModuleTable
from inferlens.units import listing, percent, ratio
from inferlens.views.columns import FASTEST
from inferlens.views.profiled.module_columns import Column, Columns

SLOWER = "▼"
SHARED = {"whole": "↑", "split": "≈"}
SAID = {
    "whole": "↑: fused with modules outside of this row; that time is in the deepest module that contains all of them.",
    "split": "≈: a layer fused from several modules, split among them by their FLOPs, equally where none of them has "
    "any: a convention, no measurement.",
    "split equally": "≈: a layer fused from several modules, split equally among them, because their FLOPs are not "
    "known: a convention, no measurement.",
}


def notes(of: Columns, table: ModuleTable) -> list[str]:
    """What the marks mean that are there, what is compared with nothing, and what another level shows."""
    return [*_legend(of.shown, table), *_not_compared(of.shown, table), *_of_layers(of), *_other_level(of)]


def _legend(shown: Sequence[Column], table: ModuleTable) -> list[str]:
    cells = [cell for row in table.rows for cell in row.cells if cell]
    marks = []
    if any(cell.fastest for cell in cells):
        marks.append(f"{FASTEST}: faster than in every other column.")
    if any(cell.slower and not cell.fastest for cell in cells):
        marks.append(f"{SLOWER}: slower than with {shown[0].case.name}.")
    legend = [" ".join(marks)] if marks else []
    if any(cell.shared for cell in cells):
        legend.append(SAID["split equally" if table.rule == "split" and not table.by_flops else table.rule])
    if any(row.folded for row in table.rows):
        folded = sum(row.folded for row in table.rows)
        legend.append(f"+N: modules below it; --depth {table.depth + 1} unfolds more of {folded:,}.")
    return legend


def _not_compared(shown: Sequence[Column], table: ModuleTable) -> list[str]:
    wrong = [one.case.name for one in shown if not one.case.right]
    said = [f"The outputs of {name} are wrong." for name in wrong]
    if len(shown) < 2:
        return said
    costly = {one.case.name: one.account.cost for one in shown if one.distorted}
    if costly:
        times = listing([f"{name} ({ratio(cost)})" for name, cost in costly.items()])
        said.append(f"Not compared with others, because profiling made calls that much longer: {times}.")
    out = [one.case.name for one, marked in zip(shown, table.marked, strict=True) if not marked]
    few = [name for name in out if name not in wrong and name not in costly]
    if few:
        said.append(f"Not compared with others: {', '.join(few)} ({_why(shown)}).")
    return said


def _why(shown: Sequence[Column]) -> str:
    if len({timed_of(one.case.profile) for one in shown}) > 1:
        return "some columns are times of the host, some of the GPU"
    if len({one.of_kernels for one in shown}) > 1:
        return "some columns are times of layers, some of kernels"
    parts = "kernels" if shown[0].of_kernels else "layers"
    return f"more than {percent(MOST_UNKNOWN)} is in {parts} of no known module"


def _of_layers(of: Columns) -> list[str]:
    """Columns of kernels that are from a profile of layers."""
    summed = [one.case.name for one in of.shown if one.of_kernels and one.case.profile.level == "layer"]
    return [f"From the profile of layers, whose kernels CUPTI timed: {', '.join(summed)}."] if summed else []


def _other_level(of: Columns) -> list[str]:
    """Which columns the other level has, and of kernels why it was not chosen."""
    if of.level == "kernel":
        return [f"--level layer shows the layers of {listing(of.by_layers)}."] if of.by_layers else []
    kernels = [one.case.name for one in of.shown if one.of_kernels]
    able = [name for name in of.by_kernels if name not in kernels]
    if not able:
        return []
    said = f"--level kernel shows the kernels of {listing(able)}"
    none = [name for name in of.by_layers if name not in of.by_kernels]
    untraced = [name for name in able if not of.by_kernels[name]]
    said += f"; of {listing(none)} there are none" if none else ""
    said += f"; those of {listing(untraced)} are not traced to modules" if untraced else ""
    return [f"{said}."]
