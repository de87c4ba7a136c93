"""Tables of the layers or kernels of each case: times, shares, and how they add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from inferlens.analysis.modules import path_of
from inferlens.analysis.profile_table import (
    By,
    GpuAccount,
    KernelRow,
    KernelTable,
    LayerRow,
    LayerTable,
    ProfileRow,
    Reconciliation,
    RunTimes,
    kernel_table,
    layer_table,
    short_name,
    short_names,
    waits_for_host,
)
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Level, Tensor
from inferlens.units import ABSENT, kibibytes, milliseconds, percent, plural
from inferlens.views.profiles import (
    CALL,
    MAX_NOTES,
    MAX_SUMMED,
    MOST_MODULES,
    PROFILED_CALL,
    TIME_WRITERS,
    TIMES,
    ProfiledCase,
    ShownCase,
    by_time,
    case_document,
    cut_name,
    display_name,
    distinguish,
    few_names,
    first_notes,
    half_interval,
    hide_constant,
    in_unit,
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
LINES = 17  # of the rows of several cases together, so that all of it fits on a screen
NAME_HEADINGS = {"layer": "module", "kernel": "kernel"}
PART_SORTS = {"layer": ("time", "order"), "kernel": ("time", "order", "calls")}
_OVERLAP = 0.005  # of the busy time: less comes from the clock's rounding
_LEAST_TRACED = 0.9  # of the kernels' time: less is said
_SMALL = 0.05  # of the time, for the row that takes most to be named
_UNKNOWN = 0.005  # of the kernels' time: less is not said not to be known
_TENSOR_CORES = {True: "yes", False: "no", None: "?"}

PartTable = LayerTable | KernelTable


def _sizes(sizes: Sequence[int]) -> str:
    """Return ``56x2`` for ``56x2x1``: sizes of one at the end are dropped."""
    text = "x".join(map(str, sizes))
    while text.endswith("x1"):
        text = text[:-2]
    return text or ABSENT


def _layers(row: KernelRow) -> str:
    """Return nothing where modules are the layers, because they have a column."""
    names = () if row.layers == row.modules else row.layers
    return plural(len(names), "layer") if len(names) > 1 else text("".join(names))


def _operators(names: Sequence[str]) -> str:
    return plural(len(names), "operator") if len(names) > 1 else text("".join(names))


NUMBERS = {
    "layer": (
        Column("times.typical", "time", "ms", milliseconds, keep=0, bars="drawn"),
        Column("times.p95", "p95", "ms", milliseconds, keep=5),
        Column("times.share", "share", write=share, keep=1, bars="beside"),
        Column("times.median", "median", "ms", milliseconds, keep=6, wide=True),
        Column("times", "±", "95 %", half_interval, keep=7, wide=True),
    ),
    "kernel": (
        Column("times.typical", "time", "µs", three_digits, keep=0, bars="drawn"),
        Column("of_busy", "share", "of GPU", share, keep=1, bars="beside"),
        Column("times.median", "median", "µs", three_digits, keep=10, wide=True),
        Column("times", "±", "95 %", half_interval, keep=11, wide=True),
        Column("times.p95", "p95", "µs", three_digits, keep=12, wide=True),
        Column("times.share", "share", "of run", share, keep=9, wide=True),
    ),
}
COLUMNS = {
    "layer": (
        *NUMBERS["layer"],
        Column("kind", "kind", keep=2, numeric=False, max_width=16),
        Column("precision", "precision", keep=2, numeric=False),
        Column("", "layer", write=lambda row: _backend_name(row), keep=9, numeric=False, wide=True),
        Column("place", "#", keep=10, wide=True),
        Column("calls", "calls", write=lambda calls: "" if calls == 1 else str(calls), keep=8, wide=True),
        Column("inputs", "input", write=tensor_shapes, keep=4, numeric=False, max_width=24),
        Column("outputs", "output", write=tensor_shapes, keep=3, numeric=False, max_width=24),
    ),
    "kernel": (
        *NUMBERS["kernel"],
        Column("calls", "calls", write=count, keep=2),
        Column("tensor_cores", "tensor cores", "", _TENSOR_CORES.__getitem__, 3, numeric=False),
        Column("occupancy", "occupancy", write=share, keep=6, wide=True),
        Column("achieved", "achieved", "estimate", share, keep=5, wide=True),
        Column("grid", "grid", write=_sizes, keep=7, max_width=18, wide=True),
        Column("block", "block", write=_sizes, keep=8, max_width=14, wide=True),
        Column("registers", "registers", keep=15, wide=True),
        Column("shared_memory", "shared", "KiB", kibibytes, keep=16, wide=True),
        Column("place", "#", keep=17, wide=True),
        Column("", "layer", write=_layers, keep=14, numeric=False, max_width=24, wide=True),
        Column("operators", "operator", write=_operators, keep=13, numeric=False, max_width=24, wide=True),
        Column("modules", "module", write=module_names, keep=4, numeric=False, max_width=26),
    ),
}
PART_FIELDS = {
    "layer": ("place", "name", "kind", "modules", "operators", "inputs", "outputs", "calls", "precision"),
    "kernel": (
        *("place", "name", "kind", "calls", "grid", "block", "shapes", "registers", "shared_memory"),
        *("occupancy", "achieved", "tensor_cores", "streams", "layers", "modules", "operators", "of_busy"),
    ),
}


def parts_document(
    level: Level, cases: Sequence[ProfiledCase], *, sort: str = "time", top: int | None = None, by: By = "name"
) -> Document:
    """Return the layers or kernels of each case, sorted as :data:`PART_SORTS`.

    In execution order, the ``top`` rows are those that take most. ``None`` fits people's screens; programs get all.
    """
    kind = by if level == "kernel" else "layer"
    tables = part_tables(level, cases, sort, by)
    return case_document(
        f"{level}s",
        tables,
        top,
        blocks=lambda: list(_blocks(tables, level, top) if top or len(tables) < 2 else _combined_table(tables, level)),
        data=lambda of, table: _data(of, table, kind),
        names=("row", *PART_FIELDS[level], *TIMES),
        lines=lambda of, table: _lines(of, table, level, kind),
    )


def _blocks(cases: Sequence[ShownCase[PartTable]], level: Level, top: int | None) -> Iterator[Table | str]:
    """Yield a table per case, its time source and its answer."""
    for case in cases:
        head, (name,) = distinguish([case.case])
        if isinstance(case.table, str):
            why = f"No {level}s: {case.table} {case.case.profile.hint}".strip()
            yield Table(f"{head} · {name}", "", (), (), sentences=[why])
            continue
        unit, account = _unit([case], level), case.table.reconciliation
        call = f"Call: {TIME_WRITERS[unit](account.unprofiled)} {unit} · " if account.unprofiled else ""
        about = time_source([case.case], f"{level}s")
        yield Table(f"{head} · {name}", "", (), (), about=f"{call}{about}")
        yield " ".join(answer(case.table, host=_waits_for_host(case, case.table)))
        yield from filter(None, [precision_line(case.case)])
        yield _table(replace(case, top=top or TOP), case.table, level, unit)


def _combined_table(cases: Sequence[ShownCase[PartTable]], level: Level) -> Iterator[Table | str]:
    """Yield one table of several cases with their largest rows, as many as fit on a screen."""
    head, names = distinguish([case.case for case in cases])
    why: dict[str, list[str]] = {}
    for case, name in zip(cases, names, strict=True):
        if isinstance(case.table, str):
            why.setdefault(f"{case.table} {case.case.profile.hint}".strip(), []).append(name)
    notes = [f"No {level}s of {few_names(item)}: {reason}" for reason, item in why.items()]
    if sum(map(len, why.values())) == len(cases):
        yield Table(head, "", (), (), sentences=first_notes(notes))
        return
    tables, unit = [case.table.reconciliation for case in cases if not isinstance(case.table, str)], _unit(cases, level)
    notes += ["Over 100 %: kernels ran side by side."] if any(map(_side_by_side, tables)) else []
    waiting = sum(not isinstance(case.table, str) and _waits_for_host(case, case.table) for case in cases)
    completed = len(cases) - sum(map(len, why.values()))
    host = f" · {waiting} of {plural(completed, 'call')} wait for the host" * bool(waiting)
    room = LINES - 2 * min(len(notes), MAX_NOTES + 1)
    per_case = max(1, min(TOP, room // len(cases) - 1))
    hidden, lines = sum(len(case.ranked) for case in cases), list[Line]()
    drawn_of: list[ProfiledCase] = []
    all_rows = [row for case in cases if not isinstance(case.table, str) for row in case.table.rows]
    for case, name in list(zip(cases, names, strict=True))[: room // (per_case + 1)]:
        if isinstance(case.table, str):
            continue
        drawn, count = (
            _table(replace(case, top=per_case), case.table, level, unit, all_rows),
            len(case.ranked[:per_case]),
        )
        before = case.table.reconciliation.unprofiled if level == "kernel" else None
        call = f" · call {TIME_WRITERS[unit](before)} {unit}" if before else ""
        lines.append(Line(f"{name}{call}", drawn.lines[-1].cells, style="bold", sums=True))
        lines += [replace(line, indent="  ", ends=False) for line in drawn.lines[:count]]
        drawn_of.append(case.case)
        hidden -= count
    if hidden:
        more = f"{hidden:,} more rows: --top {max(len(case.ranked) for case in cases)}, or --format csv"
        lines.append(Line(more, [""] * len(COLUMNS[level]), style="dim", sums=True))
    about = time_source(drawn_of, f"the {level}s that take most") + host
    columns = in_unit(COLUMNS[level], unit)
    yield Table(head, NAME_HEADINGS[level], columns, lines, about=about, notes=first_notes(notes))


def _waits_for_host(shown_case: ShownCase[PartTable], table: PartTable) -> bool:
    return waits_for_host(shown_case.case.profile, table.runs, shown_case.case.record)


def _unit(cases: Sequence[ShownCase[PartTable]], level: Level) -> str:
    return "µs" if level == "kernel" else unit_of(case.case.profile for case in cases)


def part_tables(level: Level, cases: Sequence[ProfiledCase], sort: str, by: By = "name") -> list[ShownCase[PartTable]]:
    """Return the ranked rows of each case."""
    check_choice(f"order of {level}s", sort, PART_SORTS[level])

    def make_table(case: ProfiledCase) -> PartTable | str:
        if level == "layer":
            return layer_table(case.profile, case.unprofiled)
        return kernel_table(case.profile, case.unprofiled, by)

    def ranked(table: PartTable) -> Sequence[ProfileRow]:
        return sorted(by_time(table.rows), key=lambda row: -row.calls if sort == "calls" else 0)

    return rank_cases(((case, make_table(case)) for case in cases), ranked, sort)


def row_name(row: ProfileRow) -> str:
    """Return a layer's modules, or the backend's name."""
    if isinstance(row, LayerRow):
        return module_names(row.modules) if row.modules else display_name(row.name)
    return display_name(short_name(row.name))


def _backend_name(row: LayerRow) -> str:
    """Return the backend's name where it differs from the module."""
    return text("" if row.modules in ((row.name,), ()) else row.name)


