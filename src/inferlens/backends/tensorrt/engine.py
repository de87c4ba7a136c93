"""From a case to an engine: built, or taken from the cache, where it is named by everything it depends on."""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec

from inferlens import units
from inferlens.backends.base import Preparation
from inferlens.backends.clocks import CudaClock
from inferlens.backends.onnx.graph import origins
from inferlens.backends.tensorrt.library import (
    KINDS,
    Flavour,
    Profile,
    TensorRTOptions,
    check_shapes,
    condensed,
    current_gpu,
    load_plugins,
    log,
    plugin_files,
    profiles,
    shape_text,
    spread,
    targets,
    warn_of_built,
    warn_of_tactics,
    words,
)
from inferlens.backends.tensorrt.runner import EngineRunner
from inferlens.errors import InferlensError, Unsupported, one_line, suggestion, unwritable
from inferlens.models import provenance
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.models.sources.compiled import AGAIN, SIZE, whole
from inferlens.models.sources.onnx import onnx_graph, weight_files
from inferlens.record.build_report import Build, BuildReport, LayerDifference
from inferlens.record.files import sha256, write_whole
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec
from inferlens.stats.samples import median

KIND = "TensorRT plan"
FOLDER = "tensorrt"  # inside the cache
# Options that change how an engine is run, not what is built, or that stand in the key by themselves.
OF_THE_RUN = ("profile", "cuda_graph", "streams", "timing_cache", "plugins", "compute_capability", "profiles", "ranges")
# From an engine to its layers, as the inspector has them, and the median GPU time of a call in seconds.
Examine = Callable[[bytes], tuple[list[dict[str, Any]], float | None]]
TACTIC = ("TacticName", "TacticValue", "LayerType")  # the first that a layer has is what was chosen for it
WARMUP, CALLS = 20, 200
NO_MEMORY = ("out of memory", "OutOfMemory", "cudaErrorMemoryAllocation")


@dataclass(frozen=True)
class EngineJob:
    """An engine to build from the ONNX file at ``path``, for ``case`` of ``model``, on ``gpu`` if there is one."""

    path: Path
    model: Model
    case: Case
    flavour: Flavour
    options: TensorRTOptions
    gpu: Gpu | None

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """The optimization profiles, checked to take the model's inputs."""
        found = profiles(self.options.profiles, self.model.inputs)
        check_shapes(found, self.options.profile, self.model.inputs)
        return found

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Compute capabilities to build for; empty is the GPU here."""
        return targets(words(self.options.compute_capability), self.flavour, self.gpu)

    @cached_property
    def onnx_sha256(self) -> str:
        """Hash of the ONNX file and of the files beside it that hold its larger weights."""
        return sha256(self.path, *weight_files(self.path, onnx_graph(self.path)))

    @property
    def timings(self) -> Path | None:
        """The file of timings, if tactics are chosen by one."""
        return Path(self.options.timing_cache) if self.options.timing_cache and not self.flavour.jit else None

    @cached_property
    def key(self) -> str:
        """Hexadecimal SHA-256 of everything the engine depends on."""
        gpu = None if self.targets or self.gpu is None else (self.gpu.name, self.gpu.compute_capability)
        options = msgspec.structs.asdict(self.options)
        parts = (
            self.onnx_sha256, self.flavour.key, self.flavour.version, gpu, self.targets, self.case.precision,
            {name: value for name, value in options.items() if name not in OF_THE_RUN}, self.profiles,
            [sha256(library) for library in plugin_files(self.options.plugins)],
            sha256(self.timings) if self.timings and self.timings.is_file() else "",
        )  # fmt: skip
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


@dataclass(frozen=True)
class Built:
    """An engine: its content, its provenance, its file in the cache, and whether it was there before."""

    content: bytes
    provenance: Provenance
    path: Path
    cached: bool


def build_engine(network: Network, config: Any) -> bytes:
    """The serialized engine; ``Unsupported`` with the builder's reason, ``MemoryError`` if it ran out of memory."""
    errors = network.log.errors
    errors.clear()
    serialized = network.builder.build_serialized_network(network.definition, config)
    if serialized is not None:
        return bytes(serialized)
    reason = f"{network.flavour.title} cannot build the engine: {condensed(errors)}."
    if any(words in error for error in errors for words in NO_MEMORY):
        raise MemoryError(reason)
    raise Unsupported(reason)


