"""The traffic of a load test, and the dispatcher that forms batches of its requests.

Times are seconds since the start of a run. In an open loop requests are due at fixed times, so a slow server does not
slow the traffic down. The latency of a request counts from the time at which it was due: neither a queue nor a late
generator hides. The dispatcher is one loop on one thread. :class:`Instances` are processes in a measurement and
arithmetic in a prediction; the loop is the same.
"""

from __future__ import annotations

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.errors import InferlensError
from inferlens.record.load import Arrivals, Deployment, Mix

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]
POOL = 13  # samples in a group that requests ask for: the rows of one batch of the reference


class Traffic:
    """Requests that are due at some times; request number ``i`` asks for ``samples[i % len(samples)]``.

    With ``until`` each request is a client: it comes again when it has ended, before that many seconds have passed.
    """

    def __init__(self, times: Iterable[float], samples: Sequence[int], until: float = 0.0) -> None:
        self._due = deque(map(float, times))
        self._samples = samples
        self._until = until
        self._clients = len(self._due) if until else 0
        self._taken = 0

    @property
    def due(self) -> float | None:
        """The time at which the next request is due; ``None`` if none is known yet."""
        return self._due[0] if self._due else None

    @property
    def over(self) -> bool:
        """True if no request will follow, whatever is answered."""
        return not self._due and not self._clients

    def take(self) -> tuple[float, int]:
        """Return the time and the sample of the next request."""
        self._taken += 1
        return self._due.popleft(), self._samples[(self._taken - 1) % len(self._samples)]

    def ended(self, request: int, now: float) -> None:  # noqa: ARG002
        """Register that a request was answered, refused or lost; ``request`` counts those that were taken."""
        if now < self._until:
            self._due.append(now)
        else:
            self._clients -= bool(self._until)


def unit_times(arrivals: Arrivals, count: int, seed: int) -> Times:
    """Return ``count`` times of arrivals with a mean rate of 1 per second.

    Stretched by ``1 / rate`` they are the traffic of any rate, so that rates are compared by the same draw.
    """
    if arrivals.kind == "poisson":
        gaps = np.random.default_rng(seed).exponential(size=count)
        times: Times = np.cumsum(gaps / gaps.mean())  # a short draw is up to some percent faster or slower
        return times
    if arrivals.kind == "constant":
        return np.arange(count, dtype=np.float64)
    if arrivals.kind == "bursts":
        return np.repeat(np.arange(0.0, count, arrivals.size), arrivals.size)[:count]
    return np.resize(replayed(Path(arrivals.file)), count)


def replayed(path: Path) -> Times:
    """Return the times in a file, one a line in seconds, moved and stretched to a mean rate of 1 per second.

    Raises InferlensError for a file that cannot be read, or has other lines than rising numbers.
    """
    try:
        times = np.array(path.read_text("utf-8").split(), dtype=float)
    except OSError as error:
        raise InferlensError(f"The arrivals in {path} cannot be read: {error.strerror}.") from error
    except ValueError:
        times = np.empty(0)
    if len(times) < 2 or not np.isfinite(times).all() or (np.diff(times) < 0).any() or times[0] == times[-1]:
        raise InferlensError(f"{path} is no list of arrivals.", expected="a time in seconds on each line, rising")
    scaled: Times = (times - times[0]) * (len(times) - 1) / (times[-1] - times[0])
    return scaled


