"""``inferlens bench``: measure models on the backends of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens import units
from inferlens.cli import options, screen
from inferlens.errors import InferlensError
from inferlens.views.table import Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.record.record import Record
    from inferlens.spec.plan import Plan

DEVICE = "cpu or cuda, or both with a comma. [dim]Default: cuda if it works.[/dim]"
IO = "Where a call begins and ends, with commas: device, or host, which includes copies of inputs and outputs."
REBUILD = "Build again in each process, so that intervals cover the differences between builds."
COLD = "Flush the device's cache before each latency sample; throughput is not measured."
DEPTH = "Calls in flight at most when throughput is measured, with commas. [dim]Default: no limit.[/dim]"
MODE = "What to measure: latency, throughput or both."
QUICK = "Measure each case once, in one process, for one second."
THOROUGH = "Measure longer, with ten rounds or more for the fastest ways, as far as --within allows."
WITHIN = "Time for the rounds between the fastest ways, after each case was measured once; 30m with --thorough."
THRESHOLD = "The smallest difference that matters. Ways that are closer are called equally fast."
REPEATS = "Measure each case in exactly this many processes, in turns with the other cases."
HALF_WIDTH = "A series ends when the 95 % interval of the median reaches no further to either side."
ITERATIONS = "Latency samples of each case. [dim]Default: as many as --half-width needs.[/dim]"
SECONDS = "Time for the latency samples of each case. [dim]Default: as long as --half-width needs.[/dim]"
SHOWN = ("wide", "columns", "top", "bars", "file")  # options of what is shown
OWN = ("format", "json", "dry_run", "nvtx", *SHOWN)  # options that are no words of a plan
DRY_RUN = "List the cases and how long they may take; run nothing."
LINES_OF_A_REASON = 2  # why cases cannot run
MOST_NAMED = 3  # cases that cannot run for one reason
MOST_LISTED = 18  # cases of --dry-run, so that all of it fits on a screen


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
    python: options.Pythons = None,
    option: options.Options = None,
    input: options.Inputs = None,
    dim: options.Dims = None,
    weights: options.Weights = None,
    calibration: options.Calibration = None,
    keep: options.Keep = None,
    accuracy: options.Accuracy = None,
    trust: options.Trust = None,
    rebuild: Annotated[bool | None, typer.Option("--rebuild", help=REBUILD)] = None,
    seed: options.Seed = None,
    mode: Annotated[str | None, typer.Option(help=MODE, show_default="both")] = None,
    quick: Annotated[bool | None, typer.Option("--quick", help=QUICK)] = None,
    thorough: Annotated[bool | None, typer.Option("--thorough", help=THOROUGH)] = None,
    within: Annotated[str | None, typer.Option(help=WITHIN, show_default="1m")] = None,
    threshold: Annotated[str | None, typer.Option(help=THRESHOLD, show_default="2%")] = None,
    repeats: Annotated[int | None, typer.Option(help=REPEATS)] = None,
    half_width: Annotated[str | None, typer.Option(help=HALF_WIDTH, show_default="1%")] = None,
    iterations: Annotated[int | None, typer.Option(help=ITERATIONS)] = None,
    seconds: Annotated[str | None, typer.Option(help=SECONDS)] = None,
    max_time: options.MaxTime = None,
    warmup: options.Warmup = None,
    timeout: options.Timeout = None,
    wait: options.Wait = None,
    devices: options.Devices = None,
    ray: options.Ray = None,
    on: options.On = None,
    output: Annotated[str | None, typer.Option(help="Folder of the records.", show_default="results")] = None,
    reference: options.Reference = None,
    format: Annotated[str, typer.Option(help=options.FORMAT)] = "table",
    json: options.Json = False,
    wide: options.Wide = False,
    columns: options.Columns = None,
    top: options.Top = None,
    bars: options.Bars = False,
    file: options.File = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    nvtx: options.Nvtx = False,
) -> None:
    """Find out which way of running a model is fastest here.

    Values with commas are combined into cases. Each case is measured once, in its own process. Those that may be the
    fastest are then measured in rounds, in turns, until one has won. Records are written to results/MODEL/ at once.
    """
    words = {name: value for name, value in locals().items() if name not in OWN}
    format, plan = "json" if json else format, read_plan(words)
    screen.check(format, columns)  # what is unknown is refused before hours of measuring
    screen.format_of("table", file)
    if dry_run:
        return screen.document(listed(plan), "json" if json else "table", file=file)
    return report(plan, *measured(plan), format, wide=wide, columns=columns, top=top, bars=bars, file=file)


def measured(plan: Plan) -> tuple[list[Record], bool]:
    """The records of a plan, and whether it was interrupted."""
    from inferlens.cli.progress import Bar
    from inferlens.execution.bench import run

    with Bar(screen.errors(), rounds=not plan.repeats) as bar:
        try:
            run(plan, bar)
        except KeyboardInterrupt:
            return bar.records, True
    return bar.records, False


def report(plan: Plan, records: Sequence[Record], interrupted: bool, format: str, **how: Any) -> None:
    """Shows what was measured and says where it is kept; exits if it was interrupted, or nothing ran."""
    from inferlens.record.store import safe_name
    from inferlens.spec.plan import Plan, Where

    if records:
        folders = sorted({str(Path(plan.output) / safe_name(record.model.name)) for record in records})
        where = folders[0] if len(folders) == 1 else plan.output
        into = "" if plan.output == Plan(model=()).output else plan.output
        screen.show(records, format, plan.reference or None, where=where, into=into, **how)
        if format == "table" and not (plan.backend or plan.option):
            screen.notes(filter(None, [not_raced(plan, records)]))
    if interrupted:
        goes_on = "; the same command goes on from here" * (plan.where != Where())
        screen.note(f"Interrupted; what was measured is kept{goes_on}.")
        raise typer.Exit(130)
    if not any(record.status == "ok" for record in records):
        raise typer.Exit(1)


def not_raced(plan: Plan, records: Sequence[Record]) -> str:
    """Return what a race of the default ways leaves out, and the options that include it."""
    from inferlens.backends import BACKENDS
    from inferlens.spec.case import HALF

    cases = [record.case for record in records if record.status == "ok"]
    known = plan.precision or any(case.precision != "fp32" for case in cases)
    lower = () if known else HALF[all(case.device == "cpu" for case in cases) :]  # in fp16 a CPU is slow
    slow = [(name, BACKENDS.get(name).slow_variants) for name in dict.fromkeys(case.backend for case in cases)]
    left = [f"{', '.join(lower)} (--precision {','.join(lower)})"] * bool(lower)
    devices = {case.device for case in cases}
    left += [f"{name} (--backend)" for name in BACKENDS.names() if devices & {*BACKENDS.get(name).excluded_devices}]
    left += [f"{name}:{next(iter(variants))} (--backend, builds for minutes)" for name, variants in slow if variants]
    return f"Not raced: {'; '.join(left)}" if left else ""


def read_plan(words: dict[str, Any]) -> Plan:
    """The plan of the command line, or of the file it names, in which words of the command line take precedence."""
    from inferlens.spec.plan import Plan, toml_words

    files = [name for name in words["model"] if name.endswith(".toml")]
    if not files:
        return Plan.from_words(words)
    if len(words["model"]) > 1:
        raise InferlensError("A plan file names its models itself.", hint=f"inferlens bench {files[0]}")
    said = {name: value for name, value in words.items() if value not in (None, []) and name != "model"}
    return Plan.from_words({**toml_words(Path(files[0]), "plan"), **said})


def listed(plan: Plan) -> Document:
    """What would run, and about how long, and what could not; people see the first that fit on a screen."""
    from msgspec.structs import replace

    from inferlens.execution.launching.estimate import seconds_of
    from inferlens.execution.launching.parts import launched
    from inferlens.execution.protocol import Observer
    from inferlens.execution.rounds import may_meet

    with launched(replace(plan, recommended=True), Observer(), None) as under_way:
        kinds = under_way.cases(listed=True)
    on = [kind for kind, cases in kinds.items() for _ in cases]
    cases = [each for cases in kinds.values() for each in cases]
    seconds = seconds_of(cases, plan)
    whole = sum(seconds) * max(plan.repeats, 1)
    able = [not each.refusal for each in cases]
    several = len({each.case.model for each in cases}) > 1
    lines, refused = [], dict[str, list[str]]()
    for planned, took, kind in zip(cases, seconds, on, strict=True):
        name = " ".join(filter(None, [kind, planned.found.name * several, planned.case.label]))
        if planned.refusal:
            refused.setdefault(planned.refusal.what, []).append(name)
        else:
            lines.append(Line(name, (units.about(took),)))
    room = max(MOST_LISTED - LINES_OF_A_REASON * len(refused), 1)
    more = len(lines) - room
    said = [f"{units.plural(more, 'more case')}: --json lists all of them."] if more > 0 else []
    for what, names in refused.items():
        others = f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED)
        said.append(f"Cannot run: {', '.join(names[:MOST_NAMED])}{others}: {what}")
    often = f" in {plan.repeats} processes each" if plan.repeats > 1 else ""
    there = "there" if under_way.apart else "here"
    can = f", {sum(able)} of them can run {there}" if not all(able) else ""
    race = not plan.repeats and may_meet(cases)
    then = f", then rounds: {units.about(plan.within)} (--within)" if race else ""
    said.append(f"{units.plural(len(cases), 'case')}{can}{often}{f': {units.about(whole)}{then}' if whole else ''}.")
    data = [
        {
            "case": each.case,
            "refusal": str(each.refusal or ""),
            "seconds": took or None,
            **({"on": kind} if kind else {}),
        }
        for each, took, kind in zip(cases, seconds, on, strict=True)
    ]
    table = [Table("", "case", [Column("", "time", numeric=False)], lines[:room])] if lines else []
    return Document(lambda: [*table, *said], data=lambda: data)
