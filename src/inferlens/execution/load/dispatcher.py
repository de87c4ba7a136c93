"""The traffic of a load test, the dispatcher that forms batches of its requests, and the search for the capacity.

Times are seconds since the start of a run. In an open loop requests are due at fixed times, so a slow server does not
slow the traffic down. The latency of a request counts from the time at which it was due: neither a queue nor a late
generator hides. The dispatcher is one loop on one thread. :class:`Instances` are processes in a measurement and
arithmetic in a prediction; the loop is the same. The capacity is the highest rate of requests at which the latency
stays within its limit.
"""

from __future__ import annotations

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from inferlens.errors import InferlensError
from inferlens.record.load import POOL, Arrivals, Deployment, GroupRun, Limit, LoadRecord, LoadRun, Mix

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


class Traffic:
    """Requests with the times at which they are due. Request number ``i`` asks for ``samples[i % len(samples)]``.

    With ``until`` a request stands for a client, which sends its next request as soon as one has ended. No request is
    sent after that many seconds.
    """

    start: float | None = None  # by the clock of the instances; None: when the dispatcher begins

    def __init__(self, times: Iterable[float], samples: Sequence[int], until: float = 0.0) -> None:
        self._due = deque(map(float, times))
        self._samples = samples
        self._until = until
        self.count = len(self._due)
        self._clients = self.count if until else 0
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
        """Register that a request was answered, refused or lost; ``request`` is its number among the taken ones."""
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
    if arrivals.kind == "replay":
        times, indices = read_arrivals(Path(arrivals.file)), np.arange(count)
        return np.asarray(times[indices % len(times)] + indices // len(times) * len(times))
    return np.repeat(np.arange(0.0, count, arrivals.size), arrivals.size)[:count]  # constant arrivals are bursts of 1


def read_arrivals(path: Path) -> Times:
    """Return the times in a file, moved and stretched to a mean rate of 1 per second.

    Each line has a time in seconds. Raises InferlensError for a file that cannot be read, or has other lines than
    rising numbers.
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
    """Return the mix in a CSV file with a column for each named dimension, and perhaps a column ``weight``.

    A row stands for one request, or for as many as its weight. Requests are padded to sizes that are powers of two.
    Raises InferlensError for a file of another form.
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
        expected = "a column for each named dimension, such as sequence_length, and perhaps one called weight"
        raise InferlensError(f"{path} is no mix of requests.", expected=expected)
    padded = 2 ** np.ceil(np.log2(sizes))
    groups, inverse = np.unique(padded, axis=0, return_inverse=True)
    row_groups = inverse.ravel()
    totals = np.bincount(row_groups, weights)
    filled = np.bincount(row_groups, weights * (sizes / padded).prod(axis=1)) / totals
    sizes_by_name = (dict(zip(names, map(int, group), strict=True)) for group in groups)
    return Mix(tuple(sizes_by_name), tuple((totals / totals.sum()).tolist()), tuple(filled.tolist()))


def draw_mix(mix: Mix, count: int, seed: int) -> list[int]:
    """Draw the samples of ``count`` requests: first the group of the mix by its weight, then a sample of the group."""
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
    gone: bool = False  # whether the instance is gone
    compiled: bool = False  # whether the call has compiled something


class Instances(ABC):
    """Instances of a runner, and the clock that all times are read from, in seconds."""

    count: int

    def now(self) -> float:
        return time.perf_counter()

    @abstractmethod
    def send(self, instance: int, samples: Sequence[int], size: int) -> None:
        """Give a batch of samples, padded to ``size``, to an instance that is free."""

    @abstractmethod
    def wait(self, until: float) -> list[Finished]:
        """Return the batches that have ended. Without any, wait for one until a time (``inf``: without a limit)."""


class LoadLog(Struct, frozen=True, kw_only=True):
    """The requests and the batches of a run. Times are seconds since its start; ``nan`` for a step not reached."""

    due: Times  # ``due`` to ``sample`` have a value for each request
    taken: Times
    sent: Times
    answered: Times
    status: Numbers  # ANSWERED, REFUSED, EXPIRED or FAILED
    batch: Numbers  # the number of the batch, or -1
    sample: Numbers
    size: Numbers  # ``size`` to ``compiled`` have a value for each batch
    padded: Numbers
    instance: Numbers
    begin: Times  # ``begin`` and ``end``: of the call
    end: Times
    compiled: NDArray[np.bool_]
    start: float  # the start of the run by the clock of the instances


class Dispatcher:
    """One run: the requests and batches so far, the queues of the groups, and the free instances.

    With a limit the run ends as soon as too many requests were lost or late to keep it. Requests that wait at that
    time have the status ``FAILED``. The times of the traffic count from its ``start``, or from now.
    """

    def __init__(
        self, traffic: Traffic, instances: Instances, deployment: Deployment, limit: Limit | None = None
    ) -> None:
        self._traffic, self._instances, self._deployment = traffic, instances, deployment
        self._limit = limit.seconds if limit else math.inf
        self._most_late = (1 - limit.quantile) * traffic.count if limit else math.inf
        self._start = instances.now() if traffic.start is None else traffic.start
        columns = LoadLog.__struct_fields__
        self._requests: dict[str, list[Any]] = {name: [] for name in columns[:7]}
        self._batches: dict[str, list[Any]] = {name: [] for name in columns[7:-1]}
        self._queues: dict[int, deque[int]] = {}
        self._idle = deque(range(instances.count))
        self._running: dict[int, tuple[int, list[int]]] = {}
        self._alive = instances.count
        self._waiting = self._late = 0

    def run(self) -> LoadLog:
        """Serve the traffic until it is over and no batch is running; return the log."""
        while self._start_due_work():
            self._end(self._instances.wait(self._start + self._next_time()))
        columns = self._requests | self._batches
        return LoadLog(**{name: np.array(column) for name, column in columns.items()}, start=self._start)

    def _start_due_work(self) -> bool:
        """Queue, drop and send the requests that are due now; return whether the run goes on.

        If it does not go on, all instances are free again.
        """
        now = self._instances.now() - self._start
        self._queue_due_requests(now)
        self._drop_expired_requests(now)
        while self._idle and (queue := self._ready_queue(now)):
            self._send(queue, now)
        over = self._traffic.over and not self._waiting and not self._running
        if not over and self._alive and self._late <= self._most_late:
            return True
        while self._running:
            for batch in self._instances.wait(math.inf):
                del self._running[batch.instance]
        return False

    def _end(self, finished: Sequence[Finished]) -> None:
        """Register batches that have ended."""
        for batch in finished:
            number, requests = self._running.pop(batch.instance)
            self._batches["begin"][number] = batch.begin - self._start
            self._batches["end"][number] = batch.end - self._start
            self._batches["compiled"][number] = batch.compiled
            now = self._instances.now() - self._start
            for request in requests:
                self._requests["answered"][request] = math.nan if batch.failed else now
                self._finish(request, now, FAILED if batch.failed else ANSWERED)
            if batch.gone:
                self._alive -= 1
            else:
                self._idle.append(batch.instance)

    def _next_time(self) -> float:
        """Return the time of the next arrival, dispatch or expiry, if no batch ends before."""
        times = [math.inf if self._traffic.due is None else self._traffic.due]
        for queue in filter(None, self._queues.values()):
            if self._idle:
                times.append(self._requests["taken"][queue[0]] + self._deployment.wait)
            if self._deployment.timeout:
                times.append(self._requests["due"][queue[0]] + self._deployment.timeout)
        return min(times)

    def _queue_due_requests(self, now: float) -> None:
        while (due := self._traffic.due) is not None and due <= now:
            due, sample = self._traffic.take()
            request = len(self._requests["due"])
            values = (due, now, math.nan, math.nan, FAILED, -1, sample)
            for column, value in zip(self._requests.values(), values, strict=True):
                column.append(value)
            if self._deployment.queue and self._waiting >= self._deployment.queue:
                self._finish(request, now, REFUSED)
            else:
                self._queues.setdefault(sample // POOL, deque()).append(request)
                self._waiting += 1

    def _drop_expired_requests(self, now: float) -> None:
        due, timeout = self._requests["due"], self._deployment.timeout
        for queue in self._queues.values() if timeout else ():
            while queue and now >= due[queue[0]] + timeout:
                self._finish(queue.popleft(), now, EXPIRED)
                self._waiting -= 1

    def _ready_queue(self, now: float) -> deque[int] | None:
        """Return the queue with the oldest first request, among the queues that can give a batch now."""
        taken, full, wait = self._requests["taken"], self._deployment.max_batch, self._deployment.wait
        over = self._traffic.over
        queues = filter(None, self._queues.values())
        ready = (queue for queue in queues if over or len(queue) >= full or now >= taken[queue[0]] + wait)
        return min(ready, key=lambda queue: queue[0], default=None)

    def _send(self, queue: deque[int], now: float) -> None:
        """Give the first requests of a queue to an instance that is free."""
        requests = [queue.popleft() for _ in range(min(len(queue), self._deployment.max_batch))]
        self._waiting -= len(requests)
        instance, number = self._idle.popleft(), len(self._batches["size"])
        padded = next(size for size in self._deployment.sizes if size >= len(requests))
        for request in requests:
            self._requests["sent"][request], self._requests["batch"][request] = now, number
        values = (len(requests), padded, instance, math.nan, math.nan, False)
        for column, value in zip(self._batches.values(), values, strict=True):
            column.append(value)
        self._running[instance] = number, requests
        self._instances.send(instance, [self._requests["sample"][request] for request in requests], padded)

    def _finish(self, request: int, now: float, status: int) -> None:
        self._requests["status"][request] = status
        self._late += status != ANSWERED or now - self._requests["due"][request] > self._limit
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
        self._now, batch = heapq.heappop(self._running)
        return [batch]


START_SHARE = 0.05  # of the requests at the start are not counted
PRECISION = 0.01  # of a capacity
CURVE = (0.25, 0.5, 0.75, 0.9)  # of a capacity: rates that are measured after it, in the first round
MOST_SEARCHES = 4
REACH = 16.0  # how far below the predicted capacity a search goes: traffic of a very low rate takes very long
SIMULATED_REACH = 1000.0
LEAST_REQUESTS, MOST_REQUESTS = 500, 20_000
SIMULATED_REQUESTS = 2000
SERVICE_SECONDS = 1.0
SHOWN_QUANTILES = (0.5, 0.95, 0.99)
QUEUE_POINTS = 60
CLOSE = 0.02  # predicted capacities within it count as equal; the smaller batch is taken


def measure(
    record: LoadRecord, instances: Instances, keep: Callable[[LoadRecord], None], end: float = math.inf
) -> LoadRecord:
    """Measure what a record asks for, and return it with the results; ``keep`` gets it after each run.

    From ``end`` on, by ``time.monotonic``, a capacity is not narrowed further. A record of a later round has the times
    of calls and the capacity of the first round, at which its search begins.
    """
    guess, record = record.capacity, replace(record, capacity=None)
    if not record.service:
        deployment, groups = record.deployment, range(len(record.mix.groups))
        sizes = deployment.sizes
        times = [{size: service_time(instances, deployment, group, size) for size in sizes} for group in groups]
        record = replace(record, service=tuple(times))
    if not guess:
        record, guess = choose_batching(record) if record.search else (record, predict_capacity(record))

    def run_at(rate: float = 0.0, clients: int = 0) -> LoadRun:
        nonlocal record
        record = replace(record, runs=(*record.runs, measure_run(instances, record, rate, clients)))
        keep(record)
        return record.runs[-1]

    for rate in record.rates:
        run_at(rate)
    for clients in record.clients:
        run_at(clients=clients)
    if record.rates or record.clients:
        return record
    capacity, above = find_capacity(run_at, record.limit, guess, REACH, end)
    for share in CURVE if capacity and not record.round else ():
        if time.monotonic() < end:
            run_at(share * capacity)
    return replace(record, capacity=capacity, above=above)


def service_time(instances: Instances, deployment: Deployment, group: int, size: int) -> float:
    """Return the median seconds from one full batch of an instance to its next, while all instances are busy."""
    samples = range(group * POOL, (group + 1) * POOL)
    traffic = Traffic([0.0] * (deployment.instances * size), samples, SERVICE_SECONDS)
    log = Dispatcher(traffic, instances, Deployment(deployment.instances, max_batch=size)).run()
    gaps = np.concatenate([np.diff(log.begin[log.instance == instance]) for instance in range(deployment.instances)])
    return float(np.median(gaps if len(gaps) else log.end - log.begin))


def measure_run(
    instances: Instances, record: LoadRecord, rate: float = 0.0, clients: int = 0, count: int = 0
) -> LoadRun:
    """Return a run at a rate, or with some clients. In a search for the capacity it ends once it misses the limit."""
    seconds, limit = record.seconds, None
    if clients:
        count, times = MOST_REQUESTS, np.zeros(clients)
    else:
        least = max(min(LEAST_REQUESTS, 4 * rate * seconds), 20)
        count = count or int(min(max(rate * seconds, least), MOST_REQUESTS))
        times = unit_times(record.arrivals, count, record.round) / rate
        limit = None if record.rates else record.limit
    samples = draw_mix(record.mix, count, record.round)
    traffic = Traffic(times, samples, seconds if clients else 0.0)
    log = Dispatcher(traffic, instances, record.deployment, limit).run()
    return summarize_run(log, record, rate=rate, clients=clients)


def summarize_run(log: LoadLog, record: LoadRecord, **fields: Any) -> LoadRun:
    """Return the numbers of a run, without the requests of its start."""
    counted = slice(int(START_SHARE * len(log.due)), None)
    due, status = log.due[counted], log.status[counted]
    answered = status == ANSWERED
    latency = np.where(answered, log.answered[counted] - due, np.inf)
    waits = (log.sent - log.due)[counted][~np.isnan(log.sent[counted])]
    busy, batches = log.end - log.begin, len(log.size)
    end = float(np.nanmax(log.answered, initial=0.0)) or float(log.due[-1])
    points = np.linspace(0.0, end, QUEUE_POINTS)
    queue = np.searchsorted(np.sort(log.taken), points, "right") - np.searchsorted(np.sort(log.sent), points, "right")
    groups, mix = log.sample // POOL, record.mix

    def quantile(share: float, values: Times = latency) -> float | None:
        value = float(np.quantile(values, share, method="inverted_cdf")) if len(values) else math.inf
        return value if math.isfinite(value) else None

    def group_run(group: int) -> GroupRun:
        group_latency = latency[groups[counted] == group]
        served = log.batch[(groups == group) & (log.batch >= 0)]
        seconds = float(np.nansum(busy[np.unique(served)]) / max(len(served), 1))
        quantiles = (quantile(0.5, group_latency), quantile(0.99, group_latency))
        padding, requests = 1 - mix.filled[group], len(group_latency)
        return GroupRun(requests=requests, quantiles=quantiles, padding=padding, seconds=seconds)

    counts: dict[str, Any] = {name: int((status == number).sum()) for number, name in enumerate(STATUSES)}
    compiled: Counter[str] = Counter()
    for batch in np.flatnonzero(log.compiled):
        sizes = {"batch": log.padded[batch], **mix.groups[groups[log.batch == batch][0]]}
        compiled[", ".join(f"{name} {size}" for name, size in sizes.items())] += int(log.size[batch])
    return LoadRun(
        **fields, **counts, draw=record.round, begin=log.start + float(due[0]), seconds=end - float(due[0]),
        compiled=dict(compiled), queue=tuple(queue.tolist()),
        groups=tuple(map(group_run, range(len(mix.groups)))) if len(mix.groups) > 1 else (),
        latencies=tuple(np.round(latency[answered], 7).tolist()),
        quantiles=tuple(map(quantile, SHOWN_QUANTILES)), at_limit=quantile(record.limit.quantile),
        lag=float(np.quantile(log.taken - log.due, 0.99)),
        waited=float(waits.mean()) if len(waits) else 0.0,
        mean_batch=float(log.size.mean()) if batches else 0.0,
        padding=float(1 - log.size.sum() / log.padded.sum()) if batches else 0.0,
        busy=float(np.nansum(busy) / (end * record.deployment.instances)) if end else 0.0,
    )  # fmt: skip


def find_capacity(
    run_at: Callable[[float], LoadRun], limit: Limit, guess: float, reach: float, end: float = math.inf
) -> tuple[float, float | None]:
    """Return the highest rate that kept the limit, and the lowest one that did not.

    They are 1 % apart, unless the time by time.monotonic is past ``end`` once a rate has kept the limit. The search
    begins at ``guess``. The capacity is 0 if no rate down to ``guess / reach`` keeps the limit.

    Both rates are measured again at the end: a short disturbance of the machine may make a rate miss the limit, and
    luck may make it keep the limit. If one of them changes, the search goes on above or below it.
    """
    low, high, step, rate = 0.0, math.inf, 1.1, guess
    for search in range(MOST_SEARCHES):
        while high > low * (1 + PRECISION) and rate > guess / reach and not (low and time.monotonic() > end):
            low, high = (rate, high) if run_at(rate).keeps(limit) else (low, rate)
            if low and math.isfinite(high):
                rate = math.sqrt(low * high)
            else:
                rate, step = (low * step if low else high / step), min(step**1.5, 2.0)
        if search == MOST_SEARCHES - 1 or time.monotonic() > end:
            break
        if run_at(high).keeps(limit):
            low, high, step, rate = high, math.inf, 1.1, high * 1.1
        elif low and not run_at(low).keeps(limit):
            low, high, step, rate = 0.0, low, 1.1, low / 1.1
        else:
            break
    return low, high if math.isfinite(high) else None


def choose_batching(record: LoadRecord) -> tuple[LoadRecord, float]:
    """Return the record with the batching of the highest predicted capacity, and that capacity."""
    deployment, limit = record.deployment, record.limit.seconds
    waits = (0.0, limit / 20, limit / 10, limit / 4)
    batchings = [(size, wait) for size, wait in product(deployment.sizes, waits) if size > 1 or not wait]
    options = [replace(record, deployment=replace(deployment, max_batch=size, wait=wait)) for size, wait in batchings]
    rates = list(map(predict_capacity, options))
    return next((option, rate) for option, rate in zip(options, rates, strict=True) if rate >= max(rates) * (1 - CLOSE))


def predict_capacity(record: LoadRecord) -> float:
    """Return the capacity of a deployment whose calls take exactly their median times. No real time passes."""
    service, deployment = record.service, record.deployment

    def run_at(rate: float) -> LoadRun:
        instances = SimulatedInstances(deployment.instances, lambda samples, size: service[samples[0] // POOL][size])
        return measure_run(instances, replace(record, rates=()), rate, count=SIMULATED_REQUESTS)

    seconds = sum(
        weight * min(times[size] / size for size in deployment.sizes)
        for weight, times in zip(record.mix.weights, service, strict=True)
    )
    most = deployment.instances / seconds
    return find_capacity(run_at, record.limit, most / 1.2, SIMULATED_REACH)[0] or most / 4
