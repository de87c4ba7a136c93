"""``inferlens partition``: what it prints."""

import json
from typing import Any

import msgspec

from inferlens.errors import InferlensError, Unsupported
from inferlens.record.builds import Choice, Interruption, Operator, Partition, Segment, Side, partition_of
from inferlens.record.record import Warning
from inferlens.spec.case import Case
from inferlens.views.partition import PartitionResult, distinguish_cases, partition_document
from inferlens.views.renderers import render
from tests.snapshots import compare_with_stored, screens_test
from tests.views import samples


def case(variant: str = "dynamo", precision: str = "fp32", batch: int = 1, **options: Any) -> Case:
    return samples.case(f"torch_tensorrt:{variant}", precision=precision, batch=batch, options=options)


def segment(side: Side, *names: str, why: Any = "", module: str = "head") -> Segment:
    return Segment(side, tuple(Operator(name, module, why, "no converter" if why else "") for name in names))


ENGINE = segment("TensorRT", "aten.relu.default", "aten.relu.default", "aten.add.Tensor")
TORCH = segment("PyTorch", "aten.linalg_inv_ex.default", why="unsupported", module="inverse")
WHOLE = partition_of([ENGINE], front_end="dynamo", min_block_size=1, flavour="TensorRT")
MIXED = partition_of(
    [ENGINE, TORCH, segment("TensorRT", "aten.relu.default")], front_end="dynamo", min_block_size=1,
    choices=[Choice(1, 1, (3, 1), 3), Choice(2, 3, (3,), 2)], flavour="TensorRT for RTX", assumed_gpu="8.9",
)  # fmt: skip


def shown(*results: tuple[Case, Partition | InferlensError], width: int = 110, wide: bool = True) -> str:
    return render(partition_document([PartitionResult(*each) for each in results], wide=wide), width=width, wide=wide)


def test_several_are_side_by_side_and_told_apart_by_what_differs():
    cases = [case(min_block_size=1, tf32=True), case(min_block_size=5, tf32=True)]
    shared, labels = distinguish_cases(cases)
    assert labels == ["min_block_size=1", "min_block_size=5"]
    assert shared == ["torch_tensorrt:dynamo", "fp32", "batch 1", "tf32=true"]
    warned = PartitionResult(cases[0], MIXED, [Warning("no-effect", "It does nothing.", "Leave it out.")])
    answers = [
        warned, PartitionResult(cases[1], WHOLE), PartitionResult(case(), Unsupported("torch.export cannot take it.")),
    ]  # fmt: skip
    made = partition_document(answers, wide=True)
    screens = render(made, width=110, wide=True) + render(partition_document(answers))
    compare_with_stored("partition/several", screens)
    names, *rows = render(made, "csv").splitlines()
    assert (len(rows), names.split(",")[-1], rows[2].endswith("torch.export cannot take it.")) == (3, "failure", True)
    data = json.loads(render(made, "json"))
    mixed, whole, none = data["partitions"]
    assert (data["schema"], mixed["warnings"][0]["code"]) == ("inferlens.partitions/1", "no-effect")
    assert msgspec.convert(whole["partition"], Partition) == WHOLE
    assert (none["partition"], none["failure"]) == (None, "torch.export cannot take it.")
    alike = [case(precision=precision, batch=batch) for batch in (1, 2) for precision in ("fp32", "fp16")]
    assert distinguish_cases(alike)[1] == ["fp32 batch 1", "fp16 batch 1", "fp32 batch 2", "fp16 batch 2"]


NONE = partition_of([TORCH], front_end="dynamo", min_block_size=100)
VALUES = [PartitionResult(case(min_block_size=size, precision="fp16", batch=8), part)
          for size, part in ((1, WHOLE), (5, WHOLE), (100, NONE))]  # fmt: skip
BREAKS = partition_of(
    [ENGINE, Segment("TensorRT", ENGINE.operators, 1), Segment("PyTorch", TORCH.operators, 2)],
    front_end="compile", min_block_size=1,
    interruptions=[Interruption(0, "Failed to trace print", "model.py line 7", ""), Interruption(1, "a jump")],
)  # fmt: skip
UNKNOWN = msgspec.structs.replace(MIXED, operators=None, in_tensorrt=None, engines=(None, None), ways=24)
test_screen = screens_test("partition", {
    "counts, breaks and choices": lambda: shown((case(), MIXED)),
    "values that give the same": lambda: render(partition_document(VALUES), width=200),
    "graph breaks": lambda: shown((case("compile"), BREAKS), width=160),
    "unknown": lambda: shown((case("ts-trace"), UNKNOWN)),
})  # fmt: skip


def test_many_places_and_choices_fit_on_a_screen():
    names = [f"stage{number}.block.conv" for number in range(40)]
    sides = {"TensorRT": "", "PyTorch": "forced"}
    segments = [Segment(side, tuple(Operator(f"aten.op{n}", name, why) for n in range(20)))
                for name in names for side, why in sides.items()]  # fmt: skip
    choices = [Choice(n, n, (20,) * (40 - n), 81 - 2 * n) for n in range(1, 17)]
    part = partition_of(
        segments, front_end="dynamo", min_block_size=5, choices=choices, ways=30, flavour="TensorRT for RTX",
        assumed_gpu="8.9", note="Something else.",
    )  # fmt: skip
    warnings = [Warning("no-effect", f"Option {n} does nothing.", "Leave it out.") for n in range(5)]
    for cases in ([case(precision="fp16")], [case(min_block_size=n, precision="fp16") for n in range(30)]):
        text = render(partition_document([PartitionResult(each, part, warnings) for each in cases]))
        assert (len(text.splitlines()) <= 24, max(map(len, text.splitlines())) <= 100) == (True, True), text
        said = " ".join(text.split())
        assert ("800 of 1,600 operators run in TensorRT, in 40 engines" in said, ": --wide" in said) == (True, True)
    text = render(partition_document([PartitionResult(case(precision="fp16"), part, warnings)]))
    compare_with_stored("partition/many choices", text)
