"""A profile's kernels become rows, one for each name or for each launch, and an account of the GPU's time.

Busy is less than the sum where kernels ran side by side, on several streams. Names are those that CUPTI gives,
demangled; :func:`short_name` writes them in few words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from msgspec.structs import asdict

from inferlens.analysis.profile.layers import (
    Array,
    ProfileRow,
    ProfileTable,
    ProfilingCost,
    Runs,
    RunTimes,
    busy_of,
    profiling_cost,
    runs_of,
)
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Kernel, Kernels, Profile

By = Literal["name", "launch"]
WAYS: tuple[By, ...] = get_args(By)

_NOISE = re.compile(r"_0x[0-9a-f]{16,}|\(anonymous namespace\)::|\{lambda\([^()]*\)#\d+\}")
_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
# In template arguments: data types and containers, which many kernels share, and wrappers of what tells them apart.
_COMMON = re.compile(
    r"^(?:void|const|int|unsigned|signed|long|short|float|double|bool|char|true|false|half|nv_bfloat16|__half2?"
    r"|__nv_\w+|cudnn\w+_t|c10::\w+|std::\w+|at::TensorIteratorBase|at::Tensor|at::detail::\w+|\w*NumericTypeConverter"
    r"|at::native::(?:ReduceOp|gpu_kernel_impl\w*|\w*TensorListMetadata|memory::\w+|TrivialOffset\w*|detail::\w+"
    r"|OpaqueType|UnaryOpFunctor|BinaryFunctor|BUnaryFunctor|AUnaryFunctor)|TrivialOffset\w*|OffsetCalculator)$"
)
_ALONE = ("Kernel", "Kernel2", "device_kernel", "kernel")  # names that say nothing without their arguments


class KernelRow(ProfileRow, frozen=True, kw_only=True):
    """One kernel, or all that have a name."""

    of_busy: float | None  # its share of the time in which the GPU was busy
    layers: tuple[str, ...]  # what its launches came from, each once, in the order of execution
    shapes: int  # different grids, blocks and resources; the next fields are those of what takes most time
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int | None
    shared_memory: int | None
    occupancy: float | None
    achieved: float | None
    tensor_cores: bool | None
    streams: tuple[int, ...]


class GpuAccount(ProfilingCost, frozen=True, kw_only=True):
    """Where the GPU's time went in a run, in seconds."""

    kernels: RunTimes  # what kernels, copies and fills add up to; ``busy``: in which at least one of them ran
    busy: RunTimes
    idle: RunTimes
    overlap: RunTimes  # ``busy`` without ``kernels``: below zero where some ran side by side
    calls: int  # kernels, copies and fills in one run; ``launches``: calls of the runtime that launched them
    launches: int
    attributed: float  # the share of ``kernels`` that is traced to modules
    with_tensor_cores: float  # of those whose names say that they use them
    without_tensor_cores: float


KernelTable = ProfileTable[KernelRow, GpuAccount]


def kernel_table(profile: Profile, unprofiled: Sequence[float] = (), by: By = "name") -> KernelTable | str:
    """The kernels of a profile, in one of the :data:`WAYS`, or the sentence that says why there are none."""
    check_choice("way to group kernels", by, WAYS)
    kernels, runs = profile.kernels, runs_of(profile, "kernel", unprofiled)
    if isinstance(runs, str) or kernels is None:
        return str(runs)
    busy = busy_of(kernels, runs)
    if busy is None:
        return "The profile's GPU busy times are not valid, or not one for each run."
    groups: dict[Any, list[int]] = {}
    for place, kernel in enumerate(kernels.kernels):
        groups.setdefault((kernel.name, kernel.kind) if by == "name" else place, []).append(place)
    typical = [runs.typical(series) for series in runs.layers]
    return KernelTable(
        rows=tuple(_row(places, kernels.kernels, runs, typical, runs.typical(busy)) for places in groups.values()),
        reconciliation=_account(kernels, runs, busy, typical, profiling_cost(runs, unprofiled)),
        members={places[0] + 1: places for places in groups.values()},
        runs=runs,
    )


