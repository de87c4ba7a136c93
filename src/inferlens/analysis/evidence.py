"""Findings, the rules that make them, and the evidence on one case that rules about profiles look at.

A rule is a function under :func:`rule` that yields :func:`make_finding` of a template and numbers. ``docs/findings.md``
has an example. In a template ``{layers:#layer}`` counts (``1 layer``, ``2 layers``), ``{layers:takes|take}`` chooses by
the count, and ``:duration``, ``:percent``, ``:ratio``, ``:bytes`` and ``:two`` (digits) format numbers.

Missing evidence is ``None`` or empty, and the rules that need it are silent. A profile with impossible times counts as
missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from inferlens.analysis.measures import bound_by
from inferlens.analysis.profile_table import (
    Family,
    LayerTable,
    Runs,
    RunTimes,
    busy_seconds,
    kernel_family,
    layer_family,
    layer_table,
    profile_runs,
    short_kernel_name,
)
from inferlens.analysis.roofline import Roofline, precision_of, roofline
from inferlens.analysis.samples import latencies, steady_samples
from inferlens.analysis.work import Precisions, precisions
from inferlens.record.display import Displayed, Struct
from inferlens.record.profile import Kernel, Kernels, Layer, Profile
from inferlens.record.record import Record
from inferlens.spec import hints
from inferlens.spec.case import QUANTIZED, Case, Option
from inferlens.spec.hints import Hint
from inferlens.spec.plan import bench_words, command
from inferlens.stats.samples import gpu_waits_for_host, median
from inferlens.units import byte_count, duration, listing, percent, plural, ratio, significant

Subject = Literal["time", "trust"]
Number = float | int | None
NEGLIGIBLE = 0.02  # of a call or a step: a finding that saves no more never comes first, and is none of a trace
FASTER_WAY = 1.02  # ratio of latencies from which another measured way is recommended
# Compute capability of the first tensor cores: Volta, Ampere, Turing, Ada.
FIRST_CAPABILITY = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "int8": (7, 2), "fp8": (8, 9)}
# Elements in 16 bytes, of which channels should be a multiple (NVIDIA, "Matrix Multiplication Background", table 1).
MULTIPLES = {"fp16": 8, "bf16": 8, "tf32": 4, "int8": 16, "fp8": 16}
# The next lower precision, as options of a command.
LOWER = {"fp32": "fp16", "tf32": "fp16", **dict.fromkeys(("fp16", "bf16"), "int8 --calibration random")}
LARGER = (8, 32)  # factors by which to try a larger batch
_FEW = 3
_FORMATS: dict[str, Callable[[Any], str]] = {
    "duration": duration, "percent": percent, "ratio": ratio, "bytes": byte_count,
    "two": lambda value: significant(value, 2),
}  # fmt: skip


class Finding(Struct, frozen=True, kw_only=True):
    """An observation about one case, with the numbers that support it."""

    code: str = msgspec.field(default="", name="rule")  # of the rule that made it
    about: Subject = "time"  # ``time`` that could be saved, or how far the profile can be ``trust``-ed
    subject: str = ""  # a module, a layer, some of them, or the run
    sentence: str = ""
    # Seconds, shares from 0 to 1, and counts that support it, by name.
    numbers: dict[str, Number] = msgspec.field(default_factory=dict, name="evidence")
    # An upper bound of the time that could be saved; ``None`` if unknown. Do not add those of several findings:
    # they may overlap.
    seconds: float | None = None
    whole: float | None = None  # seconds of the call that ``seconds`` are part of, an unprofiled one if possible
    # Whether ``seconds`` need no correction for the overhead of profiling, as those of the GPU.
    unprofiled: bool = msgspec.field(default=False, name="untouched")
    share: float | None = None  # of a call's time that it is about; ``None`` if unknown
    hint: str = msgspec.field(default="", name="advice")

    @property
    def saving(self) -> float | None:
        """The largest share of the run that could be saved; ``None`` if unknown."""
        return self.seconds / self.whole if self.seconds is not None and self.whole else None


class Findings(Displayed, list[Finding]):
    """Findings of one case, the most important first."""

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'finding')}{': ' * bool(self)}{', '.join(finding.code for finding in self)}>"


@dataclass(frozen=True)
class Rule:
    """A rule, made by :func:`rule`; call it with its evidence to get findings."""

    code: str  # documented and stable; empty if findings bring their own
    hint: str  # the default hint
    about: Subject
    check: Callable[[Any], Iterable[Finding]]

    def __call__(self, evidence: Any) -> Iterator[Finding]:
        for finding in self.check(evidence):
            yield replace(finding, code=finding.code or self.code, about=self.about, hint=finding.hint or self.hint)


def rule(code: str, *, hint: str = "", about: Subject = "time") -> Callable[[Callable[[Any], Iterable[Finding]]], Rule]:
    return lambda check: Rule(code, hint, about, check)


def make_finding(
    template: str,
    numbers: Mapping[str, Number] | None = None,
    group: PartGroup[Any] | None = None,
    *,
    subject: str = "",
    seconds: float | None = None,
    whole: float | None = None,
    share: float | None = None,
    hint: str = "",
    code: str = "",
    **words: object,
) -> Finding:
    """Return a finding whose sentence is ``template``, filled from its numbers, its fields and ``words``.

    ``group`` has the layers or kernels that it is about. They give the subject, the share, their number and seconds,
    and the words ``{cost}`` and ``{location}``.
    """
    numbers = {**(group.numbers if group else {}), **(numbers or {})}
    if group:
        subject, whole = subject or group.names, whole or group.call_seconds
        share = group.share if share is None else share
        words = {"cost": group.cost, "location": group.location, **words}
    words = {"subject": subject, "share": share, "whole": whole, **numbers, **words}
    return Finding(
        code=code, subject=subject, sentence=_FORMATTER.vformat(template, (), words), numbers=numbers, seconds=seconds,
        whole=None if seconds is None else whole, share=share, hint=hint,
    )  # fmt: skip


class _TemplateFormatter(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            singular, plural_form = format_spec.split("|")
            return singular if value == 1 else plural_form
        if format_spec.startswith("#"):
            return plural(value, format_spec[1:])
        return _FORMATS[format_spec](value) if format_spec in _FORMATS else format(value, format_spec)


_FORMATTER = _TemplateFormatter()


def shorten(name: str) -> str:
    """Return a name with its middle left out if it is long."""
    text = " ".join(name[:5000].split()) or "(no name)"
    return text if len(text) <= 60 else f"{text[:30]}…{text[-30:]}"


def list_few(names: Iterable[str], most: int = _FEW) -> str:
    """Return ``a, b, c and 4 others``, without repeated names."""
    distinct = list(dict.fromkeys(names))
    hidden = len(distinct) - most
    return listing(distinct if hidden <= 0 else [*distinct[:most], plural(hidden, "other")])


def module_label(path: str) -> str:
    return shorten(path) if path else "the model"


def part_name(modules: Sequence[str], name: str) -> str:
    """Return the modules that a layer or kernel came from if they are few, else its own name."""
    return " + ".join(map(module_label, modules)) if 0 < len(modules) <= _FEW else shorten(name)


@dataclass(frozen=True)
class TimedLayer:
    """A layer with its times, if known."""

    layer: Layer
    times: RunTimes | None

    @cached_property
    def family(self) -> Family:
        return layer_family(self.layer.kind, self.layer.name)

    @property
    def name(self) -> str:
        return part_name(self.layer.modules, self.layer.name)

    @property
    def seconds(self) -> float:
        """Typical time in one run; zero if it was not timed."""
        return self.times.typical if self.times else 0.0


@dataclass(frozen=True)
class TimedKernel:
    """A kernel, copy or fill, with the typical seconds of all its calls in one run."""

    kernel: Kernel
    seconds: float

    @cached_property
    def family(self) -> Family:
        """The family of its name; empty for copies and fills."""
        return kernel_family(self.kernel.name) if self.kernel.kind == "kernel" else ""

    @property
    def name(self) -> str:
        """The module that it came from, or its own name without namespaces and arguments."""
        modules = self.kernel.modules
        return module_label(modules[0]) if modules else shorten(short_kernel_name(self.kernel.name))

    @property
    def blocks(self) -> int:
        """Number of blocks in its grid; 0 if unknown."""
        return math.prod(self.kernel.grid) if self.kernel.grid else 0


PartT = TypeVar("PartT", TimedLayer, TimedKernel)


@dataclass(frozen=True)
class PartGroup(Generic[PartT]):
    """Several layers, or several kernels, and their time together."""

    parts: tuple[PartT, ...]
    base: float  # the seconds that ``share`` refers to; ``base_name``: these in words
    base_name: str
    call_seconds: float | None  # of the call if kernels were timed; the times of layers are scaled to it

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[PartT]:
        return iter(self.parts)

    @cached_property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def share(self) -> float:
        return self.seconds / self.base if self.base else 0.0

    @property
    def calls(self) -> int:
        return sum(part.layer.calls if isinstance(part, TimedLayer) else part.kernel.calls for part in self.parts)

    @property
    def noun(self) -> str:
        return "layer" if any(isinstance(part, TimedLayer) for part in self.parts) else "kernel call"

    @property
    def numbers(self) -> dict[str, Number]:
        return {"seconds": self.seconds, **({"layers": len(self)} if self.noun == "layer" else {"calls": self.calls})}

    @property
    def cost(self) -> str:
        """``25 % of the call (2.00 ms of 8.00 ms)``."""
        return f"{percent(self.share)} of {self.base_name} ({duration(self.seconds)} of {duration(self.base)})"

    @property
    def names(self) -> str:
        """The names of the slowest: ``conv1, layer1, fc and 4 others``."""
        return list_few(part.name for part in sorted(self.parts, key=lambda part: -part.seconds))

    @property
    def location(self) -> str:
        """The end of a sentence that names the slowest: ``: conv1``, or ``, most in conv1``."""
        first = max(self.parts, key=lambda part: part.seconds).name
        return f", most in {first}" if len(self) > 1 else f": {first}"


@dataclass(frozen=True)
class Evidence:
    """The profiles of one case and its record. Derived values are computed once."""

    profiles: tuple[Profile, ...]  # of one case on one machine, at most one of each level
    record: Record | None = None  # of the same case, timed without profiling
    # Other ways that were measured, by name, with their seconds if they ran.
    alternatives: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        return self.profiles[0].case

    @property
    def on_gpu(self) -> bool:
        return self.case.device != "cpu"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the GPU; ``(0, 0)`` if unknown."""
        gpus = self.profiles[0].environment.gpus
        match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", gpus[0].compute_capability) if gpus else None
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def precision(self) -> str:
        """The precision of the computation: the case's, or ``tf32`` where fp32 was lowered."""
        return precision_of(self.profiles[0], self.record)

    @cached_property
    def multiple(self) -> int:
        """The number that channels should be a multiple of for tensor cores; 0 if the case cannot use them."""
        lacking = (0, 0) < self.capability < FIRST_CAPABILITY.get(self.precision, (0, 0))
        return 0 if lacking or not self.on_gpu else MULTIPLES.get(self.precision, 0)

    @cached_property
    def facts(self) -> dict[str, object]:
        """Facts that the backend gave about the run; those of the record take precedence."""
        facts = {key: value for profile in reversed(self.profiles) for key, value in profile.facts.items()}
        return facts | (self.record.facts if self.record else {})

    def hint(self, option: str, value: Option = True) -> Hint:
        """Return how to get the effect of an option with the backend of the case."""
        return hints.hint(self.case, option, value, self.facts)

    def command(self, *options: str, others: bool = False, larger: bool = False, name: str = "bench") -> str:
        """Return a command or call to paste: the case with more options, larger batches, or all other backends."""
        device = "cuda" if self.profiles[0].environment.gpus else "cpu"
        batches = [(self.case.batch or 1) * factor for factor in LARGER] if larger else []
        words = bench_words(self.case, device, list(filter(None, options)), others=others, batches=batches)
        return command(name, words, self.case.checkout)

    def advice(self, *actions: str, options: Sequence[str] = (), others: str = "") -> str:
        """Return the actions to try, with the command for ``options``, or else one for other backends.

        ``others`` says what other backends may do. If they were measured already, return what remains to be tried.
        """
        options = list(filter(None, options))
        if not options and self.alternatives:
            return hints.sentence(actions) if any(actions) else self.last_resort
        sentence = hints.sentence(actions if options else [*actions, others]).removesuffix(".")
        return f"{sentence}: {self.command(*options, others=not options)}"

    @property
    def last_resort(self) -> str:
        """Return the advice if nothing else helps: a faster way that was measured, or less work."""
        times = {name: seconds for name, seconds in self.alternatives.items() if seconds}
        name = min(times, key=times.__getitem__, default="")
        if name and self.latency and self.latency > FASTER_WAY * times[name]:
            return f"Take {name}, which was measured: {ratio(self.latency / times[name])} as fast."
        start = "Other backends were measured and are no faster; only" if self.alternatives else "Only"
        return f"{start} a lower precision, a smaller model or a larger batch helps: {self.less_work}"

    @property
    def lower_precision(self) -> str:
        """Return the option for the next lower precision; empty if there is none."""
        lower = "bf16" if self.precision == "fp32" and not self.on_gpu else LOWER.get(self.precision, "")
        return f"--precision {lower}" if lower else ""

    @property
    def less_work(self) -> str:
        """Return the command for the next lower precision, or else for larger batches."""
        return self.command(self.lower_precision) if self.lower_precision else self.command(larger=True)

    @cached_property
    def latency(self) -> float | None:
        """Median seconds of unprofiled calls."""
        samples = latencies(self.record).samples if self.record else ()
        return median(samples) if samples else None

    @property
    def kernel_call(self) -> float | None:
        """Seconds of an unprofiled call, or else of one whose kernels were profiled."""
        if self.latency:
            return self.latency
        return self._kernels[1].typical(self._kernels[1].whole) if self._kernels else None

    # Layers

    @cached_property
    def layer_profile(self) -> Profile | None:
        return next((profile for profile in self.profiles if profile.layers), None)

    @cached_property
    def table(self) -> LayerTable | None:
        if self.layer_profile is None:
            return None
        table = layer_table(self.layer_profile, latencies(self.record).samples if self.record else ())
        return None if isinstance(table, str) or not table.rows else table

    @cached_property
    def floors(self) -> Roofline | None:
        """The layers, or else the kernels, against the ceilings of the device, if their work and these are known."""
        profile = self.layer_profile or next((profile for profile in self.profiles if profile.kernels), None)
        floors = roofline(profile, self.record) if profile else ""
        return None if isinstance(floors, str) or not floors.floored_time else floors

    @cached_property
    def module_kinds(self) -> dict[str, str]:
        """The kinds of the modules, such as ``Conv2d``, by their paths."""
        works = [profile.work.modules for profile in self.profiles if profile.work]
        return {module.module: module.kind for modules in works for module in modules}

    @cached_property
    def timed_layers(self) -> tuple[TimedLayer, ...]:
        if self.table is None or self.layer_profile is None or self.layer_profile.layers is None:
            return ()
        pairs = zip(self.layer_profile.layers.layers, self.table.rows, strict=True)
        return tuple(TimedLayer(layer, row.times) for layer, row in pairs)

    @property
    def layer_call(self) -> float | None:
        """Seconds of the call that times of layers are scaled to, or else of a profiled one."""
        return self.latency or (self.table.reconciliation.whole.typical if self.table else self.kernel_call)

    @property
    def call_name(self) -> str:
        return "the call" if self.latency else "the profiled call"

    def layer_group(self, layers: Iterable[TimedLayer]) -> PartGroup[TimedLayer]:
        """Return the group of those layers that took any time, as shares of a call."""
        timed = tuple(timed_layer for timed_layer in layers if timed_layer.seconds > 0)
        return PartGroup(timed, self.layer_call or 0.0, self.call_name, None)

    @cached_property
    def precisions(self) -> Precisions | None:
        if self.table is None or self.layer_profile is None or self.case.precision not in QUANTIZED:
            return None
        return precisions(self.layer_profile, self.table.runs)

    # Kernels

    @cached_property
    def _kernels(self) -> tuple[Kernels, Runs] | None:
        """The kernels and the times of their runs, if these are plausible."""
        for profile in self.profiles:
            if profile.status == "ok" and profile.kernels and profile.layers is None:
                runs = profile_runs(profile)
                if isinstance(runs, str) or not runs.timed or not all(runs.timed):
                    return None
                return (profile.kernels, runs) if busy_seconds(profile.kernels, runs) is not None else None
        return None

    @cached_property
    def timed_kernels(self) -> tuple[TimedKernel, ...]:
        if self._kernels is None:
            return ()
        kernels, runs = self._kernels
        return tuple(map(TimedKernel, kernels.kernels, map(runs.typical, runs.layers)))

    @cached_property
    def busy(self) -> float:
        """Typical seconds of a run in which the GPU did anything; 0 if unknown."""
        return self._kernels[1].typical(np.asarray(self._kernels[0].busy, dtype=np.float64)) if self._kernels else 0.0

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors of the GPU; 0 if unknown."""
        return self._kernels[0].gpu.multiprocessors if self._kernels else 0

    def kernel_group(self, predicate: Callable[[TimedKernel], object]) -> PartGroup[TimedKernel]:
        """Return the group of the kernels that satisfy the predicate, as shares of the time of the busy GPU."""
        return PartGroup(tuple(filter(predicate, self.timed_kernels)), self.busy, "the GPU's time", self.kernel_call)

    @property
    def launches(self) -> int | None:
        """Number of calls of the runtime that launch the kernels of a run."""
        return self._kernels[0].launches if self._kernels else None

    @property
    def host_wait(self) -> float | None:
        """Seconds that the GPU waits in an unprofiled call: profiling stretches calls, but not kernels."""
        return self.latency - self.busy if self.on_gpu and self.latency and self.busy > 0 else None

    @property
    def waits_for_host(self) -> bool:
        """Return whether the host is known to be the bottleneck of unprofiled calls, by their kernels."""
        return self.host_wait is not None and gpu_waits_for_host(self.host_wait, self.latency or 0.0)


def enqueue_bound_finding(record: Record) -> Iterator[Finding]:
    """Yield a finding if enqueueing a call takes all its time."""
    if bound_by(record) == "host":
        latency, enqueue = (median(steady_samples(record, name).for_median) for name in ("latency", "enqueue time"))
        yield make_finding(
            "Bound by the host: enqueueing a call takes about as long as the call.",
            {"enqueue": enqueue, "latency": latency}, code="host-bound",
            subject="the run", share=min(enqueue / latency, 1.0), hint=hints.for_the_host(record.case, record.facts),
        )  # fmt: skip
