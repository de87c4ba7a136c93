"""What building an engine gave: a :class:`BuildReport`. Data alone; no framework is needed to read or show it."""

from __future__ import annotations

from msgspec import Struct


class Build(Struct, frozen=True, kw_only=True):
    """One build of an engine.

    Attributes:
        seconds: time of the builder, without parsing.
        size: bytes of the plan.
        sha256: of the plan; equal plans are equal byte for byte.
        shared_timings: whether it had the timings of the builds before it.
        layers: number of layers of the engine; ``None`` where no GPU could open it.
        gpu_seconds: median GPU time of one call; ``None`` where it was not run.
    """

    seconds: float
    size: int
    sha256: str
    shared_timings: bool = False
    layers: int | None = None
    gpu_seconds: float | None = None


class LayerDifference(Struct, frozen=True):
    """A layer for which builds chose differently: its name, and the tactic of each build (empty: no such layer)."""

    name: str
    tactics: tuple[str, ...]


class BuildReport(Struct, frozen=True, kw_only=True):
    """An engine that was built and written, and how far repeated builds differ.

    Attributes:
        path: the file; its provenance lies beside it.
        size: of the file in bytes.
        sha256: of the file.
        flavour, version: what built it, such as ``TensorRT for RTX``.
        gpu, compute_capability: what it was built on; empty if there was no GPU.
        targets: compute capabilities it was built for, where they were named.
        seconds: time the builder took; that of the first time if ``cached``.
        cached: whether it had been built before.
        builds: every build that was made now, those that share their timings after the others.
        differences: layers that are not the same in the builds that share nothing.
        shared_differences: the same among the builds that share their timings.
        findings: how far the builds differ, in sentences; empty for a single build.
    """

    path: str
    size: int
    sha256: str
    flavour: str
    version: str
    gpu: str = ""
    compute_capability: str = ""
    targets: tuple[str, ...] = ()
    seconds: float | None = None
    cached: bool = False
    builds: tuple[Build, ...] = ()
    differences: tuple[LayerDifference, ...] = ()
    shared_differences: tuple[LayerDifference, ...] = ()
    findings: tuple[str, ...] = ()
