"""What OpenVINO has beyond the contract."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from tests.backends import small
from tests.backends.quantized import quantized_file

pytest.importorskip("openvino")
LABEL = "openvino:cpu"


@pytest.mark.parametrize(
    ("options", "streams"), [({}, 1), ({"streams": 2}, 2), ({"hint": "throughput", "streams": 1}, 1)]
)
def test_options_are_honoured(options: dict[str, Any], streams: int, preparation: Preparation) -> None:
    model = small.model()
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    got = small.run(model, small.case(LABEL, options=options), preparation, inputs)
    assert small.error(got, expected) < TOLERANCES["fp32"]
    assert preparation.facts["streams"] == streams
    assert preparation.facts["inference_precision"] == "f32"


def test_free_dimensions_of_a_file_get_the_sizes_of_the_case(tmp_path: Path, preparation: Preparation) -> None:
    model = small.model(batch=3)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    path = tmp_path / "model.onnx"
    assert model.module is not None
    torch.onnx.export(
        model.module, (torch.from_numpy(inputs["image"]),), path, input_names=["image"],
        dynamic_shapes=({0: "batch"},), dynamo=True, verbose=False,
    )  # fmt: skip
    file = dataclasses.replace(model, module=None, format="onnx", path=path)
    assert small.error(small.run(file, small.case(LABEL, batch=3), preparation, inputs), expected) < TOLERANCES["fp32"]


def test_a_fixed_batch_is_refused_with_the_reason(preparation: Preparation) -> None:
    backend = small.backend(LABEL)
    backend.prepare(small.model(), small.case(LABEL), preparation)
    path = preparation.folder / "model.onnx"
    file = dataclasses.replace(small.model(batch=3, format="onnx", path=path), module=None)
    with pytest.raises(Unsupported, match="made for image=1x3x16x16"):
        backend.prepare(file, small.case(LABEL, batch=3), preparation).__enter__()


def test_a_quantized_file_runs_as_what_it_is(tmp_path: Path) -> None:
    file = quantized_file(tmp_path, "int8", "linear")
    model = Model("onnx:int8", "int8", "onnx", (TensorSpec("image", (4, 32)),), path=file)
    backend = small.backend("openvino")
    with pytest.raises(Unsupported, match="is in int8, and it is run as it is"):
        backend.prepare(model, small.case("openvino:cpu", batch=None), small.preparation(tmp_path))
    case = small.case("openvino:cpu", precision="int8", batch=None)
    found = msgspec.structs.replace(small.found("onnx"), precision="int8")
    if backend.capabilities().refusal(case, found) is None:  # a CPU may have no int8 arithmetic
        assert backend.prepare(model, case, small.preparation(tmp_path))
