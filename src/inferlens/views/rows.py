"""Records become rows: everything a table or a chart shows, computed once, before anything is drawn.

Only what was measured is in a row: rates come from windows of back-to-back calls, never from 1 / latency. Speed-ups are
between rows of one *comparison* alone: the same model, inputs and batch on the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from inferlens.analysis.findings.warnings import bound_by, cautions
from inferlens.analysis.interference.samples import CaseRuns, card, latest, of
from inferlens.record.record import Agreement, Metric, Record, Warning, machine_name
from inferlens.spec.case import Case, TensorSpec, with_batch
from inferlens.stats.between_process import estimate, over_processes
from inferlens.stats.intervals import ends, mean_interval, quantile_interval
from inferlens.stats.quantiles import Summary, geometric_mean, median, summarise
from inferlens.units import plural
from inferlens.views.ranking import comparable, compared, note, of_comparison
from inferlens.views.reference import references
from inferlens.views.row import Row


def rows(records: Sequence[Record], reference: str | None = None) -> list[Row]:
    """Rows of the latest run of each case, comparison by comparison: the reference, the rest by speed, failures.

    Args:
        records: in any order; of the runs of one case on one machine the last counts, with all its processes.
        reference: words that name the reference, such as ``onnxruntime:cpu fp16``; ``None`` is plain PyTorch.

    Raises:
        InferlensError: if ``reference`` names no row, or more than one.
    """
    named = _named(_with_inputs(latest(records)))
    comparisons: dict[tuple[object, ...], list[tuple[Row, CaseRuns]]] = {}
    for pair in named:
        comparisons.setdefault(pair[0].comparison, []).append(pair)
    tables = {row.table: index for index, (row, _) in reversed(list(enumerate(named)))}
    models = {row.model: index for index, (row, _) in reversed(list(enumerate(named)))}
    ordered = sorted(
        comparisons.values(),
        key=lambda pairs: (models[pairs[0][0].model], tables[pairs[0][0].table], pairs[0][0].batch or 0),
    )
    ordered = [comparable(pairs) for pairs in ordered]
    chosen = references([[row for row, _ in pairs] for pairs in ordered], reference)
    return [row for pairs, mine in zip(ordered, chosen, strict=True) for row in compared(pairs, mine)]


def of_comparisons(records: Sequence[Record]) -> dict[str, tuple[Warning, ...]]:
    """The warnings that cases have of being compared with each other, by the id of each one's first record."""
    return {row.id: found for row in rows(records) if (found := of_comparison(row))}


def _with_inputs(runs: Sequence[CaseRuns]) -> list[tuple[CaseRuns, tuple[TensorSpec, ...]]]:
    """Each run with its inputs; those that failed before they knew take them from another of the same model."""
    known = {_asked(run.first): run.first.model.inputs for run in runs if run.first.model.inputs}
    return [(run, run.first.model.inputs or known.get(_asked(run.first)) or _as_asked(run.first.case)) for run in runs]


def _asked(record: Record) -> tuple[object, ...]:
    return record.case.model, record.case.batch, record.case.inputs


def _as_asked(case: Case) -> tuple[TensorSpec, ...]:
    """The inputs as asked for, at the batch asked for, also where their range does not hold it: that is such a row."""
    fixed = tuple(TensorSpec(spec.name, spec.shape, spec.dtype, spec.low, spec.high) for spec in case.inputs)
    return with_batch(fixed, case.batch)


def _named(runs: Sequence[tuple[CaseRuns, tuple[TensorSpec, ...]]]) -> list[tuple[Row, CaseRuns]]:
    """A row for each run, its name with the device where devices differ, and with a number where names are equal."""
    ran: dict[tuple[str, str], set[str]] = {}
    for run, _ in runs:
        devices = ran.setdefault((run.first.case.model, machine_name(run.first.environment)), set())
        devices |= {run.first.case.device} if run.ran else set()
    pairs = []
    for run, inputs in runs:
        case = run.first.case
        said = ran[case.model, machine_name(run.first.environment)] == {case.device} or case.device in (
            case.backend,
            case.variant,
        )
        pairs.append((_row(run, inputs, device="" if said else case.device), run))
    return _told_apart(pairs)


