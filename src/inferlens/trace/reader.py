"""From a trace file, or its bytes, to a :class:`Trace`; damage is no error as long as there is a list of events.

What was read of a large trace is kept beside it as Parquet, so that the next look is instant; never a stale one. It
counts only while the trace's size, inode and times of change are those of when it was read. A file that cannot be read
is as good as none, and without polars, or where nothing can be written, there is none.
"""

from __future__ import annotations

import io
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from inferlens.errors import InferlensError
from inferlens.trace.builder import TraceBuilder
from inferlens.trace.forms import About, Remarks
from inferlens.trace.text import EventReader, blocks
from inferlens.trace.trace import Allocations, Calls, GpuEvents, Scopes, Thread, Trace

SUFFIX = ".inferlens.parquet"
VERSION = 3
LEAST_SECONDS = 1.0  # below that, reading takes no longer than polars takes to be imported
PARTS = {"gpu": GpuEvents, "calls": Calls, "scopes": Scopes, "allocations": Allocations}
MAIN = ("name", "category", "thread", "begin", "duration")


class _Kept(msgspec.Struct, frozen=True):
    """What is kept beside the columns; ``stamp`` is size, inode and times of change of the trace."""

    version: int
    stamp: tuple[int, ...]
    strings: tuple[str, ...]
    texts: tuple[str, ...]
    threads: tuple[Thread, ...]
    about: About
    notes: tuple[str, ...]


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


def read_cached(path: Path) -> Trace:
    """A trace, from what is kept of it if that is up to date; else it is read, and kept if that took long.

    Raises:
        InferlensError: as :func:`inferlens.trace.read`.
    """
    if not path.is_file():
        return read(path)
    stamp, file = _stamp(path), path.with_name(path.name + SUFFIX)
    kept = _loaded(file, stamp) if file.is_file() else None
    if kept is not None:
        return kept
    begin = time.perf_counter()
    trace = read(path)
    if time.perf_counter() - begin >= LEAST_SECONDS and _stamp(path) == stamp:
        with suppress(OSError, ImportError):
            _keep(file, stamp, trace)
    return trace


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return (found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def _keep(file: Path, stamp: tuple[int, ...], trace: Trace) -> None:
    """One row with a list for each column."""
    import polars

    from inferlens.record.files import write_whole

    beside = (tuple(trace.strings), tuple(trace.texts), tuple(trace.threads), trace.about, trace.notes)
    arrays = {name: getattr(trace, name) for name in MAIN}
    arrays |= {f"{part}.{name}": each for part in PARTS for name, each in vars(getattr(trace, part)).items()}
    columns: dict[str, Any] = {"kept": [msgspec.json.encode(_Kept(VERSION, stamp, *beside))]}
    columns |= {name: polars.Series([polars.Series(array.ravel())]) for name, array in arrays.items()}
    made = io.BytesIO()
    polars.DataFrame(columns).write_parquet(made, compression="zstd", compression_level=1)
    write_whole(file, made.getvalue())


def _loaded(file: Path, stamp: tuple[int, ...]) -> Trace | None:
    try:
        import polars

        row = polars.read_parquet(file, memory_map=False)
        kept = msgspec.json.decode(row["kept"][0], type=_Kept)
        if kept.version != VERSION or kept.stamp != stamp:
            return None
        columns = {name: row[name][0].to_numpy() for name in row.columns[1:]}
        columns |= {name: columns[name].reshape(-1, 3) for name in ("gpu.grid", "gpu.block")}
        parts: dict[str, Any] = {
            part: form(**{each.name: columns[f"{part}.{each.name}"] for each in fields(form)})
            for part, form in PARTS.items()
        }
        main = {name: columns[name] for name in MAIN}
        return Trace(kept.strings, kept.texts, kept.threads, **main, **parts, about=kept.about, notes=kept.notes)
    except Exception:  # whatever a file that is damaged makes the library raise
        return None
