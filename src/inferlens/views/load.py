"""Measurements under load as a table: the requests per second that each way serves, and its best deployment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferlens.analysis.load import capacity_race, may_win
from inferlens.record.load import LoadRecord, LoadRun
from inferlens.units import ABSENT, duration, latency, milliseconds, percent, plural, significant
from inferlens.views.table import Column, Document, Line, Table, plain

BUSY = 0.85  # share of the time from which on the instances limit the rate
LATE = 0.001  # seconds of lag of the generator that a note reports
LAG_SHARE = 0.05  # of the limit
WORDS = {0.5: "p50", 0.95: "p95", 0.99: "p99"}


@dataclass(frozen=True)
class LoadRow:
    """One way with its best deployment, and the records of that in its rounds."""

    records: Sequence[LoadRecord]

    @property
    def first(self) -> LoadRecord:
        return self.records[0]

    @property
    def capacity(self) -> float | None:
        """The mean capacity of the rounds in requests per second."""
        values = [record.capacity for record in self.records if record.capacity]
        return math.exp(sum(map(math.log, values)) / len(values)) if values else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The lowest rate that a round kept, and the highest one that a round did not keep."""
        kept = [record.capacity for record in self.records if record.capacity]
        lost = [record.above for record in self.records if record.above]
        return (min(kept), max(lost)) if kept and lost else None

    @property
    def run(self) -> LoadRun | None:
        """The run at the capacity of the last round, or else the last run."""
        last = self.records[-1]
        at = [run for run in last.runs if run.rate == last.capacity]
        return at[-1] if at else last.runs[-1] if last.runs else None

    @property
    def outcome(self) -> str:
        """Why the way does not count; empty if it does."""
        record = self.first
        if record.status != "ok":
            return record.reason
        if record.agreement and record.agreement.agrees is False:
            return f"wrong: {record.agreement.reason}"
        return "" if record.capacity or record.rates or record.clients else "no rate keeps the limit"

    @property
    def bound(self) -> str:
        """Return a short text on what limits the rate."""
        run, record = self.run, self.first
        if run is None or not record.capacity:
            return ""
        if run.busy >= BUSY:
            return "the instances are busy"
        size = max(1, round(run.mean_batch))
        calls = [times[min(one for one in times if one >= size)] for times in record.service if size <= max(times)]
        call = max(calls, default=0.0)
        return "one call takes most of the limit" if call > record.limit.seconds / 2 else "requests wait in the queue"


def load_rows(records: Iterable[LoadRecord]) -> list[LoadRow]:
    """Return a row for each way, with the deployment of the highest capacity, the best way first."""
    ways: dict[str, list[LoadRecord]] = {}
    for record in records:
        ways.setdefault(record.case.digest, []).append(record)
    rows = []
    for tried in ways.values():
        best = max(tried, key=lambda record: (may_win(record), record.round > 0, record.capacity or 0.0))
        rows.append(LoadRow([record for record in tried if record.deployment == best.deployment]))
    return sorted(rows, key=lambda row: (bool(row.outcome), -(row.capacity or 0.0)))


def cost(capacity: float | None, price: float | None) -> str:
    """Return the price of a million requests, for a price of one second."""
    return significant(1e6 * price / capacity) if price and capacity else ABSENT


def rate(value: float | None) -> str:
    return ABSENT if value is None else significant(value)


def load_document(records: Sequence[LoadRecord], price: float | None = None) -> Document:
    """Return the document of measurements under load; ``price`` is that of a second."""
    rows = load_rows(records)
    if rows and (rows[0].first.rates or rows[0].first.clients):
        table = rates_table(rows)
    else:
        table = capacity_table(rows, records, price)

    def data() -> dict[str, object]:
        return {"schema": "inferlens.load/1", "price_per_second": price, "records": list(records)}

    def lines() -> tuple[list[str], list[list[object]]]:
        names = ["way", "instances", "max_batch", "wait", "round", "rate", "clients", "throughput", "p50", "p95", "p99"]
        names += ["answered", "refused", "expired", "failed", "lag", "mean_batch", "padding", "busy"]
        pairs = [(record, run) for record in records for run in record.runs]
        return names, [
            [
                record.case.label, record.deployment.instances, record.deployment.max_batch, record.deployment.wait,
                record.round, run.rate, run.clients, run.throughput, *run.quantiles, run.answered, run.refused,
                run.expired, run.failed, run.lag, run.mean_batch, run.padding, run.busy,
            ]
            for record, run in pairs
        ]  # fmt: skip

    return Document(lambda: [table], data, lines, title=table.title)


