"""Random weights let a lower precision be told from a mistake: rounding errors stay far below the tolerances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferlens.backends.base import TOLERANCES
from inferlens.measure.agreement import compare
from inferlens.models.inputs import make_inputs
from inferlens.models.outputs import flatten
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case

# Attention after and before its norm, and convolutions under layer norm and batch norm: deep, not wide.
MODELS = [
    "timm:vit_tiny_patch16_224", "transformers:electra", "timm:convnext_atto", "torchvision:mobilenet_v2",
    "inferlens:resnet34",
]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_rounding_errors_do_not_grow_with_depth(name: str) -> None:
    model = load(Case(model=find(name).spec, backend="pytorch"))
    assert model.module is not None

    def outputs(dtype: torch.dtype) -> list[np.ndarray]:
        assert model.module is not None
        arrays = [torch.from_numpy(array) for array in make_inputs(model, 0).values()]
        feed = [value.to(dtype) if value.is_floating_point() else value for value in arrays]
        with torch.inference_mode():
            return [tensor.double().numpy() for tensor in flatten(model.module.to(dtype)(*feed))]

    single, double = outputs(torch.float32), outputs(torch.float64)
    error = compare(single, double, TOLERANCES["fp32"], "float64").rel_l2
    assert error is not None
    assert error < TOLERANCES["fp32"] / 10
    model.module.float()
    assert compare(outputs(torch.bfloat16), single, TOLERANCES["bf16"], "float32").agrees


@pytest.mark.parametrize("name", ["transformers:electra", "timm:vit_tiny_patch16_224", "timm:convnext_atto"])
def test_other_inputs_give_other_outputs(name: str) -> None:
    model = load(Case(model=find(name).spec, backend="pytorch"))
    assert model.module is not None
    answers = []
    for seed in (0, 1):
        arrays = [torch.from_numpy(array) for array in make_inputs(model, seed).values()]
        with torch.inference_mode():
            answers.append([tensor.numpy() for tensor in flatten(model.module(*arrays))])
    assert compare(answers[1], answers[0], TOLERANCES["bf16"], "another input").agrees is False
