"""Rows of samples under way: readings are asked in turn, and what they answer becomes columns.

A reading is a function that returns values by column name. One that has never answered and fails is left out from then
on, and why is kept; one that fails later leaves a hole. One that takes long is asked less often, so that it never takes
more than :data:`MOST_SHARE` of a processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

Value = float | int | None
Reading = Callable[[float], Mapping[str, Value]]

MOST_SHARE = 0.05
MOST_ROWS = 20_000  # at ten rows a second more than half an hour: what comes before the steady state may take hours


class Untold(Exception):
    """The machine does not tell; the text says why."""


class SampledColumns:
    """Columns of equal length under one column of times."""

    def __init__(self, readings: Mapping[str, Reading], clock: Callable[[], float], most: int = MOST_ROWS) -> None:
        self._readings = dict(readings)
        self._clock = clock
        self._most = most
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
        if len(self.times) > self._most:  # the older half goes
            half = len(self.times) // 2
            self.forgotten += half
            kept: list[list[Any]] = [self.times, *self.columns.values(), *self._costs.values()]
            for each in kept:
                del each[:half]

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
            if name not in self._costs:
                self.absent[name] = reason_of(error)
                del self._readings[name]
            return {}
        cost = self._clock() - begin
        self._costs.setdefault(name, []).append(cost)
        self._rests[name] = begin + cost / MOST_SHARE
        return values


def reason_of(error: Exception) -> str:
    """Why something is not told, in words for a record."""
    return str(error) if isinstance(error, (Untold, OSError)) else f"{type(error).__name__}: {error}"
