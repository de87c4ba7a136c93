"""What was read of a large trace, kept beside it as Parquet, so that the next look is instant; never a stale one.

It counts only while the trace's size, inode and times of change are those of when it was read, and a trace that was
changed in the last two seconds is not kept: clocks of file systems are coarse. A file that cannot be read is as good
as none. Without polars, or where nothing can be written, there is no cache, and no word about it.
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
from inferlens.trace.reading.forms import About
from inferlens.trace.reading.read import read
from inferlens.trace.trace import Allocations, Calls, GpuEvents, Scopes, Thread, Trace

SUFFIX = ".inferlens.parquet"
VERSION = 2
# Below that, reading takes no longer than polars takes to be imported.
LEAST_SECONDS = 1.0
_SETTLED = 2.0
_PARTS = {"gpu": GpuEvents, "calls": Calls, "scopes": Scopes, "allocations": Allocations}
_MAIN = ("name", "category", "thread", "begin", "duration")
_WIDE = ("grid", "block")


class _Stamp(msgspec.Struct, frozen=True):
    """What a file is known again by."""

    size: int
    inode: int
    modified: int
    changed: int


class _Kept(msgspec.Struct, frozen=True):
    """What is kept beside the columns."""

    version: int
    stamp: _Stamp
    threads: list[tuple[int | str, int | str, str]]
    notes: tuple[str, ...]
    about: About


def read_cached(path: Path) -> Trace:
    """A trace, from what is kept of it if that is up to date; else it is read, and kept if that took long.

    Raises:
        InferlensError: as :func:`inferlens.trace.read`.
    """
    stamp = _stamp(path)
    if stamp is None:
        return read(path)
    kept = _loaded(path.with_name(path.name + SUFFIX), stamp)
    if kept is not None:
        return kept
    begin = time.perf_counter()
    trace = read(path)
    took = time.perf_counter() - begin
    if took >= LEAST_SECONDS and time.time() - stamp.changed / 1e9 > _SETTLED and _stamp(path) == stamp:
        _keep(path.with_name(path.name + SUFFIX), stamp, trace)
    return trace


def _stamp(path: Path) -> _Stamp | None:
    """Of a regular file; there is none of a pipe."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not path.is_file():
        return None
    return _Stamp(found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def _keep(file: Path, stamp: _Stamp, trace: Trace) -> None:
    """One row with a list for each column."""
    try:
        import polars
    except ImportError:
        return
    from inferlens.record.files import write_whole

    threads = [(thread.pid, thread.tid, thread.name) for thread in trace.threads]
    about = msgspec.json.encode(_Kept(VERSION, stamp, threads, trace.notes, trace.about))
    columns: dict[str, Any] = {"kept": [about], "strings": [list(trace.strings)], "texts": [list(trace.texts)]}
    arrays = {name: getattr(trace, name) for name in _MAIN}
    for part, form in _PARTS.items():
        arrays |= {f"{part}.{each.name}": getattr(getattr(trace, part), each.name) for each in fields(form)}
    columns |= {name: polars.Series([polars.Series(array.ravel())]) for name, array in arrays.items()}
    made = io.BytesIO()
    polars.DataFrame(columns).write_parquet(made, compression="zstd", compression_level=1)
    with suppress(OSError, InferlensError):
        write_whole(file, made.getvalue())


def _loaded(file: Path, stamp: _Stamp) -> Trace | None:
    if not file.is_file():
        return None
    try:
        import polars

        row = polars.read_parquet(file, memory_map=False)
        kept = msgspec.json.decode(row["kept"][0], type=_Kept)
        if kept.version != VERSION or kept.stamp != stamp:
            return None
        columns = {name: row[name][0].to_numpy() for name in row.columns[1:]}
        parts: dict[str, Any] = {}
        for part, form in _PARTS.items():
            some = {each.name: columns[f"{part}.{each.name}"] for each in fields(form)}
            parts[part] = form(**{name: one.reshape(-1, 3) if name in _WIDE else one for name, one in some.items()})
        return Trace(
            strings=tuple(columns["strings"].tolist()),
            texts=tuple(columns["texts"].tolist()),
            threads=tuple(Thread(*each) for each in kept.threads),
            about=kept.about,
            notes=kept.notes,
            **{name: columns[name] for name in _MAIN},
            **parts,
        )
    except Exception:  # whatever a file that is damaged makes the library raise
        return None
