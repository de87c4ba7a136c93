"""Which layer of an engine a kernel belongs to: layers and kernels, each in order, laid beside each other.

No library says it. What is known: an engine launches its layers in their order; a layer that its compiler wrote itself
names its kernel as its tactic; most other layers launch one kernel; and some launch none, for they only wait for each
other. So a kernel whose name is a tactic's is an *anchor*, and what lies between two anchors is paired one to one where
layers and kernels are equally many. Where they are not, the kernels of that stretch belong to its layers jointly: which
of them is which is not guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

from inferlens.backends.abilities import KernelOrigin, Launched

FRAMEWORK = ("aten::", "prims::", "torchvision::")  # operators that launch kernels of their own, beside an engine
JOINT = "{} of {} kernels lie where layers and kernels are not equally many, and belong to all layers there, if any."


class EngineLayer(Struct, frozen=True, kw_only=True):
    """A layer of an engine, in the order of execution; name and kind in the engine's words."""

    name: str
    kind: str = ""
    tactic: str = ""  # its name, which may be the name of the layer's kernel
    modules: tuple[str, ...] = ()  # that it came from, where that is known
    launches: bool = True  # anything; not so where it was always timed as zero, as what only waits is


def of_engine(launched: Sequence[Launched]) -> list[int]:
    """Places of the kernels that no operator of the framework launched: they are an engine's; copies and fills not."""
    return [
        place
        for place, each in enumerate(launched)
        if each.kind == "kernel" and not each.operator.startswith(FRAMEWORK)
    ]


def aligned(kernels: Sequence[str], layers: Sequence[EngineLayer]) -> list[tuple[EngineLayer, ...]]:
    """For each kernel the layer that it belongs to, or several of which it is one's; none where no layer is left.

    Kernels go by their names, in the order of their launches; layers that launch nothing are passed over.
    """
    able = [layer for layer in layers if layer.launches]
    found: list[tuple[EngineLayer, ...]] = []
    begin, above = 0, 0
    for place, index in [*common(kernels, [layer.tactic for layer in able]), (len(kernels), len(able))]:
        between, count = able[above:index], place - begin
        found += [(layer,) for layer in between] if count == len(between) else [tuple(between)] * count
        if place < len(kernels):
            found.append((able[index],))
        begin, above = place + 1, index + 1
    return found


def origins_of(aligned: Sequence[tuple[EngineLayer, ...]]) -> list[KernelOrigin]:
    """The origin of each kernel: the layer's name, or the names of all of its stretch; and their modules."""
    return [
        KernelOrigin(
            " + ".join(layer.name for layer in layers), tuple(dict.fromkeys(p for each in layers for p in each.modules))
        )
        for layers in aligned
    ]


def joint(aligned: Sequence[tuple[EngineLayer, ...]]) -> str:
    """The sentence that says how many kernels have not a layer of their own; empty if all have."""
    several = sum(len(layers) != 1 for layers in aligned)
    return JOINT.format(several, len(aligned)) if several else ""


def common(here: Sequence[str], there: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of places in two sequences at which they are the same, as many as can be in the order of both.

    That is the longest common subsequence, by Hunt and Szymanski (1977): of all pairs that fit, the longest chain in
    which both places rise. Of several it is the one with the earliest places in ``there``.
    """
    places: dict[str, list[int]] = {}
    for index, name in enumerate(there):
        places.setdefault(name, []).append(index)
    ends: list[int] = []  # of the best chain of each length, the last place in ``there``
    best: list[tuple[int, int, int]] = []  # both places, and the pair before it, of every pair ever best
    at: list[int] = []  # for each length the last pair, in ``best``
    for place, name in enumerate(here):
        for index in reversed(places.get(name, ())):
            length = bisect_left(ends, index)
            if length < len(ends) and ends[length] == index:
                continue
            best.append((place, index, at[length - 1] if length else -1))
            ends[length : length + 1], at[length : length + 1] = [index], [len(best) - 1]
    chain = []
    last = at[-1] if at else -1
    while last >= 0:
        place, index, last = best[last]
        chain.append((place, index))
    return chain[::-1]
