"""The work of modules becomes the work of layers, which may be parts of a module, or several modules fused.

A layer gets no more work than has to be done in it, so that what follows from it is a floor:

- A module that several layers name is divided among them: if they are as many as its calls, in proportion to what they
  make (a head of a detector is called on images of several sizes), weights equally; else in proportion to their times.
  FLOPs and weights go to those that compute with matrices, if their kinds say which those are, or else their
  operators: what only prepares the data of a convolution came from the same operator. If all of them only move data,
  what computes is a layer of which no module is known.
- A tensor that one module makes and a later one of the same layer reads does not go through memory, and is in neither's
  bytes. What a layer reads of one module counts at most as often as it was written.
- A module that no layer names is part of the layer that is the module around it, as in eager PyTorch, where a fast path
  may not call what is inside. If it has no FLOPs it is else part of the layer that makes its input: what is left out,
  such as a batch norm, was folded into something.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from inferlens.record.layer_profile import Kernel, Layer
from inferlens.record.work import ModuleWork, Work

_MATRIX = re.compile(
    r"conv(?!er)|gemm|matmul|matrix_?multiply|addmm|bmm|\bmm\b|(?<!bi)(?<!tri)linear|gru|lstm|rnn|fully_?connected"
    r"|inner_?product|attention|sdpa|flash|fprop|cutlass|xmma|nvjet|correlation",
    re.IGNORECASE,
)
# Kinds of layers that move data and compute nothing.
_MOVING = re.compile(
    r"transpose|permute|re(?:order|format)\w*|reshape|(?:un)?squeeze|flatten|view|cast|convert|concat|cat|slice|split|zeros",
    re.IGNORECASE,
)
# Operators that stand for all modules inside of one.
_WHOLE = re.compile(r"transformer_encoder_layer_fwd|native_multi_head_attention", re.IGNORECASE)
# What an operator that computes with matrices launches besides: changes of memory order, sums of partial products.
_BESIDE = re.compile(r"nchwto|nhwcto|splitk_?reduce", re.IGNORECASE)


class LayerWork(Struct, frozen=True):
    """What a layer has to do in one run: FLOPs, and bytes between it and the memory."""

    flops: float
    bytes: float


def layer_work(
    layers: Sequence[Layer | Kernel], times: Sequence[float], work: Work
) -> tuple[list[LayerWork | None], tuple[str, ...]]:
    """The work of layers, or of kernels, whose typical times in a run are ``times``, in seconds.

    Returns:
        The work of each, ``None`` where its modules are not known; and the modules with FLOPs that are in no layer.
    """
    known = {each.module: each for each in work.modules}
    places = _placed(layers, known)
    leaving = _leaving(work, places)
    flops, sizes, given = [0.0] * len(layers), [0.0] * len(layers), [0.0] * len(layers)
    reads: list[dict[str, float]] = [{} for _ in layers]
    for path, users in places.users.items():
        module = known[path]
        sources = {source: size for source, size in module.sources.items() if not places.inside(source, path)}
        of_model = module.inputs - sum(module.sources.values())
        for layer, share in _divided(users, layers, times, module.calls):
            sizes[layer] += share * leaving[path]
            # Modules of one layer that read the model's inputs read the same ones, as far as can be told.
            given[layer] = max(given[layer], share * of_model)
            for source, size in sources.items():
                reads[layer][source] = reads[layer].get(source, 0.0) + share * size
        computing = _computing(users, layers) if module.flops else users
        if not computing:
            places.unplaced.append(path)
        every = len(computing) == module.calls
        for layer, share in _divided(computing, layers, times, module.calls):
            flops[layer] += share * module.flops
            sizes[layer] += (1 / module.calls if every else share) * module.weights
    for layer, read in enumerate(reads):
        made = (min(size, known[source].outputs) if source in known else size for source, size in read.items())
        sizes[layer] += given[layer] + sum(made)
    done = zip(flops, sizes, places.members, strict=True)
    works = [LayerWork(max(count, 0.0), max(size, 0.0)) if members else None for count, size, members in done]
    return works, tuple(places.unplaced)


@dataclass
class _Places:
    """Which modules are in which layers.

    Attributes:
        members: of each layer its modules, in the order of execution.
        users: of each module the layers that it is in.
        unplaced: modules with FLOPs that are in no layer.
    """

    members: list[list[str]]
    users: dict[str, list[int]]
    unplaced: list[str]

    def inside(self, source: str, reader: str) -> bool:
        """Whether a tensor that ``source`` makes for ``reader`` stays within a layer that they share."""
        if len(self.users.get(source, ())) == 1 and self.users[source] == self.users.get(reader):
            return True
        return any(
            source == reader or self.members[layer].index(source) < self.members[layer].index(reader)
            for layer in self.users.get(source, ())
            if layer in self.users.get(reader, ())
        )


def _leaving(work: Work, places: _Places) -> dict[str, float]:
    """Of each module, the bytes of its outputs that leave its layers."""
    leaving = {each.module: float(each.returned) for each in work.modules}
    for reader in work.modules:
        for source, size in reader.sources.items():
            if source in leaving and not places.inside(source, reader.module):
                leaving[source] += size
    return {each.module: min(leaving[each.module], each.outputs) for each in work.modules}


def _divided(
    users: Sequence[int], layers: Sequence[Layer | Kernel], times: Sequence[float], calls: int
) -> list[tuple[int, float]]:
    """The share of each layer in a module that is in all of them."""
    each = len(users) == calls
    parts = [_made(layers[user]) for user in users] if each else [times[user] for user in users]
    if not all(parts) if each else not sum(parts):
        return [(user, 1 / len(users)) for user in users]
    total = sum(parts)
    return [(user, part / total) for user, part in zip(users, parts, strict=True)]


def _made(layer: Layer | Kernel) -> float:
    """Elements that a layer makes; 0 where that is not known."""
    shape = layer.outputs[0].shape if isinstance(layer, Layer) and layer.outputs else (0,)
    return float(math.prod(max(size, 0) for size in shape))


def _computing(users: Sequence[int], layers: Sequence[Layer | Kernel]) -> list[int]:
    """Those that compute with matrices: by kind, of a kernel by its name, which is a program's; else by operators.

    If neither says so, all that do not only move data, none if they all do.
    """
    beside = {user for user in users if _BESIDE.search(_own(layers[user]))}
    own = [user for user in users if _MATRIX.search(_own(layers[user])) and user not in beside]
    if own:
        return own
    launched = [user for user in users if _MATRIX.search(_operators(layers[user]))]
    computing = [user for user in launched if user not in beside] or launched
    return computing or [user for user in users if not _MOVING.fullmatch(_own(layers[user]))]


def _own(layer: Layer | Kernel) -> str:
    return layer.kind if isinstance(layer, Layer) else layer.name[:1000]


def _operators(layer: Layer | Kernel) -> str:
    return " ".join(layer.operators) if isinstance(layer, Layer) else layer.operator


def _placed(layers: Sequence[Layer | Kernel], known: Mapping[str, ModuleWork]) -> _Places:
    """The layers' modules, and those that no layer names where they are part of one."""
    places = _Places([[path for path in dict.fromkeys(layer.modules) if path in known] for layer in layers], {}, [])
    for index, members in enumerate(places.members):
        for path in members:
            places.users.setdefault(path, []).append(index)
    is_module = {
        layer.name: index
        for index, layer in enumerate(layers)
        if layer.modules == (layer.name,) and layer.name in known and known[layer.name].kind == layer.kind
    }
    for index, layer in enumerate(layers):
        if len(layer.modules) == 1 and _WHOLE.search(f"{_own(layer)} {_operators(layer)}"):
            is_module.setdefault(layer.modules[0], index)
    for path, module in known.items():
        if path not in places.users:
            _place(module, places, is_module)
    return places


def _place(module: ModuleWork, places: _Places, is_module: Mapping[str, int]) -> None:
    """Puts a module that no layer names where it belongs, if that can be told."""
    path = module.module
    names = path.split(".") if path else []
    above = (".".join(names[:length]) for length in range(len(names) - 1, -1, -1))  # the nearest first, the model last
    around = next((each for each in above if each in is_module), None)
    if around is not None:
        places.members[is_module[around]].append(path)
        places.users[path] = [is_module[around]]
        return
    sources = [source for source in module.sources if source in places.users]
    if module.flops or not sources:
        places.unplaced += [path] if module.flops else []
        return
    source = max(sources, key=lambda each: module.sources[each])
    for layer in places.users[source]:
        members = places.members[layer]
        members.insert(members.index(source) + 1, path)
    places.users[path] = list(places.users[source])
