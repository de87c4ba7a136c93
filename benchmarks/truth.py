"""Readings against a truth: calls that last a known time.

On the host a call waits, busy, until ``time.perf_counter_ns`` has gone on by the time asked for, and notes how far it
truly got by then: being interrupted is part of the truth. That this clock itself runs right is a question of its own:
below the table it is held against ``CLOCK_MONOTONIC_RAW``.

On the GPU a call is a kernel that spins until the GPU's own timer has gone on by the time asked for, and notes its
readings (see ``spin``). GPU times are read in three ways:

* *ours*: ``CudaClock``, whose first event is recorded on an idle stream, so that the time until the kernel arrives
  is part of the GPU time (docs/statistics.md). GpuLaunch by Triton, which takes the host long.
* *ours, graph*: the same call as a CUDA graph, which takes the host less long.
* *queued*: as the second, but with another such kernel before the first event, so that the GPU has no gap to wait in.
  What is left then is what the events themselves and the start and the end of a kernel take.

*Less the floor* is what remains of ours when the clock's own ``floor``, which every case's record has, is taken off.

All are measured in turns, 12 rounds. A round's bias is the median over its calls of reading less truth. Told are the
median of the rounds, in nanoseconds and relative to the truth, and the interval of the sign test over them, of 96 %:
from the 3rd to the 10th of 12.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from inferlens.backends.clocks import Clock, CudaClock, HostClock

MICROSECONDS = (10, 20, 50, 100, 200, 500, 1000, 5000, 20_000)
ROUNDS = 12
RANKS = (2, 9)  # of the ordered rounds, from 0: binomial(12, 1/2) leaves 1.9 % on either side
SECONDS = 0.1  # of each truth in each round
LEAST, MOST = 10, 2000  # calls


class Read(NamedTuple):
    """One round of calls, in seconds: what was truly, what was read of it, what else was, and the clock's floor."""

    truth: list[float]
    read: list[float]
    enqueue: Sequence[float] = ()
    latency: Sequence[float] = ()
    floor: float = 0.0

    @property
    def less_floor(self) -> Read:
        """With readings less the clock's floor."""
        return self._replace(read=[value - self.floor for value in self.read])


Way = Callable[[int], Read]  # given the number of calls


def main() -> None:
    """Prints the tables."""
    console = Console(width=170)
    table = _table("Host clock: busy waits", ("read, µs", "bias, ns", "bias, % [96 %]", "p95 of a round, bias %"))
    for microseconds, rounds in in_turns({us: host_way(us) for us in (0, *MICROSECONDS)}).items():
        late = [sorted(_ratios(one))[int(0.95 * len(one.read))] for one in rounds] if microseconds else []
        table.add_row(
            f"{microseconds:,}", _microseconds([one.read for one in rounds], 3), *bias(rounds),
            f"{(statistics.median(late) - 1) * 100:+.2f}" if late else "–",
        )  # fmt: skip
    console.print(table)
    console.print(host_clock(), highlight=False)
    if has_gpu():
        on_gpu(console)
    else:
        console.print("truth: no NVIDIA GPU with PyTorch and Triton here, so nothing of the CUDA clock.")


