"""What runs in TensorRT and what in PyTorch, as records kept it: strips of segments, and how much is in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from inferlens.analysis.runs import latest
from inferlens.record.partition import Partition, partition_in
from inferlens.units import plural
from inferlens.views import partition
from inferlens.views.partition import Answer
from inferlens.views.picture import PALETTE
from inferlens.views.plain import plain
from inferlens.views.report.blocks import Block, Picture, Section
from inferlens.views.report.boxes import Box, svg
from inferlens.views.report.found import Found

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