def row_names(rows: Sequence[ProfileRow]) -> list[str]:
    """Return distinct names; a module with children is called itself."""
    short = short_names(row.name for row in rows if isinstance(row, KernelRow))
    paths = [path_of(path) for row in rows for path in row.modules]
    above = {path[:length] for path in paths for length in range(len(path))}

    def name(row: ProfileRow) -> str:
        if row.name in short:
            return display_name(short[row.name])
        single = len(row.modules) == 1 and path_of(row.modules[0]) in above
        return f"{row_name(row)} itself" if single else row_name(row)

    return [name(row) for row in rows]


def _table(
    shown_case: ShownCase[PartTable], table: PartTable, level: Level, unit: str, profile_rows: Sequence[ProfileRow] = ()
) -> Table:
    """Return the table of one case; ``profile_rows`` are the rows of all cases in the same table."""
    profile, account = shown_case.case.profile, table.reconciliation
    columns = hide_constant(in_unit(COLUMNS[level], unit), profile_rows or table.rows, "precision")
    call = CALL if account.unprofiled else PROFILED_CALL
    numbers = {column.key for column in NUMBERS[level]}

    def line(name: str, times: RunTimes, style: str = "") -> Line:
        row = {"times": times, "of_busy": _busy_share(table, times)}
        cells = [column.text(row) if column.key in numbers else "" for column in columns]
        style = "bold" if name == call else style
        return Line(name, cells, style=style, sums=True)

    names = dict(zip((row.place for row in table.rows), row_names(table.rows), strict=True))
    lines = [Line.from_row(names[row.place], columns, row) for row in shown_case.rows]
    if shown_case.rest:
        more = f"{len(shown_case.rest):,} more: --top {len(table.rows)}"
        lines.append(line(more, table.sum_of(shown_case.rest), style="dim"))
    sum_name = "all kernels" + " (side by side)" * _side_by_side(account)
    sums = {sum_name: account.kernels} if isinstance(account, GpuAccount) else {
        "in no layer": account.outside, call: account.whole,
    }  # fmt: skip
    absent = [f"{part}: {why}" for part, why in profile.found.absent.items()] if profile.found else []
    return Table(
        "",
        NAME_HEADINGS[level],
        columns,
        lines_and_sums(lines, [line(name, times) for name, times in sums.items()]),
        notes=first_notes(
            [
                *_doubts(shown_case, table),
                *(f"{warning.message} {warning.advice}" for warning in profile.warnings),
                *absent,
            ]
        ),
    )


