"""Axes multiply into cases; what a person writes wrongly is said before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities, Support
from inferlens.errors import InferlensError
from inferlens.execution import scheduler
from inferlens.execution import subprocess as processes
from inferlens.execution.benchmark import BenchmarkJob
from inferlens.execution.expand import Planned, cases_on, expand
from inferlens.execution.protocol import Observer, TaskResult
from inferlens.execution.subprocess import Outcome
from inferlens.models.model import ModelInfo, Origin
from inferlens.spec.case import TensorSpec
from inferlens.spec.plan import Plan

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
RESNET = ModelInfo(spec="torchvision:resnet18", name="resnet18", format="module")


def cases(machine: dict[str, Capabilities] = LAPTOP, found: ModelInfo = RESNET, **words: Any) -> list[Planned]:
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
        found=ModelInfo(spec="fake:demo", name="demo", format="fake"), option=["fake.latency=1,2", "fake.error=0"]
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
    ("words", "reason", "hint"),
    [
        ({"backend": "onnxruntime:cuda"}, "no CUDA provider", "pip install onnxruntime-gpu"),
        ({"backend": "onnxruntime:cpu", "precision": "fp16"}, "no kernels", "--precision fp32"),
        ({"backend": "pytorch", "device": "cuda"}, "only on cpu", ""),
        ({"backend": "fake:steady"}, "format 'module'", ""),
    ],
)
def test_what_cannot_run_here_is_a_case_with_a_reason(words: dict[str, str], reason: str, hint: str) -> None:
    (planned,) = cases(**words)
    assert planned.refusal is not None
    assert reason in str(planned.refusal)
    assert planned.refusal.hint == hint


def test_what_a_precision_takes_is_told_also_where_its_device_is_missing() -> None:
    absent = Absence("", "no GPU", device="cuda")
    known = Capabilities(formats=("module",), absent=(absent,), limits={"cuda/int8": "as a quantized file"})
    for precision, reason in (("int8", "no GPU. Of int8: as a quantized file"), ("fp16", "no GPU")):
        (planned,) = cases({**LAPTOP, "pytorch": known}, backend="pytorch", precision=precision, device="cuda")
        assert planned.refusal is not None
        assert planned.refusal.what == reason


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
        ({"option": "fake.latency=soon", "backend": "fake"}, "does not take"),
        ({"option": "fake.latency=2", "backend": "pytorch"}, "leaves out"),
        ({"input": "x=axb"}, "does not describe an input"),
        ({"input": "x=1x3:float31"}, "unknown type 'float31'"),
        ({"input": "x=1x3:int64:5..5"}, "empty"),
        ({"input": ["x=2x4", "x=3x4"]}, "The input 'x' is given twice"),
        ({"timeout": "soon"}, "no duration"),
        ({"trust": "yes"}, "true or false"),
        ({"sead": 1}, "did you mean seed?"),
        ({"io": "hots"}, "did you mean host?"),
        ({"rebuild": "yes"}, "true or false"),
        ({"input": "x=1..4x3:opt=5"}, "not in its range"),
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
        cases(found=ModelInfo(spec="x.onnx", name="x", format="onnx"), machine={"pytorch": LAPTOP["pytorch"]})


NO_GPU = Absence("", "no NVIDIA GPU is visible to PyTorch", "check nvidia-smi", device="cuda")
TENSORRT = {
    **LAPTOP,
    "tensorrt": Capabilities(
        formats=("module", "exported", "onnx", "engine"),
        absent=(
            Absence("trt", "TensorRT is not installed.", "pip install 'inferlens[tensorrt]'"),
            Absence("rtx", NO_GPU.reason, NO_GPU.hint, device="cuda"),
        ),
    ),
}
QUANTIZING = {
    "onnxruntime": Capabilities(
        formats=("module", "onnx"),
        supports=(Support("cpu", "cpu", ("fp32", "fp16", "fp8", "int8")),),
        limits={"cpu/bf16": "hardly any operators"},
    )
}


def onnx_file(precision: str) -> ModelInfo:
    return ModelInfo(spec="onnx:net.onnx", name="net", format="onnx", precision=precision)


def test_io_is_an_axis_and_on_a_gpu_both_run() -> None:
    planned = cases(GPU_HOST, backend="pytorch", io="host,device")
    assert labels(planned) == ["pytorch fp32 batch 1 cuda host io", "pytorch fp32 batch 1 cuda"]
    assert not any(each.refusal for each in planned)
    assert len({each.case.folder for each in planned}) == 2
    assert planned[0].reference == planned[1].reference  # outputs do not depend on where they are copied


def test_on_the_cpu_there_is_no_way_to_and_from_the_host() -> None:
    device, host = cases(backend="pytorch", io="device,host")
    assert device.refusal is None
    assert host.refusal is not None
    assert "begins and ends on the host" in host.refusal.what
    assert host.refusal.hint == "without --io host"


@pytest.mark.parametrize("rebuild", [True, False])
def test_rebuild_reaches_the_job(rebuild: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    crashed: TaskResult[Any] = TaskResult(status="crashed")
    monkeypatch.setattr(processes, "launch", lambda _, job, **__: jobs.append(job) or Outcome(crashed))
    plan = Plan.from_words({"model": "fake:demo", "rebuild": rebuild, "output": str(tmp_path)})
    (planned,) = cases(found=ModelInfo(spec="fake:demo", name="demo", format="fake"), backend="fake")
    run = scheduler.Scheduler(plan, Observer(), tmp_path)
    assert run.measure(planned)[0].status == "crashed"
    assert [job.rebuild for job in jobs if isinstance(job, BenchmarkJob)] == [rebuild]


def test_an_empty_axis_is_its_default() -> None:
    assert labels(cases(backend="pytorch", io="", precision="", threads="")) == ["pytorch fp32 batch 1 cpu"]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "fp8"])
def test_an_onnx_file_runs_in_its_own_precision(precision: str) -> None:
    (planned,) = cases(QUANTIZING, onnx_file(precision))
    assert planned.case.precision == precision
    assert planned.refusal is None
    assert planned.reference is not None
    assert planned.reference.label == f"onnxruntime:cpu {precision} batch 1 cpu graph_optimization=disable"


@pytest.mark.parametrize("found", [RESNET, onnx_file("fp32")])
def test_nothing_is_quantized_here(found: ModelInfo) -> None:
    (planned,) = cases(QUANTIZING, found, precision="int8")
    assert planned.refusal is not None
    assert "not quantized to int8" in planned.refusal.what
    assert "QuantizeLinear" in planned.refusal.hint


def test_a_backend_without_int8_offers_what_it_has() -> None:
    (planned,) = cases(backend="pytorch", precision="int8")
    assert planned.refusal is not None
    assert planned.refusal.what == "pytorch does not run int8 on cpu."
    assert planned.refusal.hint == "--precision fp32,fp16,bf16"


@pytest.mark.parametrize(
    ("words", "batches"),
    [
        ({}, [1]),
        ({"input": "x=8x3x64x64"}, [8]),
        ({"input": "x=1..16x3x64x64"}, [16]),
        ({"input": "x=1..16x3x64x64:opt=2"}, [2]),
        ({"input": "x=scalar"}, [1]),
        ({"input": "x=8x3x64x64", "batch": "1,4"}, [1, 4]),
    ],
)
def test_the_batch_is_that_asked_for_or_the_inputs_or_the_models(words: dict[str, str], batches: list[int]) -> None:
    assert [each.case.batch for each in cases(backend="pytorch", **words)] == batches


@pytest.mark.parametrize(
    ("label", "case", "reason"),
    [
        ("tensorrt", "tensorrt:rtx fp32 batch 1 cuda", "no NVIDIA GPU is visible to PyTorch"),
        ("tensorrt:rtx", "tensorrt:rtx fp32 batch 1 cuda", "no NVIDIA GPU is visible to PyTorch"),
        ("tensorrt:trt", "tensorrt:trt fp32 batch 1 cuda", "TensorRT is not installed."),
    ],
)
def test_without_a_gpu_tensorrt_is_a_row_that_says_so(label: str, case: str, reason: str) -> None:
    (planned,) = cases(TENSORRT, backend=label)
    assert planned.case.label == case
    assert planned.refusal is not None
    assert planned.refusal.what == reason


def test_without_a_gpu_nothing_said_leaves_tensorrt_out() -> None:
    assert not any("tensorrt" in label for label in labels(cases(TENSORRT)))


def test_a_file_that_nothing_here_runs_is_told_with_what_is_lacking() -> None:
    with pytest.raises(InferlensError) as raised:
        cases(TENSORRT, engine())
    assert raised.value.what == (
        "No backend here runs models of format engine. tensorrt:rtx: no NVIDIA GPU is visible to PyTorch."
    )
    assert raised.value.hint == "check nvidia-smi"
    built_by_the_other = engine(spec=RESNET.spec, format="module", variant="trt")
    with pytest.raises(InferlensError, match=r"tensorrt:trt: TensorRT is not installed\. Try: pip install"):
        cases(TENSORRT, built_by_the_other)


def test_a_device_that_nothing_here_uses_is_told_once_for_all_that_lack_it() -> None:
    alike = Capabilities(formats=("module",), supports=(Support("", "cpu", FLOATS),), absent=(NO_GPU,))
    with pytest.raises(InferlensError) as raised:
        cases({"pytorch": alike, "torch_compile": alike, "fake": LAPTOP["fake"]}, device="cuda")
    assert raised.value.what == (
        "No backend here runs models of format module on cuda. "
        "pytorch and torch_compile: no NVIDIA GPU is visible to PyTorch."
    )


def test_what_is_built_without_a_gpu_is_one_case_on_the_device_it_is_for() -> None:
    plan = Plan.from_words({"model": RESNET.spec, "backend": "tensorrt"})
    (case,) = cases_on(plan, RESNET, {"tensorrt": TENSORRT["tensorrt"]})
    assert case.label == "tensorrt:rtx fp32 batch 1 cuda"


def engine(**origin: Any) -> ModelInfo:
    return ModelInfo(
        spec="engine:net.engine", name="net", format="engine", batch=2, precision="fp16",
        origin=Origin(**origin) if origin else None,
    )  # fmt: skip


ON_GPU = {
    "tensorrt": Capabilities(
        formats=("module", "onnx", "engine"), supports=(Support("rtx", "cuda", ("fp32", "fp16", "int8")),)
    )
}


def test_an_engine_is_compared_with_the_model_it_was_built_from() -> None:
    (planned,) = cases(ON_GPU, engine(spec="torchvision:resnet18", format="module", weights="a.pth", seed=3))
    assert planned.case.label == "tensorrt:rtx fp16 batch 2 cuda"
    reference = planned.reference
    assert reference is not None
    assert reference.label == "pytorch fp32 batch 2 cpu"
    assert (reference.model, reference.weights, reference.seed) == ("torchvision:resnet18", "a.pth", 3)


def test_a_compiled_model_and_its_source_are_fed_alike() -> None:
    """A factory's own example is not in the file that was compiled from its model."""
    compiled_for = (TensorSpec("x", (2, 8)),)
    found = engine(spec="factory:nets:small", format="module", inputs=compiled_for)
    (planned,) = cases(ON_GPU, found)
    assert planned.reference is not None
    assert planned.reference.inputs == compiled_for
    (planned,) = cases(ON_GPU, found, input="x=2x8:float16")
    assert planned.reference is not None
    assert planned.reference.inputs == planned.case.inputs


