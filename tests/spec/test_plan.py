"""Axes multiply into cases; what a person writes wrongly is said before anything runs."""

import pytest
import typer
from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities, Support
from inferlens.cli.commands import app
from inferlens.execution.cases import expand
from inferlens.models.model import ModelInfo
from inferlens.spec.case import Case, TensorSpec
from inferlens.spec.plan import BUDGET_WORDS, RACE_WORDS, Plan, as_plan, bench_words, budget_words, command, toml_words
from tests.refusals import refusal

FLOATS = ("fp32", "fp16", "bf16")


def able(*supports, formats="module", **more):
    """What a backend can do: variants with their devices, and in floats if no precisions are named."""
    supports = tuple(Support(*support, *(() if len(support) == 3 else (FLOATS,))) for support in supports)
    return Capabilities(formats=tuple(formats.split()), supports=supports, **more)


LAPTOP = {
    "pytorch": able(("", "cpu")),
    "torchscript": able(("trace", "cpu"), ("script", "cpu")),
    "onnxruntime": able(
        ("cpu", "cpu", ("fp32",)), formats="module onnx", limits={"cpu/fp16": "no kernels"},
        absent=(Absence("cuda", "This ONNX Runtime has no CUDA provider.", "pip install onnxruntime-gpu"),),
    ),
    "fake": BACKENDS.get("fake")().capabilities(),
}  # fmt: skip
GPU_HOST = {**LAPTOP, "pytorch": able(("", "cuda"), ("", "cpu"))}
NO_GPU = Absence("", "no NVIDIA GPU is visible to PyTorch", "check nvidia-smi", device="cuda")
ABSENT = (
    Absence("trt", "TensorRT is not installed.", "pip install 'inferlens[tensorrt]'"),
    Absence("rtx", NO_GPU.reason, NO_GPU.hint, device="cuda"),
)
TENSORRT = {**LAPTOP, "tensorrt": able(formats="module exported onnx engine", absent=ABSENT)}
ALL = ("cpu", "cpu", ("fp32", "fp16", "fp8", "int8"))
QUANTIZING = {"onnxruntime": able(ALL, formats="module onnx", limits={"cpu/bf16": "hardly any operators"})}
ON_GPU = {"tensorrt": able(("rtx", "cuda", ("fp32", "fp16", "int8")), formats="module onnx engine")}
BOTH_FLAVOURS = {"tensorrt": able(*((name, "cuda", ("fp16",)) for name in ("trt", "rtx")), formats="engine")}
RESNET = ModelInfo(spec="torchvision:resnet18", name="resnet18", format="module")
FAKE = ModelInfo(spec="fake:demo", name="demo", format="fake")


def cases(machine=LAPTOP, model_info=RESNET, **words):
    return expand(Plan.from_words({"model": model_info.spec, **words}), [model_info], machine)


def onnx_file(precision):
    return ModelInfo(spec="onnx:net.onnx", name="net", format="onnx", precision=precision)


def engine(spec="", format=None, inputs=(), **made):
    origin = Case(model=spec, backend="tensorrt", inputs=inputs, **made) if spec else None
    return ModelInfo(
        spec="engine:net.engine", name="net", format="engine", batch=2, precision="fp16", origin=origin,
        origin_format=format,
    )  # fmt: skip


# What is asked for, and the cases that it means


@pytest.mark.parametrize(("machine", "model_info", "words", "labels"), [
    (LAPTOP, RESNET, {}, ["pytorch fp32 cpu", "onnxruntime:cpu fp32 cpu", "torchscript:trace fp32 cpu"]),
    (GPU_HOST, RESNET, {}, ["pytorch fp32 cuda"]),
    (LAPTOP, RESNET, {"backend": "torchscript:all"}, ["torchscript:trace fp32 cpu", "torchscript:script fp32 cpu"]),
    (LAPTOP, RESNET, {"backend": "pytorch,pytorch", "batch": "1,1"}, ["pytorch fp32 cpu"]),
    (LAPTOP, RESNET, {"backend": "pytorch", "io": "", "precision": "", "threads": ""}, ["pytorch fp32 cpu"]),
    (GPU_HOST, RESNET, {"io": "host,device"}, ["pytorch fp32 cuda host io", "pytorch fp32 cuda"]),
    (TENSORRT, RESNET, {"backend": "tensorrt"}, ["tensorrt:rtx fp32 cuda"]),
    (QUANTIZING, onnx_file("int8"), {}, ["onnxruntime:cpu int8 cpu"]),
    (BOTH_FLAVOURS, engine(spec=RESNET.spec, format="module", variant="rtx"), {}, ["tensorrt:rtx fp16 cuda"]),
    (BOTH_FLAVOURS, engine(), {}, ["tensorrt:trt fp16 cuda"]),
])  # fmt: skip
def test_what_a_plan_means(machine, model_info, words, labels):
    planned = cases(machine, model_info, **words)
    assert [item.case.label.replace(f" batch {model_info.batch}", "") for item in planned] == labels
    assert len({item.case.folder for item in planned}) == len(planned)


