"""Traces of the ranks of one job, side by side: how each spent its steps, and how far its communication was hidden."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.trace.analysis import Analysis
from inferlens.trace.intervals import Intervals
from inferlens.trace.shares import communication
from inferlens.trace.table import SECOND

SUFFIXES = (".json", ".json.gz", ".json.zst")
_LAST = float("inf")
_RANK = re.compile(r"rank[-_]?(\d+)", re.I)


class Rank(Struct, frozen=True, kw_only=True):
    """One rank; seconds of a step, as means over its steps.

    Attributes:
        computing: in which a kernel other than of communication ran.
        communicating: in which communication ran.
        overlapped: the share of communication during which a kernel ran too; ``None`` without communication.
        waiting: in which the GPU waited for the host, synchronising included.
    """

    name: str
    rank: int | None
    utilization: float | None
    step_time: float
    computing: float
    communicating: float
    overlapped: float | None
    waiting: float


def traces_in(folder: Path) -> list[Path]:
    """The traces in a folder, by rank as their names tell it, then by name.

    Raises:
        InferlensError: if the folder cannot be read.
    """
    try:
        found = [path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file()]
    except OSError as error:
        raise InferlensError(f"{folder} cannot be read: {error.strerror}.") from error
    return sorted(found, key=lambda path: (_number(path.name), path.name))


def rank_of(name: str, analysis: Analysis) -> Rank:
    """What a rank's trace tells, in one row."""
    steps, parts, overview = analysis.counted, analysis.parts, analysis.overview
    count = max(len(steps), 1)
    kernels, talks = parts["kernel"], _talks(analysis)
    computing = float(np.sum(kernels.covered(steps.begin, steps.end)))
    talking = float(np.sum(talks.covered(steps.begin, steps.end)))
    both = float(np.sum(talks.both(kernels).covered(steps.begin, steps.end)))
    distributed = analysis.trace.about.distributed
    named = _number(name)
    told = distributed.rank if distributed else None
    return Rank(
        name=name,
        rank=told if told is not None else int(named) if named != _LAST else None,
        utilization=overview.gpus[0].utilization if overview.gpus else None,
        step_time=overview.step_time,
        computing=computing / count / SECOND,
        communicating=talking / count / SECOND,
        overlapped=both / talking if talking else None,
        waiting=overview.idle["waiting for the host"] + overview.idle["synchronising"],
    )


def _talks(analysis: Analysis) -> Intervals:
    """When communication ran on the GPU; what the host does for it counts where nothing of it ran on a GPU."""
    trace = analysis.trace
    rows = trace.gpu.row[communication(trace, analysis.launch_links)]
    on_gpu = Intervals.of(trace, rows)
    return on_gpu if len(on_gpu) else analysis.parts["communication"]


def _number(name: str) -> float:
    match = _RANK.search(name)
    return int(match[1]) if match else _LAST
