"""Measurements under load as tables and charts: the requests per second of each way with its best deployment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from inferlens import units
from inferlens.analysis.interference import OTHERS_BUSY
from inferlens.analysis.load import LEVEL, THRESHOLD, best_rounds, capacity_race, load_tests
from inferlens.errors import InferlensError
from inferlens.record.load import Deployment, LimitedBy, LoadRecord, LoadRun
from inferlens.spec.case import short_name
from inferlens.stats.samples import geometric_mean
from inferlens.views.chart import CHART_WIDTH, answer_title
from inferlens.views.picture import (
    DASHES,
    Part,
    Theme,
    check_picture,
    colours_of,
    draw_chart,
    field,
    marks,
    overlay,
    picture,
    stack_charts,
    vega_document,
)
from inferlens.views.table import Block, Column, Document, Line, Table, plain

LATE = 0.001  # seconds of lag of the generator that a note reports
LAG_SHARE = 0.05  # share of the limit
WORDS = {0.5: "p50", 0.95: "p95", 0.99: "p99"}
LEAST_BEYOND = 10  # requests beyond the quantile; of fewer it is uncertain
BOUNDS: dict[LimitedBy, str] = {
    "": "", "gpu": "the GPU", "cpu": "the CPU", "host": "host work of the instances", "instances": "the instances",
    "batching": "waiting for batches", "call": "the time of one call", "queue": "requests that arrive together",
}  # fmt: skip
UNVERIFIED = "LoadGen's {} scenario, unverified, not an MLPerf result"


@dataclass(frozen=True)
class LoadRow:
    """One way with its best deployment, and the records of that in its rounds."""

    records: Sequence[LoadRecord]
    name: str

    @property
    def first(self) -> LoadRecord:
        return self.records[0]

    @property
    def quantile(self) -> str:
        return WORDS[self.first.limit.quantile]

    @property
    def capacity(self) -> float | None:
        """Return the mean capacity of the rounds in requests per second."""
        return geometric_mean([record.capacity for record in self.records if record.capacity])

    @property
    def interval(self) -> tuple[float, float | None] | None:
        """Return the lowest rate that a round kept, and the highest rate that a round did not keep, if any."""
        kept = [record.capacity for record in self.records if record.capacity]
        return (min(kept), max(record.above or 0.0 for record in self.records) or None) if kept else None

    @property
    def highest(self) -> float:
        """Return the lowest rate that a round did not keep; infinite if there is none."""
        return min(record.above or math.inf for record in self.records)

    @property
    def run(self) -> LoadRun:
        """Return the run of the last round that counts, or an empty run."""
        return self.records[-1].run or LoadRun()

    @property
    def waste(self) -> float:
        """Return the share of the computed elements that is padding of requests or of batches."""
        mix = self.first.mix
        volumes = [weight * math.prod(group.values()) for group, weight in zip(mix.groups, mix.weights, strict=True)]
        filled = sum(volume * share for volume, share in zip(volumes, mix.filled, strict=True)) / sum(volumes)
        return 1 - filled * (1 - self.run.padding)

    @property
    def outcome(self) -> str:
        """Return the reason that the way does not count; empty if it counts."""
        record = self.first
        if record.status != "ok":
            return record.reason
        if record.agreement and record.agreement.agrees is False:
            return f"wrong: {record.agreement.reason}"
        return "" if record.capacity or record.rates or record.clients else "no rate keeps the limit"

    @property
    def bound(self) -> str:
        """Return what limits the rate, in words."""
        run, record = self.run, self.records[-1]
        if not record.capacity:
            return ""
        if is_late(run, record) and record.limited_by not in ("gpu", "cpu"):
            return "the load generator"
        share = {"gpu": run.gpu, "cpu": run.host, "host": run.busy, "instances": run.busy}.get(record.limited_by)
        return BOUNDS[record.limited_by] + (f", {units.percent(share)} busy" if share is not None else "")


def is_late(run: LoadRun, record: LoadRecord) -> bool:
    """Return whether the generator was so late that it matters."""
    return run.lag > max(LATE, LAG_SHARE * record.limit.seconds)


def load_rows(records: Iterable[LoadRecord]) -> list[LoadRow]:
    """Return a row for each way, with the deployment of the highest capacity, the best way first."""
    ways = [(rounds, rounds[0].case) for rounds in best_rounds(records)]
    counts = Counter(case.way for _, case in ways)
    rows = [LoadRow(rounds, plain(case.way if counts[case.way] == 1 else case.label)) for rounds, case in ways]
    return sorted(rows, key=lambda row: (bool(row.outcome), -(row.capacity or 0.0)))


def cost(capacity: float | None, price: float | None) -> str:
    """Return the price of a million requests, for a price of one second."""
    return units.significant(1e6 * price / capacity) if price and capacity else units.ABSENT


def load_document(
    records: Sequence[LoadRecord], price: float | None = None, *, top: int | None = None, folder: str = ""
) -> Document:
    """Return the document of measurements under load, the newest test first.

    ``price`` is that of a second, by default as recorded; ``top`` limits the ways, and ``folder`` has the records.
    """
    tests = [(load_rows(test), test) for test in load_tests(records)]
    first = tests[0][0][0]
    servable = first.capacity and not first.outcome and len(first.first.mix.groups) == 1
    uses = [f"Serve it: inferlens export --best {folder} -o deploy"] if folder and servable else []
    older = [f"{units.plural(len(tests) - 1, 'older load test')}: --format markdown shows all."] * (len(tests) > 1)

    def tables(count: int | None = None, groups: int | None = None) -> list[Table | str]:
        blocks: list[Table | str] = []
        for rows, test in tests[:count]:
            heading = "Requests by size" + ", of the best way" * (groups == 1 < len(rows))
            blocks += [main_table(rows, test, top, price), *group_tables(rows[:groups], heading)]
        return blocks

    def data() -> dict[str, object]:
        return {
            "schema": "inferlens.load/1",
            "price_per_second": price or records[-1].price,
            "tests": [{"title": load_title(test[0]), "ways": list(map(row_data, rows))} for rows, test in tests],
            "records": list(records),
        }

    shorter = ((None, older), (1, older), (0, older), (0, list[str]()))
    return Document(
        lambda: [*tables(), *uses], data, lambda: run_rows(records), title=load_title(tests[0][1][0]),
        tries=lambda _: ([*tables(1, groups), *notes, *uses] for groups, notes in shorter),
    )  # fmt: skip


def row_data(row: LoadRow) -> dict[str, object]:
    """Return the values of a row of the table, in seconds and joules."""
    run = row.run
    low, high = row.interval or (None, None)
    return {
        "way": row.first.case.label, "capacity": row.capacity, "low": low, "high": high, "limited_by": row.bound,
        "deployment": row.first.deployment, "at_limit": run.at_limit, "quantiles": run.quantiles, "busy": run.busy,
        "host": run.host, "gpu": run.gpu, "energy": run.energy and run.energy.joules, "waste": row.waste,
        "outcome": row.outcome, "rounds": len(row.records), "compiled": run.compiled,
        "loadgen": row.records[-1].loadgen,
    }  # fmt: skip


def run_rows(records: Sequence[LoadRecord]) -> list[dict[str, object]]:
    """Return the values of each run by name, as CSV has them."""
    deployment, quantiles = ("instances", "max_batch", "wait"), ("p50", "p95", "p99")
    measures = ["rate", "clients", "throughput", "answered", "refused", "expired", "failed", "lag", "mean_batch"]
    return [
        {"model": record.case.model, "way": record.case.label,
         **{name: getattr(record.deployment, name) for name in deployment}, "round": record.round,
         **{name: getattr(run, name) for name in (*measures, "padding", "busy", "host", "gpu")},
         "energy": run.energy and run.energy.joules, **dict(zip(quantiles, run.quantiles, strict=True))}
        for record in records for run in record.runs
    ]  # fmt: skip


def load_title(record: LoadRecord) -> str:
    limit = f"{WORDS[record.limit.quantile]} within {units.duration(record.limit.seconds)}"
    traffic = "clients that wait for their answer" if record.clients else f"{record.arrivals} arrivals"
    traffic += f" of {len(record.mix.groups)} sizes" * (len(record.mix.groups) > 1)
    return f"{plain(record.case.model)} under load, {traffic}, {limit}"


def deployment_cell(deployment: Deployment) -> str:
    """Return a deployment as instances and the largest batch: ``2 x 16``."""
    wait = f" in {units.duration(deployment.wait)}" if deployment.wait else ""
    return f"{deployment.instances} x {deployment.max_batch}{wait}"


def _between(pair: tuple[float, float | None] | None) -> str:
    return f"{units.rate(pair[0])} and {units.rate(pair[1]) if pair[1] else 'more'}" if pair else units.ABSENT


def main_table(
    rows: Sequence[LoadRow], records: Sequence[LoadRecord], top: int | None = None, price: float | None = None
) -> Table:
    """Return the table of a load test, with the answer above it; ``price`` is that of a second."""
    price = price or records[-1].price
    if rows[0].first.rates or rows[0].first.clients:
        return rates_table(rows[:top])
    columns = (
        Column("capacity", "requests/s", write=units.rate),
        Column("interval", "between", write=_between, keep=4),
        Column("first.deployment", "instances x max batch", write=deployment_cell, keep=1),
        Column("run.quantiles.0", "p50", "ms", write=units.milliseconds, keep=6, wide=True),
        Column("run.at_limit", rows[0].quantile, "ms", write=units.milliseconds, keep=2),
        Column("run.energy.joules", "energy", "mJ each", write=units.millijoules, keep=6, wide=True),
        Column("waste", "waste", "padding", keep=6, wide=True,
               write=lambda part: units.percent(part) if part else units.ABSENT),
        Column("cost", "cost", "a million", write_row=lambda row: cost(row.capacity, price), keep=5),
        Column("limit", "limited by", keep=3, numeric=False, fold=True, max_width=40,
               write_row=lambda row: row.outcome or row.bound),
    )  # fmt: skip
    lines = [Line.from_row(row.name, columns, row, style="dim" if row.outcome else "") for row in rows[:top]]
    answer = [*answer_lines(rows, records, price), *loadgen_lines(rows)]
    return Table(load_title(rows[0].first), "way", columns, lines, answer=answer, notes=load_test_notes(rows))


def answer_lines(rows: Sequence[LoadRow], records: Sequence[LoadRecord], price: float) -> list[str]:
    """Return the best way and how much it serves, its deployment and latency, and what could change the answer."""
    race = capacity_race(records)
    if race is None:
        return ["NONE  No way keeps the limit with right answers."]
    ranked = [row for row in rows if not row.outcome]
    best = next(row for row in ranked if row.first.case.digest == race.leader)
    rivals = [row for row in ranked if row is not best]
    capacity = best.capacity or 0.0
    # With one round the ways are measured minutes apart, and all searches of a way may have been cut short.
    unsure = [row for row in rivals if len(best.records) == 1 or row.highest > capacity * (1 + THRESHOLD)]
    head = "FASTEST"
    if unsure or not race.is_fastest(LEVEL, len(best.records)):
        head, unsure = "LIKELY FASTEST", unsure or [row for row in rivals if row.first.case.digest in race.open]
    bounded = rivals and math.isfinite(rivals[0].highest)
    lead = f", {units.ratio(capacity / (rivals[0].capacity or 1.0))} the next" if bounded else ""
    latency = f"{best.quantile} {units.latency(best.run.at_limit)}"
    parts, energy = [str(best.first.deployment), latency, f"limited by {best.bound}"], best.run.energy
    parts += [f"{units.joules(energy.joules)} each"] if energy else []
    parts += [f"{cost(best.capacity, price)} for a million requests"] * bool(price)
    served = "at least " * math.isinf(best.highest) + f"{units.rate(capacity)} requests/s"
    return [f"{head}  {best.name}: {served}{lead}", f"{'; '.join(parts)}.", *open_questions(best, rivals, unsure)]


def open_questions(best: LoadRow, rivals: Sequence[LoadRow], open_rows: Sequence[LoadRow]) -> list[str]:
    """Return the two most important things that could change the answer, each with its remedy, in one line if any."""
    record, run = best.first, best.run
    busy = max([best, *rivals], key=lambda row: row.run.others or 0.0)
    reasons = []
    if (others := busy.run.others or 0.0) >= OTHERS_BUSY:
        cpus = f"{units.significant(others, 2)} of {record.environment.cpu_threads if record.environment else '?'} CPUs"
        reasons.append(f"other programs used {cpus} beside {busy.name} (measure on a quieter machine)")
    if open_rows or all(round.cut_short for round in best.records):
        row = open_rows[0] if open_rows else best
        reasons.append(f"{row.name} may serve more (set --budget {2 * record.budget or 1200:.0f}s)")
    if is_late(run, record):
        reasons.append(f"the generator was {units.latency(run.lag)} late at p99 (measure on a quieter machine)")
    if record.agreement is None or record.agreement.agrees is None:
        reasons.append("the answers were not compared with a reference")
    if run.answered * (1 - record.limit.quantile) < LEAST_BEYOND:
        seconds = math.ceil(LEAST_BEYOND / (1 - record.limit.quantile) / (run.throughput or 1.0))
        reasons.append(f"its {best.quantile} comes from {run.answered:,} requests (set --seconds {seconds}s)")
    if record.requested.max_batch == record.deployment.max_batch > 1:
        reasons.append(f"larger batches were not tried (set --batching max={2 * record.deployment.max_batch})")
    return [f"What could change it: {'; '.join(reasons[:2])}."] if reasons else []


def loadgen_lines(rows: Sequence[LoadRow]) -> list[str]:
    """Return LoadGen's verdict on each way, with the latency of our run at the same rate, in one line if any."""
    verdicts = []
    for row in rows:
        if verdict := next((record.loadgen for record in reversed(row.records) if record.loadgen), None):
            words = "valid" if verdict.valid else " ".join(filter(None, ["not valid", verdict.reason]))
            ours = "" if verdict.ours is None else f" (ours {units.latency(verdict.ours)})"
            numbers = [f"{units.rate(verdict.rate)} requests/s"] * (verdict.rate is not None)
            numbers += [f"{row.quantile} {units.latency(verdict.at_limit)}{ours}"] * (verdict.at_limit is not None)
            verdicts.append(", ".join([f"{row.name} {words}", *numbers]))
    name = rows[0].first.scenario.title().replace("-", "")
    return [f"{UNVERIFIED.format(name)}: {'; '.join(verdicts)}."] if verdicts else []


