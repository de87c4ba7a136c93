"""What lies under the paths that a report is of: records, profiles, tunings, quantizations and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from inferlens.analysis.tuned import Tuned, beneath, load_tuned, tunings_in
from inferlens.errors import InferlensError, paths_like
from inferlens.record.files import files_under
from inferlens.record.quantization import KEPT, Quantization, read
from inferlens.record.record import Record
from inferlens.record.store import BEST, LoadedProfiles, load_profiles, load_records, read_one
from inferlens.trace import several
from inferlens.views.picture import colours_of
from inferlens.views.plain import plain
from inferlens.views.profiled.findings import Judged, judged
from inferlens.views.report.looked import Looked, looked
from inferlens.views.rows import Row, rows


@dataclass
class Found:
    """All of it; ``problems`` are what could not be read, a sentence each, ``folders`` of records by their ids."""

    records: list[Record] = field(default_factory=list)
    profiles: LoadedProfiles = field(default_factory=LoadedProfiles)
    tunings: list[Tuned] = field(default_factory=list)
    quantizations: list[Quantization] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    folders: dict[str, Path] = field(default_factory=dict)

    @property
    def every(self) -> list[Record]:
        """All records, those of tunings' finals included."""
        return [*self.records, *(record for each in self.tunings for record in each.finals)]

    @cached_property
    def colours(self) -> dict[str, str]:
        """The colour of each backend, in all charts of the page."""
        tried = (record for each in self.tunings for trial in each.trials for record in trial.records)
        cases = [*(each.case for each in (*self.every, *tried)), *(each.case for each in self.profiles.profiles)]
        return colours_of(sorted({plain(case.backend_label) for case in cases}))

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the records beside the tunings."""
        return rows(self.records)

    @cached_property
    def looked(self) -> list[Looked]:
        """The traces, as far as they are shown."""
        return list(looked(self.traces))

    @cached_property
    def judged(self) -> list[Judged]:
        """The profiled cases with their findings."""
        return judged(self.profiles)


def found_in(paths: Sequence[Path]) -> Found:
    """What there is under ``paths``.

    Raises:
        InferlensError: if there is nothing, or a path is not there.
    """
    found = Found()
    for path in paths:
        if not path.exists():
            hint = paths_like(path, folders=True) or "inferlens bench"
            raise InferlensError(f"{path} does not exist.", expected="a folder with results", hint=hint)
    folders = tunings_in(paths) or [folder for path in paths for folder in beneath(path)]
    winners = set()
    for folder in folders:
        try:
            found.tunings.append(load_tuned(folder))
            winners.add(folder.parent / BEST)
        except InferlensError as error:
            found.problems.append(str(error))
    found.traces = list(dict.fromkeys(trace for path in paths for trace in several.traces_under(path)))
    files = [file for path in paths for file in files_under(path, KEPT)]
    found.quantizations = [made for file in files if (made := read_one(file, read, found.problems))]
    for load in (_records, _profiles):
        load(found, [path for path in paths if path not in found.traces])
    # What a tuning left ready to be used is shown with it.
    found.records = [each for each in found.records if found.folders.get(each.id) not in winners]
    if not (found.records or found.profiles.profiles or found.tunings or found.quantizations or found.traces):
        what = f"There is nothing to report in {', '.join(map(str, paths))}. {' '.join(found.problems[:2])}"
        raise InferlensError(
            what.strip(), expected="records, profiles, tunings or traces", hint="inferlens bench MODEL"
        )
    return found


def _records(found: Found, paths: Sequence[Path]) -> None:
    try:
        loaded = load_records(paths)
    except InferlensError:
        return  # there may be profiles or traces
    found.records, found.folders = loaded.records, loaded.folders
    found.problems += loaded.problems


def _profiles(found: Found, paths: Sequence[Path]) -> None:
    try:
        found.profiles = load_profiles(paths)
    except InferlensError:
        return
    found.problems += found.profiles.problems
    known = {record.case.model for record in found.records}
    found.records += [record for record in found.profiles.records.values() if record.case.model not in known]
