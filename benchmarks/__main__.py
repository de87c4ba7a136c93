"""Runs every benchmark of this folder and prints its table: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import agreement, engine_loop, timed_loop, watch_cost

BENCHMARKS: dict[str, Callable[[], None]] = {
    "timed_loop": timed_loop.main,
    "engine_loop": engine_loop.main,
    "watch_cost": watch_cost.main,
    "agreement": agreement.main,
}

for name in sys.argv[1:] or BENCHMARKS:
    BENCHMARKS[name]()
