"""``inferlens kernels`` as a person runs it, and what other commands say of profiles of kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferlens.record.layer_profile import encode
from tests.analysis.profile.kernel_profiles import traced
from tests.analysis.profile.samples import saved
from tests.backends.profiling.kernel_samples import ENGINE, GRAPH
from tests.commands import inferlens


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return saved(tmp_path / "results", traced(), traced(ENGINE), median=2e-3)


@pytest.mark.parametrize("format", ["table", "markdown", "csv", "json"])
@pytest.mark.parametrize("by", ["name", "launch"])
def test_every_format(results: Path, format, by):
    done = inferlens("kernels", "results", "--format", format, "--by", by, "--sort", "order", cwd=results.parent)
    assert done.returncode == 0, done.stderr
    assert "implicit" in done.stdout
    assert "cudnn" in done.stdout
    assert not done.stderr
    if format == "json":
        assert json.loads(done.stdout)["schema"] == "inferlens.kernels/1"


def test_modules_and_findings_take_them(results: Path):
    done = inferlens("modules", "results", "--depth", "1", "--format", "markdown", cwd=results.parent)
    assert done.returncode == 0, done.stderr
    assert "layer4" in done.stdout
    done = inferlens("findings", "results", cwd=results.parent)
    assert done.returncode == 0, done.stderr
    assert "162 launches" in done.stdout


def test_a_trace_has_the_streams(results: Path):
    done = inferlens("layers", "results", "--trace", "kernels.json", cwd=results.parent)
    assert done.returncode == 0, done.stderr
    assert "GPU stream 203" in (results.parent / "kernels.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["results", "--by", "modul"], "no way to group kernels 'modul'"),
        (["results", "--sort", "tim"], "no order of kernels 'tim'"),
        (["results", "--format", "cvs"], "no format 'cvs'"),
        (["nowhere"], "does not exist"),
    ],
)
def test_errors_have_a_cure(results: Path, arguments, what):
    done = inferlens("kernels", *arguments, cwd=results.parent)
    assert done.returncode == 2
    assert what in done.stderr
    assert "Traceback" not in done.stderr


def test_hostile_files_are_notes(results: Path):
    data = encode(traced(GRAPH))
    for name, hostile in {"a": data[:-300], "b": data.replace(b'"busy":[', b'"busy":[1e999,')}.items():
        (results / name).mkdir()
        (results / name / "profile-kernel.json").write_bytes(hostile)
    done = inferlens("kernels", "results", cwd=results.parent)
    assert done.returncode == 0
    assert done.stderr.count("was left out") == 2