def load_title(record: LoadRecord) -> str:
    limit = f"{WORDS[record.limit.quantile]} of {duration(record.limit.seconds)}"
    return f"{plain(record.case.model)} under load, {record.arrivals} arrivals, within {limit}"


def capacity_table(rows: Sequence[LoadRow], records: Sequence[LoadRecord], price: float | None) -> Table:
    """Return the table of the capacities, with the answer above it."""
    first = rows[0].first
    quantile = WORDS[first.limit.quantile]
    columns = (
        Column("capacity", "requests/s", "", rate),
        Column("interval", "between", "", lambda pair: f"{rate(pair[0])} and {rate(pair[1])}" if pair else ABSENT, 3),
        Column("", "instances", "", lambda row: str(row.first.deployment.instances), 1),
        Column("", "batch", "up to", lambda row: str(row.first.deployment.max_batch), 1),
        Column("", "p50", "ms", lambda row: _milliseconds(row, 0), 4),
        Column("", quantile, "ms", lambda row: milliseconds(row.run.at_limit) if row.run else ABSENT, 2),
        Column("", "per million", "", lambda row: cost(row.capacity, price), 2),
        Column("", "limited by", "", lambda row: row.outcome or row.bound, 5, numeric=False, fold=True, max_width=40),
    )
    lines = [Line.from_row(row.first.case.label, columns, row, style="dim" if row.outcome else "") for row in rows]
    return Table(
        load_title(first), "way", columns, lines, answer=answer_lines(rows, records, price), notes=load_notes(rows)
    )


def _milliseconds(row: LoadRow, place: int) -> str:
    return milliseconds(row.run.quantiles[place]) if row.run and row.run.quantiles else ABSENT


def answer_lines(rows: Sequence[LoadRow], records: Sequence[LoadRecord], price: float | None) -> list[str]:
    """Return the answer: the way and deployment that serve most, and by how much over the next."""
    race = capacity_race(records)
    if race is None:
        return ["NONE  No way keeps the limit with right answers."]
    ranked = [row for row in rows if not row.outcome]
    best = next(row for row in ranked if row.first.case.digest == race.leader)
    others = [row for row in ranked if row is not best]
    head = "FASTEST" if race.decided else "LIKELY FASTEST"
    parts = [f"{head}  {best.first.case.label}, {best.first.deployment}: {rate(best.capacity)} requests/s"]
    if others and best.capacity and others[0].capacity:
        parts.append(f"{significant(best.capacity / others[0].capacity)}x the next")
    if price:
        parts.append(f"{cost(best.capacity, price)} for a million")
    return [", ".join(parts)]


def load_notes(rows: Sequence[LoadRow]) -> list[str]:
    """Return what weakens the numbers."""
    notes = []
    runs = [row.run for row in rows if row.run]
    lag = max((run.lag for run in runs), default=0.0)
    if rows and lag > max(LATE, LAG_SHARE * rows[0].first.limit.seconds):
        notes.append(f"The generator was up to {latency(lag)} late (p99); latencies include it.")
    lost = sum(run.refused + run.expired for run in runs)
    if lost:
        verbs = "was refused or given up; it counts" if lost == 1 else "were refused or given up; they count"
        notes.append(f"{plural(lost, 'request')} {verbs} as endless.")
    if rows and "random" in rows[0].first.model.weights:
        notes.append("The weights are random; speed does not depend on them.")
    return notes


def rates_table(rows: Sequence[LoadRow]) -> Table:
    """Return the table of the requested rates."""
    first = rows[0].first
    columns = (
        Column(
            "", "rate", "", lambda pair: f"{rate(pair[1].rate)}/s" if pair[1].rate else f"{pair[1].clients} clients"
        ),
        Column("", "served", "requests/s", lambda pair: rate(pair[1].throughput), 1),
        Column("", "p50", "ms", lambda pair: milliseconds(pair[1].quantiles[0]), 2),
        Column("", "p99", "ms", lambda pair: milliseconds(pair[1].quantiles[2]), 1),
        Column("", "lost", "", lambda pair: _lost(pair[1]), 2),
        Column("", "mean batch", "", lambda pair: significant(pair[1].mean_batch), 3),
        Column("", "busy", "", lambda pair: percent(pair[1].busy), 3),
    )
    lines = [Line.from_row(row.first.case.label, columns, (row, run)) for row in rows for run in row.first.runs]
    failed = [f"{row.first.case.label}: {row.outcome}" for row in rows if row.outcome]
    return Table(load_title(first), "way", columns, lines, notes=[*failed, *load_notes(rows)])


def _lost(run: LoadRun) -> str:
    lost = run.refused + run.expired + run.failed
    return str(lost) if lost else ABSENT
