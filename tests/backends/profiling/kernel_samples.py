"""Real traces of an H200 as kernels; what they are stands in ``traces/README.md``."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from inferlens.backends.base import KernelOrigins, Launched, Origins
from inferlens.backends.profiling.kernels import kernels_from, origins_by_scope
from inferlens.backends.profiling.traces import TracedRun, traced_runs
from inferlens.backends.tensorrt.layers import inspected_layers, kernel_origins
from inferlens.record.layer_profile import GpuLimits, Kernels, Layer
from inferlens.trace import read

FOLDER = Path(__file__).parent / "traces"
EAGER, GRAPH, ENGINE = "eager", "inductor-graph", "torch-tensorrt"
ENGINES = (ENGINE, "torch-tensorrt-python", "torch-tensorrt-vit")
NAMES = (EAGER, GRAPH, *ENGINES)
H200 = GpuLimits(
    name="NVIDIA H200",
    multiprocessors=132,
    threads_per_multiprocessor=2048,
    registers_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472,
    compute_capability="9.0",
)


class Scoped(KernelOrigins):
    """Tells modules by the scopes of a trace."""

    def origins(self, launched: Sequence[Launched]) -> Origins:
        return origins_by_scope(launched)


class OfEngine(KernelOrigins):
    """Tells the layers of an engine, as its runner will."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers

    def origins(self, launched: Sequence[Launched]) -> Origins:
        return kernel_origins(launched, self._layers, {})


@cache
def runs(name: str) -> tuple[TracedRun, ...]:
    """The runs of a trace."""
    return tuple(traced_runs(read(FOLDER / f"{name}.json.gz")))


def engine(name: str) -> list[Layer]:
    """The layers of a trace's engine."""
    told = json.loads(gzip.decompress((FOLDER / f"{name}-engine.json.gz").read_bytes()))
    return inspected_layers(told["Layers"], lambda _: ((), ()))


def kernels(name: str) -> Kernels:
    """The kernels of a trace, with all that can be told of them."""
    teller = Scoped() if name == EAGER else OfEngine(engine(name)) if name in ENGINES else None
    return kernels_from(runs(name), H200, teller, label=name)
