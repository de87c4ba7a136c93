"""What building an engine gave: a :class:`BuildReport`. Data alone; no framework is needed to read or show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferlens.record.display import Struct
from inferlens.record.files import decode_json, make_folder, read_unpacked, write_whole
from inferlens.spec.case import Case


class Build(Struct, frozen=True, kw_only=True):
    """One build of an engine: seconds of the builder, bytes, hash, and whether it had the timings of those before it.

    ``layers``, their number, and ``gpu_seconds``, the median of one call, are ``None`` where no GPU could open it.
    """

    seconds: float
    size: int
    sha256: str
    shared_timings: bool = False
    layers: int | None = None
    gpu_seconds: float | None = None


class LayerDifference(Struct, frozen=True):
    """A layer for which builds chose differently: its name, and the tactic of each build (empty: no such layer)."""

    name: str
    tactics: tuple[str, ...]


class BuildReport(Struct, frozen=True, kw_only=True):
    """An engine that was built and written to ``path``, and how far repeated builds differ.

    Attributes:
        flavour, version: what built it, such as ``TensorRT for RTX``.
        gpu, compute_capability: what it was built on; empty if there was no GPU.
        targets: compute capabilities it was built for, where they were named.
        seconds: time the builder took; that of the first time if ``cached``, that is, had been built before.
        builds: every build that was made now, those that share their timings after the others.
        differences, shared_differences: layers that differ among the builds that share nothing, or their timings.
        findings: how far the builds differ, in sentences; empty for a single build.
    """

    path: str
    size: int
    sha256: str
    flavour: str
    version: str
    gpu: str = ""
    compute_capability: str = ""
    targets: tuple[str, ...] = ()
    seconds: float | None = None
    cached: bool = False
    builds: tuple[Build, ...] = ()
    differences: tuple[LayerDifference, ...] = ()
    shared_differences: tuple[LayerDifference, ...] = ()
    findings: tuple[str, ...] = ()


# A partition is a sequence of segments in the order of the graph. An engine is a segment, and so is a run of operators
# between engines. A segment of PyTorch is a graph break. Unknown values are ``None``.

SCHEMA = "inferlens.partition/2"
MOST_CHOICES = 16  # sizes of engines that are tried as min_block_size

Side = Literal["TensorRT", "PyTorch"]
Why = Literal["", "unsupported", "block too small", "forced"]


class Operator(Struct, frozen=True):
    """One operator of the lowered graph, such as ``aten.convolution.default``.

    Attributes:
        module: path of the ``nn.Module`` it came from; empty is the model itself, ``None`` is unknown.
        why: why it runs in PyTorch, ``detail`` in words; empty where TensorRT runs it.
    """

    name: str
    module: str | None = ""
    why: Why = ""
    detail: str = ""


class Segment(Struct, frozen=True):
    """Operators that run together: one engine, or what PyTorch runs between engines.

    ``graph`` is which graph it belongs to, from 0, where the model was compiled into several.
    """

    runs_in: Side
    operators: tuple[Operator, ...]
    graph: int = 0


class Break(Struct, frozen=True):
    """A place where the graph leaves TensorRT: of the segment that PyTorch runs its number and what is in it.

    Modules and reasons are there once each, operators with how often they are there.
    """

    segment: int
    modules: tuple[str | None, ...]
    operators: dict[str, int]
    why: tuple[Why, ...]


class Interruption(Struct, frozen=True):
    """Python that runs between two compiled graphs, and whatever operators it calls: none of them is counted.

    ``graph`` is the number of the graph before it, from 0; -1 before the first. ``reason`` has the compiler's words,
    ``place`` file and line, such as ``model.py line 7``; ``module`` is as of an :class:`Operator`.
    """

    graph: int
    reason: str
    place: str = ""
    module: str | None = None

    def __str__(self) -> str:
        return f"{self.reason} ({self.place})" if self.place else self.reason


class Choice(Struct, frozen=True):
    """What any ``min_block_size`` from ``least`` to ``most`` gives: operators of each engine, and segments in all."""

    least: int
    most: int
    engines: tuple[int, ...]
    segments: int


class Partition(Struct, frozen=True, kw_only=True):
    """Who runs what.

    Attributes:
        front_end, min_block_size: the variant and the size it was made with.
        operators, in_tensorrt: how many there are in all graphs, and how many of them TensorRT runs.
        engines: operators of each engine. All three are ``None`` where the front end does not tell.
        graph_breaks: why the model was compiled into several graphs, in the compiler's words; ``interruptions``: the
            same, each with its place.
        choices: what other values of ``min_block_size`` give; empty where that was not found out.
        ways: how many different results there are, of which ``choices`` has some; 0 where that was not found out.
        fewest: the choice with the fewest segments among those that leave an engine.
        assumed_gpu: compute capability that was assumed because there was no GPU; empty where there was one.
        note: what is not known, and why.
    """

    schema: str = SCHEMA
    front_end: str
    min_block_size: int
    operators: int | None
    in_tensorrt: int | None
    engines: tuple[int | None, ...]
    segments: tuple[Segment, ...]
    breaks: tuple[Break, ...]
    graph_breaks: tuple[str, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    choices: tuple[Choice, ...] = ()
    ways: int = 0
    fewest: Choice | None = None
    flavour: str = ""
    assumed_gpu: str = ""
    note: str = ""


def partition_in(facts: Mapping[str, Any]) -> Partition | None:
    """The partition in a record's facts; none where they hold something else."""
    try:
        return msgspec.convert(facts.get("partition"), Partition, strict=True)
    except msgspec.ValidationError:
        return None


