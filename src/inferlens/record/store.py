"""Records on disk: ``<output>/<model>/<case>/record.json``, artefacts and the log beside it.

A folder is claimed by creating it, so two runs, also two at the same time, never share one: the second run of a case
gets ``<case>@2``. A record is written whole or not at all; a folder without one belongs to a run that was cut short.
Beside them a tuning keeps its rounds in ``<output>/<model>/tuning``, and the winner in ``<output>/<model>/best``;
a study its own in ``<output>/<model>/study``.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.errors import InferlensError, paths_like, printable, unwritable
from inferlens.record.builds import QUANTIZATIONS, read_quantization
from inferlens.record.display import Displayed
from inferlens.record.file_kind import FileType, refuse_other_files
from inferlens.record.files import (
    PACKED,
    files_under,
    make_folder,
    plain_or_packed,
    read_unpacked,
    sha256,
    try_lock,
    write_whole,
)
from inferlens.record.profile import Profile, decode_profile, encode_profile
from inferlens.record.record import Measurement, Record, decode, encode, machine_name
from inferlens.spec.case import Case, short_name
from inferlens.units import listing, plural

RECORD = "record.json"
PROFILE = "profile-"  # how the names of what a profile leaves beside a record begin
TUNING, BEST = "tuning", "best"  # the folders of a tuning beside the records of a model: its rounds, and the winner
STUDY = "study"  # the folder of a study's rounds
TRIALS = "trials.jsonl"
LOG = "output.log"
Paths = str | PathLike[str] | Iterable[str | PathLike[str]]
T = TypeVar("T")


class Store:
    """The folder that keeps the records of many models."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self, case: Case, model: str) -> Path:
        """A new, empty folder for one run of ``case``."""
        return claim_folder(self.root / safe_name(model), case.folder)

    @staticmethod
    def save(folder: Path, record: Record) -> None:
        """Writes the record into ``folder``, whole or not at all.

        Raises InferlensError if it cannot be written, such as on a disk that is full.
        """
        try:
            write_whole(folder / RECORD, encode(record))
        except OSError as error:
            raise unwritable(folder / RECORD, error, "free space, or --output with another folder") from error


def cache_in(output: Path) -> Path:
    """The folder below ``output`` of what is worth keeping between cases, whole and there."""
    return make_folder(output.resolve() / ".cache")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, made by :func:`make_folder`, for this process. Raise InferlensError if another one has it."""
    descriptor = os.open(make_folder(folder), os.O_RDONLY)
    try:
        if not try_lock(descriptor):
            raise InferlensError(
                f"Another run measures into {folder}.",
                expected="one run at a time, because two disturb each other",
                hint="wait for it, or --output with another folder",
            )
        yield
    finally:
        os.close(descriptor)


def claim_folder(parent: Path, name: str, hint: str = "--output with another folder", first: int = 1) -> Path:
    """A new, empty folder in ``parent``: ``name``, or ``name@2`` and so on where there is one already.

    ``first`` is the number to begin with, where those before it are known to be taken. Raises as :func:`make_folder`.
    """
    make_folder(parent, hint)
    for number in count(first):
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
    """Records that could be read, where each lies, and what could not be read."""

    records: list[Record]
    folders: dict[str, Path]
    problems: list[str]


def as_paths(paths: Iterable[Paths]) -> list[Path]:
    """Paths that are given one by one, in lists, or both."""
    lists = ([path] if isinstance(path, (str, PathLike)) else path for path in paths)
    return [Path(path) for item in lists for path in item]


def load_records(*paths: Paths, profiled: bool = False) -> LoadedRecords:
    """Every record under ``paths``: record files, or folders at any height above them.

    Those that a profile made were measured once, to be held against it: of a model that was benchmarked as well they
    are left out, unless ``profiled``, for they would take the place of cases that met in rounds.

    Measurements stay in the files until they are asked for. A file that is no record is a problem in the answer. Raises
    InferlensError where a path or any record is missing.
    """
    problems: list[str] = []
    found = read_all(as_paths(paths), RECORD, read_record, problems, noun="record", hint="inferlens bench")
    first: dict[str, tuple[Record, Path]] = {}
    for file, record in found.items():
        first.setdefault(record.id, (record, file.parent))
    if not profiled:
        of_profiles = {name for name, (_, folder) in first.items() if is_of_profile(folder)}
        benched = {record.case.model for name, (record, _) in first.items() if name not in of_profiles}
        for name in of_profiles:
            if first[name][0].case.model in benched:
                del first[name]
    records = sorted((record for record, _ in first.values()), key=lambda record: record.created)
    return LoadedRecords(records, {name: folder for name, (_, folder) in first.items()}, problems)


class MeasurementsOnDisk(Sequence[Measurement]):
    """The measurements of a record's file: read when they are asked for, as samples are nearly all of a record."""

    def __init__(self, file: str, record: str) -> None:
        self.file, self.record = file, record

    def __len__(self) -> int:
        return len(_measurements(self.file, self.record))

    def __getitem__(self, place: Any) -> Any:
        return _measurements(self.file, self.record)[place]

    def __iter__(self) -> Iterator[Measurement]:
        return iter(_measurements(self.file, self.record))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


