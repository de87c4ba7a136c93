"""Real engines, built once for all tests; TensorRT for RTX builds them without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferlens.backends.tensorrt.engine import BuiltEngine, EngineJob, cached_engine
from inferlens.backends.tensorrt.library import Flavour, TensorRTOptions, load_flavour
from inferlens.models.model import Model
from inferlens.spec.case import Case
from tests.backends import small

TARGETS = "8.0+8.9"


@pytest.fixture(scope="session")
def rtx() -> Flavour:
    pytest.importorskip("tensorrt_rtx")
    return load_flavour("rtx")


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small convolutional model as an ONNX file with a batch that is free."""
    path = tmp_path_factory.mktemp("graph") / "small.onnx"
    return small.exported(path, small.model().module, 2, 3, 16, 16, free=True)


Making = Callable[..., EngineJob]


@pytest.fixture
def job(rtx: Flavour, graph: Path) -> Making:
    """A job for the small model's engine; more options by name."""

    def made(path: Path = graph, batch: int = 1, precision: str = "fp32", **options: Any) -> EngineJob:
        model = Model("onnx:small.onnx", "small", "onnx", small.model(batch=batch).inputs, path=path)
        case = Case(model=model.spec, backend="tensorrt", variant="rtx", device="cuda", precision=precision)
        return EngineJob(path, model, case, rtx, TensorRTOptions(**{"compute_capability": TARGETS, **options}), None)

    return made


@pytest.fixture(name="built")
def built_engine(job: Making, tmp_path: Path) -> BuiltEngine:
    """The small model's engine."""
    return cached_engine(job(), small.preparation(tmp_path))
