"""The first bytes of a plan, which say what built it: readable without TensorRT and without a GPU.

Layout, little endian: at 0 four letters that tell the flavour, at 16 the size of the whole plan (8 bytes), at 24 the
version as four bytes. TensorRT's own ``trtexec --getPlanVersionOnly`` reads the letters ``ftrt`` and the version from
there; the rest was seen in plans of TensorRT for RTX 1.4 and 1.6, which say themselves that a header has 64 bytes.
"""

from __future__ import annotations

import struct

from msgspec import Struct

SIZE = 64
FLAVOURS = {b"vtrt": "rtx", b"ftrt": "trt", b"ptrt": "trt"}  # ptrt: before TensorRT 8.6
TELLS_SIZE = ("rtx",)


class Header(Struct, frozen=True):
    """What a plan says of itself: the variant that built it, its version, its size in bytes (``None``: not told)."""

    variant: str
    version: str = ""
    size: int | None = None


def read_header(data: bytes) -> Header | None:
    """The header at the beginning of ``data``; ``None`` if this is no plan of either flavour."""
    variant = FLAVOURS.get(data[:4])
    if variant is None:
        return None
    if len(data) < 28 or data[:4] == b"ptrt":
        return Header(variant)
    (size,) = struct.unpack_from("<Q", data, 16)
    version = ".".join(str(part) for part in data[24:28])
    return Header(variant, version, size if variant in TELLS_SIZE else None)
