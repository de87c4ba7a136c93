"""The contract of the backends on an NVIDIA GPU: right outputs, honest clocks, and fp32 that is fp32."""

import copy
import dataclasses
import gc
import itertools
from contextlib import ExitStack

import msgspec
import numpy as np
import pytest
import torch

from inferlens.backends import BACKENDS
from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from tests.backends import small

# Backend and options. All of them are tried in every precision.
RUNS = [
    ("pytorch", {}), ("pytorch", {"cuda_graph": True}), ("pytorch", {"channels_last": True, "cudnn_benchmark": True}),
    ("pytorch", {"fuse": True, "channels_last": True, "cuda_graph": True, "cudnn_benchmark": True}),
    ("torchscript:trace", {}), ("torchscript:trace", {"freeze": True}),
    ("torchscript:script", {"optimize_for_inference": True}), ("torch_compile:default", {}),
    ("torch_compile:reduce-overhead", {}), ("torch_compile:max-autotune", {"channels_last": True}),
    ("torch_compile:max-autotune-no-cudagraphs", {"freezing": True}),
    ("torch_compile:reduce-overhead", {"freezing": True, "cudnn_benchmark": True}),
    ("torch_compile:default", {"freezing": True, "conv_1x1_as_mm": True}),
    ("torch_compile:default", {"coordinate_descent_tuning": True}), ("onnxruntime:cuda", {}),
    ("onnxruntime:cuda", {"cuda_graph": True}), ("onnxruntime:cuda", {"prefer_nhwc": True}),
    ("onnxruntime:cuda", {"prefer_nhwc": True, "fuse_conv_bias": True, "cuda_graph": True}),
    ("onnxruntime:tensorrt", {}), ("tensorrt:trt", {}), ("tensorrt:rtx", {}), ("tensorrt:rtx", {"cuda_graph": True}),
    ("torch_tensorrt:dynamo", {"min_block_size": 1}), ("torch_tensorrt:compile", {"min_block_size": 1}),
    ("torch_tensorrt:ts-trace", {"min_block_size": 1}), ("torch_tensorrt:ts-script", {"min_block_size": 1}),
]  # fmt: skip
RECOMMENDED = [  # a small module has no engine of five operators
    (f"{backend}:{one.variant}".rstrip(":"), one.options | ({"min_block_size": 1} if one.variant == "dynamo" else {}))
    for backend in BACKENDS.names()
    for one in BACKENDS.get(backend).recommended
    if one.device == "cuda" and one.variant != "loaded"
]
RUNS += [run for run in RECOMMENDED if run not in RUNS]
LABELS = tuple(dict.fromkeys(label for label, _ in RUNS))


def name(value):
    return ",".join(value) if isinstance(value, dict) else str(value)


def prepared(label, options, model, preparation, precision="fp32"):
    """A runner on the GPU; skips what this machine lacks."""
    batch = model.inputs[0].shape[0]
    case = small.case(label, device="cuda", precision=precision, batch=batch, options=options)
    return small.skip_unless_runs(case, model.format).prepare(model, case, preparation)


@pytest.mark.parametrize(("label", "options"), RUNS, ids=name)
def test_outputs_are_right_and_stay_so(label, options, preparation):
    model = small.model(batch=3)
    small.stays_right(prepared(label, options, model, preparation), model, small.allowed(label))
    assert "build" in {phase.name for phase in preparation.phases}
    assert not preparation.warnings


@pytest.mark.parametrize(("label", "options"), RUNS, ids=name)
def test_runners_of_several_sizes_take_turns(label, options, tmp_path):
    """As an instance of a load test uses them: the last one entered is not the one that is called."""
    models = {batch: small.model(batch=batch) for batch in (1, 2, 4)}
    reference = small.model()
    with ExitStack() as stack:
        runners = {
            batch: stack.enter_context(prepared(label, options, model, Preparation(tmp_path / str(batch), tmp_path)))
            for batch, model in models.items()
        }
        for seed, batch in enumerate([1, 2, 4] * 20):
            inputs = small.arrays(models[batch], seed)
            got = small.outputs_of(runners[batch], inputs)
            assert small.error(got, small.eager(reference, inputs)) < small.allowed(label)


# Torch-TensorRT's TorchScript front end truncates integers.
@pytest.mark.parametrize("label", [label for label in LABELS if ":ts-" not in label])
def test_two_inputs_and_nested_outputs(label, preparation):
    model = small.model(small.TwoInputs, batch=3)
    small.flattens(prepared(label, {}, model, preparation), model, small.allowed(label))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("label", "options"), RUNS, ids=name)
def test_lower_precisions_agree_or_are_refused(label, options, precision, preparation):
    model = small.model(batch=8)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    try:
        with prepared(label, options, model, preparation, precision) as runner:
            got = small.outputs_of(runner, inputs)
    except Unsupported as refusal:
        assert ": " in refusal.what, "refused without a reason"  # noqa: PT017
        return
    assert 0 < small.error(got, expected) < TOLERANCES[precision]


@pytest.mark.parametrize("label", ["pytorch", "torch_compile:default"])
def test_autocast(label, preparation):
    model = small.model(batch=8)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    with prepared(label, {"autocast": True}, model, preparation, "fp16") as runner:
        assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float32}
        got = small.outputs_of(runner, inputs)
    assert 0 < small.error(got, expected) < TOLERANCES["fp16"]


