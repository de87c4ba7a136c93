"""Tables of profiles: what holds for all of them, whatever stands in the names; then layers, kernels and modules."""

import csv
import io
import json
import re
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from rich.cells import cell_len

from inferlens.errors import InferlensError
from inferlens.record.profile import ModuleWork, Profile, Work
from inferlens.record.record import Warning
from inferlens.views.picture import chart_data
from inferlens.views.profiles import roofline as plots
from inferlens.views.profiles.cases import cases_of_level, group_profiles
from inferlens.views.profiles.layers_kernels import part_tables
from inferlens.views.profiles.modules import modules_document
from inferlens.views.renderers import render
from tests.analysis.floors import nasty as nasty_work
from tests.analysis.kernel_profiles import kernel, made, of_kernels, traced
from tests.analysis.kernel_profiles import nasty as nasty_kernels
from tests.analysis.profiles import NASTY, eager, failed, fused, layer, nasty, other, profile
from tests.backends.profiling.samples import ENGINE, GRAPH
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
        assert json.loads(shown)["schema"] == f"inferlens.{table}/1"
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
    for digest in {item["digest"] for item in rows}:
        mine = [item for item in rows if item["digest"] == digest and item.get("depth", "1") in ("0", "1")]
        (whole,) = [item for item in mine if item["row"] == "whole"]
        assert sum(float(item[time] or 0) for item in mine if item is not whole) == pytest.approx(float(whole[time]))
    assert {item["row"] for item in rows} >= {"whole"}


@pytest.mark.parametrize("table", ["layers", "kernels"])
def test_notes_and_warnings_are_shown(table):
    warned = (Warning("x", "Clocks moved.", "Hold them."),)
    of = profile(case(), [layer("a", 1e-3)], warnings=warned)
    of = msgspec.structs.replace(of, layers=msgspec.structs.replace(of.layers, absent={"modules": "not known"}))
    if table == "kernels":
        of = of_kernels("pytorch", made(kernel("a", 1e-3), absent={"modules": "not known"}), warnings=warned)
    shown = drawn(table, of)
    assert "Clocks moved. Hold them." in shown
    assert "modules: not known" in shown or "(1 more note: --format json)" in shown


# Layers


def test_layers_what_is_in_none_and_what_it_cost():
    """The one place that holds what is said of layers."""
    text = drawn("layers", eager(), top=3, width=160)
    assert {"1x64x56x56", "23.8"} <= set(row(text, "conv1"))
    assert row(text, "9 more: --top 12")[-2:] == ["50", "%"]
    assert row(text, "in no layer")[-2:] == ["2.36", "%"]
    assert (row(text, "call")[0], row(text, "call")[-2:]) == ("6.06", ["100", "%"])
    assert row(text, "conv1")[0] == "1.44", "its share of the call, and not the 2 ms of the profiled one"
    assert text.splitlines()[1] == "Call: 6.06 ms · Host time of layers, scaled to a call without profiling"
    assert text.splitlines()[3] == "conv1 has the largest share: 23.8 % of the call; the first 5 take 71.4 %."
    scaled = "Times are scaled from profiled calls that took 1.40x as long: small differences mean nothing."
    assert text.splitlines()[-1] == scaled
    assert scaled[:16] not in drawn("layers", eager(), median=8.4e-3)
    alone = drawn("layers", eager(), median=None)
    assert row(alone, "profiled call")[0] == "8.46"
    assert "Host time of layers in a profiled call" in alone


def test_layers_by_time_or_in_order():
    def names(**options) -> list[str]:
        return [item["name"] for item in data("layers", eager(), **options)["cases"][0]["rows"]]

    assert names(sort="order") == [item.name for item in eager().layers.layers]
    assert names()[:2] == ["conv1", "bn1"]
    assert names(sort="order", top=1) == ["conv1"]


def test_times_of_the_gpu_are_in_the_unit_of_kernels_and_waiting_is_said_first():
    parts = [layer(f"l{n}", 10e-6, f"l{n}") for n in range(30)]
    text = drawn("layers", profile(case(device="cuda"), parts, timed="GPU"), top=3, median=3e-4)
    about, answer = text.splitlines()[1:4:2]
    assert re.fullmatch(r"Call: \d+ µs · GPU time of layers, gaps included, scaled to a call without profiling", about)
    assert re.fullmatch(r"No layer takes over 5 % of the call; the first 5 take 1\d\.?\d* %\.", answer)
    assert "(ms)" not in text
    assert "gaps included" in drawn("modules", profile(case(device="cuda"), parts, timed="GPU"))
    assert "waiting" not in drawn("layers", eager())


def test_the_model_itself_has_a_name_and_layers_that_overlap_say_so():
    text = drawn("layers", profile(case("pytorch"), [layer("", 3e-3, "", kind="ResNet"), layer("fc", 1e-3, "fc")]))
    assert "the model itself has the largest share" in text, "without the modules in it"
    of = profile(case(), [layer("a", 3e-3, "a"), layer("b", 3e-3, "b")], outside=-2e-3)
    assert "Some layers ran at the same time." in drawn("layers", of)
    assert row(drawn("layers", of), "in no layer")[-2:] == ["-49.6", "%"]


