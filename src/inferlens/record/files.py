"""Atomic writing of files, reading of plain or packed files, and JSON that names its schema."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, unwritable

PACKED = ("", ".gz", ".xz")  # what may stand behind the name of a file that is read by read_unpacked
Form = TypeVar("Form")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: also after a crash it has its old content or all of the new."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def make_folder(folder: Path, hint: str = "--output with another folder") -> Path:
    """Create ``folder`` if it does not exist, and return it. Raises InferlensError with the ``hint`` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"The folder {folder}", error, hint) from error
    return folder


def read_unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz`` or ``.xz``.

    Raises:
        InferlensError: if it is damaged.
        OSError: if it cannot be read.
    """
    data = path.read_bytes()
    try:
        if path.suffix == ".xz":
            return lzma.decompress(data)
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InferlensError(f"It cannot be unpacked: {error}.") from error


def plain_or_packed(path: Path) -> Path:
    """Return the file of that name, or the packed one; the plain name where there is none."""
    every = (path.with_name(path.name + end) for end in PACKED)
    return next((file for file in every if file.is_file()), path)


def files_under(folder: Path, pattern: str) -> list[Path]:
    """Return all paths below a folder whose names fit ``pattern``, plain or packed, in order."""
    fit = [pattern + end for end in PACKED]
    walked = ((where, name) for where, folders, names in os.walk(folder) for name in (*folders, *names))
    return sorted(Path(where, name) for where, name in walked if any(fnmatchcase(name, item) for item in fit))


def try_lock(descriptor: int) -> bool:
    """Return whether this process has the lock now, until it is closed; true where the system has no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


@contextmanager
def open_locked(path: Path) -> Iterator[IO[str]]:
    """Open a file to read and append, once no other process has it open so."""
    with open(path, "a+", encoding="utf-8") as file:
        with suppress(ImportError, OSError):  # where the system knows no locks
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        file.seek(0)
        yield file


def sha256(*parts: Path | bytes) -> str:
    """Return the hash of files or their content, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") if isinstance(part, Path) else io.BytesIO(part) as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


class _Tag(Struct):
    schema: str = ""


def decode_json(data: bytes, form: type[Form], schema: str, noun: str) -> Form:
    """Return ``data`` as ``form``. Raises InferlensError, which names it as ``noun``, for another schema or no JSON."""
    try:
        actual = msgspec.json.decode(data, type=_Tag).schema
        if actual != schema:
            raise InferlensError(
                f"The {noun} has schema '{actual}'.", expected=schema, hint="a version of inferlens that knows it"
            )
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InferlensError(f"This is not a {noun}: {error}.", expected=f"JSON with schema {schema}") from error
