"""Tables of the layers or kernels of each case: times, shares, and how they add up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inferlens.analysis.evidence import list_few
from inferlens.analysis.modules import module_path
from inferlens.analysis.profile_table import (
    GpuAccount,
    KernelGrouping,
    KernelRow,
    KernelTable,
    LayerRow,
    LayerTable,
    ProfileRow,
    Reconciliation,
    RunTimes,
    kernel_table,
    layer_table,
    short_kernel_name,
    short_kernel_names,
    waits_for_host,
)
from inferlens.errors import check_choice
from inferlens.record.profile import Level
from inferlens.units import ABSENT, half_width, kibibytes, milliseconds, percent, plural
from inferlens.views.profiles.cases import (
    CALL,
    PROFILED_CALL,
    TIME_WRITERS,
    TIMES,
    LargestPart,
    ProfiledCase,
    ShownCase,
    case_document,
    cut_name,
    display_name,
    distinguish,
    first_notes,
    in_unit,
    largest_parts,
    module_names,
    precision_line,
    rank_cases,
    scaling_notes,
    tensor_shapes,
    three_digits,
    time_fields,
    time_source,
    unit_of,
)
from inferlens.views.table import Column, Document, Line, Table, count, lines_and_sums, share, text

TOP = 10  # rows that people get of one case if they ask for no other number; programs get all
NAME_HEADINGS = {"layer": "module", "kernel": "kernel"}
PART_SORTS = {"layer": ("time", "order"), "kernel": ("time", "order", "calls")}
_OVERLAP = 0.005  # of the busy time: smaller overlaps come from the rounding of the clock
_TENSOR_CORES = {True: "yes", False: "no", None: "?"}

PartTable = LayerTable | KernelTable
PartCase = ShownCase[PartTable]


def _half_interval(times: RunTimes | None) -> str:
    """Return half of the median's interval in percent."""
    return half_width(times.median, times.median_low, times.median_high) if times and times.median > 0 else ABSENT


def _size_text(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes)) or ABSENT


def _layer_name(row: LayerRow) -> str:
    """Return the backend's name where it differs from the module."""
    return text("" if row.modules in ((row.name,), ()) else row.name)


def _layers(row: KernelRow) -> str:
    """Return the layers unless they are the modules, which have a column."""
    return "" if row.layers == row.modules else _first_name(row.layers)


def _first_name(names: Sequence[str]) -> str:
    return list_few(names, 1)


# A column is one line here. Its value is a field of ``LayerRow`` or ``KernelRow``; JSON and CSV have all fields.
COLUMNS = {
    "layer": (
        Column("times.typical", "time", "ms", write=milliseconds, keep=0, bars=True),
        Column("times.p95", "p95", "ms", write=milliseconds, keep=5),
        Column("times.share", "share", write=share, keep=1),
        Column("times.median", "median", "ms", write=milliseconds, keep=6, wide=True),
        Column("times", "±", "95 %", write=_half_interval, keep=7, wide=True),
        Column("kind", "kind", keep=2, numeric=False, max_width=16),
        Column("precision", "precision", keep=2, numeric=False),
        Column("name", "layer", write_row=_layer_name, keep=9, numeric=False, wide=True),
        Column("place", "#", keep=10, wide=True),
        Column("calls", "calls", write=lambda calls: "" if calls == 1 else str(calls), keep=8, wide=True),
        Column("inputs", "input", write=tensor_shapes, keep=4, numeric=False, max_width=24),
        Column("outputs", "output", write=tensor_shapes, keep=3, numeric=False, max_width=24),
    ),
    "kernel": (
        Column("times.typical", "time", "µs", write=three_digits, keep=0, bars=True),
        Column("of_busy", "share", "of GPU", write=share, keep=1),
        Column("times.median", "median", "µs", write=three_digits, keep=10, wide=True),
        Column("times", "±", "95 %", write=_half_interval, keep=11, wide=True),
        Column("times.p95", "p95", "µs", write=three_digits, keep=12, wide=True),
        Column("times.share", "share", "of run", write=share, keep=9, wide=True),
        Column("calls", "calls", write=count, keep=2),
        Column("tensor_cores", "tensor cores", write=_TENSOR_CORES.__getitem__, keep=3, numeric=False),
        Column("occupancy", "occupancy", write=share, keep=6, wide=True),
        Column("achieved", "achieved", "estimate", write=share, keep=5, wide=True),
        Column("grid", "grid", write=_size_text, keep=7, max_width=18, wide=True),
        Column("block", "block", write=_size_text, keep=8, max_width=14, wide=True),
        Column("registers", "registers", keep=15, wide=True),
        Column("shared_memory", "shared", "KiB", write=kibibytes, keep=16, wide=True),
        Column("place", "#", keep=17, wide=True),
        Column("layers", "layer", write_row=_layers, keep=14, numeric=False, max_width=24, wide=True),
        Column("operators", "operator", write=_first_name, keep=13, numeric=False, max_width=24, wide=True),
        Column("modules", "module", write=module_names, keep=4, numeric=False, max_width=26),
    ),
}
# The first fields in CSV; the others of the rows follow, and those of their times.
FIRST_FIELDS = {
    "layer": ("place", "name", "kind", "modules", "operators", "inputs", "outputs"),
    "kernel": (
        *("place", "name", "kind", "calls", "grid", "block", "shapes", "registers", "shared_memory", "occupancy"),
        *("achieved", "tensor_cores", "streams", "layers", "modules", "operators"),
    ),
}


