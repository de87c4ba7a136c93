"""The text of a trace, block by block, out of a file, a pipe or bytes, becomes events, some thousands at a time.

The text is cut behind an event, on trust: what is decoded must be whole, and so a cut within an event is found out and
made elsewhere. The list of events may be the value of ``traceEvents`` or the whole text, and it may lack its end.
Text that is no JSON is mended where that is safe; of the rest, single events are skipped and counted.
"""

from __future__ import annotations

import gzip
import io
import re
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Raw

from inferlens.errors import InferlensError, library
from inferlens.trace.forms import PROBLEMS, About, Event, Remarks, decode_bare, decode_events, mended
from inferlens.units import byte_count

# Small enough to stay in a processor's cache until it is decoded: 4 MiB take a third longer.
BLOCK = 2**19
# What may stand before the events or after them, and what may be one of them.
MOST_HELD = 32 * 2**20
MOST_EVENT = 8 * 2**20
_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATOR = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_LAST = re.compile(rb".*\}(?=\s*,\s*\{)", re.DOTALL)
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_ABOUT = {field.encode_name for field in msgspec.structs.fields(About)}
_MARK = b"\xef\xbb\xbf"
_TRIES = 4
_EXPECTED = "JSON in Chrome's trace event format, as torch.profiler writes it: .json, .json.gz or .json.zst"


def blocks(source: Path | bytes, remarks: Remarks) -> Iterator[bytes]:
    """The text of ``source``, unpacked, in blocks of :data:`BLOCK` bytes; damage ends it and is remarked on.

    Raises InferlensError if it cannot be opened, is a folder or a device, or needs a library that is not there.
    """
    with closing(_opened(source)) as file:
        read = _unpacking(file)
        whole = True
        while whole:
            parts, left = [], BLOCK
            try:
                while left and (part := read(left)):
                    parts.append(part)
                    left -= len(part)
            except Exception as error:
                # The unpackers have errors of their own, by library, and an OSError comes from a disk or a pipe.
                if not isinstance(error, (OSError, EOFError, zlib.error)) and type(error).__name__ != "ZstdError":
                    raise
                remarks[f"The file is damaged ({error}); what comes after that was left out."] += 1
                whole = False
            if not parts:
                return
            yield b"".join(parts)


def begins_as_trace(path: Path) -> bool:
    """Whether the first block of a file has events."""
    try:
        text = next(blocks(path, Counter()), b"")
    except InferlensError:
        return False
    return bool(_BEGIN.search(text)) or (text.lstrip()[:1] == b"[" and b'"ph"' in text)


def _opened(source: Path | bytes) -> io.BufferedReader:
    if isinstance(source, bytes):
        return io.BufferedReader(io.BytesIO(source))
    try:
        if str(source) == "-":
            return open(sys.stdin.fileno(), "rb", closefd=False)
        mode = source.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise InferlensError(f"{source} is no file.", expected=_EXPECTED)
        return source.open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InferlensError(f"{source} cannot be read: {reason}.", expected=_EXPECTED) from error


