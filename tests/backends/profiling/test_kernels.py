"""Kernels: what ran in which run of real traces, how long, how it fills the GPU, and which layer or module it is of."""

from collections import Counter, OrderedDict
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from msgspec.structs import replace

from inferlens.backends.base import GpuLaunch, KernelOrigin
from inferlens.backends.profiling import kernels as kernel_runs
from inferlens.backends.profiling import runs as traced_runs
from inferlens.backends.profiling.kernels import SCOPE, MatchedKernels, sources_by_match
from inferlens.backends.profiling.runs import TracedEvent, trace_single_run
from inferlens.backends.tensorrt.layers import is_synchronization, kernel_sources, tactic
from inferlens.backends.torch_compile import backend as torch_compile
from inferlens.record.profile import Layer
from inferlens.trace.read import read_trace
from tests.backends import small
from tests.backends.profiling import samples
from tests.backends.profiling.samples import EAGER, ENGINE, Fused, kernels, model, runs
from tests.backends.small import unsupported


@pytest.mark.parametrize("name", samples.NAMES)
def test_runs_are_cut_and_add_up(name):
    profile = kernels(name)
    trace = read_trace(samples.FOLDER / f"{name}.json.gz")
    assert len(profile.whole) == len(profile.busy) == len(profile.begun) == 3
    total = sum(sum(kernel.times) for kernel in profile.kernels)
    assert total == pytest.approx(trace.duration[trace.gpu.row].sum() / 1e9)
    for run, (whole, busy) in enumerate(zip(profile.whole, profile.busy, strict=True)):
        assert 0 < busy <= sum(kernel.times[run] for kernel in profile.kernels) + 1e-12
        assert busy < whole
        assert all(0 <= kernel.begins[run] <= whole - kernel.times[run] for kernel in profile.kernels)
    assert (list(profile.begun), profile.begun[0]) == (sorted(profile.begun), 0)


@pytest.mark.parametrize(("name", "count", "launches", "streams", "operators"), [
    (EAGER, 162, 162, 1, None),
    (samples.GRAPH, 58, 2, 1, {"": 57, "aten::_foreach_copy_": 1}),  # a CUDA graph is one, and a copy of its input
    (ENGINE, 25, 25, 3, {"tensorrt::execute_engine": 24, "aten::copy_": 1}),
])  # fmt: skip
def test_launches_are_calls_of_the_runtime(name, count, launches, streams, operators):
    profile = kernels(name)
    assert (len(profile.kernels), profile.launches) == (count, launches)
    assert len({kernel.stream for kernel in profile.kernels}) == streams
    assert all(kernel.calls == 1 for kernel in profile.kernels)
    assert operators in (None, Counter(kernel.operator for kernel in profile.kernels))


def test_every_kernel_of_eager_pytorch_has_its_module_and_occupancy():
    profile = kernels(EAGER)
    assert profile.absent == {}
    assert all((kernel.layer,) == kernel.modules for kernel in profile.kernels)
    by_module = {kernel.layer: kernel for kernel in profile.kernels}
    assert len([name for name in by_module if "conv" in name or name.endswith("downsample.0")]) == 20
    assert {"bn1", "relu", "maxpool", "avgpool", "fc", "layer1.0", "layer4.1.bn2"} <= by_module.keys()
    assert {kernel.layer for kernel in profile.kernels if kernel.operator == "aten::add_"} == {
        f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)
    }
    assert {kernel.operator for kernel in profile.kernels if kernel.layer == "conv1"} == {"aten::cudnn_convolution"}
    conv1 = by_module["conv1"]
    assert (conv1.grid, conv1.block, conv1.registers, conv1.shared_memory) == ((392, 2, 1), (8, 8, 1), 92, 2304)
    assert all(0 < kernel.achieved <= kernel.occupancy <= 1 for kernel in profile.kernels)


def test_a_backend_without_origins_of_kernels_is_named():
    profile = kernels(samples.GRAPH)
    assert "inductor-graph does not report" in profile.absent["origins"]
    assert not any(kernel.modules or kernel.layer for kernel in profile.kernels)


