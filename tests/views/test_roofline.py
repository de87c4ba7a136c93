"""Tables and charts of floors: what they show, how they add up, and what is not known."""

from typing import Any
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from inferlens.errors import InferlensError
from inferlens.record.profile import Kernel, Kernels, Profile
from inferlens.units import bandwidth, flop_rate, megaflops
from inferlens.views.picture import THEMES, chart_data, place_labels
from inferlens.views.profiles.roofline import _roofline_chart, case_rooflines, roofline_document, rooflines
from inferlens.views.renderers import render
from tests.analysis.floors import CHAIN, ceilings, module, nasty, timed, work_of, worked
from tests.analysis.profiles import eager, failed
from tests.views import profiled
from tests.views.profiled import loaded, row
from tests.views.samples import case


def fast() -> Profile:
    """A convolution near its floor, and a layer that nobody knows."""
    layers = [
        timed("conv+norm+relu", 25e-3, "conv", "norm", "relu"), timed("fc", 14e-3, "head"), timed("Reorder", 1e-3),
    ]  # fmt: skip
    return worked(layers, of=case("openvino"))


def slow() -> Profile:
    """Each module by itself."""
    times = {"conv": 60e-3, "norm": 9e-3, "relu": 1e-3, "head": 14e-3}
    return worked([timed(name, time, name, kind="Module") for name, time in times.items()])


def test_names_of_points_do_not_lie_on_a_line():
    axes = {"x": (0.0, 100.0, False), "y": (0.0, 100.0, False)}
    points = [
        {"name": name, "x": x, "y": y} for name, x, y in (("under", 90, 20), ("beside", 90, 70), ("short", 60, 57))
    ]
    sides = [
        item["side"]
        for item in place_labels(points, "name", axes, (100, 100), [[{"x": 0, "y": 0}, {"x": 100, "y": 100}]])
    ]
    assert sides == ["right", "", ""]
    assert [item["side"] for item in place_labels(points, "name", axes, (100, 100))] == ["right", "right", "right"]


def drawn(*profiles: Profile, **options: Any) -> str:
    return profiled.drawn("roofline", *profiles, **{"median": None, **options})


def widely(profile: Profile) -> str:
    return render(roofline_document(case_rooflines(loaded(profile, median=None))), width=200, wide=True)


# The last is a profile of an earlier version.
UNCOUNTED = msgspec.structs.replace(eager(), case=case("torch_compile:default"), id="uncounted")
ALL = (slow(), fast(), failed(case("torchscript:trace"), "It <broke>."), UNCOUNTED)


def test_the_layer_with_most_to_win_comes_first():
    """The one place that holds what is said of floors."""
    text = drawn(slow())
    assert row(text, "conv") == ["40.0", "47.5", "%", "60.0", "20.0", "3.00x", "compute", "Module"]
    assert [line.split()[0] for line in text.splitlines() if " Module" in line] == ["conv", "head", "norm", "relu"]
    assert row(text, "all layers")[0] == "51.5"
    assert "floor: the fastest possible on this device, at 1.00 GFLOP/s (fp32) and 1.00 GB/s" in text
    assert "At most 51.5 of a call of 84.2 ms (61.2 %) could be won, most in conv: 40.0 ms." in text
    assert text.rstrip().endswith("What to try: inferlens show RESULTS --view findings")
    assert row(widely(slow()), "conv")[2:10] == ["%", "60.0", "20.0", "3.00x", "compute", "Module", "71.3", "%"]
    for sort, names in (("order", ["conv", "norm", "relu", "head"]), ("time", ["conv", "head", "norm", "relu"])):
        (found,) = profiled.data("roofline", slow(), sort=sort)["cases"]
        assert [item["name"] for item in found["rows"]] == names
    assert row(drawn(slow(), top=1), "3 more: --top 4, or --format csv")[0] == "11.5"


