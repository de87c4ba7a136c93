"""What the builder says when it fails, as a reason and what to try."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from inferlens.backends.tensorrt.build_errors import beyond_workspace, explained
from inferlens.backends.tensorrt.configuration import configuration
from inferlens.backends.tensorrt.engine import build_plan
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.network import network
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.profiles import profiles
from inferlens.errors import Unsupported

HERE = ("8.9",)
NO_TACTIC = "Error Code 1: Myelin (Tactic Selection: no tactics to implement the operation within workspace limit."


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("Myelin (cudnn_impl.cpp:89: CHECK(dtype == myelinTypeFP8E4M3) failed", "no INT8 convolutions"),
        ("Myelin (kernel_gen.cpp:1212: CHECK(sm_vers_.size() == 1) failed.", "one compute capability at a time"),
        ("Cannot compile for target(s) sm75, sm80, because the model contains HW-specific datatypes: fp8_e4m3.",
         "GPUs of compute capability 7.5, 8.0 have no FP8"),
        ("Cannot compile for target(s) sm89, because the model contains HW-specific datatypes: fp4_e2m1.",
         "GPUs of compute capability 8.9 have no FP4"),
        ("Error Code 1: Cuda Runtime (In generateForCurrent at /_src/x.cpp:186)", "this network it builds on a GPU"),
        (NO_TACTIC, "no tactic does with the memory of the workspace"),
    ],
)  # fmt: skip
def test_known_errors_of_the_builder_are_explained(error: str, reason: str) -> None:
    told, hint = explained([error], has_gpu=False)
    assert reason in told
    assert hint
    assert ("8.9" in hint) == ("have no FP8" in told)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that it needs memory beyond its inputs and outputs."""
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    parts = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    parts += [nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 256, 1)]
    example = torch.zeros(16, 3, 224, 224)
    torch.onnx.export(nn.Sequential(*parts).eval(), (example,), path, dynamo=True, verbose=False, external_data=False)
    return path


def plan(path: Path, rtx: Flavour, workspace: int) -> bytes:
    """The engine of a file with a workspace of so many MiB."""
    parsed = network(path, rtx)
    config = configuration(parsed, Options(workspace=workspace), profiles("", parsed.inputs), HERE)
    return build_plan(parsed, config)


def test_a_workspace_that_is_too_small_for_any_tactic_says_what_to_raise(large: Path, rtx: Flavour) -> None:
    with pytest.raises(Unsupported, match="no tactic does with the memory of the workspace") as raised:
        plan(large, rtx, workspace=1)
    assert "a larger --option tensorrt.workspace" in raised.value.hint


def test_a_workspace_that_is_too_small_for_all_of_it_is_no_lack_of_memory(large: Path, rtx: Flavour) -> None:
    with pytest.raises(Unsupported, match=r"a workspace of 8\.00 MiB is too small") as raised:
        plan(large, rtx, workspace=8)
    assert "a larger --option tensorrt.workspace" in raised.value.hint
    assert plan(large, rtx, workspace=1024)


@pytest.mark.parametrize("error", ["OutOfMemory (Requested size was 169124512 bytes.)", "OutOfMemory (no 5 GiB)"])
def test_memory_that_runs_out_without_a_limit_is_that_of_the_machine(error: str, large: Path, rtx: Flavour) -> None:
    parsed = network(large, rtx)
    config = configuration(parsed, Options(), profiles("", parsed.inputs), HERE)
    assert beyond_workspace(parsed, config, [f"Error Code 2: {error}"]) is None


def test_other_errors_of_the_builder_are_its_own_words() -> None:
    assert explained(["Error Code 9: Internal Error (no tactic In x at /y.cpp:1)"], has_gpu=True) == (
        "Internal Error: no tactic",
        "",
    )
