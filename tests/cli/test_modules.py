"""``inferlens layers`` and ``inferlens modules`` as a person runs them, on good folders and bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferlens.record.layer_profile import encode
from tests.analysis.profile.kernel_profiles import traced
from tests.analysis.profile.samples import eager, fused, layer, other, profile, saved
from tests.commands import inferlens

COMMANDS = ("layers", "modules")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return saved(tmp_path / "results", eager(), fused(), other())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("format", ["table", "markdown", "csv", "json"])
def test_every_format(results: Path, command, format):
    done = inferlens(command, "results", "--format", format, cwd=results.parent)
    assert done.returncode == 0, done.stderr
    assert "layer1" in done.stdout
    assert not done.stderr
    if format == "json":
        assert json.loads(done.stdout)["schema"] == f"inferlens.{command}/1"


def test_options(results: Path):
    done = inferlens("layers", "results/case0", "--sort", "order", "--top", "2", "-f", "csv", cwd=results.parent)
    rows = [line.split(",")[4] for line in done.stdout.splitlines()[1:]]
    assert rows == ["layer", "layer", "other layers", "in no layer", "whole"]
    done = inferlens(
        "modules", "results", "--depth", "1", "--reference", "openvino", "--fused", "split", cwd=results.parent
    )
    assert done.returncode == 0, done.stderr
    assert "slower than with openvino fp32" in done.stdout
    assert "≈" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_files_are_notes(results: Path, command):
    for name, data in {
        "a": b"", "b": b"[" * 100_000, "c": b"\xff\xfe", "d": b'{"schema": "inferlens.profile/9"}',
        "e": encode(eager())[:-200], "f": encode(eager()).replace(b'"whole":[', b'"whole":[1e999,'),
    }.items():  # fmt: skip
        (results / name).mkdir()
        (results / name / "profile-layer.json").write_bytes(data)
    (results / "g" / "profile-layer.json").mkdir(parents=True)
    (results / "case1" / "record.json").write_bytes(b"{")
    done = inferlens(command, "results", cwd=results.parent)
    assert done.returncode == 0
    assert done.stderr.count("was left out") == 7
    assert "cannot be read" in done.stderr
    assert "conv1" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["empty"], "There is no profile in empty"),
        (["results", "--format", "junit"], "There is no format 'junit'"),
    ],
)
def test_errors_have_a_cure(results: Path, command, arguments, said):
    (results.parent / "empty").mkdir()
    done = inferlens(command, *arguments, cwd=results.parent)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Try: inferlens profile MODEL" in done.stderr or "Expected: table" in done.stderr


def test_a_box_plot_instead_of_a_table(results: Path):
    pytest.importorskip("altair")
    done = inferlens("layers", "results", "--plot", "layers.svg", cwd=results.parent)
    assert done.returncode == 0, done.stderr
    assert (results.parent / "layers.svg").read_text().startswith("<svg")
    assert not done.stdout
    assert inferlens("layers", "results", "--plot", "layers.gif", cwd=results.parent).returncode == 2


def test_the_level_of_the_modules(tmp_path: Path):
    layers = profile(traced().case, [layer("conv1", 2e-3, "conv1")], timed="GPU")
    saved(tmp_path / "results", layers, traced())

    def about(*words: str) -> str:
        done = inferlens("modules", "results", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[1]

    assert "kernel times, as shares of all kernels" in about()
    assert about("--level", "kernel") == about()
    assert "GPU times of layers, as shares of the whole run" in about("--level", "layer")
    wrong = inferlens("modules", "results", "--level", "kernels", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "There is no level of modules 'kernels'" in wrong.stderr
