"""Kernels on an NVIDIA GPU: each backend's are seen, traced to modules, and fill it; and layers of compiled code."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import inferlens
from inferlens.backends.base import Absence, KernelTracer, Preparation
from inferlens.backends.profiling import kernels as kernel_runs
from inferlens.backends.tensorrt.library import find_flavour
from inferlens.models.model import Model
from inferlens.record.profile import Kernels
from inferlens.spec.case import TensorSpec
from inferlens.trace.analysis import Analysis
from inferlens.trace.model import Category
from inferlens.trace.read import read_trace
from inferlens.trace.tables import kernels
from tests.backends import small
from tests.backends.profiling import samples as layered
from tests.commands import inferlens as command
from tests.commands import traced

RUNS = 12  # more than are traced at once
TRACE, SCRIPT = "torchscript:trace", "torchscript:script"
INDUCTOR = ("torch_compile:default", "torch_compile:reduce-overhead", "torch_compile:max-autotune")
SKEW = 100e-6  # seconds: the GPU's clock is fitted to the host's


def vision(name="resnet18", batch=1):
    """Return a model of torchvision or timm with weights from a seed."""
    torch.manual_seed(0)
    spec = TensorSpec("image", (batch, 3, 224, 224))
    if name == "convnext_tiny":
        module = pytest.importorskip("timm").create_model(name, pretrained=False)
    else:
        module = getattr(pytest.importorskip("torchvision").models, name)(weights=None)
    return Model(name, name, "module", (spec,), module=module.eval())


def entered(label, model, folder, precision="fp16", **options):
    """A runner prepared for its kernels; skips what this machine lacks."""
    batch = model.inputs[0].shape[0] or 1
    case = small.case(label, device="cuda", precision=precision, batch=batch, options=dict(options))
    backend = small.skip_unless_runs(case, model.format)
    (folder / "case").mkdir(exist_ok=True)
    return backend.prepare(model, case, Preparation(folder / "case", folder / "cache", level="kernel"))


def profiled(label, model, folder, precision="fp16", **options):
    """The kernels of a model, and what holds for those of every backend."""
    with entered(label, model, folder, precision, **options) as runner:
        feed = runner.place(small.arrays(model))
        for _ in range(5):
            runner.infer(feed)
        runner.synchronize()
        kernels = kernel_runs.trace_kernels(runner, feed, RUNS, label)
    check(kernels)
    return kernels


def check(kernels):
    assert kernels.kernels
    assert len(kernels.whole) == len(kernels.busy) == len(kernels.begun) == RUNS
    assert list(kernels.begun) == sorted(kernels.begun)
    assert kernels.gpu.name == torch.cuda.get_device_name()
    assert 0 < kernels.launches <= sum(kernel.calls for kernel in kernels.kernels)
    for run, (whole, busy) in enumerate(zip(kernels.whole, kernels.busy, strict=True)):
        assert 0 < busy <= sum(kernel.times[run] for kernel in kernels.kernels) + 1e-9
        assert busy <= whole + SKEW
    for kernel in kernels.kernels:
        assert len(kernel.times) == RUNS
        assert all(time >= 0 for time in kernel.times)
        for begin, time, whole in zip(kernel.begins, kernel.times, kernels.whole, strict=False):
            assert 0 <= begin <= whole
            assert begin + time / kernel.calls <= whole + SKEW
        if kernel.kind != "kernel":
            assert kernel.occupancy is None
            continue
        assert kernel.grid
        assert kernel.block
        assert kernel.occupancy is not None, "the formula knows this GPU"
        assert 0 < kernel.achieved <= kernel.occupancy <= 1


def layers_of(label, network, folder, precision="fp32", **options):
    case = small.case(label, device="cuda", precision=precision, options=options)
    with small.backend(label).prepare(network, case, layered.prepared(folder)) as runner:
        feed = runner.place(small.arrays(network))
        for _ in range(5):
            runner.infer(feed)
        layers = runner.profile_layers(feed, RUNS)
    assert layers.timed == "GPU"
    assert layers.clock.startswith("torch.profiler (CUPTI)")
    layered.check(layers, RUNS)
    return layers


def seconds(kernels, *, known=False):
    """What kernels took in all runs; ``known``: those of known modules."""
    return sum(sum(kernel.times) for kernel in kernels.kernels if kernel.modules or not known)


def attributed(model, kernels, least):
    """So much of the kernels' time is of known modules, which there are; what is not is shown where that fails."""
    share = seconds(kernels, known=True) / seconds(kernels)
    lost = [kernel for kernel in kernels.kernels if not kernel.modules]
    unknown = [(kernel.name, kernel.calls, kernel.layer, kernel.operator) for kernel in lost]
    assert share >= least, (share, kernels.absent, unknown)
    seen = {path for kernel in kernels.kernels for path in kernel.modules}
    assert seen <= {path for path, _ in model.module.named_modules()}
    assert len(seen) > 20, seen


