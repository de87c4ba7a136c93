"""Records become rows: everything a table or a chart shows, computed once, before anything is drawn.

Only what was measured is in a row: rates come from windows of back-to-back calls, never from 1 / latency. Speed-ups are
between rows of one *comparison* alone: the same model, inputs and batch on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from inferlens.analysis.findings.warnings import AUTOCORRELATED, OTHER_CARD, bound_by, warnings_of
from inferlens.analysis.interference.samples import CaseRuns, card, in_rounds, latest, steady_samples
from inferlens.record.record import Agreement, Metric, Record, Warning, machine_name
from inferlens.spec.case import Case, TensorSpec, with_batch
from inferlens.stats.between_process import estimate, over_processes
from inferlens.stats.compare import compare
from inferlens.stats.intervals import ends, mean_interval, quantile_interval
from inferlens.stats.quantiles import geometric_mean, median, summarise
from inferlens.units import plural
from inferlens.views.reference import references
from inferlens.views.row import Row

Pair = tuple[Row, CaseRuns]
_ENDS = ("low", "high")
_PARTS: dict[str, Metric] = {
    "gpu_time": "GPU time",
    "enqueue": "enqueue time",
    "h2d": "H2D time",
    "compute": "compute time",
    "d2h": "D2H time",
}


def rows(records: Sequence[Record], reference: str | None = None) -> list[Row]:
    """Rows of the latest run of each case, comparison by comparison: the reference, the rest by speed, failures.

    Args:
        records: in any order; of the runs of one case on one machine the last counts, with all its processes.
        reference: words that name the reference, such as ``openvino fp16``; ``None`` is the plain one of the backend
            that outputs were checked against.

    Raises:
        InferlensError: if ``reference`` names no row, or more than one.
    """
    named = _named(_with_inputs(latest(records)))
    comparisons: dict[tuple[object, ...], list[Pair]] = {}
    for pair in named:
        comparisons.setdefault(pair[0].comparison, []).append(pair)
    tables = {row.table: index for index, (row, _) in reversed(list(enumerate(named)))}
    models = {row.model: index for index, (row, _) in reversed(list(enumerate(named)))}
    ordered = sorted(
        (_comparable(pairs) for pairs in comparisons.values()),
        key=lambda pairs: (models[pairs[0][0].model], tables[pairs[0][0].table], pairs[0][0].batch or 0),
    )
    chosen = references([[row for row, _ in pairs] for pairs in ordered], reference, _checked_against(records))
    return [row for pairs, mine in zip(ordered, chosen, strict=True) for row in _compared(pairs, mine)]


def of_comparisons(records: Sequence[Record]) -> dict[str, tuple[Warning, ...]]:
    """The warnings that cases have of being compared with each other, by the id of each one's first record."""
    return {row.id: found for row in rows(records) if (found := _of_comparison(row))}


def _checked_against(records: Sequence[Record]) -> set[str]:
    """The backends whose outputs the others' were checked against."""
    return {record.agreement.reference.partition(" ")[0] for record in records if record.agreement}


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


def _named(runs: Sequence[tuple[CaseRuns, tuple[TensorSpec, ...]]]) -> list[Pair]:
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


