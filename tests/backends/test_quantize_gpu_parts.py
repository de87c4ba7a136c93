"""What quantizes for GPUs, as far as it goes without one: modules are quantized on the CPU, and exported."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferlens.backends.availability import cuda_quantized
from inferlens.backends.base import Preparation
from inferlens.backends.torch_compile.quantize import quantize_linear
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from tests.backends import small
from tests.backends.test_dialects import residual


class Mostly(torch.nn.Module):
    """A linear layer or two behind a small convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = torch.nn.Conv2d(3, 3, 1), torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.two(self.one(self.stem(image)).relu())
        return made


def mostly_linear() -> Model:
    torch.manual_seed(0)
    return Model("mostly", "mostly", "module", residual().inputs, Mostly().eval())


def case(precision: str, keep: str = "") -> Any:
    import msgspec

    case = small.case("torch_compile", precision=precision, device="cuda", calibration="random")
    return msgspec.structs.replace(case, keep=keep)


def test_fp8_needs_a_gpu_that_has_it() -> None:
    def of(*capability: int) -> tuple[tuple[str, ...], dict[str, str]]:
        return cuda_quantized(SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda: capability)))

    assert of(9, 0) == (("fp8", "int8"), {})
    able, limits = of(8, 6)
    assert able == ("int8",)
    assert limits == {"cuda/fp8": "this GPU has compute capability 8.6, and fp8 needs 8.9"}
    assert set(of(7, 5)[1]) == {"cuda/fp8", "cuda/int8"}


def test_torchao_quantizes_linear_layers_alone(preparation: Preparation) -> None:
    model = mostly_linear()
    inputs = small.arrays(model)
    right = small.eager(model, inputs)
    assert model.module is not None
    quantize_linear(model.module, model, case("int8"), preparation)
    assert 0.9 < preparation.facts["quantized_share"] < 1
    assert 0 < small.error(small.eager(model, inputs), right) < 0.05
    with pytest.raises(Unsupported, match="cannot quantize"):  # fp8 takes a GPU, and torchao says so
        quantize_linear(Mostly(), model, case("fp8"), preparation)


def test_of_a_convolutional_network_torchao_takes_the_head_alone_where_it_is_large_enough(
    preparation: Preparation,
) -> None:
    convolution, pool = torch.nn.Conv2d(3, 16, 3), torch.nn.AdaptiveAvgPool2d(4)
    whole = torch.nn.Sequential(convolution, pool, torch.nn.Flatten(2), torch.nn.Linear(16, 16))
    images = Model("images", "images", "module", residual().inputs, whole.eval())
    assert images.module is not None
    quantize_linear(images.module, images, case("int8"), preparation)
    assert 0 < preparation.facts["quantized_share"] < 1
    for module in (residual().module, torch.nn.Sequential(convolution)):
        with pytest.raises(Unsupported, match="no modules of linear layers"):
            quantize_linear(module, residual(), case("int8"), preparation)
    quantize_linear(images.module, images, case("int8", keep="fp16:3"), preparation)
    assert preparation.facts["quantized_share"] == 0, "as was asked for"


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_modelopt_quantizes_and_is_exported_with_tensorrts_operators(precision: str, preparation: Preparation) -> None:
    pytest.importorskip("modelopt")
    from inferlens.backends.torch_tensorrt.front_ends import exporting, quantize_module

    model = residual()
    inputs = small.arrays(model)
    right = small.eager(model, inputs)
    quantize_module(model, case(precision), preparation)
    assert preparation.facts["quantized_share"] == 1.0
    assert 0 < small.error(small.eager(model, inputs), right) < 0.1
    tensor = torch.rand(4, 4)
    with exporting():  # its own code for int8 is CUDA's
        assert torch.ops.tensorrt.quantize_op(tensor, torch.ones(4, 1), 8, 0, False, False).equal(tensor)
    if precision == "fp8":  # int8 is exported on a GPU alone
        with torch.no_grad(), exporting():
            program = torch.export.export(model.module, (torch.from_numpy(inputs["image"]),), strict=False)
        called = [str(node.target) for node in program.graph.nodes]
        assert called.count("tensorrt.quantize_op.default") == 6  # inputs and weights of three layers
    other = residual()
    quantize_module(other, case(precision, keep="fp16:second"), preparation)
    assert preparation.facts["quantized_share"] < 0.5


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    return small.preparation(tmp_path)