def test_kernels_of_eager_pytorch_have_their_modules(tmp_path):
    model = vision()
    paths = {path for path, _ in model.module.named_modules()}
    kernels = profiled("pytorch", model, tmp_path)
    assert seconds(kernels, known=True) >= 0.95 * seconds(kernels)
    seen = {module for kernel in kernels.kernels for module in kernel.modules}
    assert seen <= paths
    assert {path for path in paths if "conv" in path or path.endswith("downsample.0")} <= seen
    assert {"bn1", "relu", "maxpool", "avgpool", "fc", "layer1.0", "layer4.1"} <= seen
    products = {kernel.operator for kernel in kernels.kernels if kernel.modules == ("fc",)}
    assert products & {"aten::addmm", "aten::linear"}
    assert not nn.modules.module._global_forward_hooks, "hooks are there while runs are traced, and no longer"


def test_tensor_cores_are_used_in_fp16_and_not_in_fp32(tmp_path):
    shares = []
    for precision in ("fp16", "fp32"):
        kernels = profiled("pytorch", vision(batch=8), tmp_path, precision)
        shares.append(sum(sum(kernel.times) for kernel in kernels.kernels if kernel.tensor_cores) / seconds(kernels))
    assert shares[0] > 0.1
    assert shares[1] < 0.01


def test_a_cuda_graph_is_one_launch_of_the_same_kernels(tmp_path):
    eager = profiled("pytorch", vision(), tmp_path)
    graph = profiled("pytorch", vision(), tmp_path, cuda_graph=True)
    assert graph.launches == 1
    assert seconds(graph, known=True) >= 0.95 * seconds(graph), graph.absent
    assert {kernel.modules for kernel in graph.kernels} >= {("conv1",), ("layer4.1.conv2",), ("fc",)}
    calls = [sum(kernel.calls for kernel in kernels.kernels if kernel.kind == "kernel") for kernels in (eager, graph)]
    assert calls[1] == pytest.approx(calls[0], rel=0.1)
    assert np.median(graph.busy) == pytest.approx(np.median(eager.busy), rel=0.4)


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16"])
@pytest.mark.parametrize("label", ["torch_compile:default", "torch_compile:reduce-overhead"])
def test_kernels_of_inductor(label, name, tmp_path):
    """CaseTrace to modules, also where a CUDA graph replays them."""
    model = vision(name)
    kernels = profiled(label, model, tmp_path)
    calls = sum(kernel.calls for kernel in kernels.kernels)
    assert calls > 20
    assert any(kernel.name.startswith("triton_") for kernel in kernels.kernels)
    if label.endswith("reduce-overhead"):
        assert 1 <= kernels.launches < calls / 4, "a CUDA graph"
        check_pairs(kernels)
    attributed(model, kernels, 0.9)
    # A generated kernel is of the layer of its name, a library's of an operator of the code.
    for kernel in kernels.kernels:
        if kernel.layer and kernel.name.startswith("triton_"):
            assert kernel.layer.partition(" #")[0] == kernel.name
        elif kernel.layer:
            assert not kernel.layer.startswith("triton_"), kernel.name
    assert any(kernel.layer.startswith("convolution") for kernel in kernels.kernels), "libraries compute them here"


@pytest.mark.parametrize(
    ("label", "option"), [("pytorch", "fuse"), ("torch_compile:default", "freezing"), (TRACE, "freeze")]
)
def test_folded_batch_norms_launch_nothing(label, option, tmp_path):
    """Nor is anything left of them in the kernels of what is around them: no kernel came from one."""
    model = vision()
    kernels = profiled(label, model, tmp_path, **{option: True})
    attributed(model, kernels, 0.9)
    assert not any("batch_norm" in kernel.name or "bn_fw" in kernel.name for kernel in kernels.kernels)
    assert not {path for kernel in kernels.kernels for path in kernel.modules if ".bn" in path}


