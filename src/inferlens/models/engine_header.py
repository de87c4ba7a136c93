"""What a TensorRT engine's file says of itself: whether it is whole, and what built it. Readable without a GPU.

In its first 64 bytes, little endian: at 0 four letters of the flavour, at 16 the whole size, at 24 the version as four
bytes. ``trtexec --getPlanVersionOnly`` reads ``ftrt`` and the version from there; the rest was seen in engines.
"""

from __future__ import annotations

import struct
from pathlib import Path

from msgspec import Struct

from inferlens.errors import Unsupported

SIZE = 64
FLAVOURS = {b"vtrt": "rtx", b"ftrt": "trt", b"ptrt": "trt"}  # ptrt: before TensorRT 8.6
AGAIN = "build it again here: inferlens build MODEL -o FILE"


class Header(Struct, frozen=True):
    """What an engine says of itself: the variant that built it, and its version, if that is told."""

    variant: str
    version: str


def whole(path: Path) -> Header:
    """The header of the engine in a file.

    Engines of TensorRT do not tell their size: of those, only a file shorter than a header is known to be cut short.
    Raises Unsupported if it is no engine, or is cut short.
    """
    with path.open("rb") as file:
        data, size = file.read(SIZE), path.stat().st_size
    variant = FLAVOURS.get(data[:4])
    if variant is None:
        what = "is empty" if not size else f"is no TensorRT engine ({size} bytes)"
        raise Unsupported(f"{path} {what}.", hint=AGAIN)
    told = struct.unpack_from("<Q", data, 16)[0] if variant == "rtx" and size >= SIZE else None
    if size < SIZE or told not in (None, size):
        raise Unsupported(f"{path} is damaged: it has {size} of {told or 'more'} bytes.", hint=AGAIN)
    version = "" if data[:4] == b"ptrt" else ".".join(str(part) for part in data[24:28])
    return Header(variant, version)
