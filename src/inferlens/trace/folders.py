"""Traces of the ranks of one job, and of several runs in log folders as TensorBoard wants them: each in one row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import SECOND
from inferlens.trace.intervals import Intervals
from inferlens.trace.shares import communication

SUFFIXES = (".json", ".json.gz", ".json.zst")
_RANK = re.compile(r"rank[-_]?(\d+)", re.I)
_NUMBER = re.compile(r"(\d+)")


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


class Run(Struct, frozen=True, kw_only=True):
    """One run; seconds of a step, as means over its steps; shares from 0 to 1. What is of a GPU is of the first one.

    Attributes:
        name: of the log folder; where it holds several traces, with the file's.
        bound: ``GPU``, ``host``, ``both`` or ``CPU only``.
        kernel, copy, runtime, cpu: of a step, as the overview tells them.
        waiting: in which the GPU waited for the host, synchronising included.
    """

    name: str
    step_time: float
    bound: str
    utilization: float | None
    sm_efficiency: float | None
    occupancy: float | None
    tensor_share: float | None
    tensor_untold: float | None
    kernel: float
    copy: float
    runtime: float
    cpu: float
    waiting: float | None


def traces_in(folder: Path) -> list[Path]:
    """The traces in a folder, by rank as their names tell it, then by name, numbers in it as numbers.

    Raises:
        InferlensError: if the folder cannot be read.
    """
    found = [path for path in _entries(folder) if path.name.endswith(SUFFIXES) and path.is_file()]
    return sorted(found, key=lambda path: (_rank(path.name) is None, _rank(path.name), _natural(path)))


def runs_in(folder: Path) -> list[tuple[str, Path]]:
    """The traces in the log folders of a folder, each with its run's name.

    Raises:
        InferlensError: if a folder cannot be read.
    """
    found = []
    for log in sorted(filter(Path.is_dir, _entries(folder)), key=_natural):
        traces = traces_in(log)
        found += [(log.name if len(traces) == 1 else f"{log.name}/{path.name}", path) for path in traces]
    return found


def rank_of(name: str, analysis: Analysis) -> Rank:
    """What a rank's trace tells, in one row."""
    steps, overview = analysis.counted, analysis.overview
    count = max(len(steps), 1)
    kernels, talks = analysis.parts["kernel"], _talks(analysis)
    talking = float(np.sum(talks.covered(steps.begin, steps.end)))
    both = float(np.sum(talks.both(kernels).covered(steps.begin, steps.end)))
    distributed = analysis.trace.about.distributed
    rank = distributed.rank if distributed else None
    return Rank(
        name=name,
        rank=_rank(name) if rank is None else rank,
        utilization=overview.gpus[0].utilization if overview.gpus else None,
        step_time=overview.step_time,
        computing=float(np.sum(kernels.covered(steps.begin, steps.end))) / count / SECOND,
        communicating=talking / count / SECOND,
        overlapped=both / talking if talking else None,
        waiting=overview.waiting,
    )


def run_of(name: str, overview: Overview) -> Run:
    """What a run's trace comes to, in one row."""
    gpu = overview.gpus[0] if overview.gpus else None
    return Run(
        name=name,
        step_time=overview.step_time,
        bound=overview.bound,
        utilization=gpu.utilization if gpu else None,
        sm_efficiency=gpu.sm_efficiency if gpu else None,
        occupancy=gpu.occupancy if gpu else None,
        tensor_share=gpu.tensor_share if gpu else None,
        tensor_untold=gpu.tensor_untold if gpu else None,
        kernel=overview.parts["kernel"],
        copy=overview.parts["copy"],
        runtime=overview.parts["runtime"],
        cpu=overview.parts["CPU"],
        waiting=overview.waiting if gpu else None,
    )


def _talks(analysis: Analysis) -> Intervals:
    """When communication ran on the GPU; what the host does for it counts where nothing of it ran on a GPU."""
    trace = analysis.trace
    on_gpu = Intervals.of(trace, trace.gpu.row[communication(trace, analysis.launch_links)])
    return on_gpu if len(on_gpu) else analysis.parts["communication"]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise InferlensError(f"{folder} cannot be read: {error.strerror}.") from error


def _rank(name: str) -> int | None:
    match = _RANK.search(name)
    return int(match[1]) if match else None


def _natural(path: Path) -> list[Any]:
    """Of a name, so that its numbers are in order as numbers."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NUMBER.split(path.name)]