@pytest.mark.parametrize("own", ["fp32", "int8"])
def test_an_engine_from_an_onnx_file_is_compared_with_the_file_in_the_files_precision(own: str) -> None:
    (planned,) = cases(ON_GPU, engine(spec="onnx:net.onnx", format="onnx", precision=own))
    assert planned.reference is not None
    assert planned.reference.label == f"onnxruntime:cpu {own} batch 2 cpu graph_optimization=disable"


def test_an_engine_of_which_nobody_tells_the_origin_has_no_reference() -> None:
    (planned,) = cases(ON_GPU, engine())
    assert planned.reference is None
    assert planned.refusal is None


def test_an_engine_runs_in_the_precision_it_was_built_for_alone() -> None:
    (planned,) = cases(ON_GPU, engine(spec="fake:a", format="fake"), precision="fp32")
    assert planned.refusal is not None
    assert planned.refusal.hint == "--precision fp16"


def test_a_variant_may_take_other_formats_than_its_backend() -> None:
    can = Capabilities(
        formats=("module",),
        supports=(Support("", "cuda", FLOATS), Support("loaded", "cuda", FLOATS, formats=("torch_tensorrt",))),
    )
    assert can.default_variant("cuda", "torch_tensorrt") == "loaded"
    assert can.default_variant("cuda", "module") == ""
    assert can.default_variant("cuda", "engine") is None


