"""What the tables of profiles say alike: names, modules, shapes, what takes most, and what profiling cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferlens.analysis.profile.layers import LayerRow, ProfilingCost, RunTimes
from inferlens.record.layer_profile import Profile, Tensor
from inferlens.units import ABSENT, half_width, milliseconds, percent, ratio, ratio_range
from inferlens.views.plain import plain

LONGEST_NAME = 60
FEW = 5  # rows that a sentence adds up
THE_MODEL = "the model"


def name_of(name: str) -> str:
    """A name in a sentence or a cell: on one line, never empty."""
    return plain(name) or "(no name)"


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name, not longer than what it stands in bears."""
    return cut(name_of(name), longest)


def cut(text: str, longest: int) -> str:
    """A text without its middle, if it is longer."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[: half - 1]}…{text[-half:]}"


def layer_name(row: LayerRow) -> str:
    """What a layer is called; the model itself, which eager PyTorch executes too, has the empty path."""
    return THE_MODEL if not row.name and row.modules == ("",) else row.name


def modules(paths: Sequence[str]) -> str:
    """Where a layer came from: the path, or all of them."""
    return ", ".join(name_of(path) if path else THE_MODEL for path in paths) or ABSENT


def shapes(tensors: Sequence[Tensor]) -> str:
    """Dimensions of tensors, ``1x64x56x56``; those that are not known are left out."""
    return ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors if tensor.shape) or ABSENT


def half(times: RunTimes | None) -> str:
    """Half of the median's interval, in percent of the median."""
    return half_width(times.median, times.median_low, times.median_high) if times and times.median > 0 else ABSENT


def takes_most(name: str, share: float, whole: str, several: float | None, of: str) -> str:
    """The row that takes most of ``whole``, and the first few together, if there are more, as a share of it."""
    first = f"{short(name)} takes most: {percent(share)} of {whole}"
    return f"{first}." if several is None else f"{first}; the {FEW} that take most of {of} take {percent(several)}."


def cost(account: ProfilingCost) -> str:
    """What profiling cost."""
    if account.cost is None:
        return "What profiling cost is not known: there is no record of unprofiled calls beside the profile."
    interval = f" ({ratio_range(account.cost_low, account.cost_high)})" if account.cost_low is not None else ""
    whole, before = milliseconds(account.whole.median), milliseconds(account.unprofiled)
    return f"Profiling made a call {ratio(account.cost)}{interval} as long: {whole} ms instead of {before} ms."


def remarks(profile: Profile, absent: Mapping[str, str]) -> list[str]:
    """What is not known of a profile, and what its process warned of."""
    said = [f"{what}: {why}" for what, why in absent.items()]
    return said + [f"{warning.message} {warning.advice}" for warning in profile.warnings]
