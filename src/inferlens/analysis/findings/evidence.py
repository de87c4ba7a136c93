"""What the rules look at: the profiles of one case, and the record of its unprofiled calls; worked out once.

What is absent is ``None`` or empty, and the rules that need it are silent. Nothing here is repaired: a profile whose
times cannot be right counts as absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from inferlens.analysis.findings import families, hints
from inferlens.analysis.findings.families import Family
from inferlens.analysis.findings.hints import Hint
from inferlens.analysis.findings.thresholds import OWN_OPERATORS
from inferlens.analysis.interference.samples import latencies, steady_samples
from inferlens.analysis.profile.kernels import busy_of
from inferlens.analysis.profile.layer_work import LayerWork, layer_work
from inferlens.analysis.profile.layers import LayerRow, LayerTable, Runs, layer_table, runs_of
from inferlens.analysis.profile.roofline import Floor, Roofline, precision_of, roofline
from inferlens.record.kernel_profile import Kernel, Kernels
from inferlens.record.layer_profile import Layer, Profile
from inferlens.record.record import Metric, Record
from inferlens.record.work import Ceilings, Work
from inferlens.spec.case import Case, Option
from inferlens.stats.quantiles import median

# Compute capability of the first tensor cores: Volta, Ampere, Turing, Ada.
FIRST = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "int8": (7, 2), "fp8": (8, 9)}
# Elements in 16 bytes: what channels should be multiples of (NVIDIA, "Matrix Multiplication Background", table 1).
MULTIPLES = {"fp16": 8, "bf16": 8, "tf32": 4, "int8": 16, "fp8": 16}


@dataclass(frozen=True)
class Part:
    """One layer with its family and its typical time; zero where it was not timed."""

    layer: Layer
    row: LayerRow
    family: Family

    @property
    def name(self) -> str:
        """As the backend names it."""
        return self.layer.name

    @property
    def seconds(self) -> float:
        """Its typical time in one run."""
        return self.row.times.typical if self.row.times else 0.0

    @property
    def steady(self) -> float:
        """Its typical time or its median, whichever is less: what a rule about a single layer may claim.

        A few disturbed runs change the mean of one layer, though not that of the whole.
        """
        return min(self.row.times.typical, self.row.times.median) if self.row.times else 0.0

    @property
    def inserted(self) -> bool:
        """Whether the backend says that it added it itself."""
        return "inserted" in self.layer.details


@dataclass(frozen=True)
class Launched:
    """One kernel with its family, and its typical time in one run, of all its calls."""

    kernel: Kernel
    family: Family
    seconds: float

    @property
    def blocks(self) -> int:
        """Blocks of its grid; 0 where that is not known."""
        return math.prod(self.kernel.grid) if self.kernel.grid else 0

    @property
    def each(self) -> float:
        """Seconds of one call."""
        return self.seconds / max(self.kernel.calls, 1)


@dataclass(frozen=True)
class Evidence:
    """All that is known of one case.

    Attributes:
        profiles: of one case on one machine, at most one of each level.
        record: of the same case, timed unprofiled.
    """

    profiles: tuple[Profile, ...]
    record: Record | None

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
        """Compute capability of the GPU; ``(0, 0)`` where there is none or it is not told."""
        told = [profile.kernels.gpu.compute_capability for profile in self.profiles if profile.kernels]
        told += [gpu.compute_capability for profile in self.profiles for gpu in profile.environment.gpus[:1]]
        found = next((match for each in told if (match := re.fullmatch(r"(\d{1,3})\.(\d{1,3})", each))), None)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def hint(self, option: str, value: Option = True) -> Hint:
        """How the case gets what an option of that name does, whatever its backend has for it."""
        return hints.hint(self.case, option, value, self.facts)

    @cached_property
    def multiple(self) -> int:
        """What channels should be multiples of for tensor cores; 0 where there are none, or the precision uses none."""
        if not self.on_gpu or self.precision not in MULTIPLES or (0, 0) < self.capability < FIRST[self.precision]:
            return 0
        return MULTIPLES[self.precision]

    @cached_property
    def convolves(self) -> bool:
        """Whether any layer or kernel is a convolution: only then does the memory order of images matter."""
        families_of = {each.family for each in self.parts} | {each.family for each in self.launched}
        return "convolution" in families_of

    @property
    def compiled(self) -> bool:
        """Whether something may have compiled the model: neither its layers nor its kernels tell that nothing has."""
        return not (self.by_module or self.by_operator)

    @cached_property
    def work(self) -> Work | None:
        """What the model does in one call."""
        return next((each.work for each in self.profiles if each.work and each.work.modules), None)

    @cached_property
    def ceilings(self) -> Ceilings | None:
        """What the device reaches at best."""
        return next((each.ceilings for each in self.profiles if each.ceilings), None)

    @cached_property
    def facts(self) -> dict[str, object]:
        """What the backend said of how it ran the model; the record's count first."""
        found: dict[str, object] = {}
        for profile in reversed(self.profiles):
            found |= profile.facts
        return found | (self.record.facts if self.record else {})

    # Of the unprofiled calls

    @cached_property
    def latency(self) -> float | None:
        """Median of unprofiled calls."""
        samples = latencies(self.record).samples if self.record else ()
        return median(samples) if samples else None

    def measured(self, metric: Metric) -> float | None:
        """Median of another metric of the unprofiled calls."""
        samples = steady_samples(self.record, metric).samples if self.record else ()
        return median(samples) if samples else None

    @property
    def call(self) -> float | None:
        """Seconds that a call takes: an unprofiled one if that is known, else one whose kernels were profiled."""
        if self.latency:
            return self.latency
        return self.kernel_runs.typical(self.kernel_runs.whole) if self.kernel_runs else None

    # Of the layers

    @cached_property
    def layered(self) -> Profile | None:
        """The profile that has layers."""
        return next((each for each in self.profiles if each.layers), None)

    @cached_property
    def table(self) -> LayerTable | None:
        """The layers with their times, and how they add up."""
        if self.layered is None:
            return None
        unprofiled = latencies(self.record).samples if self.record else ()
        table = layer_table(self.layered, unprofiled)
        return None if isinstance(table, str) or not table.rows else table

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The layers in the order of execution."""
        if self.table is None or self.layered is None or self.layered.layers is None:
            return ()
        pairs = zip(self.layered.layers.layers, self.table.rows, strict=True)
        return tuple(Part(layer, row, families.of_layer(layer.kind, layer.name)) for layer, row in pairs)

    @cached_property
    def floors(self) -> Roofline | None:
        """The layers against what the device reaches at best, where the work and the ceilings are known."""
        if self.layered is None or self.work is None or self.ceilings is None:
            return None
        found = roofline(replace(self.layered, work=self.work, ceilings=self.ceilings), self.record)
        return None if isinstance(found, str) or not found.known else found

    @cached_property
    def _floors(self) -> dict[int, Floor]:
        return {row.place: row for row in self.floors.rows if row.floor is not None} if self.floors else {}

    @cached_property
    def _done(self) -> Sequence[LayerWork | None]:
        if self.work is None:
            return [None] * len(self.parts)
        times = [each.seconds for each in self.parts]
        return layer_work([each.layer for each in self.parts], times, self.work)[0]

    def done(self, part: Part) -> LayerWork | None:
        """What a layer has to do, of a module in several layers its share; ``None`` where that is not known."""
        return self._done[part.row.place - 1]

    def floor_of(self, part: Part) -> Floor | None:
        """A layer's floor; ``None`` if it has none."""
        return self._floors.get(part.row.place)

    @property
    def precision(self) -> str:
        """What was computed in: the case's precision, or ``tf32`` where fp32 was lowered."""
        return precision_of(self.profiles[0], self.record)

    @cached_property
    def by_module(self) -> bool:
        """Whether every layer is a module, as in eager PyTorch: nothing has compiled the model."""
        return bool(self.parts) and all(each.layer.modules == (each.name,) for each in self.parts)

    @cached_property
    def by_operator(self) -> bool:
        """Whether PyTorch's own operators launched the kernels, one after the other: nothing has compiled them."""
        kernels = [each.kernel for each in self.launched if each.kernel.kind == "kernel"]
        own = sum(each.operator.startswith("aten::") for each in kernels)
        return 0 < OWN_OPERATORS * len(kernels) <= own

    @property
    def profiled(self) -> float | None:
        """Typical seconds of a run while its layers were profiled; of a call where they were not."""
        return self.table.reconciliation.whole.typical if self.table else self.call

    def share(self, seconds: float) -> float:
        """Seconds of layers as a share of a profiled run."""
        return seconds / self.profiled if self.profiled else 0.0

    def together(self, parts: Sequence[Part]) -> tuple[float, float]:
        """Seconds of some layers, and their share of a profiled run."""
        total = sum(each.seconds for each in parts)
        return total, self.share(total)

    # Of the kernels

    @cached_property
    def kernels(self) -> Kernels | None:
        """The kernels, if their times can be right."""
        return self._kernels[0] if self._kernels else None

    @cached_property
    def kernel_runs(self) -> Runs | None:
        """The times of the kernels and of the whole in every run."""
        return self._kernels[1] if self._kernels else None

    @cached_property
    def _kernels(self) -> tuple[Kernels, Runs] | None:
        for profile in self.profiles:
            if profile.status == "ok" and profile.kernels and profile.layers is None:
                runs = runs_of(profile)
                if isinstance(runs, str) or not runs.was_timed or not all(runs.was_timed):
                    return None
                return (profile.kernels, runs) if busy_of(profile.kernels, runs) is not None else None
        return None

    @cached_property
    def launched(self) -> tuple[Launched, ...]:
        """The kernels, copies and fills in the order of execution."""
        if self.kernels is None or self.kernel_runs is None:
            return ()
        return tuple(
            Launched(kernel, families.of_kernel(kernel.name) if kernel.kind == "kernel" else "", typical)
            for kernel, typical in zip(
                self.kernels.kernels, map(self.kernel_runs.typical, self.kernel_runs.layers), strict=True
            )
        )

    @cached_property
    def busy(self) -> float:
        """Typical seconds of a run in which the GPU did anything; 0 where that is not known."""
        if self.kernels is None or self.kernel_runs is None:
            return 0.0
        return self.kernel_runs.typical(np.asarray(self.kernels.busy, dtype=np.float64))

    def share_of_gpu(self, seconds: float) -> float:
        """Seconds of kernels as a share of the GPU's busy time."""
        return seconds / self.busy if self.busy > 0 else 0.0

    def on_the_gpu(self, kernels: Sequence[Launched]) -> tuple[float, float, int]:
        """Seconds of some kernels, their share of the GPU's busy time, and their calls."""
        total = sum(each.seconds for each in kernels)
        return total, self.share_of_gpu(total), sum(each.kernel.calls for each in kernels)
