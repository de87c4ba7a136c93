"""Where the commands print: tables and data to standard output, notes to standard error."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from inferlens.errors import InferlensError, check_choice, one_of, unwritable
from inferlens.views.table import FORMATS, SCREEN, Document, Table, columns_of, render

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from inferlens.record.record import Record, Warning
    from inferlens.record.store import LoadedProfiles, Log
    from inferlens.views import View
    from inferlens.views.report.blocks import Report


PROMPTS = 2  # lines of a terminal for the command itself and the next one
ENDINGS = {".md": "markdown", ".csv": "csv", ".json": "json", ".html": "html", ".pdf": "pdf", ".txt": "table"}
PAGES = ("html", "pdf", "markdown")  # of a whole report
_busy: list[Console] = []  # those with a status on them


def errors() -> Console:
    """The console for progress and notes; the one that is busy, where one is: another would write into its line."""
    from rich.console import Console

    return _busy[-1] if _busy else Console(file=sys.stderr, highlight=False, emoji=False)


def note(text: str) -> None:
    """One remark beside what was asked for."""
    from rich.markup import escape

    errors().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


def notes(texts: Iterable[str]) -> None:
    """Some remarks."""
    for each in texts:
        note(each)


def warnings(found: Iterable[Warning]) -> None:
    """What must be known of something that was made, a remark each."""
    notes(warning.sentence for warning in found)


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal that something is under way; gives what to tell the name of each step to."""
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
    """The view of that name, or ``None`` if it is a format of every table, told before hours of measuring.

    Raises InferlensError if there is no such format, view or column, or it draws pictures.
    """
    from inferlens.views import VIEWS
    from inferlens.views.records import COLUMNS, check_columns

    if columns == "help":
        text(columns_of([Table("", "", COLUMNS, [])]))
        raise typer.Exit
    check_columns(columns)
    if format in FORMATS:
        return None
    check_choice("format", format, (*FORMATS, *VIEWS.names()))
    if not VIEWS.get(format).printable:
        raise InferlensError(f"The view '{format}' draws pictures.", hint="inferlens show RESULTS --plot FILE.svg")
    return VIEWS.get(format)


def show(
    records: Sequence[Record],
    format: str,
    reference: str | None,
    *,
    where: str | Sequence[str] = "",
    top: int | None = None,
    every_run: bool = False,
    into: str = "",
    **how: Any,
) -> None:
    """Shows records in a format of every table, or by a view of that name; ``how`` is as of :func:`document`.

    ``where``, ``top``, ``every_run`` and ``into`` are as of :func:`inferlens.views.records.document`.
    """
    from inferlens.views.records import document as of_records

    if view := check(format):
        drawn = view(reference=reference).render(records)
        if not how.get("output"):
            text(drawn.decode() if isinstance(drawn, bytes) else drawn)
        if output := how.get("output") or how.get("file"):
            save(output, drawn)
    else:
        shown = of_records(records, reference, where=where, top=top, every_run=every_run, into=into)
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
    """Prints a document to standard output, made for this terminal; or writes it to the file ``output``.

    ``file`` is one to write it to as well, the others are as the commands have them. Raises InferlensError if a file's
    ending is none of :data:`ENDINGS` and no format is given, or it cannot be written.
    """
    from inferlens.views.renderers.terminal import barred

    def drawn(format: str, terminal: Mapping[str, Any]) -> str:
        width = terminal.get("width", SCREEN.width)
        document, only = (barred(shown, width, columns), None) if bars else (shown, columns)
        return render(document, format, **terminal, wide=wide, columns=only)

    if output is None:
        text(drawn(format, terminal()))
    if target := output or file:
        ending = format_of(format if output else "table", target)
        save(target, drawn("html" if ending == "pdf" else ending, {}), ending)


