"""The result of building an engine: a :class:`BuildReport`. No framework is needed to read or show it."""

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
    """A layer whose tactic differs between builds: its name, and the tactic of every build (empty: no such layer)."""

    name: str
    tactics: tuple[str, ...]


class BuildReport(Struct, frozen=True, kw_only=True):
    """An engine that was built and written to ``path``, and how far repeated builds differ.

    Attributes:
        flavour, version: the library that built it, such as ``TensorRT for RTX``.
        gpu, compute_capability: the GPU that it was built on; empty if there was none.
        targets: compute capabilities it was built for, where they were named.
        seconds: time the builder took; that of the first time if ``cached``, that is, had been built before.
        builds: all new builds; builds that share their timings follow the others.
        differences, shared_differences: layers that differ among the builds that share nothing, or their timings.
        findings: sentences on the differences between the builds; empty for a single build.
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
        why: why it runs in PyTorch, with ``detail`` in words; empty where TensorRT runs it.
    """

    name: str
    module: str | None = ""
    why: Why = ""
    detail: str = ""


class Segment(Struct, frozen=True):
    """Operators that run together: one engine, or the operators that PyTorch runs between engines.

    ``graph`` is the number of its graph, from 0, where the model was compiled into several.
    """

    runs_in: Side
    operators: tuple[Operator, ...]
    graph: int = 0


class Break(Struct, frozen=True):
    """A place where the graph leaves TensorRT: the number and the content of the segment that PyTorch runs.

    Modules and reasons are listed once, operators with their counts.
    """

    segment: int
    modules: tuple[str | None, ...]
    operators: dict[str, int]
    why: tuple[Why, ...]


class Interruption(Struct, frozen=True):
    """Python that runs between two compiled graphs, and whatever operators it calls: none of them is counted.

    ``graph`` is the number of the graph before it, from 0; -1 before the first. ``reason`` has the compiler's words,
    ``place`` is file and line, such as ``model.py line 7``; ``module`` is as for an :class:`Operator`.
    """

    graph: int
    reason: str
    place: str = ""
    module: str | None = None

    def __str__(self) -> str:
        return f"{self.reason} ({self.place})" if self.place else self.reason


class Choice(Struct, frozen=True):
    """The result of any ``min_block_size`` from ``least`` to ``most``: operators per engine, number of segments."""

    least: int
    most: int
    engines: tuple[int, ...]
    segments: int


class Partition(Struct, frozen=True, kw_only=True):
    """The division of a model between TensorRT and PyTorch.

    Attributes:
        front_end, min_block_size: the variant and the size of this partition.
        operators, in_tensorrt: how many there are in all graphs, and how many of them TensorRT runs.
        engines: operators per engine. All three are ``None`` where the front end does not list them.
        graph_breaks: why the model was compiled into several graphs, in the compiler's words; ``interruptions``: the
            same, with their places.
        choices: the results of other values of ``min_block_size``; empty where they were not computed.
        ways: number of different results; ``choices`` has some of them. 0 where they were not computed.
        fewest: the choice with the fewest segments and at least one engine.
        assumed_gpu: compute capability that was assumed because there was no GPU; empty where there was one.
        note: the missing values, and why they are missing.
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
    """Return the partition in a record's facts; ``None`` if they hold none."""
    try:
        return msgspec.convert(facts.get("partition"), Partition, strict=True)
    except msgspec.ValidationError:
        return None


def partition_of(segments: Sequence[Segment], **facts: Any) -> Partition:
    """Return a partition from its segments and ``facts``, which are further fields; count the rest."""
    engines = tuple(len(segment.operators) for segment in segments if segment.runs_in == "TensorRT")
    choices, interruptions = tuple(facts.get("choices", ())), tuple(facts.get("interruptions", ()))
    # Among the choices with an engine, take the fewest segments, and then the most operators in TensorRT.
    with_engines = [choice for choice in choices if choice.engines]
    fewest = min(with_engines, key=lambda choice: (choice.segments, -sum(choice.engines), choice.least), default=None)
    breaks = (
        Break(
            number,
            tuple(dict.fromkeys(operator.module for operator in segment.operators)),
            dict(Counter(operator.name for operator in segment.operators)),
            tuple(dict.fromkeys(operator.why for operator in segment.operators if operator.why)),
        )
        for number, segment in enumerate(segments)
        if segment.runs_in == "PyTorch"
    )
    counted_fields = {
        "operators": sum(len(segment.operators) for segment in segments),
        "in_tensorrt": sum(engines),
        "engines": engines,
        "segments": tuple(segments),
        "breaks": tuple(breaks),
        "graph_breaks": (*facts.get("graph_breaks", ()), *map(str, interruptions)),
        "interruptions": interruptions,
        "choices": choices,
        "ways": facts.get("ways") or len(choices),
        "fewest": fewest,
    }
    return Partition(**{**facts, **counted_fields})


