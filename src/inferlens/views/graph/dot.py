"""Graphs in Graphviz's language: what stands in a node, what its colours mean, and what is said above the drawing.

The fill is the time, the band at the left the precision. Times go from white to dark red (OrRd of C. Brewer's
palettes): lightness falls all the way, so the order is seen in grey and by people who see colours differently. The time
is a bar too, and the precision stands in letters. Names come from files: each is cleaned and escaped where it is
written.
"""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise

from inferlens.analysis.profile.graph import Graph, Node, Region
from inferlens.analysis.profile.modules import Path, ancestor, path_of
from inferlens.record.layer_profile import Tensor
from inferlens.units import duration, percent, plural
from inferlens.views.picture import FONT, PALETTE, THEMES
from inferlens.views.plain import plain

HEAT = ("#FFFFFF", "#FEF0D9", "#FDD49E", "#FDBB84", "#FC8D59", "#E34A33", "#B30000")
BANDS = {
    "fp32": PALETTE[0], "tf32": PALETTE[10], "fp64": PALETTE[7], "fp16": PALETTE[2], "bf16": PALETTE[5],
    "int8": PALETTE[3], "int4": PALETTE[9], "fp8": PALETTE[1], "fp4": PALETTE[4], "int": PALETTE[6],
    "bool": PALETTE[11],
}  # fmt: skip
MANY = 400  # nodes, from which on less time is spent on placing each
LONGEST = 500  # characters of a name that are kept at all
TOOLTIP = 2_500  # characters: Graphviz reads no string of more than 16 KiB, and each may become six bytes
WIDTH, SCALE = 206, 220  # of a node's bar, and of the legend's scale
_STEPS, WIDE = 44, 420  # pieces of the scale; width of what stands above
_ROW, _TITLE, _NOTE = 36, 26, 110  # characters
_PARTS, _DETAILS = 8, 12  # rows of what a layer was fused from, and of what a backend tells beside
_THEME = THEMES["light"]
_LINE, _FRAME, _DARK = "#8B949E", "#57606A", "#24292F"


def dot(graph: Graph, most: float, *, fused: bool, heading: bool) -> str:
    """One graph.

    Args:
        graph: of which text is only text here, whatever is in its names.
        most: the share of a run that is the darkest fill.
        fused: whether layers show what they were fused from as a frame inside of them.
        heading: whether its title stands above it.
    """
    title = [_words(_short(graph.title, 60), 14, _THEME.text, bold=True), _words(_account(graph), 11)]
    label = f"label=<{_table([_cell(each, align='LEFT') for each in title])}>" if heading else ""
    lines = [*_opening(label), "nslimit=1 nslimit1=1 mclimit=0.3" if len(graph.nodes) > MANY else ""]
    inside: dict[int, Path] = {}
    lines += _clusters(graph.regions, "cluster", inside)
    chain = _longest_chain(graph)
    straight = {index for pair in chain for index in pair}
    written = {tensor.name for node in graph.nodes for tensor in node.outputs}
    for index, node in enumerate(graph.nodes):
        if node.role in ("input", "output"):
            (tensor,) = node.outputs or node.inputs
            name = f"{_short(node.name) or '(no name)'}  {_shape(tensor)}"
            label = f'label={_quoted(name)} shape=box style="rounded,filled" fillcolor="{_DARK}" height=0.3'
            label += ' fontcolor="#FFFFFF"'
            tip = [f"{node.role} of the model", node.name, f"{_shape(tensor)} {tensor.dtype}"]
        else:
            label, tip = f"label=<{_box(node, inside.get(index, ()), most, fused, written)}>", _tooltip(node)
        label += " group=chain" if index in straight else ""
        lines.append(f"n{index} [{label} tooltip={_quoted(*tip)}]")
    for edge in graph.edges:
        weight = " weight=100" if (edge.tail, edge.head) in chain else ""
        tip = [*map(_tensor, edge.tensors[:20]), *([] if edge.known else ["the order of execution, no tensor"])]
        style = "" if edge.known else " style=dashed"
        lines.append(f"n{edge.tail}->n{edge.head} [tooltip={_quoted(*tip)}{weight}{style}]")
    return "\n".join([*lines, "}"])