class _SampleFile(Struct):
    id: str
    measurements: tuple[Measurement, ...]


@lru_cache(maxsize=64)  # about as many as are compared with each other, for which they are asked for several times
def _measurements(file: str, record: str) -> tuple[Measurement, ...]:
    try:
        found = msgspec.json.decode(read_unpacked(Path(file)), type=_SampleFile)
        if found.id == record:
            return found.measurements
        why = f"It has the record {found.id} now."
    except (OSError, InferlensError, msgspec.DecodeError) as error:
        why = str(error)
    raise InferlensError(f"{file} was changed after it had been read. {why}", hint="the same again")


def read_record(file: Path) -> Record:
    """The record in a file, where its measurements stay until they are asked for.

    Raises:
        InferlensError: if there is none, or it is damaged.
        OSError: if it cannot be read.
    """
    record = decode(read_unpacked(file))
    if record.measurements:
        msgspec.structs.force_setattr(record, "measurements", MeasurementsOnDisk(os.path.abspath(file), record.id))
    return record


def is_of_profile(folder: Path) -> bool:
    """Whether a profile lies beside the record in a folder."""
    return any(name.startswith(PROFILE) for name in os.listdir(folder))


def read_all(
    paths: list[Path], pattern: str, read: Callable[[Path], T], problems: list[str], *, noun: str, hint: str
) -> dict[Path, T]:
    """What the files under ``paths`` hold whose names fit; ``problems`` gets a sentence for each that cannot be read.

    Raises InferlensError where a path does not exist or nothing can be read; ``noun`` and ``hint`` are for its words.
    """
    files = _files_under(paths, pattern, noun, hint)
    found = {file: one for file in files if (one := read_one(file, read, problems)) is not None}
    if not found:
        right = {"record": FileType.RECORD, "profile": FileType.PROFILE}.get(noun, FileType.OWN)
        refuse_other_files(paths, [right], noun)
        what = f"There is no {noun} in {', '.join(map(str, paths))}. {' '.join(problems)}"
        raise InferlensError(what.strip(), hint=hint)
    return found


def read_one(file: Path, read: Callable[[Path], T], problems: list[str]) -> T | None:
    """What a file holds; ``None``, and a problem more, where it cannot be read."""
    try:
        return read(file)
    except (OSError, InferlensError) as error:
        problems.append(f"{file} was left out. {error}")
    return None


def _files_under(paths: Iterable[Path], pattern: str, noun: str, hint: str) -> Iterator[Path]:
    """Files that fit, plain or packed, at any depth under folders, in order; what is no folder as it is."""
    for path in paths:
        if not path.exists():
            expected = f"a folder with {noun}s, such as results/resnet18"
            hint = paths_like(path, folders=True) or hint
            raise InferlensError(f"{path} does not exist.", expected=expected, hint=hint)
        every = files_under(path, pattern) if path.is_dir() else [path]
        yield from [file for file in every if not is_of_tuning(file, path)] or every


