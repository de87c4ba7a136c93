"""``inferlens fleet``: models on several machines for several objectives, by one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferlens.cli import screen
from inferlens.errors import InferlensError
from inferlens.units import plural
from inferlens.views.table import Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.execution.launching.fleet import Fleet

FILE = "A TOML file with options of a plan, objectives, and a table for each machine."
DRY_RUN = "List what would be measured on each machine; measure nothing."

MOST_LINES = 16  # of all objectives


def fleet(
    file: Annotated[Path, typer.Argument(help=FILE)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
) -> None:
    """Measure models on several machines, and show which way is fastest on each.

    The file names models, machines and what to optimize: latency, throughput or both. Records are written to
    results/OBJECTIVE/MODEL/. The same command continues where it was stopped, and tries unreachable machines again.
    """
    from inferlens.cli.bench import measured
    from inferlens.execution.launching.fleet import Fleet

    found = Fleet(file)
    if dry_run:
        return screen.document(listed(found))
    failure: InferlensError | None = None
    idle = False
    for part in found.left():
        screen.note(f"{part.machine}, {part.objective}:")
        try:
            records, interrupted = measured(part.plan)
        except InferlensError as error:
            failure = error
            screen.note(f"{part.machine} was left out: {error}")
            continue
        if interrupted:
            screen.note("Interrupted; the same command goes on from here.")
            raise typer.Exit(130)
        found.finish(part)
        idle |= bool(records) and all(each.status != "ok" for each in records)
    if failure and not found.done:
        raise failure
    show(found)
    if failure:
        screen.note("What was left out is tried again by the same command.")
    raise typer.Exit(1 if failure or idle else 0)


def show(of: Fleet) -> None:
    """Prints a table of machines for each objective; of a single machine the answer for each model and batch size."""
    from inferlens.record.record import machine_name
    from inferlens.record.store import load_records
    from inferlens.views.answer import answers
    from inferlens.views.crosstab import crosstab_document
    from inferlens.views.records import WIDTH
    from inferlens.views.rows import rows

    most = MOST_LINES // len(of.objectives)
    for objective in of.objectives:
        where = of.folder(objective)
        try:
            records = load_records(where).records
        except InferlensError:  # no machine was there
            continue
        if len(of.objectives) > 1:
            screen.text(f"{objective.capitalize()}\n")
        several = len({machine_name(each.environment) for each in records}) > 1
        if several:
            screen.document(crosstab_document(records, "machine", where=str(where), top=most))
        else:
            screen.text("\n".join(each.fit(WIDTH) for each in answers(rows(records, notes=False))[:most]))
        screen.text(f"\nMore: inferlens show {where}{' --by machine' * several}\n\n")


def listed(of: Fleet) -> Document:
    """How many cases there are on each machine, or why it is out of reach."""
    from inferlens.execution.launching.parts import launched
    from inferlens.execution.protocol import Observer

    parts = of.left()
    lines, data = [], []
    for part in {each.machine: each for each in parts}.values():
        objectives = [each.objective for each in parts if each.machine == part.machine]
        cases, able, why = 0, 0, ""
        try:
            with launched(part.plan, Observer(), None) as under_way:
                every = [each for some in under_way.cases(listed=True).values() for each in some]
            cases, able = len(every), sum(not each.refusal for each in every)
        except InferlensError as error:
            why = error.what
        lines.append(Line(part.machine, (", ".join(objectives), str(cases), str(able), why)))
        data.append({"machine": part.machine, "objectives": objectives, "cases": cases, "able": able, "reason": why})
    columns = [
        Column("", "objectives", numeric=False), Column("", "cases"), Column("", "can run"),
        Column("", "out of reach, because", numeric=False, max_width=50),
    ]  # fmt: skip
    done = f", {len(of.done)} of them done" if of.done else ""
    said = f"{plural(len(of.parts), 'part')}, each of one machine and objective{done}."
    return Document(lambda: [Table("", "machine", columns, lines), said], data=lambda: data)
