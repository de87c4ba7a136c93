"""``inferlens layers``, ``modules``, ``kernels``, ``roofline`` and ``graph`` as a person runs them.

They read good and bad folders of profiles, ONNX files and information about engines.
"""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from inferlens.measure import ceilings as measuring
from inferlens.record.profile import encode_profile
from inferlens.record.store import load_profiles
from tests.analysis.profiles import eager, failed, fused, nasty, other, saved, traced
from tests.backends.profiling.samples import ENGINE, GRAPH
from tests.commands import inferlens, output_of, refusal_of
from tests.views.samples import case

COMMANDS = ("layers", "modules", "kernels")
FLOPS = 2 * 16 * 16 * 8 * 3 * 9 + 2 * 8 * 10  # of the small network


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return saved(tmp_path / "results", eager(), fused(), other(), traced(), traced(ENGINE))


def test_options(results):
    def shown(words: str) -> str:
        return output_of(*words.split(), cwd=results.parent)

    rows = [line.split(",")[4] for line in shown("layers results/case0 --sort order --top 2 -f csv").splitlines()[1:]]
    assert rows == ["layer", "layer", "other layers", "in no layer", "whole"]
    modules = shown("modules results --depth 1 --reference openvino --fused split")
    assert modules.index("openvino") < modules.index("onnxruntime")
    assert shown("kernels results --by launch --sort order -f csv").count(",launch,") == 162 + 25
    assert "host-bound" in shown("show results --view findings --all")
    shown("layers results --columns share -o l.md")
    assert "| module | share |" in (results.parent / "l.md").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_files_are_notes(results, command):
    for name, data in {
        "a": b"", "b": b"[" * 100_000, "c": b"\xff\xfe", "d": b'{"schema": "inferlens.profile/9"}',
        "e": encode_profile(eager())[:-200], "f": encode_profile(eager()).replace(b'"whole":[', b'"whole":[1e999,'),
        "g": encode_profile(traced(GRAPH)).replace(b'"busy":[', b'"busy":[1e999,'),
    }.items():  # fmt: skip
        (results / name).mkdir()
        (results / name / "profile-layer.json").write_bytes(data)
    (results / "h" / "profile-layer.json").mkdir(parents=True)
    (results / "case1" / "record.json").write_bytes(b"{")
    done = inferlens(command, "results", cwd=results.parent)
    assert (done.returncode, done.stderr.count("was left out")) == (0, 9)
    assert {"kernels": "nchwToNhwc", "modules": "layer2"}.get(command, "conv1") in done.stdout


def test_drawings_instead_of_a_table(results):
    pytest.importorskip("vl_convert")
    assert output_of("layers", "results", "--plot", "l.svg", "--trace", "l.json", cwd=results.parent) == ""
    assert (results.parent / "l.svg").read_text().startswith("<svg")
    assert "GPU stream 203" in (results.parent / "l.json").read_text()


def test_a_profiled_model_has_floors_in_every_form(tmp_path, monkeypatch):
    """A small network, profiled on two backends; the ceilings are measured on sizes of a moment."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    monkeypatch.setattr(measuring, "SECONDS", 0.01)
    monkeypatch.setattr(measuring, "MATRICES", {"cpu": (128,)})
    monkeypatch.setattr(measuring, "copy_sizes", lambda _: (1 << 20,))
    options = ["--backend", "pytorch,onnxruntime", "--input", "image=1x3x16x16", "--threads", "1", "--runs", "5"]
    words = ["tests.backends.small:Convolution", *options, "--max-time", "0.1s", "--output", "results"]
    output_of("profile", *words, cwd=tmp_path)
    one, other = load_profiles([tmp_path / "results"]).profiles
    for made in (one, other):
        assert sum(each.flops for each in made.work.modules) == FLOPS
        assert made.ceilings.basis.endswith("1 thread")
    assert one.ceilings == other.ceilings
    assert "Where in each: inferlens roofline results --top 5" in output_of("roofline", "results", cwd=tmp_path)
    data = json.loads(output_of("roofline", "results", "-f", "json", "--by", "module", cwd=tmp_path))
    for each in data["cases"]:
        assert sum(row["flops"] or 0 for row in each["rows"]) == pytest.approx(FLOPS)
        assert "convolution" in {row["name"] for row in each["rows"]}
    data = json.loads(output_of("modules", "results", "--fused", "split", "-f", "json", cwd=tmp_path))
    (split,) = data["models"]
    (norm,) = [row for row in split["rows"] if row["path"] == "norm"]
    assert norm["cells"][1]["times"] is None  # it was folded into the convolution, which has all of the FLOPs
    pytest.importorskip("vl_convert")
    done = inferlens("roofline", "results", "--plot", "floors.svg", cwd=tmp_path)
    assert "Wrote floors.svg." in done.stderr
    assert (tmp_path / "floors.svg").read_text().startswith("<svg")


@pytest.mark.usefixtures("one_process")
def test_what_a_profile_of_many_cases_ends_with_fits_on_a_screen(tmp_path):
    words = ["-b", "fake:steady,fake:fast", "--precision", "fp32,fp16", "--runs", "5", "--max-time", "0.1s"]
    lines = output_of("profile", "fake:demo", *words, cwd=tmp_path).splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    rows = [line.split("  ")[0] for line in lines if "  " in line]
    assert [name for name in rows if name in ("stem", "body", "call")] == ["stem", "body", "call"]
    assert lines[-1].startswith("More: inferlens show results/demo --view findings")


SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def three_profiles(tmp_path: Path) -> Path:
    return saved(tmp_path / "results", eager(), fused(), other())


def nodes(file: Path) -> int:
    return sum(each.get("class") == "node" for each in ElementTree.parse(file).iter(f"{SVG}g"))


def test_several_cases_side_by_side_and_what_is_not_drawn(three_profiles):
    pytest.importorskip("pygraphviz")
    saved(three_profiles / "more", failed(case("torchscript"), "It broke."))
    done = inferlens("graph", "results", "--depth", "1", cwd=three_profiles.parent)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for said in ("Not drawn: torchscript fp32. It broke.", "--depth 2 unfolds more", "the order in which they ran",
                 "Wrote graph.svg."):  # fmt: skip
        assert said in done.stderr
    text = (three_profiles.parent / "graph.svg").read_text()
    assert all(name in text for name in ("pytorch fp32", "onnxruntime:cpu fp32", "openvino fp32"))
    assert nodes(three_profiles.parent / "graph.svg") == 4 + 5 + 3
    assert "cannot be written" in refusal_of("graph", "results", "-o", "missing/a.json", cwd=three_profiles.parent)
    saved(three_profiles.parent / "hostile", nasty())
    output_of("graph", "hostile", cwd=three_profiles.parent)
    assert nodes(three_profiles.parent / "graph.svg") == 2


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
