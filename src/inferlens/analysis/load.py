"""Load tests on disk, and the deployment that serves most requests by the rule of all races.

A load test has the records of one model under one kind of traffic on one machine. Rounds with the same arrivals are
compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from inferlens.analysis.interference import OTHERS_BUSY
from inferlens.errors import InferlensError
from inferlens.record.files import files_under
from inferlens.record.load import LoadRecord, read_load
from inferlens.record.machine import CpuSamples, MachineLog, Marks
from inferlens.record.record import Environment, Measurement, Record, machine_name
from inferlens.record.store import RECORD, LoadedRecords, read_one
from inferlens.spec.case import Budget
from inferlens.stats.comparison import CPU_NOISE, GPU_NOISE
from inferlens.stats.race_rule import Entry, RaceData, RaceState

THRESHOLD, LEVEL = 0.02, 0.95  # of the race
FOLDER, LOADS = "load", "*.load.json"  # of the records, in the folder of a model


def best_record(records: Sequence[LoadRecord]) -> LoadRecord:
    """Return the record with the highest capacity."""
    return max(records, key=lambda record: record.capacity or 0.0)


def may_win(record: LoadRecord) -> bool:
    """Return whether a record counts: it has a capacity, and its answers were not wrong."""
    wrong = record.agreement is not None and record.agreement.agrees is False
    return record.status == "ok" and bool(record.capacity) and not wrong


def capacity_race(records: Sequence[LoadRecord]) -> RaceState | None:
    """Return the state of the race among cases, by their digests; ``None`` if none has a capacity.

    In the first round a case counts with its best deployment.
    """
    rounds: dict[str, dict[Hashable, float]] = defaultdict(dict)
    rising = sorted(filter(may_win, records), key=lambda record: record.capacity or 0.0)
    for record in rising:  # of a round the last one counts
        rounds[record.case.digest][record.round] = -math.log(record.capacity or 1.0)
    usual = {record.case.digest: CPU_NOISE if record.case.device == "cpu" else GPU_NOISE for record in rising}
    entries = {digest: Entry(rounds=logs, usual=usual[digest]) for digest, logs in rounds.items()}
    return RaceData(entries).state(entries, threshold=THRESHOLD, level=LEVEL)


def load_folders(path: Path) -> list[Path]:
    """Return the folders of load tests below a folder, at any depth, or the one of a file."""
    files = [path] if path.match(LOADS) else files_under(path, LOADS)
    return sorted({file.parent for file in files})


def find_loads(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of load tests; nothing if one of the paths has none, or other records as well."""
    folders = [load_folders(path) for path in paths]
    mixed = not all(folders) or any(files_under(path, RECORD) for path in paths)
    return [] if mixed else list(chain.from_iterable(folders))


def load_loads(paths: Iterable[Path], problems: list[str]) -> list[LoadRecord]:
    """Return the load records in files and below folders, in order of time; ``problems`` gets what cannot be read."""
    files = [file for path in paths for file in ([path] if path.is_file() else files_under(path, LOADS))]
    records = [record for file in files if (record := read_one(file, read_load, problems))]
    return sorted({record.id: record for record in records}.values(), key=lambda record: record.created)


def read_loads(paths: Sequence[Path], problems: list[str]) -> list[LoadRecord]:
    """Return the load records below some paths. Raises InferlensError if there are none."""
    records = load_loads(paths, problems)
    if not records:
        where = ", ".join(map(str, paths))
        raise InferlensError(f"There is no load test in {where}. {' '.join(problems)}".strip(), hint="inferlens load")
    return records


def load_tests(records: Iterable[LoadRecord]) -> list[list[LoadRecord]]:
    """Return the records of each load test, the newest test first.

    A deployment that was measured again in the same round counts with its newest record.
    """
    tests: dict[tuple[str, ...], dict[tuple[str, ...], LoadRecord]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: record.created):
        machine = machine_name(record.environment or Environment())
        request = (record.case.digest, str(record.requested), str(record.round))
        tests[(*traffic_key(record), machine)][request] = record
    grouped = [list(test.values()) for test in tests.values()]
    return sorted(grouped, key=lambda test: max(record.created for record in test), reverse=True)


def traffic_key(record: LoadRecord) -> tuple[str, ...]:
    """Return a key that records of one model under the same traffic share."""
    traffic = (record.limit, record.arrivals, record.mix, record.rates, record.clients)
    return (record.case.model, *map(str, traffic))


def best_rounds(records: Iterable[LoadRecord]) -> list[list[LoadRecord]]:
    """Return, for each way, the records of the deployment with the highest capacity, in order of their rounds.

    A deployment that was in a round with others has priority.
    """
    ways: dict[str, list[LoadRecord]] = defaultdict(list)
    for record in records:
        ways[record.case.digest].append(record)
    rounds = []
    for way_records in ways.values():
        best = max(way_records, key=lambda record: (may_win(record), record.round > 0, record.capacity or 0.0))
        best_records = (record for record in way_records if record.deployment == best.deployment)
        rounds.append(sorted(best_records, key=lambda record: record.round))
    return rounds


def capacity_records(base: Path, candidate: Path) -> tuple[LoadedRecords, LoadedRecords]:
    """Return records of both sides whose throughput is the capacity of a way's best deployment, one for each round.

    For each model the newest load test with a traffic of both sides counts. Raises InferlensError if there is none.
    """
    problems: list[str] = []

    def searches(path: Path) -> dict[tuple[str, ...], list[LoadRecord]]:
        newest: dict[tuple[str, ...], list[LoadRecord]] = {}
        for test in load_tests(read_loads([path], problems)):  # the newest first
            if not (test[0].rates or test[0].clients):
                newest.setdefault(traffic_key(test[0]), test)
        return dict(reversed(newest.items()))  # the oldest first, so that below the newest of a model is kept

    before, after = searches(base), searches(candidate)
    shared = {key[0]: key for key in after if key in before}  # by the model
    if not shared:
        expected = "the same model, --within, --arrivals and --mix, without --rate"
        raise InferlensError("No traffic was searched for its capacity on both sides.", expected=expected)

    def capacities(tests: dict[tuple[str, ...], list[LoadRecord]]) -> list[Record]:
        rounds = chain.from_iterable(best_rounds(tests[key]) for key in shared.values())
        return [as_record(record) for record in chain.from_iterable(rounds)]

    return LoadedRecords(capacities(before), {}, problems), LoadedRecords(capacities(after), {}, [])


def as_record(load: LoadRecord) -> Record:
    """Return a record whose throughput is the capacity, so that everything that compares records takes it."""
    sample = Measurement(metric="throughput", unit="calls/s", clock="load test", samples=(load.capacity,))
    shared = {name: getattr(load, name) for name in ("id", "created", "case", "status", "reason", "hint", "model")}
    others = load.run.others if load.run else None
    environment = load.environment or Environment()
    cpu = CpuSamples(times=(0.0, 1.0), busy=(None, None), others=(None, others), steal=(None, None))
    marks = Marks(count=1, disturbed=(0,), touched={"cpu busy": 1}) if (others or 0.0) >= OTHERS_BUSY else None
    return Record(
        **shared, run=str(traffic_key(load)), environment=environment, agreement=load.agreement, repeat=load.round,
        budget=Budget(mode="throughput", iterations=1), measurements=(sample,), window_marks=marks, memory=load.memory,
        machine=None if others is None else MachineLog(interval=1.0, cpu=cpu, cpus=environment.cpu_threads),
    )  # fmt: skip
