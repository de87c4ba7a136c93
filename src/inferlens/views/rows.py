"""Records become rows: everything a table or a chart shows, computed once, before anything is drawn.

Only what was measured is in a row: rates come from windows of back-to-back calls, never from 1 / latency. Speed-ups are
between rows of one *comparison* alone: the same model, inputs and batch on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from inferlens.case import Case, TensorSpec, with_batch
from inferlens.record import Environment, Metric, Record
from inferlens.stats.intervals import median_interval, speedup_interval
from inferlens.stats.quantiles import median, summarise
from inferlens.views.reference import references
from inferlens.views.row import Row


def rows(records: Sequence[Record], reference: str | None = None) -> list[Row]:
    """Rows of the latest record of each case, comparison by comparison: the reference, the rest by speed, failures.

    Args:
        records: in any order; of records of one case on one machine the last created counts.
        reference: words that name the reference, such as ``onnxruntime:cpu fp16``; ``None`` is plain PyTorch.

    Raises:
        InferlensError: if ``reference`` names no row, or more than one.
    """
    named = _named(_with_inputs(latest(records)))
    comparisons: dict[tuple[object, ...], list[tuple[Row, Record]]] = {}
    for pair in named:
        comparisons.setdefault(pair[0].comparison, []).append(pair)
    tables = {row.table: index for index, (row, _) in reversed(list(enumerate(named)))}
    models = {row.model: index for index, (row, _) in reversed(list(enumerate(named)))}
    ordered = sorted(
        comparisons.values(),
        key=lambda pairs: (models[pairs[0][0].model], tables[pairs[0][0].table], pairs[0][0].batch or 0),
    )
    chosen = references([[row for row, _ in pairs] for pairs in ordered], reference)
    return [row for pairs, mine in zip(ordered, chosen, strict=True) for row in _compared(pairs, mine)]


def latest(records: Sequence[Record]) -> list[Record]:
    """The last created record of each case on each machine, at the place of the first one."""
    last: dict[tuple[str, str], Record] = {}
    for record in records:
        key = record.case.digest, machine(record.environment)
        if key not in last or record.created >= last[key].created:
            last[key] = record
    return list(last.values())


def machine(environment: Environment) -> str:
    """What tells one machine from another: CPU, threads that may be used, GPUs."""
    cpu = environment.cpu or "unknown CPU"
    threads = f", {environment.cpu_threads} threads" if environment.cpu_threads else ""
    return " + ".join([cpu + threads, *(gpu.name for gpu in environment.gpus)])


def _with_inputs(records: Sequence[Record]) -> list[tuple[Record, tuple[TensorSpec, ...]]]:
    """Each record with its inputs; those that failed before they knew take them from another of the same model."""
    known = {(r.case.model, r.case.batch, r.case.inputs): r.model.inputs for r in records if r.model.inputs}
    return [
        (
            record,
            record.model.inputs
            or known.get((record.case.model, record.case.batch, record.case.inputs))
            or _as_asked(record.case),
        )
        for record in records
    ]


def _as_asked(case: Case) -> tuple[TensorSpec, ...]:
    """The inputs as asked for, at the batch asked for, also where their range does not hold it: that is such a row."""
    fixed = tuple(TensorSpec(spec.name, spec.shape, spec.dtype, spec.low, spec.high) for spec in case.inputs)
    return with_batch(fixed, case.batch)


def _named(records: Sequence[tuple[Record, tuple[TensorSpec, ...]]]) -> list[tuple[Row, Record]]:
    """A row for each record, its name with the device where devices differ, and with a number where names are equal."""
    ran: dict[tuple[str, str], set[str]] = {}
    for record, _ in records:
        devices = ran.setdefault((record.case.model, machine(record.environment)), set())
        devices |= {record.case.device} if record.status == "ok" else set()
    pairs = []
    for record, inputs in records:
        case = record.case
        said = ran[case.model, machine(record.environment)] == {case.device} or case.device in (
            case.backend,
            case.variant,
        )
        pairs.append((_row(record, inputs, device="" if said else case.device), record))
    return _told_apart(pairs)


def _told_apart(pairs: Sequence[tuple[Row, Record]]) -> list[tuple[Row, Record]]:
    """The rows, their names with the range of sizes where ranges differ, and with a number where names are equal."""
    ranges: dict[tuple[object, ...], set[str]] = {}
    for row, _ in pairs:
        ranges.setdefault(row.comparison, set()).add(row.prepared)
    seen: dict[tuple[object, ...], int] = {}
    named = []
    for row, record in pairs:
        if len(ranges[row.comparison]) > 1 and row.prepared:
            row = replace(row, name=f"{row.name} {row.prepared}")
        number = seen[row.comparison, row.name] = seen.get((row.comparison, row.name), 0) + 1
        named.append((replace(row, name=f"{row.name} ({number})") if number > 1 else row, record))
    return named


def _row(record: Record, inputs: tuple[TensorSpec, ...], device: str) -> Row:
    """What one record says by itself; ``device`` is a word of the name where it is not the same for all."""
    case, environment, agreement = record.case, record.environment, record.agreement
    lowered = any(warning.code == "lower-precision" for warning in record.warnings)
    words = [case.backend_label, case.precision, "(TF32)" if lowered else "", device]
    words += ["" if case.threads is None else f"{case.threads} threads", "" if case.io == "device" else "host io"]
    words += [case.options_label]
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
        machine=machine(environment),
        threads=case.threads,
        options=case.options_label,
        inputs=", ".join(map(str, inputs)),
        prepared=", ".join(_range(spec) for spec in inputs if spec.dynamic),
        io=case.io,
        status=record.status,
        reason=record.reason,
        cure=record.cure,
        error=agreement.rel_l2 if agreement else None,
        agrees=agreement.agrees if agreement else None,
        agreement_reason=agreement.reason if agreement else "",
        load=record.phase_seconds("load"),
        build=None if exports == [None, None] else sum(seconds or 0.0 for seconds in exports),
        cached=any(phase.note == "cached" for phase in record.phases),
        first_inference=record.phase_seconds("first inference"),
        host_peak=record.memory.host_peak,
        device_peak=record.memory.device_peak,
        ranked=record.ranked and bool(_finite(record, "latency")),
        warnings=tuple(f"{warning.message} {warning.advice}".strip() for warning in record.warnings),
    )
    return _with_measurements(row, record)


def _with_measurements(row: Row, record: Record) -> Row:
    latency, calls = _finite(record, "latency"), _finite(record, "throughput")
    left_out = sum(len(m.samples) for m in record.measurements) - sum(
        len(_finite(record, m.metric)) for m in record.measurements
    )
    summary, interval = summarise(latency), median_interval(latency)
    per_second = median(calls) if calls else None
    if left_out:
        row = replace(row, warnings=(*row.warnings, f"{left_out} samples are no finite numbers and were left out."))
    row = replace(
        row,
        samples=len(latency),
        gpu_time=_median(record, "GPU time"),
        enqueue=_median(record, "enqueue time"),
        h2d=_median(record, "H2D time"),
        compute=_median(record, "compute time"),
        d2h=_median(record, "D2H time"),
        iterations_per_second=per_second,
        items_per_second=None if per_second is None or row.batch is None else per_second * row.batch,
    )
    if summary is None:
        return row
    return replace(
        row,
        mean=summary.mean,
        median=summary.median,
        median_low=interval.low if interval else None,
        median_high=interval.high if interval else None,
        p5=summary.p5,
        p95=summary.p95,
        p99=summary.p99,
        minimum=summary.minimum,
        maximum=summary.maximum,
        deviation=summary.deviation,
    )


def _compared(pairs: Sequence[tuple[Row, Record]], chosen: dict[str, Row]) -> list[Row]:
    """Rows of one comparison with speed-ups against the reference of their device, the fastest marked, in order."""
    samples = {row.id: _finite(record, "latency") for row, record in pairs}
    done = []
    for row, _ in pairs:
        reference = chosen.get(row.device)
        if reference is not None:
            row = _against(row, reference, samples)
        done.append(row)
    ranked = [row for row in done if row.ranked]
    best = min(ranked, key=lambda row: row.median or 0.0, default=None)
    marked = [replace(row, fastest=best is not None and row.ranked and row.overlaps(best)) for row in done]
    return sorted(marked, key=_place)


def _against(row: Row, reference: Row, samples: dict[str, tuple[float, ...]]) -> Row:
    if row.id == reference.id:
        return replace(row, reference=reference.name, is_reference=True, speedup=1.0)
    speedup = speedup_interval(samples[reference.id], samples[row.id]) if row.ranked else None
    if speedup is None:
        return replace(row, reference=reference.name)
    low, high = (speedup.interval.low, speedup.interval.high) if speedup.interval else (None, None)
    return replace(row, reference=reference.name, speedup=speedup.ratio, speedup_low=low, speedup_high=high)


def _place(row: Row) -> tuple[str, bool, bool, bool, float]:
    """Order within a comparison and device: reference, ranked rows by speed, wrong ones by speed, what did not run."""
    return row.device, not row.is_reference, not row.ranked, not row.ok, math.inf if row.median is None else row.median


def _range(spec: TensorSpec) -> str:
    """The sizes that a model was prepared for, such as ``x=1..16x3x224x224 opt 2x3x224x224``."""
    least, _, most = spec.profile
    sizes = "x".join(str(low) if low == high else f"{low}..{high}" for low, high in zip(least, most, strict=True))
    return f"{spec.name}={sizes}" + (f" opt {'x'.join(map(str, spec.best))}" if spec.best else "")


def _median(record: Record, metric: Metric) -> float | None:
    samples = _finite(record, metric)
    return median(samples) if samples else None


def _finite(record: Record, metric: Metric) -> tuple[float, ...]:
    """Samples of a metric that are numbers one can compute with; those of a failed case are not shown."""
    if record.status != "ok":
        return ()
    return tuple(value for value in record.samples(metric) if value is not None and math.isfinite(value))
