"""What cases are hinted to ask for: it is there, does what they lack, fits them, and is not asked for already."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from inferlens.analysis.findings.hints import for_the_host, hint, one_of, sentence
from inferlens.backends import BACKENDS
from inferlens.record.record import Environment, Gpu
from inferlens.record.work import ModuleWork, Work
from inferlens.spec.case import Case, Option
from tests.analysis.findings.crafted import (
    ON_GPU,
    ceilings,
    kernel,
    launched,
    layer,
    layered,
    of_rule,
    the,
    untouched,
    work,
)  # fmt: skip
from tests.analysis.findings.test_rules import ENGINE, PLAIN, TENSOR, convolution, half, partition, with_facts
from tests.views.samples import case

WANTED: list[tuple[str, Option]] = [
    ("cuda_graph", True), ("tf32", True), ("channels_last", True), ("cudnn_benchmark", True),
    ("cudnn_conv_algo_search", "EXHAUSTIVE"), ("max_autotune", True), ("optimization_level", 5), ("freeze", True),
    ("graph_optimization", "all"),
]  # fmt: skip
LABELS = [
    f"{name}:{variant}" if variant else name for name in BACKENDS.names() for variant in BACKENDS.get(name).variants
]


def as_advised(of: Case, ask: str) -> Case:
    """The case after its user did what was said."""
    name, equals, value = ask.partition("=")
    if not equals:
        backend, _, variant = ask.partition(":")
        assert backend == of.backend
        assert variant in BACKENDS.get(backend).variants
        return replace(of, variant=variant)
    backend, _, option = name.partition(".")
    assert backend == of.backend
    return replace(of, options={**of.options, option: value})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("label", LABELS)
def test_what_is_advised_can_be_done_and_is_not_advised_again(label: str, device: str) -> None:
    of = case(label, device=device)
    for option, value in WANTED:
        found = hint(of, option, value)
        assert not (found.ask and found.asked)
        if found.ask:
            done = as_advised(of, found.ask)
            BACKENDS.get(of.backend).parse_options(done)
            again = hint(done, option, value)
            assert (again.ask, again.asked) == ("", True), (found.ask, option)


def test_every_option_that_is_wanted_is_one_of_some_backend() -> None:
    on_gpu = [case(label, device="cuda", options={}) for label in LABELS]
    for option, value in WANTED:
        found = [hint(of, option, value) for of in on_gpu]
        assert any(each.ask or each.asked for each in found), option


@pytest.mark.parametrize("label", LABELS)
def test_on_the_cpu_nothing_is_advised_that_takes_a_gpu(label: str) -> None:
    for option in ("cuda_graph", "tf32", "cudnn_benchmark", "max_autotune"):
        assert hint(case(label), option).ask == "", option


OTHERS = "Another backend with a CUDA graph or a larger --batch."
ALREADY = "A larger --batch; a CUDA graph was asked for already."


@pytest.mark.parametrize(
    ("label", "options", "facts", "said"),
    [
        ("pytorch", {}, {}, "A CUDA graph (pytorch.cuda_graph=true) or a larger --batch."),
        ("pytorch", {"cuda_graph": True}, {}, ALREADY),
        ("pytorch", {"cuda_graph": "true"}, {}, ALREADY),
        ("pytorch", {"cuda_graph": False}, {}, "A CUDA graph (pytorch.cuda_graph=true) or a larger --batch."),
        ("torch_compile:default", {}, {}, "A CUDA graph (torch_compile:reduce-overhead) or a larger --batch."),
        ("torch_compile:reduce-overhead", {}, {}, ALREADY),
        ("torch_compile:max-autotune", {}, {}, ALREADY),
        ("tensorrt:rtx", {}, {}, "A CUDA graph (tensorrt.cuda_graph=true) or a larger --batch."),
        ("torch_tensorrt:ts-trace", {}, {}, "A CUDA graph (torch_tensorrt.cuda_graph=true) or a larger --batch."),
        ("torch_tensorrt:loaded", {}, {}, "A CUDA graph (torch_tensorrt.cuda_graph=true) or a larger --batch."),
        ("onnxruntime:cuda", {}, {}, "A CUDA graph (onnxruntime.cuda_graph=true) or a larger --batch."),
        ("onnxruntime:cuda", {}, {"nodes_by_provider": {"CUDAExecutionProvider": 9, "CPUExecutionProvider": 1}}, None),
        ("onnxruntime:tensorrt", {}, {"nodes_by_provider": {"CUDAExecutionProvider": 9}}, None),
        ("torchscript:trace", {}, {}, None),
        ("somebody-elses", {}, {}, None),
        ("pytorch", {"an option of another version": 1}, {}, None),
    ],
)
def test_a_cuda_graph_is_advised_as_the_backend_has_it(
    label: str, options: dict[str, Any], facts: dict[str, Any], said: str | None
) -> None:
    told = for_the_host(case(label, device="cuda", options=options), facts)
    assert told == (said or OTHERS)


@pytest.mark.parametrize(
    ("of", "option", "facts", "asked"),
    [
        (case("tensorrt:rtx", device="cuda"), "tf32", {}, True),
        (case("torch_tensorrt:dynamo", device="cuda"), "tf32", {"flavour": "TensorRT for RTX"}, True),
        (case("tensorrt:trt", device="cuda", model="engine:of.engine"), "tf32", {}, False),
        (case("torch_tensorrt:loaded", device="cuda"), "tf32", {}, False),
        (case("onnxruntime:tensorrt", device="cuda"), "tf32", {}, False),
        (case("tensorrt:rtx", device="cuda"), "optimization_level", {}, False),
        (case("torch_tensorrt:ts-trace", device="cuda"), "optimization_level", {}, False),
        (case("torchscript:trace", options={"optimize_for_inference": True}), "freeze", {}, True),
    ],
)
def test_options_that_would_do_nothing_are_not_advised(
    of: Case, option: str, facts: dict[str, Any], asked: bool
) -> None:
    found = hint(of, option, 5 if option == "optimization_level" else True, facts)
    assert (found.ask, found.asked) == ("", asked)


def test_several_things_to_try_are_one_sentence() -> None:
    assert sentence(["do this"]) == "Do this."
    assert one_of(["a", "b"]) == "a or b"
    assert one_of(["a", "b", "c"]) == "a, b, or c"


# In findings

CHANNELS_LAST = {"channels_last": True}


def on_gpu(backend: str, precision: str = "fp16", **options: Any) -> Case:
    return case(backend, device="cuda", precision=precision, options=options)


# The first convolution


@pytest.mark.parametrize(
    ("of", "channels", "said"),
    [
        (ON_GPU, 3, "Pad the input channels to 4 or 8 (zeros in the input and in the weights), fold 2x2 pixels"),
        (ON_GPU, 4, "Pad the input channels to 8 (zeros"),
        (case(device="cuda", options={"tf32": True}), 3, "Pad the input channels to 4 (zeros"),
        (case(device="cuda", options={"tf32": True}), 4, "Fold 2x2 pixels into channels before it (space to depth) or"),
        (case("tensorrt:trt", device="cuda", precision="int8"), 3, "Pad the input channels to 4 or 16 (zeros"),
        (case(device="cuda"), 3, "Use channels-last memory order (pytorch.channels_last=true) or compare other"),
        (case(precision="bf16"), 3, "Use channels-last memory order (pytorch.channels_last=true) or compare other"),
        (case("torchscript:trace", options={"channels_last": True}), 3, "Compare other backends (inferlens modules)."),
        (case("onnxruntime:cpu"), 3, "Compare other backends (inferlens modules)."),
        (case("openvino:cpu", precision="int8"), 4, "Compare other backends (inferlens modules)."),
    ],
)
def test_channels_are_padded_for_tensor_cores_alone(of: Any, channels: int, said: str) -> None:
    others = [convolution(f"conv{number}", 1.0, 64, 64) for number in (2, 3, 4)]
    profile = layered(convolution("conv1", 2.0, channels, 64, kind="correlation"), *others, of=of, timed="GPU")
    assert the("first-convolution", profile).hint.startswith(said)


def test_channels_are_not_padded_for_tensor_cores_that_are_not_there() -> None:
    others = [convolution(f"conv{number}", 1.0, 64, 64) for number in (2, 3, 4)]
    old = layered(convolution("conv1", 2.0, 3, 64), *others, of=ON_GPU, timed="GPU")
    for capability, precision, pads in (("6.1", "fp16", False), ("7.5", "fp16", True), ("7.5", "bf16", False)):
        gpu = Environment(gpus=(Gpu(name="of old", compute_capability=capability),))
        of = msgspec.structs.replace(old, environment=gpu, case=msgspec.structs.replace(ON_GPU, precision=precision))
        assert ("Pad" in the("first-convolution", of).hint) is pads, (capability, precision)


def test_only_what_nothing_has_compiled_is_told_to_compile() -> None:
    of = launched(kernel("add", 4.0, 400, operator="aten::add"))
    assert "by compiling" in the("host-bound", of, record=untouched(of, 5.0)).hint


# Memory order


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (on_gpu("pytorch"), "Keep images and weights in channels-last order (pytorch.channels_last=true)."),
        (on_gpu("pytorch", **CHANNELS_LAST), "Compare other backends (inferlens modules): channels-last order was"),
        (on_gpu("onnxruntime:cuda"), "Feed the model in the memory order that the backend computes in"),
    ],
)
def test_channels_last_order_is_for_backends_that_have_it(of: Case, said: str) -> None:
    to_nhwc = kernel("void cudnn::ops::nchwToNhwcKernel<__half, __half>", 30.0, 4)
    kernels = launched(to_nhwc, kernel("sm80_xmma_fprop_implicit_gemm", 780.0), of=of)
    assert the("reformats", kernels).hint.startswith(said)
    layers = layered(layer("r", 1.0, "Reorder", details={"inserted": "x"}), layer("conv", 9.0), of=of, timed="GPU")
    assert the("reformats", layers).hint.startswith(said)


def test_channels_last_order_is_for_images() -> None:
    permute = kernel("void cutlass_transpose_kernel", 100.0)
    assert "channels" not in the("reformats", launched(permute, kernel(TENSOR, 500.0))).hint
    slow = kernel(PLAIN, 100.0, 5, tensor_cores=False)
    assert "channels-last" not in the("tensor-cores-unused", launched(slow)).hint
    slow = kernel("implicit_convolve_sgemm", 100.0, 5, tensor_cores=False)
    assert "channels-last order (pytorch.channels_last=true)" in the("tensor-cores-unused", launched(slow)).hint
    already = launched(slow, of=on_gpu("pytorch", **CHANNELS_LAST))
    assert "channels-last" not in the("tensor-cores-unused", already).hint


# Precision


def test_channels_that_fit_are_not_to_be_padded() -> None:
    slow = kernel(PLAIN, 100.0, 5, tensor_cores=False, layer="fc1", modules=("fc1",))
    fits, odd = half("fc1", 1.0, "Linear", 512, 512), half("fc1", 1.0, "Linear", 510, 512)
    assert the("tensor-cores-unused", layered(fits, of=ON_GPU), launched(slow)).hint == "Try another backend."
    assert the("tensor-cores-unused", layered(odd, of=ON_GPU), launched(slow)).hint == (
        "Make channels and features multiples of 8 by padding or try another backend."
    )
    quantised = on_gpu("tensorrt:trt", "int8")
    assert "multiples of 16" in the("tensor-cores-unused", layered(odd, of=quantised, timed="GPU")).hint


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (on_gpu("pytorch", "fp32"), "pytorch.tf32=true: a trade of accuracy"),
        (on_gpu("torch_tensorrt:dynamo", "fp32"), "torch_tensorrt.tf32=true: a trade of accuracy"),
        (on_gpu("torch_tensorrt:loaded", "fp32"), "TF32 (the option tf32; of an engine, when it is built): a trade"),
        (on_gpu("tensorrt:rtx", "fp32"), ""),
    ],
)
def test_tf32_is_advised_where_there_is_a_choice(of: Case, said: str) -> None:
    found = of_rule("tf32-off", layered(layer("conv", 8.0), of=of, timed="GPU"))
    assert [each.hint.startswith(said) for each in found] == ([True] if said else [])


def test_what_is_quantised_has_no_lower_precision() -> None:
    for precision, lower in (("fp16", True), ("int8", False)):
        of = layered(layer("dw", 3.0), of=on_gpu("tensorrt:trt", precision), timed="GPU")
        moved = ModuleWork(module="dw", flops=1e9, inputs=10**9, outputs=10**9, returned=10**9)
        of = msgspec.structs.replace(of, work=Work(modules=(moved,)), ceilings=ceilings(**{precision: 1e14}))
        assert ("lower precision" in the("bandwidth-bound", of).hint) is lower, precision


# Algorithms and folding


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (
            on_gpu("pytorch"),
            "channels-last order (pytorch.channels_last=true), the library's own search (pytorch.cudnn_benchmark=true)",
        ),
        (on_gpu("torch_compile:default", **CHANNELS_LAST), "the library's own search (torch_compile:max-autotune)"),
        (on_gpu("tensorrt:trt"), "the library's own search (tensorrt.optimization_level=5)"),
        (on_gpu("tensorrt:rtx"), ""),
        (on_gpu("onnxruntime:cuda"), ""),
        (on_gpu("onnxruntime:cuda", cudnn_conv_algo_search="DEFAULT"), "the library's own search (onnxruntime.cudnn_c"),
    ],
)
def test_the_search_for_algorithms_is_the_librarys_own(of: Case, said: str) -> None:
    profile = layered(layer("conv1", 8.0), layer("pool", 2.0, "Pool"), of=of, timed="GPU")
    profile = msgspec.structs.replace(profile, work=work(conv1=2e9), ceilings=ceilings(fp16=1e13))
    said = said or "another backend or a larger --batch."
    assert the("far-above-floor", profile).hint.startswith(f"Another algorithm for it: {said}")


@pytest.mark.parametrize(
    ("of", "modules", "said"),
    [
        (case(), (), "PyTorch's fuse_conv_bn_eval, or a backend that compiles the model."),
        (on_gpu("pytorch"), (), "PyTorch's fuse_conv_bn_eval, or a backend that compiles the model."),
        (case("torchscript:trace"), ("net",), "torchscript.freeze=true."),
        (
            case("torchscript:trace", options={"freeze": True}),
            ("net",),
            "PyTorch's fuse_conv_bn_eval, be",
        ),
        (
            case("onnxruntime:cpu", options={"graph_optimization": "disable"}),
            ("net",),
            "onnxruntime.graph_optimization=",
        ),
        (
            case("onnxruntime:cpu"),
            ("net",),
            "PyTorch's fuse_conv_bn_eval, be",
        ),
    ],
)
def test_batch_norms_are_folded_by_what_can(of: Case, modules: tuple[str, ...], said: str) -> None:
    pair = layer("conv", 8.0, "Conv2d", *modules), layer("bn", 2.0, "BatchNorm2d", *modules)
    found = the("batch-norm-not-folded", layered(*pair, of=of, timed="GPU" if of.device == "cuda" else "host"))
    assert found.hint.startswith(f"Fold them into the weights: {said}")


# Torch-TensorRT


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("unsupported", "; another form of the operators that are not supported may keep them in the engine."),
        ("block too small", "; a smaller min_block_size may keep them in the engine."),
        ("forced", "; fewer torch_executed_ops may keep them in the engine."),
        ("", "."),
    ],
)
def test_what_keeps_operators_in_an_engine_depends_on_why_they_are_not(why: str, said: str) -> None:
    told = partition()
    told["breaks"][0]["why"] = [why]
    found = the("fallback", ENGINE, record=with_facts(ENGINE, partition=told))
    assert found.hint == f"See each operator's reason with inferlens partition{said}"
