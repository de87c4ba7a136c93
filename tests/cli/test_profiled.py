"""``layers``, ``modules``, ``kernels``, ``roofline``, ``graph`` and ``partition`` as a person runs them.

They read good and bad folders of profiles, ONNX files and information about engines.
"""

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from inferlens.errors import InferlensError, Unsupported
from inferlens.measure import ceilings as measuring
from inferlens.record.builds import Choice, Interruption, Operator, Partition, Segment, Side, partition_of
from inferlens.record.profile import encode_profile
from inferlens.record.record import Warning
from inferlens.record.store import load_profiles
from inferlens.spec.case import Case
from inferlens.views.partition import PartitionResult, distinguish_cases, partition_document
from inferlens.views.renderers import render
from tests.analysis.profiles import eager, failed, fused, nasty, other, saved, traced
from tests.backends.profiling.samples import ENGINE, GRAPH
from tests.commands import inferlens, output_of, refusal_of
from tests.snapshots import compare_with_stored, screens_test
from tests.views.samples import case

COMMANDS = ("layers", "modules", "kernels")
FLOPS = 2 * 16 * 16 * 8 * 3 * 9 + 2 * 8 * 10  # of the small network


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return saved(tmp_path / "results", eager(), fused(), other(), traced(), traced(ENGINE))


LINES = {
    "the longest layers": "layers results/case0 --sort order --top 2",
    "modules against openvino": "modules results --depth 1 --reference openvino --fused split",
    "all findings": "show results --view findings --all",
    "the share of layers": "layers results --columns share -f markdown",
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_options(name, results):
    compare_with_stored(f"profiled/{name}", output_of(*LINES[name].split(), cwd=results.parent))


def test_kernels_by_launch_are_all_launches(results):
    shown = output_of("kernels", "results", "--by", "launch", "--sort", "order", "-f", "csv", cwd=results.parent)
    assert shown.count(",launch,") == 162 + 25


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


def test_what_a_profile_of_many_cases_ends_with_fits_on_a_screen(tmp_path, one_process):
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


# Partitions


def way(variant: str = "dynamo", precision: str = "fp32", batch: int = 1, **options: Any) -> Case:
    return case(f"torch_tensorrt:{variant}", precision=precision, batch=batch, options=options)


def segment(side: Side, *names: str, why: Any = "", module: str = "head") -> Segment:
    return Segment(side, tuple(Operator(name, module, why, "no converter" if why else "") for name in names))


IN_TENSORRT = segment("TensorRT", "aten.relu.default", "aten.relu.default", "aten.add.Tensor")
IN_PYTORCH = segment("PyTorch", "aten.linalg_inv_ex.default", why="unsupported", module="inverse")
WHOLE = partition_of([IN_TENSORRT], front_end="dynamo", min_block_size=1, flavour="TensorRT")
MIXED = partition_of(
    [IN_TENSORRT, IN_PYTORCH, segment("TensorRT", "aten.relu.default")], front_end="dynamo", min_block_size=1,
    choices=[Choice(1, 1, (3, 1), 3), Choice(2, 3, (3,), 2)], flavour="TensorRT for RTX", assumed_gpu="8.9",
)  # fmt: skip


def shown(*results: tuple[Case, Partition | InferlensError], width: int = 110, wide: bool = True) -> str:
    return render(partition_document([PartitionResult(*each) for each in results], wide=wide), width=width, wide=wide)


def test_several_are_side_by_side_and_told_apart_by_what_differs():
    cases = [way(min_block_size=1, tf32=True), way(min_block_size=5, tf32=True)]
    shared, labels = distinguish_cases(cases)
    assert labels == ["min_block_size=1", "min_block_size=5"]
    assert shared == ["torch_tensorrt:dynamo", "fp32", "batch 1", "tf32=true"]
    warned = PartitionResult(cases[0], MIXED, [Warning("no-effect", "It does nothing.", "Leave it out.")])
    answers = [
        warned, PartitionResult(cases[1], WHOLE), PartitionResult(way(), Unsupported("torch.export cannot take it.")),
    ]  # fmt: skip
    made = partition_document(answers, wide=True)
    screens = render(made, width=110, wide=True) + render(partition_document(answers))
    compare_with_stored("partition/several", screens)
    names, *rows = render(made, "csv").splitlines()
    assert (len(rows), names.split(",")[-1], rows[2].endswith("torch.export cannot take it.")) == (3, "failure", True)
    data = json.loads(render(made, "json"))
    mixed, whole, none = data["partitions"]
    assert (data["schema"], mixed["warnings"][0]["code"]) == ("inferlens.partitions/1", "no-effect")
    assert msgspec.convert(whole["partition"], Partition) == WHOLE
    assert (none["partition"], none["failure"]) == (None, "torch.export cannot take it.")
    alike = [way(precision=precision, batch=batch) for batch in (1, 2) for precision in ("fp32", "fp16")]
    assert distinguish_cases(alike)[1] == ["fp32 batch 1", "fp16 batch 1", "fp32 batch 2", "fp16 batch 2"]


NONE = partition_of([IN_PYTORCH], front_end="dynamo", min_block_size=100)
VALUES = [PartitionResult(way(min_block_size=size, precision="fp16", batch=8), part)
          for size, part in ((1, WHOLE), (5, WHOLE), (100, NONE))]  # fmt: skip
BREAKS = partition_of(
    [IN_TENSORRT, Segment("TensorRT", IN_TENSORRT.operators, 1), Segment("PyTorch", IN_PYTORCH.operators, 2)],
    front_end="compile", min_block_size=1,
    interruptions=[Interruption(0, "Failed to trace print", "model.py line 7", ""), Interruption(1, "a jump")],
)  # fmt: skip
UNKNOWN = msgspec.structs.replace(MIXED, operators=None, in_tensorrt=None, engines=(None, None), ways=24)
test_screen = screens_test("partition", {
    "counts, breaks and choices": lambda: shown((way(), MIXED)),
    "values that give the same": lambda: render(partition_document(VALUES), width=200),
    "graph breaks": lambda: shown((way("compile"), BREAKS), width=160),
    "unknown": lambda: shown((way("ts-trace"), UNKNOWN)),
})  # fmt: skip


def test_many_places_and_choices_fit_on_a_screen():
    names = [f"stage{number}.block.conv" for number in range(40)]
    sides = {"TensorRT": "", "PyTorch": "forced"}
    segments = [Segment(side, tuple(Operator(f"aten.op{n}", name, why) for n in range(20)))
                for name in names for side, why in sides.items()]  # fmt: skip
    choices = [Choice(n, n, (20,) * (40 - n), 81 - 2 * n) for n in range(1, 17)]
    part = partition_of(
        segments, front_end="dynamo", min_block_size=5, choices=choices, ways=30, flavour="TensorRT for RTX",
        assumed_gpu="8.9", note="Something else.",
    )  # fmt: skip
    warnings = [Warning("no-effect", f"Option {n} does nothing.", "Leave it out.") for n in range(5)]
    for cases in ([way(precision="fp16")], [way(min_block_size=n, precision="fp16") for n in range(30)]):
        text = render(partition_document([PartitionResult(each, part, warnings) for each in cases]))
        assert (len(text.splitlines()) <= 24, max(map(len, text.splitlines())) <= 100) == (True, True), text
        said = " ".join(text.split())
        assert ("800 of 1,600 operators run in TensorRT, in 40 engines" in said, ": --wide" in said) == (True, True)
    text = render(partition_document([PartitionResult(way(precision="fp16"), part, warnings)]))
    compare_with_stored("partition/many choices", text)