def build(job: EngineJob, timing_cache: Path | None) -> tuple[bytes, Provenance]:
    """Parses, configures and builds: the engine, and its provenance with the seconds that the builder took."""
    load_plugins(job.flavour, job.options.plugins)
    parsed = network(job.path, job.flavour, weakly_typed=job.options.weakly_typed)
    config = configuration(parsed, job.options, job.profiles, job.case.precision)
    timings = use_timing_cache(parsed, config, timing_cache) if timing_cache else None
    begin = time.perf_counter()
    content = build_engine(parsed, config)
    seconds = time.perf_counter() - begin
    if timing_cache and timings is not None:
        keep_timing_cache(config, timing_cache)
    return content, _provenance(job, content, seconds, parsed.outputs)


def built(job: EngineJob, preparation: Preparation) -> Built:
    """The engine of ``job`` from the cache, or built and put there; timed as the phase ``build``."""
    warn_of_tactics(job.options, job.flavour, preparation)
    with preparation.phase("build") as phase:
        path = preparation.cache / FOLDER / f"{job.key}.engine"
        fresh = preparation.rebuild or (job.timings and not job.timings.is_file())  # a build writes that file
        kept = None if fresh else _kept(path)
        if kept is not None:
            phase.note = "cached"
            return Built(kept[0], _of_job(kept[1], job), path, cached=True)
        if preparation.kept_only:
            what = "The engine that was measured is not there any more, and another one may be slower."
            raise Unsupported(what, hint="rebuild=True, or --rebuild on the command line")
        content, provenance = build(job, job.timings)
        write_engine(path, content, provenance)
        return Built(content, provenance, path, cached=False)


