"""From a network and its configuration to a plan, and from a case to a plan: built, or taken from the cache.

A plan in the cache is named by everything it depends on (see ``recipe``); one that is damaged is built again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt import log
from inferlens.backends.tensorrt.build_errors import beyond_workspace, explained, refittable
from inferlens.backends.tensorrt.configuration import configuration
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.gpu import current_gpu
from inferlens.backends.tensorrt.ignored_options import warn_of_tactics
from inferlens.backends.tensorrt.network import Network, network
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.plugins import load_plugins
from inferlens.backends.tensorrt.profiles import Profile, check_shapes, profiles, spread
from inferlens.backends.tensorrt.recipe import Recipe, recipe
from inferlens.backends.tensorrt.targets import targets
from inferlens.backends.tensorrt.timing_cache import keep_timing_cache, use_timing_cache
from inferlens.backends.tensorrt.written import write_plan
from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec

KIND = "TensorRT plan"
FOLDER = "tensorrt"  # inside the cache
NO_MEMORY = ("out of memory", "OutOfMemory", "cudaErrorMemoryAllocation")


@dataclass(frozen=True)
class Job:
    """An engine to build: from which ONNX file, with which flavour and options, on which GPU (``None``: there is none).

    ``model`` and ``case`` go into the provenance; the shapes are those of the model's inputs.
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
        return targets(self.options.compute_capability, self.flavour, self.gpu)

    @cached_property
    def recipe(self) -> Recipe:
        """Everything the plan depends on."""
        return recipe(self.path, self.flavour, self.options, self.profiles, self.targets, self.gpu, self.case.precision)


@dataclass(frozen=True)
class Built:
    """A plan: its content, its provenance, its file in the cache, and whether it was there before."""

    plan: bytes
    provenance: Provenance
    path: Path
    cached: bool


def build_plan(network: Network, config: Any) -> bytes:
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
    beyond = beyond_workspace(network, config, errors)
    if beyond is None and any(words in error for error in errors for words in NO_MEMORY):
        raise MemoryError(f"{network.flavour.name}: {log.condensed(errors)}")
    has_gpu = current_gpu() is not None
    reason, hint = beyond or explained(errors, has_gpu=has_gpu, refittable=refittable(network, config))
    raise Unsupported(f"{network.flavour.title} cannot build the engine: {reason}.", hint=hint)


def build(job: Job, timing_cache: Path | None) -> tuple[bytes, float, tuple[TensorSpec, ...]]:
    """Parses, configures and builds: the plan, the seconds the builder took, and the engine's outputs."""
    load_plugins(job.flavour, job.options.plugins)
    parsed = network(job.path, job.flavour, weakly_typed=job.options.weakly_typed)
    config = configuration(parsed, job.options, job.profiles, job.targets, job.case.precision)
    timings = use_timing_cache(parsed, config, timing_cache) if timing_cache else None
    begin = time.perf_counter()
    plan = build_plan(parsed, config)
    seconds = time.perf_counter() - begin
    if timing_cache and timings is not None:
        keep_timing_cache(config, timing_cache)
    return plan, seconds, parsed.outputs


def built(job: Job, preparation: Preparation) -> Built:
    """The plan of ``job`` from the cache, or built and put there; timed as the phase ``build``, noted if ``cached``.

    Raises:
        Unsupported: if it cannot be built, with the reason.
    """
    warn_of_tactics(job.options, job.flavour, preparation)
    with preparation.phase("build") as phase:
        wanted = job.recipe
        path = preparation.cache / FOLDER / f"{wanted.key}.engine"
        fresh = preparation.rebuild or wanted.timings == "none yet"  # a build writes the file of timings
        kept = None if fresh else _kept(path)
        if kept is not None:
            phase.note = "cached"
            return Built(kept[0], told_of(kept[1], job), path, cached=True)
        timings = Path(job.options.timing_cache) if job.options.timing_cache else None
        plan, seconds, outputs = build(job, timings)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InferlensError(f"The cache {path.parent} cannot be made: {error.strerror}.") from error
        made = provenance_of(job, plan, seconds, outputs)
        write_plan(path, plan, made)
        return Built(plan, made, path, cached=False)


def provenance_of(job: Job, plan: bytes, seconds: float, outputs: tuple[TensorSpec, ...]) -> Provenance:
    """What a plan just built from ``job`` is; inputs are the model's own, outputs the engine's (-1: a free size)."""
    made = provenance.of(
        plan, KIND, job.model, job.case,
        onnx_sha256=job.recipe.onnx_sha256, flavour=job.flavour.name, version=job.flavour.version,
        libraries={job.flavour.key: job.flavour.version}, gpu=job.gpu.name if job.gpu else "",
        compute_capability=job.gpu.compute_capability if job.gpu else "", targets=job.targets, outputs=outputs,
        profiles=job.profiles, build_seconds=seconds,
    )  # fmt: skip
    return told_of(made, job)


def told_of(made: Provenance, job: Job) -> Provenance:
    """``made``, of an equal plan, told of the case and model of ``job``."""
    running = job.profiles[job.options.profile]
    return msgspec.structs.replace(
        made,
        case=job.case,
        model=job.model.facts,
        format=job.model.format,
        options=msgspec.structs.asdict(job.options),
        inputs=tuple(_best(spec, running) for spec in spread(job.model.inputs, job.profiles)),
    )


def _best(spec: TensorSpec, running: Profile) -> TensorSpec:
    """An input whose best shape is that of the profile that runs."""
    return msgspec.structs.replace(spec, best=running[spec.name][1]) if spec.dynamic else spec


def _kept(path: Path) -> tuple[bytes, Provenance] | None:
    """A plan in the cache and its provenance; ``None`` if it is not there, damaged, or just being replaced."""
    try:
        plan = path.read_bytes()
        made = provenance.read(path, plan)
    except (InferlensError, OSError):
        return None
    return None if made is None else (plan, made)
