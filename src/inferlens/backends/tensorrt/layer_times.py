"""Times of an engine's layers in every run, as TensorRT's ``IProfiler`` reports them.

TensorRT puts CUDA events around every layer while a profiler is set, and reports a run's times afterwards: what is done
for each layer is that one number is kept. Layers are told apart by their names, and those of one name by their order.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer

CLOCK = "TensorRT's IProfiler: CUDA events around every layer"
Report = list[tuple[str, float]]  # of one run: names and milliseconds, in the order of execution


@functools.lru_cache(maxsize=2)
def recorder(module: Any) -> Any:
    """The class of profilers that keep what is reported; it must be a subclass of the module's own ``IProfiler``."""

    class _Recorder(module.IProfiler):  # type: ignore[misc]
        """Keeps the reports of one run, until they are taken."""

        def __init__(self) -> None:
            module.IProfiler.__init__(self)
            self._report: Report = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            """TensorRT's call for every layer."""
            self._report.append((layer_name, ms))

        def take(self) -> Report:
            """What was reported since the last time."""
            report, self._report = self._report, []
            return report

    return _Recorder


class Reporting:
    """A context that reports the times of its layers after each run."""

    def __init__(self, context: Any, module: Any) -> None:
        self._context = context
        self.recorder = recorder(module)()
        self._emits = True

    def __enter__(self) -> Reporting:
        self._context.profiler = self.recorder
        if hasattr(self._context, "enqueue_emits_profile"):
            self._context.enqueue_emits_profile = self._emits = False  # reported when it is asked for, not in enqueue
        return self

    def __exit__(self, *_: object) -> None:
        if not self._emits:
            self._context.enqueue_emits_profile = True

    def emit(self) -> None:
        """Has each call report by itself, waiting for its own end: for contexts that do not report when asked."""
        self._context.enqueue_emits_profile = self._emits = True

    def take(self) -> Report:
        """The report of the run that has just ended."""
        if not self._emits:
            self._context.report_to_profiler()
        return list(self.recorder.take())


def timed_layers(
    layers: Sequence[Layer], reports: Sequence[Report], named: Callable[[str], Layer]
) -> tuple[Layer, ...]:
    """The layers with their times in each run.

    Args:
        layers: in the order of execution.
        reports: of each run; a layer that none of them names has no times, one that ``layers`` lacks is added.
        named: makes a layer of a name alone.

    Raises:
        Unsupported: if nothing was reported.
    """
    runs = [numbered(report) for report in reports]
    if not any(runs):
        raise Unsupported(
            "The runtime reports no times of layers.", hint="--level kernel, which does not need its help"
        )
    count: Counter[str] = Counter()
    found: dict[tuple[str, int], Layer] = {}
    for layer in layers:
        found[layer.name, count[layer.name]] = layer
        count[layer.name] += 1
    reported = dict.fromkeys(key for run in runs for key in run)
    for key in reported:
        if key not in found:
            found[key] = named(key[0])
    return tuple(
        replace(layer, times=tuple(run.get(key, 0.0) / 1e3 for run in runs)) if key in reported else layer
        for key, layer in found.items()
    )


def as_told(report: Report, layers: Sequence[Layer]) -> Report:
    """A report under the names that the inspector tells; where those are written otherwise, they go by their order."""
    if len(report) != len(layers) or {name for name, _ in report} & {layer.name for layer in layers}:
        return report
    return [(layer.name, milliseconds) for layer, (_, milliseconds) in zip(layers, report, strict=True)]


def numbered(report: Report) -> dict[tuple[str, int], float]:
    """The times of a report by name and, of those of one name, their number."""
    named: Counter[str] = Counter()
    found = {}
    for name, time in report:
        found[name, named[name]] = max(time, 0.0)
        named[name] += 1
    return found
