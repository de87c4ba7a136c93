"""Runs every benchmark of this folder and prints its table: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import agreement, timed_loop

BENCHMARKS: dict[str, Callable[[], None]] = {"timed_loop": timed_loop.main, "agreement": agreement.main}

for name in sys.argv[1:] or BENCHMARKS:
    BENCHMARKS[name]()
