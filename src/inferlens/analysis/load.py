"""Load tests on disk, and the deployment that serves most requests by the rule of all races.

A load test has the records of one model under one kind of traffic on one machine. Rounds with the same arrivals are
compared.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import msgspec

from inferlens.errors import InferlensError
from inferlens.record.files import files_under
from inferlens.record.load import LoadRecord
from inferlens.record.record import Environment, machine_name
from inferlens.record.store import RECORD
from inferlens.stats.comparison import CPU_NOISE, GPU_NOISE
from inferlens.stats.race_rule import Entry, RaceData, RaceState

THRESHOLD = 0.02
FOLDER = "load"  # of the records, in that of a model


def best_record(records: Sequence[LoadRecord]) -> LoadRecord:
    """Return the record with the highest capacity."""
    return max(records, key=lambda record: record.capacity or 0.0)


def may_win(record: LoadRecord) -> bool:
    """Return whether a record counts: it has a capacity, and its answers were not wrong."""
    wrong = record.agreement is not None and record.agreement.agrees is False
    return record.status == "ok" and bool(record.capacity) and not wrong


def capacity_race(records: Sequence[LoadRecord], threshold: float = THRESHOLD) -> RaceState | None:
    """Return the state of the race among cases, by their digests; ``None`` if none has a capacity.

    In the first round a case counts with its best deployment.
    """
    rounds: dict[str, dict[Hashable, float]] = {}
    devices = {record.case.digest: record.case.device for record in records}
    for record in filter(may_win, records):
        assert record.capacity
        own = rounds.setdefault(record.case.digest, {})
        own[record.round] = min(own.get(record.round, math.inf), -math.log(record.capacity))
    entries = {
        digest: Entry(rounds=logs, usual=CPU_NOISE if devices[digest] == "cpu" else GPU_NOISE)
        for digest, logs in rounds.items()
    }
    return RaceData(entries).state(entries, threshold=threshold)


def load_folders(path: Path) -> list[Path]:
    """Return the folders of load tests in a folder, at any depth, and itself if it is one."""
    return sorted({file.parent for file in files_under(path, "*.json") if file.parent.name == FOLDER})


def find_loads(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of load tests: the paths themselves, or those in folders without other records."""
    folders: list[Path] = []
    for path in paths:
        if path.name != FOLDER and path.parent.name != FOLDER and files_under(path, RECORD):
            return []
        own = [path] if path.is_file() and path.parent.name == FOLDER else load_folders(path)
        if not own:
            return []
        folders += own
    return folders


def load_loads(paths: Iterable[Path], problems: list[str] | None = None) -> list[LoadRecord]:
    """Return the load records in some folders or files, in order of time; ``problems`` gets what cannot be read."""
    records: dict[str, LoadRecord] = {}
    for file in (file for path in paths for file in ([path] if path.is_file() else sorted(path.glob("*.json")))):
        try:
            record = msgspec.json.decode(file.read_bytes(), type=LoadRecord)
        except (msgspec.MsgspecError, OSError) as error:
            if problems is not None:
                problems.append(f"{file} was left out. {error}")
        else:
            records[record.id] = record
    return sorted(records.values(), key=lambda record: record.created)


def read_loads(paths: Sequence[Path], problems: list[str]) -> list[LoadRecord]:
    """Return the load records of :func:`find_loads`. Raises InferlensError if there are none."""
    records = load_loads(find_loads(paths), problems)
    if not records:
        where = ", ".join(map(str, paths))
        raise InferlensError(f"There is no load test in {where}. {' '.join(problems)}".strip(), hint="inferlens load")
    return records


def load_tests(records: Iterable[LoadRecord]) -> list[list[LoadRecord]]:
    """Return the records of each load test, the newest test first.

    A deployment that was measured again in the same round counts with its newest record.
    """
    tests: dict[tuple[str, ...], dict[tuple[str, ...], LoadRecord]] = {}
    for record in sorted(records, key=lambda record: record.created):
        traffic = (record.limit, record.arrivals, record.mix, record.rates, record.clients)
        machine = machine_name(record.environment or Environment())
        test = tests.setdefault((record.case.model, machine, *map(str, traffic)), {})
        test[record.case.digest, str(record.requested), str(record.round)] = record
    grouped = [list(test.values()) for test in tests.values()]
    return sorted(grouped, key=lambda test: max(record.created for record in test), reverse=True)