def test_axes_multiply_and_options_for_their_backend_alone():
    planned = cases(backend="pytorch,torchscript:trace", precision="fp32,bf16", batch="1,8,16", threads="1,2")
    assert len(planned) == 2 * 2 * 3 * 2
    assert len({item.case.digest for item in planned}) == len({item.case.folder for item in planned}) == len(planned)
    planned = cases(model_info=FAKE, option=["fake.latency=1,2", "fake.error=0"])
    assert [item.case.options for item in planned] == [{"latency": 1.0, "error": 0.0}, {"latency": 2.0, "error": 0.0}]


def test_the_batch_is_that_asked_for_or_the_inputs_or_the_models():
    batches = {"x=8x3x64x64": 8, "x=1..16x3x64x64": 16, "x=1..16x3x64x64:opt=2": 2, "x=scalar": 1, "": 1}
    for text, batch in batches.items():
        words = {"input": text} if text else {}
        assert [case.case.batch for case in cases(backend="pytorch", **words)] == [batch]
        assert [case.case.batch for case in cases(backend="pytorch", batch="1,4", **words)] == [1, 4]


# What cannot run here


@pytest.mark.parametrize(("machine", "model_info", "words", "reason", "hint"), [
    (LAPTOP, RESNET, {"backend": "onnxruntime:cuda"}, "no CUDA provider", "pip install onnxruntime-gpu"),
    (LAPTOP, RESNET, {"backend": "onnxruntime", "precision": "fp16"}, "no kernels", "--precision fp32"),
    (LAPTOP, RESNET, {"backend": "pytorch", "io": "host"}, "begins and ends on the host", "without --io host"),
    (LAPTOP, RESNET, {"backend": "pytorch", "precision": "int8"}, "int8", "--precision fp32,fp16,bf16"),
    (LAPTOP, RESNET, {"backend": "fake:steady"}, "format 'module'", ""),
    (QUANTIZING, onnx_file("fp32"), {"precision": "int8"}, "not quantized to int8", "QuantizeLinear"),
    (TENSORRT, RESNET, {"backend": "tensorrt"}, NO_GPU.reason, NO_GPU.hint),
    (TENSORRT, RESNET, {"backend": "tensorrt:trt"}, "TensorRT is not installed.", "pip install"),
    (ON_GPU, engine(spec="fake:a", format="fake"), {"precision": "fp32"}, "fp16", "--precision fp16"),
])  # fmt: skip
def test_what_cannot_run_here_is_a_case_with_a_reason(machine, model_info, words, reason, hint):
    (planned,) = cases(machine, model_info, **words)
    assert (reason in planned.refusal.what, hint in planned.refusal.hint) == (True, True)


@pytest.mark.parametrize(("machine", "model_info", "what", "hint"), [
    ({"pytorch": LAPTOP["pytorch"]}, onnx_file("fp32"), "format onnx.", "inferlens backends"),
    (TENSORRT, engine(), f"tensorrt:rtx: {NO_GPU.reason}.", NO_GPU.hint),
    (TENSORRT, engine(spec="m", format="module", variant="trt"), "TensorRT is not installed.", "pip install"),
])  # fmt: skip
def test_where_nothing_runs_it_is_said_what_is_lacking(machine, model_info, what, hint):
    error = refusal("No backend here", cases, machine, model_info)
    assert (what in error.what, hint in error.hint) == (True, True)


# What outputs are compared with


SOURCE = {"spec": "torchvision:resnet18", "format": "module", "weights": "a.pth", "seed": 3}


