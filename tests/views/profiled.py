"""Tables of profiles as text, for every test of them: what is drawn of which profiles, and rows found in it."""

import csv
import io
import json
from typing import Any

from msgspec.structs import replace

from inferlens.record.profile import Level, Profile
from inferlens.record.store import LoadedProfiles
from inferlens.views.profiles.cases import cases_of_level, group_profiles
from inferlens.views.profiles.layers_kernels import parts_document
from inferlens.views.profiles.modules import modules_document
from inferlens.views.profiles.roofline import case_rooflines, roofline_document
from inferlens.views.renderers import render
from inferlens.views.table import Document
from tests.analysis.profiles import unprofiled


def loaded(*profiles: Profile, median: float | None = 6e-3, **fields: Any) -> LoadedProfiles:
    """Profiles beside records whose latency has that median, if there are any."""
    records = {profile.id: replace(unprofiled(profile, median), **fields) for profile in profiles if median}
    return LoadedProfiles(profiles=list(profiles), records=records)


def document(table: str, loaded_profiles: LoadedProfiles, **options: Any) -> Document:
    """The document that the command of that name shows."""
    if table == "modules":
        return modules_document(group_profiles(loaded_profiles), **options)
    if table == "roofline":
        top = options.pop("top", None)
        return roofline_document(case_rooflines(loaded_profiles, **options), top=top)
    level: Level = "layer" if table == "layers" else "kernel"
    return parts_document(level, cases_of_level(loaded_profiles, level), **options)


def drawn(table: str, *profiles: Profile, format: str = "table", median: float | None = 6e-3, **options: Any) -> str:
    screen = {name: options.pop(name) for name in ("width", "color", "wide") if name in options}
    shown = document(table, loaded(*profiles, median=median), **options)
    return render(shown, format, **{"width": 250, **screen})


def data(table: str, *profiles: Profile, **options: Any) -> Any:
    return json.loads(drawn(table, *profiles, format="json", **options))


def lines(table: str, *profiles: Profile, **options: Any) -> list[dict[str, str]]:
    """What CSV has."""
    return list(csv.DictReader(io.StringIO(drawn(table, *profiles, format="csv", **options))))