def test_times_are_those_of_the_real_call_and_time_less_floor_is_what_can_be_won():
    """Profiling made the call twice as long: half of each time is left, and no gain is more than that."""
    for profile in (slow(), fast()):
        (found,) = profiled.data("roofline", profile, median=42.1e-3)["cases"]
        assert found["time"] == pytest.approx(42.1e-3, rel=0.02)
        assert found["time"] == pytest.approx(sum(item["time"] for item in found["rows"]) + found["outside"])
        known = [item for item in found["rows"] if item["floor"] is not None]
        for item in known:
            assert item["won"] == pytest.approx(item["time"] - item["floor"])
            assert item["won"] <= item["time"] <= found["time"]
            assert item["of_call"] == pytest.approx(item["won"] / found["time"])
        assert (
            found["won"]
            == pytest.approx(sum(item["won"] for item in known))
            == pytest.approx(found["known"] - found["floor"])
        )
    text = drawn(slow(), median=42.1e-3)
    assert row(text, "conv")[:5] == ["10.3", "24.3", "%", "30.3", "20.0"]
    assert "Times are scaled from profiled calls that took 1.98x as long" in text
    text = drawn(fast(), median=40.2e-3)
    assert row(text, "Reorder") == ["–", "–", "1.01", "–", "–", "–", "Conv"]
    assert row(text, "all layers with a floor")[:5] == ["12.4", "30.5", "%", "39.4", "27.0"]


def test_of_a_call_that_waits_for_the_host_no_layer_claims_a_gain():
    kernels = tuple(
        Kernel(name=name, modules=(name,), times=(time,) * 8) for name, time in (("conv", 25e-3), ("head", 9e-3))
    )
    told = Kernels(kernels=kernels, whole=(90e-3,) * 8, busy=(34e-3,) * 8, launches=2)
    of = case("pytorch", device="cuda")
    waiting = msgspec.structs.replace(slow(), case=of, layers=None, kernels=told, level="kernel", id="kernels")
    for median, gain in ((60e-3, False), (35e-3, True)):
        text = drawn(waiting, median=median)
        assert ("waits for the host (the GPU works 34,000 µs of it)" in text) is not gain
        (found,) = profiled.data("roofline", waiting, median=median)["cases"]
        assert [item["won"] is not None for item in found["rows"]] == [gain, gain]
        assert (found["won"] is not None) is gain
        assert (found["bound"] == "host") is not gain
    text = drawn(waiting, slow(), median=60e-3)
    assert row(text, "pytorch cuda kernels · cuda")[:2] == ["–", "–"]
    assert "Most to win with pytorch cpu · cpu: at most 28.2 of 60.6 ms (46.6 %)." in text


def test_rows_of_repeated_blocks_are_one():
    blocks = work_of(*(module(f"blocks.{n}.fc", flops=10, weights=1, outputs=1, given=1, returned=1) for n in range(4)))
    layers = [timed(f"blocks.{n}.fc", 20e-3 + n * 1e-3, f"blocks.{n}.fc", kind="Linear") for n in range(4)]
    text = drawn(worked(layers, blocks))
    assert row(text, "blocks.*.fc (4x)") == ["46.0", "53.4", "%", "86.0", "40.0", "2.15x", "compute", "Linear"]
    assert "blocks.2.fc" not in text
    assert row(drawn(worked(layers, blocks), sort="order"), "blocks.2.fc")[0] == "12.0"


def test_of_several_cases_each_is_a_row():
    text = drawn(*ALL)
    assert "Most to win with pytorch: at most 51.5 of 84.2 ms (61.2 %)." in text
    assert row(text, "pytorch") == ["61.2", "%", "51.5", "84.2", "conv"]
    assert row(text, "openvino") == ["29.9", "%", "12.0", "40.2", "head"]
    assert "1 case without floors: It <broke>." in text
    assert "1 case without floors: Its work was not counted." in text
    assert text.rstrip().endswith("Where in each: inferlens roofline RESULTS --top 5")
    assert "No floors: It <broke>." in drawn(*ALL, top=3)


def test_a_run_far_from_all_limits_is_bound_by_something_else():
    text = drawn(worked([timed(name, 0.5, name) for name in ("conv", "norm", "relu", "head")]))
    assert "Neither arithmetic nor memory bounds the call of 2,000 ms: its layers take 56.3x their floors." in text
    assert row(text, "conv")[0] == "500", "no gain is claimed"


