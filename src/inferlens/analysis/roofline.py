"""Rooflines: the distance of each layer from the least time that its work takes on this device, and possible savings.

A layer's *floor* is the larger of two times: its FLOPs at the device's best rate in the precision that ran, and its
bytes at the bandwidth of their source (S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual
performance model", CACM 52 (2009)). Data that fits into the last cache may come from there: activations if those of the
layer do, weights if those of the whole model do. :mod:`.work` assigns the work to layers.

Times are of a call without profiling, see :mod:`.profile_table`: a saving is never more than a layer's share of it.
Nothing is claimed of layers of unknown work, nor of any layer while the call waits for the host, or while all layers
together are so far above their floors that neither arithmetic nor memory bounds them. In every row and sum of rows the
saving is time less floor, wherever it is claimed.

No layer is below its floor. The rate is the best that was measured, or that a layer of some weight reached, whichever
is more; and a layer that moved its bytes faster than was measured has reached its floor. A layer that is much faster
than the measured rate has other work than was counted: its work is unknown. Convolutions may need fewer FLOPs than are
counted (A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from inferlens.analysis.modules import FusionRule, Path, fusion_rule, module_flops, module_path
from inferlens.analysis.profile_table import Runs, gpu_busy, profile_runs, waits_for_host
from inferlens.analysis.samples import latencies
from inferlens.analysis.work import PartWork, assign_work
from inferlens.errors import check_choice
from inferlens.record.profile import Ceilings, Profile, Work
from inferlens.record.record import Record

RowKind = Literal["layer", "module"]
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
LOWERED = "lower-precision"  # the warning of a record whose fp32 was computed in TF32
PRECISION_FACT = "inference_precision"  # of a backend that may compute in another precision than the case's
PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}

SIGNIFICANT_SHARE = 0.01  # the share of a run from which on a layer's rate counts as a rate that the device can reach
FASTER = 1.5  # ratio of a layer's rate to the measured one, which is of other sizes, that is plausible
MOST_SAVED = 4.0  # the same ratio for a convolution of 3x3 by tiles of 4x4
FAR = 20.0  # ratio of the time to the floors from which on something else bounds a run
_CONVOLUTION = re.compile(r"conv(?!er)|fprop|winograd", re.IGNORECASE)
_MOST_UNKNOWN = 0.1  # of the time of several layers, for their sum to be claimed


class Floor(Struct, frozen=True, kw_only=True):
    """One layer or module: its work, the least time for that, and the time it took; seconds and bytes."""

    place: int = 0  # in the order of execution, from 1; of a module, that of its first layer
    name: str = ""  # the backend's name of a layer, or the path of a module
    kind: str = ""
    modules: tuple[str, ...] = ()
    kernels: int = 1  # number of kernels that one operator launched; 1 for a layer or module
    time: float  # typical time of all its calls in a run; ``share``: that over the typical whole
    share: float | None = None
    flops: float | None = None  # ``flops`` and ``bytes``: the work in a run; ``None`` if it is not known for sure
    bytes: float | None = None
    intensity: float | None = None  # FLOPs for each byte
    floor: float | None = None  # the least time for the work; ``None`` if that is unknown
    # The origin of the floor: the rate (``compute``) or the bandwidth (``memory``); empty without a floor.
    bound: Literal["compute", "memory", ""] = ""
    distance: float | None = None  # time over floor; ``None`` without a floor, or without work
    # The possible saving, time less floor, never below zero; ``None`` if nothing can be claimed.
    won: float | None = None
    of_call: float | None = None  # that over the whole call

    @property
    def above(self) -> float:
        """Seconds above its floor; below zero without a floor."""
        return -1.0 if self.floor is None else self.time - self.floor


class Roofline(Struct, frozen=True, kw_only=True):
    """All layers or modules of a profile against the ceilings of the device; seconds, bytes, FLOPs per second."""

    rows: tuple[Floor, ...]  # the timed ones in the order of execution
    by: Literal["layer", "module", "kernel"]  # the kind of the rows; ``timed``: the kind of the timed parts
    timed: Literal["layer", "kernel"]
    precision: str  # that of the case, or ``tf32``
    ceilings: Ceilings
    # In ``precision``, of the ceilings, or of a layer that reached more; ``None`` if the device has none, and
    # floors are those of memory alone.
    rate: float | None
    time: float  # of the whole call; ``outside``: of it, in no layer, or in no kernel
    # ``host`` if the call waits for that, ``other`` if neither arithmetic nor memory bounds it, so that faster
    # layers save nothing. Empty otherwise.
    bound: Literal["host", "other", ""]
    gpu_time: float | None = field(name="works")  # seconds of the call in which the GPU runs any kernel, if known
    outside: float
    floored_time: float = field(name="known")  # time of the rows that have a floor; ``floor``: the sum of their floors
    floor: float
    won: float | None  # the possible saving, ``floored_time`` less ``floor``; ``None`` if nothing can be claimed
    least: float  # the least time of the whole model with all activations in caches: all FLOPs, and all weights
    unplaced: tuple[str, ...]  # modules with FLOPs that are in no layer, so that some floors may be too low

    @property
    def ranked(self) -> list[Floor]:
        return sorted(self.rows, key=lambda row: row.above, reverse=True)

    def sum_of(self, rows: Iterable[Floor]) -> Floor:
        total = replace(_total(Floor(time=0.0), [(row, 1.0) for row in rows], self.time), bound="")
        return _claim(total, self.time, self.bound)


def roofline(
    profile: Profile, record: Record | None = None, *, by: RowKind = "layer", depth: int | None = None
) -> Roofline | str:
    """Return the floors of a profile's layers (or kernels) or modules, or the sentence that says why there are none.

    Args:
        profile: of one case, with its work and ceilings.
        record: of the same case timed without profiling; it may say that fp32 was computed in TF32.
        by: ``module`` divides a layer that was fused from several modules among them by their FLOPs.
        depth: modules deeper than this, 1 or more, are added to the modules above them; ``None``: every module keeps
            its own row.

    Raises InferlensError for anything else in ``by``.
    """
    check_choice("kind of row", by, ROW_KINDS)
    runs = profile_runs(profile, None, latencies(record).samples if record else ())
    if isinstance(runs, str):
        return runs
    work = profile.work
    if work is None or not work.modules:
        return f"Its work was not counted{f': {work.note}' if work and work.note else ''}."
    if (ceilings := profile.ceilings) is None or ceilings.bandwidth <= 0:
        return "The ceilings of its device were not measured."
    precision, whole = precision_of(profile, record), runs.typical(runs.whole)
    rows, rate, unplaced = _layer_floors(profile, runs, work, ceilings, precision)
    if by == "module":
        kinds = {module.module: module.kind for module in work.modules}
        rows = list(_by_module(rows, whole, kinds, fusion_rule("split", module_flops(work)), depth))
    floored = [row for row in rows if row.floor is not None]
    time = sum(row.time for row in floored)
    floor = sum(row.floor or 0.0 for row in floored)
    bound: Literal["host", "other", ""] = "other" if floor and time > FAR * floor else ""
    bound = "host" if waits_for_host(profile, runs, record) else bound
    timed: Literal["layer", "kernel"] = "layer" if profile.layers else "kernel"
    busy = gpu_busy(profile, runs)
    flops = sum(module.flops for module in work.modules)
    return Roofline(
        rows=tuple(_claim(row, whole, bound) for row in rows), by=timed if by == "layer" else by, timed=timed,
        precision=precision, ceilings=ceilings, rate=rate, time=whole, bound=bound,
        gpu_time=None if busy is None else runs.typical(busy),
        outside=runs.typical(runs.outside), floored_time=time, floor=floor,
        won=None if bound or not floored else min(time - floor, whole),
        least=max(flops / rate if rate else 0.0, _weights(work) / ceilings.bandwidth, 0.0),
        unplaced=unplaced,
    )  # fmt: skip


def _weights(work: Work) -> float:
    return sum(module.weights for module in work.modules)


def _layer_floors(
    profile: Profile, runs: Runs, work: Work, ceilings: Ceilings, precision: str
) -> tuple[list[Floor], float | None, tuple[str, ...]]:
    """Return the rows of the layers or kernels, the rate of their floors, and modules that are in no layer."""
    parts, times = profile.parts, [runs.typical(series) for series in runs.layers]
    units, unplaced = assign_work(parts, work)
    run_time = runs.typical(runs.whole)
    measured = max(ceilings.rates.get(precision, 0.0), 0.0)
    rows: list[tuple[Floor, PartWork | None]] = []
    for unit in units:
        longest = parts[max(unit.parts, key=lambda index: times[index])]
        time = sum(times[index] for index in unit.parts)
        row = Floor(
            place=unit.parts[0] + 1, name=longest.name, kind=longest.kind, modules=longest.modules,
            kernels=len(unit.parts), time=time, share=time / run_time if run_time else None,
        )  # fmt: skip
        # No layer of its kind does its FLOPs that much faster than the measured rate.
        fastest = MOST_SAVED if _CONVOLUTION.search(f"{row.kind} {row.name}") else FASTER
        too_fast = unit.work and measured and unit.work.flops > fastest * measured * time
        if longest.times:
            rows.append((row, None if too_fast else unit.work))
    least_time = SIGNIFICANT_SHARE * sum(row.time for row, _ in rows)
    reached = [part_work.flops / row.time for row, part_work in rows if part_work and row.time >= least_time > 0]
    rate = max(measured, *reached, 0.0) if measured else None
    return [_with_floor(row, part_work, rate, ceilings, _weights(work)) for row, part_work in rows], rate, unplaced


def precision_of(profile: Profile, record: Record | None = None) -> str:
    """Return the precision of the computation.

    It is the precision that the backend reports for fp32, fp16 or bf16, or else that of the case. It is ``tf32`` if
    fp32 was lowered, whether the user requested that or not.
    """
    case = profile.case
    fact = profile.facts.get(PRECISION_FACT) or (record.facts.get(PRECISION_FACT) if record else "")
    reported = PRECISIONS.get(str(fact))
    if reported and case.precision in PRECISIONS.values():
        return reported
    warnings = (*profile.warnings, *(record.warnings if record else ()))
    lowered = case.options.get("tf32") in (True, "true") or any(warning.code == LOWERED for warning in warnings)
    return "tf32" if case.precision == "fp32" and case.device != "cpu" and lowered else case.precision


def _with_floor(
    row: Floor, part_work: PartWork | None, rate: float | None, ceilings: Ceilings, weights: float
) -> Floor:
    """Return ``row`` with its floor if its work is known, no longer than its time; ``weights``: the model's."""
    if part_work is None:
        return row
    compute = part_work.flops / rate if rate else 0.0
    memory = part_work.bytes / ceilings.bandwidth
    if ceilings.cached > ceilings.bandwidth:
        moved = part_work.bytes - part_work.weights
        uncached = (part_work.weights if weights > ceilings.cache else 0) + (moved if moved > ceilings.cache else 0)
        memory = max(uncached / ceilings.bandwidth, part_work.bytes / ceilings.cached)
    bounds = (min(compute, row.time), 0.0) if compute > memory else (0.0, min(memory, row.time))
    return _with_work(row, part_work.flops, part_work.bytes, *bounds)


