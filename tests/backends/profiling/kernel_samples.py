"""Real traces of an H200 as kernels; what they are stands in ``traces/README.md``."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from inferlens.backends.abilities import KernelOrigin, KernelOrigins, Launched, Origins
from inferlens.backends.profiling.kernel_layers import EngineLayer, aligned, of_engine, origins_of
from inferlens.backends.profiling.kernel_runs import kernels_from, origins_by_scope
from inferlens.backends.profiling.traced_runs import TracedRun, traced_runs
from inferlens.record.layer_profile import GpuLimits, Kernels
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

    def __init__(self, layers: Sequence[EngineLayer]) -> None:
        self._layers = layers

    def origins(self, launched: Sequence[Launched]) -> Origins:
        found = [KernelOrigin()] * len(launched)
        places = of_engine(launched)
        of = origins_of(aligned([launched[place].name for place in places], self._layers))
        for place, origin in zip(places, of, strict=True):
            found[place] = origin
        return Origins(tuple(found))


@cache
def runs(name: str) -> tuple[TracedRun, ...]:
    """The runs of a trace."""
    return tuple(traced_runs(read(FOLDER / f"{name}.json.gz")))


def engine(name: str) -> list[EngineLayer]:
    """The layers of a trace's engine; those that only signal or wait launch nothing."""
    told = json.loads(gzip.decompress((FOLDER / f"{name}-engine.json.gz").read_bytes()))
    return [
        EngineLayer(
            name=layer["Name"],
            kind=layer["LayerType"],
            tactic=layer["TacticName"],
            launches=not layer["Name"].startswith("__mye"),
        )
        for layer in told["Layers"]
    ]


def kernels(name: str) -> Kernels:
    """The kernels of a trace, with all that can be told of them."""
    teller = Scoped() if name == EAGER else OfEngine(engine(name)) if name in ENGINES else None
    return kernels_from(runs(name), H200, teller, label=name)
