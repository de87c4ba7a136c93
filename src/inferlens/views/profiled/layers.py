"""The layers of each case as a table: what each is, how long it takes and how that spreads, and how they add up."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.profile.layers import LayerRow, LayerTable, Times, layer_table
from inferlens.record.layer_profile import Tensor
from inferlens.units import ABSENT, half_width, milliseconds, percent, plural
from inferlens.views.plain import plain
from inferlens.views.profiled import check, check_order, csv, json
from inferlens.views.profiled.cases import Profiled
from inferlens.views.profiled.grid import Grid, Heading, Line, ruled
from inferlens.views.profiled.sentences import by_time, layer_name, name_of, of_layers
from inferlens.views.profiled.tables import Chosen, drawn, limit

SORTS = ("time", "order")
HEADINGS = (
    Heading("#", keep=10),
    Heading("kind", keep=5, numeric=False, most=20),
    Heading("modules", keep=8, numeric=False),
    Heading("input", keep=3, numeric=False, most=24),
    Heading("output", keep=4, numeric=False, most=24),
    Heading("calls", keep=9),
    Heading("mean", "ms", keep=2),
    Heading("p50", "ms", keep=0),
    Heading("±", "95 %", keep=6),
    Heading("p95", "ms", keep=7),
    Heading("share", keep=1),
)


def render(
    cases: Sequence[Profiled],
    format: str = "table",
    *,
    sort: str = "time",
    top: int | None = None,
    width: int = 120,
    color: bool = False,
) -> str:
    """The layers of each case as text.

    Args:
        cases: profiles, named.
        format: one of ``FORMATS``.
        sort: ``time``, what takes most first, or ``order``, that of execution.
        top: how many layers, those that take most; ``None``: :data:`.tables.TOP` in tables for people, all otherwise.
        width, color: of the terminal.

    Raises:
        InferlensError: for another format or order.
    """
    check(format)
    check_sort(sort)
    chosen = [_chosen(case, sort, limit(top, format)) for case in cases]
    if format == "csv":
        return csv.layers(chosen)
    if format == "json":
        return json.layers(chosen)
    return drawn(map(grid, chosen), format, width, color)


def check_sort(sort: str) -> None:
    """Refuses an order that there is not.

    Raises:
        InferlensError: if there is no such order.
    """
    check_order("Layers", sort, SORTS)


def grid(of: Chosen[LayerTable, LayerRow]) -> Grid:
    """One case as a table."""
    table = of.table
    if isinstance(table, str):
        why = plain(f"It has no layers: {table} {of.case.profile.hint}")
        return Grid(of.headline, "", "layer", HEADINGS, (), sentences=(why,))
    account, rest = table.reconciliation, of.rest
    lines = [_line(row) for row in of.rows]
    lines += [_total(plural(len(rest), "other layer"), table.sum_of(rest))] if rest else []
    sums = [_total("in no layer", account.outside), _total("whole run", account.whole, style="bold")]
    about = f"{plural(len(table.rows), 'layer')} · {plural(account.runs, 'run')} · {table.timed} times by {table.clock}"
    layers = of.case.profile.layers
    notes = [plain(f"{what}: {why}") for what, why in (layers.absent if layers else {}).items()]
    notes += [plain(f"{warning.message} {warning.advice}") for warning in of.case.profile.warnings]
    return Grid(of.headline, plain(about), "layer", HEADINGS, ruled(lines, sums), tuple(notes), tuple(of_layers(table)))


def _chosen(case: Profiled, sort: str, top: int | None) -> Chosen[LayerTable, LayerRow]:
    """The rows that take most, in the order asked for."""
    table = layer_table(case.profile, case.unprofiled)
    if isinstance(table, str):
        return Chosen(case, table)
    rows = by_time(table.rows)[:top]
    return Chosen(case, table, rows if sort == "time" else sorted(rows, key=lambda row: row.place))


def _line(row: LayerRow) -> Line:
    texts = (
        str(row.place),
        plain(row.kind) or ABSENT,
        modules(row.modules),
        shapes(row.inputs),
        shapes(row.outputs),
        str(row.calls) if row.calls != 1 else ABSENT,
        *_numbers(row.times),
    )
    return Line.of(name_of(layer_name(row)), texts)


def _total(name: str, times: Times, style: str = "") -> Line:
    return Line.of(name, ["", "", "", "", "", "", *_numbers(times)], style)


def _numbers(times: Times | None) -> list[str]:
    if times is None:
        return [ABSENT] * 5
    share = ABSENT if times.share is None else signed_percent(times.share)
    half = half_width(abs(times.median), times.median_low, times.median_high) if times.median > 0 else ABSENT
    return [milliseconds(times.mean), milliseconds(times.median), half, milliseconds(times.p95), share]


def signed_percent(share: float) -> str:
    """A share; below zero where layers overlap."""
    return f"{'-' if share < 0 else ''}{percent(share)}"


def modules(paths: Sequence[str]) -> str:
    """Where a layer came from: the path, or all of them."""
    names = [name_of(path) if path else "the model" for path in paths]
    return ", ".join(names) or ABSENT


def shapes(tensors: Sequence[Tensor]) -> str:
    """Dimensions of tensors, ``1x64x56x56``; those that are not told are left out."""
    told = ["x".join(map(str, tensor.shape)) for tensor in tensors if tensor.shape]
    return ", ".join(told) or ABSENT