def parts_document(
    level: Level,
    cases: Sequence[ProfiledCase],
    *,
    sort: str = "time",
    top: int | None = None,
    by: KernelGrouping = "name",
    every: bool = False,
) -> Document:
    """Return the layers or kernels of each case, sorted as :data:`PART_SORTS`.

    In execution order, the ``top`` rows are those that take most. For ``None`` people get a few of a single case, and
    the largest of each of several, unless ``every`` case gets its table; programs get all.
    """
    kind = by if level == "kernel" else "layer"
    tables = part_tables(level, cases, sort, by)
    return case_document(
        f"{level}s",
        tables,
        top,
        blocks=lambda: _part_blocks(tables, level, top or TOP) if top or every else _largest_rows(tables, level),
        data=lambda case, table: _part_data(case, table, kind),
        rows=lambda case, table: _part_rows(case, table, level, kind),
        fields=("row", *row_fields(level), *TIMES),
    )


def row_fields(level: Level) -> list[str]:
    """Return the fields of a row in CSV."""
    fields = (LayerRow if level == "layer" else KernelRow).__struct_fields__
    return [name for name in dict.fromkeys((*FIRST_FIELDS[level], *fields)) if name != "times"]


def part_tables(level: Level, cases: Sequence[ProfiledCase], sort: str, by: KernelGrouping = "name") -> list[PartCase]:
    """Return the ranked rows of each case."""
    check_choice(f"order of {level}s", sort, PART_SORTS[level])
    make_table = layer_table if level == "layer" else partial(kernel_table, by=by)

    def ranked(table: PartTable) -> Sequence[ProfileRow]:
        by_time = _by_time(table.rows)
        return sorted(by_time, key=lambda row: -row.calls) if sort == "calls" else by_time

    return rank_cases(((case, make_table(case.profile, case.unprofiled)) for case in cases), ranked, sort)


def _by_time(rows: Iterable[ProfileRow]) -> list[ProfileRow]:
    """Sort rows by time; those without one come last."""
    return sorted(rows, key=lambda row: -1.0 if row.times is None else row.times.typical, reverse=True)