def load_test_notes(rows: Sequence[LoadRow]) -> list[str]:
    """Return what weakens the numbers."""
    notes = []
    if lag := max((row.run.lag for row in rows[1:] if is_late(row.run, row.first)), default=0.0):
        notes.append(f"The generator was {units.latency(lag)} late at p99; latencies include it.")
    if lost := sum(row.run.refused + row.run.expired for row in rows):
        verbs = "was refused or given up; it counts" if lost == 1 else "were refused or given up; they count"
        notes.append(f"{units.plural(lost, 'request')} {verbs} as endless.")
    if rows and "random" in rows[0].first.model.weights:
        notes.append("The weights are random; speed does not depend on them.")
    return notes


def rates_table(rows: Sequence[LoadRow]) -> Table:
    """Return the table of the requested rates."""
    columns = (
        Column("load", "load", write_row=load_text),
        Column("throughput", "served", "requests/s", write=units.rate, keep=1),
        Column("quantiles.0", "p50", "ms", write=units.milliseconds, keep=2),
        Column("quantiles.2", "p99", "ms", write=units.milliseconds, keep=1),
        Column("lost", "lost", keep=2,
               write_row=lambda run: str(run.refused + run.expired + run.failed or units.ABSENT)),
        Column("mean_batch", "mean batch", write=units.significant, keep=3, wide=True),
        Column("busy", "busy", write=units.percent, keep=3),
    )  # fmt: skip
    lines = [Line.from_row(row.name, columns, run) for row in rows for run in row.first.runs]
    failed = [f"{row.name}: {row.outcome}" for row in rows if row.outcome]
    answer = [*rates_answer(rows), *loadgen_lines(rows)]
    return Table(
        load_title(rows[0].first), "way", columns, lines, answer=answer, notes=[*failed, *load_test_notes(rows)]
    )


