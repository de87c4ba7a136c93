"""Owners of the kernels that a CUDA graph replays: those of the same kernels in a run without the graph.

A replay calls no operators and no modules, but it runs the kernels of its capture, in their order. A run without the
graph launches the same kernels, each from an operator or a module. Both sequences are aligned by name and shape, so
that each kernel of the replay gets the owner of its counterpart. Where the sequences differ by more than a few kernels,
no kernel gets one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

from msgspec import Struct

from inferlens.backends.abilities import KernelOrigin, Launched, Origins
from inferlens.record.layer_profile import Layer

LEAST_ALIGNED = 0.9  # of the kernels of either sequence; below, a pair may be of different layers
DIFFERENT = (
    "not known: the call that shows where kernels came from launched {}, a run {}, not the same in the same order."
)
UNPAIRED = "not known for {} of {} kernels, which the call that shows where kernels came from did not launch."
SHAPES: tuple[Callable[[Launched], Hashable], ...] = (
    lambda kernel: (kernel.name, kernel.grid, kernel.block),
    lambda kernel: kernel.name,  # autotuning may choose another grid
)


class MatchedKernels(Struct, frozen=True):
    """The kernels, copies and fills of a run without a CUDA graph, in order, with their origins."""

    kernels: list[tuple[Launched, KernelOrigin]]
    absent: dict[str, str] = {}  # what is not known of the origins, and why
    layers: tuple[Layer, ...] = ()  # the layers that the origins name, without times


def origins_by_match(launched: Sequence[Launched], matched: MatchedKernels) -> Origins:
    """Return for each kernel of a replay the origin of its counterpart, or for none where the sequences differ.

    A kernel, copy or fill whose name the other run does not have has no origin: it is the replay's alone, such as what
    copies the inputs of the graph.
    """
    there = [kernel for kernel, _ in matched.kernels]
    names = {kernel.name for kernel in there}
    places = [place for place, item in enumerate(launched) if item.name in names]
    pairs = aligned([launched[place] for place in places], there)
    origins = [KernelOrigin()] * len(launched)
    if len(pairs) < LEAST_ALIGNED * max(len(places), len(there)) or not (there or matched.absent):
        return Origins(tuple(origins), {"modules": DIFFERENT.format(len(there), len(launched))})
    for place, index in pairs:
        origins[places[place]] = matched.kernels[index][1]
    lost = len(places) - len(pairs)
    return Origins(tuple(origins), ({"modules": UNPAIRED.format(lost, len(places))} if lost else {}) | matched.absent)


def aligned(here: Sequence[Launched], there: Sequence[Launched]) -> list[tuple[int, int]]:
    """Return pairs of places in two sequences of kernels, in the order of both: by shape first, then by name alone."""
    pairs: list[tuple[int, int]] = []
    for shape in SHAPES:
        ends = pairwise([(-1, -1), *pairs, (len(here), len(there))])
        pairs = sorted([*pairs, *(
            (place + 1 + i, index + 1 + j)
            for (place, index), (next_place, next_index) in ends
            for i, j in common(
                [shape(launched) for launched in here[place + 1 : next_place]],
                [shape(launched) for launched in there[index + 1 : next_index]],
            )
        )])  # fmt: skip
    return pairs


def common(here: Sequence[Hashable], there: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of places at which two sequences are the same, as many as the order of both allows.

    That is the longest common subsequence, by Hunt and Szymanski (1977): of all pairs that fit, the longest chain in
    which both places rise. Of several it is the one with the earliest places in ``there``.
    """
    places: dict[Hashable, list[int]] = {}
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
