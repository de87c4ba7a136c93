"""Tables of a profile: a row for each layer or kernel with its time, and an account of how they add up.

*Statistics over runs* (mean, median, 95th percentile) show how a time spreads, and do not add up: the median of a sum
is not the sum of medians. *Typical times* do: the mean over the same runs for everything, the middle half of them when
ordered by the whole. A share is a typical time over the typical whole, or of kernels over their sum.

Profiling makes calls longer. If the latency without profiling is known, a profiled run is scaled to it, and its layers
with it. Kernels do not take longer for being profiled: their times stay, unless they exceed the call, and the rest of
the call is the GPU's waiting. Busy time is less than the sum of kernels that ran side by side, on several streams.

Families are the kinds of layers and kernels, from their names: backends use different words for the same. An unknown
word has no family, and no rule applies to it. Names of kernels are those of cuDNN, cuBLAS, CUTLASS, TensorRT, PyTorch
and Triton, demangled as CUPTI gives them; :func:`short_kernel_name` shortens them.
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

from inferlens.analysis.samples import group_by, steady_samples
from inferlens.errors import check_choice
from inferlens.record.profile import Kernel, Kernels, Layer, Level, Profile, Tensor
from inferlens.record.record import Record
from inferlens.stats.intervals import ends, median_interval, ratio_interval
from inferlens.stats.samples import Array, enqueueing_is_bottleneck, gpu_waits_for_host, median, summarise
from inferlens.trace.kernels import kernel_precision

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
# Inductor names a kernel after all that was fused into it: only templates compute convolutions and products, and a
# change of memory order is rarely all that a kernel does.
_INDUCTOR = re.compile(r"triton_(?!tem_)")
_SPLIT = re.compile(r"[\s:]")
_NO_TENSOR_CORES = re.compile(r"gemv|depthwise|dwconv|conv_?dw|_dw_|splitk_?reduce|reduce_?split", re.IGNORECASE)

LEAST_RUNS_TO_TRIM = 4
_LONGEST = 86400.0  # seconds of a run: sums of longer times need not be finite, nor fit a trace
KERNELS_CLOCK = "torch.profiler (CUPTI)"  # start of the clock of layers whose times are those of their kernels
_ROUNDING = 0.005  # of the whole: an excess this small is rounding of the clock

KernelGrouping = Literal["name", "launch"]
KERNEL_GROUPINGS: tuple[KernelGrouping, ...] = get_args(KernelGrouping)
_NOISE = re.compile(r"_0x[0-9a-f]{16,}|\(anonymous namespace\)::|\{lambda\([^()]*\)#\d+\}")
_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
# Template arguments that many kernels share: data types, containers, and wrappers around a distinctive name.
_COMMON = re.compile(
    r"^(?:void|const|int|unsigned|signed|long|short|float|double|bool|char|true|false|half|nv_bfloat16|__half2?"
    r"|__nv_\w+|cudnn\w+_t|c10::\w+|std::\w+|at::TensorIteratorBase|at::Tensor|at::detail::\w+|\w*NumericTypeConverter"
    r"|at::native::(?:ReduceOp|gpu_kernel_impl\w*|\w*TensorListMetadata|memory::\w+|TrivialOffset\w*|detail::\w+"
    r"|OpaqueType|UnaryOpFunctor|BinaryFunctor|BUnaryFunctor|AUnaryFunctor)|TrivialOffset\w*|OffsetCalculator)$"
)
_GENERIC = ("Kernel", "Kernel2", "device_kernel", "kernel")  # names that say nothing without their arguments


def layer_family(kind: str, name: str) -> Family:
    """Return the family of a layer of that kind; if the kind is unknown, recognize an inserted copy by its name."""
    if name.startswith("Reformatting CopyNode"):  # as TensorRT calls them
        return "reformat"
    word = _SPLIT.split(kind.strip().rpartition(".")[2])[0].lower()
    return next((family for family, pattern in _LAYERS if re.fullmatch(pattern, word)), "")


def kernel_family(name: str) -> Family:
    name = name[:2000].lower()
    excluded = (*DENSE, "reformat") if _INDUCTOR.match(name) else ()
    return next((family for family, pattern in _KERNELS if family not in excluded and re.search(pattern, name)), "")


def computed_precision(part: Layer | Kernel) -> str:
    """Return the precision of a layer or kernel; empty if it is unknown, or if it only converts."""
    if is_conversion(part):
        return ""
    return part.precision if isinstance(part, Layer) else kernel_precision(part.name)


def is_conversion(part: Layer | Kernel) -> bool:
    """Return whether it only changes type or memory order, and the model does not ask for it."""
    if isinstance(part, Kernel):
        return kernel_family(part.name) == "reformat"
    family, inserted = layer_family(part.kind, part.name), "inserted" in part.details
    return family == "quantize" or inserted or (family in ("reformat", "cast") and not part.modules)


def could_use_tensor_cores(name: str) -> bool:
    """Return whether a kernel of a convolution or matrix product has work for tensor cores.

    Products with a vector, depthwise convolutions and sums of partial products have none.
    """
    return _NO_TENSOR_CORES.search(name[:2000]) is None


class RunTimes(Struct, frozen=True, kw_only=True):
    """Statistics of a time over the runs, in seconds."""

    typical: float  # mean over the middle half of the runs; these add up
    share: float | None  # ``typical`` over that of the whole, or of all kernels; ``None`` if that took no time
    mean: float
    median: float
    median_low: float | None  # 95 % interval of the median, to ``median_high``; ``None`` with too few runs
    median_high: float | None
    p95: float | None  # ``None`` with too few runs


@dataclass(frozen=True, eq=False)
class Runs:
    """Seconds of every run, and of each layer or kernel in it; zeros for a layer that was not timed."""

    whole: Array  # shape (runs,); ``layers``: shape (layers, runs); ``timed``: whether each layer has times
    layers: Array
    timed: tuple[bool, ...]
    share_of: Literal["run", "kernels"] = "run"  # the base of shares: the run, or the sum of its kernels
    whole_scale: float = 1.0  # the factor that profiled times of runs were scaled by; ``scale``: that of layers
    scale: float = 1.0

    @property
    def profiled(self) -> Array:
        return self.whole / self.whole_scale

    @property
    def count(self) -> int:
        return int(self.whole.size)

    @cached_property
    def sums(self) -> Array:
        return np.asarray(self.layers.sum(axis=0), dtype=np.float64)

    @property
    def outside(self) -> Array:
        """The part of each run in no layer; negative if layers ran at the same time."""
        return self.whole - self.sums

    @cached_property
    def middle(self) -> NDArray[np.intp]:
        """The middle half of the runs, by the whole; all of them if they are few."""
        order = np.argsort(self.whole, kind="stable")
        cut = self.count // 4 if self.count >= LEAST_RUNS_TO_TRIM else 0
        return order[cut : self.count - cut]

    def typical(self, series: Array) -> float:
        return float(series[self.middle].mean())

    @property
    def base(self) -> Array:
        return self.whole if self.share_of == "run" else self.sums

    def share(self, series: Array) -> float | None:
        base = self.typical(self.base)
        return self.typical(series) / base if base > 0 else None

    def times(self, series: Array) -> RunTimes:
        """Return the statistics of a series, a number for each run in their order."""
        summary = summarise(series.tolist())
        assert summary is not None, "a profile without runs has no times"
        low, high = ends(median_interval(series))
        return RunTimes(
            typical=self.typical(series), share=self.share(series), mean=summary.mean, median=summary.median,
            median_low=low, median_high=high, p95=summary.p95,
        )  # fmt: skip

    def layer_times(self, indices: Iterable[int]) -> RunTimes:
        """Return the statistics of the sum of the layers at these indices."""
        return self.times(self.layers[list(indices)].sum(axis=0))

    def with_kernel_shares(self) -> Runs:
        return replace(self, share_of="kernels")

    def unattributed_share(self, profile: Profile) -> float:
        """Return the share of the time of layers or kernels of no known module; 1 without any time."""
        unknown = np.array([not part.modules for part in profile.parts], dtype=bool)
        share = self.with_kernel_shares().share(self.layers[unknown].sum(axis=0))
        return 1.0 if share is None else share


def profile_runs(profile: Profile, level: Level | None = None, unprofiled: Sequence[float] = ()) -> Runs | str:
    """Return the runs of a profile, or the sentence that says why there are none; check its ``level`` if given.

    Impossible times are not repaired. ``unprofiled`` are latency samples of the same case without profiling, in seconds
    and in order, to which runs are scaled; without any they stay as profiled.
    """
    result, parts = profile.timed_runs, profile.parts
    if profile.status != "ok" or result is None:
        return profile.reason or f"It ended as '{profile.status}', and no reason is known."
    if level and getattr(profile, f"{level}s") is None:
        return f"It was not profiled at that level; inferlens profile MODEL --level {level} does that."
    count = len(result.whole)
    if not count or any(len(part.times) not in (0, count) for part in parts):
        return "It has no runs, or not as many times of each layer or kernel as there were runs."
    whole = np.asarray(result.whole, dtype=np.float64)
    times = np.array([part.times or (0.0,) * count for part in parts]).reshape(-1, count)
    if not are_times(whole) or not are_times(times):
        return "A time in it is negative, not finite or more than a day."
    runs = Runs(whole, times, tuple(bool(part.times) for part in parts))
    call = float(np.median(unprofiled)) if len(unprofiled) else 0.0
    profiled = runs.typical(whole)
    if not (call > 0 and profiled > 0):
        return runs
    scale = whole_scale = call / profiled
    if kernels_alone(profile):
        busy = gpu_busy(profile, runs)
        seconds = 0.0 if busy is None else runs.typical(busy)
        scale = min(1.0, call / seconds) if seconds > 0 else 1.0
    return replace(runs, whole=whole * whole_scale, layers=times * scale, whole_scale=whole_scale, scale=scale)


def kernels_alone(profile: Profile) -> bool:
    """Return whether its times are those of kernels alone, which profiling does not stretch."""
    return profile.timed == "GPU" and (profile.level == "kernel" or profile.clock.startswith(KERNELS_CLOCK))


def busy_seconds(kernels: Kernels, runs: Runs) -> Array | None:
    """Return the seconds of each run in which the GPU ran anything; ``None`` if they are impossible or incomplete."""
    busy = np.asarray(kernels.busy, dtype=np.float64)
    return busy * runs.scale if busy.shape == runs.whole.shape and are_times(busy) else None


def gpu_busy(profile: Profile, runs: Runs) -> Array | None:
    """Return the seconds of each run in which a kernel ran; ``None`` unless kernels were timed alone."""
    if not kernels_alone(profile):
        return None
    return busy_seconds(profile.kernels, runs) if profile.kernels else runs.sums


def waits_for_host(profile: Profile, runs: Runs, record: Record | None) -> bool:
    """Return whether unprofiled calls on a GPU are bound by the host, so that faster layers and kernels save nothing.

    With kernels the busy time of the GPU decides, else the time to enqueue a call, from the record that ``runs`` are
    scaled to.
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
    """Return whether all values can be durations: finite, not negative, no more than a day."""
    array = np.asarray(values, dtype=np.float64)
    return bool(((array >= 0) & (array <= _LONGEST)).all())  # NaN is neither


