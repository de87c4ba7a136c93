"""Text from anywhere, made safe to show."""

from __future__ import annotations

import unicodedata

from msgspec.structs import replace

from inferlens.spec.case import AXES, CALL_MODE, Case
from inferlens.spec.plan import bench_words, command_line


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


def words_of(case: Case, *unsaid: str) -> list[str]:
    """Backend, what else is said of a case but for the axes ``unsaid``, and its options; none of them empty."""
    said = (word for axis in AXES if axis.name not in unsaid for word in axis.words(case))
    return [word for word in (case.backend_label, *said, case.options_label) if word]


def profile_command(case: Case, *, gpu: bool) -> str:
    """What shows where a case's time goes, a command; ``gpu``: whether it runs on one there unless told not to."""
    if case.model.startswith("live:"):  # which no command finds
        return f'inferlens.profile(model, example_inputs, backend="{case.backend_label}")'
    called = {axis.name: axis.default for axis in CALL_MODE}
    words = bench_words(replace(case, **called), "cuda" if gpu else "cpu")
    return plain(command_line("profile", case, words))