def is_of_tuning(file: Path, path: Path) -> bool:
    """Whether a tuning left a file below the folder that was given: its records are not those of a run beside it."""
    folders = [folder for folder in file.parents if path in folder.parents]
    homes = [folder.parent for folder in folders if folder.name in (TUNING, BEST)]
    return any(plain_or_packed(home / TUNING / TRIALS).is_file() for home in homes)


def safe_name(name: str) -> str:
    """``name`` made fit for one folder: no separators, no leading dot, never empty."""
    return re.sub(r"[^\w.=@-]+", "_", name).lstrip(".")[:100] or "model"


@contextmanager
def discard_if_interrupted(*folders: Path) -> Iterator[None]:
    """Removes the folders of cases that were cut short, with what the cases left in them: nothing was learned."""
    try:
        yield
    except BaseException:
        for folder in folders:
            if not (folder / RECORD).exists():
                shutil.rmtree(folder, ignore_errors=True)
        raise


# Profiles on disk: ``<output>/<model>/<case>/profile-layer.json``, beside the record of the same case.
#
# Reading is lenient: a file that is no profile is a problem in the answer, and the others are shown. Of each case at
# each level on each machine the latest profile counts.
#
# Beside the layers of an engine lie two files for scripts: ``trt_layer_latency.json`` has the milliseconds of every run
# by a layer's name, ``trt_engine_info.json`` what the engine's inspector says, and the names of its inputs and outputs.

PROFILES = "profile-*.json"
LATENCY = "trt_layer_latency.json"
INFORMATION = "trt_engine_info.json"
INSPECTOR = "inspector"  # the detail of a layer, and below the fact of a profile, that these files are made from
BINDINGS = "engine_bindings"
PROFILES_HINT = "inferlens profile MODEL"


@dataclass(repr=False)
class LoadedProfiles(Displayed, Sequence[Profile]):
    """Profiles that could be read, by their creation; a sequence of them.

    ``records``: by a profile's id, the record of its case timed without profiling, where that lies beside it.
    """

    profiles: list[Profile] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.profiles)

    def __getitem__(self, place: Any) -> Any:
        return self.profiles[place]

    def __repr__(self) -> str:
        models = listing(list(dict.fromkeys(profile.model.name for profile in self.profiles)))
        ran = sum(profile.status == "ok" for profile in self.profiles)
        return f"<{plural(len(self), 'profile')} of {models}, {ran} ran>" if self.profiles else "<no profiles>"


def save_profile(folder: Path, profile: Profile) -> None:
    """Writes a profile into its case's folder, whole or not at all, and the files of an engine's layers beside it."""
    write_whole(folder / f"profile-{profile.level}.json", encode_profile(profile))
    if profile.level == "layer":
        for name in (LATENCY, INFORMATION):  # those of an earlier profile would be taken for this one's
            (folder / name).unlink(missing_ok=True)
        for name, data in engine_files(profile).items():
            write_whole(folder / name, data)


def engine_files(profile: Profile) -> dict[str, bytes]:
    """The two files by name; empty for a profile that is of no engine.

    Layers of the same name are told apart by ``#2``, ``#3`` and so on; one that is not timed has an empty list.
    """
    layers = [layer for layer in (profile.layers.layers if profile.layers else ()) if INSPECTOR in layer.details]
    latency: dict[str, list[float]] = {}
    for layer in layers:
        names = (f"{layer.name} #{number}" if number > 1 else layer.name for number in count(1))
        name = next(name for name in names if name not in latency)
        latency[name] = [round(time * 1e3, 9) for time in layer.times]
    bindings = profile.facts.get(BINDINGS)
    information = {
        "Layers": [layer.details[INSPECTOR] for layer in layers],
        "Bindings": bindings if isinstance(bindings, list) else [],
    }
    files = {LATENCY: latency, INFORMATION: information} if layers else {}
    return {name: msgspec.json.format(msgspec.json.encode(data), indent=4) + b"\n" for name, data in files.items()}