def write_engine(path: Path, content: bytes, made: Provenance) -> None:
    """Writes an engine, and its provenance beside it, whose hash tells whether it is of this engine."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        provenance.write(path, made)
    except OSError as error:
        raise unwritable(path, error, "a folder with room that you may write to") from error


def _provenance(job: EngineJob, content: bytes, seconds: float, outputs: tuple[TensorSpec, ...]) -> Provenance:
    """What an engine just built from ``job`` is; inputs are the model's own, outputs the engine's (-1: a free size)."""
    made = provenance.of(
        content, KIND, job.model, job.case,
        onnx_sha256=job.onnx_sha256, flavour=job.flavour.name, version=job.flavour.version,
        libraries={job.flavour.key: job.flavour.version}, gpu=job.gpu.name if job.gpu else "",
        compute_capability=job.gpu.compute_capability if job.gpu else "", targets=job.targets, outputs=outputs,
        profiles=job.profiles, build_seconds=seconds,
    )  # fmt: skip
    return _of_job(made, job)


def _of_job(provenance: Provenance, job: EngineJob) -> Provenance:
    """``made``, of an equal engine, with the case and model of ``job``."""
    running = job.profiles[job.options.profile]
    return msgspec.structs.replace(
        provenance,
        case=job.case,
        model=job.model.facts,
        format=job.model.format,
        options=msgspec.structs.asdict(job.options),
        inputs=tuple(
            msgspec.structs.replace(spec, best=running[spec.name][1]) if spec.dynamic else spec
            for spec in spread(job.model.inputs, job.profiles)
        ),
    )


def _kept(path: Path) -> tuple[bytes, Provenance] | None:
    """An engine in the cache and its provenance; ``None`` if it is not there, damaged, or just being replaced."""
    try:
        content = path.read_bytes()
        made = provenance.read(path, content)
    except (InferlensError, OSError):
        return None
    return None if made is None else (content, made)


# Engines in files, and repeated builds: noise in what the builder times makes builds differ.


def build_to(
    path: Path, job: EngineJob, preparation: Preparation, *, builds: int = 1, examine: Examine | None = None
) -> BuildReport:
    """Builds the engine of ``job`` and writes it to ``path``, its provenance beside it.

    One build may come from the cache. Several never do: they are made one after the other, then as many again with
    timings that they share, where the flavour has such. ``examine`` opens an engine on the GPU; ``None`` without one.
    """
    warn_of_tactics(job.options, job.flavour, preparation)
    if job.flavour.jit and job.options.timing_cache:
        why = f"timing_cache does nothing in a build: {job.flavour.name} compiles its kernels when an engine runs."
        preparation.warn("no-effect", why, "Leave it out here, and give it to what runs the engine.")
    build_series, shared, cached = BuildSeries(), BuildSeries(), False
    if builds <= 1:
        made = built(job, preparation)
        content, provenance, cached = made.content, made.provenance, made.cached
    else:
        with preparation.phase("build"):
            content, provenance = build_series.add(job, builds, None, examine)
            if not job.flavour.jit:
                timings = job.timings or preparation.folder / "timings.cache"
                timings.parent.mkdir(parents=True, exist_ok=True)
                last = shared.add(job, builds, timings, examine)
                content, provenance = last if job.timings else (content, provenance)
    write_engine(path, content, provenance)
    return BuildReport(
        path=str(path), size=len(content), sha256=provenance.file_sha256, flavour=provenance.flavour,
        version=provenance.version, gpu=provenance.gpu, compute_capability=provenance.compute_capability,
        targets=provenance.targets, seconds=provenance.build_seconds, cached=cached,
        builds=(*build_series.builds, *shared.builds),
        differences=build_series.differences, shared_differences=shared.differences,
        findings=(*build_series.findings(""), *shared.findings(" with shared timings")),
    )  # fmt: skip


class BuildSeries:
    """Builds of one kind, and the tactics by layer of each that could be opened."""

    def __init__(self) -> None:
        self.builds: list[Build] = []
        self.layers: list[dict[str, str]] = []

    def add(
        self, job: EngineJob, count: int, timings: Path | None, examine: Examine | None
    ) -> tuple[bytes, Provenance]:
        """Builds ``count`` engines; the first of them, with its provenance."""
        made = []
        for _ in range(count):
            content, provenance = build(job, timings)
            layers, gpu_seconds = examine(content) if examine else ([], None)
            self.builds.append(
                Build(
                    seconds=provenance.build_seconds or 0.0,
                    size=len(content),
                    sha256=hashlib.sha256(content).hexdigest(),
                    shared_timings=timings is not None,
                    layers=len(layers) if examine else None,
                    gpu_seconds=gpu_seconds,
                )
            )
            if examine:
                tactics = (next((str(layer[key]) for key in TACTIC if layer.get(key)), "") for layer in layers)
                self.layers.append(dict(zip((str(layer.get("Name")) for layer in layers), tactics, strict=True)))
            made.append((content, provenance))
        return made[0]

    @property
    def differences(self) -> tuple[LayerDifference, ...]:
        names = list(dict.fromkeys(name for layers in self.layers for name in layers))
        found = (LayerDifference(name, tuple(layers.get(name, "") for layers in self.layers)) for name in names)
        return tuple(layer_difference for layer_difference in found if len(set(layer_difference.tactics)) > 1)

    def findings(self, how: str) -> list[str]:
        if not self.builds:
            return []
        kinds = len({build.sha256 for build in self.builds})
        same = "are the same, byte for byte" if kinds == 1 else f"gave {kinds} different engines"
        found = [f"{units.plural(len(self.builds), 'build')}{how} {same}."]
        if self.layers:
            most = max(len(layers) for layers in self.layers)
            found.append(f"{len(self.differences)} of {units.plural(most, 'layer')} differ{how}.")
        times = [build.gpu_seconds for build in self.builds if build.gpu_seconds is not None]
        if times:
            apart = units.significant((max(times) / min(times) - 1) * 100, 2)
            found.append(
                f"GPU time{how}: {units.duration(min(times))} to {units.duration(max(times))}, {apart} % apart."
            )
        return found


def examiner(job: EngineJob, preparation: Preparation) -> Examine:
    """What opens engines of ``job`` on the GPU: their layers, and the median GPU time of a call in seconds."""

    def examine(content: bytes) -> tuple[list[dict[str, Any]], float | None]:
        scratch = Preparation(preparation.folder, preparation.cache)  # what it notes is of no one build
        host_code = job.options.version_compatible
        with EngineRunner(
            lambda: content, job.model, job.case, scratch, job.flavour, job.options, host_code=host_code
        ) as runner:
            feed = runner.place(make_inputs(job.model, job.case.seed))
            for _ in range(WARMUP):
                runner.infer(feed)
            times = CudaClock().time(runner.infer, itertools.repeat(feed), CALLS).gpu
            layers, _ = runner.engine.information()
        return [layer if isinstance(layer, dict) else {"Name": str(layer)} for layer in layers], median(times)

    return examine


# The steps before a build: an ONNX file parsed into a network of TensorRT's, and the builder's configuration.

# Names of TensorRT's types (trt.DataType), as we and NumPy call them.
DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "BOOL": "bool", "FP8": "float8", "FP4": "float4", "INT4": "int4", "E8M0": "e8m0",
}  # fmt: skip
LOWERED = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}  # flags of a weakly typed network, by precision
UNREADABLE = ("ParseFromCodedStream", "Failed to parse the ONNX model")
# The last is of operators that its parser hands to a plugin which the library does not have.
NO_OPERATOR = re.compile(
    r"^false$|^Op type \S+ is not supported|No importer registered for op|Plugin not found"
    r"|getPluginCreatorVersion\(creator\)"
)


@dataclass
class Network:
    """A parsed network, and what must live as long as it does; ``weakly_typed``: the builder may lower precisions."""

    flavour: Flavour
    log: Any
    builder: Any
    definition: Any
    parser: Any
    weakly_typed: bool = False

    @property
    def tensors(self) -> list[Any]:
        return [self.definition.get_input(index) for index in range(self.definition.num_inputs)]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs in order; a size that is free is -1."""
        return tuple(map(_spec, self.tensors))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs in order; a size that depends on the inputs' is -1."""
        return tuple(_spec(self.definition.get_output(index)) for index in range(self.definition.num_outputs))

    @property
    def layers(self) -> int:
        """Number of layers before the builder fuses them."""
        return int(self.definition.num_layers)


