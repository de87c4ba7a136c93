"""The text of a trace, block by block, out of a file, a pipe or bytes, unpacked where it is packed.

It never holds more than a few blocks, whatever a file unpacks to. What is damaged ends the text and is remarked on.
"""

from __future__ import annotations

import gzip
import io
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError
from inferlens.trace.reading.forms import Remarks
from inferlens.units import byte_count

# Small enough to stay in a processor's cache until it is decoded: 4 MiB take a third longer.
BLOCK = 2**19
# Traces pack 10 to 60 times, with many steps alike up to some 150; a bomb 1,000 times and more.
MOST_RATIO = 400
_RATIO_COUNTS_FROM = 256 * 2**20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_EXPECTED = "a trace that torch.profiler wrote: .json, .json.gz or .json.zst"


def blocks(source: Path | bytes, remarks: Remarks) -> Iterator[bytes]:
    """The text of ``source``, unpacked, in blocks of :data:`BLOCK` bytes; ``-`` is the standard input.

    Raises:
        InferlensError: if it cannot be opened, is a folder or a device, or needs a library that is not there.
    """
    with closing(_opened(source)) as file:
        start = file.peek(4)[:4]
        packed = _Counted(file)
        read = _unpacking(packed, start)
        unpacked, damaged = 0, False
        while not damaged:
            parts, left = [], BLOCK
            try:
                while left and (part := read(left)):
                    parts.append(part)
                    left -= len(part)
            except Exception as error:
                # The unpackers have errors of their own, by library, and an OSError comes from a disk or a pipe.
                if not isinstance(error, (OSError, EOFError, zlib.error)) and type(error).__name__ != "ZstdError":
                    raise
                damaged = True
                remarks.remark(f"The file is damaged ({error}); what comes after that was left out.")
            if not parts:
                return
            yield b"".join(parts)
            unpacked += BLOCK - left
            if unpacked > max(_RATIO_COUNTS_FROM, MOST_RATIO * packed.count):
                remarks.remark(
                    f"The file unpacks to more than {MOST_RATIO} times its size; "
                    f"what comes after {byte_count(unpacked)} was left out."
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


def _unpacking(file: Any, start: bytes) -> Callable[[int], bytes]:
    """What reads the text of a file; never more than is asked for, and what comes before damage is not lost."""
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file, mode="rb").read1
    if start != _ZSTD:
        read: Callable[[int], bytes] = file.read
        return read
    try:
        import zstandard
    except ImportError as error:
        raise InferlensError(
            "The trace is packed with zstd, and the library that unpacks it is missing.",
            hint="pip install 'inferlens[traces]', or unpack it first: zstd -d TRACE",
        ) from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=2**27)
    return unpacker.stream_reader(file, read_across_frames=True).read1