def load_profiles(*paths: Paths, hint: str = PROFILES_HINT) -> LoadedProfiles:
    """Every profile under ``paths``: profile files, or folders at any height above them.

    Raises InferlensError if a path does not exist, or there is no profile under any of them, with ``hint`` what to try.
    """
    problems: list[str] = []
    profiles: dict[str, Profile] = {}
    records: dict[str, Record] = {}
    found = read_all(as_paths(paths), PROFILES, _read_profile, problems, noun="profile", hint=hint)
    for file, profile in found.items():
        if profiles.setdefault(profile.id, profile) is not profile:
            continue
        for path in (file.with_name(RECORD + end) for end in PACKED):
            of = read_one(path, read_record, problems) if path.exists() else None
            if of and (of.id, of.case) == (profile.record, profile.case):
                records[profile.id] = of
    return LoadedProfiles(sorted(profiles.values(), key=lambda one: one.created), records, problems)


def _read_profile(file: Path) -> Profile:
    return decode_profile(read_unpacked(file))


def latest_profiles(profiles: Sequence[Profile]) -> list[Profile]:
    """The last profile of each case at each level on each machine, at the place of the first one."""
    found: dict[tuple[str, str, str], Profile] = {}
    for one in sorted(profiles, key=lambda one: one.created):
        found[one.case.digest, machine_name(one.environment), one.level] = one
    return list(found.values())


# The output of a case's process: ``output.log`` beside its record, as plain text of bounded length.

MOST_BYTES, MOST_LINES = 1 << 17, 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Log(Struct, frozen=True):
    """The end of a log.

    ``text``: its last lines, with nothing in them that steers a terminal; empty if nothing was printed.
    """

    record: Record
    text: str
    path: Path | None
    cut: bool


def find_log(loaded: LoadedRecords, named: str) -> Log:
    """The log of the latest record of the case that fits ``named``: words of its label, model or folder.

    Of several cases that fit, one that did not run counts, if it is the only one. Raises InferlensError if none fits,
    or several do.
    """
    wanted = set(named.replace(",", " ").split())
    latest = {record.case.digest: record for record in loaded.records if wanted and wanted <= _words(loaded, record)}
    exact = [record for record in latest.values() if record.case.label == named.strip()]
    failed = [record for record in latest.values() if record.status != "ok"]
    record = next((item[0] for item in (exact, list(latest.values()), failed) if len(item) == 1), None)
    if record is None:
        known = dict.fromkeys(record.case.label for record in (latest.values() or loaded.records))
        labels = ", ".join(map(repr, list(known)[:8])) + (" ..." if len(known) > 8 else "")
        raise InferlensError(f"'{named}' fits {len(latest) or 'no'} cases.", expected=f"one of {labels}")
    path = loaded.folders[record.id] / LOG
    if path.is_file():  # neither a folder nor a pipe, which would be waited for
        text, cut = _end(path)
        return Log(record, text, path, cut)
    return Log(record, _plain("\n".join(record.output_tail)), None, bool(record.output_tail))


def _words(loaded: LoadedRecords, record: Record) -> set[str]:
    case = record.case
    names = (case.label, case.backend, case.model, short_name(case.model), loaded.folders[record.id].name)
    return {word for name in names for word in name.split()}


