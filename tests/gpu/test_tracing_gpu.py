"""Traces by torch.profiler on an NVIDIA GPU: kernels in every step, and the twelve log folders of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import inferlens
from inferlens.backends.base import Absence
from inferlens.backends.tensorrt.flavours import find
from inferlens.execution.profile import CaseTrace
from inferlens.trace import Category, read
from inferlens.trace.analysis import Analysis
from inferlens.trace.tables import kernels
from tests.commands import traced

pytest.importorskip("torchvision")
VARIANT = next((variant for variant in ("trt", "rtx") if not isinstance(find(variant), Absence)), "")
needs_tensorrt = pytest.mark.skipif(not VARIANT, reason="needs TensorRT or TensorRT for RTX")


def taken(folder: Path, **words: Any) -> list[CaseTrace]:
    return traced(folder / "out", model="resnet18", device="cuda", **words)


@pytest.mark.parametrize(
    "backend",
    [
        "pytorch",
        "torch_compile:default",
        pytest.param("torch_tensorrt:dynamo", marks=needs_tensorrt),
        pytest.param(f"tensorrt:{VARIANT}", marks=needs_tensorrt),
    ],
)
def test_kernels_are_in_every_step(backend: str, tmp_path: Path) -> None:
    (traced,) = taken(tmp_path, backend=backend, precision="fp16")
    assert traced.status == "ok", traced.reason
    (shown,) = traced.contents
    assert len(shown.steps) == 3
    assert 0 < shown.gpu <= 1
    assert traced.cost
    assert (traced.unseen != "") == (shown.operators == 0)
    steps = Analysis(read(traced.files[0])).counted
    assert len(steps) == 3
    assert steps.launched.min() > 0
    assert steps.launched.max() == steps.launched.min()


def test_options_keep_what_they_say(tmp_path: Path) -> None:
    (traced,) = taken(tmp_path, backend="pytorch", stacks=True, memory=True, shapes=True, active=2)
    trace = inferlens.load_trace(traced.files[0])
    overview = trace.overview()
    assert overview.gpus[0].utilization
    assert any("convolution" in str(name) for name in kernels(trace.analysis, by_operator=True).columns["operator"])
    assert len(trace.analysis.trace.allocations)
    assert np.any(trace.analysis.trace.category == Category.PYTHON)
    assert trace.analysis.trace.about.devices[0].name == torch.cuda.get_device_name()


@needs_tensorrt
def test_fp32_pytorch_and_both_precisions_of_torch_tensorrt_at_several_batches(tmp_path: Path) -> None:
    words = {"batch": "1,8", "tensorboard": tmp_path / "runs"}
    made = taken(tmp_path, backend="pytorch", **words)
    made += taken(tmp_path, backend="torch_tensorrt:dynamo", precision="fp32,fp16", **words)
    assert [item.status for item in made] == ["ok"] * 6, [item.reason for item in made]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"{name}_bs{batch}" for name in ("pytorch", "ttrt_fp32", "ttrt_fp16") for batch in (1, 8)
    }
    plain, half = (inferlens.load_trace(made[place].files[0]).overview() for place in (1, -1))
    assert half.step_time < plain.step_time