def _busy_share(table: PartTable, times: RunTimes) -> float | None:
    """Return a typical time over the time in which the GPU was busy."""
    account = table.reconciliation
    busy = account.busy.typical if isinstance(account, GpuAccount) else 0.0
    return times.typical / busy if busy > 0 else None


def answer(table: PartTable, *, host: bool = False) -> list[str]:
    """Return the largest row, how busy the GPU was, and whether layers overlap.

    ``host``: whether the call waits for the host.
    """
    account, first = table.reconciliation, by_time(table.rows)[:MAX_SUMMED]
    if not (first and first[0].times and first[0].times.typical > 0):
        return ["Nothing has a time."]
    whole = "of the GPU's time" if isinstance(account, GpuAccount) else "of the call"
    first_share, some = (
        _busy_share(table, times) or times.share or 0.0 for times in (first[0].times, table.sum_of(first))
    )
    busy = account.busy.median if isinstance(account, GpuAccount) else 0.0
    side = _side_by_side(account)
    further = f"; the first {MAX_SUMMED} take {percent(some)}" if len(table.rows) > MAX_SUMMED and not side else ""
    noun = "kernel" if isinstance(account, GpuAccount) else "layer"
    sentences = [f"{_leading(table, first[0])} has the largest share: {percent(first_share)} {whole}{further}."]
    if first_share < _SMALL:
        sentences = [f"No {noun} takes over {percent(_SMALL)} {whole}{further}."]
    if not isinstance(account, GpuAccount):
        sentences += ["Some layers ran at the same time."] * account.overlaps
        return sentences + ["The call waits for the host."] * host
    call = account.unprofiled or account.whole.median
    works = "The call waits for the host: the" if host else "The"
    works += f" GPU works {three_digits(busy)} of {three_digits(call)} µs"
    works += f" ({percent(busy / call)})" if call > 0 else ""
    works += ", in kernels side by side" if side else ""
    return [*sentences, f"{works}; {_tensor_cores(account)}."]