def network(path: Path, flavour: Flavour, *, weakly_typed: bool = False) -> Network:
    """The network of an ONNX file; ``Unsupported`` names what cannot be read, or the node that cannot be run."""
    if weakly_typed and flavour.strongly_typed_only:
        raise Unsupported(
            f"Networks of {flavour.title} are strongly typed: precisions are those of the graph.",
            hint="no weakly_typed; --precision fp16 exports the graph in fp16",
        )
    trt, heard = flavour.module, log(flavour)
    builder = trt.Builder(heard)
    if builder is None:
        raise Unsupported(f"{flavour.title} does not start: {condensed(heard.errors)}")
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    definition = builder.create_network(0 if weakly_typed or typed is None else 1 << int(typed))
    parser = trt.OnnxParser(definition, heard)
    if not parser.parse_from_file(str(path)):
        raise _refusal(path, parser, flavour)
    if not definition.num_layers or not definition.num_outputs:  # the parser takes an empty file for an empty graph
        raise Unsupported(f"{path} is not an ONNX graph, or is empty.", expected="an ONNX file with nodes and outputs")
    return Network(flavour, heard, builder, definition, parser, weakly_typed)


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(str(tensor.name), tuple(int(size) for size in tensor.shape), DTYPES[tensor.dtype.name])


