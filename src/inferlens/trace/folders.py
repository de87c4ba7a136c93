"""Traces of the ranks of one job, and of several runs in log folders as TensorBoard wants them: each in one row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.errors import InferlensError
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import SECOND
from inferlens.trace.intervals import Intervals
from inferlens.trace.steps import communication

SUFFIXES = (".json", ".json.gz", ".json.zst")
_RANK = re.compile(r"rank[-_]?(\d+)", re.I)
_NUMBER = re.compile(r"(\d+)")
_USE = ("utilization", "sm_efficiency", "occupancy", "tensor_share", "tensor_untold")


def traces_in(folder: Path) -> list[Path]:
    """The traces in a folder, by rank as their names say it, then by name, numbers in it as numbers.

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


def rank_of(name: str, analysis: Analysis) -> dict[str, Any]:
    """One rank; seconds of a step, as means over its steps.

    ``computing`` is the time in which a kernel other than of communication ran, ``overlapped`` the share of
    communication during which one ran too, ``None`` without any; ``waiting`` that in which the GPU waited for the host.
    """
    steps, overview = analysis.counted, analysis.overview
    count = max(len(steps), 1) * SECOND
    kernels, talks = analysis.parts["kernel"], _talks(analysis)
    talking, both, computing = (
        float(np.sum(each.covered(steps.begin, steps.end))) for each in (talks, talks.both(kernels), kernels)
    )
    rank = analysis.trace.about.distributed.rank
    return {
        "name": name,
        "rank": _rank(name) if rank is None else rank,
        "utilization": overview.gpus[0].utilization if overview.gpus else None,
        "step_time": overview.step_time,
        "computing": computing / count,
        "communicating": talking / count,
        "overlapped": both / talking if talking else None,
        "waiting": overview.waiting,
    }


def run_of(name: str, overview: Overview) -> dict[str, Any]:
    """One run, as its overview has it; what is of a GPU is of the first one."""
    gpu = overview.gpus[0] if overview.gpus else None
    return {
        "name": name,
        "step_time": overview.step_time,
        "bound": overview.bound,
        **{key: getattr(gpu, key, None) for key in _USE},
        **{part.lower(): overview.parts[part] for part in ("kernel", "copy", "runtime", "CPU")},
        "waiting": overview.waiting if overview.gpus else None,
    }


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