class ProfileRow(Struct, frozen=True, kw_only=True):
    """One layer, one kernel, or all kernels that have a name."""

    place: int  # in the order of execution, from 1; of several kernels that of the first launch
    name: str
    kind: str
    modules: tuple[str, ...]  # its distinct origins in the model; so are ``operators``
    operators: tuple[str, ...]
    calls: int  # executions in a run; ``times`` are of all calls together
    times: RunTimes | None  # ``None`` if it was not timed


class LayerRow(ProfileRow, frozen=True, kw_only=True):
    """One layer; ``precision`` is empty if it is unknown, or if the layer only converts."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    precision: str = ""


class KernelRow(ProfileRow, frozen=True, kw_only=True):
    """One kernel, or all that have a name. A new field that a :class:`Kernel` has, too, needs no more code here."""

    of_busy: float | None  # its share of the time in which the GPU was busy
    layers: tuple[str, ...]  # the distinct layers that launched it, in the order of execution
    shapes: int  # different grids, blocks and resources; the next fields are those with most time
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int | None
    shared_memory: int | None
    occupancy: float | None
    achieved: float | None
    tensor_cores: bool | None
    streams: tuple[int, ...]


class ProfilingCost(Struct, frozen=True, kw_only=True):
    """Seconds of a run, and how much longer a profiled one takes than a call without profiling."""

    runs: int
    whole: RunTimes  # of a run, scaled to ``unprofiled`` if known; ``profiled``: median of the profiled runs
    profiled: float
    unprofiled: float | None = field(name="untouched")  # median latency without profiling, if known
    cost: float | None  # ``profiled`` over ``unprofiled``, with its 95 % interval; ``None`` with too few runs
    cost_low: float | None
    cost_high: float | None


class Reconciliation(ProfilingCost, frozen=True, kw_only=True):
    """Layers against the whole, in seconds."""

    layers: RunTimes
    outside: RunTimes  # the whole less the layers, run by run; negative if layers ran at the same time
    untimed: int

    @property
    def overlaps(self) -> bool:
        """Return whether layers add up to more than the whole, so that some ran at the same time."""
        return self.outside.typical < -_ROUNDING * self.whole.typical


class GpuAccount(ProfilingCost, frozen=True, kw_only=True):
    """Use of the GPU's time in a run, in seconds."""

    kernels: RunTimes  # sum of kernels, copies and fills; ``busy``: in which at least one of them ran
    busy: RunTimes
    idle: RunTimes
    overlap: RunTimes  # ``busy`` without ``kernels``: below zero if some ran side by side
    calls: int  # kernels, copies and fills in one run; ``launches``: calls of the runtime that launched them
    launches: int
    attributed: float  # the share of ``kernels`` that is traced to modules
    with_tensor_cores: float  # the share of kernels whose names say that they use them
    without_tensor_cores: float


