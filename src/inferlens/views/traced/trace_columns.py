"""The columns of a trace's tables; those that few ask for stand in a table only where all are wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from inferlens.trace.several import USE
from inferlens.trace.steps import PARTS
from inferlens.units import ABSENT, byte_count, duration, microseconds, milliseconds, significant
from inferlens.views.renderers.terminal import bar
from inferlens.views.table import Column, count, share, text

_BAR = 24  # characters of a bar at 1
STRIP = 60  # characters of what went on over time
_LEVELS = "▁▂▃▄▅▆▇█"


def calls(value: float | None) -> str:
    """Calls of a step, of which there need not be a whole number."""
    return ABSENT if not value else significant(value) if value % 1 else f"{value:,.0f}"


def shapes(value: str) -> str:
    """Dimensions of tensors from JSON, ``8x4, 4x4``; what is no tensor is a dash."""
    lists = re.sub(r"\[([\d,]*)\]", lambda match: match[1].replace(",", "x") or ABSENT, value)
    return text(lists.removeprefix("[").removesuffix("]").rstrip(f",{ABSENT}").replace(",", ", "))


def stack(value: str) -> str:
    """The innermost call of a stack that is not of PyTorch's own code."""
    calls = value.split(";")
    return text(next((call for call in calls if not re.search(r"(^|/)torch/|^nn\.Module: ", call)), calls[0]))


def strip(values: Sequence[float | None], most: float = 1.0) -> str:
    """Values over time as one line, a character for each or for some; ``most`` is as high as one is."""
    known = np.array([value or 0.0 for value in values], dtype=np.float64)
    parts = np.array_split(known, min(STRIP, max(len(known), 1)))
    shares = (float(part.mean()) / (most or 1.0) for part in parts if len(part))
    return "".join(_LEVELS[round(max(0.0, min(item, 1.0)) * (len(_LEVELS) - 1))] for item in shares)


def _bar(value: float | None) -> str:
    return bar(value or 0.0, _BAR)


_ms = partial(Column, unit="ms", write=milliseconds)
_us = partial(Column, unit="µs", write=microseconds)
_bytes = partial(Column, write=byte_count)
_count = partial(Column, write=count)
_share = partial(Column, write=share)
_words = partial(Column, numeric=False)
_COLUMNS = {
    column.key: column
    for column in (
        Column("calls", "calls", write=calls, keep=1),
        _ms("host_self", "host self", keep=2),
        _ms("host_total", "host total", keep=4),
        _ms("device_self", "GPU self"),
        _ms("device_total", "GPU total", keep=3),
        _words("eligible", "tensor cores possible", keep=6, write=lambda value: "yes" if value else ABSENT),
        _share("tensor_share", "tensor cores used", keep=5),
        _share("tensor_untold", "unknown", keep=6),
        _words("kind", "kind", keep=9),
        _ms("total", "per step"),
        _ms("time", "time"),
        _share("share", "share", keep=2),
        _us("mean", "mean", keep=3),
        _us("min", "min", keep=7),
        _us("max", "max", keep=6),
        Column("blocks_per_sm", "blocks per SM", "", lambda value: ABSENT if value is None else significant(value), 5),
        _share("utilization", "GPU utilization", keep=1),
        _share("sm_efficiency", "SM efficiency", unit="est.", keep=3),
        _share("occupancy", "occupancy", unit="est.", keep=5),
        _words("tensor_cores", "tensor cores", keep=4, write={True: "yes", False: "no", None: ABSENT}.__getitem__),
        _count("registers", "registers", keep=10),
        _bytes("shared_memory", "shared memory", keep=11),
        _words("operator", "operator"),
        _words("grid", "grid", keep=12),
        _words("block", "block", keep=13),
        _words("compute_capability", "compute capability", keep=9),
        _count("multiprocessors", "SMs", keep=8),
        _bytes("memory", "memory", keep=7),
        _count("launched", "GPU events", keep=8),
        *(_ms(part, part, keep=keep) for part, keep in zip(PARTS, (2, 4, 9, 7, 6, 5, 5, 7), strict=True)),
        _ms("cpu", "CPU", keep=9),
        _words("note", "note", keep=3),
        _words("device", "device"),
        _bytes("held", "held", keep=1),
        _count("allocations", "allocations", keep=2),
        _count("rank", "rank", keep=1),
        _ms("step_time", "traced step"),
        _words("bound", "bound by", unit="traced", keep=4),
        _ms("computing", "computing", keep=3),
        _ms("communicating", "communicating", keep=4),
        _share("overlapped", "overlapped", keep=5),
        _ms("waiting", "waiting for the host", keep=6),
    )
}


def _columns(keys: str) -> tuple[Column, ...]:
    """Columns by their keys, with commas; a star makes one ``wide``."""
    return tuple(replace(_COLUMNS[key.rstrip("*")], wide=key[-1] == "*") for key in keys.split(", "))


GPUS = _columns(", ".join((*USE, "compute_capability", "multiprocessors", "memory")))
SHARES = (*_columns("time, share"), _words("share", "", keep=3, write=_bar))
OPERATORS = _columns("calls, device_self, device_total, host_self, host_total*, eligible*, tensor_share")
KERNELS = _columns(
    "kind*, calls, total, share, mean, min*, max*, blocks_per_sm*, occupancy, tensor_cores, registers*, shared_memory*"
)
LAUNCHED = (*KERNELS, *_columns("operator, grid*, block*"))
MODULES = _columns("calls, device_total, device_self, host_total, host_self")
STEPS = _columns(f"time, utilization, launched*, {', '.join(PARTS)}, note")
HOLDERS = _columns("device, held, allocations")
TIMELINE = (
    _share("kernel", "kernel", keep=1),
    _words("kernel", "", keep=0, write=_bar),
    _share("copy", "copy", keep=4),
    *_columns("sm_efficiency"),
    _share("operator", "operator", keep=2),
    _share("runtime", "runtime", keep=5),
)
CURVE = (_bytes("allocated", "allocated"),)
STRIPS = (_share("mean", "mean"), _words("strip", "over time", most=STRIP, write=str))
PEAKS = (
    _bytes("peak", "peak"),
    Column("time", "at", "", duration),
    _words("strip", "over time", most=STRIP, write=str),
)
RANKS = _columns("rank, step_time, utilization, computing, communicating, overlapped, waiting")
RUNS = _columns(
    "step_time, bound, utilization, sm_efficiency*, occupancy*, tensor_share*, tensor_untold*, "
    "kernel, copy*, runtime*, cpu*, waiting"
)
