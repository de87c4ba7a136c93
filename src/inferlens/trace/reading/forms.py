"""The JSON forms of a trace, decoded and, where the text is no JSON, mended.

Only the fields that are used are here, so that decoding makes nothing of all the others. Metadata is not among them:
traces carry their writer's environment, and nothing of that is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from inferlens.units import plural

NOTHING = Raw(b"")
PROBLEMS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Number = int | float | None


class Arguments(
    Struct,
    gc=False,
    rename={
        "external": "External id",
        "external_before": "external id",
        "registers": "registers per thread",
        "shared_memory": "shared memory",
        "blocks_per_sm": "blocks per SM",
        "occupancy": "est. achieved occupancy %",
        "shapes": "Input Dims",
        "stack": "Call stack",
        "device_type": "Device Type",
        "device_id": "Device Id",
        "change": "Bytes",
        "address": "Addr",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
    },
):
    """Arguments of an event, of every category."""

    external: Number = None
    external_before: Number = None
    correlation: Number = None
    device: Number = None
    stream: Number = None
    grid: list[int] | None = None
    block: list[int] | None = None
    registers: Number = None
    shared_memory: Number = None
    blocks_per_sm: Number = None
    occupancy: Number = None
    bytes: Number = None
    shapes: Raw = NOTHING
    stack: Raw = NOTHING
    device_type: Number = None
    device_id: Number = None
    change: Number = None
    address: Number = None
    allocated: Number = None
    reserved: Number = None
    name: Raw = NOTHING


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
    """The same, with times that no float holds to the nanosecond: microseconds since 1970, with decimals."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class DeviceProperties(
    Struct,
    frozen=True,
    rename={
        "memory": "totalGlobalMem",
        "major": "computeMajor",
        "minor": "computeMinor",
        "multiprocessors": "numSms",
        "threads_per_multiprocessor": "maxThreadsPerMultiprocessor",
        "registers_per_multiprocessor": "regsPerMultiprocessor",
        "shared_memory_per_multiprocessor": "sharedMemPerMultiprocessor",
        "warp": "warpSize",
    },
):
    """A GPU, as the trace describes it; sizes in bytes, 0 where it does not say."""

    id: int = 0
    name: str = ""
    memory: int = 0
    major: int = 0
    minor: int = 0
    multiprocessors: int = 0
    threads_per_multiprocessor: int = 0
    registers_per_multiprocessor: int = 0
    shared_memory_per_multiprocessor: int = 0
    warp: int = 0

    @property
    def compute_capability(self) -> str:
        """As CUDA writes it, such as ``9.0``."""
        return f"{self.major}.{self.minor}"


class Distributed(Struct, frozen=True):
    """Which process of a distributed job wrote the trace."""

    rank: int | None = None
    world_size: int | None = None


class About(
    Struct, rename={"devices": "deviceProperties", "distributed": "distributedInfo", "base": "baseTimeNanoseconds"}
):
    """What stands beside the events."""

    devices: list[DeviceProperties] = []
    distributed: Distributed | None = None
    base: int = 0


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
_EXACT = msgspec.json.Decoder(list[ExactEvent], strict=False)
_LARGE = 2.0**43


def decode_events(text: bytes) -> list[Event]:
    """Events from a JSON list.

    Raises:
        msgspec.DecodeError: if it is none, or an event has not the form of one.
    """
    events: list[Event] = _EVENTS.decode(text)
    times = [event.ts or 0 for event in events]
    if times and (max(times) > _LARGE or min(times) < -_LARGE) and float in set(map(type, times)):
        return list(_EXACT.decode(text))
    return events


Form = TypeVar("Form", About, Arguments, Event)


def lenient(form: type[Form], raws: Mapping[str, Raw]) -> Form:
    """A struct with those of its fields whose JSON has the form that it should have."""
    made = form()
    for key, raw in raws.items():
        name, decode = _decoders(form).get(key, ("", None))
        if decode is not None:
            with suppress(*PROBLEMS):
                setattr(made, name, decode(raw))
    if isinstance(made, Event) and made.args is None:
        with suppress(*PROBLEMS, KeyError):
            made.args = lenient(Arguments, msgspec.json.decode(raws["args"], type=dict[str, Raw]))
    return made


@cache
def _decoders(form: type[Struct]) -> dict[str, tuple[str, Any]]:
    """For each key the field's name, and what decodes its JSON."""
    fields = msgspec.structs.fields(form)
    return {each.encode_name: (each.name, msgspec.json.Decoder(each.type, strict=False).decode) for each in fields}


# Between what may stand around a value; a text in which it stands just so is changed too, which is the price of speed.
_NUMBERS = re.compile(rb"(?<=[:\[,\s])[-+]?(?:NaN|nan|Infinity|infinity|inf|Inf)(?=\s*[,}\]])")
_ESCAPES = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_SURROGATES = re.compile(rb"(\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROLS = bytes(32 if byte < 32 else byte for byte in range(256))


def mended(text: bytes) -> bytes:
    """``text`` with numbers that JSON does not know as ``null``, and strings with what they may hold."""
    text = text.translate(_CONTROLS).decode(errors="replace").encode()
    text = _NUMBERS.sub(b"null", text)
    text = _SURROGATES.sub(lambda match: match[1] or b"\\ufffd", text)
    return _ESCAPES.sub(lambda match: match[1] or b"\\\\", text)


def text_of(raw: Raw) -> str:
    """A JSON string's text; empty if it is none."""
    with suppress(*PROBLEMS):
        return msgspec.json.decode(raw, type=str)
    return ""


class Remarks:
    """What was not as it should be: counts of events that were skipped or mended, by reason, and single sentences."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sentences: dict[str, None] = {}

    def count(self, reason: str, number: int = 1) -> None:
        """``number`` more events to which ``reason`` happened, such as ``were skipped: no time``."""
        if number:
            self.counts[reason] += number

    def remark(self, sentence: str) -> None:
        """One more sentence, once."""
        self._sentences[sentence] = None

    def sentences(self) -> tuple[str, ...]:
        """The sentences, and one for each reason."""
        counted = (f"{plural(number, 'event')} {reason}." for reason, number in self.counts.items())
        return (*self._sentences, *counted)
