"""Rows of an analysis as named columns of equal length; seconds and bytes, ``None`` or NaN for what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferlens.errors import library

if TYPE_CHECKING:
    from polars import DataFrame

# Nanoseconds. They are divided by it: times a billionth is not the same number.
SECOND = 1e9
SLICES = 60  # equal ones, of the time that something is shown over
# Types of lists in data frames, which must not depend on what a trace lacks. All others are floats.
_TEXTS = {
    "name", "shapes", "stack", "operator", "kind", "grid", "block", "path", "device", "step", "note", "category",
    "process", "thread",
}  # fmt: skip
_WHOLE = {"calls", "registers", "shared_memory", "depth", "held", "allocations", "launched"}
_TRUTHS = {"eligible", "tensor_cores"}


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns by name: lists, or arrays of numbers or truths."""

    columns: Mapping[str, Sequence[Any] | NDArray[Any]]

    @classmethod
    def named(cls, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Columns:
        """Rows of values in the order of the names."""
        return cls({name: [row[place] for row in rows] for place, name in enumerate(names)})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self, top: int | None = None) -> Iterator[dict[str, Any]]:
        """Each row by the columns' names, in plain Python; what is not known is ``None``."""
        lists = [_plain(column)[:top] for column in self.columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def sorted_by(self, column: str) -> Columns:
        """The rows with the largest first; equal ones stay in their order."""
        order = np.argsort(-np.asarray(self.columns[column], dtype=np.float64), kind="stable")
        return Columns(
            {
                name: item[order] if isinstance(item, np.ndarray) else [item[place] for place in order.tolist()]
                for name, item in self.columns.items()
            }
        )

    def frame(self) -> DataFrame:
        """Return a polars data frame with the same types for every trace.

        Raises MissingLibrary if polars is not installed.
        """
        polars = library("polars", extra="traces")
        kinds = {"f": polars.Float64, "i": polars.Int64, "b": polars.Boolean, "U": polars.String}
        kinds |= dict.fromkeys(_TEXTS, polars.String) | dict.fromkeys(_WHOLE, polars.Int64)
        kinds |= dict.fromkeys(_TRUTHS, polars.Boolean)
        schema = {
            name: kinds[column.dtype.kind] if isinstance(column, np.ndarray) else kinds.get(name, kinds["f"])
            for name, column in self.columns.items()
        }
        frame: DataFrame = polars.DataFrame(
            {name: _plain(column) for name, column in self.columns.items()}, schema=schema, strict=False
        )
        return frame


def _plain(column: Sequence[Any] | NDArray[Any]) -> list[Any]:
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    if values and isinstance(values[0], float):
        return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
    return values


@dataclass(frozen=True, eq=False)
class Groups:
    """Events that share a key.

    ``first``: for each group the index of its first member, in the order of first members.
    """

    first: NDArray[np.int64]
    of: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def by(cls, *keys: NDArray[Any]) -> Groups:
        """Groups by one or several whole numbers of each event."""
        codes = np.zeros(len(keys[0]), dtype=np.int64)
        for key in keys:
            values, each = np.unique(key, return_inverse=True)
            codes = np.unique(codes * len(values) + each, return_inverse=True)[1]
        _, first, of, count = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first)
        return cls(first[order], np.argsort(order)[of], count[order])

    def sum(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The sum of each group's values."""
        sums: NDArray[np.float64] = np.bincount(self.of, weights=values, minlength=len(self.first)).astype(np.float64)
        return sums

    def weighted(self, values: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
        """Each group's mean, weighted, of the values that are known; NaN where none is, or no weight."""
        known = np.isfinite(values)
        total = self.sum(np.where(known, weights, 0))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(total > 0, self.sum(np.where(known, values, 0.0) * weights) / total, np.nan)
