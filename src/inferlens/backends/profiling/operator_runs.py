"""What torch.profiler saw of each run: the operators that the host called, as a tree, and the kernels they launched.

Every run lies in a span of its own, by which events are told apart; kernels belong to the operator that launched them,
by the profiler's correlation. Runs are profiled a few at a time, so that memory does not grow with their number, and
each time after a call that is not looked at, in which the profiler sets itself up.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from inferlens.backends.profiling.layer_runs import NO_RUNS, Clocked, Runs, clocked_runs
from inferlens.record.layer_profile import Tensor

HOST_CLOCK = "torch.profiler, operators on the host"
GPU_CLOCK = "torch.profiler (CUPTI), kernels on the GPU"
OURS = "inferlens "  # how the names of all our spans begin
SPAN = f"{OURS}run"
AT_ONCE = 10  # runs
TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip

# What is called in a run: its name, and how many of that name were called before it in the same run.
Call = tuple[str, int]


class Kernel(Struct, gc=False):
    """What the GPU executed, or copied; seconds since the run began."""

    name: str
    begin: float
    time: float


class Operator(Struct):
    """What the host called; seconds since the run began.

    Attributes:
        number: the profiler's, different for each call.
        scope: what recorded it, a number of PyTorch's ``at::RecordScope``.
        kernels: what it launched itself.
        inside: what it called.
    """

    name: str
    number: int = 0
    scope: int = 0
    begin: float = 0.0
    time: float = 0.0
    kernels: list[Kernel] = []
    inside: list[Operator] = []

    def launched(self) -> Iterator[Kernel]:
        """The kernels of it and of all that it called."""
        yield from self.kernels
        for operator in self.inside:
            yield from operator.launched()


Pick = Callable[[Operator], list[tuple[Call, Operator]]]


class Taken(Struct):
    """What is a layer's in each run: seconds, when it first began, how many calls; and the names of its kernels."""

    times: dict[int, float] = {}
    begins: dict[int, float] = {}
    calls: dict[int, int] = {}
    kernels: dict[str, None] = {}

    def add(self, run: int, operator: Operator, *, on_gpu: bool) -> None:
        """One call in one run; on a GPU its time is that of its kernels."""
        kernels = list(operator.launched()) if on_gpu else []
        begin = min((kernel.begin for kernel in kernels), default=0.0) if on_gpu else operator.begin
        time = sum(kernel.time for kernel in kernels) if on_gpu else operator.time
        self.times[run] = self.times.get(run, 0.0) + time
        self.begins.setdefault(run, begin)
        self.calls[run] = self.calls.get(run, 0) + 1
        self.kernels.update(dict.fromkeys(kernel.name for kernel in kernels))

    def join(self, other: Taken) -> None:
        """What another call, later in each run, took."""
        for run, time in other.times.items():
            self.times[run] = self.times.get(run, 0.0) + time
            self.begins.setdefault(run, other.begins[run])
            self.calls[run] = self.calls.get(run, 0) + other.calls[run]
        self.kernels.update(other.kernels)

    def timing(self, runs: int) -> dict[str, Any]:
        """The part of a layer that is about time."""
        numbers = range(runs)
        return {
            "times": tuple(self.times.get(run, 0.0) for run in numbers),
            "begins": tuple(self.begins.get(run, 0.0) for run in numbers),
            "calls": max(self.calls.values()),
        }


class Spanned:
    """A runner each of whose runs, from the call to its outputs, is in a span."""

    def __init__(self, runner: Runs) -> None:
        self._runner = runner
        self._span: Any = None

    def infer(self, feed: Any) -> Any:
        """One call."""
        import torch

        self._span = torch.profiler.record_function(SPAN)
        self._span.__enter__()
        return self._runner.infer(feed)

    def synchronize(self) -> None:
        """Returns when its outputs are ready."""
        self._runner.synchronize()
        self._span.__exit__(None, None, None)


