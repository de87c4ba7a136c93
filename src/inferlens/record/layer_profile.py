"""Where the time of a case goes: a :class:`Profile`, one for each case and level, and its JSON form.

A profile is data, frozen, and holds the times of every run; sums, shares and intervals are computed when asked for.
Times are seconds, sizes are bytes. Timing and profiling never share a run: what an instrumented call takes is kept
here as ``whole``, what an untouched one takes is the latency of the record that ``record`` names.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from inferlens.record.forms import decoded
from inferlens.record.kernel_profile import Kernels
from inferlens.record.record import Environment, ModelFacts, Phase, Status, Warning
from inferlens.record.work import Ceilings, Work
from inferlens.spec.case import Case

SCHEMA = "inferlens.profile/1"

Level = Literal["layer", "kernel"]
Timed = Literal["host", "GPU"]


class Tensor(Struct, frozen=True, kw_only=True):
    """What goes into a layer or comes out of it; empty where that is not told."""

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    format: str = ""


class Layer(Struct, frozen=True, kw_only=True):
    """Something that a backend executes and names.

    Attributes:
        name: as the backend names it.
        kind: what it does, in the backend's words, such as ``Conv`` or ``Reorder``.
        modules: paths of the modules that it came from, in the order of execution; several where modules were fused,
            none where that is not known. The model itself is the empty path.
        operators: the ATen or ONNX operators that it came from, by name.
        inputs, outputs: its tensors.
        details: what else the backend tells of it, such as tactic, kernel, filter, stride, weights.
        times: seconds in each run, in order: of all its calls in that run, and of itself alone, without layers that it
            contains.
        begins: when it began in each run, in seconds since the run began; empty where that is not told.
        calls: how often it is executed in one run.
    """

    name: str
    kind: str = ""
    modules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    details: dict[str, Any] = {}
    times: tuple[float, ...] = ()
    begins: tuple[float, ...] = ()
    calls: int = 1


class Layers(Struct, frozen=True, kw_only=True):
    """The layers of one case, as a runner timed them.

    Attributes:
        layers: in the order of execution.
        whole: seconds of each instrumented run, from the call to its outputs being ready.
        timed: whether the times of the layers are of the ``host`` or of the ``GPU``.
        clock: what timed the layers.
        absent: what is not known of them, and why.
        begun: when each run began, in seconds since the first of them began; empty where that is not told.
        started: UTC time at which the first run began, ISO 8601; empty where that is not told.
    """

    layers: tuple[Layer, ...]
    whole: tuple[float, ...]
    timed: Timed
    clock: str
    absent: dict[str, str] = {}
    begun: tuple[float, ...] = ()
    started: str = ""


class Profile(Struct, frozen=True, kw_only=True):
    """Everything learned from profiling one case at one level.

    Attributes:
        id: different for every profile.
        record: id of the record of the same case that was timed untouched, in the same command.
        created: UTC time it started, ISO 8601.
        status: how it ended; ``reason`` says why if not ``ok``.
        layers: of the level ``layer``; ``None`` if it did not get that far.
        kernels: of the level ``kernel``, likewise.
        work: what the model does in one call, whatever runs it; ``None`` where that is not counted.
        ceilings: what the device reaches at best; ``None`` where that was not measured.
    """

    schema: str = SCHEMA
    id: str
    record: str = ""
    created: str
    case: Case
    level: Level
    runs: int
    status: Status
    reason: str = ""
    hint: str = field(default="", name="cure")
    output_tail: tuple[str, ...] = ()
    model: ModelFacts
    environment: Environment
    phases: tuple[Phase, ...] = ()
    layers: Layers | None = None
    kernels: Kernels | None = None
    work: Work | None = None
    ceilings: Ceilings | None = None
    facts: dict[str, Any] = {}
    warnings: tuple[Warning, ...] = ()


def encode(profile: Profile) -> bytes:
    """A profile as JSON on one line, UTF-8, ending in a newline: it has a number for each layer and run."""
    return msgspec.json.encode(profile) + b"\n"


def decode(data: bytes) -> Profile:
    """A profile from its JSON form.

    Raises:
        InferlensError: if the data is no profile of a schema this version reads.
    """
    return decoded(data, Profile, SCHEMA, "profile")
