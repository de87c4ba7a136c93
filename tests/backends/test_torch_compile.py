"""What ``torch.compile`` has beyond the contract; and its layers, each traced to the modules it came from."""

import dataclasses
import os
import shutil
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config
from msgspec.structs import replace
from torch._inductor.utils import fresh_cache

from inferlens.backends.profiling.runs import LayerTimes, TracedOperator
from inferlens.backends.torch_compile import backend as torch_compile
from inferlens.backends.torch_compile import layers as inductor_layers
from inferlens.record.profile import Layer
from tests.backends import small
from tests.backends.profiling.samples import ODD, Attention, Breaking, Fused, model, of, prepared, profiled, seconds
from tests.backends.small import unsupported

LABEL = "torch_compile:default"


def attributed(network, layers):
    """Every layer came from modules that there are."""
    assert {path for layer in layers.layers for path in layer.modules} <= {p for p, _ in network.module.named_modules()}
    assert seconds([layer for layer in layers.layers if layer.modules]) >= 0.9 * seconds(list(layers.layers))
    assert not layers.absent
    assert len({layer.name for layer in layers.layers}) == len(layers.layers)
    begins = [layer.begins[0] for layer in layers.layers]
    assert begins == sorted(begins)


def test_fused_kernels_name_all_their_modules(tmp_path):
    """Not those whose outcome they only work on, which Inductor's own names hold too."""
    network = model(Fused)
    layers = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, layers)
    (fused,) = of(layers, f"{ODD}.1")
    assert (fused.modules, fused.kind) == ((f"{ODD}.1", f"{ODD}.2"), "C++")
    assert fused.operators == ("aten::_native_batch_norm_legit_no_training", "aten::relu")
    assert [tensor.shape for tensor in fused.outputs] == [(1, 32, 32, 32)]
    assert [layer.modules for layer in layers.layers if layer.kind == "convolution"] == [(f"{ODD}.0",), ("last",)]


def test_patterns_that_were_replaced(tmp_path):
    """Attention is found as a pattern, and its node has no module of its own."""
    network = model(Attention)
    layers = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, layers)
    kinds = ("scaled_dot_product", "_native_multi_head_attention")  # the latter with PyTorch 2.9
    (attention,) = [layer for layer in layers.layers if any(kind in layer.kind for kind in kinds)]
    assert attention.modules == ("attention",)
    assert {"stem", "block", "linear", "norm", ""} <= {path for layer in layers.layers for path in layer.modules}


def test_graph_breaks_are_counted_and_said(tmp_path):
    network, preparation = model(Breaking, 1, 4, 32), prepared(tmp_path)
    layers = profiled(LABEL, network, preparation)
    attributed(network, layers)
    products = [layer for layer in layers.layers if layer.kind == "addmm"]
    assert [layer.modules for layer in products] == [("first",), ("second",)]
    assert [layer.name.partition("/")[0] for layer in products] == ["0", "1"]
    assert (preparation.facts["graphs"], preparation.facts["graph_breaks"]["count"]) == (2, 1)
    assert "graph_break" in preparation.facts["graph_breaks"]["reasons"][0]
    assert [warning.code for warning in preparation.warnings] == ["graph-breaks"]
    case = small.case(LABEL, options={"fullgraph": True})
    runner = small.backend(LABEL).prepare(model(Breaking, 1, 4, 32), case, preparation)
    unsupported(r"does not compile into one graph: .+", runner.__enter__)


@pytest.mark.parametrize("options", [{"dynamic": True}, {"autocast": True}])
def test_options(options, tmp_path):
    network = model(Fused, 2, 3, 32, 32)
    precision = "bf16" if "autocast" in options else "fp32"
    case = small.case(LABEL, options=options, precision=precision)
    with small.backend(LABEL).prepare(network, case, prepared(tmp_path)) as runner:
        found = runner.profile_layers(runner.place(small.arrays(network)), 2)
    assert of(found, f"{ODD}.0")
    assert of(found, "last")
    assert any(tensor.shape == (2, 32, 32, 32) for layer in of(found, f"{ODD}.0") for tensor in layer.outputs)


