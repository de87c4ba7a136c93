"""Layers of compiled code that runs inside PyTorch: those operators, of all that the profiler saw, that are layers.

Which they are, and what they came from, each compiler's :class:`OperatorNames` says. A layer's time is the host's for
the whole call, on a GPU that of the kernels which it launched. The same names tell where the kernels of a run come
from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from inferlens.backends.abilities import KernelOrigin
from inferlens.backends.profiling.kernel_matching import MatchedKernels
from inferlens.backends.profiling.layer_runs import NO_RUNS, Runnable, Taken
from inferlens.backends.profiling.traced_runs import GPU_CLOCK, HOST_CLOCK, TracedOperator, one_run, trace_runs
from inferlens.record.layer_profile import Layer, Layers

# What is called in a run: its name, and how many of that name were called before it in the same run.
Call = tuple[str, int]


class OperatorNames(ABC):
    """What a compiler tells of its code."""

    why_unknown: str  # why some operators have no module

    @abstractmethod
    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """The operators of a run that are layers."""

    @abstractmethod
    def named(self, taken: Mapping[Call, Taken]) -> dict[Call, Layer]:
        """What each call is, without times, in the order of execution; calls of one name are one layer."""

    def absent(self) -> dict[str, str]:
        """What else is not known, and why; asked after :meth:`named`. Here: nothing."""
        return {}

    def missing(self, unknown: int, what: str) -> dict[str, str]:
        """All that is not known, where so many have no module."""
        return ({"modules": f"not known for {unknown} {what}: {self.why_unknown}"} if unknown else {}) | self.absent()


def layers_of(runner: Runnable, names: OperatorNames, feed: Any, runs: int, *, on_gpu: bool) -> Layers:
    """Times the layers in ``runs`` calls of ``runner.infer(feed)``; on a GPU only what launches kernels."""
    clocked = NO_RUNS
    taken: dict[Call, Taken] = {}
    for several, traced in trace_runs(runner, feed, runs, on_gpu=on_gpu):
        for number, run in enumerate(traced, start=len(clocked.whole)):
            _take(taken, names, run.root, number, on_gpu=on_gpu)
        clocked += several
    together: dict[str, tuple[Layer, Taken]] = {}
    for call, layer in names.named(taken).items():
        if layer.name in together:
            together[layer.name][1].join(taken[call])
        else:
            together[layer.name] = layer, taken[call]
    layers = [
        replace(layer, details={"kernels": list(item.kernels)} if item.kernels else {}, **item.timing(runs))
        for layer, item in together.values()
    ]
    return clocked.layers(
        layers,
        clock=GPU_CLOCK if on_gpu else HOST_CLOCK,
        absent=names.missing(sum(not layer.modules for layer in layers), "operators"),
        on_gpu=on_gpu,
    )


def matched_kernels(runner: Runnable, names: OperatorNames, feed: Any) -> MatchedKernels:
    """The kernels of one call, in the order in which a GPU ran them, with their layers."""
    return kernels_beneath(one_run(runner, feed, on_gpu=True).root, names)


def kernels_beneath(root: TracedOperator, names: OperatorNames) -> MatchedKernels:
    """As :func:`matched_kernels`, of a run that was traced."""
    taken: dict[Call, Taken] = {}
    operators = _take(taken, names, root, 0, on_gpu=True)
    known = names.named(taken)
    found = [(event, known[call]) for call, operator in operators for event in operator.launched()]
    found.sort(key=lambda item: item[0].begin)
    absent = names.missing(sum(not layer.modules for _, layer in found), f"of {len(found)} kernels")
    absent.pop("tensors", None)  # kernels have none
    calls = Counter(known[call].name for call, _ in operators)
    layers = {layer.name: replace(layer, calls=calls[layer.name]) for _, layer in found}
    kernels = [(event.launched, KernelOrigin(layer.name, layer.modules)) for event, layer in found]
    return MatchedKernels(kernels, absent, tuple(layers.values()))


def _take(
    taken: dict[Call, Taken], names: OperatorNames, root: TracedOperator, run: int, *, on_gpu: bool
) -> list[tuple[Call, TracedOperator]]:
    """Adds what the layers of a run took; on a GPU they are those that launch kernels."""
    calls = [call for call in names.calls(root) if not on_gpu or any(call[1].launched())]
    for call, operator in calls:
        each = taken.setdefault(call, Taken())
        kernels = list(operator.launched()) if on_gpu else []
        begin = max(min(event.begin for event in kernels), 0) / 1e9 if on_gpu else operator.begin
        each.add(run, sum(event.time for event in kernels) / 1e9 if on_gpu else operator.time, begin)
        each.kernels.update(dict.fromkeys(event.launched.name for event in kernels))
    return calls


def outermost(root: TracedOperator, is_layer: Callable[[TracedOperator], bool]) -> list[TracedOperator]:
    """The outermost operators beneath ``root`` that are layers.

    Kernels that no layer launched, such as those of a CUDA graph, are each as an operator that did nothing else.
    """
    found = [TracedOperator(event.launched.name, kernels=[event]) for event in root.kernels]
    for operator in root.inside:
        found += [operator] if is_layer(operator) else outermost(operator, is_layer)
    return found


def numbered(
    operators: Iterable[TracedOperator], name: Callable[[str], str] = str
) -> list[tuple[Call, TracedOperator]]:
    """Each operator with its call: its name, as ``name`` changes it, and how many of that name are before it."""
    count: Counter[str] = Counter()
    found = []
    for operator in operators:
        called = name(operator.name)
        found.append(((called, count[called]), operator))
        count[called] += 1
    return found
