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
    """Requests that are due at some times; request number ``i`` asks for ``samples[i % len(samples)]``.

    With ``until`` each request is a client: it comes again when it has ended, before that many seconds have passed.
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
    times, places = replayed(Path(arrivals.file)), np.arange(count)
    return np.asarray(times[places % len(times)] + places // len(times) * len(times))


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


def draw_mix(mix: Mix, count: int, seed: int) -> list[int]:
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


class Dispatcher:
    """One run: the requests and batches so far, the queues of the groups, and the free instances.

    With a limit the run ends early when so many requests were lost or late that it is not kept; those that wait then
    have the status ``FAILED``. The times of the traffic count from its ``start``, or from now.
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
        """Serve the traffic until it is over and nothing is under way; return what happened."""
        while self._goes_on():
            self._end(self._instances.wait(self._start + self._next_time()))
        columns = self._requests | self._batches
        return LoadLog(**{name: np.array(column) for name, column in columns.items()}, start=self._start)

    def _goes_on(self) -> bool:
        """Do what is due now; return whether there is more to do. At the end all instances are free again."""
        now = self._instances.now() - self._start
        self._take(now)
        self._give_up(now)
        while self._idle and (queue := self._ready(now)):
            self._send(queue, now)
        over = self._traffic.over and not self._waiting and not self._running
        if not over and self._alive and self._late <= self._most_late:
            return True
        while self._running:
            for done in self._instances.wait(math.inf):
                del self._running[done.instance]
        return False

    def _end(self, finished: Sequence[Finished]) -> None:
        """Register batches that have ended."""
        for done in finished:
            number, requests = self._running.pop(done.instance)
            self._batches["begin"][number] = done.begin - self._start
            self._batches["end"][number] = done.end - self._start
            self._batches["compiled"][number] = done.compiled
            now = self._instances.now() - self._start
            for request in requests:
                self._requests["answered"][request] = math.nan if done.failed else now
                self._finish(request, now, FAILED if done.failed else ANSWERED)
            if done.gone:
                self._alive -= 1
            else:
                self._idle.append(done.instance)

    def _next_time(self) -> float:
        """Return the time at which something is to be done even if no batch has ended."""
        times = [math.inf if self._traffic.due is None else self._traffic.due]
        for queue in filter(None, self._queues.values()):
            if self._idle:
                times.append(self._requests["taken"][queue[0]] + self._deployment.wait)
            if self._deployment.timeout:
                times.append(self._requests["due"][queue[0]] + self._deployment.timeout)
        return min(times)

    def _take(self, now: float) -> None:
        """Queue the requests that are due."""
        due, *_ = columns = tuple(self._requests.values())
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
        due, timeout = self._requests["due"], self._deployment.timeout
        for queue in self._queues.values() if timeout else ():
            while queue and now >= due[queue[0]] + timeout:
                self._finish(queue.popleft(), now, EXPIRED)
                self._waiting -= 1

    def _ready(self, now: float) -> deque[int] | None:
        """Return the queue whose first request is oldest, among those of which a batch can go now."""
        taken, most, wait = self._requests["taken"], self._deployment.max_batch, self._deployment.wait
        oldest = sorted(filter(None, self._queues.values()), key=lambda queue: queue[0])
        over = self._traffic.over
        return next((one for one in oldest if over or len(one) >= most or now >= taken[one[0]] + wait), None)

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
        self._now, done = heapq.heappop(self._running)
        return [done]


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
    """Return the record with what was measured; ``keep`` gets it after each run.

    From ``end`` on, by ``time.monotonic``, a capacity is not narrowed further. A record of a later round has the times
    of calls and the capacity of the first one, where the search begins.
    """
    guess, record = record.capacity, replace(record, capacity=None)
    if not record.service:
        most, groups = record.deployment, range(len(record.mix.groups))
        times = tuple({size: service_time(instances, most, group, size) for size in most.sizes} for group in groups)
        record = replace(record, service=times)
    if not guess:
        record, guess = chosen(record) if record.search else (record, predicted(record))

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
    """Return the median seconds from one full batch to the next, while all instances are busy."""
    samples = range(group * POOL, (group + 1) * POOL)
    traffic = Traffic([0.0] * (deployment.instances * size), samples, SERVICE_SECONDS)
    log = Dispatcher(traffic, instances, Deployment(deployment.instances, max_batch=size)).run()
    gaps = np.concatenate([np.diff(log.begin[log.instance == one]) for one in range(deployment.instances)])
    return float(np.median(gaps if len(gaps) else log.end - log.begin))


