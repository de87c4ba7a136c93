"""Backends that read ONNX, beyond the contract: export, ONNX files, providers, precisions."""

import dataclasses
from pathlib import Path

import onnxruntime
import pytest
import torch
from msgspec import structs
from torch import nn

from inferlens.backends.onnx.graph import onnx_file
from inferlens.backends.onnxruntime.backend import OnnxRuntimeOptions
from inferlens.backends.onnxruntime.runner import PROVIDERS, CpuRunner, provider_list
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.errors import Unsupported
from inferlens.models.files import onnx_file_precision
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from tests.backends import small
from tests.backends.small import quantized_file, unsupported

CPU, OPENVINO = "onnxruntime:cpu", "openvino:cpu"
HINT = {"hint": "throughput", "streams": 1}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The small convolutional model as an ONNX file, batch 1."""
    return _exported(tmp_path_factory.mktemp("onnx"), "fp32")


def _exported(folder, precision):
    model = small.model()
    with small.backend(CPU).prepare(model, small.case(CPU, precision=precision), small.preparation(folder)):
        return folder / "case" / "model.onnx"


def _onnx(path):
    return dataclasses.replace(small.model(format="onnx", path=path), module=None)


def test_the_exported_file_is_kept(preparation):
    model = small.model()
    small.run(model, small.case(CPU), preparation, small.arrays(model))
    assert [phase.name for phase in preparation.phases] == ["export", "build"]
    (artefact,) = preparation.artefacts
    assert (artefact.path, artefact.kind) == ("model.onnx", "onnx")
    assert artefact.size > 1000
    assert preparation.facts["onnx_exporter"] == "torch.export"
    if hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):  # not in ONNX Runtime 1.23
        assert set(preparation.facts["nodes_by_provider"]) == {"CPUExecutionProvider"}


def test_an_onnx_file_is_not_run_under_another_precision(file, tmp_path):
    half = _exported(tmp_path, "fp16")
    for path, own, other in ((file, "fp32", "fp16"), (half, "fp16", "fp32")):
        assert onnx_file_precision(path) == own
        case = small.case(CPU, precision=other)
        unsupported(f"is in {own}, and", small.backend(CPU).prepare, _onnx(path), case, small.preparation(tmp_path))


@pytest.mark.parametrize(("options", "warnings"), [
    ({}, 0), ({"graph_optimization": "disable", "tf32": True, "cudnn_conv_algo_search": "DEFAULT"}, 2),
    ({"prefer_nhwc": True, "fuse_conv_bias": True}, 2),
    ({"graph_optimization": "extended", "execution_mode": "parallel", "inter_op_threads": 2}, 0),
])  # fmt: skip
def test_an_onnx_file_runs_as_it_is(options, warnings, file, preparation):
    small.agrees(_onnx(file), small.case(CPU, options=options), preparation, small.model())
    assert [warning.code for warning in preparation.warnings] == ["no-effect"] * warnings
    assert not preparation.artefacts
    assert [phase.name for phase in preparation.phases] == ["build"]


@pytest.mark.parametrize(("label", "options"), [
    (label, {knob.name: value})
    for label in (CPU, OPENVINO)
    for knob in small.backend(label).knobs if knob.fits(small.case(label))
    for value in knob.values
], ids=str)  # fmt: skip
def test_outputs_are_right_with_each_value_of_each_knob(label, options, file, preparation):
    small.agrees(_onnx(file), small.case(label, options=options), preparation, small.model())
    harmless = "The option enable_hyper_threading does nothing on this CPU."
    assert {warning.message for warning in preparation.warnings} <= {harmless}


@pytest.mark.parametrize("on", [True, False])
def test_options_reach_onnx_runtime(on, file, preparation):
    case = small.case(CPU, options={"enable_cpu_mem_arena": on, "allow_spinning": on}, threads=2)
    runner = small.backend(CPU).prepare(_onnx(file), case, preparation)
    with runner:
        settings = runner._session.get_session_options()
        pools = [settings.get_session_config_entry(f"session.{pool}_op.allow_spinning") for pool in ("intra", "inter")]
        assert (settings.enable_cpu_mem_arena, pools) == (on, [str(int(on))] * 2)


def test_all_options_except_those_of_the_file_reach_the_exported_script():
    others = {
        "graph_optimization": "basic", "execution_mode": "parallel", "inter_op_threads": 3, "tf32": True,
        "cudnn_conv_algo_search": "DEFAULT", "fuse_conv_bias": True, "prefer_nhwc": True, "cuda_graph": True,
        "enable_cpu_mem_arena": False, "allow_spinning": False,
    }  # fmt: skip
    assert {*OnnxRuntimeOptions.__struct_fields__} - {*others} == {"quantize", "ranges"}

    def code(**words):  # beneath its title, which names the case
        case = small.case("onnxruntime:cuda", device="cuda", **words)
        return small.backend("onnxruntime:cuda").script(case, "model.onnx", small.CONVOLUTION).partition("\n")[2]

    usual = code()
    assert code(threads=3) != usual
    assert [name for name, value in others.items() if code(options={name: value}) == usual] == []


def test_a_fallback_to_the_cpu_is_refused(file, preparation):
    """Without this provider ONNX Runtime drops it with a warning, and runs on the CPU."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    arguments = PROVIDERS["cuda"], _onnx(file), small.case("onnxruntime:cuda"), preparation, OnnxRuntimeOptions()
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(Unsupported, match=r"fell back to CPUExecutionProvider: the CUDA.*(does not load|not created)"),
    ):
        CpuRunner(file, *arguments).__enter__()