def head(graphs: Sequence[Graph], title: str, most: float) -> str:
    """Title, legend and notes as a graph of their own, to stand above the others."""
    alone = graphs[0] if len(graphs) == 1 else None
    names = dict.fromkeys([title, alone.title] if alone else [title])
    rows = [_words(_short(" · ".join(names), 60), 18, _THEME.text, bold=True)]
    about = dict.fromkeys(graph.about for graph in graphs if graph.about)
    rows += [_words(_short(words, _NOTE), 12) for words in [*about, *([_account(alone)] if alone else [])]]
    rows += [_scale(alone, most)] if most > 0 else []
    rows += _precisions(graphs)
    rows += [_words(line, 11) for note in _notes(graphs) for line in textwrap.wrap(clean(note), _NOTE)]
    label = _table([_cell(row, align="LEFT") for row in rows], cellpadding=3)
    return "\n".join([*_opening(""), f"head [class=head label=<{label}>]", "}"])


def _opening(more: str) -> Iterator[str]:
    family = FONT.replace("'", "")
    yield f'digraph {{ nodesep=0.3 ranksep=0.4 pad=0.15 fontname="{family}" labelloc=t labeljust=l {more}'
    yield f'node [shape=plain fontname="{family}" fontsize=10.5 fontcolor="{_THEME.text}"]'
    yield f'edge [arrowsize=0.6 color="{_LINE}"]'


def heat(share: float | None, most: float) -> str:
    """The fill for a share of the run, from none to ``most``."""
    at = min(max((share or 0.0) / most, 0.0), 1.0) * (len(HEAT) - 1) if most > 0 else 0.0
    index = min(int(at), len(HEAT) - 2)
    ends = zip(bytes.fromhex(HEAT[index][1:]), bytes.fromhex(HEAT[index + 1][1:]), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * (at - index)):02X}" for low, high in ends)


def ink(fill: str) -> str:
    """What is written with on a fill: white from the one on that dark letters have less contrast on."""
    red, green, blue = bytes.fromhex(fill[1:])
    return "#FFFFFF" if 0.299 * red + 0.587 * green + 0.114 * blue < 110 else _THEME.text


def clean(text: str) -> str:
    """A name on one line, without what no XML may contain, and no longer than anybody reads."""
    found = plain(text[: LONGEST + 1])
    return f"{found[: LONGEST - 1]}…" if len(text) > LONGEST else found


def named(paths: Sequence[str], inside: Path = ()) -> str:
    """Modules seen from the one they are drawn in: ``conv1 + bn1 + relu``; what they share is said once."""
    known = [path_of(path) for path in paths]
    relative = [path[len(inside) :] for path in known if path[: len(inside)] == inside and len(path) > len(inside)]
    relative += [path for path in known if path[: len(inside)] != inside]
    if not relative:
        return ""
    top = ancestor(relative)
    first, *others = [path for path in relative if path != top] or [top]
    return " + ".join([".".join(first), *(".".join(path[len(top) :]) for path in others)])


# Text


def _short(text: str, most: int = _ROW) -> str:
    """A text with its middle left out if it is too long: ends tell names apart better than beginnings."""
    told = clean(text)
    return told if len(told) <= most else f"{told[: most // 2]}…{told[-(most // 2 - 1) :]}"


def _words(text: str, size: float, colour: str = _THEME.faint, *, bold: bool = False) -> str:
    """Text of an HTML-like label; Graphviz takes no empty one."""
    said = _escaped(text) or " "
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{colour}">{f"<B>{said}</B>" if bold else said}</FONT>'


def _cell(content: str = "", **attributes: object) -> str:
    return f"<TD{_attributes(attributes)}>{content}</TD>"


def _table(rows: Sequence[str], **attributes: object) -> str:
    """A table of an HTML-like label, of rows of cells."""
    given = {"border": 0, "cellborder": 0, "cellspacing": 0, "cellpadding": 0, **attributes}
    return f"<TABLE{_attributes(given)}>{''.join(f'<TR>{row}</TR>' for row in rows)}</TABLE>"


def _attributes(given: dict[str, object]) -> str:
    return "".join(f' {name.upper()}="{value}"' for name, value in given.items())


def _blocks(blocks: Sequence[tuple[int, str]], height: int) -> str:
    """Cells of so many pixels, each of a colour; none of no width."""
    return "".join(
        _cell(fixedsize="TRUE", width=wide, height=height, bgcolor=colour) for wide, colour in blocks if wide
    )


def _quoted(*lines: str) -> str:
    """Lines as an attribute."""
    return f'"{_escaped(chr(10).join(filter(None, map(clean, lines)))[:TOOLTIP]).replace(chr(10), "&#10;")}"'


def _escaped(text: str) -> str:
    """Text as text; a backslash, which begins words of Graphviz's own, becomes a sign that looks like it."""
    return html.escape(text).replace("\\", "\N{SET MINUS}")


