"""The zoo's ResNet-34 is the one it says it is."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from inferlens.models.zoo import ResNet34  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return ResNet34().eval()


def test_parameters_are_those_of_the_formula(model):
    """Every convolution has a bias, and only the first block of stages two to four one in its shortcut."""
    expected, width = 3 * 64 * 7**2 + 64 + 2 * 64 + 4608 * 1000 + 1000, 64
    for blocks, channels in ((3, 64), (4, 128), (6, 256), (3, 512)):
        first, inner = (before * channels * 3**2 + channels for before in (width, channels))
        expected += first + (2 * blocks - 1) * inner + blocks * 2 * 2 * channels
        expected += first if width != channels else 0
        width = channels
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_relu_comes_before_batch_norm(model):
    modules = dict(model.named_modules())
    nodes = [node for node in torch.fx.symbolic_trace(model).graph.nodes if node.op == "call_module"]
    kind = {node: type(modules[node.target]) for node in nodes}
    assert all([kind[user] for user in node.users] == [nn.ReLU] for node in nodes if kind[node] is nn.Conv2d)
    norms = [node.args[0] for node in nodes if kind[node] is nn.BatchNorm2d]
    assert len(norms) == 1 + 2 * (3 + 4 + 6 + 3)
    assert all((kind[relu], kind[relu.args[0]]) == (nn.ReLU, nn.Conv2d) for relu in norms)
