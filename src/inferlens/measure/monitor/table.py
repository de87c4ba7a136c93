"""Rows of samples under way: readings are asked in turn, and what they answer becomes columns.

A reading is a function that returns values by column name. One that has never answered and fails is left out from then
on, and why is kept; one that fails later leaves a hole, and is left out after :data:`PATIENCE` failures in a row. One
that takes long is asked less often, so that it never takes more than :data:`MOST_SHARE` of a processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

Value = float | int | None
Reading = Callable[[float], Mapping[str, Value]]

PATIENCE = 10
MOST_SHARE = 0.05
# At ten rows a second more than half an hour: what comes before the steady state may take hours.
MOST_ROWS = 20_000


class Untold(Exception):
    """The machine does not tell; the text says why."""


class Table:
    """Columns of equal length under one column of times."""

    def __init__(self, readings: Mapping[str, Reading], clock: Callable[[], float], most: int = MOST_ROWS) -> None:
        self._readings = dict(readings)
        self._clock = clock
        self._most = most
        self._failures: dict[str, int] = {}
        self._answered: set[str] = set()
        self._costs: dict[str, list[float]] = {}
        self._rests: dict[str, float] = {}
        self.times: list[float] = []
        self.columns: dict[str, list[Value]] = {}
        self.absent: dict[str, str] = {}
        self.peaks: dict[str, float | int] = {}
        self.forgotten = 0

    def take(self) -> None:
        """Adds a row, stamped with the time before the first reading."""
        now = self._clock()
        row: dict[str, Value] = {}
        for name in list(self._readings):
            if now >= self._rests.get(name, now):
                row.update(self._ask(name, now))
        for name in row.keys() - self.columns.keys():
            self.columns[name] = [None] * len(self.times)
        self.times.append(round(now, 4))
        for name, column in self.columns.items():
            value = row.get(name)
            column.append(value)
            if value is not None:
                self.peaks[name] = max(value, self.peaks.get(name, value))
        if len(self.times) > self._most:
            self._forget()

    def as_columns(self) -> dict[str, Any]:
        """The columns and their times as tuples, without columns that have no value at all."""
        # A watch that hangs may be in the middle of a row.
        rows = min([len(self.times), *(len(column) for column in list(self.columns.values()))])
        told = {
            name: tuple(column[:rows])
            for name, column in list(self.columns.items())
            if any(value is not None for value in column)
        }
        return {"times": tuple(self.times[:rows]), **told}

    @property
    def costs(self) -> dict[str, float]:
        """Median seconds that each reading took."""
        return {name: round(median(spent), 7) for name, spent in list(self._costs.items()) if spent}

    def _ask(self, name: str, now: float) -> Mapping[str, Value]:
        begin = self._clock()
        try:
            values = self._readings[name](now)
        except Exception as error:  # whatever a driver or a file system comes up with is no error of the case
            self._failed(name, reason_of(error))
            return {}
        cost = self._clock() - begin
        self._costs.setdefault(name, []).append(cost)
        self._rests[name] = begin + cost / MOST_SHARE
        self._answered.add(name)
        self._failures[name] = 0
        return values

    def _failed(self, name: str, why: str) -> None:
        self._failures[name] = self._failures.get(name, 0) + 1
        if name not in self._answered:
            self.absent[name] = why
            del self._readings[name]
        elif self._failures[name] >= PATIENCE:
            self.absent[name] = f"no longer told: {why}"
            del self._readings[name]

    def _forget(self) -> None:
        """Drops the older half of the rows."""
        half = len(self.times) // 2
        self.forgotten += half
        for spent in (self.times, *self._costs.values()):
            del spent[:half]
        for column in self.columns.values():
            del column[:half]


def reason_of(error: Exception) -> str:
    """Why something is not told, in words for a record."""
    if isinstance(error, Untold):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"the system has no {error.filename}"
    if isinstance(error, PermissionError):
        return f"{error.filename} may not be read by this user"
    return f"{type(error).__name__}: {error}"