def load_text(run: LoadRun) -> str:
    return f"{units.rate(run.rate)} requests/s" if run.rate else units.plural(run.clients, "client")


def rates_answer(rows: Sequence[LoadRow]) -> list[str]:
    """Return the highest requested load that some way keeps within the limit, and the way with the least latency."""
    right = [row for row in rows if not row.outcome]
    kept = [(row, run) for row in right for run in row.first.runs if run.keeps(row.first.limit)]
    if not kept:
        return ["NONE  No way keeps the limit at these rates."]
    row, run = max(kept, key=lambda pair: (pair[1].rate or pair[1].throughput, -(pair[1].at_limit or 0.0)))
    served = "" if run.rate else f", {units.rate(run.throughput)} requests/s"
    within = f"{row.quantile} {units.latency(run.at_limit)}{served}"
    return [f"BEST  {row.name}: {load_text(run)} within the limit, {within}"]


def group_tables(rows: Sequence[LoadRow], title: str = "Requests by size") -> list[Table]:
    """Return a table of the sizes of a mix at the capacity; none for requests of one size."""
    columns = (
        Column("size", "padded to", numeric=False, identifies=True),
        Column("group.requests", "requests", write="{:,}".format, keep=3),
        Column("group.quantiles.0", "p50", "ms", write=units.milliseconds, keep=2),
        Column("group.quantiles.1", "p99", "ms", write=units.milliseconds, keep=1),
        Column("group.seconds", "instance time", "ms/request", keep=1,
               write=lambda time: units.milliseconds(time or None)),
        Column("group.padding", "padding", write=units.percent, keep=2),
    )  # fmt: skip
    lines, notes = [], []
    for row in (row for row in rows if row.run.groups):
        for sizes, group in zip(row.first.mix.groups, row.run.groups, strict=True):
            size = plain(", ".join(f"{name}={size}" for name, size in sizes.items()))
            lines.append(Line.from_row(row.name, columns, {"size": size, "group": group}))
        recompiled = sum(sum(run.compiled.values()) for record in row.records for run in record.runs)
        padding = f"{units.percent(row.waste)} of all that is computed is padding of requests and batches"
        notes.append(f"{row.name}: {padding}, {units.plural(recompiled, 'recompilation')}.")
    return [Table(title, "way", columns, lines, notes=notes)] if lines else []


