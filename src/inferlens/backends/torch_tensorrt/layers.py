"""The layers of a module that Torch-TensorRT compiled: those of its engines, and what PyTorch runs between them.

A part that PyTorch runs is one layer, timed by CUDA events around its call. Engines report after every run.

While :func:`detailed_engines` lasts, engines keep details, and every layer of the network carries its own name as
metadata, which TensorRT hands on. Neither changes what is computed. The names hold the path of the module:
``[CONVOLUTION]-[aten_ops.convolution.default]-[layer1.0.conv1/convolution_1]``; those of the TorchScript front end end
in ``scope: __module.layer1/... # file``. A layer without a name carries the operator that was converted.
"""

from __future__ import annotations

import importlib
import re
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from inferlens.backends.abilities import KernelOrigin, Launched, Origins
from inferlens.backends.profiling.module_hooks import GpuMoments
from inferlens.backends.tensorrt.kernels import kernel_origins
from inferlens.backends.tensorrt.layers import (
    CLOCK,
    Lookup,
    Report,
    absences,
    inspected_layers,
    inspectors_names,
    layers_and_bindings,
    numbered,
    recorder,
    timed_layers,
)
from inferlens.backends.torch_tensorrt.library import Library, replaced
from inferlens.backends.torch_tensorrt.partitions import OWNERS, SCOPE, clean_path
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer, Layers
from inferlens.record.partition import Segment

NATIVE_CLOCK = "Torch-TensorRT's runtime in C++, which has TensorRT's IProfiler put CUDA events around every layer"
ENGINE_TYPE = "tensorrt.Engine"
WRITTEN = "*_engine_execution_profile.trace"
NAMES = re.compile(r'"name":\s*"(.*?)",\s*"ph"', re.S)  # a name is written as it is, quotes too: that is no JSON then
DURATIONS = re.compile(r'"dur":\s*([0-9.eE+-]+)')
PART = "_run_on_gpu"  # begins the names of submodules that PyTorch runs
PART_SCOPE = "inferlens part "
BEST = "torch_tensorrt:dynamo keeps them best"
INTERPRETER = "torch_tensorrt.dynamo.conversion._TRTInterpreter"
CONFIGURES = "_populate_trt_builder_config"
CONVERTS = "run_node"  # once for each operator of the graph
UNNAMED = "(Unnamed Layer* "  # begins the names that TensorRT makes up
DYNAMO_NAME = re.compile(r"^\[[^\]]*\]-\[([^\]]*)\]-\[(.*)\]", re.S)
SCRIPT_NAME = re.compile(r"scope: (\S+)")
SCRIPT_OPERATOR = re.compile(r"\b(aten::\w+)\(")


class Inside(AbstractContextManager["Inside"]):
    """One engine; a context in which it is profiled. ``describe`` gives what its inspector wrote, as JSON."""

    clock = CLOCK
    prefix = ""  # of the names of its layers, where there are several engines

    def __init__(self, name: str, describe: Callable[[], Any]) -> None:
        self.name = name
        self._describe = describe

    @abstractmethod
    def take(self) -> Report:
        """The report of the run that has just ended."""

    def information(self) -> tuple[list[Any], list[str]]:
        """What it has of the layers, and the names of its inputs and outputs; nothing where that is no JSON."""
        try:
            return layers_and_bindings(str(self._describe()))
        except (msgspec.DecodeError, RuntimeError):
            return [], []


class PythonEngine(Inside):
    """An engine that the runtime in Python calls."""

    def __init__(self, name: str, owner: Any, context: Any, module: Any) -> None:
        super().__init__(name, owner.get_layer_info)
        self._context = context
        self._recorder = recorder(module)()

    def __enter__(self) -> PythonEngine:
        self._context.profiler = self._recorder  # reported to from within each call, which is TensorRT's default
        return self

    def __exit__(self, *_: object) -> None:
        """A profiler cannot be taken away again."""

    def take(self) -> Report:
        return list(self._recorder.take())


class NativeEngine(Inside):
    """An engine that the runtime in C++ calls; it writes its reports into ``folder``, which is its own."""

    clock = NATIVE_CLOCK

    def __init__(self, name: str, engine: Any, folder: Path) -> None:
        super().__init__(name, engine.get_engine_layer_info)
        self._engine = engine
        self._folder = folder
        self._sums: dict[tuple[str, int], float] = {}

    def __enter__(self) -> NativeEngine:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._engine.profile_path_prefix = str(self._folder)
        self._engine.enable_profiling()
        self._engine.set_profile_format("perfetto")
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.disable_profiling()
        shutil.rmtree(self._folder)

    def take(self) -> Report:
        written = [path.read_text("utf-8", errors="replace") for path in sorted(self._folder.glob(WRITTEN))]
        sums = numbered([item for text in written for item in read_sums(text)])
        report = [(key[0], (total - self._sums.get(key, 0.0)) / 1e3) for key, total in sums.items()]
        self._sums = sums
        return report