def partition_of(segments: Sequence[Segment], **facts: Any) -> Partition:
    """A partition from its segments and ``facts``, which are fields that are known; count the rest."""
    engines = tuple(len(segment.operators) for segment in segments if segment.runs_in == "TensorRT")
    choices, interruptions = tuple(facts.get("choices", ())), tuple(facts.get("interruptions", ()))
    # Of those that leave an engine the one with the fewest segments, of equal ones that with most in TensorRT.
    able = [choice for choice in choices if choice.engines]
    fewest = min(able, key=lambda choice: (choice.segments, -sum(choice.engines), choice.least), default=None)
    counted_fields = {
        "operators": sum(len(segment.operators) for segment in segments),
        "in_tensorrt": sum(engines),
        "engines": engines,
        "segments": tuple(segments),
        "breaks": tuple(_break(*segment) for segment in enumerate(segments) if segment[1].runs_in == "PyTorch"),
        "graph_breaks": (*facts.get("graph_breaks", ()), *map(str, interruptions)),
        "interruptions": interruptions,
        "choices": choices,
        "ways": facts.get("ways") or len(choices),
        "fewest": fewest,
    }
    return Partition(**{**facts, **counted_fields})


def _break(number: int, segment: Segment) -> Break:
    return Break(
        number,
        tuple(dict.fromkeys(operator.module for operator in segment.operators)),
        dict(Counter(operator.name for operator in segment.operators)),
        tuple(dict.fromkeys(operator.why for operator in segment.operators if operator.why)),
    )


