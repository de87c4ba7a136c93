"""Colours and type of the charts: readable on white paper, on a dark page, and by people who see colours differently.

The palette is that of M. Okabe and K. Ito, "Color Universal Design" (2008), its yellow and black replaced, since they
vanish on white and on dark, and four more, which are no nearer to any other than two of the eight are to each other for
people who see no red or no green. A chart paints its own background, so a light one stays readable inside a dark page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9",
    "#8C8C8C", "#A07D00", "#7B4FE0", "#A8245F", "#4FC4B0", "#5F6A1E",
)  # fmt: skip
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours of everything that is not data."""

    background: str
    text: str
    faint: str
    grid: str


THEMES = {
    "light": Theme(background="#FFFFFF", text="#1F2328", faint="#59636E", grid="#E4E7EB"),
    "dark": Theme(background="#161B22", text="#E6EDF3", faint="#9DA7B3", grid="#2D333B"),
}


def config(theme: Theme) -> dict[str, Any]:
    """Vega-Lite configuration for ``theme``."""
    axis = {
        "labelColor": theme.text,
        "titleColor": theme.faint,
        "gridColor": theme.grid,
        "domainColor": theme.grid,
        "tickColor": theme.grid,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 400,
        "labelFlush": False,
        "titlePadding": 8,
    }
    title = {"color": theme.text, "fontSize": 13, "fontWeight": "bold", "anchor": "start", "offset": 8}
    return {
        "background": theme.background,
        "padding": 20,
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "title": {**title, "subtitleColor": theme.faint, "subtitleFontSize": 12, "subtitlePadding": 6},
        "legend": {"labelColor": theme.text, "labelFontSize": 12, "labelLimit": 700, "symbolSize": 90},
        "text": {"color": theme.text, "fontSize": 12},
        "rule": {"color": theme.text},
        "tick": {"color": theme.text},
        "concat": {"spacing": 28},
    }


def colours_of(count: int) -> list[str]:
    """Colours of ``count`` series, from the first again after the last."""
    return [PALETTE[index % len(PALETTE)] for index in range(count)]


def shapes_of(count: int) -> list[str]:
    """Shapes of ``count`` series: those that share a colour have different ones."""
    return [SHAPES[(index + index // len(PALETTE)) % len(SHAPES)] for index in range(count)]
