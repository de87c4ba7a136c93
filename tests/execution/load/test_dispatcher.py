"""Queues of the dispatcher against theory: the loop runs on simulated instances, in which no real time passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from inferlens.execution.load.dispatcher import (
    ANSWERED,
    EXPIRED,
    FAILED,
    REFUSED,
    Dispatcher,
    LoadLog,
    SimulatedInstances,
    Traffic,
    unit_times,
)
from inferlens.record.load import POOL, Arrivals, Deployment, Limit

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


def served(times: Sequence[float], deployment: Deployment, seconds: float = 1.0) -> LoadLog:
    instances = SimulatedInstances(deployment.instances, lambda _samples, _size: seconds)
    return Dispatcher(Traffic(np.array(times), [0]), instances, deployment).run()


def test_a_batch_goes_when_it_is_full() -> None:
    log = served([0, 0.1, 0.2, 0.3], Deployment(max_batch=2, wait=10))
    assert log.sent.tolist() == pytest.approx([0.1, 0.1, 1.1, 1.1])
    assert log.size.tolist() == [2, 2]


def test_a_batch_goes_when_its_first_request_has_waited() -> None:
    log = served([0, 0.1, 5], Deployment(max_batch=8, wait=0.5), seconds=0.2)
    assert log.sent.tolist() == pytest.approx([0.5, 0.5, 5])
    assert log.padded.tolist() == [2, 1]


def test_a_batch_is_padded_to_a_prepared_size() -> None:
    assert served([0, 0, 0], Deployment(max_batch=16)).padded.tolist() == [4]


def test_nobody_waits_for_requests_that_will_not_come() -> None:
    assert served([0, 0.1], Deployment(max_batch=8, wait=60)).sent.tolist() == pytest.approx([0.1, 0.1])


def test_two_instances_serve_side_by_side() -> None:
    log = served([0, 0, 0], Deployment(instances=2))
    assert log.answered.tolist() == pytest.approx([1, 1, 2])
    assert log.instance.tolist() == [0, 1, 0]


def test_a_full_queue_refuses() -> None:
    log = served([0, 0.1, 0.2, 0.3], Deployment(queue=2))
    assert log.status.tolist() == [ANSWERED, ANSWERED, ANSWERED, REFUSED]


def test_a_request_that_waits_too_long_is_given_up() -> None:
    log = served([0, 0.1, 1.5], Deployment(timeout=0.5))
    assert log.status.tolist() == [ANSWERED, EXPIRED, ANSWERED]
    assert math.isnan(log.answered[1])


def test_requests_of_other_groups_share_no_batch() -> None:
    instances = SimulatedInstances(1, lambda _samples, _size: 1.0)
    log = Dispatcher(Traffic(np.zeros(4), [0, POOL, 1, POOL + 1]), instances, Deployment(max_batch=4)).run()
    assert log.batch.tolist() == [0, 1, 0, 1]


def test_the_run_ends_when_the_limit_cannot_be_kept_any_more() -> None:
    instances = SimulatedInstances(1, lambda _samples, _size: 1.0)
    log = Dispatcher(Traffic(np.arange(100) * 0.1, [0]), instances, Deployment(), Limit(0.97, 2.0)).run()
    assert FAILED in log.status
    assert len(log.due) < 100


def test_each_client_has_one_request_under_way() -> None:
    instances = SimulatedInstances(4, lambda _samples, _size: 1.0)
    log = Dispatcher(Traffic([0.0] * 2, [0], until=10), instances, Deployment(instances=4)).run()
    assert len(log.due) == 20
    assert (log.answered - log.due).tolist() == pytest.approx([1.0] * 20)


@pytest.mark.parametrize(
    ("text", "gaps"),
    [("constant", {1.0}), ("bursts=4", {0.0, 4.0})],
)
def test_arrivals_come_as_they_are_named(text: str, gaps: set[float]) -> None:
    assert {*np.diff(unit_times(Arrivals.parse(text), 100, 0)).tolist()} == gaps


def test_a_file_is_replayed_at_a_mean_rate_of_one(tmp_path) -> None:
    file = tmp_path / "times.txt"
    file.write_text("10\n10.5\n14\n")
    assert unit_times(Arrivals("replay", file=str(file)), 3, 0).tolist() == pytest.approx([0, 0.25, 2])
    assert unit_times(Arrivals("replay", file=str(file)), 7, 0).tolist() == pytest.approx([0, 0.25, 2, 3, 3.25, 5, 6])
