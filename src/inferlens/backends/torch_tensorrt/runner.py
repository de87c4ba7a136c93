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
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from inferlens.backends.availability import quiet, warn_unheeded
from inferlens.backends.base import KernelOrigin, KernelOrigins, Launched, LayerProfiler, Origins, Preparation
from inferlens.backends.profiling.layers import GpuMoments, check_level
from inferlens.backends.pytorch.runner import Feed, TorchOptions, TorchRunner, not_entered
from inferlens.backends.tensorrt.layers import (
    CLOCK,
    Lookup,
    Report,
    absences,
    inspected_layers,
    inspectors_names,
    kernel_origins,
    layers_and_bindings,
    numbered,
    recorder,
    timed_layers,
)
from inferlens.backends.tensorrt.library import current_gpu
from inferlens.backends.torch_tensorrt.library import TITLE, Library, TorchTensorRTOptions, replaced
from inferlens.backends.torch_tensorrt.partitions import OF_FILE, OWNERS, SCOPE, clean_path, compiled_partition
from inferlens.errors import InferlensError, Unsupported, is_short_of_memory
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.reasons import reason
from inferlens.record.file_kind import COMPILED_PROGRAM, file_kind
from inferlens.record.layer_profile import Layer, Layers
from inferlens.record.partition import Segment
from inferlens.record.record import Gpu
from inferlens.spec.case import Case

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


# Runners. A CUDA graph is captured around the whole call: the library's ``enable_cudagraphs`` copies the inputs and
# clones the outputs in every call, which would be timed, and captures single engines.

KINDS = {".ep": "Torch-TensorRT exported program", ".ts": "Torch-TensorRT TorchScript module"}
OF_COMPILED = ("cuda_graph", "tf32")  # options that mean something to a module that is compiled already
AGAIN = "inferlens export, once more, on this machine"


class ReplayingRunner(TorchRunner, LayerProfiler, KernelOrigins):
    """Calls a module that has engines in it, or replays the call."""

    def __init__(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> None:
        torch_options = TorchOptions(tf32=options.tf32)
        super().__init__(model, case, preparation, torch_options, autocast=options.autocast, rest="fp16")
        self.options = options
        self.library = library
        self.compiled: Any = None
        self.cuda_graph = options.cuda_graph

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """What can be looked into for engines: a module, or a list of modules; and who runs what of it, if known."""
        return self.compiled, ()

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        check_level(self.preparation, replays=self.graph is not None)
        layers, bindings = self._interior().profile(self, feed, runs)
        self.preparation.facts["engine_bindings"] = bindings
        return layers

    def scopes(self) -> AbstractContextManager[Any]:
        return self._interior().scopes()

    def origins(self, launched: Sequence[Launched]) -> Origins:
        return self._interior().origins(launched)

    def _interior(self) -> Interior:
        paths = frozenset(path for path, _ in self.model.module.named_modules()) if self.model.module else frozenset()
        folder = self.preparation.folder / "engine-reports"
        return Interior(*self.inside(), folder, import_module(self.library.package), lookup_among(paths))

    def device_memory(self) -> None:
        """Not known: engines take memory past PyTorch's allocator."""

    def __exit__(self, *error: Any) -> None:
        self._call = not_entered
        self.graph = self.compiled = None
        super().__exit__(*error)


class LoadedRunner(ReplayingRunner):
    """Calls a compiled module from a file as it is: neither moved nor cast nor compiled."""

    def __init__(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> None:
        path = self._path = cast("Path", model.path)
        made = provenance.read(path)
        self._made_with = made.options if made else {}
        check_file(path, made, library)
        unheeded = [name for name in options.__struct_fields__ if name not in OF_COMPILED]
        warn_unheeded(options, unheeded, "the module is compiled already.", preparation)
        autocast = bool(self._made_with.get("autocast"))  # then its inputs are fp32, whatever its precision
        super().__init__(model, case, preparation, msgspec.structs.replace(options, autocast=autocast), library)

    def build(self, module: Any) -> Callable[..., Any]:
        """The module as it is; its engines and the operators beside them are a fact, where they can be read."""
        facts = self.preparation.facts
        facts["flavour"] = self.library.flavour
        self.compiled = module
        size = self._made_with.get("min_block_size")
        try:
            partition = compiled_partition(
                module, OF_FILE, front_end=self.case.variant, flavour=self.library.flavour,
                min_block_size=size if isinstance(size, int) else self.options.min_block_size,
            )  # fmt: skip
        except Exception:  # what is in a file depends on the version that wrote it
            partition = None
        if partition is not None:
            facts["partition"] = msgspec.to_builtins(partition)
        with compiling(self.model.name, "capture"):
            return self.captured(module)

    def _moved(self) -> Any:
        return self.model.module or open_module(self._path)


def check_file(path: Path, provenance: Provenance | None, library: Library) -> None:
    """Refuses a file that cannot run here, as far as what lies beside it says: opening it can end the process."""
    if provenance is None:
        return
    here = library.versions[library.package]
    if provenance.flavour != library.flavour or provenance.version.split(".")[:3] != here.split(".")[:3]:
        raise Unsupported(
            f"{path} holds engines of {provenance.flavour} {provenance.version}; here is {library.flavour} {here}.",
            hint=AGAIN,
        )
    gpu = current_gpu() or Gpu(name="")
    same = provenance.compute_capability == gpu.compute_capability and (library.rtx or provenance.gpu == gpu.name)
    # TensorRT for RTX has no engines for other GPUs, though files may say that this was asked for.
    if not same and (library.rtx or not provenance.options.get("hardware_compatible")):
        raise Unsupported(
            f"{path} was built on {provenance.gpu} (compute capability "
            f"{provenance.compute_capability}) and for it; here is {gpu.name} ({gpu.compute_capability}).",
            hint=AGAIN,
        )


def open_module(path: Path) -> Any:
    """The module in a file, on the GPU; both kinds hold pickles, which run what code their author wants."""
    import torch

    try:
        with quiet():
            if path.suffix in (".ep", ".pt2") or file_kind(path).title == COMPILED_PROGRAM:
                return torch.export.load(str(path)).module()
            return torch.jit.load(str(path), map_location="cuda")
    except Exception as error:  # unpickling can raise anything, and so can the engine inside
        raise InferlensError(
            f"{path} cannot be opened: {reason(error)}",
            expected=f"a {KINDS.get(path.suffix, 'compiled module')} for this GPU and this version of TensorRT",
            hint=AGAIN,
        ) from error


@contextmanager
def compiling(name: str, step: str, hint: str = "") -> Iterator[None]:
    """Turns what a step raises for a model that it cannot take into the reason of a row; lack of memory is none."""
    import torch

    try:
        # Outside of PyTorch's inference mode, which an export would trace into the graph.
        with quiet(), torch.inference_mode(mode=False), torch.no_grad():
            yield
    except (torch.OutOfMemoryError, MemoryError, InferlensError):
        raise
    except Exception as error:  # exporters, compilers and converters raise nearly every type there is
        inner = getattr(error, "inner_exception", None) or error
        if isinstance(inner, InferlensError):
            raise inner from error
        if is_short_of_memory(inner) or "CUDA error" in str(inner):  # that is not the model's fault
            raise
        raise Unsupported(f"{TITLE} cannot {step} '{name}': {reason(inner)}", hint=hint) from error
