"""Standard output and error of a terminal, a locale or a pipe that is not UTF-8: plain characters instead of others.

Files are always UTF-8.
"""

from __future__ import annotations

import codecs
import sys
import unicodedata

# As wide as what they stand for, so that tables stay straight; but for the sign that nothing else says.
PLAIN = {
    **dict.fromkeys("─━═╌╴╶╸╺–—−", "-"), **dict.fromkeys("│┃║", "|"), **dict.fromkeys("█■▉▊▋▌▐▇", "#"),
    **dict.fromkeys("▏▎▍", "|"), **dict.fromkeys("▁▂", "_"), **dict.fromkeys("▃▄", "-"), **dict.fromkeys("▅▆", "="),
    **dict.fromkeys("‘’", "'"), **dict.fromkeys("“”", '"'),
    "·": "-", "•": "*", "×": "x", "µ": "u", "…": "~", "→": ">", "←": "<", "±": "+/-",
}  # fmt: skip
ERRORS = "inferlens.plain"


def use_plain_characters() -> None:
    """Have both streams write what their encoding has, and plain characters in place of what it lacks."""
    codecs.register_error(ERRORS, _encoded)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors=ERRORS)


def _encoded(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(char: str) -> str:
    if "\u2500" <= char <= "\u28ff":  # lines and corners of boxes, and the dots of what turns while something goes on
        return PLAIN.get(char, "+" if char <= "\u257f" else "*")
    letter = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()  # without its accent
    return PLAIN.get(char) or letter or "?"
