"""Profiles on disk: ``<output>/<model>/<case>/profile-layer.json``, beside the record of the same case.

Reading is lenient: a file that is no profile is a problem in the answer, and the others are shown. Of each case at each
level on each machine the latest profile counts.

Beside the layers of an engine lie two files for scripts: ``trt_layer_latency.json`` has the milliseconds of every run
by a layer's name, ``trt_engine_info.json`` what the engine's inspector says, and the names of its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec

from inferlens.record import layer_profile
from inferlens.record.files import PACKED, read_unpacked, write_whole
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record, machine_name
from inferlens.record.store import RECORD, Paths, given_paths, read_all, read_one, read_record

PROFILES = "profile-*.json"
LATENCY = "trt_layer_latency.json"
INFORMATION = "trt_engine_info.json"
INSPECTOR = "inspector"  # the detail of a layer, and below the fact of a profile, that these files are made from
BINDINGS = "engine_bindings"
HINT = "inferlens profile MODEL"


@dataclass
class LoadedProfiles:
    """Profiles that could be read, by their creation.

    ``records``: by a profile's id, the record of its case timed without profiling, where that lies beside it.
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


def load_profiles(*paths: Paths, hint: str = HINT) -> LoadedProfiles:
    """Every profile under ``paths``: profile files, or folders at any height above them.

    Raises InferlensError if a path does not exist, or there is no profile under any of them, with ``hint`` what to try.
    """
    problems: list[str] = []
    profiles: dict[str, Profile] = {}
    records: dict[str, Record] = {}
    found = read_all(given_paths(paths), PROFILES, _read, problems, noun="profile", hint=hint)
    for file, made in found.items():
        if profiles.setdefault(made.id, made) is not made:
            continue
        for beside in (file.with_name(RECORD + end) for end in PACKED):
            of = read_one(beside, read_record, problems) if beside.exists() else None
            if of and (of.id, of.case) == (made.record, made.case):
                records[made.id] = of
    return LoadedProfiles(sorted(profiles.values(), key=lambda one: one.created), records, problems)


def _read(file: Path) -> Profile:
    return layer_profile.decode(read_unpacked(file))


def latest(profiles: Sequence[Profile]) -> list[Profile]:
    """The last profile of each case at each level on each machine, at the place of the first one."""
    found: dict[tuple[str, str, str], Profile] = {}
    for one in sorted(profiles, key=lambda one: one.created):
        found[one.case.digest, machine_name(one.environment), one.level] = one
    return list(found.values())
