"""A profile's kernels become rows, one for each name or for each launch, and an account of the GPU's time.

The account says what the rows alone do not: what kernels add up to, how long the GPU was busy with at least one of
them, how long it was idle within a run, and what profiling cost. Busy is less than the sum where kernels ran side by
side, on several streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from msgspec import Struct

from inferlens.analysis.profile.layers import Reconciliation, reconciliation
from inferlens.analysis.profile.runs import Array, Runs, Times, are_times, part_runs
from inferlens.errors import InferlensError, suggestion
from inferlens.record.kernel_profile import Gpu, Kernel, Kernels
from inferlens.record.layer_profile import Profile
from inferlens.units import listing

By = Literal["name", "launch"]
WAYS: tuple[By, ...] = get_args(By)
NO_KERNELS = "It is of layers. inferlens profile MODEL --level kernel profiles kernels, on a GPU."


class KernelRow(Struct, frozen=True, kw_only=True):
    """One kernel, or all that have a name.

    Attributes:
        place: that of its first launch in the order of execution, from 1.
        calls: launches in one run; ``times`` are of all of them together.
        times: ``None`` if it was not timed.
        of_busy: its share of the time in which the GPU was busy.
        layers, modules, operators: what its launches came from, each once, in the order of execution.
        shapes: how many different grids, blocks, registers and sizes of shared memory there are. The four fields, and
            the occupancies, are of those that take most time.
        streams: numbers of the CUDA streams.
    """

    place: int
    name: str
    kind: str
    calls: int
    times: Times | None
    of_busy: float | None
    layers: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    shapes: int = 1
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_memory: int | None = None
    occupancy: float | None = None
    achieved: float | None = None
    tensor_cores: bool | None = None
    streams: tuple[int, ...] = ()


class GpuAccount(Struct, frozen=True, kw_only=True):
    """Where the GPU's time went in a run, in seconds.

    Attributes:
        runs, whole, untouched, cost, cost_low, cost_high: as of layers, see :class:`.layers.Reconciliation`.
        kernels: what kernels, copies and fills add up to.
        busy: in which at least one of them ran.
        idle: the whole without ``busy``.
        overlap: ``busy`` without ``kernels``: below zero where some ran side by side.
        calls: kernels, copies and fills in one run.
        launches: calls of the runtime that launched them.
        attributed: the share of ``kernels`` that is traced to modules, as of ``kernels`` follow.
        with_tensor_cores: of kernels whose names say that they use tensor cores.
        without_tensor_cores: of those that say they do not, of copies and fills.
    """

    runs: int
    kernels: Times
    busy: Times
    idle: Times
    overlap: Times
    whole: Times
    calls: int
    launches: int
    attributed: float
    with_tensor_cores: float
    without_tensor_cores: float
    untouched: float | None
    cost: float | None
    cost_low: float | None
    cost_high: float | None


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """The kernels of one case in the order of execution, and where the GPU's time went.

    Attributes:
        members: for each row the places, from 0, of its kernels in the profile.
        reconciliation: the kernels' sum against the whole, as of layers.
    """

    by: By
    rows: tuple[KernelRow, ...]
    members: tuple[tuple[int, ...], ...]
    account: GpuAccount
    reconciliation: Reconciliation
    runs: Runs
    gpu: Gpu
    clock: str
    absent: dict[str, str]

    def sum_of(self, rows: Iterable[KernelRow]) -> Times:
        """What some of the rows add up to, run by run."""
        of = {row.place: members for row, members in zip(self.rows, self.members, strict=True)}
        places = [place for row in rows for place in of[row.place]]
        return self.runs.times(self.runs.layers[places].sum(axis=0))

    def share_of_busy(self, times: Times) -> float | None:
        """A typical time over that in which the GPU was busy."""
        return times.typical / self.account.busy.typical if self.account.busy.typical > 0 else None


def check_by(by: str) -> None:
    """Refuses rows that there are not.

    Raises:
        InferlensError: if there is no such way.
    """
    if by not in WAYS:
        raise InferlensError(f"There are no rows by '{by}'.", expected=listing(list(WAYS)), hint=suggestion(by, WAYS))


def kernel_table(profile: Profile, untouched: Sequence[float] = (), by: By = "name") -> KernelTable | str:
    """The kernels of a profile, or the sentence that says why there are none.

    Args:
        profile: of one case.
        untouched: latency samples of the same case without profiling, in seconds and in order; may be none.
        by: a row for each ``name``, or for each ``launch``.

    Raises:
        InferlensError: if there are no such rows.
    """
    check_by(by)
    kernels = profile.kernels
    if profile.status == "ok" and kernels is None:
        return NO_KERNELS
    runs = part_runs(profile)
    if isinstance(runs, str) or kernels is None:
        return str(runs)
    busy = busy_of(kernels, runs)
    if busy is None:
        return "Its GPU was busy for times that are none, or not as many as there were runs."
    members = _grouped(kernels.kernels, by)
    fitted = reconciliation(runs, untouched)
    typical = [runs.typical(series) for series in runs.layers]
    return KernelTable(
        by=by,
        rows=tuple(_row(each, kernels.kernels, runs, typical, runs.typical(busy)) for each in members),
        members=members,
        account=_account(kernels, runs, busy, typical, fitted),
        reconciliation=fitted,
        runs=runs,
        gpu=kernels.gpu,
        clock=kernels.clock,
        absent=kernels.absent,
    )


def busy_of(kernels: Kernels, runs: Runs) -> Array | None:
    """Seconds of each run in which the GPU ran anything; ``None`` if these are no times, or not as many as runs."""
    busy = np.asarray(kernels.busy, dtype=np.float64)
    return busy if busy.shape == runs.whole.shape and are_times(busy) else None


def _grouped(kernels: Sequence[Kernel], by: By) -> tuple[tuple[int, ...], ...]:
    """Places of the kernels of each row."""
    found: dict[Any, list[int]] = {}
    for place, kernel in enumerate(kernels):
        found.setdefault((kernel.name, kernel.kind) if by == "name" else place, []).append(place)
    return tuple(map(tuple, found.values()))


def _row(places: Sequence[int], kernels: Sequence[Kernel], runs: Runs, typical: list[float], busy: float) -> KernelRow:
    """One row; of different shapes the one that takes most time stands for all."""
    each = [kernels[place] for place in places]
    taken: dict[Any, float] = {}
    for place, kernel in zip(places, each, strict=True):
        taken[_shape(kernel)] = taken.get(_shape(kernel), 0.0) + typical[place]
    most = max(taken, key=lambda shape: taken[shape])
    of_most = next(kernel for kernel in each if _shape(kernel) == most)
    timed = any(runs.was_timed[place] for place in places)
    return KernelRow(
        place=places[0] + 1,
        name=each[0].name,
        kind=each[0].kind,
        calls=sum(kernel.calls for kernel in each),
        times=runs.times(runs.layers[list(places)].sum(axis=0)) if timed else None,
        of_busy=sum(typical[place] for place in places) / busy if timed and busy > 0 else None,
        layers=_once(kernel.layer for kernel in each if kernel.layer),
        modules=_once(module for kernel in each for module in kernel.modules),
        operators=_once(kernel.operator for kernel in each if kernel.operator),
        shapes=len(taken),
        grid=of_most.grid,
        block=of_most.block,
        registers=of_most.registers,
        shared_memory=of_most.shared_memory,
        occupancy=of_most.occupancy,
        achieved=of_most.achieved,
        tensor_cores=each[0].tensor_cores,
        streams=tuple(sorted({kernel.stream for kernel in each if kernel.stream is not None})),
    )


def _shape(kernel: Kernel) -> tuple[Any, ...]:
    return kernel.grid, kernel.block, kernel.registers, kernel.shared_memory


def _once(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _account(kernels: Kernels, runs: Runs, busy: Array, typical: Sequence[float], fitted: Reconciliation) -> GpuAccount:
    total = sum(typical)

    def share(chosen: Iterable[bool]) -> float:
        part = sum(time for time, wanted in zip(typical, chosen, strict=True) if wanted)
        return part / total if total > 0 else 0.0

    return GpuAccount(
        runs=runs.count,
        kernels=fitted.layers,
        busy=runs.times(busy),
        idle=runs.times(runs.whole - busy),
        overlap=runs.times(busy - runs.sums),
        whole=fitted.whole,
        calls=sum(kernel.calls for kernel in kernels.kernels),
        launches=kernels.launches,
        attributed=share(bool(kernel.modules) for kernel in kernels.kernels),
        with_tensor_cores=share(kernel.tensor_cores is True for kernel in kernels.kernels),
        without_tensor_cores=share(kernel.tensor_cores is False for kernel in kernels.kernels),
        untouched=fitted.untouched,
        cost=fitted.cost,
        cost_low=fitted.cost_low,
        cost_high=fitted.cost_high,
    )
