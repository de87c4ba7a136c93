"""The output of commands: tables and data on standard output, notes on standard error."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inferlens.errors import InferlensError, check_choice, one_of, unwritable
from inferlens.views.renderers import render
from inferlens.views.table import FORMATS, SCREEN, Document, Table, column_names

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from inferlens.record.record import Record
    from inferlens.record.store import LoadedProfiles, Log
    from inferlens.views import View
    from inferlens.views.table import Report


PROMPTS = 2  # lines of a terminal for the command itself and the next one
ENDINGS = {".md": "markdown", ".csv": "csv", ".json": "json", ".html": "html", ".pdf": "pdf", ".txt": "table"}
PAGES = ("html", "pdf", "markdown")  # of a whole report
_busy: list[Console] = []  # consoles that show a status


def errors() -> Console:
    """Return the console for progress and notes. A console that shows a status has priority, to keep its line whole."""
    from rich.console import Console

    return _busy[-1] if _busy else Console(file=sys.stderr, highlight=False, emoji=False)


def note(text: str) -> None:
    """Print a remark."""
    from rich.markup import escape

    errors().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


def notes(texts: Iterable[str]) -> None:
    """Print remarks."""
    for text in texts:
        note(text)


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """Show ``what`` on a terminal while something runs; yield a function that shows the name of a step."""
    console = errors()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(what) as status:
        _busy.append(console)
        try:
            yield lambda step: status.update(f"{what}: {step}")
        finally:
            _busy.pop()


def check(format: str, columns: str | None = None) -> type[View] | None:
    """Return the view of that name, or ``None`` if it is a format of every table; called before hours of measuring.

    Raises InferlensError if there is no such format, view or column, or it draws pictures.
    """
    from inferlens.views import VIEWS
    from inferlens.views.records import COLUMNS, check_columns

    if columns == "help":
        text(column_names([Table("", "", COLUMNS, [])]))
        sys.exit()
    check_columns(columns)
    if format in FORMATS:
        return None
    check_choice("format", format, (*FORMATS, *VIEWS.names()))
    if not VIEWS.get(format).printable:
        raise InferlensError(f"The view '{format}' draws pictures.", hint="inferlens show RESULTS --plot FILE.svg")
    return VIEWS.get(format)


def show_records(
    records: Sequence[Record],
    format: str,
    reference: str | None,
    *,
    where: str | Sequence[str] = "",
    top: int | None = None,
    every_run: bool = False,
    folder: str = "",
    **how: Any,
) -> None:
    """Show records in a format of every table, or by a view of that name; ``how`` goes to :func:`document`.

    ``where``, ``top``, ``every_run`` and ``folder``, its ``output``, go to
    :func:`inferlens.views.records.records_document`.
    """
    from inferlens.views.records import records_document

    if view := check(format):
        drawn = view(reference=reference).render(records)
        if not how.get("output"):
            text(drawn.decode() if isinstance(drawn, bytes) else drawn)
        if output := how.get("output") or how.get("file"):
            save(output, drawn)
    else:
        shown = records_document(records, reference, where=where, top=top, all_runs=every_run, output=folder)
        document(shown, format, **how)


def document(
    shown: Document,
    format: str = "table",
    *,
    wide: bool = False,
    columns: str | None = None,
    output: Path | None = None,
    file: Path | None = None,
    bars: bool = False,
) -> None:
    """Print a document to standard output, made for this terminal; or write it to the file ``output``.

    Also write it to ``file``, if there is one. Raises InferlensError if a file cannot be written, or if its ending is
    none of :data:`ENDINGS` and no format is given.
    """
    from inferlens.views.renderers.terminal import with_bars

    def drawn(format: str, terminal: Mapping[str, Any]) -> str:
        document, only = (with_bars(shown, columns), None) if bars else (shown, columns)
        return render(document, format, **terminal, wide=wide, columns=only)

    if output is None:
        text(drawn(format, terminal()))
    if target := output or file:
        ending = format_of(format if output else "table", target)
        save(target, drawn("html" if ending == "pdf" else ending, {}), ending)


def format_of(format: str, output: Path | None, more: Mapping[str, str] | None = None) -> str:
    """Return the format, or the one of the file's ending; called before anything is read or measured.

    Raises InferlensError if the ending is none of :data:`ENDINGS` or ``more`` and no format is given, or no file can be
    there, or Chromium is not where it prints.
    """
    if output is None:
        return format
    if output.is_dir() or not output.parent.is_dir():
        problem = f"-o {output} is not a file that can be written."
        raise InferlensError(problem, expected="a file in a folder that is there")
    if format != "table":
        return format
    endings = ENDINGS | dict(more or {})
    if not output.suffix:
        hint = "--output FOLDER, where a command that measures keeps its records"
        raise InferlensError(f"-o is for a file, and {output} has no ending.", expected=one_of([*endings]), hint=hint)
    check_choice("file ending", output.suffix.lower(), endings)
    format = endings[output.suffix.lower()]
    if format == "pdf":
        from inferlens.views.renderers.html import find_browser

        find_browser()
    return format


def terminal() -> dict[str, Any]:
    """Return the size and colours of the terminal, as :func:`inferlens.views.renderers.render` takes them."""
    shows = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
    colors = shows and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")
    width, lines = shutil.get_terminal_size((80 if shows else SCREEN.width, 0))
    return {"width": width, "lines": max(lines - PROMPTS, SCREEN.lines), "color": colors}


def profiles(paths: Sequence[Path], format: str = "table", more: str = "") -> LoadedProfiles:
    """Return the profiles under ``paths``, to be shown in that format; what could not be read is a remark.

    ``more``: what else to try where there are none.

    Raises InferlensError if there are none, or no such format.
    """
    from inferlens.record.store import PROFILES_HINT, load_profiles

    check_choice("format", format, FORMATS)
    loaded = load_profiles(paths, hint=PROFILES_HINT + more)
    notes(loaded.problems)
    return loaded


def write(output: Path, drawn: str | bytes, option: str = "--output") -> None:
    """Write a file whole or not at all. Raises InferlensError if it cannot be written there."""
    from inferlens.record.files import write_whole

    try:
        write_whole(output, drawn.encode() if isinstance(drawn, str) else drawn)
    except OSError as error:
        raise unwritable(output, error, f"{option} with another file") from error


def save_report(page: Report, output: Path, format: str) -> None:
    """Write a page; of Markdown also its pictures, into a folder next to it."""
    from inferlens.views.renderers import html, render_markdown_report

    pictures = output.with_suffix("").name + "-pictures"
    drawn, files = render_markdown_report(page, pictures) if format == "markdown" else (html.render_report(page), {})
    for name, data in files.items():
        (output.parent / pictures).mkdir(exist_ok=True)
        write(output.parent / pictures / name, data)
    save(output, drawn, format)


def save(output: Path, drawn: str | bytes, format: str = "", option: str = "--output") -> None:
    """Write a file and say so, also if it replaces another one; a PDF is made from a page in HTML."""
    if format == "pdf" and isinstance(drawn, str):
        from inferlens.views.renderers.html import print_pdf

        drawn = print_pdf(drawn, output.parent)
    replaces = output.exists()
    write(output, drawn, option)
    note(f"{'Replaced' if replaces else 'Wrote'} {output}.")


def picture_format(plot: Path | None, example: str) -> str:
    """Return the format of a picture by the name of its file; svg without a file."""
    from inferlens.views.picture import check_picture

    format = plot.suffix.lower().removeprefix(".") if plot else "svg"
    check_picture(format, f"--plot {example}")
    return format


def draw(file: Path, drawing: tuple[str | bytes, Sequence[str]], option: str) -> None:
    """Write a picture or a trace, and say which cases are not in it."""
    save(file, drawing[0], option=option)
    notes(drawing[1])


def log(log: Log, output: Path | None = None) -> None:
    """Print the log of a case, or write it to a file; remarks say which case it is, and where the whole log is."""
    note(f"{log.record.case.label}: {log.record.status}. {log.record.reason}".rstrip())
    if log.cut:
        note(f"The last lines; all of them are in {log.path}." if log.path else "The last lines, as the record has.")
    if output is not None:
        save(output, f"{log.text}\n")
    elif log.text:
        text(log.text)
    else:
        note("It printed nothing.")


def text(drawn: str) -> None:
    """Print a text to standard output."""
    sys.stdout.write(drawn if drawn.endswith("\n") else drawn + "\n")
    sys.stdout.flush()
