"""Runs as one sheet: a row for each log folder, what its steps went to and how its GPU was used."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.trace.columns import Columns
from inferlens.trace.folders import Run
from inferlens.units import listing, milliseconds
from inferlens.views.plain import plain
from inferlens.views.traced.sheet import Column, Sheet, share, span, span_notes, text, time

_RUNS = (
    Column("step_time", "step", "ms", time, 0),
    Column("bound", "pace set by", "", text, 4),
    Column("utilization", "GPU utilization", "", share, 1),
    Column("sm_efficiency", "SM efficiency", "est.", share, 2),
    Column("occupancy", "occupancy", "est.", share, 3),
    Column("tensor_span", "tensor cores", "of kernel time", span, 5),
    Column("kernel", "kernel", "ms", time, 6),
    Column("copy", "copy", "ms", time, 10),
    Column("runtime", "runtime", "ms", time, 8),
    Column("cpu", "CPU", "ms", time, 9),
    Column("waiting", "GPU waits", "ms", time, 7),
)


def sheet(runs: Sequence[Run]) -> Sheet:
    """All runs, and which took the longest and the shortest steps."""
    spans = [(run.tensor_share, run.tensor_untold) for run in runs]
    table = Columns({**Columns.of(runs).columns, "tensor_span": spans})
    return Sheet("runs", "Runs", ("name", "run"), _RUNS, table, f"{len(runs)} traces", span_notes(spans), _said(runs))


def _said(runs: Sequence[Run]) -> list[str]:
    slow, fast = max(runs, key=lambda run: run.step_time), min(runs, key=lambda run: run.step_time)
    said = []
    if fast.step_time:
        said.append(
            f"Steps take {milliseconds(fast.step_time)} ms in {plain(fast.name)} and up to "
            f"{milliseconds(slow.step_time)} ms in {plain(slow.name)}."
        )
    hosts = [plain(run.name) for run in runs if run.bound == "host"]
    if hosts:
        said.append(f"The host sets the pace of {listing(hosts)}: the GPU waits for it.")
    return said
