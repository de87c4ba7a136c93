"""Standard output and error where an encoding is not UTF-8: plain characters for those that it lacks."""

from __future__ import annotations

import codecs
import sys
import unicodedata

# As wide as the characters that they replace, so that tables stay straight; only ± needs more.
PLAIN = dict(zip("─━═–—−│┃║█■▉▊▋▌▐▇▏▎▍▁▂▃▄▅▆·•×µ…→←‘’“”", "------|||########|||__--==-*xu~><''\"\"", strict=True))
PLAIN |= {"±": "+/-"}
ERRORS = "inferlens.plain"


def use_plain_characters() -> None:
    """Make both streams write plain characters in place of those that their encoding lacks."""
    codecs.register_error(ERRORS, _encoded)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors=ERRORS)


def _encoded(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(char: str) -> str:
    if "\u2500" <= char <= "\u28ff":  # corners of boxes, and the dots of what turns while something goes on
        return PLAIN.get(char, "+" if char <= "\u257f" else "*")
    return PLAIN.get(char) or unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode() or "?"
