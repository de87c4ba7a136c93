"""Where the time of profiled cases goes: findings, modules, rooflines, layers and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from inferlens.analysis.profile.graph import source_of
from inferlens.analysis.profile.graph_fold import graph_of
from inferlens.analysis.runs import latest
from inferlens.errors import InferlensError
from inferlens.record.partition import Partition, partition_in
from inferlens.units import plural
from inferlens.views import partition
from inferlens.views.graph import render
from inferlens.views.partition import Answer
from inferlens.views.picture import PALETTE
from inferlens.views.plain import plain
from inferlens.views.profiled import findings, layers_and_kernels, modules, plots, roofline
from inferlens.views.profiled.cases import ProfiledCase, groups, of_level
from inferlens.views.profiled.modules import LEVELS
from inferlens.views.report.blocks import Block, Picture, Section
from inferlens.views.report.boxes import Box, svg
from inferlens.views.report.found import Found
from inferlens.views.table import Table

# What runs in TensorRT and what in PyTorch, as records kept it: strips of segments, and how much is in each.

HOW = (
    "Boxes are as wide as their shares of the operators, equally wide where these are not known, in the order of the "
    "graph: blue runs in TensorRT, orange in PyTorch."
)
COLOURS = {"TensorRT": PALETTE[0], "PyTorch": PALETTE[1]}
MOST = 10  # ways of a model


def partitions(found: Found) -> Iterator[Section]:
    """The partitions of each model; those of other batch sizes or precisions that are the same are left out."""
    models: dict[str, dict[tuple[str, str, bytes], Answer]] = {}
    for run in latest(found.records):
        case, part = run.first.case, partition_in(run.first.facts)
        if part:
            known = models.setdefault(case.model, {})
            known.setdefault((case.backend_label, case.options_label, msgspec.json.encode(part)), Answer(case, part))
    for number, (model, every) in enumerate(models.items(), 1):
        answers = list(every.values())[:MOST]
        blocks = list[Block](partition.blocks(answers, wide=False, defaults={}))[:-1]  # the last is a command
        if any(len(part.segments) > 1 for part in _parts(answers)):
            panels = [(name, _boxes(part)) for name, part in zip(_names(answers), _parts(answers), strict=True)]
            drawn = partial(svg, "what runs in TensorRT and what in PyTorch", panels)
            blocks.insert(1, Picture(f"partition-{number}", HOW, drawn, _values(panels)))
        title = f"Torch-TensorRT's partition · {plain(model)}"
        yield Section(f"partitions-{number}", title, blocks, folded=bool(found.profiles.profiles))


def _parts(answers: Sequence[Answer]) -> list[Partition]:
    return [each.result for each in answers if isinstance(each.result, Partition)]


def _names(answers: Sequence[Answer]) -> list[str]:
    shared, labels = partition.told_apart([each.case for each in answers])
    return labels if len(answers) > 1 else [" ".join(shared)]


def _boxes(part: Partition) -> list[Box]:
    """A box for each segment; where the front end does not tell what is in one, all are as wide."""
    sizes = [len(each.operators) for each in part.segments]
    told = all(sizes)
    whole = sum(sizes) if told else len(sizes)
    boxes: list[Box] = []
    left, engines = 0.0, 0
    for segment, size in zip(part.segments, sizes, strict=True):
        engines += segment.runs_in == "TensorRT"
        name = f"engine {engines}" if segment.runs_in == "TensorRT" else "PyTorch"
        many = plural(size, "operator") if size else "operators not known"
        modules = list(dict.fromkeys(each.module for each in segment.operators if each.module))
        where = f"{modules[0]} to {modules[-1]}" if len(modules) > 1 else "".join(modules)
        about = "; ".join(filter(None, (name, many, where)))
        wide = (size if told else 1) / whole
        boxes.append(Box(left, wide, 0, (f"{name} · {many}", name, str(engines)), about, COLOURS[segment.runs_in]))
        left += wide
    return boxes


def _values(panels: Sequence[tuple[str, Sequence[Box]]]) -> list[dict[str, object]]:
    return [
        {"case": name, "segment": number, "what": plain(box.about), "share": round(box.wide, 6)}
        for name, boxes in panels
        for number, box in enumerate(boxes, 1)
    ]


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
    boxes = {each.name: each for each in plots.icicles(grouped)}
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
