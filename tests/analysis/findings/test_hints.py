"""What cases are hinted to ask for: it is there, does what they lack, fits them, and is not asked for already."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.analysis.findings.hints import for_the_host, hint, one_of, sentence
from inferlens.backends import BACKENDS
from inferlens.record.record import Environment, Gpu
from inferlens.spec.case import Case, Option
from tests.analysis.findings.crafted import ON_GPU, ceilings, kernel, launched, layer, layered, of_rule, the, work
from tests.analysis.findings.test_rules import FAST, FC1, FC2, PAIR, SLOW, TO_NHWC, convolution
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
            assert device == "cuda" or option not in ("cuda_graph", "tf32", "cudnn_benchmark", "max_autotune")
            done = as_advised(of, found.ask)
            BACKENDS.get(of.backend).parse_options(done)
            again = hint(done, option, value)
            assert (again.ask, again.asked) == ("", True), (found.ask, option)


def test_every_option_that_is_wanted_is_one_of_some_backend() -> None:
    on_gpu = [case(label, device="cuda", options={}) for label in LABELS]
    for option, value in WANTED:
        found = [hint(of, option, value) for of in on_gpu]
        assert any(each.ask or each.asked for each in found), option


@pytest.mark.parametrize(
    ("label", "options", "facts", "ask"),
    [
        ("pytorch", {}, {}, "pytorch.cuda_graph=true"),
        ("pytorch", {"cuda_graph": "true"}, {}, "already"),
        ("pytorch", {"cuda_graph": False}, {}, "pytorch.cuda_graph=true"),
        ("torch_compile:default", {}, {}, "torch_compile:reduce-overhead"),
        ("torch_compile:reduce-overhead", {}, {}, "already"),
        ("torch_compile:max-autotune", {}, {}, "already"),
        ("tensorrt:rtx", {}, {}, "tensorrt.cuda_graph=true"),
        ("torch_tensorrt:loaded", {}, {}, "torch_tensorrt.cuda_graph=true"),
        ("onnxruntime:cuda", {}, {"nodes_by_provider": {"CUDAExecutionProvider": 9, "CPUExecutionProvider": 1}}, ""),
        ("onnxruntime:tensorrt", {}, {"nodes_by_provider": {"CUDAExecutionProvider": 9}}, ""),
        ("torchscript:trace", {}, {}, ""),
        ("somebody-elses", {}, {}, ""),
        ("pytorch", {"an option of another version": 1}, {}, ""),
    ],
)
def test_a_cuda_graph_is_advised_as_the_backend_has_it(
    label: str, options: dict[str, Any], facts: dict[str, Any], ask: str
) -> None:
    said = for_the_host(case(label, device="cuda", options=options), facts)
    assert (ask if ask else "another backend") in said.lower()
    assert "--batch" in said


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
    assert [one_of(list(words)) for words in ("ab", "abc")] == ["a or b", "a, b, or c"]


# In findings


def on_gpu(backend: str, precision: str = "fp16", **options: Any) -> Case:
    return case(backend, device="cuda", precision=precision, options=options)


@pytest.mark.parametrize(
    ("of", "capability", "channels", "pads"),
    [
        (ON_GPU, "9.0", 3, "8"),
        (on_gpu("pytorch", "fp32", tf32=True), "9.0", 3, "4"),
        (on_gpu("pytorch", "fp32", tf32=True), "9.0", 4, None),
        (on_gpu("tensorrt:trt", "int8"), "9.0", 3, "16"),
        (on_gpu("pytorch", "fp32"), "9.0", 3, None),
        (case(precision="bf16"), "", 3, None),
        (ON_GPU, "6.1", 3, None),
        (ON_GPU, "7.5", 3, "8"),
        (on_gpu("pytorch", "bf16"), "7.5", 3, None),
    ],
)
def test_channels_are_padded_for_tensor_cores_alone(of: Case, capability: str, channels: int, pads: str | None) -> None:
    others = [convolution(f"conv{number}", 1.0, 64, 64) for number in (2, 3, 4)]
    profile = layered(convolution("conv1", 2.0, channels, 64), *others, of=of, timed="GPU")
    gpus = (Gpu(name="a GPU", compute_capability=capability),) if capability else ()
    said = the("first-convolution", replace(profile, environment=Environment(gpus=gpus))).hint
    assert (f"Pad the input channels to {pads} (" in said) if pads else ("Pad" not in said)


def test_channels_last_order_is_for_images_on_backends_that_have_it_and_were_not_asked() -> None:
    image = kernel("sm80_xmma_fprop_implicit_gemm", 780.0)
    for of, other, said in (
        (on_gpu("pytorch"), image, True),
        (on_gpu("pytorch", channels_last=True), image, False),
        (on_gpu("onnxruntime:cuda"), image, False),
        (on_gpu("pytorch"), FAST, False),
    ):
        assert ("(pytorch.channels_last=true)" in the("reformats", launched(TO_NHWC, other, of=of)).hint) is said
    slow = kernel("implicit_convolve_sgemm", 100.0, 5, tensor_cores=False)
    assert "channels-last order (pytorch.channels_last=true)" in the("tensor-cores-unused", launched(slow)).hint


def test_channels_that_fit_are_not_to_be_padded() -> None:
    fits = replace(FC2, name="fc1", modules=("fc1",))
    assert the("tensor-cores-unused", layered(fits, of=ON_GPU), launched(SLOW)).hint == "Try another backend."
    odd = the("tensor-cores-unused", layered(FC1, of=on_gpu("tensorrt:trt", "int8"), timed="GPU")).hint
    assert "multiples of 16 by padding" in odd


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (on_gpu("pytorch", "fp32"), ["pytorch.tf32=true: a trade of accuracy"]),
        (on_gpu("torch_tensorrt:loaded", "fp32"), ["TF32 (the option tf32; of an engine, when it is built): a trade"]),
        (on_gpu("tensorrt:rtx", "fp32"), []),
    ],
)
def test_tf32_is_advised_where_there_is_a_choice(of: Case, said: list[str]) -> None:
    found = of_rule("tf32-off", layered(layer("conv", 8.0), of=of, timed="GPU"))
    assert [each.hint[: len(words)] for each, words in zip(found, said, strict=True)] == said


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (on_gpu("pytorch"), "pytorch.channels_last=true, pytorch.cudnn_benchmark=true, another backend"),
        (on_gpu("torch_compile:default", channels_last=True), "torch_compile:max-autotune, another"),
        (on_gpu("tensorrt:trt"), "tensorrt.optimization_level=5, another"),
        (on_gpu("tensorrt:rtx"), "another backend"),
    ],
)
def test_algorithms_are_searched_for_by_the_library(of: Case, said: str) -> None:
    profile = layered(layer("conv1", 8.0), layer("pool", 2.0, "Pool"), of=of, timed="GPU")
    profile = replace(profile, work=work(conv1=2e9), ceilings=ceilings(fp16=1e13))
    assert said.lower() in the("far-above-floor", profile).hint.lower()


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (case(), "PyTorch's fuse_conv_bn_eval"),
        (case("torchscript:trace"), "torchscript.freeze=true."),
        (case("torchscript:trace", options={"freeze": True}), "PyTorch's fuse_conv_bn_eval"),
        (case("onnxruntime:cpu", options={"graph_optimization": "disable"}), "onnxruntime.graph_optimization=all."),
    ],
)
def test_batch_norms_are_folded_by_what_can(of: Case, said: str) -> None:
    assert the("batch-norm-not-folded", layered(*PAIR, of=of)).hint.startswith(f"Fold them into the weights: {said}")
