"""The layers of Inductor: generated kernels and the operators of libraries, each traced to the modules it came from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from inferlens.backends.profiling.operator_runs import Operator, Taken
from inferlens.backends.torch_compile.layers import calls_of, chosen, layers
from inferlens.backends.torch_compile.provenance import GRAPH, Compiler, Made, path_of, short_name
from inferlens.backends.torch_compile.steps import Step, narrow, own, since, step_of
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.record.layer_profile import Layers
from tests.backends import small
from tests.backends.profiling.layered import ODD, Attention, Fused, Shared, model, of, prepared, profiled, seconds

LABEL = "torch_compile:default"


class Breaking(nn.Module):
    """Two graphs, with an operator that Python runs between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = torch.relu(self.first(image))
        torch._dynamo.graph_break()
        return torch.relu(self.second(image))


def attributed(network: Model, found: Layers) -> None:
    """Every layer came from modules that there are."""
    assert network.module is not None
    assert {path for layer in found.layers for path in layer.modules} <= {p for p, _ in network.module.named_modules()}
    known = seconds([layer for layer in found.layers if layer.modules])
    assert known >= 0.9 * seconds(list(found.layers))
    assert not found.absent
    assert len({layer.name for layer in found.layers}) == len(found.layers)
    begins = [layer.begins[0] for layer in found.layers]
    assert begins == sorted(begins)


def test_fused_kernels_name_all_their_modules(tmp_path: Path) -> None:
    """Not those whose outcome they only work on, which Inductor's own names hold too."""
    network = model(Fused)
    found = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, found)
    (fused,) = of(found, f"{ODD}.1")
    assert fused.modules == (f"{ODD}.1", f"{ODD}.2")
    assert fused.kind == "C++"
    assert fused.operators == ("aten::_native_batch_norm_legit_no_training", "aten::relu")
    assert [tensor.shape for tensor in fused.outputs] == [(1, 32, 32, 32)]
    assert [layer.modules for layer in found.layers if layer.kind == "convolution"] == [(f"{ODD}.0",), ("last",)]


def test_shared_and_repeated_modules(tmp_path: Path) -> None:
    network = model(Shared)
    found = profiled(LABEL, network, prepared(tmp_path), runs=12)
    attributed(network, found)
    convolutions = [layer for layer in found.layers if layer.kind == "convolution"]
    assert [layer.modules for layer in convolutions] == [("twice",), ("twice",), ("one",), ("other",)]
    assert all(layer.outputs[0].shape == (1, 3, 32, 32) for layer in convolutions)
    assert not of(found, "never")
    assert len(found.begun) == 12


def test_patterns_that_were_replaced(tmp_path: Path) -> None:
    """Attention is found as a pattern, and its node has no module of its own."""
    network = model(Attention)
    found = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, found)
    kinds = ("scaled_dot_product", "_native_multi_head_attention")  # the latter with PyTorch 2.9
    (attention,) = [layer for layer in found.layers if any(kind in layer.kind for kind in kinds)]
    assert attention.modules == ("attention",)
    assert {"stem", "block", "linear", "norm", ""} <= {path for layer in found.layers for path in layer.modules}


def test_graph_breaks(tmp_path: Path) -> None:
    network = model(Breaking, 1, 4, 32)
    found = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, found)
    products = [layer for layer in found.layers if layer.kind == "addmm"]
    assert [layer.modules for layer in products] == [("first",), ("second",)]
    assert [layer.name.partition("/")[0] for layer in products] == ["0", "1"]


@pytest.mark.parametrize("options", [{"dynamic": True}, {"autocast": True}])
def test_options(options: dict[str, bool], tmp_path: Path) -> None:
    network = model(Fused, 2, 3, 32, 32)
    precision = "bf16" if "autocast" in options else "fp32"
    case = small.case(LABEL, options=options, precision=precision)
    with small.backend(LABEL).prepare(network, case, prepared(tmp_path)) as runner:
        found = runner.profile_layers(runner.place(small.arrays(network)), 2)
    assert of(found, f"{ODD}.0")
    assert of(found, "last")
    assert any(tensor.shape == (2, 32, 32, 32) for layer in of(found, f"{ODD}.0") for tensor in layer.outputs)


