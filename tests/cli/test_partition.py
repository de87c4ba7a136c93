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


def case(variant: str = "dynamo", precision: str = "fp32", batch: int = 1, **options: Any) -> Case:
    model = "torchvision:resnet18"
    return Case(
        model=model, backend="torch_tensorrt", variant=variant, precision=precision, batch=batch, options=options
    )


def segment(side: Side, *names: str, why: Any = "", module: str = "head") -> Segment:
    return Segment(side, tuple(Operator(name, module, why, "no converter" if why else "") for name in names))


ENGINE = segment("TensorRT", "aten.relu.default", "aten.relu.default", "aten.add.Tensor")
TORCH = segment("PyTorch", "aten.linalg_inv_ex.default", why="unsupported", module="inverse")
WHOLE = partition_of([ENGINE], front_end="dynamo", min_block_size=1, flavour="TensorRT")
MIXED = partition_of(
    [ENGINE, TORCH, segment("TensorRT", "aten.relu.default")],
    front_end="dynamo",
    min_block_size=1,
    choices=[Choice(1, 1, (3, 1), 3), Choice(2, 3, (3,), 2)],
    flavour="TensorRT for RTX",
    assumed_gpu="8.9",
)


def shown(*results: tuple[Case, Partition | InferlensError], width: int = 110, wide: bool = True) -> str:
    return render(partition_document([PartitionResult(*each) for each in results], wide=wide), width=width, wide=wide)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_counts_operators_breaks_and_choices_are_shown():
    text = shown((case(), MIXED))
    assert text.startswith("torchvision:resnet18 · torch_tensorrt:dynamo · fp32 · batch 1 · TensorRT for RTX\n")
    for row in (
        "the model 5 4 1 2 3 3, 1",
        "aten.relu.default 3/0", "aten.linalg_inv_ex.default 0/1",
        "between engines 1 and 2 inverse aten.linalg_inv_ex.default unsupported (no converter)",
        "1 2 3, 1 4 3 in use", "2 to 3 1 3 3 2",
    ):  # fmt: skip
        assert row in lines(text)
    assert "compute capability 8.9 was assumed" in text


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
    text = render(made, width=110, wide=True)
    assert "What PyTorch runs with min_block_size=1" in text
    assert "What min_block_size changes with min_block_size=1" in text
    assert "runs with min_block_size=5" not in text
    assert "With min_block_size=1 tf32=true: It does nothing. Leave it out." in text
    assert "default: torch.export cannot take it." in text
    few = render(partition_document(answers))
    assert "Most is in TensorRT with min_block_size=1 tf32=true: 4 of 5 operators run in TensorRT, in 2 engines." in few
    assert "What PyTorch runs" not in few, "which is for one case, or --wide"
    assert "default failed" in lines(few)
    names, *rows = render(made, "csv").splitlines()
    assert (len(rows), names.split(",")[-1], rows[2].endswith("torch.export cannot take it.")) == (3, "failure", True)
    data = json.loads(render(made, "json"))
    assert data["schema"] == "inferlens.partitions/1"
    assert data["partitions"][0]["warnings"][0]["code"] == "no-effect"
    assert msgspec.convert(data["partitions"][1]["partition"], Partition) == WHOLE
    assert (data["partitions"][2]["partition"], data["partitions"][2]["failure"]) == (
        None, "torch.export cannot take it.",
    )  # fmt: skip
    alike = [case(precision=precision, batch=batch) for batch in (1, 2) for precision in ("fp32", "fp16")]
    assert distinguish_cases(alike)[1] == ["fp32 batch 1", "fp16 batch 1", "fp32 batch 2", "fp16 batch 2"]
    assert shown(*((each, MIXED) for each in alike)).count("What PyTorch runs") == 1, "said once of all"


