"""Columns of the tables of a trace: what each is called and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferlens.trace.shares import PARTS
from inferlens.units import ABSENT, byte_count, microseconds, milliseconds, significant
from inferlens.views.plain import plain
from inferlens.views.table import Column, count, share, text

_BAR = 24  # characters of a bar at 1
_EIGHTHS = " ▏▎▍▌▋▊▉█"
Row = Mapping[str, Any]


def shapes(value: str | None) -> str:
    """Dimensions of tensors from JSON, ``8x4, 4x4``; what is no tensor is a dash."""
    try:
        told = msgspec.json.decode(value) if value else None
    except msgspec.DecodeError:
        return text(value)
    if not isinstance(told, list):
        return text(value)
    words = [_dimensions(each) for each in told]
    while words and words[-1] == ABSENT:
        words.pop()
    return plain(", ".join(words)) or ABSENT


def _dimensions(shape: Any) -> str:
    """Of a tensor, or of a list of them."""
    if not isinstance(shape, list) or not shape:
        return ABSENT
    if any(isinstance(each, list) for each in shape):
        return f"({', '.join(map(_dimensions, shape))})"
    return "x".join(map(str, shape))


def span(row: Row) -> str:
    """The share of tensor cores, and how much of the rest may belong to it too: ``12 %`` or ``12 % to 90 %``."""
    known, untold = row["tensor_share"], row["tensor_untold"]
    return share(known) if known is None or (untold or 0) < 0.005 else f"{share(known)} to {share(known + untold)}"


def bar(value: float | None) -> str:
    """A share as a bar, as wide as the column at 1."""
    eighths = round(max(0.0, min(value or 0.0, 1.0)) * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _ms(key: str, title: str, keep: int) -> Column:
    return Column(key, title, "ms", milliseconds, keep)


def _bytes(key: str, title: str, keep: int) -> Column:
    return Column(key, title, "", byte_count, keep)


def _count(key: str, title: str, keep: int) -> Column:
    return Column(key, title, "", count, keep)


def _share(key: str, title: str, keep: int, unit: str = "") -> Column:
    return Column(key, title, unit, share, keep)


def _words(key: str, title: str, keep: int) -> Column:
    return Column(key, title, "", text, keep, numeric=False)


def bar_of(key: str, keep: int) -> Column:
    """A column of shares that are drawn."""
    return Column(key, "", "", bar, keep, numeric=False)


_SPAN = Column("", "tensor cores", "of kernel time", span, 3)
SPANNED = "tensor cores, from ... to: of the rest the kernels' names do not tell whether they use any."
GPUS = (
    _share("utilization", "GPU utilization", 0),
    _share("sm_efficiency", "SM efficiency", 1, "est."),
    _share("occupancy", "occupancy", 2, "est."),
    _SPAN,
    _words("compute_capability", "compute capability", 6),
    _count("multiprocessors", "SMs", 5),
    _bytes("memory", "memory", 4),
)
SHARES = (_ms("time", "time", 0), _share("share", "share", 1), bar_of("share", 2))
OPERATORS = (
    _count("calls", "calls", 1),
    _ms("host_self", "host self", 2),
    _ms("host_total", "host total", 4),
    _ms("device_self", "GPU self", 0),
    _ms("device_total", "GPU total", 3),
    Column("eligible", "tensor cores possible", "", lambda value: "yes" if value else ABSENT, 6, numeric=False),
    _share("tensor_share", "tensor cores used", 5),
)
UNTOLD = "?: the kernel's name does not tell whether it uses tensor cores."
_TENSOR_CORES = {True: "yes", False: ABSENT, None: "?"}
KERNELS = (
    _words("kind", "kind", 9),
    _count("calls", "calls", 1),
    _ms("total", "total", 0),
    _share("share", "share", 2),
    *(Column(name, name, "µs", microseconds, keep) for name, keep in (("mean", 3), ("min", 7), ("max", 6))),
    Column("blocks_per_sm", "blocks per SM", "", lambda value: ABSENT if value is None else significant(value), 5),
    _share("occupancy", "occupancy", 5, "est."),
    Column("tensor_cores", "tensor cores", "", _TENSOR_CORES.__getitem__, 4, numeric=False),
    _count("registers", "registers", 10),
    _bytes("shared_memory", "shared memory", 11),
)
LAUNCHED = (_words("operator", "operator", 0), *KERNELS, _words("grid", "grid", 12), _words("block", "block", 13))
MODULES = (
    _count("calls", "calls", 2),
    _ms("host_total", "host total", 1),
    _ms("host_self", "host self", 4),
    _ms("device_total", "GPU total", 0),
    _ms("device_self", "GPU self", 3),
)
STEPS = (
    _ms("time", "time", 0),
    _share("utilization", "GPU utilization", 1),
    _count("launched", "GPU events", 8),
    *(_ms(part, part, keep) for part, keep in zip(PARTS, (2, 4, 9, 7, 6, 5, 5, 7), strict=True)),
    _words("note", "note", 3),
)
HOLDERS = (_words("device", "device", 0), _bytes("held", "held", 1), _count("allocations", "allocations", 2))
TIMELINE = (
    _share("kernel", "kernel", 1),
    bar_of("kernel", 0),
    _share("copy", "copy", 4),
    _share("sm_efficiency", "SM efficiency", 3, "est."),
    _share("operator", "operator", 2),
    _share("runtime", "runtime", 5),
)
RANKS = (
    _count("rank", "rank", 1),
    _ms("step_time", "step", 0),
    _share("utilization", "GPU utilization", 2),
    _ms("computing", "computing", 3),
    _ms("communicating", "communicating", 4),
    _share("overlapped", "overlapped", 5),
    _ms("waiting", "waiting for the host", 6),
)
RUNS = (
    _ms("step_time", "step", 0),
    _words("bound", "pace set by", 4),
    *GPUS[:3],
    _SPAN,
    _ms("kernel", "kernel", 6),
    _ms("copy", "copy", 10),
    _ms("runtime", "runtime", 8),
    _ms("cpu", "CPU", 9),
    _ms("waiting", "GPU waits", 7),
)
