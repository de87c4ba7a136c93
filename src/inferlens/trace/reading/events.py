"""A trace's text, block by block, becomes events, some thousands at a time; and what stands beside them.

The text is cut behind an event, on trust: what is decoded must be whole, and so a cut within an event is found out and
made elsewhere. The list of events may be the value of ``traceEvents`` or the whole text, and it may lack its end.
Text that is no JSON is mended where that is safe; of the rest, single events are skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import Raw

from inferlens.errors import InferlensError
from inferlens.trace.reading.forms import PROBLEMS, About, Event, Remarks, decode_events, lenient, mended
from inferlens.units import byte_count

# What may stand before the events or after them, and what may be one of them.
MOST_HELD = 32 * 2**20
MOST_EVENT = 8 * 2**20
MOST_SKIPPED = 100_000
_SKIPPED = "could not be read and were skipped"
_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATOR = re.compile(rb"\}\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_ABOUT = {field.encode_name for field in msgspec.structs.fields(About)}
_MARK = b"\xef\xbb\xbf"
_TAIL = 2**13
_TRIES = 4
_EXPECTED = (
    "the JSON that torch.profiler's export_chrome_trace writes, or another tool's in Chrome's trace event format"
)
_LOOSE = msgspec.json.Decoder(list[dict[str, Raw]])
Item = TypeVar("Item")


class EventReader:
    """Iterates over lists of events; ``about`` is complete when that has ended."""

    def __init__(self, blocks: Iterator[bytes], remarks: Remarks) -> None:
        self._blocks, self._remarks = blocks, remarks
        self._beside: dict[str, Raw] = {}
        self._held = b""
        self._bare = self._ended = False

    @property
    def about(self) -> About:
        """What stands beside the events."""
        return lenient(About, self._beside)

    def __iter__(self) -> Iterator[list[Event]]:
        self._start()
        while not self._ended:
            block = next(self._blocks, b"")
            yield self._next(block) if block else self._last()
            if self._remarks.counts[_SKIPPED] >= MOST_SKIPPED:
                self._remarks.remark("Too much of it cannot be read; the rest was left out.")
                return
        self._finish()

    def _start(self) -> None:
        """Reads up to the first event."""
        while True:
            block = next(self._blocks, b"")
            self._held = (self._held + block).lstrip().removeprefix(_MARK).lstrip()
            if self._held[:1] == b"[":
                self._bare, self._held = True, self._held[1:]
                return
            if not self._held and not block:
                raise InferlensError("This is no trace: it is empty.", expected=_EXPECTED)
            if self._held and self._held[:1] != b"{":
                raise InferlensError("This is no trace: it is no JSON.", expected=_EXPECTED)
            for match in islice(_BEGIN.finditer(self._held), _TRIES):
                beside = _beside(self._held[: match.start()] + b'"traceEvents":[]}')
                if beside is not None:
                    self._beside, self._held = beside, self._held[match.end() :]
                    return
            if not block or len(self._held) > MOST_HELD:
                raise InferlensError("This is no trace: it has no traceEvents.", expected=_EXPECTED)

    def _next(self, block: bytes) -> list[Event]:
        """Events up to the last place where the text can be cut."""
        end = _cut(block, len(block)) + 1
        with suppress(*PROBLEMS):  # the usual way: what is decoded is copied once, which is a tenth of the time
            if end:
                events = decode_events(b"".join((b"[", self._held, memoryview(block)[:end], b"]")))
                self._held = block[end:].lstrip().removeprefix(b",")
                return events
        self._held += block
        end = len(self._held)
        for _ in range(_TRIES):
            end = _cut(self._held, end)
            if end < 0:
                break
            try:
                return self._taken(end + 1)
            except PROBLEMS as error:
                if "truncated" not in str(error):  # else the cut is within a string or an event
                    return self._salvaged(end + 1)
        if len(self._held) <= MOST_EVENT:
            return []
        self._remarks.remark(
            f"An event is larger than {byte_count(MOST_EVENT)}, or its end is missing; the rest was left out."
        )
        events = self._salvaged(len(self._held))
        self._ended, self._held, self._blocks = True, b"", iter(())
        return events

    def _last(self) -> list[Event]:
        """Events of the text that is left when there is no more."""
        self._held = self._held.strip().rstrip(b",")
        try:
            events = self._taken(len(self._held))
        except PROBLEMS:
            events = self._salvaged(len(self._held))
        if not (self._ended or self._bare):
            self._remarks.remark("The text ends within the events; the rest is missing.")
        self._ended = True
        return events

    def _taken(self, end: int) -> list[Event]:
        """Events of the text held, up to a place in it or to where the list ends."""
        events, rest = _decoded(decode_events, self._held[:end])
        self._leave(rest, end)
        return events

    def _salvaged(self, end: int) -> list[Event]:
        """The same of text that is broken: it is halved until it can be decoded, or is one event."""
        text = mended(self._held[:end]).strip().strip(b",")
        starts = [0, *(match.end() for match in _SEPARATOR.finditer(text))]
        ends = [*(match.start() + 1 for match in _SEPARATOR.finditer(text)), len(text)]
        waiting = [(0, len(starts))] if text else []
        events: list[Event] = []
        rest = None
        while waiting and rest is None and self._remarks.counts[_SKIPPED] < MOST_SKIPPED:
            low, high = waiting.pop()
            part = text[starts[low] : ends[high - 1]]
            try:
                found, rest = _decoded(decode_events, part)
                events += found
            except PROBLEMS:
                if high - low > 1:
                    middle = (low + high) // 2
                    waiting += [(middle, high), (low, middle)]
                    continue
                try:
                    loose, rest = _decoded(_LOOSE.decode, part)
                    events += [lenient(Event, each) for each in loose]
                except PROBLEMS:
                    self._remarks.count(_SKIPPED)
            if rest is not None:
                rest += text[ends[high - 1] :]
        self._leave(rest, end)
        return events

    def _leave(self, rest: bytes | None, end: int) -> None:
        """Keeps what follows what was read: behind the list if that has ended, else from a place in the text held."""
        behind = self._held[end:]
        self._ended = rest is not None
        self._held = behind.lstrip().removeprefix(b",") if rest is None else rest + behind

    def _finish(self) -> None:
        """Reads what stands behind the events."""
        while len(self._held) <= MOST_HELD and (block := next(self._blocks, b"")):
            self._held += block
        rest = self._held.strip().removeprefix(b",")
        beside = None if self._bare else _beside(b"{" + rest)
        if beside is not None:
            self._beside = {**beside, **self._beside}
        elif rest:
            size = byte_count(len(rest))
            self._remarks.remark(f"What follows the events cannot be read ({size} or more); it was left out.")


def _decoded(decode: Callable[[bytes], list[Item]], text: bytes) -> tuple[list[Item], bytes | None]:
    """The items of a text of objects with commas between them; and what follows, if the list ends within the text.

    Raises:
        msgspec.DecodeError: or another of :data:`PROBLEMS`, if it is not as it should be.
    """
    try:
        return decode(b"[" + text + b"]"), None
    except PROBLEMS as error:
        trailing = _TRAILING.search(str(error))
        if not trailing:
            raise
        # msgspec counts from the bracket put before the text, and names the place behind it or the one after that.
        end = text.rfind(b"]", 0, int(trailing[1]))
        return decode(b"[" + text[:end] + b"]"), text[end + 1 :]


def _cut(text: bytes, end: int) -> int:
    """Place of the last brace before ``end`` that is followed by a comma and another brace; -1 if there is none."""
    reach = _TAIL
    while True:
        low = max(0, end - reach)
        found = -1
        for match in _SEPARATOR.finditer(text, low, min(len(text), end + _TAIL)):
            if match.start() >= end:
                break
            found = match.start()
        if found >= 0 or low == 0:
            return found
        reach *= 16


def _beside(text: bytes) -> dict[str, Raw] | None:
    """What is of use in an object beside the events; ``None`` if the text is none."""
    for form in (bytes, mended):
        try:
            fields = msgspec.json.decode(form(text), type=dict[str, Raw])
        except PROBLEMS:
            continue
        return {key: fields[key].copy() for key in _ABOUT.intersection(fields)}
    return None