def test_runs_with_different_kernels_are_matched():
    first, second, third = runs(EAGER)
    cut = replace(second, events=second.events[:5] + second.events[6:])
    profile = kernel_runs.kernels_of_runs([first, cut, third], samples.H200, samples.SCOPED)
    assert "not all runs" in profile.absent["order"]
    lost = second.events[5].gpu_launch.name
    (short,) = [kernel for kernel in profile.kernels if kernel.name == lost and kernel.modules == ("maxpool",)]
    assert short.times[1] == 0 < short.times[0]
    assert (short.begins, sum(kernel.calls for kernel in profile.kernels)) == ((), 162)
    for run in (0, 2):
        same = sum(kernel.times[run] for kernel in kernels(EAGER).kernels)
        assert sum(kernel.times[run] for kernel in profile.kernels) == pytest.approx(same)


def test_a_profiler_without_kernels_is_refused(preparation, monkeypatch):
    """Here torch.profiler traces the CPU: there are runs, and no kernels in them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    unsupported("sees no GPU", kernel_runs.check_profiler)
    model, real = small.model(), traced_runs.profiler
    for module in (kernel_runs, traced_runs):
        monkeypatch.setattr(module, "profiler", lambda **_: real(on_gpu=False))
    monkeypatch.setattr(kernel_runs, "check_profiler", lambda: None)
    with small.backend("pytorch").prepare(model, small.case("pytorch"), preparation) as runner:
        feed = runner.place(small.arrays(model))
        unsupported("saw nothing run on the GPU in 12 runs", kernel_runs.trace_kernels, runner, feed, 12)


@pytest.mark.parametrize("name", samples.ENGINES)
def test_layers_and_kernels_of_real_engines_are_one_to_one(name):
    layers = [layer for layer in samples.engine(name) if not is_synchronization(layer)]
    for run in runs(name):
        launched = [event.gpu_launch for event in run.events]
        origins = kernel_sources(launched, samples.engine(name), {})
        assert origins.absent == {}
        pairs = zip(launched, origins.origins, strict=True)
        owned = [(item.name, origin.layer) for item, origin in pairs if origin.layer]
        assert [owner for _, owner in owned] == [layer.name for layer in layers]
        for (kernel, _), layer in zip(owned, layers, strict=True):
            assert layer.kind != "kgen" or tactic(layer) == kernel, "the compiler's own kernels are named by layers"
            matrix = {"correlation": ("conv", "Corr"), "gemm": ("matMul", "Fc")}.get(layer.kind)
            assert matrix is None or matrix[0] in kernel


def test_kernels_of_the_framework_are_not_the_engines():
    profile = kernels(ENGINE)
    assert [kernel.layer for kernel in profile.kernels if kernel.operator == "aten::copy_"] == [""]
    assert all(kernel.layer for kernel in profile.kernels if kernel.operator != "aten::copy_")
    (last,) = [kernel for kernel in profile.kernels if "layer4.1.conv2" in kernel.layer]
    assert "convFwd" in last.name


A, B = KernelOrigin("one", ("a",)), KernelOrigin("two", ("b",))
ODD_NAMES = ("a b", """"double" 'single'""", "lines\nand\ttabs", "<b>&lt;", "back\\slash/{é 層} 100 %41", "n" * 3000)


def test_modules_are_scopes_in_each_other():
    """The profiler changes some of these names."""
    module = torch.nn.Sequential(OrderedDict((name, torch.nn.Linear(4, 4)) for name in ODD_NAMES))
    runner = SimpleNamespace(infer=module, synchronize=lambda: None)
    with torch.inference_mode():
        scopes = kernel_runs.module_scopes(module)
        root = trace_single_run(runner, torch.zeros(1, 4), on_gpu=False, scopes=scopes).root
    (outer,) = [operator for operator in root.children if operator.name == SCOPE]
    scopes = [operator.name for operator in outer.children if operator.name.startswith(SCOPE)]
    origins = kernel_runs.sources_by_scope([GpuLaunch(name="k", scopes=(SCOPE, scope)) for scope in scopes])
    assert [origin.modules for origin in origins.origins] == [(name,) for name in ODD_NAMES]
    assert not torch.nn.modules.module._global_forward_hooks, "hooks are there while runs are traced, and no longer"


def matched(launches, origins):
    return MatchedKernels(list(zip(launches, origins, strict=True)))


def launched(*names):
    kinds = {"Memcpy": "copy", "Memset": "fill"}
    return [GpuLaunch(name=name, kind=kinds.get(name.partition(" ")[0], "kernel")) for name in names]


@pytest.mark.parametrize(("names", "expected"), [
    (("k", "Memset (Device)", "k"), (A, KernelOrigin(), B)),
    (("Memcpy DtoD", "inputs", "k", "k"), (KernelOrigin(), KernelOrigin(), A, B)), (("k",), None),
    (("k", "k", "k"), None), (("other", "another"), None), ((), None),
])  # fmt: skip
def test_the_same_kernels_in_the_same_order_match(names, expected):
    origins = sources_by_match(launched(*names), matched(launched("k", "k"), (A, B)))
    assert origins.origins == (expected or (KernelOrigin(),) * len(names))
    assert ("not the same in the same order" in origins.absent.get("modules", "")) == (expected is None)


def of_block(number, *, tile=64, norm="norm"):
    """The kernels of one of several blocks that are alike, with their origins."""
    names = (("gemm", (tile, 1, 1)), (norm, (8, 1, 1)), ("gemm", (tile, 1, 1)), ("add", (8, 1, 1)))
    origin = KernelOrigin(f"layer{number}", (f"layer{number}",))
    return [(GpuLaunch(name=name, grid=grid, block=(128, 1, 1)), origin) for name, grid in names]


BLOCKS = [kernel for number in range(9) for kernel in of_block(number)]
COPY = GpuLaunch(name="multi_tensor_apply_kernel", grid=(4, 1, 1), block=(512, 1, 1))


@pytest.mark.parametrize(("replay", "lost"), [
    ([COPY, *(kernel for kernel, _ in BLOCKS)], 0),
    ([kernel for number in range(9) for kernel, _ in of_block(number, tile=128)], 0),  # autotuned anew
    ([kernel for kernel, _ in BLOCKS[:6] + BLOCKS[7:]], 0),  # one is not launched
    ([kernel for kernel, _ in BLOCKS[:6] + BLOCKS[2:3] + BLOCKS[6:]], 1),
])  # fmt: skip
def test_kernels_of_a_replay_have_the_owners_of_a_run_without_the_graph(replay, lost):
    origins = sources_by_match(replay, MatchedKernels(BLOCKS))
    known = [origin.layer for origin in origins.origins if origin.layer]
    assert (known, len(known)) == (sorted(known), sum(kernel is not COPY for kernel in replay) - lost)
    assert set(known) == {f"layer{number}" for number in range(9)}
    assert ("unknown for 1 of 37" in origins.absent.get("modules", "")) == bool(lost)
    unknown = [kernel for kernel, origin in zip(replay, origins.origins, strict=True) if not origin.layer]
    assert COPY not in replay or unknown == [COPY]


def test_every_kernel_of_a_real_graph_has_the_module_of_its_eager_call():
    (eager,), replays = runs("convnext-eager"), runs("convnext-replay")
    launched = [event.gpu_launch for event in eager.events]
    owners = kernel_runs.sources_by_scope(launched)
    assert all(origin.modules for origin in owners.origins)
    assert not any(event.gpu_launch.scopes for event in replays[0].events), "a replay calls no modules"
    tracer = samples.Tracer(lambda replay: sources_by_match(replay, matched(launched, owners.origins)))
    assert all(tracer.kernel_sources([event.gpu_launch for event in run.events]) == owners for run in replays)
    layers = kernel_runs.layers_of_kernels(kernel_runs.kernels_of_runs(replays, samples.H200, tracer), ())
    assert layers.absent == {}
    assert {layer.modules for layer in layers.layers} == {origin.modules for origin in owners.origins}
    took = sum(layer.times[1] for layer in layers.layers)
    assert took == pytest.approx(1.18e-3, rel=0.01)  # 1.22 ms were measured for a replay without the profiler


def test_layers_take_the_time_of_their_kernels():
    kernels_found = kernels(EAGER)
    known = [Layer(name="conv1", kind="Conv2d", modules=("conv1",), details={"stride": 2}), Layer(name="unused")]
    copied = replace(kernels_found.kernels[0], name="copy", operator="", layer="", modules=())
    layers = kernel_runs.layers_of_kernels(replace(kernels_found, kernels=(*kernels_found.kernels, copied)), known)
    assert (layers.timed, layers.clock, layers.whole) == ("GPU", traced_runs.GPU_CLOCK, kernels_found.whole)
    by_name = {layer.name: layer for layer in layers.layers}
    assert (by_name["conv1"].kind, by_name["conv1"].details.keys()) == ("Conv2d", {"stride", "kernels"})
    assert (by_name["unused"].times, by_name["copy"].modules) == ((0.0,) * 3, ())
    for run in range(3):
        total = sum(kernel.times[run] for kernel in (*kernels_found.kernels, copied))
        assert sum(layer.times[run] for layer in layers.layers) == pytest.approx(total)
    own = [kernel for kernel in kernels_found.kernels if kernel.layer == "layer1.0.bn1"]
    assert by_name["layer1.0.bn1"].begins == pytest.approx(own[0].begins)
    begins = [layer.begins[0] for layer in layers.layers if layer.begins]
    assert begins == sorted(begins)


def event(name, begin):
    return TracedEvent(gpu_launch=launched(name)[0], begin=begin, time=1)


@pytest.fixture
def pretended(monkeypatch):
    """A fake GPU that runs two kernels for each innermost operator."""
    real_runs, real_profiler = traced_runs.read_runs, traced_runs.profiler

    def with_kernels(trace):
        traced = real_runs(trace)
        for operator in (traced_operator for run in traced for traced_operator in run.root.walk()):
            if not operator.children and ("::" in operator.name or "cpp_" in operator.name):
                operator.kernels = [event(f"{operator.name} {part}", int(operator.begin * 1e9)) for part in "ab"]
        return traced

    monkeypatch.setattr(traced_runs, "read_runs", with_kernels)
    monkeypatch.setattr(traced_runs, "profiler", lambda on_gpu, **more: real_profiler(on_gpu=False, **more))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.parametrize(("label", "options", "graphs"), [
    ("torch_compile:default", {}, False), ("torch_compile:default", {}, True),  # compiled again without CUDA graphs
    ("torchscript:trace", {"freeze": True}, False),
])  # fmt: skip
@pytest.mark.usefixtures("pretended")
def test_compiled_code(label, options, graphs, tmp_path):
    network = model(Fused) if options else model(samples.Breaking, 1, 4, 32)
    case = small.case(label, threads=1, options=options)
    runner = small.backend(label).prepare(network, case, samples.prepared(tmp_path, level="kernel"))
    runner._uses_cuda_graphs = graphs
    with runner:
        feed = runner.place(small.arrays(network))
        for _ in range(3):
            runner.infer(feed)
        assert runner.kernel_sources(launched("other")).absent["modules"]
        names = [kernel.name for kernel, _ in runner._matched.kernels]
        origins = runner.kernel_sources(launched("Memcpy DtoD", *names))
    assert not origins.absent
    assert origins.origins[0] == KernelOrigin(), "what copies the inputs"
    assert origins.origins[1] == origins.origins[2], "both of an operator's kernels"
    assert all(origin.layer and origin.modules for origin in origins.origins[1:])
    paths = {path for origin in origins.origins for path in origin.modules}
    assert paths >= ({f"{samples.ODD}.0", f"{samples.ODD}.2", "last"} if options else {"first", "second"})


@pytest.mark.usefixtures("pretended")
def test_a_second_compilation_that_fails_leaves_kernels_without_modules(tmp_path, monkeypatch):
    network, case = small.model(samples.product), small.case("torch_compile:default")
    runner = small.backend("torch_compile:default").prepare(network, case, samples.prepared(tmp_path, level="kernel"))
    runner._uses_cuda_graphs = True
    with runner:
        assert runner._compiler is None, "the runner to be traced is compiled as usual"
        monkeypatch.setattr(torch_compile, "TracingCompiler", Mock(side_effect=RuntimeError("out of memory")))
        for _ in range(2):
            sources = runner.kernel_sources(launched("k"))
            assert sources.origins == (KernelOrigin(),)
            assert "out of memory" in sources.absent["modules"]