def graph_node(name, *before, path=""):
    class Node(SimpleNamespace):
        __hash__ = object.__hash__
        __eq__ = object.__eq__

    meta = {} if path is None else {"nn_module_stack": {"": (path, None)}, "stack_trace": "here"}
    made = Node(name=name, op="call_function", target=name, meta=meta, users={}, all_input_nodes=list(before))
    for item in before:
        item.users[made] = None
    return made


TEMPLATE, KERNEL, LIBRARY = "triton_tem_fused_convolution_0", "triton_poi_fused_add_1", "extern_kernels.convolution"


@pytest.mark.parametrize(
    ("targets", "calls", "expected"),
    [
        ("relu convolution add", f"{LIBRARY}:012 {KERNEL}:012", "1 02"),  # a library computes one node
        ("convolution sigmoid convolution add relu",
         f"{TEMPLATE}:0 {KERNEL}:01 {TEMPLATE}:012 {KERNEL}:01234", "0 1 2 34"),
        ("convolution sigmoid convolution add relu", f"{TEMPLATE}:01 {TEMPLATE}:01234", "01 234"),  # epilogues
        ("convolution sigmoid convolution", f"{LIBRARY}:0 {TEMPLATE}:012", "0 12"),  # a prologue
        ("convolution relu convolution", f"{LIBRARY}:0 {KERNEL}:01 {LIBRARY}:012", "0 1 2"),
        ("convolution relu convolution", f"{LIBRARY}:0 {KERNEL}:012 {LIBRARY}:012", "0 1 2"),  # what the second reads
        ("convolution relu convolution", f"{KERNEL}:012 {LIBRARY}:0 {KERNEL}:012 {LIBRARY}:012", "2 0 1 2"),  # weights
        ("mm relu convolution", "extern_kernels.mm:0 extern_kernels.conv1x1_via_mm:012", "0 2"),  # a product may be one
        ("convolution relu relu", f"{LIBRARY}:0 {KERNEL}:01 {KERNEL}:012 {KERNEL}:01", "0 1 2 1"),  # computed again
    ],
)  # fmt: skip
def test_nodes_are_of_the_call_that_computes_them(targets, calls, expected):
    """Inductor names what lies before them as well, and the product that a kernel makes something ready for."""
    nodes, done, found = [], set(), []
    for target in targets.split():
        nodes.append(graph_node(target, *nodes[-1:]))  # which reads the one before it
    for call in calls.split():
        name, _, places = call.rpartition(":")
        called, extern = inductor_layers.short_name(name)
        own = inductor_layers.computed_nodes(called, extern, [nodes[int(place)] for place in places], done)
        done |= {node for node in own if extern or called == TEMPLATE or not inductor_layers.is_product(node)}
        found.append("".join(str(nodes.index(node)) for node in own))
    assert found == expected.split()


def test_lost_nodes_belong_to_what_lies_on_both_sides():
    paths = dict(enumerate(("", "block", "other")))
    first = graph_node("first", path="block")
    lost = graph_node("lost", first, path=None)
    last = graph_node("last", lost, path="block")
    assert (inductor_layers.module_path(last, paths), inductor_layers.module_path(lost, paths)) == ("block", "block")
    end = graph_node("end", graph_node("end before", first, path=None), path="other")
    assert inductor_layers.module_path(end.all_input_nodes[0], paths) is None


def test_calls_are_told_apart_by_graph_and_order():
    """A kernel that is called twice, a graph that runs twice, and an operator of which too many are seen."""
    kernel, product = "triton_poi_fused_relu_0", "mm"
    graphs = [
        [Layer(name=name, modules=(module,)) for name, module in graph]
        for graph in (((kernel, "a"), (product, "b"), (kernel, "c")), ((product, "d"), (product, "e")))
    ]

    def graph(number, *names):
        call = TracedOperator("## Call ##", children=[TracedOperator(name) for name in names])
        return TracedOperator(f"{inductor_layers.GRAPH_SPAN}{number}", children=[call])

    run = TracedOperator("run", children=[
        graph(0, kernel, "aten::mm", kernel), graph(0, kernel, "aten::mm", kernel),
        TracedOperator("aten::cos"), graph(1, "aten::mm", "aten::mm", "aten::mm"),
    ])  # fmt: skip
    names = inductor_layers.InductorNames(SimpleNamespace(graphs=graphs, has_provenance=True))
    taken = {}
    for place, (call, _) in enumerate(names.calls(run)):
        taken.setdefault(call, LayerTimes()).add(0, 0.0, place)
    assert [(layer.name, layer.modules, taken[call].calls[0]) for call, layer in names.name_layers(taken).items()] == [
        (f"0/{kernel}", ("a",), 2), ("0/mm", ("b",), 2), (f"0/{kernel} #2", ("c",), 2),
        ("mm", (), 1), ("mm #2", (), 1), ("mm #3", (), 1), ("aten::cos", (), 1),
    ]  # fmt: skip


