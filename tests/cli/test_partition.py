"""``inferlens partition``: what it prints, and one run of it."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from rich.console import Console

from inferlens.case import Case
from inferlens.cli.partition import differences, document, place, show
from inferlens.errors import InferlensError, Unsupported
from inferlens.partition import Choice, Operator, Partition, Segment, Side, partition_of
from tests.commands import inferlens

if TYPE_CHECKING:
    from tests.partitions import Made

Results = list[tuple[Case, Partition | InferlensError]]


def case(**options: Any) -> Case:
    return Case(model="torchvision:resnet18", backend="torch_tensorrt", variant="dynamo", options=options)


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


def shown(results: Results, width: int = 110) -> str:
    text = io.StringIO()
    show(results, Console(file=text, width=width))
    return text.getvalue()


def test_counts_operators_breaks_and_choices_are_shown() -> None:
    text = " ".join(shown([(case(), MIXED)]).split())
    assert "torchvision:resnet18 · torch_tensorrt:dynamo · fp32 · batch 1 · TensorRT for RTX" in text
    for words in (
        "operators 5 in TensorRT 4 in PyTorch 1 engines 2 operators per engine 3, 1 segments 3",
        "aten.relu.default 3 TensorRT",
        "aten.linalg_inv_ex.default 1 PyTorch",
        "between engines 1 and 2 inverse aten.linalg_inv_ex.default unsupported (no converter)",
        "2 to 3 (fewest segments) 1 3 3 2",
        "compute capability 8.9 was assumed",
    ):
        assert words in text


def test_several_are_side_by_side_and_told_apart_by_what_differs() -> None:
    cases = [case(min_block_size=1, tf32=True), case(min_block_size=5, tf32=True)]
    assert differences(cases) == ["min_block_size=1", "min_block_size=5"]
    text = shown([(cases[0], MIXED), (cases[1], WHOLE)])
    assert "min_block_size=1  min_block_size=5" in text
    assert "What PyTorch runs with min_block_size=1" in text
    assert "with min_block_size=5" not in text


def test_one_that_could_not_be_partitioned_leaves_the_others() -> None:
    failed = Unsupported("torch.export cannot take it.", cure="another")
    results: Results = [(case(min_block_size=1), failed), (case(min_block_size=5), WHOLE)]
    assert "min_block_size=1: torch.export cannot take it." in shown(results)
    data = json.loads(document(results))
    assert data["schema"] == "inferlens.partitions/1"
    assert data["partitions"][0]["partition"] is None
    assert "cannot take it" in data["partitions"][0]["failure"]
    assert msgspec.convert(data["partitions"][1]["partition"], Partition) == WHOLE


def test_places_are_told_by_the_engines_around() -> None:
    parts = (TORCH, ENGINE, TORCH, ENGINE, TORCH)
    assert [place(parts, number) for number in (0, 2, 4)] == [
        "before engine 1", "between engines 1 and 2", "after engine 2",
    ]  # fmt: skip
    assert place((TORCH,), 0) == "the whole graph"


@pytest.mark.skipif(
    importlib.util.find_spec("torch_tensorrt") is None or importlib.util.find_spec("torchvision") is None,
    reason="needs Torch-TensorRT and torchvision",
)
def test_a_model_is_partitioned(partitions: Made) -> None:
    assert partitions.code == 0, partitions.errors
    data = json.loads(partitions.output)["partitions"]
    first, second = (msgspec.convert(each["partition"], Partition) for each in data)
    assert first.engines == (first.operators,)
    assert second.engines == ()
    assert second.breaks[0].why == ("block too small",)


def test_an_unknown_format_is_told_before_anything_runs(tmp_path: Path) -> None:
    done = inferlens("partition", "resnet18", "--format", "svg", cwd=tmp_path)
    assert done.returncode == 2
    assert "table or json" in done.stderr
    assert not list(tmp_path.iterdir())