RowT = TypeVar("RowT", bound=ProfileRow)
AccountT = TypeVar("AccountT", bound=ProfilingCost)


@dataclass(frozen=True, kw_only=True)
class ProfileTable(Generic[RowT, AccountT]):
    """The layers or kernels of one case in the order of execution, and their account."""

    rows: tuple[RowT, ...]
    reconciliation: AccountT
    members: Mapping[int, Sequence[int]]  # by the ``place`` of a row, the indices of its layers or kernels
    runs: Runs

    def sum_of(self, rows: Iterable[ProfileRow]) -> RunTimes:
        return self.runs.layer_times(place for row in rows for place in self.members[row.place])


LayerTable = ProfileTable[LayerRow, Reconciliation]
KernelTable = ProfileTable[KernelRow, GpuAccount]


def layer_table(profile: Profile, unprofiled: Sequence[float] = ()) -> LayerTable | str:
    """Return the layers of a profile, or the sentence that says why there are none.

    ``unprofiled`` are latency samples without profiling, as for :func:`profile_runs`.
    """
    runs = profile_runs(profile, "layer", unprofiled)
    if isinstance(runs, str) or profile.layers is None:
        return str(runs)
    rows = tuple(
        _row(
            LayerRow, layer, place=number, precision=computed_precision(layer),
            times=runs.times(series) if layer.times else None,
        )
        for number, (layer, series) in enumerate(zip(profile.layers.layers, runs.layers, strict=True), 1)
    )  # fmt: skip
    members = {row.place: (row.place - 1,) for row in rows}
    return LayerTable(rows=rows, reconciliation=reconciliation(runs, unprofiled), members=members, runs=runs)


