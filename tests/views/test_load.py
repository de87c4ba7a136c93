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
from inferlens.record.load import Deployment, GroupRun, Limit, LoadgenVerdict, LoadRecord, LoadRun, Mix
from inferlens.record.record import ModelFacts
from inferlens.views.load import load_chart, load_document, load_rows
from inferlens.views.picture import THEMES, chart_data
from inferlens.views.renderers import render
from inferlens.views.renderers.terminal import fit
from inferlens.views.table import select_columns
from tests.refusals import refusal
from tests.snapshots import screens_test
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


def met_in_no_round() -> list[LoadRecord]:
    return [record for record in load_race() if not record.round]


def others_slowed_a_rival() -> list[LoadRecord]:
    *rest, last = load_race()
    return [*rest, structs.replace(last, runs=tuple(structs.replace(run, others=1.2) for run in last.runs))]


def of_run(limited_by: str = "instances", **fields: Any) -> list[LoadRecord]:
    """A record of one run at the capacity."""
    return [load_record(limited_by=limited_by, runs=(load_run(100.0, 100.0, **fields),))]


VERDICT = LoadgenVerdict(scenario="server", valid=True, at_limit=0.048, rate=99.0, logs="x", ours=0.05)
RATES = (50.0, 100.0, 150.0)
REQUESTED = load_record(capacity=None, rates=RATES, runs=tuple(load_run(rate, 100.0) for rate in RATES))
# Ways that do not count beside one that does.
FAILED = load_record(status="failed", reason="It ran out of memory.", capacity=None)
UNFIT = [FAILED, load_record("torchscript", agreement=WRONG), load_record("torch_compile", capacity=None, runs=())]
SCREENS = {
    "the answer": lambda: shown(load_race(), folder="results/resnet18/load"),
    "ways that do not count": lambda: shown([load_record("openvino"), *UNFIT], "markdown"),
    # What could change the answer, in one line.
    "other programs": lambda: shown(of_run(others=1.4, lag=0.02)),
    "answers not compared": lambda: shown([load_record(agreement=None)]),
    "a late generator": lambda: shown(of_run(lag=0.02)), "few requests": lambda: shown(of_run(answered=500)),
    "a search without an end": lambda: shown([load_record(above=150.0)]),
    "larger batches not tried": lambda: shown([load_record(requested=Deployment(2, 8))]),
    "no round of both": lambda: shown(met_in_no_round()), "one that met nobody": lambda: shown(met_in_no_round()[:1]),
    "a rival that others slowed": lambda: shown(others_slowed_a_rival()),
    "one search that ended early": lambda: shown([*load_race()[:-1], structs.replace(load_race()[-1], above=None)]),
    "searches that ended early": lambda: shown([structs.replace(one, above=None) for one in load_race()]),
    # What limits the rate.
    "limited by the GPU": lambda: shown(of_run("gpu", gpu=0.93, busy=0.99)),
    "limited by the CPU": lambda: shown(of_run("cpu", host=0.97)),
    "limited by arrivals": lambda: shown(of_run("queue", busy=0.5)),
    "a price": lambda: shown([load_record()], price=1e-3),
    "a recorded price": lambda: shown([load_record(price=2e-3)]),
    "a mix": lambda: shown([mixed_record()]), "requested rates": lambda: shown([REQUESTED]),
    "beside LoadGen": lambda: shown([load_record(loadgen=VERDICT, scenario="server")]),
}  # fmt: skip
test_screen = screens_test("load", SCREENS)


@pytest.mark.parametrize("width", [80, 100])
def test_the_default_output_is_one_screen_of_seven_columns(width: int) -> None:
    ways = [f"{name}:{number}" for name in ("pytorch", "openvino", "onnxruntime") for number in range(3)]
    records = [load_record(way, 100.0 + 9 * place, round=number) for place, way in enumerate(ways) for number in (0, 1)]
    lines = render(load_document([*records, mixed_record()], 1e-3), "table", width=width).splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= width) == (True, True)
    (table, *_) = select_columns(fit(load_document(records, 1e-3)), None)
    assert len(table.used()) == 6  # and the names


def test_json_has_the_rows_and_csv_a_line_for_each_run() -> None:
    data = json.loads(shown(load_race(), "json", price=1e-3))
    assert [way["way"] for way in data["tests"][0]["ways"]] == ["openvino fp32 cpu", "pytorch fp32 cpu"]
    assert data["tests"][0]["ways"][0]["capacity"] == pytest.approx(201, rel=0.01)
    assert len(list(csv.reader(shown(load_race(), "csv").splitlines()))) == 1 + 6 * 5


def test_a_deployment_that_was_measured_again_counts_with_its_newest_record() -> None:
    old, new = load_record(capacity=100.0), load_record(capacity=150.0, created="2026-05-02T10:00:00Z")
    other = load_record(limit=Limit(0.95, 0.02), created="2026-05-03T10:00:00Z", id="other")
    assert load_tests([old, other, new]) == [[other], [new]]
    assert "1 older load test" in shown([old, other, new])


def test_a_curve_has_a_point_for_each_rate_up_to_the_knee_with_the_spread_of_its_runs() -> None:
    part = load_chart(load_rows(load_race()))(THEMES["light"])
    points = [row for rows in chart_data(part) for row in rows if row.keys() == {"way", "rate", "value", "low", "high"}]
    curve = sorted({(row["rate"], row["value"]) for row in points if row["way"] == "openvino"})
    assert [round(at / 201, 2) for at, _ in curve] == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.02)
    assert curve == sorted(curve, key=lambda point: point[1])
    assert all(row["low"] <= row["value"] <= row["high"] for row in points)


def test_without_answers_there_is_nothing_to_draw() -> None:
    refusal("no request was answered", load_chart, load_rows([load_record(capacity=None)]))


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