def _part_blocks(cases: Sequence[PartCase], level: Level, top: int) -> Iterator[Table | str]:
    """Yield a table per case, its time source and its answer."""
    for case in cases:
        head, (name,) = distinguish([case.case])
        if isinstance(case.table, str):
            yield Table(f"{head} · {name}", sentences=[f"No {level}s: {case.why}"])
            continue
        unit = "µs" if level == "kernel" else unit_of([case.case])
        seconds = case.table.reconciliation.unprofiled
        call = f"Call: {TIME_WRITERS[unit](seconds)} {unit} · " if seconds else ""
        yield Table(f"{head} · {name}", about=f"{call}{time_source([case.case], f'{level}s')}")
        yield " ".join(parts_answer(case.table, host=_waits_for_host(case)))
        yield from filter(None, [precision_line(case.case)])
        yield _part_table(replace(case, top=top), case.table, level, unit)


def _largest_rows(cases: Sequence[PartCase], level: Level) -> Iterator[Table | str]:
    """Yield one table of the largest row of each case, or the rows of the only case that has them."""
    with_table = [case for case in cases if not isinstance(case.table, str)]
    if len(with_table) == 1 or len(cases) == 1:
        yield from _part_blocks(with_table or cases, level, TOP)
        return
    parts, missing = list[LargestPart](), dict[str, list[PartCase]]()
    for case in cases:
        if isinstance(case.table, str):
            missing.setdefault(case.why, []).append(case)
            continue
        account, name, share_of_call = case.table.reconciliation, "", None
        if rows := _by_time(case.table.rows):
            name, times = cut_name(part_names(rows)[rows[0].place]), rows[0].times
            share_of_call = (_busy_share(case.table, times) or times.share) if times else None
        call = account.unprofiled or account.whole.median
        parts.append(LargestPart(case.case, name, share_of_call, call, _waits_for_host(case)))
    notes = [f"No {level}s of {plural(len(without), 'case')}: {why}" for why, without in missing.items()]
    if parts:
        yield from largest_parts(level, parts, notes, f"--top {TOP}")
    else:
        yield Table(distinguish([case.case for case in cases])[0], sentences=first_notes(notes))


def _waits_for_host(case: PartCase) -> bool:
    return not isinstance(case.table, str) and waits_for_host(case.case.profile, case.table.runs, case.case.record)


def part_name(row: ProfileRow) -> str:
    """Return a layer's modules, or the backend's name."""
    if isinstance(row, LayerRow):
        return module_names(row.modules) if row.modules else display_name(row.name)
    return display_name(short_kernel_name(row.name))


def part_names(rows: Sequence[ProfileRow]) -> dict[int, str]:
    """Return distinct names by place; a module with children is called itself."""
    short = short_kernel_names(row.name for row in rows if isinstance(row, KernelRow))
    paths = [module_path(path) for row in rows for path in row.modules]
    above = {path[:length] for path in paths for length in range(len(path))}

    def name(row: ProfileRow) -> str:
        if row.name in short:
            return display_name(short[row.name])
        single = len(row.modules) == 1 and module_path(row.modules[0]) in above
        return f"{part_name(row)} itself" if single else part_name(row)

    return {row.place: name(row) for row in rows}


def _part_table(case: PartCase, table: PartTable, level: Level, unit: str) -> Table:
    """Return the table of one case."""
    profile, account = case.case.profile, table.reconciliation
    columns = in_unit(COLUMNS[level], unit)
    if len({getattr(row, "precision", "") for row in table.rows} - {""}) < 2:
        columns = [replace(column, write=lambda _: "") if column.key == "precision" else column for column in columns]
    call = CALL if account.unprofiled else PROFILED_CALL

    def line(name: str, times: RunTimes, style: str = "") -> Line:
        row = {"times": times, "of_busy": _busy_share(table, times)}
        cells = [column.text(row) if column.key.partition(".")[0] in row else "" for column in columns]
        return Line(name, cells, style="bold" if name == call else style, sums=True)

    names = part_names(table.rows)
    lines = [Line.from_row(names[row.place], columns, row) for row in case.rows]
    if case.rest:
        more = f"{len(case.rest):,} more: --top {len(table.rows)}"
        lines.append(line(more, table.sum_of(case.rest), style="dim"))
    if isinstance(account, GpuAccount):
        side_by_side = -account.overlap.typical > _OVERLAP * account.busy.typical > 0
        sums = {"all kernels" + " (side by side)" * side_by_side: account.kernels}
    else:
        sums = {"in no layer": account.outside, call: account.whole}
    notes = scaling_notes([case.case])
    notes += [f"{warning.message} {warning.advice}" for warning in profile.warnings]
    notes += [f"{part}: {why}" for part, why in profile.timed_runs.absent.items()] if profile.timed_runs else []
    all_lines = lines_and_sums(lines, [line(name, times) for name, times in sums.items()])
    return Table("", NAME_HEADINGS[level], columns, all_lines, notes=first_notes(notes))


