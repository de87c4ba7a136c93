"""The only place that turns numbers into text for people, and such text back into numbers.

Inside, everything is seconds and bytes. Milliseconds and mebibytes exist on the screen alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

import msgspec

from inferlens.errors import InferlensError

ABSENT = "–"
UNKNOWN_WIDTH = "unsteady"
LOPSIDED = 0.02  # of a factor: by how much more its interval reaches to one side
_DURATION = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*(us|ms|s|m|min|h)?\s*$")
_SHARE = re.compile(r"^\s*([0-9]{0,9}\.?[0-9]{1,9})\s*(%)?\s*$")
_QUANTITY = re.compile(r"^\s*([0-9]{0,9}\.?[0-9]{1,9}(?:e[+-]?[0-9]{1,2})?)\s*([A-Za-zµ%/ ]*?)\s*$")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_JOULES = {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6}


def moment(text: str) -> float | None:
    """Return the seconds from 1970 to a time in ISO 8601; ``None`` for other text."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(text, datetime).timestamp()
    return None


def significant(value: float, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits, without scientific notation between 1e-4 and 1e9."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 9.996 is 10.0, not 10.00
    decimals = max(0, digits - 1 - exponent)
    return f"{value:,.{min(decimals, 9)}f}"


def bare(value: float | None, digits: int = 3, *, scale: float = 1.0) -> str:
    """Return ``value * scale`` as a number without a unit, e.g. ``12.3``."""
    return ABSENT if value is None else significant(value * scale, digits)


rate = bare  # per second
milliseconds = partial(bare, scale=1e3)  # of seconds
microseconds = partial(bare, scale=1e6)  # of seconds
millijoules = partial(bare, scale=1e3)  # of joules
mebibytes = partial(bare, scale=2.0**-20)  # of bytes
megaflops = partial(bare, scale=1e-6)  # of FLOPs


def latency(seconds: float | None) -> str:
    """Return a latency in milliseconds, the unit of every table, or a very short one in microseconds: ``4.27 µs``."""
    text = latency_cell(seconds)
    return text if seconds is None or "µs" in text else f"{text} ms"


def latency_cell(seconds: float | None) -> str:
    """Return a latency for a column of milliseconds: ``12.3``, or ``4.27 µs``."""
    return f"{microseconds(seconds)} µs" if seconds and seconds < 1e-5 else milliseconds(seconds)


def duration(seconds: float | None) -> str:
    """Return seconds in the unit that reads best: ``850 µs``, ``12.3 ms``, ``4.2 s``, ``3 min 05 s``."""
    if seconds is None:
        return ABSENT
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds >= 1:
        return f"{significant(seconds, 2 if seconds >= 10 else 3)} s"
    if seconds >= 1e-3:
        return f"{significant(seconds * 1e3)} ms"
    return f"{significant(seconds * 1e6)} µs"


def about(seconds: float) -> str:
    """Return an estimate of seconds, rounded: ``about 5 s``, ``about 40 s``, ``about 1 min 20 s``."""
    step = 5 if seconds < 60 else 10 if seconds < 300 else 60 if seconds < 3600 else 600
    rounded = max(round(seconds / step), 1) * step
    hours, minutes, remaining = rounded // 3600, rounded % 3600 // 60, rounded % 60
    parts = ((hours, "h"), (minutes, "min"), (remaining, "s"))
    return "about " + " ".join(f"{count} {unit}" for count, unit in parts if count)


def byte_count(count: float | None) -> str:
    """Return bytes in binary units: ``512 B``, ``1.50 MiB``, ``12.0 GiB``."""
    if count is None:
        return ABSENT
    value, unit = _scaled(count, ("B", "KiB", "MiB", "GiB", "TiB"), 1024, 1024)
    return f"{value:.0f} B" if unit == "B" else f"{significant(value)} {unit}"


def ratio(value: float | None) -> str:
    """Return a factor: ``1.83x``."""
    return ABSENT if value is None else f"{significant(value)}x"


def ratio_range(low: float | None, high: float | None) -> str:
    """Return a range of factors: ``1.71 to 1.95``."""
    return ABSENT if low is None or high is None else f"{significant(low)} to {significant(high)}"


def ratio_spread(value: float | None, low: float | None, high: float | None) -> str:
    """Return the half-width of a factor's interval, with the factor's decimals: `` ±0.05``; empty without an interval.

    A lopsided interval is written from end to end: `` (1.99 to 7.07)``.
    """
    if value is None or low is None or high is None:
        return ""
    least, most = sorted((high - value, value - low))
    decimals = max(len(significant(value).partition(".")[2]), 1)
    if most - least > max(LOPSIDED * value, 0.5 * 10**-decimals):
        return f" ({ratio_range(low, high)})"
    return f" ±{max(most, 10**-decimals):,.{decimals}f}"


def percent(share: float) -> str:
    """Return a share or a relative difference without its sign, e.g. ``2 %``, ``0.5 %``, ``12.3 %``."""
    digits, _, decimals = f"{100 * abs(share):,.{_places(share)}f}".partition(".")
    return f"{digits}.{decimals}".rstrip("0").rstrip(".") + " %" if decimals.strip("0") else f"{digits} %"


def drop(share: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a drop. A rise has a minus sign: ``0.5 % ±0.8``, ``-0.2 % ±0.3``, ``0.0 %``."""
    if share is None:
        return ABSENT
    digits = 2 if low is not None and high is not None and 0 < high - low < 0.002 else 1
    spread = f" ±{50 * (high - low):.{digits}f}" if low is not None and high is not None and low < high else ""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %{spread}"


def score(value: float | None, *, share: bool) -> str:
    """Return a value of an accuracy metric: a share in percent, e.g. ``94.8 %``, any other value as it is."""
    return f"{100 * value:.1f} %" if share and value is not None else bare(value)


def change(relative: float | None) -> str:
    """Return a relative difference with its sign: ``+3.02 %``, ``-12.3 %``, ``0.00 %``."""
    return ABSENT if relative is None else f"{_signed(relative, _places(relative))} %"


def change_range(low: float | None, high: float | None) -> str:
    """Return a range of relative differences: ``-0.40 to +1.40 %``, with one more digit if the two would be equal."""
    if low is None or high is None:
        return ABSENT
    places = min(_places(low), _places(high))
    places += low != high and _signed(low, places) == _signed(high, places)
    return f"{_signed(low, places)} to {_signed(high, places)} %"


def change_spread(relative: float, low: float, high: float) -> str:
    """Return a relative difference with its interval: ``+10.0 ± 0.4 %``, or a lopsided interval from end to end."""
    least, most = sorted((high - relative, relative - low))
    if most - least > max(LOPSIDED, 0.2 * most):
        return f"{change(relative)} ({change_range(low, high)})"
    width = f"{max(100 * most, 0.1):.{int(most < 0.1)}f} %"
    return f"{change(relative).removesuffix(' %')} ± {width}"


def joules(value: float | None) -> str:
    """Return an energy: ``12.3 mJ``, ``4.20 J``."""
    if value is None:
        return ABSENT
    return f"{significant(value)} J" if value >= 1 else f"{millijoules(value)} mJ"


def items_per_second(value: float | None) -> str:
    """Return a throughput: ``81.3 items/s``."""
    return ABSENT if value is None else f"{significant(value)} items/s"


def kibibytes(count: float | None) -> str:
    """Return bytes as a bare number of KiB, e.g. ``48``."""
    return ABSENT if count is None else f"{count / 2**10:,.1f}".removesuffix(".0")


def decimal(value: float | None, unit: str) -> str:
    """Return ``value`` with a prefix, so that it has one to three digits before the point: ``101 GFLOP/s``."""
    if value is None:
        return ABSENT
    value, prefix = _scaled(value, ("", "k", "M", "G", "T", "P"), 1e3, 999.5)
    return f"{significant(value)} {prefix}{unit}"


flop_rate = partial(decimal, unit="FLOP/s")
bandwidth = partial(decimal, unit="B/s")  # in decimal units, as memories are sold by


def half_width(middle: float | None, low: float | None, high: float | None) -> str:
    """Return the larger distance from ``middle`` to an end of an interval, as a share of it: ``0.4 %``.

    It is :data:`UNKNOWN_WIDTH` for an interval that is wider than the value itself.
    """
    if not middle or low is None or high is None:
        return ABSENT
    share = 100 * max(high - middle, middle - low) / abs(middle)
    return UNKNOWN_WIDTH if not share < 100 else f"{share:.1f} %" if share >= 0.05 else "<0.1 %"


def with_half_width(text: str, middle: float | None, low: float | None, high: float | None) -> str:
    """Return ``text``, which shows ``middle``, with its half-width: ``12.3 ± 0.4 %``, ``12.3 unsteady``."""
    width = half_width(middle, low, high)
    return text if width == ABSENT else f"{text} {width}" if width == UNKNOWN_WIDTH else f"{text} ± {width}"


def bare_seconds(seconds: float | None) -> str:
    """Return seconds as a bare number with at most two decimals, e.g. ``4.21``."""
    return bare(seconds) if seconds is None or seconds >= 1 else f"{seconds:.2f}"


def plural(count: int, thing: str) -> str:
    """Return a count with its noun: ``1 sample``, ``1,000 samples``, ``2 launches``."""
    ending = "es" if thing.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{count:,} {thing}{'' if count == 1 else ending}"


def listing(words: Sequence[str]) -> str:
    """Return names as a list in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def error_size(value: float | None) -> str:
    """Return a relative error, e.g. ``3e-07``; exactly zero is ``0``."""
    if value is None:
        return ABSENT
    return "0" if value == 0 else f"{value:.1g}" if value < 0.001 else significant(value, 2)


def number(text: str) -> float | None:
    """Return the number in a text, times in seconds; ``None`` if it is no bare number or duration."""
    match = re.match(r"^\s*(\d[\d,]*(?:\.\d+)?)\s*(µs|ms|s|min)?\s*$", text)
    return float(match[1].replace(",", "")) * {"µs": 1e-6, **_SECONDS}[match[2] or "s"] if match else None


def parse_share(text: str) -> float:
    """Return a share from ``2%``, ``2 %`` or ``0.02``. From 1 it needs the ``%``. Refuse other texts."""
    match = _SHARE.match(text)
    if not match or (not match[2] and float(match[1]) >= 1):
        raise InferlensError(f"'{text[:100]}' is not a percentage.", expected="such as 2% or 0.02")
    return float(match[1]) / (100 if match[2] else 1)


def parse_duration(text: str) -> float:
    """Return seconds from ``90``, ``90s``, ``1.5m``, ``200ms``. Raises InferlensError if the text is not a duration."""
    match = _DURATION.match(text)
    if not match:
        raise InferlensError(f"'{text}' is not a duration.", expected="such as 40 (seconds), 40s, 2m, 1h or 200ms")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def parse_quantity(text: str, *, scales: Mapping[str, float], what: str, form: str) -> float:
    """Return the quantity in ``text``, whose unit is one of ``scales``, in the unit whose scale is 1.

    Raises InferlensError if it is negative or no number, or has another unit. ``form`` describes the expected text.
    """
    match = _QUANTITY.match(text)
    if not match or match[2] not in scales:
        raise InferlensError(f"'{text[:100]}' is not a valid {what}.", expected=f"such as {form}")
    return float(match[1]) * scales[match[2]]


parse_bytes = partial(parse_quantity, scales=_BYTES, what="size of memory", form="2GiB or 512MiB")
parse_joules = partial(parse_quantity, scales=_JOULES, what="energy", form="2J or 50mJ")
parse_rate = partial(parse_quantity, scales={"": 1.0, "/s": 1.0, "items/s": 1.0}, what="rate", form="1000, a second")
parse_price = partial(parse_quantity, scales={"/h": 1 / 3600}, what="price", form="3.2/h")


def parse_error(text: str) -> float:
    """Return a relative error from ``1e-2``, ``0.01`` or ``1%``. From 1 it needs the ``%``. Refuse other texts."""
    form = "1e-2 or 1%"
    error = parse_quantity(text, scales={"": 1.0, "%": 0.01}, what="relative error", form=form)
    if error >= 1 and "%" not in text:
        raise InferlensError(f"'{text}' is not a relative error.", expected=f"such as {form}")
    return error


def _scaled(value: float, units: Sequence[str], step: float, limit: float) -> tuple[float, str]:
    """Return the value in the first unit in which it is below the limit, or in the last one."""
    for unit in units[:-1]:
        if abs(value) < limit:
            return value, unit
        value /= step
    return value, units[-1]


def _places(relative: float) -> int:
    """Return the decimals of a percentage: two below 10, one below 100, none above."""
    size = abs(round(100 * relative, 2))
    return 2 if size < 10 else 1 if size < 100 else 0


def _signed(relative: float, places: int) -> str:
    text = f"{100 * relative:+,.{places}f}" if abs(relative) < 1e6 else f"{100 * relative:+.1e}"
    return text if text.strip("+-0.,") else text.lstrip("+-")
