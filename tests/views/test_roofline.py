"""Tables and charts of floors: what they show, how they add up, and what is not known."""

from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.record.profile import Kernel, Kernels, Profile
from inferlens.views.picture import THEMES, chart_data, place_labels
from inferlens.views.profiles.roofline import _roofline_chart, case_rooflines, draw_cases, roofline_document
from inferlens.views.renderers import render
from tests.analysis.profiles import CHAIN, ceilings, eager, failed, module, timed, work_of, worked
from tests.analysis.profiles import nasty_work as nasty
from tests.refusals import refusal
from tests.snapshots import screens_test
from tests.views import profiled
from tests.views.profiled import loaded
from tests.views.samples import case


def fast() -> Profile:
    """A convolution near its floor, and a layer that nobody knows."""
    conv = timed("conv+norm+relu", 25e-3, "conv", "norm", "relu")
    return worked([conv, timed("fc", 14e-3, "head"), timed("Reorder", 1e-3)], of=case("openvino"))


def slow() -> Profile:
    """Each module by itself."""
    times = {"conv": 60e-3, "norm": 9e-3, "relu": 1e-3, "head": 14e-3}
    return worked([timed(name, time, name, kind="Module") for name, time in times.items()])


def test_names_of_points_do_not_lie_on_a_line():
    axes = {"x": (0.0, 100.0, False), "y": (0.0, 100.0, False)}
    places = (("under", 90, 20), ("beside", 90, 70), ("short", 60, 57))
    points, line = [{"name": name, "x": x, "y": y} for name, x, y in places], [{"x": 0, "y": 0}, {"x": 100, "y": 100}]
    for lines, sides in (([line], ["right", "", ""]), ([], ["right"] * 3)):
        assert [point["side"] for point in place_labels(points, "name", axes, (100, 100), lines)] == sides


def drawn(*profiles: Profile, **options: Any) -> str:
    return profiled.drawn("roofline", *profiles, **{"median": None, **options})


def widely(profile: Profile) -> str:
    return render(roofline_document(case_rooflines(loaded(profile, median=None))), width=200, wide=True)


# The last is a profile of an earlier version.
UNCOUNTED = replace(eager(), case=case("torch_compile:default"), id="uncounted")
ALL = (slow(), fast(), failed(case("torchscript:trace"), "It <broke>."), UNCOUNTED)


def of_kernels(whole: float, *kernels: tuple[str, float, str], **fields: Any) -> Profile:
    """The network at the level of kernels, each with its time and modules; ``whole`` seconds a call."""
    found = tuple(Kernel(name=name, modules=(*paths.split(),), times=(time,) * 8) for name, time, paths in kernels)
    busy = sum(time for _, time, _ in kernels)
    told = Kernels(kernels=found, whole=(whole,) * 8, busy=(busy,) * 8, launches=len(found))
    return replace(slow(), layers=None, kernels=told, level="kernel", id="kernels", **fields)


WAITING = of_kernels(90e-3, ("conv", 25e-3, "conv"), ("head", 9e-3, "head"), case=case("pytorch", device="cuda"))
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x64_32x4_nn_align8>(Params)"
POINTWISE = ("void at::elementwise<4>(int)", 5e-3, "norm relu")
KERNELS = of_kernels(45e-3, ("sm80_xmma_fprop", 25e-3, "conv"), POINTWISE, (GEMM, 9e-3, "head"))
NAMES = [f"blocks.{n}.fc" for n in range(4)]
BLOCKS = worked(
    [timed(name, 20e-3 + n * 1e-3, name, kind="Linear") for n, name in enumerate(NAMES)],
    work_of(*(module(name, flops=10, weights=1, outputs=1, given=1, returned=1) for name in NAMES)),
)
LOST = worked(
    [timed("conv+norm+relu", 25e-3, "conv", "norm", "relu")],
    replace(CHAIN, uncovered={"aten._fft_r2c": 2}),
    ceilings=ceilings().__class__(device="x", bandwidth=1e9, rates={}, disturbed="Others were busy."),
)
SCREENS = {
    "layers": lambda: widely(slow()),
    "scaled": lambda: drawn(slow(), median=42.1e-3) + drawn(fast(), median=40.2e-3),
    "unknown work": lambda: drawn(fast(), top=2),
    "repeated blocks": lambda: drawn(BLOCKS) + drawn(BLOCKS, sort="order"),
    "cases": lambda: drawn(*ALL),
    "bound by something else": lambda: drawn(worked([timed(one.module, 0.5, one.module) for one in CHAIN.modules])),
    "waits for the host": lambda: drawn(WAITING, median=60e-3) + drawn(WAITING, slow(), median=60e-3),
    "two notes at most": lambda: drawn(LOST),
    "the whole model": lambda: drawn(worked([timed("a", 70e-3), timed("b", 13.8e-3)])),
    "kernels": lambda: widely(KERNELS) + drawn(KERNELS, by="module"),
}
test_screen = screens_test("roofline", SCREENS)


def test_of_a_call_that_waits_for_the_host_no_layer_claims_a_gain():
    for median, gain in ((60e-3, False), (35e-3, True)):
        (found,) = profiled.data("roofline", WAITING, median=median)["cases"]
        assert [item["won"] is not None for item in found["rows"]] == [gain, gain]
        assert (found["won"] is not None) is gain
        assert (found["bound"] == "host") is not gain


# The chart


def shown(*profiles: Profile) -> list[Any]:
    return case_rooflines(loaded(*profiles, median=None))


def test_a_roof_and_a_point_for_each_layer_that_computes():
    pytest.importorskip("vl_convert")
    chosen = shown(nasty(), *ALL[:3])
    page, missing = draw_cases(chosen, "html")
    assert "pytorch fp32: most to be won in conv" in page
    assert "<b>" not in page.partition("</script>")[2]
    assert missing == ["Not drawn: torchscript:trace fp32. It <broke>."]
    refusal("Nothing in it computes", draw_cases, shown(worked([timed("norm", 1e-3, "norm")])), "svg")


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
        won = pytest.approx(found["won"])
        assert [sum(item["won"] for item in known), found["known"] - found["floor"]] == [won, won]


def test_points_lie_where_they_belong():
    (of,) = shown(slow())
    panel = _roofline_chart(of, of.table, THEMES["light"])
    roof, points, *_ = chart_data(panel)
    (conv,) = [point for point in points if point["name"] == "conv"]
    assert (conv["intensity"], conv["rate"]) == (pytest.approx(4.0), pytest.approx(20e6 / 60e-3))
    assert (1.0, 1e9) in [(item["intensity"], item["rate"]) for item in roof]
    assert all(item["rate"] == pytest.approx(min(item["intensity"], 1.0) * 1e9) for item in roof)