def test_resnet18_is_attributed(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    network = model(lambda: torchvision.models.resnet18(weights=None), 1, 3, 64, 64)
    found = profiled(LABEL, network, prepared(tmp_path))
    attributed(network, found)
    assert network.module is not None
    convolutions = [path for path, part in network.module.named_modules() if isinstance(part, nn.Conv2d)]
    named = [layer.modules for layer in found.layers if layer.kind == "convolution"]
    assert sorted(named) == sorted((path,) for path in convolutions)


def test_what_is_timed_is_compiled_as_ever(tmp_path: Path) -> None:
    network = model(Breaking, 1, 4, 32)
    with small.backend(LABEL).prepare(network, small.case(LABEL), prepared(tmp_path, level="")) as runner:
        assert runner._compiler is None
        with pytest.raises(Unsupported, match="to be timed"):
            runner.profile_layers(runner.place(small.arrays(network)), 1)
    assert not torch._inductor.config.cpp.enable_kernel_profile


def graph_node(name: str, *before: Any, path: str | None = "") -> Any:
    class Node(SimpleNamespace):
        __hash__ = object.__hash__
        __eq__ = object.__eq__

    meta = {} if path is None else {"nn_module_stack": {"": (path, None)}, "stack_trace": "here"}
    made = Node(name=name, op="call_function", target=name, meta=meta, users={}, all_input_nodes=list(before))
    for each in before:
        each.users[made] = None
    return made


def test_nodes_before_a_library_are_not_a_later_kernels() -> None:
    """relu, then a convolution by a library, then its bias: Inductor names all of them for the last."""
    relu = graph_node("relu")
    convolution = graph_node("convolution", relu)
    add = graph_node("add", convolution)
    origins = [relu, convolution, add]
    assert own(origins, "convolution", set()) == [convolution]
    assert since(origins, {convolution}) == [convolution, add]
    assert since(origins, set()) == origins


def test_a_template_computes_its_product_and_what_is_fused_with_it() -> None:
    """Costs were of modules that a template only reads from: Inductor names what lies before it, as of a library's."""
    first = graph_node("convolution")
    sigmoid = graph_node("sigmoid", first)
    second = graph_node("convolution", sigmoid)
    add = graph_node("add", second)
    relu = graph_node("relu", add)
    every = [first, sigmoid, second, add, relu]

    def steps(*calls: tuple[str, list[Any]]) -> list[list[Any]]:
        computed: set[Any] = set()
        done: set[Any] = set()
        found = []
        for name, origins in calls:
            step = step_of(*short_name(name), origins, computed, done)
            computed |= set(step.origins) if step.product else set()
            done |= set(step.origins)
            found.append(step.origins)
        return found

    tem, poi, library = "triton_tem_fused_convolution_0", "triton_poi_fused_add_1", "extern_kernels.convolution"
    apart = steps((tem, [first]), (poi, [first, sigmoid]), (tem, every[:3]), (poi, every))
    assert apart == [[first], [first, sigmoid], [second], [second, add, relu]]
    behind = steps((tem, [first, sigmoid]), (tem, every))
    assert behind == [[first, sigmoid], [second, add, relu]], "epilogues"
    ahead = steps((library, [first]), (tem, every[:3]))
    assert ahead == [[first], [sigmoid, second]], "a prologue"
    order = steps((library, [first]), (poi, [second]), (tem, [second]), (poi, [second, add]))
    assert order == [[first], [second], [second], [second, add]], "what puts weights in another order is no product"


def test_a_kernel_is_not_of_a_product_that_only_reads_what_it_makes() -> None:
    """Inductor names a convolution for the kernel that makes its input, and for the one that orders its weights."""
    first = graph_node("convolution")
    relu = graph_node("relu", first)
    second = graph_node("convolution", relu)
    every = [first, relu, second]

    def steps(*origins: list[Any]) -> list[list[Any]]:
        found = [Step("triton_poi", False, False, list(each)) for each in origins]
        products = [Step("convolution", True, True, [each]) for each in (first, second)]
        made = [found[0], products[0], *found[1:], products[1]]
        narrow(made)
        return [step.origins for step in found]

    assert steps([first], every) == [[first], [first, relu]], "what the second reads"
    assert steps([first], [first, relu], every) == [[first], [first, relu], [second]], "its weights"
    assert steps(every, every) == [[second], [first, relu]], "its weights, before there was anything to compute from"
    assert steps([first], every, every) == [[first], every, every], "either may be either"


def test_a_convolution_may_be_a_product() -> None:
    """Of 1x1; a product before it is another's."""
    mm = graph_node("mm")
    convolution = graph_node("convolution", graph_node("relu", mm))
    origins = [mm, *convolution.all_input_nodes, convolution]
    assert own(origins, "mm", {mm}) == [convolution]
    assert own(origins, short_name("extern_kernels.conv1x1_via_mm")[0], {mm}) == [convolution]
    assert own(origins, "addmm", {mm}) == [convolution]


def test_the_code_that_was_saved_last_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autotuning may compile a choice that is a graph of its own, and does not choose it."""
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering

    def compiled(*_: Any, **__: Any) -> Any:
        for code in ("a choice", "the graph"):
            GraphLowering.save_output_code(code)
        return lambda: None

    monkeypatch.setattr(compile_fx, "compile_fx", compiled)
    monkeypatch.setattr(Compiler, "_calls", lambda _, code: [Made(code, code)])
    compiler = Compiler(nn.Linear(2, 2), "max-autotune", on_gpu=True)
    compiler(None, ())
    assert [[made.name for made in graph] for graph in compiler.graphs] == [["the graph"]]


def test_lost_nodes_belong_to_what_lies_on_both_sides() -> None:
    paths = dict(enumerate(("", "block", "other")))
    first = graph_node("first", path="block")
    lost = graph_node("lost", first, path=None)
    last = graph_node("last", lost, path="block")
    assert path_of(last, paths) == "block"
    assert path_of(lost, paths) == "block"
    end = graph_node("end", graph_node("end before", first, path=None), path="other")
    assert path_of(end.all_input_nodes[0], paths) is None


def test_names_of_calls() -> None:
    assert short_name("extern_kernels.bias_addmm") == ("addmm", True)
    assert short_name("torch.ops.aten._softmax.default") == ("_softmax", True)
    assert short_name("extern_kernels.conv1x1_via_mm") == ("matmul", True)
    assert short_name("triton_poi_fused_relu_0") == ("triton_poi_fused_relu_0", False)


def test_calls_are_told_apart_by_graph_and_order() -> None:
    """A kernel that is called twice, a graph that runs twice, and an operator of which too many are seen."""
    kernel, product = "triton_poi_fused_relu_0", "mm"
    expected = calls_of([
        [Made(kernel, "k", modules=("a",)), Made(product, "p", True, ("b",)), Made(kernel, "k", modules=("c",))],
        [Made(product, "p", True, ("d",)), Made(product, "p", True, ("e",))],
    ])  # fmt: skip

    def graph(number: int, *names: str) -> Operator:
        return Operator(f"{GRAPH}{number}", inside=[Operator("## Call ##", inside=[Operator(name) for name in names])])

    run = Operator("run", inside=[
        graph(0, kernel, "aten::mm", kernel), graph(0, kernel, "aten::mm", kernel),
        Operator("aten::cos"), graph(1, "aten::mm", "aten::mm", "aten::mm"),
    ])  # fmt: skip
    times: dict[Any, Taken] = {}
    for place, (call, operator) in enumerate(chosen(run, expected)):
        operator.begin = place
        times.setdefault(call, Taken()).add(0, operator, on_gpu=False)
    found, unseen = layers(expected, times, 1)
    assert [(layer.name, layer.modules, layer.calls) for layer in found] == [
        (f"0/{kernel}", ("a",), 2), ("0/mm", ("b",), 2), (f"0/{kernel} #2", ("c",), 2),
        ("mm", (), 1), ("mm #2", (), 1), ("mm #3", (), 1), ("aten::cos", (), 1),
    ]  # fmt: skip
    assert unseen == 2