def merged(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Segments with neighbours of PyTorch's in one graph put together, and empty ones left out."""
    whole: list[Segment] = []
    for segment in segments:
        last = whole[-1] if whole else None
        if last and last.runs_in == segment.runs_in == "PyTorch" and last.graph == segment.graph:
            whole[-1] = Segment("PyTorch", (*last.operators, *segment.operators), last.graph)
        elif segment.operators:
            whole.append(segment)
    return tuple(whole)


def choices_of(sizes: Iterable[int], own: int, evaluate: Callable[[int], Sequence[Segment]]) -> dict[str, Any]:
    """What each ``min_block_size`` gives that changes anything: ``choices`` and ``ways`` of a :class:`Partition`.

    An engine goes when ``min_block_size`` exceeds its operators, so between two of their numbers nothing changes;
    ``sizes`` are those of the engines at 1. Larger values than the largest leave no engine: they are there if ``own``
    is one of them. Of very many values only some are tried, the smallest, the largest and ``own`` among them.
    """
    known = sorted(set(sizes))
    reaches = [(below + 1, size) for below, size in pairwise([0, *known])]
    if known and own > known[-1]:
        reaches.append((known[-1] + 1, own))
    tried = reaches
    if len(reaches) > MOST_CHOICES:  # the largest decides what is fewest; of the others some show the way
        step = (len(reaches) - 1) / (MOST_CHOICES - 2)
        kept = {reaches[round(index * step)] for index in range(MOST_CHOICES - 1)}
        tried = sorted(kept | {reach for reach in reaches if reach[0] <= own <= reach[1]})
    found = []
    for least, most in tried:
        segments = evaluate(most)
        engines = tuple(len(segment.operators) for segment in segments if segment.runs_in == "TensorRT")
        found.append(Choice(least, most, engines, len(segments)))
    return {"choices": tuple(found), "ways": len(reaches)}


# What quantizing a model to a file gave: a :class:`Quantization`. Data alone; no framework is needed to show it.
#
# One that says what each layer loses is kept beside the model's records, as ``quantized-int8-onnxruntime.json``: by its
# precision and backend, in the place of the one before it.

QUANTIZATION_SCHEMA = "inferlens.quantization/1"
QUANTIZATIONS = "quantized-*.json"


class OutputError(Struct, frozen=True):
    """How far an output is from that in fp32 over all samples: relative L2 error, and cosine."""

    rel_l2: float
    cosine: float


class LayerError(Struct, frozen=True):
    """A layer that was quantized.

    Attributes:
        name: as ``--keep`` takes it.
        share: of the model's multiply-adds.
        error: relative L2 error of the model's outputs where this layer alone is quantized, of the worst output.
    """

    name: str
    kinds: tuple[str, ...]
    share: float
    error: float


class QuantizedFile(Struct, frozen=True, kw_only=True):
    """A model that was quantized but for the layers ``keep``, written, and run.

    Attributes:
        share: of the multiply-adds that are quantized; ``None`` where that cannot be counted.
        top1: share of samples whose largest element of the first output is that in fp32, if it is scores of classes.
        accuracy, reference_accuracy: of it and of fp32, in ``metric``, on the data that was named for it.
        accuracy_share: whether these are shares, as of hits.
        accuracy_drop, accuracy_drop_low, accuracy_drop_high: how far it is below fp32, sample by sample, with the
            95 % interval; as in the tables of ``inferlens bench``.
    """

    keep: str
    share: float | None
    outputs: tuple[OutputError, ...]
    top1: float | None = None
    metric: str = ""
    accuracy: float | None = None
    reference_accuracy: float | None = None
    accuracy_share: bool = True
    accuracy_drop: float | None = None
    accuracy_drop_low: float | None = None
    accuracy_drop_high: float | None = None

    @property
    def error(self) -> float:
        """Of the worst output."""
        return max((output.rel_l2 for output in self.outputs), default=0.0)


class Quantization(Struct, frozen=True, kw_only=True):
    """A model that was quantized to a file, what it is worth, and what was tried on the way.

    Attributes:
        path: the file; empty if no attempt kept the limit, so that none was written.
        best: what was written, or, if nothing was, the attempt that came nearest to the limit.
        samples: of the calibration data, that outputs were compared on.
        size_before, size: bytes of the graph in fp32, and of what was written.
        layers: those that were quantized, the worst first, where that was asked for or needed.
        limit: the limit that it keeps, as it was asked for, such as ``error=1e-2``; empty if none was.
        run_by: the backend and variant that ran what was written, for all that is said of it.
        not_run: why that is not the backend that it was written for; empty if it is.
    """

    schema: str = QUANTIZATION_SCHEMA
    path: str
    case: Case
    best: QuantizedFile
    samples: int
    size_before: int
    size: int
    seconds: float
    layers: tuple[LayerError, ...] = ()
    limit: str = ""
    attempts: tuple[QuantizedFile, ...] = ()
    run_by: str = ""
    not_run: str = ""


def quantization_name(quantization: Quantization) -> str:
    """The name of its file."""
    return QUANTIZATIONS.replace("*", f"{quantization.case.precision}-{quantization.case.backend}")


def save_quantization(folder: Path, quantization: Quantization) -> None:
    """Writes it into the folder of the model's records, if it says what each layer loses."""
    if quantization.layers:
        write_whole(make_folder(folder) / quantization_name(quantization), msgspec.json.encode(quantization))


def read_quantization(file: Path) -> Quantization:
    """The one in a file. Raises InferlensError if there is none, OSError if it cannot be read."""
    return decode_json(read_unpacked(file), Quantization, QUANTIZATION_SCHEMA, "quantization")
