"""The work of modules becomes the work of layers, which may be parts of a module, or several modules fused.

A layer gets no more work than has to be done in it, so that what follows from it is a floor:

- A module that several layers name is divided among them: if they are as many as its calls, in proportion to what they
  make (a head of a detector is called on images of several sizes), weights equally; else in proportion to their times.
  FLOPs and weights go to those that compute with matrices: what only prepares the data of a convolution came from the
  same operator. If all of them only move data, what computes is a layer of which no module is known.
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
    members, users, unplaced = _placed(layers, known)

    def inside(source: str, reader: str) -> bool:
        """Whether a tensor that ``source`` makes for ``reader`` stays within a layer that they share."""
        both = [layer for layer in users.get(source, ()) if layer in users.get(reader, ())]
        return (len(both) == 1 and users[source] == users[reader]) or any(
            source == reader or members[layer].index(source) < members[layer].index(reader) for layer in both
        )

    leaving = {path: float(module.returned) for path, module in known.items()}  # bytes that leave a module's layers
    for reader in work.modules:
        for source, size in reader.sources.items():
            if source in leaving and not inside(source, reader.module):
                leaving[source] += size
    flops, sizes, given = [0.0] * len(layers), [0.0] * len(layers), [0.0] * len(layers)
    reads: list[dict[str, float]] = [{} for _ in layers]
    for path, its in users.items():
        module = known[path]
        sources = {source: size for source, size in module.sources.items() if not inside(source, path)}
        of_model = module.inputs - sum(module.sources.values())
        for layer, share in _divided(its, layers, times, module.calls):
            sizes[layer] += share * min(leaving[path], module.outputs)
            # Modules of one layer that read the model's inputs read the same ones, as far as can be told.
            given[layer] = max(given[layer], share * of_model)
            for source, size in sources.items():
                reads[layer][source] = reads[layer].get(source, 0.0) + share * size
        computing = _computing(its, layers) if module.flops else its
        if not computing:
            unplaced.append(path)
        for layer, share in _divided(computing, layers, times, module.calls):
            flops[layer] += share * module.flops
            sizes[layer] += (1 / module.calls if len(computing) == module.calls else share) * module.weights
    for layer, read in enumerate(reads):
        made = (min(size, known[source].outputs) if source in known else size for source, size in read.items())
        sizes[layer] += given[layer] + sum(made)
    done = zip(flops, sizes, members, strict=True)
    works = [LayerWork(max(count, 0.0), max(size, 0.0)) if paths else None for count, size, paths in done]
    return works, tuple(unplaced)


def _divided(
    users: Sequence[int], layers: Sequence[Layer | Kernel], times: Sequence[float], calls: int
) -> list[tuple[int, float]]:
    """The share of each layer in a module that is in all of them."""
    each = len(users) == calls
    parts = [_made(layers[user]) for user in users] if each else [times[user] for user in users]
    if not all(parts) if each else not sum(parts):
        return [(user, 1 / len(users)) for user in users]
    return [(user, part / sum(parts)) for user, part in zip(users, parts, strict=True)]


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
    launched = [user for user in users if _MATRIX.search(_operators(layers[user]))]
    computing = own or [user for user in launched if user not in beside] or launched
    return computing or [user for user in users if not _MOVING.fullmatch(_own(layers[user]))]


def _own(layer: Layer | Kernel) -> str:
    return layer.kind if isinstance(layer, Layer) else layer.name[:1000]


def _operators(layer: Layer | Kernel) -> str:
    return " ".join(layer.operators) if isinstance(layer, Layer) else layer.operator


def _placed(
    layers: Sequence[Layer | Kernel], known: Mapping[str, ModuleWork]
) -> tuple[list[list[str]], dict[str, list[int]], list[str]]:
    """Of each layer its modules, in the order of execution; of each module its layers; modules with FLOPs in none."""
    members = [[path for path in dict.fromkeys(layer.modules) if path in known] for layer in layers]
    users: dict[str, list[int]] = {}
    unplaced: list[str] = []
    is_module: dict[str, int] = {}
    for index, (layer, paths) in enumerate(zip(layers, members, strict=True)):
        for path in paths:
            users.setdefault(path, []).append(index)
        if paths and layer.modules == (layer.name,) and known[layer.name].kind == layer.kind:
            is_module[layer.name] = index
    for index, layer in enumerate(layers):
        if len(layer.modules) == 1 and _WHOLE.search(f"{_own(layer)} {_operators(layer)}"):
            is_module.setdefault(layer.modules[0], index)
    for path, module in known.items():
        if path in users:
            continue
        names = path.split(".") if path else []
        above = (".".join(names[:length]) for length in range(len(names) - 1, -1, -1))  # the nearest first
        around = next((each for each in above if each in is_module), None)
        sources = [source for source in module.sources if source in users]
        if around is not None:
            members[is_module[around]].append(path)
            users[path] = [is_module[around]]
        elif module.flops:
            unplaced.append(path)
        elif sources:
            source = max(sources, key=lambda each: module.sources[each])
            for index in users[source]:
                members[index].insert(members[index].index(source) + 1, path)
            users[path] = list(users[source])
    return members, users, unplaced
