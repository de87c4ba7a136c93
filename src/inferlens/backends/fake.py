"""A backend that computes nothing and takes a scripted time, on a clock of its own.

Tests use it in place of a real backend, and ``inferlens bench fake:demo`` shows the program without any framework. It
can misbehave in every way in which real backends do.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from inferlens.backends.base import Backend, Capabilities, Inputs, Knob, LayerProfiler, Preparation, Runner, Support
from inferlens.backends.clocks import Clock, HostClock, Timings
from inferlens.errors import Unsupported
from inferlens.models.model import Array, Format, Model
from inferlens.record.profile import Layer, Layers, Tensor
from inferlens.spec.case import Case, Option

LAYERS = (
    ("stem", "Fake", ("stem",), 0.5),
    ("body.0", "Fake", ("body.0",), 0.3),
    ("body.1+head", "FakeFused", ("body.1", "head"), 0.1),
)
SPEED = {"steady": 1.0, "fast": 0.5, "noisy": 1.0}
# A planted space: the factor of the latency at each value of a knob. knob_d has no effect without knob_c, so there are
# 504 combinations. The best with right outputs is BEST, at 0.514 times the latency; the next is 3 % slower.
FACTORS = {
    "knob_a": (1.0, 0.8, 0.93, 1.25),
    "knob_b": (1.0, 0.85, 0.95),
    "knob_c": (1.0, 0.96, 1.1),
    "knob_d": (1.0, 0.75, 0.85),
    "knob_e": (1.0, 0.5),
    "knob_f": (1.0, 0.97, 0.94),
}
WORSE_TOGETHER = 1.3  # knob_a=1 with knob_b=1, the best values alone
WRONG = 0.5  # relative error with knob_e
BUILD_SECONDS = (0.0, 10.0, 60.0)  # added by knob_f
BEST = {"knob_a": 1, "knob_b": 2, "knob_c": 1, "knob_d": 1, "knob_f": 2}
Trouble = Literal[
    "none", "raise", "unsupported", "memory error", "segfault", "abort", "kill", "exit", "hang", "rubbish", "eat memory"
]


class FakeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the fake backend."""

    latency: Annotated[float, Meta(description="milliseconds of one call at batch 1")] = 4.0
    per_item: Annotated[float, Meta(description="milliseconds more for each further item of the batch")] = 1.0
    error: Annotated[float, Meta(description="relative error put on the outputs")] = 0.0
    mistakes: Annotated[float, Meta(description="share of samples answered with another class", ge=0, lt=1)] = 0.0
    clock: Annotated[
        Literal["fake", "host"], Meta(description="fake: scripted times; host: time the empty call for real")
    ] = "fake"
    sleep: Annotated[bool, Meta(description="let calls take the scripted time for real")] = False
    trouble: Annotated[Trouble, Meta(description="a way to misbehave")] = "none"
    when: Annotated[
        Literal["prepare", "enter", "infer", "throughput", "exit"], Meta(description="where to misbehave")
    ] = "infer"
    knob_a: Annotated[int, Meta(description="a call takes 1, 0.8, 0.93 or 1.25 times as long", ge=0, le=3)] = 0
    knob_b: Annotated[int, Meta(description="1, 0.85 or 0.95 times, but 1.105 at 1 where knob_a is 1", ge=0, le=2)] = 0
    knob_c: Annotated[int, Meta(description="1, 0.96 or 1.1 times", ge=0, le=2)] = 0
    knob_d: Annotated[int, Meta(description="1, 0.75 or 0.85 times where knob_c is not 0", ge=0, le=2)] = 0
    knob_e: Annotated[int, Meta(description="1 or 0.5 times, with outputs that are wrong", ge=0, le=1)] = 0
    knob_f: Annotated[
        int, Meta(description="1, 0.97 or 0.94 times; the build is said to take 0, 10 or 60 s more", ge=0, le=2)
    ] = 0


def factor(options: FakeOptions) -> float:
    """Return the factor by which the knobs multiply the latency."""
    effective = [name for name in FACTORS if name != "knob_d" or options.knob_c]
    product: float = math.prod(FACTORS[name][getattr(options, name)] for name in effective)
    return product * (WORSE_TOGETHER if options.knob_a == options.knob_b == 1 else 1.0)


class FakeClock(Clock):
    """A clock whose time passes only in calls; ``cost(index)`` is the time of call number ``index`` in seconds."""

    name = "fake"

    def __init__(self, cost: Callable[[int], float], before_window: Callable[[], None] = lambda: None) -> None:
        self._cost = cost
        self._before_window = before_window
        self._calls = itertools.count()
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:
        latency, begins = [], []
        for feed in itertools.islice(feeds, count):
            infer(feed)
            begins.append(self._now)
            latency.append(self._cost(next(self._calls)))
            self._now += latency[-1]
        return Timings(latency, begins=begins)

    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:  # noqa: ARG002 - one call is in flight, whatever the depth
        self._before_window()
        return sum(self.time(infer, feeds, count).latency)


