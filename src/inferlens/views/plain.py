"""Text from anywhere, made safe to show."""

from __future__ import annotations

import unicodedata

from msgspec.structs import replace

from inferlens.spec.case import CALL_MODE, Case
from inferlens.spec.plan import bench_words, command


def plain(text: str) -> str:
    """``text`` on one line, without characters that steer a terminal or turn the direction of writing."""
    if not text.isprintable():
        text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join(text.split())


def without_middle(text: str, longest: int) -> str:
    """A text without its middle, if it is longer."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[: half - 1]}…{text[-half:]}"


def without_end(text: str, longest: int) -> str:
    """A text without its end, if it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def profile_command(case: Case, *, gpu: bool) -> str:
    """What shows where a case's time goes, a command; ``gpu``: whether it runs on one there unless told not to."""
    called = {axis.name: axis.default for axis in CALL_MODE}
    words = bench_words(replace(case, **called), "cuda" if gpu else "cpu")
    return plain(command("profile", words, case.checkout))
