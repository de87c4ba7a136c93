"""Load tests that are shown, drawn, compared and reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferlens import ab, compare
from inferlens.execution import ab as ab_run
from inferlens.execution.protocol import PlannedCase
from inferlens.record.load import Limit, LoadRecord
from tests.commands import inferlens
from tests.views.samples import WRONG, ran, saved
from tests.views.test_load import load_race, load_record, mixed_record, saved_loads


def rounds(capacity: float, name: str = "a", **fields: object) -> list[LoadRecord]:
    """Rounds of one way whose capacities are half a percent apart."""
    return [
        load_record(capacity=capacity * (1 + 0.005 * number), round=number, id=f"{name}{number}", **fields)
        for number in range(5)
    ]


def test_show_takes_the_folder_or_the_one_above_if_there_are_no_other_records(tmp_path: Path) -> None:
    saved_loads(tmp_path / "results" / "resnet18", load_race())
    for path in ("results/resnet18/load", "results"):
        done = inferlens("show", path, cwd=tmp_path)
        assert "FASTEST  openvino: 201 requests/s, 1.99x the next" in done.stdout, done.stderr


def test_show_of_records_mentions_the_load_test(tmp_path: Path) -> None:
    saved(tmp_path / "results", ran())
    saved_loads(tmp_path / "results", load_race())
    done = inferlens("show", "results", cwd=tmp_path)
    assert "More results of it: inferlens show results/load" in done.stderr


@pytest.mark.parametrize(
    ("capacity", "verdict", "code"), [(80.0, "SLOWER", 1), (100.0, "SAME", 0), (130.0, "FASTER", 0)]
)
def test_a_regression_in_capacity_is_an_exit_code(tmp_path: Path, capacity: float, verdict: str, code: int) -> None:
    saved_loads(tmp_path / "a", rounds(100.0))
    saved_loads(tmp_path / "b", rounds(capacity, "b"))
    for words in (("a/load", "b/load"), ("a", "b", "--metric", "capacity")):
        done = inferlens("compare", *words, cwd=tmp_path)
        assert (done.returncode, verdict in done.stdout) == (code, True), done.stdout + done.stderr
    assert "capacity, 5 rounds on each side" in done.stdout
    data = json.loads(inferlens("compare", "a/load", "b/load", "--format", "json", cwd=tmp_path).stdout)
    assert (data["metric"], data["exit_code"]) == ("capacity", code)
    compared = compare(tmp_path / "a" / "load", tmp_path / "b" / "load")
    assert (compared.metric, compared.exit_code) == ("capacity", code)


@pytest.mark.parametrize(
    ("capacity", "verdict", "code"), [(80.0, "SLOWER", 1), (130.0, "FASTER", 0), (None, "DID NOT RUN", 4)]
)
def test_ab_compares_capacities_in_rounds(
    tmp_path: Path, one_process: None, monkeypatch: pytest.MonkeyPatch, capacity: float | None, verdict: str, code: int
) -> None:
    """The search for a capacity takes half a minute, so its records are planted."""

    def planted(_: object, planned: PlannedCase, limit: str, number: int, *__: object) -> LoadRecord:
        assert limit == "p99=20ms"
        own = 100.0 if planned.case.variant == "steady" else capacity
        return load_record(capacity=own and own + number, round=number, case=planned.case, id=f"{number}{own}")

    monkeypatch.setattr(ab_run, "measure_capacity", planted)
    words = {"metric": "capacity", "limit": "p99=20ms", "output": str(tmp_path)}
    result = ab("fake:demo", "fake:steady", "fake:fast", **words)
    assert (result.verdict, result.exit_code) == (verdict, code)
    if capacity:
        assert "as many requests/s as A" in str(result)


def test_a_side_that_keeps_no_rate_or_answers_wrongly_did_not_run(tmp_path: Path) -> None:
    saved_loads(tmp_path / "a", rounds(100.0))
    saved_loads(tmp_path / "b", rounds(100.0, "b", agreement=WRONG))
    saved_loads(tmp_path / "c", [load_record(capacity=None, id="c")])
    for side, words in (("b", "wrong"), ("c", "not measured")):
        done = inferlens("compare", "a", side, "--threshold", "5%", cwd=tmp_path)
        assert (done.returncode, words in done.stdout) == (4, True), done.stdout


def test_load_tests_of_other_traffic_are_not_compared(tmp_path: Path) -> None:
    saved_loads(tmp_path / "a", rounds(100.0))
    saved_loads(tmp_path / "b", rounds(100.0, "b", limit=Limit(0.95, 0.01)))
    done = inferlens("compare", "a", "b", cwd=tmp_path)
    assert (done.returncode, "No traffic was searched for its capacity on both sides" in done.stderr) == (2, True)


def test_a_chart_is_drawn_in_each_form(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    saved_loads(tmp_path / "results", load_race())
    for name in ("load.svg", "load.png", "load.html"):
        done = inferlens("show", "results", "--plot", name, "--theme", "dark", cwd=tmp_path)
        assert (done.returncode, (tmp_path / name).stat().st_size > 10_000) == (0, True), done.stderr
    svg = (tmp_path / "load.svg").read_text("utf-8")
    for words in ("FASTEST · openvino", "limit 50.1 ms", "load (requests/s)", "busy (%)", "took longer", "that wait"):
        assert words in svg


def test_a_report_has_a_section_for_load_tests(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    saved(tmp_path / "both", ran())
    for folder in ("both", "only"):
        saved_loads(tmp_path / folder, [*load_race(), load_record("onnxruntime", 50.0), mixed_record()])
        done = inferlens("report", folder, "-o", f"{folder}.md", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        text = (tmp_path / f"{folder}.md").read_text("utf-8")
        assert "## Under load" in text
        assert "FASTEST openvino: 201 requests/s" in text
        assert "Requests by size" in text
        assert (tmp_path / f"{folder}-pictures" / "load-1.svg").exists()
