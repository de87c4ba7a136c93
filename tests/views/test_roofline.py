"""Tables and charts of floors: what they show, at every width, whatever stands in the names."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from rich.cells import cell_len

from inferlens.errors import InferlensError
from inferlens.record.kernel_profile import Kernel, Kernels
from inferlens.record.layer_profile import Profile
from inferlens.record.profile_store import LoadedProfiles
from inferlens.units import bandwidth, flop_rate, megaflops
from inferlens.views.profiled import FORMATS, roofline_plot
from inferlens.views.profiled.roofline import Roofed, render, roofed
from tests.analysis.profile.floors import CHAIN, ceilings, module, work_of, worked
from tests.analysis.profile.samples import NASTY, eager, failed, layer, untouched
from tests.views.samples import case


def timed(name: str, seconds: float, *modules: str, **fields: Any) -> Any:
    return layer(name, None, *modules, times=(seconds,) * 8, **fields)


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


def nasty() -> Profile:
    work = work_of(module(NASTY, flops=10, weights=1, outputs=1, given=1), module("." * 500, flops=1, outputs=1))
    layers = [timed(NASTY, 30e-3, NASTY, kind=NASTY), timed("", 1e-3, "." * 500), timed("x", 1e-3)]
    return worked(layers, work, of=case(model=NASTY))


def cases(*profiles: Profile, **options: Any) -> list[Roofed]:
    return roofed(LoadedProfiles(profiles=list(profiles)), **options)


def drawn(
    *profiles: Profile, format: str = "table", by: str = "layer", depth: int | None = None, **options: Any
) -> str:
    return render(cases(*profiles, by=by, depth=depth), format, **options)


def line(text: str, name: str) -> list[str]:
    (found,) = [each for each in text.splitlines() if each.startswith(f"{name} ")]
    return found.split()


def uncounted() -> Profile:
    """A profile of an earlier version."""
    return msgspec.structs.replace(eager(), case=case("torch_compile:default"), id="uncounted")


ALL = (slow(), fast(), failed(case("torchscript:trace"), "It <broke>."), uncounted())


def test_the_layer_with_most_to_win_comes_first() -> None:
    text = drawn(slow(), width=160)
    assert line(text, "conv")[1:] == [
        "1",
        "Module",
        "60.0",
        "71.3",
        "%",
        "20.0",
        "4.77",
        "4.00",
        "20.0",
        "compute",
        "3.00x",
        "40.0",
    ]
    rows = [each.split()[0] for each in text.splitlines() if " Module " in each]
    assert rows == ["conv", "head", "norm", "relu"]
    assert line(text, "whole run")[-1] == "51.5"
    assert "in no layer" in text
    assert "copies 1.00 GB/s · matrix products in fp32 1.00 GFLOP/s (measured: by hand)" in text
    assert "Most is to be won in conv: 40.0 of 60.0 ms, 3.00x its floor." in text
    assert "The floors add up to 35.5 ms of 84.2 ms. At most 51.5 ms (61.2 %) are to be won in the layers" in text
    assert "1 layer took less than the floor" in text


def test_what_profiling_cost_stands_beside_what_there_is_to_be_won() -> None:
    of = slow()
    loaded = LoadedProfiles(profiles=[of], records={of.id: untouched(of, 42.1e-3)})
    assert "Profiling made a call 1.98x as long: 84.2 ms" in render(roofed(loaded), "table", width=160)
    assert "Profiling" not in drawn(of, width=160), "no record beside it"


def test_sorting_and_the_rest_in_a_line_of_its_own() -> None:
    names = [row["name"] for row in json.loads(drawn(slow(), format="json", sort="order"))["cases"][0]["rows"]]
    assert names == ["conv", "norm", "relu", "head"]
    names = [row["name"] for row in json.loads(drawn(slow(), format="json", sort="time"))["cases"][0]["rows"]]
    assert names == ["conv", "head", "norm", "relu"]
    assert line(drawn(slow(), top=1, width=160), "3 other layers")[-1] == "11.5"
    with pytest.raises(InferlensError, match="sorted by 'wun'"):
        drawn(slow(), sort="wun")


def test_what_is_not_known_is_said() -> None:
    text = drawn(fast(), width=200)
    assert line(text, "Reorder")[-1] == "–"
    assert "Of 1.00 ms (2.49 %) it is not known what was done." in text
    assert "it is not known" not in drawn(slow(), width=200)
    work = msgspec.structs.replace(CHAIN, uncovered={"aten._fft_r2c": 2})
    lost = worked([timed("conv+norm+relu", 25e-3, "conv", "norm", "relu")], work, of=case(precision="fp16"))
    text = drawn(lost, width=200)
    assert "FLOPs not counted: aten._fft_r2c (2 calls)." in text
    assert "In no layer: the work of head." in text
    assert line(text, "whole run")[-2] == "–", "floors do not add up to the model's"
    assert "There is no rate of fp16 (it was not measured), so floors are those of bytes alone." in text
    disturbed = msgspec.structs.replace(ceilings(), disturbed="Others were busy.")
    assert "Others were busy. inferlens profile measures them again." in drawn(
        worked([], ceilings=disturbed), width=200
    )


def test_without_any_floor_the_model_as_a_whole_has_one() -> None:
    text = drawn(worked([timed("a", 70e-3), timed("b", 13.8e-3)]), width=200)
    assert "No layer has a floor: of none is a module known that was counted." in text
    assert "The whole model cannot take less than 21.0 ms here, and takes 84.0 ms, 4.00x that." in text
    assert "the model" in drawn(worked([timed("", 70e-3, "")], work_of(module("", flops=1))), width=200)


def test_ceilings_that_are_too_low_are_told() -> None:
    low = worked([timed("conv", 10e-3, "conv"), timed("fc", 7e-3, "head")])
    assert "inferlens profile --rebuild measures it again" in " ".join(drawn(low, width=200).split())
    assert "--rebuild" not in drawn(slow(), width=200)
    disturbed = msgspec.structs.replace(
        low, ceilings=msgspec.structs.replace(ceilings(), disturbed="Others were busy.")
    )
    text = " ".join(drawn(disturbed, width=200).split())
    assert "the rate, so that was measured too low: floors are too high, and what is to be won is more" in text
    assert "--rebuild" not in text, "the next profile measures them again without"


def test_by_module() -> None:
    text = drawn(fast(), by="module", width=160)
    assert line(text, "conv")[-4:] == ["20.0", "compute", "1.25x", "5.00"]
    assert line(text, "of no known module")[-1] == "–"
    assert "divided among them by their FLOPs: a convention, no measurement" in text
    assert "2 modules" not in drawn(slow(), by="module", depth=1)


@pytest.mark.parametrize("top", [None, 1, 2])
@pytest.mark.parametrize("by", ["layer", "module"])
def test_csv_adds_up(top: int | None, by: str) -> None:
    rows = list(csv.DictReader(io.StringIO(drawn(*ALL, format="csv", top=top, by=by))))
    assert {row["row"] for row in rows} <= {by, f"other {by}s", "in no layer", "whole"}
    for profile in {row["profile"] for row in rows}:
        mine = [row for row in rows if row["profile"] == profile]
        (whole,) = [row for row in mine if row["row"] == "whole"]
        assert sum(float(row["time"]) for row in mine if row is not whole) == pytest.approx(float(whole["time"]))
        if top is None:
            for name in ("floor", "won"):
                parts = sum(float(row[name] or 0) for row in mine if row is not whole)
                assert parts == pytest.approx(float(whole[name]))
    assert len({row["profile"] for row in rows}) == 2


def test_json_has_the_ceilings_and_why_there_are_no_floors() -> None:
    data = json.loads(drawn(*ALL, format="json"))
    assert data["schema"] == "inferlens.roofline/1"
    by_name = {each["name"]: each for each in data["cases"]}
    assert by_name["torch_compile:default fp32"]["reason"] == "Its work was not counted."
    able = by_name["openvino fp32"]
    assert able["ceilings"]["bandwidth"] == able["rate"] == 1e9
    assert (able["precision"], able["counted"], able["uncovered"]) == ("fp32", "counted", {})
    assert able["rows"][0]["distance"] == pytest.approx(2.0)
    assert by_name["torchscript:trace fp32"]["reason"] == "It <broke>."


def of_kernels() -> Profile:
    """The same network at the level of kernels: names of the libraries, and nothing outside of them is known."""
    gemm = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x64_32x4_nn_align8>(Params)"
    kernels = (
        Kernel(
            name="sm80_xmma_fprop_implicit_gemm",
            modules=("conv",),
            operator="aten::cudnn_convolution",
            times=(25e-3,) * 8,
        ),
        Kernel(name="void at::native::elementwise<4>(int)", modules=("norm", "relu"), times=(5e-3,) * 8),
        Kernel(name=gemm, modules=("head",), operator="aten::addmm", times=(9e-3,) * 8),
    )
    told = Kernels(kernels=kernels, whole=(45e-3,) * 8, busy=(39e-3,) * 8, launches=3)
    return msgspec.structs.replace(slow(), layers=None, kernels=told, level="kernel", id="kernels")


def test_kernels_have_floors_as_well() -> None:
    both = cases(slow(), of_kernels())
    assert [each.case.name for each in both] == ["pytorch fp32", "pytorch fp32 kernels"]
    text = render(both[1:], width=200)
    assert line(text, "sm80_xmma_fprop_implicit_gemm")[-4:] == ["20.0", "compute", "1.25x", "5.00"]
    assert line(text, "in no kernel")[3] == "6.00"
    assert "cutlass_80_tensorop" in text
    assert "cutlass::Kernel2" not in text
    assert "3 kernels · copies" in text
    rows = list(csv.DictReader(io.StringIO(drawn(of_kernels(), format="csv"))))
    assert [row["row"] for row in rows] == ["kernel", "kernel", "kernel", "in no kernel", "whole"]
    assert line(drawn(of_kernels(), by="module", width=160), "head")[-1] == "2.00"


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_in_a_name_breaks_out(format: str) -> None:
    for by in ("layer", "module"):
        text = drawn(nasty(), *ALL, format=format, by=by)
        if format == "json":
            assert repr(NASTY) in str(json.loads(text))
        elif format == "csv":
            assert NASTY in {cell for row in csv.reader(io.StringIO(text)) for cell in row}
        else:
            assert "\u202e" not in text
            assert "\x1b" not in text
        if format == "markdown":
            assert "<b>" not in text.replace("\\<", "")


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    text = drawn(nasty(), *ALL, width=width)
    assert max(map(cell_len, text.splitlines())) <= max(width, 60)
    assert "\x1b" in drawn(*ALL, width=width, color=True)


def test_numbers_in_the_unit_that_reads_best() -> None:
    assert [flop_rate(each) for each in (1.01e11, 1.979e15, 5.0, None)] == [
        "101 GFLOP/s", "1.98 PFLOP/s", "5.00 FLOP/s", "–",
    ]  # fmt: skip
    assert [bandwidth(each) for each in (12.5e9, 4.1e12, 9.999e11)] == ["12.5 GB/s", "4.10 TB/s", "1.00 TB/s"]
    assert [megaflops(each) for each in (231211008.0, 0.0, None)] == ["231", "0", "–"]


# The chart


@pytest.fixture
def _plots() -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")


@pytest.mark.usefixtures("_plots")
def test_a_roof_and_a_point_for_each_layer_that_computes() -> None:
    chosen = cases(nasty(), *ALL[:3])
    svg = roofline_plot.render(chosen, "svg")
    assert isinstance(svg, str)
    assert svg == roofline_plot.render(chosen, "svg")
    shown = "".join(Xml.fromstring(svg).itertext())
    for text in ("pytorch fp32", "openvino fp32", "conv", "head", "FLOPs for each byte", "copies at 1.00 GB/s"):
        assert text in shown
    assert "Without FLOPs, and so not drawn: 2 layers, 10.0 ms (11.9 %)." in shown
    assert roofline_plot.not_drawn(chosen) == ["Not drawn: torchscript:trace fp32. It <broke>."]
    assert roofline_plot.render(chosen, "png")[:4] == b"\x89PNG"
    page = roofline_plot.render(chosen, "html")
    assert isinstance(page, str)
    assert "<b>" not in page.partition("</script>")[2]


@pytest.mark.usefixtures("_plots")
def test_points_lie_where_they_belong() -> None:
    (one,) = cases(slow())
    panel = roofline_plot._chart(
        [roofline_plot._panel(one, one.found, roofline_plot.THEMES["light"])], roofline_plot.THEMES["light"]
    )  # type: ignore[arg-type]
    values = [each for layer in panel["vconcat"][0]["layer"] for each in layer["data"]["values"]]
    (conv,) = [each for each in values if each.get("name") == "conv" and "side" not in each]
    assert (conv["intensity"], conv["rate"]) == (pytest.approx(4.0), pytest.approx(20e6 / 60e-3))
    roof = [(each["intensity"], each["rate"]) for each in values if "name" not in each]
    assert (1.0, 1e9) in roof
    assert all(rate == pytest.approx(min(x, 1.0) * 1e9) for x, rate in roof)


@pytest.mark.usefixtures("_plots")
def test_nothing_to_draw_is_an_error() -> None:
    for profile, why in (
        (failed(case()), "It broke."),
        (worked([timed("norm", 1e-3, "norm")]), "Nothing in it computes."),
    ):
        with pytest.raises(InferlensError, match=why):
            roofline_plot.render(cases(profile), "svg")
    with pytest.raises(InferlensError, match="cannot be written as 'gif'"):
        roofline_plot.render([], "gif")
