"""An engine's layers in runs: their times, and the kernels that they launched.

TensorRT puts CUDA events around every layer while a profiler is set, and reports a run's times afterwards: what is done
for each layer is that one number is kept. Layers are told apart by their names, and those of one name by their order.

Kernels are laid beside the layers in their order, by the names of tactics. Where they are not equally many,
convolutions and matrix products are further anchors: a layer of TensorRT for RTX says by its type whether it convolves
or multiplies, and so does the name of the kernel that is made for it. If every such layer launches at least one such
kernel, and no other layer does, then where both are equally many each has its own. Any other kernel between two of them
belongs to what lies between, or to the two.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.backends.abilities import Launched, Origin, Origins
from inferlens.backends.profiling.kernel_layers import EngineLayer, aligned, joint, of_engine, origins_of
from inferlens.backends.profiling.layer_runs import clocked_runs
from inferlens.backends.tensorrt.inspector import (
    Lookup,
    absences,
    inspected_layers,
    only_orders,
    onnx_lookup,
    tactic,
)  # fmt: skip
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer, Layers

CLOCK = "TensorRT's IProfiler: CUDA events around every layer"
MULTIPLY = ("correlation", "gemm", "runtime_fusion")  # types of layers; a fusion is of other operators into these
OTHERS = ("kgen", "maxpool")
KERNEL = re.compile(r"convFwd|matMul")
Owners = tuple[EngineLayer, ...]
Report = list[tuple[str, float]]  # of one run: names and milliseconds, in the order of execution


def profiled_engine(runner: Any, call: Any, feed: Any, runs: int, onnx: Path | None) -> tuple[Layers, list[str]]:
    """Times the layers of ``call``, which ``runner.infer(feed)`` makes, in ``runs`` runs.

    Args:
        onnx: the file that the engine was built from; ``None`` if it is not known.

    Returns:
        The layers, and the names of the engine's inputs and outputs.
    """
    entries, bindings = call.engine.information()
    lookup, missing = onnx_lookup(onnx)
    known = inspected_layers(entries, lookup)
    with Reporting(call.context, call.engine.flavour.module) as reporting:
        runner.infer(feed)
        runner.synchronize()
        if not reporting.take():  # this runtime reports only from within a call
            reporting.emit()
            runner.infer(feed)
            reporting.take()
        layers = timed_layers(runner, feed, runs, known, lambda: inspectors_names(reporting.take(), known), lookup)
    return replace(layers, absent=absences(entries, layers.layers, missing)), bindings


def timed_layers(
    runner: Any, feed: Any, runs: int, known: Sequence[Layer], take: Callable[[], Report], lookup: Lookup
) -> Layers:
    """The layers of what ``runner.infer(feed)`` calls, timed in ``runs`` runs.

    Args:
        known: the layers, in the order of execution.
        take: the report of the run that has just ended, under the names of ``known``.
        lookup: where a layer came from that is reported and not known.
    """
    reports: list[Report] = []
    clocked = clocked_runs(runner, feed, runs, lambda: reports.append(take()))
    return Layers(
        layers=with_times(known, reports, lookup),
        whole=clocked.whole,
        timed="GPU",
        clock=CLOCK,
        begun=clocked.begun,
        started=clocked.started,
    )


def with_times(layers: Sequence[Layer], reports: Sequence[Report], lookup: Lookup) -> tuple[Layer, ...]:
    """The layers with their times in each run.

    Args:
        layers: in the order of execution.
        reports: of each run; a layer that none of them names has no times.
        lookup: where a layer came from that is reported and ``layers`` lacks: it is added.
    """
    runs = [numbered(report) for report in reports]
    if not any(runs):
        raise Unsupported(
            "The runtime reports no times of layers.", hint="--level kernel, which does not need its help"
        )
    reported = dict.fromkeys(key for run in runs for key in run)
    found = dict(zip(numbered([(layer.name, 0.0) for layer in layers]), layers, strict=True))
    found |= {key: inspected_layers([key[0]], lookup)[0] for key in reported if key not in found}
    return tuple(
        replace(layer, times=tuple(run.get(key, 0.0) / 1e3 for run in runs)) if key in reported else layer
        for key, layer in found.items()
    )


def inspectors_names(report: Report, layers: Sequence[Layer]) -> Report:
    """A report under the names that the inspector has; where those are written otherwise, they go by their order."""
    if len(report) != len(layers) or {name for name, _ in report} & {layer.name for layer in layers}:
        return report
    return [(layer.name, milliseconds) for layer, (_, milliseconds) in zip(layers, report, strict=True)]


def numbered(report: Report) -> dict[tuple[str, int], float]:
    """The times of a report by name and, of those of one name, their number."""
    count: Counter[str] = Counter()
    found = {}
    for name, time in report:
        found[name, count[name]] = max(time, 0.0)
        count[name] += 1
    return found


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


def kernel_origins(launched: Sequence[Launched], layers: Sequence[Layer], absent: dict[str, str]) -> Origins:
    """Where each kernel of one run came from; ``absent`` is what is not known of the layers."""
    places = of_engine(launched)
    names = [launched[place].name for place in places]
    pairs = narrowed(names, aligned(names, engine_layers(layers)))
    found = [Origin()] * len(launched)
    for place, origin in zip(places, origins_of(pairs), strict=True):
        found[place] = origin
    jointly = joint(pairs)
    return Origins(tuple(found), absent | ({"layers": jointly} if jointly else {}))


def engine_layers(layers: Iterable[Layer]) -> list[EngineLayer]:
    """The layers as what kernels are paired with; those that only order others launch nothing."""
    return [
        EngineLayer(
            name=layer.name,
            kind=layer.kind,
            tactic=tactic(layer),
            modules=layer.modules,
            launches=not only_orders(layer),
        )
        for layer in layers
    ]


def narrowed(kernels: Sequence[str], pairs: Sequence[Owners]) -> list[Owners]:
    """The layers of each kernel, fewer where matrix products tell them apart.

    Args:
        kernels: names, in the order of their launches.
        pairs: for each kernel its layers; kernels that share theirs have them as one object.
    """
    found: list[Owners] = []
    for _, stretch in groupby(zip(kernels, pairs, strict=True), key=lambda pair: id(pair[1])):
        names, layers = zip(*stretch, strict=True)
        found += _apart(names, layers[0])
    return found


def _apart(kernels: Sequence[str], layers: Owners) -> list[Owners]:
    """The layers of each of some kernels that share these; they stay shared if any type of layer is another."""
    places = [place for place, name in enumerate(kernels) if KERNEL.search(name)]
    owners = [index for index, layer in enumerate(layers) if layer.kind in MULTIPLY]
    if len(places) != len(owners) or not all(layer.kind in MULTIPLY + OTHERS for layer in layers):
        return [layers] * len(kernels)
    found: list[Owners] = []
    before, above = -1, -1
    for place, index in [*zip(places, owners, strict=True), (len(kernels), len(layers))]:
        within, count = layers[above + 1 : index], place - before - 1
        one_each = [(layer,) for layer in within]
        found += one_each if count == len(within) else [layers[max(above, 0) : index + 1]] * count
        found += [layers[index : index + 1]] * (place < len(kernels))
        before, above = place, index
    return found
