"""Several traces in a folder, a row for each: the ranks of one job, runs in their log folders, or any others."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.trace.columns import Columns
from inferlens.units import duration, milliseconds, plural
from inferlens.views.plain import plain
from inferlens.views.table import Column
from inferlens.views.traced.answers import Row
from inferlens.views.traced.trace_columns import RANKS, RUNS
from inferlens.views.traced.trace_views import TraceTable, TraceView

MOST = 12  # rows that people get


def ranks(rows: Sequence[Row]) -> TraceView:
    """The ranks of one job, how far they are apart, and which one the others wait for."""
    said = [f"A step takes {_extremes(rows)}."]
    fewest, *_, most = sorted(rows, key=lambda row: float(row["communicating"]))
    if most["communicating"]:
        times = f"{milliseconds(fewest['communicating'])} to {milliseconds(most['communicating'])} ms of a step"
        said.append(f"Communication takes {times}; the others wait for {plain(fewest['name'])}, which does so least.")
    table = _table("ranks", "rank's trace", RANKS, rows)
    return TraceView(f"{len(rows)} ranks of one job", said, [table], ("Each of them?", "--wide"))


def runs(rows: Sequence[Row], why: str | None) -> TraceView:
    """Runs side by side; ``why`` says why traces that lie beside each other are not ranks, and are only listed."""
    hosts = sum(row["bound"] == "host" for row in rows)
    more = [f"The host is the bottleneck in {hosts} of {len(rows)}."] if hosts else []
    if why is None:
        said, about, first = f"A step takes {_extremes(rows)}.", f"{len(rows)} runs", "run"
    else:
        said = f"They are not ranks of one job ({why}): look at one, or compare two with --against."
        about, first = f"{len(rows)} traces", "trace"
    return TraceView(about, [said, *more], [_table("runs", first, RUNS, rows)], ("One of them?", ""))


def _table(name: str, first: str, columns: Sequence[Column], rows: Sequence[Row]) -> TraceTable:
    data = Columns.named([*rows[0]], [[*row.values()] for row in rows])
    left = len(rows) - MOST
    more = [f"{plural(left, 'more row')}: --format csv"] if left > 0 else []
    return TraceTable(name, "", first, columns, data, brief=lambda rows: rows[:MOST], sentences=more)


def _extremes(rows: Sequence[Row]) -> str:
    fast, *_, slow = sorted(rows, key=lambda row: float(row["step_time"]))
    ends = [f"{duration(row['step_time'])} ({plain(row['name'])})" for row in (fast, slow)]
    return " to ".join(ends)
