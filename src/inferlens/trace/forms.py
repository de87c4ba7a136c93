"""The JSON forms of a trace: only the fields that are used, so that decoding makes nothing of all the others.

Metadata is not among them: traces carry their writer's environment, and nothing of that is read.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Raw, Struct

NOTHING = Raw(b"")

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
        "warps_per_sm": "warps per SM",
        "occupancy": "est. achieved occupancy %",
        "shapes": "Input Dims",
        "types": "Input type",
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
    warps_per_sm: Number = None
    occupancy: Number = None
    bytes: Number = None
    shapes: Raw = NOTHING
    types: Raw = NOTHING
    stack: Raw = NOTHING
    device_type: Number = None
    device_id: Number = None
    change: Number = None
    address: Number = None
    allocated: Number = None
    reserved: Number = None
    name: Raw = NOTHING
    labels: Raw = NOTHING


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


class ExactEvent(Struct, gc=False):
    """The same, with times that no float holds to the nanosecond: microseconds since 1970, with decimals."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: Arguments | None = None


class LooseEvent(Struct, gc=False):
    """An event of which a field has a form that it should not have; what can be used of it is taken apart by hand."""

    ph: Raw = NOTHING
    name: Raw = NOTHING
    cat: Raw = NOTHING
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: Raw = NOTHING


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
    backend: str = ""


class About(
    Struct, rename={"devices": "deviceProperties", "distributed": "distributedInfo", "base": "baseTimeNanoseconds"}
):
    """What stands beside the events."""

    devices: list[DeviceProperties] = []
    distributed: Distributed | None = None
    base: int = 0
    with_stack: int = 0
    profile_memory: int = 0
    record_shapes: int = 0


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
        exact: Any = _EXACT.decode(text)
        return list(exact)
    return events


LOOSE = msgspec.json.Decoder(list[LooseEvent], strict=False)
ARGUMENTS = msgspec.json.Decoder(Arguments, strict=False)
ABOUT = msgspec.json.Decoder(About, strict=False)


def text_of(raw: Raw) -> str:
    """A JSON string's text; empty if it is none."""
    try:
        value = msgspec.json.decode(raw or b'""')
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return value if isinstance(value, str) else ""
