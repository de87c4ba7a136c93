"""What the kernels of a case come to, in plain sentences: what takes most, how busy the GPU is, tensor cores, cost."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.profile.kernels import GpuAccount, KernelRow, KernelTable, short_name
from inferlens.units import duration, milliseconds, percent, plural
from inferlens.views.profiled.sentences import cost, short

_FEW = 5
_OVERLAP = 0.005  # of the busy time: less comes from the clock's rounding


def of_kernels(table: KernelTable) -> list[str]:
    """Which kernels take most, how busy the GPU was, who used tensor cores, what is traced, what profiling cost."""
    account = table.account
    return [*_most(table), _busy(account), _tensor_cores(account), _traced(account), cost(account)]


def by_time(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """The rows that take most first; those without a time last."""
    return sorted(rows, key=lambda row: -1.0 if row.times is None else row.times.typical, reverse=True)


def _most(table: KernelTable) -> list[str]:
    rows = [row for row in by_time(table.rows) if row.times and row.times.typical > 0]
    if not rows or rows[0].of_busy is None:
        return ["No kernel has a time."]
    first = rows[0]
    calls = f" in {plural(first.calls, 'call')}" if first.calls > 1 else ""
    said = f"{short(short_name(first.name))} takes most: {percent(first.of_busy or 0.0)} of the GPU's busy time{calls}"
    several = table.share_of_busy(table.sum_of(rows[:_FEW]))
    if len(rows) <= _FEW or several is None:
        return [f"{said}."]
    kinds = plural(len(table.rows), "name" if table.by == "name" else "kernel")
    return [f"{said}; the {_FEW} that take most of {kinds} take {percent(several)}."]


def _busy(account: GpuAccount) -> str:
    """How long the GPU was busy and idle, and how often something was launched."""
    whole, busy, idle = account.whole, account.busy, account.idle
    share = f" ({percent(idle.typical / whole.typical)})" if whole.typical > 0 else ""
    said = (
        f"The GPU was busy for {milliseconds(busy.median)} ms of {milliseconds(whole.median)} ms (medians) and idle "
        f"for {milliseconds(max(idle.median, 0.0))} ms{share}"
    )
    launches = account.launches
    each = f", one each {duration(whole.median / launches)}" if launches > 1 else ""
    said += f"; {plural(launches, 'launch') if launches == 1 else f'{launches:,} launches'} a run{each}."
    if -account.overlap.typical > _OVERLAP * busy.typical > 0:
        said += f" Kernels add up to {milliseconds(account.kernels.median)} ms: some ran side by side."
    return said


def _tensor_cores(account: GpuAccount) -> str:
    used, unused = account.with_tensor_cores, account.without_tensor_cores
    rest = 1.0 - used - unused
    said = (
        f"Kernels that use tensor cores have {percent(used)} of all kernels' time, those that do not {percent(unused)}"
    )
    return f"{said}; of {percent(rest)} the names do not tell." if rest > 0.0005 else f"{said}."


def _traced(account: GpuAccount) -> str:
    return f"Traced to modules: {percent(account.attributed)} of all kernels' time."
