"""``inferlens bench`` measures models here or on the machines of a plan, and ``inferlens ab`` two ways in turns."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens import units
from inferlens.cli import options, screen
from inferlens.errors import InferlensError
from inferlens.spec.commands import options_of
from inferlens.spec.plan import read_plan
from inferlens.views.table import Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.analysis.ab_result import ABResult, ABSteps
    from inferlens.execution.commands import Fleet
    from inferlens.record.record import Record
    from inferlens.spec.plan import Plan

CHART_ENDINGS = {".svg": "svg", ".png": "png"}
MOST_LISTED = 16  # cases of --dry-run, so that all of it fits on a screen
INTERRUPTED = "Interrupted; the same command goes on from here."
AB_MODEL = "The model, as for bench; with two models the first one."
AB_A = (
    "The first case, such as pytorch or 'torch_compile:default fp16 batch=8 dynamic=true'; or, without B, the second "
    "model."
)
HAS_A_LOG = ("failed", "timed out", "out of memory", "crashed")
MOST_ANSWERS = 16  # lines of a plan with machines


@options.takes()
def bench(
    model: options.Models,
    *,
    format: str = "table",
    wide: bool = False,
    columns: str | None = None,
    top: int | None = None,
    bars: bool = False,
    file: Path | None = None,
    dry_run: bool = False,
    nvtx: bool = False,
    **words: Any,
) -> None:
    """Find out which way of running a model is fastest here.

    Values with commas are combined into cases. Each case is measured once, in its own process. Those that may be the
    fastest are then measured in rounds, in turns, until one has won. Records are written to results/MODEL/ at once.

    If one option of a backend has several values, its default is measured, too. -o FILE.svg draws a chart, for the
    values of one option a curve. If a plan file has a table of machines, its models are measured on all of them.
    """
    options.set_ranges(nvtx)
    shown: dict[str, Any] = {"wide": wide, "columns": columns, "bars": bars, "file": file}
    if fleet := fleet_of(model):
        if words or any(shown.values()) or top or format != "table":
            raise InferlensError("A plan with machines has its options in the file.", expected="only --dry-run")
        return screen.document(listed_machines(fleet)) if dry_run else measure_machines(fleet)
    plan = read_plan(model, words)
    screen.check(format, columns)  # refused before hours of measuring
    written = screen.format_of("table", file, None if dry_run else CHART_ENDINGS)
    if dry_run:
        return screen.document(listed_cases(plan), "json" if format == "json" else "table", file=file)
    chart = written if written in CHART_ENDINGS.values() else ""
    if chart:
        from inferlens.views.picture import converter

        converter()  # it may be missing
        shown["file"] = None
    records, interrupted = measure_plan(plan)
    if chart and file and records:
        draw(records, file, chart, plan.reference, top)
    return show_results(plan, records, interrupted, format, top=top, **shown)


def draw(records: Sequence[Record], file: Path, format: str, reference: str, top: int | None) -> None:
    """Write the chart of records to a file; print a note if there is nothing to draw."""
    from inferlens.views.chart import Chart

    try:
        picture = Chart(reference=reference or None, format=format, top=top).render(records)
    except InferlensError as error:
        screen.note(str(error))
    else:
        screen.save(file, picture)


def measure_plan(plan: Plan) -> tuple[list[Record], bool]:
    """Measure a plan, and return its records and whether it was interrupted."""
    from inferlens.cli.progress import Bar
    from inferlens.execution.commands import run_bench

    with Bar(screen.errors()) as bar:
        try:
            run_bench(plan, bar)
        except KeyboardInterrupt:
            return bar.records, True
    return bar.records, False


def show_results(plan: Plan, records: Sequence[Record], interrupted: bool, format: str, **how: Any) -> None:
    """Show records and where they are; exit if the plan was interrupted or nothing ran."""
    from inferlens.record.store import safe_name
    from inferlens.spec.plan import Plan

    if records:
        folders = sorted({str(Path(plan.output) / safe_name(record.model.name)) for record in records})
        where = folders[0] if len(folders) == 1 else plan.output
        folder = "" if plan.output == Plan(model=()).output else plan.output
        screen.show_records(records, format, plan.reference or None, where=where, folder=folder, **how)
        if format == "table" and not (plan.backend or plan.option):
            screen.note(f"Not raced: {skipped_ways(plan, records)}.")
    if interrupted:
        screen.note(INTERRUPTED)
        raise typer.Exit(130)
    if not any(record.status == "ok" for record in records):
        raise typer.Exit(1)


def skipped_ways(plan: Plan, records: Sequence[Record]) -> str:
    """Return the ways that a race leaves out by default, and the options that include them."""
    from inferlens.backends import BACKENDS
    from inferlens.spec.case import HALF

    cases = [record.case for record in records if record.status == "ok"]
    lower = [name for name in HALF if name != "fp16" or any(case.device != "cpu" for case in cases)]  # slow on a CPU
    if plan.precision or any(case.precision != "fp32" for case in cases):
        lower = []
    ways = [f"{', '.join(lower)} (--precision {','.join(lower)})"] * bool(lower)
    devices = {case.device for case in cases}
    ways += [f"{name} (--backend)" for name in BACKENDS.names() if devices & {*BACKENDS.get(name).excluded_devices}]
    slow = [(name, BACKENDS.get(name).slow_variants) for name in dict.fromkeys(case.backend for case in cases)]
    ways += [f"{name}:{next(iter(variants))} (--backend, builds for minutes)" for name, variants in slow if variants]
    return "; ".join([*ways, "options (inferlens tune)"])


def listed_cases(plan: Plan) -> Document:
    """Return the cases that would run, with about their times, and those that cannot; as many as fit on a screen."""

    from inferlens.execution.cases import race_plan, seconds_of
    from inferlens.execution.commands import cases_by_kind
    from inferlens.execution.race import may_meet

    pairs = [(kind, case) for kind, cases in cases_by_kind(race_plan(plan)).items() for case in cases]
    cases = [case for _, case in pairs]
    seconds = seconds_of(cases, plan)
    several = len({case.case.model for case in cases}) > 1
    columns = [Column("time", "time", numeric=False), Column("reason", "cannot run, because", numeric=False, fold=True)]
    lines, data = [], []
    for (kind, planned), took in zip(pairs, seconds, strict=True):
        name = " ".join(filter(None, [kind, planned.model.name * several, planned.case.label]))
        reason = planned.refusal.what if planned.refusal else ""
        lines.append(Line(name, ("" if reason else units.about(took), reason)))
        described = {"case": planned.case, "refusal": str(planned.refusal or ""), "seconds": took or None}
        data.append({**described, **({"on": kind} if kind else {})})
    lines.sort(key=lambda line: bool(line.cells[1]))  # cases that run come first
    notes = [f"{len(lines) - MOST_LISTED} more cases: --json lists all of them."] if len(lines) > MOST_LISTED else []
    runnable = sum(not case.refusal for case in cases)
    whole = sum(seconds) * max(plan.repeats, 1)
    rounds = f", then rounds: {units.about(plan.within)} (--within)" if not plan.repeats and may_meet(cases) else ""
    total = f"{units.plural(len(cases), 'case')}, {runnable} of them can run: {units.about(whole)}{rounds}."
    table = Table("", "case", columns, lines[:MOST_LISTED], notes=notes)
    return Document(lambda: [table, total], data=lambda: data)


def fleet_of(model: Sequence[str]) -> Fleet | None:
    """Return the machines and objectives of a plan file that has them."""
    from inferlens.spec.plan import toml_words

    if len(model) != 1 or not model[0].endswith(".toml"):
        return None
    if not {"machines", "objectives"} & toml_words(Path(model[0]), "plan").keys():
        return None
    from inferlens.execution.commands import Fleet

    return Fleet(Path(model[0]))


def measure_machines(fleet: Fleet) -> None:
    """Measure on each machine, and show the answers; exit with 1 if a machine is missing or has none."""
    failure: InferlensError | None = None
    idle = reached = False
    for part in fleet.parts:
        screen.note(f"{part.machine}, {part.objective}:")
        try:
            records, interrupted = measure_plan(part.plan)
        except InferlensError as error:
            failure = error
            screen.note(f"{part.machine} was left out: {error}")
            continue
        if interrupted:
            screen.note(INTERRUPTED)
            raise typer.Exit(130)
        reached = True
        idle |= bool(records) and all(record.status != "ok" for record in records)
    if failure and not reached:
        raise failure
    show_machines(fleet)
    if failure:
        screen.note("The same command tries what was left out again.")
    raise typer.Exit(1 if failure or idle else 0)


def show_machines(fleet: Fleet) -> None:
    """Print a table of machines for each objective, or of a single machine the answers."""
    from inferlens.record.record import machine_name
    from inferlens.record.store import load_records
    from inferlens.views.answer import answers
    from inferlens.views.crosstab import crosstab_document
    from inferlens.views.rows import rows

    limit = MOST_ANSWERS // len(fleet.objectives)
    for objective in fleet.objectives:
        folder = fleet.folder(objective)
        try:
            records = load_records(folder).records
        except InferlensError:  # no machine was reached
            continue
        screen.text(f"{objective.capitalize()}: inferlens show {folder}\n")
        if len({machine_name(record.environment) for record in records}) > 1:
            screen.document(crosstab_document(records, "machine", where=str(folder), top=limit))
        else:
            screen.text("\n".join(answer.main for answer in answers(rows(records))[:limit]))


def listed_machines(fleet: Fleet) -> Document:
    """Return the models that are measured on each machine for each objective."""
    columns = [
        Column("objective", "objective", numeric=False),
        Column("plan.model", "models", write=", ".join, numeric=False, fold=True),
    ]
    lines = [Line.from_row(part.machine, columns, part) for part in fleet.parts]
    total = f"{units.plural(len(fleet.parts), 'part')}, one for each machine and objective."
    data = [{"machine": part.machine, "objective": part.objective, "plan": part.plan} for part in fleet.parts]
    return Document(lambda: [Table("", "machine", columns, lines), total], data=lambda: data)


@options.takes()
def ab(
    model: Annotated[str, typer.Argument(help=AB_MODEL)],
    a: Annotated[str | None, typer.Argument(help=AB_A, metavar="A")] = None,
    b: Annotated[str | None, typer.Argument(help="The second case.", metavar="B")] = None,
    *,
    file: Path | None = None,
    format: str = "table",
    fail_on_busy: bool = False,
    **words: Any,
) -> None:
    """Find out which of two is faster: measure them in turns until it is decided.

    Two ways: inferlens ab resnet18 pytorch onnxruntime:cpu. Two models: inferlens ab base:build candidate:build

    Did my change make it slower? inferlens ab mypackage.models:build --checkout ../old,.

    Did an upgrade make it slower? inferlens ab resnet50 onnxruntime --python old/bin/python,new/bin/python

    Exit codes: 0 if B is not slower, 1 if it is, 2 for bad input, 3 if it is undecided, 4 if one did not run. With
    --fail-on-busy: 5 if other programs kept the machine busy.
    """
    from inferlens.views.comparison import ab_document

    screen.format_of("table", file)
    if "max_rounds" in words:
        words["max_rounds"] = options_of("ab")["max_rounds"].read(words["max_rounds"])
    result, interrupted = measure_sides({"model": model, "a": a, "b": b, **words})
    if result:
        answer = ab_document(result, next_step(result))
        if file:
            screen.document(answer, output=file)
        screen.document(ab_document(result) if format == "json" else answer, format)
    if interrupted:
        screen.note("Interrupted; what was measured is kept.")
    raise typer.Exit(130 if not result or interrupted else options.exit_code(result, fail_on_busy=fail_on_busy))


def measure_sides(words: dict[str, Any]) -> tuple[ABResult | ABSteps | None, bool]:
    """Return the result of two sides, or of the steps between more environments; and whether it was interrupted."""
    from inferlens.cli import progress
    from inferlens.execution.ab import ab as measure
    from inferlens.execution.ab import ab_steps

    with (bar := progress.RoundsBar(screen.errors())):
        words |= {"observer": bar, "on_round": bar.update}
        try:
            if "," in words.get("python", "").partition(",")[2]:
                del words["b"]
                bar.last = ab_steps(case=words.pop("a"), **words)
            else:
                bar.last = measure(**words)
        except KeyboardInterrupt:
            return bar.last, True
    return bar.last, False


def next_step(result: ABResult | ABSteps) -> str:
    """Return the next command: the one that decides it, that shows the log of a failure, or that shows the records."""
    from inferlens.analysis.ab_result import ABSteps

    if isinstance(result, ABSteps):
        return f"The records: inferlens show {shlex.quote(result.steps[-1].output)}"
    for case, side in ((result.a, result.base), (result.b, result.candidate)):
        if side.state in HAS_A_LOG:
            return f"What it printed: inferlens show --log {shlex.quote(case.label)} {shlex.quote(result.output)}"
    if not result.retry_options:
        return f"The records: inferlens show {shlex.quote(result.output)}"
    again = " ".join(f"--{name} {value}" for name, value in result.retry_options.items())
    return f"To decide it: the same command with {again}"
