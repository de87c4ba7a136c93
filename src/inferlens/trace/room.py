"""Room for columns: memory as long as there is enough of it, and files beyond that.

Pages of a file leave memory when others need it and come back when they are read. So a trace whose columns are larger
than memory takes longer, and is not the end of the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from inferlens.errors import InferlensError
from inferlens.limits import memory_left

# Bytes that need no question: small traces are read in less time than the question takes.
_UNASKED = 2**25
# What is derived from columns takes several times their memory.
_SHARE = 8
_PART = 2**18


class Room:
    """Where the arrays of one trace are held.

    Args:
        most: bytes of columns that may be in memory; ``None`` for an eighth of what is available.

    Attributes:
        full: whether that was reached; what comes later is held in files.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most, self._taken = most, 0
        self.full = most == 0

    def take(self, size: int) -> None:
        """So many more bytes of columns are in memory."""
        self._taken += size
        if self._taken > _UNASKED and self._most is None:
            self._most = memory_left() // _SHARE
        self.full = self.full or (self._most is not None and self._taken > self._most)

    def kept(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself, or the same in a file if the room is full.

        Raises:
            InferlensError: if there is no room on disk either.
        """
        if not self.full:
            return array
        file = _File()
        file.add(array)
        return file.array()


class Parts:
    """Some columns that come part by part, in memory or in files, as there is room."""

    def __init__(self, room: Room, names: Sequence[str]) -> None:
        self._room, self._names = room, names
        self._parts: list[dict[str, NDArray[Any]]] = []
        self._files: dict[str, _File] = {}

    def add(self, columns: dict[str, NDArray[Any]]) -> None:
        """One more part of each.

        Raises:
            InferlensError: if there is no room on disk either.
        """
        self._parts.append(columns)
        self._room.take(sum(column.nbytes for column in columns.values()))
        if self._room.full:
            for name in self._names:
                file = self._files.setdefault(name, _File())
                for part in self._parts:
                    file.add(part[name])
            self._parts.clear()

    def joined(self) -> dict[str, NDArray[Any]]:
        """Each column in one piece; afterwards there are no parts any more."""
        if self._files:
            return {name: self._files.pop(name).array() for name in self._names}
        # One after the other, so that only one is there twice.
        return {name: np.concatenate([part.pop(name) for part in self._parts]) for name in self._names}


class _File:
    """An array on disk, in a file without a name: it is gone when nobody holds the array any more."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._form: NDArray[Any] = np.empty(0)

    def add(self, array: NDArray[Any]) -> None:
        try:
            if self._file is None:
                self._form = array[:0].copy()
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
            self._file.write(np.ascontiguousarray(array).data)
        except OSError as error:
            raise _no_room(error) from error

    def array(self) -> NDArray[Any]:
        assert self._file is not None
        try:
            self._file.flush()
        except OSError as error:
            raise _no_room(error) from error
        row = int(np.prod(self._form.shape[1:])) * self._form.itemsize
        shape = (self._file.tell() // row, *self._form.shape[1:])
        if not shape[0]:
            return self._form
        with self._file as file:
            return np.memmap(file, dtype=self._form.dtype, mode="r+", shape=shape).view(np.ndarray)


def kept(make: Callable[[Any], NDArray[Any]]) -> cached_property[NDArray[Any]]:
    """A property that is made when first asked for, and held where the object's trace has room."""

    @wraps(make)
    def made(of: Any) -> NDArray[Any]:
        room: Room = of.trace.room
        return room.kept(make(of))

    return cached_property(made)


def in_parts(places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Some at a time, so that what is made of them is never there for all."""
    return (places[low : low + _PART] for low in range(0, len(places), _PART))


def _no_room(error: OSError) -> InferlensError:
    where = tempfile.gettempdir()
    return InferlensError(
        f"The trace is larger than memory, and its columns cannot be written to {where}: {error.strerror}.",
        hint="set TMPDIR to a folder on a disk with more room",
    )
