"""Records on disk: ``<output>/<model>/<case>/record.json``, artefacts and the log beside it.

A folder is claimed by creating it, so two runs, also two at the same time, never share one: the second run of a case
gets ``<case>@2``. A record is written whole or not at all; a folder without one belongs to a run that was cut short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from os import PathLike
from pathlib import Path

from inferlens.errors import InferlensError
from inferlens.record.files import PACKED, read_unpacked, write_whole
from inferlens.record.record import Record, decode, encode
from inferlens.spec.case import Case

RECORD = "record.json"
LOG = "output.log"
Paths = str | PathLike[str] | Iterable[str | PathLike[str]]


class Store:
    """The folder that keeps the records of many models."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self, case: Case, model: str) -> Path:
        """A new, empty folder for one run of ``case``."""
        return claimed(self.root / safe_name(model), case.folder)

    @staticmethod
    def save(folder: Path, record: Record) -> None:
        """Writes the record into ``folder``, whole or not at all."""
        write_whole(folder / RECORD, encode(record))


def cache_in(output: Path) -> Path:
    """The folder below ``output`` of what is worth keeping between cases, whole and there."""
    return made(output.resolve() / ".cache")


def made(folder: Path, hint: str = "--output with another folder") -> Path:
    """``folder``, created if it is not there.

    Raises:
        InferlensError: if it cannot be; ``hint`` says what to do about that.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InferlensError(f"The folder {folder} cannot be written: {error.strerror}.", hint=hint) from error
    return folder


def claimed(parent: Path, name: str, hint: str = "--output with another folder") -> Path:
    """A new, empty folder in ``parent``: ``name``, or ``name@2`` and so on where there is one already.

    Raises:
        InferlensError: if it cannot be created; ``hint`` says what to do about that.
    """
    folder = made(parent, hint) / name
    for number in count(2):
        try:
            folder.mkdir()
            break
        except FileExistsError:
            folder = parent / f"{name}@{number}"
        except OSError as error:
            raise InferlensError(f"The folder {folder} cannot be written: {error.strerror}.", hint=hint) from error
    return folder


@dataclass
class Loaded:
    """Records that could be read, where each lies, and what could not be read."""

    records: list[Record] = field(default_factory=list)
    folders: dict[str, Path] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def given_paths(paths: Iterable[Paths]) -> list[Path]:
    """Paths that are given one by one, in lists, or both."""
    lists = ([each] if isinstance(each, (str, PathLike)) else each for each in paths)
    return [Path(path) for each in lists for path in each]


def load_records(*paths: Paths) -> Loaded:
    """Every record under ``paths``: record files, or folders at any height above them.

    A file that is no record is a problem in the answer. Raises InferlensError where a path or any record is missing.
    """
    loaded = Loaded()
    given = given_paths(paths)
    for file in files_under(given, RECORD, "record", "inferlens bench"):
        try:
            record = decode(read_unpacked(file))
        except (OSError, InferlensError) as error:
            loaded.problems.append(f"{file} was left out. {error}")
            continue
        if record.id not in loaded.folders:
            loaded.records.append(record)
            loaded.folders[record.id] = file.parent
    if not loaded.records:
        problems = " ".join(loaded.problems)
        raise InferlensError(
            f"There is no record in {', '.join(map(str, given))}. {problems}".strip(), hint="inferlens bench"
        )
    loaded.records.sort(key=lambda record: record.created)
    return loaded


def files_under(paths: Iterable[Path], pattern: str, noun: str, hint: str) -> Iterator[Path]:
    """Files that fit ``pattern``, plain or packed, at any depth under folders, in order; what is no folder as it is.

    Raises InferlensError if a path does not exist; ``noun`` and ``hint`` say what was expected there.
    """
    for path in paths:
        if not path.exists():
            expected = f"a folder with {noun}s, such as results/resnet18"
            raise InferlensError(f"{path} does not exist.", expected=expected, hint=hint)
        yield from sorted(each for end in PACKED for each in path.rglob(pattern + end)) if path.is_dir() else [path]


def safe_name(name: str) -> str:
    """``name`` made fit for one folder: no separators, no leading dot, never empty."""
    return re.sub(r"[^\w.=@-]+", "_", name).lstrip(".")[:100] or "model"
