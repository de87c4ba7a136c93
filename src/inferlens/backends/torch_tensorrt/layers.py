"""The layers of a module that Torch-TensorRT compiled: those of its engines, and what PyTorch runs between them.

A part that PyTorch runs is one layer, timed by CUDA events around its call. Layers of several engines are told apart by
the engine's name before their own.

Torch-TensorRT builds engines that keep names alone unless its debugger is on, which also logs everything; and it does
not say of a fused layer what was fused. While :func:`detailed_engines` lasts, engines are built to keep details, and
every layer of the network carries its own name as metadata, which TensorRT hands on to the layer that it becomes a part
of. Neither changes what is computed. The names hold the path of the module: ``[CONVOLUTION]-[aten_ops.convolution.
default]-[layer1.0.conv1/convolution_1]``; those of the TorchScript front end end in ``scope: __module.layer1/... #
file``. A converter may leave a layer without a name, such as those of an attention, and TensorRT then makes one up,
``(Unnamed Layer* 36) [AttentionOutput]``: it carries what the others are named by, the operator that was converted.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.backends.abilities import Launched, Origin, Origins
from inferlens.backends.profiling.module_hooks import GpuMoments
from inferlens.backends.tensorrt.inspector import Lookup, absences, inspected_layers
from inferlens.backends.tensorrt.layers import Report, inspectors_names, kernel_origins, timed_layers
from inferlens.backends.torch_tensorrt.engines import Inside, engines_in
from inferlens.backends.torch_tensorrt.library import Library, replaced
from inferlens.backends.torch_tensorrt.operators import clean_path
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer, Layers
from inferlens.record.partition import Segment

Part = tuple[str, Any]  # a submodule that PyTorch runs, by its name
PART = "_run_on_gpu"  # begins the names of submodules that PyTorch runs
SCOPE = "inferlens part "
BEST = "torch_tensorrt:dynamo keeps them best"
INTERPRETER = "torch_tensorrt.dynamo.conversion._TRTInterpreter"
CONFIGURES = "_populate_trt_builder_config"
CONVERTS = "run_node"  # once for each operator of the graph
UNNAMED = "(Unnamed Layer* "  # begins the names that TensorRT makes up
DYNAMO_NAME = re.compile(r"^\[[^\]]*\]-\[([^\]]*)\]-\[(.*)\]", re.S)
SCRIPT_NAME = re.compile(r"scope: (\S+)")
SCRIPT_OPERATOR = re.compile(r"\b(aten::\w+)\(")
SCRIPT_ROOT = "__module."


@dataclass(frozen=True)
class Interior:
    """What is inside of a compiled module.

    Attributes:
        compiled: a module, or a list of modules.
        segments: who runs what of it, where that is known.
        folder: where the runtime in C++ may write its reports.
        tensorrt: the module of TensorRT that the engines were built with.
        lookup: modules and operators, from the names of the network's layers.
    """

    compiled: Any
    segments: Sequence[Segment]
    folder: Path
    tensorrt: Any
    lookup: Lookup

    @property
    def children(self) -> list[tuple[str, Any]]:
        """The submodules, by name."""
        return list(self.compiled.named_children()) if hasattr(self.compiled, "named_children") else []

    @property
    def parts(self) -> list[tuple[str, Any]]:
        """Those of them that PyTorch runs."""
        return [(name, child) for name, child in self.children if name.startswith(PART)]

    def part_layers(self) -> list[Layer]:
        """What PyTorch runs, each part a layer without times."""
        runs = [segment for segment in self.segments if segment.runs_in == "PyTorch"]
        operators = [each.operators for each in runs] if len(runs) == len(self.parts) else [()] * len(self.parts)
        return [
            Layer(
                name=name,
                kind="PyTorch",
                modules=tuple(dict.fromkeys(each.module for each in known if each.module is not None)),
                operators=tuple(each.name for each in known),
            )
            for (name, _), known in zip(self.parts, operators, strict=True)
        ]

    def engines(self) -> list[Inside]:
        """The engines, in the module's order."""
        return engines_in(self.compiled, self.folder, self.tensorrt)

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """Where each kernel of one run came from: layers of engines, or parts by their scopes around a launch."""
        found, _, absent = inspected(self.engines(), self.lookup)
        layers = [layer for each in found.values() for layer in each]
        return origins_in(launched, layers, self.part_layers(), absent)

    def profile(self, runner: Any, feed: Any, runs: int) -> tuple[Layers, list[str]]:
        """Times the layers of what ``runner.infer(feed)`` calls, in ``runs`` runs.

        Returns:
            The layers, and the names of inputs and outputs of the engines.
        """
        engines, parts = self.engines(), PartTimes(self.parts)
        if not engines:
            raise Unsupported(
                "The compiled module has no engine that can be asked.",
                hint="--backend torch_tensorrt:dynamo, or --level kernel",
            )
        known, bindings, absent = inspected(engines, self.lookup)
        groups = known | {layer.name: [layer] for layer in self.part_layers()}
        order = {name: place for place, (name, _) in enumerate(self.children)}  # where it is not known, engines first
        every = [layer for name in sorted(groups, key=lambda name: order.get(name, -1)) for layer in groups[name]]

        def take() -> Report:
            report: Report = []
            for engine in engines:
                own = [(engine.prefix + name, milliseconds) for name, milliseconds in engine.take()]
                report += inspectors_names(own, known[engine.name])
            report += parts.take()
            parts.begin()
            return report

        with ExitStack() as profiled:
            for engine in engines:
                profiled.enter_context(engine)
            runner.infer(feed)
            runner.synchronize()
            for engine in engines:
                engine.take()
            profiled.enter_context(parts.taken())
            parts.begin()
            layers = timed_layers(runner, feed, runs, every, take, self.lookup)
        lost = absences([{}], layers.layers, help=BEST)
        return replace(layers, clock=engines[0].clock, absent=absent | lost), bindings