def _told_apart(pairs: Sequence[Pair]) -> list[Pair]:
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
    warned = warnings_of(run)
    lowered = any(warning.code == "lower-precision" for warning in warned)
    words = [case.backend_label, case.precision, "(TF32)" if lowered else "", device]
    words += ["" if case.threads is None else plural(case.threads, "thread"), *case.call_mode, case.options_label]
    gpu = environment.gpus[0].name if environment.gpus else "GPU"
    batch = inputs[0].shape[0] if inputs and inputs[0].shape else case.batch
    exports = [record.phase_seconds("export"), record.phase_seconds("build")]
    return Row(
        id=record.id,
        folder=case.folder,
        created=record.created,
        model=case.model,
        name=" ".join(word for word in words if word),
        label=case.label,
        backend=case.backend_label,
        precision=case.precision,
        batch=batch,
        device=case.device,
        device_name=(environment.cpu or "CPU") if case.device == "cpu" else gpu,
        machine=machine_name(environment),
        card=card(record) if case.device != "cpu" else "",
        threads=case.threads,
        options=case.options_label,
        inputs=", ".join(map(str, inputs)),
        prepared=", ".join(_range(spec) for spec in inputs if spec.dynamic),
        io=case.io,
        call_mode=" ".join(word for word, on in (("cold", case.cold), ("rotating", case.rotate)) if on),
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
        warnings=tuple(map(_note, warned)),
        **_latencies(run),
        **_rates(run, batch),
        **_energy(run),
    )


def _worst(run: CaseRuns) -> Agreement | None:
    """The agreement of the process whose outputs were the furthest off; one that is wrong beats all."""
    found = [record.agreement for record in run.ran or run.records[:1] if record.agreement]
    return max(found, key=lambda one: (one.agrees is False, one.agrees is None, one.rel_l2 or 0.0), default=None)


def _device_peak(record: Record) -> int:
    """Device memory read from outside the process: the only basis that all backends share."""
    return (record.memory.device_peak or 0) if record.memory.device_basis.startswith("NVML") else 0


def _latencies(run: CaseRuns) -> dict[str, Any]:
    """Statistics over the processes, and their intervals: of the samples of a single process, or over several."""
    summaries = [summary for samples in run.processes if (summary := summarise(samples))]
    if not summaries:
        return {}
    found = estimate(run.processes)
    if len(run.processes) == 1:
        (samples,) = run.processes
        intervals = [mean_interval(samples), quantile_interval(samples, 0.95), quantile_interval(samples, 0.99)]
    else:
        intervals = [over_processes([getattr(each, name) for each in summaries]) for name in ("mean", "p95", "p99")]
    bounds = {"median": found.interval if found else None, **dict(zip(("mean", "p95", "p99"), intervals, strict=True))}
    means = {name: geometric_mean([getattr(each, name) for each in summaries]) for name in ("mean", "p5", "p95", "p99")}
    return {
        **means,
        **{f"{name}_{end}": ends(each)[place] for name, each in bounds.items() for place, end in enumerate(_ENDS)},
        "samples": sum(summary.count for summary in summaries),
        "left_out": sum(series.disturbed + series.unsteady + series.late for series in run.series),
        "warmup": len(run.first.samples("warm-up")) or None,
        "between": found is not None and found.between,
        "median": found.median if found else summaries[0].median,
        "minimum": min(summary.minimum for summary in summaries),
        "maximum": max(summary.maximum for summary in summaries),
        "deviation": geometric_mean([summary.deviation for summary in summaries]),
    }


def _rates(run: CaseRuns, batch: int | None) -> dict[str, Any]:
    """Rates of the windows, and medians of the parts of a call, which are the geometric means of the processes'."""
    found = estimate(run.windows)
    throughput = run.first.measurement("throughput")
    values: dict[str, Any] = {
        name: geometric_mean(
            [median(samples) for record in run.ran if (samples := steady_samples(record, metric).samples)]
        )
        for name, metric in _PARTS.items()
    }
    values["in_flight"] = throughput.in_flight if throughput else None
    if found:
        low, high = ends(found.interval)
        values |= {"iterations_per_second": found.median, "iterations_low": low, "iterations_high": high}
        values["items_per_second"] = None if batch is None else found.median * batch
        if not run.processes:
            values["between"] = found.between
    return values


def _energy(run: CaseRuns) -> dict[str, Any]:
    """The mean of the processes that know it, and the widest bounds."""
    found = [each for record in run.ran for each in (record.energy, record.cpu_energy) if each and each.joules]
    if not found:
        return {}
    return {
        "energy": sum(each.joules or 0.0 for each in found) / len(found),
        "energy_low": min(each.low or 0.0 for each in found),
        "energy_high": max(each.high or 0.0 for each in found),
    }