def test_what_is_not_known_is_said():
    text = drawn(fast())
    assert row(text, "Reorder")[0] == "–"
    assert row(drawn(fast(), top=2), "1 of unknown work")[:4] == ["–", "–", "1.00", "–"]
    work = msgspec.structs.replace(CHAIN, uncovered={"aten._fft_r2c": 2})
    disturbed = ceilings().__class__(device="x", bandwidth=1e9, rates={}, disturbed="Others were busy.")
    lost = worked([timed("conv+norm+relu", 25e-3, "conv", "norm", "relu")], work, ceilings=disturbed)
    (told,) = profiled.data("roofline", lost, median=None)["cases"]
    assert told["notes"] == [
        "Others were busy.", "No rate of fp32 is known (it was not measured), so floors count bytes alone.",
        "In no layer: the work of 1 module, such as head.", "FLOPs not counted: aten._fft_r2c.",
    ]  # fmt: skip
    text = drawn(lost)
    assert "Others were busy." in text
    assert "FLOPs not counted" not in text, "two notes at most"
    text = drawn(worked([timed("a", 70e-3), timed("b", 13.8e-3)]))
    assert "The whole model cannot take less than 21.0 ms here, and takes 84.0 ms." in text
    assert "the model" in drawn(worked([timed("", 70e-3, "")], work_of(module("", flops=1))))


def test_kernels_have_floors_as_well():
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
    assert row(text, "conv") == ["5,000", "11.1", "%", "25,000", "20,000", "1.25x", "compute", "convolution"]
    assert row(text, "norm +1")[-1] == "pointwise"
    wide = widely(of_kernels)
    assert "cutlass_80_tensorop" in wide
    assert "cutlass::Kernel2" not in wide
    assert row(drawn(of_kernels, by="module"), "head")[0] == "2,000"


def test_numbers_in_the_unit_that_reads_best():
    rates = [flop_rate(item) for item in (1.01e11, 1.979e15, 5.0, None)]
    assert rates == ["101 GFLOP/s", "1.98 PFLOP/s", "5.00 FLOP/s", "–"]
    assert [bandwidth(item) for item in (12.5e9, 4.1e12, 9.999e11)] == ["12.5 GB/s", "4.10 TB/s", "1.00 TB/s"]
    assert [megaflops(item) for item in (231211008.0, 0.0, None)] == ["231", "0", "–"]


# The chart


def shown(*profiles: Profile) -> list[Any]:
    return case_rooflines(loaded(*profiles, median=None))


def test_a_roof_and_a_point_for_each_layer_that_computes():
    pytest.importorskip("vl_convert")
    chosen = shown(nasty(), *ALL[:3])
    svg, missing = rooflines(chosen, "svg")
    assert isinstance(svg, str)
    texts = "".join(Xml.fromstring(svg).itertext())
    for text in ("pytorch fp32", "openvino fp32", "conv", "head", "FLOPs for each byte", "memory at 1.00 GB/s"):
        assert text in texts
    assert "not drawn, without FLOPs: 10.0 ms" in texts
    assert "pytorch fp32: most to be won in conv" in texts
    assert missing == ["Not drawn: torchscript:trace fp32. It <broke>."]
    page = rooflines(chosen, "html")[0]
    assert isinstance(page, str)
    assert "<b>" not in page.partition("</script>")[2]
    with pytest.raises(InferlensError, match="Nothing in it computes"):
        rooflines(shown(worked([timed("norm", 1e-3, "norm")])), "svg")


def test_points_lie_where_they_belong():
    (of,) = shown(slow())
    panel = _roofline_chart(of, of.table, THEMES["light"])
    roof, points, *_ = chart_data(panel)
    (conv,) = [point for point in points if point["name"] == "conv"]
    assert (conv["intensity"], conv["rate"]) == (pytest.approx(4.0), pytest.approx(20e6 / 60e-3))
    assert (1.0, 1e9) in [(item["intensity"], item["rate"]) for item in roof]
    assert all(item["rate"] == pytest.approx(min(item["intensity"], 1.0) * 1e9) for item in roof)
