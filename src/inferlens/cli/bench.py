"""``inferlens bench``: measure models on the backends of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens.cli import options

if TYPE_CHECKING:
    from inferlens.execution.expand import Planned
    from inferlens.record.record import Record
    from inferlens.spec.plan import Plan
    from inferlens.views.table import Document

DEVICE = "cpu, cuda, with commas. [dim]Default: cuda if it works.[/dim]"
IO = "Where a call begins and ends: device, or host with copies in and out as part of it, with commas."
REBUILD = "Build anew what was built and kept before, such as engines."
COLD = "Flush the device's cache before each latency sample; throughput is not measured then."
DEPTH = "Calls in flight at a time when throughput is measured, with commas. [dim]Default: no limit.[/dim]"
MODE = "What to measure: latency, throughput or both."
REPEATS = "Processes that each case is measured in, in turns with the other cases."
STOP = "When a series ends: half-width, when the median's interval is narrow, or plateau, when noise no longer changes."
HALF_WIDTH = "How far the median's 95 % interval may reach to either side of it."
ITERATIONS = "Latency samples of each case. [dim]Default: as --stop says.[/dim]"
SECONDS = "Time for the latency samples. [dim]Default: as --stop says.[/dim]"
OWN = ("reference", "format", "json", "bars", "file", "dry_run")  # options that are no words of a plan


def bench(
    model: options.Models,
    backend: options.Backends = None,
    precision: options.Precisions = None,
    batch: options.Batches = None,
    device: Annotated[str | None, typer.Option(help=DEVICE)] = None,
    threads: options.Threads = None,
    io: Annotated[str | None, typer.Option(help=IO, show_default="device")] = None,
    cold: Annotated[bool | None, typer.Option("--cold", help=COLD)] = None,
    rotate: options.Rotate = None,
    depth: Annotated[str | None, typer.Option(help=DEPTH)] = None,
    option: options.Options = None,
    input: options.Inputs = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    rebuild: Annotated[bool | None, typer.Option("--rebuild", help=REBUILD)] = None,
    seed: options.Seed = None,
    mode: Annotated[str | None, typer.Option(help=MODE, show_default="both")] = None,
    repeats: Annotated[int | None, typer.Option(help=REPEATS, show_default="1")] = None,
    stop: Annotated[str | None, typer.Option(help=STOP, show_default="half-width")] = None,
    half_width: Annotated[str | None, typer.Option(help=HALF_WIDTH, show_default="1%")] = None,
    iterations: Annotated[int | None, typer.Option(help=ITERATIONS)] = None,
    seconds: Annotated[str | None, typer.Option(help=SECONDS)] = None,
    max_time: options.MaxTime = None,
    warmup: options.Warmup = None,
    timeout: options.Timeout = None,
    output: Annotated[str | None, typer.Option(help="Folder of the records.", show_default="results")] = None,
    reference: options.Reference = None,
    format: Annotated[str, typer.Option(help=options.FORMAT)] = "table",
    json: options.Json = False,
    bars: options.Bars = False,
    file: options.File = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cases and run none.")] = False,
) -> None:
    """Measure a model on every backend that works here.

    Each case runs in a process of its own; its record is kept under results/MODEL/ as soon as it is done. Axes given
    with commas multiply into cases. A table compares them, and one sentence says what was fastest.
    """
    words = {name: value for name, value in locals().items() if name not in OWN}
    from inferlens.cli import screen
    from inferlens.cli.progress import Bar
    from inferlens.execution.bench import run
    from inferlens.execution.survey import cases_of

    format = "json" if json else format
    plan, interrupted = read_plan(words), False
    screen.check(format)  # an unknown format is refused before hours of measuring
    screen.format_of("table", file)
    if dry_run:
        screen.document(listed(cases_of(plan)), "json" if json else "table", file=file)
        return
    with Bar(screen.errors(), reference) as bar:
        try:
            run(plan, bar)
        except KeyboardInterrupt:
            interrupted = True
    report(plan, bar.records, interrupted, format, reference, bars=bars, file=file)


def report(
    plan: Plan, records: Sequence[Record], interrupted: bool, format: str, reference: str | None, **how: Any
) -> None:
    """Shows what was measured and says where it is kept.

    Raises:
        typer.Exit: if it was interrupted, or nothing ran.
    """
    from inferlens.cli import screen
    from inferlens.record.store import safe_name

    if records:
        screen.show(records, format, reference, **how)
        folders = sorted({str(Path(plan.output) / safe_name(record.model.name)) for record in records})
        screen.note(f"Kept in {', '.join(folders)}. Look again: inferlens show {folders[0]}")
    if interrupted:
        screen.note(f"Interrupted; {len(records)} measured cases are kept.")
        raise typer.Exit(130)
    if not any(record.status == "ok" for record in records):
        raise typer.Exit(1)


def read_plan(words: dict[str, Any]) -> Plan:
    """The plan of the command line, or of the file it names, in which words of the command line take precedence."""
    from inferlens.errors import InferlensError
    from inferlens.spec.plan import Plan

    files = [name for name in words["model"] if name.endswith(".toml")]
    if not files:
        return Plan.from_words(words)
    if len(words["model"]) > 1:
        raise InferlensError("A plan file names its models itself.", hint=f"inferlens bench {files[0]}")
    said = {name: value for name, value in words.items() if value not in (None, []) and name != "model"}
    return Plan.from_words({**Plan.from_file(Path(files[0])), **said})


def listed(cases: Sequence[Planned]) -> Document:
    """What would run, and what could not."""
    from inferlens.views.table import Column, Document, Line, Table

    why = [str(each.refusal or "") for each in cases]
    columns = [Column("", title, numeric=False, fold=True) for title in ("case", "cannot run")]
    rows = [Line(each.case.model, (each.case.label, reason)) for each, reason in zip(cases, why, strict=True)]
    said = f"{len(cases)} cases, {why.count('')} of them can run here."
    data = [{"case": each.case, "refusal": reason} for each, reason in zip(cases, why, strict=True)]
    return Document(lambda: [Table("", "model", columns, rows, fold=True), said], data=lambda: data)
