"""How far each layer is from the least time that its work takes on this device, and how much could be gained.

A layer's *floor* is the larger of two times: its FLOPs at the device's best rate in the precision that ran, and its
bytes at the bandwidth of what they come from (S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual
performance model", CACM 52 (2009)). What fits into the last cache may come from there: activations where those of the
layer do, weights where those of the whole model do. Which work is a layer's is worked out in :mod:`.part_work`.

Times are of a call as it is without profiling, see :mod:`.layers`: what can be won is never more than a layer's share
of it. Nothing is claimed of layers whose work is not known, nor of any while the call waits for the host, or while all
layers together are so far above their floors that neither arithmetic nor memory bounds them. In every row and every sum
of rows time less floor is what can be won, wherever that is claimed.

No layer is below its floor. The rate is the best that was measured, or that a layer of some weight reached, whichever
is more; and a layer that moved its bytes faster than was measured has reached what there is to reach. A layer that is
much faster than the measured rate has other work than was counted: its work is not known. Convolutions may need fewer
FLOPs than are counted (A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.modules import Path, FusionRule, module_flops, module_path, fusion_rule
from inferlens.analysis.profile_table import gpu_busy, runs_of, waits_for_host
from inferlens.analysis.samples import latencies
from inferlens.analysis.work import PartWork, assign_work
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record
from inferlens.record.work import Ceilings

RowsBy = Literal["layer", "module"]
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
LOWERED = "lower-precision"  # the warning of a record whose fp32 was computed in TF32
PRECISION_FACT = "inference_precision"  # the fact of a backend that may compute in another precision than the case's
PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}

SIGNIFICANT_SHARE = 0.01  # of a run, for a layer's rate to be taken for one that the device can reach
FASTER = 1.5  # times the measured rate, which a layer may reach: the rate is that of other sizes
MOST_SAVED = 4.0  # times it, for a convolution of 3x3 by tiles of 4x4
FAR = 20.0  # times the floors, for what bounds a run to be something else
_CONVOLUTION = re.compile(r"conv(?!er)|fprop|winograd", re.IGNORECASE)
_MOST_UNKNOWN = 0.1  # of the time of several layers, for what is known of the rest to be said of all


class Floor(Struct, frozen=True, kw_only=True):
    """One layer or module: what it has to do, the least time that takes, and the time it took; seconds and bytes.

    Attributes:
        place: in the order of execution, from 1; of a module, that of its first layer.
        name: of a layer as the backend names it, of a module its path.
        time: typical time of all its calls in a run; ``share``: that over the typical whole.
        kernels: how many kernels it is, which one operator launched; 1 of a layer or module.
        flops, bytes: what it has to do in a run; ``None`` where that is not known for sure.
        intensity: FLOPs for each byte.
        floor: the least time for that; ``None`` where the work is not known.
        bound: what the floor is made by: the rate (``compute``) or the bandwidth (``memory``); empty without a floor.
        distance: time over floor; ``None`` where there is no floor, or nothing to do.
        won: time less floor, never below zero: what there is to be won at most; ``None`` where nothing can be claimed.
        of_call: that over the whole call.
    """

    place: int = 0
    name: str = ""
    kind: str = ""
    modules: tuple[str, ...] = ()
    kernels: int = 1
    time: float
    share: float | None = None
    flops: float | None = None
    bytes: float | None = None
    intensity: float | None = None
    floor: float | None = None
    bound: Literal["compute", "memory", ""] = ""
    distance: float | None = None
    won: float | None = None
    of_call: float | None = None

    @property
    def above(self) -> float:
        """How far above its floor it is, in seconds; below zero without a floor."""
        return -1.0 if self.floor is None else self.time - self.floor


class Roofline(Struct, frozen=True, kw_only=True):
    """All layers or modules of a profile against the ceilings of the device; seconds, bytes, FLOPs per second.

    Attributes:
        rows: those that were timed, in the order of execution.
        by: what they are; ``timed``: what was timed.
        precision: what was computed in: that of the case, or ``tf32``.
        rate: in ``precision``, that of the ceilings, or what a layer reached if that is more; ``None`` if the device
            has none, and floors are those of memory alone.
        time: of the whole call; ``outside``: of it, in no layer, or in no kernel.
        bound: ``host`` if the call waits for that, ``other`` if neither arithmetic nor memory bounds it: then nothing
            is to be won by faster layers. Empty otherwise.
        works: seconds of it in which the GPU runs any kernel, where that is known.
        known: time of the rows that have a floor; ``floor``: what their floors add up to.
        won: what there is to be won at most: ``known`` less ``floor``; ``None`` if nothing can be claimed.
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
    bound: Literal["host", "other", ""]
    works: float | None
    outside: float
    known: float
    floor: float
    won: float | None
    least: float
    unplaced: tuple[str, ...]

    @property
    def ranked(self) -> list[Floor]:
        """All rows, those first in which there is most to be won; those without a floor last."""
        return sorted(self.rows, key=lambda row: row.above, reverse=True)

    def sum_of(self, rows: Iterable[Floor]) -> Floor:
        """What some of the rows add up to."""
        total = replace(_total(Floor(time=0.0), [(row, 1.0) for row in rows], self.time), bound="")
        return _claimed(total, self.time, self.bound)