def test_values_that_give_the_same_are_said_together_and_which_is_the_default():
    none = partition_of([TORCH], front_end="dynamo", min_block_size=100)
    cases = [case(min_block_size=size, precision="fp16", batch=8) for size in (1, 5, 100)]
    answers = [PartitionResult(each, part) for each, part in zip(cases, (WHOLE, WHOLE, none), strict=True)]
    text = render(partition_document(answers, defaults={"min_block_size": "5"}), width=200)
    assert "Most is in TensorRT with min_block_size=1 and 5 (default): all 3 operators run in TensorRT, in 1" in text
    assert "fewest" not in text
    assert "bench resnet18 -b torch_tensorrt:dynamo --precision fp16 --batch 8 --option" in text
    assert "The same with each: all 3 operators run in TensorRT, in 1 engine." in render(
        partition_document(answers[:2])
    )


def test_graph_breaks_have_rows():
    graphs = [ENGINE, Segment("TensorRT", ENGINE.operators, 1), Segment("PyTorch", TORCH.operators, 2)]
    breaks = [Interruption(0, "Failed to trace print", "model.py line 7", ""), Interruption(1, "a jump")]
    part = partition_of(graphs, front_end="compile", min_block_size=1, interruptions=breaks)
    text = shown((case("compile"), part), width=160)
    rows = (
        "between engines 1 and 2 the model itself Python, model.py line 7 graph break: Failed to trace print",
        "after engine 2 unknown Python graph break: a jump",
        "after engine 2 inverse aten.linalg_inv_ex.default unsupported (no converter)",
    )
    assert [line for line in lines(text) if line in rows] == list(rows)
    assert "the model 7 6 1 2 3 2 3, 3" in lines(text), "counts, graph breaks before the sizes of engines"
    assert "6 of 7 operators run in TensorRT, in 2 engines; PyTorch runs 1, in 1 place; Python runs" in text


def test_many_places_and_choices_fit_on_a_screen():
    names = [f"stage{number}.block.conv" for number in range(40)]
    segments = [
        Segment(side, tuple(Operator(f"aten.op{n}", name, "forced" if side == "PyTorch" else "") for n in range(20)))
        for name in names
        for side in ("TensorRT", "PyTorch")
    ]
    choices = [Choice(n, n, (20,) * (40 - n), 81 - 2 * n) for n in range(1, 17)]
    part = partition_of(
        segments, front_end="dynamo", min_block_size=5, choices=choices, ways=30, flavour="TensorRT for RTX",
        assumed_gpu="8.9", note="Something else.",
    )  # fmt: skip
    warnings = [Warning("no-effect", f"Option {n} does nothing.", "Leave it out.") for n in range(5)]
    for cases in ([case(precision="fp16")], [case(min_block_size=n, precision="fp16") for n in range(30)]):
        text = render(partition_document([PartitionResult(each, part, warnings) for each in cases]))
        assert len(text.splitlines()) <= 24, text
        assert max(map(len, text.splitlines())) <= 100, text
        assert "800 of 1,600 operators run in TensorRT, in 40 engines" in text
        assert ": --wide)" in text
    text = render(partition_document([PartitionResult(case(precision="fp16"), part, warnings)]))
    marked = [line.split()[0] for line in text.splitlines() if line.endswith("in use")]
    assert marked == ["5"]
    options = "--precision fp16 --option torch_tensorrt.min_block_size=5,16"
    command = f"inferlens bench resnet18 -b torch_tensorrt:dynamo {options}"
    assert " ".join(text.replace("\\", "").split()).endswith(f"Which is faster? {command}")


def test_what_is_not_known_is_said():
    part = msgspec.structs.replace(MIXED, operators=None, in_tensorrt=None, engines=(None, None), ways=24)
    text = shown((case("ts-trace"), part))
    assert "the model unknown unknown 1 2 3 ?, ?" in lines(text)
    assert "2 engines; how many operators are in them is unknown; PyTorch runs 1, in 1 place." in text
    assert "2 of 24 results" in text
