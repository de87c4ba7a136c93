"""What cases are advised to ask for: it is there, does what they lack, and is not asked for already."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.analysis.findings.hints import hint, of_the_host, one_of, sentence
from inferlens.backends import BACKENDS
from inferlens.spec.case import Case, Option
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


OTHERS = (
    "Another backend with a CUDA graph (pytorch.cuda_graph=true or torch_compile:reduce-overhead, if the model is "
    "PyTorch's) or a larger --batch."
)
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
    told = of_the_host(case(label, device="cuda", options=options), facts)
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