def _time(of: Node | Region) -> str:
    if of.seconds is None or of.share is None:
        return "" if of.seconds is None else duration(of.seconds)
    share = "<0.01 %" if 0 < of.share < 5e-5 else percent(of.share)
    return f"{duration(of.seconds)} · {share}"


def _shape(tensor: Tensor) -> str:
    """``1x64x56x56``; a free dimension is ``?``."""
    return "x".join("?" if size < 0 else str(size) for size in tensor.shape)


def _tensor(tensor: Tensor) -> str:
    return " ".join(filter(None, (_shape(tensor), tensor.dtype, tensor.format, tensor.name)))


def _account(graph: Graph) -> str:
    return plural(graph.layers, "layer") + (f" · whole run {duration(graph.whole)}" if graph.whole else "")


# One graph


def _longest_chain(graph: Graph) -> set[tuple[int, int]]:
    """The edges of the longest chain of nodes, which is to be as straight as can be."""
    longest: dict[int, list[int]] = {}
    # The model's inputs stand behind the layers, and their edges lead back: these are none of the chain.
    for edge in sorted(graph.edges, key=lambda each: each.head):
        chain = longest.get(edge.tail, [edge.tail])
        if edge.tail < edge.head and len(chain) >= len(longest.get(edge.head, ())):
            longest[edge.head] = [*chain, edge.head]
    most = max(longest.values(), key=len, default=[])
    return set(pairwise(most))


def _clusters(regions: Sequence[Region], name: str, inside: dict[int, Path], level: int = 0) -> Iterator[str]:
    """Regions as clusters; ``inside`` becomes the deepest region of each node."""
    for number, region in enumerate(regions):
        inside.update(dict.fromkeys(region.nodes, region.path))
        label = " · ".join(filter(None, (_short(region.label, 50), _time(region))))
        yield f'subgraph {name}_{number} {{ margin=10 style="rounded,filled" color="#D0D7DE"'
        yield f'fillcolor="{("#F6F8FA", "#EEF1F4")[level % 2]}" tooltip={_quoted(".".join(region.path))}'
        yield f"label=<{_words(label, 12, bold=True)}>"
        yield from _clusters(region.inner, f"{name}_{number}", inside, level + 1)
        yield " ".join(f"n{index}" for index in region.nodes if inside[index] == region.path)
        yield "}"


def _box(node: Node, inside: Path, most: float, fused: bool, written: Container[str]) -> str:
    """A layer: what it is, what it came from, its time; of folded layers, what they are, in a frame within a frame."""
    folded = node.role == "folded"
    fill = heat(node.share, most)
    colour = ink(fill)
    pieces = _parts(node) if fused and not folded else ()
    name = _short(_folded_name(node, inside) if folded else node.kind or node.name, _TITLE) + _kernel(node, written)
    badge = _words(node.precision, 10, colour, bold=True)
    lines = [_cell(_words(name or "(no name)", 12, colour, bold=True), align="LEFT") + _cell(badge, align="RIGHT")]
    told = [_words(_short(row), 10.5, colour) for row in _rows(node, inside, pieces)]
    lines += [_cell(row, align="LEFT", colspan=2) for row in told]
    if pieces:
        told = [_cell(_words(_short(piece), 10.5, _THEME.text), align="LEFT") for piece in pieces]
        frame = _table(told, border=1, cellpadding=2, style="DASHED", color=_FRAME, bgcolor="#FFFFFF")
        lines.append(_cell(frame, align="LEFT", colspan=2))
    sizes = list(dict.fromkeys(filter(None, map(_shape, node.outputs))))
    size = f"{sizes[0]} +{len(sizes) - 1}" if sizes[1:] else "".join(sizes)
    if node.seconds is not None or size:
        time, out = _words(_time(node), 11, colour), _words(_short(size), 10, colour)
        lines.append(_cell(time, align="LEFT") + _cell(out, align="RIGHT"))
    if node.seconds is not None:  # as a length too: colours alone are not for everybody
        length = round(WIDTH * min(max((node.share or 0.0) / most, 0.0), 1.0)) if most > 0 else 0
        lines.append(_cell(_table([_blocks([(length, _DARK), (WIDTH - length, "#FFFFFF")], 4)]), colspan=2))
    band = _cell(width=8, bgcolor=BANDS.get(node.precision, fill))
    row = band + _cell(_table(lines, cellpadding=2))
    box = _table([row], border=1, cellpadding=3, color=_FRAME, bgcolor=fill)
    return _table([_cell(box)], border=1, cellspacing=3, color=_FRAME, bgcolor="#FFFFFF") if folded else box