def in_turns(ways: dict[Any, Way], rounds: int = ROUNDS) -> dict[Any, list[Read]]:
    """Rounds of every way, whose name begins with its truth in microseconds."""
    found: dict[Any, list[Read]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            microseconds = name[0] if isinstance(name, tuple) else name
            found[name].append(way(min(MOST, max(LEAST, int(SECONDS / (max(microseconds, 1) * 1e-6))))))
    return found


def host_way(microseconds: int) -> Way:
    """Busy waits, timed by our clock; with 0 an empty call, whose truth is nothing."""
    now = time.perf_counter_ns
    truly: list[int] = []
    note, nanoseconds = truly.append, microseconds * 1000

    def wait(feed: Any) -> None:  # noqa: ARG001 - as a runner's infer
        begin = end = now()
        deadline = begin + nanoseconds
        while end < deadline:
            end = now()
        note(end - begin)

    def round_of(count: int) -> Read:
        truly.clear()
        clock: Clock = HostClock()
        read = clock.time(wait if nanoseconds else lambda _: None, itertools.repeat(None), count).latency
        return Read([item * 1e-9 for item in truly] or [0.0] * count, read)

    return round_of


def host_clock(seconds: float = 2.0) -> str:
    """The least step of the host clock, and its rate against the raw one."""
    readings = [time.perf_counter_ns() for _ in range(10_000)]
    step = min(b - a for a, b in itertools.pairwise(readings) if b > a)
    words = f"Host clock: {time.get_clock_info('perf_counter').implementation}, least step seen {step} ns"
    if not hasattr(time, "CLOCK_MONOTONIC_RAW"):
        return words + "."
    begin = time.perf_counter_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    time.sleep(seconds)
    end = time.perf_counter_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    apart = (end[0] - begin[0]) / (end[1] - begin[1]) - 1
    return f"{words}; over {seconds:g} s its rate is {apart * 1e6:+.1f} millionths off CLOCK_MONOTONIC_RAW."


def has_gpu() -> bool:
    """Whether PyTorch sees a GPU and Triton is there."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def on_gpu(console: Console) -> None:
    """Prints the table of spinning kernels on the CUDA clock, and what to know of the GPU's timer."""
    import torch

    from benchmarks.spin import Spin

    ways: dict[Any, Way] = {}
    stamps: list[int] = []
    for microseconds in MICROSECONDS:
        spin = Spin(microseconds * 1000, MOST + LEAST)
        graph = spin.graph()
        ways[microseconds, "ours"] = gpu_way(spin, spin, stamps)
        ways[microseconds, "ours, graph"] = gpu_way(spin, graph, stamps)
        ways[microseconds, "queued"] = queued_way(spin, graph)
    in_turns(ways, 1)  # compiles, and wakes the GPU up
    title = f"CUDA clock: spinning kernels, {torch.cuda.get_device_name()}"
    headers = (
        "GPU time", "truly, µs", "bias, ns", "bias, % [96 %]", "less floor, ns", "less floor, % [96 %]", "enqueue, µs",
        "latency less GPU time, µs",
    )  # fmt: skip
    table = _table(title, headers)
    found = in_turns(ways)
    for (microseconds, name), rounds in found.items():
        rest = [[a - b for a, b in zip(one.latency, one.read, strict=False)] for one in rounds]
        table.add_row(
            f"{microseconds:,}", name, _microseconds([one.truth for one in rounds], 3), *bias(rounds),
            *(bias([one.less_floor for one in rounds]) if rounds[0].floor else ("–", "–")),
            _microseconds([one.enqueue for one in rounds], 1), _microseconds(rest, 1),
        )  # fmt: skip
    console.print(table)
    step = math.gcd(*(stamp - stamps[0] for stamp in stamps))
    floors = sorted(one.floor * 1e6 for rounds in found.values() for one in rounds if one.floor) or [math.nan]
    console.print(f"Floor: {statistics.median(floors):.2f} µs ({floors[0]:.2f} to {floors[-1]:.2f}).", highlight=False)
    console.print(
        f"GPU timer: its steps are of {step} ns; a truth is uncertain by up to one, by half of one in the mean.",
        highlight=False,
    )


def gpu_way(spin: Any, infer: Callable[[Any], Any], stamps: list[int]) -> Way:
    """Our clock on spinning kernels; the timer's readings go to ``stamps``."""

    def round_of(count: int) -> Read:
        spin.forget()
        clock = CudaClock()
        timings = clock.time(infer, itertools.repeat(None), count)
        found, floor = spin.readings(), clock.floor() or 0.0
        stamps.extend(stamp for pair in found[:100] for stamp in pair)
        return Read([(b - a) * 1e-9 for a, b in found], timings.gpu, timings.enqueue, timings.latency, floor)

    return round_of


def queued_way(spin: Any, infer: Callable[[Any], Any]) -> Way:
    """Events around calls that are enqueued while the GPU is still busy with a kernel that is in no reading."""
    import torch

    busy = type(spin)(200_000, MOST + LEAST)

    def round_of(count: int) -> Read:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for event in itertools.chain(*events):  # CUDA creates an event when it is first recorded
            event.record()
        spin.forget()
        busy.forget()
        torch.cuda.current_stream().synchronize()
        for before, after in events:
            busy(None)
            before.record()
            infer(None)
            after.record()
            torch.cuda.current_stream().synchronize()
        read = [before.elapsed_time(after) * 1e-3 for before, after in events]
        return Read([(b - a) * 1e-9 for a, b in spin.readings()], read)

    return round_of


def _ratios(one: Read) -> list[float]:
    return [a / b for a, b in zip(one.read, one.truth, strict=True)]


def bias(rounds: Sequence[Read]) -> tuple[str, str]:
    """The median of reading less truth in ns; relative to the truth, with its interval, where there is one."""
    apart = [statistics.median(a - b for a, b in zip(one.read, one.truth, strict=True)) for one in rounds]
    nanoseconds = f"{statistics.median(apart) * 1e9:+.0f}"
    if not rounds[0].truth[0]:
        return nanoseconds, "–"
    shares = sorted((statistics.median(_ratios(one)) - 1) * 100 for one in rounds)
    low, high = (shares[rank] for rank in RANKS)
    return nanoseconds, f"{statistics.median(shares):+.3f} [{low:+.3f}, {high:+.3f}]"


def _microseconds(rounds: Sequence[Sequence[float]], digits: int) -> str:
    medians = [statistics.median(one) for one in rounds if one]
    return f"{statistics.median(medians) * 1e6:.{digits}f}" if medians else "–"


def _table(title: str, headers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for header in ("truth, µs", *headers):
        table.add_column(header, justify="left" if header == "GPU time" else "right", no_wrap=True)
    return table


if __name__ == "__main__":
    main()