def _told_apart(pairs: Sequence[tuple[Row, CaseRuns]]) -> list[tuple[Row, CaseRuns]]:
    """The rows, their names with the range of sizes where ranges differ, and with a number where names are equal."""
    ranges: dict[tuple[object, ...], set[str]] = {}
    for row, _ in pairs:
        ranges.setdefault(row.comparison, set()).add(row.prepared)
    seen: dict[tuple[object, ...], int] = {}
    named = []
    for row, run in pairs:
        if len(ranges[row.comparison]) > 1 and row.prepared:
            row = replace(row, name=f"{row.name} {row.prepared}")
        number = seen[row.comparison, row.name] = seen.get((row.comparison, row.name), 0) + 1
        named.append((replace(row, name=f"{row.name} ({number})") if number > 1 else row, run))
    return named


def _row(run: CaseRuns, inputs: tuple[TensorSpec, ...], device: str) -> Row:
    """What one run says by itself; ``device`` is a word of the name where it is not the same for all."""
    record = run.first
    case, environment, agreement = record.case, record.environment, _worst(run)
    warned = cautions(run)
    lowered = any(warning.code == "lower-precision" for warning in warned)
    words = [case.backend_label, case.precision, "(TF32)" if lowered else "", device]
    words += ["" if case.threads is None else plural(case.threads, "thread"), *case.manner, case.options_label]
    gpu = environment.gpus[0].name if environment.gpus else "GPU"
    exports = [record.phase_seconds("export"), record.phase_seconds("build")]
    row = Row(
        id=record.id,
        folder=case.folder,
        created=record.created,
        model=case.model,
        name=" ".join(word for word in words if word),
        label=case.label,
        backend=case.backend_label,
        precision=case.precision,
        batch=inputs[0].shape[0] if inputs and inputs[0].shape else case.batch,
        device=case.device,
        device_name=(environment.cpu or "CPU") if case.device == "cpu" else gpu,
        machine=machine_name(environment),
        card=card(record) if case.device != "cpu" else "",
        threads=case.threads,
        options=case.options_label,
        inputs=", ".join(map(str, inputs)),
        prepared=", ".join(_range(spec) for spec in inputs if spec.dynamic),
        io=case.io,
        manner=" ".join(word for word, on in (("cold", case.cold), ("rotating", case.rotate)) if on),
        processes=len(run.ran),
        status=record.status,
        reason=record.reason,
        hint=record.hint,
        error=agreement.rel_l2 if agreement else None,
        agrees=agreement.agrees if agreement else None,
        agreement_reason=agreement.reason if agreement else "",
        load=record.phase_seconds("load"),
        build=None if exports == [None, None] else sum(seconds or 0.0 for seconds in exports),
        cached=any(phase.note == "cached" for phase in record.phases),
        first_inference=record.phase_seconds("first inference"),
        host_peak=max((one.memory.host_peak or 0 for one in run.records), default=0) or None,
        device_peak=max((_device_peak(one) for one in run.records), default=0) or None,
        ranked=record.ranked and (agreement is None or agreement.agrees is not False),
        bound=bound_by(record),
        warnings=tuple(map(note, warned)),
    )
    return _with_energy(_with_rates(_with_latencies(row, run), run), run)


def _worst(run: CaseRuns) -> Agreement | None:
    """The agreement of the process whose outputs were the furthest off; one that is wrong beats all."""
    found = [record.agreement for record in run.ran or run.records[:1] if record.agreement]
    return max(found, key=lambda one: (one.agrees is False, one.agrees is None, one.rel_l2 or 0.0), default=None)


def _device_peak(record: Record) -> int:
    """Device memory read from outside the process: the only basis that all backends share."""
    return (record.memory.device_peak or 0) if record.memory.device_basis.startswith("NVML") else 0


