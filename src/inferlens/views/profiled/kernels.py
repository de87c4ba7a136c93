"""The kernels of each case as a table: how long each takes, how it fills the GPU, and where it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inferlens.analysis.profile.kernels import By, GpuAccount, KernelRow, KernelTable, kernel_table, short_name
from inferlens.analysis.profile.layers import RunTimes
from inferlens.analysis.profile.modules import ancestor, path_of
from inferlens.errors import check_choice
from inferlens.units import ABSENT, duration, kibibytes, microseconds, milliseconds, percent, plural
from inferlens.views.profiled.cases import CASE, TIMES, TOP, Chosen, ProfiledCase, by_time, chosen, time_fields
from inferlens.views.profiled.sentences import FEW, cost, half, modules, name_of, remarks, takes_most
from inferlens.views.table import Column, Document, Line, Table, count, ruled, share, text

SCHEMA = "inferlens.kernels/1"
SORTS = ("time", "order", "calls")
UNKNOWN = "?"
_MOST_LISTED = 2
_OVERLAP = 0.005  # of the busy time: less comes from the clock's rounding


def _sizes(sizes: Sequence[int]) -> str:
    """``56x2x1``; sizes of one at the end are left out: ``56x2``, ``128``."""
    told = "x".join(map(str, sizes))
    while told.endswith("x1"):
        told = told[:-2]
    return told or ABSENT


def _occupancy(part: float | None) -> str:
    if part is None:
        return ABSENT
    return "<0.1 %" if 0 < part < 0.0005 else percent(round(part, 3))  # one block on a large GPU is not nothing


def _tensor_cores(row: KernelRow) -> str:
    return {True: "yes", False: "no", None: UNKNOWN}[row.tensor_cores] if row.kind == "kernel" else ABSENT


def _modules(paths: Sequence[str]) -> str:
    """The modules, or of many how many there are and in which they all are."""
    if len(paths) <= _MOST_LISTED:
        return modules(paths)
    return f"{len(paths)} in {modules(['.'.join(ancestor([*map(path_of, paths)]))])}"


def _few(noun: str) -> Callable[[Sequence[str]], str]:
    return lambda words: text(", ".join(words)) if len(words) <= _MOST_LISTED else plural(len(words), noun)


def _layers(row: KernelRow) -> str:
    """The layers that are no modules: in eager PyTorch they are the same."""
    return _few("layer")([layer for layer in row.layers if layer not in row.modules])


NUMBERS = (
    Column("times.typical", "time", "µs", microseconds, keep=0),
    Column("times.median", "p50", "µs", microseconds, keep=10),
    Column("times", "±", "95 %", half, keep=11),
    Column("times.p95", "p95", "µs", microseconds, keep=12),
    Column("of_busy", "share", "of GPU", share, keep=1),
    Column("times.share", "share", "of run", share, keep=9),
)
COLUMNS = (
    Column("place", "#", keep=17),
    Column("calls", "calls", write=count, keep=4),
    *NUMBERS,
    Column("grid", "grid", write=_sizes, keep=7, most=18),
    Column("block", "block", write=_sizes, keep=8, most=14),
    Column("registers", "registers", keep=15),
    Column("shared_memory", "shared", "KiB", kibibytes, keep=16),
    Column("occupancy", "occupancy", write=_occupancy, keep=6),
    Column("achieved", "achieved", "estimate", _occupancy, keep=5),
    Column("", "tensor cores", write=_tensor_cores, keep=2, numeric=False),
    Column("", "layer", write=_layers, keep=14, numeric=False, most=24),
    Column("modules", "modules", write=_modules, keep=3, numeric=False),
    Column("operators", "operator", write=_few("operator"), keep=13, numeric=False, most=24),
)
OWN = (
    *("place", "name", "kind", "calls", "grid", "block", "shapes", "registers", "shared_memory"),
    *("occupancy", "achieved", "tensor_cores", "streams", "layers", "modules", "operators", "of_busy"),
)


def document(cases: Sequence[ProfiledCase], *, by: By = "name", sort: str = "time", top: int | None = None) -> Document:
    """The kernels of each case.

    Args:
        cases: profiles, named.
        by: a row for each ``name``, or for each ``launch``.
        sort: ``time``, what takes most first; ``order``, that of execution; ``calls``, what is launched most first.
        top: how many rows, those that come first in that order, in that of execution those that take most; ``None``:
            :data:`.cases.TOP` for people, all for programs.

    Raises:
        InferlensError: for another order.
    """
    check_choice("order of kernels", sort, SORTS)

    def rows(most: int | None) -> list[Chosen[KernelTable]]:
        return [chosen(case, kernel_table(case.profile, case.unprofiled, by), ranked, sort, most) for case in cases]

    def ranked(table: KernelTable) -> list[KernelRow]:
        return sorted(by_time(table), key=lambda row: -row.calls if sort == "calls" else 0)

    return Document(
        blocks=lambda: [_table(each) for each in rows(top or TOP)],
        data=lambda: {"schema": SCHEMA, "cases": [_data(each) for each in rows(top)]},
        csv=lambda: ((*CASE, "row", *OWN, *TIMES), _lines(rows(top))),
    )


def _table(of: Chosen[KernelTable]) -> Table:
    table, kernels, title = of.table, of.case.profile.kernels, of.case.title
    if isinstance(table, str) or kernels is None:
        return Table(title, "kernel", COLUMNS, (), sentences=[f"It has no kernels: {table} {of.case.profile.hint}"])
    account = table.account
    lines = [Line.of(name_of(short_name(row.name)), COLUMNS, row, marks=_marks(row)) for row in of.rows]
    lines += [_sum(plural(len(of.rest), "other kernel"), table.sum_of(of.rest), table)] if of.rest else []
    sums = [_sum("all kernels", account.kernels, table), _sum("GPU busy", account.busy, table)]
    sums += [_sum("GPU idle", account.idle), _sum("whole run", account.whole, style="bold")]
    notes = []
    if any(row.tensor_cores is None and row.kind == "kernel" for row in of.rows):
        notes.append(f"{UNKNOWN}: the kernel's name does not say whether it uses tensor cores.")
    if any(row.shapes > 1 for row in of.rows):
        notes.append("+N: launched in N other ways too; what is shown is of the one that takes most time.")
    return Table(
        title,
        "kernel",
        COLUMNS,
        ruled(lines, sums),
        about=f"{account.calls:,} kernels, copies and fills a run · a row for each {table.by} · "
        f"{plural(account.runs, 'run')} · times by {kernels.clock}",
        notes=[*notes, *remarks(of.case.profile, kernels.absent)],
        sentences=sentences(table),
    )


def _marks(row: KernelRow) -> tuple[str, ...]:
    """How many other shapes a kernel was launched in, behind its grid."""
    more = f" +{row.shapes - 1}" if row.shapes > 1 else ""
    return tuple(more if column.key == "grid" else "" for column in COLUMNS)


def _sum(name: str, times: RunTimes, table: KernelTable | None = None, **more: Any) -> Line:
    row = {"times": times, "of_busy": table.share_of_busy(times) if table else None}
    return Line(name, tuple(column.text(row) if column in NUMBERS else "" for column in COLUMNS), **more)


def sentences(table: KernelTable) -> list[str]:
    """Which kernels take most, how busy the GPU was, who used tensor cores, what is traced, what profiling cost."""
    account, first = table.account, by_time(table)[:FEW]
    most = "No kernel has a time."
    if first and first[0].of_busy:
        several = table.share_of_busy(table.sum_of(first)) if len(table.rows) > FEW else None
        calls = f" in {plural(first[0].calls, 'call')}" if first[0].calls > 1 else ""
        of = plural(len(table.rows), "name" if table.by == "name" else "kernel")
        most = takes_most(short_name(first[0].name), first[0].of_busy, f"the GPU's busy time{calls}", several, of)
    used, unused = account.with_tensor_cores, account.without_tensor_cores
    unknown = 1.0 - used - unused
    return [
        most,
        _busy(account),
        f"Kernels that use tensor cores have {percent(used)} of all kernels' time, those that do not {percent(unused)}"
        + (f"; of {percent(unknown)} the names do not say." if unknown > 0.0005 else "."),
        f"Traced to modules: {percent(account.attributed)} of all kernels' time.",
        cost(account),
    ]


def _busy(account: GpuAccount) -> str:
    """How long the GPU was busy and idle, and how often something was launched."""
    whole, busy, idle, launches = account.whole, account.busy, account.idle, account.launches
    part = f" ({percent(idle.typical / whole.typical)})" if whole.typical > 0 else ""
    each = f", one each {duration(whole.median / launches)}" if launches > 1 else ""
    side = -account.overlap.typical > _OVERLAP * busy.typical > 0
    return (
        f"The GPU was busy for {milliseconds(busy.median)} ms of {milliseconds(whole.median)} ms (medians) and idle "
        f"for {milliseconds(max(idle.median, 0.0))} ms{part}; {launches:,} launch{'' if launches == 1 else 'es'} a run"
        f"{each}.{' Some kernels ran side by side.' if side else ''}"
    )


def _data(of: Chosen[KernelTable]) -> dict[str, Any]:
    """Every field of every row, and where the GPU's time went."""
    table, profile, kernels = of.table, of.case.profile, of.case.profile.kernels
    about = {**of.data, "warnings": profile.warnings}
    if isinstance(table, str) or kernels is None:
        return about
    return {
        **about,
        "by": table.by,
        "gpu": kernels.gpu,
        "clock": kernels.clock,
        "absent": kernels.absent,
        "account": table.account,
        "sentences": sentences(table),
    }


def _lines(cases: Sequence[Chosen[KernelTable]]) -> Iterator[list[object]]:
    """A line for each row; overlap, idle and whole have lines too, so that those of a case add up to its whole."""
    for of in cases:
        if isinstance(of.table, str):
            continue
        for row in of.rows:
            own = [_as_field(name, getattr(row, name)) for name in OWN]
            yield [*of.case.fields, of.table.by, *own, *time_fields(row.times)]
        sums = [("other kernels", of.table.sum_of(of.rest))] if of.rest else []
        account = of.table.account
        for name, times in (*sums, ("overlap", account.overlap), ("idle", account.idle), ("whole", account.whole)):
            yield [*of.case.fields, name, *[None] * len(OWN), *time_fields(times)]


def _as_field(name: str, value: Any) -> Any:
    return "x".join(map(str, value)) if name in ("grid", "block") else value
