"""Files of words: TOML, as a person writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from inferlens.errors import InferlensError, paths_like


def toml_words(path: Path, what: str) -> dict[str, Any]:
    """What a TOML file says; ``what`` it is, for the InferlensError if it cannot be read or is no TOML."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        what = f"The {what} {path} does not exist."
        raise InferlensError(what, expected="a TOML file", hint=paths_like(path)) from error
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InferlensError(f"The {what} {path} cannot be read: {error}.", expected="a TOML file") from error
