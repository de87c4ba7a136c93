"""What a layer or a kernel does, from its name: backends use different words for the same.

A word that is not known has no family, and no rule speaks of it. Kernels' names are those of cuDNN, cuBLAS, CUTLASS,
TensorRT, PyTorch and Triton.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict
from numpy.typing import NDArray

from inferlens.analysis.samples import steady_samples
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Kernel, Kernels, Layer, Level, Profile, Tensor
from inferlens.record.record import Record
from inferlens.stats.host_bound import enqueueing_is_bottleneck, gpu_waits_for_host
from inferlens.stats.intervals import ends, median_interval, ratio_interval
from inferlens.stats.samples import Array, median, summarise
from inferlens.trace.precision import kernel_precision

Family = Literal[
    "", "convolution", "matrix product", "normalisation", "activation", "elementwise",
    "reformat", "cast", "quantize", "copy",
]  # fmt: skip
POINTWISE: tuple[Family, ...] = ("normalisation", "activation", "elementwise")
DENSE: tuple[Family, ...] = ("convolution", "matrix product")
MOVING: tuple[Family, ...] = ("reformat", "cast", "quantize", "copy")

_LAYERS: tuple[tuple[Family, str], ...] = (
    ("reformat", r"reorder(input|output)?|reformat|reformatting|transpose|permute|shuffle"),
    ("cast", r"cast|convert"),
    ("quantize", r"(dynamic|fake)?(re|de)?quantize(linear)?(_per_(tensor|channel|token)(_group)?)?"),
    ("copy", r"memcpy(from|to)host"),
    (
        "convolution",
        r"(lazy)?conv(transpose)?[123]d|((nhwc|fused|qlinear|cask|group|de)*conv(olution|transpose|integer)?)"
        r"|(group)?convolutionbackpropdata|correlation",  # the last as TensorRT's compiler calls them
    ),
    (
        "matrix product",
        r"(lazy|nondynamicallyquantizable|bi)?linear|(fused|qlinear|cask|transpose|batch)*(gemm|matmul)(integer|nbits)?"
        r"|matrix_?multiply|fullyconnected|inner_?product",
    ),
    (
        "normalisation",
        r"\w*(batch|layer|group|instance|rms)_?norm(alization)?(act)?([123]d)?|mvn|localresponsenorm|lrn",
    ),
    (
        "activation",
        r"(leaky|p|r|fused)?relu6?|(bias|fast|quick)?gelu(activation)?|[ces]elu|silu|swish|hard(swish|sigmoid|tanh)"
        r"|(log)?sigmoid|tanh|mish|softplus|softsign|clip|clamp|activation",
    ),
    (
        "elementwise",
        r"add|sub(tract)?|mul(tiply)?|div(ide)?|pow(er)?|sqrt|exp|neg|abs|erf|where|sum|eltwise|elementwise"
        r"|pointwise(v2)?|unary|scale|dropout",
    ),
)
_KERNELS: tuple[tuple[Family, str], ...] = (
    ("", r"resample|pool(ing|2d|3d|fwd)|pool_"),
    ("reformat", r"nchwto|nhwcto|tonchw|tonhwc|transpose|permute|reformat|copypacked|copyvectorized"),
    ("convolution", r"conv|fprop|winograd|implicit_?gemm|dgrad"),
    ("matrix product", r"gemm|gemv|cutlass|cublas|matmul|nvjet|splitk|_(badd|add|b)?mm_"),
    ("normalisation", r"batch_?norm|bn_fw|layer_?norm|group_?norm|rms_?norm"),
    ("activation", r"relu|gelu|silu|sigmoid|tanh|clamp"),
    ("elementwise", r"elementwise|pointwise|triton_poi|pwgen"),
)
# Inductor names a kernel after all that it was fused from: only templates compute convolutions and products, and what
# changes memory order does other things too.
_INDUCTOR = re.compile(r"triton_(?!tem_)")
_SPLIT = re.compile(r"[\s:]")
BATCH_NORM = re.compile(r"batch_?norm", re.IGNORECASE)
_NO_TENSOR_CORES = re.compile(r"gemv|depthwise|dwconv|conv_?dw|_dw_|splitk_?reduce|reduce_?split", re.IGNORECASE)


def of_layer(kind: str, name: str) -> Family:
    """The family of a layer of that kind; of one whose kind is not known, if its name is that of an inserted copy."""
    if name.startswith("Reformatting CopyNode"):  # as TensorRT calls them
        return "reformat"
    word = _SPLIT.split(kind.strip().rpartition(".")[2])[0].lower()
    return next((family for family, pattern in _LAYERS if re.fullmatch(pattern, word)), "")


def of_kernel(name: str) -> Family:
    """The family of a kernel of that name."""
    low = name[:2000].lower()
    known = [item for item in _KERNELS if item[0] not in (*DENSE, "reformat")] if _INDUCTOR.match(low) else _KERNELS
    return next((family for family, pattern in known if re.search(pattern, low)), "")


def computed_in(part: Layer | Kernel) -> str:
    """The precision that a layer or kernel computes in; empty where that is not known, or if it only converts."""
    if is_conversion(part):
        return ""
    return part.precision if isinstance(part, Layer) else kernel_precision(part.name)


def is_conversion(part: Layer | Kernel) -> bool:
    """Whether it only changes type or memory order, and the model does not ask for it."""
    if isinstance(part, Kernel):
        return of_kernel(part.name) == "reformat"
    family = of_layer(part.kind, part.name)
    added = "inserted" in part.details or not part.modules
    return family == "quantize" or "inserted" in part.details or (family in ("reformat", "cast") and added)


def could_use_tensor_cores(name: str) -> bool:
    """Whether a kernel of a convolution or matrix product has work for tensor cores.

    Products with a vector, depthwise convolutions and sums of partial products have not.
    """
    return _NO_TENSOR_CORES.search(name[:2000]) is None


# The times of one profile's runs, a row for each of its layers, and how layers and the whole fit together.
#
# *Statistics over runs* (mean, median, 95th percentile) say how a time spreads, and do not add up: the median of a sum is
# not the sum of medians. *Typical times* do: the mean over the same runs for everything, the middle half of them when
# ordered by the whole. A share is a typical time over the typical whole, or of kernels over what they add up to.
#
# Profiling makes calls longer, so times are those of a call without it, where its latency is known: a profiled run is
# scaled to it, and the layers with it. Kernels do not take longer for being profiled: their times stay, unless they are
# more than the call, and what they leave of it is the GPU's waiting.

LEAST_RUNS_TO_TRIM = 4
_LONGEST = 86400.0  # what takes longer than a day is no run: sums of such times need not be finite, nor fit a trace
KERNELS_CLOCK = "torch.profiler (CUPTI)"  # how the clock of layers begins whose times are those of their kernels
_ROUNDING = 0.005  # of the whole: what adds up to so little more than it does so by the clock's rounding


class RunTimes(Struct, frozen=True, kw_only=True):
    """What a time came to over the runs, in seconds."""

    typical: float  # mean over the middle half of the runs; these add up
    share: float | None  # ``typical`` over that of the whole, or of all kernels; ``None`` if that took no time
    mean: float
    median: float
    median_low: float | None  # 95 % interval of the median, to ``median_high``; ``None`` with too few runs
    median_high: float | None
    p95: float | None  # ``None`` with too few runs


@dataclass(frozen=True, eq=False)
class Runs:
    """Seconds of every run: of the whole, and of each layer, or kernel; zeros for one that was not timed."""

    whole: Array  # shape (runs,); ``layers``: shape (layers, runs); ``was_timed``: whether each layer was
    layers: Array
    was_timed: tuple[bool, ...]
    share_of: Literal["run", "kernels"] = "run"  # what shares are of; ``kernels``: all in it, added up
    whole_scale: float = 1.0  # by what the profiled times of runs were multiplied; ``scale``: those of layers
    scale: float = 1.0

    @property
    def profiled(self) -> Array:
        """What the whole of each run took while it was profiled."""
        return self.whole / self.whole_scale

    @property
    def count(self) -> int:
        """How many runs there were."""
        return int(self.whole.size)

    @cached_property
    def sums(self) -> Array:
        """What the layers of each run add up to."""
        return np.asarray(self.layers.sum(axis=0), dtype=np.float64)

    @property
    def outside(self) -> Array:
        """The part of each run that was in no layer; negative where layers ran at the same time."""
        return self.whole - self.sums

    @cached_property
    def middle(self) -> NDArray[np.intp]:
        """The middle half of the runs, by the whole; all of them where they are few."""
        order = np.argsort(self.whole, kind="stable")
        cut = self.count // 4 if self.count >= LEAST_RUNS_TO_TRIM else 0
        return order[cut : self.count - cut]

    def typical(self, series: Array) -> float:
        """The mean of a series over the middle half of the runs."""
        return float(series[self.middle].mean())

    @property
    def base(self) -> Array:
        """What shares are of, in each run."""
        return self.whole if self.share_of == "run" else self.sums

    def share(self, series: Array) -> float | None:
        """The typical time of a series over that of what shares are of."""
        base = self.typical(self.base)
        return self.typical(series) / base if base > 0 else None

    def times(self, series: Array) -> RunTimes:
        """What a series, a number for each run in their order, comes to."""
        summary = summarise(series.tolist())
        assert summary is not None, "a profile without runs has no times"
        low, high = ends(median_interval(series))
        return RunTimes(
            typical=self.typical(series), share=self.share(series), mean=summary.mean, median=summary.median,
            median_low=low, median_high=high, p95=summary.p95,
        )  # fmt: skip

    def layer_times(self, places: Iterable[int]) -> RunTimes:
        """What the layers at these places, from 0, add up to, run by run."""
        return self.times(self.layers[list(places)].sum(axis=0))

    def with_kernel_shares(self) -> Runs:
        """The same runs, in which shares are of all kernels."""
        return replace(self, share_of="kernels")

    def unattributed_share(self, profile: Profile) -> float:
        """The share of the time of its layers or kernels that is of no known module; all of no time at all."""
        unknown = np.array([not part.modules for part in profile.parts], dtype=bool)
        share = self.with_kernel_shares().share(self.layers[unknown].sum(axis=0))
        return 1.0 if share is None else share


class ProfileRow(Struct, frozen=True, kw_only=True):
    """One layer, one kernel, or all kernels that have a name."""

    place: int  # its place in the order of execution, from 1; of several kernels that of the first launch
    name: str
    kind: str
    modules: tuple[str, ...]  # what it came from, each once; so are ``operators``
    operators: tuple[str, ...]
    calls: int  # how often it is executed in a run; ``times`` are of all calls together
    times: RunTimes | None  # ``None`` if it was not timed


class LayerRow(ProfileRow, frozen=True, kw_only=True):
    """One layer; ``precision`` is what it computes in, empty where that is not known or it only converts."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    precision: str = ""


