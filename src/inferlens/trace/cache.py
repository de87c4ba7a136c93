"""What was read of a large trace, kept beside it as Parquet, so that the next look is instant; never a stale one.

It counts only while the trace's size, inode and times of change are those of when it was read, and a trace that was
changed in the last two seconds is not kept: clocks of file systems are coarse. A file that is not what it should be is
as good as none. Without polars, or where nothing can be written, there is no cache, and no word about it.
"""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferlens.errors import InferlensError
from inferlens.trace.forms import About
from inferlens.trace.reading import read
from inferlens.trace.trace import Allocations, Calls, GpuEvents, Scopes, Thread, Trace

SUFFIX = ".inferlens.parquet"
VERSION = 1
# Below that, reading takes no longer than polars takes to be imported.
LEAST_SECONDS = 1.0
_SETTLED = 2.0
_TABLES = {"gpu": GpuEvents, "calls": Calls, "scopes": Scopes, "allocations": Allocations}
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
    """One row with a list for each column; what memory has no room for is not kept."""
    if trace.room.full:
        return
    try:
        import polars
    except ImportError:
        return
    threads = [(thread.pid, thread.tid, thread.name) for thread in trace.threads]
    about = msgspec.json.encode(_Kept(VERSION, stamp, threads, trace.notes, trace.about))
    columns: dict[str, Any] = {"kept": [about], "strings": [list(trace.strings)], "texts": [list(trace.texts)]}
    arrays = {name: getattr(trace, name) for name in _MAIN}
    for table, form in _TABLES.items():
        arrays |= {f"{table}.{each.name}": getattr(getattr(trace, table), each.name) for each in fields(form)}
    columns |= {name: polars.Series([polars.Series(array.ravel())]) for name, array in arrays.items()}
    try:
        import io

        from inferlens.record.files import write_whole

        made = io.BytesIO()
        polars.DataFrame(columns).write_parquet(made, compression="zstd", compression_level=1)
        write_whole(file, made.getvalue())
    except (OSError, InferlensError):
        return


def _loaded(file: Path, stamp: _Stamp) -> Trace | None:
    if not file.is_file():
        return None
    try:
        import polars

        row = polars.read_parquet(file, memory_map=False)
        kept = msgspec.json.decode(row["kept"][0], type=_Kept)
        if kept.version != VERSION or kept.stamp != stamp:
            return None
        return _made(row, kept)
    except Exception:  # whatever a file that is damaged, or was made by somebody else, makes its library raise
        return None


def _made(row: Any, kept: _Kept) -> Trace:
    """The trace of a row.

    Raises:
        ValueError: if the columns do not fit together.
    """

    def array(name: str, form: Any) -> Any:
        found = row[name][0].to_numpy().astype(form, copy=False)
        return found.reshape(-1, 3) if name.rpartition(".")[2] in _WIDE else found

    tables: dict[str, Any] = {}
    for table, form in _TABLES.items():
        types = {each.name: _FORMS.get(str(each.type), np.int64) for each in fields(form)}
        tables[table] = form(**{name: array(f"{table}.{name}", types[name]) for name in types})
    main = {
        "name": array("name", np.int32), "category": array("category", np.int8), "thread": array("thread", np.int32),
        "begin": array("begin", np.int64), "duration": array("duration", np.int64),
    }  # fmt: skip
    trace = Trace(
        strings=tuple(row["strings"][0].to_list()),
        texts=tuple(row["texts"][0].to_list()),
        threads=tuple(Thread(*each) for each in kept.threads),
        about=kept.about,
        notes=kept.notes,
        **main,
        **tables,
    )
    _check(trace)
    return trace


_FORMS = {"Codes": np.int32, "Floats": np.float64}


def _check(trace: Trace) -> None:
    """Refuses columns of different lengths, and places that lead nowhere."""
    count = len(trace.name)
    lengths = {len(getattr(trace, name)) for name in _MAIN}
    scopes = trace.scopes
    places = [(trace.name, len(trace.strings)), (trace.thread, len(trace.threads))]
    places += [(codes, len(trace.texts)) for codes in (scopes.shapes, scopes.types, scopes.stack)]
    places += [(trace.allocations.thread, len(trace.threads))]
    for table, form in _TABLES.items():
        columns = [getattr(getattr(trace, table), each.name) for each in fields(form)]
        lengths |= {count} if len({len(column) for column in columns}) == 1 else {-1}
        if table != "allocations":
            places.append((columns[0], count))
    if lengths != {count} or any(len(codes) and not 0 <= codes.min() <= codes.max() < most for codes, most in places):
        raise ValueError("its columns do not fit together")