# Charts: latency and use against the offered load, and what the requests at the chosen rate went through.

MAX_DRAWN = 8  # ways
SAME_RATE = 1.03  # rates within this factor are one point of a curve
SHARES = 60  # points of a distribution
BETWEEN, PANEL_HEIGHT = 76, 220
ACROSS = ("rate", "latency", "time")  # measures along the x axis
KINDS = {"instances": "busy", "CPU": "host", "GPU": "gpu"}
LOAD_CAPTION = (
    "Latency and use against the offered load, and the requests at the highest rate within the limit: how long they "
    "took, and how many waited. Whiskers join the runs at about one rate."
)


def render_load(records: Sequence[LoadRecord], format: str, theme: str = "auto") -> str | bytes:
    """Draw the newest load test as :func:`.draw_chart`; raise as :func:`load_chart`."""
    check_picture(format, "--plot load.svg", theme)
    rows = load_rows(load_tests(records)[0])
    return draw_chart(load_chart(rows), format, load_title(rows[0].first), theme)


def load_chart(rows: Sequence[LoadRow], colours: Mapping[str, str] | None = None) -> Callable[[Theme], Part]:
    """Return the function that makes the Vega-Lite document for a theme; ``colours`` maps backend names.

    Raises InferlensError if nothing was answered.
    """
    drawn = [row for row in rows if row.run.latencies and row.first.status == "ok"][:MAX_DRAWN]
    if not drawn:
        hint = "inferlens show, which says why"
        raise InferlensError("There is nothing to draw: no request was answered.", hint=hint)
    backends = {row.name: plain(row.first.case.backend_label) for row in drawn}
    way_colours = colours_of(backends)
    if colours and len({*backends.values()}) == len(drawn):
        way_colours = {name: colours[backend] for name, backend in backends.items()}
    return lambda theme: _load_spec(drawn, theme, way_colours)


