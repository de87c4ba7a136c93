"""The command line: one small module per command; a command's docstring is its help.

Tables and data go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 nothing could be
measured, 2 bad input, 130 interrupted, 141 nobody reads the output any more. ``compare`` and ``ab`` have codes of
their own, in their help.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from inferlens.errors import InferlensError


def main() -> None:
    """Runs a command; an error a user can act on is one message and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _run(sys.argv[1:])
    except InferlensError as error:
        sys.stderr.write(f"Error: {error.what}\n")
        if error.expected:
            sys.stderr.write(f"  Expected: {error.expected}\n")
        if error.hint:
            sys.stderr.write(f"  Try: {error.hint}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _run(words: list[str]) -> None:
    if words[:1] == ["trace"]:
        from inferlens.cli import trace_shown

        if plain := trace_shown.parsed(words[1:]):
            return trace_shown.show(**plain)
    from inferlens.cli.commands import app

    return app()  # type: ignore[no-any-return]


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
