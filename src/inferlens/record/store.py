"""Records on disk: ``<output>/<model>/<case>/record.json``, with artefacts and the log in the same folder.

A folder is claimed by creating it, so two runs, also two at the same time, never share one: the second run of a case
gets ``<case>@2``. A record is written whole or not at all. A folder without a record belongs to a run that was cut
short. In the folder of the model a tuning keeps its rounds in ``<output>/<model>/tuning`` and the winner in
``<output>/<model>/best``.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, paths_like, printable, unwritable
from inferlens.record.builds import QUANTIZATIONS, read_quantization
from inferlens.record.display import Displayed
from inferlens.record.files import (
    PACKED,
    FileType,
    files_under,
    make_folder,
    plain_or_packed,
    read_unpacked,
    refuse_other_files,
    write_whole,
)
from inferlens.record.profile import Profile, decode_profile, encode_profile
from inferlens.record.record import Record, decode, encode, machine_name
from inferlens.spec.case import Case, short_name
from inferlens.units import listing, plural

RECORD = "record.json"
PROFILE = "profile-"  # prefix of the files that a profile leaves in a record's folder
TUNING, BEST = "tuning", "best"  # folders of a tuning: its rounds, and the winner
TRIALS = "trials.jsonl"
LOG = "output.log"
Paths = str | PathLike[str] | Iterable[str | PathLike[str]]
T = TypeVar("T")


class Store:
    """The folder that keeps the records of many models."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self, case: Case, model: str) -> Path:
        """Create and return a new, empty folder for one run of ``case``."""
        return claim_folder(self.root / safe_name(model), case.folder)

    @staticmethod
    def save(folder: Path, record: Record) -> None:
        """Write the record into ``folder``, whole or not at all. Raises InferlensError if that fails."""
        try:
            write_whole(folder / RECORD, encode(record))
        except OSError as error:
            raise unwritable(folder / RECORD, error, "free space, or --output with another folder") from error


