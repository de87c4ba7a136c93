"""A tuning as a chart: what is to be best against the accuracy or the error, and against memory, of all that was timed.

Accuracy takes the place of the error where it is known, as it says what an error costs.

The line of each panel joins what nothing else beats in both. The winner, the best way with its defaults and the
reference are named; what breaks a limit is hollow, and what failed is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inferlens.analysis.tuning import WINNER, CandidateFacts, TuningReport, candidate_facts
from inferlens.errors import InferlensError
from inferlens.spec.case import short_name
from inferlens.units import error_size, mebibytes, plural, ratio, score
from inferlens.views import picture
from inferlens.views.chart import LETTER, LETTER_OF_TITLE, WIDTH
from inferlens.views.picture import Theme, colours_of, finished, stacked, title
from inferlens.views.plain import plain, without_middle
from inferlens.views.raced.scatter import ERROR, MEMORY, PanelAxis, least_error, of_accuracy, panel
from inferlens.views.raced.tuned import answer_of, finals_of
from inferlens.views.renderers.terminal import wrap

HEIGHT, BETWEEN = 320, 70
_UNITS = {"s": ("ms", 1e3), "J": ("mJ", 1e3), "B": ("MiB", 2.0**-20)}  # of measures, as axes have them
_MIB = 2.0**-20


def render(tuned: TuningReport, format: str, theme: str = "auto", reference: str | None = None) -> str | bytes:
    """The chart, as :func:`inferlens.views.picture.drawn`; raises as :func:`spec`."""
    picture.check(format, "--output tuning.svg", theme)
    return picture.drawn(spec(tuned, reference), format, _model(tuned), theme)


def spec(
    tuned: TuningReport, reference: str | None = None, colours: Mapping[str, str] | None = None
) -> Callable[[Theme], dict[str, Any]]:
    """What makes the Vega-Lite document for a theme; ``colours`` are those of backends, by their names.

    Raises:
        InferlensError: if nothing was timed, or ``reference`` names no row of the finals.
    """
    facts = candidate_facts(tuned)
    timed = [one for one in facts if one.objective is not None]
    if not any(one.error is not None or one.memory for one in timed):
        raise InferlensError("There is nothing to draw: nothing was timed.", hint="inferlens show, which says why")
    roles = _roles(tuned, facts, reference)
    shades = colours or colours_of(sorted({plain(one.case.backend_label) for one in timed}))
    return lambda theme: _chart(tuned, timed, facts, roles, theme, shades)


def _model(tuned: TuningReport) -> str:
    return plain(short_name(tuned.trials[0].records[0].case.model))


def _roles(tuned: TuningReport, facts: Sequence[CandidateFacts], reference: str | None) -> dict[str, list[str]]:
    """What is named, by the case's digest."""
    roles: dict[str, list[str]] = {}
    if facts[0].outcome == WINNER:
        roles[facts[0].case.digest] = ["winner"]
    usual = next((one.case for one in facts if one.candidate.final and not one.candidate.settings), None)
    if usual:
        roles.setdefault(usual.digest, []).append("best defaults")
    base = next((row.label for row in finals_of(tuned, reference) if row.is_reference), "")
    for one in facts:
        if base and one.case.label == base:
            roles.setdefault(one.case.digest, []).append("reference")
    return roles


def _chart(
    tuned: TuningReport,
    timed: Sequence[CandidateFacts],
    facts: Sequence[CandidateFacts],
    roles: dict[str, list[str]],
    theme: Theme,
    colours: Mapping[str, str],
) -> dict[str, Any]:
    """The Vega-Lite document."""
    values = _values(tuned, timed, roles)
    measure = tuned.objective.measure
    across = PanelAxis("x", f"{measure.title} ({_UNITS.get(measure.unit, (measure.unit,))[0]})", less=measure.less)
    known = any(one["accuracy"] is not None for one in values)
    metrics = [(one.metric, one.accuracy.is_share) for one in timed if one.accuracy]
    up = [
        of_accuracy(metrics) if known else ERROR,
        replace(MEMORY, title="peak memory, of processes that did not export (MiB)"),
    ]
    up = [
        panel_axis
        for panel_axis in up
        if panel_axis.key != tuned.objective.name and any(one[panel_axis.key] is not None for one in values)
    ]
    width = (WIDTH - BETWEEN * (len(up) - 1)) / max(len(up), 1)
    tooltip = (
        ("name", "candidate"), ("said", measure.title), ("speedup", "vs the winner"), ("error_said", "error"),
        *[("accuracy_said", "accuracy")] * known, ("memory_said", "memory (MiB)"), ("came", "what came of it"),
    )  # fmt: skip
    panels = [panel(values, across, panel_axis, theme, (width, HEIGHT), tooltip, colours) for panel_axis in up]
    room = WIDTH + 2 * BETWEEN  # with what stands beside the axes
    (answer, *_), about = answer_of(tuned, finals_of(tuned)), without_middle(_about(tuned, facts), int(room / LETTER))
    said = wrap(plain(f"{_model(tuned)}: {answer.replace('  ', ' · ')}"), int((WIDTH + BETWEEN) / LETTER_OF_TITLE))
    return finished(stacked(panels, across=True, spacing=BETWEEN, title=title(said, about)), theme)


def _about(tuned: TuningReport, facts: Sequence[CandidateFacts]) -> str:
    """One line beneath the title: of what it is, and what is not drawn."""
    untimed = sum(one.objective is None for one in facts)
    row = finals_of(tuned)[0]
    words = [plain(row.inputs.replace(":float32", "")), plain(row.device_name)]
    words.append(f"{len(facts):,} of {plural(tuned.size, 'candidate')} tried")
    words += [f"{untimed} that failed or were wrong are not drawn"] if untimed else []
    return " · ".join([*words, "dashed: nothing is better in both"])


def _values(tuned: TuningReport, timed: Sequence[CandidateFacts], roles: dict[str, list[str]]) -> list[dict[str, Any]]:
    """What is drawn of each candidate."""
    measure = tuned.objective.measure
    scale = _UNITS.get(measure.unit, ("", 1.0))[1]
    least = least_error([one.error for one in timed])
    values = []
    for one in timed:
        real = one.accuracy
        role = roles.get(one.case.digest, [])
        values.append(
            {
                "name": plain(one.case.way),
                "x": (one.objective or 0.0) * scale,
                "said": measure.show(one.objective),
                "error": None if one.error is None else max(one.error, least),
                "error_said": error_size(one.error),
                "accuracy": real and real.value * (100 if real.is_share else 1),
                "accuracy_said": f"{one.metric} {score(real.value, share=real.is_share)}" if real else "",
                "memory": None if one.memory is None else one.memory * _MIB,
                "memory_said": mebibytes(one.memory),
                "speedup": ratio(one.candidate.speedup),
                "colour": plain(one.case.backend_label),
                "precision": one.case.precision,
                "role": ", ".join(role),
                "label": ", ".join(role),
                "wrong": False,
                "filled": not one.candidate.rejection,
                "came": without_middle(plain(one.outcome), 80),
            }
        )
    return values
