"""Engines: built from a case or read from the cache, where the name is a hash of everything they depend on."""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec

from inferlens import units
from inferlens.backends.base import Preparation
from inferlens.backends.clocks import CudaClock
from inferlens.backends.tensorrt.library import (
    FLAVOURS,
    TRUST_HINT,
    Flavour,
    check_gpu,
    error_summary,
    load_plugins,
    option_words,
    plugin_files,
    resolve_targets,
)
from inferlens.backends.tensorrt.options import (
    BUILDER_OPTIONS,
    Network,
    Profile,
    TensorRTOptions,
    builder_config,
    check_profile,
    parse_network,
    parse_profiles,
    spread_inputs,
    warn_build_options,
    warn_tactic_options,
)
from inferlens.backends.tensorrt.runner import EngineRunner
from inferlens.errors import InferlensError, Unsupported, one_line, unwritable
from inferlens.models.compiled import AGAIN, Provenance, new_provenance, read_header, read_provenance, write_provenance
from inferlens.models.files import onnx_graph, weight_files
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.record.builds import Build, BuildReport, LayerDifference
from inferlens.record.files import sha256, write_whole
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec
from inferlens.stats.samples import median

KIND = "TensorRT plan"
FOLDER = "tensorrt"  # inside the cache
# From an engine to the inspector's layers, and the median GPU time of a call in seconds.
Examine = Callable[[bytes], tuple[list[dict[str, Any]], float | None]]
TACTIC_KEYS = ("TacticName", "TacticValue", "LayerType")  # the first key that a layer has is its tactic
WARMUP_CALLS, TIMED_CALLS = 20, 200
NO_MEMORY_TEXTS = ("out of memory", "OutOfMemory", "cudaErrorMemoryAllocation")


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
        parsed = parse_profiles(self.options.profiles, self.model.inputs)
        check_profile(parsed, self.options.profile, self.model.inputs)
        return parsed

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The compute capabilities to build for; empty is the GPU here."""
        return resolve_targets(option_words(self.options.compute_capability), self.flavour, self.gpu)

    @cached_property
    def onnx_sha256(self) -> str:
        """Hash of the ONNX file and of its external weights."""
        return sha256(self.path, *weight_files(self.path, onnx_graph(self.path)))

    @property
    def timings(self) -> Path | None:
        """The timing cache, if tactics are timed."""
        return Path(self.options.timing_cache) if self.options.timing_cache and not self.flavour.jit else None

    @cached_property
    def key(self) -> str:
        """Hexadecimal SHA-256 of everything the engine depends on."""
        gpu = None if self.targets or self.gpu is None else (self.gpu.name, self.gpu.compute_capability)
        options = msgspec.structs.asdict(self.options)
        parts = (
            self.onnx_sha256, self.flavour.key, self.flavour.version, gpu, self.targets, self.case.precision,
            {name: options[name] for name in BUILDER_OPTIONS}, self.profiles,
            [sha256(library) for library in plugin_files(self.options.plugins)],
            sha256(self.timings) if self.timings and self.timings.is_file() else "",
        )  # fmt: skip
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


@dataclass(frozen=True)
class BuiltEngine:
    """An engine with its provenance and its file in the cache."""

    content: bytes
    provenance: Provenance
    path: Path
    cached: bool


def build_engine(network: Network, config: Any) -> bytes:
    """Return the serialized engine. Raise Unsupported with the builder's reason, or MemoryError."""
    errors = network.log.errors
    errors.clear()
    serialized = network.builder.build_serialized_network(network.definition, config)
    if serialized is not None:
        return bytes(serialized)
    reason = f"{network.flavour.title} cannot build the engine: {error_summary(errors)}."
    if any(text in error for error in errors for text in NO_MEMORY_TEXTS):
        raise MemoryError(reason)
    raise Unsupported(reason)


def build(job: EngineJob, timing_cache: Path | None) -> tuple[bytes, Provenance]:
    """Parse, configure and build; return the engine and its provenance."""
    load_plugins(job.flavour, job.options.plugins)
    parsed = parse_network(job.path, job.flavour, weakly_typed=job.options.weakly_typed)
    config = builder_config(parsed, job.options, job.profiles, job.case.precision)
    timings = use_timing_cache(parsed, config, timing_cache) if timing_cache else None
    begin = time.perf_counter()
    content = build_engine(parsed, config)
    seconds = time.perf_counter() - begin
    if timing_cache and timings is not None:
        save_timing_cache(config, timing_cache)
    return content, _provenance(job, content, seconds, parsed.outputs)


def cached_engine(job: EngineJob, preparation: Preparation) -> BuiltEngine:
    """Return the engine of ``job`` from the cache, or build it into the cache, in the phase ``build``."""
    warn_tactic_options(job.options, job.flavour, preparation)
    with preparation.phase("build") as phase:
        path = preparation.cache / FOLDER / f"{job.key}.engine"
        fresh = preparation.rebuild or (job.timings and not job.timings.is_file())  # the build writes that file
        cached = None if fresh else _read_cached(path)
        if cached is not None:
            phase.note = "cached"
            return BuiltEngine(cached[0], _with_job(cached[1], job), path, cached=True)
        if preparation.cached_only:
            message = "The measured engine is no longer in the cache, and a new one may be slower."
            raise Unsupported(message, hint="rebuild=True, or --rebuild on the command line")
        content, provenance = build(job, job.timings)
        write_engine(path, content, provenance)
        return BuiltEngine(content, provenance, path, cached=False)


