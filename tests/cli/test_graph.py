"""``inferlens graph`` as a person runs it: on profiles, ONNX files and engines' information, good ones and bad ones."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.analysis.profiles import eager, failed, fused, nasty, other, saved
from tests.commands import inferlens, output_of, refusal_of
from tests.views.samples import case

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return saved(tmp_path / "results", eager(), fused(), other())


def nodes(file: Path) -> int:
    return sum(each.get("class") == "node" for each in ElementTree.parse(file).iter(f"{SVG}g"))


def test_several_cases_side_by_side_and_what_is_not_drawn(results):
    pytest.importorskip("pygraphviz")
    saved(results / "more", failed(case("torchscript"), "It broke."))
    done = inferlens("graph", "results", "--depth", "1", cwd=results.parent)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for said in ("Not drawn: torchscript fp32. It broke.", "--depth 2 unfolds more", "the order in which they ran",
                 "Wrote graph.svg."):  # fmt: skip
        assert said in done.stderr
    text = (results.parent / "graph.svg").read_text()
    assert all(name in text for name in ("pytorch fp32", "onnxruntime:cpu fp32", "openvino fp32"))
    assert nodes(results.parent / "graph.svg") == 4 + 5 + 3
    saved(results.parent / "hostile", nasty())
    output_of("graph", "hostile", cwd=results.parent)
    assert nodes(results.parent / "graph.svg") == 2


def test_an_onnx_file(tmp_path, monkeypatch):
    pytest.importorskip("pygraphviz")
    onnx = pytest.importorskip("onnx")
    text = "g (float[n,3,8,8] x) => (float[n,3,8,8] y) { a = Tanh(x) b = Relu(a) y = Add(a, b) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    for node, scope in zip(model.graph.node, ("block.conv", "block.act", "block"), strict=True):
        node.name = f"<b> \"{scope}\" & 'd'"
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(["", scope, "op"]))
    onnx.save(model, tmp_path / "model.onnx")
    output_of("graph", "model.onnx", "-o", "graph.json", cwd=tmp_path)
    (graph,) = json.loads((tmp_path / "graph.json").read_text())["graphs"]
    assert [node["kind"] for node in graph["nodes"]] == ["Tanh", "Relu", "Add", "", ""]
    assert (graph["nodes"][0]["outputs"][0]["shape"], graph["nodes"][0]["seconds"]) == ([-1, 3, 8, 8], None)
    assert graph["regions"][0]["path"] == ["block"]
    assert {(edge["tail"], edge["head"]) for edge in graph["edges"]} == {(3, 0), (0, 1), (0, 2), (1, 2), (2, 4)}
    output_of("graph", "model.onnx", "--regions", "none", cwd=tmp_path)
    assert "?x3x8x8" in (tmp_path / "graph.svg").read_text()
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "[onnx]'" in refusal_of("graph", "model.onnx", cwd=tmp_path)
