"""Planted capacities are found: on simulated instances, and by real traffic on a fake backend that sleeps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from inferlens.execution.load.dispatcher import SimulatedInstances
from inferlens.execution.load.tasks import REACH, DriveJob, chosen, measured
from inferlens.record.load import Arrivals, Deployment, Limit

EVENLY = Arrivals("constant")


def capacity(deployment: Deployment, arrivals: Arrivals, limit: Limit, seconds: float = 60.0, draw: int = 0) -> float:
    instances = SimulatedInstances(deployment.instances, lambda _samples, size: 0.01 + 0.001 * size)
    job = DriveJob(
        address="", stop="", deployment=deployment, arrivals=arrivals, limit=limit, seconds=seconds, draw=draw
    )
    found = measured(job, instances, lambda _: None).capacity
    assert found is not None
    return found


@pytest.mark.parametrize("instances", [1, 3])
def test_evenly_spaced_requests_are_served_up_to_the_rate_of_the_calls(instances: int) -> None:
    assert capacity(Deployment(instances), EVENLY, Limit(0.99, 0.1)) == pytest.approx(instances / 0.011, rel=0.03)


def test_random_requests_are_served_as_in_an_m_d_1_queue() -> None:
    rho, service = 0.6, 0.011
    limit = Limit(0.99, service + wait_of(rho, service))
    rounds = [capacity(Deployment(), Arrivals(), limit, seconds=300, draw=draw) for draw in range(6)]
    assert np.mean(rounds) * service == pytest.approx(rho, rel=0.03)


def wait_of(rho: float, service: float) -> float:
    """The 0.99 quantile of the wait in an M/D/1 queue, by Lindley's recursion over a million arrivals."""
    gaps = np.random.default_rng(11).exponential(service / rho, size=1_000_000)
    steps = np.cumsum(service - gaps)
    return float(np.quantile(steps - np.minimum(np.minimum.accumulate(steps), 0.0), 0.99))


def job(deployment: Deployment, arrivals: Arrivals = EVENLY) -> DriveJob:
    return DriveJob(address="", stop="", deployment=deployment, arrivals=arrivals, limit=Limit(0.99, 0.1))


def test_batches_are_chosen_where_they_serve_more() -> None:
    deployment, rate = chosen(job(Deployment(1, 8)), ({1: 0.01, 2: 0.011, 4: 0.012, 8: 0.016},))
    assert deployment.max_batch == 8
    assert rate == pytest.approx(8 / 0.016, rel=0.15)


def test_single_requests_are_chosen_where_batches_serve_no_more() -> None:
    service = {size: 0.01 * size for size in (1, 2, 4, 8)}
    assert chosen(job(Deployment(1, 8)), (service,))[0].max_batch == 1


def test_a_disturbance_in_the_search_does_not_lower_the_capacity() -> None:
    calls = itertools.count()
    instances = SimulatedInstances(1, lambda _samples, _size: 0.5 if 120 < next(calls) < 160 else 0.01)
    assert measured(job(Deployment(), EVENLY), instances, lambda _: None).capacity == pytest.approx(100, rel=0.03)


def test_runs_with_luck_do_not_raise_the_capacity() -> None:
    calls = itertools.count()
    instances = SimulatedInstances(1, lambda _samples, _size: 0.005 if 700 < next(calls) < 2500 else 0.01)
    assert measured(job(Deployment(), EVENLY), instances, lambda _: None).capacity == pytest.approx(100, rel=0.03)


def test_no_rate_keeps_a_limit_below_one_call() -> None:
    instances = SimulatedInstances(1, lambda _samples, _size: 0.2)
    assert measured(job(Deployment(), EVENLY), instances, lambda _: None).capacity == 0.0


def test_a_limit_that_no_rate_keeps_ends_the_search_before_the_traffic_takes_very_long() -> None:
    """A call takes 11 ms: the search begins at a quarter of the rate that full use would serve."""
    instances = SimulatedInstances(1, lambda _samples, size: 0.01 + 0.001 * size)
    job = DriveJob(address="", stop="", deployment=Deployment(), arrivals=EVENLY, limit=Limit(0.99, 0.005))
    result = measured(job, instances, lambda _: None)
    assert result.capacity == 0
    assert min(run.rate for run in result.runs) > 1 / 0.011 / 4 / REACH


def test_the_curve_below_a_capacity_is_measured_once() -> None:
    instances = SimulatedInstances(1, lambda _samples, size: 0.01 + 0.001 * size)
    for draw, count in ((0, 4), (1, 0)):
        job = DriveJob(
            address="", stop="", deployment=Deployment(), arrivals=EVENLY, limit=Limit(0.99, 0.1), seconds=1, draw=draw
        )
        result = measured(job, instances, lambda _: None)
        assert result.capacity
        shares = [run.rate / result.capacity for run in result.runs]
        assert sum(round(share, 3) in (0.25, 0.5, 0.75, 0.9) for share in shares) == count
