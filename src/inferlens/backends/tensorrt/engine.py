"""From a network and its configuration to an engine, and from a case to an engine: built, or taken from the cache.

An engine in the cache is named by everything it depends on; one that is damaged, or is not the one that its provenance
tells of, is built again.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.configuration import configuration, keep_timing_cache, use_timing_cache
from inferlens.backends.tensorrt.flavours import Flavour, condensed, load_plugins, plugin_files, targets, words
from inferlens.backends.tensorrt.network import Network, network
from inferlens.backends.tensorrt.options import Options, warn_of_tactics
from inferlens.backends.tensorrt.profiles import Profile, check_shapes, profiles, spread
from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.models.sources.files import broken_file
from inferlens.record.files import sha256, write_whole
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec

KIND = "TensorRT plan"
FOLDER = "tensorrt"  # inside the cache
# Options that change how an engine is run, not what is built, or that stand in the key by themselves.
OF_THE_RUN = ("profile", "cuda_graph", "streams", "timing_cache", "plugins", "compute_capability", "profiles")
NO_MEMORY = ("out of memory", "OutOfMemory", "cudaErrorMemoryAllocation")


@dataclass(frozen=True)
class Job:
    """An engine to build from the ONNX file at ``path``, for ``case`` of ``model``, on ``gpu`` if there is one.

    The profiles cover the shapes of the model's inputs.
    """

    path: Path
    model: Model
    case: Case
    flavour: Flavour
    options: Options
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
        import onnx
        from onnx.external_data_helper import ExternalDataInfo, uses_external_data

        with broken_file(self.path):
            graph = onnx.load(str(self.path), load_external_data=False).graph
            beside = {ExternalDataInfo(tensor).location for tensor in graph.initializer if uses_external_data(tensor)}
            return sha256(self.path, *(self.path.parent / name for name in sorted(beside)))

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
    """The serialized engine.

    Raises:
        Unsupported: if the builder cannot build it, with the builder's reason.
        MemoryError: if it ran out of memory.
    """
    errors = network.log.errors
    errors.clear()
    serialized = network.builder.build_serialized_network(network.definition, config)
    if serialized is not None:
        return bytes(serialized)
    reason = f"{network.flavour.title} cannot build the engine: {condensed(errors)}."
    if any(words in error for error in errors for words in NO_MEMORY):
        raise MemoryError(reason)
    raise Unsupported(reason)


def build(job: Job, timing_cache: Path | None) -> tuple[bytes, Provenance]:
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


def built(job: Job, preparation: Preparation) -> Built:
    """The engine of ``job`` from the cache, or built and put there; timed as the phase ``build``."""
    warn_of_tactics(job.options, job.flavour, preparation)
    with preparation.phase("build") as phase:
        path = preparation.cache / FOLDER / f"{job.key}.engine"
        fresh = preparation.rebuild or (job.timings and not job.timings.is_file())  # a build writes that file
        kept = None if fresh else _kept(path)
        if kept is not None:
            phase.note = "cached"
            return Built(kept[0], _of_job(kept[1], job), path, cached=True)
        content, made = build(job, job.timings)
        write_engine(path, content, made)
        return Built(content, made, path, cached=False)


def write_engine(path: Path, content: bytes, made: Provenance) -> None:
    """Writes an engine, and its provenance beside it, whose hash tells whether it is of this engine."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        provenance.write(path, made)
    except OSError as error:
        raise InferlensError(
            f"{path} cannot be written: {error.strerror or error}.", hint="a folder with room that you may write to"
        ) from error


def _provenance(job: Job, content: bytes, seconds: float, outputs: tuple[TensorSpec, ...]) -> Provenance:
    """What an engine just built from ``job`` is; inputs are the model's own, outputs the engine's (-1: a free size)."""
    made = provenance.of(
        content, KIND, job.model, job.case,
        onnx_sha256=job.onnx_sha256, flavour=job.flavour.name, version=job.flavour.version,
        libraries={job.flavour.key: job.flavour.version}, gpu=job.gpu.name if job.gpu else "",
        compute_capability=job.gpu.compute_capability if job.gpu else "", targets=job.targets, outputs=outputs,
        profiles=job.profiles, build_seconds=seconds,
    )  # fmt: skip
    return _of_job(made, job)


def _of_job(made: Provenance, job: Job) -> Provenance:
    """``made``, of an equal engine, with the case and model of ``job``."""
    running = job.profiles[job.options.profile]
    return msgspec.structs.replace(
        made,
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