def _with_latencies(row: Row, run: CaseRuns) -> Row:
    summaries = [summary for samples in run.processes if (summary := summarise(samples))]
    found = estimate(run.processes)
    if not summaries:
        return row
    low, high = ends(found.interval if found else None)
    row = replace(
        row,
        samples=sum(summary.count for summary in summaries),
        left_out=sum(series.disturbed + series.unsteady + series.late for series in run.series),
        warmup=len(run.first.samples("warm-up")) or None,
        between=found is not None and found.between,
        mean=geometric_mean([summary.mean for summary in summaries]),
        median=found.median if found else summaries[0].median,
        median_low=low,
        median_high=high,
        p5=geometric_mean([summary.p5 for summary in summaries]),
        p95=geometric_mean([summary.p95 for summary in summaries]),
        p99=geometric_mean([summary.p99 for summary in summaries]),
        minimum=min(summary.minimum for summary in summaries),
        maximum=max(summary.maximum for summary in summaries),
        deviation=geometric_mean([summary.deviation for summary in summaries]),
    )
    return _with_intervals(row, run.processes, summaries)


def _with_intervals(row: Row, processes: Sequence[Sequence[float]], summaries: Sequence[Summary]) -> Row:
    """The row with the intervals of mean and percentiles: of the samples of a single process, or over several."""
    if len(processes) == 1:
        (samples,) = processes
        found = [mean_interval(samples), quantile_interval(samples, 0.95), quantile_interval(samples, 0.99)]
    else:
        found = [over_processes([getattr(each, name) for each in summaries]) for name in ("mean", "p95", "p99")]
    (mean_low, mean_high), (p95_low, p95_high), (p99_low, p99_high) = map(ends, found)
    return replace(
        row,
        mean_low=mean_low,
        mean_high=mean_high,
        p95_low=p95_low,
        p95_high=p95_high,
        p99_low=p99_low,
        p99_high=p99_high,
    )


def _with_rates(row: Row, run: CaseRuns) -> Row:
    rates = estimate(run.windows)
    low, high = ends(rates.interval if rates else None)
    per_second = rates.median if rates else None
    throughput = run.first.measurement("throughput")
    return replace(
        row,
        gpu_time=_median(run, "GPU time"),
        enqueue=_median(run, "enqueue time"),
        h2d=_median(run, "H2D time"),
        compute=_median(run, "compute time"),
        d2h=_median(run, "D2H time"),
        between=row.between or (row.median is None and rates is not None and rates.between),
        iterations_per_second=per_second,
        iterations_low=low,
        iterations_high=high,
        items_per_second=None if per_second is None or row.batch is None else per_second * row.batch,
        in_flight=throughput.in_flight if throughput else None,
    )


def _with_energy(row: Row, run: CaseRuns) -> Row:
    """The mean of the processes that know it, and the widest bounds."""
    found = [each for record in run.ran for each in (record.energy, record.cpu_energy) if each and each.joules]
    if not found:
        return row
    return replace(
        row,
        energy=sum(each.joules or 0.0 for each in found) / len(found),
        energy_low=min(each.low or 0.0 for each in found),
        energy_high=max(each.high or 0.0 for each in found),
    )


def _range(spec: TensorSpec) -> str:
    """The sizes that a model was prepared for, such as ``x=1..16x3x224x224 opt 2x3x224x224``."""
    least, _, most = spec.profile
    sizes = "x".join(str(low) if low == high else f"{low}..{high}" for low, high in zip(least, most, strict=True))
    return f"{spec.name}={sizes}" + (f" opt {'x'.join(map(str, spec.best))}" if spec.best else "")


def _median(run: CaseRuns, metric: Metric) -> float | None:
    """The geometric mean of the processes' medians, as of the latency."""
    return geometric_mean([median(samples) for record in run.ran if (samples := of(record, metric).samples)])
