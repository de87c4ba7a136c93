"""What floors come to, in plain sentences, and what they rest on."""

from __future__ import annotations

from inferlens.analysis.profile.kernels import short_name
from inferlens.analysis.profile.roofline import Floor, Roofline
from inferlens.record.layer_profile import Profile
from inferlens.units import bandwidth, flop_rate, listing, milliseconds, percent, plural, ratio
from inferlens.views.plain import plain
from inferlens.views.profiled.sentences import name_of, short

# A layer that computes so much faster than large matrix products is not explained by how good these are at it.
ABOVE_RATE = 1.25
FEW = 5
FASTER = (
    "Most of the time is in such that compute much faster than the rate: by such convolutions, or because the "
    "rate was measured while something else used the machine. inferlens profile --rebuild measures it again."
)
TOO_LOW = (
    "Most of the time is in such that compute much faster than the rate, so that was measured too low: floors are too "
    "high, and what is to be won is more than is said."
)
SPLIT = "What was fused from several modules is divided among them by their FLOPs: a convention, no measurement."


def about(found: Roofline) -> str:
    """What the floors are made from."""
    ceilings = found.ceilings
    rate = f"matrix products in {found.precision} {flop_rate(found.rate)}" if found.rate else "no rate"
    parts = [plural(len(found.rows), found.by), f"copies {bandwidth(ceilings.bandwidth)}", rate]
    return plain(" · ".join(parts) + f" (measured: {ceilings.basis or ceilings.device})")


def sentences(found: Roofline) -> list[str]:
    """Where there is most to be won, and how much at all."""
    if not any(row.floor is not None for row in found.rows):
        return _none(found)
    said = _most(found)
    left = max(found.outside, 0.0)
    said.append(
        f"The floors add up to {milliseconds(found.floor)} ms of {milliseconds(found.time)} ms. At most "
        f"{milliseconds(found.won)} ms ({_share(found.won, found.time)}) are to be won in the {found.by}s, and "
        f"{milliseconds(left)} ms are in no {found.timed}."
    )
    unknown = sum(row.time for row in found.rows if row.floor is None)
    if unknown > 0:
        said.append(f"Of {milliseconds(unknown)} ms ({_share(unknown, found.time)}) it is not known what was done.")
    return said + _below(found)


def notes(profile: Profile, found: Roofline) -> list[str]:
    """What the work and the ceilings rest on, and what is missing of them."""
    work, ceilings = profile.work, found.ceilings
    said = [
        "Floor: the longer of FLOPs at the rate and bytes at the bandwidth. Bytes: weights, and what crosses a "
        f"{found.by}'s border, each once. FLOPs: matrix products, convolutions, attention."
    ]
    said += [SPLIT] if found.by == "module" else []
    if work and work.uncovered:
        names = [f"{name} ({plural(count, 'call')})" for name, count in list(work.uncovered.items())[:FEW]]
        more = len(work.uncovered) - FEW
        said.append(f"FLOPs not counted: {listing([*names, *([f'{more} more'] if more > 0 else [])])}.")
    if found.unplaced:
        names = [short(path) if path else "the model itself" for path in found.unplaced[:FEW]]
        more = len(found.unplaced) - FEW
        said.append(f"In no {found.timed}: the work of {listing([*names, *([f'{more} more'] if more > 0 else [])])}.")
    if found.rate is None:
        why = ceilings.absent.get(found.precision, "it was not measured")
        said.append(f"There is no rate of {found.precision} ({why}), so floors are those of bytes alone.")
    if ceilings.disturbed:
        said.append(f"{ceilings.disturbed} inferlens profile measures them again.")
    return said


def _most(found: Roofline) -> list[str]:
    """The row in which there is most to be won, and the first few together."""
    rows = [row for row in found.ranked if row.won]
    if not rows:
        return [f"No {found.by} takes longer than its floor."]
    first = rows[0]
    far = f", {ratio(first.distance)} its floor" if first.distance else ""
    said = (
        f"Most is to be won in {short(name_in(found, first)) if first.name else 'the model itself'}: {_won(first)}{far}"
    )
    if len(rows) <= FEW or not found.won:
        return [f"{said}."]
    several = sum(row.won or 0.0 for row in rows[:FEW])
    return [f"{said}; the first {FEW} {found.by}s have {percent(several / found.won)} of all that is."]


def _none(found: Roofline) -> list[str]:
    """What can be said without any floor."""
    said = [f"No {found.by} has a floor: of none is a module known that was counted."]
    if found.least:
        said.append(
            f"The whole model cannot take less than {milliseconds(found.least)} ms here, and takes "
            f"{milliseconds(found.time)} ms, {ratio(found.time / found.least)} that."
        )
    return said


def _below(found: Roofline) -> list[str]:
    """Rows that are below their floor, and what that means."""
    below = [row for row in found.rows if row.distance is not None and row.distance < 1]
    faster = [row for row in below if row.bound == "compute" and 1 / (row.distance or 1) > ABOVE_RATE]
    said = []
    if below:
        said.append(
            f"{plural(len(below), found.by)} took less than the floor: data come from a cache sooner than from memory, "
            "some convolutions do with fewer multiplications, and causal attention leaves out what is masked."
        )
    if sum(row.time for row in faster) > found.time / 2:
        said.append(TOO_LOW if found.ceilings.disturbed else FASTER)
    return said


def name_in(found: Roofline, row: Floor) -> str:
    """What a row is called where there is little room: of a kernel without its namespaces and arguments."""
    return name_of(short_name(row.name) if found.by == "kernel" else row.name)


def _won(row: Floor) -> str:
    return f"{milliseconds(row.won)} of {milliseconds(row.time)} ms"


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else "0 %"
