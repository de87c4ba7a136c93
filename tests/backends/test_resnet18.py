"""One real network, the same outputs from every backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from tests.backends import small
from tests.backends.test_contract import REAL

torchvision = pytest.importorskip("torchvision")


def resnet18() -> Model:
    torch.manual_seed(0)
    module = torchvision.models.resnet18(weights=None).eval()
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):  # statistics near those of the activations: no layer is drowned
            torch.nn.init.uniform_(part.running_var, 0.5, 2.0)
    spec = TensorSpec("image", (1, 3, 224, 224))
    return Model("torchvision:resnet18", "resnet18", "module", (spec,), module=module)


@pytest.mark.parametrize("label", REAL)
def test_outputs_agree_with_eager(label: str, preparation: Preparation, record_property: Any) -> None:
    model = resnet18()
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    if small.backend(label).capabilities().refusal(small.case(label), small.found("module")):
        pytest.skip("not available here")
    error = small.error(small.run(model, small.case(label), preparation, inputs), expected)
    record_property("relative_l2_error", error)
    print(f"{label}: {error:.2e}")
    assert error < TOLERANCES["fp32"]
