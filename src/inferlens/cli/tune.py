"""``inferlens tune``: the fastest way with right outputs, proven, and ready to use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from inferlens import units
from inferlens.cli import options, screen
from inferlens.cli.bench import INTERRUPTED
from inferlens.errors import check_choice
from inferlens.spec.commands import own_options
from inferlens.spec.plan import read_plan
from inferlens.views.table import FORMATS, Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.execution.protocol import PlannedCase
    from inferlens.execution.tuning.space import SearchSelection
    from inferlens.spec.case import Case
    from inferlens.spec.plan import Plan

MOST_LISTED = 16  # families of --dry-run, so that all of it fits on a screen


@options.takes()
def tune(
    model: options.Models, *, format: str = "table", file: Path | None = None, dry_run: bool = False, **words: Any
) -> None:
    """Find the fastest way with right outputs among all backends and their options.

    Try what each backend recommends, then what the profiles of fast ways suggest, then the most promising options. The
    few that may be the fastest are built again and race each other, the best way of bench and the reference. The winner
    is written to results/MODEL/best, ready for inferlens.load. The same command continues where it was stopped.
    """
    from inferlens.cli.progress import Bar
    from inferlens.execution.commands import run_tune, tune_request
    from inferlens.views.tuning import tunings_document

    check_choice("format", format, FORMATS)  # refused before hours of measuring
    screen.format_of("table", file)
    tune_words, plan_words = own_options("tune", words)
    request, selection = tune_request(read_plan(model, plan_words), tune_words)
    if dry_run:
        screen.document(listed_candidates(request.plan, selection), format, file=file)
        return
    try:
        with Bar(screen.errors()) as bar:
            tunings = run_tune(request, selection, bar)
    except KeyboardInterrupt:
        screen.note(INTERRUPTED)
        raise typer.Exit(130) from None
    screen.document(tunings_document(tunings), format, file=file)
    if not any(tuning.best for tuning in tunings):
        raise typer.Exit(1)


def listed_candidates(plan: Plan, selection: SearchSelection) -> Document:
    """Return the candidates that a tuning would try."""
    from dataclasses import replace

    from inferlens.execution.cases import estimator
    from inferlens.execution.commands import spaces_by_kind
    from inferlens.execution.tuning.space import combinations, size

    spaces = spaces_by_kind(plan, selection)
    families = [(kind, space, family) for kind, space in spaces.items() for family in space.families]
    refused = [(kind, planned) for kind, space in spaces.items() for planned in space.refused]
    seconds = estimator([family.model.name for _, _, family in families], plan)
    reason = Column("reason", "cannot run, because", numeric=False, max_width=50)
    columns = [Column("candidates", "candidates"), Column("each", "each"), reason]
    several = len({family.case.model for _, _, family in families}) > 1

    def name(kind: str, planned: PlannedCase) -> str:
        return " ".join(filter(None, [kind, planned.model.name * several, planned.case.label]))

    total, lines = 0, []
    for kind, space, family in families:
        count = size(replace(space, families=(family,)))
        total += count
        lines.append(Line(name(kind, family), (f"{count:,}", units.about(seconds(family.case)), "")))
    for kind, planned in refused:
        lines.append(Line(name(kind, planned), ("", "", planned.refusal.what if planned.refusal else "")))
    measured = "; --budget decides how many of them are measured" if total > 1 else ""
    counts = f"{units.plural(total, 'candidate')} in all{measured}."
    more = [f"{len(lines) - MOST_LISTED} more rows: --json."] if len(lines) > MOST_LISTED else []
    table = Table("What would be tried", "family", columns, lines[:MOST_LISTED], notes=more, sentences=[counts])

    def candidates() -> Iterator[Case]:
        return (case for _, space, family in families for case in combinations(family.case, space))

    return Document(
        lambda: [table],
        data=lambda: {
            "schema": "inferlens.space/1",
            "candidates": [{"case": case, "seconds": seconds(case)} for case in candidates()],
            "refused": [{"case": planned.case, "refusal": str(planned.refusal or "")} for _, planned in refused],
        },
        rows=lambda: ({"candidate": case.label, "seconds": seconds(case)} for case in candidates()),
        fields=("candidate", "seconds"),
        title="What would be tried",
    )
