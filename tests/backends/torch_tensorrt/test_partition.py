"""Partitions of real models by the installed Torch-TensorRT, which ``partitions.py`` makes in a process."""

import importlib.util
import json
from pathlib import Path

import msgspec
import pytest
import torch

from inferlens.record.builds import Partition

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_tensorrt") is None or importlib.util.find_spec("torchvision") is None,
    reason="needs Torch-TensorRT and torchvision",
)


@pytest.fixture
def parts(partitions):
    return partitions.partitions


def test_resnet18_is_one_engine_of_89_operators(parts):
    part = parts["resnet18"]
    assert (part.operators, part.in_tensorrt, part.engines, part.breaks) == (89, 89, (89,), ())
    assert part.flavour in ("TensorRT", "TensorRT for RTX")
    assert part.assumed_gpu == ("" if torch.cuda.is_available() else "8.9")
    operators = part.segments[0].operators
    assert (operators[0].name, operators[0].module) == ("aten.convolution.default", "conv1")
    assert {operator.module for operator in operators} >= {"layer1.0.conv1", "layer4.1.bn2", "fc"}
    (choice,) = part.choices
    assert (choice.least, choice.most, choice.engines, choice.segments) == (1, 89, (89,), 1)
    assert part.fewest == choice


def test_blocks_that_are_too_small_run_in_pytorch(parts):
    part = parts["large blocks"]
    assert (part.in_tensorrt, part.engines) == (0, ())
    (only,) = part.breaks
    assert (only.why, sum(only.operators.values())) == (("block too small",), part.operators)
    one_engine, none = part.choices
    assert part.fewest == one_engine
    assert (one_engine.least, one_engine.most, one_engine.engines) == (1, part.operators, (part.operators,))
    assert (none.least, none.most, none.engines) == (part.operators + 1, 100, ()), "also at the current value"


def test_forced_operators_break_the_graph_where_their_modules_are(parts):
    part = parts["forced"]
    assert (part.operators, part.in_tensorrt + sum(sum(item.operators.values()) for item in part.breaks)) == (89, 89)
    inner = [item for item in part.breaks if item.operators == {"aten.add.Tensor": 1}]
    assert {module for item in inner for module in item.modules} >= {"layer1.0", "layer2.1"}
    assert all(item.why == ("forced",) for item in inner)
    assert "block too small" in part.breaks[0].why
    assert part.fewest.segments < len(part.segments)
    current = next(choice for choice in part.choices if choice.least <= 5 <= choice.most)
    assert (current.engines, current.segments) == (part.engines, len(part.segments)), "as the library would build it"


def test_unsupported_operators_are_named_with_their_module(parts):
    part = parts["broken"]
    assert [segment.runs_in for segment in part.segments] == ["TensorRT", "PyTorch", "TensorRT"]
    operator, result = part.segments[1].operators[:2]
    assert (operator.name, operator.module) == ("aten.linalg_inv_ex.default", "inverse")
    assert (operator.why, operator.detail) == ("unsupported", "no converter")
    assert (result.name, result.detail) == ("getitem", "a result of aten.linalg_inv_ex.default: no converter")


def test_a_range_that_begins_at_1_is_one_engine(parts):
    part = parts["range from 1"]
    assert part.engines == (part.operators,)
    assert part.operators > 5


def test_an_operator_that_python_runs_between_graphs_is_named_with_its_line(parts):
    part = parts["filtered"]
    assert (part.operators, [segment.graph for segment in part.segments]) == (part.in_tensorrt, [0, 1])
    (between,) = part.interruptions
    assert between.graph == 0
    assert "aten.nonzero.default" in between.reason
    source = Path(__file__).with_name("partitions.py").read_text().splitlines()
    assert "kept.sum(1) > 0" in source[int(between.place.rpartition(" ")[2]) - 1]
    assert part.graph_breaks == (f"{between.reason} ({between.place})",)


def test_operators_of_torch_compile_have_the_paths_of_their_modules(parts):
    def paths(name):
        return [(operator.name, operator.module) for segment in parts[name].segments for operator in segment.operators]

    assert dict(paths("filtered"))["aten.tanh.default"] is None, "only parts of the model are known"
    assert [module for name, module in paths("filtered") if name == "aten.addmm.default"] == ["before", "after"]
    modules = {name: {module for _, module in paths(name)} for name in ("large blocks", "range from 1")}
    assert {"convolution", "norm", "linear"} <= modules["large blocks"] <= modules["range from 1"] | {"", None}


def test_the_command_shows_partitions_and_failures(partitions):
    assert partitions.code == 2, "if one of several is bad input"
    bad, good = json.loads(partitions.output)["partitions"]
    assert "names 'aten.rlu', which is not an operator" in bad["failure"]
    part = msgspec.convert(good["partition"], Partition)
    assert (part.operators, part.engines, part.breaks[0].why) == (4, (), ("block too small", "forced"))