def load_answers(tests: Sequence[Sequence[LoadRecord]]) -> Iterator[Block]:
    """Yield the answer of each load test."""
    for test in tests:
        table = main_table(load_rows(test), test)
        yield Table(table.title, "", (), (), answer=table.answer[:1], sentences=table.answer[1:])


def load_section(tests: Sequence[Sequence[LoadRecord]], colours: Mapping[str, str]) -> Iterator[Block]:
    """Yield the table and the charts of each load test, and the sizes of its requests."""
    for number, test in enumerate(tests, 1):
        rows = load_rows(test)
        yield replace(main_table(rows, test), answer=())
        with suppress(InferlensError):  # nothing was answered
            yield picture(f"load-{number}", LOAD_CAPTION, load_chart(rows, colours))
        yield from group_tables(rows)


def _load_spec(rows: Sequence[LoadRow], theme: Theme, colours: Mapping[str, str]) -> Part:
    legend = {"title": None, "orient": "top", "columns": max(1, 110 // (max(map(len, colours)) + 8))}
    colour = field("way:N", scale={"domain": [*colours], "range": [*colours.values()]}, legend=legend)
    panels = (_load_panels(rows, theme, colour), _request_panels(rows, theme, colour))
    pairs = [stack_charts(pair, across=True, spacing=BETWEEN) for pair in panels]
    first, records = rows[0].first, [record for row in rows for record in row.records]
    answer = (rates_answer(rows) if first.rates or first.clients else answer_lines(rows, records, 0.0))[0]
    cpu = [first.environment.cpu] if first.environment else []
    about = " · ".join([load_title(first).partition(", ")[2], *cpu, "each way with its best deployment"])
    heading = answer_title(short_name(first.case.model), answer, about, CHART_WIDTH)
    return vega_document(stack_charts(pairs, spacing=34, title=heading), theme)


def _load_panel(name: str, layers: Sequence[Part]) -> Part:
    heading = {"text": name, "fontWeight": "normal", "fontSize": 13, "frame": "group"}
    return overlay(layers, width=(CHART_WIDTH - BETWEEN) / 2, height=PANEL_HEIGHT, title=heading)


def _axis(name: str, key: str, ends: tuple[float, float], log: bool = False, **axis: Any) -> Part:
    scale = {"type": "log" if log else "linear", "domain": ends, "nice": False, "clamp": True}
    look = {"tickCount": 5, "format": ",~r", "minExtent": 0 if key in ACROSS else 34, **axis}
    return field(f"{key}:Q", title=name, scale=scale, axis=look)


def _curve(row: LoadRow, key: str, scale: float) -> Iterator[Part]:
    """Yield a measure of a way by rate: the median, minimum and maximum of the runs at about the same rate."""
    highest = (row.interval or (0.0, None))[1] or math.inf
    points = [
        (run.rate or run.throughput, number * scale)
        for run in sorted((run for record in row.records for run in record.runs), key=lambda run: run.rate)
        if (run.rate or run.throughput) <= highest and (number := getattr(run, key)) is not None
    ]
    while points:
        numbers = [number for rate, number in points if rate <= points[0][0] * SAME_RATE]
        rate = median(rate for rate, _ in points[: len(numbers)])
        yield {"way": row.name, "rate": rate, "value": median(numbers), "low": min(numbers), "high": max(numbers)}
        points = points[len(numbers) :]


def _tip(name: str) -> list[Part]:
    return [field("way:N"), field("rate:Q", format=",.4~r"), field("value:Q", title=name, format=",.3~r")]


def _load_panels(rows: Sequence[LoadRow], theme: Theme, colour: Part) -> list[Part]:
    """Draw, against the offered load, the latency with its limit and the capacities, and the busy shares."""
    limit, name = 1e3 * rows[0].first.limit.seconds, f"{rows[0].quantile} (ms, log scale)"
    values = [value for row in rows for value in _curve(row, "at_limit", 1e3)]
    kinds_by_row = [(row, kind) for row in rows for kind in KINDS]
    busy_values = [{**value, "kind": kind} for row, kind in kinds_by_row for value in _curve(row, KINDS[kind], 100.0)]
    kinds = [kind for kind in KINDS if any(value["kind"] == kind for value in busy_values)]
    intervals = [
        {"way": row.name, "low": row.interval[0], "high": row.interval[1] or row.interval[0]}
        for row in rows if row.interval
    ]  # fmt: skip
    highest_rate = max([value["rate"] for value in busy_values] + [end["high"] for end in intervals])
    low = min([value["low"] for value in values] + [limit])
    limit_line: Part = {"y": {"datum": limit}}
    base = {"x": _axis("load (requests/s)", "rate", (0.0, 1.05 * highest_rate)), "color": colour}
    latency = {**base, "y": _axis(name, "value", (low / 1.3, 2.5 * limit), log=True)}
    busy, tip = {**base, "y": _axis("busy (%)", "value", (0.0, 104.0))}, [*_tip("busy (%)"), field("kind:N")]
    legend = {"title": None, "orient": "top"} if len(kinds) > 1 else None
    dash = field("kind:N", scale={"domain": kinds, "range": DASHES[: len(kinds)]}, legend=legend)
    text = {**limit_line, "text": {"value": f"limit {units.significant(limit)} ms"}}
    layers = [
        marks("rule", limit_line, [{}], strokeDash=[4, 3], color=theme.faint),
        marks("text", text, [{}], x=4, dy=-8, align="left", color=theme.faint),
        marks("line", latency, values, strokeWidth=2),
        marks("rule", {**latency, "y": field("low:Q"), "y2": {"field": "high"}}, values, strokeWidth=1.5),
        marks("point", {**latency, "tooltip": _tip(name)}, values, filled=True, size=45, opacity=1),
        marks("rule", {**base, **limit_line, "x": field("low:Q"), "x2": {"field": "high"}}, intervals, strokeWidth=6),
    ]
    shares = [
        marks("line", {**busy, "strokeDash": dash}, busy_values, strokeWidth=2),
        marks("point", {**busy, "tooltip": tip}, busy_values, filled=True, size=30, opacity=1),
    ]
    heading = "Latency against load, with the limit and the capacity"
    return [_load_panel(heading, layers), _load_panel(f"Use of {' and '.join(kinds)}", shares)]


def _request_panels(rows: Sequence[LoadRow], theme: Theme, colour: Part) -> list[Part]:
    """Draw, at the chosen rate, the requests that took longer than a latency, and those that wait over time."""
    at_rate = "at the best rate of each way" if len(rows) > 1 else f"at {units.rate(rows[0].run.throughput)}/s"
    limit, tails, waits = rows[0].first.limit, list[Part](), list[Part]()
    for row in rows:
        latencies, queue = 1e3 * np.array(row.run.latencies), row.run.queue or (0,)
        for share in np.geomspace(1 / len(latencies), 1.0, SHARES):
            tails.append({"way": row.name, "latency": float(np.quantile(latencies, 1 - share)), "share": 100 * share})
        for time, waiting in zip(np.linspace(0.0, row.run.seconds, len(queue)), queue, strict=True):
            waits.append({"way": row.name, "time": float(time), "value": waiting})
    low, high = (end(value["latency"] for value in tails) for end in (min, max))
    x = _axis("latency (ms, log scale)", "latency", (low / 1.1, max(high, 1e3 * limit.seconds) * 1.1), log=True)
    y = _axis("took longer (% of requests, log scale)", "share", (0.05, 100.0), log=True, values=[0.1, 1, 10, 100])
    faint: Part = {"strokeDash": [4, 3], "color": theme.faint}
    layers = [
        marks("rule", {"x": x}, [{"latency": 1e3 * limit.seconds}], **faint),
        marks("rule", {"y": y}, [{"share": 100 * (1 - limit.quantile)}], **faint),
        marks("line", {"x": x, "y": y, "color": colour, "order": field("share:Q")}, tails, strokeWidth=2, clip=True),
    ]
    across, up = (
        _axis(name, key, (0.0, max(least, *(value[key] for value in waits))))
        for name, key, least in (("time (s)", "time", 0.1), ("requests", "value", 5.0))
    )
    line = marks("line", {"x": across, "y": up, "color": colour}, waits, strokeWidth=1.5, interpolate="step-after")
    return [_load_panel(f"Latencies {at_rate}", layers), _load_panel(f"Requests that wait {at_rate}", [line])]
