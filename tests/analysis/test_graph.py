"""Layers as a graph: which tensor leads where, what is folded, and what is said of what is not known."""

import time

import pytest

from inferlens.analysis import graph as graphs
from inferlens.record.profile import Layer
from inferlens.trace.kernels import precision_in
from tests.analysis.profiles import NASTY, eager, failed, long_chain, reads, residual, source
from tests.views.samples import case


def arrows(graph: graphs.Graph) -> set[tuple[str, str]]:
    return {(graph.nodes[edge.tail].name, graph.nodes[edge.head].name) for edge in graph.edges}


def test_edges_follow_the_names_of_tensors():
    graph = graphs.build_graph(residual())
    assert arrows(graph) == {
        ("x", "stem"), ("stem", "a0"), ("stem", "b0"), ("a0", "b0"), ("b0", "moved"), ("moved", "a1"), ("a1", "b1"),
        ("b0", "b1"), ("b1", "y"), ("y", "y"),
    }  # fmt: skip
    assert [node.role for node in graph.nodes[-2:]] == ["input", "output"]
    assert all(edge.known and edge.tensors[0].shape == (1, 64, 56, 56) for edge in graph.edges)


def test_without_names_it_is_a_chain_and_says_so():
    made = graphs.profile_source(eager(), "pytorch")
    assert not isinstance(made, str)
    graph = graphs.build_graph(made, depth=9)
    assert graphs.ORDER_ONLY in graph.notes
    assert {(edge.head - edge.tail, edge.known) for edge in graph.edges} == {(1, False)}
    assert graphs.profile_source(failed(case("pytorch"), "It broke."), "x") == "It broke."


def test_a_layer_that_names_nothing_follows_the_one_before():
    graph = graphs.build_graph(source(reads("x", "a"), Layer(name="?", kind="Reorder"), reads("a", "b")))
    assert [(edge.tail, edge.head) for edge in graph.edges if not edge.known] == [(0, 1)]


def test_hostile_names_do_not_multiply_without_end():
    layers = [reads("same", "same", name=f"l{index}") for index in range(3_000)]
    begin = time.perf_counter()
    assert graphs.TOO_MANY_EDGES in graphs.build_graph(source(*layers, inputs=())).notes
    assert time.perf_counter() - begin < 5


def test_folding_by_depth_keeps_time_and_outer_tensors():
    graph = graphs.build_graph(residual(), depth=1)
    assert [node.name for node in graph.nodes] == ["stem", "blocks", "y", "x", "y"]
    blocks = graph.nodes[1]
    assert (blocks.role, blocks.places) == ("folded", (2, 3, 4, 5, 6))
    assert (blocks.seconds, blocks.share) == (pytest.approx(5e-3), pytest.approx(5 / 7))
    assert ({item.name for item in blocks.inputs}, [item.name for item in blocks.outputs]) == ({"stem", "w"}, ["b1"])
    assert "--depth 2 unfolds more" in graph.notes[-1]
    two = [node.name for node in graphs.build_graph(residual(), depth=2).nodes[:5]]
    assert two == ["stem", "blocks.0", "blocks.1", "y", "x"]
    assert len(graphs.build_graph(residual(), depth=99).nodes) == 9


def test_a_module_called_twice_is_two_nodes_and_no_cycle():
    layers = [reads("x", "a", "one"), reads("a", "b", "one"), reads("b", "c", "two"), reads("c", "d", "two"),
              reads("d", "e", "one"), reads("e", "f", "one")]  # fmt: skip
    graph = graphs.build_graph(source(*layers), depth=1)
    assert [node.name for node in graph.nodes[:3]] == ["one", "two", "one"]
    assert {(edge.tail, edge.head) for edge in graph.edges} == {(3, 0), (0, 1), (1, 2), (2, 4)}


def test_regions_are_modules_with_more_than_one_node():
    (blocks,) = graphs.build_graph(residual()).regions
    assert (blocks.label, blocks.nodes, blocks.seconds) == ("blocks", (1, 2, 3, 4, 5), pytest.approx(5e-3))
    assert [(inner.label, inner.nodes) for inner in blocks.inner] == [("0", (1, 2, 3)), ("1", (4, 5))]
    deep = source(reads("x", "a", "model.encoder.layers.0.a"), reads("a", "b", "model.encoder.layers.0.b"))
    (region,) = graphs.build_graph(deep).regions
    assert (region.label, region.inner) == ("model.encoder.layers.0", ())
    assert not graphs.build_graph(residual(), regions="none").regions


@pytest.mark.parametrize("depth", [0, 2])
def test_two_thousand_layers_become_a_graph_that_can_be_read(depth):
    times = [1e-5] * (graphs.MOST + 500)
    graph_source = source(*long_chain(len(times), depth).layers, seconds=tuple(times), whole=sum(times))
    graph = graphs.build_graph(graph_source)
    assert len([node for node in graph.nodes if node.places]) <= graphs.READABLE
    assert sum(len(node.places) for node in graph.nodes) == len(times)
    assert "2,500 layers are drawn as" in graph.notes[-1]
    whole = graphs.build_graph(graph_source, depth=99)
    assert len([node for node in whole.nodes if node.places]) == graphs.MOST


@pytest.mark.parametrize(("text", "word"), [
    ("float32", "fp32"), ("float16", "fp16"), ("Row major linear FP16 format", "fp16"), ("Half", "fp16"),
    ("bfloat16", "bf16"), ("Int8 NHWC16", "int8"), ("uint8", "int8"), ("float8_e4m3fn", "fp8"), ("int64", "int"),
    ("bool", "bool"), ("f16", "fp16"), ("u8", "int8"), ("", ""), ("N/A", ""), (NASTY, ""),
])  # fmt: skip
def test_precisions_by_whatever_name(text, word):
    """A backend knows better than the type of a tensor."""
    assert precision_in(text) == word
    assert graphs.layer_precision(reads("a", "b", details={"precision": text})) == (word or "fp32")
