"""Which layer of an engine a kernel belongs to: layers and kernels, each in order, laid beside each other.

No library says it. What is known: an engine launches its layers in their order; a layer that its compiler wrote itself
names its kernel as its tactic; most other layers launch one kernel; and some launch none, for they only wait for each
other. So a kernel whose name is a tactic's is an *anchor*, and what lies between two anchors is paired one to one where
layers and kernels are equally many. Where they are not, convolutions and matrix products are further anchors: a layer
of TensorRT for RTX says by its type whether it convolves or multiplies, and so does the name of the kernel that is made
for it. Other kernels of such a stretch belong to its layers jointly: which of them is which is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from inferlens.backends.abilities import KernelOrigin, Launched, Origins
from inferlens.backends.profiling.kernel_matching import common
from inferlens.record.layer_profile import Layer

FRAMEWORK = ("aten::", "prims::", "torchvision::")  # operators that launch kernels of their own, beside an engine
JOINT = "{} of {} kernels lie where layers and kernels are not equally many, and belong to all layers there, if any."
ORDERS = ("signal", "wait")  # types of layers of Myelin that only order others
MADE_UP = re.compile(r"(?:^|/)__mye\d")  # begins the names that Myelin makes up, for those and for what it rewrote
MULTIPLY = ("correlation", "gemm", "runtime_fusion")  # types of layers; a fusion is of other operators into these
OTHERS = ("kgen", "maxpool")
KERNEL = re.compile(r"convFwd|matMul")
Owners = tuple[Layer, ...]


def kernel_origins(launched: Sequence[Launched], layers: Sequence[Layer], absent: dict[str, str]) -> Origins:
    """Where each kernel of one run came from; ``absent`` is what is not known of the layers.

    Kernels that an operator of the framework launched are not an engine's, nor are copies and fills.
    """
    places = [
        place
        for place, item in enumerate(launched)
        if item.kind == "kernel" and not item.operator.startswith(FRAMEWORK)
    ]
    names = [launched[place].name for place in places]
    owners = narrowed(names, aligned(names, layers))
    found = [KernelOrigin()] * len(launched)
    for place, layers_of in zip(places, owners, strict=True):
        modules = dict.fromkeys(path for layer in layers_of for path in layer.modules)
        found[place] = KernelOrigin(" + ".join(layer.name for layer in layers_of), tuple(modules))
    joint = sum(len(layers_of) != 1 for layers_of in owners)
    return Origins(tuple(found), absent | ({"layers": JOINT.format(joint, len(owners))} if joint else {}))


def tactic(layer: Layer) -> str:
    """The name of the layer's tactic; empty if it has none, or the engine keeps none."""
    return str(layer.details.get("inspector", {}).get("TacticName", ""))


def only_orders(layer: Layer) -> bool:
    """Whether the layer only makes others wait: it has a name that Myelin made up, and no tactic, or such a type."""
    return layer.kind in ORDERS or (MADE_UP.search(layer.name) is not None and not tactic(layer))


def aligned(kernels: Sequence[str], layers: Sequence[Layer]) -> list[Owners]:
    """For each kernel the layer that it belongs to, or several of which it is one's; none where no layer is left.

    Kernels go by their names, in the order of their launches; layers that only order others are passed over.
    """
    able = [layer for layer in layers if not only_orders(layer)]
    found: list[Owners] = []
    begin, above = 0, 0
    for place, index in [*common(kernels, [tactic(layer) for layer in able]), (len(kernels), len(able))]:
        between, count = able[above:index], place - begin
        found += [(layer,) for layer in between] if count == len(between) else [tuple(between)] * count
        if place < len(kernels):
            found.append((able[index],))
        begin, above = place + 1, index + 1
    return found


def narrowed(kernels: Sequence[str], owners: Sequence[Owners]) -> list[Owners]:
    """The layers of each kernel, fewer where products tell them apart; in ``owners`` shared layers are one object."""
    found: list[Owners] = []
    for _, stretch in groupby(zip(kernels, owners, strict=True), key=lambda pair: id(pair[1])):
        names, layers = zip(*stretch, strict=True)
        found += _apart(names, layers[0])
    return found


def _apart(kernels: Sequence[str], layers: Owners) -> list[Owners]:
    """The layers of each of some kernels that share these; they stay shared if any type of layer is another."""
    places = [place for place, name in enumerate(kernels) if KERNEL.search(name)]
    owners = [index for index, layer in enumerate(layers) if layer.kind in MULTIPLY]
    if len(places) != len(owners) or not all(layer.kind in MULTIPLY + OTHERS for layer in layers):
        return [layers] * len(kernels)
    found: list[Owners] = []
    before, above = -1, -1
    for place, index in [*zip(places, owners, strict=True), (len(kernels), len(layers))]:
        within, count = layers[above + 1 : index], place - before - 1
        one_each = [(layer,) for layer in within]
        found += one_each if count == len(within) else [layers[max(above, 0) : index + 1]] * count
        found += [layers[index : index + 1]] * (place < len(kernels))
        before, above = place, index
    return found