def roofline(
    profile: Profile, record: Record | None = None, *, by: RowKind = "layer", depth: int | None = None
) -> Roofline | str:
    """The floors of a profile's layers (or kernels) or modules, or the sentence that says why there are none.

    Args:
        profile: of one case, with its work and ceilings.
        record: of the same case timed without profiling; it may say that fp32 was computed in TF32.
        by: ``module``: what was fused from several is divided among them by their FLOPs.
        depth: modules deeper than this, 1 or more, count to those above them; ``None``: none do.

    Raises InferlensError for anything else in ``by``.
    """
    check_choice("kind of row", by, ROW_KINDS)
    runs, work = runs_of(profile, None, latencies(record).samples if record else ()), profile.work
    if isinstance(runs, str):
        return runs
    if work is None or not work.modules:
        return f"Its work was not counted{f': {work.note}' if work and work.note else ''}."
    if (ceilings := profile.ceilings) is None or ceilings.bandwidth <= 0:
        return "The ceilings of its device were not measured."
    precision = precision_of(profile, record)
    parts, times = profile.parts, [runs.typical(series) for series in runs.layers]
    units, unplaced = assign_work(parts, work, by_module=by == "module")
    whole = runs.typical(runs.whole)
    weights = sum(module.weights for module in work.modules)
    rows, works = [], []
    for unit in units:
        longest = parts[max(unit.parts, key=lambda place: times[place])]
        time = sum(times[place] for place in unit.parts)
        row = Floor(
            place=unit.parts[0] + 1, name=longest.name, kind=longest.kind, modules=longest.modules,
            kernels=len(unit.parts), time=time, share=time / whole if whole else None,
        )  # fmt: skip
        rows += [row] if longest.times else []
        works += [unit.work] if longest.times else []
    measured = max(ceilings.rates.get(precision, 0.0), 0.0)
    works = [
        None if part_work and _too_fast(row, part_work, measured) else part_work
        for row, part_work in zip(rows, works, strict=True)
    ]
    reached = [
        part_work.flops / row.time
        for row, part_work in zip(rows, works, strict=True)
        if part_work and row.time >= SIGNIFICANT_SHARE * sum(row.time for row in rows) > 0
    ]
    rate = max(measured, *reached, 0.0) if measured else None
    rows = [_with_floor(*item, rate, ceilings, weights) for item in zip(rows, works, strict=True)]
    if by == "module":
        kinds = {module.module: module.kind for module in work.modules}
        rows = list(_by_module(rows, whole, kinds, fusion_rule("split", module_flops(work)), depth))
    floored = [row for row in rows if row.floor is not None]
    known, floor = sum(row.time for row in floored), sum(row.floor or 0.0 for row in floored)
    bound, busy = _claim(waits_for_host(profile, runs, record), known, floor), gpu_busy(profile, runs)
    rows = [_claimed(row, whole, bound) for row in rows]
    timed_parts: Literal["layer", "kernel"] = "layer" if profile.layers else "kernel"
    return Roofline(
        rows=tuple(rows), by=timed_parts if by == "layer" else by, timed=timed_parts, precision=precision,
        ceilings=ceilings, rate=rate, time=whole, bound=bound, gpu_time=None if busy is None else runs.typical(busy),
        outside=runs.typical(runs.outside), floored_time=known, floor=floor,
        won=None if bound or not floored else min(known - floor, whole),
        least=max(
            sum(module.flops for module in work.modules) / rate if rate else 0.0, weights / ceilings.bandwidth, 0.0
        ),
        unplaced=unplaced,
    )  # fmt: skip


