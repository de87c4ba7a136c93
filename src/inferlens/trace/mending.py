"""Events out of text that is no JSON: mended where that is safe, the rest skipped and counted.

Slow next to decoding, and so only for the blocks that need it; linear but for a logarithm of the number of events.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from inferlens.trace.forms import ARGUMENTS, LOOSE, Arguments, Event, LooseEvent, decode_events
from inferlens.trace.notes import Notes

SEPARATOR = re.compile(rb"\}\s*,\s*(?=\{)")
PROBLEMS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Between what may stand around a value; a text in which it stands just so is changed too, which is the price of speed.
_NUMBERS = re.compile(rb"(?<=[:\[,\s])[-+]?(?:NaN|nan|Infinity|infinity|inf|Inf)(?=\s*[,}\]])")
_ESCAPES = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_SURROGATES = re.compile(rb"(\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROLS = bytes(32 if byte < 32 else byte for byte in range(256))
_BYTE = re.compile(r"\(byte (\d+)\)")
SKIPPED = "could not be read and were skipped"
MOST_SKIPPED = 100_000
# Pieces that are tried together, where an event holds a list of objects and was cut apart in it.
_MOST_JOINED = 32


def decoded(text: bytes) -> list[Event] | None:
    """The events of ``text``, objects with commas between them; ``None`` if any is not as it should be."""
    try:
        return decode_events(b"[" + text + b"]")
    except PROBLEMS:
        return None


def list_end(error: Exception, text: bytes) -> int | None:
    """Where in ``text`` the list ends, if what was found wrong with ``[`` before it is that it goes on after that."""
    match = _BYTE.search(str(error))
    if "trailing characters" not in str(error) or not match:
        return None
    # msgspec counts from the bracket put before the text, and names the place behind it or the one after that.
    place = text.rfind(b"]", 0, int(match[1]))
    return None if place < 0 else place


def mended(text: bytes) -> bytes:
    """``text`` with numbers that JSON does not know as ``null``, and strings with what they may hold."""
    text = text.translate(_CONTROLS)
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    text = _NUMBERS.sub(b"null", text)
    if b"\\" not in text:
        return text
    text = _SURROGATES.sub(lambda match: match[1] or b"\\ufffd", text)
    return _ESCAPES.sub(lambda match: match[1] or b"\\\\", text)


def salvaged(text: bytes, notes: Notes) -> tuple[list[Event], bytes | None]:
    """The events of ``text``, of which some may be broken, and what follows the list's end, if it has one there."""
    text = mended(text).strip().strip(b",")
    return _Salvage(text, notes).run() if text else ([], None)


class _Salvage:
    """Halves what cannot be decoded until it can be, or is one event."""

    def __init__(self, text: bytes, notes: Notes) -> None:
        ends = [match.start() + 1 for match in SEPARATOR.finditer(text)]
        starts = [match.end() for match in SEPARATOR.finditer(text)]
        self.pieces = [text[a:b] for a, b in zip([0, *starts], [*ends, len(text)], strict=True)]
        self.notes = notes
        self.events: list[Event] = []
        self.rest: bytes | None = None
        self.done = 0

    def run(self) -> tuple[list[Event], bytes | None]:
        waiting = [(0, len(self.pieces))]
        while waiting and self.rest is None and self.notes.counts[SKIPPED] < MOST_SKIPPED:
            low, high = waiting.pop()
            low = max(low, self.done)
            if low >= high:
                continue
            found = decoded(b",".join(self.pieces[low:high]))
            if found is not None:
                self.events += found
                self.done = high
            elif high - low > 1:
                middle = (low + high) // 2
                waiting += [(middle, high), (low, middle)]
            else:
                self.done = self._one(low)
        return self.events, self.rest

    def _one(self, low: int) -> int:
        """Tries one piece as an event, then with those that follow it; returns up to where it is settled."""
        for high in range(low + 1, min(low + _MOST_JOINED, len(self.pieces)) + 1):
            text = b",".join(self.pieces[low:high])
            try:
                self.events += decode_events(b"[" + text + b"]")
                return high
            except PROBLEMS:
                found, place, goes_on = _loose(text)
            self.events += found
            if place is not None:
                self.rest = b",".join([text[place + 1 :], *self.pieces[high:]])
                return len(self.pieces)
            if found:
                return high
            if not goes_on:
                break
        self.notes.count(SKIPPED)
        return low + 1


def _loose(text: bytes) -> tuple[list[Event], int | None, bool]:
    """Events with those of their fields that have a form of use.

    Returns:
        The events; where in the text the list ends, if it does; and whether the text may go on in the next piece.
    """
    try:
        return [_from(loose) for loose in LOOSE.decode(b"[" + text + b"]")], None, False
    except PROBLEMS as error:
        place = list_end(error, text)
        goes_on = "truncated" in str(error)
    if place is None:
        return [], None, goes_on
    try:
        return [_from(loose) for loose in LOOSE.decode(b"[" + text[:place] + b"]")], place, False
    except PROBLEMS:
        return [], None, False


def _from(loose: LooseEvent) -> Event:
    event = Event()
    for name in ("ph", "name", "cat"):
        value = _value(getattr(loose, name), str | int | float)
        setattr(event, name, "" if value is None else str(value))
    event.pid = _value(loose.pid, int | str | float)
    event.tid = _value(loose.tid, int | str | float)
    event.ts = _value(loose.ts, int | float)
    event.dur = _value(loose.dur, int | float)
    event.args = _arguments(loose.args)
    return event


def _value(raw: msgspec.Raw, form: Any) -> Any:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=form, strict=False)
    except PROBLEMS:
        return None


def _arguments(raw: msgspec.Raw) -> Arguments | None:
    """Arguments field by field, for one that is odd takes nothing from the others."""
    try:
        fields = msgspec.json.decode(raw or b"{}", type=dict[str, msgspec.Raw])
    except PROBLEMS:
        return None
    whole: Arguments = ARGUMENTS.decode(b"{}")
    for key, value in fields.items():
        try:
            one = ARGUMENTS.decode(b"{" + msgspec.json.encode(key) + b":" + bytes(value) + b"}")
        except PROBLEMS:
            continue
        for name in one.__struct_fields__:
            if getattr(one, name) not in (None, msgspec.Raw(b"")):
                setattr(whole, name, getattr(one, name))
    return whole
