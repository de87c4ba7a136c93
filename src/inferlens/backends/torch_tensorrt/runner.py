"""Runners of modules with engines, and their layers: those of engines, and the parts that PyTorch runs between them.

A part that PyTorch runs is one layer. The layers of a CUDA graph are only known if there are no such parts.

Inside :func:`detailed_engines` engines keep details, and every layer of the network has its own name as metadata, which
TensorRT passes on. Neither changes the computation. The names hold the path of the module:
``[CONVOLUTION]-[aten_ops.convolution.default]-[layer1.0.conv1/convolution_1]``. In the TorchScript front end they end
with ``scope: __module.layer1/... # file``. The metadata of a layer without a name is the converted operator.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from inferlens.backends.availability import ignore_deprecations, warn_ignored_options
from inferlens.backends.base import GpuLaunch, KernelOrigin, KernelSources, KernelTracer, LayerProfiler, Preparation
from inferlens.backends.profiling.kernels import layers_of_kernels, trace_kernels
from inferlens.backends.profiling.runs import check_level
from inferlens.backends.pytorch.runner import Feed, TorchOptions, TorchRunner, not_entered
from inferlens.backends.tensorrt.layers import Lookup, absences, inspected_layers, kernel_sources, parse_inspection
from inferlens.backends.tensorrt.library import check_gpu, current_gpu
from inferlens.backends.torch_tensorrt.library import TITLE, Library, TorchTensorRTOptions, replace_attributes
from inferlens.backends.torch_tensorrt.partitions import ENGINE_MODULES, SCOPE, clean_path, compiled_partition
from inferlens.errors import InferlensError, LateModule, Unsupported, is_short_of_memory, reason
from inferlens.models.compiled import Provenance, read_provenance
from inferlens.models.model import Model
from inferlens.record.builds import Segment
from inferlens.record.files import COMPILED_PROGRAM, file_kind
from inferlens.record.profile import Layer, Layers
from inferlens.record.record import Gpu
from inferlens.spec.case import Case

torch: Any = LateModule("torch")

ENGINE_TYPE = "tensorrt.Engine"
PART_PREFIX = "_run_on_gpu"  # prefix of submodules that PyTorch runs
PART_SCOPE = "inferlens part "
BEST_HINT = "torch_tensorrt:dynamo keeps them best"
INTERPRETER = "torch_tensorrt.dynamo.conversion._TRTInterpreter"
CONFIG_METHOD = "_populate_trt_builder_config"
CONVERT_METHOD = "run_node"  # called for every operator of the graph
UNNAMED_PREFIX = "(Unnamed Layer* "  # prefix of names that TensorRT makes up
DYNAMO_NAME = re.compile(r"^\[[^\]]*\]-\[([^\]]*)\]-\[(.*)\]", re.S)
SCRIPT_NAME = re.compile(r"scope: (\S+)")
SCRIPT_OPERATOR = re.compile(r"\b(aten::\w+)\(")


@contextmanager
def collect_engines(level: str) -> Iterator[list[Any]]:
    """Yield a list that collects the engine modules made meanwhile, for ``torch.compile``."""
    runtime = importlib.import_module("torch_tensorrt.dynamo.runtime") if level else None
    modules: list[Any] = []

    def record(module: Any, setup: Any, *arguments: Any) -> Any:
        if not any(module is engine_module for engine_module in modules):
            modules.append(module)
        return setup(module, *arguments)

    with ExitStack() as watched:
        for name in ENGINE_MODULES:
            kind: Any = getattr(runtime, name, None)
            if hasattr(kind, "setup_engine"):
                watched.enter_context(replace_attributes(kind, setup_engine=partialmethod(record, kind.setup_engine)))
        yield modules


def engine_information(compiled: Any) -> list[tuple[str, list[Any], list[str]]]:
    """Return the name, the inspector's entries of layers, and the bindings of each engine, in order.

    ``compiled`` is a module or a list of modules. An engine that keeps no JSON has no entries.
    """
    engines = []
    for path, part in _modules(compiled):
        described = [(path or name, engine.get_engine_layer_info) for name, engine in _native_engines(part)]
        if not described and hasattr(part, "get_layer_info"):  # of the runtime in Python
            described = [(path, part.get_layer_info)]
        for name, describe in described:
            try:
                engines.append((name, *parse_inspection(str(describe()))))
            except (msgspec.DecodeError, RuntimeError):
                engines.append((name, [], []))
    return engines


def _modules(compiled: Any) -> list[tuple[str, Any]]:
    if isinstance(compiled, list):
        named = ((str(getattr(module, "name", "")), module) for module in compiled)
        return [(name or f"engine {index}", module) for index, (name, module) in enumerate(named)]
    return list(compiled.named_modules()) if hasattr(compiled, "named_modules") else []


def _native_engines(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the engines that a module holds as attributes or, of a script module, that its graph reads."""
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
class CompiledModule:
    """The parts of a compiled module."""

    compiled: Any  # a module, or a list of modules
    segments: Sequence[Segment]  # its segments, if known
    lookup: Lookup  # from names of the network's layers to modules and operators

    @property
    def parts(self) -> list[tuple[str, Any]]:
        """The children that PyTorch runs."""
        children = self.compiled.named_children() if hasattr(self.compiled, "named_children") else ()
        return [(name, child) for name, child in children if name.startswith(PART_PREFIX)]

    def part_layers(self) -> list[Layer]:
        """Return a layer without times for each part that PyTorch runs."""
        runs = [segment.operators for segment in self.segments if segment.runs_in == "PyTorch"]
        operators_by_part = runs if len(runs) == len(self.parts) else [()] * len(self.parts)
        return [
            Layer(
                name=name,
                kind="PyTorch",
                modules=tuple(dict.fromkeys(operator.module for operator in operators if operator.module is not None)),
                operators=tuple(operator.name for operator in operators),
            )
            for (name, _), operators in zip(self.parts, operators_by_part, strict=True)
        ]

    def inspect(self) -> tuple[list[Layer], list[str], dict[str, str]]:
        """Return the layers of all engines, their bindings, and what is unknown."""
        engines = engine_information(self.compiled)
        layers: list[Layer] = []
        bindings: list[str] = []
        absent: dict[str, str] = {}
        for engine, entries, names in engines:
            prefix = f"{engine}/" if len(engines) > 1 else ""
            layers += [replace(layer, name=prefix + layer.name) for layer in inspected_layers(entries, self.lookup)]
            bindings += names
            absent |= absences(entries, (), help=BEST_HINT)
        return layers, bindings, absent

    def origins(self, launched: Sequence[GpuLaunch]) -> KernelSources:
        """Return the origin of each kernel of one run: a layer of an engine, or the part around its launch."""
        layers, _, absent = self.inspect()
        by_scope = {PART_SCOPE + part.name: part for part in self.part_layers()}
        parts = [next((by_scope[name] for name in launch.scopes if name in by_scope), None) for launch in launched]
        engine_launches = [launch for launch, part in zip(launched, parts, strict=True) if part is None]
        engine_sources = kernel_sources(engine_launches, layers, absent)
        engine_origins = iter(engine_sources.origins)
        origins = (next(engine_origins) if part is None else KernelOrigin(part.name, part.modules) for part in parts)
        return KernelSources(tuple(origins), engine_sources.absent)

    @contextmanager
    def scopes(self) -> Iterator[None]:
        """Make every call of PyTorch's parts a scope of the trace, named by the part."""
        entered: list[Any] = []

        def enter(name: str) -> None:
            entered.append(torch.profiler.record_function(PART_SCOPE + name))
            entered[-1].__enter__()

        def leave() -> None:
            entered.pop().__exit__(None, None, None)

        with ExitStack() as hooked:
            for name, child in self.parts:
                hooked.callback(child.register_forward_pre_hook(lambda *_, name=name: enter(name)).remove)
                hooked.callback(child.register_forward_hook(lambda *_: leave()).remove)
            yield