def test_one_graph_has_no_breaks_and_is_in_the_cache_if_it_was_compiled_with_these_options(preparation):
    def compiled(**options):
        network = small.model()
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


def test_inductor_is_configured_while_the_runner_lives(preparation):
    config = torch._inductor.config
    case = small.case(LABEL, options=dict.fromkeys(torch_compile.CONFIG_OPTIONS, True))
    before = [getattr(config, name) for name in torch_compile.CONFIG_OPTIONS]
    with small.backend(LABEL).prepare(small.model(), case, preparation):
        assert all(getattr(config, name) for name in torch_compile.CONFIG_OPTIONS)
    assert [getattr(config, name) for name in torch_compile.CONFIG_OPTIONS] == before


def test_frozen_weights_hold_the_batch_norms(tmp_path):
    """And oneDNN's convolutions compute the activations behind them, which Inductor names them after."""
    network = model(Fused)
    layers = profiled(LABEL, network, prepared(tmp_path), options={"freezing": True})
    attributed(network, layers)
    assert not any("batch_norm" in operator for layer in layers.layers for operator in layer.operators)
    assert [layer.modules[0] for layer in layers.layers if layer.kind == "convolution"] == [f"{ODD}.0", "last"]
    assert {path for layer in layers.layers for path in layer.modules} == {f"{ODD}.0", f"{ODD}.2", "last"}


def test_no_compiler_is_an_absence_with_a_cure(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    able = small.backend("torch_compile").capabilities()
    refusal = able.refusal(small.case("torch_compile:default"), small.found("module"))
    assert ("C++ compiler" in refusal.what, "g++" in refusal.hint) == (True, True)
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "my-compiler" else None)
    assert torch_compile.compiler_absence(torch, "cpu") is None


@pytest.mark.parametrize(
    ("variant", "on_the_cpu"), [("reduce-overhead", "default"), ("max-autotune-no-cudagraphs", "max-autotune")]
)
def test_modes_that_differ_by_cuda_graphs_alone_are_one_on_the_cpu_and_say_so(variant, on_the_cpu, preparation):
    case = small.case(f"torch_compile:{variant}", options={"freezing": False, "dynamic": True})
    on_gpu = replace(case, device="cuda")
    assert torch_compile.TorchCompile.effective(case) == replace(case, variant=on_the_cpu, options={"dynamic": True})
    assert torch_compile.TorchCompile.effective(on_gpu) == replace(on_gpu, options={"dynamic": True})
    small.backend(LABEL).prepare(small.model(), replace(case, options={}), preparation)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]


def test_runners_of_many_sizes_keep_what_they_compiled(tmp_path, monkeypatch):
    """As a load test prepares them; Dynamo alone compiles a module for eight shapes, and then no more."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile(module, backend="eager", dynamic=False))
    shared, runners = small.model().module, []
    with ExitStack() as stack:
        for batch in range(1, 11):
            network = dataclasses.replace(small.model(batch=batch), module=shared)
            case = small.case(LABEL, batch=batch)
            runner = stack.enter_context(small.backend(LABEL).prepare(network, case, small.preparation(tmp_path)))
            runners.append((runner, runner.place(small.arrays(network))))
        count = runner.compilations()
        for runner, feed in runners:
            runner.infer(feed)
        assert runner.compilations() == count
        assert torch._dynamo.config.recompile_limit > len(runners)
    assert torch_compile.CompiledRunner.entered == 0