def cache_in(output: Path) -> Path:
    """Create and return the folder below ``output`` of files that are shared between cases."""
    return make_folder(output.resolve() / ".cache")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder and lock it for this process. Raises InferlensError if another process has it."""
    import fcntl  # not on Windows, where results can be viewed

    descriptor = os.open(make_folder(folder), os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            expected = "one run at a time, because two disturb each other"
            hint = "wait for it, or --output with another folder"
            raise InferlensError(f"Another run measures into {folder}.", expected=expected, hint=hint) from error
        except OSError:
            pass  # of a file system without locks
        yield
    finally:
        os.close(descriptor)


def claim_folder(parent: Path, name: str, hint: str = "--output with another folder") -> Path:
    """Create and return a folder in ``parent``: ``name``, or ``name@2`` and so on where it exists.

    Raises as :func:`make_folder`.
    """
    make_folder(parent, hint)
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}@{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(f"The folder {folder}", error, hint) from error
        break
    return folder


@dataclass
class LoadedRecords:
    """Records that could be read, their folders, and the problems of the files that could not."""

    records: list[Record]
    folders: dict[str, Path]
    problems: list[str]


def as_paths(paths: Iterable[Paths]) -> list[Path]:
    """Return a list of paths, which are given one by one, in lists, or both."""
    lists = ([path] if isinstance(path, (str, PathLike)) else path for path in paths)
    return [Path(path) for group in lists for path in group]


def load_records(*paths: Paths, profiled: bool = False) -> LoadedRecords:
    """Return every record under ``paths``: record files, or folders at any height above them.

    A profile leaves a record that was measured only once, to compare the profile with. If the same model was
    benchmarked, such records are left out unless ``profiled``, because they would replace cases that were compared in
    rounds. A file that is no record is a problem in the answer.

    Raises InferlensError where a path or any record is missing.
    """
    problems: list[str] = []
    loaded = read_all(as_paths(paths), RECORD, read_record, problems, noun="record", hint="inferlens bench")
    records: dict[str, Record] = {}
    folders: dict[str, Path] = {}
    for file, record in loaded.items():
        records.setdefault(record.id, record)
        folders.setdefault(record.id, file.parent)
    if not profiled:
        from_profiles = {name for name in records if any(folders[name].glob(f"{PROFILE}*"))}
        benched = {record.case.model for name, record in records.items() if name not in from_profiles}
        for name in from_profiles:
            if records[name].case.model in benched:
                del records[name], folders[name]
    return LoadedRecords(sorted(records.values(), key=lambda record: record.created), folders, problems)


def read_record(file: Path) -> Record:
    """Return the record in a file.

    Raises:
        InferlensError: if there is none, or it is damaged.
        OSError: if it cannot be read.
    """
    return decode(read_unpacked(file))


def read_all(
    paths: list[Path], pattern: str, read: Callable[[Path], T], problems: list[str], *, noun: str, hint: str
) -> dict[Path, T]:
    """Return the content of the files under ``paths`` whose names fit.

    ``problems`` gets a sentence for every file that cannot be read. Raises InferlensError if a path does not exist or
    nothing can be read; ``noun`` and ``hint`` are for its message.
    """
    files = _expand(paths, pattern, noun, hint)
    contents = {file: content for file in files if (content := read_one(file, read, problems)) is not None}
    if not contents:
        expected = {"record": FileType.RECORD, "profile": FileType.PROFILE}.get(noun, FileType.OWN)
        refuse_other_files(paths, [expected], noun)
        what = f"There is no {noun} in {', '.join(map(str, paths))}. {' '.join(problems)}"
        raise InferlensError(what.strip(), hint=hint)
    return contents


def read_one(file: Path, read: Callable[[Path], T], problems: list[str]) -> T | None:
    """Return the content of a file. If it cannot be read, return ``None`` and add a problem."""
    try:
        return read(file)
    except (OSError, InferlensError) as error:
        problems.append(f"{file} was left out. {error}")
    return None


def _expand(paths: Iterable[Path], pattern: str, noun: str, hint: str) -> Iterator[Path]:
    """Yield the files under folders that fit, plain or packed, in order. Yield other paths as they are."""
    for path in paths:
        if not path.exists():
            expected = f"a folder with {noun}s, such as results/resnet18"
            hint = paths_like(path, folders=True) or hint
            raise InferlensError(f"{path} does not exist.", expected=expected, hint=hint)
        files = files_under(path, pattern) if path.is_dir() else [path]
        yield from [file for file in files if not is_of_tuning(file, path)] or files


def is_of_tuning(file: Path, path: Path) -> bool:
    """Return whether a tuning left a file below ``path``. Its records are not those of a run in the same folder."""
    folders = [folder for folder in file.parents if path in folder.parents]
    homes = [folder.parent for folder in folders if folder.name in (TUNING, BEST)]
    return any(plain_or_packed(home / TUNING / TRIALS).is_file() for home in homes)


def safe_name(name: str) -> str:
    """Return ``name`` as the name of one folder: no separators, no leading dot, never empty."""
    return re.sub(r"[^\w.=@-]+", "_", name).lstrip(".")[:100] or "model"


@contextmanager
def discard_if_interrupted(*folders: Path) -> Iterator[None]:
    """Remove the folders of cases that were interrupted."""
    try:
        yield
    except BaseException:
        for folder in folders:
            if not (folder / RECORD).exists():
                shutil.rmtree(folder, ignore_errors=True)
        raise


# Profiles on disk: ``<output>/<model>/<case>/profile-layer.json``, in the folder of the case's record.
#
# Reading is lenient: a file that is no profile is a problem in the answer, and the others are shown. The
# latest profile of a case, level and machine counts.
#
# Profiles of engines come with two files for scripts: ``trt_layer_latency.json`` has the milliseconds of every run by a
# layer's name, ``trt_engine_info.json`` has the report of the engine's inspector, and the names of inputs and outputs.

PROFILES = "profile-*.json"
LATENCY = "trt_layer_latency.json"
INFORMATION = "trt_engine_info.json"
INSPECTOR = "inspector"  # the detail of a layer, and below the fact of a profile, that these files are built from
BINDINGS = "engine_bindings"
PROFILES_HINT = "inferlens profile MODEL"


@dataclass(repr=False)
class LoadedProfiles(Displayed, Sequence[Profile]):
    """Profiles that could be read, by their creation; a sequence of them.

    ``records``: by a profile's id, the record of its case timed without profiling, if it is in the same folder.
    """

    profiles: list[Profile] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.profiles)

    def __getitem__(self, index: Any) -> Any:
        return self.profiles[index]

    def __repr__(self) -> str:
        models = listing(list(dict.fromkeys(profile.model.name for profile in self.profiles)))
        ran = sum(profile.status == "ok" for profile in self.profiles)
        return f"<{plural(len(self), 'profile')} of {models}, {ran} ran>" if self.profiles else "<no profiles>"


def save_profile(folder: Path, profile: Profile) -> None:
    """Write a profile into its case's folder, whole or not at all, with the files of an engine's layers."""
    write_whole(folder / f"profile-{profile.level}.json", encode_profile(profile))
    if profile.level == "layer":
        for name in (LATENCY, INFORMATION):  # those of an earlier profile would be taken for this one's
            (folder / name).unlink(missing_ok=True)
        for name, data in engine_files(profile).items():
            write_whole(folder / name, data)


def engine_files(profile: Profile) -> dict[str, bytes]:
    """Return the two files by name; empty for a profile that is of no engine.

    Layers of the same name get the suffixes ``#2``, ``#3`` and so on. A layer that is not timed has an empty list.
    """
    layers = [layer for layer in (profile.layers.layers if profile.layers else ()) if INSPECTOR in layer.details]
    latency: dict[str, list[float]] = {}
    for layer in layers:
        names = (f"{layer.name} #{number}" if number > 1 else layer.name for number in count(1))
        name = next(name for name in names if name not in latency)
        latency[name] = [round(time * 1e3, 9) for time in layer.times]
    bindings = profile.facts.get(BINDINGS)
    bindings = bindings if isinstance(bindings, list) else []
    information = {"Layers": [layer.details[INSPECTOR] for layer in layers], "Bindings": bindings}
    files = {LATENCY: latency, INFORMATION: information} if layers else {}
    return {name: msgspec.json.format(msgspec.json.encode(data), indent=4) + b"\n" for name, data in files.items()}


def load_profiles(*paths: Paths, hint: str = PROFILES_HINT) -> LoadedProfiles:
    """Return every profile under ``paths``: profile files, or folders at any height above them.

    Raises InferlensError, with the ``hint``, if a path does not exist or there is no profile under any of them.
    """
    problems: list[str] = []
    profiles: dict[str, Profile] = {}
    records: dict[str, Record] = {}
    loaded = read_all(as_paths(paths), PROFILES, _read_profile, problems, noun="profile", hint=hint)
    for file, profile in loaded.items():
        if profiles.setdefault(profile.id, profile) is not profile:
            continue
        for path in (file.with_name(RECORD + end) for end in PACKED):
            record = read_one(path, read_record, problems) if path.exists() else None
            if record and (record.id, record.case) == (profile.record, profile.case):
                records[profile.id] = record
    return LoadedProfiles(sorted(profiles.values(), key=lambda profile: profile.created), records, problems)


def _read_profile(file: Path) -> Profile:
    return decode_profile(read_unpacked(file))


def latest_profiles(profiles: Sequence[Profile]) -> list[Profile]:
    """Return the last profile of each case, level and machine, in the order of their first profiles."""
    latest: dict[tuple[str, str, str], Profile] = {}
    for profile in sorted(profiles, key=lambda profile: profile.created):
        latest[profile.case.digest, machine_name(profile.environment), profile.level] = profile
    return list(latest.values())


# The output of a case's process: ``output.log`` in the record's folder, as plain text of bounded length.

MOST_LINES = 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Log(Struct, frozen=True):
    """The end of a log.

    ``text``: its last lines, without control sequences of a terminal; empty if nothing was printed.
    """

    record: Record
    text: str
    path: Path | None
    cut: bool


def find_log(loaded: LoadedRecords, named: str) -> Log:
    """Return the log of the latest record of the case that fits ``named``: words of its label, model or folder.

    If several cases fit and only one of them failed, return that one. Raises InferlensError if none fits, or several
    do.
    """
    wanted = set(named.replace(",", " ").split())

    def fits(record: Record) -> bool:
        case = record.case
        names = (case.label, case.backend, case.model, short_name(case.model), loaded.folders[record.id].name)
        return bool(wanted) and wanted <= {word for name in names for word in name.split()}

    latest = {record.case.digest: record for record in loaded.records if fits(record)}
    exact = [record for record in latest.values() if record.case.label == named.strip()]
    failed = [record for record in latest.values() if record.status != "ok"]
    record = next((matches[0] for matches in (exact, list(latest.values()), failed) if len(matches) == 1), None)
    if record is None:
        all_labels = dict.fromkeys(record.case.label for record in (latest.values() or loaded.records))
        labels = ", ".join(map(repr, list(all_labels)[:8])) + (" ..." if len(all_labels) > 8 else "")
        raise InferlensError(f"'{named}' fits {len(latest) or 'no'} cases.", expected=f"one of {labels}")
    path = loaded.folders[record.id] / LOG
    if not path.is_file():  # a folder or a pipe would block
        return Log(record, plain_text("\n".join(record.output_tail)), None, bool(record.output_tail))
    try:
        lines = path.read_bytes().decode("utf-8", "replace").rstrip("\n").split("\n")
    except OSError as error:
        raise InferlensError(f"{path} cannot be read: {error.strerror}.") from error
    return Log(record, plain_text("\n".join(lines[-MOST_LINES:])), path, len(lines) > MOST_LINES)


def plain_text(text: str) -> str:
    """Return text without colors, overwritten progress bars and other control sequences of a terminal."""
    lines = _COLOURS.sub("", text).split("\n")
    return printable("\n".join(line.rstrip("\r").rpartition("\r")[2].replace("\t", "    ") for line in lines)).rstrip()


# A merge copies the records of several folders into one store, bytes unchanged. A record whose id the store has is not
# copied again. Another record of the same case gets ``<case>@2``. The record is copied after all other files of its
# folder, so the folder of an interrupted copy has no record. No link is followed.

HINT = "-o with another folder"


@dataclass
class MergeReport:
    """The result of a merge: numbers of ``new`` and ``present`` records, and sentences about omitted files."""

    new: int = 0
    present: int = 0
    problems: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], output: Path, *, artefacts: bool = True) -> MergeReport:
    """Copy the records under ``sources`` into the store ``output``, which may have some already.

    Sources are folders at any height above records. Without ``artefacts`` only records, profiles and logs come along.
    Raises InferlensError if a source is no folder, there is no record in any, or ``output`` cannot be written.
    """
    for source in sources:
        if not source.is_dir():
            raise InferlensError(f"{source} is not a folder.", expected="folders with records", hint="inferlens bench")
    merged = MergeReport()
    ids = {record.id for _, record in _records_below(output, MergeReport())} if output.exists() else set()
    try:
        below = (pair for source in sources for pair in _records_below(source, merged, output.resolve()))
        for file, record in below:
            if record.id in ids:
                merged.present += 1
                continue
            folder = claim_folder(output / safe_name(record.model.name), safe_name(record.case.folder), HINT)
            with discard_if_interrupted(folder):
                for path in [*_files_beside(file, merged, artefacts), file]:
                    target = folder / path.relative_to(file.parent)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
            merged.new += 1
            ids.add(record.id)
        if not (merged.new or merged.present or ids):
            what = f"There is no record in {', '.join(map(str, sources))}. {' '.join(merged.problems[:3])}"
            raise InferlensError(what.strip(), hint="inferlens bench")
        _copy_quantizations(sources, output, merged)
    except OSError as error:
        raise unwritable(f"The folder {output}", error, HINT) from error
    return merged


def _copy_quantizations(sources: Sequence[Path], output: Path, merged: MergeReport) -> None:
    """Copy the newest quantization of every model and name."""
    for file in (path for source in sources for path in files_under(source, QUANTIZATIONS)):
        target = output / file.resolve().parent.name / file.name
        if not read_one(file, lambda path: read_quantization(_plain_file(path)), merged.problems):
            continue
        if not target.exists() or target.stat().st_mtime < file.stat().st_mtime:
            make_folder(target.parent, HINT)
            shutil.copy2(file, target)  # with its time, for the next merge


def _records_below(folder: Path, merged: MergeReport, output: Path | None = None) -> Iterator[tuple[Path, Record]]:
    """Yield the records below a folder with their files, except for those in ``output``; other files are problems.

    Records of tunings are left out, because a tuning belongs to its machine.
    """
    tunings = [path.parent for path in files_under(folder, TRIALS) if path.parent.name == TUNING]
    merged.problems += [f"{tuning} was left out: a tuning belongs to its machine." for tuning in tunings]
    for file in files_under(folder, RECORD):
        if is_of_tuning(file, folder) or (output and output in file.absolute().parents):
            continue
        if record := read_one(file, _read_safe_record, merged.problems):
            yield file, record


def _read_safe_record(file: Path) -> Record:
    """Return the record in a file. Raises InferlensError if it names a file outside its folder."""
    record = read_record(_plain_file(file))
    for artefact in record.artefacts:
        path = PurePath(artefact.path)
        if path.is_absolute() or ".." in path.parts:
            raise InferlensError(f"It names a file outside its folder: '{artefact.path}'.")
    return record


def _files_beside(record_file: Path, merged: MergeReport, artefacts: bool) -> Iterator[Path]:
    """Yield the files beside a record to copy, without links and without the files of another record below it."""
    folders = [record_file.parent]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_dir() and not path.is_symlink():
                folders += [path] if artefacts and not plain_or_packed(path / RECORD).exists() else []
            elif not path.name.startswith(RECORD) and (file := read_one(path, _plain_file, merged.problems)):
                yield from [file] if artefacts or file.name == LOG or file.name.startswith(PROFILE) else []


def _plain_file(file: Path) -> Path:
    """Return a regular file. Raises InferlensError for a link, pipe or device, which might block or lead elsewhere."""
    if not stat.S_ISREG(file.lstat().st_mode):
        raise InferlensError("It is a link, or no file.")
    return file