# Kernels


def test_kernels_what_they_fill_and_how_they_add_up():
    """The one place that holds what is said of kernels."""
    text = drawn("kernels", traced(), width=300, top=3, median=2e-3)
    assert row(text, "nchwToNhwcKernel<…>") == ["113", "26.3", "%", "35", "no", "19", "modules"]
    wide = drawn("kernels", traced(), width=300, wide=True)
    assert {"7", "aten::cudnn_convolution"} <= set(row(wide, "nchwToNhwcKernel<…>"))
    conv1 = " ".join(row(wide, "implicit_convolve_sgemm<…>"))
    assert "no 31.2 % 18.6 % 392x2 8x8 92 2.2" in conv1, "tensor cores, occupancies, grid, block, registers, KiB"
    assert row(text, "11 more: --top 14")
    assert row(text, "all kernels")
    assert text.splitlines()[3] == (
        "nchwToNhwcKernel<…> (19 modules) has the largest share: 26.3 % of the GPU's time; the first 5 take 72.9 %. "
        "The call waits for the host: the GPU works 428 of 2,020 µs (21.2 %); 30.7 % of it uses tensor cores."
    )


def test_different_kernels_have_different_names_however_narrow_the_terminal_is():
    begin, end = "void lib::gemm<__half, ", ", false>(int)"
    names = [f"{begin}{size}{end}" for size in ("64", "128", "256")]
    names += [f"cudnn_generated_engine_{'x' * 40}_{knob}_{'y' * 40}" for knob in ("knob_1", "knob_2", "knob_27")]
    of = of_kernels("pytorch", made(*(kernel(name, 1e-3) for name in names)))
    for width in (60, 100, 250):
        rows = drawn("kernels", of, width=width).partition("───\n")[2].splitlines()
        found = {name for line in rows if (name := line.split("  ")[0]).startswith(("gemm", "cudnn"))}
        assert len(found) == 6, width
    assert row(drawn("kernels", of), "gemm<…> #2")


def test_cases_in_different_precisions_each_say_theirs():
    both = [profile(case(f"b{of}"), [layer("conv", 1e-3, "conv", precision=of)]) for of in ("fp32", "int8")]
    text = drawn("layers", *both, width=100)
    assert text.split().count("int8") == 1


def test_what_is_not_known_of_kernels_is_said():
    text = drawn("kernels", traced(GRAPH), traced(ENGINE), width=300)
    assert "?" in text
    alone = drawn("kernels", traced(GRAPH), width=300)
    assert "origins: unknown: inductor-graph does not report the layers and modules of kernels." in alone
    assert "Only 0 % of the kernels' time is traced to modules." in alone
    both = made(kernel("a", 1e-3, stream=1), kernel("b", 1e-3, stream=2), busy=1.2e-3)
    text = drawn("kernels", of_kernels("pytorch", both))
    assert "in kernels side by side; tensor cores: unknown." in text
    assert row(text, "all kernels (side by side)")
    of = made(kernel("a", 1e-3, "conv1", "bn1", tensor_cores=True), kernel("b", 1e-3))
    text = drawn("kernels", of_kernels("pytorch", of))
    assert "The kernel of conv1 + bn1 has the largest share: " in text
    assert re.search(r"; (49|50)\.?\d? % of it uses tensor cores, (49|50)\.?\d? % unknown\.", text)


def test_programs_get_kernels_in_any_order():
    def rows(**options):
        return data("kernels", traced(), **options)["cases"][0]["rows"]

    assert [item["place"] for item in rows(sort="order", by="launch")] == list(range(1, 163))
    calls = [item["calls"] for item in rows(sort="calls")]
    assert calls == sorted(calls, reverse=True)


# Modules


def test_a_tree_has_the_backends_side_by_side():
    text = drawn("modules", *ALL)
    assert row(text, "layer2.0") == ["1.23", "20.2", "%", "1.21", "20", "%", "3.89", "64.1", "%"]
    assert "layer2 has the largest share: 64.1 % with openvino." in text
    assert "torchscript:trace fp32 has no layers: It <broke>." in text
    assert row(text, "call") == ["6.06", "100", "%"] * 3


def test_a_module_that_was_fused_into_another_says_into_which():
    conv, norm = [layer(name, 1e-3, name) for name in ("conv1", "bn1")]
    together = profile(case("openvino"), [layer("conv1+bn1", 1.5e-3, "conv1", "bn1")])
    counted = Work(modules=(ModuleWork(module="conv1", flops=1e9),))
    text = drawn("modules", msgspec.structs.replace(profile(case(), [conv, norm]), work=counted), together)
    assert row(text, "conv1")[3] == "5.36"
    assert row(text, "bn1")[-2:] == ["in", "conv1"]