def _row(kind: type[RowT], part: Layer | Kernel, **computed: Any) -> RowT:
    """Return a row with the ``computed`` fields; all others are copied from the layer or kernel."""
    return kind(**{name: getattr(part, name) for name in kind.__struct_fields__ if name not in computed} | computed)


def reconciliation(runs: Runs, unprofiled: Sequence[float] = ()) -> Reconciliation:
    """Return the layers of these runs against the whole; ``unprofiled`` as in :func:`layer_table`."""
    return Reconciliation(
        **asdict(profiling_cost(runs, unprofiled)),
        layers=runs.times(runs.sums),
        outside=runs.times(runs.outside),
        untimed=runs.timed.count(False),
    )


def profiling_cost(runs: Runs, unprofiled: Sequence[float] = ()) -> ProfilingCost:
    """Return the cost of profiling in these runs; ``unprofiled`` as in :func:`layer_table`."""
    profiled, middle = runs.profiled.tolist(), float(np.median(runs.profiled))
    before = float(np.median(unprofiled)) if len(unprofiled) else None
    low, high = ends(ratio_interval(profiled, unprofiled) if before else None)
    return ProfilingCost(
        runs=runs.count, whole=runs.times(runs.whole), profiled=middle, unprofiled=before,
        cost=middle / before if before else None, cost_low=low, cost_high=high,
    )  # fmt: skip


