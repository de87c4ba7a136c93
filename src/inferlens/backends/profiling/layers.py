"""Shared by runners that time their layers: the check of the level, timed runs, and hooks on modules.

A runner that was prepared to be timed refuses to be profiled: no timing is instrumented.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.base import Preparation, Runner
from inferlens.backends.clocks import nvtx_push_pop
from inferlens.errors import LateModule, Unsupported
from inferlens.models.work import module_hooks
from inferlens.record.profile import Layer, Layers, Tensor

torch: Any = LateModule("torch")


def check_level(preparation: Preparation, *, replays: bool = False) -> None:
    """Refuse to profile a runner that was prepared to be timed, or that ``replays`` a CUDA graph."""
    if preparation.level not in ("layer", "kernel"):
        message = "The runner was prepared to be timed, not to be profiled."
        raise Unsupported(message, expected="the level 'layer' or 'kernel'")
    if replays:
        raise Unsupported("A CUDA graph replays kernels and has no layers.", hint="without cuda_graph")


class LayerTimes(Struct):
    """The seconds, first begin and calls of a layer in each run, and the names of its kernels."""

    times: dict[int, float] = {}
    begins: dict[int, float] = {}
    calls: dict[int, int] = {}
    kernels: dict[str, None] = {}

    def add(self, run: int, time: float, begin: float, calls: int = 1) -> None:
        self.times[run] = self.times.get(run, 0.0) + time
        self.begins.setdefault(run, begin)
        self.calls[run] = self.calls.get(run, 0) + calls

    def add_times(self, later: LayerTimes) -> None:
        """Add the times of another call, which is later in each run."""
        for run, seconds in later.times.items():
            self.add(run, seconds, later.begins[run], later.calls[run])
        self.kernels.update(later.kernels)

    def timing(self, runs: int) -> dict[str, Any]:
        return {
            "times": tuple(self.times.get(run, 0.0) for run in range(runs)),
            "begins": tuple(self.begins.get(run, 0.0) for run in range(runs)),
            "calls": max(self.calls.values()),
        }


class Runnable(Protocol):
    """Something that can be run: a runner, or any object with these two methods."""

    def infer(self, feed: Any) -> Any:
        """One call."""

    def synchronize(self) -> None:
        """Wait until the outputs are ready."""


class TimedRuns(Struct, frozen=True):
    """The times of some runs on the host's clock."""

    whole: tuple[float, ...]  # seconds from the call until its outputs are ready
    starts: tuple[float, ...]  # begins, in seconds of time.perf_counter()
    started: str  # UTC time of the first begin, ISO 8601

    @property
    def begins(self) -> tuple[float, ...]:
        """The begin of each run, in seconds since the first one began."""
        return tuple(moment - self.starts[0] for moment in self.starts)

    def __add__(self, later: TimedRuns) -> TimedRuns:
        return TimedRuns(self.whole + later.whole, self.starts + later.starts, self.started or later.started)

    def layers(
        self, layers: Iterable[Layer], *, clock: str, absent: dict[str, str] | None = None, on_gpu: bool = False
    ) -> Layers:
        return Layers(
            layers=tuple(layers),
            whole=self.whole,
            timed="GPU" if on_gpu else "host",
            clock=clock,
            absent=absent or {},
            begun=self.begins,
            started=self.started,
        )


NO_RUNS = TimedRuns((), (), "")


def time_runs(runner: Runnable, feed: Any, runs: int, after: Callable[[], None] = lambda: None) -> TimedRuns:
    """Time ``runs`` calls of ``runner``, each until its outputs are ready.

    ``after`` is called between the runs, outside of their times.
    """
    now, whole, moments = time.perf_counter_ns, [], []
    started = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    for _ in range(runs):
        begin = now()
        runner.infer(feed)
        runner.synchronize()
        whole.append((now() - begin) / 1e9)
        moments.append(begin / 1e9)
        after()
    return TimedRuns(tuple(whole), tuple(moments), started)


# The layers of a PyTorch module, timed by forward hooks. A layer's time is the own time of its module, without the
# modules that it calls; it includes Python and the hooks between two modules, so own times add up to the whole. A hook
# only writes down a mark: a moment, or on a GPU a CUDA event that is read after the run.

HOST_CLOCK = "time.perf_counter_ns in forward hooks"
GPU_CLOCK = "CUDA events in forward hooks; where the host does not keep up, a layer's time holds the wait for it"
EXPORTED_CHECK = "_guards_fn"
NO_MODULES = "the model calls no modules: it is one graph, with one layer. Profile the nn.Module that it came from."


