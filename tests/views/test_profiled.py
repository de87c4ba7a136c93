"""Views of profiles: what they show, at every width, whatever stands in the names."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from rich.cells import cell_len

from inferlens.errors import InferlensError
from inferlens.record.profile_store import LoadedProfiles
from inferlens.record.record import Warning
from inferlens.views.profiled import FORMATS, boxes, layers, modules
from inferlens.views.profiled.cases import groups
from inferlens.views.profiled.grid import shorten
from tests.analysis.profile.samples import NASTY, RUNS, eager, failed, fused, layer, nasty, other, profile, untouched
from tests.views.samples import GPU_MACHINE, WRONG, case

ALL = (eager(), fused(), other(), failed(case("torchscript:trace"), "It <broke>."))


def loaded(*profiles, median: float | None = 6e-3, **fields) -> list:
    records = (
        {each.id: msgspec.structs.replace(untouched(each, median), **fields) for each in profiles} if median else {}
    )
    return groups(LoadedProfiles(profiles=list(profiles), records=records))


def tables(*profiles, format="table", **options) -> str:
    return layers.render([case for group in loaded(*profiles) for case in group], format, **options)


def trees(*profiles, format="table", median: float | None = 6e-3, **options) -> str:
    return modules.render(loaded(*profiles, median=median), format, **options)


def rows_of(drawn: str, name: str) -> list[str]:
    return [line for line in drawn.splitlines() if line.startswith(name)]


# Layers


def test_layers_what_is_in_none_and_what_it_cost():
    drawn = tables(eager(), top=3, width=160)
    assert rows_of(drawn, "conv1")
    assert "1x64x56x56" in rows_of(drawn, "conv1")[0]
    assert "23.8 %" in rows_of(drawn, "conv1")[0]
    assert rows_of(drawn, "9 other layers")
    assert "2.36 %" in rows_of(drawn, "in no layer")[0]
    assert "100 %" in rows_of(drawn, "whole run")[0]
    assert "conv1 takes most: 23.8 % of a run; the 5 that take most of 12 layers take 71.4 %." in drawn
    assert "Layers add up to 8.26 ms of 8.46 ms (medians); 0.200 ms (2.36 %) were in no layer." in drawn
    assert "Profiling made a call 1.40x (1.39 to 1.40) as long: 8.46 ms instead of 6.06 ms." in drawn


def test_layers_by_time_or_in_order():
    names = [row["name"] for row in json.loads(tables(eager(), format="json"))["cases"][0]["rows"]]
    ordered = [row["name"] for row in json.loads(tables(eager(), format="json", sort="order"))["cases"][0]["rows"]]
    assert ordered == [each.name for each in eager().layers.layers]
    assert names[:2] == ["conv1", "bn1"]
    top = json.loads(tables(eager(), format="json", sort="order", top=1))["cases"][0]["rows"]
    assert [row["name"] for row in top] == ["conv1"]
    with pytest.raises(InferlensError, match="sorted by 'tim'"):
        tables(eager(), sort="tim")


def test_the_model_itself_has_a_name():
    """Eager PyTorch executes it too, and its path is empty."""
    of = profile(case("pytorch"), [layer("", 3e-3, "", kind="ResNet"), layer("fc", 1e-3, "fc")])
    cases = [one for group in groups(LoadedProfiles(profiles=[of])) for one in group]
    text = layers.render(cases, width=200)
    assert "the model takes most" in text
    assert "(no name)" not in text


def test_layers_that_overlap_say_so():
    made = profile(case(), [layer("a", 3e-3, "a"), layer("b", 3e-3, "b")], outside=-2e-3)
    assert "some ran at the same time" in tables(made, width=300)
    assert "-49.6 %" in rows_of(tables(made, width=300), "in no layer")[0]
    assert "Below zero: layers ran at the same time." in trees(made, width=300)


def test_notes_and_warnings_are_shown():
    warned = profile(case(), [layer("a", 1e-3)], warnings=(Warning("x", "Clocks moved.", "Hold them."),))
    warned = msgspec.structs.replace(
        warned, layers=msgspec.structs.replace(warned.layers, absent={"modules": "not told"})
    )
    drawn = tables(warned)
    assert "Clocks moved. Hold them." in drawn
    assert "modules: not told" in drawn
    assert "Clocks moved. Hold them." in tables(warned, format="markdown")


@pytest.mark.parametrize("top", [None, 1, 3])
def test_csv_of_layers_adds_up(top):
    rows = list(csv.DictReader(io.StringIO(tables(*ALL, format="csv", top=top))))
    for digest in {row["digest"] for row in rows}:
        mine = [row for row in rows if row["digest"] == digest]
        parts = sum(float(row["typical"] or 0) for row in mine if row["row"] != "whole")
        (whole,) = [float(row["typical"]) for row in mine if row["row"] == "whole"]
        assert parts == pytest.approx(whole)
    assert len({row["digest"] for row in rows}) == 3


def test_json_of_layers_has_the_reconciliation():
    data = json.loads(tables(*ALL, format="json"))
    assert data["schema"] == "inferlens.layers/1"
    first, *_, last = data["cases"]
    assert first["reconciliation"]["runs"] == RUNS
    assert first["reconciliation"]["outside"]["share"] == pytest.approx(0.0236, rel=0.01)
    assert (last["status"], last["reason"], last["rows"]) == ("failed", "It <broke>.", [])


# Modules


def test_a_tree_has_the_backends_side_by_side():
    drawn = trees(*ALL, width=140)
    (line,) = [line for line in drawn.splitlines() if line.startswith("├─ layer2")]
    assert line.split() == ["├─", "layer2", "1.71", "20.2", "%", "0.907", "★", "20", "%", "5.05", "▼", "64.1", "%"]
    assert "layer2 takes most: 64.1 % with openvino fp32" in drawn
    assert "torchscript:trace fp32 has no layers: It <broke>." in drawn
    assert "↑: fused with modules outside of this row" in drawn
    assert "untouched call" in drawn


def test_the_rule_for_fused_layers_is_said():
    assert "split equally among them" in trees(*ALL, fused="split")
    assert "0.755 ≈" in trees(*ALL, fused="split", width=160)
    assert json.loads(trees(*ALL, fused="split", format="json"))["models"][0]["rule"] == "split"
    with pytest.raises(InferlensError, match="no rule for fused layers 'half'"):
        trees(eager(), fused="half")


def test_the_reference_is_the_first_column():
    def names(**options) -> list[str]:
        data = json.loads(trees(other(), fused(), eager(), format="json", **options))
        return [column["name"] for column in data["models"][0]["columns"]]

    assert names()[0] == "pytorch fp32"
    assert names(reference="onnxruntime")[0] == "onnxruntime:cpu fp32"
    with pytest.raises(InferlensError, match="No case fits"):
        names(reference="tensorrt")
    with pytest.raises(InferlensError, match="fits 3 cases"):
        names(reference="fp32")


def test_other_models_batches_and_machines_have_trees_of_their_own():
    made = [eager(), profile(case(batch=8), [layer("a", 1e-3, "a")])]
    made.append(profile(case(model="other"), [layer("a", 1e-3, "a")]))
    made.append(profile(case("fake"), [layer("a", 1e-3, "a")], environment=GPU_MACHINE))
    assert len(json.loads(trees(*made, format="json"))["models"]) == 4


def test_the_latest_profile_of_a_case_counts():
    late = msgspec.structs.replace(failed(case(), "Too late."), id="late", created="2027-01-01T00:00:00Z")
    assert "pytorch fp32 has no layers: Too late." in trees(late, eager())


def test_wrong_outputs_and_unknown_costs_are_said():
    drawn = modules.render(loaded(eager(), other(), agreement=WRONG), width=200)
    assert "The outputs of openvino fp32 are wrong." in drawn
    assert "★" not in drawn
    assert "What profiling cost with pytorch fp32 is not known." in trees(eager(), median=None, width=200)


def test_columns_that_profiling_made_much_longer_are_not_compared():
    assert "★" in trees(eager(), fused(), width=200)
    drawn = trees(eager(), fused(), median=2e-3, width=200)
    assert "★" not in drawn
    assert "Not compared with others, because profiling made calls that much longer: pytorch fp32 (" in drawn


@pytest.mark.parametrize("draw", [tables, trees])
def test_profiled_faster_than_untouched_is_explained(draw):
    said = "Below 1x the two processes differ by more than profiling costs."
    assert said in draw(fused(), width=300)
    assert said not in draw(eager(), width=300)


def test_depth():
    assert "unfolds more of 9" in trees(eager(), depth=1, width=200)
    assert "layer1.0.conv1" not in trees(eager(), depth=2, format="markdown")
    assert "layer1.0.conv1" in trees(eager(), depth=3, format="markdown")
    many = profile(case(), [layer(f"{n}", 1e-3, f"block.{n}.conv.inner") for n in range(30)])
    assert "unfolded 2 of 4 deep" in trees(many)
    assert '"depth": 4' in trees(many, format="json").replace("\n", "")


def test_csv_of_modules_adds_up():
    rows = list(csv.DictReader(io.StringIO(trees(*ALL, format="csv"))))
    for digest in {row["digest"] for row in rows}:
        mine = [row for row in rows if row["digest"] == digest]
        top = sum(float(row["typical"] or 0) for row in mine if row["depth"] == "1")
        assert top == pytest.approx(float(mine[0]["typical"]))


# Both


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("draw", [tables, trees])
def test_nothing_in_a_name_breaks_out(draw, format):
    drawn = draw(nasty(), *ALL, format=format)
    if format == "json":
        assert repr(NASTY) in str(json.loads(drawn))
    elif format == "csv":
        assert NASTY in {cell for row in csv.reader(io.StringIO(drawn)) for cell in row}
    else:
        assert "\u202e" not in drawn
        assert "\x1b" not in drawn
    if format == "markdown":
        assert "<b>" not in drawn.replace("\\<", "")
        assert max(map(len, drawn.splitlines())) < 2000


@pytest.mark.parametrize("width", [20, 60, 61, 80, 100, 120, 200])
@pytest.mark.parametrize("draw", [tables, trees])
def test_lines_fit_the_terminal(draw, width):
    drawn = draw(nasty(), *ALL, width=width)
    assert max(map(cell_len, drawn.splitlines())) <= max(width, 60)
    assert draw(nasty(), *ALL, width=width) == drawn
    assert "\x1b" in draw(*ALL, width=width, color=True)


@pytest.mark.parametrize("draw", [tables, trees])
def test_only_failures(draw):
    assert "has no layers: It broke." in draw(failed(case()), width=200)
    assert "It broke." in draw(failed(case()), format="markdown")
    assert draw(failed(case()), format="csv").count("\n") == 1
    assert "It broke." in draw(failed(case()), format="json")
    with pytest.raises(InferlensError, match="no format 'cvs'"):
        draw(eager(), format="cvs")


def test_shortening():
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert [cell_len(shorten("層" * 9, width)) <= width for width in range(1, 20)] == [True] * 19


# Boxes


def test_boxes_are_drawn_of_any_names():
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    cases = [each for group in loaded(nasty(), *ALL) for each in group]
    svg = boxes.render(cases, "svg")
    assert isinstance(svg, str)
    assert svg == boxes.render(cases, "svg")
    root = Xml.fromstring(svg)
    shown = "".join(root.itertext())
    for name in ("layer2.0 all", "pytorch fp32", "openvino fp32", "#12", "5th to 95th percentile"):
        assert name in shown
    assert "Gone" not in shown
    assert boxes.not_drawn(cases) == ["Not drawn: torchscript:trace fp32. It <broke>."]
    assert boxes.render(cases, "png", top=2)[:4] == b"\x89PNG"
    page = boxes.render(cases, "html", sort="order")
    assert "<b>" not in page.partition("</script>")[2]


def test_boxes_are_quantiles_over_the_runs():
    pytest.importorskip("altair")
    made = profile(case(), [layer("a", None, "a", times=tuple(0.001 * run for run in range(41)))])
    (each,) = [one for group in loaded(made) for one in group]
    (box,) = boxes._panel(each, "time", 5)["values"]
    assert [box[end] for end in ("low", "lower", "middle", "upper", "high")] == pytest.approx([2, 10, 20, 30, 38])
    few = profile(case(), [layer("a", None, "a", times=(0.001, 0.002, 0.003))])
    (each,) = [one for group in loaded(few) for one in group]
    panel = boxes._panel(each, "time", 5)
    assert [panel["values"][0][end] for end in ("low", "high")] == [1, 3]
    assert "all runs" in panel["subtitle"][1]


def test_nothing_to_draw_is_an_error():
    pytest.importorskip("altair")
    with pytest.raises(InferlensError, match="nothing to draw"):
        boxes.render([one for group in loaded(failed(case())) for one in group], "svg")
    with pytest.raises(InferlensError, match="cannot be written as 'gif'"):
        boxes.render([], "gif")