@pytest.mark.parametrize(("machine", "model_info", "words", "label", "seed"), [
    (GPU_HOST, RESNET, {"precision": "fp16", "batch": 8, "seed": 3, "threads": 1}, "pytorch fp32 batch 8 cpu", 3),
    (QUANTIZING, onnx_file("int8"), {}, "onnxruntime:cpu int8 batch 1 cpu graph_optimization=disable", 0),
    (ON_GPU, engine(**SOURCE), {}, "pytorch fp32 batch 2 cpu", 3),
    (ON_GPU, engine(spec="onnx:net.onnx", format="onnx", precision="int8"), {},
     "onnxruntime:cpu int8 batch 2 cpu graph_optimization=disable", 0),
    (ON_GPU, engine(), {}, None, None),
])  # fmt: skip
def test_the_reference_is_fp32_on_the_cpu_or_the_files_own_precision(machine, model_info, words, label, seed):
    (planned,) = cases(machine, model_info, backend=next(iter(machine)), **words)
    reference = planned.reference
    assert (planned.refusal, reference and reference.label, reference and reference.seed) == (None, label, seed)


def test_a_compiled_model_and_its_source_are_fed_alike():
    """A factory's own example is not in the file that was compiled from its model."""
    compiled_for = (TensorSpec("x", (2, 8)),)
    for words, inputs in (({}, compiled_for), ({"input": "x=2x8:float16"}, (TensorSpec("x", (2, 8), "float16"),))):
        (planned,) = cases(ON_GPU, engine(**SOURCE, inputs=compiled_for), **words)
        assert planned.reference.inputs == inputs
        assert (planned.reference.model, planned.reference.weights) == (SOURCE["spec"], "a.pth")


# A plan file


def test_a_plan_file_has_the_same_words(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        'model = ["fake:demo"]\nbackend = ["fake:steady", "fake:fast"]\nbatch = [1, 8]\niterations = 100\n'
        'timeout = "90s"\n[option.fake]\nlatency = [1, 2.5]\n'
    )
    plan = Plan.from_words(toml_words(file, "plan"))
    assert plan == Plan.from_words(
        {
            "model": "fake:demo", "backend": "fake:steady,fake:fast", "batch": "1,8", "iterations": "100",
            "timeout": 90, "option": ["fake.latency=1,2.5"],
        }
    )  # fmt: skip
    file.write_bytes(b"model = \xff")
    refusal("cannot be read", toml_words, file, "plan")


ODD = 'a "quoted" \\ pa\x7fth é.onnx'


@pytest.mark.parametrize(("machine", "model_info", "words"), [
    (LAPTOP, RESNET, {"backend": "all", "precision": "fp32,bf16"}),
    (LAPTOP, RESNET, {"backend": "pytorch", "weights": ODD, "checkout": "../old", "threads": "1,2", "cold": True}),
    (GPU_HOST, RESNET, {"io": "host,device", "rotate": True, "device": "cpu,cuda"}),
    (LAPTOP, ModelInfo(spec=f"onnx:{ODD}", name="odd", format="onnx", batch=None), {}),
    (LAPTOP, FAKE, {"backend": "fake:fast", "depth": "1,4", "option": ["fake.latency=0.00001,4", "fake.when=exit"]}),
    (LAPTOP, FAKE, {"input": ["x=1..16x3x8x8:opt=2", "x:0=1..16x8:int64:-5..10"], "batch": "1,3", "seed": 7}),
])  # fmt: skip
def test_a_case_as_a_plan_file_means_that_case_alone(tmp_path, machine, model_info, words):
    planned = cases(machine, model_info, **words)
    for case in (item.case for item in planned):
        file = tmp_path / "best.toml"
        file.write_text(as_plan(case), encoding="utf-8")
        (again,) = expand(Plan.from_words(toml_words(file, "plan")), [model_info], machine)
        assert again.case == case


# What is measured, and how much


@pytest.mark.parametrize(("words", "message"), [
    ({"max_time": "0"}, "max_time of 0"), ({"half_width": "0"}, "not a percentage"),
    ({"half_width": "1%", "iterations": 5}, "iterations and half_width both say when"),
    ({"mode": "throughput", "cold": True}, "cold needs timed single calls"),
    ({"mode": "throughput", "iterations": 5}, "iterations needs timed single calls"),
    ({"mode": "latency", "depth": 4}, "depth needs throughput"), ({"mode": "speed"}, "no mode 'speed'"),
    ({"repeats": 0}, "'0' is not valid for repeats"), ({"trust": "yes"}, "true or false"),
    ({"sead": 1}, "did you mean seed"), ({"cold": True, "depth": 4}, "not measured with --cold"),
])  # fmt: skip
def test_words_that_contradict_each_other_are_refused(words, message):
    refusal(message, Plan.from_words, {"model": "fake:demo", **words})


