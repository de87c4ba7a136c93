"""The dispatcher against theory: the loop runs on simulated instances, in which no real time passes.

Its queues are those of Lindley's recursion, and the search finds planted capacities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from inferlens.execution.load import dispatcher
from inferlens.execution.load.dispatcher import Dispatcher, LoadLog, SimulatedInstances, Traffic, unit_times
from inferlens.record.load import POOL, Arrivals, Deployment, Limit, LoadRecord
from inferlens.spec.case import Case

REQUESTS = 2000


def lindley(gaps: np.ndarray, services: np.ndarray) -> np.ndarray:
    """Return the waits of all requests but the first at one instance: ``W' = max(0, W + service - gap)``.

    The recursion is from Lindley, 1952.
    """
    steps = np.cumsum(services - gaps)
    return steps - np.minimum(np.minimum.accumulate(steps), 0.0)


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("random_calls", [False, True], ids=["M/D/1", "M/M/1"])
def test_requests_wait_as_long_as_in_lindleys_recursion(rate: float, random_calls: bool) -> None:
    services = np.random.default_rng(7).exponential(size=REQUESTS) if random_calls else np.ones(REQUESTS)
    times = unit_times(Arrivals(), REQUESTS, 3) / rate
    calls = iter(services)
    instances = SimulatedInstances(1, lambda _samples, _size: next(calls))
    log = Dispatcher(Traffic(times, [0]), instances, Deployment()).run()
    assert (log.sent - log.due)[1:] == pytest.approx(lindley(np.diff(times), services[:-1]), abs=1e-6)


def served(times: Sequence[float], deployment: Deployment, seconds: float) -> LoadLog:
    instances = SimulatedInstances(deployment.instances, lambda _samples, _size: seconds)
    return Dispatcher(Traffic(np.array(times), [0]), instances, deployment).run()


OK, AT_ONCE = dispatcher.ANSWERED, [0.0, 0.0, 0.0]
QUEUES = {
    "a batch goes when it is full": ([0, 0.1, 0.2, 0.3], Deployment(max_batch=2, wait=10), 1.0, {
        "sent": [0.1, 0.1, 1.1, 1.1], "size": [2, 2]}),
    "a batch goes when its first request has waited": ([0, 0.1, 5], Deployment(max_batch=8, wait=0.5), 0.2, {
        "sent": [0.5, 0.5, 5], "padded": [2, 1]}),
    "a batch is padded to a prepared size": (AT_ONCE, Deployment(max_batch=16), 1.0, {"padded": [4]}),
    "nobody waits for requests that will not come": ([0, 0.1], Deployment(max_batch=8, wait=60), 1.0, {
        "sent": [0.1, 0.1]}),
    "two instances serve side by side": (AT_ONCE, Deployment(instances=2), 1.0, {
        "answered": [1, 1, 2], "instance": [0, 1, 0]}),
    "a full queue refuses": ([0, 0.1, 0.2, 0.3], Deployment(queue=2), 1.0, {
        "status": [OK, OK, OK, dispatcher.REFUSED]}),
    "a request that waits too long is given up": ([0, 0.1, 1.5], Deployment(timeout=0.5), 1.0, {
        "status": [OK, dispatcher.EXPIRED, OK], "answered": [1, math.nan, 2.5]}),
}  # fmt: skip


@pytest.mark.parametrize("name", QUEUES)
def test_requests_are_queued_and_batched(name: str) -> None:
    times, deployment, seconds, expected = QUEUES[name]
    log = served(times, deployment, seconds)
    for field, values in expected.items():
        assert getattr(log, field).tolist() == pytest.approx(values, nan_ok=True), field


def test_requests_of_other_groups_share_no_batch() -> None:
    instances = SimulatedInstances(1, lambda _samples, _size: 1.0)
    log = Dispatcher(Traffic(np.zeros(4), [0, POOL, 1, POOL + 1]), instances, Deployment(max_batch=4)).run()
    assert log.batch.tolist() == [0, 1, 0, 1]


def test_the_run_ends_when_the_limit_cannot_be_kept_any_more() -> None:
    instances = SimulatedInstances(1, lambda _samples, _size: 1.0)
    log = Dispatcher(Traffic(np.arange(100) * 0.1, [0]), instances, Deployment(), Limit(0.97, 2.0)).run()
    assert dispatcher.FAILED in log.status
    assert len(log.due) < 100


def test_each_client_has_one_request_under_way() -> None:
    instances = SimulatedInstances(4, lambda _samples, _size: 1.0)
    log = Dispatcher(Traffic([0.0] * 2, [0], until=10), instances, Deployment(instances=4)).run()
    assert len(log.due) == 20
    assert (log.answered - log.due).tolist() == pytest.approx([1.0] * 20)


@pytest.mark.parametrize(("text", "gaps"), [("constant", {1.0}), ("bursts=4", {0.0, 4.0})])
def test_arrivals_come_as_they_are_named(text: str, gaps: set[float]) -> None:
    assert {*np.diff(unit_times(Arrivals.parse(text), 100, 0)).tolist()} == gaps


def test_a_file_is_replayed_at_a_mean_rate_of_one(tmp_path) -> None:
    file = tmp_path / "times.txt"
    file.write_text("10\n10.5\n14\n")
    assert unit_times(Arrivals("replay", file=str(file)), 3, 0).tolist() == pytest.approx([0, 0.25, 2])
    assert unit_times(Arrivals("replay", file=str(file)), 7, 0).tolist() == pytest.approx([0, 0.25, 2, 3, 3.25, 5, 6])


def record(deployment: Deployment | None = None, limit: float = 0.1, **fields: Any) -> LoadRecord:
    deployment = deployment or Deployment()
    values = {"arrivals": Arrivals("constant"), "limit": Limit(0.99, limit), **fields}
    case = Case(model="fake:demo", backend="fake")
    return LoadRecord(id="", created="", case=case, requested=deployment, deployment=deployment, **values)


def measured(record: LoadRecord, seconds: Callable[[int], float] = lambda size: 0.01 + 0.001 * size) -> LoadRecord:
    """Return the record with what was measured on simulated instances whose calls take some seconds at a size."""
    instances = SimulatedInstances(record.deployment.instances, lambda _samples, size: seconds(size))
    return dispatcher.measure(record, instances, lambda _: None)


@pytest.mark.parametrize("instances", [1, 3])
def test_evenly_spaced_requests_are_served_up_to_the_rate_of_the_calls(instances: int) -> None:
    capacity = measured(record(Deployment(instances), seconds=4)).capacity
    assert capacity == pytest.approx(instances / 0.011, rel=0.03)


def test_random_requests_are_served_as_in_an_m_d_1_queue() -> None:
    rho, service = 0.6, 0.011
    limit = service + wait_of(rho, service)
    rounds = [record(limit=limit, arrivals=Arrivals(), seconds=40, round=number) for number in (1, 2)]
    capacity = np.mean([measured(record).capacity for record in rounds])
    assert capacity * service == pytest.approx(rho, rel=0.05)


def wait_of(rho: float, service: float) -> float:
    """Return the 0.99 quantile of the wait in an M/D/1 queue, by Lindley's recursion over many arrivals."""
    gaps = np.random.default_rng(11).exponential(service / rho, size=300_000)
    return float(np.quantile(lindley(gaps, np.full(len(gaps), service)), 0.99))