def _end(path: Path) -> tuple[str, bool]:
    """The last lines of a file, and whether there are more."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_BYTES))
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise InferlensError(f"{path} cannot be read: {error.strerror}.") from error
    lines = data.decode("utf-8", "replace").split("\n")
    cut = size > MOST_BYTES or len(lines) > MOST_LINES + 1
    return _plain("\n".join(lines[-MOST_LINES - 1 :])), cut


def _plain(text: str) -> str:
    """Without colours, what a progress bar wrote over, and all else that steers a terminal."""
    lines = _COLOURS.sub("", text).split("\n")
    return printable("\n".join(line.rstrip("\r").rpartition("\r")[2].replace("\t", "    ") for line in lines)).rstrip()


# A merge copies the records of several folders into one store, bytes unchanged. A record with an id that is there
# already is not copied again; of two versions the last written counts. Another record of the same case gets
# ``<case>@2``. All is copied into a staging folder first, so that a merge that fails leaves the store as it was. No
# link is followed.

STAGING = ".merge-"  # how the name of the folder of a merge under way begins
HINT = "-o with another folder"


@dataclass
class MergeReport:
    """What a merge did: how many records were ``new``, ``present`` and ``rewritten``; whose they are; what was left."""

    new: int = 0
    present: int = 0
    rewritten: int = 0
    machines: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


class InStore(NamedTuple):
    """A record that is in the store, or on its way there: its file, the hash of its content, when it was written."""

    file: Path
    digest: str
    written: float


def merge(sources: Sequence[Path], output: Path, *, artefacts: bool = True) -> MergeReport:
    """Copies the records under ``sources`` into the store ``output``, which may have some already.

    Sources are folders at any height above records. Without ``artefacts`` only records, profiles and logs come along.
    Raises InferlensError if a source is no folder, there is no record in any, or ``output`` cannot be written.
    """
    for source in sources:
        if not source.is_dir():
            raise InferlensError(f"{source} is not a folder.", expected="folders with records", hint="inferlens bench")
    merged, known, rewritten = MergeReport(), dict[str, InStore](), dict[Path, Path]()
    begun, numbers = output.exists(), Counter[tuple[str, str]]()
    if begun:
        for file, record, digest in _records(output, MergeReport()):
            known[record.id] = InStore(file, digest, file.stat().st_mtime)
    staging = Path(tempfile.mkdtemp(dir=make_folder(output, HINT), prefix=STAGING))
    try:
        copied = list(_copy_records(sources, output, staging, merged, known, rewritten, artefacts))
        if not copied and not known:
            what = f"There is no record in {', '.join(map(str, sources))}. {' '.join(merged.problems[:3])}"
            raise InferlensError(what.strip(), hint="inferlens bench")
        quantizations = list(_quantizations(sources, output, staging, merged))
        for folder, model, case in copied:
            place = claim_folder(output / model, case, HINT, first=numbers[model, case] + 1)
            numbers[model, case] = int(place.name.removeprefix(case).lstrip("@") or 1)
            folder.replace(place)
        for there, file in rewritten.items():
            _rewrite(there, file)
        for file, place in quantizations:
            file.replace(make_folder(place.parent, HINT) / place.name)
    except OSError as error:
        raise unwritable(f"The folder {output}", error, HINT) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not begun and not any(output.iterdir()):
            output.rmdir()
    return merged


def _copy_records(
    sources: Sequence[Path],
    output: Path,
    staging: Path,
    merged: MergeReport,
    records: dict[str, InStore],
    rewritten: dict[Path, Path],
    artefacts: bool,
) -> Iterator[tuple[Path, str, str]]:
    """Each new record's folder in ``staging``, and the names of the folders that it belongs in.

    Of records of the store that were ``rewritten`` the file there and the new one.
    """
    for source in sources:
        for file, record, digest in _records(source, merged, but=output.resolve()):
            merged.machines.add(machine_name(record.environment))
            merged.models.add(record.case.model)
            written, there = file.stat().st_mtime, records.get(record.id)
            if there and there.digest != digest and not _same_but_facts(record, there.file):
                merged.problems.append(f"{file} was left out. Another record has its id, {record.id}.")
            elif there and (there.digest == digest or written <= there.written):
                merged.present += 1
            elif there:
                merged.rewritten += 1
                records[record.id] = there._replace(digest=digest, written=written)
                if staging in there.file.parents:
                    records[record.id] = records[record.id]._replace(file=_rewrite(there.file, file))
                else:
                    rewritten[there.file] = file
            if there:
                continue
            folder = staging / str(merged.new)
            records[record.id] = InStore(folder / file.name, digest, written)
            folder.mkdir()
            for path in _record_files(file, merged, artefacts):
                target = folder / path.relative_to(file.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            merged.new += 1
            yield folder, safe_name(record.model.name), safe_name(record.case.folder)


def _quantizations(
    sources: Sequence[Path], output: Path, staging: Path, merged: MergeReport
) -> Iterator[tuple[Path, Path]]:
    """Each model's last of a name: a copy in ``staging`` and its place, where none that is as new is there."""
    last: dict[Path, Path] = {}
    for file in (path for source in sources for path in files_under(source, QUANTIZATIONS)):
        try:
            if not _is_plain(file):
                raise InferlensError("It is a link, or no file.")
            read_quantization(file)
        except (OSError, InferlensError) as error:
            merged.problems.append(f"{file} was left out. {error}")
            continue
        place = output / file.resolve().parent.name / file.name
        there = last.get(place, place)
        if not there.exists() or there.stat().st_mtime < file.stat().st_mtime:
            last[place] = file
    for number, (place, file) in enumerate(last.items()):
        yield Path(shutil.copy2(file, staging / f"quantized-{number}")), place  # with its time, for the next merge


