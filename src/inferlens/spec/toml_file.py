"""Files of words: TOML, as a person writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError


def toml_words(path: Path, what: str) -> dict[str, Any]:
    """What a TOML file says; ``what`` it is, for the InferlensError if it cannot be read or is no TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InferlensError(f"The {what} {path} cannot be read: {error}.", expected="a TOML file") from error