class PartTimes:
    """Times of the parts that PyTorch runs, by events before and after each call."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._moments = GpuMoments(2 * len(parts) + 1)

    def taken(self) -> AbstractContextManager[None]:
        """While it lasts, moments are taken around every part."""
        return around(self._parts, lambda _: self._moments.take(), self._moments.take)

    def begin(self) -> None:
        """Before each run."""
        self._moments.take()

    def take(self) -> Report:
        """Names and milliseconds of the run that has just ended."""
        moments = self._moments.read()[1:]
        return [
            (name, (end - begin) * 1e3)
            for (name, _), begin, end in zip(self._parts, moments[::2], moments[1::2], strict=False)
        ]


def inspected(engines: Sequence[Inside], lookup: Lookup) -> tuple[dict[str, list[Layer]], list[str], dict[str, str]]:
    """Layers of each engine without their times, the engines' inputs and outputs by name, and what is absent."""
    layers: dict[str, list[Layer]] = {}
    bindings: list[str] = []
    absent: dict[str, str] = {}
    for engine in engines:
        entries, names = engine.information()
        bindings += names
        absent |= absences(entries, (), help=BEST)
        own = inspected_layers(entries, lookup)
        layers[engine.name] = [replace(layer, name=engine.prefix + layer.name) for layer in own]
    return layers, bindings, absent


def origins_in(
    launched: Sequence[Launched], layers: Sequence[Layer], parts: Sequence[Layer], absent: dict[str, str]
) -> Origins:
    """Where each kernel of one run came from.

    Args:
        layers: of the engines, in the order of execution.
        parts: what PyTorch runs between them, each known by its name in the scopes around a launch.
        absent: what is not known of the layers.
    """
    inside = {SCOPE + part.name: part for part in parts}
    of = [next((inside[name] for name in each.around if name in inside), None) for each in launched]
    elsewhere = [each for each, part in zip(launched, of, strict=True) if part is None]
    engines = kernel_origins(elsewhere, layers, absent)
    rest = iter(engines.of)
    found = [next(rest) if part is None else Origin(part.name, part.modules) for part in of]
    return Origins(tuple(found), engines.absent)


