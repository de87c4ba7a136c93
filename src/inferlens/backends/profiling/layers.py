"""What every runner that times its layers shares: the check that it was prepared for that, and the runs themselves.

A runner that was prepared to be timed refuses: nothing is instrumented behind a timing's back.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.base import Preparation, Runner
from inferlens.backends.clocks import nvtx_push_pop
from inferlens.errors import Unsupported
from inferlens.models.work.torch_module import hooked
from inferlens.record.layer_profile import Layer, Layers, Tensor


def check_level(preparation: Preparation, *, replays: bool = False) -> None:
    """Refuses to profile a runner that was prepared to be timed, or that ``replays`` a CUDA graph."""
    if preparation.level not in ("layer", "kernel"):
        what = "The runner was prepared to be timed, not to be profiled."
        raise Unsupported(what, expected="the level 'layer' or 'kernel'")
    if replays:
        raise Unsupported("A CUDA graph replays kernels and has no layers.", hint="without cuda_graph")


class Taken(Struct):
    """What a layer took in each run: seconds, when it first began, how many calls; and the names of its kernels."""

    times: dict[int, float] = {}
    begins: dict[int, float] = {}
    calls: dict[int, int] = {}
    kernels: dict[str, None] = {}

    def add(self, run: int, time: float, begin: float, calls: int = 1) -> None:
        self.times[run] = self.times.get(run, 0.0) + time
        self.begins.setdefault(run, begin)
        self.calls[run] = self.calls.get(run, 0) + calls

    def join(self, other: Taken) -> None:
        """What another call, later in each run, took."""
        for run, seconds in other.times.items():
            self.add(run, seconds, other.begins[run], other.calls[run])
        self.kernels.update(other.kernels)

    def timing(self, runs: int) -> dict[str, Any]:
        return {
            "times": tuple(self.times.get(run, 0.0) for run in range(runs)),
            "begins": tuple(self.begins.get(run, 0.0) for run in range(runs)),
            "calls": max(self.calls.values()),
        }


class Runnable(Protocol):
    """What can be run: a runner, or anything else with these two of its methods."""

    def infer(self, feed: Any) -> Any:
        """One call."""

    def synchronize(self) -> None:
        """Returns when its outputs are ready."""


class Clocked(Struct, frozen=True):
    """When some runs were, on the host's clock."""

    whole: tuple[float, ...]  # seconds of each, from the call to its outputs being ready
    moments: tuple[float, ...]  # when each began, in seconds of time.perf_counter()
    started: str  # UTC time at which the first began, ISO 8601

    @property
    def begun(self) -> tuple[float, ...]:
        """When each began, in seconds since the first of them began."""
        return tuple(moment - self.moments[0] for moment in self.moments)

    def __add__(self, later: Clocked) -> Clocked:
        return Clocked(self.whole + later.whole, self.moments + later.moments, self.started or later.started)

    def layers(
        self, layers: Iterable[Layer], *, clock: str, absent: dict[str, str] | None = None, on_gpu: bool = False
    ) -> Layers:
        return Layers(
            layers=tuple(layers),
            whole=self.whole,
            timed="GPU" if on_gpu else "host",
            clock=clock,
            absent=absent or {},
            begun=self.begun,
            started=self.started,
        )


NO_RUNS = Clocked((), (), "")


def clocked_runs(runner: Runnable, feed: Any, runs: int, after: Callable[[], None] = lambda: None) -> Clocked:
    """``runs`` calls of ``runner``, each timed from the call to its outputs being ready.

    ``after`` reads what a run left behind, between the runs and outside of their times.
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
    return Clocked(tuple(whole), tuple(moments), started)


# The layers of a PyTorch module, timed by forward hooks. A layer's time is the own time of its module, without the
# modules that it calls; it includes Python and the hooks between two modules, so own times add up to the whole. A hook
# only writes down a mark: a moment, or on a GPU a CUDA event that is read after the run.

HOST_CLOCK = "time.perf_counter_ns in forward hooks"
GPU_CLOCK = "CUDA events in forward hooks; where the host does not keep up, a layer's time holds the wait for it"
EXPORTED_CHECK = "_guards_fn"
NO_MODULES = "the model calls no modules: it is one graph, with one layer. Profile the nn.Module that it came from."


class HostMoments:
    """Moments on the host's clock, as nanoseconds."""

    def __init__(self) -> None:
        self._taken: list[int] = []
        self.take: Callable[[], None] = lambda: self._taken.append(time.perf_counter_ns())

    def read(self) -> list[float]:
        """Seconds from the first moment to each; forgets them."""
        taken, self._taken = self._taken, []
        return [(moment - taken[0]) / 1e9 for moment in taken]


class GpuMoments:
    """Moments on the current CUDA stream, as events that are used again in the next run."""

    def __init__(self, expected: int) -> None:
        import torch

        self._event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)
        self._events = [self._event() for _ in range(expected)]
        self._used = 0

    def take(self) -> None:
        if self._used == len(self._events):
            self._events.append(self._event())
        self._events[self._used].record()
        self._used += 1

    def read(self) -> list[float]:
        """Seconds from the first moment to each, once the GPU has reached the last; forgets them."""
        events, self._used = self._events[: self._used], 0
        events[-1].synchronize()
        return [events[0].elapsed_time(event) / 1e3 for event in events]


