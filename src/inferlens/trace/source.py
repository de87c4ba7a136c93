"""The text of a trace, block by block, out of a file, a pipe or bytes, unpacked where it is packed.

It never holds more than a few blocks, whatever a file unpacks to. What is damaged ends the text and is remarked on.
"""

from __future__ import annotations

import io
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from inferlens.errors import InferlensError
from inferlens.trace.notes import Notes
from inferlens.units import byte_count

# Small enough to stay in a processor's cache until it is decoded: 4 MiB take a third longer.
BLOCK = 2**19
# Traces pack 10 to 60 times, with many steps alike up to some 150; a bomb 1,000 times and more.
MOST_RATIO = 400
_RATIO_COUNTS_FROM = 256 * 2**20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PACKED = 2**16
_EXPECTED = "a trace that torch.profiler wrote: .json, .json.gz or .json.zst"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def blocks(source: Path | bytes, notes: Notes) -> Iterator[bytes]:
    """The text of ``source``, unpacked, in blocks of :data:`BLOCK` bytes; ``-`` is the standard input.

    Raises:
        InferlensError: if it cannot be opened, is a folder or a device, or needs a library that is not there.
    """
    with closing(_opened(source)) as file:
        start = file.peek(4)[:4]
        packed = _Counted(file)
        reader: _Readable = packed
        if start.startswith(_GZIP):
            reader = _Gzip(packed)
        elif start == _ZSTD:
            reader = _zstd(packed)
        unpacked = 0
        while data := _read(reader, notes):
            unpacked += len(data)
            yield data
            if unpacked > max(_RATIO_COUNTS_FROM, MOST_RATIO * packed.count):
                size = byte_count(unpacked)
                notes.remark(
                    f"The file unpacks to more than {MOST_RATIO} times its size; what comes after {size} was left out."
                )
                return


def _opened(source: Path | bytes) -> io.BufferedReader:
    if isinstance(source, bytes):
        return io.BufferedReader(io.BytesIO(source))
    try:
        if str(source) == "-":
            return open(sys.stdin.fileno(), "rb", closefd=False)
        mode = source.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InferlensError(f"{source} is a folder.", expected=_EXPECTED)
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise InferlensError(f"{source} is a device.", expected=_EXPECTED)
        return source.open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InferlensError(f"{source} cannot be read: {reason}.", expected=_EXPECTED) from error


class _Counted:
    """A file that counts what was read of it."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file, self.count = file, 0

    def read(self, size: int, /) -> bytes:
        data = self.file.read(size)
        self.count += len(data)
        return data


class _Gzip:
    """Unpacks gzip, several parts one after the other too, never more than is asked for.

    Python's own reader loses what it unpacked before it met damage, and stops at what follows the last part.
    """

    def __init__(self, file: _Counted) -> None:
        self.file, self.data, self.one = file, b"", zlib.decompressobj(wbits=31)

    def read(self, size: int, /) -> bytes:
        while True:
            self.data = self.data or self.file.read(_PACKED)
            if not self.data:
                if self.one.eof:
                    return b""
                raise EOFError("it ends early")
            if self.one.eof:
                self.data = self.data.lstrip(b"\0")
                if self.data and not self.data.startswith(_GZIP[:1]):
                    raise EOFError("something else follows the packed text")
                self.one = zlib.decompressobj(wbits=31) if self.data else self.one
                continue
            unpacked = self._unpacked(size)
            self.data = self.one.unused_data if self.one.eof else self.one.unconsumed_tail
            if unpacked:
                return unpacked

    def _unpacked(self, size: int) -> bytes:
        """Unpacks some of the data; where it is damaged, what comes before that, and the error at the next call."""
        before = self.one.copy()
        try:
            return self.one.decompress(self.data, size)
        except zlib.error:
            # The error took with it what had been unpacked up to there.
            found = [b""]
            try:
                for byte in self.data:
                    found.append(before.decompress(bytes([byte])))
            except zlib.error:
                self.data = b""
                self.one = before
            unpacked = b"".join(found)
            if not unpacked:
                raise
            return unpacked


def _zstd(file: Any) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise InferlensError(
            "The trace is packed with zstd, and the library that unpacks it is missing.",
            hint="pip install 'inferlens[traces]', or unpack it first: zstd -d TRACE",
        ) from error
    return zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(file, read_across_frames=True)


def _read(reader: _Readable, notes: Notes) -> bytes:
    """A block, or what is left before the end or before damage."""
    parts = []
    size = BLOCK
    try:
        while size and (part := reader.read(size)):
            parts.append(part)
            size -= len(part)
    except Exception as error:
        # The unpackers have errors of their own, by library, and an OSError comes from a disk or a pipe.
        if not isinstance(error, (OSError, EOFError, zlib.error)) and type(error).__name__ != "ZstdError":
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        notes.remark(f"The file is damaged ({reason}); what comes after that was left out.")
    return b"".join(parts)
