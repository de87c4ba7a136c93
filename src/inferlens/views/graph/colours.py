"""What colours mean in a drawing: the fill is the time, the band at the left is the precision.

Times go from white to dark red (OrRd of C. Brewer's palettes): lightness falls all the way, so the order is seen in
grey and by people who see colours differently. Precisions differ in colour and pattern, and each node has its own in
letters.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferlens.views.chart_theme import PALETTE

HEAT = ("#FFFFFF", "#FEF0D9", "#FDD49E", "#FDBB84", "#FC8D59", "#E34A33", "#B30000")
UNTIMED = "#FFFFFF"


@dataclass(frozen=True)
class Band:
    """How a precision is shown: a colour, and the SVG of what repeats on it in a square of 6."""

    colour: str
    pattern: str


_RISING = '<path d="M-1,7L7,-1M-1,1L1,-1M5,7L7,5" stroke="#fff" stroke-width="1.6"/>'
_FALLING = '<path d="M-1,-1L7,7M5,-1L7,1M-1,5L1,7" stroke="#fff" stroke-width="1.6"/>'
_DOTS = '<circle cx="3" cy="3" r="1.5" fill="#fff"/>'
_LEVEL = '<path d="M0,3H6" stroke="#fff" stroke-width="1.6"/>'
_UPRIGHT = '<path d="M3,0V6" stroke="#fff" stroke-width="1.6"/>'
BANDS = {
    "fp32": Band(PALETTE[0], ""),
    "tf32": Band(PALETTE[0], _UPRIGHT),
    "fp64": Band(PALETTE[7], ""),
    "fp16": Band(PALETTE[2], _RISING),
    "bf16": Band(PALETTE[5], _FALLING),
    "int8": Band(PALETTE[3], _DOTS),
    "int4": Band(PALETTE[3], _UPRIGHT),
    "fp8": Band(PALETTE[1], _RISING + _FALLING),
    "fp4": Band(PALETTE[1], _UPRIGHT),
    "int": Band(PALETTE[6], _LEVEL),
    "bool": Band(PALETTE[6], _DOTS),
}


def heat(share: float | None, most: float) -> str:
    """The fill for a share of the run, from none to ``most``."""
    if share is None or most <= 0:
        return UNTIMED
    at = min(max(share / most, 0.0), 1.0) * (len(HEAT) - 1)
    index = min(int(at), len(HEAT) - 2)
    ends = (_channels(HEAT[index]), _channels(HEAT[index + 1]))
    mixed = (round(a + (b - a) * (at - index)) for a, b in zip(*ends, strict=True))
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


def inks(colour: str) -> tuple[str, str]:
    """What is written with on a fill, at first and in second place: whichever of dark and white has more contrast."""
    light = _luminance(colour)
    if light < 0.179:
        return "#FFFFFF", "#FFFFFF"
    return "#1F2328", "#3D444D" if light > 0.75 else "#1F2328"


def _luminance(colour: str) -> float:
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in _channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
