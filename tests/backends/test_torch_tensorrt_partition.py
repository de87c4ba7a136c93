"""Partitions of real models by the installed Torch-TensorRT, and what layers of its networks carry for profiles.

``tests/partitions.py`` makes them.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from inferlens.backends.torch_tensorrt.telling import UNNAMED, module_and_operator
from tests.partitions import Made

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_tensorrt") is None or importlib.util.find_spec("torchvision") is None,
    reason="needs Torch-TensorRT and torchvision",
)


@pytest.fixture
def found(partitions: Made) -> dict[str, Any]:
    return partitions.partitions


def test_resnet18_is_one_engine_of_89_operators(found: dict[str, Any]) -> None:
    part = found["resnet18"]
    assert (part.operators, part.in_tensorrt, part.engines) == (89, 89, (89,))
    assert not part.breaks
    assert part.flavour in ("TensorRT", "TensorRT for RTX")
    assert part.assumed_gpu == ("" if torch.cuda.is_available() else "8.9")
    operators = part.segments[0].operators
    assert (operators[0].name, operators[0].module) == ("aten.convolution.default", "conv1")
    assert {operator.module for operator in operators} >= {"layer1.0.conv1", "layer4.1.bn2", "fc"}


def test_the_fewest_segments_are_told_with_every_value_that_gives_them(found: dict[str, Any]) -> None:
    (choice,) = found["resnet18"].choices
    assert (choice.least, choice.most, choice.engines, choice.segments) == (1, 89, (89,), 1)
    assert found["resnet18"].fewest == choice
    assert found["resnet18 large blocks"].fewest == choice


def test_blocks_that_are_too_small_run_in_pytorch(found: dict[str, Any]) -> None:
    part = found["resnet18 large blocks"]
    assert (part.operators, part.in_tensorrt, part.engines) == (89, 0, ())
    (only,) = part.breaks
    assert only.why == ("block too small",)
    assert sum(only.operators.values()) == 89


def test_forced_operators_break_the_graph_where_their_modules_are(found: dict[str, Any]) -> None:
    part = found["resnet18 forced"]
    assert part.operators == 89
    assert part.in_tensorrt + sum(sum(each.operators.values()) for each in part.breaks) == 89
    inner = [each for each in part.breaks if each.operators == {"aten.add.Tensor": 1}]
    assert {module for each in inner for module in each.modules} >= {"layer1.0", "layer2.1"}
    assert all(each.why == ("forced",) for each in inner)
    assert "block too small" in part.breaks[0].why
    assert part.fewest is not None
    assert part.fewest.segments < len(part.segments)
    current = next(choice for choice in part.choices if choice.least <= 5 <= choice.most)
    assert (current.engines, current.segments) == (part.engines, len(part.segments)), "as the library would build it"
    assert part.note == "The lowered graph has no aten.hardtanh, so torch_executed_ops does nothing there."


def test_unsupported_operators_are_named_with_their_module(found: dict[str, Any]) -> None:
    part = found["broken"]
    assert [each.runs_in for each in part.segments] == ["TensorRT", "PyTorch", "TensorRT"]
    operator = part.segments[1].operators[0]
    assert (operator.name, operator.module) == ("aten.linalg_inv_ex.default", "inverse")
    assert (operator.why, operator.detail) == ("unsupported", "no converter")


@pytest.mark.parametrize("name", ["mobilenet_v2", "encoder", "two inputs", "range", "autocast", "resnet18 compile"])
def test_the_whole_graph_is_one_engine(name: str, found: dict[str, Any]) -> None:
    part = found[name]
    assert not isinstance(part, str), part
    assert part.engines == (part.operators,)
    assert part.operators > 5


def test_graphs_that_dynamo_broke_are_told_apart(found: dict[str, Any]) -> None:
    part = found["interrupted"]
    assert [each.graph for each in part.segments] == [0, 1]
    assert len(part.engines) == 2
    assert len(part.graph_breaks) == 1
    assert "graph_break" in part.graph_breaks[0]
    assert "does not tell" in part.note


@pytest.mark.parametrize("name", ["range compile", "range compile from 1"])
def test_torch_compile_takes_ranges_of_sizes(name: str, found: dict[str, Any]) -> None:
    part = found[name]
    assert not isinstance(part, str), part
    assert part.engines == (part.operators,), "the graph of a size of 1 is another"
    assert part.operators == found["range compile"].operators
    assert "compiles a size of 1 apart" in part.note


def test_only_ranges_from_1_have_a_size_apart(found: dict[str, Any]) -> None:
    assert "apart" not in found["range"].note, "dynamo compiles the whole range"
    assert "apart" not in found["resnet18 compile"].note


def test_the_torchscript_front_end_tells_nothing_before_it_builds(found: dict[str, Any]) -> None:
    assert "only when it has built" in found["script"]


def test_layers_without_a_name_carry_what_they_were_converted_from(partitions: Made) -> None:
    paths = frozenset({"", "core", "out"})
    attention = {meta for name, meta in partitions.carried if name.startswith(UNNAMED) and "[Attention" in name}
    assert {module_and_operator(each, paths) for each in attention} == {
        ("core", "aten.scaled_dot_product_attention.default")
    }
    assert ("out", "aten.linear.default") in {module_and_operator(each, paths) for _, each in partitions.carried}
    assert not any(carried.startswith(UNNAMED) for _, carried in partitions.carried)
    assert all(carried == name for name, carried in partitions.carried if not name.startswith(UNNAMED))