def read_mix(path: Path) -> Mix:
    """Return the mix in a CSV file: a column for each named dimension and a row for each request, or with ``weight``.

    Requests are padded to sizes that are powers of two. Raises InferlensError for a file of another form.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
        options: dict[str, Any] = {"delimiter": ",", "names": True, "deletechars": "", "replace_space": " ", "ndmin": 1}
        rows: Any = np.genfromtxt(lines, **options) if lines else np.empty(0)
    except OSError as error:
        raise InferlensError(f"The mix in {path} cannot be read: {error.strerror}.") from error
    except ValueError:  # no text, or rows of several lengths
        rows = np.empty(0)
    names = [name for name in rows.dtype.names or () if name != "weight"]
    sizes = np.stack([rows[name] for name in names], axis=1) if names else np.empty((0, 0))
    weights = rows["weight"] if "weight" in (rows.dtype.names or ()) else np.ones(len(rows))
    if not sizes.size or not (weights > 0).all() or not (sizes >= 1).all() or (sizes % 1).any():
        raise InferlensError(
            f"{path} is no mix of requests.",
            expected="a column for each named dimension, such as sequence_length, and perhaps one called weight",
        )
    padded = 2 ** np.ceil(np.log2(sizes))
    groups, places = np.unique(padded, axis=0, return_inverse=True)
    totals = np.bincount(places.ravel(), weights)
    filled = np.bincount(places.ravel(), weights * (sizes / padded).prod(axis=1)) / totals
    named = (dict(zip(names, map(int, group), strict=True)) for group in groups)
    return Mix(tuple(named), tuple((totals / totals.sum()).tolist()), tuple(filled.tolist()))


def draw_samples(mix: Mix, count: int, seed: int) -> list[int]:
    """Return the samples of ``count`` requests: a group of the mix by its weight, and one of the samples in it."""
    random = np.random.default_rng(seed)
    groups = random.choice(len(mix.weights), size=count, p=list(mix.weights))
    samples: list[int] = (groups * POOL + random.integers(POOL, size=count)).tolist()
    return samples


STATUSES = ("answered", "refused", "expired", "failed")
ANSWERED, REFUSED, EXPIRED, FAILED = range(4)
TICK = 1e-9  # seconds by which simulated time goes on, so that rounding cannot stop it


class Finished(NamedTuple):
    """A batch that an instance has ended, with the times of its call."""

    instance: int
    begin: float
    end: float
    failed: bool = False
    gone: bool = False  # the instance is
    compiled: bool = False  # the call has compiled something


class Instances(ABC):
    """Instances of a runner, and the clock that all times are read from, in seconds."""

    count: int

    def now(self) -> float:
        """Return the time."""
        return time.perf_counter()

    @abstractmethod
    def send(self, instance: int, samples: Sequence[int], size: int) -> None:
        """Give a batch of samples, padded to ``size``, to an instance that is free."""

    @abstractmethod
    def wait(self, until: float) -> list[Finished]:
        """Return the batches that have ended; wait for one until some time (``inf``: as long as it takes)."""


class LoadLog(Struct, frozen=True, kw_only=True):
    """Everything that happened in a run. Times are seconds since its start; ``nan`` where a step was not reached."""

    due: Times  # and so on: of each request
    taken: Times
    sent: Times
    answered: Times
    status: Numbers  # ANSWERED, REFUSED, EXPIRED or FAILED
    batch: Numbers  # its number, or -1
    sample: Numbers
    size: Numbers  # and so on: of each batch
    padded: Numbers
    instance: Numbers
    begin: Times  # of the call
    end: Times
    compiled: NDArray[np.bool_]
    start: float  # of the run, by the clock of the instances


def dispatch(
    traffic: Traffic,
    instances: Instances,
    deployment: Deployment,
    limit: float = math.inf,
    most_late: float = math.inf,
    start: float | None = None,
) -> LoadLog:
    """Serve the traffic until it is over and nothing is under way; return what happened.

    The run ends early when more than ``most_late`` requests were lost or took longer than ``limit`` seconds; those that
    wait then have the status ``FAILED``. The times of the traffic count from ``start``, by the clock of the instances;
    from now by default.
    """
    start = instances.now() if start is None else start
    dispatcher = _Dispatcher(traffic, instances, deployment, limit, start)
    while dispatcher.goes_on(most_late):
        dispatcher.end(instances.wait(start + dispatcher.next_time()))
    columns: dict[str, Any] = dispatcher.requests | dispatcher.batches
    return LoadLog(**{name: np.array(column) for name, column in columns.items()}, start=start)


class _Dispatcher:
    """The state of a run: the requests and batches so far, the queues of the groups, and the free instances."""

    def __init__(
        self, traffic: Traffic, instances: Instances, deployment: Deployment, limit: float, start: float
    ) -> None:
        self._traffic, self._instances, self._deployment = traffic, instances, deployment
        self._limit, self._start = limit, start
        columns = LoadLog.__struct_fields__
        self.requests: dict[str, list[Any]] = {name: [] for name in columns[:7]}
        self.batches: dict[str, list[Any]] = {name: [] for name in columns[7:-1]}
        self._queues: dict[int, deque[int]] = {}
        self._idle = deque(range(instances.count))
        self._running: dict[int, tuple[int, list[int]]] = {}
        self._alive = instances.count
        self._waiting = self._late = 0

    def goes_on(self, most_late: float) -> bool:
        """Do what is due now; return whether there is more to do. At the end all instances are free again."""
        now = self._instances.now() - self._start
        self._take(now)
        self._give_up(now)
        while self._idle and (queue := self._ready(now)):
            self._send(queue, now)
        over = self._traffic.over and not self._waiting and not self._running
        if not over and self._alive and self._late <= most_late:
            return True
        while self._running:
            for done in self._instances.wait(math.inf):
                del self._running[done.instance]
        return False

    def end(self, finished: Sequence[Finished]) -> None:
        """Register batches that have ended."""
        for done in finished:
            number, requests = self._running.pop(done.instance)
            self.batches["begin"][number] = done.begin - self._start
            self.batches["end"][number] = done.end - self._start
            self.batches["compiled"][number] = done.compiled
            now = self._instances.now() - self._start
            for request in requests:
                self.requests["answered"][request] = math.nan if done.failed else now
                self._finish(request, now, FAILED if done.failed else ANSWERED)
            if done.gone:
                self._alive -= 1
            else:
                self._idle.append(done.instance)

    def next_time(self) -> float:
        """Return the time at which something is to be done even if no batch has ended."""
        times = [math.inf if self._traffic.due is None else self._traffic.due]
        for queue in filter(None, self._queues.values()):
            if self._idle:
                times.append(self.requests["taken"][queue[0]] + self._deployment.wait)
            if self._deployment.timeout:
                times.append(self.requests["due"][queue[0]] + self._deployment.timeout)
        return min(times)

    def _take(self, now: float) -> None:
        """Queue the requests that are due."""
        due, *_ = columns = tuple(self.requests.values())
        while (at := self._traffic.due) is not None and at <= now:
            at, sample = self._traffic.take()
            request = len(due)
            for column, value in zip(columns, (at, now, math.nan, math.nan, FAILED, -1, sample), strict=True):
                column.append(value)
            if self._deployment.queue and self._waiting >= self._deployment.queue:
                self._finish(request, now, REFUSED)
            else:
                self._queues.setdefault(sample // POOL, deque()).append(request)
                self._waiting += 1

    def _give_up(self, now: float) -> None:
        """Drop the requests that have waited too long."""
        due, timeout = self.requests["due"], self._deployment.timeout
        for queue in self._queues.values() if timeout else ():
            while queue and now >= due[queue[0]] + timeout:
                self._finish(queue.popleft(), now, EXPIRED)
                self._waiting -= 1

    def _ready(self, now: float) -> deque[int] | None:
        """Return the queue whose first request is oldest, among those of which a batch can go now."""
        taken, most, wait = self.requests["taken"], self._deployment.max_batch, self._deployment.wait
        oldest = sorted(filter(None, self._queues.values()), key=lambda queue: queue[0])
        over = self._traffic.over
        return next((one for one in oldest if over or len(one) >= most or now >= taken[one[0]] + wait), None)

    def _send(self, queue: deque[int], now: float) -> None:
        """Give the first requests of a queue to an instance that is free."""
        requests = [queue.popleft() for _ in range(min(len(queue), self._deployment.max_batch))]
        self._waiting -= len(requests)
        instance, number = self._idle.popleft(), len(self.batches["size"])
        padded = next(size for size in self._deployment.sizes if size >= len(requests))
        for request in requests:
            self.requests["sent"][request], self.requests["batch"][request] = now, number
        values = (len(requests), padded, instance, math.nan, math.nan, False)
        for column, value in zip(self.batches.values(), values, strict=True):
            column.append(value)
        self._running[instance] = number, requests
        self._instances.send(instance, [self.requests["sample"][request] for request in requests], padded)

    def _finish(self, request: int, now: float, status: int) -> None:
        self.requests["status"][request] = status
        self._late += status != ANSWERED or now - self.requests["due"][request] > self._limit
        self._traffic.ended(request, now)


class SimulatedInstances(Instances):
    """Instances whose calls take the seconds that ``service`` returns for a padded size. No real time passes."""

    def __init__(self, count: int, service: Callable[[Sequence[int], int], float]) -> None:
        self.count = count
        self._service = service
        self._now = 0.0
        self._running: list[tuple[float, Finished]] = []

    def now(self) -> float:
        return self._now

    def send(self, instance: int, samples: Sequence[int], size: int) -> None:
        end = self._now + self._service(samples, size)
        heapq.heappush(self._running, (end, Finished(instance, self._now, end)))

    def wait(self, until: float) -> list[Finished]:
        if not self._running or self._running[0][0] > until:
            self._now = max(self._now, until) + TICK
            return []
        self._now, done = heapq.heappop(self._running)
        return [done]
