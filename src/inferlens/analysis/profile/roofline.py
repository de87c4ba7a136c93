"""How far each layer is from the least time that its work takes on this device, and what there is to be won.

A layer's *floor* is the larger of two times: its FLOPs at the device's measured rate of matrix products in the
precision that ran, and its bytes at the device's measured copy bandwidth (S. Williams, A. Waterman, D. Patterson,
"Roofline: an insightful visual performance model", CACM 52 (2009)). Its *distance* is its time over its floor. Floors
are of data that come from memory: a layer whose data are still in a cache may be below its floor, and has then nothing
to be won.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct

from inferlens.analysis.profile.attribution import flops_of, rule_of
from inferlens.analysis.profile.roofline_rows import Floor, Part, by_module, measured
from inferlens.analysis.profile.roofline_share import shares
from inferlens.analysis.profile.runs import Runs, part_runs, parts_of
from inferlens.errors import InferlensError, suggestion
from inferlens.record.kernel_profile import Kernel
from inferlens.record.layer_profile import Layer, Profile
from inferlens.record.record import Record
from inferlens.record.work import Ceilings, Work
from inferlens.units import listing

By = Literal["layer", "module"]
Timed = Literal["layer", "kernel"]
BYS: tuple[By, ...] = get_args(By)
LOWERED = "lower-precision"  # the warning of a record whose fp32 was computed in TF32
NAMED = "inference_precision"  # the fact of a backend that may compute in another precision than the case's
PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}


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
    timed: Timed
    precision: str
    ceilings: Ceilings
    rate: float | None
    time: float
    outside: float
    known: float
    floor: float
    won: float
    least: float = 0.0
    unplaced: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[Floor]:
        """All rows, those first in which there is most to be won; those without a floor last."""
        return sorted(self.rows, key=lambda row: -1.0 if row.won is None else row.won, reverse=True)


def roofline(
    profile: Profile, record: Record | None = None, *, by: By = "layer", depth: int | None = None
) -> Roofline | str:
    """The floors of a profile's layers (or kernels) or modules, or the sentence that says why there are none.

    Args:
        profile: of one case, with its work and ceilings.
        record: of the same case timed untouched; it may say that fp32 was computed in TF32.
        by: ``layer``, or the kernels of a profile that has those; ``module``: what was fused from several is divided
            among them by their FLOPs.
        depth: modules deeper than this, 1 or more, count to those above them; ``None``: none do.

    Raises:
        InferlensError: for anything else in ``by``.
    """
    check_by(by)
    runs = part_runs(profile)
    if isinstance(runs, str):
        return runs
    if profile.work is None:
        return "Its work was not counted."
    if not profile.work.modules:
        return f"Its work is not known: {profile.work.note or 'nothing was counted'}."
    if profile.ceilings is None or profile.ceilings.bandwidth <= 0:
        why = f": {profile.ceilings.absent.get('all', '')}" if profile.ceilings else ""
        return f"The ceilings of its device were not measured{why.rstrip('.: ')}."
    parts, rate, unplaced = _parts(
        parts_of(profile), runs, profile.work, profile.ceilings, precision_of(profile, record)
    )
    if by == "module":
        kinds = {each.module: each.kind for each in profile.work.modules}
        parts = by_module(parts, kinds, rule_of("split", flops_of(profile.work)), depth)
    timed: Timed = "layer" if profile.layers else "kernel"
    rows = tuple(part.row(runs.typical(runs.whole)) for part in parts)
    known = [row for row in rows if row.floor is not None]
    return Roofline(
        rows=rows,
        by=timed if by == "layer" else by,
        timed=timed,
        precision=precision_of(profile, record),
        ceilings=profile.ceilings,
        rate=rate,
        time=runs.typical(runs.whole),
        outside=runs.typical(runs.outside),
        known=sum(row.time for row in known),
        floor=sum(row.floor or 0.0 for row in known),
        won=sum(row.won or 0.0 for row in known),
        least=_least(profile.work, rate, profile.ceilings.bandwidth),
        unplaced=unplaced,
    )


def check_by(by: str) -> None:
    """Refuses rows that there are not.

    Raises:
        InferlensError: if ``by`` is none of :data:`BYS`.
    """
    if by not in BYS:
        raise InferlensError(f"There is no roofline by '{by}'.", expected=listing(BYS), hint=suggestion(by, BYS))


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


def _least(work: Work, rate: float | None, bandwidth: float) -> float:
    """Seconds for all FLOPs, or for all weights, whichever is longer."""
    flops, weights = sum(each.flops for each in work.modules), sum(each.weights for each in work.modules)
    return max(flops / rate if rate else 0.0, weights / bandwidth, 0.0)


def _parts(
    layers: Sequence[Layer | Kernel], runs: Runs, work: Work, ceilings: Ceilings, precision: str
) -> tuple[list[Part], float | None, tuple[str, ...]]:
    """The layers that were timed with their floors, the rate that these are of, and the modules that are in none."""
    times = [runs.typical(series) for series in runs.layers]
    shared = shares(layers, times, work)
    rate = ceilings.rates.get(precision, 0.0)
    rate_or_none = rate if rate > 0 else None
    parts = [
        measured(
            Part(index + 1, layer.name, layer.kind, layer.modules, times[index]),
            shared.layers[index],
            rate_or_none,
            ceilings.bandwidth,
        )
        for index, layer in enumerate(layers)
        if runs.was_timed[index]
    ]
    return parts, rate_or_none, shared.unplaced
