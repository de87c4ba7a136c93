"""In what a call is computed: shares of its time and of its multiply-adds, from profiles that are made by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from inferlens.analysis.findings import findings
from inferlens.analysis.profile_table import Runs, runs_of
from inferlens.analysis.work import precisions
from inferlens.record.layer_profile import Layer, Profile
from inferlens.views.profiles import ProfiledCase, precision_line
from tests.analysis.findings.crafted import kernel, launched, layer, layered, the, unprofiled, work
from tests.views.samples import case

INT8 = case("onnxruntime:cpu", precision="int8")


def quantized(*more: Layer, **fields: object) -> Profile:
    """Two products in int8, one in fp32, a softmax, and two conversions: 50 ms of layers in a call of 60 ms."""
    layers = (
        layer("q", 4.0, "QuantizeLinear", "conv", details={"inserted": "by quantization"}),
        layer("conv", 20.0, "QLinearConv", precision="int8"),
        layer("fc", 5.0, "QGemm", precision="int8"),
        layer("softmax", 5.0, "Softmax", precision="fp32"),
        layer("dq", 6.0, "DequantizeLinear", "head", details={"inserted": "by quantization"}),
        layer("head", 10.0, "Gemm", precision="fp32"),
    )
    given = {"of": INT8, "whole": 60.0, "work": work(conv=8e9, fc=1e9, head=1e9)}
    return layered(*layers, *more, **{**given, **fields})  # type: ignore[arg-type]


def runs(of: Profile) -> Runs:
    found = runs_of(of)
    assert not isinstance(found, str)
    return found


def test_shares_add_up_and_what_stayed_is_named() -> None:
    of = quantized()
    found = precisions(of, runs(of))
    assert found
    assert found.time == pytest.approx({"int8": 25 / 60, "fp32": 15 / 60})
    assert found.work == pytest.approx({"int8": 0.9, "fp32": 0.1})
    assert (found.converting, found.conversions, found.stayed) == (pytest.approx(10 / 60), (0, 4), (5,))
    in_no_layer = runs(of).share(runs(of).outside)
    assert sum(found.time.values()) + found.converting + (in_no_layer or 0.0) == pytest.approx(1)
    assert precision_line(ProfiledCase(of)) == (
        "int8 41.7 % of the time, 90 % of multiply-adds; stayed in fp32: head 16.7 %; fp32 8.33 %; 2 conversions 16.7 %"
    )


def test_what_is_not_told_is_unknown_and_where_nothing_is_nothing_is_said() -> None:
    of = quantized(layer("other", 10.0, "MatMul"), work=work(conv=8e9, fc=1e9, head=1e9, other=10e9))
    found = precisions(of, runs(of))
    assert found
    assert found.work == pytest.approx({"int8": 0.45, "fp32": 0.05, "": 0.5})
    assert found.stayed == (5,)
    silent = layered(layer("conv", 1.0), of=INT8)
    assert precisions(silent, runs(silent)) is None
    assert precision_line(ProfiledCase(silent)) == ""
    assert precision_line(ProfiledCase(replace(of, case=case("onnxruntime:cpu")))) == ""


def test_a_case_that_is_no_faster_than_fp32_says_what_the_profile_knows_of_it() -> None:
    of = quantized()
    plain = unprofiled(replace(of, case=case("onnxruntime:cpu")), 60.0)
    slow = the("int8-not-faster", of, record=unprofiled(of, 66.0), plain=plain)
    assert slow.numbers == pytest.approx({"seconds": 66e-3, "before": 60e-3})
    assert "conversions take 16.7 %" in slow.sentence
    codes = {finding.code for finding in findings(of, unprofiled(of, 30.0), plain)}
    assert "int8-not-faster" not in codes
    assert {"stayed-in-fp32", "conversions"} <= codes
    assert "int8-not-faster" not in {finding.code for finding in findings(of, unprofiled(of, 66.0))}


def test_kernels_tell_by_their_names() -> None:
    names = {
        "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32": "int8",
        "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64": "fp16",
        "void relu_kernel<float>": "fp32",
        "__myl_Add_0x1": "",
    }
    of = launched(*(kernel(name, 25.0) for name in names), of=case(device="cuda", precision="int8"))
    found = precisions(of, runs(of))
    assert found
    assert found.time == pytest.approx(dict.fromkeys(names.values(), 0.25))