def format_of(format: str, output: Path | None, more: Mapping[str, str] | None = None) -> str:
    """The format that is asked for, or that the ending of the file says; told before anything is read or measured.

    Raises InferlensError if the ending is none of :data:`ENDINGS` or ``more`` and no format is given, or no file can be
    there, or Chromium is not where it prints.
    """
    if output is None:
        return format
    if output.is_dir() or not output.parent.is_dir():
        raise InferlensError(
            f"-o {output} is not a file that can be written.", expected="a file in a folder that is there"
        )
    if format != "table":
        return format
    known = ENDINGS | dict(more or {})
    if not output.suffix:
        hint = "--output FOLDER, where a command that measures keeps its records"
        raise InferlensError(f"-o is for a file, and {output} has no ending.", expected=one_of([*known]), hint=hint)
    check_choice("file ending", output.suffix.lower(), known)
    found = known[output.suffix.lower()]
    if found == "pdf":
        from inferlens.views.renderers import pdf

        pdf.browser()
    return found


def terminal() -> dict[str, Any]:
    """How large what is printed may be, and whether in colours, as :func:`inferlens.views.table.render` takes it."""
    shows = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
    colors = shows and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")
    width, lines = shutil.get_terminal_size((80 if shows else SCREEN.width, 0))
    return {"width": width, "lines": max(lines - PROMPTS, SCREEN.lines), "color": colors}


def profiles(paths: Sequence[Path], format: str = "table", more: str = "") -> LoadedProfiles:
    """The profiles under ``paths``, to be shown in that format; what could not be read is a remark.

    ``more``: what else to try where there are none.

    Raises InferlensError if there are none, or no such format.
    """
    from inferlens.record.store import PROFILES_HINT, load_profiles

    check_choice("format", format, FORMATS)
    loaded = load_profiles(paths, hint=PROFILES_HINT + more)
    notes(loaded.problems)
    return loaded


def write(output: Path, drawn: str | bytes, option: str = "--output") -> None:
    """Writes a file whole or not at all; an :class:`InferlensError` if it cannot be written there."""
    from inferlens.record.files import write_whole

    try:
        write_whole(output, drawn.encode() if isinstance(drawn, str) else drawn)
    except OSError as error:
        raise unwritable(output, error, f"{option} with another file") from error


def report(made: Report, output: Path, format: str) -> None:
    """Writes a page; of Markdown its pictures too, into a folder beside it."""
    from inferlens.views.renderers import html, markdown

    pictures = output.with_suffix("").name + "-pictures"
    drawn, files = markdown.render_report(made, pictures) if format == "markdown" else (html.render_report(made), {})
    for name, data in files.items():
        (output.parent / pictures).mkdir(exist_ok=True)
        write(output.parent / pictures / name, data)
    save(output, drawn, format)


def save(output: Path, drawn: str | bytes, format: str = "", option: str = "--output") -> None:
    """Writes what was asked for, and says so, also of a file that it replaces; what is to be a PDF comes as a page."""
    if format == "pdf" and isinstance(drawn, str):
        from inferlens.views.renderers import pdf

        drawn = pdf.printed(drawn, output.parent)
    replaces = output.exists()
    write(output, drawn, option)
    note(f"{'Replaced' if replaces else 'Wrote'} {output}.")


def log(found: Log, output: Path | None = None) -> None:
    """Prints what a case's process wrote, or writes it to a file; what it is, and where all of it is, is a remark."""
    note(f"{found.record.case.label}: {found.record.status}. {found.record.reason}".rstrip())
    if found.cut:
        note(
            f"The last lines; all of them are in {found.path}." if found.path else "The last lines, as the record has."
        )
    if output is not None:
        save(output, f"{found.text}\n")
    elif found.text:
        text(found.text)
    else:
        note("It printed nothing.")


def text(drawn: str) -> None:
    """Prints what was drawn to standard output."""
    sys.stdout.write(drawn if drawn.endswith("\n") else drawn + "\n")
    sys.stdout.flush()
