"""The JSON forms of a trace, decoded and, where the text is no JSON, mended.

Only the fields that are used are here: decoding makes nothing of the others, such as their writer's environment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from inferlens.units import plural

NOTHING = Raw(b"")
PROBLEMS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

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


class BareEvent(Event, gc=False):
    """The same without its arguments, which may have any form."""

    args: Any = None

    def __post_init__(self) -> None:
        self.args = None


class ExactEvent(Event, gc=False):
    """The same, with times that no float holds to the nanosecond: microseconds since 1970, with decimals."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class DeviceProperties(Struct, frozen=True):
    """A GPU, as the trace describes it; sizes in bytes, 0 where it does not say."""

    id: int = 0
    name: str = ""
    memory: int = field(default=0, name="totalGlobalMem")
    major: int = field(default=0, name="computeMajor")
    minor: int = field(default=0, name="computeMinor")
    multiprocessors: int = field(default=0, name="numSms")
    threads_per_multiprocessor: int = field(default=0, name="maxThreadsPerMultiprocessor")
    registers_per_multiprocessor: int = field(default=0, name="regsPerMultiprocessor")
    shared_memory_per_multiprocessor: int = field(default=0, name="sharedMemPerMultiprocessor")

    @property
    def compute_capability(self) -> str:
        """As CUDA writes it, such as ``9.0``."""
        return f"{self.major}.{self.minor}"


class Distributed(Struct, frozen=True):
    """Which process of a distributed job wrote the trace."""

    rank: int | None = None
    world_size: int | None = None


class About(Struct, frozen=True):
    """What stands beside the events; ``base`` in nanoseconds."""

    devices: list[DeviceProperties] = field(default_factory=list, name="deviceProperties")
    distributed: Distributed = field(default=Distributed(), name="distributedInfo")
    base: int = field(default=0, name="baseTimeNanoseconds")

    @classmethod
    def of(cls, beside: Mapping[str, Raw]) -> About:
        """What of it has the form that it should have."""
        known = {}
        for field_info in msgspec.structs.fields(cls):
            with suppress(*PROBLEMS, KeyError):
                known[field_info.name] = msgspec.json.decode(
                    beside[field_info.encode_name], type=field_info.type, strict=False
                )
        return cls(**known)


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
_EXACT = msgspec.json.Decoder(list[ExactEvent], strict=False)
decode_bare: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[BareEvent], strict=False).decode
_LARGE = 2.0**43


def decode_events(text: bytes) -> list[Event]:
    """Events from a JSON list. Raises msgspec.DecodeError if it is none, or an event has not the form of one."""
    events: list[Event] = _EVENTS.decode(text)
    times = [event.ts or 0 for event in events]
    if times and (max(times) > _LARGE or min(times) < -_LARGE) and float in set(map(type, times)):
        return list(_EXACT.decode(text))
    return events


# A string, which stays as it is; a brace without a comma behind it, a comma too many, or a number that JSON lacks.
_DAMAGE = re.compile(
    rb'("(?:[^"\\]|\\.)*")|(\}\s*)(?=\{)|,(?=\s*[,}\]])'
    rb"|(?<=[:\[,\s])[-+]?(?:NaN|nan|Infinity|infinity|inf|Inf)(?=\s*[,}\]])",
    re.DOTALL,
)
_ESCAPES = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_SURROGATES = re.compile(rb"(\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROLS = bytes(32 if byte < 32 else byte for byte in range(256))


def mended(text: bytes) -> bytes:
    """Return ``text`` with the usual damage undone: odd numbers become ``null``, commas and escapes are put right."""
    text = text.translate(_CONTROLS).decode(errors="replace").encode()
    text = _DAMAGE.sub(_undone, text)
    text = _SURROGATES.sub(lambda match: match[1] or b"\\ufffd", text)
    return _ESCAPES.sub(lambda match: match[1] or b"\\\\", text)


def _undone(match: re.Match[bytes]) -> bytes:
    string, brace = match.groups()
    if brace:
        return brace + b","
    return string or (b"" if match[0] == b"," else b"null")


# What was not as it should be: sentences, and what happened to how many events, such as ``were skipped``.
Remarks = Counter[str]


def sentences(remarks: Remarks) -> tuple[str, ...]:
    """The sentences, then one for each count."""
    counted = (f"{plural(count, 'event')} {what}." for what, count in remarks.items() if count and what[-1] != ".")
    return (*(what for what in remarks if what[-1] == "."), *counted)