@contextmanager
def detailed_engines(library: Library, level: str) -> Iterator[None]:
    """Make engines that are built meanwhile keep details, if ``level`` says that they are profiled."""
    kind = importlib.import_module(INTERPRETER).TRTInterpreter if level else None
    if not (hasattr(kind, CONFIG_METHOD) and hasattr(kind, CONVERT_METHOD)):
        yield
        return
    original_configure, original_convert = getattr(kind, CONFIG_METHOD), getattr(kind, CONVERT_METHOD)
    tensorrt = importlib.import_module(library.package)

    def convert(interpreter: Any, node: Any) -> Any:
        network = interpreter.ctx.net
        first = network.num_layers
        result = original_convert(interpreter, node)
        for layer in map(network.get_layer, range(first, network.num_layers)):
            if layer.name.startswith(UNNAMED_PREFIX):
                layer.metadata = f"[{layer.type.name}]-[{node.target}]-[{interpreter._cur_node_name}]"
        return result

    def configure(interpreter: Any, *arguments: Any, **named: Any) -> Any:
        config = original_configure(interpreter, *arguments, **named)
        config.profiling_verbosity = tensorrt.ProfilingVerbosity.DETAILED
        network = interpreter.ctx.net
        for layer in map(network.get_layer, range(network.num_layers)):
            layer.metadata = layer.metadata or layer.name
        return config

    with replace_attributes(kind, **{CONFIG_METHOD: configure, CONVERT_METHOD: convert}):
        yield


