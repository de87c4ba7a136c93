"""Real engines, built once for all tests; TensorRT for RTX builds them without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inferlens.backends.base import Preparation
from inferlens.backends.onnx.export import onnx_file
from inferlens.backends.tensorrt.engine import Built, Job, built
from inferlens.backends.tensorrt.flavours import Flavour, flavour
from inferlens.backends.tensorrt.options import Options
from inferlens.models.model import Model
from inferlens.models.resolve import load
from inferlens.spec.case import Case, TensorSpec
from tests.backends import small

TARGETS = "8.0+8.9"


@pytest.fixture(scope="session")
def rtx() -> Flavour:
    pytest.importorskip("tensorrt_rtx")
    return flavour("rtx")


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small convolutional model as an ONNX file with a batch that is free."""
    path = tmp_path_factory.mktemp("graph") / "small.onnx"
    module = small.model().module
    assert module is not None
    torch.onnx.export(
        module, (torch.ones(2, 3, 16, 16),), path, input_names=["image"], dynamo=True, verbose=False,
        dynamic_shapes=({0: "batch"},),
    )  # fmt: skip
    return path


Making = Callable[..., Job]


@pytest.fixture
def job(rtx: Flavour, graph: Path) -> Making:
    """A job for the small model's engine; more options by name."""

    def made(path: Path = graph, batch: int = 1, precision: str = "fp32", **options: Any) -> Job:
        model = Model("onnx:small.onnx", "small", "onnx", small.model(batch=batch).inputs, path=path)
        case = Case(model=model.spec, backend="tensorrt", variant="rtx", device="cuda", precision=precision)
        return Job(path, model, case, rtx, Options(**{"compute_capability": TARGETS, **options}), None)

    return made


Real = tuple[Job, Built, Preparation]


@pytest.fixture
def real(tmp_path: Path, rtx: Flavour) -> Callable[[str], Real]:
    """A real model's engine by the model's name, as a case makes it: exported, built, in the cache."""

    def make(name: str, precision: str = "fp16") -> Real:
        preparation = small.preparation(tmp_path)
        model, case = transformer(precision) if name == "transformer" else image_model(name, precision)
        path = onnx_file(model, case, preparation, precision)
        job = Job(path, model, case, rtx, Options(compute_capability=TARGETS), None)
        return job, built(job, preparation), preparation

    return make


def image_model(name: str, precision: str) -> tuple[Model, Case]:
    size = 224 if name == "torchvision:vit_b_16" else 64
    inputs = (TensorSpec("x", (1, 3, size, size)),)
    case = Case(model=name, backend="tensorrt", variant="rtx", device="cuda", precision=precision, inputs=inputs)
    return load(case), case


def transformer(precision: str) -> tuple[Model, Case]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    inputs = (TensorSpec("tokens", (1, 16, 64)),)
    case = Case(model="factory:encoder", backend="tensorrt", variant="rtx", device="cuda", precision=precision)
    return Model(case.model, "encoder", "module", inputs, module=module), case