def _with_work(row: Floor, flops: float, moved: float, compute: float, memory: float) -> Floor:
    """Return ``row`` with its work, and with a floor of so many seconds by ``compute`` and by ``memory``."""
    floor = compute + memory
    return replace(
        row, flops=flops, bytes=moved, floor=floor, won=row.time - floor, intensity=flops / moved if moved else None,
        bound=("compute" if compute > memory else "memory") if floor else "",
        distance=row.time / floor if floor else None,
    )  # fmt: skip


def _claim(row: Floor, whole: float, bound: str) -> Floor:
    """Return ``row`` with its possible saving of the ``whole`` call; ``None`` if something else bounds it."""
    won = None if bound or row.won is None else min(row.won, whole)
    return replace(row, won=won, of_call=None if won is None or not whole else won / whole)


def _total(row: Floor, shares: Sequence[tuple[Floor, float]], whole: float) -> Floor:
    """Return ``row`` with the sum of shares of others; ``whole`` is the typical time of a run.

    The floor of a row without a floor is its time, so that nothing is claimed for it. With more than a few such rows
    the floor of the sum is unknown.
    """

    def total(name: str, bound: str = "") -> float:
        selected = [(floor, share) for floor, share in shares if bound in ("", floor.bound)]
        return sum((share * (getattr(floor, name) or 0.0) for floor, share in selected), 0.0)

    time = total("time")
    row = replace(row, time=time, share=time / whole if whole else None)
    floored = sum(share * floor.time for floor, share in shares if floor.floor is not None)
    if all(floor.floor is None for floor, _ in shares) or time - floored > _MOST_UNKNOWN * time:
        return row
    by_bound = total("floor", "compute"), total("floor", "memory")
    row = _with_work(row, total("flops"), total("bytes"), *by_bound)
    floor = sum(by_bound) + max(time - floored, 0.0)
    return replace(row, floor=floor, won=max(time - floor, 0.0), distance=time / floor if floor else None)


def _by_module(
    layers: Iterable[Floor], whole: float, kinds: Mapping[str, str], rule: FusionRule, depth: int | None
) -> Iterator[Floor]:
    """Yield modules with their shares of the layers; layers of no known module are one row without a name."""
    groups: dict[Path | None, list[tuple[Floor, float]]] = {}
    for layer in layers:
        paths = list(dict.fromkeys(map(module_path, layer.modules)))
        for path, share in rule(paths).items() if paths else [(None, 1.0)]:
            groups.setdefault(path if path is None else path[:depth], []).append((layer, share))
    for path, shares in groups.items():
        row = Floor(place=shares[0][0].place, time=0.0)
        if path is not None:
            name = ".".join(path)
            row = replace(row, name=name, kind=kinds.get(name, ""), modules=(name,))
        yield _total(row, shares, whole)