def check_pairs(found):
    """Without modules for all where a CUDA graph launches other kernels than the call that tells; there it is said."""
    if not any(kernel.modules for kernel in (found.kernels if isinstance(found, Kernels) else found.layers)):
        assert "not the same in the same order" in found.absent["modules"], found.absent
        pytest.xfail(found.absent["modules"])


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16"])
@pytest.mark.parametrize(("label", "options"), [
    ("torchscript:trace", {}), ("torchscript:trace", {"freeze": True}), ("torchscript:script", {}),
])  # fmt: skip
def test_kernels_of_torchscript(label, options, name, tmp_path):
    model = vision(name)
    kernels = profiled(label, model, tmp_path, **options)
    attributed(model, kernels, 0.9 if label.endswith("script") else 0.95)


@pytest.mark.parametrize("label", ["torch_compile:default", "torchscript:trace"])
def test_kernels_are_of_the_modules_of_their_layers(label, tmp_path):
    """The two levels, profiled apart, have the same layers of the same modules, and about the same time in them."""
    kernels = profiled(label, vision(batch=8), tmp_path)
    layers = layers_of(label, vision(batch=8), tmp_path, "fp16")
    of_layers = {layer.name: layer for layer in layers.layers}
    of_kernels = {}
    for kernel in kernels.kernels:
        of_kernels.setdefault(kernel.layer, []).append(kernel)
    assert set(of_kernels) - {""} == set(of_layers)
    for name, layer in of_layers.items():
        assert {item.modules for item in of_kernels[name]} == {layer.modules}, name
        assert {item.name for item in of_kernels[name]} == set(layer.details["kernels"]), name
    took = sum(float(np.median(layer.times)) for layer in layers.layers)
    placed = sum(float(np.median(kernel.times)) for kernel in kernels.kernels if kernel.layer)
    assert placed == pytest.approx(took, rel=0.25)


@pytest.mark.parametrize(
    "label", ["tensorrt:rtx", "tensorrt:trt", "torch_tensorrt:dynamo", "torch_tensorrt:ts-trace", "onnxruntime:cuda"]
)
def test_kernels_of_other_libraries_are_seen(label, tmp_path):
    tells = isinstance(entered(label, vision(), tmp_path), KernelTracer)
    kernels = profiled(label, vision(), tmp_path)
    assert sum(kernel.calls for kernel in kernels.kernels) > 15
    assert np.median(kernels.busy) > 50e-6
    if not tells:
        assert label in kernels.absent["origins"]
        return
    placed = sum(sum(kernel.times) for kernel in kernels.kernels if kernel.layer)
    assert placed >= 0.9 * seconds(kernels), kernels.absent
    if seconds(kernels, known=True) < 0.95 * seconds(kernels):
        assert label == "torch_tensorrt:ts-trace", kernels.absent
        assert "torch_tensorrt:dynamo" in kernels.absent["details"]


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16"])
@pytest.mark.parametrize("options", [{}, {"cuda_graph": True}, {"prefer_nhwc": True, "cuda_graph": True}])
def test_kernels_and_layers_of_onnxruntime(options, name, tmp_path):
    """Each is of the node that launched it, also where a CUDA graph replays it; the layers are the nodes."""
    model = vision(name)
    kernels = profiled("onnxruntime:cuda", model, tmp_path, **options)
    assert (kernels.launches == 1) == ("cuda_graph" in options)
    attributed(model, kernels, 0.95)
    layers = layers_of("onnxruntime:cuda", vision(name), tmp_path, "fp16", **options)
    assert layered.known_share(layers) >= 0.95, layers.absent
    placed = {kernel.layer for kernel in kernels.kernels if kernel.layer}
    names = {layer.name for layer in layers.layers if layer.modules or layer.details.get("inserted")}
    assert placed <= names
    dropped = [layer for layer in layers.layers if layer.name in names - placed]  # copies that change nothing
    assert sum(float(np.median(layer.times)) for layer in dropped) <= 0.05 * seconds(kernels) / RUNS
    took = sum(float(np.median(each.times)) for each in layers.layers)
    assert took == pytest.approx(seconds(kernels) / RUNS, rel=0.25)