def measure_run(
    instances: Instances, record: LoadRecord, rate: float = 0.0, clients: int = 0, count: int = 0
) -> LoadRun:
    """Return a run at a rate, or with some clients; one that is to keep the limit ends early when it cannot."""
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
    return summarized(log, record, rate=rate, clients=clients)


def summarized(log: LoadLog, record: LoadRecord, **fields: Any) -> LoadRun:
    """Return the numbers of a run, without the requests of its start."""
    counted = slice(int(START_SHARE * len(log.due)), None)
    due, status = log.due[counted], log.status[counted]
    answered = status == ANSWERED
    latency = np.where(answered, log.answered[counted] - due, np.inf)
    waits = (log.sent - log.due)[counted][~np.isnan(log.sent[counted])]
    busy, batches = log.end - log.begin, len(log.size)
    end = float(np.nanmax(log.answered, initial=0.0)) or float(log.due[-1])
    at = np.linspace(0.0, end, QUEUE_POINTS)
    queue = np.searchsorted(np.sort(log.taken), at, "right") - np.searchsorted(np.sort(log.sent), at, "right")
    groups, mix = log.sample // POOL, record.mix

    def quantile(share: float, values: Times = latency) -> float | None:
        value = float(np.quantile(values, share, method="inverted_cdf")) if len(values) else math.inf
        return value if math.isfinite(value) else None

    def group_run(group: int) -> GroupRun:
        own = latency[groups[counted] == group]
        served = log.batch[(groups == group) & (log.batch >= 0)]
        seconds = float(np.nansum(busy[np.unique(served)]) / max(len(served), 1))
        quantiles = (quantile(0.5, own), quantile(0.99, own))
        return GroupRun(requests=len(own), quantiles=quantiles, padding=1 - mix.filled[group], seconds=seconds)

    counts: dict[str, Any] = {name: int((status == number).sum()) for number, name in enumerate(STATUSES)}
    compiled: Counter[str] = Counter()
    for batch in np.flatnonzero(log.compiled):
        sizes = {"batch": log.padded[batch], **mix.groups[groups[log.batch == batch][0]]}
        compiled[", ".join(f"{name} {size}" for name, size in sizes.items())] += int(log.size[batch])
    return LoadRun(
        **fields,
        **counts,
        draw=record.round,
        begin=log.start + float(due[0]),
        compiled=dict(compiled),
        groups=tuple(map(group_run, range(len(mix.groups)))) if len(mix.groups) > 1 else (),
        seconds=end - float(due[0]),
        latencies=tuple(np.round(latency[answered], 7).tolist()),
        quantiles=tuple(map(quantile, SHOWN_QUANTILES)),
        at_limit=quantile(record.limit.quantile),
        lag=float(np.quantile(log.taken - log.due, 0.99)),
        waited=float(waits.mean()) if len(waits) else 0.0,
        mean_batch=float(log.size.mean()) if batches else 0.0,
        padding=float(1 - log.size.sum() / log.padded.sum()) if batches else 0.0,
        busy=float(np.nansum(busy) / (end * record.deployment.instances)) if end else 0.0,
        queue=tuple(queue.tolist()),
    )


def find_capacity(
    run_at: Callable[[float], LoadRun], limit: Limit, guess: float, reach: float, end: float = math.inf
) -> tuple[float, float | None]:
    """Return the highest rate that kept the limit, and the lowest one that did not.

    They are 1 % apart, unless the time by time.monotonic is past ``end`` once a rate has kept the limit.

    ``guess`` is where the search begins. A capacity of 0: no rate down to ``guess / reach`` keeps the limit. Both
    rates are measured again at the end, because a short disturbance of the machine may have failed one, and one run of
    several keeps the limit by luck. If one of them changes, the search goes on above or below it.
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


def chosen(record: LoadRecord) -> tuple[LoadRecord, float]:
    """Return the record with the deployment of the highest predicted capacity, and that capacity."""
    most, limit = record.deployment, record.limit.seconds
    waits = (0.0, limit / 20, limit / 10, limit / 4)
    batchings = [pair for pair in product(most.sizes, waits) if pair[0] > 1 or not pair[1]]
    options = [replace(record, deployment=replace(most, max_batch=size, wait=wait)) for size, wait in batchings]
    rates = list(map(predicted, options))
    return next(pair for pair in zip(options, rates, strict=True) if pair[1] >= max(rates) * (1 - CLOSE))


def predicted(record: LoadRecord) -> float:
    """Return the capacity of a deployment if every call took its median time: the loop runs without real time."""
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