def _refusal(path: Path, parser: Any, flavour: Flavour) -> Unsupported:
    """The error for a file that the parser refused: the first node, its operator, its module, the reason."""
    try:
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        found = [(error.desc().strip(), error.node_name(), error.node_operator()) for error in errors]
    except UnicodeDecodeError:  # names that are no text
        found = []
    if not found or any(item in text for text, *_ in found for item in UNREADABLE):
        return Unsupported(
            f"{flavour.name} cannot read {path}: it is no ONNX file, or cut short or damaged.", hint="export it again"
        )
    text, name, operator = found[0]
    said = condensed([text.replace(f"Invalid Node - {name}", "", 1)], "the parser gives no reason")
    reason = "it has no such operator" if NO_OPERATOR.search(text) else said
    module = ""
    with suppress(Exception):  # this only adds to a message
        module = origins(path).by_name[name].modules[-1]
    label = f" '{name}'" if name else ""
    where = f"the ONNX node{label} ({operator}{f', in the module {module}' if module else ''})"
    return Unsupported(
        one_line(f"{flavour.title} cannot take {where if operator else 'the graph'}: {reason}."),
        hint="another operator in the model, a plugin (option plugins), or --backend onnxruntime:cuda",
    )


# Configuration, and the file of timings


def configuration(
    network: Network, options: TensorRTOptions, profiles: tuple[Profile, ...], precision: str = "fp32"
) -> Any:
    """An ``IBuilderConfig`` for ``network``; ``precision`` is what a weakly typed one may be lowered to.

    Raises Unsupported for what this flavour does not have, a profile that does not fit, or no target without a GPU.
    """
    _check(network, options)
    named = words(options.compute_capability)
    goals = targets(named, network.flavour, None if named else current_gpu())
    trt, config = network.flavour.module, network.builder.create_builder_config()
    config.builder_optimization_level = options.optimization_level
    config.avg_timing_iterations = options.avg_timing_iterations
    config.profiling_verbosity = getattr(trt.ProfilingVerbosity, options.profiling_verbosity.upper())
    if options.max_num_tactics:
        config.max_num_tactics = options.max_num_tactics
    if options.workspace:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace << 20)
    if options.tactic_sources:
        config.set_tactic_sources(_sources(trt.TacticSource, options.tactic_sources))
    if options.hardware_compatible != "none":
        level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatible.upper())
        config.hardware_compatibility_level = level
    _set_flags(network, config, options, precision)
    if goals:
        config.num_compute_capabilities = len(goals)
        for index, target in enumerate(goals):
            config.set_compute_capability(network.flavour.targets[target], index)
    for profile in profiles:
        _add_profile(network, config, profile)
    return config


def use_timing_cache(network: Network, config: Any, path: Path) -> Any:
    """Gives ``config`` the timings in ``path``, if any; ``None`` for a flavour that times nothing in a build."""
    if network.flavour.jit:
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, False):  # False: of another GPU is an error
        raise InferlensError(
            f"{path} holds no timings of {network.flavour.title} on this GPU.", hint="another file as timing_cache"
        )
    return cache


def keep_timing_cache(config: Any, path: Path) -> None:
    """Writes the timings of a build to ``path``, with those another process put there meanwhile."""
    cache = config.get_timing_cache()
    if path.is_file():
        timing_cache = config.create_timing_cache(path.read_bytes())
        if timing_cache is not None:
            cache.combine(timing_cache, False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, bytes(cache.serialize()))


def _check(network: Network, options: TensorRTOptions) -> None:
    flavour, level = network.flavour, options.hardware_compatible
    known = getattr(flavour.module, "HardwareCompatibilityLevel", None)
    if level != "none" and (flavour.jit or not hasattr(known, level.upper())):
        targets = f"--option tensorrt.compute_capability={'+'.join(flavour.targets)}" if flavour.jit else ""
        raise Unsupported(f"{flavour.title} has no hardware compatibility '{level}'.", hint=targets)
    if options.max_num_tactics and not hasattr(flavour.module.IBuilderConfig, "max_num_tactics"):
        raise Unsupported(f"{flavour.title} has no max_num_tactics.", hint="leave it out, or TensorRT 10.13")
    if options.version_compatible and flavour.jit:
        raise Unsupported(f"{flavour.name} has no lean runtime.", hint="no version_compatible; build after an update")


