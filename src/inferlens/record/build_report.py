"""What building an engine gave: a :class:`BuildReport`. Data alone; no framework is needed to read or show it."""

from __future__ import annotations

from inferlens.record.display import Struct


class Build(Struct, frozen=True, kw_only=True):
    """One build of an engine: seconds of the builder, bytes, hash, and whether it had the timings of those before it.

    ``layers``, their number, and ``gpu_seconds``, the median of one call, are ``None`` where no GPU could open it.
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
    """An engine that was built and written to ``path``, and how far repeated builds differ.

    Attributes:
        flavour, version: what built it, such as ``TensorRT for RTX``.
        gpu, compute_capability: what it was built on; empty if there was no GPU.
        targets: compute capabilities it was built for, where they were named.
        seconds: time the builder took; that of the first time if ``cached``, that is, had been built before.
        builds: every build that was made now, those that share their timings after the others.
        differences, shared_differences: layers that differ among the builds that share nothing, or their timings.
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
