"""Runs in log folders, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferlens.trace import read
from inferlens.trace.analysis import Analysis
from inferlens.trace.folders import run_of, runs_in
from tests.commands import inferlens
from tests.trace.samples import event, kernel, launch, step, text, training


def calls(begin: int) -> bytes:
    """Two steps of 500 us, in each a kernel of 100 us that begins so many us after the step."""
    events = []
    for number, start in enumerate((0, 500)):
        at = start + begin
        events += [step(number, start, 500), launch(number + 1, at - 10, 5), kernel(number + 1, at, 100, "gemm")]
    return text(*events)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name, data in (("bs8", calls(100)), ("bs16", training()), ("bs1", calls(300))):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / f"host_{name}.1.pt.trace.json").write_bytes(data)
    (tmp_path / "runs" / "notes.txt").write_text("no trace")
    return tmp_path / "runs"


def test_log_folders_are_found_in_the_order_of_their_numbers(logs: Path) -> None:
    assert [name for name, _ in runs_in(logs)] == ["bs1", "bs8", "bs16"]
    (logs / "bs8" / "second.json.gz").write_bytes(b"")
    assert [name for name, _ in runs_in(logs)][1:3] == ["bs8/host_bs8.1.pt.trace.json", "bs8/second.json.gz"]


def test_a_run_is_what_its_overview_says() -> None:
    overview = Analysis(read(calls(100))).overview
    run = run_of("one", overview)
    assert run.kernel == pytest.approx(100e-6)
    assert run.step_time == overview.step_time
    assert run.bound == overview.bound == "host"
    assert run.utilization == overview.gpus[0].utilization
    alone = run_of("two", Analysis(read(text(event("aten::add", 0, 10)))).overview)
    assert (alone.bound, alone.utilization, alone.waiting) == ("CPU only", None, None)


def test_runs_are_rows_and_other_views_are_each_runs(logs: Path) -> None:
    done = inferlens("trace", "runs", "--view", "overview,kernels", cwd=logs.parent)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("bs")]
    assert rows == ["bs1", "bs8", "bs16"]
    assert [f"fills · {name}" in done.stdout for name in rows] == [True] * 3


def test_json_has_every_overview(logs: Path) -> None:
    document = json.loads(inferlens("trace", "runs", "--format", "json", cwd=logs.parent).stdout)
    together, *each = document["traces"]
    assert [row["name"] for row in together["tables"]["runs"]] == ["bs1", "bs8", "bs16"]
    assert [one["trace"] for one in each] == ["bs1", "bs8", "bs16"]
    assert all(one["overview"]["step_time"] > 0 for one in each)


def test_a_broken_run_is_named_and_left_out(logs: Path) -> None:
    (logs / "bs8" / "host_bs8.1.pt.trace.json").write_text("nothing of it")
    done = inferlens("trace", "runs", cwd=logs.parent)
    assert done.returncode == 0
    assert "host_bs8" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("bs")] == ["bs1", "bs16"]


def test_log_folders_are_compared_as_their_traces(logs: Path) -> None:
    done = inferlens("trace", "runs/bs1", "--against", "runs/bs8", cwd=logs.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "before and" in done.stdout
    (logs / "bs8" / "second.json").write_bytes(training())
    done = inferlens("trace", "runs/bs1", "--against", "runs/bs8", cwd=logs.parent)
    assert done.returncode == 2
    assert "2 traces" in done.stderr
    done = inferlens("trace", "runs", "--against", "runs/bs1", cwd=logs.parent)
    assert done.returncode == 2
    assert "There is no trace in" in done.stderr
