"""Which layers of an engine, and so which modules, the kernels of a run came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferlens.backends.abilities import Launched, Origin, Origins
from inferlens.backends.profiling.kernel_layers import EngineLayer, aligned, joint, of_engine, origins_of
from inferlens.backends.tensorrt.inspector import only_orders, tactic
from inferlens.backends.tensorrt.matrix_kernels import narrowed
from inferlens.record.layer_profile import Layer


def engine_layers(layers: Iterable[Layer]) -> list[EngineLayer]:
    """The layers as what kernels are paired with; those that only order others launch nothing."""
    return [
        EngineLayer(
            name=layer.name,
            kind=layer.kind,
            tactic=tactic(layer),
            modules=layer.modules,
            launches=not only_orders(layer),
        )
        for layer in layers
    ]


def kernel_origins(launched: Sequence[Launched], layers: Sequence[Layer], absent: dict[str, str]) -> Origins:
    """Where each kernel of one run came from; ``absent`` is what is not known of the layers."""
    places = of_engine(launched)
    names = [launched[place].name for place in places]
    pairs = narrowed(names, aligned(names, engine_layers(layers)))
    found = [Origin()] * len(launched)
    for place, origin in zip(places, origins_of(pairs), strict=True):
        found[place] = origin
    jointly = joint(pairs)
    return Origins(tuple(found), absent | ({"layers": jointly} if jointly else {}))
