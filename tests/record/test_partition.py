"""Partitions as data: counting, merging, and which ``min_block_size`` gives the fewest segments."""

import msgspec
import pytest

from inferlens.record import builds


def segment(side, count, graph=0, module=""):
    why = "unsupported" if side == "PyTorch" else ""
    return builds.Segment(side, tuple(builds.Operator(f"aten.op{index}", module, why) for index in range(count)), graph)


MIXED = (segment("TensorRT", 7), segment("PyTorch", 2, module="head"), segment("TensorRT", 3), segment("PyTorch", 1))


def at(min_block_size):
    """What a partitioner makes of ``MIXED``: small engines go to the neighbours that PyTorch runs."""
    small = [
        builds.Segment("PyTorch", segment.operators) if len(segment.operators) < min_block_size else segment
        for segment in MIXED
    ]
    return builds.merged(small)


def part(**known):
    return builds.partition_of(MIXED, front_end="compile", min_block_size=1, **known)


def test_everything_is_counted():
    breaks = [builds.Interruption(0, "print", "model.py line 7", ""), builds.Interruption(1, "unknown to us")]
    partition = part(interruptions=breaks, **builds.choices_of([7, 3], 5, at))
    assert (partition.operators, partition.in_tensorrt, partition.engines) == (13, 10, (7, 3))
    assert [item.segment for item in partition.breaks] == [1, 3]
    head = partition.breaks[0]
    assert (head.modules, head.operators, head.why) == (("head",), {"aten.op0": 1, "aten.op1": 1}, ("unsupported",))
    assert partition.graph_breaks == ("print (model.py line 7)", "unknown to us")
    assert msgspec.json.decode(msgspec.json.encode(partition), type=builds.Partition) == partition


def test_choices_cover_every_value_that_leaves_an_engine_and_the_cases_own():
    choices = builds.choices_of([7, 3], 5, at)["choices"]
    assert choices == (builds.Choice(1, 3, (7, 3), 4), builds.Choice(4, 7, (7,), 2))
    assert builds.choices_of([7, 3], 7, at)["choices"] == choices
    assert builds.choices_of([7, 3], 100, at)["choices"] == (*choices, builds.Choice(8, 100, (), 1))
    assert builds.choices_of([], 100, at) == {"choices": (), "ways": 0}


def test_the_fewest_segments_are_those_that_leave_an_engine():
    few, less, none = builds.Choice(1, 1, (5, 5), 3), builds.Choice(2, 5, (9,), 3), builds.Choice(6, 9, (), 1)
    assert part(choices=[less, few, none]).fewest == few, "of equal ones that with most in TensorRT"
    assert part(choices=[none]).fewest is None


@pytest.mark.parametrize("own", [1, 5, 199, 200, 400, 1000])
def test_of_many_sizes_the_largest_and_the_cases_own_are_tried(own):
    asked = []

    def evaluate(value):
        asked.append(value)
        return (segment("TensorRT", 400),)

    choices = builds.choices_of(range(1, 401), own, evaluate)["choices"]
    assert builds.MOST_CHOICES <= len(asked) == len(set(asked)) <= builds.MOST_CHOICES + 1
    assert choices[-1].most == max(own, 400)
    assert any(choice.least <= own <= choice.most for choice in choices)
