"""The kernels of each case as a table: how long each takes, how it fills the GPU, and where it came from."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.profile.kernels import By, KernelRow, KernelTable, kernel_table, short_name
from inferlens.analysis.profile.layers import Times, clock_of
from inferlens.analysis.profile.modules import ancestor, path_of
from inferlens.units import ABSENT, half_width, kibibytes, microseconds, percent, plural
from inferlens.views.plain import plain
from inferlens.views.profiled import check, check_order, kernels_data
from inferlens.views.profiled.cases import Profiled
from inferlens.views.profiled.grid import Grid, Heading, Line, ruled
from inferlens.views.profiled.kernels_data import Kerneled
from inferlens.views.profiled.kernels_sentences import by_time, of_kernels
from inferlens.views.profiled.layers import modules, signed_percent
from inferlens.views.profiled.sentences import name_of
from inferlens.views.profiled.tables import Chosen, drawn, limit

SORTS = ("time", "order", "calls")
FEW = 2
UNTOLD = "?"
HEADINGS = (
    Heading("#", keep=17),
    Heading("calls", keep=4),
    Heading("time", "µs", keep=0),
    Heading("p50", "µs", keep=10),
    Heading("±", "95 %", keep=11),
    Heading("p95", "µs", keep=12),
    Heading("share", "of GPU", keep=1),
    Heading("share", "of run", keep=9),
    Heading("grid", keep=7, most=18),
    Heading("block", keep=8, most=14),
    Heading("registers", keep=15),
    Heading("shared", "KiB", keep=16),
    Heading("occupancy", keep=6),
    Heading("achieved", keep=5),
    Heading("tensor cores", keep=2, numeric=False),
    Heading("layer", keep=14, numeric=False, most=24),
    Heading("modules", keep=3, numeric=False),
    Heading("operator", keep=13, numeric=False, most=24),
)


def render(
    cases: Sequence[Profiled],
    format: str = "table",
    *,
    sort: str = "time",
    by: By = "name",
    top: int | None = None,
    width: int = 120,
    color: bool = False,
) -> str:
    """The kernels of each case as text.

    Args:
        cases: profiles, named.
        format: one of ``FORMATS``.
        sort: ``time``, what takes most first; ``order``, that of execution; ``calls``, what is launched most first.
        by: a row for each ``name``, or for each ``launch``.
        top: how many rows, those that come first in that order, in that of execution those that take most; ``None``:
            :data:`.tables.TOP` in tables for people, all otherwise.
        width, color: of the terminal.

    Raises:
        InferlensError: for another format, order or kind of rows.
    """
    check(format)
    check_sort(sort)
    chosen = [_chosen(case, by, sort, limit(top, format)) for case in cases]
    if format == "csv":
        return kernels_data.csv(chosen)
    if format == "json":
        return kernels_data.json(chosen)
    return drawn(map(grid, chosen), format, width, color)


def check_sort(sort: str) -> None:
    """Refuses an order that there is not.

    Raises:
        InferlensError: if there is no such order.
    """
    check_order("Kernels", sort, SORTS)


def grid(of: Kerneled) -> Grid:
    """One case as a table."""
    table = of.table
    if isinstance(table, str):
        why = plain(f"It has no kernels: {table} {of.case.profile.hint}")
        return Grid(of.headline, "", "kernel", HEADINGS, (), sentences=(why,))
    account, rest = table.account, of.rest
    lines = [_line(row) for row in of.rows]
    lines += [_sum(plural(len(rest), "other kernel"), table, table.sum_of(rest))] if rest else []
    sums = [_sum("all kernels", table, account.kernels), _sum("GPU busy", table, account.busy)]
    sums += [_sum("GPU idle", None, account.idle), _sum("whole run", None, account.whole, style="bold")]
    about = f"{account.calls:,} kernels, copies and fills a run · a row for each {table.by} · "
    about += f"{plural(account.runs, 'run')} · times by {clock_of(of.case.profile)}"
    notes, sentences = _notes(of.case, of.rows), of_kernels(table)
    return Grid(of.headline, plain(about), "kernel", HEADINGS, ruled(lines, sums), tuple(notes), tuple(sentences))


def _notes(case: Profiled, rows: Sequence[KernelRow]) -> list[str]:
    """What marks mean that are there, what is not known, and what the process warned of."""
    notes = ["achieved: an estimate from grid and occupancy; nothing was counted."] if any(
        row.achieved is not None for row in rows
    ) else []  # fmt: skip
    if any(row.tensor_cores is None and row.kind == "kernel" for row in rows):
        notes.append(f"{UNTOLD}: the kernel's name does not tell whether it uses tensor cores.")
    if any(row.shapes > 1 for row in rows):
        notes.append("+N: launched in N other ways too; what is shown is of the one that takes most time.")
    notes += [
        plain(f"{what}: {why}") for what, why in (case.profile.kernels.absent if case.profile.kernels else {}).items()
    ]
    return notes + [plain(f"{warning.message} {warning.advice}") for warning in case.profile.warnings]


def _chosen(case: Profiled, by: By, sort: str, top: int | None) -> Kerneled:
    """The rows to show, in the order asked for."""
    table = kernel_table(case.profile, case.unprofiled, by)
    if isinstance(table, str):
        return Chosen(case, table)
    if sort == "calls":
        return Chosen(case, table, sorted(by_time(table.rows), key=lambda row: -row.calls)[:top])
    rows = by_time(table.rows)[:top]
    return Chosen(case, table, rows if sort == "time" else sorted(rows, key=lambda row: row.place))


def _line(row: KernelRow) -> Line:
    more = f" +{row.shapes - 1}" if row.shapes > 1 else ""
    layers = [layer for layer in row.layers if layer not in row.modules]  # in eager PyTorch they are the same
    texts = (
        str(row.place),
        f"{row.calls:,}",
        *_numbers(row.times, row.of_busy),
        _sizes(row.grid, more),
        _sizes(row.block),
        ABSENT if row.registers is None else str(row.registers),
        kibibytes(row.shared_memory),
        _occupancy(row.occupancy),
        _occupancy(row.achieved),
        ABSENT if row.kind != "kernel" else {True: "yes", False: "no", None: UNTOLD}[row.tensor_cores],
        _few(layers, "layer"),
        _modules(row.modules),
        _few(row.operators, "operator"),
    )
    return Line.of(name_of(short_name(row.name)), texts)


def _sum(name: str, table: KernelTable | None, times: Times, style: str = "") -> Line:
    numbers = _numbers(times, table.share_of_busy(times) if table else None)
    cells = ["", "", *numbers, *[""] * (len(HEADINGS) - 2 - len(numbers))]
    return Line.of(name, cells, style)


def _numbers(times: Times | None, of_busy: float | None) -> list[str]:
    if times is None:
        return [ABSENT] * 6
    half = half_width(abs(times.median), times.median_low, times.median_high) if times.median > 0 else ABSENT
    busy = ABSENT if of_busy is None else percent(of_busy)
    run = ABSENT if times.share is None else signed_percent(times.share)
    return [microseconds(times.typical), microseconds(times.median), half, microseconds(times.p95), busy, run]


def _sizes(sizes: Sequence[int], more: str = "") -> str:
    """``56x2x1``; sizes of one at the end are left out: ``56x2``, ``128``."""
    told = list(sizes)
    while len(told) > 1 and told[-1] == 1:
        told.pop()
    return "x".join(map(str, told)) + more if told else ABSENT


def _occupancy(share: float | None) -> str:
    if share is None:
        return ABSENT
    return "<0.1 %" if 0 < share < 0.0005 else percent(round(share, 3))  # one block on a large GPU is not nothing


def _modules(paths: Sequence[str]) -> str:
    """The modules, or of many how many there are and in which they all are."""
    if len(paths) <= FEW:
        return modules(paths)
    above = ".".join(ancestor([path_of(path) for path in paths]))
    return plain(f"{len(paths)} in {above or 'the model'}")


def _few(words: Sequence[str], noun: str) -> str:
    if len(words) > FEW:
        return plural(len(words), noun)
    return plain(", ".join(words)) or ABSENT
