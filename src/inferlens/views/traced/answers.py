"""What the views of a trace say in a sentence: where most of the time or memory is, and how far steps differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from inferlens.trace import memory
from inferlens.trace.analysis import GpuUse
from inferlens.trace.columns import Columns
from inferlens.units import byte_count, duration, listing, milliseconds, percent
from inferlens.views.plain import plain, without_middle

_UNKNOWN = 0.01  # of the kernels' time: less need not be said
_HARDLY = 0.9  # of it: what is known of the rest says nothing
_IDLE = 0.05  # of a slice: less counts as idle
_LONGEST = 40  # characters of a name in a sentence
Row = Mapping[str, Any]


def tensor_cores(gpu: GpuUse) -> list[str]:
    """How much of its kernels' time a GPU used tensor cores, in a sentence; none where it ran nothing."""
    if gpu.tensor_share is None:
        return []
    unknown = gpu.tensor_untold or 0.0
    if unknown > _HARDLY:
        return [f"GPU {gpu.device}: whether tensor cores are used is not known for {percent(unknown)} of the time."]
    more = f" ({percent(unknown)} unknown)" if unknown > _UNKNOWN else ""
    return [f"GPU {gpu.device}: tensor cores in {percent(gpu.tensor_share)} of the kernels' time{more}."]


def most(
    times: Iterable[tuple[str, float]], of: str, label: Callable[[Row], str] = lambda row: str(row["name"])
) -> list[str]:
    """What takes most of a step's time, in a sentence: as few names as take half of it, three at most."""
    sums: dict[str, float] = {}
    for name, seconds in times:
        sums[name] = sums.get(name, 0.0) + seconds
    whole, part, names = sum(sums.values()), 0.0, []
    for name, seconds in sorted(sums.items(), key=lambda pair: -pair[1])[:3] if whole > 0 else ():
        names.append(without_middle(plain(label({"name": name})), _LONGEST))
        part += seconds
        if part >= whole / 2:
            break
    if not names:
        return ["Nothing here takes any time."]
    said = [name if count == 1 else f"{count} like {name}" for name, count in Counter(names).items()]
    took = f"{milliseconds(part)} of {milliseconds(whole)} ms a step"
    return [f"{percent(part / whole)} of {of} ({took}) goes to {listing(said)}."]


def short(data: Columns, top: int | None = None) -> Callable[[Row], str]:
    """Names of kernels without namespaces and most arguments; the ``top`` ones are still told apart."""
    from inferlens.analysis.profile.kernels import short_name, short_names

    names = short_names(dict.fromkeys(data.columns["name"][:top]))
    return lambda row: names.get(row["name"]) or short_name(row["name"])


def heaviest(rows: Sequence[Row], key: str, steps: int) -> list[str]:
    """The module that the time of so many steps is in: the innermost with half of it, or else the one with most."""
    if not rows:
        return ["No module is known: profile with stacks and modules, or name scopes."]
    outermost = [row for row in rows if not row["depth"]]
    whole = sum(row[key] or 0.0 for row in outermost) or 1.0
    inner = rows if len(outermost) > 1 else rows[1:] or rows
    half = [row for row in inner if (row[key] or 0.0) >= whole / 2]
    found = max(half or inner, key=lambda row: (row["depth"] if half else 0, row[key] or 0.0))
    of = "the modules' GPU time" if key == "device_total" else "the modules' time"
    took = found[key] or 0.0
    times = f"{milliseconds(took / steps)} of {milliseconds(whole / steps)} ms a step"
    return [f"{percent(took / whole)} of {of} ({times}) is in {plain(found['path'])}."]


def peak(device: memory.AllocatedMemory, held: Columns) -> str:
    """The most memory that a device held, and who held most of it."""
    rows = [row for row in held.rows() if row["device"] == device.name]
    first = max(rows, key=lambda row: row["held"], default=None)
    who = {memory.BEFORE: "from before the trace", memory.NO_OPERATOR: "for no operator"}
    part = (
        f", {byte_count(first['held'])} of it {who.get(first['operator'], 'for ' + plain(first['operator']))}"
        if first
        else ""
    )
    return f"{device.name} holds {byte_count(device.peak)} at its peak{part}."


def between(times: Sequence[float]) -> str:
    """The mean of some times, and how far they reach."""
    least, longest = duration(min(times)), duration(max(times))
    return least if least == longest else f"{duration(sum(times) / len(times))}, from {least} to {longest}"


def pause(rows: Sequence[Row], busy: str, whole: float) -> list[str]:
    """How much of the time something works, and when it does not for longest."""
    if not whole:
        return ["There is nothing in this trace."]
    what, who = ("A kernel runs", "the GPU") if busy == "kernel" else ("An operator runs", "the host")
    worked = sum(row[busy] * row["length"] for row in rows)
    begin, end = 0.0, 0.0
    for idle, some in groupby(rows, key=lambda row: row[busy] < _IDLE):
        first, *_, last = [*some] * 2
        if idle and last["begin"] + last["length"] - first["begin"] > end - begin:
            begin, end = first["begin"], last["begin"] + last["length"]
    pause = f"; {who} is idle longest from {milliseconds(begin)} to {milliseconds(end)} ms" if end > begin else ""
    return [f"{what} {percent(worked / whole)} of the time{pause}."]
