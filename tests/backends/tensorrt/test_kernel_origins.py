"""Kernels of real engines traced to layers: each to its own, or to few, and never to those of others alone."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from inferlens.backends.abilities import Launched
from inferlens.backends.profiling.kernel_layers import EngineLayer, aligned, of_engine
from inferlens.backends.tensorrt.inspector import told_layers
from inferlens.backends.tensorrt.kernel_origins import engine_layers, kernel_origins
from inferlens.backends.tensorrt.layer_profiling import absences
from inferlens.backends.tensorrt.matrix_kernels import KERNEL, MULTIPLY, narrowed
from inferlens.backends.torch_tensorrt.inspector import origin_among
from inferlens.record.layer_profile import Layer
from tests.backends.profiling.kernel_samples import ENGINES, engine, runs

SAMPLE = Path(__file__).parent / "samples" / "mobilenet_v2-dynamo.json.gz"
REWRITTEN = 52  # the convolution of features.18.0, which became a matrix product
CONV, SPLIT, PRODUCT = (
    "cudnn_generated_fort_native_sm90_convFwd_knob_39_128x16x32_12_1_0",
    "splitKreduce_kernel",
    "matMul",
)


@cache
def mobilenet() -> tuple[list[Layer], list[str]]:
    """The layers, and the kernels of a run."""
    models = pytest.importorskip("torchvision.models")
    paths = frozenset(name for name, _ in models.mobilenet_v2().named_modules())
    told = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    return told_layers(told["Layers"], origin_among(paths)), told["kernels"]


def launched(names: list[str]) -> list[Launched]:
    return [Launched(name=name, operator="tensorrt::execute_engine") for name in names]


def test_a_convolution_that_became_a_matrix_product_has_its_kernel_and_so_have_all_others() -> None:
    layers, kernels = mobilenet()
    told = kernel_origins(launched(kernels), layers, {})
    assert told.absent == {}
    assert [each.layer for each in told.of] == [layer.name for layer in layers]
    assert told.of[REWRITTEN].modules == ("features.18.0",)
    assert told.of[1].modules == ("features.0.0", "features.0.1", "features.0.2")
    assert told.of[-1].modules == ("classifier.1",)
    for kernel, origin in zip(kernels, told.of, strict=True):
        assert ("convFwd" in kernel) == ("Corr" in origin.layer)


@pytest.mark.parametrize("before", ["", "_run_on_acc_0/"])
@pytest.mark.parametrize(
    ("entry", "launches"),
    [
        ({"Name": "__mye70916_myl0_52", "LayerType": "gemm", "TacticName": "__myelin_CASK_STUB"}, True),
        ({"Name": "__mye6723_unroll0", "LayerType": "gemm", "TacticName": "sm80_xmma_gemm_f16f16"}, True),
        ({"Name": "__mye35665_myl0_7", "LayerType": "signal", "TacticName": ""}, False),
        ({"Name": "__mye35667_myl0_8", "LayerType": "wait", "TacticName": ""}, False),
        ({"Name": "__myl_CorrMulAddRelu_myl0_5", "LayerType": "runtime_fusion", "TacticName": ""}, True),
        ("__mye35665_myl0_7", False),
        ("node_Conv_1", True),
    ],
)
def test_what_computes_launches_and_what_only_orders_does_not(entry: Any, launches: bool, before: str) -> None:
    layers = [replace(layer, name=before + layer.name) for layer in told_layers([entry], lambda _: ((), ()))]
    assert [layer.launches for layer in engine_layers(layers)] == [launches]
    timed = [replace(layer, times=(1e-6,)) for layer in layers]
    assert ("modules" in absences([{}], "", timed)) == launches, "what launches and names no module is said to be lost"


def layer(text: str) -> EngineLayer:
    """``c1`` convolves, ``g1`` multiplies, ``m1`` is a pooling, ``k1`` the compiler's own, ``d1`` of another type."""
    kinds = {"c": "correlation", "g": "gemm", "m": "maxpool", "k": "kgen", "d": "deconvolution"}
    return EngineLayer(name=text, kind=kinds[text[0]])