class ProfilingCost(Struct, frozen=True, kw_only=True):
    """What a run took, in seconds, and how much longer a profiled one is than a call that is not profiled."""

    runs: int
    whole: RunTimes  # of a run, scaled to ``unprofiled`` where that is known; ``profiled``: median of the profiled ones
    profiled: float
    unprofiled: float | None = field(name="untouched")  # median latency without profiling, if it is known
    cost: float | None  # ``profiled`` over ``unprofiled``, with its 95 % interval; ``None`` with too few runs
    cost_low: float | None
    cost_high: float | None


class Reconciliation(ProfilingCost, frozen=True, kw_only=True):
    """How the layers and the whole fit together, in seconds.

    ``outside`` is the whole less the layers, run by run; negative where layers ran at the same time.
    """

    layers: RunTimes
    outside: RunTimes
    untimed: int

    @property
    def overlaps(self) -> bool:
        """Whether layers add up to more than the whole, so that some ran at the same time."""
        return self.outside.typical < -_ROUNDING * self.whole.typical


RowT = TypeVar("RowT", bound=ProfileRow)
AccountT = TypeVar("AccountT", bound=ProfilingCost)


@dataclass(frozen=True, kw_only=True)
class ProfileTable(Generic[RowT, AccountT]):
    """The layers or kernels of one case in the order of execution, and how they and the whole fit together.

    ``members`` are, by each row's place, the places from 0 of the layers or kernels that are in it.
    """

    rows: tuple[RowT, ...]
    reconciliation: AccountT
    members: Mapping[int, Sequence[int]]
    runs: Runs

    def sum_of(self, rows: Iterable[ProfileRow]) -> RunTimes:
        """What some of the rows add up to, run by run."""
        return self.runs.layer_times(place for row in rows for place in self.members[row.place])


