"""Graphs as pictures: what stands in them, text that is only text, and pages that work offline."""

import base64
import hashlib
import importlib.util
import json
import re
from xml.etree import ElementTree

import pytest

from inferlens.analysis.graph import Graph, build_graph
from inferlens.errors import MissingLibrary
from inferlens.views import graph as view
from inferlens.views.graph import BANDS, HEAT, heat, ink, render_graphs
from tests.analysis.profiles import NASTY, reads, residual, source, tensors
from tests.refusals import refusal

SVG = "{http://www.w3.org/2000/svg}"
TITLE = "{http://www.w3.org/1999/xlink}title"
HOSTILE = (
    NASTY, "a ' b\" c\n<d> & \u202e ]]> --> \x00\x0b\ufffe\ud800 {0} %s", "</svg><script>alert(1)</script>", '\\N\\"\\',
    "Ж" * 3000,
)  # fmt: skip

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("pygraphviz"), reason="needs pygraphviz")


def drawn(*graphs: Graph, fused: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(render_graphs(graphs, "svg", title="small", fused=fused))


def groups(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [item for item in root.iter(f"{SVG}g") if item.get("class") == kind]


def words(root: ElementTree.Element) -> str:
    return "\n".join((item.text or "").strip() for item in root.iter(f"{SVG}text"))


def tooltips(root: ElementTree.Element, kind: str = "node") -> list[str]:
    return [link.get(TITLE, "") for group in groups(root, kind) for link in group.iter(f"{SVG}a")]


def test_nodes_show_time_share_modules_and_dimensions():
    root = drawn(build_graph(residual()))
    text = words(root)
    assert [len(groups(root, kind)) for kind in ("node", "edge", "cluster")] == [9, 10, 3]
    for item in ("1.00 ms · 14.3 %", "1x64x56x56", "= Conv + Add + Relu", "b + relu", "5.00 ms · 71.4 %", "blocks.0"):
        assert item in text
    assert any("module: blocks.0.relu" in tip for tip in tooltips(root))
    assert set(tooltips(root, "edge")) == {
        f"1x64x56x56 float32 {name}" for name in ["x", "stem", "a0", "b0", "moved", "a1", "b1", "y"]
    }
    text = words(drawn(build_graph(residual(), regions="fused"), fused=True))
    assert {"fused from 3", "blocks.0.relu"} <= set(text.splitlines())


def test_precisions_differ_in_letters_and_colour():
    layers = [reads("x", "a", details={"precision": "fp16"}), reads("a", "b", details={"precision": "int8"})]
    root = drawn(build_graph(source(*layers)))
    assert {BANDS["fp16"].lower(), BANDS["int8"].lower()} <= {item.get("fill") for item in root.iter(f"{SVG}polygon")}
    assert {"fp16", "int8"} <= set(words(root).splitlines())


def test_more_time_is_darker_and_text_stays_readable():
    assert (heat(0.0, 1.0), heat(2.0, 1.0), heat(None, 1.0), heat(1.0, 0.0)) == (HEAT[0], HEAT[-1], HEAT[0], HEAT[0])
    assert [ink(colour) == "#FFFFFF" for colour in HEAT] == [False] * 5 + [False, True]


def test_hostile_names_are_only_text():
    layers = [
        reads(f"t{at}", f"t{at + 1}", name, name, name=name, kind=name, operators=(name, name), details={name: name})
        for at, name in enumerate(HOSTILE)
    ]
    graph = build_graph(source(*layers, title=HOSTILE[0], about=HOSTILE[2], notes=HOSTILE, inputs=tensors("t0")))
    for fused in (False, True):
        root = ElementTree.fromstring(render_graphs([graph], "svg", title=HOSTILE[1], fused=fused))
        assert not list(root.iter(f"{SVG}script"))
        assert len(groups(root, "node")) == len(HOSTILE) + 2
        assert any('∖N∖"∖' in tip for tip in tooltips(root))
    page = render_graphs([graph], "html", title=HOSTILE[2])
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"script-src {allowed};" in page
    assert "unsafe" not in page.partition("</head>")[0]
    assert len(scripts) == 2  # of the graph, and of every page
    assert not re.findall(r"(?:src|href)=", page), "it loads nothing"


def test_what_does_not_fit_is_cut_and_stands_in_full_in_the_tooltip():
    name = "encoder." * 30 + "last"
    root = drawn(build_graph(source(reads("b", "a"), reads("a", "b", name=name))))
    assert name not in words(root)
    assert re.search(r"^encoder.+…\S*last$", words(root), re.M)
    assert any(name in tip for tip in tooltips(root))
    assert len(groups(root, "edge")) >= 2, "a cycle is drawn"


def test_png_is_a_picture_of_that_size():
    pytest.importorskip("vl_convert")
    image = render_graphs([build_graph(residual())], "png", title="small")
    assert image.startswith(b"\x89PNG")
    assert int.from_bytes(image[16:20], "big") == 2 * int(drawn(build_graph(residual())).get("width", "0"))


def test_json_has_names_as_they_are_and_needs_no_library(monkeypatch):
    graph = build_graph(source(*(reads(f"t{i}", f"t{i + 1}", name=name) for i, name in enumerate((NASTY, HOSTILE[2])))))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    data = json.loads(render_graphs([graph], "json", title="small"))
    assert [node["name"] for node in data["graphs"][0]["nodes"][:2]] == [NASTY, HOSTILE[2]]
    refused = refusal("pygraphviz", render_graphs, [graph], "svg", title="small")
    assert (type(refused), refused.hint[-9:]) == (MissingLibrary, "[graphs]'")


@pytest.mark.parametrize(("child", "deadline", "said"), [
    ("import os; os.abort()", 60, "it ended with -6"), ("raise SystemExit('out of ranks')", 60, "out of ranks"),
    ("import threading; threading.Event().wait(30)", 0.4, "within 0 seconds"),
])  # fmt: skip
def test_graphviz_may_crash_or_take_for_ever_and_it_is_said(monkeypatch, child, deadline, said):
    monkeypatch.setattr(view, "_CHILD", child)
    words, graphs = f"cannot lay out 9 nodes and 10 edges.*{said}", [build_graph(residual())]
    assert "--depth" in refusal(words, render_graphs, graphs, "svg", title="small", deadline=deadline).hint
