"""``inferlens tune``: the fastest way with right outputs, proven, and ready to use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from inferlens import units
from inferlens.cli import options, screen
from inferlens.cli.bench import INTERRUPTED, read_plan
from inferlens.errors import check_choice
from inferlens.spec.commands import own_options
from inferlens.views.table import FORMATS, Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.execution.expand import Planned
    from inferlens.execution.tuning.space import Tried
    from inferlens.spec.case import Case
    from inferlens.spec.plan import Plan

MOST_LISTED = 16  # families of --dry-run, so that all of it fits on a screen


@options.takes("tune")
def tune(
    model: options.Models,
    *,
    format: options.Format = "table",
    json: options.Json = False,
    file: options.File = None,
    dry_run: options.DryRun = False,
    **words: Any,
) -> None:
    """Find the fastest way with right outputs among all backends and their options.

    Try what each backend recommends, then what the profiles of fast ways suggest, then the most promising options. The
    few that may be the fastest are built again and race each other, the best way of bench and the reference. The winner
    is written to results/MODEL/best, ready for inferlens.load. The same command continues where it was stopped.
    """
    from inferlens.cli.progress import Bar
    from inferlens.execution.tuning.several import requested, run_each
    from inferlens.execution.tuning.space import tried
    from inferlens.views.raced.tuned import tunings_document

    format = "json" if json else format
    check_choice("format", format, FORMATS)  # refused before hours of measuring
    screen.format_of("table", file)
    own, others = own_options("tune", words)
    request = requested(read_plan(model, others), own["objective"], own["within"], own["budget"])
    space = tried(own["space"], own["only"], own["without"], request.measures)
    if dry_run:
        screen.document(listed(request.plan, space), format, file=file)
        return
    with Bar(screen.errors()) as bar:
        try:
            tunings = run_each(request, space, bar)
        except KeyboardInterrupt:
            screen.note(INTERRUPTED)
            raise typer.Exit(130) from None
    screen.document(tunings_document(tunings), format, file=file)
    if not any(tuning.best for tuning in tunings):
        raise typer.Exit(1)


def listed(plan: Plan, what: Tried) -> Document:
    """What would be tried."""
    from dataclasses import replace

    from inferlens.execution.launching.estimate import estimator
    from inferlens.execution.tuning.several import spaces
    from inferlens.execution.tuning.space import combinations, size

    every = spaces(plan, what)
    families = [(kind, space, each) for kind, space in every.items() for each in space.families]
    left = [(kind, each) for kind, space in every.items() for each in space.refused]
    seconds = estimator([each.found.name for _, _, each in families], plan)
    columns = [Column("", "candidates"), Column("", "each"), Column("", "cannot run, because", numeric=False, most=50)]
    several = len({each.case.model for _, _, each in families}) > 1

    def name(kind: str, each: Planned) -> str:
        return " ".join(filter(None, [kind, each.found.name * several, each.case.label]))

    sizes = [size(replace(space, families=(each,))) for _, space, each in families]
    lines = [
        Line(name(kind, each), (f"{count:,}", units.about(seconds(each.case)), ""))
        for count, (kind, _, each) in zip(sizes, families, strict=True)
    ]
    lines += [Line(name(kind, each), ("", "", each.refusal.what if each.refusal else "")) for kind, each in left]
    measured = "; --budget decides how many of them are measured" if sum(sizes) > 1 else ""
    said = f"{units.plural(sum(sizes), 'candidate')} in all{measured}."
    more = [f"{len(lines) - MOST_LISTED} more rows: --json."] if len(lines) > MOST_LISTED else []
    table = Table("What would be tried", "family", columns, lines[:MOST_LISTED], notes=more, sentences=[said])
    refused = [{"case": each.case, "refusal": str(each.refusal or "")} for _, each in left]

    def candidates() -> Iterator[Case]:
        return (case for _, space, each in families for case in combinations(each.case, space))

    return Document(
        lambda: [table],
        data=lambda: {
            "schema": "inferlens.space/1",
            "candidates": [{"case": case, "seconds": seconds(case)} for case in candidates()],
            "refused": refused,
        },
        csv=lambda: (["candidate", "seconds"], [[case.label, seconds(case)] for case in candidates()]),
        title="What would be tried",
    )
