"""What a profile comes to, in plain sentences: where the time goes, what is in no layer, what profiling cost."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.profile.layers import LayerRow, LayerTable, ProfilingCost, Reconciliation
from inferlens.units import milliseconds, percent, plural, ratio, ratio_range
from inferlens.views.plain import plain

LONGEST_NAME = 60
FASTER_WHEN_PROFILED = "Below 1x the two processes differ by more than profiling costs."
_FEW = 5


def of_layers(table: LayerTable) -> list[str]:
    """Which layers take most, how they add up, and what profiling cost."""
    return [*_most(table), added_up(table.reconciliation), cost(table.reconciliation)]


def by_time(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """The layers that take most first; those without a time last."""
    return sorted(rows, key=lambda row: -1.0 if row.times is None else row.times.typical, reverse=True)


def name_of(name: str) -> str:
    """A name in a sentence or a cell: on one line, never empty."""
    return plain(name) or "(no name)"


def layer_name(row: LayerRow) -> str:
    """What a layer is called; the model itself, which eager PyTorch executes too, has the empty path."""
    return "the model" if not row.name and row.modules == ("",) else row.name


def short(name: str) -> str:
    """A name in a sentence, not longer than a sentence bears."""
    text = name_of(name)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME // 2]}…{text[-LONGEST_NAME // 2 :]}"


def added_up(account: Reconciliation) -> str:
    """How the layers and the whole fit together."""
    layers, whole = milliseconds(account.layers.median), milliseconds(account.whole.median)
    outside = account.outside
    if account.overlaps:
        return (
            f"Layers add up to {layers} ms, more than the {whole} ms of the whole run (medians): some ran at the same "
            "time, or what timed them cost time, so shares add up to more than 100 %."
        )
    share = "" if outside.share is None else f" ({percent(max(outside.share, 0.0))})"
    left = milliseconds(max(outside.median, 0.0))
    return f"Layers add up to {layers} ms of {whole} ms (medians); {left} ms{share} were in no layer."


def cost(account: ProfilingCost) -> str:
    """What profiling cost."""
    if account.cost is None:
        return "What profiling cost is not known: there is no record of untouched calls beside the profile."
    interval = f" ({ratio_range(account.cost_low, account.cost_high)})" if account.cost_low is not None else ""
    whole, before = milliseconds(account.whole.median), milliseconds(account.unprofiled)
    sentence = f"Profiling made a call {ratio(account.cost)}{interval} as long: {whole} ms instead of {before} ms."
    return sentence if account.cost >= 1 else f"{sentence} {FASTER_WHEN_PROFILED}"


def _most(table: LayerTable) -> list[str]:
    rows = [row for row in by_time(table.rows) if row.times and row.times.typical > 0]
    if not rows or rows[0].times is None or rows[0].times.share is None:
        return ["No layer has a time."]
    first = f"{short(layer_name(rows[0]))} takes most: {percent(rows[0].times.share)} of a run"
    several = table.sum_of(rows[:_FEW]).share
    if len(rows) <= _FEW or several is None:
        return [f"{first}."]
    return [f"{first}; the {_FEW} that take most of {plural(len(table.rows), 'layer')} take {percent(several)}."]