def _set_flags(network: Network, config: Any, options: TensorRTOptions, precision: str) -> None:
    flags = network.flavour.module.BuilderFlag
    wanted = {
        "TF32": options.tf32,  # the builder's own default is on
        "SPARSE_WEIGHTS": options.sparsity,
        "REFIT": options.refittable,
        "VERSION_COMPATIBLE": options.version_compatible,
    }
    if network.weakly_typed and precision in LOWERED:
        wanted[LOWERED[precision]] = True
    for name, on in wanted.items():
        flag = getattr(flags, name, None)
        if flag is None and on:
            raise Unsupported(f"{network.flavour.title} has no builder flag {name}.")
        if flag is not None:
            (config.set_flag if on else config.clear_flag)(flag)


def _sources(known: Any, text: str) -> int:
    """Tactic sources as the bit mask that TensorRT takes."""
    members = {name.lower(): value for name, value in known.__members__.items()}
    mask = 0
    for name in words(text.lower()):
        if name not in members and name != "none":
            expected = f"none, or some of {', '.join(members)}"
            raise InferlensError(
                f"There is no tactic source '{name}'.", expected=expected, hint=suggestion(name, members)
            )
        mask |= 0 if name == "none" else 1 << int(members[name])
    return mask


def _add_profile(network: Network, config: Any, profile: Profile) -> None:
    """Adds a profile, which must have every input of the graph, at sizes that the graph does not fix otherwise."""
    optimization_profile = network.builder.create_optimization_profile()
    for tensor in network.tensors:
        name, fixed = str(tensor.name), tuple(tensor.shape)
        if name not in profile:
            raise Unsupported(
                one_line(f"The ONNX graph has an input '{name}', the model was described with {', '.join(profile)}.")
            )
        if tensor.is_shape_tensor:
            raise Unsupported(
                one_line(f"The values of the input '{name}' decide shapes inside the graph."),
                hint="export the model with that input as a constant",
            )
        for shape in profile[name]:
            if len(shape) != len(fixed) or not all(a in (-1, b) for a, b in zip(fixed, shape, strict=True)):
                raise Unsupported(
                    one_line(f"The ONNX graph was made for {name}={shape_text(fixed)}, not for {shape_text(shape)}."),
                    hint="its own shape, or a file exported with dynamic shapes",
                )
        optimization_profile.set_shape(name, *profile[name])
    if config.add_optimization_profile(optimization_profile) < 0:
        shapes = "; ".join(f"{name} {triple}" for name, triple in profile.items())
        raise Unsupported(one_line(f"{network.flavour.name} does not take the profile {shapes}."))


# Checks before TensorRT opens an engine, since one that does not fit can end the process. Code in an engine or a plugin
# library runs only if the user allows it by an option.

TRUST = "--trust, if you trust who built it"


