"""Partitions as data: counting, merging, and which ``min_block_size`` gives the fewest segments."""

from __future__ import annotations

import msgspec
import pytest

from inferlens.record.partition import (
    MOST_CHOICES,
    Choice,
    Interruption,
    Operator,
    Partition,
    Segment,
    Side,
    choices_of,
    fewest_segments,
    merged,
    partition_of,
    reaches_of,
)


def segment(side: Side, count: int, graph: int = 0, module: str = "") -> Segment:
    why = "unsupported" if side == "PyTorch" else ""
    return Segment(side, tuple(Operator(f"aten.op{index}", module, why) for index in range(count)), graph)


MIXED = (segment("TensorRT", 7), segment("PyTorch", 2, module="head"), segment("TensorRT", 3), segment("PyTorch", 1))


def at(min_block_size: int) -> tuple[Segment, ...]:
    """What a partitioner makes of ``MIXED``: small engines go to the neighbours that PyTorch runs."""
    small = [Segment("PyTorch", each.operators) if len(each.operators) < min_block_size else each for each in MIXED]
    return merged(small)


def test_everything_is_counted() -> None:
    part = partition_of(MIXED, front_end="dynamo", min_block_size=1)
    assert (part.operators, part.in_tensorrt, part.engines) == (13, 10, (7, 3))
    assert [each.segment for each in part.breaks] == [1, 3]
    assert part.breaks[0].modules == ("head",)
    assert part.breaks[0].operators == {"aten.op0": 1, "aten.op1": 1}
    assert part.breaks[0].why == ("unsupported",)


def test_neighbours_of_pytorchs_are_one_segment_but_not_across_graphs() -> None:
    torch = segment("PyTorch", 1)
    assert [len(each.operators) for each in merged([torch, segment("PyTorch", 0), torch])] == [2]
    assert len(merged([torch, segment("PyTorch", 1, graph=1)])) == 2
    assert len(merged([segment("TensorRT", 1), segment("TensorRT", 1)])) == 2


def test_choices_cover_every_value_that_leaves_an_engine() -> None:
    choices = choices_of(reaches_of([7, 3], 5), 5, at)
    assert choices == (Choice(1, 3, (7, 3), 4), Choice(4, 7, (7,), 2))
    for value in range(1, 8):
        (choice,) = (each for each in choices if each.least <= value <= each.most)
        assert choice.segments == len(at(value))
    assert fewest_segments(choices) == choices[1]


def test_an_engine_is_kept_though_none_would_be_one_segment() -> None:
    assert len(at(8)) == 1
    assert fewest_segments([Choice(8, 9, (), 1)]) is None
    assert fewest_segments([]) is None
    assert fewest_segments([Choice(1, 1, (5, 5), 3), Choice(2, 5, (9,), 3)]) == Choice(1, 1, (5, 5), 3)


def test_a_value_that_leaves_no_engine_is_a_choice_if_it_is_the_cases_own() -> None:
    assert reaches_of([7, 3], 7) == [(1, 3), (4, 7)]
    assert reaches_of([7, 3], 100) == [(1, 3), (4, 7), (8, 100)]
    assert reaches_of([], 100) == []
    choices = choices_of(reaches_of([7, 3], 100), 100, at)
    assert choices[-1] == Choice(8, 100, (), 1)
    assert fewest_segments(choices) == choices[1]


@pytest.mark.parametrize("own", [1, 5, 199, 200, 400, 1000])
def test_many_sizes_are_thinned_out_and_the_largest_and_the_cases_own_stay(own: int) -> None:
    asked = []

    def evaluate(value: int) -> tuple[Segment, ...]:
        asked.append(value)
        return (segment("TensorRT", 400),)

    choices = choices_of(reaches_of(range(1, 401), own), own, evaluate)
    assert len(asked) == len(set(asked))
    assert MOST_CHOICES - 1 <= len(asked) <= MOST_CHOICES
    assert choices[-1].most == max(own, 400)
    assert choices[0].least == 1
    assert any(choice.least <= own <= choice.most for choice in choices)
    assert all(choice.least == choice.most for choice in choices if choice.most <= 400), "no more than was tried"


def test_a_partition_crosses_a_process_border_whole() -> None:
    breaks = [Interruption(0, "print", "model.py line 7", ""), Interruption(1, "unknown to us")]
    choices = choices_of(reaches_of([7, 3], 5), 5, at)
    part = partition_of(MIXED, front_end="compile", min_block_size=5, choices=choices, interruptions=breaks)
    assert msgspec.json.decode(msgspec.json.encode(part), type=Partition) == part
    assert part.fewest is not None
    assert part.graph_breaks == ("print (model.py line 7)", "unknown to us")


def test_partitions_of_older_records_can_be_read() -> None:
    operator = {"name": "aten.relu", "module": "", "why": "", "detail": ""}
    old = {
        "schema": "inferlens.partition/1", "front_end": "ts-trace", "min_block_size": 5, "operators": 1,
        "in_tensorrt": 0, "engines": [None, None], "segments": [{"runs_in": "PyTorch", "operators": [operator]}],
        "breaks": [{"segment": 0, "modules": [""], "operators": {"aten.relu": 1}, "why": []}],
        "graph_breaks": ["a reason"], "choices": [], "fewest": None, "note": "",
    }  # fmt: skip
    part = msgspec.convert(old, Partition, strict=True)
    assert part.graph_breaks == ("a reason",)
    assert part.interruptions == ()
    unknown = msgspec.structs.replace(part, operators=None, in_tensorrt=None)
    assert msgspec.json.decode(msgspec.json.encode(unknown), type=Partition) == unknown
