"""Profiles on disk: ``<output>/<model>/<case>/profile-layer.json``, beside the record of the same case.

Reading is lenient: a file that is no profile is a problem in the answer, and the others are shown. Of each case at each
level on each machine the latest profile counts.

Beside the layers of an engine lie two files for scripts: ``trt_layer_latency.json`` has the milliseconds of every run
by a layer's name, ``trt_engine_info.json`` what the engine's inspector says, and the names of its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from inferlens.errors import InferlensError
from inferlens.record import layer_profile, record
from inferlens.record.files import PACKED, read_unpacked, write_whole
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record, machine_name
from inferlens.record.store import RECORD, Paths, files_under, given_paths

PROFILES = "profile-*.json"
LATENCY = "trt_layer_latency.json"
INFORMATION = "trt_engine_info.json"
INSPECTOR = "inspector"  # the detail of a layer, and below the fact of a profile, that these files are made from
BINDINGS = "engine_bindings"
HINT = "inferlens profile MODEL"

T = TypeVar("T")


@dataclass
class LoadedProfiles:
    """Profiles that could be read, by their creation.

    Attributes:
        profiles: all of them.
        records: by a profile's id, the record of its case timed without profiling, where that lies beside it.
        problems: what could not be read, a sentence each.
    """

    profiles: list[Profile] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def save(folder: Path, made: Profile) -> None:
    """Writes a profile into its case's folder, whole or not at all, and the files of an engine's layers beside it."""
    write_whole(folder / f"profile-{made.level}.json", layer_profile.encode(made))
    if made.level == "layer":
        for name in (LATENCY, INFORMATION):  # those of an earlier profile would be taken for this one's
            (folder / name).unlink(missing_ok=True)
        for name, data in engine_files(made).items():
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


def load_profiles(*paths: Paths) -> LoadedProfiles:
    """Every profile under ``paths``: profile files, or folders at any height above them.

    Raises:
        InferlensError: if a path does not exist, or there is no profile under any of them.
    """
    loaded = LoadedProfiles()
    given = given_paths(paths)
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
    """A profile, and the record beside it, if it is the one that the profile names."""
    made = _read(file, layer_profile.decode, loaded)
    if made is None or any(made.id == each.id for each in loaded.profiles):
        return
    loaded.profiles.append(made)
    for beside in (file.with_name(RECORD + end) for end in PACKED):
        found = _read(beside, record.decode, loaded) if beside.exists() else None
        if found and (found.id, found.case) == (made.record, made.case):
            loaded.records[made.id] = found


def _read(file: Path, decode: Callable[[bytes], T], loaded: LoadedProfiles) -> T | None:
    """What a file holds; ``None``, and a problem, where it cannot be read."""
    try:
        return decode(read_unpacked(file))
    except OSError as error:
        loaded.problems.append(f"{file} cannot be read: {error.strerror}.")
    except InferlensError as error:
        loaded.problems.append(f"{file} was left out. {error}")
    return None
