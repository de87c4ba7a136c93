"""From a trace file, or its bytes, to a :class:`Trace`."""

from __future__ import annotations

from pathlib import Path

from inferlens.errors import InferlensError
from inferlens.trace.ahead import ahead
from inferlens.trace.columns import Columns
from inferlens.trace.notes import Notes
from inferlens.trace.pieces import Pieces
from inferlens.trace.room import Room
from inferlens.trace.source import blocks
from inferlens.trace.trace import Trace


def read(source: Path | bytes, room: Room | None = None) -> Trace:
    """The complete events of a trace.

    Args:
        source: a file, plain or packed with gzip or zstd, a pipe, or ``-`` for the standard input; or what such a
            file holds.
        room: where its columns are held; by default in memory, or in files where there is not enough of it.

    Returns:
        The trace. Damage is no error as long as there is a list of events: what was skipped is told in its ``notes``.

    Raises:
        InferlensError: if it cannot be opened, or is no trace.
    """
    notes = Notes()
    columns = Columns(notes, room or Room())
    try:
        with ahead(blocks(source, notes)) as text:
            pieces = Pieces(text, notes)
            for events in pieces:
                columns.add(events)
    except InferlensError as error:
        if isinstance(source, bytes):
            raise
        raise InferlensError(f"{source}: {error.what}", expected=error.expected, hint=error.hint) from error
    return columns.trace(pieces.about)
