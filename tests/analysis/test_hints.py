"""What cases are hinted to ask for: it is there, does what they lack, fits them, and is not asked for already."""

from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.record.profile import Profile
from inferlens.spec.case import Case, Option
from inferlens.spec.hints import Hint, hint
from tests.analysis.profiles import exact_kernel as kernel
from tests.analysis.profiles import exact_layer as layer
from tests.analysis.profiles import launched, layered, of_rule, the, work
from tests.analysis.profiles import terabyte_ceilings as ceilings
from tests.analysis.test_findings import PAIR, SLOW, TO_NHWC
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
    if "=" not in ask:
        return replace(of, variant=ask.removeprefix(f"{of.backend}:"))
    option, _, value = ask.removeprefix(f"{of.backend}.").partition("=")
    return replace(of, options={**of.options, option: value})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("label", LABELS)
def test_what_is_advised_can_be_done_and_is_not_advised_again(label, device):
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


@pytest.mark.parametrize(("label", "option", "facts", "expected"), [
    ("pytorch", "cuda_graph", {}, Hint("pytorch.cuda_graph=true")),
    ("torch_compile:default", "cuda_graph", {}, Hint("torch_compile:reduce-overhead")),
    ("torch_compile:max-autotune", "cuda_graph", {}, Hint(asked=True)),
    ("torch_compile:max-autotune-no-cudagraphs", "cuda_graph", {}, Hint("torch_compile:max-autotune")),
    ("torch_compile:max-autotune-no-cudagraphs", "max_autotune", {}, Hint(asked=True)),
    ("torch_compile:default", "freeze", {}, Hint("torch_compile.freezing=true")),
    ("pytorch", "freeze", {}, Hint("pytorch.fuse=true")),
    ("torch_tensorrt:loaded", "cuda_graph", {}, Hint("torch_tensorrt.cuda_graph=true")),
    ("onnxruntime:cuda", "cuda_graph", {"nodes_by_provider": {"CUDAExecutionProvider": 9, "CPU": 1}}, Hint()),
    ("torchscript:trace", "cuda_graph", {}, Hint()), ("somebody-elses", "cuda_graph", {}, Hint()),
    ("tensorrt:rtx", "tf32", {}, Hint(asked=True)),
    ("torch_tensorrt:dynamo", "tf32", {"flavour": "TensorRT for RTX"}, Hint(asked=True)),
    ("torch_tensorrt:loaded", "tf32", {}, Hint()), ("onnxruntime:tensorrt", "tf32", {}, Hint()),
    ("onnxruntime:tensorrt", "channels_last", {}, Hint()),
    ("onnxruntime:cuda", "channels_last", {}, Hint("onnxruntime.prefer_nhwc=true")),
    ("tensorrt:rtx", "optimization_level", {}, Hint()),
])  # fmt: skip
def test_what_is_there_and_does_something_is_advised(label, option, facts, expected):
    assert hint(case(label, device="cuda"), option, dict(WANTED)[option], facts) == expected


def test_options_that_were_given_and_those_of_another_version():
    for options, expected in (
        ({"cuda_graph": "true"}, Hint(asked=True)), ({"cuda_graph": False}, Hint("pytorch.cuda_graph=true")),
        ({"an option of another version": 1}, Hint()),
    ):  # fmt: skip
        assert hint(case("pytorch", device="cuda", options=options), "cuda_graph") == expected


def on_gpu(backend: str, precision: str = "fp16", **options: Any) -> Case:
    return case(backend, device="cuda", precision=precision, options=options)


def first(of: Case, channels: int = 3) -> Profile:
    """A first convolution that is far above its floor."""
    rates = {of.precision: 1e13, "tf32": 1e13}
    layers = [layer("conv1", 8.0), layer("conv2", 2.0)]
    profile = layered(*layers, of=of, timed="GPU", work=work(conv1=2e9, conv2=1e10), ceilings=ceilings(**rates))
    image = replace(profile.model.inputs[0], shape=(1, channels, 224, 224))
    return replace(profile, model=replace(profile.model, inputs=(image,)))


def reformatted(of: Case, name: str = "sm80_xmma_fprop_implicit_gemm") -> Profile:
    return launched(TO_NHWC, kernel(name, 780.0), of=of)


CONV = layer("conv", 8.0)
ORDER = "inferlens bench resnet18 -b pytorch --precision fp16 --batch 1 --option pytorch.channels_last=true"


@pytest.mark.parametrize(("code", "of", "said", "unsaid"), [
    ("reformats", reformatted(on_gpu("pytorch")), ORDER, "?"),
    ("reformats", reformatted(on_gpu("pytorch", channels_last=True)), "another backend", "channels_last"),
    ("reformats", reformatted(on_gpu("onnxruntime:cuda")), "onnxruntime.prefer_nhwc=true", "channels_last"),
    ("reformats", reformatted(on_gpu("pytorch"), "gemm"), "another backend", "channels_last"),
    ("tensor-cores-unused", launched(SLOW), "ry another backend", "channels-last"),
    ("tensor-cores-unused", launched(SLOW, of=on_gpu("tensorrt:trt", "int8")), "multiples of 16 or", "?"),
    ("far-above-floor", first(on_gpu("pytorch")), "Pad the 3 input channels to 8, fold 2x2 pixels into", "?"),
    ("far-above-floor", first(on_gpu("tensorrt:trt", "int8")), "Pad the 3 input channels to 16,", "?"),
    ("far-above-floor", first(on_gpu("pytorch", "fp32", tf32=True)), "Pad the 3 input channels to 4,", "?"),
    ("far-above-floor", first(on_gpu("pytorch"), 64), "true --option pytorch.cudnn_benchmark=true", "pad"),
    ("far-above-floor", first(on_gpu("tensorrt:trt"), 64), "--batch 1 --option tensorrt.optimization_level=5", "pad"),
    ("far-above-floor", first(on_gpu("tensorrt:rtx"), 64),
     "Another algorithm: inferlens bench resnet18 --precision", "optimization_level"),
    ("tf32-off", layered(CONV, of=on_gpu("pytorch", "fp32")), "A trade of accuracy for time, so check", "?"),
    ("tf32-off", layered(CONV, of=on_gpu("torch_tensorrt:loaded", "fp32")), "of an engine, when it is built", "?"),
    ("unfused-chains", layered(*PAIR), "--option pytorch.fuse=true", "?"),
    ("unfused-chains", layered(*PAIR, of=case("torchscript:trace")),
     "-b torchscript:trace --batch 1 --option torchscript.freeze=true", "?"),
])  # fmt: skip
def test_findings_hint_at_what_the_case_has_and_lacks(code, of, said, unsaid):
    advice = the(code, of).hint
    assert said in advice
    assert unsaid not in advice.lower()
    assert not of_rule("tf32-off", layered(CONV, of=on_gpu("tensorrt:rtx", "fp32"))), "there is no choice"
