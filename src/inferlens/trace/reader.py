"""From a trace file, or its bytes, to a :class:`Trace`; damage is no error as long as there is a list of events.

What was read of a large trace is kept beside it, so that the next look is instant; never a stale one. It counts only
while the trace's size, inode and times of change are those of when it was read. A file that cannot be read is as good
as none, and where nothing can be written, there is none.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferlens.errors import InferlensError
from inferlens.trace.builder import TraceBuilder
from inferlens.trace.forms import Remarks
from inferlens.trace.text import EventReader, blocks
from inferlens.trace.trace import Trace

SUFFIX = ".inferlens"
VERSION = 5
LEAST_SECONDS = 1.0  # what is read in less is not kept


def read(source: Path | bytes) -> Trace:
    """The complete events of a trace; what was skipped or mended stands in its ``notes``.

    ``source`` is a file, plain or packed with gzip or zstd, a pipe, or ``-``; or what such a file holds.

    Raises:
        InferlensError: if it cannot be opened, is no trace, or memory has no room for it.
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


def read_cached(path: Path, cache: bool = True) -> Trace:
    """A trace, from what is kept of it if that is up to date; else it is read, and kept if that took long.

    Without ``cache`` nothing is kept, nor looked at.

    Raises:
        InferlensError: as :func:`inferlens.trace.read`.
    """
    if not (cache and path.is_file()):
        return read(path)
    stamp, file = (VERSION, *_stamp(path)), path.with_name(path.name + SUFFIX)
    with suppress(Exception):  # whatever a file that is not there or is damaged makes the libraries raise
        kept = zlib.decompress(file.read_bytes())
        known, trace = msgspec.msgpack.decode(kept, type=tuple[tuple[int, ...], Trace], dec_hook=_array)
        if known == stamp:
            return trace
    begin = time.perf_counter()
    trace = read(path)
    if time.perf_counter() - begin >= LEAST_SECONDS and (VERSION, *_stamp(path)) == stamp:
        from inferlens.record.files import write_whole

        with suppress(OSError):
            write_whole(file, zlib.compress(msgspec.msgpack.encode((stamp, trace), enc_hook=_parts), 1))
    return trace


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return (found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def _parts(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()


def _array(_: type, parts: Any) -> Any:
    kind, shape, data = parts
    return np.frombuffer(data, kind).reshape(shape)
