"""Two traces compared, the traces of several ranks, and runs in log folders, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferlens.trace import read
from inferlens.trace.analysis import Analysis
from inferlens.trace.several import execution, rows_compared, runs_in, traces_in
from tests.commands import inferlens
from tests.trace.samples import event, kernel, launch, of_torch, step, text, training


def faster() -> bytes:
    """One step of what training() does: the gemm twice as fast, the addition gone, something new at the end."""
    return text(
        step(7, 0, 400),
        event("aten::linear", 100, 200, Input__Dims=[[8, 4], [4, 4]]),
        event("aten::mm", 150, 100, Input__Dims=[[8, 4], [4, 4]]),
        launch(1, 160, 10),
        launch(2, 260, 10),
        kernel(1, 200, 50, "s16816gemm"),
        kernel(2, 300, 80, "relu"),
    )


def analyses() -> tuple[Analysis, Analysis]:
    return Analysis(read(training())), Analysis(read(faster()))


def test_kernels_and_operators_of_one_step_are_compared() -> None:
    table = list(rows_compared("kernels", *analyses()).rows())
    assert [(row["name"], round(row["change"] * 1e6), row["state"]) for row in table] == [
        ("add", -200, "gone"), ("relu", 80, "new"), ("s16816gemm", -50, ""),
        ("Memcpy DtoH (Device -> Pageable)", -40, "gone"),
    ]  # fmt: skip
    assert [round(row["accumulated"] * 1e6) for row in table] == [-200, -120, -170, -210]
    assert (table[2]["calls_before"], table[2]["calls_after"]) == (1.0, 1.0)
    rows = {(row["name"], row["shapes"]): row for row in rows_compared("operators", *analyses()).rows()}
    assert round(rows["aten::mm", "[[8,4],[4,4]]"]["change"] * 1e6) == -50
    assert round(rows["aten::linear", "[[8,4],[4,4]]"]["change"] * 1e6) == -120
    assert rows["aten::copy_", ""]["state"] == "gone"


def test_execution_side_by_side_keeps_what_is_new_and_gone() -> None:
    rows = [(row["name"], row["state"]) for row in execution(*analyses()).rows()]
    assert rows == [("s16816gemm", ""), ("add", "gone"), ("Memcpy DtoH (Device -> Pageable)", "gone"), ("relu", "new")]
    other_way = [(row["name"], row["state"]) for row in execution(*reversed(analyses())).rows()]
    assert sorted(other_way) == sorted((name, {"": "", "gone": "new", "new": "gone"}[state]) for name, state in rows)


@pytest.mark.parametrize("data", [training(), None], ids=["GPU", "torch"])
def test_a_trace_is_no_different_from_itself(data: bytes | None) -> None:
    one = Analysis(read(data or of_torch()))
    for table in (
        *(rows_compared(view, one, one) for view in ("kernels", "operators", "modules")),
        execution(one, one),
    ):
        assert all(row["change"] == 0 and row["state"] == "" for row in table.rows())


def test_against(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(training())
    (tmp_path / "b.json").write_bytes(faster())
    words = ("--view", "overview,operators,kernels,modules,timeline", "--format", "json")
    done = inferlens("trace", "a.json", "--against", "b.json", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    tables = json.loads(done.stdout)["traces"][0]["tables"]
    assert [*tables] == ["parts", "idle", "operators", "kernels", "modules", "execution"]


def test_ranks_of_a_job(tmp_path: Path) -> None:
    talks = [
        step(0, 0, 500), event("nccl:all_reduce", 10, 20, External__id=4), launch(1, 12), launch(2, 50),
        kernel(1, 100, 100, "ncclDevKernel_AllReduce", stream=20), kernel(2, 150, 100, "gemm"),
    ]  # fmt: skip
    for rank in (10, 2):
        (tmp_path / f"job_rank{rank}.json").write_bytes(text(*talks, distributedInfo={"rank": rank, "world_size": 16}))
    (tmp_path / "notes.json").write_text("{}")
    assert [path.name for path in traces_in(tmp_path)] == ["job_rank2.json", "job_rank10.json", "notes.json"]
    done = inferlens("trace", ".", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0
    assert "no traceEvents" in done.stderr
    first, _ = json.loads(done.stdout)["traces"][0]["tables"]["ranks"]
    assert (first["name"], first["rank"], first["step_time"]) == ("job_rank2.json", 2, pytest.approx(500e-6))
    assert first["overlapped"] == 0.5  # half of the communication is hidden behind the gemm


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


def test_runs_are_rows_and_other_views_are_each_runs(logs: Path) -> None:
    assert [name for name, _ in runs_in(logs)] == ["bs1", "bs8", "bs16"]
    done = inferlens("trace", "runs", "--view", "overview,kernels", cwd=logs.parent)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("bs")]
    assert rows == ["bs1", "bs8", "bs16"]
    assert [f"fills · {name}" in done.stdout for name in rows] == [True] * 3
    (logs / "bs8" / "host_bs8.1.pt.trace.json").write_text("nothing of it")
    done = inferlens("trace", "runs", "--format", "json", cwd=logs.parent)
    assert done.returncode == 0
    assert "host_bs8" in done.stderr
    together, *each = json.loads(done.stdout)["traces"]
    table = together["tables"]["runs"]
    assert [row["name"] for row in table] == [one["trace"] for one in each] == ["bs1", "bs16"]
    assert [(row["kernel"], row["bound"]) for row in table] == [(pytest.approx(100e-6), "host"), (300e-6, "host")]
    assert [row["step_time"] for row in table] == [one["overview"]["step_time"] for one in each]


def test_log_folders_are_compared_as_their_traces(logs: Path) -> None:
    done = inferlens("trace", "runs/bs1", "--against", "runs/bs8", cwd=logs.parent)
    assert (done.returncode, done.stderr) == (0, "")
    (logs / "bs8" / "second.json").write_bytes(training())
    for paths, says in ((("runs/bs1", "runs/bs8"), "2 traces"), (("runs", "runs/bs1"), "There is no trace in")):
        done = inferlens("trace", paths[0], "--against", paths[1], cwd=logs.parent)
        assert done.returncode == 2
        assert says in done.stderr
