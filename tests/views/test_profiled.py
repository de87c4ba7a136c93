"""Tables of profiles: what holds for all of them, whatever stands in the names; then layers, kernels and modules."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from rich.cells import cell_len

from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Warning
from inferlens.views.profiled import layers_and_kernels, modules, plots
from inferlens.views.profiled.cases import groups, of_level
from inferlens.views.table import render
from tests.analysis.profile.floors import nasty as nasty_work
from tests.analysis.profile.kernel_profiles import kernel, made, of_kernels, traced
from tests.analysis.profile.kernel_profiles import nasty as nasty_kernels
from tests.analysis.profile.samples import NASTY, eager, failed, fused, layer, nasty, other, profile
from tests.backends.profiling.kernel_samples import ENGINE, GRAPH
from tests.views.profiled import TABLES, data, drawn, lines, loaded, row
from tests.views.samples import GPU_MACHINE, WRONG, case

BROKEN = failed(case("torchscript:trace"), "It <broke>.")
ALL = (eager(), fused(), other(), BROKEN)
KERNELS = of_kernels("torch_compile", made(kernel("gemm", 1e-3, "a"), kernel("relu", 1e-3, "b")))
# What each table draws besides all of the profiles, with names that break out of whatever they stand in.
NASTY_ONES: dict[str, Profile] = {
    "layers": nasty(), "modules": nasty(), "kernels": nasty_kernels(), "roofline": nasty_work(),
}  # fmt: skip

every_table = pytest.mark.parametrize("table", TABLES)


# All of them


@every_table
@pytest.mark.parametrize("format", ["table", "markdown", "csv", "json", "html"])
def test_nothing_in_a_name_breaks_out(table, format):
    shown = drawn(table, NASTY_ONES[table], *ALL, KERNELS, format=format)
    if format == "json":
        assert repr(NASTY) in str(json.loads(shown))
    elif format == "csv":
        assert NASTY in {cell for line in csv.reader(io.StringIO(shown)) for cell in line}
    else:
        assert not {"\u202e", "\x1b"} & set(shown)
    if format == "markdown":
        assert "<b>" not in shown.replace("\\<", "")
        assert max(map(len, shown.splitlines())) < 2000


@every_table
@pytest.mark.parametrize("width", [20, 61, 120])
def test_lines_fit_the_terminal(table, width):
    shown = drawn(table, NASTY_ONES[table], *ALL, KERNELS, width=width)
    assert max(map(cell_len, shown.splitlines())) <= max(width, 60)
    assert drawn(table, NASTY_ONES[table], *ALL, KERNELS, width=width) == shown
    assert "\x1b" in drawn(table, eager(), KERNELS, width=width, color=True)


@every_table
def test_only_failures(table):
    level = "kernel" if table == "kernels" else "layer"
    broken = msgspec.structs.replace(failed(case()), level=level, hint="--device cuda")
    assert "It broke. --device cuda" in drawn(table, broken)
    assert "It broke." in drawn(table, broken, format="json")
    assert len(lines(table, broken)) == 0


@pytest.mark.parametrize(
    ("table", "options"),
    [("layers", {"sort": "tim"}), ("kernels", {"sort": "name"}), ("kernels", {"by": "module"}),
     ("roofline", {"sort": "wun"}), ("roofline", {"by": "modul"}), ("modules", {"level": "kernels"}),
     ("modules", {"fused": "half"}), ("modules", {"format": "cvs"})],
)  # fmt: skip
def test_what_there_is_not_is_refused(table, options):
    with pytest.raises(InferlensError, match=f"There is no .* '{next(iter(options.values()))}'"):
        drawn(table, eager(), **options)


@pytest.mark.parametrize("top", [None, 1, 3])
@every_table
def test_csv_adds_up(table, top):
    time = "time" if table == "roofline" else "typical"
    rows = lines(table, NASTY_ONES["roofline"], *ALL, KERNELS, **({} if table == "modules" else {"top": top}))
    for digest in {each["digest"] for each in rows}:
        mine = [each for each in rows if each["digest"] == digest and each.get("depth", "1") in ("0", "1")]
        (whole,) = [each for each in mine if each["row"] == "whole"]
        assert sum(float(each[time] or 0) for each in mine if each is not whole) == pytest.approx(float(whole[time]))
    assert {each["row"] for each in rows} >= {"whole"}


@pytest.mark.parametrize("table", ["layers", "kernels"])
def test_notes_and_warnings_are_shown(table):
    warned = (Warning("x", "Clocks moved.", "Hold them."),)
    of = profile(case(), [layer("a", 1e-3)], warnings=warned)
    of = msgspec.structs.replace(of, layers=msgspec.structs.replace(of.layers, absent={"modules": "not known"}))
    if table == "kernels":
        of = of_kernels("pytorch", made(kernel("a", 1e-3), absent={"modules": "not known"}), warnings=warned)
    shown = drawn(table, of)
    assert "Clocks moved. Hold them." in shown
    assert "modules: not known" in shown


# Layers


def test_layers_what_is_in_none_and_what_it_cost():
    """The one place that holds what is said of layers."""
    text = drawn("layers", eager(), top=3, width=160)
    assert {"1x64x56x56", "23.8"} <= set(row(text, "conv1"))
    assert row(text, "9 other layers")
    assert row(text, "in no layer")[-2:] == ["2.36", "%"]
    assert row(text, "whole run")[-2:] == ["100", "%"]
    assert text.splitlines()[-3:] == [
        "conv1 takes most: 23.8 % of a run; the first 5 take 71.4 %.",
        "Layers add up to 8.26 ms of 8.46 ms (medians); 0.200 ms (2.36 %) were in no layer.",
        "Profiling made a call 1.40x (1.39 to 1.40) as long: 8.46 ms instead of 6.06 ms.",
    ]


def test_layers_by_time_or_in_order():
    def names(**options) -> list[str]:
        return [each["name"] for each in data("layers", eager(), **options)["cases"][0]["rows"]]

    assert names(sort="order") == [each.name for each in eager().layers.layers]
    assert names()[:2] == ["conv1", "bn1"]
    assert names(sort="order", top=1) == ["conv1"]
    first, *_, last = data("layers", *ALL)["cases"]
    assert first["reconciliation"]["untouched"] == pytest.approx(6.06e-3, rel=0.01)
    assert first["reconciliation"]["outside"]["share"] == pytest.approx(0.0236, rel=0.01)
    assert (last["status"], last["reason"], last["rows"]) == ("failed", "It <broke>.", [])


def test_the_model_itself_has_a_name_and_layers_that_overlap_say_so():
    text = drawn("layers", profile(case("pytorch"), [layer("", 3e-3, "", kind="ResNet"), layer("fc", 1e-3, "fc")]))
    assert "the model takes most" in text
    of = profile(case(), [layer("a", 3e-3, "a"), layer("b", 3e-3, "b")], outside=-2e-3)
    assert "some ran at the same time" in drawn("layers", of)
    assert row(drawn("layers", of), "in no layer")[-2:] == ["-49.6", "%"]


# Kernels


def test_kernels_what_they_fill_and_how_they_add_up():
    """The one place that holds what is said of kernels."""
    text = drawn("kernels", traced(), width=300, top=3, median=2e-3)
    moved = row(text, "nchwToNhwcKernel<…>")
    assert moved[:3] == ["7", "35", "113"]
    assert {"26.3", "aten::cudnn_convolution"} <= set(moved)
    assert "19 modules" in " ".join(moved)
    conv1 = " ".join(row(drawn("kernels", traced(), width=300), "implicit_convolve_sgemm<…>"))
    assert "392x2 8x8 92 2.2 31.2 % 18.6 % no" in conv1, "grid, block, registers, KiB, occupancies, tensor cores"
    for name in ("11 other kernels", "all kernels", "GPU busy", "GPU idle", "whole run"):
        assert row(text, name)
    assert text.splitlines()[-5:] == [
        "nchwToNhwcKernel<…> takes most: 26.3 % of the GPU's busy time; the first 5 take 72.9 %.",
        "The GPU was busy for 0.428 ms of 7.49 ms (medians) and idle for 7.06 ms (94.4 %); 162 launches a run, one "
        "each 46.2 µs.",
        "Kernels that use tensor cores have 30.7 % of all kernels' time, those that do not 69.3 %; of 0 % the names "
        "do not say.",
        "Traced to modules: 100 % of all kernels' time.",
        "Profiling made a call 3.70x as long: 7.49 ms instead of 2.02 ms.",
    ]


def test_what_is_not_known_of_kernels_is_said():
    text = drawn("kernels", traced(GRAPH), traced(ENGINE), width=300)
    assert "origins: which layers and modules kernels came from: inductor-graph does not report." in text
    assert "of 96.5 % the names do not say" in text
    both = made(kernel("a", 1e-3, stream=1), kernel("b", 1e-3, stream=2), busy=1.2e-3)
    assert "ran side by side" in drawn("kernels", of_kernels("pytorch", both))


def test_programs_get_kernels_in_any_order_full_names_and_what_is_in_none():
    def rows(**options):
        return data("kernels", traced(), **options)["cases"][0]["rows"]

    assert [each["place"] for each in rows(sort="order", by="launch")] == list(range(1, 163))
    calls = [each["calls"] for each in rows(sort="calls")]
    assert calls == sorted(calls, reverse=True)
    first, *found = lines("kernels", traced(), top=4)
    assert {each["row"] for each in found} == {"name", "other kernels", "overlap", "idle", "whole"}
    assert "engines_precompiled" in first["name"]
    assert (first["grid"], first["tensor_cores"]) == ("1x16x512", "false")
    (engine,) = data("kernels", traced(ENGINE))["cases"]
    assert (engine["gpu"]["multiprocessors"], engine["account"]["launches"]) == (132, 25)


# Modules


def test_a_tree_has_the_backends_side_by_side():
    text = drawn("modules", *ALL)
    assert row(text, "layer2") == ["1.71", "20.2", "%", "0.907", "★", "20", "%", "5.05", "▼", "64.1", "%"]
    assert "openvino fp32: most takes layer2 (64.1 %), " in text
    assert "torchscript:trace fp32 has no layers: It <broke>." in text
    assert "↑: fused with modules outside of this row" in text
    assert row(text, "unprofiled call")
    split = drawn("modules", *ALL, fused="split")
    assert "0.755 ≈" in split
    assert data("modules", *ALL, fused="split")["models"][0]["rule"] == "split"


def test_the_reference_is_the_first_column():
    def names(**options) -> list[str]:
        found = data("modules", other(), fused(), eager(), **options)
        return [column["name"] for column in found["models"][0]["columns"]]

    assert names()[0] == "pytorch fp32"
    assert names(reference="onnxruntime")[0] == "onnxruntime:cpu fp32"
    with pytest.raises(InferlensError, match="No case fits"):
        names(reference="tensorrt")
    with pytest.raises(InferlensError, match="fits 3 cases"):
        names(reference="fp32")


def test_which_profiles_share_a_tree():
    several = [eager(), profile(case(batch=8), [layer("a", 1e-3, "a")])]
    several.append(profile(case(model="other"), [layer("a", 1e-3, "a")]))
    several.append(profile(case("fake"), [layer("a", 1e-3, "a")], environment=GPU_MACHINE))
    assert len(data("modules", *several)["models"]) == 4
    late = msgspec.structs.replace(failed(case(), "Too late."), id="late", created="2027-01-01T00:00:00Z")
    assert "pytorch fp32 has no layers: Too late." in drawn("modules", late, eager())


def test_columns_that_cannot_be_compared_are_named():
    wrong = render(modules.document(groups(loaded(eager(), other(), agreement=WRONG))), width=200)
    assert "openvino fp32 are wrong." in wrong
    costly = drawn("modules", eager(), fused(), median=2e-3)
    assert "Not compared with others: pytorch fp32 and onnxruntime:cpu fp32." in costly
    assert "★" not in wrong + costly
    assert "★" in drawn("modules", eager(), fused())


def test_depth():
    assert "unfolds more of 9" in drawn("modules", eager(), depth=1)
    many = profile(case(), [layer(f"{n}", 1e-3, f"block.{n}.conv.inner") for n in range(30)])
    assert "unfolded 2 of 4 deep" in drawn("modules", many)
    assert data("modules", many)["models"][0]["depth"] == 4


# Boxes


def boxes(*profiles: Profile, sort: str = "time"):
    return layers_and_kernels.shown("layer", of_level(loaded(*profiles), "layer"), sort)


def test_boxes_are_drawn_of_any_names():
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    svg, missing = plots.boxes(boxes(nasty(), *ALL), "svg")
    assert isinstance(svg, str)
    assert svg == plots.boxes(boxes(nasty(), *ALL), "svg")[0]
    shown = "".join(Xml.fromstring(svg).itertext())
    for name in ("layer2.0 all", "pytorch fp32", "openvino fp32", "#12", "5th to 95th percentile"):
        assert name in shown
    assert "Gone" not in shown
    assert missing == ["Not drawn: torchscript:trace fp32. It <broke>."]
    assert plots.boxes(boxes(eager()), "png")[0][:4] == b"\x89PNG"
    page = plots.boxes(boxes(nasty(), sort="order"), "html")[0]
    assert "<b>" not in page.partition("</script>")[2]
    with pytest.raises(InferlensError, match=r"nothing to draw.*It broke"):
        plots.boxes(boxes(failed(case())), "svg")


@pytest.mark.parametrize(
    ("times", "ends", "whiskers"),
    [
        (tuple(0.001 * run for run in range(41)), [2, 10, 20, 30, 38], "5th to 95th percentile"),
        ((0.001, 0.002, 0.003), [1, 1.5, 2, 2.5, 3], "all runs"),
    ],
)
def test_boxes_are_quantiles_over_the_runs(times, ends, whiskers):
    pytest.importorskip("altair")
    (of,) = boxes(profile(case(), [layer("a", None, "a", times=times)]))
    panel = plots._boxes(of, of.table, None).to_dict()
    (box,) = panel["data"]["values"]
    assert [box[end] for end in ("low", "lower", "middle", "upper", "high")] == pytest.approx(ends)
    assert whiskers in str(panel["layer"][0]["encoding"]["x"]["title"])
    assert "a takes most" in panel["title"]["text"]