@pytest.mark.alone
def test_the_table_of_modules_is_of_the_kernels_of_every_way(tmp_path):
    """Without a level: nearly all of the time lies in modules, and nothing is scaled, whatever profiling cost."""
    profiles = inferlens.profile(
        "resnet18", backend="pytorch,torch_compile:reduce-overhead", device="cuda", precision="fp16", batch=8,
        option=["pytorch.cuda_graph=false,true"], runs=RUNS, iterations=50, output=str(tmp_path / "results"),
    )  # fmt: skip
    assert [(profile.level, profile.status, profile.reason) for profile in profiles] == [("layer", "ok", "")] * 3
    shown = command("modules", "results", "--format", "json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    (model,) = json.loads(shown.stdout)["models"]
    for column in model["columns"]:
        print(column["in_modules"], column["scale"], column["busy"])
        assert column["share_of"] == "kernels"
        assert column["in_modules"] >= 0.93  # the copy of the inputs into a replayed graph is in no module
        assert column["scale"] <= 1.2


@pytest.mark.parametrize("label", ["pytorch", *INDUCTOR, TRACE, SCRIPT])
def test_costs_are_where_the_work_is(label, tmp_path):
    layers = layers_of(label, layered.model(layered.costly, 8, 64, 112, 112), tmp_path)
    first, second = layered.seconds(layered.of(layers, "first")), layered.seconds(layered.of(layers, "second"))
    assert second > 2 * first, layers
    assert layered.total(layers, 0) > 0.3 * min(layers.whole), layers
    assert label == "pytorch" or all(layer.details["kernels"] for layer in layers.layers), layers


@pytest.mark.parametrize("label", INDUCTOR)
def test_fused_kernels_name_all_their_modules(label, tmp_path):
    """Batch norm and ReLU are of one kernel; with max-autotune a convolution before or behind them may be of it too."""
    layers = layers_of(label, layered.model(layered.Fused, 2, 3, 64, 64), tmp_path)
    check_pairs(layers)
    copies = [layer for layer in layers.layers if "multi_tensor_apply" in "".join(layer.details["kernels"])]
    rest = [layer for layer in layers.layers if layer not in copies]  # without what copies the inputs of a graph
    assert layered.seconds([layer for layer in rest if layer.modules]) > 0.9 * layered.seconds(rest), layers
    fused = [
        layer for layer in layered.of(layers, f"{layered.ODD}.1", f"{layered.ODD}.2") if layer.kind.startswith("Triton")
    ]
    assert fused, layers
    assert any("triton" in kernel for kernel in fused[0].details["kernels"]), layers
    channels = 4 if fused[0].kind == "Triton template" and "last" in fused[0].modules else 32  # there it is a prologue
    assert (2, channels, 64, 64) in {tensor.shape for tensor in fused[0].outputs}, layers
    assert layered.of(layers, "last"), layers


@pytest.mark.alone
@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny"])
@pytest.mark.parametrize(("label", "options"), [
    ("pytorch", {}), ("pytorch", {"cuda_graph": True}), ("torch_compile:reduce-overhead", {}), ("tensorrt:rtx", {}),
    ("tensorrt:rtx", {"cuda_graph": True}), ("tensorrt:trt", {}), ("tensorrt:trt", {"cuda_graph": True}),
], ids=str)  # fmt: skip
def test_layers_of_a_replay_have_modules_and_its_time(label, options, name, tmp_path):
    """What the layers add up to is what the GPU takes for calls that are not profiled, back to back."""
    network = vision(name, 8)
    with entered(label, network, tmp_path, **options) as runner:
        feed = runner.place(small.arrays(network))
        for _ in range(5):
            runner.infer(feed)
        layers = runner.profile_layers(feed, RUNS)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(50):
            runner.infer(feed)
        end.record()
        runner.synchronize()
        torch.cuda.synchronize()
        unprofiled = begin.elapsed_time(end) / 50 / 1e3
    sums = [sum(layer.times[run] for layer in layers.layers) for run in range(RUNS)]
    unknown = [(layer.name, sum(layer.times)) for layer in layers.layers if not layer.modules and any(layer.times)]
    times = [f"{np.median(item) * 1e3:.4f} ms" for item in (sums, unprofiled, layers.whole)]
    print(f"{name} {label} {options}: layers, unprofiled and profiled call {times}; {unknown} {layers.absent}")
    assert layered.known_share(layers) >= 0.95, (unknown, layers.absent)
    assert np.median(sums) <= 1.2 * unprofiled
    assert (label == "pytorch" and not options) or np.median(sums) >= 0.6 * unprofiled


# Traces of steps

VARIANT = next((variant for variant in ("trt", "rtx") if not isinstance(find_flavour(variant), Absence)), "")
needs_tensorrt = pytest.mark.skipif(not VARIANT, reason="needs TensorRT or TensorRT for RTX")


def taken(folder, **words):
    pytest.importorskip("torchvision")
    return traced(folder / "out", model="resnet18", device="cuda", **words)


@pytest.mark.parametrize("backend", [
    "pytorch", "torch_compile:default", pytest.param("torch_tensorrt:dynamo", marks=needs_tensorrt),
    pytest.param(f"tensorrt:{VARIANT}", marks=needs_tensorrt),
])  # fmt: skip
def test_kernels_are_in_every_step(backend, tmp_path):
    (traced,) = taken(tmp_path, backend=backend, precision="fp16")
    assert traced.status == "ok", traced.reason
    (shown,) = traced.contents
    assert len(shown.steps) == 3
    assert traced.cost
    assert (traced.unseen != "") == (shown.operators == 0)
    steps = Analysis(read_trace(traced.files[0])).counted
    assert len(steps) == 3
    assert steps.launched.min() > 0
    assert steps.launched.max() == steps.launched.min()


def test_options_keep_what_they_say(tmp_path):
    (traced,) = taken(tmp_path, backend="pytorch", stacks=True, memory=True, shapes=True, active=2)
    trace = inferlens.load_trace(traced.files[0])
    overview = trace.overview()
    assert overview.gpus[0].utilization
    assert any("convolution" in str(name) for name in kernels(trace.analysis, by_operator=True).columns["operator"])
    assert len(trace.analysis.trace.allocations)
    assert np.any(trace.analysis.trace.category == Category.PYTHON)
    assert trace.analysis.trace.about.devices[0].name == torch.cuda.get_device_name()


@needs_tensorrt
def test_fp32_pytorch_and_both_precisions_of_torch_tensorrt_at_several_batches(tmp_path):
    words = {"batch": "1,8", "tensorboard": tmp_path / "runs"}
    made = taken(tmp_path, backend="pytorch", **words)
    made += taken(tmp_path, backend="torch_tensorrt:dynamo", precision="fp32,fp16", **words)
    assert [item.status for item in made] == ["ok"] * 6, [item.reason for item in made]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"{name}_bs{batch}" for name in ("pytorch", "ttrt_fp32", "ttrt_fp16") for batch in (1, 8)
    }
    plain, half = (inferlens.load_trace(made[place].files[0]).overview() for place in (1, -1))
    assert half.parts["kernel"] < plain.parts["kernel"]


