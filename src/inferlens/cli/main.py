"""The program: it runs a command, and ends with a code and a message that a user can act on.

Typer takes as long to import as a large trace does to read. ``argparse`` reads the words of ``trace``, with the same
declared options; typer reads them only if they are wrong, to say so.
"""

from __future__ import annotations

import codecs
import errno
import os
import shlex
import signal
import sys
import unicodedata
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

from inferlens.errors import InferlensError

# As wide as the characters that they replace, so that tables stay straight; only ± needs more.
PLAIN = dict(zip("─━╸╺–—…·×µ→█▉▊▋▌▐▍▎▏‘’“”", "------~*xu>######|||''\"\"", strict=True)) | {"±": "+/-"}
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def main() -> None:
    """Run a command; an error that a user can act on is one message and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    codecs.register_error("inferlens.plain", _plain_text)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="inferlens.plain")  # an encoding may lack characters of tables
    try:
        if sys.argv[1:2] == ["trace"]:
            from inferlens.cli.options import fast_words
            from inferlens.cli.trace import trace

            if words := fast_words("trace", "path", sys.argv[2:]):
                return trace(**words)
        from inferlens.cli.commands import run

        sys.exit(run())
    except InferlensError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except UnicodeEncodeError as error:
        text = ascii(error.object[max(error.start - 20, 0) : error.end + 20])
        hint = "LC_ALL=C.UTF-8 before the command, or another name"
        _fail(InferlensError(f"A path or name holds bytes that are no text in this locale: {text}.", hint=hint))
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _fail(InferlensError(f"{where}{error.strerror}.", hint="free space, or a folder that you may read and write"))


def _fail(error: InferlensError) -> NoReturn:
    sys.stderr.write(f"Error: {error.what}\n")
    if error.expected:
        sys.stderr.write(f"  Expected: {error.expected}\n")
    if error.hint:
        sys.stderr.write(f"  Try: {_complete_command(error.hint)}\n")
    sys.exit(2)


def _complete_command(hint: str) -> str:
    """Return the whole command with the inputs of a hint, if the hint consists of inputs only."""
    try:
        words = shlex.split(hint)
    except ValueError:
        return hint
    inputs_only = {*words[::2]} <= {"--input", "--dim"} and not len(words) % 2
    return f"{shlex.join(['inferlens', *sys.argv[1:]])} {hint}" if inputs_only else hint


def _plain_text(error: UnicodeError) -> tuple[str, int]:
    """Return plain characters in place of those that an encoding lacks, and where to continue."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    ascii_text = (unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode() or "?" for char in characters)
    return "".join(PLAIN.get(char, text) for char, text in zip(characters, ascii_text, strict=True)), error.end


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
