"""Reading a :class:`Trace` from a file, a pipe or bytes. Damage is no error as long as there is a list of events."""

from __future__ import annotations

import gzip
import io
import json
import re
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import fields
from decimal import Decimal
from itertools import chain, compress, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, field
from numpy.typing import NDArray

from inferlens.errors import InferlensError, library
from inferlens.limits import memory_left
from inferlens.record.files import TRACES, FileType, file_kind, wrong_file
from inferlens.trace.model import (
    ANNOTATIONS,
    CALLS,
    GPU,
    MIXED,
    PROBLEMS,
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
    TraceMetadata,
    category_of,
)
from inferlens.units import byte_count, percent, plural

# The text of a trace comes from a file, a pipe or bytes, and becomes events block by block.
#
# The text is cut behind an event, without a check. If the cut is within an event, decoding fails, and the text is cut
# elsewhere. The list of events may be the value of ``traceEvents`` or the whole text, and it may lack its end. Text
# that is no JSON is mended if that is safe. Otherwise the broken events are skipped and counted.

BLOCK = 2**19  # stays in a processor's cache until it is decoded: blocks of 4 MiB take a third longer
MOST_HELD = 32 * 2**20  # bytes before the events, or after them
MOST_EVENT = 8 * 2**20  # bytes of one event
_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_LAST = re.compile(rb".*\}(?=[\s,]*\{)", re.DOTALL)
# The begin of an event in broken text, and the end of the list behind an event.
_EVENT = re.compile(r'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|bp|s)"\s*:')
_END = re.compile(r"[\s,]*\]")
_OBJECT = json.JSONDecoder(strict=False, parse_float=Decimal)  # floats would lose nanoseconds
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_ABOUT = {field.encode_name for field in msgspec.structs.fields(TraceMetadata)}
_MARK = b"\xef\xbb\xbf"
_TRIES = 4
_EXPECTED = "JSON in Chrome's trace event format, as torch.profiler writes it: .json, .json.gz or .json.zst"


def blocks(source: Path | bytes, remarks: Remarks) -> Iterator[bytes]:
    """Yield the unpacked text of ``source`` in blocks of :data:`BLOCK` bytes. Damage ends it and adds a note.

    Raises InferlensError if it cannot be opened, is a folder or a device, or needs a library that is not there.
    """
    with closing(_opened(source)) as file:
        read = _unpacking_reader(file)
        damaged = False
        while not damaged:
            parts, missing = [], BLOCK
            try:
                while missing and (part := read(missing)):
                    parts.append(part)
                    missing -= len(part)
            except Exception as error:
                # The unpackers have errors of their own, by library, and an OSError comes from a disk or a pipe.
                if not isinstance(error, (OSError, EOFError, zlib.error)) and type(error).__name__ != "ZstdError":
                    raise
                remarks[f"The file is damaged ({error}); what comes after that was left out."] += 1
                damaged = True
            if not parts:
                return
            yield b"".join(parts)


def _opened(source: Path | bytes) -> io.BufferedReader:
    if isinstance(source, bytes):
        return io.BufferedReader(io.BytesIO(source))
    try:
        if str(source) == "-":
            return open(sys.stdin.fileno(), "rb", closefd=False)
        mode = source.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise InferlensError(f"{source} is not a file.", expected=_EXPECTED)
        return source.open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InferlensError(f"{source} cannot be read: {reason}.", expected=_EXPECTED) from error


def _unpacking_reader(file: io.BufferedReader) -> Callable[[int], bytes]:
    """Return a reader of a file's text that never reads more than requested and keeps the text before damage."""
    start = file.peek(4)[:4]
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file, mode="rb").read1
    if start != b"\x28\xb5\x2f\xfd":
        return file.read
    unpacker = library("zstandard", extra="traces").ZstdDecompressor(max_window_size=2**27)
    read: Callable[[int], bytes] = unpacker.stream_reader(file, read_across_frames=True).read1
    return read


class NotATrace(InferlensError):
    """Text that is no trace."""


