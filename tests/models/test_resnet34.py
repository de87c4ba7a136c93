"""The zoo's ResNet-34 is the one it says it is."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from inferlens.models.zoo import ResNet34  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return ResNet34().eval()


def convolution(channels_in, channels, size):
    return channels_in * channels * size**2 + channels


def test_parameters_are_those_of_the_formula(model):
    """Every convolution has a bias, and only the first block of stages two to four one in its shortcut."""
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


@torch.no_grad()
def test_stages_have_their_shapes(model):
    x, shapes = torch.zeros(2, 3, 224, 224), []
    for part in (model.stem, *model.stages, model.pool):
        x = part(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(64, 56, 56), (64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7), (512, 3, 3)]
    assert model.head(x.flatten(1)).shape == (2, 1000)


def test_relu_comes_before_batch_norm(model):
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