def _kernel(node: Node, written: Container[str]) -> str:
    """`` 3x3`` behind a convolution's kind, where its weights are told; depthwise ones are costly for what they do."""
    second = node.inputs[1] if len(node.inputs) > 1 and node.inputs[1].name not in written else Tensor()
    weights, kind = second.shape, node.kind.lower()
    if "conv" not in kind or len(weights) < 4 or min(weights) < 1:
        return ""
    depthwise = " depthwise" if weights[0] > 1 and set(weights[1:-2]) == {1} and "group" not in kind else ""
    return f" {weights[-2]}x{weights[-1]}{depthwise}"


def _rows(node: Node, inside: Path, pieces: Sequence[str]) -> list[str]:
    """Beneath a layer's kind: what it was fused from, and the modules, or its own name where these are not known."""
    if node.role == "folded":
        most = ", ".join(f"{count} {kind}" for kind, count in Counter(node.operators).most_common(3))
        return [f"{plural(len(node.places), 'layer')}{f' from {most}' if most else ''}"]
    if pieces:
        return [f"fused from {len(pieces)}" if len(pieces) < _PARTS else "fused"]
    fused = "= " + " + ".join(node.operators) if len(node.operators) > 1 else ""
    return [row for row in (fused, named(node.modules, inside) or node.name) if row]


def _parts(node: Node) -> tuple[str, ...]:
    """What a layer was fused from: modules, or where these are not several, operators; none if it was not."""
    found = next((each for each in (node.modules, node.operators) if len(each) > 1), ())
    told = [part or "the model itself" for part in found]
    return tuple(told if len(told) <= _PARTS else [*told[: _PARTS - 1], f"and {len(told) - _PARTS + 1} more"])


def _folded_name(node: Node, inside: Path) -> str:
    module = node.module or ()
    return ".".join(module[len(inside) :] if module[: len(inside)] == inside else module) or "several layers"


def _tooltip(node: Node) -> list[str]:
    """Everything that is known of a node, a line each, nothing cut."""
    first, last = node.places[0], node.places[-1]
    order = f"#{first}" if first == last else f"#{first} to #{last}"
    return [
        node.name or "(no name)",
        " · ".join(filter(None, (order, node.kind, node.precision, _time(node)))),
        f"from: {', '.join(node.operators[:20])}" if len(node.operators) > 1 else "",
        *(f"module: {path or '(the model itself)'}" for path in node.modules[:40]),
        *(f"in: {_tensor(tensor)}" for tensor in node.inputs[:8]),
        *(f"out: {_tensor(tensor)}" for tensor in node.outputs[:8]),
        *(f"{key}: {value}" for key, value in list(node.details.items())[:_DETAILS]),
    ]


# What stands above the drawing


def _scale(alone: Graph | None, most: float) -> str:
    """From none to the largest share of a node; in time too where there is one graph."""
    blocks = [(SCALE // _STEPS, heat(step / (_STEPS - 1), 1.0)) for step in range(_STEPS)]
    last = percent(most) + (f" ({duration(most * alone.whole)})" if alone and alone.whole else "")
    words = [_words(said, 10.5, _THEME.text) for said in ("0", f"{last}: share of a run, as fill and as bar")]
    cells = [words[0], _table([_blocks(blocks, 12)], border=1, color=_FRAME), words[1]]
    # What the others do not need goes to an empty cell: Graphviz would stretch them.
    return _table(["".join(map(_cell, cells)) + _cell(width=WIDE - SCALE)], cellspacing=4)


def _precisions(graphs: Sequence[Graph]) -> list[str]:
    """A square for each precision that is there, in the order of :data:`BANDS`, and what a dashed line is."""
    used = {node.precision for graph in graphs for node in graph.nodes}
    words = [_words("■", 15, BANDS[name]) + _words(f" {name}", 10.5, _THEME.text) for name in BANDS if name in used]
    if any(not edge.known for graph in graphs for edge in graph.edges):
        words.append(_words("- - -  order of execution alone", 10.5, _THEME.text))
    return [_words("    ", 10.5).join(words)] if words else []


def _notes(graphs: Sequence[Graph]) -> list[str]:
    """Each note once; with the names of its graphs where only some have it."""
    found: dict[str, list[str]] = {}
    for graph in graphs:
        for note in graph.notes:
            found.setdefault(note, []).append(graph.title)
    return [note if len(titles) == len(graphs) else f"{', '.join(titles)}: {note}" for note, titles in found.items()]
