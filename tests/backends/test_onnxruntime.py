"""What ONNX Runtime has beyond the contract: export, ONNX files, providers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.backends.onnx.export import check_shapes
from inferlens.backends.onnxruntime.backend import Options
from inferlens.backends.onnxruntime.providers import PROVIDERS, provider_list
from inferlens.backends.onnxruntime.runner import CpuRunner
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.models.sources.onnx import onnx_file_precision
from inferlens.spec.case import TensorSpec, with_batch
from tests.backends import small

CPU = "onnxruntime:cpu"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small convolutional model as an ONNX file, batch 1."""
    return _exported(tmp_path_factory.mktemp("onnx"), "fp32")


def _exported(folder: Path, precision: str) -> Path:
    model = small.model()
    with small.backend(CPU).prepare(model, small.case(CPU, precision=precision), small.preparation(folder)):
        return folder / "case" / "model.onnx"


def _onnx(path: Path, batch: int = 1) -> Model:
    return dataclasses.replace(small.model(batch=batch, format="onnx", path=path), module=None)


def test_the_exported_file_is_kept(preparation: Preparation) -> None:
    model = small.model()
    small.run(model, small.case(CPU), preparation, small.arrays(model))
    assert [phase.name for phase in preparation.phases] == ["export", "build"]
    (artefact,) = preparation.artefacts
    assert (artefact.path, artefact.kind) == ("model.onnx", "onnx")
    assert artefact.size > 1000
    assert preparation.facts["onnx_exporter"] == "torch.export"
    if hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):  # not in ONNX Runtime 1.23
        assert set(preparation.facts["nodes_by_provider"]) == {"CPUExecutionProvider"}


def test_an_onnx_file_is_not_run_under_another_precision(file: Path, tmp_path: Path) -> None:
    half = _exported(tmp_path, "fp16")
    assert (onnx_file_precision(file), onnx_file_precision(half)) == ("fp32", "fp16")
    preparation = small.preparation(tmp_path)
    with pytest.raises(Unsupported, match="is in fp32, and"):
        small.backend(CPU).prepare(_onnx(file), small.case(CPU, precision="fp16"), preparation)
    with pytest.raises(Unsupported, match="is in fp16, and"):
        small.backend(CPU).prepare(_onnx(half), small.case(CPU), preparation)


def test_a_fixed_batch_is_refused_with_the_reason(file: Path, preparation: Preparation) -> None:
    runner = small.backend(CPU).prepare(_onnx(file, batch=3), small.case(CPU, batch=3), preparation)
    with pytest.raises(Unsupported, match="made for image=1x3x16x16, not for image=3x3x16x16"):
        runner.__enter__()


def test_free_dimensions_fit_any_size_and_names_must_match() -> None:
    specs = with_batch(small.CONVOLUTION, 5)
    check_shapes([("image", ["N", 3, None, 16])], specs)
    check_shapes([("image", [])], specs)  # a graph that tells no shape
    with pytest.raises(Unsupported, match="has the inputs picture"):
        check_shapes([("picture", ["N", 3, 16, 16])], specs)
    with pytest.raises(Unsupported, match="made for image=N"):
        check_shapes([("image", ["N"])], specs)


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ({}, 0),
        ({"graph_optimization": "disable", "tf32": True, "cudnn_conv_algo_search": "DEFAULT"}, 2),
        ({"graph_optimization": "extended", "execution_mode": "parallel", "inter_op_threads": 2}, 0),
    ],
)
def test_an_onnx_file_runs_as_it_is(options: Any, warnings: int, file: Path, preparation: Preparation) -> None:
    inputs = small.arrays(small.model())
    expected = small.eager(small.model(), inputs)
    case = small.case(CPU, options=options)
    assert small.error(small.run(_onnx(file), case, preparation, inputs), expected) < TOLERANCES["fp32"]
    assert [warning.code for warning in preparation.warnings] == ["no-effect"] * warnings
    assert not preparation.artefacts
    assert [phase.name for phase in preparation.phases] == ["build"]


def test_a_provider_that_gives_way_is_refused(file: Path, preparation: Preparation) -> None:
    """Not on a machine that has this provider: ONNX Runtime then drops it with a warning, and runs on the CPU."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    arguments = PROVIDERS["cuda"], _onnx(file), small.case("onnxruntime:cuda"), preparation, Options()
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(Unsupported, match=r"fell back to CPUExecutionProvider: the CUDA.*(does not load|not created)"),
    ):
        CpuRunner(file, *arguments).__enter__()


def test_provider_options_for_the_gpu() -> None:
    case = small.case("onnxruntime:cuda", device="cuda")
    (name, cuda), cpu = provider_list(PROVIDERS["cuda"], case, Options(), 77, Path("cache"))
    assert (name, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert cuda["use_tf32"] == "0"
    assert cuda["user_compute_stream"] == "77"
    assert cuda["enable_cuda_graph"] == "0"
    case = small.case("onnxruntime:tensorrt", device="cuda", precision="fp16")
    (name, tensorrt), *others = provider_list(PROVIDERS["tensorrt"], case, Options(cuda_graph=True), 77, Path("cache"))
    assert name == "TensorrtExecutionProvider"
    assert tensorrt["trt_fp16_enable"] == tensorrt["trt_cuda_graph_enable"] == "1"
    assert tensorrt["trt_engine_cache_path"] == "cache"
    assert others[0][1]["enable_cuda_graph"] == "0"


def test_an_input_that_is_never_used(preparation: Preparation) -> None:
    class Ignoring(nn.Module):
        def forward(self, image: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return image + 1

    specs = (*small.CONVOLUTION, TensorSpec("other", (1, 4)))
    model = Model("ignoring", "ignoring", "module", specs, module=Ignoring().eval())
    inputs = small.arrays(model)
    got = small.run(model, small.case(CPU), preparation, inputs)
    assert small.error(got, [inputs["image"] + 1]) < TOLERANCES["fp32"]