def _busy_share(table: PartTable, times: RunTimes) -> float | None:
    """Return a typical time over the time in which the GPU was busy."""
    account = table.reconciliation
    busy = account.busy.typical if isinstance(account, GpuAccount) else 0.0
    return times.typical / busy if busy > 0 else None


def parts_answer(table: PartTable, *, host: bool = False) -> list[str]:
    """Return the largest row, how busy the GPU was, and whether layers overlap or the call waits for the ``host``."""
    account, first = table.reconciliation, next(iter(_by_time(table.rows)), None)
    if not (first and first.times and first.times.typical > 0):
        return ["Nothing has a time."]
    waiting = ["The call waits for the host."] if host else []
    name = cut_name(part_names(table.rows)[first.place])
    if isinstance(account, Reconciliation):
        largest = f"{name} has the largest share: {percent(first.times.share or 0.0)} of the call."
        return [largest, *["Some layers ran at the same time."] * account.overlaps, *waiting]
    busy, call = account.busy.median, account.unprofiled or account.whole.median
    works = f"The GPU works {three_digits(busy)} of {three_digits(call)} µs"
    works += f" ({percent(busy / call)})" if call > 0 else ""
    busy_share = percent(_busy_share(table, first.times) or 0.0)
    largest = f"{name} has the largest share: {busy_share} of the GPU's time."
    unknown = 1 - account.with_tensor_cores - account.without_tensor_cores
    cores = f"By the names of the kernels, {percent(account.with_tensor_cores)} of it uses tensor cores"
    cores += f"; {percent(unknown)} is unknown." if unknown > _OVERLAP else "."
    return [largest, f"{works}.", cores, *waiting]


def _part_data(case: PartCase, table: PartTable, kind: str) -> dict[str, Any]:
    profile, account = case.case.profile, table.reconciliation
    sentences = [*parts_answer(table, host=_waits_for_host(case)), precision_line(case.case)]
    sentences += scaling_notes([case.case])
    absent = profile.timed_runs and profile.timed_runs.absent
    result = {"clock": profile.clock, "absent": absent, "sentences": list(filter(None, sentences))}
    if profile.kernels and isinstance(account, GpuAccount):
        return {**result, "by": kind, "gpu": profile.kernels.gpu, "account": account}
    return {**result, "timed": profile.timed, "reconciliation": account}


def _part_rows(case: PartCase, table: PartTable, level: Level, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the rows and the remainders, so that a case adds up to its whole."""
    for row in case.rows:
        fields = {name: _csv_value(name, getattr(row, name)) for name in row_fields(level)}
        yield {"row": kind, **fields, **time_fields(row.times)}
    account = table.reconciliation
    sums = {f"other {level}s": table.sum_of(case.rest)} if case.rest else {}
    if isinstance(account, GpuAccount):
        sums |= {"overlap": account.overlap, "idle": account.idle, "whole": account.whole}
    else:
        sums |= {"in no layer": account.outside, "whole": account.whole}
    yield from ({"row": name, **time_fields(times)} for name, times in sums.items())


def _csv_value(name: str, value: Any) -> Any:
    if name in ("grid", "block"):
        return "x".join(map(str, value))
    return ["x".join(map(str, tensor.shape)) for tensor in value] if name in ("inputs", "outputs") else value
