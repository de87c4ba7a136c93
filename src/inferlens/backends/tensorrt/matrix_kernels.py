"""Convolutions and matrix products as further anchors, where layers and kernels are not equally many.

A single layer that launches two kernels, or none, would leave all that lies between two anchors to be shared. But a
layer of TensorRT for RTX says by its type whether it convolves or multiplies, and so does the name of the kernel that
is made for it. If every such layer launches at least one such kernel, and no other layer does, then where both are
equally many each has its own. Any other kernel between two of them belongs to what lies between, or to the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from inferlens.backends.profiling.kernel_layers import EngineLayer

MULTIPLY = ("correlation", "gemm", "runtime_fusion")  # types of layers; a fusion is of other operators into these
OTHERS = ("kgen", "maxpool")
KERNEL = re.compile(r"convFwd|matMul")

Layers = tuple[EngineLayer, ...]


def narrowed(kernels: Sequence[str], pairs: Sequence[Layers]) -> list[Layers]:
    """The layers of each kernel, fewer where matrix products tell them apart.

    Args:
        kernels: names, in the order of their launches.
        pairs: for each kernel its layers; kernels that share theirs have them as one object.
    """
    found: list[Layers] = []
    for _, stretch in groupby(zip(kernels, pairs, strict=True), key=lambda pair: id(pair[1])):
        names, layers = zip(*stretch, strict=True)
        found += _apart(names, layers[0])
    return found


def _apart(kernels: Sequence[str], layers: Layers) -> list[Layers]:
    """The layers of each of some kernels that share these; they stay shared if any type of layer is another."""
    places = [place for place, name in enumerate(kernels) if KERNEL.search(name)]
    owners = [index for index, layer in enumerate(layers) if layer.kind in MULTIPLY]
    known = all(layer.kind in MULTIPLY + OTHERS for layer in layers)
    if not known or len(places) != len(owners):
        return [layers] * len(kernels)
    found: list[Layers] = []
    before, above = -1, -1
    for place, index in [*zip(places, owners, strict=True), (len(kernels), len(layers))]:
        found += _between(place - before - 1, layers, above, index)
        found += [layers[index : index + 1]] * (place < len(kernels))
        before, above = place, index
    return found


def _between(kernels: int, layers: Layers, above: int, index: int) -> list[Layers]:
    """The layers of kernels between those of two matrix products: one each, or all there and the two products."""
    within = layers[above + 1 : index]
    if kernels == len(within):
        return [(layer,) for layer in within]
    return [layers[max(above, 0) : index + 1]] * kernels