def layers_of(runner: Runner, module: Any, feed: Any, runs: int, *, on_gpu: bool = False) -> Layers:
    """Time the modules of ``module`` in ``runs`` calls of ``runner.infer(feed)``, after an untimed one."""
    layers, absent = module_layers(runner, module, feed)
    paths, modules = zip(*module.named_modules(), strict=True)  # a module that has several paths goes by its first
    moments = GpuMoments(2 * len(modules) + 1) if on_gpu else HostMoments()
    marks: list[int] = []
    taken: dict[int, Taken] = {}
    run = itertools.count()

    def after() -> None:
        add_own_times(taken, next(run), marks, moments.read()[1:])
        marks.clear()
        moments.take()

    with timing_hooks(list(modules), marks, moments.take, paths):
        moments.take()
        clocked = clocked_runs(runner, feed, runs, after)
    known = {layer.name: layer for layer in layers}
    for index in sorted(taken):  # what only a later call called
        path = paths[index]
        known.setdefault(path, Layer(name=path, kind=type(modules[index]).__name__, modules=(path,)))
    timed = {paths[index]: item.timing(runs) for index, item in taken.items()}
    layers = [replace(layer, **timed[name]) for name, layer in known.items() if name in timed]
    return clocked.layers(layers, clock=GPU_CLOCK if on_gpu else HOST_CLOCK, absent=absent, on_gpu=on_gpu)


def module_layers(runner: Runnable, module: Any, feed: Any) -> tuple[list[Layer], dict[str, str]]:
    """Return the modules that one call calls, in order and without times; and what is not known of them, and why."""
    paths, modules = zip(*module.named_modules(), strict=True)
    seen, calls = look(runner, list(modules), feed)
    layers = [
        Layer(
            name=paths[index],
            kind=type(modules[index]).__name__,
            modules=(paths[index],),
            inputs=inputs,
            outputs=outputs,
            calls=calls[index],
        )
        for index, (inputs, outputs) in seen.items()
    ]
    # An exported program has modules in name only, and calls but its own check.
    alone = len(paths) > 1 and sum(layer.name != EXPORTED_CHECK for layer in layers) < 2
    return layers, {"modules": NO_MODULES} if alone else {}


def add_own_times(taken: dict[int, Taken], run: int, marks: list[int], moments: list[float]) -> None:
    """Adds the own times of each module in one run, by its number.

    ``marks`` are the number of a module where it was entered, ``~number`` where it was left, in order; ``moments`` are
    when that was, in seconds since the run began.
    """
    open_: list[list[float]] = []  # of each module that was entered: when, and the time of those it called
    for mark, moment in zip(marks, moments, strict=True):
        if mark >= 0:
            open_.append([moment, 0.0])
            continue
        begin, inside = open_.pop()
        own = max(moment - begin - inside, 0.0)  # rounding may leave less than nothing
        taken.setdefault(~mark, Taken()).add(run, own, begin)
        if open_:
            open_[-1][1] += moment - begin


def timing_hooks(
    modules: list[Any], marks: list[int], take: Callable[[], None], paths: Sequence[str]
) -> AbstractContextManager[None]:
    """Marks and moments of every call of ``modules``, also where a call fails and the model goes on.

    Each call is a range for NVIDIA's profilers too, by its path, where these are asked for.
    """
    numbers = {id(module): index for index, module in enumerate(modules)}
    begin, end = nvtx_push_pop()

    def entering(module: Any, _: Any) -> None:
        index = numbers.get(id(module))
        if index is not None:
            marks.append(index)
            begin(f"module: {paths[index]}")
            take()

    def leaving(module: Any, *_: Any) -> None:
        index = numbers.get(id(module))
        if index is not None:
            take()
            end()
            marks.append(~index)

    return hooked(entering, leaving)


def look(
    runner: Runnable, modules: list[Any], feed: Any
) -> tuple[dict[int, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]], Counter[int]]:
    """Return what goes into and out of each module, by its number, in an untimed call, and how often each is called."""
    seen: dict[int, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
    numbers = {id(module): index for index, module in enumerate(modules)}
    entered: list[int] = []

    def entering(module: Any, _: Any) -> None:
        if id(module) in numbers:
            entered.append(numbers[id(module)])
            seen.setdefault(entered[-1], ((), ()))

    def leaving(module: Any, arguments: Any, named: Any, result: Any = None) -> None:
        index = numbers.get(id(module))
        if index is not None and seen[index] == ((), ()):
            seen[index] = tensors((arguments, named)), tensors(result)

    with hooked(entering, leaving):
        runner.infer(feed)
        runner.synchronize()
    return seen, Counter(entered)


def tensors(value: Any) -> tuple[Tensor, ...]:
    """The tensors in ``value``, any nesting flattened in order; what is no tensor is left out."""
    from torch.utils._pytree import tree_leaves

    return tuple(
        Tensor(shape=tuple(leaf.shape), dtype=str(leaf.dtype).removeprefix("torch."))
        for leaf in tree_leaves(value)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )
