"""What the rules look at: the profiles of one case, and the record of its unprofiled calls; worked out once.

What is absent is ``None`` or empty, and the rules that need it are silent. Nothing here is repaired: a profile whose
times cannot be right counts as absent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.rule import Number
from inferlens.analysis.interference.samples import latencies
from inferlens.analysis.profile import families
from inferlens.analysis.profile.families import Family
from inferlens.analysis.profile.kernels import short_name
from inferlens.analysis.profile.layers import LayerTable, Runs, RunTimes, busy_of, layer_table, runs_of
from inferlens.analysis.profile.precision import Precisions, precisions
from inferlens.analysis.profile.roofline import Floor, Roofline, precision_of, roofline
from inferlens.record.layer_profile import Kernel, Kernels, Layer, Profile
from inferlens.record.record import Record
from inferlens.spec import hints
from inferlens.spec.case import QUANTIZED, Case, Option
from inferlens.spec.hints import Hint
from inferlens.spec.plan import bench_words, command
from inferlens.stats.host_bound import gpu_waits
from inferlens.stats.quantiles import median
from inferlens.units import duration, listing, percent, plural, ratio

# Compute capability of the first tensor cores: Volta, Ampere, Turing, Ada.
FIRST = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "int8": (7, 2), "fp8": (8, 9)}
# Elements in 16 bytes: what channels should be multiples of (NVIDIA, "Matrix Multiplication Background", table 1).
MULTIPLES = {"fp16": 8, "bf16": 8, "tf32": 4, "int8": 16, "fp8": 16}
# The next lower precision, as a command's options have it.
LOWER = {"fp32": "fp16", "tf32": "fp16", **dict.fromkeys(("fp16", "bf16"), "int8 --calibration random")}
LARGER = (8, 32)  # times the batch, to see whether a larger one helps
_LONGEST, _FEW = 60, 3


def short(name: str) -> str:
    """A name that a sentence can bear, its middle left out if it is long."""
    text = " ".join(name[:5000].split()) or "(no name)"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def few(names: Iterable[str], most: int = _FEW) -> str:
    """``a, b, c and 4 others``, each name once."""
    once = list(dict.fromkeys(names))
    rest = len(once) - most
    return listing(once if rest <= 0 else [*once[:most], plural(rest, "other")])


@dataclass(frozen=True)
class TimedLayer:
    """One layer, with its times and its floor where they are known."""

    layer: Layer
    times: RunTimes | None
    floor: Floor | None

    @cached_property
    def family(self) -> Family:
        """What it does."""
        return families.of_layer(self.layer.kind, self.layer.name)

    @property
    def name(self) -> str:
        """The modules that it came from, where these are few, else as the backend names it."""
        paths = self.layer.modules
        return " + ".join(map(module, paths)) if 0 < len(paths) <= _FEW else short(self.layer.name)

    @property
    def kind(self) -> str:
        """In the backend's words."""
        return short(self.layer.kind) if self.layer.kind else "of no known kind"

    @property
    def seconds(self) -> float:
        """Its typical time in one run; zero where it was not timed."""
        return self.times.typical if self.times else 0.0

    @property
    def steady(self) -> float:
        """Its typical time or its median, whichever is less: what a rule about a single layer may claim.

        A few disturbed runs change the mean of one layer, though not that of the whole.
        """
        return min(self.times.typical, self.times.median) if self.times else 0.0


@dataclass(frozen=True)
class TimedKernel:
    """One kernel, copy or fill with the typical seconds of all its calls in one run."""

    kernel: Kernel
    seconds: float

    @cached_property
    def family(self) -> Family:
        """What it does; empty of copies and fills."""
        return families.of_kernel(self.kernel.name) if self.kernel.kind == "kernel" else ""

    @property
    def name(self) -> str:
        """The module that it came from, or its own name without namespaces and arguments."""
        return module(self.kernel.modules[0]) if self.kernel.modules else short(short_name(self.kernel.name))

    @property
    def kind(self) -> str:
        """A kernel, a copy or a fill."""
        return self.kernel.kind

    @property
    def blocks(self) -> int:
        """Blocks of its grid; 0 where that is not known."""
        return math.prod(self.kernel.grid) if self.kernel.grid else 0


def module(path: str) -> str:
    """A module's path; the model itself has none."""
    return short(path) if path else "the model"


Piece = TypeVar("Piece", TimedLayer, TimedKernel)


@dataclass(frozen=True)
class Pieces(Generic[Piece]):
    """Several layers, or kernels, and what they take together."""

    pieces: tuple[Piece, ...]
    base: float  # the seconds that ``share`` is of; ``of``: these in words
    of: str
    run: float | None  # the seconds of the call, where kernels were timed; those of layers are scaled to it

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces)

    @cached_property
    def seconds(self) -> float:
        """What they add up to."""
        return sum(piece.seconds for piece in self.pieces)

    @property
    def share(self) -> float:
        """That as a share of ``base``."""
        return self.seconds / self.base if self.base else 0.0

    @property
    def calls(self) -> int:
        """How often they are executed in a run."""
        return sum(piece.layer.calls if isinstance(piece, TimedLayer) else piece.kernel.calls for piece in self.pieces)

    @property
    def numbers(self) -> dict[str, Number]:
        """How many there are, layers or kernel calls, and what they take."""
        layers = any(isinstance(piece, TimedLayer) for piece in self.pieces)
        return {"seconds": self.seconds, **({"layers": len(self)} if layers else {"calls": self.calls})}

    @property
    def much(self) -> str:
        """``25 % of the call (2.00 ms of 8.00 ms)``."""
        return f"{percent(self.share)} of {self.of} ({duration(self.seconds)} of {duration(self.base)})"

    @property
    def longest(self) -> str:
        """Those that take most, by name: ``conv1, layer1 and fc``; of kernels two, and how many others there are."""
        names = list(dict.fromkeys(piece.name for piece in sorted(self.pieces, key=lambda piece: -piece.seconds)))
        return listing(names[:_FEW]) if "layers" in self.numbers else few(names, 2)

    @property
    def where(self) -> str:
        """The end of a sentence: ``: conv1``, or ``, most in conv1``, which takes most."""
        first = max(self.pieces, key=lambda piece: piece.seconds).name
        return f", most in {first}" if len(self) > 1 else f": {first}"

    @property
    def kinds(self) -> str:
        """``7 Reorder and 2 Transpose``, or ``Reorder`` for a single one."""
        counts = Counter(piece.kind for piece in self.pieces).most_common()
        return counts[0][0] if len(self) == 1 else few([f"{count:,} {kind}" for kind, count in counts], 2)


class HostWait(NamedTuple):
    """How long a GPU waits for the host, of how many seconds, what it does else, and the numbers that say so.

    ``traced``: while a profiler slowed the host.
    """

    idle: float
    whole: float
    calls: int
    mean: float
    numbers: Mapping[str, Number]
    traced: bool = False


@dataclass(frozen=True)
class Evidence:
    """All that is known of one case."""

    profiles: tuple[Profile, ...]  # of one case on one machine, at most one of each level
    record: Record | None  # of the same case, timed unprofiled
    plain: Record | None = None  # of a quantized case, the record of the same in fp32
    # Ways of other backends that were measured, and their seconds if they ran.
    rivals: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        """What was profiled."""
        return self.profiles[0].case

    @property
    def on_gpu(self) -> bool:
        """Whether the case runs on a GPU."""
        return self.case.device != "cpu"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the GPU; ``(0, 0)`` where that is not known."""
        gpus = self.profiles[0].environment.gpus
        major, _, minor = (gpus[0].compute_capability if gpus else "").partition(".")
        return (int(major), int(minor)) if f"{major}{minor}".isdecimal() and len(major + minor) < 9 else (0, 0)

    @property
    def precision(self) -> str:
        """What was computed in: the case's precision, or ``tf32`` where fp32 was lowered."""
        return precision_of(self.profiles[0], self.record)

    @cached_property
    def multiple(self) -> int:
        """What channels should be multiples of for tensor cores; 0 where there are none, or the precision uses none."""
        if not self.on_gpu or self.precision not in MULTIPLES or (0, 0) < self.capability < FIRST[self.precision]:
            return 0
        return MULTIPLES[self.precision]

    @cached_property
    def facts(self) -> dict[str, object]:
        """What the backend said of how it ran the model; the record's count first."""
        found: dict[str, object] = {}
        for profile in reversed(self.profiles):
            found |= profile.facts
        return found | (self.record.facts if self.record else {})

    def hint(self, option: str, value: Option = True) -> Hint:
        """How the case gets what an option of that name does, whatever its backend has for it."""
        return hints.hint(self.case, option, value, self.facts)

    def command(self, *asks: str, others: bool = False, larger: bool = False, what: str = "bench") -> str:
        """Return a command or call to paste: ``what`` of the case with more options, a larger batch or all others."""
        device = "cuda" if self.profiles[0].environment.gpus else "cpu"
        batches = [(self.case.batch or 1) * times for times in LARGER] if larger else []
        words = bench_words(self.case, device, list(filter(None, asks)), others=others, batches=batches)
        return command(what, words, self.case.checkout)

    def advice(self, *tries: str, asks: Sequence[str] = (), others: str = "") -> str:
        """Return what to try, with the command for what is asked, or else for ``others``: what other backends may do.

        Where these were measured already, it is what else to try, or what is left.
        """
        asks = list(filter(None, asks))
        if not asks and self.rivals:
            return hints.sentence(tries) if any(tries) else self.last_resort
        said = hints.sentence(tries if asks else [*tries, others]).removesuffix(".")
        return f"{said}: {self.command(*asks, others=not asks)}"

    @property
    def last_resort(self) -> str:
        """What to try where nothing else helps: a way that was measured and is faster, or less or lower work."""
        name, seconds = min(((name, item) for name, item in self.rivals.items() if item), key=lambda pair: pair[1],
                            default=("", 0.0))  # fmt: skip
        if seconds and self.latency and self.latency > thresholds.FASTER_WAY * seconds:
            return f"Take {name}, which was measured: {ratio(self.latency / seconds)} as fast."
        lower = LOWER.get(self.precision, "") if self.on_gpu or self.precision != "fp32" else "bf16"
        command = self.command(f"--precision {lower}") if lower else self.command(larger=True)
        measured = "Other backends were measured and are no faster; only" if self.rivals else "Only"
        return f"{measured} a lower precision, a smaller model or a larger batch helps: {command}"

    # Of the unprofiled calls

    @cached_property
    def latency(self) -> float | None:
        """Median of unprofiled calls."""
        samples = latencies(self.record).samples if self.record else ()
        return median(samples) if samples else None

    @property
    def call(self) -> float | None:
        """Seconds that a call takes: an unprofiled one if that is known, else one whose kernels were profiled."""
        if self.latency:
            return self.latency
        return self._kernels[1].typical(self._kernels[1].whole) if self._kernels else None

    # Of the layers

    @cached_property
    def layered(self) -> Profile | None:
        """The profile that has layers."""
        return next((profile for profile in self.profiles if profile.layers), None)

    @cached_property
    def table(self) -> LayerTable | None:
        """The layers with their times, and how they add up."""
        if self.layered is None:
            return None
        table = layer_table(self.layered, latencies(self.record).samples if self.record else ())
        return None if isinstance(table, str) or not table.rows else table

    @cached_property
    def floors(self) -> Roofline | None:
        """The layers against what the device reaches at best, where the work and the ceilings are known."""
        found = roofline(self.layered, self.record) if self.layered else ""
        return None if isinstance(found, str) or not found.known else found

    @cached_property
    def parts(self) -> tuple[TimedLayer, ...]:
        """The layers in the order of execution."""
        if self.table is None or self.layered is None or self.layered.layers is None:
            return ()
        floors = {row.place: row for row in self.floors.rows if row.floor is not None} if self.floors else {}
        pairs = zip(self.layered.layers.layers, self.table.rows, strict=True)
        return tuple(TimedLayer(layer, row.times, floors.get(row.place)) for layer, row in pairs)

    @cached_property
    def by_module(self) -> bool:
        """Whether every layer is a module, as in eager PyTorch: nothing has compiled the model."""
        return bool(self.parts) and all(part.layer.modules == (part.layer.name,) for part in self.parts)

    @property
    def profiled(self) -> float | None:
        """Seconds of the call that times of layers are scaled to; where it is not known, of a profiled one."""
        return self.latency or (self.table.reconciliation.whole.typical if self.table else self.call)

    @property
    def of_layers(self) -> str:
        """What shares of layers are of, in words: those of a call that waits for the host are timed there."""
        waits = (wait := self.host_wait) and gpu_waits(wait.idle, wait.whole)
        return "the host's time" if waits else "the call" if self.latency else "the profiled call"

    def share(self, seconds: float) -> float:
        """Seconds of layers as a share of a call."""
        return seconds / self.profiled if self.profiled else 0.0

    def layers(self, parts: Iterable[TimedLayer]) -> Pieces[TimedLayer]:
        """Those of some layers that took any time, as shares of a call."""
        timed = tuple(part for part in parts if part.seconds > 0)
        return Pieces(timed, self.profiled or 0.0, self.of_layers, None)

    @cached_property
    def precisions(self) -> Precisions | None:
        """In what the layers of a case that is to be quantized compute; ``None`` of others, or where nothing tells."""
        if self.table is None or self.layered is None or self.case.precision not in QUANTIZED:
            return None
        return precisions(self.layered, self.table.runs)

    # Of the kernels

    @cached_property
    def _kernels(self) -> tuple[Kernels, Runs] | None:
        """The kernels and the times of their runs, if these can be right."""
        for profile in self.profiles:
            if profile.status == "ok" and profile.kernels and profile.layers is None:
                runs = runs_of(profile)
                if isinstance(runs, str) or not runs.was_timed or not all(runs.was_timed):
                    return None
                return (profile.kernels, runs) if busy_of(profile.kernels, runs) is not None else None
        return None

    @cached_property
    def launched(self) -> tuple[TimedKernel, ...]:
        """The kernels, copies and fills in the order of execution."""
        if self._kernels is None:
            return ()
        kernels, runs = self._kernels
        return tuple(map(TimedKernel, kernels.kernels, map(runs.typical, runs.layers)))

    @cached_property
    def busy(self) -> float:
        """Typical seconds of a run in which the GPU did anything; 0 where that is not known."""
        return self._kernels[1].typical(np.asarray(self._kernels[0].busy, dtype=np.float64)) if self._kernels else 0.0

    @property
    def multiprocessors(self) -> int:
        """Of the GPU; 0 where that is not known."""
        return self._kernels[0].gpu.multiprocessors if self._kernels else 0

    def kernels(self, launched: Sequence[TimedKernel]) -> Pieces[TimedKernel]:
        """Some kernels, as shares of the time in which the GPU was busy."""
        return Pieces(tuple(launched), self.busy, "the GPU's time", self.call)

    @property
    def host_wait(self) -> HostWait | None:
        """Of unprofiled calls: kernels do not take longer for being profiled, calls do."""
        if not self.on_gpu or not self.latency or not self._kernels or self.busy <= 0:
            return None
        kernels = self.kernels([timed_kernel for timed_kernel in self.launched if timed_kernel.kind == "kernel"])
        mean = kernels.seconds / max(kernels.calls, 1)
        numbers: dict[str, Number] = {
            "busy": self.busy, "latency": self.latency, "launches": self._kernels[0].launches, "kernels": kernels.calls,
            "mean kernel": mean,
        }  # fmt: skip
        return HostWait(self.latency - self.busy, self.latency, kernels.calls, mean, numbers)