def _row(places: Sequence[int], kernels: Sequence[Kernel], runs: Runs, typical: list[float], busy: float) -> KernelRow:
    """One row; of different shapes the one that takes most time stands for all."""

    def shape(kernel: Kernel) -> tuple[Any, ...]:
        return kernel.grid, kernel.block, kernel.registers, kernel.shared_memory

    def once(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(values))

    each = [kernels[place] for place in places]
    taken: dict[Any, float] = {}
    for place, kernel in zip(places, each, strict=True):
        taken[shape(kernel)] = taken.get(shape(kernel), 0.0) + typical[place]
    shown = max(each, key=lambda kernel: taken[shape(kernel)])
    timed = any(runs.was_timed[place] for place in places)
    return KernelRow(
        place=places[0] + 1, name=shown.name, kind=shown.kind, calls=sum(kernel.calls for kernel in each),
        times=runs.of_layers(places) if timed else None,
        of_busy=sum(typical[place] for place in places) / busy if timed and busy > 0 else None,
        layers=once(kernel.layer for kernel in each if kernel.layer),
        modules=once(module for kernel in each for module in kernel.modules),
        operators=once(kernel.operator for kernel in each if kernel.operator),
        shapes=len(taken), grid=shown.grid, block=shown.block, registers=shown.registers,
        shared_memory=shown.shared_memory, occupancy=shown.occupancy, achieved=shown.achieved,
        tensor_cores=each[0].tensor_cores,
        streams=tuple(sorted({kernel.stream for kernel in each if kernel.stream is not None})),
    )  # fmt: skip


def _account(kernels: Kernels, runs: Runs, busy: Array, typical: Sequence[float], cost: ProfilingCost) -> GpuAccount:
    total = sum(typical)

    def share(chosen: Iterable[bool]) -> float:
        part = sum(time for time, wanted in zip(typical, chosen, strict=True) if wanted)
        return part / total if total > 0 else 0.0

    return GpuAccount(
        **asdict(cost), kernels=runs.times(runs.sums), busy=runs.times(busy), idle=runs.times(runs.whole - busy),
        overlap=runs.times(busy - runs.sums), calls=sum(kernel.calls for kernel in kernels.kernels),
        launches=kernels.launches,
        attributed=share(bool(kernel.modules) for kernel in kernels.kernels),
        with_tensor_cores=share(kernel.tensor_cores is True for kernel in kernels.kernels),
        without_tensor_cores=share(kernel.tensor_cores is False for kernel in kernels.kernels),
    )  # fmt: skip


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The short name of each; of different kernels that would have the same, with a number."""
    found = {name: short_name(name) for name in names}
    same: dict[str, list[str]] = {}
    for name, short in found.items():
        same.setdefault(short, []).append(name)
    for short, several in same.items():
        if len(several) > 1:
            found |= {name: f"{short} #{number}" for number, name in enumerate(several, 1)}
    return found


def _parted(name: str) -> tuple[str, str]:
    """A demangled name with its namespaces, and what comes behind it, from its template arguments on."""
    plain = _NOISE.sub("", name).removeprefix("void ").strip()
    found = _NAME.match(plain)
    return (found[0], plain[found.end() :]) if found else (plain, "")


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, arguments, hashes, and all but one template argument.

    Of the template arguments the first stays that is no data type: the functor of an elementwise kernel, the kernel
    within a wrapper. Different kernels may have the same: :func:`short_names` tells them apart.
    """
    whole, rest = _parted(name)
    own = whole.rpartition("::")[2]
    if not rest:
        return own or name
    if not rest.startswith("<"):
        return own if rest.startswith("(") else whole + rest
    names = (item[0] for item in _NAME.finditer(_arguments(rest)) if not _COMMON.match(item[0]))
    inner = next(names, "").rpartition("::")[2]
    return inner if inner and own in _ALONE else f"{own}<{inner or '…'}>"


def _arguments(text: str) -> str:
    """What stands between the first angle bracket and the one that closes it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">" and text[place - 1] != "-")
        if depth == 0:
            return text[1:place]
    return ""
