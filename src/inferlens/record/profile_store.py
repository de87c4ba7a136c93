"""Profiles on disk: ``<output>/<model>/<case>/profile-layer.json``, beside the record of the same case.

Beside the layers of a TensorRT engine lie ``trt_layer_latency.json`` and ``trt_engine_info.json``, for scripts that
read these. Reading is lenient: a file that is no profile is a problem in the answer, and the others are shown. Of each
case at each level on each machine the latest profile counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferlens.errors import InferlensError
from inferlens.record import layer_profile, record
from inferlens.record.engine_files import INFORMATION, LATENCY, engine_files
from inferlens.record.files import PACKED, read_unpacked, write_whole
from inferlens.record.layer_profile import Level, Profile
from inferlens.record.record import Record, machine_name
from inferlens.record.store import RECORD, files_under

PROFILES = "profile-*.json"
HINT = "inferlens profile MODEL"


@dataclass
class LoadedProfiles:
    """Profiles that could be read, by their creation.

    Attributes:
        profiles: all of them.
        records: by a profile's id, the record of its case that was timed untouched, where that lies beside it.
        folders: by a profile's id, where it lies.
        problems: what could not be read, a sentence each.
    """

    profiles: list[Profile] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def name_of(level: Level) -> str:
    """Name of the file that keeps a profile of that level."""
    return f"profile-{level}.json"


def save(folder: Path, made: Profile) -> None:
    """Writes a profile into its case's folder, whole or not at all, and the files of an engine's layers beside it."""
    write_whole(folder / name_of(made.level), layer_profile.encode(made))
    if made.level == "layer":
        files = engine_files(made)
        for name in (LATENCY, INFORMATION):
            if name in files:
                write_whole(folder / name, files[name])
            else:  # those of an earlier profile would be taken for this one's
                (folder / name).unlink(missing_ok=True)


def load_profiles(paths: Iterable[Path | str]) -> LoadedProfiles:
    """Every profile under ``paths``: profile files, or folders at any height above them.

    Raises:
        InferlensError: if a path does not exist, or there is no profile under any of them.
    """
    loaded = LoadedProfiles()
    given = [Path(path) for path in paths]
    for file in files_under(given, PROFILES, "profile", HINT):
        _load(file, loaded)
    if not loaded.profiles:
        problems = " ".join(loaded.problems)
        raise InferlensError(f"There is no profile in {', '.join(map(str, given))}. {problems}".strip(), hint=HINT)
    loaded.profiles.sort(key=lambda one: one.created)
    return loaded


def latest(profiles: Sequence[Profile]) -> list[Profile]:
    """The last profile of each case at each level on each machine, at the place of the first one."""
    found: dict[tuple[str, str, str], Profile] = {}
    for one in sorted(profiles, key=lambda one: one.created):
        found[one.case.digest, machine_name(one.environment), one.level] = one
    return list(found.values())


def _load(file: Path, loaded: LoadedProfiles) -> None:
    try:
        made = layer_profile.decode(read_unpacked(file))
    except OSError as error:
        loaded.problems.append(f"{file} cannot be read: {error.strerror}.")
    except InferlensError as error:
        loaded.problems.append(f"{file} was left out. {error}")
    else:
        if made.id not in loaded.folders:
            loaded.profiles.append(made)
            loaded.folders[made.id] = file.parent
            for end in PACKED:
                _load_record(file.with_name(RECORD + end), made, loaded)


def _load_record(file: Path, made: Profile, loaded: LoadedProfiles) -> None:
    """The record beside a profile, if it is the one that the profile names."""
    try:
        found = record.decode(read_unpacked(file))
    except FileNotFoundError:
        return
    except OSError as error:
        loaded.problems.append(f"{file} cannot be read: {error.strerror}.")
    except InferlensError as error:
        loaded.problems.append(f"{file} was left out. {error}")
    else:
        if found.id == made.record and found.case == made.case:
            loaded.records[made.id] = found
