"""The layers of a module that Torch-TensorRT compiled: those of its engines, and what PyTorch runs between them.

A part that PyTorch runs is one layer, timed by CUDA events around its call. Layers of several engines are told apart by
the engine's name before their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.profiling.layer_runs import clocked_runs
from inferlens.backends.profiling.module_hooks import GpuMoments
from inferlens.backends.tensorrt.inspector import Lookup as Origin
from inferlens.backends.tensorrt.inspector import inspected_layers as told_layers
from inferlens.backends.tensorrt.inspector import named_layer
from inferlens.backends.tensorrt.layers import Report
from inferlens.backends.tensorrt.layers import inspectors_names as as_told
from inferlens.backends.tensorrt.layers import with_times as timed_layers
from inferlens.backends.torch_tensorrt.engines import Inside, engines_in
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer, Layers
from inferlens.record.partition import Segment

PART = "_run_on_gpu"  # begins the names of submodules that PyTorch runs
NAMES_ONLY = "an engine tells no more of its layers than their names: torch_tensorrt:dynamo builds them to tell all"
NO_ORIGIN = (
    "from which modules {} of the layers came is not told; the front end torch_tensorrt:dynamo hands paths on best"
)


class Told(Struct, frozen=True):
    """Layers of each engine without their times, the names of the engines' inputs and outputs, and what is absent."""

    layers: dict[str, list[Layer]]
    bindings: list[str]
    absent: dict[str, str]

    @property
    def every(self) -> list[Layer]:
        """The layers of all engines, in order."""
        return [layer for each in self.layers.values() for layer in each]


@dataclass(frozen=True)
class Interior:
    """What is inside of a compiled module.

    Attributes:
        compiled: a module, or a list of modules.
        segments: who runs what of it, where that is known.
        folder: where the runtime in C++ may write its reports.
        tensorrt: the module of TensorRT that the engines were built with.
        origin: modules and operators, from the names of the network's layers.
    """

    compiled: Any
    segments: Sequence[Segment]
    folder: Path
    tensorrt: Any
    origin: Origin

    @property
    def children(self) -> list[tuple[str, Any]]:
        """The submodules that PyTorch runs, by name."""
        every = self.compiled.named_children() if hasattr(self.compiled, "named_children") else ()
        return [(name, child) for name, child in every if name.startswith(PART)]

    def engines(self) -> list[Inside]:
        """The engines, in the module's order.

        Raises:
            Unsupported: if there are none.
        """
        engines = engines_in(self.compiled, self.folder, self.tensorrt)
        if not engines:
            raise Unsupported(
                "The compiled module has no engine that can be asked.",
                hint="--backend torch_tensorrt:dynamo, or --level kernel",
            )
        return engines

    def told(self) -> Told:
        """What the engines tell of their layers; nothing where there are none."""
        return told_by(engines_in(self.compiled, self.folder, self.tensorrt), self.origin)

    def parts(self) -> list[Layer]:
        """What PyTorch runs, each part a layer without times."""
        children = self.children
        runs = [segment for segment in self.segments if segment.runs_in == "PyTorch"]
        known = runs if len(runs) == len(children) else [None] * len(children)
        return [_part(name, of) for (name, _), of in zip(children, known, strict=True)]


class PartTimes:
    """Times of the parts that PyTorch runs, by events before and after each call."""

    def __init__(self, children: Sequence[tuple[str, Any]]) -> None:
        self._children = children
        self._moments = GpuMoments(2 * len(children) + 1)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While it lasts, moments are taken around every part."""
        with ExitStack() as hooked:
            for _, child in self._children:
                hooked.callback(child.register_forward_pre_hook(lambda *_: self._moments.take()).remove)
                hooked.callback(child.register_forward_hook(lambda *_: self._moments.take()).remove)
            yield

    def begin(self) -> None:
        """Before each run."""
        self._moments.take()

    def take(self) -> Report:
        """Names and milliseconds of the run that has just ended."""
        moments = self._moments.read()[1:]
        return [
            (name, (end - begin) * 1e3)
            for (name, _), begin, end in zip(self._children, moments[::2], moments[1::2], strict=False)
        ]


def layers_of(runner: Any, interior: Interior, feed: Any, runs: int) -> tuple[Layers, list[str]]:
    """Times the layers of what ``runner.infer(feed)`` calls, in ``runs`` runs.

    Returns:
        The layers, and the names of inputs and outputs of the engines.

    Raises:
        Unsupported: if there is no engine, or none reports times.
    """
    engines, parts = interior.engines(), PartTimes(interior.children)
    told = told_by(engines, interior.origin)
    reports: list[Report] = []

    def after() -> None:
        reports.append([*_reported(engines, told.layers), *parts.take()])
        parts.begin()

    with ExitStack() as profiled:
        for engine in engines:
            profiled.enter_context(engine)
        runner.infer(feed)
        runner.synchronize()
        for engine in engines:
            engine.take()
        profiled.enter_context(parts.taken())
        parts.begin()
        clocked = clocked_runs(runner, feed, runs, after)
    every = _in_order(interior.compiled, told.layers, interior.parts())
    found = timed_layers(every, reports, named_layer(interior.origin))
    return Layers(
        layers=found,
        whole=clocked.whole,
        timed="GPU",
        clock=engines[0].clock,
        absent=told.absent | _lost(found),
        begun=clocked.begun,
        started=clocked.started,
    ), told.bindings


def told_by(engines: Sequence[Inside], origin: Origin) -> Told:
    """What the engines tell of their layers."""
    layers: dict[str, list[Layer]] = {}
    bindings: list[str] = []
    absent: dict[str, str] = {}
    for engine in engines:
        entries, names = engine.information()
        bindings += names
        absent |= {} if any(isinstance(each, dict) for each in entries) else {"details": NAMES_ONLY}
        before = _before(engine, engines)
        layers[engine.name] = [replace(layer, name=before + layer.name) for layer in told_layers(entries, origin)]
    return Told(layers, bindings, absent)


def _in_order(compiled: Any, engines: dict[str, list[Layer]], parts: list[Layer]) -> list[Layer]:
    """Layers of engines and parts in the order of the module's children; where that is not told, engines first."""
    children = [name for name, _ in compiled.named_children()] if hasattr(compiled, "named_children") else []
    groups = engines | {layer.name: [layer] for layer in parts}
    order = {name: place for place, name in enumerate(children)}
    return [layer for name in sorted(groups, key=lambda name: order.get(name, -1)) for layer in groups[name]]


def _reported(engines: Sequence[Inside], layers: dict[str, list[Layer]]) -> Iterator[tuple[str, float]]:
    """Names and milliseconds of all engines in the run that has just ended."""
    for engine in engines:
        before = _before(engine, engines)
        report = [(before + name, milliseconds) for name, milliseconds in engine.take()]
        yield from as_told(report, layers[engine.name])


def _before(engine: Inside, engines: Sequence[Inside]) -> str:
    """What stands before the names of an engine's layers: its own name where there are several."""
    return f"{engine.name}/" if len(engines) > 1 else ""


def _lost(layers: Sequence[Layer]) -> dict[str, str]:
    """Says so where layers that take time came from nobody knows where."""
    unknown = sum(1 for layer in layers if not layer.modules and any(layer.times))
    return {"modules": NO_ORIGIN.format(unknown)} if unknown else {}


def _part(name: str, segment: Segment | None) -> Layer:
    operators = segment.operators if segment else ()
    return Layer(
        name=name,
        kind="PyTorch",
        modules=tuple(dict.fromkeys(operator.module for operator in operators if operator.module is not None)),
        operators=tuple(operator.name for operator in operators),
    )
