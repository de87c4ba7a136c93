"""In what a call is computed: shares of its time and of its multiply-adds."""

import pytest

from inferlens.analysis.profile_table import profile_runs
from inferlens.analysis.work import precisions
from inferlens.views.profiles.cases import ProfiledCase, precision_line
from tests.analysis.profiles import exact_layer as layer
from tests.analysis.profiles import layered, work
from tests.views.samples import case


def test_shares_add_up_and_what_stayed_is_named():
    """Two products in int8, one in fp32, a softmax, and two conversions: 50 ms of layers in a call of 60 ms."""
    layers = (
        layer("q", 4.0, "QuantizeLinear", "conv", details={"inserted": "by quantization"}),
        layer("conv", 20.0, "QLinearConv", precision="int8"), layer("fc", 5.0, "QGemm", precision="int8"),
        layer("softmax", 5.0, "Softmax", precision="fp32"),
        layer("dq", 6.0, "DequantizeLinear", "head", details={"inserted": "by quantization"}),
        layer("head", 10.0, "Gemm", precision="fp32"),
    )  # fmt: skip
    flops = work(conv=8e9, fc=1e9, head=1e9)
    of = layered(*layers, of=case("onnxruntime:cpu", precision="int8"), whole=60.0, work=flops)
    runs = profile_runs(of)
    found = precisions(of, runs)
    assert found.time == pytest.approx({"int8": 25 / 60, "fp32": 15 / 60})
    assert found.work == pytest.approx({"int8": 0.9, "fp32": 0.1})
    assert (found.converting, found.conversions, found.stayed) == (pytest.approx(10 / 60), (0, 4), (5,))
    assert sum(found.time.values()) + found.converting + runs.share(runs.outside) == pytest.approx(1)
    assert precision_line(ProfiledCase(of)) == (
        "int8 41.7 % of the time, 90 % of multiply-adds; fp32 25 %; 2 conversions 16.7 %"
    )