def read_sums(written: str) -> list[tuple[str, float]]:
    """Names and microseconds in a file of the runtime in C++, in the order of execution."""
    return list(zip(NAMES.findall(written), map(float, DURATIONS.findall(written)), strict=False))


@contextmanager
def collected(level: str) -> Iterator[list[Any]]:
    """The modules with an engine that are made meanwhile: ``torch.compile`` gives nothing that can be looked into."""
    runtime = importlib.import_module("torch_tensorrt.dynamo.runtime") if level else None
    made: list[Any] = []

    def noted(module: Any, setup: Any, *arguments: Any) -> Any:
        if not any(module is item for item in made):
            made.append(module)
        return setup(module, *arguments)

    with ExitStack() as watched:
        for name in OWNERS:
            kind: Any = getattr(runtime, name, None)
            if hasattr(kind, "setup_engine"):
                watched.enter_context(replaced(kind, setup_engine=partialmethod(noted, kind.setup_engine)))
        yield made


def engines_in(compiled: Any, folder: Path, tensorrt: Any) -> list[Inside]:
    """The engines of a compiled module or a list of modules, in order; see :class:`Interior`."""
    found: list[Inside] = []
    for path, part in _modules(compiled):
        native = list(_native(part))
        for number, (name, engine) in enumerate(native):
            found.append(NativeEngine(path or name, engine, folder / f"engine-{len(found)}-{number}"))
        for holder in (part, getattr(part, "engine", None)):
            context = getattr(holder, "context", None)
            if not native and hasattr(context, "execute_async_v3"):
                found.append(PythonEngine(path, part, context, tensorrt))
                break
    for inside in found:
        inside.prefix = f"{inside.name}/" if len(found) > 1 else ""
    return found


def _modules(compiled: Any) -> list[tuple[str, Any]]:
    if isinstance(compiled, list):
        named = ((str(getattr(module, "name", "")), module) for module in compiled)
        return [(name or f"engine {place}", module) for place, (name, module) in enumerate(named)]
    return list(compiled.named_modules()) if hasattr(compiled, "named_modules") else []


def _native(part: Any) -> Iterator[tuple[str, Any]]:
    """Engines that a module holds itself: as attributes, or, of a script module, as those that its graph reads."""
    import torch

    if not isinstance(part, torch.jit.ScriptModule):
        for name, value in vars(part).items():
            if isinstance(value, torch.ScriptObject) and ENGINE_TYPE in str(value._type()):
                yield name, value
        return
    try:
        nodes = list(part.graph.nodes())
    except RuntimeError:  # a script module without a forward of its own
        return
    for node in nodes:
        if node.kind() == "prim::GetAttr" and ENGINE_TYPE in str(node.output().type()):
            yield node.s("name"), part._c.getattr(node.s("name"))