def test_an_engine_runs_on_the_flavour_that_built_it_where_both_are_here() -> None:
    both = {
        "tensorrt": Capabilities(
            formats=("engine",), supports=tuple(Support(v, "cuda", ("fp16",)) for v in ("trt", "rtx"))
        )
    }
    (planned,) = cases(both, engine(spec="torchvision:resnet18", format="module", variant="rtx"))
    assert planned.case.backend_label == "tensorrt:rtx"
    (planned,) = cases(both, engine())
    assert planned.case.backend_label == "tensorrt:trt"


# What is measured, and how much


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"max_time": "0"}, "max_time of 0"),
        ({"timeout": "0s"}, "timeout of 0"),
        ({"iterations": 5, "seconds": "1s"}, "iterations and seconds both say when"),
        ({"stop": "plateau", "iterations": 5}, "iterations and stop both say when"),
        ({"stop": "plateau", "half_width": "1%"}, "half_width is when"),
        ({"half_width": "0"}, "share"),
        ({"half_width": "150%"}, "share"),
        ({"mode": "throughput", "cold": True}, "cold is for one call at a time"),
        ({"mode": "throughput", "rotate": True}, "rotate is for one call at a time"),
        ({"mode": "throughput", "iterations": 5}, "iterations is about latency samples"),
        ({"mode": "latency", "depth": 4}, "depth is about throughput"),
        ({"cold": True, "depth": 4}, "not measured with cold"),
        ({"mode": "speed"}, "'speed' is no mode"),
        ({"stop": "never"}, "'never' is no stop"),
        ({"repeats": 0}, "'0' is no value for repeats"),
    ],
    ids=str,
)
def test_words_that_contradict_each_other_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InferlensError, match=message):
        Plan.from_words({"model": "fake:demo", **words})


def test_words_of_measuring_are_kept() -> None:
    plan = Plan.from_words({"model": "m", "half_width": "2%", "max_time": "3s", "repeats": 5, "depth": [1, 4]})
    assert (plan.budget.half_width, plan.budget.max_time, plan.repeats, plan.depth) == (0.02, 3.0, 5, (1, 4))
    assert Plan.from_words({"model": "m", "seconds": "0"}).budget.seconds == 0.0