def merged(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the segments with adjacent segments of PyTorch in one graph merged, and without empty segments."""
    results: list[Segment] = []
    for segment in segments:
        last = results[-1] if results else None
        if last and last.runs_in == segment.runs_in == "PyTorch" and last.graph == segment.graph:
            results[-1] = Segment("PyTorch", (*last.operators, *segment.operators), last.graph)
        elif segment.operators:
            results.append(segment)
    return tuple(results)


def choices_of(sizes: Iterable[int], current: int, evaluate: Callable[[int], Sequence[Segment]]) -> dict[str, Any]:
    """Return ``choices`` and ``ways`` of a :class:`Partition`: the result of every ``min_block_size`` with an effect.

    An engine disappears when ``min_block_size`` exceeds its operators, so nothing changes between two of these numbers.
    ``sizes`` are the sizes of the engines at 1. Values above the largest leave no engine. They are listed if
    ``current`` is one of them. Of very many values only the largest are tried, which have the fewest segments, and
    ``current``.
    """
    distinct = sorted(set(sizes))
    ranges = [(smaller + 1, size) for smaller, size in pairwise([0, *distinct])]
    if distinct and current > distinct[-1]:
        ranges.append((distinct[-1] + 1, current))
    choices = []
    for least, most in ranges:
        if (least, most) in ranges[-MOST_CHOICES:] or least <= current <= most:
            segments = evaluate(most)
            engines = tuple(len(segment.operators) for segment in segments if segment.runs_in == "TensorRT")
            choices.append(Choice(least, most, engines, len(segments)))
    return {"choices": tuple(choices), "ways": len(ranges)}


# The result of quantizing a model to a file: a :class:`Quantization`. No framework is needed to show it.
#
# A quantization with the errors of the layers is kept in the folder of the model's records. Its name is such as
# ``quantized-int8-onnxruntime.json``, by precision and backend, and replaces the one before it.

QUANTIZATION_SCHEMA = "inferlens.quantization/1"
QUANTIZATIONS = "quantized-*.json"


class OutputError(Struct, frozen=True):
    """The difference of an output from fp32 over all samples: relative L2 error, and cosine."""

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
    """A quantized model in a file that was also run; the layers in ``keep`` are not quantized.

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
        """Return the relative L2 error of the worst output."""
        return max((output.rel_l2 for output in self.outputs), default=0.0)


class Quantization(Struct, frozen=True, kw_only=True):
    """A model that was quantized to a file, with its errors and all attempts.

    Attributes:
        path: the file; empty if no attempt kept the limit, so that none was written.
        best: the written file, or, if no file was written, the attempt that came nearest to the limit.
        samples: of the calibration data, that outputs were compared on.
        size_before, size: bytes of the graph in fp32, and of the written file.
        layers: the quantized layers, the worst first, if their errors were requested or needed.
        limit: the limit that it keeps, as the user wrote it, such as ``error=1e-2``; empty if none was.
        run_by: the backend and variant that ran the file; all errors and accuracies are of that run.
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
    return QUANTIZATIONS.replace("*", f"{quantization.case.precision}-{quantization.case.backend}")


def save_quantization(folder: Path, quantization: Quantization) -> None:
    """Write it into the folder of the model's records, if it has the errors of the layers."""
    if quantization.layers:
        write_whole(make_folder(folder) / quantization_name(quantization), msgspec.json.encode(quantization))


def read_quantization(file: Path) -> Quantization:
    """Return the quantization in a file. Raises InferlensError if there is none, OSError if it cannot be read."""
    return decode_json(read_unpacked(file), Quantization, QUANTIZATION_SCHEMA, "quantization")
