"""``inferlens partition``: what it prints, and one run of it."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inferlens.errors import InferlensError, Unsupported
from inferlens.record.partition import Choice, Interruption, Operator, Partition, Segment, Side, partition_of
from inferlens.record.record import Warning
from inferlens.spec.case import Case
from inferlens.views.partition import Answer, document, told_apart
from inferlens.views.table import render

if TYPE_CHECKING:
    from tests.backends.torch_tensorrt.partitions import Made


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


def shown(*results: tuple[Case, Partition | InferlensError], width: int = 110) -> str:
    return render(document([Answer(*each) for each in results]), width=width)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_counts_operators_breaks_and_choices_are_shown() -> None:
    text = shown((case(), MIXED))
    assert text.startswith("torchvision:resnet18 · torch_tensorrt:dynamo · fp32 · batch 1 · TensorRT for RTX\n")
    for row in (
        "operators 5", "in TensorRT 4", "in PyTorch 1", "engines 2", "operators per engine 3, 1", "segments 3",
        "aten.relu.default 3/0", "aten.linalg_inv_ex.default 0/1",
        "between engines 1 and 2 inverse aten.linalg_inv_ex.default unsupported (no converter)",
        "1 2 3, 1 4 3 in use", "2 to 3 1 3 3 2 fewest segments",
    ):  # fmt: skip
        assert row in lines(text)
    assert "compute capability 8.9 was assumed" in text


def test_several_are_side_by_side_and_told_apart_by_what_differs() -> None:
    cases = [case(min_block_size=1, tf32=True), case(min_block_size=5, tf32=True)]
    shared, labels = told_apart(cases)
    assert labels == ["min_block_size=1", "min_block_size=5"]
    assert shared == ["torch_tensorrt:dynamo", "fp32", "batch 1", "tf32=true"]
    warned = Answer(cases[0], MIXED, [Warning("no-effect", "It does nothing.", "Leave it out.")])
    answers = [warned, Answer(cases[1], WHOLE), Answer(case(), Unsupported("torch.export cannot take it."))]
    made = document(answers)
    text = render(made, width=110)
    assert "What PyTorch runs with min_block_size=1" in text
    assert "What min_block_size changes with min_block_size=1" in text
    assert "runs with min_block_size=5" not in text
    assert "With min_block_size=1 tf32=true: It does nothing. Leave it out." in text
    assert "default: torch.export cannot take it." in text
    data = json.loads(render(made, "json"))
    assert data["schema"] == "inferlens.partitions/1"
    assert data["partitions"][0]["warnings"][0]["code"] == "no-effect"
    assert msgspec.convert(data["partitions"][1]["partition"], Partition) == WHOLE
    assert (data["partitions"][2]["partition"], data["partitions"][2]["failure"]) == (
        None, "torch.export cannot take it.",
    )  # fmt: skip
    alike = [case(precision=precision, batch=batch) for batch in (1, 2) for precision in ("fp32", "fp16")]
    assert told_apart(alike)[1] == ["fp32 batch 1", "fp16 batch 1", "fp32 batch 2", "fp16 batch 2"]
    assert shown(*((each, MIXED) for each in alike)).count("What PyTorch runs") == 1, "said once of all"


def test_graph_breaks_have_rows() -> None:
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
    assert "graph breaks (Python) 2" in lines(text)


def test_what_is_not_known_is_said() -> None:
    part = msgspec.structs.replace(MIXED, operators=None, in_tensorrt=None, engines=(None, None), ways=24)
    text = shown((case("ts-trace"), part))
    for row in ("operators unknown", "in TensorRT unknown", "operators per engine ?, ?"):
        assert row in lines(text)
    assert "What min_block_size changes (2 of 24 results)" in text


@pytest.mark.skipif(importlib.util.find_spec("torch_tensorrt") is None, reason="needs Torch-TensorRT")
def test_a_model_is_partitioned(partitions: Made) -> None:
    assert partitions.code == 2, "if one of several is bad input"
    bad, good = json.loads(partitions.output)["partitions"]
    assert "names 'aten.rlu', which is no operator" in bad["failure"]
    part = msgspec.convert(good["partition"], Partition)
    assert (part.operators, part.engines) == (4, ())
    assert part.breaks[0].why == ("block too small", "forced")
