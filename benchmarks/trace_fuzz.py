"""Ten thousand broken traces: each is read as far as it goes or refused, and every view is drawn; nothing else happens.

The tests do five hundred of them. ``python -m benchmarks trace_fuzz``; the seed is the number of the mutation.
"""

from __future__ import annotations

import gzip
import random
import time
from collections import Counter

from rich.console import Console
from rich.progress import track

from inferlens.errors import InferlensError
from inferlens.trace.reader import read
from inferlens.views.table import FORMATS
from inferlens.views.trace import VIEWS, Selection
from tests.trace.samples import drawn, mutated, of_torch, training

COUNT = 10_000


def main() -> None:
    """Prints how many were read, how many refused, and how long the slowest took; a crash ends it."""
    whole = (training(), of_torch(), of_torch()[:30_000] + b"]}", gzip.compress(training()))
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for seed in track(range(COUNT), "Mutations", console=Console(stderr=True)):
        of = random.Random(seed)
        data = mutated(whole[seed % len(whole)], of)
        begin = time.perf_counter()
        try:
            outcomes["read"] += _looked_at(data, of)
        except InferlensError:
            outcomes["refused"] += 1
        slowest = max(slowest, time.perf_counter() - begin)
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
    print(f"{COUNT:,} mutations: {counts}; the slowest took {slowest:.2f} s")


def _looked_at(data: bytes, of: random.Random) -> int:
    trace = read(data)
    for view in VIEWS:
        drawn(trace, view, of.choice([*FORMATS]), Selection(by=("shapes", "stack", "operator")))
    return 1