class EventReader:
    """An iterator over lists of events. ``about`` is complete when the iteration has ended."""

    def __init__(self, blocks: Iterator[bytes], remarks: Remarks) -> None:
        self._blocks, self._remarks = blocks, remarks
        self._metadata: dict[str, Raw] = {}
        self._buffer = b""
        self._bare = self._ended = False

    @property
    def about(self) -> TraceMetadata:
        return TraceMetadata.decode(self._metadata)

    def __iter__(self) -> Iterator[list[Event]]:
        self._start()
        while not self._ended:
            block = next(self._blocks, b"")
            yield self._next(block) if block else self._last()
        self._finish()

    def _start(self) -> None:
        first = next(self._blocks, b"")
        kind = file_kind(first)
        if kind.kind not in TRACES and not (kind.kind is FileType.JSON and b"{" in first[:100].split(b"[")[0]):
            raise NotATrace(f"This is not a trace: it is {kind.title}.", expected=_EXPECTED)
        self._blocks = chain([first], self._blocks)
        while True:
            block = next(self._blocks, b"")
            self._buffer = (self._buffer + block).lstrip().removeprefix(_MARK).lstrip()
            if self._buffer[:1] == b"[":
                self._bare, self._buffer = True, self._buffer[1:]
                return
            for match in islice(_BEGIN.finditer(self._buffer), _TRIES):
                metadata = _read_metadata(self._buffer[: match.start()] + b'"traceEvents":[]}')
                if metadata is not None:
                    self._metadata, self._buffer = metadata, self._buffer[match.end() :]
                    return
            if not block or len(self._buffer) > MOST_HELD or self._buffer[:1] not in (b"{", b""):
                raise NotATrace("This is not a trace: it has no traceEvents.", expected=_EXPECTED)

    def _next(self, block: bytes) -> list[Event]:
        """Return the events before the last cut that decodes."""
        self._buffer += block
        end = len(self._buffer) + 1
        for _ in range(_TRIES):
            end = _cut(self._buffer, end - 1)
            if not end:
                break
            if (events := self._read(end, cut=True)) is not None:
                return events
        if len(self._buffer) <= MOST_EVENT:
            return []
        events = self._read(_cut(self._buffer, len(self._buffer) + 1) or len(self._buffer)) or []
        if not events:
            self._remarks[f"An event is larger than {byte_count(MOST_EVENT)}; the rest was left out."] += 1
            self._ended, self._buffer, self._blocks = True, b"", iter(())
        return events

    def _last(self) -> list[Event]:
        self._buffer = self._buffer.strip().rstrip(b",")
        events = self._read(len(self._buffer)) or []
        if not (self._ended or self._bare):
            self._remarks["The text ends within the events; the rest is missing."] += 1
        self._ended = True
        return events

    def _read(self, end: int, *, cut: bool = False) -> list[Event] | None:
        """Return the events of the buffer up to ``end`` or to the end of the list; keep the rest of the buffer.

        Broken text is mended, or else read event by event. ``None`` if a ``cut`` is within a string or an event.
        """
        try:
            events, remainder = _decoded(self._buffer[:end])
        except PROBLEMS as error:
            if cut and "truncated" in str(error):
                return None
            text = mend_json(self._buffer[:end]).strip().strip(b",")
            try:
                events, remainder = _decoded(text)
            except PROBLEMS:
                events, remainder = self._one_by_one(text.decode())
        uncut = self._buffer[end:]
        self._ended = remainder is not None
        self._buffer = uncut.lstrip().removeprefix(b",") if remainder is None else remainder + uncut
        return events

    def _one_by_one(self, text: str) -> tuple[list[Event], bytes | None]:
        """Read every whole event, wherever it begins, and count the broken ones."""
        events: list[Event] = []
        end = 0
        for start in (match.start() for match in _EVENT.finditer(text)):
            with suppress(*PROBLEMS, ValueError):
                if start < end or not (event := _one_event(text, start)):
                    continue
                self._lost(text[end:start])
                events.append(event[0])
                end = event[1]
                if list_end := _END.match(text, end):
                    return events, text[list_end.end() :].encode()
        self._lost(text[end:])
        return events, None

    def _lost(self, text: str) -> None:
        count = max(text.count('"ph"'), bool(text.strip(", \t\r\n")))
        self._remarks["could not be read and were skipped"] += count

    def _finish(self) -> None:
        while len(self._buffer) <= MOST_HELD and (block := next(self._blocks, b"")):
            self._buffer += block
        remainder = self._buffer.strip().removeprefix(b",")
        metadata = None if self._bare else _read_metadata(b"{" + remainder)
        if metadata is not None:
            self._metadata = {**metadata, **self._metadata}
        elif remainder:
            self._remarks["What follows the events cannot be read; it was left out."] += 1


