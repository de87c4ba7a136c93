"""How far each layer is from the least time that its work takes on this device, and how much could be gained.

A layer's *floor* is the larger of two times: its FLOPs at the device's measured rate of matrix products in the
precision that ran, and its bytes at the device's measured copy bandwidth (S. Williams, A. Waterman, D. Patterson,
"Roofline: an insightful visual performance model", CACM 52 (2009)). Floors are of data that come from memory: a layer
whose data are still in a cache may be below its floor, and has then nothing to be won.

A module's work becomes that of its layers. A layer gets no more than has to be done in it:

- A module that several layers name is divided among them: if they are as many as its calls, in proportion to what they
  make, weights equally; else in proportion to their times. FLOPs and weights go to those that compute with matrices. If
  all of them only move data, what computes is a layer of which no module is known.
- A tensor that one module makes and a later one of the same layer reads does not go through memory, and is in neither's
  bytes. What a layer reads of one module counts at most as often as it was written.
- A module that no layer names is part of the layer that is the module around it. If it has no FLOPs it is else part of
  the layer that makes its input: what is left out, such as a batch norm, was folded into something.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.profile.layers import runs_of
from inferlens.analysis.profile.modules import Path, Rule, flops_of, path_of, rule_of
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Kernel, Layer, Profile
from inferlens.record.record import Record
from inferlens.record.work import Ceilings, ModuleWork, Work

RowsBy = Literal["layer", "module"]
BYS: tuple[RowsBy, ...] = get_args(RowsBy)
LOWERED = "lower-precision"  # the warning of a record whose fp32 was computed in TF32
NAMED = "inference_precision"  # the fact of a backend that may compute in another precision than the case's
PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}

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
# What an operator that computes with matrices launches besides: changes of memory order, sums of partial products.
_BESIDE = re.compile(r"nchwto|nhwcto|splitk_?reduce", re.IGNORECASE)


class LayerWork(Struct, frozen=True):
    """What a layer has to do in one run: FLOPs, and bytes between it and the memory."""

    flops: float
    bytes: float


class Floor(Struct, frozen=True, kw_only=True):
    """One layer or module: what it has to do, the least time that takes, and the time it took; seconds and bytes.

    Attributes:
        place: in the order of execution, from 1; of a module, that of its first layer.
        name: of a layer as the backend names it, of a module its path.
        time: typical time of all its calls in a run; ``share``: that over the typical whole.
        flops, bytes: what it has to do in a run; ``None`` where its modules are not known.
        intensity: FLOPs for each byte.
        floor: the least time for that; ``None`` where the work is not known.
        bound: what the floor is made by: the rate (``compute``) or the bandwidth (``memory``); empty without a floor.
        distance: time over floor; ``None`` where there is no floor, or nothing to do.
        won: time less floor, never below zero: what there is to be won at most.
    """

    place: int = 0
    name: str = ""
    kind: str = ""
    modules: tuple[str, ...] = ()
    time: float
    share: float | None = None
    flops: float | None = None
    bytes: float | None = None
    intensity: float | None = None
    floor: float | None = None
    bound: Literal["compute", "memory", ""] = ""
    distance: float | None = None
    won: float | None = None


class Roofline(Struct, frozen=True, kw_only=True):
    """All layers or modules of a profile against the ceilings of the device; seconds, bytes, FLOPs per second.

    Attributes:
        rows: those that were timed, in the order of execution.
        by: what they are; ``timed``: what was timed.
        precision: what was computed in: that of the case, or ``tf32``.
        rate: of the ceilings, that of ``precision``; ``None`` if it has none, and floors are those of memory alone.
        time: typical time of the whole run; ``outside``: of it, in no layer, or in no kernel.
        known: typical time of the rows that have a floor; ``floor``: what their floors add up to.
        won: what there is to be won in them at most: the sum over the rows.
        least: the least time of the whole model, if all activations stayed in caches: all FLOPs, and all weights.
        unplaced: modules with FLOPs that are in no layer, so that some floors may be too low.
    """

    rows: tuple[Floor, ...]
    by: Literal["layer", "module", "kernel"]
    timed: Literal["layer", "kernel"]
    precision: str
    ceilings: Ceilings
    rate: float | None
    time: float
    outside: float
    known: float
    floor: float
    won: float
    least: float
    unplaced: tuple[str, ...]

    @property
    def ranked(self) -> list[Floor]:
        """All rows, those first in which there is most to be won; those without a floor last."""
        return sorted(self.rows, key=lambda row: -1.0 if row.won is None else row.won, reverse=True)

    def sum_of(self, rows: Iterable[Floor]) -> Floor:
        """What some of the rows add up to; the distance is that of those that have a floor."""
        rows = list(rows)
        total = _total(Floor(time=0.0), [(row, 1.0) for row in rows], self.time)
        known = sum(row.time for row in rows if row.floor is not None)
        return replace(total, bound="", distance=known / total.floor if total.floor else None)


def roofline(
    profile: Profile, record: Record | None = None, *, by: RowsBy = "layer", depth: int | None = None
) -> Roofline | str:
    """The floors of a profile's layers (or kernels) or modules, or the sentence that says why there are none.

    Args:
        profile: of one case, with its work and ceilings.
        record: of the same case timed without profiling; it may say that fp32 was computed in TF32.
        by: ``module``: what was fused from several is divided among them by their FLOPs.
        depth: modules deeper than this, 1 or more, count to those above them; ``None``: none do.

    Raises:
        InferlensError: for anything else in ``by``.
    """
    check_choice("kind of row", by, BYS)
    runs, work, ceilings = runs_of(profile), profile.work, profile.ceilings
    if isinstance(runs, str):
        return runs
    if work is None or not work.modules:
        return f"Its work was not counted{f': {work.note}' if work and work.note else ''}."
    if ceilings is None or ceilings.bandwidth <= 0:
        return "The ceilings of its device were not measured."
    precision = precision_of(profile, record)
    rate = max(ceilings.rates.get(precision, 0.0), 0.0) or None
    layers, times = profile.parts, [runs.typical(series) for series in runs.layers]
    works, unplaced = layer_work(layers, times, work)
    whole = runs.typical(runs.whole)
    rows = []
    for place, (layer, time, done) in enumerate(zip(layers, times, works, strict=True), 1):
        share = time / whole if whole else None
        row = Floor(place=place, name=layer.name, kind=layer.kind, modules=layer.modules, time=time, share=share)
        if done:
            compute, memory = done.flops / rate if rate else 0.0, done.bytes / ceilings.bandwidth
            won = max(time - max(compute, memory), 0.0)
            compute, memory = (compute, 0.0) if compute > memory else (0.0, memory)
            row = _with_work(row, done, compute, memory, won)
        rows += [row] if layer.times else []
    if by == "module":
        kinds = {each.module: each.kind for each in work.modules}
        rows = list(_by_module(rows, whole, kinds, rule_of("split", flops_of(work)), depth))
    known = [row for row in rows if row.floor is not None]
    flops, weights = sum(each.flops for each in work.modules), sum(each.weights for each in work.modules)
    timed_parts: Literal["layer", "kernel"] = "layer" if profile.layers else "kernel"
    return Roofline(
        rows=tuple(rows), by=timed_parts if by == "layer" else by, timed=timed_parts, precision=precision,
        ceilings=ceilings, rate=rate, time=whole, outside=runs.typical(runs.outside),
        known=sum(row.time for row in known), floor=sum(row.floor or 0.0 for row in known),
        won=sum(row.won or 0.0 for row in known),
        least=max(flops / rate if rate else 0.0, weights / ceilings.bandwidth, 0.0), unplaced=unplaced,
    )  # fmt: skip


def precision_of(profile: Profile, record: Record | None = None) -> str:
    """What a case was computed in: its precision, ``tf32`` where fp32 was lowered, whether asked for or not, or what
    the backend says that it took for fp32, fp16 or bf16.
    """
    case = profile.case
    named = PRECISIONS.get(str(profile.facts.get(NAMED) or (record.facts.get(NAMED) if record else "")))
    if named and case.precision in PRECISIONS.values():
        return named
    warnings = (*profile.warnings, *(record.warnings if record else ()))
    lowered = case.options.get("tf32") in (True, "true") or any(each.code == LOWERED for each in warnings)
    return "tf32" if case.precision == "fp32" and case.device != "cpu" and lowered else case.precision


def _with_work(row: Floor, done: LayerWork, compute: float, memory: float, won: float) -> Floor:
    """``row`` with a floor of so many seconds that are made by each."""
    floor = compute + memory
    return replace(
        row, flops=done.flops, bytes=done.bytes, floor=floor, won=won,
        intensity=done.flops / done.bytes if done.bytes else None,
        bound=("compute" if compute > memory else "memory") if floor else "",
        distance=row.time / floor if floor else None,
    )  # fmt: skip


def _total(row: Floor, shares: Sequence[tuple[Floor, float]], whole: float) -> Floor:
    """``row`` with what shares of others add up to; ``whole`` is the typical time of a run."""

    def total(name: str, bound: str = "") -> float:
        return sum((share * (getattr(each, name) or 0.0) for each, share in shares if bound in ("", each.bound)), 0.0)

    row = replace(row, time=total("time"), share=total("time") / whole if whole else None)
    if all(each.floor is None for each, _ in shares):
        return row
    done = LayerWork(total("flops"), total("bytes"))
    return _with_work(row, done, total("floor", "compute"), total("floor", "memory"), total("won"))


def _by_module(
    layers: Iterable[Floor], whole: float, kinds: Mapping[str, str], rule: Rule, depth: int | None
) -> Iterator[Floor]:
    """Modules with their shares of the layers; layers of no known module are one row without a name."""
    found: dict[Path | None, list[tuple[Floor, float]]] = {}
    for layer in layers:
        paths = list(dict.fromkeys(map(path_of, layer.modules)))
        for path, share in rule(paths).items() if paths else [(None, 1.0)]:
            found.setdefault(path if path is None else path[:depth], []).append((layer, share))
    for path, shares in found.items():
        row = Floor(place=shares[0][0].place, time=0.0)
        if path is not None:
            name = ".".join(path)
            row = replace(row, name=name, kind=kinds.get(name, ""), modules=(name,))
        yield _total(row, shares, whole)


# The work of layers


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