class Fake(Backend):
    """A backend with scripted latencies."""

    name = "fake"
    summary = "computes nothing and takes a scripted time"
    variants = ("steady", "fast", "noisy")
    options = FakeOptions
    reference_for: ClassVar[dict[Format, tuple[str, dict[str, Option]]]] = {"fake": ("", {})}
    knobs = (
        Knob(name="knob_a", values=(1, 2, 3)),
        Knob(name="knob_b", values=(1, 2)),
        Knob(name="knob_c", values=(1, 2)),
        Knob(name="knob_d", values=(1, 2), needs=("knob_c",)),
        Knob(name="knob_e", values=(1,)),
        Knob(name="knob_f", values=(1, 2), build=10.0),
    )

    def capabilities(self) -> Capabilities:
        supports = tuple(Support(variant, "cpu", ("fp32", "fp16", "bf16")) for variant in self.variants)
        return Capabilities(formats=("fake",), supports=supports, dynamic_shapes=True)

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        options: FakeOptions = self.parse_options(case)
        runner = FakeRunner(options, case, preparation, model.inputs[0].shape[0])
        runner.misbehave("prepare")
        return runner


class FakeRunner(Runner, LayerProfiler):
    """A runner that sums each input over all but its first dimension; 2-D inputs are scores of classes."""

    def __init__(self, options: FakeOptions, case: Case, preparation: Preparation, batch: int) -> None:
        self._options = options
        self._precision = case.precision
        self._preparation = preparation
        self._sample_count = 0
        milliseconds = (options.latency + options.per_item * (batch - 1)) * SPEED[case.variant] * factor(options)
        self._seconds = milliseconds * 1e-3
        noise = random.Random(f"{case.seed} {preparation.folder.name}")  # differs per process
        spread = 0.1 if case.variant == "noisy" else 0.0
        self.clock: Clock = HostClock()
        if options.clock == "fake":
            self.clock = FakeClock(
                lambda _: milliseconds * 1e-3 * (1 + spread * noise.expovariate(1)),
                lambda: self.misbehave("throughput"),
            )

    def __enter__(self) -> FakeRunner:
        with self._preparation.phase("build"):
            self.misbehave("enter")
        phases = self._preparation.phases
        phases[-1] = replace(phases[-1], seconds=phases[-1].seconds + BUILD_SECONDS[self._options.knob_f])
        return self

    def __exit__(self, *error: Any) -> None:
        self.misbehave("exit")

    def place(self, inputs: Inputs) -> Inputs:
        return inputs

    def infer(self, feed: Inputs) -> Inputs:
        if self._options.trouble != "none":
            self.misbehave("infer")
        if self._options.sleep:
            end = time.perf_counter() + self._seconds
            time.sleep(max(0.0, self._seconds - 3e-4))
            while time.perf_counter() < end:  # a sleep ends late
                pass
        return feed

    def collect(self, outputs: Inputs) -> list[Array]:
        """Return one array per input with the relative error of the options, rounded to the precision."""
        kind = np.float32 if self._precision == "fp32" else np.float16
        scale = 1 + self._options.error + WRONG * self._options.knob_e
        results: list[Array] = []
        for value in outputs.values():
            if value.ndim == 2:
                result = self._with_mistakes(value.astype(np.float64))
            else:
                result = value.reshape(value.shape[0], -1).sum(axis=1, dtype=np.float64)
            results.append((result * scale).astype(kind).astype(np.float32))
        return results

    def _with_mistakes(self, scores: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the scores; every so many samples, those of the classes are shifted by one."""
        interval = round(1 / self._options.mistakes) if self._options.mistakes else 0
        positions = np.arange(self._sample_count, self._sample_count + len(scores)) + 1
        self._sample_count += len(scores)
        wrong = positions % interval == 0 if interval else np.zeros(len(scores), bool)
        return np.where(wrong[:, None], np.roll(scores, 1, axis=1), scores)

    def profile_layers(self, feed: Inputs, runs: int) -> Layers:
        """Return three layers, which take nine tenths of the time; the last one fuses two modules."""
        latencies = tuple(self.clock.time(self.infer, itertools.repeat(feed), runs).latency)
        shapes = tuple(Tensor(name=name, shape=value.shape, dtype=str(value.dtype)) for name, value in feed.items())
        layers = []
        for name, kind, modules, share in LAYERS:
            times = tuple(share * seconds for seconds in latencies)
            layers.append(Layer(name=name, kind=kind, modules=modules, inputs=shapes, outputs=shapes, times=times))
        return Layers(layers=tuple(layers), whole=latencies, timed="host", clock=self.clock.name)

    def misbehave(self, moment: str) -> None:
        """Misbehave as the option ``trouble`` says, if this is the moment ``when``."""
        if self._options.trouble != "none" and moment == self._options.when:
            TROUBLES[self._options.trouble]()


def _raise(error: Exception) -> None:
    raise error


def _write_garbage() -> None:
    os.write(1, b'\xff\xfe{"phase": 3}\x00\x1b[2J' * 100)
    sys.stderr.write("Error: nothing is wrong\n")


def _exhaust_memory() -> None:
    blocks = []
    while True:
        blocks.append(bytearray(b"\1" * (16 << 20)))


TROUBLES: dict[Trouble, Callable[[], Any]] = {
    "raise": lambda: _raise(RuntimeError("this backend was told to fail")),
    "unsupported": lambda: _raise(Unsupported("The operator 'aten.fake' is not supported.", hint="another backend")),
    "memory error": lambda: _raise(MemoryError("cannot allocate 1 TiB")),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "hang": lambda: threading.Event().wait(),
    "rubbish": _write_garbage,
    "eat memory": _exhaust_memory,
}