LayerTable = ProfileTable[LayerRow, Reconciliation]


def layer_table(profile: Profile, unprofiled: Sequence[float] = ()) -> LayerTable | str:
    """The layers of a profile, or the sentence that says why there are none.

    ``unprofiled`` are latency samples of the same case without profiling, in seconds and in order; may be none.
    """
    runs = runs_of(profile, "layer", unprofiled)
    if isinstance(runs, str) or profile.layers is None:
        return str(runs)
    rows = tuple(
        LayerRow(
            place=place, name=layer.name, kind=layer.kind, modules=layer.modules, operators=layer.operators,
            inputs=layer.inputs, outputs=layer.outputs, calls=layer.calls, precision=computed_in(layer),
            times=runs.times(series) if layer.times else None,
        )
        for place, (layer, series) in enumerate(zip(profile.layers.layers, runs.layers, strict=True), 1)
    )  # fmt: skip
    members = {row.place: (row.place - 1,) for row in rows}
    return LayerTable(rows=rows, reconciliation=reconciliation(runs, unprofiled), members=members, runs=runs)


def reconciliation(runs: Runs, unprofiled: Sequence[float] = ()) -> Reconciliation:
    """How the layers of these runs and the whole fit together; ``unprofiled`` as in :func:`layer_table`."""
    return Reconciliation(
        **asdict(profiling_cost(runs, unprofiled)),
        layers=runs.times(runs.sums),
        outside=runs.times(runs.outside),
        untimed=runs.timed.count(False),
    )