def _unpacking(file: io.BufferedReader) -> Callable[[int], bytes]:
    """What reads the text of a file; never more than is asked for, and what comes before damage is not lost."""
    start = file.peek(4)[:4]
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file, mode="rb").read1
    if start != b"\x28\xb5\x2f\xfd":
        return file.read
    unpacker = library("zstandard", extra="traces").ZstdDecompressor(max_window_size=2**27)
    read: Callable[[int], bytes] = unpacker.stream_reader(file, read_across_frames=True).read1
    return read


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
        return About.of(self._beside)

    def __iter__(self) -> Iterator[list[Event]]:
        self._start()
        while not self._ended:
            block = next(self._blocks, b"")
            yield self._next(block) if block else self._last()
        self._finish()

    def _start(self) -> None:
        while True:
            block = next(self._blocks, b"")
            self._held = (self._held + block).lstrip().removeprefix(_MARK).lstrip()
            if self._held[:1] == b"[":
                self._bare, self._held = True, self._held[1:]
                return
            for match in islice(_BEGIN.finditer(self._held), _TRIES):
                beside = _beside(self._held[: match.start()] + b'"traceEvents":[]}')
                if beside is not None:
                    self._beside, self._held = beside, self._held[match.end() :]
                    return
            if not block or len(self._held) > MOST_HELD or self._held[:1] not in (b"{", b""):
                raise InferlensError("This is no trace: it has no traceEvents.", expected=_EXPECTED)

    def _next(self, block: bytes) -> list[Event]:
        """Events up to the last place where the text can be cut."""
        self._held += block
        end = len(self._held) + 1
        for _ in range(_TRIES):
            end = _cut(self._held, end - 1)
            if not end:
                break
            try:
                return self._taken(end)
            except PROBLEMS as error:
                if "truncated" not in str(error):  # else the cut is within a string or an event
                    return self._salvaged(end)
        if len(self._held) <= MOST_EVENT:
            return []
        self._remarks[f"An event is larger than {byte_count(MOST_EVENT)}; the rest was left out."] += 1
        events = self._salvaged(len(self._held))
        self._ended, self._held, self._blocks = True, b"", iter(())
        return events

    def _last(self) -> list[Event]:
        self._held = self._held.strip().rstrip(b",")
        try:
            events = self._taken(len(self._held))
        except PROBLEMS:
            events = self._salvaged(len(self._held))
        if not (self._ended or self._bare):
            self._remarks["The text ends within the events; the rest is missing."] += 1
        self._ended = True
        return events

    def _taken(self, end: int) -> list[Event]:
        """Events of the text held, up to a place in it or to where the list ends."""
        events, rest = _decoded(decode_events, self._held[:end])
        self._leave(rest, end)
        return events

    def _salvaged(self, end: int) -> list[Event]:
        """The same of text that is broken: what mending does not mend is read event by event."""
        text = mended(self._held[:end]).strip().strip(b",")
        try:
            events, rest = _decoded(decode_events, text)
        except PROBLEMS:
            events, rest = self._one_by_one(_SEPARATOR.split(text))
        self._leave(rest, end)
        return events

    def _one_by_one(self, texts: list[bytes]) -> tuple[list[Event], bytes | None]:
        events: list[Event] = []
        for place, text in enumerate(texts, 1):
            for decode in (decode_events, decode_bare):
                with suppress(*PROBLEMS):
                    found, rest = _decoded(decode, text)
                    events += found
                    if rest is not None:
                        return events, b",".join([rest, *texts[place:]])
                    break
            else:
                self._remarks["could not be read and were skipped"] += 1
        return events, None

    def _leave(self, rest: bytes | None, end: int) -> None:
        """Keeps what follows what was read: behind the list if that has ended, else from a place in the text held."""
        behind = self._held[end:]
        self._ended = rest is not None
        self._held = behind.lstrip().removeprefix(b",") if rest is None else rest + behind

    def _finish(self) -> None:
        while len(self._held) <= MOST_HELD and (block := next(self._blocks, b"")):
            self._held += block
        rest = self._held.strip().removeprefix(b",")
        beside = None if self._bare else _beside(b"{" + rest)
        if beside is not None:
            self._beside = {**beside, **self._beside}
        elif rest:
            self._remarks["What follows the events cannot be read; it was left out."] += 1


def _decoded(decode: Callable[[bytes], list[Event]], text: bytes) -> tuple[list[Event], bytes | None]:
    """The events of a text of objects with commas between them; and what follows, if the list ends within the text.

    Raises msgspec.DecodeError or another of :data:`PROBLEMS`, if it is not as it should be.
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
    """Place behind the last brace before ``end`` that is followed by a comma and another brace; 0 if there is none."""
    found = _LAST.match(text, 0, end)
    return found.end() if found else 0


def _beside(text: bytes) -> dict[str, Raw] | None:
    """What is of use in an object beside the events; ``None`` if the text is none."""
    for form in (bytes, mended):
        try:
            fields = msgspec.json.decode(form(text), type=dict[str, Raw])
        except PROBLEMS:
            continue
        return {key: fields[key].copy() for key in _ABOUT.intersection(fields)}
    return None
