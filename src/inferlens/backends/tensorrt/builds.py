"""An engine written to a file, and built several times to see how far builds differ.

The builder times tactics and takes the fastest, so noise makes two builds differ; with timings that are shared they
should not.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferlens import units
from inferlens.backends.base import Preparation
from inferlens.backends.clocks import CudaClock
from inferlens.backends.tensorrt.engine import Job, build, built, write_engine
from inferlens.backends.tensorrt.options import warn_of_tactics
from inferlens.backends.tensorrt.runner import EngineRunner
from inferlens.models.inputs import make_inputs
from inferlens.models.provenance import Provenance
from inferlens.record.build_report import Build, BuildReport, LayerDifference
from inferlens.stats.quantiles import median

# From an engine to its layers, as the inspector has them, and the median GPU time of a call in seconds.
Examine = Callable[[bytes], tuple[list[dict[str, Any]], float | None]]
TACTIC = ("TacticName", "TacticValue", "LayerType")  # the first that a layer has is what was chosen for it
WARMUP, CALLS = 20, 200


def build_to(
    path: Path, job: Job, preparation: Preparation, *, builds: int = 1, examine: Examine | None = None
) -> BuildReport:
    """Builds the engine of ``job`` and writes it to ``path``, its provenance beside it.

    One build may come from the cache. Several never do: they are made one after the other, then as many again with
    timings that they share, where the flavour has such. ``examine`` opens an engine on the GPU; ``None`` without one.
    """
    warn_of_tactics(job.options, job.flavour, preparation)
    if job.flavour.jit and job.options.timing_cache:
        why = f"timing_cache does nothing in a build: {job.flavour.name} compiles its kernels when an engine runs."
        preparation.warn("no-effect", why, "Leave it out here, and give it to what runs the engine.")
    alone, shared, cached = Series(), Series(), False
    if builds <= 1:
        made = built(job, preparation)
        content, provenance, cached = made.content, made.provenance, made.cached
    else:
        with preparation.phase("build"):
            content, provenance = alone.add(job, builds, None, examine)
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
        builds=(*alone.builds, *shared.builds), differences=alone.differences, shared_differences=shared.differences,
        findings=(*alone.findings(""), *shared.findings(" with shared timings")),
    )  # fmt: skip


class Series:
    """Builds of one kind, and the tactics by layer of each that could be opened."""

    def __init__(self) -> None:
        self.builds: list[Build] = []
        self.layers: list[dict[str, str]] = []

    def add(self, job: Job, count: int, timings: Path | None, examine: Examine | None) -> tuple[bytes, Provenance]:
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
            self.layers += [tactics(layers)] if examine else []
            made.append((content, provenance))
        return made[0]

    @property
    def differences(self) -> tuple[LayerDifference, ...]:
        """Layers that are not the same in all builds."""
        names = list(dict.fromkeys(name for layers in self.layers for name in layers))
        found = (LayerDifference(name, tuple(layers.get(name, "") for layers in self.layers)) for name in names)
        return tuple(each for each in found if len(set(each.tactics)) > 1)

    def findings(self, how: str) -> list[str]:
        """How far the builds differ, in sentences."""
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


def examiner(job: Job, preparation: Preparation) -> Examine:
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


def tactics(layers: list[dict[str, Any]]) -> dict[str, str]:
    """The tactic of each layer by its name; a layer that has none has its type."""
    found: dict[str, str] = {}
    for index, layer in enumerate(layers):
        name = str(layer.get("Name", f"layer {index}"))
        found[name] = next((str(layer[key]) for key in TACTIC if layer.get(key)), "")
    return found
