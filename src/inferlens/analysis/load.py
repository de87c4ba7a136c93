"""The deployment that serves most requests, by the rule of all races: rounds with the same arrivals are compared."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from inferlens.record.load import LoadRecord
from inferlens.stats.comparison import CPU_NOISE, GPU_NOISE
from inferlens.stats.race_rule import Entry, RaceData, RaceState

THRESHOLD = 0.02


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
