"""``inferlens show``, ``compare`` and ``report``: records again, without a framework."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from inferlens.cli import options, screen
from inferlens.errors import InferlensError, check_choice
from inferlens.units import parse_share
from inferlens.views.table import FORMATS, Document

VIEWS = ("records", "notes", "findings")
VIEW = (
    "records; notes (what changes or weakens the answer); or findings (what takes longer than it has to in profiles)."
)
RUNS = "newest, or all: each run in its own table."
BY = "A table of two axes: ways down, across the values of precision, batch, threads, device, backend, calibration, \
model or machine, or of a dimension such as sequence_length."
LOG = "Print what the process of a case wrote. CASE is some words of its row, such as 'openvino fp16'."
ALL = "With --view notes or findings: show all of them, case by case."
PLOT = (
    "Only draw a chart to this file: latency and throughput of every way; .svg, .png, .pdf or .html decides the format."
)
AGAINST = (
    "With --plot: draw each way as a point, its latency against error (of the outputs), accuracy, memory or energy."
)
THEME = "With --plot: auto, light or dark. [dim]Default: light; in HTML as the reader's system is set.[/dim]"
SHOWN = (
    "Write it to this file; .md, .csv, .json, .html, .pdf or .txt decides the format. Or a folder: join all records in \
it, each once, with their files."
)
LIGHT = "With --output DIR: leave out built models and other artefacts; copy only records, profiles and logs."
BASE = "The base: a folder with records, at any depth, or a record file."
UNLIKE = "Compare even if machines, drivers or inputs differ."
FORMAT = f"{', '.join(FORMATS)}, github (annotations of a workflow) or junit."
COMPARED = (
    "Also write it to this file: .html and .pdf are a page with charts, .md has them beside it, .svg and .png are only \
the chart; or .csv, .json, .txt, or .xml for junit."
)
REPORTED = "Folders with records, profiles, tunings or traces, at any depth."
REPORT = "The file to write: .html, .pdf, or .md with its pictures beside it."
REPORT_ENDINGS = (".html", ".pdf", ".md")
OPEN = "Open the page in the browser."


@options.takes()
def show(
    paths: options.Records,
    *,
    view: Annotated[str, typer.Option(help=VIEW)] = "records",
    format: str = "table",
    reference: str | None = None,
    runs: Annotated[str, typer.Option(help=RUNS)] = "newest",
    top: int | None = None,
    all: Annotated[bool, typer.Option("--all", help=ALL)] = False,
    axis: Annotated[str | None, typer.Option("--by", metavar="AXIS", help=BY)] = None,
    log: Annotated[str | None, typer.Option("--log", metavar="CASE", help=LOG)] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help=PLOT)] = None,
    against: Annotated[str | None, typer.Option(metavar="MEASURE", help=AGAINST)] = None,
    theme: Annotated[str | None, typer.Option(help=THEME)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE|DIR", help=SHOWN)] = None,
    light: Annotated[bool, typer.Option("--light", help=LIGHT)] = False,
    **how: Any,
) -> None:
    """Show what was measured, as a table, a chart or in another format; or join the records of several folders.

    For results/MODEL/tuning, show how the tuning ended; for results/MODEL/load, the requests per second of each way;
    for results/MODEL/quantized-*.json, what each layer loses.

    If a case was measured several times, the newest run is shown, and a note says so. Records of different machines can
    be shown together; they are never compared with each other. Notes and findings come from fixed rules; nothing is
    measured.
    """
    check_choice("view", view, VIEWS)
    check_choice("value of --runs", runs, ("newest", "all"))
    shown = {**how, "output": output}
    if len([word for word in (view != "records", axis, log is not None, plot) if word]) > 1:
        raise InferlensError("--view, --by, --log and --plot show different things.", expected="one of them")
    if (against or theme) and not plot:
        raise InferlensError("--against and --theme are for a chart.", hint="--plot FILE.svg")
    if all and view == "records":
        raise InferlensError("--all is for notes and findings.", hint="--view notes")
    if plot:
        return _plot(paths, plot, reference, against, theme, top)
    joins = output and (not output.suffix or (output.is_dir() and output.suffix not in screen.ENDINGS))
    if output and joins and view == "records" and not (axis or log):
        return _join(paths, output, light=light)
    if light:
        raise InferlensError("--light is for a folder to join records in.", hint="--output DIR")
    if view != "records":
        document = _notes_document(paths, all) if view == "notes" else _findings_document(paths, format, top, all)
        return screen.document(document, format, **shown)
    return _records(paths, format, reference, shown, top, runs == "all", axis, log)


def _records(
    paths: list[Path], format: str, reference: str | None, shown: dict[str, Any], top: int | None, every_run: bool,
    axis: str | None, log: str | None,
) -> None:  # fmt: skip
    """Show records as their table, by an axis, or the log of one; or what is kept beside records."""
    from inferlens.analysis.load import load_folders
    from inferlens.analysis.tuning import tunings_under
    from inferlens.record.builds import QUANTIZATIONS
    from inferlens.record.files import files_under
    from inferlens.record.store import load_records

    if document := _other_document(paths, reference, top):
        if log is not None or axis:
            raise InferlensError("--log and --by are only for records.", hint="inferlens bench MODEL, and then those")
        screen.document(document, format, **shown)
        return
    loaded = load_records(paths)
    screen.notes(loaded.problems)
    if log is not None:
        from inferlens.record.store import find_log

        screen.log(find_log(loaded, log), shown["output"])
        return
    where = [*map(str, paths)]
    if axis:
        from inferlens.views.crosstab import crosstab_document

        if every_run:
            raise InferlensError("--by shows only the newest run of each case.", hint="--by without --runs all")
        crosstab = crosstab_document(loaded.records, axis, reference, where=shlex.join(where), top=top)
        screen.document(crosstab, format, **shown)
        return
    more = [folder for path in paths for folder in (*tunings_under(path), *load_folders(path))]
    more += [file for path in paths for file in files_under(path, QUANTIZATIONS)]
    if more and len({record.case.model for record in loaded.records}) == 1:
        screen.note(f"More results of it: inferlens show {more[0]}{f' (and {len(more) - 1} more)' * (len(more) > 1)}")
    screen.show_records(loaded.records, format, reference, where=where, top=top, every_run=every_run, **shown)


def _other_document(paths: list[Path], reference: str | None, top: int | None) -> Document | None:
    """Return the document of tunings, load tests or a quantization, or ``None`` if the paths mean records."""
    from inferlens.analysis.load import find_loads, read_loads
    from inferlens.analysis.tuning import find_tunings, load_tuning
    from inferlens.record.builds import QUANTIZATIONS, read_quantization
    from inferlens.record.store import read_all
    from inferlens.views.profiles.quantization import quantization_document
    from inferlens.views.tuning import tunings_document

    if tunings := find_tunings(paths):
        return tunings_document(list(map(load_tuning, tunings)), reference, top)
    if loads := find_loads(paths):
        from inferlens.views.load import load_document

        problems: list[str] = []
        records = read_loads(paths, problems)
        screen.notes(problems)
        return load_document(records, top=top, folder=shlex.quote(str(loads[0])) if len(loads) == 1 else "")
    if len(paths) == 1 and paths[0].match(QUANTIZATIONS):
        (quantization,) = read_all(
            paths, QUANTIZATIONS, read_quantization, [], noun="quantization", hint="inferlens quantize --errors"
        ).values()
        return quantization_document(quantization)
    return None


def _plot(
    paths: list[Path], file: Path, reference: str | None, against: str | None, theme: str | None, top: int | None
) -> None:
    """Draw records; a tuning by speed, error of the outputs and memory; or the newest load test by its rates."""
    from inferlens.analysis.load import find_loads, read_loads
    from inferlens.analysis.tuning import find_tunings, load_tuning
    from inferlens.record.store import load_records
    from inferlens.views.chart import Chart
    from inferlens.views.load import render_load
    from inferlens.views.tuning import render_tuning

    format, theme = file.suffix.lower().removeprefix("."), theme or "auto"
    problems: list[str] = []
    if tunings := find_tunings(paths):
        if len(tunings) > 1:
            hint = f"inferlens show {tunings[0]} --plot {file}"
            raise InferlensError(f"There are {len(tunings)} tunings, a picture each.", hint=hint)
        drawing = render_tuning(load_tuning(tunings[0]), format, theme, reference)
    elif find_loads(paths):
        drawing = render_load(read_loads(paths, problems), format, theme)
    else:
        # The chart refuses a format before anything is read.
        chart = Chart(reference=reference, format=format, theme=theme, top=top, against=against)
        loaded = load_records(paths)
        problems, drawing = loaded.problems, chart.render(loaded.records)
    screen.notes(problems)
    screen.save(file, drawing, option="--plot")


def _join(paths: list[Path], folder: Path, *, light: bool) -> None:
    """Join records in a folder, which may already have some, and say what is new."""
    from inferlens.record.store import merge

    merged = merge(paths, folder, artefacts=not light)
    screen.notes(merged.problems)
    counts = f"{merged.new:,} new, {merged.present:,} there already"
    screen.text(f"Records in {folder}: {counts}.\nTo look at them: inferlens show {folder}")


def _notes_document(paths: list[Path], all_cases: bool) -> Document:
    """Return the notes on the latest run of each case: what changes the answer, weakens it, or is good to know."""
    from inferlens.record.store import load_records
    from inferlens.views.records import notes_document

    loaded = load_records(paths)
    screen.notes(loaded.problems)
    return notes_document(loaded.records, all_cases=all_cases, paths=shlex.join(map(str, paths)))


def _findings_document(paths: list[Path], format: str, top: int | None, all_cases: bool) -> Document:
    """Return the findings of profiles, those with the largest possible gain first."""
    from inferlens.cli.profile import measured_rows
    from inferlens.views.profiles.findings import findings_document, judge_cases

    rows = measured_rows(paths)
    notes = f", or of records: inferlens show {shlex.join(map(str, paths))} --view notes" if rows else ""
    loaded = screen.profiles(paths, format, notes)
    return findings_document(judge_cases(loaded, rows), top=top, whole=all_cases, measured=rows)


@options.takes()
def compare(
    base: Annotated[Path, typer.Argument(help=BASE)],
    candidate: Annotated[Path, typer.Argument(help="What to compare with the base: a folder or a file.")],
    *,
    metric: Annotated[str, typer.Option(help="latency, throughput, 'GPU time' or capacity.")] = "latency",
    threshold: Annotated[str, typer.Option(help="The smallest difference that matters.")] = "2%",
    level: Annotated[str, typer.Option(help="Confidence of all verdicts together.")] = "95%",
    unlike: Annotated[bool, typer.Option("--unlike", help=UNLIKE)] = False,
    top: int | None = None,
    format: Annotated[str, typer.Option("--format", "-f", help=FORMAT)] = "table",
    wide: bool = False,
    columns: str | None = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=COMPARED, show_default=False)] = None,
    fail_on_busy: bool = False,
) -> None:
    """Compare two sets of records case by case: FASTER, SAME, SLOWER, UNDECIDED or DID NOT RUN.

    The latest run of each case counts, with all its processes. Of two load tests, such as A/resnet50/load and
    B/resnet50/load, the capacities are compared; --metric capacity looks for them at any depth.

    Exit codes: 1 if a case is slower; otherwise 4 if one did not run on both sides; otherwise 3 if one is undecided;
    otherwise 0. Bad input and machines that differ are 2. With --fail-on-busy: 5 if other programs kept a machine busy.
    """
    from inferlens.analysis.comparison import CAPACITY
    from inferlens.analysis.comparison import compare as compared_cases
    from inferlens.analysis.load import capacity_records, find_loads
    from inferlens.record.store import load_records
    from inferlens.views.comparison import COMPARISON_FORMATS, render_comparison

    check_choice("format", format, COMPARISON_FORMATS)
    written = screen.format_of(format, output, {".xml": "junit", ".svg": "svg", ".png": "png"})
    words = {"threshold": parse_share(threshold), "level": parse_share(level)}
    if metric == CAPACITY or (find_loads([base]) and find_loads([candidate])):
        metric, (before, after) = CAPACITY, capacity_records(base, candidate)
    else:
        before, after = load_records([base]), load_records([candidate])
    compared = compared_cases(before, after, metric=metric, unlike=unlike, **words)
    screen.notes(compared.problems)
    how: dict[str, Any] = {"wide": wide, "columns": columns, "top": top}
    if output and written in screen.PAGES:
        from inferlens.views.comparison import comparison_report

        sides = str(base), str(candidate)
        page = comparison_report(compared, before.records, after.records, sides)
        screen.save_report(page, output, written)
    elif output:
        from inferlens.views.comparison import comparison_chart
        from inferlens.views.picture import draw_chart

        if written in ("svg", "png"):
            screen.save(output, draw_chart(comparison_chart(compared), written, "Comparison"), written)
        else:
            screen.save(output, render_comparison(compared, written, **how), written)
    screen.text(render_comparison(compared, "table" if output else format, **how, **screen.terminal()))
    raise typer.Exit(options.exit_code(compared, fail_on_busy=fail_on_busy))


def report(
    paths: Annotated[list[Path], typer.Argument(help=REPORTED, show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help=REPORT)] = Path("report.html"),
    open: Annotated[bool, typer.Option("--open", help=OPEN)] = False,
) -> None:
    """Write all results of one or many models on one page: answer, comparison, profiles, tunings, traces.

    Nothing is measured, and no framework is needed. The page loads nothing: it can be sent, and read without a network.
    """
    from inferlens.views import picture
    from inferlens.views import report as page

    check_choice("file ending", output.suffix.lower(), REPORT_ENDINGS)
    format = screen.format_of("table", output)
    picture.converter()
    with screen.busy("Drawing"):
        inputs = page.load_inputs(paths)
        screen.notes(inputs.problems)
        screen.save_report(page.report(inputs), output, format)
    if open:
        typer.launch(str(output.resolve()))