def lookup_in(paths: frozenset[str]) -> Lookup:
    """Return a lookup of modules and operators by names of the network's layers; ``paths`` are the model's."""

    def lookup(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        sources = [source for name in names if (source := module_and_operator(name, paths)) is not None]
        modules = dict.fromkeys(module for module, _ in sources)
        return tuple(modules), tuple(operator for _, operator in sources if operator)

    return lookup


def module_and_operator(name: str, paths: frozenset[str]) -> tuple[str, str] | None:
    """Return the module path and operator of a layer of the network, or ``None``."""
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
    inner = module.partition(".")[2]  # without the name of a wrapper around the model
    return next(((path, operator) for path in (module, inner) if path in paths), None)


# Runners. A CUDA graph is captured around the whole call: the library's ``enable_cudagraphs`` copies the inputs and
# clones the outputs in every call, which would be timed, and captures single engines.

FILE_KINDS = {".ep": "Torch-TensorRT exported program", ".ts": "Torch-TensorRT TorchScript module"}
COMPILED_OPTIONS = ("cuda_graph", "tf32")  # options of a compiled module
EXPORT_AGAIN = "inferlens export, once more, on this machine"


class ReplayingRunner(TorchRunner, LayerProfiler, KernelTracer):
    """A runner that calls a module with engines, or replays the call."""

    def __init__(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> None:
        torch_options = TorchOptions(tf32=options.tf32)
        super().__init__(model, case, preparation, torch_options, autocast=options.autocast, rest="fp16")
        self.options = options
        self.library = library
        self.compiled: Any = None
        self.cuda_graph = options.cuda_graph

    def compiled_parts(self) -> tuple[Any, Sequence[Segment]]:
        """Return the module, or list of modules, with engines, and its segments, if known."""
        return self.compiled, ()

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        """Time the layers of engines, and the parts that PyTorch runs, by their kernels."""
        compiled = self._compiled_module()
        check_level(self.preparation, replays=self.graph is not None and bool(compiled.parts))
        layers, self.preparation.facts["engine_bindings"], _ = compiled.inspect()
        if not layers:
            message = "The compiled module has no engine that reports its layers."
            raise Unsupported(message, hint="--backend torch_tensorrt:dynamo, or --level kernel")
        kernels = trace_kernels(self, feed, runs)
        timed = layers_of_kernels(kernels, [*layers, *compiled.part_layers()])
        return replace(timed, absent=timed.absent | absences([{}], timed.layers, help=BEST_HINT))

    def scopes(self) -> AbstractContextManager[Any]:
        return self._compiled_module().scopes()

    def kernel_sources(self, launched: Sequence[GpuLaunch]) -> KernelSources:
        return self._compiled_module().origins(launched)

    def _compiled_module(self) -> CompiledModule:
        paths = frozenset(path for path, _ in self.model.module.named_modules()) if self.model.module else frozenset()
        return CompiledModule(*self.compiled_parts(), lookup_in(paths))

    def device_memory(self) -> None:
        """Return nothing: engines take memory past PyTorch's allocator."""

    def __exit__(self, *error: Any) -> None:
        self._call = not_entered
        self.graph = self.compiled = None
        super().__exit__(*error)


class LoadedRunner(ReplayingRunner):
    """A runner of a compiled module from a file, which is neither moved nor cast nor compiled."""

    def __init__(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> None:
        path = self._path = cast("Path", model.path)
        stored = read_provenance(path)
        self._built_options = stored.options if stored else {}
        check_file(path, stored, library)
        ignored = [name for name in options.__struct_fields__ if name not in COMPILED_OPTIONS]
        warn_ignored_options(options, ignored, "the module is compiled already.", preparation)
        autocast = bool(self._built_options.get("autocast"))  # its inputs are fp32 in any precision
        super().__init__(model, case, preparation, msgspec.structs.replace(options, autocast=autocast), library)

    def build(self, module: Any) -> Callable[..., Any]:
        """Return the module; its partition is a fact, if it can be read."""
        facts = self.preparation.facts
        facts["flavour"] = self.library.flavour
        self.compiled = module
        size = self._built_options.get("min_block_size")
        try:
            partition = compiled_partition(
                module, front_end=self.case.variant, flavour=self.library.flavour,
                min_block_size=size if isinstance(size, int) else self.options.min_block_size,
            )  # fmt: skip
        except Exception:  # the content depends on the version that wrote it
            partition = None
        if partition is not None:
            facts["partition"] = msgspec.to_builtins(partition)
        with compile_step(self.model.name, "capture"):
            return self.capture(module)

    def _module_on_device(self) -> Any:
        return self.model.module or open_module(self._path)


def check_file(path: Path, provenance: Provenance | None, library: Library) -> None:
    """Refuse a file that cannot run here according to its provenance: opening it can end the process."""
    if provenance is None:
        return
    version = library.versions[library.package]
    if provenance.flavour != library.flavour or provenance.version.split(".")[:3] != version.split(".")[:3]:
        raise Unsupported(
            f"{path} holds engines of {provenance.flavour} {provenance.version}; here is {library.flavour} {version}.",
            hint=EXPORT_AGAIN,
        )
    # TensorRT for RTX has no engines for other GPUs, whatever the file's options say.
    compatible = "ampere_plus" if provenance.options.get("hardware_compatible") else "none"
    compatible = "same_compute_capability" if library.rtx else compatible
    check_gpu(path, provenance, current_gpu() or Gpu(name=""), compatible)


def open_module(path: Path) -> Any:
    """Return the module in a file, on the GPU; both kinds hold pickles, which can run any code."""
    try:
        with ignore_deprecations():
            if path.suffix in (".ep", ".pt2") or file_kind(path).title == COMPILED_PROGRAM:
                return torch.export.load(str(path)).module()
            return torch.jit.load(str(path), map_location="cuda")
    except Exception as error:  # unpickling can raise anything, as can the engine
        raise InferlensError(
            f"{path} cannot be opened: {reason(error)}",
            expected=f"a {FILE_KINDS.get(path.suffix, 'compiled module')} for this GPU and this version of TensorRT",
            hint=EXPORT_AGAIN,
        ) from error


@contextmanager
def compile_step(name: str, step: str, hint: str = "") -> Iterator[None]:
    """Turn exceptions of a step into Unsupported, except for a lack of memory."""
    try:
        # Outside of PyTorch's inference mode, which an export would trace into the graph.
        with ignore_deprecations(), torch.inference_mode(mode=False), torch.no_grad():
            yield
    except (torch.OutOfMemoryError, MemoryError, InferlensError):
        raise
    except Exception as error:  # exporters, compilers and converters raise nearly every type
        inner = getattr(error, "inner_exception", None) or error
        if isinstance(inner, InferlensError):
            raise inner from error
        if is_short_of_memory(inner) or "CUDA error" in str(inner):  # not caused by the model
            raise
        raise Unsupported(f"{TITLE} cannot {step} '{name}': {reason(inner)}", hint=hint) from error
