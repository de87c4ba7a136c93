"""Events become columns, some thousands at a time, so that no more of them than that exist at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from decimal import Decimal
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferlens.errors import InferlensError
from inferlens.limits import memory_left
from inferlens.trace.forms import NO_ARGUMENTS, NOTHING, About, Arguments, Event, Remarks, sentences
from inferlens.trace.trace import (
    ANNOTATIONS,
    CALLS,
    GPU,
    SCOPES,
    UNKNOWN,
    Allocations,
    Bools,
    Calls,
    Category,
    Codes,
    GpuEvents,
    Ints,
    Scopes,
    Trace,
    category_of,
)

Part = TypeVar("Part", GpuEvents, Calls, Scopes, Allocations)
_LARGEST = 2**63 - 1
# Microseconds that still fit, as nanoseconds and added to each other, into 64 bits.
_LATEST = 2**62 // 1000
# Bytes of columns that need no question: small traces are read in less time than the question takes.
_UNASKED = 2**25
# What is derived from columns takes about three times their memory.
_SHARE = 4
# Which of the parts beside all events one of a category is in, by the category's number.
_PART = np.array([next((n for n, of in enumerate((GPU, CALLS, SCOPES)) if each in of), -1) for each in Category])


class _Codes(dict[Any, int]):
    """Numbers whatever is looked up, in the order in which it comes up."""

    def of(self, keys: Sequence[Any]) -> Codes:
        return np.fromiter(map(self.__getitem__, keys), np.int32, len(keys))

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class TraceBuilder:
    """Takes events and gives the trace that they make."""

    def __init__(self, remarks: Remarks) -> None:
        self._remarks = remarks
        self._names, self._texts, self._threads = _Codes(), _Codes({b"": 0}), _Codes()
        self._columns: dict[type[Any], list[dict[str, NDArray[Any]]]] = {}
        self._count = self._bytes = 0
        self._most: int | None = None

    def add(self, events: Sequence[Event]) -> None:
        """Some more events, in any order; InferlensError if memory has no room for them."""
        self._add([event for event in events if event.ph == "X"])
        others = [event for event in events if event.ph != "X"]
        memory = [event for event in others if event.name == "[memory]" and event.args and event.ts is not None]
        self._add_memory([event for event in memory if None not in (event.args.change, event.args.allocated)])  # type: ignore[union-attr]
        halves = sum(event.ph in ("B", "E") for event in others)
        self._remarks["are a begin or an end alone, not both in one, and were skipped"] += halves

    def trace(self, about: About) -> Trace:
        """Everything that was added, as a trace."""
        self.add([])
        main = self._joined(Trace)
        annotations = np.array([name.startswith(ANNOTATIONS) for name in self._names], dtype=bool)
        operators = main["category"] == Category.OPERATOR
        main["category"][operators & annotations[main["name"]]] = Category.ANNOTATION
        begin, thread, duration = main["begin"], main["thread"], main["duration"]
        gpu, calls = GpuEvents(**self._joined(GpuEvents)), Calls(**self._joined(Calls))
        scopes, memory = Scopes(**self._joined(Scopes)), Allocations(**self._joined(Allocations))
        inner_last = (-duration[scopes.row], begin[scopes.row], thread[scopes.row])
        return Trace(
            strings=tuple(self._names),
            texts=tuple(text.decode(errors="replace") for text in self._texts),
            threads=tuple(self._threads),
            **main,
            gpu=_ordered(gpu, np.argsort(begin[gpu.row], kind="stable")),
            calls=_ordered(calls, np.argsort(begin[calls.row], kind="stable")),
            scopes=_ordered(scopes, np.lexsort(inner_last)),
            allocations=_ordered(memory, np.argsort(memory.time, kind="stable")),
            about=about,
            notes=sentences(self._remarks),
        )

    def _keep(self, form: type[Any], columns: dict[str, Any]) -> None:
        self._columns.setdefault(form, []).append(columns)
        self._bytes += sum(column.nbytes for column in columns.values())
        if self._bytes > _UNASKED and self._most is None:
            self._most = memory_left() // _SHARE
        if self._most is not None and self._bytes > self._most:
            raise InferlensError(
                f"The trace is larger than memory: there is no room for more than {self._count:,} of its events.",
                hint="fewer steps in a trace, or a machine with more memory",
            )

    def _joined(self, form: type[Any]) -> dict[str, Any]:
        """Each column in one piece; one after the other, so that only one is there twice."""
        parts = self._columns.pop(form)
        return {name: np.concatenate([part.pop(name) for part in parts]) for name in tuple(parts[0])}

    def _add(self, events: Sequence[Event]) -> None:
        timed, begin = _timed(events)
        self._remarks["have no time and were skipped"] += len(events) - len(timed)
        lengths = np.array([event.dur for event in timed])
        odd = ~_usable(lengths, least=0)
        lengths[odd] = 0
        self._remarks["have no duration, or one below zero; it was taken as zero"] += int(odd.sum())
        categories = np.fromiter(map(category_of, [event.cat for event in timed]), np.int8, len(timed))
        columns = {
            "name": self._names.of([event.name for event in timed]),
            "category": categories,
            "thread": self._threads_of(timed),
            "begin": _nanoseconds(begin),
            "duration": _nanoseconds(lengths),
        }
        self._keep(Trace, columns)
        parts = _PART[categories]
        for part, add in enumerate((self._add_gpu, self._add_calls, self._add_scopes)):
            places = np.flatnonzero(parts == part)
            add(places + self._count, [timed[place].args or NO_ARGUMENTS for place in places.tolist()])
        self._count += len(timed)

    def _threads_of(self, events: Sequence[Event]) -> Codes:
        pairs = [(event.pid, event.tid) for event in events]
        # A trace may write the numbers as texts.
        codes = {pair: self._threads[str(pair[0]), str(pair[1])] for pair in dict.fromkeys(pairs)}
        return np.array([codes[pair] for pair in pairs], dtype=np.int32)

    def _add_gpu(self, rows: Ints, args: Sequence[Arguments]) -> None:
        columns = {
            "row": rows,
            "grid": _triples([each.grid for each in args]),
            "block": _triples([each.block for each in args]),
            "blocks_per_sm": _floats([each.blocks_per_sm for each in args]),
            "occupancy": _floats([each.occupancy for each in args]),
        }
        self._keep(GpuEvents, columns | _wholes(args, "device", "stream", "correlation", "registers", "shared_memory"))

    def _add_calls(self, rows: Ints, args: Sequence[Arguments]) -> None:
        self._keep(Calls, {"row": rows, **_wholes(args, "correlation")})

    def _add_scopes(self, rows: Ints, args: Sequence[Arguments]) -> None:
        columns: dict[str, Any] = {"row": rows}
        for name in ("shapes", "stack"):
            raws = map(attrgetter(name), args)
            # The raw text points into its whole block, which must not live on.
            columns[name] = self._texts.of([b"" if raw is NOTHING else bytes(raw) for raw in raws])
        self._keep(Scopes, columns)

    def _add_memory(self, events: Sequence[Event]) -> None:
        events, times = _timed(events)
        columns = {"time": _nanoseconds(times), "thread": self._threads_of(events)}
        names = ("device_type", "device_id", "change", "address", "allocated")
        columns |= _wholes([event.args or NO_ARGUMENTS for event in events], *names)
        self._keep(Allocations, columns)


def _ordered(part: Part, order: Ints) -> Part:
    return type(part)(**{each.name: getattr(part, each.name)[order] for each in fields(part)})


def _timed(events: Sequence[Event]) -> tuple[Sequence[Event], Any]:
    """The events that have a time, and their times in microseconds."""
    times = np.array([event.ts for event in events])
    known = _usable(times)
    if known.all():
        return events, times
    return [event for event, has in zip(events, known.tolist(), strict=True) if has], times[known]


def _usable(microseconds: NDArray[Any], least: int = -_LATEST + 1) -> Bools:
    """Which of some times, of which any may be missing, can be reckoned with."""
    if microseconds.dtype == object:
        return np.array([each is not None and least <= each < _LATEST for each in microseconds.tolist()], dtype=bool)
    fits: Bools = (microseconds >= least) & (microseconds < _LATEST)
    return fits


def _nanoseconds(microseconds: NDArray[Any]) -> Ints:
    """Microseconds, as int, float or Decimal, in whole nanoseconds, none lost on the way.

    A float holds thousandths exactly enough up to 2^43 microseconds, 101 days; times a thousand it would not.
    """
    if microseconds.dtype == object:
        microseconds = np.array(microseconds.tolist())  # without those that were missing it may be of floats
    if microseconds.dtype == object:
        return np.array([round(Decimal(value) * 1000) for value in microseconds.tolist()], dtype=np.int64)
    floor = np.floor(microseconds)
    found: Ints = floor.astype(np.int64) * 1000
    found += np.rint((microseconds - floor) * 1000).astype(np.int64)
    return found


def _wholes(args: Sequence[Arguments], *names: str) -> dict[str, Ints]:
    return {name: _whole(list(map(attrgetter(name), args))) for name in names}


def _whole(values: Sequence[Any]) -> Ints:
    """Whole numbers; what is missing or fits into no column is :data:`UNKNOWN`."""
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, OverflowError):  # most have neither
        known = (UNKNOWN if each is None or abs(each) >= _LARGEST else int(each) for each in values)
        return np.fromiter(known, np.int64, len(values))


def _floats(values: list[Any]) -> Any:
    return np.array([np.nan if value is None or abs(value) > _LARGEST else value for value in values], dtype=np.float64)


def _triples(values: list[list[int] | None]) -> Ints:
    right = [value if value and len(value) == 3 else (0, 0, 0) for value in values]
    return _whole([number for value in right for number in value]).reshape(-1, 3)
