"""What the process of a case printed: ``output.log`` beside its record, as plain text of bounded length."""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

from inferlens.errors import InferlensError, printable
from inferlens.record.record import Record
from inferlens.record.store import LOG, Loaded

MOST_BYTES, MOST_LINES = 1 << 17, 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Log(Struct, frozen=True):
    """The end of a log.

    ``text``: its last lines, with nothing in them that steers a terminal; empty if nothing was printed.
    """

    record: Record
    text: str
    path: Path | None
    cut: bool


def log_of(loaded: Loaded, named: str) -> Log:
    """The log of the latest record of the case that fits ``named``: words of its label, model or folder.

    Of several cases that fit, one that did not run counts, if it is the only one. Raises InferlensError if none fits,
    or several do.
    """
    wanted = set(named.replace(",", " ").split())
    latest = {record.case.digest: record for record in loaded.records if wanted and wanted <= _words(loaded, record)}
    exact = [record for record in latest.values() if record.case.label == named.strip()]
    failed = [record for record in latest.values() if record.status != "ok"]
    record = next((found[0] for found in (exact, list(latest.values()), failed) if len(found) == 1), None)
    if record is None:
        known = dict.fromkeys(each.case.label for each in (latest.values() or loaded.records))
        labels = ", ".join(map(repr, list(known)[:8])) + (" ..." if len(known) > 8 else "")
        raise InferlensError(f"'{named}' fits {len(latest)} cases.", expected=f"one of {labels}")
    path = loaded.folders[record.id] / LOG
    if path.is_file():  # neither a folder nor a pipe, which would be waited for
        text, cut = _end(path)
        return Log(record, text, path, cut)
    return Log(record, _plain("\n".join(record.output_tail)), None, bool(record.output_tail))


def _words(loaded: Loaded, record: Record) -> set[str]:
    case = record.case
    names = (case.label, case.backend, case.model, case.model.rpartition(":")[2], loaded.folders[record.id].name)
    return {word for name in names for word in name.split()}


def _end(path: Path) -> tuple[str, bool]:
    """The last lines of a file, and whether there are more."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_BYTES))
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise InferlensError(f"{path} cannot be read: {error.strerror}.") from error
    lines = data.decode("utf-8", "replace").split("\n")
    cut = size > MOST_BYTES or len(lines) > MOST_LINES + 1
    return _plain("\n".join(lines[-MOST_LINES - 1 :])), cut


def _plain(text: str) -> str:
    """Without colours, what a progress bar wrote over, and all else that steers a terminal."""
    lines = _COLOURS.sub("", text).split("\n")
    return printable("\n".join(line.rstrip("\r").rpartition("\r")[2].replace("\t", "    ") for line in lines)).rstrip()