def write_engine(path: Path, content: bytes, engine_provenance: Provenance) -> None:
    """Write an engine, and its provenance with the engine's hash."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        write_provenance(path, engine_provenance)
    except OSError as error:
        raise unwritable(path, error, "a folder with room that you may write to") from error


def _provenance(job: EngineJob, content: bytes, seconds: float, outputs: tuple[TensorSpec, ...]) -> Provenance:
    """Return the provenance of a new engine; inputs are the model's, outputs the engine's (-1: a free size)."""
    new = new_provenance(
        content, KIND, job.model, job.case,
        onnx_sha256=job.onnx_sha256, flavour=job.flavour.name, version=job.flavour.version,
        libraries={job.flavour.key: job.flavour.version}, gpu=job.gpu.name if job.gpu else "",
        compute_capability=job.gpu.compute_capability if job.gpu else "", targets=job.targets, outputs=outputs,
        profiles=job.profiles, build_seconds=seconds,
    )  # fmt: skip
    return _with_job(new, job)


def _with_job(provenance: Provenance, job: EngineJob) -> Provenance:
    """Return the provenance of an equal engine with the case and model of ``job``."""
    running = job.profiles[job.options.profile]
    return msgspec.structs.replace(
        provenance,
        case=job.case,
        model=job.model.facts,
        format=job.model.format,
        options=msgspec.structs.asdict(job.options),
        inputs=tuple(
            msgspec.structs.replace(spec, best=running[spec.name][1]) if spec.dynamic else spec
            for spec in spread_inputs(job.model.inputs, job.profiles)
        ),
    )


def _read_cached(path: Path) -> tuple[bytes, Provenance] | None:
    """Return a cached engine and its provenance; ``None`` if it is missing, damaged or being replaced."""
    try:
        content = path.read_bytes()
        stored = read_provenance(path, content)
    except (InferlensError, OSError):
        return None
    return None if stored is None else (content, stored)


# Repeated builds, which differ by the noise of the builder's timings


def build_to(
    path: Path, job: EngineJob, preparation: Preparation, *, builds: int = 1, examine: Examine | None = None
) -> BuildReport:
    """Build the engine of ``job`` and write it to ``path``, with its provenance.

    A single build may come from the cache. Several ``builds`` are made one after the other, and as many again with
    shared timings if the flavour has a timing cache. ``examine`` opens an engine on the GPU; it is ``None`` without a
    GPU.
    """
    warn_tactic_options(job.options, job.flavour, preparation)
    if job.flavour.jit and job.options.timing_cache:
        why = f"timing_cache does nothing in a build: {job.flavour.name} compiles its kernels when an engine runs."
        preparation.warn("no-effect", why, "Leave it out here, and give it to what runs the engine.")
    build_series, shared, cached = BuildSeries(), BuildSeries(), False
    if builds <= 1:
        engine = cached_engine(job, preparation)
        content, provenance, cached = engine.content, engine.provenance, engine.cached
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
    """Builds of one kind, and the tactics by layer of every engine that could be opened."""

    def __init__(self) -> None:
        self.builds: list[Build] = []
        self.layers: list[dict[str, str]] = []

    def add(
        self, job: EngineJob, count: int, timings: Path | None, examine: Examine | None
    ) -> tuple[bytes, Provenance]:
        """Build ``count`` engines and return the first, with its provenance."""
        engines = []
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
                tactics = (next((str(layer[key]) for key in TACTIC_KEYS if layer.get(key)), "") for layer in layers)
                self.layers.append(dict(zip((str(layer.get("Name")) for layer in layers), tactics, strict=True)))
            engines.append((content, provenance))
        return engines[0]

    @property
    def differences(self) -> tuple[LayerDifference, ...]:
        names = dict.fromkeys(name for layers in self.layers for name in layers)
        tactics = {name: tuple(layers.get(name, "") for layers in self.layers) for name in names}
        return tuple(LayerDifference(name, chosen) for name, chosen in tactics.items() if len(set(chosen)) > 1)

    def findings(self, suffix: str) -> list[str]:
        if not self.builds:
            return []
        count = len({build.sha256 for build in self.builds})
        result = "are the same, byte for byte" if count == 1 else f"gave {count} different engines"
        sentences = [f"{units.plural(len(self.builds), 'build')}{suffix} {result}."]
        if self.layers:
            layer_count = max(len(layers) for layers in self.layers)
            sentences.append(f"{len(self.differences)} of {units.plural(layer_count, 'layer')} differ{suffix}.")
        times = [build.gpu_seconds for build in self.builds if build.gpu_seconds is not None]
        if times:
            low, high = min(times), max(times)
            percent = units.significant((high / low - 1) * 100, 2)
            sentences.append(f"GPU time{suffix}: {units.duration(low)} to {units.duration(high)}, {percent} % apart.")
        return sentences


def engine_examiner(job: EngineJob, preparation: Preparation) -> Examine:
    """Return a function from an engine to its layers and the median GPU time of a call in seconds."""

    def examine(content: bytes) -> tuple[list[dict[str, Any]], float | None]:
        scratch = Preparation(preparation.folder, preparation.cache)  # its facts do not belong to the record
        host_code = job.options.version_compatible
        with EngineRunner(
            lambda: content, job.model, job.case, scratch, job.flavour, job.options, host_code=host_code
        ) as runner:
            feed = runner.place(make_inputs(job.model, job.case.seed))
            for _ in range(WARMUP_CALLS):
                runner.infer(feed)
            times = CudaClock().time(runner.infer, itertools.repeat(feed), TIMED_CALLS).gpu
            layers, _ = runner.engine.information()
        return [layer if isinstance(layer, dict) else {"Name": str(layer)} for layer in layers], median(times)

    return examine


# The file of timings


def use_timing_cache(network: Network, config: Any, path: Path) -> Any:
    """Load the timings in ``path`` into ``config``; return ``None`` for a flavour without timings."""
    if network.flavour.jit:
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, False):  # False: timings of another GPU are an error
        message = f"{path} holds no timings of {network.flavour.title} on this GPU."
        raise InferlensError(message, hint="another file as timing_cache")
    return cache


def save_timing_cache(config: Any, path: Path) -> None:
    """Write the timings of a build to ``path``, merged with those of other processes."""
    cache = config.get_timing_cache()
    if path.is_file() and (stored := config.create_timing_cache(path.read_bytes())) is not None:
        cache.combine(stored, False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, bytes(cache.serialize()))


# Checks before TensorRT opens an engine, because a wrong engine can end the process. Code in an engine or a plugin
# library runs only if the user allows it by an option.


def check_engine_file(
    model: Model, case: Case, options: TensorRTOptions, flavour: Flavour, preparation: Preparation
) -> tuple[Provenance | None, TensorRTOptions]:
    """Check the model's engine file; return its provenance, if any, and the case's ``options``.

    Options without a profile get the one that the engine was built to run.
    """
    path = cast("Path", model.path)
    stored = read_provenance(path)
    check_engine(path, stored, flavour, None)
    warn_build_options(case, stored, preparation)
    if stored is None:
        preparation.warn(
            "unknown-origin",
            "The model and the precision of this engine are unknown, so its outputs are not checked.",
            "Build it with inferlens export, which writes that beside it.",
        )
        return None, options
    if stored.options.get("version_compatible") and not preparation.trust:
        raise InferlensError(
            f"{path} was built for later versions as well, so it holds code of its own, which runs when it is opened.",
            hint=TRUST_HINT,
        )
    libraries = one_line(str(stored.options.get("plugins") or ""))
    if libraries and "plugins" not in case.options:
        message = f"{path} was built with plugins of {libraries}, which are code and loaded only if they are named."
        raise InferlensError(message, hint=f"--option tensorrt.plugins={libraries}")
    profile = stored.options.get("profile")
    if "profile" not in case.options and isinstance(profile, int) and 0 <= profile < len(stored.profiles):
        options = msgspec.structs.replace(options, profile=profile)
    if all(spec.name in shapes for spec in model.inputs for shapes in stored.profiles) and stored.profiles:
        check_profile(stored.profiles, options.profile, model.inputs)
    preparation.facts["built"] = {
        "flavour": stored.flavour, "version": stored.version, "gpu": stored.gpu, "seconds": stored.build_seconds,
        "options": stored.options, "model": stored.case.model,
    }  # fmt: skip
    return stored, options


def check_engine(path: Path, provenance: Provenance | None, flavour: Flavour, gpu: Gpu | None) -> None:
    """Refuse an engine file that is damaged, or not for this flavour and version, or not for ``gpu`` if given."""
    header = read_header(path)
    if header.variant != flavour.variant:
        raise Unsupported(
            f"{path} was built by {FLAVOURS[header.variant].name} {header.version}; {flavour.title} cannot run it.",
            hint=f"--backend tensorrt:{header.variant}",
        )
    # Engines belong to one version (three numbers; the fourth is the build), unless built to be compatible.
    version = provenance.version if provenance is not None and provenance.version else header.version
    built, installed = _numbers(version), _numbers(flavour.version)
    compatible = provenance is not None and provenance.options.get("version_compatible") and built < installed
    if version and built != installed and not compatible:
        message = f"{path} was built by {flavour.name} {version:.40}; {flavour.title} cannot run it."
        raise Unsupported(message, hint=AGAIN)
    # The runtime of TensorRT for RTX checks kernels when it compiles them.
    if gpu is not None and provenance is not None and provenance.gpu and not flavour.jit:
        check_gpu(path, provenance, gpu, str(provenance.options.get("hardware_compatible", "none")))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if re.fullmatch("[0-9]{1,9}", part))
