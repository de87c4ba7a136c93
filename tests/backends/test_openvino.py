"""What OpenVINO has beyond the contract."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.errors import Unsupported
from tests.backends import small

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
        model.module,
        (torch.from_numpy(inputs["image"]),),
        path,
        input_names=["image"],
        dynamic_shapes=({0: "batch"},),
        dynamo=True,
        verbose=False,
    )
    file = dataclasses.replace(model, module=None, format="onnx", path=path)
    assert small.error(small.run(file, small.case(LABEL, batch=3), preparation, inputs), expected) < TOLERANCES["fp32"]


def test_a_fixed_batch_is_refused_with_the_reason(preparation: Preparation) -> None:
    backend = small.backend(LABEL)
    backend.prepare(small.model(), small.case(LABEL), preparation)
    path = preparation.folder / "model.onnx"
    file = dataclasses.replace(small.model(batch=3, format="onnx", path=path), module=None)
    with pytest.raises(Unsupported, match="made for image=1x3x16x16"):
        backend.prepare(file, small.case(LABEL, batch=3), preparation).__enter__()


def test_precisions_that_the_cpu_lacks_have_a_reason() -> None:
    able = small.backend(LABEL).capabilities()
    for precision in ("fp16", "bf16"):
        if precision not in able.supports[0].precisions:
            assert "on this CPU" in able.limits[f"cpu/{precision}"]
