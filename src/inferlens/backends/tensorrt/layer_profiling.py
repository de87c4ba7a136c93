"""The layers of an engine, timed in every run, and the modules of the ONNX file that they came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferlens.backends.onnx.modules import Origins, modules_among, operators_among, origins
from inferlens.backends.profiling.layer_runs import clocked_runs
from inferlens.backends.tensorrt.inspector import (
    NAMES_ONLY,
    TELLS_NOTHING,
    Origin,
    is_detailed,
    named_layer,
    only_orders,
    told_layers,
)
from inferlens.backends.tensorrt.layer_times import CLOCK, Report, Reporting, as_told, timed_layers
from inferlens.record.layer_profile import Layer, Layers

NO_ONNX = (
    "the modules that layers came from are told by the ONNX file, and this engine is given without it. "
    "Profile the model, or the ONNX file."
)
UNNAMED = "of {} layers the engine does not tell from which ONNX nodes they came"


def layers_of(runner: Any, call: Any, feed: Any, runs: int, onnx: Path | None) -> tuple[Layers, list[str]]:
    """Times the layers of ``call``, which ``runner.infer(feed)`` makes, in ``runs`` runs.

    Args:
        onnx: the file that the engine was built from; ``None`` if it is not known.

    Returns:
        The layers, and the names of the engine's inputs and outputs.

    Raises:
        Unsupported: if the runtime reports no times.
    """
    engine = call.engine
    told, bindings = engine.information()
    graph = graph_of(onnx)
    reports: list[Report] = []
    with Reporting(call.context, engine.flavour.module) as reporting:
        runner.infer(feed)
        runner.synchronize()
        if not reporting.take():  # this runtime reports only from within a call
            reporting.emit()
            runner.infer(feed)
            reporting.take()
        clocked = clocked_runs(runner, feed, runs, lambda: reports.append(reporting.take()))
    origin = origin_in(graph)
    known = told_layers(told, origin)
    layers = timed_layers(known, [as_told(report, known) for report in reports], named_layer(origin))
    return Layers(
        layers=layers,
        whole=clocked.whole,
        timed="GPU",
        clock=CLOCK,
        absent=absences(told, graph.absent, layers),
        begun=clocked.begun,
        started=clocked.started,
    ), bindings


def told_of(engine: Any, onnx: Path | None) -> tuple[list[Layer], dict[str, str]]:
    """The engine's layers without times, and what is not known of them; the arguments as in :func:`layers_of`."""
    told, _ = engine.information()
    graph = graph_of(onnx)
    return told_layers(told, origin_in(graph)), absences(told, graph.absent, ())


def graph_of(onnx: Path | None) -> Origins:
    """The nodes of the file that an engine was built from; none, and why, where it is not known."""
    return origins(onnx) if onnx is not None else Origins((), NO_ONNX)


def origin_in(graph: Origins) -> Origin:
    """Modules and operators of nodes of an ONNX graph, by their names or by what they write."""

    def origin(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        nodes = [node for name in names if (node := graph.by_name.get(name) or graph.by_output.get(name)) is not None]
        ordered = graph.in_order(nodes)
        return modules_among(ordered), operators_among(ordered)

    return origin


def absences(told: Sequence[Any], missing: str, layers: Sequence[Any]) -> dict[str, str]:
    """What is not known of the layers, and why."""
    absent = {}
    if not is_detailed(told):
        absent["details"] = NAMES_ONLY if told else TELLS_NOTHING
    lost = sum(1 for layer in layers if not layer.modules and not only_orders(layer) and any(layer.times))
    if missing:
        absent["modules"] = missing
    elif lost:
        absent["modules"] = UNNAMED.format(lost)
    return absent
