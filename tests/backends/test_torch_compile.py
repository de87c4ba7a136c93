"""What ``torch.compile`` has beyond the contract; and its layers, each traced to the modules it came from."""

import dataclasses
import os
import shutil
from contextlib import ExitStack

import pytest
import torch
import torch._inductor.config
from msgspec.structs import replace
from torch import nn
from torch._inductor.utils import fresh_cache

from inferlens.backends.torch_compile import backend as torch_compile
from tests.backends import small
from tests.backends.profiling import samples
from tests.backends.profiling.samples import ODD, Fused, model, of, prepared, product, profiled
from tests.backends.small import unsupported

LABEL = "torch_compile:default"


def attributed(network, layers):
    """Check that all layers belong to modules of the network."""
    assert {path for layer in layers.layers for path in layer.modules} <= {p for p, _ in network.module.named_modules()}
    assert samples.known_share(layers) >= 0.9
    assert not layers.absent
    assert len({layer.name for layer in layers.layers}) == len(layers.layers)
    begins = [layer.begins[0] for layer in layers.layers]
    assert begins == sorted(begins)


def test_fused_kernels_name_all_their_modules(tmp_path):
    network = model(Fused)
    layers = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, layers)
    (fused,) = of(layers, f"{ODD}.1")
    assert (fused.modules, fused.kind) == ((f"{ODD}.1", f"{ODD}.2"), "C++")
    assert fused.operators == ("aten::_native_batch_norm_legit_no_training", "aten::relu")
    assert [tensor.shape for tensor in fused.outputs] == [(1, 32, 32, 32)]
    assert [layer.modules for layer in layers.layers if layer.kind == "convolution"] == [(f"{ODD}.0",), ("last",)]


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, image):
        return self.attention(*[image.flatten(1, 2)] * 3)[0]


def test_a_replaced_pattern_has_the_module_of_its_nodes(tmp_path):
    """Attention is such a pattern, and its node has no module."""
    network = model(Attending)
    layers = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, layers)
    kinds = ("scaled_dot_product", "_native_multi_head_attention")  # the latter with PyTorch 2.9
    (attention,) = [layer for layer in layers.layers if any(kind in layer.kind for kind in kinds)]
    assert attention.modules == ("attention",)


def test_graph_breaks_are_counted_with_their_reasons(tmp_path):
    network, preparation = model(samples.Breaking, 1, 4, 32), prepared(tmp_path)
    layers = profiled(LABEL, network, preparation)
    attributed(network, layers)
    products = [layer for layer in layers.layers if layer.kind == "addmm"]
    assert [layer.modules for layer in products] == [("first",), ("second",)]
    assert [layer.name.partition("/")[0] for layer in products] == ["0", "1"]
    assert (preparation.facts["graphs"], preparation.facts["graph_breaks"]["count"]) == (2, 1)
    assert "graph_break" in preparation.facts["graph_breaks"]["reasons"][0]
    assert [warning.code for warning in preparation.warnings] == ["graph-breaks"]
    case = small.case(LABEL, options={"fullgraph": True})
    runner = small.backend(LABEL).prepare(model(samples.Breaking, 1, 4, 32), case, preparation)
    unsupported(r"does not compile into one graph: .+", runner.__enter__)


def test_layers_with_dynamic_shapes_and_autocast(tmp_path):
    network = model(lambda: nn.Sequential(nn.Linear(32, 4), nn.Linear(4, 8)), 2, 32)
    case = small.case(LABEL, options={"dynamic": True, "autocast": True}, precision="bf16")
    with small.backend(LABEL).prepare(network, case, prepared(tmp_path)) as runner:
        layers = runner.profile_layers(runner.place(small.arrays(network)), 2)
    assert of(layers, "1")
    assert any(tensor.shape == (2, 4) for layer in of(layers, "0") for tensor in layer.outputs)