def precision_of(profile: Profile, record: Record | None = None) -> str:
    """What a case was computed in: its precision, ``tf32`` where fp32 was lowered, whether asked for or not, or what
    the backend says that it took for fp32, fp16 or bf16.
    """
    case = profile.case
    named = PRECISIONS.get(
        str(profile.facts.get(PRECISION_FACT) or (record.facts.get(PRECISION_FACT) if record else ""))
    )
    if named and case.precision in PRECISIONS.values():
        return named
    warnings = (*profile.warnings, *(record.warnings if record else ()))
    lowered = case.options.get("tf32") in (True, "true") or any(warning.code == LOWERED for warning in warnings)
    return "tf32" if case.precision == "fp32" and case.device != "cpu" and lowered else case.precision


def _too_fast(row: Floor, part_work: PartWork, rate: float) -> bool:
    """Return whether a row did its FLOPs faster than any layer of its kind can, at this measured rate."""
    most = MOST_SAVED if _CONVOLUTION.search(f"{row.kind} {row.name}") else FASTER
    return bool(rate) and part_work.flops > most * rate * row.time


def _with_floor(
    row: Floor, part_work: PartWork | None, rate: float | None, ceilings: Ceilings, weights: float
) -> Floor:
    """``row`` with its floor if its work is known, no longer than the time it took; ``weights``: the model's."""
    if part_work is None:
        return row
    compute = part_work.flops / rate if rate else 0.0
    memory = part_work.bytes / ceilings.bandwidth
    if ceilings.cached > ceilings.bandwidth:
        moved = part_work.bytes - part_work.weights
        far = (part_work.weights if weights > ceilings.cache else 0) + (moved if moved > ceilings.cache else 0)
        memory = max(far / ceilings.bandwidth, part_work.bytes / ceilings.cached)
    compute, memory = (min(compute, row.time), 0.0) if compute > memory else (0.0, min(memory, row.time))
    return _with_work(row, part_work.flops, part_work.bytes, compute, memory)


def _with_work(row: Floor, flops: float, moved: float, compute: float, memory: float) -> Floor:
    """``row`` with a floor of so many seconds that are made by each."""
    floor = compute + memory
    return replace(
        row, flops=flops, bytes=moved, floor=floor, won=row.time - floor, intensity=flops / moved if moved else None,
        bound=("compute" if compute > memory else "memory") if floor else "",
        distance=row.time / floor if floor else None,
    )  # fmt: skip


def _claim(row: bool, whole: float, bound: float) -> Literal["host", "other", ""]:
    return "host" if row else "other" if bound and whole > FAR * bound else ""


def _claimed(row: Floor, whole: float, bound: str) -> Floor:
    """``row`` with what can be won of the ``whole`` call; nothing is if something else bounds it."""
    won = None if bound or row.won is None else min(row.won, whole)
    return replace(row, won=won, of_call=None if won is None or not whole else won / whole)


def _total(row: Floor, shares: Sequence[tuple[Floor, float]], whole: float) -> Floor:
    """``row`` with what shares of others add up to; ``whole`` is the typical time of a run.

    Its floor is that of those that have one, and the time of those that have none, of which nothing is claimed; it is
    not known where these are more than a few.
    """

    def total(name: str, bound: str = "") -> float:
        return sum(
            (share * (getattr(floor, name) or 0.0) for floor, share in shares if bound in ("", floor.bound)), 0.0
        )

    time = total("time")
    row = replace(row, time=time, share=time / whole if whole else None)
    known = sum(share * floor.time for floor, share in shares if floor.floor is not None)
    if all(floor.floor is None for floor, _ in shares) or time - known > _MOST_UNKNOWN * time:
        return row
    made = total("floor", "compute"), total("floor", "memory")
    found = _with_work(row, total("flops"), total("bytes"), *made)
    floor = sum(made) + max(time - known, 0.0)
    return replace(found, floor=floor, won=max(time - floor, 0.0), distance=time / floor if floor else None)


def _by_module(
    layers: Iterable[Floor], whole: float, kinds: Mapping[str, str], rule: Rule, depth: int | None
) -> Iterator[Floor]:
    """Modules with their shares of the layers; layers of no known module are one row without a name."""
    found: dict[Path | None, list[tuple[Floor, float]]] = {}
    for layer in layers:
        paths = list(dict.fromkeys(map(module_path, layer.modules)))
        for path, share in rule(paths).items() if paths else [(None, 1.0)]:
            found.setdefault(path if path is None else path[:depth], []).append((layer, share))
    for path, shares in found.items():
        row = Floor(place=shares[0][0].place, time=0.0)
        if path is not None:
            name = ".".join(path)
            row = replace(row, name=name, kind=kinds.get(name, ""), modules=(name,))
        yield _total(row, shares, whole)
