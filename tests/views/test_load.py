"""Load tests as tables, data and pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from inferlens.analysis.load import find_loads, load_folders, load_loads, load_tests
from inferlens.errors import InferlensError
from inferlens.record.load import Deployment, GroupRun, Limit, LoadgenVerdict, LoadRecord, LoadRun, Mix
from inferlens.record.record import ModelFacts
from inferlens.views.load import load_chart, load_document, load_rows
from inferlens.views.picture import THEMES, chart_data
from inferlens.views.renderers import render
from inferlens.views.renderers.terminal import fit
from inferlens.views.table import FORMATS, select_columns
from tests.views.samples import CPU_MACHINE, RIGHT, WRONG, case

GROUPS = ({"sequence_length": 64}, {"sequence_length": 256})


def load_run(rate: float, capacity: float, **fields: Any) -> LoadRun:
    """A run whose p99 is 50 ms at the capacity, and beyond the limit above it."""
    use = rate / capacity
    latencies = 0.01 + np.random.default_rng(1).exponential(0.04 * use**4 / 4.6, 2000)
    p50, p95, p99 = (float(np.quantile(latencies, share)) for share in (0.5, 0.95, 0.99))
    numbers = {
        "rate": rate, "seconds": 2000 / rate, "answered": 2000, "latencies": tuple(latencies.tolist()), "busy": use,
        "quantiles": (p50, p95, p99), "at_limit": p99, "mean_batch": 4.0, "padding": 0.1, "host": 0.9 * use,
        "queue": tuple(range(60)),
    }  # fmt: skip
    return LoadRun(**{**numbers, **fields})


def load_record(backend: str = "pytorch", capacity: float | None = 100.0, **fields: Any) -> LoadRecord:
    """A record of one deployment in one round."""
    deployment, number = Deployment(instances=2, max_batch=8, wait=2.5e-3), fields.get("round", 0)
    rates = [share * capacity for share in (0.25, 0.5, 0.75, 1.0, 1.01)] if capacity else []
    of = fields.pop("case", None) or case(backend, batch=None)
    values: dict[str, Any] = {
        "id": f"{backend}-{number}-{capacity}", "created": f"2026-05-01T10:0{number}:00Z", "case": of,
        "requested": Deployment(instances=2, max_batch=16), "deployment": deployment, "limit": Limit(0.99, 0.0501),
        "model": ModelFacts(name="torchvision:resnet18"), "environment": CPU_MACHINE, "agreement": RIGHT,
        "runs": tuple(load_run(rate, capacity or 1.0) for rate in rates), "capacity": capacity,
        "above": capacity and capacity * 1.01, "service": ({1: 8e-3, 2: 9e-3, 4: 12e-3, 8: 20e-3},),
        "limited_by": "instances" if capacity else "",
    }  # fmt: skip
    return LoadRecord(**{**values, **fields})


def load_race() -> list[LoadRecord]:
    """Two ways in three rounds, of which one serves twice as much."""
    return [
        load_record(backend, capacity + number, round=number)
        for number in range(3)
        for backend, capacity in (("openvino", 200.0), ("pytorch", 100.0))
    ]


def mixed_record() -> LoadRecord:
    groups = tuple(
        GroupRun(requests=1000, quantiles=(seconds, 2 * seconds), padding=padding, seconds=seconds / 2)
        for seconds, padding in ((4e-3, 0.25), (16e-3, 0.1))
    )
    run = load_run(100.0, 100.0, groups=groups, compiled={"batch 8, sequence_length 64": 3})
    return load_record(runs=(run,), mix=Mix(GROUPS, (0.5, 0.5), (0.75, 0.9)))


def saved_loads(folder: Path, records: Sequence[LoadRecord]) -> Path:
    """The folder of a load test below ``folder``."""
    where = folder / "load"
    where.mkdir(parents=True)
    for record in records:
        (where / f"{record.id}.load.json").write_bytes(msgspec.json.encode(record))
    return where


def shown(records: Sequence[LoadRecord], format: str = "table", **words: Any) -> str:
    return render(load_document(records, **words), format, width=100)


def test_the_answer_comes_first_with_its_deployment_and_what_limits_it() -> None:
    lines = shown(load_race(), folder="results/resnet18/load").splitlines()
    assert lines[2] == "FASTEST  openvino: 201 requests/s, 1.99x the next"
    assert lines[3].startswith("2 instances, batches up to 8 within 2.50 ms; p99 50.")
    assert "limited by the instances, 100 % busy" in lines[3]
    assert lines[-1] == "Serve it: inferlens export --best results/resnet18/load -o deploy"


@pytest.mark.parametrize("width", [80, 100])
def test_the_default_output_is_one_screen_of_seven_columns(width: int) -> None:
    ways = [f"{name}:{number}" for name in ("pytorch", "openvino", "onnxruntime") for number in range(3)]
    records = [load_record(way, 100.0 + 9 * place, round=number) for place, way in enumerate(ways) for number in (0, 1)]
    text = render(load_document([*records, mixed_record()], 1e-3), "table", width=width)
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= width
    (table, *_) = select_columns(fit(load_document(records, 1e-3)), None)
    assert len(table.used()) == 6  # and the names


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_the_ways_and_their_capacities(format: str) -> None:
    text = shown(load_race(), format)
    assert "openvino" in text
    assert "pytorch" in text
    assert "201" in text or "201.0" in text


def test_json_has_the_rows_and_csv_a_line_for_each_run() -> None:
    data = json.loads(shown(load_race(), "json", price=1e-3))
    assert [way["way"] for way in data["tests"][0]["ways"]] == ["openvino fp32 cpu", "pytorch fp32 cpu"]
    assert data["tests"][0]["ways"][0]["capacity"] == pytest.approx(201, rel=0.01)
    assert len(list(csv.reader(shown(load_race(), "csv").splitlines()))) == 1 + 6 * 5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"runs": (load_run(100.0, 100.0, others=1.4, lag=0.02),)}, "other programs used 1.4 of 16 CPUs"),
        ({"agreement": None}, "the answers were not compared with a reference"),
        ({"runs": (load_run(100.0, 100.0, lag=0.02),)}, "the generator was 20.0 ms late at p99"),
        ({"runs": (load_run(100.0, 100.0, answered=500),)}, "its p99 comes from 500 requests (set --seconds 40s)"),
        ({"above": 150.0}, "pytorch may serve more (set --budget 1200s)"),
        ({"requested": Deployment(2, 8)}, "larger batches were not tried (set --batching max=16)"),
    ],
)
def test_one_line_says_what_could_change_the_answer(fields: dict[str, Any], words: str) -> None:
    (line,) = [line for line in shown([load_record(**fields)]).splitlines() if line.startswith("What could")]
    assert words in line


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": "failed", "reason": "It ran out of memory.", "capacity": None}, "It ran out of memory."),
        ({"agreement": WRONG}, "wrong: relative L2 error 0.52"),
        ({"capacity": None, "runs": ()}, "no rate keeps the limit"),
    ],
)
def test_a_way_that_does_not_count_is_a_row_with_its_reason(fields: dict[str, Any], words: str) -> None:
    text = shown([load_record("openvino"), load_record(**fields)], "markdown")
    assert "FASTEST openvino" in text
    assert words in text


@pytest.mark.parametrize(
    ("limited_by", "fields", "words"),
    [
        ("gpu", {"gpu": 0.93, "busy": 0.99}, "the GPU, 93 % busy"),
        ("cpu", {"host": 0.97}, "the CPU, 97 % busy"),
        ("queue", {"busy": 0.5}, "requests that arrive together"),
        ("instances", {"lag": 0.02}, "the load generator"),
    ],
)
def test_what_limits_the_rate(limited_by: str, fields: dict[str, Any], words: str) -> None:
    assert words in shown([load_record(limited_by=limited_by, runs=(load_run(100.0, 100.0, **fields),))])


def test_a_price_gives_the_cost_of_a_million_requests_also_when_it_is_recorded() -> None:
    assert "10.0 for a million" in " ".join(shown([load_record()], price=1e-3).split())
    assert "20.0 for a million" in " ".join(shown([load_record(price=2e-3)]).split())


def test_a_mix_shows_the_time_of_each_size_its_padding_and_recompilations() -> None:
    text = shown([mixed_record()])
    assert "sequence_length=64" in text
    assert "sequence_length=256" in text
    assert "21.7 % of all that is computed is padding of requests and batches, 3 recompilations." in text


def test_loadgen_s_verdict_is_beside_the_own_latency() -> None:
    verdict = LoadgenVerdict(scenario="server", valid=True, at_limit=0.048, rate=99.0, logs="x", ours=0.05)
    text = " ".join(shown([load_record(loadgen=verdict, scenario="server")]).split())
    assert "LoadGen's Server scenario, unverified, not an MLPerf result: pytorch valid, 99.0 requests/s" in text
    assert "p99 48.0 ms (ours 50.0 ms)" in text


def test_requested_rates_have_rows_and_the_highest_that_keeps_the_limit() -> None:
    runs = tuple(load_run(rate, 100.0) for rate in (50.0, 100.0, 150.0))
    text = shown([load_record(capacity=None, rates=(50.0, 100.0, 150.0), runs=runs)])
    assert "BEST  pytorch: 100 requests/s within the limit" in text
    assert text.count("pytorch") == 4


def test_a_deployment_that_was_measured_again_counts_with_its_newest_record() -> None:
    old, new = load_record(capacity=100.0), load_record(capacity=150.0, created="2026-05-02T10:00:00Z")
    other = load_record(limit=Limit(0.95, 0.02), created="2026-05-03T10:00:00Z", id="other")
    assert load_tests([old, other, new]) == [[other], [new]]
    assert "1 older load test" in shown([old, other, new])


def test_load_tests_are_read_from_their_folders(tmp_path: Path) -> None:
    where = saved_loads(tmp_path / "resnet18", load_race())
    (where / "broken.load.json").write_text("{}")
    problems: list[str] = []
    assert [record.id for record in load_loads([where], problems)] == [record.id for record in load_race()]
    assert ("broken.load.json was left out" in problems[0], len(problems)) == (True, 1)
    assert load_folders(tmp_path) == find_loads([tmp_path]) == find_loads([where]) == [where]
    (tmp_path / "resnet18" / "case").mkdir()
    (tmp_path / "resnet18" / "case" / "record.json").write_text("{}")
    assert (find_loads([tmp_path]), find_loads([where])) == ([], [where])


def test_a_curve_has_a_point_for_each_rate_up_to_the_knee_with_the_spread_of_its_runs() -> None:
    part = load_chart(load_rows(load_race()))(THEMES["light"])
    points = [row for rows in chart_data(part) for row in rows if row.keys() == {"way", "rate", "value", "low", "high"}]
    curve = sorted({(row["rate"], row["value"]) for row in points if row["way"] == "openvino"})
    assert [round(at / 201, 2) for at, _ in curve] == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.02)
    assert curve == sorted(curve, key=lambda point: point[1])
    assert all(row["low"] <= row["value"] <= row["high"] for row in points)


def test_without_answers_there_is_nothing_to_draw() -> None:
    with pytest.raises(InferlensError, match="no request was answered"):
        load_chart(load_rows([load_record(capacity=None)]))


def test_ways_that_met_in_no_round_have_no_sure_winner() -> None:
    first = [record for record in load_race() if not record.round]
    assert "LIKELY FASTEST  openvino" in shown(first)
    assert "What could change it: pytorch may serve more (set --budget 1200s)" in shown(first)
    assert "FASTEST  openvino" in shown(first[:1]).splitlines()[2]


def test_other_programs_that_slowed_a_rival_are_mentioned() -> None:
    *rest, last = load_race()
    busy = structs.replace(last, runs=tuple(structs.replace(run, others=1.2) for run in last.runs))
    assert "What could change it: other programs used 1.2 of 16 CPUs" in shown([*rest, busy])


def test_one_round_whose_search_had_the_time_is_enough() -> None:
    *sure, last = load_race()
    assert "LIKELY" not in shown([*sure, structs.replace(last, above=None)])


def test_a_way_whose_search_ended_early_may_still_be_the_fastest() -> None:
    cut_short = shown([structs.replace(one, above=None) for one in load_race()])
    assert "LIKELY FASTEST  openvino: at least 201 requests/s\n" in cut_short
    assert "200 and more" in cut_short
    assert "pytorch may serve more (set --budget 1200s)" in cut_short
