"""The command line: a module for each family of commands; a command's docstring is its help.

Tables and data go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 nothing could be
measured, 2 bad input, 130 interrupted, 141 nobody reads the output any more. ``compare`` and ``ab`` have codes of
their own, in their help.

Typer, which imports pydantic, takes as long as reading a large trace does. ``argparse`` reads the words of ``trace``,
with the same declared options; typer reads them only if they are wrong, to say so.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from inferlens.cli.streams import use_plain_characters
from inferlens.errors import InferlensError, MissingLibrary

OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
MOST_NOTES = 2  # remarks on how a trace was read


def main() -> None:
    """Run a command; an error that a user can act on is one message and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    use_plain_characters()
    try:
        if sys.argv[1:2] == ["trace"]:
            from inferlens.cli.options import fast_words

            if words := fast_words("trace", "path", sys.argv[2:]):
                return show_trace(**words)
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
        sys.stderr.write(f"  Try: {_command(error.hint)}\n")
    sys.exit(2)


def _command(hint: str) -> str:
    """Return a hint; one that is only inputs to add is the whole command with these."""
    try:
        words = shlex.split(hint)
    except ValueError:
        return hint
    complete = {*words[::2]} <= {"--input", "--dim"} and not len(words) % 2
    return f"{shlex.join(['inferlens', *sys.argv[1:]])} {hint}" if complete else hint


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def show_trace(
    path: Path,
    *,
    format: str = "table",
    wide: bool = False,
    columns: str | None = None,
    output: Path | None = None,
    plot: Path | None = None,
    **words: Any,
) -> None:
    """Print a trace, or draw its steps; the words are those of the command."""
    if plot:
        from inferlens.cli.profile import trace_chart

        return trace_chart(path, plot, words.get("step"))
    if "numpy" not in sys.modules:  # nothing here uses the threads of its linear algebra, and starting them takes long
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from inferlens.cli import screen
    from inferlens.views.trace_documents import trace_document

    try:
        format = screen.format_of(format, output)
        if not columns and _usual(words) and _paged(path, words.get("against"), output, format):
            return None
        shown, notes = trace_document(path, "html" if format == "pdf" else format, wide=wide, **words)
        screen.notes(notes[:MOST_NOTES])
        if len(notes) > MOST_NOTES:
            screen.note(f"({len(notes) - MOST_NOTES} more: --format json)")
        screen.document(shown, format, wide=wide, columns=columns, output=output)
    except MemoryError as error:
        hint = "a limit that is less tight (ulimit -d, ulimit -v), or fewer steps in a trace"
        raise InferlensError(f"There is not enough memory for {path}.", hint=hint) from error


def _usual(words: dict[str, Any]) -> bool:
    """Return whether a trace, or its difference to another one, is shown as on the page of a report."""
    usual = {"view": "overview", "by": "name", "against": words.get("against")}
    return all(value == usual.get(name) for name, value in words.items())


def _paged(path: Path, base: Path | None, output: Path | None, format: str) -> bool:
    """Write the page of a report, if the traces can be read more than once, and charts can be drawn here."""
    if output is None or format not in ("html", "pdf"):
        return False
    from inferlens.cli import screen
    from inferlens.trace.several import traces_under
    from inferlens.views.picture import converter
    from inferlens.views.report import ReportInputs, report

    try:
        converter()
    except MissingLibrary:
        return False
    paths = [base, path] if base else [path]
    if not all(path.exists() for path in paths):
        return False
    traces = [list(traces_under(path)) for path in paths]
    inputs = ReportInputs(traces=[file for files in traces for file in files])
    if not any(trace.overview for trace in inputs.loaded_traces) or (base and [*map(len, traces)] != [1, 1]):
        return False  # reading it again gives the reason
    screen.report(report(inputs), output, format)
    return True
