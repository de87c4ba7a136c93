"""The zoo's ResNet-34 is the one it says it is."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from inferlens.models.zoo import ZOO  # noqa: E402
from inferlens.models.zoo.resnet34 import BasicBlock, resnet34  # noqa: E402

IMAGES = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return resnet34().eval()


def convolution(channels_in: int, channels: int, size: int) -> int:
    return channels_in * channels * size**2 + channels


def test_parameters_are_those_of_the_formula(model: nn.Module) -> None:
    expected = convolution(3, 64, 7) + 2 * 64
    width = 64
    for blocks, channels in ((3, 64), (4, 128), (6, 256), (3, 512)):
        norms = 2 * 2 * channels
        expected += convolution(width, channels, 3) + convolution(channels, channels, 3) + norms
        expected += (blocks - 1) * (2 * convolution(channels, channels, 3) + norms)
        expected += convolution(width, channels, 3) if width != channels else 0
        width = channels
    expected += 4608 * 1000 + 1000
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_stages_have_their_shapes(model: nn.Module) -> None:
    shapes: list[tuple[int, ...]] = []
    parts = [model.stem, *model.stages, model.pool, model.head]
    hooks = [
        part.register_forward_hook(lambda _part, _inputs, output: shapes.append(tuple(output.shape))) for part in parts
    ]
    with torch.no_grad():
        model(IMAGES)
    for hook in hooks:
        hook.remove()
    assert shapes == [
        (2, 64, 56, 56), (2, 64, 56, 56), (2, 128, 28, 28), (2, 256, 14, 14), (2, 512, 7, 7), (2, 512, 3, 3), (2, 1000),
    ]  # fmt: skip
    assert model.head.in_features == 4608


def test_relu_comes_before_batch_norm(model: nn.Module) -> None:
    graph = torch.fx.symbolic_trace(model).graph
    modules = dict(model.named_modules())
    calls = {node: type(modules[node.target]) for node in graph.nodes if node.op == "call_module"}
    normed = 0
    for node, kind in calls.items():
        if kind is nn.Conv2d:
            (after,) = node.users
            assert calls[after] is nn.ReLU
        if kind is nn.BatchNorm2d:
            normed += 1
            assert calls[node.args[0]] is nn.ReLU
            assert calls[node.args[0].args[0]] is nn.Conv2d
    assert normed == 1 + 2 * (3 + 4 + 6 + 3)


def test_only_the_first_block_of_stages_two_to_four_has_a_shortcut_convolution(model: nn.Module) -> None:
    for index, stage in enumerate(model.stages):
        for place, block in enumerate(stage):
            assert isinstance(block, BasicBlock)
            if index == 0 or place:
                assert isinstance(block.shortcut, nn.Identity)
                continue
            convolution, relu = block.shortcut
            assert (convolution.kernel_size, convolution.stride) == ((3, 3), (2, 2))
            assert isinstance(relu, nn.ReLU)


def test_every_convolution_has_a_bias(model: nn.Module) -> None:
    assert all(part.bias is not None for part in model.modules() if isinstance(part, nn.Conv2d))


def test_it_scripts_traces_and_exports_to_the_same_outputs(model: nn.Module) -> None:
    with torch.no_grad():
        expected = model(IMAGES)
        for other in (
            torch.jit.script(model),
            torch.jit.trace(model, (IMAGES,)),
            torch.export.export(model, (IMAGES,)).module(),
        ):
            torch.testing.assert_close(other(IMAGES), expected)


def test_the_zoo_names_factories_and_imports_no_torch() -> None:
    for name, place in ZOO.items():
        module, factory = place.split(":")
        assert getattr(importlib.import_module(module), factory).__name__ == name
    script = "import inferlens.models.zoo, inferlens.models.weights, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