def _decoded(text: bytes) -> tuple[list[Event], bytes | None]:
    """Return the events of a text of objects with commas between them, and the rest if the list ends within the text.

    Raises msgspec.DecodeError or another of :data:`PROBLEMS`, if it is not as it should be.
    """
    try:
        return decode_events(b"[" + text + b"]"), None
    except PROBLEMS as error:
        trailing = _TRAILING.search(str(error))
        if not trailing:
            raise
        # msgspec counts from the bracket that was put before the text, to the end of the list or one byte further.
        end = text.rfind(b"]", 0, int(trailing[1]))
        return decode_events(b"[" + text[:end] + b"]"), text[end + 1 :]


def _one_event(text: str, start: int) -> tuple[Event, int] | None:
    """Return the event that begins at ``start``, and its end in the text; ``None`` for an object that is not an event.

    Raises ValueError or another of :data:`PROBLEMS` if the object is broken.
    """
    fields, end = _OBJECT.raw_decode(text, start)
    for form in (fields, {**fields, "args": None}):  # arguments may have any form
        with suppress(*PROBLEMS):
            event = decode_events(msgspec.json.encode([form]))[0]
            return (event, end) if event.ph else None
    return None


def _cut(text: bytes, end: int) -> int:
    """Return the end of the last brace before ``end`` that a comma and another brace follow; 0 without one."""
    match = _LAST.match(text, 0, end)
    return match.end() if match else 0


def _read_metadata(text: bytes) -> dict[str, Raw] | None:
    """Return the useful fields of an object other than the events; ``None`` if the text is no object."""
    for form in (bytes, mend_json):
        try:
            fields = msgspec.json.decode(form(text), type=dict[str, Raw])
        except PROBLEMS:
            continue
        return {key: fields[key].copy() for key in _ABOUT.intersection(fields)}
    return None


# Events become columns, some thousands at a time, so that no more of them than that exist at once.

Part = TypeVar("Part", GpuEvents, Calls, Scopes, Allocations)
_LARGEST = 2**63 - 1
_LATEST = 2**62 // 1000  # microseconds; sums of two such times, in nanoseconds, fit into 64 bits
_SHARE = 4  # columns take a quarter of the free memory, because derived values take about three times as much
_CUT_OFF = 0.05  # of the launches
_NAMED = 5  # unknown categories in a message
# The parts of the trace, with a mask of the numbers of their categories.
_PARTS: dict[type[Any], Bools] = {
    form: np.isin(list(Category), kinds) for form, kinds in ((GpuEvents, GPU), (Calls, CALLS), (Scopes, SCOPES))
}