def kernel_table(profile: Profile, unprofiled: Sequence[float] = (), by: KernelGrouping = "name") -> KernelTable | str:
    """Return the kernels of a profile in one of the :data:`KERNEL_GROUPINGS`, or the sentence that says why not."""
    check_choice("way to group kernels", by, KERNEL_GROUPINGS)
    kernels, runs = profile.kernels, profile_runs(profile, "kernel", unprofiled)
    if isinstance(runs, str) or kernels is None:
        return str(runs)
    busy = busy_seconds(kernels, runs)
    if busy is None:
        return "The profile's GPU busy times are not valid, or not one for each run."
    groups: dict[Any, list[int]] = {}
    for index, kernel in enumerate(kernels.kernels):
        groups.setdefault((kernel.name, kernel.kind) if by == "name" else index, []).append(index)
    typical = [runs.typical(series) for series in runs.layers]
    return KernelTable(
        rows=tuple(_kernel_row(group, kernels.kernels, runs, typical, runs.typical(busy)) for group in groups.values()),
        reconciliation=_account(kernels, runs, busy, typical, profiling_cost(runs, unprofiled)),
        members={indices[0] + 1: indices for indices in groups.values()},
        runs=runs,
    )


def _kernel_row(
    indices: Sequence[int], kernels: Sequence[Kernel], runs: Runs, typical: list[float], busy: float
) -> KernelRow:
    """Return one row; the launch with most time represents all."""

    def distinct(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, values)))

    members = [kernels[index] for index in indices]
    main = kernels[max(indices, key=lambda index: typical[index])]
    shapes = {(kernel.grid, kernel.block, kernel.registers, kernel.shared_memory) for kernel in members}
    timed = any(runs.timed[index] for index in indices)
    return _row(
        KernelRow, main, place=indices[0] + 1, calls=sum(kernel.calls for kernel in members),
        times=runs.layer_times(indices) if timed else None,
        of_busy=sum(typical[index] for index in indices) / busy if timed and busy > 0 else None,
        layers=distinct(kernel.layer for kernel in members),
        modules=tuple(dict.fromkeys(module for kernel in members for module in kernel.modules)),
        operators=distinct(kernel.operator for kernel in members),
        shapes=len(shapes), tensor_cores=members[0].tensor_cores,
        streams=tuple(sorted({kernel.stream for kernel in members if kernel.stream is not None})),
    )  # fmt: skip


def _account(kernels: Kernels, runs: Runs, busy: Array, typical: Sequence[float], cost: ProfilingCost) -> GpuAccount:
    total = sum(typical)

    def share(mask: Iterable[bool]) -> float:
        part = sum(time for time, counts in zip(typical, mask, strict=True) if counts)
        return part / total if total > 0 else 0.0

    return GpuAccount(
        **asdict(cost), kernels=runs.times(runs.sums), busy=runs.times(busy), idle=runs.times(runs.whole - busy),
        overlap=runs.times(busy - runs.sums), calls=sum(kernel.calls for kernel in kernels.kernels),
        launches=kernels.launches,
        attributed=share(bool(kernel.modules) for kernel in kernels.kernels),
        with_tensor_cores=share(kernel.tensor_cores is True for kernel in kernels.kernels),
        without_tensor_cores=share(kernel.tensor_cores is False for kernel in kernels.kernels),
    )  # fmt: skip


def short_kernel_names(names: Iterable[str]) -> dict[str, str]:
    """Return distinct short names: different kernels with the same short name get a number."""
    return {
        name: f"{short} #{number}" if len(group) > 1 else short
        for short, group in group_by(dict.fromkeys(names), short_kernel_name).items()
        for number, name in enumerate(group, 1)
    }


def short_kernel_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces, arguments, hashes, and all but one template argument.

    The first template argument that is no data type stays: the functor of an elementwise kernel, the kernel within a
    wrapper. Different kernels may have the same short name: see :func:`short_kernel_names`.
    """
    text = _NOISE.sub("", name).removeprefix("void ").strip()
    match = _NAME.match(text)
    qualified = match[0] if match else text
    arguments_text = text[len(qualified) :]
    base = qualified.rpartition("::")[2]
    if not arguments_text:
        return base or name
    if not arguments_text.startswith("<"):
        return base if arguments_text.startswith("(") else qualified + arguments_text
    matches = _NAME.finditer(_template_arguments(arguments_text))
    argument = next((match[0] for match in matches if not _COMMON.match(match[0])), "").rpartition("::")[2]
    return argument if argument and base in _GENERIC else f"{base}<{argument or '…'}>"


def _template_arguments(text: str) -> str:
    """Return the text between the first angle bracket and the one that closes it."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "<") - (character == ">" and text[index - 1] != "-")
        if depth == 0:
            return text[1:index]
    return ""
