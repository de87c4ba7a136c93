"""The ranks of a job as one sheet: a row for each, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.trace.columns import Columns
from inferlens.trace.folders import Rank
from inferlens.units import milliseconds, percent
from inferlens.views.plain import plain
from inferlens.views.traced.sheet import Column, Sheet, count, share, time

_RANKS = (
    Column("rank", "rank", "", count, 1),
    Column("step_time", "step", "ms", time, 0),
    Column("utilization", "GPU utilization", "", share, 2),
    Column("computing", "computing", "ms", time, 3),
    Column("communicating", "communicating", "ms", time, 4),
    Column("overlapped", "overlapped", "", share, 5),
    Column("waiting", "waiting for the host", "ms", time, 6),
)


def sheet(ranks: Sequence[Rank]) -> Sheet:
    """All ranks, and the spread."""
    slow, fast = max(ranks, key=lambda rank: rank.step_time), min(ranks, key=lambda rank: rank.step_time)
    said = []
    if fast.step_time:
        apart = percent(slow.step_time / fast.step_time - 1)
        said.append(
            f"The slowest is {plain(slow.name)} with {milliseconds(slow.step_time)} ms a step, {apart} more than the "
            f"fastest, {plain(fast.name)}."
        )
    least = min(ranks, key=lambda rank: rank.communicating)
    most = max(ranks, key=lambda rank: rank.communicating)
    if most.communicating > 0:
        said.append(
            f"Communication takes {milliseconds(least.communicating)} to {milliseconds(most.communicating)} ms of a "
            "step; the rank that communicates least is the one that the others wait for."
        )
    return Sheet("ranks", "Ranks", ("name", "trace"), _RANKS, Columns.of(ranks), f"{len(ranks)} traces", sentences=said)
