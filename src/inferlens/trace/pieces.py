"""A trace's text, block by block, becomes events, some thousands at a time; and what stands beside them.

The text is cut behind an event, on trust: what is decoded must be whole, and so a cut within an event is found out and
made elsewhere. The list of events may be the value of ``traceEvents`` or the whole text, and it may lack its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from inferlens.errors import InferlensError
from inferlens.trace.forms import ABOUT, About, Event, decode_events
from inferlens.trace.mending import MOST_SKIPPED, PROBLEMS, SEPARATOR, SKIPPED, decoded, list_end, mended, salvaged
from inferlens.trace.notes import Notes
from inferlens.units import byte_count

# What may stand before the events or after them, and what may be one of them.
MOST_HELD = 32 * 2**20
MOST_EVENT = 8 * 2**20
_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_BYTE = re.compile(r"\(byte (\d+)\)")
_TOLD = {field.encode_name for field in msgspec.structs.fields(About)}
_MARK = b"\xef\xbb\xbf"
_TAIL = 2**13
_TRIES = 4
_EXPECTED = (
    "the JSON that torch.profiler's export_chrome_trace writes, or another tool's in Chrome's trace event format"
)


class Pieces:
    """Iterates over lists of events; ``about`` is complete when that has ended."""

    def __init__(self, blocks: Iterator[bytes], notes: Notes) -> None:
        self.about = About()
        self._blocks, self._notes = blocks, notes
        self._held = b""
        self._bare = False

    def __iter__(self) -> Iterator[list[Event]]:
        self._start()
        ended = False
        while not ended:
            block = next(self._blocks, b"")
            events = self._plain(block) if block else None
            if events is None:
                self._held += block
                events, ended = self._next() if block else self._last()
            yield events
            if self._notes.counts[SKIPPED] >= MOST_SKIPPED:
                self._notes.remark("Too much of it cannot be read; the rest was left out.")
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
                about = _about(self._held[: match.start()] + b'"traceEvents":[]}')
                if about:
                    self.about, self._held = about, self._held[match.end() :]
                    return
            if not block or len(self._held) > MOST_HELD:
                raise InferlensError("This is no trace: it has no traceEvents.", expected=_EXPECTED)

    def _plain(self, block: bytes) -> list[Event] | None:
        """Events up to the last place where a block can be cut; ``None`` if that takes a closer look.

        What is decoded is copied once, which all ways of cutting it elsewhere would do several times.
        """
        end = _cut(block, len(block)) + 1
        if not end:
            return None
        try:
            events = decode_events(b"".join((b"[", self._held, memoryview(block)[:end], b"]")))
        except PROBLEMS:
            return None
        self._held = block[end:].lstrip().removeprefix(b",")
        return events

    def _next(self) -> tuple[list[Event], bool]:
        """Events up to the last place where the text held can be cut; and whether the list ends there."""
        end = len(self._held)
        for _ in range(_TRIES):
            end = _cut(self._held, end)
            if end < 0:
                break
            text = self._held[: end + 1]
            try:
                events = decode_events(b"[" + text + b"]")
            except PROBLEMS as error:
                if "truncated" in str(error):  # the cut is within a string or an event
                    continue
                return self._broken(error, end + 1)
            self._held = self._held[end + 1 :].lstrip().removeprefix(b",")
            return events, False
        self._held = self._held.lstrip()
        return self._too_much() if len(self._held) > MOST_EVENT else ([], False)

    def _too_much(self) -> tuple[list[Event], bool]:
        """Events of more text than one may be that can be cut nowhere, or only within one."""
        end = _cut(self._held, len(self._held)) + 1 or len(self._held)
        text, behind = self._held[:end], self._held[end:]
        self._notes.remark(f"An event is larger than {byte_count(MOST_EVENT)}, or its end is missing; it was left out.")
        events, rest = salvaged(text, self._notes)
        self._held = behind.lstrip().removeprefix(b",") if rest is None else rest + behind
        return events, rest is not None

    def _last(self) -> tuple[list[Event], bool]:
        """Events of the text that is left when there is no more."""
        text = self._held = self._held.strip()
        try:
            events: list[Event] = decode_events(b"[" + text)
        except PROBLEMS as error:
            events, ended = self._broken(error, len(self._held))
            if not (ended or self._bare):
                self._notes.remark("The text ends within the events; the rest is missing.")
        else:
            self._held = b""
        return events, True

    def _broken(self, error: Exception, end: int) -> tuple[list[Event], bool]:
        """Events of text that ends the list, or that is not as it should be."""
        text, behind = self._held[:end], self._held[end:]
        place = list_end(error, text)
        events = None if place is None else decoded(text[:place])
        if place is not None and events is not None:
            self._held = text[place + 1 :] + behind
            return events, True
        events, rest = salvaged(text, self._notes)
        self._held = behind.lstrip().removeprefix(b",") if rest is None else rest + behind
        return events, rest is not None

    def _finish(self) -> None:
        """Reads what stands behind the events."""
        while len(self._held) <= MOST_HELD and (block := next(self._blocks, b"")):
            self._held += block
        rest = self._held.strip().removeprefix(b",")
        if self._bare or not rest:
            left = rest
        else:
            end = _object_end(rest)
            left = rest[end:].strip()
            about = _about(b"{" + rest[:end])
            if about:
                self.about = _both(self.about, about)
        if left:
            self._notes.remark(f"Something follows the trace ({byte_count(len(left))} or more); it was left out.")
        self._held = b""


def _cut(text: bytes, end: int) -> int:
    """Place of the last brace before ``end`` that is followed by a comma and another brace; -1 if there is none."""
    reach = _TAIL
    while True:
        low = max(0, end - reach)
        found = -1
        for match in SEPARATOR.finditer(text, low, min(len(text), end + _TAIL)):
            if match.start() >= end:
                break
            found = match.start()
        if found >= 0 or low == 0:
            return found
        reach *= 16


def _object_end(rest: bytes) -> int:
    """Up to where ``rest`` is what remains of an object whose opening brace is missing."""
    try:
        msgspec.json.decode(b"{" + rest, type=msgspec.Raw)
    except PROBLEMS as error:
        match = _BYTE.search(str(error))
        if match and "trailing characters" in str(error):
            return rest.rfind(b"}", 0, int(match[1])) + 1
    return len(rest)


def _about(text: bytes) -> About | None:
    """What an object tells beside the events; ``None`` if the text is none."""
    for form in (bytes, mended):
        try:
            fields = msgspec.json.decode(form(text), type=dict[str, msgspec.Raw])
        except PROBLEMS:
            continue
        told = About()
        for key in _TOLD.intersection(fields):
            try:
                one = ABOUT.decode(b'{"' + key.encode() + b'":' + bytes(fields[key]) + b"}")
            except PROBLEMS:
                continue  # of another form than Kineto's, which takes nothing from the rest
            told = _both(told, one)
        return told
    return None


def _both(first: About, second: About) -> About:
    """What two objects tell; the first counts where both do."""
    nothing = About()
    fields = {
        name: getattr(first if getattr(first, name) != getattr(nothing, name) else second, name)
        for name in first.__struct_fields__
    }
    return About(**fields)