def test_one_graph_has_no_breaks_and_is_in_the_cache_if_it_was_compiled_with_these_options(preparation):
    def compiled(**options):
        network = small.model(product)
        small.run(network, small.case(LABEL, options=options), preparation, small.arrays(network))
        assert (preparation.facts["graphs"], preparation.facts["graph_breaks"]) == (1, {"count": 0, "reasons": []})
        cache = preparation.facts["compile_cache"]
        return cache["hits"], cache["misses"], preparation.phases[-1].note

    miss, hit = (0, 1, ""), (1, 0, "cached")
    with fresh_cache():
        cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert [compiled(), compiled(conv_1x1_as_mm=True)] == [miss] * 2
        assert compiled(freezing=True) == (0, 0, ""), "frozen code is not cached"
        assert [compiled(), compiled(conv_1x1_as_mm=True)] == [hit] * 2
        preparation.rebuild = True
        assert compiled() == miss
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == cache


def test_coordinate_descent_is_part_of_autotuning(preparation):
    options = {"coordinate_descent_tuning": True}
    case = small.case("torch_compile:max-autotune-no-cudagraphs", device="cuda", options=options)
    small.backend(LABEL).prepare(small.model(), case, preparation)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]
    for mode in torch_compile.AUTOTUNE_MODES:
        assert torch._inductor.list_mode_options(mode)["coordinate_descent_tuning"]


def test_frozen_weights_hold_the_batch_norms(tmp_path):
    """The convolutions of oneDNN also compute the activations behind them."""
    network = model(Fused)
    layers = profiled(LABEL, network, prepared(tmp_path), options={"freezing": True})
    attributed(network, layers)
    assert not any("batch_norm" in operator for layer in layers.layers for operator in layer.operators)
    assert [layer.modules[0] for layer in layers.layers if layer.kind == "convolution"] == [f"{ODD}.0", "last"]
    assert {path for layer in layers.layers for path in layer.modules} == {f"{ODD}.0", f"{ODD}.2", "last"}


def test_no_compiler_is_an_absence_with_a_cure(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    able = small.backend("torch_compile").capabilities()
    refusal = able.refusal(small.case("torch_compile:default"), small.info("module"))
    assert ("C++ compiler" in refusal.what, "g++" in refusal.hint) == (True, True)
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "my-compiler" else None)
    assert torch_compile.compiler_absence(torch, "cpu") is None


@pytest.mark.parametrize(
    ("variant", "on_the_cpu"), [("reduce-overhead", "default"), ("max-autotune-no-cudagraphs", "max-autotune")]
)
def test_modes_that_differ_only_by_cuda_graphs_are_the_same_on_the_cpu(variant, on_the_cpu, preparation):
    case = small.case(f"torch_compile:{variant}", options={"freezing": False, "dynamic": True})
    on_gpu = replace(case, device="cuda")
    assert torch_compile.TorchCompile.effective(case) == replace(case, variant=on_the_cpu, options={"dynamic": True})
    assert torch_compile.TorchCompile.effective(on_gpu) == replace(on_gpu, options={"dynamic": True})
    small.backend(LABEL).prepare(small.model(), replace(case, options={}), preparation)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]


def test_runners_of_many_sizes_keep_what_they_compiled(tmp_path, monkeypatch):
    """A load test prepares them so. By default Dynamo compiles a module for at most eight shapes."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile(module, backend="eager", dynamic=False))
    shared, runners = small.model(product).module, []
    with ExitStack() as stack:
        for batch in range(1, 11):
            network = dataclasses.replace(small.model(product, batch), module=shared)
            case = small.case(LABEL, batch=batch)
            runner = stack.enter_context(small.backend(LABEL).prepare(network, case, small.preparation(tmp_path)))
            runners.append((runner, runner.place(small.arrays(network))))
        count = runner.compilations()
        for runner, feed in runners:
            runner.infer(feed)
        assert runner.compilations() == count
        assert torch._dynamo.config.recompile_limit > len(runners)
    assert torch_compile.CompiledRunner.entered == 0
