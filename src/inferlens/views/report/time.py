"""Where the time of profiled cases goes: findings, modules, rooflines, layers and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from inferlens.analysis.profile.graph import source_of
from inferlens.analysis.profile.graph_fold import graph_of
from inferlens.errors import InferlensError
from inferlens.views.graph import render
from inferlens.views.plain import plain
from inferlens.views.profiled import findings, icicle, layers_and_kernels, modules, plots, roofline
from inferlens.views.profiled.cases import ProfiledCase, groups, of_level
from inferlens.views.profiled.modules import LEVELS
from inferlens.views.report.blocks import Block, Picture, Section
from inferlens.views.report.found import Found
from inferlens.views.report.partitions import partitions
from inferlens.views.table import Table

MOST_CASES = 8  # of which layers, kernels and rooflines are drawn
FEW = 4  # cases of which all findings, or rooflines, that are open when the page is
MOST_ROWS = 40
MOST_GRAPH, MOST_GRAPHS = 400_000, 1_000_000  # characters of a graph, and of all of them
SOON = 20.0  # seconds in which a graph is laid out
GRAPH = "A box is a layer, or all layers of a module: the darker, the longer it takes; its left band is its precision."
LARGE = "The graph of its layers is too large for this page; 'inferlens graph' draws it into a file of its own."
DEEPEST = 100  # modules are unfolded wholly, and folded on the page


def time(found: Found) -> Iterator[Block]:
    """Findings first, then modules with a column for each case, and each case's own."""
    if found.profiles.profiles:
        yield from _profiled(found)
    yield from partitions(found)


def _profiled(found: Found) -> Iterator[Block]:
    loaded, room = found.profiles, MOST_GRAPHS
    every = findings.document(found.judged, whole=True, measured=found.rows).blocks()
    yield Section("findings", "Findings of each case", every, folded=len(found.judged) > FEW)
    grouped = groups(loaded)
    yield from _modules(grouped)
    roofs = roofline.roofed(loaded)[:MOST_CASES]
    drawn_roofs = [each for place, of in enumerate(roofs, 1) for each in plots.pictured(f"roofline-{place}", of)]
    if drawn_roofs:
        yield Section("rooflines", "Rooflines", drawn_roofs, folded=len(roofs) > FEW)
    for level in LEVELS:
        for place, case in enumerate(of_level(loaded, level)[:MOST_CASES], 1):
            if case.profile.level == level and case.profile.status == "ok":
                blocks: list[Block] = [*layers_and_kernels.document(level, [case], top=MOST_ROWS).blocks()]
                if level == "layer":
                    blocks += plots.pictured(f"layers-{place}", layers_and_kernels.shown(level, [case], "time")[0])
                    drawn = _graph(case, place, room)
                    blocks += drawn
                    room -= sum(len(each.svg()) for each in drawn if isinstance(each, Picture))
                what = " · ".join([plain(case.name), *[case.headline] * (len(grouped) > 1)])
                yield Section(f"{level}s-{place}", f"{level.capitalize()}s · {what}", blocks, folded=True)


def _modules(grouped: Sequence[Sequence[ProfiledCase]]) -> Iterator[Section]:
    """Of each model with its inputs and machine the modules, as boxes and beneath them as a tree."""
    boxes = {each.name: each for each in icicle.icicles(grouped)}
    for number, group in enumerate(grouped, 1):
        head, *tree = modules.document([group], depth=DEEPEST).blocks()
        assert isinstance(head, Table)
        drawn = [boxes[name] for name in (f"modules-{number}",) if name in boxes]
        yield Section(f"tree-{number}", f"Modules · {head.title}", [replace(head, title=""), *drawn, *tree])


def _graph(case: ProfiledCase, place: int, room: int) -> list[Block]:
    """What is executed, as a graph; or, where that is too large or cannot be laid out here, how to have it drawn."""
    source = source_of(case.profile, case.name, case.headline, case.unprofiled)
    if isinstance(source, str) or not source.layers:
        return []
    try:
        drawn = str(render([graph_of(source)], "svg", title=case.name, deadline=SOON))
    except InferlensError as error:
        return [f"The graph of its layers is not drawn: {error.what}"]
    if len(drawn) > min(MOST_GRAPH, room):
        return [LARGE]
    return [Picture(f"graph-{place}", GRAPH, lambda: drawn, white=True)]
