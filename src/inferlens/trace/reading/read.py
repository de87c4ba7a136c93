"""From a trace file, or its bytes, to a :class:`Trace`; damage is no error as long as there is a list of events."""

from __future__ import annotations

from pathlib import Path

from inferlens.errors import InferlensError
from inferlens.trace.reading.builder import TraceBuilder
from inferlens.trace.reading.events import EventReader
from inferlens.trace.reading.forms import Remarks
from inferlens.trace.reading.source import blocks
from inferlens.trace.trace import Trace


def read(source: Path | bytes) -> Trace:
    """The complete events of a trace.

    Args:
        source: a file, plain or packed with gzip or zstd, a pipe, or ``-`` for the standard input; or what such a
            file holds.

    Returns:
        The trace; what was skipped or mended stands in its ``notes``.

    Raises:
        InferlensError: if it cannot be opened, is no trace, or memory has no room for it.
    """
    remarks = Remarks()
    builder = TraceBuilder(remarks)
    try:
        reader = EventReader(blocks(source, remarks), remarks)
        for events in reader:
            builder.add(events)
    except InferlensError as error:
        if isinstance(source, bytes):
            raise
        raise InferlensError(f"{source}: {error.what}", expected=error.expected, hint=error.hint) from error
    return builder.trace(reader.about)
