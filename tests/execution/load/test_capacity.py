"""Planted capacities are found: on simulated instances, and by real traffic on a fake backend that sleeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferlens.execution.load import dispatcher
from inferlens.execution.load.dispatcher import REACH, SimulatedInstances, choose_batching, measure
from inferlens.record.load import Arrivals, Deployment, Limit, LoadRecord
from inferlens.spec.case import Case
from tests.execution.load.test_dispatcher import lindley


def record(deployment: Deployment | None = None, limit: float = 0.1, **fields: Any) -> LoadRecord:
    deployment = deployment or Deployment()
    values = {"arrivals": Arrivals("constant"), "limit": Limit(0.99, limit), **fields}
    case = Case(model="fake:demo", backend="fake")
    return LoadRecord(id="", created="", case=case, requested=deployment, deployment=deployment, **values)


def measured(record: LoadRecord, seconds: Callable[[int], float] = lambda size: 0.01 + 0.001 * size) -> LoadRecord:
    """Return the record with what was measured on simulated instances whose calls take some seconds at a size."""
    instances = SimulatedInstances(record.deployment.instances, lambda _samples, size: seconds(size))
    return measure(record, instances, lambda _: None)


@pytest.mark.parametrize("instances", [1, 3])
def test_evenly_spaced_requests_are_served_up_to_the_rate_of_the_calls(instances: int) -> None:
    capacity = measured(record(Deployment(instances), seconds=10)).capacity
    assert capacity == pytest.approx(instances / 0.011, rel=0.03)


def test_random_requests_are_served_as_in_an_m_d_1_queue() -> None:
    rho, service = 0.6, 0.011
    limit = service + wait_of(rho, service)
    rounds = [record(limit=limit, arrivals=Arrivals(), seconds=100, round=number) for number in (1, 2)]
    capacity = np.mean([measured(record).capacity for record in rounds])
    assert capacity * service == pytest.approx(rho, rel=0.05)


def wait_of(rho: float, service: float) -> float:
    """Return the 0.99 quantile of the wait in an M/D/1 queue, by Lindley's recursion over a million arrivals."""
    gaps = np.random.default_rng(11).exponential(service / rho, size=1_000_000)
    return float(np.quantile(lindley(gaps, np.full(len(gaps), service)), 0.99))


@pytest.mark.parametrize(
    ("service", "size", "capacity"),
    [({1: 0.01, 2: 0.011, 4: 0.012, 8: 0.016}, 8, 8 / 0.016), ({size: 0.01 * size for size in (1, 2, 4, 8)}, 1, 100)],
    ids=["batches serve more", "batches serve no more"],
)
def test_batches_are_chosen_where_they_serve_more(
    service: dict[int, float], size: int, capacity: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SIMULATED_REQUESTS", 500)
    best, rate = choose_batching(record(Deployment(1, 8), service=(service,)))
    assert best.deployment.max_batch == size
    assert rate == pytest.approx(capacity, rel=0.15)


def test_a_disturbance_in_the_search_does_not_lower_the_capacity() -> None:
    calls = itertools.count()
    disturbed = measured(record(), lambda _: 0.5 if 120 < next(calls) < 160 else 0.01)
    assert disturbed.capacity == pytest.approx(100, rel=0.03)


def test_runs_with_luck_do_not_raise_the_capacity() -> None:
    calls = itertools.count()
    lucky = measured(record(), lambda _: 0.005 if 700 < next(calls) < 2500 else 0.01)
    assert lucky.capacity == pytest.approx(100, rel=0.03)


def test_a_limit_that_no_rate_keeps_ends_the_search_before_the_traffic_takes_very_long() -> None:
    """A call takes 11 ms: the search begins at a quarter of the rate that full use would serve."""
    result = measured(record(limit=0.005))
    assert result.capacity == 0
    assert min(run.rate for run in result.runs) > 1 / 0.011 / 4 / REACH


@pytest.mark.parametrize(("draw", "count"), [(0, 4), (1, 0)])
def test_the_curve_below_a_capacity_is_measured_once(draw: int, count: int) -> None:
    result = measured(record(seconds=1, round=draw))
    assert result.capacity
    shares = [round(run.rate / result.capacity, 3) for run in result.runs]
    assert sum(share in (0.25, 0.5, 0.75, 0.9) for share in shares) == count


def test_a_search_whose_time_is_over_ends_once_a_rate_kept_the_limit() -> None:
    instances = SimulatedInstances(1, lambda _samples, size: 0.01)
    result = measure(record(), instances, lambda _: None, end=0.0)
    assert result.capacity
    assert result.capacity <= 100 * 1.01
    assert len(result.runs) <= 3


def test_a_later_round_begins_at_the_capacity_of_the_first() -> None:
    first = measured(record(seconds=2))
    again = measured(record(seconds=2, round=1, service=first.service, capacity=first.capacity))
    assert again.capacity == pytest.approx(first.capacity, rel=0.03)
    assert again.runs[0].rate == first.capacity
