"""Load on instances of the fake backend, which sleeps for the time of a call, also with LoadGen as the driver.

They are real processes where those matter; else they are threads of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inferlens.analysis.load import capacity_race
from inferlens.execution.load import dispatcher, run, tasks
from inferlens.execution.load.run import load_test
from inferlens.execution.load.tasks import _checked
from inferlens.execution.protocol import Observer
from inferlens.record.load import POOL, Deployment, LoadRecord
from inferlens.spec.case import Case
from tests.commands import stay

pytestmark = pytest.mark.usefixtures("without_torch", "probed_here")


def measured(output: Path, *backends: str, option: tuple[str, ...] = (), **words: object) -> list[LoadRecord]:
    plan = {"backend": backends or ("fake:steady",), "output": str(output), "option": ("fake.sleep=true", *option)}
    records: list[LoadRecord] = []
    load_test("fake:demo", {**plan, **words}, Observer(), records)
    return records


@pytest.fixture(scope="module")
def at_rates(tmp_path_factory: pytest.TempPathFactory) -> LoadRecord:
    """A call takes 4 ms; two instances serve 500 requests a second at most."""
    output = tmp_path_factory.mktemp("rates")
    words = {"rate": ("100", "1000"), "instances": 2, "batching": "max=1", "seconds": "0.4s"}
    (record,) = measured(output, **words)
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        (again,) = measured(output, **words)
    assert again.id == record.id  # the same command goes on
    return record


def test_a_rate_below_the_capacity_is_served(at_rates: LoadRecord) -> None:
    run = at_rates.runs[0]
    assert (run.rate, run.failed, run.refused) == (100, 0, 0)
    assert run.throughput == pytest.approx(100, rel=0.3)
    assert run.quantiles[0] >= 0.004


def test_a_rate_above_the_capacity_shows_its_queue(at_rates: LoadRecord) -> None:
    run = at_rates.runs[1]
    assert run.throughput <= 501
    assert run.quantiles[2] > 0.1
    assert max(run.queue) > 100
    assert run.busy > 0.6  # less than 1 beside other programs


def test_answers_are_compared_with_the_reference(at_rates: LoadRecord) -> None:
    assert at_rates.agreement.agrees
    assert at_rates.checked > 50
    assert at_rates.mixed_up == 0


@pytest.fixture
def in_threads(one_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run instances and traffic in this process, with shorter measurements before the traffic."""
    monkeypatch.setattr(dispatcher, "SERVICE_SECONDS", 0.1)
    monkeypatch.setattr(dispatcher, "SIMULATED_REQUESTS", 500)


@pytest.mark.usefixtures("in_threads")
def test_wrong_answers_are_noticed(tmp_path: Path) -> None:
    (record,) = measured(
        tmp_path, rate=("50",), instances=1, batching="max=2", seconds="0.5s", option=("fake.error=0.5",)
    )
    assert record.agreement.agrees is False
    assert capacity_race([record]) is None


def test_answers_that_went_to_other_requests_are_caught() -> None:
    expected = {0: [np.arange(POOL, dtype=np.float32)[:, None] + 1]}
    right = _checked([([1, 2, 3], [expected[0][0][[1, 2, 3, 3]]])], expected, 0.1, "reference")
    mixed = _checked([([1, 2, 3], [expected[0][0][[2, 1, 3, 3]]])], expected, 0.1, "reference")
    assert (right.agreement.agrees, right.mixed_up) == (True, 0)
    assert (mixed.agreement.agrees, mixed.mixed_up) == (False, 2)
    assert "belong to other requests" in mixed.agreement.reason


@pytest.mark.parametrize(("trouble", "reason"), [("kill", "killed by SIGKILL"), ("raise", "was told to fail")])
def test_an_instance_that_ends_is_a_row_with_its_reason(tmp_path: Path, trouble: str, reason: str) -> None:
    (record,) = measured(tmp_path, rate=("50",), instances=1, batching="max=1", option=(f"fake.trouble={trouble}",))
    assert record.status != "ok"
    assert reason in record.reason


@pytest.mark.usefixtures("in_threads")
def test_the_way_with_the_shorter_calls_serves_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways that take 8 and 4 ms serve up to 125 and 250 requests a second, if these come evenly."""

    def simulated(record: LoadRecord, _: object, keep: Callable[[LoadRecord], None], end: float) -> LoadRecord:
        seconds = 0.004 if record.case.variant == "fast" else 0.008
        return dispatcher.measure(record, dispatcher.SimulatedInstances(1, lambda *_: seconds), keep, end)

    monkeypatch.setattr(tasks, "measure", simulated)
    records = measured(
        tmp_path, "fake:steady", "fake:fast", arrivals="constant", batching="max=1", instances=1, within="p99=50ms"
    )
    race = capacity_race(records)
    capacities = {record.case.variant: record.capacity for record in records}
    assert race.decided
    assert race.leader == next(record.case.digest for record in records if record.case.variant == "fast")
    assert capacities == {"steady": pytest.approx(125, rel=0.1), "fast": pytest.approx(250, rel=0.1)}


@pytest.mark.usefixtures("in_threads")
def test_sizes_whose_call_takes_longer_than_the_limit_are_not_prepared(tmp_path: Path) -> None:
    """A call takes 4 ms, and 104 ms with two requests."""
    (record, *_) = measured(
        tmp_path, option=("fake.per_item=100",), within="p99=50ms", instances=1, seconds="0.1s", budget="1s"
    )
    assert {*record.service[0]} == {1, 2}
    assert record.requested.max_batch == 16


@pytest.fixture
def by_loadgen(in_threads: None, tmp_path: Path) -> Callable[..., LoadRecord]:
    """Return a function that measures calls of 4 ms in a scenario of LoadGen."""
    pytest.importorskip("mlperf_loadgen")

    def measure(scenario: str, rate: str, within: str) -> LoadRecord:
        words = {"instances": 1, "batching": "max=1", "seconds": "0.3s"}
        (record,) = measured(tmp_path, scenario=scenario, rate=(rate,), within=within, **words)
        return record

    return measure


@pytest.mark.parametrize("scenario", ["server", "single-stream"])
def test_loadgen_drives_the_same_instances(by_loadgen: Callable[..., LoadRecord], scenario: str) -> None:
    """Its latency is that of a call; it was once longer by the time that a thread took to start."""
    record = by_loadgen(scenario, "60", "p50=200ms")
    verdict, run = record.loadgen, record.runs[0]
    assert verdict.valid, verdict.reason
    assert Path(verdict.logs, "mlperf_log_detail.txt").exists()
    assert verdict.at_limit == pytest.approx(0.008, abs=0.004)
    if scenario == "server":
        assert verdict.rate == pytest.approx(run.throughput, rel=0.2)


def test_an_invalid_run_of_loadgen_has_its_reason(by_loadgen: Callable[..., LoadRecord]) -> None:
    verdict = by_loadgen("server", "200", "p50=1ms").loadgen
    assert not verdict.valid
    assert "Performance constraints satisfied" in verdict.reason


@pytest.mark.parametrize(("device", "instances", "threads"), [("cpu", 2, 2), ("cpu", 8, 1), ("cuda", 1, 1)])
def test_instances_share_the_threads_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, device: str, instances: int, threads: int
) -> None:
    monkeypatch.setattr(run, "usable_cpus", lambda: [*range(4)])
    case = Case(model="fake:demo", backend="fake", device=device)
    assert run.with_threads(case, Deployment(instances)).threads == threads
