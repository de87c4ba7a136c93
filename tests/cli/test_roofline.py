"""``inferlens roofline`` on a real model: what was profiled has floors, in every form and without measuring again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from inferlens.measure import ceilings as measuring
from inferlens.record.profile_store import load_profiles
from tests.commands import inferlens

MODEL = "tests.backends.small:Convolution"
FLOPS = 2 * 16 * 16 * 8 * 3 * 9 + 2 * 8 * 10


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, profiled on two backends; the ceilings are measured on sizes of a moment."""
    folder = tmp_path_factory.mktemp("roofline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "ROUNDS", 1)
        patch.setattr(measuring, "SECONDS", 0.01)
        patch.setattr(measuring, "MATRICES", {"cpu": (128,)})
        patch.setattr(measuring, "copy_sizes", lambda _: (1 << 20,))
        options = ["--backend", "pytorch,onnxruntime", "--input", "image=1x3x16x16", "--threads", "1", "--runs", "5"]
        done = inferlens("profile", MODEL, *options, "--max-time", "0.1s", "--output", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_profile_has_the_models_work_and_the_devices_ceilings(results: Path) -> None:
    profiles = load_profiles([results / "results"]).profiles
    assert len(profiles) == 2
    for made in profiles:
        assert made.work is not None
        assert made.ceilings is not None
        assert sum(each.flops for each in made.work.modules) == FLOPS
        assert made.ceilings.bandwidth > 0
        assert made.ceilings.basis.endswith("1 thread")
    assert profiles[0].ceilings == profiles[1].ceilings


def test_every_form(results: Path) -> None:
    table = inferlens("roofline", "results", cwd=results)
    assert table.returncode == 0, table.stderr
    assert "convolution" in table.stdout
    assert "Most is to be won in" in table.stdout
    data = json.loads(inferlens("roofline", "results", "-f", "json", "--by", "module", cwd=results).stdout)
    for case in data["cases"]:
        assert sum(row["flops"] or 0 for row in case["rows"]) == pytest.approx(FLOPS)
        assert "convolution" in {row["name"] for row in case["rows"]}
    assert "| convolution |" in inferlens("roofline", "results", "-f", "markdown", "--by", "module", cwd=results).stdout
    top = inferlens("roofline", "results", "-f", "csv", "--top", "1", "--sort", "time", cwd=results)
    assert top.stdout.startswith("model,case,digest,profile,precision,row,")


def test_the_chart(results: Path) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    done = inferlens("roofline", "results", "--plot", "floors.svg", cwd=results)
    assert done.returncode == 0, done.stderr
    assert "Wrote floors.svg." in done.stderr
    assert (results / "floors.svg").read_text().startswith("<svg")


def test_fused_layers_are_split_by_flops(results: Path) -> None:
    split = json.loads(inferlens("modules", "results", "--fused", "split", "-f", "json", cwd=results).stdout)
    (model,) = split["models"]
    (norm,) = [row for row in model["rows"] if row["path"] == "norm"]
    assert model["columns"][1]["name"].startswith("onnxruntime")
    assert norm["cells"][1]["times"] is None  # it was folded into the convolution, which has all of the FLOPs
    text = inferlens("modules", "results", "--fused", "split", cwd=results).stdout
    assert "split among them by their FLOPs" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--depth", "1"], "Layers have no depth."),
        (["--by", "modul"], "There is no kind of row 'modul'."),
        (["--sort", "wun"], "no order of floors 'wun'"),
        (["--format", "cvs"], "no format 'cvs'"),
        (["--plot", "floors.gif"], "cannot be written as 'gif'"),
    ],
)
def test_what_makes_no_sense_is_refused(results: Path, arguments: list[str], why: str) -> None:
    done = inferlens("roofline", "results", *arguments, cwd=results)
    assert done.returncode == 2
    assert why in done.stderr
