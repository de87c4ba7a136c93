"""From a case to an engine: built, or taken from the cache, where it is named by everything it depends on."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from inferlens import units
from inferlens.backends.base import Preparation
from inferlens.backends.clocks import CudaClock
from inferlens.backends.tensorrt.flavours import Flavour, condensed, load_plugins, plugin_files, targets, words
from inferlens.backends.tensorrt.network import Network, configuration, keep_timing_cache, network, use_timing_cache
from inferlens.backends.tensorrt.options import TensorRTOptions, warn_of_tactics
from inferlens.backends.tensorrt.profiles import Profile, check_shapes, profiles, spread
from inferlens.backends.tensorrt.runner import EngineRunner
from inferlens.errors import InferlensError, Unsupported, unwritable
from inferlens.models import provenance
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.models.sources.onnx import onnx_graph, weight_files
from inferlens.record.build_report import Build, BuildReport, LayerDifference
from inferlens.record.files import sha256, write_whole
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec
from inferlens.stats.quantiles import median

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
