"""Boxes in rows as SVG: panels beneath each other, in which a box is as wide as its share and its name stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from inferlens.views.picture import FONT, THEMES
from inferlens.views.plain import plain, without_middle

WIDTH, TALL, HEAD, GAP = 1100, 21, 26, 14  # pixels: of a panel, a row of boxes, a title, between panels
LETTER, LEAST = 6.1, 0.35  # pixels: a letter; a box that is narrower is not drawn


@dataclass(frozen=True)
class Box:
    """One box.

    Attributes:
        left: where it begins; ``wide``: how much it takes, both as shares of the panel.
        row: from the top.
        names: what may stand in it; the first for which there is room does.
        about: what the page says of it where the pointer is, with ``; `` between lines.
        colour: as in ``picture.PALETTE``.
    """

    left: float
    wide: float
    row: int
    names: Sequence[str]
    about: str
    colour: str


def svg(title: str, panels: Sequence[tuple[str, Sequence[Box]]]) -> str:
    """The panels under their names; ``title`` is for screen readers."""
    top, parts = 0.0, []
    for name, boxes in panels:
        parts.append(
            f'<text x="0" y="{top + 15:g}" font-size="13" font-weight="bold">{escape(without_middle(name, 150))}</text>'
        )
        top += HEAD
        parts += [_drawn(box, top) for box in boxes if box.wide * WIDTH >= LEAST]
        top += TALL * (1 + max((box.row for box in boxes), default=0)) + GAP
    size = f'viewBox="0 0 {WIDTH} {top - GAP:g}" width="{WIDTH}" height="{top - GAP:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" {size} '
        f'font-family="{FONT}" font-size="11"><g fill="{THEMES["light"].text}">{"".join(parts)}</g></svg>'
    )


def _drawn(box: Box, top: float) -> str:
    x, y, wide = box.left * WIDTH, top + box.row * TALL, box.wide * WIDTH
    label = next((each for each in box.names if len(each) * LETTER <= wide - 6), "")
    text = f'<text x="{x + 4:.6g}" y="{y + 14:g}" pointer-events="none">{escape(label)}</text>' if label else ""
    edge = f' stroke="{THEMES["light"].background}"' if wide > 6 else ""
    return (
        f'<rect x="{x:.6g}" y="{y:g}" width="{wide:.4g}" height="{TALL - 1}" fill="{box.colour}" fill-opacity=".38"'
        f'{edge} data-tip="{escape(plain(box.about))}"/>{text}'
    )