class _Codes(dict[Any, int]):
    """A dictionary that numbers its keys in the order of their first lookup."""

    def of(self, keys: Sequence[Any]) -> Codes:
        return np.fromiter(map(self.__getitem__, keys), np.int32, len(keys))

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class TraceBuilder:
    """A builder that takes events and returns their trace."""

    def __init__(self, remarks: Remarks) -> None:
        self._remarks = remarks
        self._names, self._texts, self._threads = _Codes(), _Codes({b"": 0}), _Codes()
        self._columns: dict[type[Any], list[dict[str, NDArray[Any]]]] = {}
        self._processes: dict[Any, str] = {}  # names by number
        self._unknown: Counter[str] = Counter()  # events of unknown categories
        self._unknown_time = 0  # nanoseconds of those of a device
        self._count = self._bytes = 0
        self._most = memory_left() // _SHARE

    def add(self, events: Sequence[Event]) -> None:
        """Add events, in any order. Raises InferlensError if memory has no room for them."""
        others = [event for event in events if event.ph != "X"]
        for event in others:
            if event.name == "process_name" and event.args:
                self._processes[event.pid] = _text(event.args.process)
        self._add_complete([event for event in events if event.ph == "X"])
        memory, times = _timed([
            event for event in others
            if event.name == "[memory]" and event.ts is not None
            and event.args and None not in (event.args.change, event.args.allocated)
        ])  # fmt: skip
        args = [event.args or NO_ARGUMENTS for event in memory]
        self._add_part(Allocations, args, time=times, thread=self._threads_of(memory))
        halves = sum(event.ph in ("B", "E") for event in others)
        self._remarks["are a begin or an end alone, not both in one, and were skipped"] += halves

    def trace(self, about: TraceMetadata) -> Trace:
        self.add([])
        main = self._joined(Trace)
        annotations = np.array([name.startswith(ANNOTATIONS) for name in self._names], dtype=bool)
        operators = main["category"] == Category.OPERATOR
        main["category"][operators & annotations[main["name"]]] = Category.ANNOTATION
        begin, thread, duration = main["begin"], main["thread"], main["duration"]
        gpu, calls = GpuEvents(**self._joined(GpuEvents)), Calls(**self._joined(Calls))
        scopes, memory = Scopes(**self._joined(Scopes)), Allocations(**self._joined(Allocations))
        self._remark_lost_kernels(gpu, calls, main["name"][calls.row], begin[calls.row])
        if self._unknown:
            self._remarks[self._unknown_share(len(begin), int(duration[gpu.row].sum()))] += 1
        inner_last = (-duration[scopes.row], begin[scopes.row], thread[scopes.row])
        return Trace(
            strings=tuple(self._names), texts=tuple(text.decode(errors="replace") for text in self._texts),
            threads=tuple(self._threads), about=about, notes=sentences(self._remarks), **main,
            gpu=_ordered(gpu, np.argsort(begin[gpu.row], kind="stable")),
            calls=_ordered(calls, np.argsort(begin[calls.row], kind="stable")),
            scopes=_ordered(scopes, np.lexsort(inner_last)),
            allocations=_ordered(memory, np.argsort(memory.time, kind="stable")),
        )  # fmt: skip

    def _remark_lost_kernels(self, gpu: GpuEvents, calls: Calls, names: Ints, begin: Ints) -> None:
        """Remark launches whose kernels are missing, unless they are as few as a profiler's end cuts off.

        Launches while a graph is captured run no kernel.
        """

        def calls_named(word: str) -> Bools:
            return np.array([word in name.lower() for name in self._names], dtype=bool)[names]

        captures, capture_ends = (
            np.searchsorted(np.sort(begin[calls_named(word)]), begin, "right")
            for word in ("begincapture", "endcapture")
        )
        launch = calls_named("launchkernel") & (captures <= capture_ends)
        lost = launch & ~np.isin(calls.correlation, gpu.correlation)
        if len(gpu) and lost.sum() > _CUT_OFF * launch.sum():
            what = "launch kernels that are missing in the trace: it shows less work than there was"
            self._remarks[what] += int(lost.sum())

    def _keep(self, form: type[Any], columns: dict[str, Any]) -> None:
        self._columns.setdefault(form, []).append(columns)
        self._bytes += sum(column.nbytes for column in columns.values())
        if self._bytes > self._most:
            what = f"The trace is larger than memory: there is no room for more than {self._count:,} of its events."
            raise InferlensError(what, hint="fewer steps in a trace, or a machine with more memory")

    def _joined(self, form: type[Any]) -> dict[str, Any]:
        """Return the columns, joined one after the other, so that only one is in memory twice."""
        parts = self._columns.pop(form)
        return {name: np.concatenate([part.pop(name) for part in parts]) for name in tuple(parts[0])}

    def _add_complete(self, events: list[Event]) -> None:
        timed, begin = _timed(events)
        self._remarks["have no time and were skipped"] += len(events) - len(timed)
        durations, usable = _nanoseconds([event.dur for event in timed], least=0)
        self._remarks["have no duration, or one below zero; it was taken as zero"] += int((~usable).sum())
        categories = np.fromiter(map(category_of, [event.cat for event in timed]), np.int8, len(timed))
        for index in [index for index, event in enumerate(timed) if event.cat in MIXED]:
            categories[index] = self._refine_category(timed[index])
        for index in np.flatnonzero(categories == Category.OTHER).tolist():
            event = timed[index]
            self._unknown[event.cat or self._processes.get(event.pid) or "none"] += 1
            if event.args and (event.args.device, event.args.stream) != (None, None):
                self._unknown_time += int(durations[index])
        columns = {
            "name": self._names.of([event.name for event in timed]),
            "category": categories,
            "thread": self._threads_of(timed),
            "begin": begin,
            "duration": durations,
        }
        self._keep(Trace, columns)
        for form, kinds in _PARTS.items():
            indices = np.flatnonzero(kinds[categories])
            args = [timed[index].args or NO_ARGUMENTS for index in indices.tolist()]
            self._add_part(form, args, row=indices + self._count)
        self._count += len(timed)

    def _refine_category(self, event: Event) -> int:
        """Return the kind of an event of :data:`MIXED` categories; set the device and the correlation that it lacks."""
        args = event.args = event.args or Arguments()
        if not event.cat:
            args.correlation = args.connection if args.correlation is None else args.correlation
            return category_of(self._processes.get(event.pid, ""), _text(args.task))
        if event.cat == "hpu_op" and args.device is None:
            return Category.RUNTIME
        args.device = event.pid if args.device is None and isinstance(event.pid, int) else args.device
        return category_of(event.cat, event.name)

    def _unknown_share(self, events: int, device_time: int) -> str:
        """Return the sentence about events of unknown categories."""
        names, count = [name for name, _ in self._unknown.most_common(_NAMED)], len(self._unknown)
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        share = self._unknown_time / (self._unknown_time + device_time) if self._unknown_time else 0
        times = f", {percent(share)} of the device time" if share else ""
        share = self._unknown.total() / events
        return f"{percent(share)} of the events{times} are of unknown categories: {', '.join(names)}{more}."

    def _threads_of(self, events: Sequence[Event]) -> Codes:
        pairs = [(event.pid, event.tid) for event in events]
        # A trace may write the numbers as texts.
        codes = {pair: self._threads[str(pair[0]), str(pair[1])] for pair in dict.fromkeys(pairs)}
        return np.array([codes[pair] for pair in pairs], dtype=np.int32)

    def _add_part(self, form: type[Any], args: Sequence[Arguments], **columns: NDArray[Any]) -> None:
        """Keep the columns of a part of the trace: these, and the arguments that have the names of its other fields."""
        for name in [part_field.name for part_field in fields(form) if part_field.name not in columns]:
            values = list(map(attrgetter(name), args))
            if form is Scopes:
                # The raw text points into its whole block, which must not live on.
                columns[name] = self._texts.of([b"" if raw is NOTHING else bytes(raw) for raw in values])
            else:
                columns[name] = _CONVERSIONS[name](values) if name in _CONVERSIONS else _whole(values)
        self._keep(form, columns)