def _records(folder: Path, merged: MergeReport, but: Path | None = None) -> Iterator[tuple[Path, Record, str]]:
    """The records below a folder one by one, each with the hash of its content; what is none is a problem.

    Those of tunings are left: a tuning belongs to its machine. So are those in the folder ``but``.
    """
    tunings = [path.parent for path in files_under(folder, TRIALS) if path.parent.name == TUNING]
    merged.problems += [f"{tuning} was left out: a tuning belongs to its machine." for tuning in tunings]
    for file in files_under(folder, RECORD):
        cut_short = any(part.startswith(STAGING) for part in file.relative_to(folder).parts)  # of an earlier merge
        if cut_short or is_of_tuning(file, folder) or (but and but in file.absolute().parents):
            continue
        try:
            if not _is_plain(file):
                raise InferlensError("It is a link, or no file.")
            data = read_unpacked(file)
            record = decode(data)
            wrong = [artefact.path for artefact in record.artefacts if not _is_beside(artefact.path)]
            if wrong:
                raise InferlensError(f"It names a file outside its folder: '{wrong[0]}'.")
        except (OSError, InferlensError) as error:
            merged.problems.append(f"{file} was left out. {error}")
            continue
        yield file, record, sha256(data)


def _record_files(record_file: Path, merged: MergeReport, artefacts: bool) -> Iterator[Path]:
    """The files of a record's folder that come along: no links, and nothing of another record below it."""
    yield record_file
    folders = [record_file.parent]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_dir() and not path.is_symlink():
                own = not plain_or_packed(path / RECORD).exists()
                folders += [path] if artefacts and own else []
            elif path.name.startswith(RECORD):
                continue
            elif not _is_plain(path):
                merged.problems.append(f"{path} was left out. It is a link, or no file.")
            elif artefacts or path.name == LOG or path.name.startswith(PROFILE):
                yield path


def _same_but_facts(record: Record, file: Path) -> bool:
    """Whether another file has the same record, but for what was noted in it later."""
    return replace(record, facts={}) == replace(decode(read_unpacked(file)), facts={})


def _rewrite(there: Path, file: Path) -> Path:
    """Puts a record's file in the place of another one, which may be packed otherwise; the new one."""
    target = there.with_name(file.name)
    write_whole(target, file.read_bytes())
    if target != there:
        there.unlink()
    return target


def _is_plain(file: Path) -> bool:
    """Whether it is a file itself: no link, pipe or device, which might be waited for or lead elsewhere."""
    return stat.S_ISREG(file.lstat().st_mode)


def _is_beside(path: str) -> bool:
    """Whether the path of an artefact stays in its record's folder."""
    pure = PurePath(path)
    return not pure.is_absolute() and ".." not in pure.parts
