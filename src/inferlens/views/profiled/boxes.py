"""A box plot of the layers' times over the runs, one panel for each case, as SVG, PNG or one HTML file.

A box is the middle half of the runs with a line at the median; the whiskers reach from the 5th to the 95th percentile,
or over all runs where those are too few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferlens.analysis.profile.layers import LayerTable, layer_table
from inferlens.errors import InferlensError, check_choice
from inferlens.stats.quantiles import LEAST_FOR_P95
from inferlens.units import milliseconds
from inferlens.views.picture import Theme, colours_of, config, drawn
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import TOP, Chosen, ProfiledCase, by_time, chosen
from inferlens.views.profiled.layers import SORTS
from inferlens.views.profiled.sentences import layer_name, short

_WIDTH = 560
_STEP = 20
_LONGEST_NAME = 48
_LONGEST_LINE = 110


def render(cases: Sequence[ProfiledCase], format: str, *, sort: str = "time", top: int | None = None) -> str | bytes:
    """The layers of each case as boxes: text for SVG and HTML, bytes for PNG.

    Args:
        cases: profiles, named.
        format: ``svg``, ``png`` or ``html``.
        sort: ``time``, what takes most on top, or ``order``, that of execution.
        top: how many layers, those that take most; ``None`` is :data:`.cases.TOP`.

    Raises:
        InferlensError: for another order, if a library is missing, or if no layer has a time.
    """
    found = chosen_layers(cases, sort, top)
    if not found:
        raise InferlensError("There is nothing to draw: no layer has a time.", hint="inferlens layers without --plot")

    def document(theme: Theme) -> dict[str, Any]:
        import altair as alt

        panels = (_panel(of, colour) for of, colour in zip(found, colours_of(len(found)), strict=True))
        return {**alt.vconcat(*panels, spacing=40).to_dict(), "config": config(theme)}

    return drawn(document, format, found[0].case.name)


def chosen_layers(cases: Sequence[ProfiledCase], sort: str, top: int | None) -> list[Chosen[LayerTable]]:
    """The layers to draw of each case that has a panel."""
    check_choice("order of layers", sort, SORTS)
    return [chosen(case, layer_table(case.profile), by_time, sort, top or TOP) for case in cases if not why_not(case)]


def not_drawn(cases: Sequence[ProfiledCase]) -> list[str]:
    """A sentence for each case that has no box, and why."""
    return [plain(f"Not drawn: {case.name}. {why}") for case in cases if (why := why_not(case))]


def why_not(case: ProfiledCase) -> str:
    """Why a case has no panel; empty if it has one."""
    table = layer_table(case.profile)
    return table if isinstance(table, str) else "" if any(table.runs.was_timed) else "No layer has a time."


def _panel(of: Chosen[LayerTable], colour: str) -> Any:
    """The boxes of one case, in milliseconds."""
    import altair as alt

    assert not isinstance(of.table, str)
    runs, rows = of.table.runs, [row for row in of.rows if row.times]
    enough = runs.count >= LEAST_FOR_P95
    ends = [0.05, 0.25, 0.5, 0.75, 0.95] if enough else [0.0, 0.25, 0.5, 0.75, 1.0]
    values: list[dict[str, Any]] = []
    for row in rows:
        box = [float(each) * 1e3 for each in np.quantile(runs.layers[row.place - 1], ends)]
        lower, middle, upper = (milliseconds(each / 1e3) for each in box[1:4])
        values.append(
            {
                **dict(zip(("low", "lower", "middle", "upper", "high"), box, strict=True)),
                "name": f"{short(layer_name(row), _LONGEST_NAME)}  #{row.place}",  # shortened names may be equal
                "kind": plain(row.kind)[:_LONGEST_NAME],
                "text": f"{middle} ({lower} to {upper})",
            }
        )
    data = alt.Data(values=values)
    y = alt.Y("name:N", sort=[each["name"] for each in values], title=None)
    scale = alt.Scale(domain=[0, max(each["high"] for each in values) * 1.05 or 1.0], nice=False)
    tooltip = [alt.Tooltip(f"{name}:N", title=name) for name in ("name", "kind")]
    tooltip.append(alt.Tooltip("text:N", title="median (middle half), ms"))
    low, lower, middle = (alt.X(f"{end}:Q", scale=scale, title="time in each run (ms)")
                          for end in ("low", "lower", "middle"))  # fmt: skip
    box = alt.Chart(data).mark_bar(height=alt.RelativeBandSize(0.6), color=colour)
    layered = alt.layer(
        alt.Chart(data).mark_rule(strokeWidth=1.2).encode(x=low, x2="high:Q", y=y),
        box.encode(x=lower, x2="upper:Q", y=y, tooltip=tooltip),
        alt.Chart(data).mark_tick(size=_STEP * 0.6, thickness=2).encode(x=middle, y=y, tooltip=tooltip),
    )
    whiskers = "5th to 95th percentile" if enough else "all runs"
    about = f"{of.case.headline} · {len(rows)} of {len(of.table.rows)} layers · {runs.count} runs"
    subtitle = [
        short(about, _LONGEST_LINE),
        f"Boxes: the middle half of the runs, and the median. Whiskers: {whiskers}.",
    ]
    title = alt.TitleParams(of.case.name, subtitle=subtitle, fontSize=16, anchor="start", frame="bounds")
    return layered.properties(width=_WIDTH, height=alt.Step(_STEP), title=title)
