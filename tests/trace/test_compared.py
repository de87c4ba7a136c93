"""Two traces compared, and the traces of several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferlens.trace import read
from inferlens.trace.analysis import Analysis
from inferlens.trace.diff import execution, rows_compared
from inferlens.trace.folders import traces_in
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


def test_kernels_of_one_step_are_compared() -> None:
    table = list(rows_compared("kernels", *analyses()).rows())
    assert [(row["name"], round(row["change"] * 1e6), row["state"]) for row in table] == [
        ("add", -200, "gone"), ("relu", 80, "new"), ("s16816gemm", -50, ""),
        ("Memcpy DtoH (Device -> Pageable)", -40, "gone"),
    ]  # fmt: skip
    assert [round(row["accumulated"] * 1e6) for row in table] == [-200, -120, -170, -210]
    assert (table[2]["calls_before"], table[2]["calls_after"]) == (1.0, 1.0)


def test_operators_are_matched_by_shapes_and_modules_by_path() -> None:
    rows = {(row["name"], row["shapes"]): row for row in rows_compared("operators", *analyses()).rows()}
    assert round(rows["aten::mm", "[[8,4],[4,4]]"]["change"] * 1e6) == -50
    assert round(rows["aten::linear", "[[8,4],[4,4]]"]["change"] * 1e6) == -120
    assert rows["aten::copy_", ""]["state"] == "gone"
    same = Analysis(read(of_torch()))
    assert {row["change"] for row in rows_compared("modules", same, same).rows()} == {0.0}


def test_execution_side_by_side_keeps_what_is_new_and_gone() -> None:
    rows = [(row["name"], row["state"]) for row in execution(*analyses()).rows()]
    assert rows == [("s16816gemm", ""), ("add", "gone"), ("Memcpy DtoH (Device -> Pageable)", "gone"), ("relu", "new")]
    other_way = [(row["name"], row["state"]) for row in execution(*reversed(analyses())).rows()]
    assert sorted(other_way) == sorted((name, {"": "", "gone": "new", "new": "gone"}[state]) for name, state in rows)


def test_a_trace_is_no_different_from_itself() -> None:
    for data in (training(), of_torch()):
        one = Analysis(read(data))
        for table in (rows_compared("kernels", one, one), rows_compared("operators", one, one), execution(one, one)):
            assert all(row["change"] == 0 and row["state"] == "" for row in table.rows())


@pytest.mark.parametrize("format", ["table", "json"])
@pytest.mark.parametrize("view", ["overview", "operators", "kernels", "modules", "timeline"])
def test_against(view: str, format: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(training())
    (tmp_path / "b.json").write_bytes(faster())
    done = inferlens("trace", "a.json", "--against", "b.json", "--view", view, "--format", format, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "linear" in done.stdout or view != "operators"


def test_ranks_of_a_job(tmp_path: Path) -> None:
    talks = [
        step(0, 0, 500), event("nccl:all_reduce", 10, 20, External__id=4), launch(1, 12), launch(2, 50),
        kernel(1, 100, 100, "ncclDevKernel_AllReduce", stream=20), kernel(2, 150, 100, "gemm"),
    ]  # fmt: skip
    for rank in (10, 2):
        (tmp_path / f"job_rank{rank}.json").write_bytes(text(*talks, distributedInfo={"rank": rank, "world_size": 16}))
    (tmp_path / "notes.json").write_text("{}")
    assert [path.name for path in traces_in(tmp_path)] == ["job_rank2.json", "job_rank10.json", "notes.json"]
    done = inferlens("trace", ".", cwd=tmp_path)
    assert done.returncode == 0
    assert "no traceEvents" in done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("job_rank2.json"))
    assert row.split()[1:3] == ["2", "0.500"]
    assert "50 %" in row  # half of the communication is hidden behind the gemm
    assert "Communication takes" in done.stdout