@contextmanager
def around(parts: Sequence[Part], before: Callable[[str], None], after: Callable[[], None]) -> Iterator[None]:
    """While it lasts, calls ``before``, with the part's name, and ``after`` around every call of a part."""
    with ExitStack() as hooked:
        for name, child in parts:
            hooked.callback(child.register_forward_pre_hook(lambda *_, name=name: before(name)).remove)
            hooked.callback(child.register_forward_hook(lambda *_: after()).remove)
        yield


def part_scopes(parts: Sequence[Part]) -> AbstractContextManager[None]:
    """Has every call of these parts be a scope of the trace, named by the part."""
    import torch

    open_: list[Any] = []

    def entering(name: str) -> None:
        open_.append(torch.profiler.record_function(SCOPE + name))
        open_[-1].__enter__()

    return around(parts, entering, lambda: open_.pop().__exit__(None, None, None))


@contextmanager
def detailed_engines(library: Library, level: str) -> Iterator[None]:
    """Has engines that are built meanwhile keep details, if they are built to be profiled at some ``level``."""
    kind = importlib.import_module(INTERPRETER).TRTInterpreter if level else None
    if not (hasattr(kind, CONFIGURES) and hasattr(kind, CONVERTS)):
        yield
        return
    own = {name: getattr(kind, name) for name in (CONFIGURES, CONVERTS)}
    tensorrt = importlib.import_module(library.package)

    def converted(interpreter: Any, node: Any) -> Any:
        network = interpreter.ctx.net
        before = network.num_layers
        result = own[CONVERTS](interpreter, node)
        for layer in map(network.get_layer, range(before, network.num_layers)):
            if layer.name.startswith(UNNAMED):
                layer.metadata = f"[{layer.type.name}]-[{node.target}]-[{interpreter._cur_node_name}]"
        return result

    def detailed(interpreter: Any, *arguments: Any, **named: Any) -> Any:
        config = own[CONFIGURES](interpreter, *arguments, **named)
        config.profiling_verbosity = tensorrt.ProfilingVerbosity.DETAILED
        network = interpreter.ctx.net
        for layer in map(network.get_layer, range(network.num_layers)):
            layer.metadata = layer.metadata or layer.name
        return config

    with replaced(kind, **{CONFIGURES: detailed, CONVERTS: converted}):
        yield


def lookup_among(paths: frozenset[str]) -> Lookup:
    """Modules and operators from the names of the network's layers; ``paths`` are the model's own."""

    def lookup(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found = [each for name in names if (each := module_and_operator(name, paths)) is not None]
        modules = dict.fromkeys(module for module, _ in found)
        return tuple(modules), tuple(operator for _, operator in found if operator)

    return lookup


def module_and_operator(name: str, paths: frozenset[str]) -> tuple[str, str] | None:
    """The path of the module that a layer of the network came from, and its operator; ``None`` if it is not known."""
    script, dynamo = SCRIPT_NAME.search(name), DYNAMO_NAME.search(name)
    if script:
        aten = SCRIPT_OPERATOR.search(name)
        operator = aten.group(1) if aten else ""
        module = f"{script.group(1).rpartition('/')[2]}.".removeprefix(SCRIPT_ROOT).rstrip(".")
    elif dynamo and "/" in dynamo.group(2):
        operator = dynamo.group(1).replace("_ops.", ".", 1)
        module = clean_path(dynamo.group(2).rpartition("/")[0])
    else:
        return None
    inner = module.partition(".")[2]  # behind the name of a module that was put around the model
    return next(((path, operator) for path in (module, inner) if path in paths), None)
