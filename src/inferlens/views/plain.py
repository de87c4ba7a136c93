"""Text from anywhere, made safe to show."""

from __future__ import annotations

import shlex
import unicodedata


def plain(text: str) -> str:
    """``text`` on one line, without characters that steer a terminal or turn the direction of writing."""
    if not text.isprintable():
        text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join(text.split())


def cut(text: str, longest: int) -> str:
    """A text without its middle, if it is longer."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[: half - 1]}…{text[-half:]}"


def profile_command(model: str, backend: str, precision: str, batch: int | None) -> str:
    """The command that shows where the time of a case goes."""
    words = ["inferlens", "profile", model, "-b", backend]
    words += [] if precision == "fp32" else ["--precision", precision]
    words += [] if batch is None else ["--batch", str(batch)]
    return plain(shlex.join(words))
