"""Our ResNet-34 is the one described: its parameters counted by hand, its shapes, the order of its layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inferlens.models.zoo.resnet34 import BasicBlock, ResNet34

BLOCKS = ((3, 64), (4, 128), (6, 256), (3, 512))


def convolution(channels_in: int, channels: int, width: int) -> int:
    """Weights and biases."""
    return channels * (channels_in * width * width + 1)


def parameters_by_hand() -> int:
    total, before = convolution(3, 64, 7) + 2 * 64, 64  # the stem, and its batch norm's scale and shift
    for number, (blocks, channels) in enumerate(BLOCKS):
        total += convolution(before, channels, 3) + (2 * blocks - 1) * convolution(channels, channels, 3)
        total += 2 * blocks * 2 * channels  # batch norms
        total += convolution(before, channels, 3) if number else 0  # shortcut, without batch norm
        before = channels
    return total + 1000 * (4608 + 1)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return ResNet34().eval()


def test_it_has_the_parameters_counted_by_hand(network: nn.Module) -> None:
    assert sum(value.numel() for value in network.parameters()) == parameters_by_hand()


def test_shapes_from_stage_to_stage(network: nn.Module) -> None:
    with torch.inference_mode():
        x = network.stem(torch.zeros(2, 3, 224, 224))
        shapes = [tuple(x.shape[1:])]
        for stage in network.stages:
            x = stage(x)
            shapes.append(tuple(x.shape[1:]))
        features = torch.flatten(network.pool(x), 1)
        answer = network.head(features)
    assert shapes == [(64, 56, 56), (64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7)]
    assert features.shape == (2, 4608)
    assert answer.shape == (2, 1000)


def test_after_each_convolution_first_relu_then_batch_norm(network: nn.Module) -> None:
    traced = torch.fx.symbolic_trace(network)
    modules = dict(traced.named_modules())
    kinds = [(node, type(modules[node.target]).__name__) for node in traced.graph.nodes if node.op == "call_module"]
    by_node = dict(kinds)
    for node, kind in kinds:
        if kind == "Conv2d":
            assert [by_node.get(user) for user in node.users] == ["ReLU"], node
        if kind == "BatchNorm2d":
            assert by_node[node.args[0]] == "ReLU"
    counts = {kind: sum(each == kind for _, each in kinds) for kind in ("Conv2d", "BatchNorm2d")}
    assert counts == {"Conv2d": 1 + 2 * 16 + 3, "BatchNorm2d": 1 + 2 * 16}


def test_shortcuts_and_blocks(network: nn.Module) -> None:
    assert [len(stage) for stage in network.stages] == [3, 4, 6, 3]
    for number, stage in enumerate(network.stages):
        for index, block in enumerate(stage):
            assert isinstance(block, BasicBlock)
            if number and not index:
                convolution, relu = block.shortcut
                assert (convolution.kernel_size, convolution.stride) == ((3, 3), (2, 2))
                assert isinstance(relu, nn.ReLU)
            else:
                assert isinstance(block.shortcut, nn.Identity)
    assert all(part.bias is not None for part in network.modules() if isinstance(part, nn.Conv2d))


def test_a_block_ends_with_a_relu_after_the_addition() -> None:
    traced = torch.fx.symbolic_trace(BasicBlock(4, 4, 1))
    output = next(node for node in traced.graph.nodes if node.op == "output")
    last = output.args[0]
    assert isinstance(traced.get_submodule(last.target), nn.ReLU)
    assert last.args[0].target.__name__ == "add"


def test_it_scripts_traces_and_exports_to_the_same_answers(network: nn.Module) -> None:
    image = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(image)
        exported = torch.export.export(network, (image,)).module()
        for form in (torch.jit.script(network), torch.jit.trace(network, image), exported):
            assert torch.allclose(form(image), expected, rtol=1e-4, atol=1e-5)
