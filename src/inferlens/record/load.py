"""Load tests as data: traffic and deployments as a person writes them, and the measurements.

``--arrivals bursts=8`` and ``--batching max=16,wait=2ms`` are read here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from msgspec import Struct

from inferlens.errors import InferlensError, check_choice
from inferlens.record.files import decode_json, read_unpacked
from inferlens.record.machine import Energy
from inferlens.record.record import Agreement, Environment, Memory, ModelFacts, Status, Warning
from inferlens.spec.case import Case
from inferlens.units import duration, parse_duration, plural

POOL = 13  # samples in a group that requests ask for: the rows of one batch of the reference
KINDS = ("poisson", "constant", "bursts", "replay")


class Arrivals(Struct, frozen=True):
    """The arrivals of requests in an open loop: at random, evenly, in bursts of a size, or as in a file."""

    kind: str = "poisson"
    size: int = 1
    file: str = ""

    @staticmethod
    def parse(text: str) -> Arrivals:
        """Return the arrivals of ``poisson``, ``constant``, ``bursts=8`` or ``replay=FILE``."""
        kind, _, value = (part.strip() for part in text.partition("="))
        check_choice("arrivals", kind, KINDS)
        if kind == "bursts":
            return Arrivals(kind, _number("bursts", value))
        if kind == "replay" and not value:
            raise InferlensError("Arrivals of 'replay' need a file.", expected="replay=FILE, a time in seconds a line")
        return Arrivals(kind, file=value if kind == "replay" else "")

    def __str__(self) -> str:
        return {"bursts": f"bursts of {self.size}", "replay": f"replay of {self.file}"}.get(self.kind, self.kind)


class Mix(Struct, frozen=True):
    """Groups of requests with different sizes."""

    groups: tuple[dict[str, int], ...] = ({},)  # the sizes that requests are padded to, by the name of the dimension
    weights: tuple[float, ...] = (1.0,)  # the share of the requests of each group
    filled: tuple[float, ...] = (1.0,)  # the mean share of a padded request that is no padding


class Deployment(Struct, frozen=True, order=True):
    """A number of instances, which are processes with a runner, and the batching of requests."""

    instances: int = 1
    max_batch: int = 1
    wait: float = 0.0  # seconds that the first request of a batch waits for others
    queue: int = 0  # most requests that wait; others are refused. 0: no limit
    timeout: float = 0.0  # seconds after which a waiting request is given up. 0: never

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes to prepare: powers of two up to the largest batch. Batches are padded to the next one."""
        powers = [1 << power for power in range(self.max_batch.bit_length()) if 1 << power < self.max_batch]
        return (*powers, self.max_batch)

    def __str__(self) -> str:
        wait = f" within {duration(self.wait)}" if self.wait else ""
        batch = f"batches up to {self.max_batch}{wait}" if self.max_batch > 1 else "single requests"
        return f"{plural(self.instances, 'instance')}, {batch}"


def parse_batching(text: str) -> tuple[int, float]:
    """Return the largest batch and the seconds to wait of ``max=16,wait=2ms`` or ``max=16``."""
    words = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(",") if part)
    if words.keys() - {"wait"} != {"max"}:
        raise InferlensError(f"'{text}' is no batching.", expected="such as max=16,wait=2ms")
    return _number("max", words["max"]), parse_duration(words.get("wait", "0s"))


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 4096:
        raise InferlensError(f"'{text}' is not valid for {name}.", expected="a whole number from 1 to 4096")
    return int(text)


SCHEMA = "inferlens.load/1"
CLOSE_ENOUGH = 1.02  # a search that had the time ends with two rates whose ratio is smaller
LimitedBy = Literal["", "gpu", "cpu", "host", "instances", "batching", "call", "queue"]


class Limit(Struct, frozen=True):
    """A limit on the latency of requests: the quantile, and its most in seconds."""

    quantile: float = 0.99
    seconds: float = 0.05


class GroupRun(Struct, frozen=True, kw_only=True):
    """The requests of one group of a mix."""

    requests: int
    quantiles: tuple[float | None, ...]  # of their latency at 0.5 and 0.99
    padding: float  # the mean share of padding in a request
    seconds: float = 0.0  # time of an instance for one request


