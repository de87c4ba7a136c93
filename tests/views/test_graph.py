"""Graphs as pictures: everything in its place, text that is only text, and pages that work offline."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from inferlens.analysis.profile.graph import Graph, Region
from inferlens.analysis.profile.graph_fold import graph_of
from inferlens.analysis.profile.modules import Path
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.record.layer_profile import Tensor
from inferlens.views.graph import place, render
from inferlens.views.graph.boxes import boxes
from inferlens.views.graph.colours import BANDS, HEAT, heat, inks
from inferlens.views.graph.place import Placed, numbered, placed, spine
from inferlens.views.graph.words import begun, fitted, named, width
from tests.analysis.profile.graphs import long, reads, residual, source
from tests.analysis.profile.samples import NASTY

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    NASTY,
    "a ' b\" c\n<d> & \u202e ]]> --> \x00\x0b\ufffe\ud800 {0} %s",
    "</svg><script>alert(1)</script>",
    "Ж" * 3000,
)

pytestmark = pytest.mark.skipif(not place.importlib.util.find_spec("pygraphviz"), reason="needs pygraphviz")


def laid_out(graph: Graph) -> tuple[Placed, list]:
    made = boxes(graph, fused=False)
    return placed(graph, made), made


def drawn(*graphs: Graph, fused: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(render(graphs, "svg", title="small", fused=fused))


def groups(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [each for each in root.iter(f"{SVG}g") if each.get("class") == kind]


def words(root: ElementTree.Element) -> str:
    return "\n".join(each.text or "" for each in root.iter(f"{SVG}text"))


# Where things are


def test_everything_has_a_place_and_data_flows_downwards():
    graph = graph_of(residual())
    where, made = laid_out(graph)
    assert set(where.nodes) == set(range(len(graph.nodes)))
    assert set(where.edges) == set(range(len(graph.edges)))
    for edge in graph.edges:
        assert where.nodes[edge.tail][1] < where.nodes[edge.head][1]
    spans = []
    for index, box in enumerate(made):
        x, y = where.nodes[index]
        assert box.width / 2 <= x + 0.01
        assert x + box.width / 2 <= where.width + 0.01
        spans.append((x - box.width / 2, y - box.height / 2, x + box.width / 2, y + box.height / 2))
    for index, one in enumerate(spans):
        assert not any(
            one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
            for other in spans[index + 1 :]
        )


def test_regions_hold_their_nodes_and_inner_regions():
    graph = graph_of(residual())
    where, made = laid_out(graph)

    def inside(number: int, x: float, y: float) -> bool:
        left, top, right, bottom = where.regions[number]
        return left <= x <= right and top <= y <= bottom

    regions: list[Region] = list(numbered(graph.regions))
    assert [region.path for region in regions] == [("blocks",), ("blocks", "0"), ("blocks", "1")]
    for number, region in enumerate(regions):
        for index in range(len(made)):
            assert inside(number, *where.nodes[index]) == (index in region.nodes)


def test_the_longest_chain_is_straight():
    graph = graph_of(long(60), regions="none", depth=9)
    where, _ = laid_out(graph)
    assert len({round(where.nodes[index][0]) for index in range(60)}) == 1
    assert len(spine(graph.edges, len(graph.nodes))) == 60


def test_a_cycle_is_laid_out():
    root = drawn(graph_of(source(reads("x b", "a"), reads("a", "b"))))
    assert len(groups(root, "edge")) == 3


def test_two_thousand_layers_are_drawn_in_seconds():
    root = drawn(graph_of(long(2_000)))
    assert len(groups(root, "node")) <= 92
    assert "2,000 layers are drawn as" in words(root)


# What is seen


def test_nodes_tell_time_share_modules_and_dimensions():
    root = drawn(graph_of(residual()))
    text = words(root)
    assert len(groups(root, "node")) == 9
    assert "1.00 ms · 14.3 %" in text
    assert "= Conv + Add + Relu" in text
    assert "b + relu" in text
    assert "1x64x56x56" in text
    assert "blocks · 5.00 ms · 71.4 %" in text
    tooltips = [group.findtext(f"{SVG}title") for group in groups(root, "node")]
    assert any("module: blocks.0.relu" in tip for tip in tooltips if tip)


def test_fused_parts_are_a_region_in_the_node():
    root = drawn(graph_of(residual(), regions="fused"), fused=True)
    text = words(root)
    assert "fused from 3" in text
    assert "blocks.0.relu" in text.splitlines()
    assert any(each.get("stroke-dasharray") for each in root.iter(f"{SVG}rect"))


def test_precisions_differ_in_letters_colour_and_pattern():
    layers = [reads("x", "a", details={"precision": "fp16"}), reads("a", "b", details={"precision": "int8"})]
    root = drawn(graph_of(source(*layers)))
    fills = {each.get("fill") for each in root.iter(f"{SVG}path")}
    assert {"url(#precision-fp16)", "url(#precision-int8)"} <= fills
    assert {"fp16", "int8"} <= set(words(root).splitlines())
    assert len({(band.colour, band.pattern) for band in BANDS.values()}) == len(BANDS)


def luminance(colour: str) -> float:
    return sum(weight * int(colour[at : at + 2], 16) for weight, at in ((0.2126, 1), (0.7152, 3), (0.0722, 5)))


def test_more_time_is_darker_in_grey_too_and_text_stays_readable():
    scale = [luminance(heat(share / 50, 1.0)) for share in range(51)]
    assert scale == sorted(scale, reverse=True)
    assert heat(0.0, 1.0) == HEAT[0]
    assert heat(2.0, 1.0) == HEAT[-1]
    assert heat(None, 1.0) == heat(1.0, 0.0) == "#FFFFFF"
    assert inks(HEAT[-1])[0] == "#FFFFFF"
    assert inks(HEAT[0])[0] != "#FFFFFF"


def test_convolutions_tell_their_kernel():
    weights = Tensor(name="w", shape=(32, 1, 3, 3))
    layer = reads("x", "a")
    depthwise = replace(layer, inputs=(layer.inputs[0], weights))
    assert "Conv 3x3 depthwise" in words(drawn(graph_of(source(depthwise))))
    added = reads("x other", "a")
    assert "Conv 56x56" not in words(drawn(graph_of(source(reads("x", "other"), added))))


def test_several_graphs_share_a_scale_and_stand_side_by_side():
    one = graph_of(residual())
    root = drawn(one, graph_of(source(reads("x", "a"), title="other", seconds=(1e-3,), whole=1e-3)))
    text = words(root).splitlines()
    assert {"small", "other", "100 %"} <= set(text)
    with pytest.raises(InferlensError, match="7 graphs"):
        render([one] * 7, "svg", title="x")


# Text is only text


@pytest.mark.parametrize("fused", [False, True])
def test_hostile_names_are_only_text(fused):
    made = [
        reads("x", "a", name, name, name=name, kind=name, operators=(name, name), details={name: name})
        for name in HOSTILE
    ]
    shaped = [reads(f"t{i}", f"t{i + 1}", *made[i].modules, name=made[i].name, kind=made[i].kind,
                    operators=made[i].operators, details=made[i].details) for i in range(len(made))]  # fmt: skip
    inputs = (Tensor(name="t0", shape=(1,)),)
    graph = graph_of(source(*shaped, title=HOSTILE[0], about=HOSTILE[2], notes=HOSTILE, inputs=inputs))
    svg = render([graph], "svg", title=HOSTILE[1], fused=fused)
    assert isinstance(svg, str)
    root = ElementTree.fromstring(svg)
    assert not list(root.iter(f"{SVG}script"))
    assert len(groups(root, "node")) == len(HOSTILE) + 2
    for text in root.iter(f"{SVG}text"):
        assert width(text.text or "", float(text.get("font-size", "0"))) < 1_200
    page = render([graph], "html", title=HOSTILE[2], fused=fused)
    assert isinstance(page, str)
    assert page.count("<script>") == 1


def test_what_does_not_fit_is_cut_and_told_in_full():
    name = "encoder." * 30 + "last"
    root = drawn(graph_of(source(reads("x", "a", name=name))))
    assert name not in words(root)
    assert any(name in (title.text or "") for title in root.iter(f"{SVG}title"))
    assert width(fitted(name, 100, 12), 12) <= 100
    assert fitted(name, 100, 12).startswith("enc")
    assert fitted(name, 100, 12).endswith("last")
    assert begun("9 Reshape, 8 Transpose", 60, 10).endswith("…")


@pytest.mark.parametrize(
    ("paths", "inside", "text"),
    [
        (["layer1.0.conv1", "layer1.0.bn1"], ("layer1", "0"), "conv1 + bn1"),
        (["layer1.0.conv1", "layer1.0.bn1"], (), "layer1.0.conv1 + bn1"),
        (["layer1.0"], ("layer1", "0"), ""),
        (["a.b", "c"], ("a",), "b + c"),
        (["conv1.conv", "conv1.bn", "conv1"], (), "conv1.conv + bn"),
        ([], (), ""),
    ],
)
def test_modules_are_named_from_where_they_are(paths: list[str], inside: Path, text: str):
    assert named(paths, inside) == text


# Formats


def test_the_page_runs_one_script_and_loads_nothing():
    page = render([graph_of(residual())], "html", title="small")
    assert isinstance(page, str)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=", page)
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_png_is_a_picture_of_that_size():
    pytest.importorskip("vl_convert")
    image = render([graph_of(residual())], "png", title="small")
    assert isinstance(image, bytes)
    assert image.startswith(b"\x89PNG")
    root = drawn(graph_of(residual()))
    assert int.from_bytes(image[16:20], "big") == 2 * int(root.get("width", "0"))


def test_a_drawing_too_tall_for_a_png_is_refused_with_a_cure(monkeypatch):
    pytest.importorskip("vl_convert")
    monkeypatch.setattr("inferlens.views.graph.TALLEST", 400)
    with pytest.raises(InferlensError, match="too many for a PNG") as raised:
        render([graph_of(residual())], "png", title="small")
    assert "--depth" in raised.value.hint


def test_json_keeps_names_as_they_are():
    graph = graph_of(source(*(reads(f"t{i}", f"t{i + 1}", name=name) for i, name in enumerate((NASTY, HOSTILE[2])))))
    data = json.loads(render([graph], "json", title=HOSTILE[1]))
    assert [node["name"] for node in data["graphs"][0]["nodes"][:2]] == [NASTY, HOSTILE[2]]


def test_json_has_everything_and_needs_no_library(monkeypatch):
    monkeypatch.setattr(place.importlib.util, "find_spec", lambda _: None)
    data = json.loads(render([graph_of(residual())], "json", title="small"))
    assert data["schema"] == "inferlens.graph/1"
    (graph,) = data["graphs"]
    assert len(graph["nodes"]) == 9
    assert graph["edges"][0].keys() >= {"tail", "head", "tensors", "known"}
    with pytest.raises(MissingLibrary, match="pygraphviz") as raised:
        render([graph_of(residual())], "svg", title="small")
    assert raised.value.hint == "pip install 'inferlens[graphs]'"


def test_another_format_is_refused():
    with pytest.raises(InferlensError, match="cannot be written as 'gif'"):
        render([graph_of(residual())], "gif", title="x")


# Graphviz in its process


@pytest.mark.parametrize(
    ("child", "said"),
    [
        ("import os; os.abort()", "it ended with -6"),
        ("raise SystemExit('out of ranks')", "out of ranks"),
        ("print('{')", "cannot lay out 9 nodes and 10 edges"),
    ],
)
def test_graphviz_may_crash_and_it_is_said(monkeypatch, child, said):
    monkeypatch.setattr(place, "_CHILD", child)
    with pytest.raises(InferlensError, match=said) as raised:
        laid_out(graph_of(residual()))
    assert "--depth" in raised.value.hint


def test_graphviz_may_take_for_ever(monkeypatch):
    monkeypatch.setattr(place, "DEADLINE", 0.2)
    monkeypatch.setattr(place, "_CHILD", "import threading; threading.Event().wait(30)")
    with pytest.raises(InferlensError, match="within 0 seconds"):
        laid_out(graph_of(residual()))


def test_graphviz_is_told_no_name():
    graph = graph_of(source(reads("x", "a", HOSTILE[2], name=HOSTILE[1]), reads("a", "b", HOSTILE[2])))
    told = "\n".join(place._dot(graph, boxes(graph, fused=False)))
    assert not re.search(r"script|alert|Conv", told)


def test_nothing_heavy_is_imported():
    script = "import sys, inferlens.views.graph; print([m for m in ('torch', 'onnx', 'altair') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
