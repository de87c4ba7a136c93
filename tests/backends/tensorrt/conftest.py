"""Real engines, built once for all tests; TensorRT for RTX builds them without a GPU."""

import shutil

import pytest

from inferlens.backends.tensorrt.engine import EngineJob, cached_engine
from inferlens.backends.tensorrt.library import load_flavour
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.models.model import Model
from inferlens.spec.case import Case
from tests.backends import small

TARGETS = "8.0+8.9"


@pytest.fixture(scope="session")
def rtx():
    pytest.importorskip("tensorrt_rtx")
    return load_flavour("rtx")


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    """The small convolutional model as an ONNX file with a batch that is free."""
    path = tmp_path_factory.mktemp("graph") / "small.onnx"
    return small.exported(path, small.model().module, 2, 3, 16, 16, free=True)


@pytest.fixture(scope="session")
def job(rtx, graph):
    """A job for the small model's engine; more options by name."""

    def made(path=graph, batch=1, precision="fp32", **options):
        model = Model("onnx:small.onnx", "small", "onnx", small.model(batch=batch).inputs, path=path)
        case = Case(model=model.spec, backend="tensorrt", variant="rtx", device="cuda", precision=precision)
        return EngineJob(path, model, case, rtx, TensorRTOptions(**{"compute_capability": TARGETS, **options}), None)

    return made


@pytest.fixture(scope="session")
def built_once(job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    cached_engine(job(), small.preparation(folder))
    return folder / "cache"


@pytest.fixture(name="built")
def built_engine(built_once, job, tmp_path):
    """The small model's engine, in a cache of the test's own."""
    shutil.copytree(built_once, tmp_path / "cache")
    return cached_engine(job(), small.preparation(tmp_path))
