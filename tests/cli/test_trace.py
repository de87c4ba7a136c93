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
    return tmp_path


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_view_in_every_format(view: str, format: str, folder: Path) -> None:
    for name in ("gpu.json", "cpu.json"):
        done = inferlens("trace", name, "--view", view, "--format", format, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()
        if format == "json":
            read = json.loads(done.stdout)
            assert (read["schema"], read["view"]) == ("inferlens.trace/1", view)
        if format == "csv":
            assert csv.DictReader(io.StringIO(done.stdout)).fieldnames
        if format == "html":
            assert "<script" not in done.stdout
            assert "default-src 'none'" in done.stdout


def test_a_trace_of_the_cpu_has_no_columns_of_a_gpu(folder: Path) -> None:
    done = inferlens("trace", "cpu.json", "--view", "operators", cwd=folder)
    assert "aten::addmm" in done.stdout
    assert "GPU self" not in done.stdout
    modules = inferlens("trace", "cpu.json", "--view", "modules", cwd=folder).stdout
    assert "Sequential_0" in modules
    assert "  Linear_0" in modules


def test_rows_are_told_apart_and_limited(folder: Path) -> None:
    done = inferlens("trace", "gpu.json", "--view", "kernels", "--by", "operator", "--format", "csv", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["operator"] for row in rows} == {"aten::mm", "aten::linear", "aten::copy_"}
    done = inferlens("trace", "gpu.json", "--view", "operators", "--by", "shapes,stack", "--top", "1", cwd=folder)
    assert "2 more rows: --top 3 shows all." in done.stdout
    one = inferlens("trace", "gpu.json", "--view", "steps", "--step", "1", "--format", "json", cwd=folder).stdout
    assert [row["step"] for row in json.loads(one)["traces"][0]["tables"]["steps"]] == ["1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpu.json", "--view", "kernel"), "There is no view 'kernel'"),
        (("gpu.json", "--against", "cpu.json", "--view", "memory"), "does not compare"),
        (("gpu.json", "--format", "svg"), "There is no format 'svg'"),
        (("gpu.json", "--step", "9"), "no step 9"),
        (("gpu.json", "--by", "colour"), "There is no --by 'colour'"),
        (("nothing.json",), "cannot be read"),
        (("empty",), "There is no trace in empty"),
        (("broken.json",), "This is no trace"),
    ],
)
def test_what_cannot_be_is_one_error(arguments: tuple[str, ...], says: str, folder: Path) -> None:
    (folder / "broken.json").write_text("Hello")
    (folder / "empty").mkdir()
    done = inferlens("trace", *arguments, cwd=folder)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_damage_is_remarked_on_beside_the_table(folder: Path) -> None:
    (folder / "cut.json").write_bytes(training()[:-2000])
    done = inferlens("trace", "cut.json", "--view", "kernels", cwd=folder)
    assert (done.returncode, "s16816gemm" in done.stdout) == (0, True)
    assert done.stderr.startswith("cut.json: ")


def test_a_trace_comes_through_a_pipe(folder: Path) -> None:
    command = [sys.executable, "-m", "inferlens", "trace", "-", "--view", "kernels"]
    done = subprocess.run(command, input=training(), capture_output=True, check=True, env=dict(os.environ), timeout=60)
    assert b"s16816gemm" in done.stdout


def test_no_framework_is_loaded(folder: Path) -> None:
    """Neither PyTorch nor polars, which would take longer than reading."""
    script = (
        "import sys; from inferlens.cli import main; sys.argv = ['inferlens', 'trace', 'gpu.json']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'polars', 'pandas', 'altair', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Test GPU" in done.stdout


def test_frames_of_polars(folder: Path) -> None:
    pytest.importorskip("polars")
    from inferlens import load_trace

    trace = load_trace(folder / "gpu.json")
    assert trace.kernels()["name"].to_list() == ["add", "s16816gemm", "Memcpy DtoH (Device -> Pageable)"]
    assert trace.operators("shapes").height == 3
    assert trace.steps()["step"].to_list() == ["0", "1"]
    assert trace.events().height == 24
    for frame in (trace.modules(), trace.memory(), trace.timeline(), trace.kernels(by_operator=True)):
        assert frame.columns
    assert trace.overview().steps == 2
    assert trace.advice()[0].seconds > 0


def test_too_little_memory_is_one_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("inferlens.views.traced.show.tables_of", nothing_left)
    done = inferlens("trace", "gpu.json", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not enough memory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "a.json",
        "-",
        "--view kernels a.json",
        "a.json --view=overview,kernels --by=operator",
        "a.json --against b.json --step 7 --top 3 --depth 2 --no-cache -f json",
    ],
)
def test_right_words_mean_what_the_command_says(line: str) -> None:
    command = typer.main.get_command(app).get_command(None, "trace")  # type: ignore[attr-defined]
    with command.make_context("trace", line.split()) as context:
        assert (trace_words(line.split()) or {}).items() <= context.params.items()


@pytest.mark.parametrize("line", ["", "--help", "a.json b.json", "a.json --vie x", "a.json --top 0", "a.json --top x"])
def test_wrong_words_are_left_to_the_command(line: str) -> None:
    assert trace_words(line.split()) is None
