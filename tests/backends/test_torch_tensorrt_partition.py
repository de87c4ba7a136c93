"""Partitions of real models by the installed Torch-TensorRT, without a GPU: lowering and partitioning need none.

The library is imported in a process of its own, with a GPU assumed where there is none: this file, run as a module,
writes the partitions of :data:`ASKED` as JSON.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from inferlens.backends.torch_tensorrt.backend import TorchTensorRT
from inferlens.case import TensorSpec
from inferlens.errors import InferlensError
from inferlens.models.model import Model
from inferlens.partition import Partition
from tests.backends import small

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_tensorrt") is None or importlib.util.find_spec("torchvision") is None,
    reason="needs Torch-TensorRT and torchvision",
)
ROOT = Path(__file__).parent.parent.parent


class Inverse(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(rows + torch.eye(16, device=rows.device))


class Broken(nn.Module):
    """An operator without a converter between convolutions and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.inverse = Inverse()
        self.last = nn.Linear(16, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        middle = self.inverse(torch.relu(self.first(image)))
        return torch.softmax(self.last(torch.relu(middle) + 1), -1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.layers(tokens)


class Interrupted(nn.Module):
    """A break in Dynamo's graph."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        double = torch.relu(image * 2)
        torch._dynamo.graph_break()
        return torch.relu(double + 1)


def named(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None)  # type: ignore[no-any-return]

    return make


IMAGE, SMALL = TensorSpec("x", (1, 3, 224, 224)), TensorSpec("x", (1, 3, 16, 16))
TOKENS = TensorSpec("x", (1, 10, 64))
RANGE = TensorSpec.parse("image=1..5x3x16x16:opt=2")
Asked = tuple[Callable[[], nn.Module], tuple[TensorSpec, ...], str, str, dict[str, Any]]
ASKED: dict[str, Asked] = {
    "resnet18": (named("resnet18"), (IMAGE,), "dynamo", "fp32", {}),
    "resnet18 large blocks": (named("resnet18"), (IMAGE,), "dynamo", "fp32", {"min_block_size": 100}),
    "resnet18 forced": (
        named("resnet18"), (IMAGE,), "dynamo", "fp32", {"torch_executed_ops": "aten.max_pool2d+aten.add.Tensor"}
    ),
    "resnet18 compile": (named("resnet18"), (IMAGE,), "compile", "fp32", {}),
    "mobilenet_v2": (named("mobilenet_v2"), (IMAGE,), "dynamo", "fp16", {}),
    "encoder": (Encoder, (TOKENS,), "dynamo", "fp32", {}),
    "broken": (Broken, (SMALL,), "dynamo", "fp32", {"min_block_size": 1}),
    "interrupted": (Interrupted, (SMALL,), "compile", "fp32", {"min_block_size": 1}),
    "two inputs": (small.TwoInputs, small.TWO_INPUTS, "dynamo", "fp32", {"min_block_size": 1}),
    "range": (small.Convolution, (RANGE,), "dynamo", "fp32", {"min_block_size": 1}),
    "range compile": (small.Convolution, (RANGE,), "compile", "fp32", {"min_block_size": 1}),
    "autocast": (small.Convolution, small.CONVOLUTION, "dynamo", "fp16", {"min_block_size": 1, "autocast": True}),
    "script": (small.Convolution, small.CONVOLUTION, "ts-trace", "fp32", {}),
}  # fmt: skip


def partition(asked: Asked, folder: Path) -> Partition | str:
    make, specs, variant, precision, options = asked
    torch.manual_seed(0)
    model = Model("test:model", "model", "module", specs, module=make().eval())
    case = small.case(f"torch_tensorrt:{variant}", device="cuda", precision=precision, options=options)
    try:
        return TorchTensorRT().partition(model, case, small.preparation(folder))
    except InferlensError as error:
        return str(error)


def main(target: Path) -> None:
    """Writes all partitions."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: partition(asked, Path(folder)) for name, asked in ASKED.items()}
    target.write_bytes(msgspec.json.encode(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target = tmp_path_factory.mktemp("partitions") / "partitions.json"
    command = [sys.executable, "-m", __name__, str(target)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return msgspec.json.decode(target.read_bytes(), type=dict[str, Partition | str])


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


def test_torch_compile_takes_ranges_of_sizes(found: dict[str, Any]) -> None:
    part = found["range compile"]
    assert not isinstance(part, str), part
    assert part.in_tensorrt == part.operators


def test_the_torchscript_front_end_tells_nothing_before_it_builds(found: dict[str, Any]) -> None:
    assert "only when it has built" in found["script"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
