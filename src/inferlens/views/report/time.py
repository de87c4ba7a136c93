"""Where the time of profiled cases goes: findings, modules, rooflines, layers and kernels."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.views.plain import plain
from inferlens.views.profiled import findings, icicle, layers_and_kernels, modules, plots, roofline
from inferlens.views.profiled.cases import groups, of_level
from inferlens.views.profiled.module_columns import LEVELS
from inferlens.views.report.blocks import Block, Section
from inferlens.views.report.found import Found

MOST_CASES = 8  # of which layers, kernels and rooflines are drawn
MOST_ROWS = 40
DEEPEST = 100  # modules are unfolded wholly, and folded on the page


def time(found: Found) -> Iterator[Block]:
    """Findings first, then modules with a column for each case, and each case's own."""
    loaded = found.profiles
    if not loaded.profiles:
        return
    yield from findings.document(found.judged, whole=True).blocks()
    grouped = groups(loaded)
    yield from icicle.icicles(grouped)
    yield from modules.document(grouped, depth=DEEPEST).blocks()
    for place, of in enumerate(roofline.roofed(loaded)[:MOST_CASES], 1):
        yield from plots.pictured(f"roofline-{place}", of)
    for level in LEVELS:
        for place, case in enumerate(of_level(loaded, level)[:MOST_CASES], 1):
            if case.profile.level == level and case.profile.status == "ok":
                blocks: list[Block] = [*layers_and_kernels.document(level, [case], top=MOST_ROWS).blocks()]
                if level == "layer":
                    blocks += plots.pictured(f"layers-{place}", layers_and_kernels.shown(level, [case], "time")[0])
                yield Section(f"{level}s-{place}", f"{level.capitalize()}s · {plain(case.name)}", blocks, folded=True)