def checked_file(
    model: Model, case: Case, options: TensorRTOptions, flavour: Flavour, preparation: Preparation
) -> tuple[Provenance | None, TensorRTOptions]:
    """The provenance of the engine of ``model``, which is checked, if there is one; and the case's ``options``.

    Where those name no profile, they get that which the engine was built to run.
    """
    path = cast("Path", model.path)
    made = provenance.read(path)
    check_engine(path, made, flavour, None)
    warn_of_built(case, made, flavour, preparation)
    if made is None:
        preparation.warn(
            "unknown-origin",
            "What this engine was built from is not known, nor its precision; its outputs are not checked.",
            "Build it with inferlens export, which writes that beside it.",
        )
        return None, options
    if made.options.get("version_compatible") and not preparation.trust:
        raise InferlensError(
            f"{path} was built for later versions as well, so it holds code of its own, which runs when it is opened.",
            hint=TRUST,
        )
    libraries = one_line(str(made.options.get("plugins") or ""))
    if libraries and "plugins" not in case.options:
        raise InferlensError(
            f"{path} was built with plugins of {libraries}, which are code and loaded only if they are named.",
            hint=f"--option tensorrt.plugins={libraries}",
        )
    own = made.options.get("profile")
    if "profile" not in case.options and isinstance(own, int) and 0 <= own < len(made.profiles):
        options = msgspec.structs.replace(options, profile=own)
    if all(spec.name in profile for spec in model.inputs for profile in made.profiles) and made.profiles:
        check_shapes(made.profiles, options.profile, model.inputs)
    preparation.facts["built"] = {
        "flavour": made.flavour, "version": made.version, "gpu": made.gpu, "seconds": made.build_seconds,
        "options": made.options, "model": made.case.model,
    }  # fmt: skip
    return made, options


def check_engine(path: Path, provenance: Provenance | None, flavour: Flavour, gpu: Gpu | None) -> None:
    """Refuses an engine's file that is not whole, or not for this flavour and version, or, if it is given, this GPU.

    ``made`` is its provenance, if there is one: reading that told whether the file is the one it was made for.
    """
    header = whole(path)
    if header.variant != flavour.variant:
        raise Unsupported(
            f"{path} was built by {KINDS[header.variant].name} {header.version}; {flavour.title} cannot run it.",
            hint=f"--backend tensorrt:{header.variant}",
        )
    # Engines belong to one version (three numbers; the fourth is the build), unless built to be compatible.
    version = provenance.version if provenance is not None and provenance.version else header.version
    own, here = _numbers(version), _numbers(flavour.version)
    compatible = provenance is not None and provenance.options.get("version_compatible") and own < here
    if version and own != here and not compatible:
        raise Unsupported(
            f"{path} was built by {flavour.name} {version:.40}; {flavour.title} cannot run it.", hint=AGAIN
        )
    if gpu is not None:
        _check_gpu(path, provenance, flavour, gpu)
        _ask_runtime(path, flavour, gpu)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if re.fullmatch("[0-9]{1,9}", part))


def _check_gpu(path: Path, provenance: Provenance | None, flavour: Flavour, gpu: Gpu) -> None:
    """An engine built for one GPU runs on that model alone, unless it was built to be compatible."""
    if provenance is None or flavour.jit or not provenance.gpu:  # kernels compiled when it runs: the runtime knows
        return
    same = provenance.compute_capability == gpu.compute_capability
    fits = {
        "none": provenance.gpu == gpu.name and same,
        "same_compute_capability": same,
        "ampere_plus": int(gpu.compute_capability.partition(".")[0] or 0) >= 8,
    }
    if not fits.get(str(provenance.options.get("hardware_compatible", "none")), False):
        raise Unsupported(
            one_line(
                f"{path} was built on and for {provenance.gpu} (compute capability "
                f"{provenance.compute_capability}); here is {gpu.name} ({gpu.compute_capability})."
            ),
            hint=AGAIN,
        )


def _ask_runtime(path: Path, flavour: Flavour, gpu: Gpu) -> None:
    """The runtime's own check of a header, where the flavour has one; of the compute capability it knows too little."""
    trt: Any = flavour.module
    if not hasattr(trt.Runtime, "get_engine_validity"):
        return
    heard = log(flavour)
    with path.open("rb") as file:
        validity, causes = trt.Runtime(heard).get_engine_validity(file.read(SIZE))
    members = trt.EngineInvalidityDiagnostics.__members__
    named = [name.lower().replace("_", " ") for name, word in members.items() if int(causes) & int(word)]
    if validity == trt.EngineValidity.INVALID and named != ["unsupported cc"]:
        why = ", ".join(named) or condensed(heard.errors)
        raise Unsupported(f"{path} cannot run here, on {gpu.name} with {flavour.title}: {why}.", hint=AGAIN)
