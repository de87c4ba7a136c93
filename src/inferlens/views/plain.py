"""Text from anywhere, made safe to show."""

from __future__ import annotations

import unicodedata


def plain(text: str) -> str:
    """``text`` on one line, without characters that steer a terminal or turn the direction of writing."""
    if not text.isprintable():
        text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join(text.split())