@needs_tensorrt
@pytest.mark.parametrize(("backend", "least", "options"), [
    (f"tensorrt:{VARIANT}", 0.95, ()),
    ("torch_tensorrt:dynamo", 0.95, ()),
    ("torch_tensorrt:dynamo", 0.95, ("torch_tensorrt.use_python_runtime=true",)),
    ("torch_tensorrt:dynamo", 0.9, ("torch_tensorrt.torch_executed_ops=aten.max_pool2d",)),
    ("torch_tensorrt:compile", 0.7, ()),  # weights are inputs of these engines
    ("torch_tensorrt:ts-trace", 0, ()),  # TensorRT for RTX renames layers, and these engines tell names alone
], ids=str)  # fmt: skip
def test_layers_are_timed_in_every_run(backend, least, options, tmp_path):
    pytest.importorskip("torchvision")
    (profile,) = inferlens.profile(
        "resnet18", backend=backend, precision="fp16", device="cuda", runs=20, iterations=50, output=str(tmp_path),
        option=list(options),
    )  # fmt: skip
    assert profile.status == "ok", profile.reason
    layers = [layer for layer in profile.layers.layers if layer.times]
    assert all(len(layer.times) == 20 for layer in layers)
    assert len(layers) > 15
    sums = [sum(layer.times[run] for layer in layers) for run in range(20)]
    assert all(0 < total <= 1.05 * whole for total, whole in zip(sums, profile.layers.whole, strict=True))
    assert len(set(sums)) > 1  # samples, no mean of them
    share = sum(sum(layer.times) for layer in layers if layer.modules) / sum(sums)
    print(backend, options, share, profile.layers.absent, profile.layers.clock)
    assert share >= least, profile.layers.absent
    assert least or share > 0.95 or "torch_tensorrt:dynamo" in profile.layers.absent["modules"]
