"""The layers or the kernels of each case as a table: what each is, how long it takes, and how they add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

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
    short_name,
    short_names,
    waits_for_host,
)
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Level, Tensor
from inferlens.units import ABSENT, kibibytes, milliseconds, percent, plural
from inferlens.views.profiled import profile_tables
from inferlens.views.profiled.cases import ProfiledCase, told_apart
from inferlens.views.profiled.findings import precision_line
from inferlens.views.profiled.profile_tables import (
    FEW,
    NOTES,
    TIMES,
    WRITE,
    ShownCase,
    by_time,
    few,
    few_names,
    in_unit,
    shapes,
    three_digits,
    time_fields,
    unit_of,
    varying,
)
from inferlens.views.table import Column, Document, Line, Table, count, ruled, share, text

TOP = 10  # rows that people get of one case if they ask for no other number; programs get all
LINES = 17  # of the rows of several cases together, so that all of it fits on a screen
FIRST = {"layer": "module", "kernel": "kernel"}
SORTS = {"layer": ("time", "order"), "kernel": ("time", "order", "calls")}
_OVERLAP = 0.005  # of the busy time: less comes from the clock's rounding
_LEAST_TRACED = 0.9  # of the kernels' time: less is said
_SMALL = 0.05  # of the time, for the row that takes most to be named
_UNKNOWN = 0.005  # of the kernels' time: less is not said not to be known
_TENSOR_CORES = {True: "yes", False: "no", None: "?"}

PartTable = LayerTable | KernelTable


def _sizes(sizes: Sequence[int]) -> str:
    """``56x2x1``; sizes of one at the end are left out: ``56x2``, ``128``."""
    told = "x".join(map(str, sizes))
    while told.endswith("x1"):
        told = told[:-2]
    return told or ABSENT


def _layers(row: KernelRow) -> str:
    """Nothing where modules are the layers, which have a column."""
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
        Column("times", "±", "95 %", profile_tables.half, keep=7, wide=True),
    ),
    "kernel": (
        Column("times.typical", "time", "µs", three_digits, keep=0, bars="drawn"),
        Column("of_busy", "share", "of GPU", share, keep=1, bars="beside"),
        Column("times.median", "median", "µs", three_digits, keep=10, wide=True),
        Column("times", "±", "95 %", profile_tables.half, keep=11, wide=True),
        Column("times.p95", "p95", "µs", three_digits, keep=12, wide=True),
        Column("times.share", "share", "of run", share, keep=9, wide=True),
    ),
}
COLUMNS = {
    "layer": (
        *NUMBERS["layer"],
        Column("kind", "kind", keep=2, numeric=False, most=16),
        Column("precision", "precision", keep=2, numeric=False),
        Column("", "layer", write=lambda row: _own_name(row), keep=9, numeric=False, wide=True),
        Column("place", "#", keep=10, wide=True),
        Column("calls", "calls", write=lambda calls: "" if calls == 1 else str(calls), keep=8, wide=True),
        Column("inputs", "input", write=shapes, keep=4, numeric=False, most=24),
        Column("outputs", "output", write=shapes, keep=3, numeric=False, most=24),
    ),
    "kernel": (
        *NUMBERS["kernel"],
        Column("calls", "calls", write=count, keep=2),
        Column("tensor_cores", "tensor cores", "", _TENSOR_CORES.__getitem__, 3, numeric=False),
        Column("occupancy", "occupancy", write=share, keep=6, wide=True),
        Column("achieved", "achieved", "estimate", share, keep=5, wide=True),
        Column("grid", "grid", write=_sizes, keep=7, most=18, wide=True),
        Column("block", "block", write=_sizes, keep=8, most=14, wide=True),
        Column("registers", "registers", keep=15, wide=True),
        Column("shared_memory", "shared", "KiB", kibibytes, keep=16, wide=True),
        Column("place", "#", keep=17, wide=True),
        Column("", "layer", write=_layers, keep=14, numeric=False, most=24, wide=True),
        Column("operators", "operator", write=_operators, keep=13, numeric=False, most=24, wide=True),
        Column("modules", "module", write=profile_tables.modules, keep=4, numeric=False, most=26),
    ),
}
OWN = {
    "layer": ("place", "name", "kind", "modules", "operators", "inputs", "outputs", "calls", "precision"),
    "kernel": (
        *("place", "name", "kind", "calls", "grid", "block", "shapes", "registers", "shared_memory"),
        *("occupancy", "achieved", "tensor_cores", "streams", "layers", "modules", "operators", "of_busy"),
    ),
}


def document(
    level: Level,
    cases: Sequence[ProfiledCase],
    *,
    sort: str = "time",
    top: int | None = None,
    by: KernelGrouping = "name",
) -> Document:
    """The layers or the kernels of each case, in one of the orders of :data:`SORTS`.

    Of that of execution the ``top`` rows are those that take most; ``None``: what fits for people, all for programs.
    """
    kind = by if level == "kernel" else "layer"
    every = shown(level, cases, sort, by)
    return profile_tables.document(
        f"{level}s",
        every,
        top,
        blocks=lambda: list(_blocks(every, level, top) if top or len(every) < 2 else _together(every, level)),
        data=lambda of, table: _data(of, table, kind),
        names=("row", *OWN[level], *TIMES),
        lines=lambda of, table: _lines(of, table, level, kind),
    )


def _blocks(cases: Sequence[ShownCase[PartTable]], level: Level, top: int | None) -> Iterator[Table | str]:
    """A table of each case, under what its times are and its answer."""
    for of in cases:
        head, (name,) = told_apart([of.case])
        if isinstance(of.table, str):
            why = f"No {level}s: {of.table} {of.case.profile.hint}".strip()
            yield Table(f"{head} · {name}", "", (), (), sentences=[why])
            continue
        unit, account = _unit([of], level), of.table.reconciliation
        call = f"Call: {WRITE[unit](account.unprofiled)} {unit} · " if account.unprofiled else ""
        about = profile_tables.timed([of.case], f"{level}s")
        yield Table(f"{head} · {name}", "", (), (), about=f"{call}{about}")
        yield " ".join(answer(of.table, host=_host(of, of.table)))
        yield from filter(None, [precision_line(of.case)])
        yield _table(replace(of, top=top or TOP), of.table, level, unit)


def _together(cases: Sequence[ShownCase[PartTable]], level: Level) -> Iterator[Table | str]:
    """One table of several cases, with the rows that take most of each: as many as fit on a screen."""
    head, names = told_apart([of.case for of in cases])
    why: dict[str, list[str]] = {}
    for of, name in zip(cases, names, strict=True):
        if isinstance(of.table, str):
            why.setdefault(f"{of.table} {of.case.profile.hint}".strip(), []).append(name)
    notes = [f"No {level}s of {few_names(item)}: {reason}" for reason, item in why.items()]
    if sum(map(len, why.values())) == len(cases):
        yield Table(head, "", (), (), sentences=few(notes))
        return
    tables, unit = [of.table.reconciliation for of in cases if not isinstance(of.table, str)], _unit(cases, level)
    notes += ["Over 100 %: kernels ran side by side."] if any(map(_side_by_side, tables)) else []
    waiting = sum(not isinstance(of.table, str) and _host(of, of.table) for of in cases)
    able = len(cases) - sum(map(len, why.values()))
    host = f" · {waiting} of {plural(able, 'call')} wait for the host" * bool(waiting)
    room = LINES - 2 * min(len(notes), NOTES + 1)
    each = max(1, min(TOP, room // len(cases) - 1))
    rest, lines = sum(len(of.ranked) for of in cases), list[Line]()
    drawn_of: list[ProfiledCase] = []
    every = [row for of in cases if not isinstance(of.table, str) for row in of.table.rows]
    for of, name in list(zip(cases, names, strict=True))[: room // (each + 1)]:
        if isinstance(of.table, str):
            continue
        drawn, count = _table(replace(of, top=each), of.table, level, unit, every), len(of.ranked[:each])
        before = of.table.reconciliation.unprofiled if level == "kernel" else None
        call = f" · call {WRITE[unit](before)} {unit}" if before else ""
        lines.append(Line(f"{name}{call}", drawn.lines[-1].cells, style="bold", sums=True))
        lines += [replace(line, indent="  ", ends=False) for line in drawn.lines[:count]]
        drawn_of.append(of.case)
        rest -= count
    if rest:
        more = f"{rest:,} more rows: --top {max(len(of.ranked) for of in cases)}, or --format csv"
        lines.append(Line(more, [""] * len(COLUMNS[level]), style="dim", sums=True))
    about = profile_tables.timed(drawn_of, f"the {level}s that take most") + host
    columns = in_unit(COLUMNS[level], unit)
    yield Table(head, FIRST[level], columns, lines, about=about, notes=few(notes))


def _host(of: ShownCase[PartTable], table: PartTable) -> bool:
    """Whether the call waits for the host."""
    return waits_for_host(of.case.profile, table.runs, of.case.record)


def _unit(cases: Sequence[ShownCase[PartTable]], level: Level) -> str:
    return "µs" if level == "kernel" else unit_of(of.case.profile for of in cases)


def shown(
    level: Level, cases: Sequence[ProfiledCase], sort: str, by: KernelGrouping = "name"
) -> list[ShownCase[PartTable]]:
    """The rows of each case, those to show first; ``sort`` and ``by`` as of a :func:`document`."""
    check_choice(f"order of {level}s", sort, SORTS[level])

    def made(case: ProfiledCase) -> PartTable | str:
        if level == "layer":
            return layer_table(case.profile, case.unprofiled)
        return kernel_table(case.profile, case.unprofiled, by)

    def ranked(table: PartTable) -> Sequence[ProfileRow]:
        return sorted(by_time(table.rows), key=lambda row: -row.calls if sort == "calls" else 0)

    return profile_tables.shown(((case, made(case)) for case in cases), ranked, sort)


def row_name(row: ProfileRow) -> str:
    """What a row is called: a layer by the modules that it came from, or else as its backend names it."""
    if isinstance(row, LayerRow):
        return profile_tables.modules(row.modules) if row.modules else profile_tables.name_of(row.name)
    return profile_tables.name_of(short_name(row.name))


def _own_name(row: LayerRow) -> str:
    """As the backend names it, where that is not its module."""
    return text("" if row.modules in ((row.name,), ()) else row.name)


def row_names(rows: Sequence[ProfileRow]) -> list[str]:
    """The names of the rows of one table: different for different kernels; a module without those in it says so."""
    short = short_names(row.name for row in rows if isinstance(row, KernelRow))
    paths = [module_path(path) for row in rows for path in row.modules]
    above = {path[:length] for path in paths for length in range(len(path))}

    def name(row: ProfileRow) -> str:
        if row.name in short:
            return profile_tables.name_of(short[row.name])
        alone = len(row.modules) == 1 and module_path(row.modules[0]) in above
        return f"{row_name(row)} itself" if alone else row_name(row)

    return [name(row) for row in rows]


def _table(
    of: ShownCase[PartTable], table: PartTable, level: Level, unit: str, profile_rows: Sequence[ProfileRow] = ()
) -> Table:
    """The table of one case; ``beside``: the rows of all cases that are shown with it."""
    profile, account = of.case.profile, table.reconciliation
    columns = varying(in_unit(COLUMNS[level], unit), profile_rows or table.rows, "precision")
    call = profile_tables.CALL if account.unprofiled else profile_tables.PROFILED_CALL
    numbers = {column.key for column in NUMBERS[level]}

    def line(name: str, times: RunTimes, style: str = "") -> Line:
        row = {"times": times, "of_busy": _of_busy(table, times)}
        cells = [column.text(row) if column.key in numbers else "" for column in columns]
        style = "bold" if name == call else style
        return Line(name, cells, style=style, sums=True)

    names = dict(zip((row.place for row in table.rows), row_names(table.rows), strict=True))
    lines = [Line.of(names[row.place], columns, row) for row in of.rows]
    if of.rest:
        more = f"{len(of.rest):,} more: --top {len(table.rows)}"
        lines.append(line(more, table.sum_of(of.rest), style="dim"))
    together = "all kernels" + " (side by side)" * _side_by_side(account)
    sums = {together: account.kernels} if isinstance(account, GpuAccount) else {
        "in no layer": account.outside, call: account.whole,
    }  # fmt: skip
    absent = [f"{what}: {why}" for what, why in profile.found.absent.items()] if profile.found else []
    return Table(
        "",
        FIRST[level],
        columns,
        ruled(lines, [line(name, times) for name, times in sums.items()]),
        notes=few(
            [*_doubts(of, table), *(f"{warning.message} {warning.advice}" for warning in profile.warnings), *absent]
        ),
    )


def _of_busy(table: PartTable, times: RunTimes) -> float | None:
    """A typical time over that in which the GPU was busy."""
    account = table.reconciliation
    busy = account.busy.typical if isinstance(account, GpuAccount) else 0.0
    return times.typical / busy if busy > 0 else None


def answer(table: PartTable, *, host: bool = False) -> list[str]:
    """Which row takes most, and how busy the GPU was, or which layers ran at the same time.

    ``host``: whether the call waits for the host.
    """
    account, first = table.reconciliation, by_time(table.rows)[:FEW]
    if not (first and first[0].times and first[0].times.typical > 0):
        return ["Nothing has a time."]
    whole = "of the GPU's time" if isinstance(account, GpuAccount) else "of the call"
    one, some = (_of_busy(table, times) or times.share or 0.0 for times in (first[0].times, table.sum_of(first)))
    busy = account.busy.median if isinstance(account, GpuAccount) else 0.0
    side = _side_by_side(account)
    rest = f"; the first {FEW} take {percent(some)}" if len(table.rows) > FEW and not side else ""
    noun = "kernel" if isinstance(account, GpuAccount) else "layer"
    said = [f"{_leading(table, first[0])} has the largest share: {percent(one)} {whole}{rest}."]
    if one < _SMALL:
        said = [f"No {noun} takes over {percent(_SMALL)} {whole}{rest}."]
    if not isinstance(account, GpuAccount):
        said += ["Some layers ran at the same time."] * account.overlaps
        return said + ["The call waits for the host."] * host
    call = account.unprofiled or account.whole.median
    works = "The call waits for the host: the" if host else "The"
    works += f" GPU works {three_digits(busy)} of {three_digits(call)} µs"
    works += f" ({percent(busy / call)})" if call > 0 else ""
    works += ", in kernels side by side" if side else ""
    return [*said, f"{works}; {_tensor_cores(account)}."]


def _leading(table: PartTable, first: ProfileRow) -> str:
    """What takes most: a kernel by its modules, where they are few."""
    places = [row.place for row in table.rows]
    name = profile_tables.short(row_names(table.rows)[places.index(first.place)])
    if not (isinstance(first, KernelRow) and first.modules):
        return name
    few_modules = len(first.modules) <= profile_tables.MOST_MODULES
    made = profile_tables.short(profile_tables.modules(first.modules))
    return f"The kernel of {made}" if few_modules else f"{name} ({plural(len(first.modules), 'module')})"


def _tensor_cores(account: GpuAccount) -> str:
    used, unknown = account.with_tensor_cores, 1 - account.with_tensor_cores - account.without_tensor_cores
    if not used and unknown > account.without_tensor_cores:
        return "tensor cores: unknown"
    return f"{percent(used)} of it uses tensor cores" + f", {percent(unknown)} unknown" * (unknown > _UNKNOWN)


def _side_by_side(account: Reconciliation | GpuAccount) -> bool:
    """Whether kernels add up to more than the time in which the GPU was busy."""
    return isinstance(account, GpuAccount) and -account.overlap.typical > _OVERLAP * account.busy.typical > 0


def _doubts(of: ShownCase[PartTable], table: PartTable) -> list[str]:
    """What weakens the answer."""
    account = table.reconciliation
    if isinstance(account, GpuAccount):
        traced = f"Only {percent(account.attributed)} of the kernels' time is traced to modules."
        return [traced] if account.attributed < _LEAST_TRACED else []
    return profile_tables.stretched(of.case.profile, of.case.unprofiled)


def sentences(of: ShownCase[PartTable], table: PartTable) -> list[str]:
    """All that is said of a case, for programs."""
    return [*answer(table, host=_host(of, table)), *filter(None, [precision_line(of.case)]), *_doubts(of, table)]


def _data(of: ShownCase[PartTable], table: PartTable, kind: str) -> dict[str, Any]:
    profile, account = of.case.profile, table.reconciliation
    absent = profile.found and profile.found.absent
    found = {"clock": profile.clock, "absent": absent, "sentences": sentences(of, table)}
    if profile.kernels and isinstance(account, GpuAccount):
        return {**found, "by": kind, "gpu": profile.kernels.gpu, "account": account}
    return {**found, "timed": profile.timed, "reconciliation": account}


def _lines(of: ShownCase[PartTable], table: PartTable, level: Level, kind: str) -> Iterator[list[object]]:
    """A line for each row, and what is in none, so that those of a case add up to its whole."""
    for row in of.rows:
        own = [_field(name, getattr(row, name)) for name in OWN[level]]
        yield [kind, *own, *time_fields(row.times)]
    account = table.reconciliation
    sums = {f"other {level}s": table.sum_of(of.rest)} if of.rest else {}
    if isinstance(account, GpuAccount):
        sums |= {"overlap": account.overlap, "idle": account.idle, "whole": account.whole}
    else:
        sums |= {"in no layer": account.outside, "whole": account.whole}
    for name, times in sums.items():
        yield [name, *[None] * len(OWN[level]), *time_fields(times)]


def _field(name: str, value: Any) -> Any:
    """Sizes in one field."""
    if name in ("grid", "block"):
        return "x".join(map(str, value))
    if name in ("inputs", "outputs"):
        tensors: Sequence[Tensor] = value
        return ["x".join(map(str, tensor.shape)) for tensor in tensors]
    return value