def _range(spec: TensorSpec) -> str:
    """The sizes that a model was prepared for, such as ``x=1..16x3x224x224 opt 2x3x224x224``."""
    least, _, most = spec.profile
    sizes = "x".join(str(low) if low == high else f"{low}..{high}" for low, high in zip(least, most, strict=True))
    return f"{spec.name}={sizes}" + (f" opt {'x'.join(map(str, spec.best))}" if spec.best else "")


def _compared(pairs: Sequence[Pair], chosen: dict[str, Row]) -> list[Row]:
    """Rows of one comparison with speed-ups against the reference of their device, the fastest marked, in order."""
    runs = {row.id: run for row, run in pairs}
    processes = {row.id: _processes(run, pairs) for row, run in pairs}
    done = []
    for row, run in pairs:
        reference = chosen.get(row.device)
        if reference is not None:
            row = _against(row, reference, processes, in_rounds(runs[reference.id], run))
        done.append(row)
    return sorted(_marked(done), key=_place)


def _marked(rows: Sequence[Row]) -> list[Row]:
    """The rows, those marked that cannot be told from the fastest; with the reference all that lies between the two."""
    ranked = [row for row in rows if row.ranked]
    best = min(ranked, key=_seconds, default=None)
    if best is None:
        return list(rows)
    doubtful = max((_seconds(row) for row in ranked if row.may_equal(best)), default=0.0)
    return [replace(row, fastest=row.ranked and (row.overlaps(best) or _seconds(row) <= doubtful)) for row in rows]


def _comparable(pairs: Sequence[Pair]) -> list[Pair]:
    """The rows of a comparison; those that do not have what is compared may not win."""
    return [(replace(row, ranked=row.ranked and bool(_processes(run, pairs))), run) for row, run in pairs]


def _processes(run: CaseRuns, pairs: Sequence[Pair]) -> list[Sequence[float]]:
    """What is compared of a run: latencies, or seconds per call of each window where nobody measured latency."""
    if any(other.processes for _, other in pairs):
        return run.processes
    return [[1 / rate for rate in rates if rate > 0] for rates in run.windows]


def _against(row: Row, reference: Row, processes: dict[str, list[Sequence[float]]], paired: bool) -> Row:
    if row.id == reference.id:
        return replace(row, reference=reference.name, is_reference=True, speedup=1.0)
    base, own = processes[reference.id], processes[row.id]
    found = compare(base, own, paired=paired and len(base) == len(own)) if row.ranked else None
    if found is None or found.speedup is None:
        return replace(row, reference=reference.name)
    low, high = ends(found.speedup_interval)
    row = replace(
        row,
        reference=reference.name,
        speedup=found.speedup,
        speedup_low=low,
        speedup_high=high,
        autocorrelated=bool(found.autocorrelation),
        other_card=bool(row.card and reference.card and row.card != reference.card),
    )
    return replace(row, warnings=(*row.warnings, *map(_note, _of_comparison(row))))


def _of_comparison(row: Row) -> tuple[Warning, ...]:
    """The warnings that a row has of being compared with its reference."""
    found = ((row.autocorrelated, AUTOCORRELATED), (row.other_card, OTHER_CARD))
    return tuple(warning for true, warning in found if true)


def _note(warning: Warning) -> str:
    """A warning as it stands beneath a table: what, and what to do about it."""
    return f"{warning.message} {warning.advice}".strip()


def _place(row: Row) -> tuple[str, bool, bool, bool, float]:
    """Order within a comparison and device: reference, ranked rows by speed, wrong ones by speed, what did not run."""
    return row.device, not row.is_reference, not row.ranked, not row.ok, _seconds(row)


def _seconds(row: Row) -> float:
    return math.inf if row.seconds_per_call is None else row.seconds_per_call
