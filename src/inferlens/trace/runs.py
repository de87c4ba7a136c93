"""Traces of several runs, each in a log folder of its own as TensorBoard wants them: what each came to, in one row."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.trace.overview import Overview
from inferlens.trace.ranks import SUFFIXES

_NUMBER = re.compile(r"(\d+)")


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


def runs_in(folder: Path) -> list[tuple[str, Path]]:
    """The traces in the log folders of a folder, named, numbers in names as numbers: ``bs8`` is before ``bs16``.

    Raises:
        InferlensError: if a folder cannot be read.
    """
    found = []
    try:
        for log in sorted(filter(Path.is_dir, folder.iterdir()), key=lambda path: _natural(path.name)):
            traces = [path for path in log.iterdir() if path.name.endswith(SUFFIXES) and path.is_file()]
            for path in sorted(traces, key=lambda path: _natural(path.name)):
                found.append((log.name if len(traces) == 1 else f"{log.name}/{path.name}", path))
    except OSError as error:
        raise InferlensError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    return found


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
        waiting=overview.idle["waiting for the host"] + overview.idle["synchronising"] if gpu else None,
    )


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NUMBER.split(name)]
