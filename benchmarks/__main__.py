"""Runs every benchmark of this folder and prints its table: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import agreement, engine_loop, timed_loop

BENCHMARKS: dict[str, Callable[[], None]] = {
    "timed_loop": timed_loop.main,
    "engine_loop": engine_loop.main,
    "agreement": agreement.main,
}

for name in sys.argv[1:] or BENCHMARKS:
    BENCHMARKS[name]()
