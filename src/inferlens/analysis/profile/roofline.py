"""How far each layer is from the least time that its work takes on this device, and what there is to be won.

A layer's *floor* is the larger of two times: its FLOPs at the device's measured rate of matrix products in the
precision that ran, and its bytes at the device's measured copy bandwidth (S. Williams, A. Waterman, D. Patterson,
"Roofline: an insightful visual performance model", CACM 52 (2009)). Its *distance* is its time over its floor. Floors
are of data that come from memory: a layer whose data are still in a cache may be below its floor, and has then nothing
to be won.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.profile.layer_work import LayerWork, layer_work
from inferlens.analysis.profile.layers import runs_of
from inferlens.analysis.profile.modules import Path, Rule, flops_of, path_of, rule_of
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record
from inferlens.record.work import Ceilings

RowsBy = Literal["layer", "module"]
BYS: tuple[RowsBy, ...] = get_args(RowsBy)
LOWERED = "lower-precision"  # the warning of a record whose fp32 was computed in TF32
NAMED = "inference_precision"  # the fact of a backend that may compute in another precision than the case's
PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}


class Floor(Struct, frozen=True, kw_only=True):
    """One layer or module: what it has to do, the least time that takes, and the time it took; seconds and bytes.

    Attributes:
        place: of a layer, its place in the order of execution, from 1; of a module, that of its first layer.
        name: of a layer as the backend names it, of a module its path.
        modules: those that it came from; none where that is not known.
        time: typical time of all its calls in a run.
        share: that over the typical whole.
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
        by: ``layer``, or the kernels of a profile that has those; ``module``: what was fused from several is divided
            among them by their FLOPs.
        depth: modules deeper than this, 1 or more, count to those above them; ``None``: none do.

    Raises:
        InferlensError: for anything else in ``by``.
    """
    check_choice("kind of row", by, BYS)
    runs, work, ceilings = runs_of(profile), profile.work, profile.ceilings
    if isinstance(runs, str):
        return runs
    if work is None:
        return "Its work was not counted."
    if not work.modules:
        return f"Its work is not known: {work.note or 'nothing was counted'}."
    if ceilings is None or ceilings.bandwidth <= 0:
        why = f": {ceilings.absent.get('all', '')}" if ceilings else ""
        return f"The ceilings of its device were not measured{why.rstrip('.: ')}."
    precision = precision_of(profile, record)
    rate = max(ceilings.rates.get(precision, 0.0), 0.0) or None
    layers, times = profile.parts, [runs.typical(series) for series in runs.layers]
    works, unplaced = layer_work(layers, times, work)
    whole = runs.typical(runs.whole)
    rows = []
    for place, (layer, time, done) in enumerate(zip(layers, times, works, strict=True), 1):
        share = time / whole if whole else None
        row = Floor(place=place, name=layer.name, kind=layer.kind, modules=layer.modules, time=time, share=share)
        rows += [_row(row, done, rate, ceilings.bandwidth)] if runs.was_timed[place - 1] else []
    if by == "module":
        kinds = {each.module: each.kind for each in work.modules}
        rows = list(_by_module(rows, whole, kinds, rule_of("split", flops_of(work)), depth))
    known = [row for row in rows if row.floor is not None]
    flops, weights = sum(each.flops for each in work.modules), sum(each.weights for each in work.modules)
    timed_parts: Literal["layer", "kernel"] = "layer" if profile.layers else "kernel"
    return Roofline(
        rows=tuple(rows),
        by=timed_parts if by == "layer" else by,
        timed=timed_parts,
        precision=precision,
        ceilings=ceilings,
        rate=rate,
        time=whole,
        outside=runs.typical(runs.outside),
        known=sum(row.time for row in known),
        floor=sum(row.floor or 0.0 for row in known),
        won=sum(row.won or 0.0 for row in known),
        least=max(flops / rate if rate else 0.0, weights / ceilings.bandwidth, 0.0),
        unplaced=unplaced,
    )


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


def _row(layer: Floor, done: LayerWork | None, rate: float | None, bandwidth: float) -> Floor:
    """A layer with its floor, if what is to be done is known; ``rate`` of nothing: the floor is that of memory."""
    if done is None:
        return layer
    compute, memory = done.flops / rate if rate else 0.0, done.bytes / bandwidth
    won = max(layer.time - max(compute, memory), 0.0)
    compute, memory = (compute, 0.0) if compute > memory else (0.0, memory)
    return _with_floor(layer, done.flops, done.bytes, compute, memory, won)


def _with_floor(row: Floor, flops: float, size: float, compute: float, memory: float, won: float) -> Floor:
    """``row`` with a floor of so many seconds that are made by each."""
    floor = compute + memory
    return replace(
        row, flops=flops, bytes=size, floor=floor, won=won,
        intensity=flops / size if size else None,
        bound=("compute" if compute > memory else "memory") if floor else "",
        distance=row.time / floor if floor else None,
    )  # fmt: skip


def _total(row: Floor, shares: Sequence[tuple[Floor, float]], whole: float) -> Floor:
    """``row`` with what shares of others add up to; ``whole`` is the typical time of a run."""
    time = sum((share * each.time for each, share in shares), 0.0)
    row = replace(row, time=time, share=time / whole if whole else None)
    known = [(each, share) for each, share in shares if each.floor is not None]
    flops, size, won = (
        sum((share * getattr(each, name) for each, share in known), 0.0) for name in ("flops", "bytes", "won")
    )

    def made_by(bound: str) -> float:
        return sum((share * (each.floor or 0.0) for each, share in known if each.bound == bound), 0.0)

    return _with_floor(row, flops, size, made_by("compute"), made_by("memory"), won) if known else row


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
