"""The noun of every view: one :class:`Row` per case, with all that a table or a chart can show of it.

Rows hold numbers, never text made from numbers; ``rows`` makes them from records.
"""

from __future__ import annotations

from msgspec import Struct, field

from inferlens.stats.compare import least_apart, unseen_on
from inferlens.stats.intervals import LEAST_SAMPLES, Interval


class Row(Struct, frozen=True, kw_only=True):
    """One case as it is shown; times in seconds, sizes in bytes, ``None`` for what was not measured or is not certain.

    Attributes:
        id, folder, created: of the record.
        name: the case within its table: backend, precision and what else tells it from the other rows.
        machine: what tells the machine from another; rows of two machines are never compared.
        device_name: name of the GPU, or of the CPU for cases on the CPU.
        inputs: the actual inputs; ``batch`` is the number of items in one call.
        prepared: the range of sizes it was prepared for, if for more than the measured ones.
        io: where a call begins and ends, ``device`` or ``host``.
        call_mode: how it was called beside ``io``: ``cold``, ``rotating``.
        processes: how many processes it was measured in; ``between``: whether intervals cover how far these differ.
        samples: number of latency samples that statistics are of; ``left_out`` were disturbed or not steady yet.
        warmup: calls before the first sample.
        median: of several processes the geometric mean of their medians.
        median_low, median_high: its 95 % interval, over processes where there are several, as are
            those of ``mean``, ``p95`` and ``p99``.
        iterations_per_second: calls per second, median of the throughput windows; items are calls x batch;
            ``iterations_low``, ``iterations_high`` are its 95 % interval.
        in_flight: calls in flight when throughput was measured; ``None``: no limit but the queue's.
        bound: what a call on a GPU waits for most: ``host``, ``copies`` or ``GPU``.
        reference: name of the row the speed-up is against; empty if there is none.
        speedup: reference's median latency over this one's, with its 95 % interval; of rates where no latency was
            measured.
        autocorrelated: whether the speed-up's interval is wider because processes resemble those before them.
        card: the GPU's own name (UUID), of cases on a GPU; ``other_card`` if the reference was measured on another.
        error: relative L2 error of the outputs; ``agrees`` is ``None`` where they could not be checked.
        h2d, compute, d2h: medians of the parts of the GPU time, where a call begins and ends on the host.
        build: seconds of export and build together; ``cached`` if what was built before was used.
        host_peak, device_peak: the largest of its processes.
        energy: joules for one item, with its bounds.
        ranked: whether the row may be the fastest: it ran, and its outputs are not known to be wrong.
        fastest: the lowest median of its comparison, or not to be told apart from it: several rows may be.
    """

    id: str
    folder: str
    created: str
    model: str
    name: str
    label: str
    backend: str
    precision: str
    batch: int | None
    device: str
    device_name: str
    machine: str
    threads: int | None
    options: str
    inputs: str
    prepared: str
    io: str
    status: str
    reason: str
    hint: str = field(name="cure")
    card: str = ""
    call_mode: str = field(default="", name="manner")
    processes: int = 1
    between: bool = False
    samples: int = 0
    left_out: int = 0
    warmup: int | None = None
    mean: float | None = None
    median: float | None = None
    median_low: float | None = None
    median_high: float | None = None
    p5: float | None = None
    p95: float | None = None
    p99: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    deviation: float | None = None
    mean_low: float | None = None
    mean_high: float | None = None
    p95_low: float | None = None
    p95_high: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None
    gpu_time: float | None = None
    enqueue: float | None = None
    h2d: float | None = None
    compute: float | None = None
    d2h: float | None = None
    iterations_per_second: float | None = None
    iterations_low: float | None = None
    iterations_high: float | None = None
    items_per_second: float | None = None
    in_flight: int | None = None
    bound: str = ""
    reference: str = ""
    is_reference: bool = False
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    error: float | None = None
    agrees: bool | None = None
    agreement_reason: str = ""
    load: float | None = None
    build: float | None = None
    cached: bool = False
    first_inference: float | None = None
    host_peak: int | None = None
    device_peak: int | None = None
    energy: float | None = None
    energy_low: float | None = None
    energy_high: float | None = None
    ranked: bool = False
    fastest: bool = False
    autocorrelated: bool = field(default=False, name="waves")
    other_card: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the case ran to its end."""
        return self.status == "ok"

    @property
    def table(self) -> tuple[str, str, str]:
        """Rows that share this go into one table: model, machine, and inputs but for the batch."""
        return self.model, self.machine, self.inputs_any_batch

    @property
    def comparison(self) -> tuple[str, str, str, int | None, str, str]:
        """Rows that share this are compared with each other."""
        return self.model, self.machine, self.inputs, self.batch, self.io, self.call_mode

    @property
    def seconds_per_call(self) -> float | None:
        """Seconds for one call, by which rows are ordered: the median latency, or one over a rate alone."""
        if self.median is None and self.iterations_per_second:
            return 1 / self.iterations_per_second
        return self.median

    @property
    def seconds_range(self) -> Interval | None:
        """Where the case's true time for a call may be; ``None`` where that is not known.

        The 95 % interval, or else what nine tenths of the samples span, or few of them.
        """
        if self.median_low is not None and self.median_high is not None:
            return Interval(self.median_low, self.median_high)
        if self.median is None and self.iterations_low and self.iterations_high:
            return Interval(1 / self.iterations_high, 1 / self.iterations_low)
        if self.p5 is not None and self.p95 is not None:
            return Interval(self.p5, self.p95)
        if self.minimum is not None and self.maximum is not None and self.samples >= LEAST_SAMPLES:
            return Interval(self.minimum, self.maximum)
        return None

    def least_apart(self, other: Row) -> float:
        """The ratio that the ranges of the two have to be apart for what single processes are taken to differ by."""
        return least_apart(*(unseen_on(row.device) for row in (self, other) if not row.between))

    def overlaps(self, other: Row) -> bool:
        """Whether the two cannot be told apart by their ranges: these are too close, or one of them is not known."""
        mine, theirs = self.seconds_range, other.seconds_range
        if mine is None or theirs is None:
            return True
        return max(mine.low, theirs.low) <= min(mine.high, theirs.high) * self.least_apart(other)

    def may_equal(self, other: Row) -> bool:
        """Whether one of the two is the other's reference, and the interval of their speed-up has 1 in it."""
        reference, row = (self, other) if self.is_reference else (other, self)
        if not reference.is_reference or row.is_reference or row.reference != reference.name:
            return False
        return row.speedup_low is not None and row.speedup_high is not None and row.speedup_low <= 1 <= row.speedup_high

    @property
    def inputs_any_batch(self) -> str:
        """The inputs with ``N`` for the batch."""
        return self.inputs if self.batch is None else self.inputs.replace(f"={self.batch}x", "=Nx")