def _leading(table: PartTable, first: ProfileRow) -> str:
    """Return the name of the largest row; a kernel with few modules has theirs."""
    places = [row.place for row in table.rows]
    name = cut_name(row_names(table.rows)[places.index(first.place)])
    if not (isinstance(first, KernelRow) and first.modules):
        return name
    few_modules = len(first.modules) <= MOST_MODULES
    source = cut_name(module_names(first.modules))
    return f"The kernel of {source}" if few_modules else f"{name} ({plural(len(first.modules), 'module')})"


def _tensor_cores(account: GpuAccount) -> str:
    used, unknown = account.with_tensor_cores, 1 - account.with_tensor_cores - account.without_tensor_cores
    if not used and unknown > account.without_tensor_cores:
        return "tensor cores: unknown"
    return f"{percent(used)} of it uses tensor cores" + f", {percent(unknown)} unknown" * (unknown > _UNKNOWN)


def _side_by_side(account: Reconciliation | GpuAccount) -> bool:
    """Return whether kernels add up to more than the busy time."""
    return isinstance(account, GpuAccount) and -account.overlap.typical > _OVERLAP * account.busy.typical > 0


def _doubts(shown_case: ShownCase[PartTable], table: PartTable) -> list[str]:
    account = table.reconciliation
    if isinstance(account, GpuAccount):
        traced = f"Only {percent(account.attributed)} of the kernels' time is traced to modules."
        return [traced] if account.attributed < _LEAST_TRACED else []
    return scaling_notes(shown_case.case.profile, shown_case.case.unprofiled)


def sentences(shown_case: ShownCase[PartTable], table: PartTable) -> list[str]:
    return [
        *answer(table, host=_waits_for_host(shown_case, table)),
        *filter(None, [precision_line(shown_case.case)]),
        *_doubts(shown_case, table),
    ]


def _data(shown_case: ShownCase[PartTable], table: PartTable, kind: str) -> dict[str, Any]:
    profile, account = shown_case.case.profile, table.reconciliation
    absent = profile.found and profile.found.absent
    result = {"clock": profile.clock, "absent": absent, "sentences": sentences(shown_case, table)}
    if profile.kernels and isinstance(account, GpuAccount):
        return {**result, "by": kind, "gpu": profile.kernels.gpu, "account": account}
    return {**result, "timed": profile.timed, "reconciliation": account}


def _lines(shown_case: ShownCase[PartTable], table: PartTable, level: Level, kind: str) -> Iterator[list[object]]:
    """Yield a line per row and per remainder, so that a case adds up to its whole."""
    for row in shown_case.rows:
        fields = [_field(name, getattr(row, name)) for name in PART_FIELDS[level]]
        yield [kind, *fields, *time_fields(row.times)]
    account = table.reconciliation
    sums = {f"other {level}s": table.sum_of(shown_case.rest)} if shown_case.rest else {}
    if isinstance(account, GpuAccount):
        sums |= {"overlap": account.overlap, "idle": account.idle, "whole": account.whole}
    else:
        sums |= {"in no layer": account.outside, "whole": account.whole}
    for name, times in sums.items():
        yield [name, *[None] * len(PART_FIELDS[level]), *time_fields(times)]


def _field(name: str, value: Any) -> Any:
    if name in ("grid", "block"):
        return "x".join(map(str, value))
    if name in ("inputs", "outputs"):
        tensors: Sequence[Tensor] = value
        return ["x".join(map(str, tensor.shape)) for tensor in tensors]
    return value