def test_modules_fit_on_a_screen_the_most_important_first():
    parts = [layer(f"{n}", n * 1e-4, f"block{n // 10}.{n % 10}") for n in range(60)]
    shown = drawn("modules", *(profile(case(name), parts) for name in ("a", "b", "c")), width=100).splitlines()
    assert len(shown) <= 24
    assert {"block5", "block4"} <= {line.split("  ")[0] for line in shown}
    assert any("more: --depth 3" in line for line in shown)
    few = render(
        modules_document(group_profiles(loaded(profile(case(), parts))), lines=1, brief=True, command="modules D")
    )
    assert "block5" in few
    assert "more: modules D --depth 2" in few


def test_the_reference_is_the_first_column():
    def names(**options) -> list[str]:
        found = data("modules", other(), fused(), eager(), **options)
        return [column["name"] for column in found["models"][0]["columns"]]

    assert names()[0] == "pytorch fp32"
    assert names(reference="onnxruntime")[0] == "onnxruntime:cpu fp32"
    with pytest.raises(InferlensError, match="No case fits"):
        names(reference="tensorrt")
    assert names(reference="fp32")[0] == names()[0], "the plainest of those that fit"


def test_which_profiles_share_a_tree():
    several = [eager(), profile(case(batch=8), [layer("a", 1e-3, "a")])]
    several.append(profile(case(model="other"), [layer("a", 1e-3, "a")]))
    several.append(profile(case("fake"), [layer("a", 1e-3, "a")], environment=GPU_MACHINE))
    assert len(data("modules", *several)["models"]) == 4
    late = msgspec.structs.replace(failed(case(), "Too late."), id="late", created="2027-01-01T00:00:00Z")
    assert "pytorch fp32 has no layers: Too late." in drawn("modules", late, eager())


def test_columns_that_cannot_be_compared_are_named():
    wrong = render(modules_document(group_profiles(loaded(eager(), other(), agreement=WRONG))), width=200)
    assert "and openvino are wrong." in wrong
    costly = drawn("modules", eager(), fused(), median=2e-3)
    assert "Times of pytorch (4.19x) and onnxruntime:cpu (" in costly
    assert "compare shares, not times" not in wrong

    def marks(**options) -> set[bool]:
        (model,) = data("modules", eager(), fused(), **options)["models"]
        return {cell["fastest"] for item in model["rows"] for cell in item["cells"] if cell}

    assert marks(median=2e-3) == {False}
    assert marks(median=None) == {True, False}


def test_depth():
    assert "9 more: --depth 2" in drawn("modules", eager(), depth=1)
    many = profile(case(), [layer(f"{n}", 1e-3, f"block.{n}.conv.inner") for n in range(30)])
    assert "Each of the 30 modules of block takes as much: 3." in drawn("modules", many)
    assert data("modules", many)["models"][0]["depth"] == 4


# Boxes


def boxes(*profiles: Profile, sort: str = "time", median: float | None = 6e-3):
    return part_tables("layer", cases_of_level(loaded(*profiles, median=median), "layer"), sort)


def test_boxes_are_drawn_of_any_names():
    pytest.importorskip("vl_convert")
    svg, missing = plots.boxes(boxes(nasty(), *ALL), "svg")
    assert isinstance(svg, str)
    assert svg == plots.boxes(boxes(nasty(), *ALL), "svg")[0]
    shown = "".join(Xml.fromstring(svg).itertext())
    for name in ("layer2", "pytorch fp32", "openvino fp32", "#12", "5th to 95th percentile"):
        assert name in shown
    assert "Gone" not in shown
    assert missing == ["Not drawn: torchscript:trace fp32. It <broke>."]
    assert plots.boxes(boxes(eager()), "png")[0][:4] == b"\x89PNG"
    page = plots.boxes(boxes(nasty(), sort="order"), "html")[0]
    assert "<b>" not in page.partition("</script>")[2]
    with pytest.raises(InferlensError, match=r"nothing to draw.*It broke"):
        plots.boxes(boxes(failed(case())), "svg")


@pytest.mark.parametrize(("times", "ends", "whiskers"), [
    (tuple(0.001 * run for run in range(41)), [2, 10, 20, 30, 38], "5th to 95th percentile"),
    ((0.001, 0.002, 0.003), [1, 1.5, 2, 2.5, 3], "all runs"),
])  # fmt: skip
def test_boxes_are_quantiles_over_the_runs(times, ends, whiskers):
    (of,) = boxes(profile(case(), [layer("a", None, "a", times=times)]), median=None)
    panel = plots._box_chart(of, of.table, None)
    ((box,),) = chart_data(panel)
    assert [box[end] for end in ("low", "lower", "middle", "upper", "high")] == pytest.approx(ends)
    assert whiskers in str(panel["layer"][0]["encoding"]["x"]["title"])
    assert "a has the largest share" in panel["title"]["text"]