def _ordered(part: Part, order: Ints) -> Part:
    return type(part)(**{field.name: getattr(part, field.name)[order] for field in fields(part)})


def _nanoseconds(microseconds: list[Any], least: int = -_LATEST + 1) -> tuple[Ints, Bools]:
    """Return times, as int, float or Decimal, in whole nanoseconds without loss, and a mask of the usable ones.

    A time that is missing, not finite or out of range is zero. A float holds thousandths exactly enough up to 2^43
    microseconds, 101 days; times a thousand it would not.
    """
    times = np.array(microseconds)
    if times.dtype == object:
        usable = np.array([time is not None and least <= time < _LATEST for time in microseconds], dtype=bool)
    else:
        usable = (times >= least) & (times < _LATEST)
    if not usable.all():
        times = np.array(np.where(usable, times, 0).tolist())  # without those that were missing it may be of floats
    if times.dtype == object:
        return np.array([round(Decimal(time) * 1000) for time in times.tolist()], dtype=np.int64), usable
    floor = np.floor(times)
    return floor.astype(np.int64) * 1000 + np.rint((times - floor) * 1000).astype(np.int64), usable


def _timed(events: list[Event]) -> tuple[list[Event], Ints]:
    """Return the events that have a time, and their times in nanoseconds."""
    times, usable = _nanoseconds([event.ts for event in events])
    if usable.all():
        return events, times
    return list(compress(events, usable)), times[usable]


def _whole(values: Sequence[Any]) -> Ints:
    """Return whole numbers; a missing number, or one that fits into no column, is :data:`UNKNOWN`."""
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, OverflowError):  # most have neither
        numbers = (UNKNOWN if value is None or abs(value) >= _LARGEST else int(value) for value in values)
        return np.fromiter(numbers, np.int64, len(values))


def _text(raw: Raw) -> str:
    with suppress(*PROBLEMS):
        return msgspec.json.decode(raw, type=str)
    return ""


def _floats(values: list[Any]) -> Any:
    return np.array([np.nan if value is None or abs(value) > _LARGEST else value for value in values], dtype=np.float64)


def _triples(values: list[list[int] | None]) -> Ints:
    triples = [value if value and len(value) == 3 else (0, 0, 0) for value in values]
    return _whole([number for value in triples for number in value]).reshape(-1, 3)


# Of arguments that are no whole numbers.
_CONVERSIONS: dict[str, Callable[[list[Any]], Any]] = {
    "grid": _triples, "block": _triples, "blocks_per_sm": _floats, "occupancy": _floats,
}  # fmt: skip


