"""Tables and charts of floors: what they show, how they add up, and what is not known."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Kernel, Kernels, Profile
from inferlens.units import bandwidth, flop_rate, megaflops
from inferlens.views.picture import THEMES
from inferlens.views.profiled import plots
from inferlens.views.profiled.roofline import roofed
from tests.analysis.profile.floors import CHAIN, ceilings, module, nasty, timed, work_of, worked
from tests.analysis.profile.samples import eager, failed
from tests.views import profiled
from tests.views.profiled import loaded, row
from tests.views.samples import case


def fast() -> Profile:
    """A convolution near its floor, and a layer that nobody knows."""
    layers = [
        timed("conv+norm+relu", 25e-3, "conv", "norm", "relu"),
        timed("fc", 14e-3, "head"),
        timed("Reorder", 1e-3),
    ]
    return worked(layers, of=case("openvino"))


def slow() -> Profile:
    """Each module by itself."""
    times = {"conv": 60e-3, "norm": 9e-3, "relu": 1e-3, "head": 14e-3}
    return worked([timed(name, time, name, kind="Module") for name, time in times.items()])


def drawn(*profiles: Profile, **options: Any) -> str:
    return profiled.drawn("roofline", *profiles, **{"median": None, **options})


# The last is a profile of an earlier version.
UNCOUNTED = msgspec.structs.replace(eager(), case=case("torch_compile:default"), id="uncounted")
ALL = (slow(), fast(), failed(case("torchscript:trace"), "It <broke>."), UNCOUNTED)


def test_the_layer_with_most_to_win_comes_first() -> None:
    """The one place that holds what is said of floors."""
    text = drawn(slow())
    assert row(text, "conv") == [
        "1", "Module", "60.0", "71.3", "%", "20.0", "4.77", "4.00", "20.0", "compute", "3.00x", "40.0",
    ]  # fmt: skip
    assert [each.split()[0] for each in text.splitlines() if " Module " in each] == ["conv", "head", "norm", "relu"]
    assert row(text, "whole run")[-1] == "51.5"
    assert "copies 1.00 GB/s · matrix products in fp32 1.00 GFLOP/s (measured: by hand)" in text
    assert " ".join(text.split()).endswith(
        "The largest possible gain is in conv: 40.0 of 60.0 ms, 3.00x its floor. The floors add up to 32.5 ms of "
        "84.2 ms. At most 51.5 ms (61.2 %) could be gained in the layers, and 0.200 ms are in no layer."
    )
    assert "Profiling made a call 1.98x as long (84.2 instead of 42.6 ms)" in drawn(slow(), median=42.1e-3)
    for sort, names in (("order", ["conv", "norm", "relu", "head"]), ("time", ["conv", "head", "norm", "relu"])):
        (found,) = profiled.data("roofline", slow(), sort=sort)["cases"]
        assert [each["name"] for each in found["rows"]] == names
    assert row(drawn(slow(), top=1), "3 other layers")[-1] == "11.5"


def test_what_is_not_known_is_said() -> None:
    text = drawn(fast())
    assert row(text, "Reorder")[-1] == "–"
    assert "What was done in 1.00 ms (2.49 %) is not known." in text
    work = msgspec.structs.replace(CHAIN, uncovered={"aten._fft_r2c": 2})
    disturbed = ceilings().__class__(device="x", bandwidth=1e9, rates={}, disturbed="Others were busy.")
    lost = worked([timed("conv+norm+relu", 25e-3, "conv", "norm", "relu")], work, ceilings=disturbed)
    text = drawn(lost)
    assert "FLOPs not counted: aten._fft_r2c." in text
    assert "In no layer: the work of 1 module, such as head." in text
    assert row(text, "whole run")[-2] == "–", "floors do not add up to the model's"
    assert "No rate of fp32 is known (it was not measured), so floors count bytes alone." in text
    assert "Others were busy." in text
    text = drawn(worked([timed("a", 70e-3), timed("b", 13.8e-3)]))
    assert "The whole model cannot take less than 21.0 ms here, and takes 84.0 ms." in text
    assert "the model" in drawn(worked([timed("", 70e-3, "")], work_of(module("", flops=1))))


def test_by_module() -> None:
    text = drawn(fast(), by="module")
    assert row(text, "conv")[-4:] == ["20.0", "compute", "1.25x", "5.00"]
    assert row(text, "of no known module")[-1] == "–"


def test_json_has_the_ceilings_and_why_there_are_no_floors() -> None:
    found = profiled.data("roofline", *ALL)
    assert found["schema"] == "inferlens.roofline/1"
    by_name = {each["name"]: each for each in found["cases"]}
    assert by_name["torch_compile:default fp32"]["reason"] == "Its work was not counted."
    assert by_name["torchscript:trace fp32"]["reason"] == "It <broke>."
    able = by_name["openvino fp32"]
    assert able["ceilings"]["bandwidth"] == able["rate"] == 1e9
    assert (able["precision"], able["counted"], able["uncovered"]) == ("fp32", "counted", {})
    assert able["rows"][0]["distance"] == pytest.approx(2.0)


def test_kernels_have_floors_as_well() -> None:
    """The same network at the level of kernels: names of the libraries, and nothing outside of them is known."""
    gemm = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x64_32x4_nn_align8>(Params)"
    each = {"sm80_xmma_fprop": (25e-3, "conv"), "void at::elementwise<4>(int)": (5e-3, "norm", "relu")}
    kernels = tuple(
        Kernel(name=name, modules=tuple(paths), times=(time,) * 8)
        for name, (time, *paths) in {**each, gemm: (9e-3, "head")}.items()
    )
    told = Kernels(kernels=kernels, whole=(45e-3,) * 8, busy=(39e-3,) * 8, launches=3)
    of_kernels = msgspec.structs.replace(slow(), layers=None, kernels=told, level="kernel", id="kernels")
    text = drawn(of_kernels)
    assert row(text, "sm80_xmma_fprop")[-4:] == ["20.0", "compute", "1.25x", "5.00"]
    assert row(text, "in no kernel")[0] == "6.00"
    assert "cutlass_80_tensorop" in text
    assert "cutlass::Kernel2" not in text
    rows = profiled.lines("roofline", of_kernels)
    assert [each["row"] for each in rows] == ["kernel", "kernel", "kernel", "in no kernel", "whole"]
    assert row(drawn(of_kernels, by="module"), "head")[-1] == "2.00"


def test_numbers_in_the_unit_that_reads_best() -> None:
    rates = [flop_rate(each) for each in (1.01e11, 1.979e15, 5.0, None)]
    assert rates == ["101 GFLOP/s", "1.98 PFLOP/s", "5.00 FLOP/s", "–"]
    assert [bandwidth(each) for each in (12.5e9, 4.1e12, 9.999e11)] == ["12.5 GB/s", "4.10 TB/s", "1.00 TB/s"]
    assert [megaflops(each) for each in (231211008.0, 0.0, None)] == ["231", "0", "–"]


# The chart


def shown(*profiles: Profile) -> list[Any]:
    return roofed(loaded(*profiles))


def test_a_roof_and_a_point_for_each_layer_that_computes() -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    chosen = shown(nasty(), *ALL[:3])
    svg, missing = plots.rooflines(chosen, "svg")
    assert isinstance(svg, str)
    texts = "".join(Xml.fromstring(svg).itertext())
    for text in ("pytorch fp32", "openvino fp32", "conv", "head", "FLOPs for each byte", "memory at 1.00 GB/s"):
        assert text in texts
    assert "not drawn, without FLOPs: 10.0 ms" in texts
    assert "pytorch fp32: most to be won in conv" in texts
    assert missing == ["Not drawn: torchscript:trace fp32. It <broke>."]
    page = plots.rooflines(chosen, "html")[0]
    assert isinstance(page, str)
    assert "<b>" not in page.partition("</script>")[2]
    with pytest.raises(InferlensError, match="Nothing in it computes"):
        plots.rooflines(shown(worked([timed("norm", 1e-3, "norm")])), "svg")


def test_points_lie_where_they_belong() -> None:
    pytest.importorskip("altair")
    (of,) = shown(slow())
    panel = plots._roofline(of, of.table, THEMES["light"]).to_dict()
    roof, points, *_ = (each["data"]["values"] for each in panel["layer"])
    (conv,) = [each for each in points if each["name"] == "conv"]
    assert (conv["intensity"], conv["rate"]) == (pytest.approx(4.0), pytest.approx(20e6 / 60e-3))
    assert (1.0, 1e9) in [(each["intensity"], each["rate"]) for each in roof]
    assert all(each["rate"] == pytest.approx(min(each["intensity"], 1.0) * 1e9) for each in roof)
