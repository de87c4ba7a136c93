"""From a trace file, or its bytes, to a :class:`Trace`; damage is no error as long as there is a list of events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from inferlens.errors import InferlensError
from inferlens.trace.builder import TraceBuilder
from inferlens.trace.forms import Remarks
from inferlens.trace.text import EventReader, blocks
from inferlens.trace.trace import Trace


def read(source: Path | bytes) -> Trace:
    """The complete events of a trace; what was skipped or mended stands in its ``notes``.

    ``source`` is a file, plain or packed with gzip or zstd, a pipe, or ``-``; or what such a file holds. Raises
    InferlensError if it cannot be opened, is no trace, or memory has no room for it.
    """
    remarks: Remarks = Counter()
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