def profiling_cost(runs: Runs, unprofiled: Sequence[float] = ()) -> ProfilingCost:
    """What these runs took against calls that are not profiled; ``unprofiled`` as in :func:`layer_table`."""
    profiled, middle = runs.profiled.tolist(), float(np.median(runs.profiled))
    before = float(np.median(unprofiled)) if len(unprofiled) else None
    low, high = ends(ratio_interval(profiled, unprofiled) if before else None)
    return ProfilingCost(
        runs=runs.count, whole=runs.times(runs.whole), profiled=middle, unprofiled=before,
        cost=middle / before if before else None, cost_low=low, cost_high=high,
    )  # fmt: skip


def runs_of(profile: Profile, level: Level | None = None, unprofiled: Sequence[float] = ()) -> Runs | str:
    """The runs of a profile, of ``level`` if it is given, or the sentence that says why there is nothing to show.

    Times that cannot be right are not repaired. ``unprofiled`` as in :func:`layer_table`: calls that runs are scaled
    to; without any they stay as they were profiled.
    """
    found, parts = profile.found, profile.parts
    if profile.status != "ok" or found is None:
        return profile.reason or f"It ended as '{profile.status}', and no reason is known."
    if level and getattr(profile, f"{level}s") is None:
        return f"It was not profiled at that level; inferlens profile MODEL --level {level} does that."
    count = len(found.whole)
    if not count or any(len(part.times) not in (0, count) for part in parts):
        return "It has no runs, or not as many times of each layer or kernel as there were runs."
    whole = np.asarray(found.whole, dtype=np.float64)
    times = np.array([part.times or (0.0,) * count for part in parts]).reshape(-1, count)
    if not are_times(whole) or not are_times(times):
        return "A time in it is negative, not finite or more than a day."
    runs = Runs(whole, times, tuple(bool(part.times) for part in parts))
    return _in_a_call(runs, profile, float(np.median(unprofiled)) if len(unprofiled) else 0.0)


