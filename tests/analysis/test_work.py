"""The work of the kernels of real profiles, against what can be worked out by hand from shapes."""

from pathlib import Path

import pytest

from inferlens.analysis.profile_table import Runs, profile_runs
from inferlens.analysis.roofline import roofline
from inferlens.analysis.work import precisions
from inferlens.record.profile import Layer, Profile
from inferlens.record.store import load_profiles
from inferlens.views.profiles.cases import ProfiledCase, precision_line
from tests.analysis.profiles import exact_layer as layer
from tests.analysis.profiles import layered, work
from tests.views.samples import case

VISION_TRANSFORMER = Path(__file__).parents[2] / "examples" / "h200" / "kernels" / "vit_b_16"
HALF = 2  # bytes of an element
TOKENS, WIDTH, WIDE = 32 * 197, 768, 3072  # of a ViT-B/16 at batch 32
LAYER = "encoder.layers.encoder_layer_3"


@pytest.mark.parametrize("backend", ["pytorch", "torch_compile", "tensorrt", "torch_tensorrt"])
def test_products_of_a_vision_transformer(backend):
    """Each computes what it computes, reads its inputs and weights, and writes its outputs; of every backend alike."""
    (folder,) = VISION_TRANSFORMER.glob(f"{backend}-*b32-cuda")
    (of,) = map(roofline, load_profiles([folder]).profiles)
    rows = [row for row in of.rows if row.flops]
    attention = [row for row in rows if row.modules == (f"{LAYER}.self_attention",)]
    (wide,) = [row for row in rows if f"{LAYER}.mlp.0" in row.modules]
    (patches,) = [row for row in rows if row.modules == ("conv_proj",)]
    assert [(row.flops, row.bytes / HALF) for row in (*attention, wide, patches)] == [
        (2 * TOKENS * WIDTH * 3 * WIDTH, TOKENS * WIDTH + 3 * WIDTH * WIDTH + TOKENS * 3 * WIDTH),
        (2 * 2 * 32 * 197 * 197 * WIDTH, 4 * TOKENS * WIDTH),
        (2 * TOKENS * WIDTH * WIDTH, TOKENS * WIDTH + WIDTH * (WIDTH + 1) + TOKENS * WIDTH),
        (2 * TOKENS * WIDTH * WIDE, TOKENS * WIDTH + WIDE * (WIDTH + 1) + TOKENS * WIDE),
        (2 * 32 * 14 * 14 * WIDTH * 3 * 16**2, 32 * 3 * 224**2 + WIDTH * (3 * 16**2 + 1) + 32 * WIDTH * 14 * 14),
    ]
    assert patches.distance == pytest.approx(patches.time / (patches.flops / of.rate), rel=1e-6)


# In what a call is computed: shares of its time and of its multiply-adds, from profiles that are made by hand.

INT8 = case("onnxruntime:cpu", precision="int8")


def quantized(*more: Layer, **fields: object) -> Profile:
    """Two products in int8, one in fp32, a softmax, and two conversions: 50 ms of layers in a call of 60 ms."""
    layers = (
        layer("q", 4.0, "QuantizeLinear", "conv", details={"inserted": "by quantization"}),
        layer("conv", 20.0, "QLinearConv", precision="int8"), layer("fc", 5.0, "QGemm", precision="int8"),
        layer("softmax", 5.0, "Softmax", precision="fp32"),
        layer("dq", 6.0, "DequantizeLinear", "head", details={"inserted": "by quantization"}),
        layer("head", 10.0, "Gemm", precision="fp32"),
    )  # fmt: skip
    given = {"of": INT8, "whole": 60.0, "work": work(conv=8e9, fc=1e9, head=1e9)}
    return layered(*layers, *more, **{**given, **fields})


def runs(of: Profile) -> Runs:
    found = profile_runs(of)
    assert not isinstance(found, str)
    return found


def test_shares_add_up_and_what_stayed_is_named():
    of = quantized()
    found = precisions(of, runs(of))
    assert found.time == pytest.approx({"int8": 25 / 60, "fp32": 15 / 60})
    assert found.work == pytest.approx({"int8": 0.9, "fp32": 0.1})
    assert (found.converting, found.conversions, found.stayed) == (pytest.approx(10 / 60), (0, 4), (5,))
    in_no_layer = runs(of).share(runs(of).outside)
    assert sum(found.time.values()) + found.converting + (in_no_layer or 0.0) == pytest.approx(1)
    assert precision_line(ProfiledCase(of)) == (
        "int8 41.7 % of the time, 90 % of multiply-adds; fp32 25 %; 2 conversions 16.7 %"
    )