def read_trace(source: Path | bytes) -> Trace:
    """Return the trace with all complete events. Its ``notes`` say which events were skipped or mended.

    ``source`` is a file, plain or packed with gzip or zstd, a pipe, or ``-``; or what such a file holds. Raises
    InferlensError if it cannot be opened, is no trace, or memory has no room for it.
    """
    remarks: Remarks = Counter()
    builder = TraceBuilder(remarks)
    try:
        reader = EventReader(blocks(source, remarks), remarks)
        for events in reader:
            builder.add(events)
    except InferlensError as error:
        if isinstance(source, bytes):
            raise
        if isinstance(error, NotATrace) and source.is_file() and (kind := file_kind(source)).kind not in TRACES:
            raise wrong_file(source, kind, expected=_EXPECTED) from error
        what = error.what if error.what.startswith(str(source)) else f"{source}: {error.what}"
        raise InferlensError(what, expected=error.expected, hint=error.hint) from error
    return builder.trace(reader.about)


# The JSON forms of a trace, decoded and, where the text is no JSON, mended.
#
# Only the used fields are here. Decoding ignores all other fields.

NOTHING = Raw(b"")

Number = int | float | None


class Arguments(Struct, gc=False):
    """Arguments of an event, of every category."""

    correlation: Number = None
    device: Number = None
    stream: Number = None
    grid: list[int] | None = None
    block: list[int] | None = None
    registers: Number = field(default=None, name="registers per thread")
    shared_memory: Number = field(default=None, name="shared memory")
    blocks_per_sm: Number = field(default=None, name="blocks per SM")
    occupancy: Number = field(default=None, name="est. achieved occupancy %")
    shapes: Raw = field(default=NOTHING, name="Input Dims")
    stack: Raw = field(default=NOTHING, name="Call stack")
    device_type: Number = field(default=None, name="Device Type")
    device_id: Number = field(default=None, name="Device Id")
    change: Number = field(default=None, name="Bytes")
    address: Number = field(default=None, name="Addr")
    allocated: Number = field(default=None, name="Total Allocated")
    process: Raw = field(default=NOTHING, name="name")  # of an event of metadata
    task: Raw = field(default=NOTHING, name="Task Type")
    connection: Number = field(default=None, name="connection_id")


NO_ARGUMENTS = Arguments()


class Event(Struct, gc=False):
    """One event, whatever its phase."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Arguments | None = None


class ExactEvent(Event, gc=False):
    """An event with times that no float holds to the nanosecond: microseconds since 1970, with decimals."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
_EXACT = msgspec.json.Decoder(list[ExactEvent], strict=False)
_LARGE = 2.0**43


def decode_events(text: bytes) -> list[Event]:
    """Return events from a JSON list. Raises msgspec.DecodeError if it is no list of events."""
    events: list[Event] = _EVENTS.decode(text)
    times = [event.ts or 0 for event in events]
    if times and (max(times) > _LARGE or min(times) < -_LARGE) and float in set(map(type, times)):
        return list(_EXACT.decode(text))
    return events


# A string, which stays as it is; a brace without a comma behind it, a comma too many, or a number that JSON lacks.
_DAMAGE = re.compile(
    rb'("(?:[^"\\]|\\.)*")|(\}\s*)(?=\{)|(,)(?=\s*[,}\]])'
    rb"|(?<=[:\[,\s])[-+]?(?:NaN|nan|Infinity|infinity|inf|Inf)(?=\s*[,}\]])",
    re.DOTALL,
)
_ESCAPES = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_CONTROLS = bytes(32 if byte < 32 else byte for byte in range(256))


def mend_json(text: bytes) -> bytes:
    """Return ``text`` with the usual damage undone: odd numbers become ``null``, commas and escapes are put right."""
    text = text.translate(_CONTROLS).decode(errors="replace").encode()
    text = _DAMAGE.sub(_undo_damage, text)
    return _ESCAPES.sub(lambda match: match[1] or b"\\\\", text)


def _undo_damage(match: re.Match[bytes]) -> bytes:
    string, brace, comma = match.groups()
    if brace:
        return brace + b","
    return string or (b"" if comma else b"null")


# Notes on damage: sentences, and counts of events with the rest of a sentence, such as ``were skipped``.
Remarks = Counter[str]


def sentences(remarks: Remarks) -> tuple[str, ...]:
    """Return the sentences, then one per count."""
    counted = (f"{plural(count, 'event')} {what}." for what, count in remarks.items() if count and what[-1] != ".")
    return (*(what for what in remarks if what[-1] == "."), *counted)