def _in_a_call(runs: Runs, profile: Profile, call: float) -> Runs:
    """Runs that take as long as an unprofiled call."""
    profiled = runs.typical(runs.whole)
    if not (call > 0 and profiled > 0):
        return runs
    scale = whole = call / profiled
    if kernels_alone(profile):
        busy = gpu_busy(profile, runs)
        taken = 0.0 if busy is None else runs.typical(busy)
        scale = min(1.0, call / taken) if taken > 0 else 1.0
    return replace(runs, whole=runs.whole * whole, layers=runs.layers * scale, whole_scale=whole, scale=scale)


def kernels_alone(profile: Profile) -> bool:
    """Whether its times are those of kernels alone, which profiling does not stretch."""
    return profile.timed == "GPU" and (profile.level == "kernel" or profile.clock.startswith(KERNELS_CLOCK))


def busy_of(kernels: Kernels, runs: Runs) -> Array | None:
    """Seconds of each run in which the GPU ran anything; ``None`` if these are no times, or not as many as runs."""
    busy = np.asarray(kernels.busy, dtype=np.float64)
    return busy * runs.scale if busy.shape == runs.whole.shape and are_times(busy) else None


def gpu_busy(profile: Profile, runs: Runs) -> Array | None:
    """Seconds of each run of a profile in which a kernel ran; ``None`` where nobody timed kernels alone."""
    if not kernels_alone(profile):
        return None
    return busy_of(profile.kernels, runs) if profile.kernels else runs.sums


def waits_for_host(profile: Profile, runs: Runs, record: Record | None) -> bool:
    """Whether unprofiled calls of a case on a GPU are bound by the host, so that faster layers and kernels win nothing.

    Of kernels it is known how long the GPU works; of layers the record of these calls, which ``runs`` are scaled to,
    tells how long enqueueing takes.
    """
    latency = steady_samples(record, "latency").samples if record else ()
    if not (record and latency) or profile.case.device == "cpu":
        return False
    busy, call = gpu_busy(profile, runs), median(latency)
    if busy is not None:
        return gpu_waits_for_host(call - runs.typical(busy), call)
    enqueue = steady_samples(record, "enqueue time").samples
    return bool(enqueue) and enqueueing_is_bottleneck(median(enqueue), call)


def are_times(values: Array | Sequence[float]) -> bool:
    """Whether all of these can be seconds that something took: finite, not negative, no more than a day."""
    found = np.asarray(values, dtype=np.float64)
    return bool(((found >= 0) & (found <= _LONGEST)).all())  # which what is not a number is not


# A profile's kernels become rows, one for each name or for each launch, and an account of the GPU's time.
#
# Busy is less than the sum where kernels ran side by side, on several streams. Names are those that CUPTI gives,
# demangled; :func:`short_name` writes them in few words.

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
        rows=tuple(
            _kernel_row(places, kernels.kernels, runs, typical, runs.typical(busy)) for places in groups.values()
        ),
        reconciliation=_account(kernels, runs, busy, typical, profiling_cost(runs, unprofiled)),
        members={places[0] + 1: places for places in groups.values()},
        runs=runs,
    )


def _kernel_row(
    places: Sequence[int], kernels: Sequence[Kernel], runs: Runs, typical: list[float], busy: float
) -> KernelRow:
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
    timed = any(runs.timed[place] for place in places)
    return KernelRow(
        place=places[0] + 1, name=shown.name, kind=shown.kind, calls=sum(kernel.calls for kernel in each),
        times=runs.layer_times(places) if timed else None,
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
    names = (item[0] for item in _NAME.finditer(_template_arguments(rest)) if not _COMMON.match(item[0]))
    inner = next(names, "").rpartition("::")[2]
    return inner if inner and own in _ALONE else f"{own}<{inner or '…'}>"


def _template_arguments(text: str) -> str:
    """What stands between the first angle bracket and the one that closes it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">" and text[place - 1] != "-")
        if depth == 0:
            return text[1:place]
    return ""