@contextmanager
def profiler(*, on_gpu: bool, **more: Any) -> Iterator[Any]:
    """torch.profiler for the host and, where asked, the GPU; without its notices on what is done here on purpose."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        warnings.filterwarnings("ignore", message="with_modules is deprecated", category=FutureWarning)
        with profile(activities=activities, **more) as made:
            yield made


def one_run(runner: Runs, feed: Any, *, on_gpu: bool, **more: Any) -> tuple[Operator, Any]:
    """What was called in one run that is not timed, after one in which the profiler sets itself up; and the profile.

    Args:
        more: what else torch.profiler is asked for.
    """
    with profiler(on_gpu=on_gpu, **more) as profile:
        runner.infer(feed)
        runner.synchronize()
        spanned = Spanned(runner)
        spanned.infer(feed)
        spanned.synchronize()
    (root,) = roots(profile.profiler.kineto_results.events())
    return root, profile


def taken(runner: Runs, feed: Any, runs: int, pick: Pick, *, on_gpu: bool) -> tuple[Clocked, dict[Call, Taken]]:
    """``runs`` calls, and what was taken by what ``pick`` chose of each; in the order of execution.

    On a GPU that is only what launched kernels.
    """
    clocked = NO_RUNS
    found: dict[Call, Taken] = {}
    while (begun := len(clocked.whole)) < runs:
        with profiler(on_gpu=on_gpu) as profile:
            runner.infer(feed)
            runner.synchronize()
            clocked += clocked_runs(Spanned(runner), feed, min(AT_ONCE, runs - begun))
        for run, root in enumerate(roots(profile.profiler.kineto_results.events()), start=begun):
            for call, operator in pick(root):
                if not on_gpu or any(operator.launched()):
                    found.setdefault(call, Taken()).add(run, operator, on_gpu=on_gpu)
    return clocked, found


def outermost(root: Operator, is_layer: Callable[[Operator], bool]) -> list[Operator]:
    """The outermost operators beneath ``root`` that are layers.

    Kernels that no layer launched, such as those of a CUDA graph, are each as an operator that did nothing else.
    """
    found = [Operator(kernel.name, kernels=[kernel]) for kernel in root.kernels]
    for operator in root.inside:
        found += [operator] if is_layer(operator) else outermost(operator, is_layer)
    return found


def numbered(operators: list[Operator], name: Callable[[str], str] = str) -> list[tuple[Call, Operator]]:
    """Each operator with its call: its name, as ``name`` changes it, and how many of that name are before it."""
    named: Counter[str] = Counter()
    found = []
    for operator in operators:
        called = name(operator.name)
        found.append(((called, named[called]), operator))
        named[called] += 1
    return found


def roots(events: Any) -> list[Operator]:
    """The runs among the events of a profile: each span, with what the host did in it, and the GPU because of it."""
    from torch.autograd import DeviceType

    host, launched = [], defaultdict(list)
    for event in events:
        if event.device_type() != DeviceType.CPU:
            if not event.is_user_annotation() and not event.name().startswith(OURS):  # spans, mirrored onto the GPU
                launched[event.linked_correlation_id()].append(event)
        elif not event.linked_correlation_id() and not event.is_async():
            host.append(event)
    host.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
    spans = [event for event in host if event.name() == SPAN]
    found = []
    place = 0
    for span in spans:
        while place < len(host) and host[place].start_ns() < span.start_ns():
            place += 1
        begin = place
        while place < len(host) and host[place].start_ns() <= span.end_ns():
            place += 1
        inside = [event for event in host[begin:place] if event is not span]
        found.append(tree(span, inside, launched))
    unknown = launched.get(0, [])
    for span, root in zip(spans, found, strict=True):
        root.kernels += [kernel(each, span) for each in unknown if span.start_ns() <= each.start_ns() <= span.end_ns()]
    return found


def tree(span: Any, events: list[Any], launched: dict[int, list[Any]]) -> Operator:
    """The span as the root of ``events``, which are in the order of their begins; other threads' are beneath it too."""
    root = operator_of(span, span, launched)
    open_: defaultdict[int, list[tuple[int, Operator]]] = defaultdict(list)
    for event in events:
        outer = open_[event.start_thread_id()]
        while outer and outer[-1][0] < event.end_ns():
            outer.pop()
        operator = operator_of(event, span, launched)
        (outer[-1][1] if outer else root).inside.append(operator)
        outer.append((event.end_ns(), operator))
    return root


def operator_of(event: Any, span: Any, launched: dict[int, list[Any]]) -> Operator:
    """One event of the host's."""
    number = event.correlation_id()
    return Operator(
        name=event.name(),
        number=number,
        scope=event.scope(),
        begin=(event.start_ns() - span.start_ns()) / 1e9,
        time=event.duration_ns() / 1e9,
        kernels=[kernel(each, span) for each in launched.get(number, ())],
    )


def kernel(event: Any, span: Any) -> Kernel:
    """One event of the GPU's; its clock may be off the host's by microseconds."""
    begin = max(event.start_ns() - span.start_ns(), 0) / 1e9
    return Kernel(event.name(), begin, event.duration_ns() / 1e9)


def tensor(shape: Any, dtype: str) -> Tensor | None:
    """A tensor from the profiler's words for it; ``None`` if it is none."""
    if not dtype or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        return None
    return Tensor(shape=tuple(shape), dtype=TYPES.get(dtype, dtype))
