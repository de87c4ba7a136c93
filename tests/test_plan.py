"""Axes multiply into cases; what a person writes wrongly is said before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities, Support
from inferlens.errors import InferlensError
from inferlens.models.model import Found
from inferlens.plan import Plan, Planned, expand

FLOATS = ("fp32", "fp16", "bf16")
LAPTOP = {
    "pytorch": Capabilities(formats=("module",), supports=(Support("", "cpu", FLOATS),)),
    "torchscript": Capabilities(
        formats=("module",), supports=(Support("trace", "cpu", FLOATS), Support("script", "cpu", FLOATS))
    ),
    "onnxruntime": Capabilities(
        formats=("module", "onnx"),
        supports=(Support("cpu", "cpu", ("fp32",)),),
        absent=(Absence("cuda", "This ONNX Runtime has no CUDA provider.", "pip install onnxruntime-gpu"),),
        limits={"cpu/fp16": "no kernels"},
    ),
    "fake": BACKENDS.get("fake")().capabilities(),
}
GPU_HOST = {
    **LAPTOP,
    "pytorch": Capabilities(formats=("module",), supports=(Support("", "cuda", FLOATS), Support("", "cpu", FLOATS))),
}
RESNET = Found(spec="torchvision:resnet18", name="resnet18", format="module")


def cases(machine: dict[str, Capabilities] = LAPTOP, found: Found = RESNET, **words: Any) -> list[Planned]:
    return expand(Plan.from_words({"model": found.spec, **words}), [found], machine)


def labels(planned: list[Planned]) -> list[str]:
    return [each.case.label for each in planned]


def test_nothing_said_takes_every_backend_that_works_here_the_reference_first() -> None:
    planned = cases()
    assert labels(planned) == [
        "pytorch fp32 batch 1 cpu",
        "onnxruntime:cpu fp32 batch 1 cpu",
        "torchscript:trace fp32 batch 1 cpu",
    ]
    assert not any(each.refusal for each in planned)


def test_nothing_said_on_a_gpu_machine_takes_what_runs_on_the_gpu() -> None:
    assert labels(cases(GPU_HOST)) == ["pytorch fp32 batch 1 cuda"]


def test_a_backend_that_runs_on_no_gpu_is_put_on_the_cpu_when_asked_for() -> None:
    assert labels(cases(GPU_HOST, backend="pytorch,onnxruntime")) == [
        "pytorch fp32 batch 1 cuda",
        "onnxruntime:cpu fp32 batch 1 cpu",
    ]


def test_axes_multiply() -> None:
    planned = cases(backend="pytorch,torchscript:trace", precision="fp32,bf16", batch="1,8,16", threads="1,2")
    assert len(planned) == 2 * 2 * 3 * 2
    assert len({each.case.digest for each in planned}) == len(planned)
    assert len({each.case.folder for each in planned}) == len(planned)


def test_options_multiply_for_their_backend_alone_and_get_its_types() -> None:
    planned = cases(
        found=Found(spec="fake:demo", name="demo", format="fake"), option=["fake.latency=1,2", "fake.error=0"]
    )
    assert [each.case.options for each in planned] == [{"latency": 1.0, "error": 0.0}, {"latency": 2.0, "error": 0.0}]


def test_all_is_every_variant() -> None:
    assert labels(cases(backend="all"))[-2:] == [
        "torchscript:trace fp32 batch 1 cpu",
        "torchscript:script fp32 batch 1 cpu",
    ]
    assert len(cases(backend="torchscript:all")) == 2


def test_the_same_case_is_measured_once() -> None:
    assert len(cases(backend="pytorch,pytorch", batch="1,1")) == 1


@pytest.mark.parametrize(
    ("words", "reason", "cure"),
    [
        ({"backend": "onnxruntime:cuda"}, "no CUDA provider", "pip install onnxruntime-gpu"),
        ({"backend": "onnxruntime:cpu", "precision": "fp16"}, "no kernels", "--precision fp32"),
        ({"backend": "pytorch", "device": "cuda"}, "only on cpu", ""),
        ({"backend": "fake:steady"}, "format 'module'", ""),
    ],
)
def test_what_cannot_run_here_is_a_case_with_a_reason(words: dict[str, str], reason: str, cure: str) -> None:
    (planned,) = cases(**words)
    assert planned.refusal is not None
    assert reason in str(planned.refusal)
    assert planned.refusal.cure == cure


def test_the_reference_is_fp32_on_the_cpu_with_the_same_weights_and_inputs() -> None:
    (planned,) = cases(GPU_HOST, backend="pytorch", precision="fp16", batch=8, seed=3, threads=1, input="x=1x3x64x64")
    reference = planned.reference
    assert reference.label == "pytorch fp32 batch 8 cpu"
    assert (reference.inputs, reference.seed) == (planned.case.inputs, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"backend": "pytorhc"}, "did you mean pytorch?"),
        ({"backend": "torchscript:trcae"}, "did you mean trace?"),
        ({"backend": "pytorch:eager"}, "no variant 'eager'"),
        ({"precision": "fp23"}, "did you mean fp32"),
        ({"device": "gpu"}, "one of cpu, cuda"),
        ({"batch": "0"}, "a whole number, 1 or more"),
        ({"batch": "eight"}, "'eight' is no value for batch"),
        ({"iterations": "-1"}, "no value for iterations"),
        ({"option": "graph_optimization=all"}, "names no backend"),
        ({"option": "onnxruntime.graph_optimization"}, "has no value"),
        ({"option": "fake.latencyy=2", "backend": "fake"}, "did you mean latency?"),
        ({"option": "fake.latency=soon", "backend": "fake"}, "wrong value"),
        ({"option": "fake.latency=2", "backend": "pytorch"}, "leaves out"),
        ({"input": "x=axb"}, "does not describe an input"),
        ({"input": "x=1x3:float31"}, "unknown type 'float31'"),
        ({"input": "x=1x3:int64:5..5"}, "empty"),
        ({"timeout": "soon"}, "no duration"),
        ({"trust": "yes"}, "true or false"),
        ({"sead": 1}, "did you mean seed?"),
    ],
)
def test_mistakes_are_one_clear_message(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InferlensError) as raised:
        cases(**words)
    assert message in str(raised.value)


def test_a_plan_file_has_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'model = ["fake:demo"]\nbackend = ["fake:steady", "fake:fast"]\nbatch = [1, 8]\niterations = 100\n'
        'timeout = "90s"\n[option.fake]\nlatency = [1, 2.5]\n'
    )
    plan = Plan.from_words(Plan.from_file(file))
    assert plan == Plan.from_words(
        {
            "model": "fake:demo", "backend": "fake:steady,fake:fast", "batch": "1,8", "iterations": "100",
            "timeout": 90, "option": ["fake.latency=1,2.5"],
        }
    )  # fmt: skip


def test_a_broken_plan_file_is_one_clear_message(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_bytes(b"model = \xff")
    with pytest.raises(InferlensError, match="cannot be read"):
        Plan.from_file(file)


def test_a_plan_that_nothing_can_run_says_so() -> None:
    with pytest.raises(InferlensError, match="No backend here"):
        cases(found=Found(spec="x.onnx", name="x", format="onnx"), machine={"pytorch": LAPTOP["pytorch"]})
