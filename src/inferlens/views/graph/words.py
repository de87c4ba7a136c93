"""Text in a drawing: how wide it is, how it is made to fit, and how it is kept from being anything but text.

No font is asked: a drawing looks the same on every machine, so widths are those of Helvetica, a little generous.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence

from inferlens.analysis.profile.modules import Path, ancestor, path_of
from inferlens.record.layer_profile import Tensor
from inferlens.units import percent
from inferlens.views.plain import plain

LONGEST = 4_000  # characters of a name that are kept at all
_NARROW = frozenset("ijlI.,:;|!'`()[]{}/\\ ftr-")
_WIDE = frozenset("mwMW@%")


def width(text: str, size: float, *, bold: bool = False) -> float:
    """About how wide a text is, in units of the drawing, at ``size``."""
    return sum(map(_em, text)) * size * (1.07 if bold else 1.0)


def fitted(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """``text``, with its middle left out if it is wider than ``room``: ends tell names apart better than beginnings."""
    if width(text, size, bold=bold) <= room:
        return text
    room -= width("…", size, bold=bold)
    head, tail = [], []
    left, right, turn = 0, len(text) - 1, True
    while left <= right:
        character = text[left] if turn else text[right]
        room -= width(character, size, bold=bold)
        if room < 0:
            break
        if turn:
            head.append(character)
            left += 1
        else:
            tail.append(character)
            right -= 1
        turn = not turn
    return f"{''.join(head)}…{''.join(reversed(tail))}"


def begun(text: str, room: float, size: float) -> str:
    """``text``, with its end left out if it is wider than ``room``."""
    if width(text, size) <= room:
        return text
    while text and width(text, size) > room - size:
        text = text[:-1]
    return f"{text.rstrip(' ,')}…"


def clean(text: str) -> str:
    """A name on one line, without what no XML may contain, and no longer than anybody reads."""
    found = plain(text[: LONGEST + 1])
    return f"{found[: LONGEST - 1]}…" if len(text) > LONGEST else found


def escaped(text: str) -> str:
    """Text as it stands in XML, in an attribute too."""
    return html.escape(clean(text))


def lines_escaped(lines: Sequence[str]) -> str:
    """Lines of a tooltip as they stand in XML."""
    return "&#10;".join(escaped(line) for line in lines if line)


def part(share: float) -> str:
    """A share of a run; one that is too small for two decimals is not none."""
    return "<0.01 %" if 0 < share < 5e-5 else percent(share)


def shape(tensor: Tensor) -> str:
    """``1x64x56x56``; a free dimension is ``?``."""
    return "x".join("?" if size < 0 else str(size) for size in tensor.shape)


def named(paths: Sequence[str], inside: Path = ()) -> str:
    """Modules seen from the one they are drawn in: ``conv1 + bn1 + relu``; what they share is said once."""
    known = [path_of(path) for path in paths]
    relative = [path[len(inside) :] for path in known if path[: len(inside)] == inside and len(path) > len(inside)]
    relative += [path for path in known if path[: len(inside)] != inside]
    if not relative:
        return ""
    top = ancestor(relative)
    parts = [path for path in relative if path != top] or [top]
    first, *others = parts
    return " + ".join([".".join(first), *(".".join(path[len(top) :]) for path in others)])


def _em(character: str) -> float:
    if character in _NARROW:
        return 0.34
    if character in _WIDE:
        return 0.88
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    return 0.72 if character.isupper() else 0.57