@dataclass(frozen=True)
class Interior:
    """What is inside of a compiled module."""

    compiled: Any  # a module, or a list of modules
    segments: Sequence[Segment]  # who runs what of it, where that is known
    folder: Path  # where the runtime in C++ may write its reports
    tensorrt: Any  # the module of TensorRT that the engines were built with
    lookup: Lookup  # modules and operators, from the names of the network's layers

    @property
    def children(self) -> list[tuple[str, Any]]:
        return list(self.compiled.named_children()) if hasattr(self.compiled, "named_children") else []

    @property
    def parts(self) -> list[tuple[str, Any]]:
        """Those of them that PyTorch runs."""
        return [(name, child) for name, child in self.children if name.startswith(PART)]

    def part_layers(self) -> list[Layer]:
        """What PyTorch runs, each part a layer without times."""
        runs = [segment.operators for segment in self.segments if segment.runs_in == "PyTorch"]
        known = runs if len(runs) == len(self.parts) else [()] * len(self.parts)
        return [
            Layer(
                name=name,
                kind="PyTorch",
                modules=tuple(dict.fromkeys(operator.module for operator in operators if operator.module is not None)),
                operators=tuple(operator.name for operator in operators),
            )
            for (name, _), operators in zip(self.parts, known, strict=True)
        ]

    def inspected(self) -> tuple[list[Inside], dict[str, list[Layer]], list[str], dict[str, str]]:
        """The engines, layers of each without their times, their inputs and outputs by name, and what is absent."""
        engines = engines_in(self.compiled, self.folder, self.tensorrt)
        layers: dict[str, list[Layer]] = {}
        bindings: list[str] = []
        absent: dict[str, str] = {}
        for engine in engines:
            entries, names = engine.information()
            bindings += names
            absent |= absences(entries, (), help=BEST)
            own = inspected_layers(entries, self.lookup)
            layers[engine.name] = [replace(layer, name=engine.prefix + layer.name) for layer in own]
        return engines, layers, bindings, absent

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """Where each kernel of one run came from: layers of engines, or parts by their scopes around a launch."""
        _, found, _, absent = self.inspected()
        inside = {PART_SCOPE + part.name: part for part in self.part_layers()}
        of = [next((inside[name] for name in item.around if name in inside), None) for item in launched]
        elsewhere = [item for item, part in zip(launched, of, strict=True) if part is None]
        engines = kernel_origins(elsewhere, [layer for item in found.values() for layer in item], absent)
        rest = iter(engines.of)
        origins = (next(rest) if part is None else KernelOrigin(part.name, part.modules) for part in of)
        return Origins(tuple(origins), engines.absent)

    def profile(self, runner: Any, feed: Any, runs: int) -> tuple[Layers, list[str]]:
        """Times the layers of what ``runner.infer(feed)`` calls, in ``runs`` runs; and names the engines' bindings."""
        engines, known, bindings, absent = self.inspected()
        if not engines:
            raise Unsupported(
                "The compiled module has no engine that can be asked.",
                hint="--backend torch_tensorrt:dynamo, or --level kernel",
            )
        groups = known | {layer.name: [layer] for layer in self.part_layers()}
        order = {name: place for place, (name, _) in enumerate(self.children)}  # where it is not known, engines first
        every = [layer for name in sorted(groups, key=lambda name: order.get(name, -1)) for layer in groups[name]]
        parts, moments = self.parts, GpuMoments(2 * len(self.parts) + 1)  # one before the run, two for each part

        def take() -> Report:
            report: Report = []
            for engine in engines:
                own = [(engine.prefix + name, milliseconds) for name, milliseconds in engine.take()]
                report += inspectors_names(own, known[engine.name])
            times = moments.read()[1:]
            pairs = zip(parts, times[::2], times[1::2], strict=False)
            report += [(name, (end - begin) * 1e3) for (name, _), begin, end in pairs]
            moments.take()
            return report

        with ExitStack() as profiled:
            for engine in engines:
                profiled.enter_context(engine)
            runner.infer(feed)
            runner.synchronize()
            for engine in engines:
                engine.take()
            profiled.enter_context(around(parts, lambda _: moments.take(), moments.take))
            moments.take()
            layers = timed_layers(runner, feed, runs, every, take, self.lookup)
        lost = absences([{}], layers.layers, help=BEST)
        return replace(layers, clock=engines[0].clock, absent=absent | lost), bindings

    def scopes(self) -> AbstractContextManager[None]:
        """Has every call of the parts that PyTorch runs be a scope of the trace, named by the part."""
        import torch

        open_: list[Any] = []

        def entering(name: str) -> None:
            open_.append(torch.profiler.record_function(PART_SCOPE + name))
            open_[-1].__enter__()

        return around(self.parts, entering, lambda: open_.pop().__exit__(None, None, None))


@contextmanager
def around(
    parts: Sequence[tuple[str, Any]], before: Callable[[str], None], after: Callable[[], None]
) -> Iterator[None]:
    """While it lasts, calls ``before``, with the part's name, and ``after`` around every call of a part."""
    with ExitStack() as hooked:
        for name, child in parts:
            hooked.callback(child.register_forward_pre_hook(lambda *_, name=name: before(name)).remove)
            hooked.callback(child.register_forward_hook(lambda *_: after()).remove)
        yield


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
        module = f"{script.group(1).rpartition('/')[2]}.".removeprefix(SCOPE).rstrip(".")
    elif dynamo and "/" in dynamo.group(2):
        operator = dynamo.group(1).replace("_ops.", ".", 1)
        module = clean_path(dynamo.group(2).rpartition("/")[0])
    else:
        return None
    inner = module.partition(".")[2]  # behind the name of a module that was put around the model
    return next(((path, operator) for path in (module, inner) if path in paths), None)