@pytest.mark.parametrize(("service", "size", "capacity"), [
    ({1: 0.01, 2: 0.011, 4: 0.012, 8: 0.016}, 8, 8 / 0.016), ({size: 0.01 * size for size in (1, 2, 4, 8)}, 1, 100),
], ids=["batches serve more", "batches serve no more"])  # fmt: skip
def test_batches_are_chosen_where_they_serve_more(service, size, capacity, monkeypatch):
    monkeypatch.setattr(dispatcher, "SIMULATED_REQUESTS", 500)
    best, rate = dispatcher.choose_batching(record(Deployment(1, 8), service=(service,)))
    assert best.deployment.max_batch == size
    assert rate == pytest.approx(capacity, rel=0.15)


@pytest.mark.parametrize(("seconds", "calls"), [(0.5, range(121, 160)), (0.005, range(701, 2500))])
def test_slow_or_lucky_calls_in_the_search_do_not_change_the_capacity(seconds: float, calls: range) -> None:
    numbers = itertools.count()
    result = measured(record(), lambda _: seconds if next(numbers) in calls else 0.01)
    assert result.capacity == pytest.approx(100, rel=0.03)


def test_a_limit_that_no_rate_keeps_ends_the_search_before_the_traffic_takes_very_long() -> None:
    """A call takes 11 ms: the search begins at a quarter of the rate that full use would serve."""
    result = measured(record(limit=0.005))
    assert result.capacity == 0
    assert min(run.rate for run in result.runs) > 1 / 0.011 / 4 / dispatcher.REACH


@pytest.mark.parametrize(("draw", "count"), [(0, 4), (1, 0)])
def test_the_curve_below_a_capacity_is_measured_once(draw: int, count: int) -> None:
    result = measured(record(seconds=1, round=draw))
    assert result.capacity
    shares = [round(run.rate / result.capacity, 3) for run in result.runs]
    assert sum(share in (0.25, 0.5, 0.75, 0.9) for share in shares) == count


def test_a_search_whose_time_is_over_ends_once_a_rate_kept_the_limit() -> None:
    instances = SimulatedInstances(1, lambda _samples, size: 0.01)
    result = dispatcher.measure(record(), instances, lambda _: None, end=0.0)
    assert result.capacity
    assert result.capacity <= 100 * 1.01
    assert len(result.runs) <= 3


def test_a_later_round_begins_at_the_capacity_of_the_first() -> None:
    first = measured(record(seconds=2))
    again = measured(record(seconds=2, round=1, service=first.service, capacity=first.capacity))
    assert again.capacity == pytest.approx(first.capacity, rel=0.03)
    assert again.runs[0].rate == first.capacity