class LoadRun(Struct, frozen=True, kw_only=True):
    """The traffic of one rate, or of some clients, and the outcome of its requests. Times are in seconds.

    The requests of the start are not counted.
    """

    rate: float = 0.0  # requests per second that were due; 0 with clients
    clients: int = 0  # of a closed loop; 0 in an open one
    draw: int = 0  # the seed of the arrivals
    seconds: float = 0.0  # from the first request that counts until the last answer
    answered: int = 0
    refused: int = 0
    expired: int = 0
    failed: int = 0
    latencies: tuple[float, ...] = ()  # of the answered requests, from the time when each was due
    # Of all requests, at 0.5, 0.95 and 0.99; None: it was not answered.
    quantiles: tuple[float | None, ...] = (None, None, None)
    at_limit: float | None = None  # the latency at the quantile of the limit
    lag: float = 0.0  # how late the generator was, at 0.99 of the requests
    waited: float = 0.0  # the mean time in the queue
    mean_batch: float = 0.0
    padding: float = 0.0  # the share of rows that were padding
    busy: float = 0.0  # the share of the time in which an instance was working
    queue: tuple[int, ...] = ()  # its length at 60 times, spread over the run
    groups: tuple[GroupRun, ...] = ()  # of a mix, in its order
    begin: float = 0.0  # the time of the first request that counts, by the clock of all processes
    gpu: float | None = None  # the share of the time in which the GPU was busy
    host: float | None = None  # the share of the CPUs that were busy, whoever used them
    others: float | None = None  # how many CPUs other programs used, which is part of host
    energy: Energy | None = None  # of one answered request: the GPU's, or that of all CPU packages
    compiled: dict[str, int] = {}  # requests whose call compiled something although its size was warm, by that size

    @property
    def throughput(self) -> float:
        """The requests that were answered per second."""
        return self.answered / self.seconds if self.seconds else 0.0

    def keeps(self, limit: Limit) -> bool:
        """Return whether the latency at the limit's quantile is within it; lost requests count as endless."""
        return self.at_limit is not None and self.at_limit <= limit.seconds


class LoadgenVerdict(Struct, frozen=True, kw_only=True):
    """The verdict of MLCommons LoadGen on a scenario; unverified, not an MLPerf result."""

    scenario: str
    valid: bool
    reason: str = ""  # the conditions that an invalid run did not satisfy
    at_limit: float | None  # the latency at the quantile of the limit, by its log
    rate: float | None  # samples per second
    logs: str  # their folder
    ours: float | None = None  # the latency at the same quantile in our own run at the same rate, right after it


class LoadRecord(Struct, frozen=True, kw_only=True):
    """The runs of one deployment of a case in one round.

    What limits the capacity: ``gpu`` or ``cpu``: it is busy. ``host``: the instances are busy, the GPU is not.
    ``instances``: they are busy, the CPUs are not. ``batching``: requests wait for their batch to fill. ``call``: one
    call takes most of the limit. ``queue``: requests that arrive together wait.
    """

    schema: str = SCHEMA
    id: str = ""  # of a template it is empty
    created: str = ""
    case: Case
    requested: Deployment
    deployment: Deployment  # as requested, or with smaller batches, which were chosen
    search: bool = False  # whether the batching is searched, up to the requested one
    seconds: float = 5.0  # of the traffic of each rate
    rates: tuple[float, ...] = ()  # the rates to measure; without rates and clients, the capacity is measured
    clients: tuple[int, ...] = ()
    arrivals: Arrivals = Arrivals()
    mix: Mix = Mix()
    limit: Limit = Limit()
    round: int = 0
    status: Status = "ok"
    reason: str = ""
    hint: str = ""
    model: ModelFacts = ModelFacts(name="")
    environment: Environment | None = None
    runs: tuple[LoadRun, ...] = ()
    loadgen: LoadgenVerdict | None = None  # at the capacity, or at the first rate
    scenario: str = ""  # that was requested of LoadGen
    capacity: float | None = None  # the highest rate that kept the limit, in requests/s; None without a limit
    above: float | None = None  # the lowest rate that did not keep it, if one was tried
    limited_by: LimitedBy = ""
    service: tuple[dict[int, float], ...] = ()  # of each group: seconds of a call by its size, all instances busy
    agreement: Agreement | None = None
    checked: int = 0
    mixed_up: int = 0
    price: float = 0.0  # of a second of the machine; 0 if not known
    budget: float = 0.0  # seconds for the whole test
    memory: Memory = Memory()
    warnings: tuple[Warning, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """A key that records of the same measurement share."""
        versions = self.environment and (self.environment.python, sorted(self.environment.libraries.items()))
        names = ("requested", "search", "seconds", "scenario", "rates", "clients", "arrivals", "mix", "limit", "round")
        return (self.case.digest, str([getattr(self, name) for name in names]), str(versions))

    @property
    def cut_short(self) -> bool:
        """True if the time ended before the capacity was known to a few percent."""
        return bool(self.capacity) and (self.above or math.inf) > (self.capacity or 0.0) * CLOSE_ENOUGH

    @property
    def run(self) -> LoadRun | None:
        """The last run at the capacity, or else the fastest that keeps the limit, or else the first."""
        kept = [run for run in self.runs if run.keeps(self.limit)] or self.runs[:1]
        fastest = max(kept, key=lambda run: run.throughput, default=None)
        return next((run for run in reversed(self.runs) if run.rate == self.capacity), fastest)


def read_load(file: Path) -> LoadRecord:
    """Return the load record in a file. Raises InferlensError if there is none, OSError if it cannot be read."""
    return decode_json(read_unpacked(file), LoadRecord, SCHEMA, "load test")
