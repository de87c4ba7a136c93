"""Why the exporter built on ``torch.export`` failed, where the older one stepped in or both did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.backends.onnx.export import onnx_file
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.errors import Unsupported
from inferlens.spec.case import Case
from tests.backends import small


class Choosing(nn.Module):
    """Control flow that depends on a value: ``torch.export`` refuses it, a trace takes the branch that was taken."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if image.sum() > 0:  # whatever comes in
            return torch.relu(image)
        return image * 2


class Counting(nn.Module):
    """A size that depends on a value."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        count = int(image.square().sum().item())
        return image[:count] if count > 0 else image


class Decomposing(nn.Module):
    """An operator that neither exporter can write."""

    def forward(self, image: torch.Tensor) -> Any:
        return torch.linalg.svd(image)[0]


class Refusing(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        raise ValueError("this model cannot be called")


@pytest.mark.parametrize("kind", [Choosing, Counting])
def test_where_the_older_exporter_steps_in_the_reason_is_said(kind: type[nn.Module], preparation: Preparation) -> None:
    model = small.model(kind)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    got = small.run(model, small.case("onnxruntime:cpu"), preparation, inputs)
    assert kind is Counting or small.error(got, expected) < TOLERANCES["fp32"]
    (warning,) = preparation.warnings
    assert (warning.code, preparation.facts["onnx_exporter"]) == ("export-fallback", "TorchScript")
    assert "depends on values of a tensor" in warning.message


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Refusing, r"cannot be exported to ONNX: ValueError: this model cannot be called \(tracing: "),
        (Decomposing, r"No ONNX function found for .*linalg_svd"),
    ],
)
def test_what_both_exporters_stumble_over_is_said(kind: type[nn.Module], why: str, preparation: Preparation) -> None:
    with pytest.raises(Unsupported, match=why) as raised:
        onnx_file(small.model(kind), small.case("onnxruntime:cpu"), preparation, "fp32")
    assert "This is step" not in raised.value.what


def test_the_reason_stays_when_the_engine_is_cached(preparation: Preparation, tmp_path: Any) -> None:
    pytest.importorskip("tensorrt_rtx")
    said = []
    for cached in (False, True):
        model = small.model(Choosing)
        case = Case(
            model=model.spec, backend="tensorrt", variant="rtx", device="cuda", options={"compute_capability": "8.9"}
        )
        report = TensorRT().build(model, case, preparation, tmp_path / "made.engine")
        assert report.cached == cached
        said.append([warning.message for warning in preparation.warnings])
        preparation.warnings.clear()
    assert said[0] == said[1]
    assert "depends on values" in said[0][0]