@pytest.mark.parametrize("given", [
    {"within": "5m", "threshold": "1%", "iterations": 60, "warmup": 3}, {"thorough": True},
    {"quick": True, "half_width": "2%", "mode": "latency", "max_time": "3s"}, {"repeats": 5, "seconds": "2s"},
])  # fmt: skip
def test_a_budget_is_written_as_options_that_ask_for_the_same(given):
    plan = Plan.from_words({"model": "fake:demo", **given})
    words = budget_words(plan.budget, plan.repeats)
    params = typer.main.get_command(app).get_command(None, "bench").make_context("bench", ["m", *words]).params
    words = {name: params[name] for name in (*BUDGET_WORDS, *RACE_WORDS) if params[name] is not None}
    assert Plan.from_words({"model": "fake:demo", **words}) == plan


RECOMMENDED = Plan(model=("m",), recommended=True)
COMPILER = able(*((name, device) for device in ("cuda", "cpu") for name in ("default", "reduce-overhead")))
BOTH = {"pytorch": GPU_HOST["pytorch"], "torch_compile": COMPILER}


def recommended(model_info=RESNET, backends=BOTH, **words):
    return expand(replace(RECOMMENDED, **words), [model_info], backends)


def ways(*arguments, **words):
    return [planned.case.way for planned in recommended(*arguments, **words)]


def test_a_race_has_the_recommended_ways_of_each_backend():
    assert ways(replace(RESNET, convolutional=True), precision=("fp16",)) == [
        "pytorch fp16", "pytorch fp16 channels_last=true cuda_graph=true cudnn_benchmark=true",
        "torch_compile:reduce-overhead fp16", "torch_compile:reduce-overhead fp16 channels_last=true freezing=true",
    ]  # fmt: skip
    known = ["pytorch fp16 cuda_graph=true", "torch_compile:reduce-overhead fp16 freezing=true"]
    assert ways(precision=("fp16",))[1::2] == known
    assert ways(device=("cpu",)) == ["pytorch", "torch_compile:default freezing=true"]
    compiled = recommended(device=("cpu",))[1]
    assert compiled.fallback.case == replace(compiled.case, options={})
    assert ways(recommended=False, device=("cuda",)) == ["pytorch", "torch_compile:default"], "of other commands"
    script = {"torchscript": able(("script", "cpu"), formats="torchscript")}
    assert ways(replace(RESNET, format="torchscript"), script) == ["torchscript:script"], "which no recommendation fits"


@pytest.mark.parametrize(("words", "way"), [
    ({"backend": ("torch_compile:default",)}, "torch_compile:default"),
    ({"backend": ("torch_compile",), "option": {"torch_compile.dynamic": ("true",)}},
     "torch_compile:default dynamic=true"),
])  # fmt: skip
def test_a_variant_or_an_option_means_exactly_that(words, way):
    (planned,) = recommended(device=("cpu",), **words)
    assert (planned.case.way, planned.fallback) == (way, None)


def test_with_dynamic_shapes_the_plain_way_runs_and_says_why():
    shapes = (TensorSpec.parse("x=1..8x3x224x224"),)
    (planned,) = recommended(backends={"onnxruntime": able(("cuda", "cuda"))}, input=(shapes,))
    assert (planned.case.options, planned.note) == ({}, "In place of cuda_graph=true, which needs fixed shapes.")


def test_a_case_of_named_sizes_is_a_command_without_its_inputs():
    ids = TensorSpec("ids", (1, 128), "int64", 84, 30375, names=("", "length"))
    assert bench_words(Case(model="factory:m.py:f", backend="b", inputs=(ids,)), "cpu")[-2:] == ["--dim", "length=128"]


def test_of_a_live_module_a_command_is_a_call_from_python():
    words = ["pytorch fp16", "-b", "pytorch", "--batch", "2,4", "--cold", "--option", "a.b=c", "--option", "a.d=e"]
    assert command("bench", ["resnet18", *words]).startswith("inferlens bench resnet18 'pytorch fp16' -b pytorch")
    assert command("ab", ["live:Net", *words]) == (
        'inferlens.ab(model, "pytorch fp16", example_inputs, backend="pytorch", batch="2,4", cold=True, '
        'option=["a.b=c", "a.d=e"])'
    )
    assert command("bench", ["live:Net", "--batch", "1"]) == "inferlens.bench(model, example_inputs, batch=1)"
    assert command("partition", ["live:Net"]) == ""  # of which Python has none
