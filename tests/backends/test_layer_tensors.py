"""Which tensors lead from layer to layer: what a backend tells of its layers is one graph, from inputs to outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferlens.record.layer_profile import Layers
from tests.backends.profiling.layered import Attention, Fused, Shared, model, prepared, profiled

LABELS = ("onnxruntime:cpu", "openvino:cpu")


def readers(layers: Layers) -> list[set[int]]:
    """By layer, the later layers that read what it writes."""
    written = {tensor.name: index for index, layer in enumerate(layers.layers) for tensor in layer.outputs}
    found: list[set[int]] = [set() for _ in layers.layers]
    for index, layer in enumerate(layers.layers):
        for tensor in layer.inputs:
            if tensor.name in written:
                found[written[tensor.name]].add(index)
    return found


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("kind", [Fused, Shared, Attention])
def test_layers_are_one_graph(label: str, kind: type, tmp_path: Path) -> None:
    """Weights that a library has packed, and nodes that it does not run, are no gaps."""
    layers = profiled(label, model(kind), prepared(tmp_path))
    assert all(tensor.name for layer in layers.layers for tensor in layer.outputs)
    leads_to = readers(layers)
    ends = [index for index, reads in enumerate(leads_to) if not reads]
    assert ends == [len(layers.layers) - 1]
    begins = [layer for layer in layers.layers if any(tensor.name == "image" for tensor in layer.inputs)]
    assert begins
    reached = {index for reads in leads_to for index in reads}
    unreached = [layer for index, layer in enumerate(layers.layers) if index not in reached]
    assert unreached == begins
    assert all(index < reader for index, reads in enumerate(leads_to) for reader in reads)


def test_residual_layers_read_both_ways(tmp_path: Path) -> None:
    layers = profiled("onnxruntime:cpu", model(Attention), prepared(tmp_path))
    stem = next(layer for layer in layers.layers if "stem" in layer.modules)
    assert len(readers(layers)[layers.layers.index(stem)]) >= 1
    block = next(layer for layer in layers.layers if "block" in layer.modules)
    assert {tensor.name for tensor in stem.outputs} & {tensor.name for tensor in block.inputs}


def test_packed_weights_do_not_shift_names() -> None:
    from inferlens.backends.onnxruntime.profile import tensors

    told = [{"float": [8, 32]}, {"float": [64]}]
    found = tensors(told, ("x", "weight", "bias"), {"x"})
    assert [(tensor.name, tensor.shape) for tensor in found] == [("x", (8, 32)), ("bias", (64,))]
    found = tensors(told, ("x", "y", ""), {"x", "y"})
    assert [tensor.name for tensor in found] == ["x", "y"]
    found = tensors(told, ("x", "y", "z"), {"x", "y", "z"})  # more than is told, and none of them a weight
    assert [tensor.name for tensor in found] == ["", ""]
    assert [tensor.dtype for tensor in found] == ["float32", "float32"]
