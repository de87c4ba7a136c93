"""Files written whole, read plain or packed, told apart by their content; and JSON that names its schema."""

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

from inferlens.errors import InferlensError

PACKED = ("", ".gz", ".xz")  # what may stand behind the name of a file that is read by read_unpacked
Form = TypeVar("Form")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that it has either its old content or all of the new, also after a crash."""
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


def read_unpacked(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in ``.gz`` or ``.xz``.

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
    """The file of that name, or with the ending of a packed one behind it; the plain name where there is none."""
    every = (path.with_name(path.name + end) for end in PACKED)
    return next((file for file in every if file.is_file()), path)


def files_under(folder: Path, pattern: str) -> list[Path]:
    """What lies at any depth under a name that fits ``pattern``, plain or packed, in order."""
    fit = [pattern + end for end in PACKED]
    walked = ((where, name) for where, folders, names in os.walk(folder) for name in (*folders, *names))
    return sorted(Path(where, name) for where, name in walked if any(fnmatchcase(name, item) for item in fit))


def locked(descriptor: int) -> bool:
    """Whether what is open is this process's alone now, until it is closed; also where the system knows no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


@contextmanager
def exclusive(path: Path) -> Iterator[IO[str]]:
    """Open a file to read and append, once no other process has it open so."""
    with open(path, "a+", encoding="utf-8") as file:
        with suppress(ImportError, OSError):  # where the system knows no locks
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        file.seek(0)
        yield file


def sha256(*parts: Path | bytes) -> str:
    """Hash of files or their content, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") if isinstance(part, Path) else io.BytesIO(part) as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


class _Tag(Struct):
    schema: str = ""


def decoded(data: bytes, form: type[Form], schema: str, noun: str) -> Form:
    """``data`` as ``form``; ``noun`` names it in errors.

    Raises InferlensError if the data has another schema, or is no such JSON.
    """
    try:
        found = msgspec.json.decode(data, type=_Tag).schema
        if found != schema:
            raise InferlensError(
                f"The {noun} has schema '{found}'.", expected=schema, hint="a version of inferlens that knows it"
            )
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InferlensError(f"This is not a {noun}: {error}.", expected=f"JSON with schema {schema}") from error
