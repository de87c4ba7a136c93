"""Events become columns, some thousands at a time, so that no more of them than that exist at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from inferlens.trace.category import CALLS, GPU, SCOPES, Category, category_of, is_annotation
from inferlens.trace.forms import NO_ARGUMENTS, NOTHING, About, Arguments, Event, text_of
from inferlens.trace.notes import Notes
from inferlens.trace.room import Parts, Room
from inferlens.trace.spans import Spans
from inferlens.trace.times import nanoseconds, usable
from inferlens.trace.trace import UNKNOWN, Allocations, Calls, Codes, GpuEvents, Ints, Scopes, Thread, Trace

Table = TypeVar("Table")
_MEMORY = "[memory]"
_LARGEST = 2**63 - 1
# Which of the tables beside that of all events one of a category is in, by the category's number.
_TABLE = np.array([next((n for n, of in enumerate((GPU, CALLS, SCOPES)) if each in of), -1) for each in Category])


class _Codes(dict[Any, int]):
    """Numbers whatever is looked up, in the order in which it comes up."""

    def codes(self, keys: Iterable[Any], form: Any = np.int32, *, count: int = -1) -> Any:
        """The numbers of many, ``count`` if that is known."""
        return np.fromiter(map(self.__getitem__, keys), form, count)

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Threads(_Codes):
    """The same for pairs of process and thread, of which a trace may write the numbers as texts."""

    def __missing__(self, key: Any) -> int:
        normal = (_number(key[0]), _number(key[1]))
        number = dict.get(self, normal)
        if number is None:
            number = len(set(self.values()))
            self[normal] = number
        self[key] = number
        return number


class _Categories(_Codes):
    def __missing__(self, key: str) -> int:
        self[key] = number = int(category_of(key))
        return number


class Columns:
    """Takes events and gives the trace that they make."""

    def __init__(self, notes: Notes, room: Room) -> None:
        self._notes, self._room = notes, room
        self._names, self._texts, self._threads = _Codes(), _Codes(), _Threads()
        self._categories = _Categories()
        self._texts[b""]  # the first: none
        self._main = Parts(room, ("name", "category", "thread", "begin", "duration"))
        self._gpu, self._calls = _parts(room, GpuEvents), _parts(room, Calls)
        self._scopes, self._memory = _parts(room, Scopes), _parts(room, Allocations)
        self._spans = Spans()
        self._thread_names: dict[int, str] = {}
        self._count = 0

    def add(self, events: Sequence[Event]) -> None:
        """Some more events, in any order."""
        self._add([event for event in events if event.ph == "X"])
        others = [event for event in events if event.ph != "X"]
        memory = [event for event in others if event.name == _MEMORY and event.args and event.ts is not None]
        self._add_memory([event for event in memory if event.args.change is not None])  # type: ignore[union-attr]
        for event in others:
            if event.ph in ("B", "E"):
                self._spans.add(self._threads[event.pid, event.tid], event)
            elif event.ph == "M" and event.name == "thread_name" and event.args:
                self._thread_names[self._threads[event.pid, event.tid]] = text_of(event.args.name)

    def trace(self, about: About) -> Trace:
        """Everything that was added, as a trace."""
        self._add(self._spans.complete(self._notes))
        main: dict[str, Any] = self._main.joined()
        annotations = np.array([is_annotation(name) for name in self._names], dtype=bool)
        operators = main["category"] == Category.OPERATOR
        main["category"][operators & annotations[main["name"]]] = Category.ANNOTATION
        pairs: dict[int, tuple[int | str, int | str]] = {}
        for pair, number in self._threads.items():
            pairs.setdefault(number, pair)
        gpu, calls = GpuEvents(**self._gpu.joined()), Calls(**self._calls.joined())
        scopes, memory = Scopes(**self._scopes.joined()), Allocations(**self._memory.joined())
        begin, thread, duration = main["begin"], main["thread"], main["duration"]
        inner_last = (-duration[scopes.row], begin[scopes.row], thread[scopes.row])
        return Trace(
            strings=tuple(self._names),
            texts=tuple(text.decode(errors="replace") for text in self._texts),
            threads=tuple(Thread(*pair, self._thread_names.get(number, "")) for number, pair in sorted(pairs.items())),
            **main,
            gpu=self._ordered(gpu, np.argsort(begin[gpu.row], kind="stable")),
            calls=self._ordered(calls, np.argsort(begin[calls.row], kind="stable")),
            scopes=self._ordered(scopes, np.lexsort(inner_last)),
            allocations=self._ordered(memory, np.argsort(memory.time, kind="stable")),
            about=about,
            notes=self._notes.sentences(),
            room=self._room,
        )

    def _ordered(self, table: Table, order: Ints) -> Table:
        columns = {each.name: self._room.kept(getattr(table, each.name)[order]) for each in fields(table)}  # type: ignore[arg-type]
        return type(table)(**columns)

    def _add(self, events: Sequence[Event]) -> None:
        timed, begin = _timed(events)
        self._notes.count("have no time and were skipped", len(events) - len(timed))
        lengths = np.array([event.dur for event in timed])
        odd = ~usable(lengths, least=0)
        lengths[odd] = 0
        self._notes.count("have no duration, or one below zero; it was taken as zero", int(odd.sum()))
        categories = self._categories.codes([event.cat for event in timed], np.int8)
        self._main.add(
            {
                "name": self._names.codes([event.name for event in timed]),
                "category": categories,
                "thread": self._threads_of(timed),
                "begin": nanoseconds(begin),
                "duration": nanoseconds(lengths),
            }
        )
        tables = _TABLE[categories]
        for table, add in enumerate((self._add_gpu, self._add_calls, self._add_scopes)):
            places = np.flatnonzero(tables == table)
            add(places + self._count, [timed[place] for place in places.tolist()])
        self._count += len(timed)

    def _threads_of(self, events: Sequence[Event]) -> Codes:
        pairs = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        codes: Codes = self._threads.codes(pairs, count=len(events))
        return codes

    def _add_gpu(self, rows: Ints, events: Sequence[Event]) -> None:
        args = [event.args or NO_ARGUMENTS for event in events]
        device = [_else(each.device, event.pid) for each, event in zip(args, events, strict=True)]
        stream = [_else(each.stream, event.tid) for each, event in zip(args, events, strict=True)]
        self._gpu.add(
            {
                "row": rows,
                "device": _whole(device),
                "stream": _whole(stream),
                "correlation": _whole([each.correlation for each in args]),
                "external": _external(args),
                "grid": _triples([each.grid for each in args]),
                "block": _triples([each.block for each in args]),
                "registers": _whole([each.registers for each in args]),
                "shared_memory": _whole([each.shared_memory for each in args]),
                "blocks_per_sm": _floats([each.blocks_per_sm for each in args]),
                "warps_per_sm": _floats([each.warps_per_sm for each in args]),
                "occupancy": _floats([each.occupancy for each in args]),
                "bytes": _whole([each.bytes for each in args]),
            }
        )

    def _add_calls(self, rows: Ints, events: Sequence[Event]) -> None:
        args = [event.args or NO_ARGUMENTS for event in events]
        correlation = _whole([each.correlation for each in args])
        self._calls.add({"row": rows, "correlation": correlation, "external": _external(args)})

    def _add_scopes(self, rows: Ints, events: Sequence[Event]) -> None:
        args = [event.args or NO_ARGUMENTS for event in events]
        columns: dict[str, Any] = {"row": rows, "external": _external(args)}
        for name in ("shapes", "types", "stack"):
            raws = map(attrgetter(name), args)
            # The raw text points into its whole block, which must not live on.
            columns[name] = self._texts.codes([b"" if raw is NOTHING else bytes(raw) for raw in raws])
        self._scopes.add(columns)

    def _add_memory(self, events: Sequence[Event]) -> None:
        events, times = _timed(events)
        args = [event.args or NO_ARGUMENTS for event in events]
        self._memory.add(
            {
                "time": nanoseconds(times),
                "thread": self._threads_of(events),
                "device_type": _whole([each.device_type for each in args]),
                "device": _whole([each.device_id for each in args]),
                "change": _whole([each.change for each in args]),
                "address": _whole([each.address for each in args]),
                "allocated": _whole([each.allocated for each in args]),
                "reserved": _whole([each.reserved for each in args]),
            }
        )


def _number(value: Any) -> int | str:
    """A process or thread as a number where it is one, also where it is written as a text."""
    if isinstance(value, float):
        return int(value)
    text = str(value)
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text


def _else(value: Any, other: Any) -> Any:
    """What an argument tells, or else the process or thread of the event, if that is a number."""
    number = value if value is not None else _number(other)
    return None if isinstance(number, str) else number


def _timed(events: Sequence[Event]) -> tuple[Sequence[Event], Any]:
    """The events that have a time, and their times in microseconds."""
    times = np.array([event.ts for event in events])
    known = usable(times)
    if known.all():
        return events, times
    return [event for event, has in zip(events, known.tolist(), strict=True) if has], times[known]


def _external(args: Sequence[Arguments]) -> Ints:
    return _whole([each.external if each.external is not None else each.external_before for each in args])


def _whole(values: Sequence[Any]) -> Ints:
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, OverflowError):  # most have neither what is not told nor what does not fit
        known = [UNKNOWN if value is None else value for value in values]
    try:
        return np.array(known, dtype=np.int64)
    except OverflowError:
        return np.array([min(max(int(value), -_LARGEST), _LARGEST) for value in known], dtype=np.int64)


def _floats(values: list[Any]) -> Any:
    return np.array([np.nan if value is None or abs(value) > _LARGEST else value for value in values], dtype=np.float64)


def _triples(values: list[list[int] | None]) -> Ints:
    right = [value if value and len(value) == 3 else (0, 0, 0) for value in values]
    return _whole([number for value in right for number in value]).reshape(-1, 3)


def _parts(room: Room, form: type[Any]) -> Parts:
    return Parts(room, [each.name for each in fields(form)])
