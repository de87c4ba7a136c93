"""``inferlens trace`` as a person runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from inferlens.cli import trace_words
from inferlens.cli.commands import app
from inferlens.views.table import FORMATS
from inferlens.views.traced.tables import VIEWS
from tests.commands import inferlens
from tests.trace.samples import of_torch, training


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpu.json").write_bytes(training())
    (tmp_path / "cpu.json").write_bytes(of_torch())
    (tmp_path / "broken.json").write_text("Hello")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("format", FORMATS)
def test_every_view_in_every_format(format: str, folder: Path) -> None:
    for name in ("gpu.json", "cpu.json"):
        done = inferlens("trace", name, "--view", ",".join(VIEWS), "--format", format, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        if format == "json":
            shown = json.loads(done.stdout)
            assert (shown["schema"], shown["view"]) == ("inferlens.trace/1", ",".join(VIEWS))
        elif format == "csv":
            assert "table" in (csv.DictReader(io.StringIO(done.stdout)).fieldnames or ())
        else:
            assert ("Sequential" in done.stdout) == (name == "cpu.json")
        if format == "html":
            assert ("GPU self" in done.stdout) == (name == "gpu.json")  # no columns of a GPU that is not there
            assert "<script" not in done.stdout
            assert "default-src 'none'" in done.stdout


def test_rows_are_told_apart_and_limited(folder: Path) -> None:
    done = inferlens("trace", "gpu.json", "--view", "kernels", "--by", "operator", "--format", "csv", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["operator"] for row in rows} == {"aten::mm", "aten::linear", "aten::copy_"}
    done = inferlens("trace", "gpu.json", "--view", "operators", "--by", "shapes,stack", "--top", "1", cwd=folder)
    assert "2 more rows: --top 3 shows all." in done.stdout
    one = inferlens("trace", "gpu.json", "--view", "steps", "--step", "1", "--format", "json", cwd=folder).stdout
    assert [row["step"] for row in json.loads(one)["traces"][0]["tables"]["steps"]] == ["1"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("gpu.json --view kernel", "There is no view 'kernel'"),
        ("gpu.json --against cpu.json --view memory", "does not compare"),
        ("gpu.json --format svg", "There is no format 'svg'"),
        ("gpu.json --step 9", "no step 9"),
        ("gpu.json --by colour", "There is no --by 'colour'"),
        ("nothing.json", "cannot be read"),
        ("empty", "There is no trace in empty"),
        ("broken.json", "broken.json: This is no trace"),
    ],
)
def test_what_cannot_be_is_one_error(line: str, says: str, folder: Path) -> None:
    done = inferlens("trace", *line.split(), cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_comes_through_a_pipe_and_loads_no_framework() -> None:
    """Neither PyTorch nor polars, which would take longer than reading."""
    script = (
        "import sys; from inferlens.cli import main; sys.argv = ['inferlens', 'trace', '-']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'polars', 'pandas', 'altair', 'scipy'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=training(), capture_output=True, check=True, env=dict(os.environ), timeout=60)
    assert b"Test GPU" in done.stdout


def test_frames_of_polars(folder: Path) -> None:
    pytest.importorskip("polars")
    from inferlens import load_trace

    trace = load_trace(folder / "gpu.json")
    assert trace.kernels()["name"].to_list() == ["add", "s16816gemm", "Memcpy DtoH (Device -> Pageable)"]
    assert trace.steps()["step"].to_list() == ["0", "1"]
    assert (trace.operators("shapes").height, trace.events().height, trace.overview().steps) == (3, 24, 2)
    for frame in (trace.modules(), trace.memory(), trace.timeline(), trace.kernels(by_operator=True)):
        assert frame.columns
    assert trace.advice()[0].seconds > 0


def test_damage_is_remarked_on_and_too_little_memory_is_one_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "cut.json").write_bytes(training()[:-2000])
    done = inferlens("trace", "cut.json", "--view", "kernels", cwd=folder)
    assert (done.returncode, "s16816gemm" in done.stdout) == (0, True)
    assert done.stderr.startswith("cut.json: ")

    def nothing_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("inferlens.views.traced.show.read_cached", nothing_left)
    done = inferlens("trace", "gpu.json", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not enough memory" in done.stderr


def test_right_words_mean_what_the_command_says_and_wrong_ones_are_left_to_it() -> None:
    command = typer.main.get_command(app).get_command(None, "trace")  # type: ignore[attr-defined]
    every = "a.json --against b.json --step 7 --top 3 --depth 2 --no-cache -f json"
    for line in ("a.json", "-", "a.json --view=overview,kernels --by=operator", every):
        with command.make_context("trace", line.split()) as context:
            assert (trace_words(line.split()) or {}).items() <= context.params.items()
    for line in ("", "--help", "a.json b.json", "a.json --vie x", "a.json --top 0", "a.json --top x"):
        assert trace_words(line.split()) is None
