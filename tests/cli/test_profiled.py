"""``inferlens layers``, ``modules``, ``kernels`` and ``roofline`` as a person runs them, on good folders and bad."""

import json
from pathlib import Path

import pytest

from inferlens.measure import ceilings as measuring
from inferlens.record.profile import encode_profile
from inferlens.record.store import load_profiles
from tests.analysis.profiles import eager, fused, other, saved, traced
from tests.backends.profiling.samples import ENGINE, GRAPH
from tests.commands import inferlens, output_of

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
