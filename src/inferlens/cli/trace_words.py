"""The words of ``inferlens trace`` where they are plain; the others are left to the command, which says what is wrong.

Building all commands with their help takes as long as reading a trace of 100,000 events does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

_OPTIONS = {
    "--view": "view",
    "--against": "against",
    "--step": "step",
    "--by": "by",
    "--top": "top",
    "--depth": "depth",
    "--format": "format",
    "-f": "format",
}
_FLAG = "--no-cache"
_PATHS, _COUNTS = ("path", "against"), ("top", "depth")


def told(words: Sequence[str]) -> dict[str, Any] | None:
    """What the command would be called with; ``None`` if that is not certain: help, a word that it does not know."""
    found: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word == _FLAG:
            found["no_cache"] = True
        elif name in _OPTIONS and (equals or left):
            found[_OPTIONS[name]] = value if equals else left.pop(0)
        elif "path" not in found and (word == "-" or not word.startswith("-")):
            found["path"] = word
        else:
            return None
    return _typed(found) if "path" in found else None


def _typed(found: dict[str, Any]) -> dict[str, Any] | None:
    """Paths that can be read, and counts from one."""
    from pathlib import Path

    for name in _PATHS:
        if name in found:
            if not (found[name] == "-" and name == "path") and not os.access(found[name], os.R_OK):
                return None
            found[name] = Path(found[name])
    for name in _COUNTS:
        if name in found:
            digits = found[name]
            if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
                return None
            found[name] = int(digits)
    return found
