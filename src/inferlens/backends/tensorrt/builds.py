"""An engine written to a file, and built several times to see how far builds differ.

The builder times tactics and takes the fastest, so noise makes two builds differ; with timings that are shared they
should not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferlens import units
from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.engine import Job, build, built, provenance_of
from inferlens.backends.tensorrt.ignored_options import warn_of_kernels, warn_of_tactics
from inferlens.backends.tensorrt.plugins import use_plugins
from inferlens.backends.tensorrt.written import write_plan
from inferlens.models.provenance import Provenance
from inferlens.record.build_report import Build, BuildReport, LayerDifference

# From a plan to its layers, as the inspector tells them, and the median GPU time of a call in seconds.
Examine = Callable[[bytes], tuple[list[dict[str, Any]], float | None]]
TACTIC = ("TacticName", "TacticValue", "LayerType")  # the first that a layer tells is what was chosen for it


@dataclass
class Series:
    """Builds of one kind, and the tactics by layer of each that could be opened."""

    builds: list[Build] = field(default_factory=list)
    layers: list[dict[str, str]] = field(default_factory=list)

    @property
    def differences(self) -> tuple[LayerDifference, ...]:
        """Layers that are not the same in all builds."""
        names = list(dict.fromkeys(name for layers in self.layers for name in layers))
        found = (LayerDifference(name, tuple(layers.get(name, "") for layers in self.layers)) for name in names)
        return tuple(each for each in found if len(set(each.tactics)) > 1)


def write_engine(
    job: Job, preparation: Preparation, path: Path, *, builds: int = 1, examine: Examine | None = None
) -> BuildReport:
    """Builds the engine of ``job`` and writes it to ``path``, its provenance beside it.

    One build may come from the cache. Several never do: they are made one after the other, then as many again with
    timings that they share, where the flavour has such. ``examine`` opens a plan on the GPU; ``None`` without one.

    Raises:
        Unsupported: if it cannot be built, with the reason; then nothing is written.
    """
    use_plugins(job.flavour, job.options.plugins, preparation)
    warn_of_tactics(job.options, job.flavour, preparation)
    warn_of_kernels(job.options, job.flavour, preparation)
    if builds <= 1:
        made = built(job, preparation)
        write_plan(path, made.plan, made.provenance)
        return _report(path, made.provenance, len(made.plan), cached=made.cached)
    with preparation.phase("build"):
        alone, plan, provenance = _series(job, builds, None, examine)
        shared = Series()
        if not job.flavour.jit:
            timings = Path(job.options.timing_cache or preparation.folder / "timings.cache")
            timings.parent.mkdir(parents=True, exist_ok=True)
            shared, of_shared, provenance_of_shared = _series(job, builds, timings, examine)
            if job.options.timing_cache:
                plan, provenance = of_shared, provenance_of_shared
    write_plan(path, plan, provenance)
    return _report(path, provenance, len(plan), alone=alone, shared=shared, times_tactics=not job.flavour.jit)


def _series(job: Job, count: int, timings: Path | None, examine: Examine | None) -> tuple[Series, bytes, Provenance]:
    """``count`` builds, and the first plan with its provenance."""
    series, first = Series(), None
    for _ in range(count):
        plan, seconds, outputs = build(job, timings)
        layers, gpu_seconds = examine(plan) if examine else ([], None)
        series.builds.append(
            Build(
                seconds=seconds,
                size=len(plan),
                sha256=hashlib.sha256(plan).hexdigest(),
                shared_timings=timings is not None,
                layers=len(layers) if examine else None,
                gpu_seconds=gpu_seconds,
            )
        )
        if examine:
            series.layers.append(tactics(layers))
        first = first or (plan, provenance_of(job, plan, seconds, outputs))
    assert first is not None
    return series, *first


def tactics(layers: list[dict[str, Any]]) -> dict[str, str]:
    """The tactic of each layer by its name; a layer that tells none has its type."""
    found: dict[str, str] = {}
    for index, layer in enumerate(layers):
        name = str(layer.get("Name", f"layer {index}"))
        found[name] = next((str(layer[key]) for key in TACTIC if layer.get(key)), "")
    return found


def _report(
    path: Path,
    made: Provenance,
    size: int,
    *,
    cached: bool = False,
    alone: Series | None = None,
    shared: Series | None = None,
    times_tactics: bool = True,
) -> BuildReport:
    alone, shared = alone or Series(), shared or Series()
    findings = [*_findings(alone, "")]
    if alone.builds and not times_tactics:
        findings.append(
            f"{made.flavour} times no tactics while it builds: it chooses when the engine first runs, and its builds "
            "share no timings."
        )
    return BuildReport(
        path=str(path), size=size, sha256=made.file_sha256, flavour=made.flavour, version=made.version, gpu=made.gpu,
        compute_capability=made.compute_capability, targets=made.targets, seconds=made.build_seconds, cached=cached,
        builds=(*alone.builds, *shared.builds), differences=alone.differences, shared_differences=shared.differences,
        findings=(*findings, *_findings(shared, " with shared timings")),
    )  # fmt: skip


def _findings(series: Series, how: str) -> list[str]:
    """How far the builds of a series differ, in sentences."""
    if len(series.builds) < 2:
        return []
    seconds = sorted(build.seconds for build in series.builds)
    sizes = sorted(build.size for build in series.builds)
    kinds = len({build.sha256 for build in series.builds})
    count = units.plural(len(series.builds), "build")
    same = "are the same, byte for byte" if kinds == 1 else f"gave {kinds} different plans"
    spread = "" if sizes[0] == sizes[-1] else f", from {units.byte_count(sizes[0])} to {units.byte_count(sizes[-1])}"
    found = [f"{count}{how} {same}{spread}; they took {units.duration(seconds[0])} to {units.duration(seconds[-1])}."]
    if series.layers:
        most = max(len(layers) for layers in series.layers)
        told = any(tactic for layers in series.layers for tactic in layers.values())
        found.append(
            f"{len(series.differences)} of {units.plural(most, 'layer')} differ{how}."
            if told
            else "Which tactics were chosen is not told: that takes profiling_verbosity=detailed."
        )
    times = sorted(build.gpu_seconds for build in series.builds if build.gpu_seconds is not None)
    if len(times) > 1:
        apart = (times[-1] / times[0] - 1) * 100
        found.append(
            f"GPU time{how}: {units.duration(times[0])} to {units.duration(times[-1])}, "
            f"{units.significant(apart, 2)} % apart."
        )
    return found
