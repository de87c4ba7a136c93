"""Which operators of a model run in TensorRT and which in PyTorch: a :class:`Partition`, and what it could be instead.

A partition is a sequence of segments in the order of the graph; each engine is a segment, and so is each run of
operators between engines. Where a segment of PyTorch's stands, the graph breaks. What is not known is ``None``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from inferlens.record.display import Struct

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


def partition_of(segments: Sequence[Segment], **known: Any) -> Partition:
    """A partition from its segments and the fields that are ``known``; everything else is counted."""
    engines = tuple(len(segment.operators) for segment in segments if segment.runs_in == "TensorRT")
    choices, interruptions = tuple(known.get("choices", ())), tuple(known.get("interruptions", ()))
    # Of those that leave an engine the one with the fewest segments, of equal ones that with most in TensorRT.
    able = [choice for choice in choices if choice.engines]
    fewest = min(able, key=lambda choice: (choice.segments, -sum(choice.engines), choice.least), default=None)
    counted_fields = {
        "operators": sum(len(segment.operators) for segment in segments),
        "in_tensorrt": sum(engines),
        "engines": engines,
        "segments": tuple(segments),
        "breaks": tuple(_break(*segment) for segment in enumerate(segments) if segment[1].runs_in == "PyTorch"),
        "graph_breaks": (*known.get("graph_breaks", ()), *map(str, interruptions)),
        "interruptions": interruptions,
        "choices": choices,
        "ways": known.get("ways") or len(choices),
        "fewest": fewest,
    }
    return Partition(**{**known, **counted_fields})


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
