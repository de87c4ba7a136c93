"""``inferlens compare``: which cases became faster or slower, and whether that is certain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BASE = "What to compare with: a folder with records, at any height, or a record file."
UNLIKE = "Compare although machines, drivers or inputs differ."
FORMAT = "table, markdown, html, github (annotations of a workflow), junit or json."
OUTPUT = "A file for it; the table is printed all the same."


def compare(
    base: Annotated[Path, typer.Argument(help=BASE)],
    candidate: Annotated[Path, typer.Argument(help="What is compared with it: the same.")],
    metric: Annotated[str, typer.Option(help="latency, throughput or 'GPU time'.")] = "latency",
    threshold: Annotated[str, typer.Option(help="The smallest difference that matters.")] = "2%",
    level: Annotated[str, typer.Option(help="How sure all verdicts together are to be.")] = "95%",
    unlike: Annotated[bool, typer.Option("--unlike", help=UNLIKE)] = False,
    format: Annotated[str, typer.Option("--format", "-f", help=FORMAT)] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", help=OUTPUT, show_default=False)] = None,
) -> None:
    """Compare two sets of records case by case: FASTER, SAME, SLOWER, UNDECIDED or DID NOT RUN.

    Of each case the latest run counts, and its repeats are its processes.

    Exit codes: 1 if a case is slower; else 4 if one did not run on both sides; else 3 if one is undecided; else 0.
    Bad input, and machines that differ, are 2.
    """
    from inferlens.analysis.compare.cases import compare as compared_cases
    from inferlens.cli import screen
    from inferlens.cli.plot import write
    from inferlens.errors import check_choice
    from inferlens.units import parse_share
    from inferlens.views.compared import FORMATS, render

    check_choice("format", format, FORMATS)
    compared = compared_cases(
        base,
        candidate,
        metric=metric,
        threshold=parse_share(threshold),
        level=parse_share(level),
        unlike=unlike,
    )
    screen.notes(compared.problems)
    if output:
        write(output, render(compared, format))
        screen.note(f"Wrote {output}.")
    screen.text(render(compared, "table" if output else format, **screen.terminal()))
    raise typer.Exit(compared.exit_code)
