"""What stands in a node: rows of text, each cut to the node's width, and the full text for its tooltip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass

from inferlens.analysis.profile.graph import Graph, Node
from inferlens.analysis.profile.modules import Path
from inferlens.record.layer_profile import Tensor
from inferlens.units import duration, plural
from inferlens.views.graph.words import begun, clean, fitted, named, part, shape, width

WIDTH = 216.0
BAND = 9.0
PAD = 8.0
TITLE, SMALL = 12.0, 10.5
ROW = 15.0
BAR = 5.0
_PARTS = 8  # rows of what a layer was fused from
_DETAILS = 12  # rows of a tooltip for what a backend tells beside


@dataclass(frozen=True)
class Box:
    """One node, ready to be drawn.

    Attributes:
        title: what it is; ``rows``: what is beneath it; ``time``: its time in words.
        parts: what it was fused from, for a region inside of the node.
        tooltip: lines with all of it, nothing cut.
    """

    node: Node
    title: str
    rows: tuple[str, ...]
    time: str
    parts: tuple[str, ...]
    tooltip: tuple[str, ...]
    width: float
    height: float


def boxes(graph: Graph, *, fused: bool) -> list[Box]:
    """The nodes of a graph; ``fused``: with what each was fused from as a region inside of it."""
    inside: dict[int, Path] = {}
    waiting = list(graph.regions)
    while waiting:  # inner regions come after those around them
        region = waiting.pop(0)
        inside.update(dict.fromkeys(region.nodes, region.path))
        waiting += region.inner
    written = {tensor.name for node in graph.nodes for tensor in node.outputs}
    return [_box(node, inside.get(index, ()), fused, written) for index, node in enumerate(graph.nodes)]


def _box(node: Node, inside: Path, fused: bool, written: Container[str]) -> Box:
    if node.role in ("input", "output"):
        return _end(node)
    folded = node.role == "folded"
    pieces = _parts(node) if fused and not folded else ()
    title = clean(_folded_name(node, inside) if folded else node.kind or node.name) or "(no name)"
    title += "" if folded else _kernel(node, written)
    rows = [_contents(node)] if folded else _rows(node, inside, pieces)
    badge = width(node.precision, 9.5, bold=True) + 14 if node.precision else 0.0
    room = WIDTH - BAND - 2 * PAD
    height = 2 * PAD + ROW * (1 + len(rows) + bool(_time(node))) + (BAR if _time(node) else 0.0) - 2
    height += len(pieces) * ROW + PAD if pieces else 0.0
    return Box(
        node=node,
        title=fitted(title, room - badge, TITLE, bold=True),
        rows=tuple((begun if folded else fitted)(row, room, SMALL) for row in rows),
        time=_time(node),
        parts=tuple(fitted(piece, room - 2 * PAD, SMALL) for piece in pieces),
        tooltip=tuple(_tooltip(node)),
        width=WIDTH,
        height=height,
    )


def _end(node: Node) -> Box:
    (tensor,) = node.outputs or node.inputs
    about = " · ".join(word for word in (shape(tensor), tensor.dtype) if word)
    text = fitted(clean(node.name) or "(no name)", WIDTH - 4 * PAD, SMALL)
    tooltip = (f"{node.role} of the model", clean(node.name), about)
    wide = min(max(width(text, SMALL) + 4 * PAD, 60.0), WIDTH)
    return Box(node, text, (), "", (), tooltip, wide, 24.0)


def _kernel(node: Node, written: Container[str]) -> str:
    """`` 3x3`` behind a convolution's kind, where its weights are told; depthwise ones are costly for what they do."""
    second = node.inputs[1] if len(node.inputs) > 1 and node.inputs[1].name not in written else Tensor()
    weights, kind = second.shape, node.kind.lower()
    if "conv" not in kind or len(weights) < 4 or min(weights) < 1:
        return ""
    depthwise = " depthwise" if weights[0] > 1 and set(weights[1:-2]) == {1} and "group" not in kind else ""
    return f" {weights[-2]}x{weights[-1]}{depthwise}"


def _rows(node: Node, inside: Path, parts: tuple[str, ...]) -> list[str]:
    """Beneath a layer's kind: what it was fused from, and the modules, or its own name where these are not known."""
    if parts:
        return [f"fused from {len(parts)}" if len(parts) < _PARTS else "fused"]
    rows = []
    if len(node.operators) > 1:
        rows.append("= " + " + ".join(map(clean, node.operators)))
    where = named([clean(path) for path in node.modules], tuple(map(clean, inside)))
    rows.append(where or clean(node.name))
    return [row for row in rows if row]


def _parts(node: Node) -> tuple[str, ...]:
    """What a layer was fused from: modules, or where these are not several, operators; none if it was not."""
    found = next((each for each in (node.modules, node.operators) if len(each) > 1), ())
    told = [clean(part) or "the model itself" for part in found]
    return tuple(told if len(told) <= _PARTS else [*told[: _PARTS - 1], f"and {len(told) - _PARTS + 1} more"])


def _folded_name(node: Node, inside: Path) -> str:
    module = node.module or ()
    return ".".join(module[len(inside) :] if module[: len(inside)] == inside else module) or "several layers"


def _contents(node: Node) -> str:
    """How many layers are folded, and which operators they do most often."""
    kinds = Counter(node.operators)
    most = ", ".join(f"{count} {clean(kind)}" for kind, count in kinds.most_common(5))
    return f"{plural(len(node.places), 'layer')}{f' from {most}' if most else ''}{', …' if len(kinds) > 5 else ''}"


def _time(node: Node) -> str:
    if node.seconds is None:
        return ""
    return duration(node.seconds) + ("" if node.share is None else f" · {part(node.share)}")


def _tooltip(node: Node) -> list[str]:
    first, last = node.places[0], node.places[-1]
    order = f"#{first}" if first == last else f"#{first} to #{last}"
    modules = [f"module: {path or '(the model itself)'}" for path in node.modules[:40]]
    modules += [f"and {plural(len(node.modules) - 40, 'more module')}"] if len(node.modules) > 40 else []
    details = [f"{key}: {value}" for key, value in list(node.details.items())[:_DETAILS]]
    return [
        clean(node.name) or "(no name)",
        " · ".join(word for word in (order, clean(node.kind), node.precision, _time(node)) if word),
        f"from: {', '.join(node.operators[:20])}" if len(node.operators) > 1 else "",
        *(modules or ["module: not known"]),
        *(f"in: {_tensor(tensor)}" for tensor in node.inputs[:8]),
        *(f"out: {_tensor(tensor)}" for tensor in node.outputs[:8]),
        *details,
    ]


def _tensor(tensor: Tensor) -> str:
    return " ".join(word for word in (shape(tensor), tensor.dtype, tensor.format, clean(tensor.name)) if word)
