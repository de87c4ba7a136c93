"""The lag of the load generator beside a server that sleeps: how late requests are taken, at several rates.

The generator is the dispatcher of ``inferlens load`` in this process. The server is one other process that sleeps for
2 ms per batch of up to 16 requests, so that it needs no CPU. What is wanted: at 2,000 requests/s on two quiet cores the
lag is at most 0.5 ms at p99. The load of the machine is printed, because a busy machine makes the generator late.

    python -m benchmarks.load_generator [--seconds 5] [RATE ...]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Listener
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from inferlens.execution.load.dispatcher import Dispatcher, LoadLog, Traffic, unit_times
from inferlens.execution.load.tasks import ANSWER, HELLO, ServedInstances
from inferlens.measure.monitor import other_programs
from inferlens.record.load import Arrivals, Deployment

RATES = (500, 1000, 2000)
CALL = 0.002  # seconds


def serve(address: str) -> None:
    """Answer batches after a sleep."""
    with Client(address, "AF_UNIX") as connection:
        connection.send_bytes(HELLO.pack(0, 16))
        while connection.recv_bytes():
            begin = time.perf_counter()
            time.sleep(CALL)
            connection.send_bytes(ANSWER.pack(begin, time.perf_counter(), False))


def measured(rate: float, seconds: float) -> LoadLog:
    """Return what happened at a rate of Poisson arrivals."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "socket"))
        with Listener(address, "AF_UNIX") as listener:
            server = multiprocessing.get_context("spawn").Process(target=serve, args=(address,))
            server.start()
            instances = ServedInstances(listener, 1, Path(folder, "stop"), 60.0)
        times = unit_times(Arrivals(), int(rate * seconds), 0) / rate
        log = Dispatcher(Traffic(times, [0]), instances, Deployment(max_batch=16)).run()
        instances.close()
        server.join()
    return log


def main(words: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_generator")
    parser.add_argument("rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args(words)
    quiet = other_programs() or "nothing else runs"
    table = Table(title=f"Lag in ms on {len(os.sched_getaffinity(0))} CPUs; {quiet}")
    for column in ("requests/s", "p50", "p95", "p99", "max", "busy server"):
        table.add_column(column, justify="right")
    for rate in args.rates:
        log = measured(rate, args.seconds)
        lag = 1e3 * (log.taken - log.due)
        shares = [*np.quantile(lag, (0.5, 0.95, 0.99)), lag.max()]
        busy = (log.end - log.begin).sum() / log.end.max()
        table.add_row(f"{rate:g}", *(f"{value:.3g}" for value in shares), f"{busy:.0%}")
    Console(width=110).print(table)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