class HostMarks:
    """Times on the host's clock, in nanoseconds."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self.take: Callable[[], None] = lambda: self._times.append(time.perf_counter_ns())

    def read(self) -> list[float]:
        """Return the seconds from the first mark to each, and forget them."""
        times, self._times = self._times, []
        return [(moment - times[0]) / 1e9 for moment in times]


class GpuMarks:
    """Times on the current CUDA stream, as events that are used again in the next run."""

    def __init__(self, expected: int) -> None:
        self._event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)
        self._events = [self._event() for _ in range(expected)]
        self._used = 0

    def take(self) -> None:
        if self._used == len(self._events):
            self._events.append(self._event())
        self._events[self._used].record()
        self._used += 1

    def read(self) -> list[float]:
        """Return the seconds from the first mark to each once the GPU has reached the last, and forget them."""
        events, self._used = self._events[: self._used], 0
        events[-1].synchronize()
        return [events[0].elapsed_time(event) / 1e3 for event in events]


def time_modules(runner: Runner, module: Any, feed: Any, runs: int, *, on_gpu: bool = False) -> Layers:
    """Time the modules of ``module`` in ``runs`` calls of ``runner.infer(feed)``, after an untimed one."""
    layers, absent = module_layers(runner, module, feed)
    paths, modules = zip(*module.named_modules(), strict=True)  # a module with several paths has its first
    moments = GpuMarks(2 * len(modules) + 1) if on_gpu else HostMarks()
    marks: list[int] = []
    times: dict[int, LayerTimes] = {}
    run = itertools.count()

    def after() -> None:
        add_own_times(times, next(run), marks, moments.read()[1:])
        marks.clear()
        moments.take()

    with timing_hooks(modules, marks, moments.take, paths):
        moments.take()
        clocked = time_runs(runner, feed, runs, after)
    by_path = {layer.name: layer for layer in layers}
    for path, part in ((paths[index], modules[index]) for index in sorted(times)):  # some may be called only now
        by_path.setdefault(path, Layer(name=path, kind=type(part).__name__, modules=(path,)))
    timed = {paths[index]: item.timing(runs) for index, item in times.items()}
    layers = [replace(layer, **timed[path]) for path, layer in by_path.items() if path in timed]
    return clocked.layers(layers, clock=GPU_CLOCK if on_gpu else HOST_CLOCK, absent=absent, on_gpu=on_gpu)


def module_layers(runner: Runnable, module: Any, feed: Any) -> tuple[list[Layer], dict[str, str]]:
    """Return the modules that one untimed call calls, in order, and what is unknown of them."""
    paths = {id(part): path for path, part in module.named_modules()}
    layers: dict[str, Layer] = {}

    def enter(part: Any, _: Any) -> None:
        path = paths.get(id(part))
        if path is not None:
            layer = layers.get(path, Layer(name=path, kind=type(part).__name__, modules=(path,), calls=0))
            layers[path] = replace(layer, calls=layer.calls + 1)

    def leave(part: Any, arguments: Any, named: Any, result: Any = None) -> None:
        path = paths.get(id(part))
        layer = None if path is None else layers.get(path)
        if layer is not None and not (layer.inputs or layer.outputs):
            tensors = {"inputs": value_tensors((arguments, named)), "outputs": value_tensors(result)}
            layers[layer.name] = replace(layer, **tensors)

    with module_hooks(enter, leave):
        runner.infer(feed)
        runner.synchronize()
    # An exported program calls no module except its own check.
    flat = len(paths) > 1 and len(layers.keys() - {EXPORTED_CHECK}) < 2
    return [*layers.values()], {"modules": NO_MODULES} if flat else {}


def add_own_times(times: dict[int, LayerTimes], run: int, marks: list[int], moments: list[float]) -> None:
    """Add the own times of each module in one run, by its number.

    ``marks`` are the number of a module where it was entered, ``~number`` where it was left, in order; ``moments`` are
    the seconds since the run began.
    """
    entered: list[list[float]] = []  # begin of each open module, and the time of modules that it called
    for mark, moment in zip(marks, moments, strict=True):
        if mark >= 0:
            entered.append([moment, 0.0])
            continue
        begin, inside = entered.pop()
        own = max(moment - begin - inside, 0.0)  # rounding can make it negative
        times.setdefault(~mark, LayerTimes()).add(run, own, begin)
        if entered:
            entered[-1][1] += moment - begin


def timing_hooks(
    modules: Sequence[Any], marks: list[int], take: Callable[[], None], paths: Sequence[str]
) -> AbstractContextManager[None]:
    """Record marks and moments of every call of ``modules``, also where a call fails and the model goes on.

    Each call is an NVTX range with the module's path, too.
    """
    numbers = {id(module): index for index, module in enumerate(modules)}
    begin, end = nvtx_push_pop()

    def enter(module: Any, _: Any) -> None:
        index = numbers.get(id(module))
        if index is not None:
            marks.append(index)
            begin(f"module: {paths[index]}")
            take()

    def leave(module: Any, *_: Any) -> None:
        index = numbers.get(id(module))
        if index is not None:
            take()
            end()
            marks.append(~index)

    return module_hooks(enter, leave)


def value_tensors(value: Any) -> tuple[Tensor, ...]:
    """Return the tensors in ``value``, any nesting flattened in order."""
    return tuple(
        Tensor(shape=tuple(leaf.shape), dtype=str(leaf.dtype).removeprefix("torch."))
        for leaf in torch.utils._pytree.tree_leaves(value)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )
