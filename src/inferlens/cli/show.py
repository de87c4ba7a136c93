"""``inferlens show``, ``plot``, ``compare``, ``merge``, ``notes``, ``report``: records again, without a framework."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from inferlens.cli import options, screen
from inferlens.errors import InferlensError, check_choice
from inferlens.units import parse_share, plural
from inferlens.views.table import FORMATS, Document

RUNS = "newest, or all: each run in its own table."
BY = "A table of two axes: ways down, across the values of precision, batch, threads, device, backend, calibration, \
model or machine, or of a dimension such as sequence_length."
PLOTTED = "The file to write; .svg, .png, .pdf or .html decides the format."
TOP = "Draw at most this many ways, the fastest first. [dim]Default: 30, or 8 for several sizes.[/dim]"
AGAINST = "Draw each way as a point: its latency against error (of the outputs), accuracy, memory or energy."
THEME = "auto, light or dark. [dim]Default: light; in HTML as the reader's system is set.[/dim]"
BASE = "The base: a folder with records, at any depth, or a record file."
UNLIKE = "Compare even if machines, drivers or inputs differ."
FORMAT = f"{', '.join(FORMATS)}, github (annotations of a workflow) or junit."
LOG = "Print what the process of a case wrote. CASE is some words of its row, such as 'openvino fp16'."
OUTPUT = (
    "Also write it to this file: .html and .pdf are a page with charts, .md has them beside it, .svg and .png are only \
the chart; or .csv, .json, .txt, or .xml for junit."
)
ROWS = "Show at most this many cases, the worst first."
STORES = "Folders with records, at any depth, such as the results of several machines."
STORE = "The folder to join them in; it may already have records."
LIGHT = "Leave out built models and other artefacts; copy only records, profiles and logs."
ALL = "Show all notes, case by case."
REPORTED = "Folders with records, profiles, tunings or traces, at any depth."
REPORT = "The file to write: .html, .pdf, or .md with its pictures beside it."
REPORT_ENDINGS = (".html", ".pdf", ".md")
OPEN = "Open the page in the browser."
MOST_LEFT = 10  # of what was left out, the lines that are printed


def show(
    paths: options.Records,
    format: options.Format = "table",
    reference: options.Reference = None,
    runs: Annotated[str, typer.Option(help=RUNS)] = "newest",
    json: options.Json = False,
    wide: options.Wide = False,
    columns: options.Columns = None,
    top: options.Top = None,
    bars: options.Bars = False,
    axis: Annotated[str | None, typer.Option("--by", metavar="AXIS", help=BY)] = None,
    log: Annotated[str | None, typer.Option("--log", metavar="CASE", help=LOG)] = None,
    output: options.Output = None,
) -> None:
    """Show what was measured, as a table or in another format.

    For results/MODEL/tuning, show how the tuning ended; for results/MODEL/quantized-*.json, what each layer loses.

    If a case was measured several times, the newest run is shown, and a note says so. Records of different machines can
    be shown together; they are never compared with each other.
    """
    from inferlens.analysis.tuning import tunings_under
    from inferlens.record.files import files_under
    from inferlens.record.quantization import KEPT
    from inferlens.record.store import load_records

    check_choice("value of --runs", runs, ("newest", "all"))
    how: dict[str, Any] = {"bars": bars, "wide": wide, "columns": columns, "output": output}
    format = "json" if json else format
    if other := _no_records(paths, reference, top):
        if log is not None or axis:
            raise InferlensError("--log and --by are only for records.", hint="inferlens bench MODEL, and then those")
        screen.document(other, format, **how)
        return
    loaded = load_records(paths)
    screen.notes(loaded.problems)
    if log is not None:
        from inferlens.record.store import log_of

        screen.log(log_of(loaded, log), output)
        return
    where = str(paths[0]) if len(paths) == 1 else "RESULTS"
    every_run = runs == "all"
    if axis:
        from inferlens.views.raced.crossed import document as by_axis

        if every_run:
            raise InferlensError("--by shows only the newest run of each case.", hint="--by without --runs all")
        screen.document(by_axis(loaded.records, axis, reference, where=where, top=top), format, **how)
        return
    of_one = len({record.case.model for record in loaded.records}) == 1
    if of_one and (tunings := [folder for path in paths for folder in tunings_under(path)]):
        more = f", and {plural(len(tunings) - 1, 'more tuning')}" if len(tunings) > 1 else ""
        screen.note(f"It was tuned, too: inferlens show {tunings[0]}{more}")
    for file in [file for path in paths for file in files_under(path, KEPT)][:1]:
        screen.note(f"What its layers lose in lower precision: inferlens show {file}")
    screen.show(loaded.records, format, reference, where=where, top=top, every_run=every_run, **how)


def _no_records(paths: list[Path], reference: str | None, top: int | None) -> Document | None:
    """What paths mean that is kept beside records: tunings, or a quantization; none where they mean records."""
    from inferlens.analysis.tuning import find_tunings, load_tuning
    from inferlens.record.quantization import KEPT, read
    from inferlens.record.store import read_all
    from inferlens.views.profiled.quantized import document as of_quantization
    from inferlens.views.raced.tuned import tunings_document

    if tunings := find_tunings(paths):
        return tunings_document(list(map(load_tuning, tunings)), reference, top)
    if len(paths) == 1 and paths[0].match(KEPT):
        (found,) = read_all(paths, KEPT, read, [], noun="quantization", hint="inferlens quantize --errors").values()
        return of_quantization(found)
    return None


def plot(
    paths: options.Records,
    output: Annotated[Path, typer.Option("--output", "-o", help=PLOTTED)] = Path("compare.svg"),
    reference: options.Reference = None,
    against: Annotated[str | None, typer.Option(metavar="MEASURE", help=AGAINST)] = None,
    theme: Annotated[str | None, typer.Option(help=THEME)] = None,
    top: Annotated[int | None, typer.Option(min=1, help=TOP)] = None,
) -> None:
    """Draw latency and throughput of every way side by side, and against the batch size.

    For results/MODEL/tuning, draw what was tried by speed, error of the outputs and memory. The HTML file is
    interactive and needs no network.
    """
    from inferlens.analysis.samples import latest
    from inferlens.analysis.tuning import find_tunings, load_tuning
    from inferlens.record.store import load_records
    from inferlens.views.chart import Chart, lacking
    from inferlens.views.records import measured_again

    format = output.suffix.lower().removeprefix(".")
    if tunings := find_tunings(paths):
        from inferlens.views.raced.tuned_chart import render

        if len(tunings) > 1:
            raise InferlensError(
                f"There are {len(tunings)} tunings, a picture each.", hint=f"inferlens plot {tunings[0]}"
            )
        screen.save(output, render(load_tuning(tunings[0]), format, theme or "auto", reference))
        return
    chart = Chart(reference=reference, format=format, theme=theme or "auto", top=top)
    loaded = load_records(paths)
    screen.notes(loaded.problems)
    if against:
        from inferlens.views.raced.against import render as points

        drawn = points(loaded.records, against, format, reference=reference, theme=theme or "auto")
    else:
        drawn = chart.render(loaded.records)
        screen.notes(lacking(loaded.records))
    screen.notes(measured_again([(runs.first.case.model, runs.of_runs) for runs in latest(loaded.records)]))
    screen.save(output, drawn)


def compare(
    base: Annotated[Path, typer.Argument(help=BASE)],
    candidate: Annotated[Path, typer.Argument(help="What to compare with the base: a folder or a file.")],
    metric: Annotated[str, typer.Option(help="latency, throughput or 'GPU time'.")] = "latency",
    threshold: Annotated[str, typer.Option(help="The smallest difference that matters.")] = "2%",
    level: Annotated[str, typer.Option(help="Confidence of all verdicts together.")] = "95%",
    unlike: Annotated[bool, typer.Option("--unlike", help=UNLIKE)] = False,
    top: Annotated[int | None, typer.Option(min=1, help=ROWS, show_default="10")] = None,
    format: Annotated[str, typer.Option("--format", "-f", help=FORMAT)] = "table",
    wide: options.Wide = False,
    columns: options.Columns = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=OUTPUT, show_default=False)] = None,
    fail_on_busy: options.FailOnBusy = False,
) -> None:
    """Compare two sets of records case by case: FASTER, SAME, SLOWER, UNDECIDED or DID NOT RUN.

    The latest run of each case counts, with all its processes.

    Exit codes: 1 if a case is slower; otherwise 4 if one did not run on both sides; otherwise 3 if one is undecided;
    otherwise 0. Bad input and machines that differ are 2. With --fail-on-busy: 5 if other programs kept a machine busy.
    """
    from inferlens.analysis.comparison import compare as compared_cases
    from inferlens.record.store import load_records
    from inferlens.views import compared as view

    check_choice("format", format, view.FORMATS)
    written = screen.format_of(format, output, {".xml": "junit", ".svg": "svg", ".png": "png"})
    words = {"threshold": parse_share(threshold), "level": parse_share(level)}
    before, after = load_records([base]), load_records([candidate])
    compared = compared_cases(before, after, metric=metric, unlike=unlike, **words)
    screen.notes(compared.problems)
    how: dict[str, Any] = {"wide": wide, "columns": columns, "top": top}
    if output and written in screen.PAGES:
        from inferlens.views.compared.page import report as page_of

        screen.report(page_of(compared, before.records, after.records, (str(base), str(candidate))), output, written)
    elif output:
        from inferlens.views.compared.page import drawn

        made = drawn(compared, written) if written in ("svg", "png") else view.render(compared, written, **how)
        screen.save(output, made, written)
    screen.text(view.render(compared, "table" if output else format, **how, **screen.terminal()))
    raise typer.Exit(options.exit_code(compared, fail_on_busy=fail_on_busy))


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", help=STORES)],
    output: Annotated[Path, typer.Option("--output", "-o", help=STORE)] = Path("merged"),
    light: Annotated[bool, typer.Option("--light", help=LIGHT)] = False,
) -> None:
    """Join the records of several machines or runs in one folder, each record once, with the files beside it.

    Speed-ups stay relative to the reference on the same card: inferlens show merged --by machine
    """
    from inferlens.record.merge import merge as joined

    done = joined(paths, output, artefacts=not light)
    left = len(done.problems) - MOST_LEFT
    screen.notes([*done.problems[:MOST_LEFT], *([f"{left:,} more were left out."] if left > 0 else [])])
    whose = f" of {plural(len(done.machines), 'machine')} and {plural(len(done.models), 'model')}" * bool(done.machines)
    there = f"; {done.known:,} were there already" if done.known else ""
    there += f"; {done.rewritten:,} with newer facts" if done.rewritten else ""
    screen.text(f"{plural(done.new, 'new record')}{whose} in {output}{there}.")
    screen.text(f"To look at them: inferlens show {output}" + " --by machine" * (len(done.machines) > 1))


def notes(
    paths: options.Records,
    all: Annotated[bool, typer.Option("--all", help=ALL)] = False,
    format: options.Format = "table",
    json: options.Json = False,
    output: options.Output = None,
) -> None:
    """Say what changes the answer of records, what weakens it, and what is good to know, with what to do.

    Notes are computed from the latest run of each case; nothing is measured.
    """
    from inferlens.record.store import load_records
    from inferlens.views.notes import document

    format = "json" if json else format
    loaded = load_records(paths)
    screen.notes(loaded.problems)
    given = " ".join(shlex.quote(str(path)) for path in paths)
    screen.document(document(loaded.records, every=all, paths=given), format, output=output)


def report(
    paths: Annotated[list[Path], typer.Argument(help=REPORTED, show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help=REPORT)] = Path("report.html"),
    open: Annotated[bool, typer.Option("--open", help=OPEN)] = False,
) -> None:
    """Write all results of one or many models on one page: answer, comparison, profiles, tunings, traces.

    Nothing is measured, and no framework is needed. The page loads nothing: it can be sent, and read without a network.
    """
    from inferlens.views import picture
    from inferlens.views.report.found import found_in
    from inferlens.views.report.page import report as made

    check_choice("file ending", output.suffix.lower(), REPORT_ENDINGS)
    format = screen.format_of("table", output)
    picture.converter()
    with screen.busy("Drawing"):
        found = found_in(paths)
        screen.notes(found.problems)
        screen.report(made(found), output, format)
    if open:
        typer.launch(str(output.resolve()))
