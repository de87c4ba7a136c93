"""``inferlens tune``: the fastest way that is still right, proven, and ready to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from inferlens import units
from inferlens.cli import options, screen
from inferlens.cli.bench import read_plan
from inferlens.errors import InferlensError, check_choice
from inferlens.units import listing, parse_duration
from inferlens.views.table import FORMATS, Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.execution.expand import Planned
    from inferlens.execution.tuning.space import Tried
    from inferlens.spec.case import Case
    from inferlens.spec.plan import Plan

T = TypeVar("T")
FOR = "What to optimize: latency, latency.p95, latency.p99, throughput, energy or memory."
WITHIN = "A limit that the winner has to keep, such as error=1e-2, memory=2GiB, build=10m, p99=5ms; repeatable."
BUDGET = "Time for everything; three final rounds are run even if it is over."
SPACE = "A TOML file of what to try: backends, precisions and values of options."
ONLY = "Try only these, with commas: backends, BACKEND:VARIANT, precisions, and options as NAME or BACKEND.NAME."
WITHOUT = "Do not try these, named as in --only."
STUDY = "Study one option: race its values against its default, as OPTION=VALUE,VALUE or BACKEND.OPTION=VALUE,VALUE."
INTERRUPTED = "Interrupted; the same command goes on from here."
DRY_RUN = "List what would be tried, and about how long each takes; run nothing."
PRECISIONS = "Precisions to try, with commas. [dim]Default: all that work here.[/dim]"
OWN = ("objective", "limits", "budget", "space", "only", "without", "study", "dry_run", "format", "json", "file")
PICTURES = (".svg", ".png")
MODES_OF_STUDIES = ("latency", "throughput")
MOST_LISTED = 16  # families of --dry-run, so that all of it fits on a screen


def tune(
    model: options.Models,
    backend: options.Backends = None,
    precision: Annotated[str | None, typer.Option(help=PRECISIONS)] = None,
    batch: options.Batches = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [dim]Default: cuda if it works.[/dim]")] = None,
    threads: options.Threads = None,
    python: options.Pythons = None,
    option: options.Options = None,
    input: options.Inputs = None,
    dim: options.Dims = None,
    weights: options.Weights = None,
    calibration: options.Calibration = None,
    keep: options.Keep = None,
    accuracy: options.Accuracy = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    objective: Annotated[str, typer.Option("--for", help=FOR)] = "latency",
    limits: Annotated[list[str] | None, typer.Option("--within", help=WITHIN)] = None,
    budget: Annotated[str, typer.Option(help=BUDGET)] = "10m",
    space: Annotated[Path | None, typer.Option(help=SPACE)] = None,
    only: Annotated[str | None, typer.Option(help=ONLY)] = None,
    without: Annotated[str | None, typer.Option(help=WITHOUT)] = None,
    study: Annotated[str | None, typer.Option(metavar="OPTION=VALUES", help=STUDY)] = None,
    timeout: Annotated[str | None, typer.Option(help="Time limit of each process.", show_default="15m")] = None,
    wait: options.Wait = None,
    devices: options.Devices = None,
    ray: options.Ray = None,
    on: options.On = None,
    output: Annotated[str | None, typer.Option(help="Folder of the records.", show_default="results")] = None,
    format: Annotated[str, typer.Option(help=options.FORMAT)] = "table",
    json: options.Json = False,
    file: options.File = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
) -> None:
    """Find the fastest way with right outputs among all backends and their options.

    Try what each backend recommends, then what the profiles of fast ways suggest, then the most promising options. The
    few that may be the fastest are built again and race each other, the best way of bench and the reference. The winner
    is written to results/MODEL/best, ready for inferlens.load. The same command continues where it was stopped.
    """
    words = {name: value for name, value in locals().items() if name not in OWN}
    from inferlens.execution.tuning.several import requested, run_each
    from inferlens.execution.tuning.space import tried
    from inferlens.views.tuning import tunings_document

    format = _format_of_tables("json" if json else format)
    if study is not None:
        given = {"within": limits, "space": space, "only": only, "without": without, "dry-run": dry_run}
        given |= {"devices": devices, "ray": ray, "on": on}
        studied(words, study, objective, budget, given, format, file)
        return
    screen.format_of("table", file)
    request = requested(read_plan(words), objective, limits or (), budget)
    what = tried(space, only or (), without or (), request.measures)
    if dry_run:
        screen.document(listed(request.plan, what), format, file=file)
        return
    tuned = _run(lambda bar: run_each(request, what, bar))
    screen.document(tunings_document(tuned), format, file=file)
    if not any(each.best for each in tuned):
        raise typer.Exit(1)


def _format_of_tables(format: str) -> str:
    """The format, if it is one of every table; what is unknown is refused before hours of measuring."""
    check_choice("format", format, FORMATS)
    return format


def _run(search: Callable[[Any], T]) -> T:
    """What a search found, with its progress shown; where it is interrupted, how to go on."""
    from inferlens.cli.progress import Bar

    with Bar(screen.errors()) as bar:
        try:
            return search(bar)
        except KeyboardInterrupt:
            screen.note(INTERRUPTED)
            raise typer.Exit(130) from None


def studied(
    words: dict[str, Any],
    text: str,
    objective: str,
    budget: str,
    others: Mapping[str, object],
    format: str,
    file: Path | None,
) -> None:
    """Measures one option alone, and shows what it does; ``others`` are options that do nothing then."""
    from inferlens.execution.tuning import study
    from inferlens.record.store import safe_name
    from inferlens.views.tuning import study_document, study_picture

    drawing = file is not None and file.suffix.lower() in PICTURES
    screen.format_of("svg" if drawing else "table", file)
    check_choice("objective of a study", objective, MODES_OF_STUDIES)
    request = study.requested(read_plan({**words, "mode": objective}), text, parse_duration(budget))
    if needless := [f"--{name}" for name, value in others.items() if value]:
        raise InferlensError(f"With --study, {listing(needless)} would do nothing.")
    found = _run(lambda bar: study.run(request, bar))
    where = Path(request.plan.output) / safe_name(found.values[0].records[0].model.name)
    screen.document(study_document(found, str(where)), format, file=None if drawing else file)
    if file and drawing:
        screen.save(file, study_picture(found, file.suffix.lower()[1:]))
    if not any(record.status == "ok" for value in found.values for record in value.records):
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
    columns = [
        Column("", "candidates"),
        Column("", "each"),
        Column("", "cannot run, because", numeric=False, max_width=50),
    ]
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