@pytest.mark.alone
@pytest.mark.parametrize(("label", "options"), RUNS, ids=name)
def test_times_are_consistent(label, options, preparation):
    """On a model with enough work to see: enqueueing is part of the latency, and so is the GPU time but for events."""
    model = big(batch=16)
    inputs = small.arrays(model)
    with prepared(label, options, model, preparation) as runner:
        assert runner.clock.asynchronous
        feed = runner.place(inputs)
        for _ in range(5):
            runner.infer(feed)
        runner.synchronize()
        nothing = runner.clock.time(lambda _: None, itertools.repeat(feed), 20)
        times = runner.clock.time(runner.infer, itertools.repeat(feed), 20)
        windows = [runner.clock.window(runner.infer, itertools.repeat(feed), 20) / 20 for _ in range(5)]
    latency, enqueue, gpu = (float(np.median(part)) for part in (times.latency, times.enqueue, times.gpu))
    assert min(times.gpu) > 0
    assert all(enqueued <= whole for enqueued, whole in zip(times.enqueue, times.latency, strict=True))
    # The first event is recorded before the host clock starts, so GPU time may exceed latency by that much.
    assert gpu <= latency + 50e-6
    # There is work between the events: around nothing they are some microseconds apart. How much of a call it fills
    # tells nothing where others use the GPU or the host meanwhile: calls then wait, and kernels take no longer.
    assert gpu > 10 * min(nothing.gpu)
    assert enqueue < latency
    assert min(windows) < 1.5 * latency  # the best of a few: others may come between the calls of one


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("label", ["pytorch", "torchscript:trace", "torch_compile:default", "onnxruntime:cuda"])
def test_fp32_is_fp32_unless_tf32_is_asked_for(label, tf32, preparation):
    """A convolution and a matrix product long enough for TF32 to show, against fp64."""
    model = sums()
    inputs = small.arrays(model)
    with torch.inference_mode():
        doubles = [torch.from_numpy(inputs[spec.name]).double() for spec in model.inputs]
        expected = [tensor.numpy() for tensor in copy.deepcopy(model.module).double()(*doubles)]
    with prepared(label, {"tf32": tf32}, model, preparation) as runner:
        got = small.outputs_of(runner, inputs)
    error = small.error(got, expected)
    assert error < (TOLERANCES["tf32"] if tf32 else 2e-5)  # cuDNN may take Winograd's way in fp32
    if tf32 and torch.cuda.get_device_capability() >= (8, 0):
        assert error > 5e-5, "TF32 was asked for and not used"


@pytest.mark.parametrize(("label", "options"), RUNS, ids=name)
def test_device_memory_is_given_back(label, options, preparation):
    model = small.model(batch=3)
    runner = prepared(label, options, model, preparation)
    inputs = small.arrays(model)
    left = []
    for _ in range(3):
        with runner:
            feed = runner.place(inputs)
            runner.collect(runner.infer(feed))
            told = runner.device_memory()
            assert told is None or (told[0] > 0 and told[1])
        del feed
        torch.cuda.synchronize()
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # cuBLAS keeps one for each stream it ever ran on
        left.append(torch.cuda.memory_allocated())
    assert left[2] - left[0] < 2**20  # frozen TorchScript was seen to keep a little each time; why was not found


def test_options_reach_the_cuda_provider(preparation):
    options = {"prefer_nhwc": True, "fuse_conv_bias": True, "cudnn_conv_algo_search": "HEURISTIC", "tf32": True}
    runner = prepared("onnxruntime:cuda", {**options, "allow_spinning": False}, small.model(), preparation)
    with runner:
        told = runner._session.get_provider_options()["CUDAExecutionProvider"]
    assert [told[name] for name in ("prefer_nhwc", "fuse_conv_bias", "use_tf32")] == ["1"] * 3
    assert told["cudnn_conv_algo_search"] == "HEURISTIC"
    assert [warning.message.split()[0] for warning in preparation.warnings] == ["allow_spinning"]


def big(batch):
    """The small network on larger images."""
    spec = msgspec.structs.replace(small.CONVOLUTION[0], shape=(batch, 3, 256, 256))
    return dataclasses.replace(small.model(), inputs=(spec,))


class Sums(torch.nn.Module):
    """Long sums of products."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(64, 64, 3)
        self.linear = torch.nn.Linear(1024, 256)

    def forward(self, image, rows):
        return self.convolution(image), self.linear(rows)


def sums():
    torch.manual_seed(0)
    specs = (TensorSpec("image", (4, 64, 16, 16)), TensorSpec("rows", (64, 1024)))
    return Model("sums", "sums", "module", specs, module=Sums().eval())


def test_what_cannot_be_captured_is_a_row_with_a_reason(preparation):
    """Last in this file: a failed capture can leave the process's CUDA context in doubt."""

    class Reading(torch.nn.Module):
        def forward(self, image):
            return image * image.sum().item()

    with (
        pytest.raises(Unsupported, match=r"cannot be captured in a CUDA graph: .+"),
        prepared("pytorch", {"cuda_graph": True}, small.model(Reading), preparation),
    ):
        pass
