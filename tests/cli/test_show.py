"""``inferlens show``: which runs count; tables that go into files; and options that do not go together."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import inferlens, output_of, refusal_of
from tests.snapshots import compare_with_stored
from tests.views.samples import case, ran, saved

OTHER = case("openvino")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: the second is fastest, and in the last the first case is slow; the other case is in the first."""
    for day, seconds in (("01", 10e-3), ("02", 5e-3), ("03", 20e-3)):
        made = {"run": day, "created": f"2026-05-{day}T10:00:00Z"}
        saved(tmp_path / "results", [*ran(seconds=seconds, **made), *(ran(OTHER, 9e-3, **made) if day == "01" else [])])
    return tmp_path


def rows(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The rows of the results as data."""
    return json.loads(output_of("show", "results", *words, "--json", cwd=folder))["rows"]


def test_the_newest_run_is_shown_and_that_there_are_more_is_said(runs):
    compare_with_stored("records/the newest run", output_of("show", "results", cwd=runs))
    assert {row["backend"]: row["runs"] for row in rows(runs)} == {"pytorch": 3, "openvino": 1}


def test_several_runs_of_one_case_are_said(tmp_path):
    for day in ("01", "02"):
        saved(tmp_path / "results", ran(run=day, created=f"2026-05-{day}T10:00:00Z"))
    said = "There are several runs of 1 case; the newest is shown: --runs all shows each."
    assert said in inferlens("show", "results", cwd=tmp_path).stdout
    (tmp_path / "one").mkdir()
    saved(tmp_path / "one", ran())
    assert "several runs" not in inferlens("show", "one", cwd=tmp_path).stdout


def test_each_run_has_a_table_and_no_row_is_compared_with_another_run_s(runs):
    compare_with_stored("records/each run", output_of("show", "results", "--runs", "all", cwd=runs))
    assert [(row["run"][8:10], row["backend"], row["fastest"]) for row in rows(runs, "--runs", "all")] == [
        ("01", "openvino", True), ("01", "pytorch", False), ("02", "pytorch", True), ("03", "pytorch", True),
    ]  # fmt: skip


def test_a_run_without_the_reference_has_its_own(runs):
    words = ("--runs", "all", "--reference")
    shown = output_of("show", "results", *words, "openvino", cwd=runs)
    compare_with_stored("records/each run against openvino", shown)
    references = [row["reference"].partition(" ")[0] for row in rows(runs, *words, "openvino")]
    assert references == ["openvino", "openvino", "pytorch", "pytorch"]
    assert "No case fits the reference 'tensorrt'" in refusal_of("show", "results", *words, "tensorrt", cwd=runs)


def test_chosen_columns_still_tell_at_which_batch_a_row_is():
    shown = output_of("show", "examples/h200/tensorrt/resnet50", "--columns", "latency", cwd=ROOT)
    (header,) = [line for line in shown.splitlines() if line.strip().startswith("way")]
    assert header.split() == ["way", "batch", "ms"]
