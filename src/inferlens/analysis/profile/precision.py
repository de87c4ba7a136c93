"""What a call is computed in: the share of its time, and of its multiply-adds, in each precision.

What only changes type or memory order computes in none, and is counted apart: in a quantized model it is what
quantizing costs. Where a backend does not tell of a layer, or a name of a kernel, its precision is empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from inferlens.analysis.profile.families import DENSE, computed_in, is_conversion, of_layer
from inferlens.analysis.profile.layers import Runs
from inferlens.analysis.profile.part_work import work_of
from inferlens.record.layer_profile import Kernel, Layer, Profile
from inferlens.spec.case import QUANTIZED


class Precisions(Struct, frozen=True, kw_only=True):
    """In what the layers or kernels of one case compute; places are theirs, from 0.

    Attributes:
        time: share of the call, or of all kernels, by precision; with ``converting`` and what is in no layer it adds
            up to 1.
        work: share of the multiply-adds, by precision, which adds up to 1; empty where they were not counted.
        converting: share of the time in what only changes type or memory order; ``conversions``: the places of that.
        stayed: places of what has multiply-adds and computes them in no quantized precision, longest first.
    """

    time: dict[str, float]
    work: dict[str, float]
    converting: float
    conversions: tuple[int, ...]
    stayed: tuple[int, ...]


def precisions(profile: Profile, runs: Runs) -> Precisions | None:
    """In what a profile's layers or kernels compute; ``None`` where nothing tells of any."""
    parts: Sequence[Layer | Kernel] = profile.parts
    runs = runs if profile.layers else runs.of_kernels()
    found = [computed_in(part) for part in parts]
    if not any(found):
        return None
    conversions = [place for place, part in enumerate(parts) if is_conversion(part)]
    computing = [place for place in range(len(parts)) if place not in set(conversions)]

    def share(places: Sequence[int]) -> float:
        return runs.share(runs.layers[list(places)].sum(axis=0)) or 0.0

    work, products = _work(profile, found)
    by_name = {name: [place for place in computing if found[place] == name] for name in dict.fromkeys(found)}
    stayed = [place for place in products if found[place] not in ("", "int4", *QUANTIZED)]
    stayed = [place for place in stayed if runs.layers[place].any() and place not in set(conversions)]
    return Precisions(
        time={name: share(places) for name, places in by_name.items() if places},
        work=work,
        converting=share(conversions),
        conversions=tuple(place for place in conversions if runs.layers[place].any()),
        stayed=tuple(sorted(stayed, key=lambda place: -runs.typical(runs.layers[place]))),
    )


def _work(profile: Profile, found: Sequence[str]) -> tuple[dict[str, float], list[int]]:
    """The share of the multiply-adds in each precision, and the places of what has any."""
    parts, work = profile.parts, profile.work
    units = work_of(parts, work)[0] if work and work.modules else []
    done = {unit.parts: unit.work.flops for unit in units if unit.work and unit.work.flops > 0}
    whole = sum(module.flops for module in work.modules) if work else 0.0
    layers = [(place, part) for place, part in enumerate(parts) if isinstance(part, Layer)]
    dense = [place for place, part in layers if of_layer(part.kind, part.name) in DENSE]
    if not done or whole <= 0:
        return {}, dense
    shares: dict[str, float] = {}
    for places, flops in done.items():
        name = next((found[place] for place in places if found[place]), "")
        shares[name] = shares.get(name, 0.0) + flops / whole
    rest = 1.0 - sum(shares.values())
    if rest > 0:
        shares[""] = shares.get("", 0.0) + rest
    return shares, sorted({*dense, *(place for places in done for place in places)})
