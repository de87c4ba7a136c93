"""Runs benchmarks of this folder and prints their tables: ``python -m benchmarks [NAME ...]``.

Without a name all of them, but for those of :data:`LONG`, which take many minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import (
    agreement,
    coverage,
    early_stops,
    engine_loop,
    load_generator,
    page,
    race,
    shipped,
    spread,
    timed_loop,
    trace_fuzz,
    trace_speed,
    truth,
    watch_cost,
)

BENCHMARKS: dict[str, Callable[[], None]] = {
    "timed_loop": timed_loop.main,
    "truth": truth.main,
    "engine_loop": engine_loop.main,
    "watch_cost": watch_cost.main,
    "load_generator": load_generator.main,
    "agreement": agreement.main,
    "page": page.main,
    "trace_speed": trace_speed.main,
    "trace_fuzz": trace_fuzz.main,
    "coverage": coverage.main,
    "early_stops": lambda: early_stops.main([]),
    "spread": spread.main,
    "shipped": shipped.main,
    "race": lambda: race.main(["simulate"]),
}
LONG = ("trace_fuzz", "coverage", "early_stops", "spread", "shipped", "race")

for name in sys.argv[1:] or [name for name in BENCHMARKS if name not in LONG]:
    BENCHMARKS[name]()