def test_provider_options_for_the_gpu():
    def given(provider, precision="fp32", **options):
        case = small.case(f"onnxruntime:{provider}", device="cuda", precision=precision)
        return provider_list(PROVIDERS[provider], case, OnnxRuntimeOptions(**options), 77, Path("cache"))

    (name, cuda), cpu = given("cuda")
    assert (name, cpu, cuda["use_tf32"]) == ("CUDAExecutionProvider", "CPUExecutionProvider", "0")
    assert (cuda["user_compute_stream"], cuda["enable_cuda_graph"]) == ("77", "0")
    assert not {"prefer_nhwc", "fuse_conv_bias"} & cuda.keys()
    assert given("cuda", "fp16")[0][1]["use_tf32"] == "1", "without it convolutions in fp16 have no tensor cores"
    (_, cuda), _ = given("cuda", prefer_nhwc=True, fuse_conv_bias=True)
    assert cuda["prefer_nhwc"] == cuda["fuse_conv_bias"] == "1"
    (name, tensorrt), *others = given("tensorrt", "fp16", cuda_graph=True)
    assert (name, tensorrt["trt_engine_cache_path"]) == ("TensorrtExecutionProvider", "cache")
    assert tensorrt["trt_fp16_enable"] == tensorrt["trt_cuda_graph_enable"] == "1"
    assert others[0][1]["enable_cuda_graph"] == "0"


def test_an_input_that_is_never_used(preparation):
    class Ignoring(nn.Module):
        def forward(self, image, other):
            return image + 1

    specs = (*small.CONVOLUTION, TensorSpec("other", (1, 4)))
    model = Model("ignoring", "ignoring", "module", specs, module=Ignoring().eval())
    small.agrees(model, small.case(CPU), preparation)


@pytest.mark.parametrize(("options", "streams"), [({}, 1), ({"streams": 2}, 2), (HINT, 1)])
def test_options_of_openvino_are_honoured(options, streams, preparation):
    small.agrees(small.model(), small.case(OPENVINO, options=options), preparation)
    assert (preparation.facts["streams"], preparation.facts["inference_precision"]) == (streams, "f32")


@pytest.mark.parametrize("on", [True, False])
def test_the_effect_of_a_switch_of_openvino_is_a_fact(on, file, preparation):
    """A machine may have no hyper-threads, or not let threads be tied to cores."""
    options = {"enable_cpu_pinning": on, "enable_hyper_threading": on}
    small.agrees(_onnx(file), small.case(OPENVINO, options=options), preparation, small.model())
    refused = sum(preparation.facts[name] != on for name in options)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"] * refused
    assert on or not refused


def test_free_dimensions_of_a_file_get_the_sizes_of_the_case(tmp_path, preparation):
    model = small.model(batch=3)
    path = small.exported(tmp_path / "model.onnx", model.module, 3, 3, 16, 16, free=True)
    file = dataclasses.replace(model, module=None, format="onnx", path=path)
    small.agrees(file, small.case(OPENVINO, batch=3), preparation, model)


def test_a_quantized_file_runs_only_in_its_precision(tmp_path):
    file = quantized_file(tmp_path, "int8", "linear")
    model = Model("onnx:int8", "int8", "onnx", (TensorSpec("image", (4, 32)),), path=file)
    backend, preparation, case = small.backend(OPENVINO), small.preparation(tmp_path), small.case(OPENVINO, batch=None)
    unsupported("is in int8, and it is run as it is", backend.prepare, model, case, preparation)
    case = structs.replace(case, precision="int8")
    if backend.capabilities().refusal(case, structs.replace(small.info("onnx"), precision="int8")) is None:
        assert backend.prepare(model, case, preparation)  # a CPU may have no int8 arithmetic


class Choosing(nn.Module):
    """Control flow that depends on a value: ``torch.export`` refuses it, a trace takes the branch that was taken."""

    def forward(self, image):
        return torch.relu(image) if image.sum() > 0 else image * 2


class Decomposing(nn.Module):
    """An operator that neither exporter can write."""

    def forward(self, image):
        return torch.linalg.svd(image)[0]


class Refusing(nn.Module):
    def forward(self, image):
        raise ValueError("this model cannot be called")


def test_the_reason_for_the_older_exporter_is_a_warning(preparation):
    small.agrees(small.model(Choosing), small.case(CPU), preparation)
    (warning,) = preparation.warnings
    assert (warning.code, preparation.facts["onnx_exporter"]) == ("export-fallback", "TorchScript")
    assert "depends on values of a tensor" in warning.message


@pytest.mark.parametrize(("kind", "why"), [
    (Refusing, r"cannot be exported to ONNX: ValueError: this model cannot be called \(tracing: "),
    (Decomposing, r"No ONNX function found for .*linalg_svd"),
])  # fmt: skip
def test_a_failure_of_both_exporters_has_a_reason(kind, why, preparation):
    raised = unsupported(why, onnx_file, small.model(kind), small.case("onnxruntime:cpu"), preparation, "fp32")
    assert "This is step" not in raised.what


def test_the_reason_stays_when_the_engine_is_cached(preparation, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    messages = []
    for cached in (False, True):
        model = small.model(Choosing)
        case = small.case("tensorrt:rtx", device="cuda", options={"compute_capability": "8.9"})
        assert TensorRT().build(model, case, preparation, tmp_path / "made.engine").cached == cached
        messages.append([warning.message for warning in preparation.warnings])
        preparation.warnings.clear()
    assert messages[0] == messages[1]
    assert "depends on values" in messages[0][0]
