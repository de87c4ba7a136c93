"""What a plan says of itself: whether it is whole, and what built it. Readable without TensorRT and without a GPU.

Layout of its first bytes, little endian: at 0 four letters that tell the flavour, at 16 the size of the whole plan (8
bytes), at 24 the version as four bytes. TensorRT's own ``trtexec --getPlanVersionOnly`` reads the letters ``ftrt`` and
the version from there; the rest was seen in plans of TensorRT for RTX 1.4 and 1.6, which say themselves that a header
has 64 bytes.
"""

from __future__ import annotations

import re
import struct
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from inferlens.errors import Unsupported
from inferlens.models.provenance import Provenance

SIZE = 64
FLAVOURS = {b"vtrt": "rtx", b"ftrt": "trt", b"ptrt": "trt"}  # ptrt: before TensorRT 8.6
TELLS_SIZE = ("rtx",)
AGAIN = "build it again here: inferlens build MODEL -o FILE"


class Header(Struct, frozen=True):
    """What a plan says of itself: the variant that built it, its version, its size in bytes (``None``: not told)."""

    variant: str
    version: str = ""
    size: int | None = None


class Library(NamedTuple):
    """A flavour's library for people, and its version."""

    name: str
    version: str


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


def start_of(plan: Path | bytes) -> tuple[bytes, int]:
    """The bytes of a header, and the size of the whole."""
    if isinstance(plan, bytes):
        return plan[:SIZE], len(plan)
    with plan.open("rb") as file:
        return file.read(SIZE), plan.stat().st_size


def whole(plan: Path | bytes, name: str) -> Header:
    """The header of ``plan``, a file or its content, which messages call ``name``.

    Plans of TensorRT do not tell their size: of those, only a file shorter than a header is known to be cut short.

    Raises:
        Unsupported: if it is no plan, or is cut short.
    """
    start, size = start_of(plan)
    header = read_header(start)
    if header is None:
        what = "is empty" if not size else f"is no TensorRT engine ({size} bytes)"
        raise Unsupported(f"{name} {what}.", expected="a plan that TensorRT built", hint=AGAIN)
    if size < SIZE or header.size not in (None, size):
        raise Unsupported(f"{name} is damaged: it has {size} of {header.size or 'more'} bytes.", hint=AGAIN)
    return header


def check_version(name: str, header: Header, made: Provenance | None, library: Library) -> None:
    """Plans belong to one version (three numbers; the fourth is the build), unless built to be compatible.

    Raises:
        Unsupported: if ``library`` cannot run the plan.
    """
    version = made.version if made is not None and made.version else header.version
    if not version or _numbers(version) == _numbers(library.version):
        return
    older = _numbers(version) < _numbers(library.version)
    if made is not None and made.options.get("version_compatible") and older:
        return
    raise Unsupported(
        f"{name} was built by {library.name} {version:.40}; {library.name} {library.version} cannot run it.", hint=AGAIN
    )


def installed(variant: str) -> Library | None:
    """The library of a variant as it is installed here, without importing it; ``None`` if it is not."""
    name, distribution = {"rtx": ("TensorRT for RTX", "tensorrt_rtx"), "trt": ("TensorRT", "tensorrt")}[variant]
    try:
        return Library(name, metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if re.fullmatch("[0-9]{1,9}", part))