@pytest.mark.parametrize(
    ("kernels", "layers", "expected"),
    [
        ("c c s c", "c1 c2 c3", "c1 c2 c2+c3 c3"),  # one of them adds up what it had split
        ("c m s g", "c1 m1 g1", "c1 c1+m1+g1 c1+m1+g1 g1"),
        ("s c g", "c1 g1", "c1 c1 g1"),
        ("c g s s", "c1 g1", "c1 g1 g1 g1"),
        ("c c g", "c1 k1 c2 g1", "c1 c2 g1"),  # one launches nothing
        ("c m c s g", "c1 m1 c2 g1", "c1 m1 c2 c2+g1 g1"),
        ("c c s", "c1 d1", "c1+d1 c1+d1 c1+d1"),  # nobody knows what the other type launches
        ("c g g", "c1 g1", "c1+g1 c1+g1 c1+g1"),
        ("c g", "c1 k1 g1 g2", "c1+k1+g1+g2 c1+k1+g1+g2"),
        ("s s", "", "- -"),
    ],
)
def test_products_tell_apart_what_shares_a_stretch(kernels: str, layers: str, expected: str) -> None:
    names = [{"c": CONV, "g": PRODUCT, "m": "resampleFwd", "s": SPLIT}[word] for word in kernels.split()]
    found = narrowed(names, aligned(names, [layer(word) for word in layers.split()]))
    assert ["+".join(each.name for each in of) or "-" for of in found] == expected.split()


def test_a_kernel_more_than_layers_leaves_all_others_where_they_belong() -> None:
    layers, kernels = mobilenet()
    told = kernel_origins(launched([*kernels[:20], SPLIT, *kernels[20:]]), layers, {})
    own = [layer.name for layer in layers]
    assert [each.layer for each in told.of] == [*own[:20], f"{own[19]} + {own[20]}", *own[20:]]
    assert told.absent["layers"].startswith("1 of 56 kernels")


def test_a_layer_that_is_not_told_leaves_its_stretch_shared() -> None:
    """As it was with the one that became a matrix product: its kernel is of none of the others."""
    layers, kernels = mobilenet()
    told = kernel_origins(launched(kernels), [*layers[:REWRITTEN], *layers[REWRITTEN + 1 :]], {})
    assert told.absent["layers"].startswith("52 of 55 kernels")


@settings(deadline=None)  # the first example reads a trace
@given(st.data())
def test_kernels_more_or_fewer_never_give_another_its_layer(data: st.DataObject) -> None:
    """Of what happened really: some products launch kernels more, or some of the other layers launch none."""
    layers, names = real(data.draw(st.sampled_from([*ENGINES, "mobilenet_v2"])))
    true = list(zip(names, layers, strict=True))
    product = [each for each in true if each[1].kind in MULTIPLY]
    if data.draw(st.booleans()):
        chosen = data.draw(st.lists(st.sampled_from(product), min_size=1, max_size=5))
        true = [each for pair in true for each in [pair, *[(SPLIT, pair[1])] * chosen.count(pair)]]
    else:
        lost = data.draw(st.lists(st.sampled_from([each for each in true if each not in product]), max_size=5))
        true = [pair for pair in true if pair not in lost]
    kernels = [name for name, _ in true]
    wide = aligned(kernels, layers)
    found = narrowed(kernels, wide)
    for (kernel, owner), few, many in zip(true, found, wide, strict=True):
        assert owner in few
        assert set(few) <= set(many)
        assert not KERNEL.search(kernel) or few == (owner,)


@cache
def real(name: str) -> tuple[list[EngineLayer], list[str]]:
    """The layers of an engine that launch, and the kernels of a run, one for each."""
    if name == "mobilenet_v2":
        told, kernels = mobilenet()
        return engine_layers(told), kernels
    events = [event.launched for event in runs(name)[0].events]
    return [each for each in engine(name) if each.launches], [events[place].name for place in of_engine(events)]
