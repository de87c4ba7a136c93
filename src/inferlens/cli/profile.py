"""``inferlens profile``, ``findings``, ``modules``, ``layers``, ``kernels``, ``roofline`` and ``trace``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from inferlens.cli import options, screen
from inferlens.cli.bench import read_plan
from inferlens.errors import InferlensError
from inferlens.spec.commands import own_options
from inferlens.spec.options import OptionSpec, count, option_fields
from inferlens.units import ABSENT, byte_count, duration, listing, milliseconds, ratio
from inferlens.views.plain import plain
from inferlens.views.table import Column, Document, Line, Screen, Table, text

if TYPE_CHECKING:
    from inferlens.execution.trace import Traced
    from inferlens.spec.plan import Plan
    from inferlens.views.rows import Row


FINDINGS, PRECISIONS, MODULES = 5, 3, 9  # lines at the end of a profile; modules at least where words are above them
TRACES = "Traces"  # a panel of the help
DEPTH = "How deep modules are unfolded. [dim]Default: those that take most; all in CSV and JSON.[/dim]"
REFERENCE = "The case of the first column, such as 'onnxruntime:cpu fp32'. \
[dim]Default: the plain one that outputs were checked against, or else the first that ran.[/dim]"
SHOWN_LEVEL = "Show the times of this level: layer or kernel. \
[dim]Default: kernel if all cases that ran have kernels traced to modules, or else layer.[/dim]"
FUSED = "Layers fused from several modules: work (to the module that does most of the FLOPs), whole (to the deepest \
module that contains them) or split (by FLOPs)."
LAYERS_SORT = "time (the longest first) or order (of execution)."
KERNELS_SORT = "time (the longest first), order (of execution) or calls (the most launches first)."
FLOORS_SORT = "won (the largest possible gain first), time (the longest first) or order (of execution)."
KERNELS_BY = "name (a row for each kernel, with all its launches) or launch (a row for each launch)."
FLOORS_BY = "layer (as the backend executes them) or module (of the model)."
FLOORS_DEPTH = "With --by module: add deeper modules to those above them. [dim]Default: show all.[/dim]"
TOP_FINDINGS = "Show at most this many of each case. [dim]Default: the most important; all in CSV and JSON.[/dim]"
ROWS = "Show at most this many rows of each case, the most important first. \
[dim]Default: what fits on a screen; all in CSV and JSON.[/dim]"
PLOT = "Only draw a picture (box plot or roofline) to this file; .svg, .png, .pdf or .html decides the format."
PATH = (
    "A trace file (.json, .json.gz, .json.zst), a pipe, - for the standard input, a folder with the traces of a job's "
    "ranks, or a folder of log folders."
)
VIEW = "overview, operators, kernels, modules, memory, steps or timeline, with commas."
AGAINST = "The base: show what FILE gains and loses against it."
STEP = "Show one step, by its number. [dim]Default: all steps.[/dim]"
BY = "Split the rows of a name: by shapes or stack (of operators), or by operator (of kernels)."
TRACE_DEPTH = "How deep modules are unfolded. [dim]Default: those that take most; all in CSV and JSON.[/dim]"
TOP = "Show at most this many rows. [dim]Default: 10 in tables and pages, all in CSV and JSON.[/dim]"
TRACE_PLOT = (
    "Only draw the parts of each step, or the mean step of several traces, to this file; .svg, .png, .pdf or .html "
    "decides the format."
)
TRACE_FILE = "Only write every run as a trace for Perfetto (ui.perfetto.dev) to this file, .json or .json.gz."


class TraceOptions(Struct, kw_only=True):
    """Options of ``profile --torch-profiler``; the warm-up is that of a plan."""

    torch_profiler: Annotated[bool, OptionSpec("Take traces with torch.profiler instead.", panel=TRACES)] = False
    skip: Annotated[int, OptionSpec("Steps not traced, before each trace.", least=0, panel=TRACES)] = 1
    active: Annotated[int, OptionSpec("Steps in a trace.", panel=TRACES)] = 3
    repeat: Annotated[int, OptionSpec("Traces of each case.", panel=TRACES)] = 1
    stacks: Annotated[
        bool, OptionSpec("Keep the operators' Python stacks, and the calls of modules.", panel=TRACES)
    ] = False
    memory: Annotated[bool, OptionSpec("Keep what was allocated.", panel=TRACES)] = False
    shapes: Annotated[bool, OptionSpec("Keep the shapes of the operators' inputs.", panel=TRACES)] = False
    tensorboard: Annotated[
        str | None,
        OptionSpec(
            "Write traces to this folder, in a log folder for each case, such as pytorch_bs1.",
            metavar="DIR",
            panel=TRACES,
        ),
    ] = None


Top = Annotated[int | None, typer.Option(min=1, help=ROWS)]
Plot = Annotated[Path | None, typer.Option(help=PLOT, show_default=False)]


@options.takes("profile", TraceOptions)
def profile(
    model: options.Models,
    *,
    file: options.File = None,
    nvtx: options.Nvtx = False,  # noqa: ARG001 - its callback has set the ranges
    **words: Any,
) -> None:
    """Find out where the time of a model goes, layer by layer and module by module.

    Each case is timed without a profiler first, then profiled in its own process; both are written to results/MODEL/.
    Findings come first; the table has the model's modules as rows and the backends as columns. With --torch-profiler
    each case is only traced, for 'inferlens trace', TensorBoard and Perfetto.
    """
    words = options.given(words)
    traces = {name: field.read(words.pop(name)) for name, field in option_fields(TraceOptions).items() if name in words}
    own, others = own_options("profile", words)
    others["mode"] = "latency"
    if traces.pop("torch_profiler", False):
        alone = ("level", "runs", "max_time", "iterations", "seconds", "devices", "ray", "on")
        refuse([name for name in alone if name in words] + ["file"] * (file is not None), "with")
        if "warmup" in others:
            traces["warmup"] = count("warmup", others.pop("warmup"), least=0)
        take(read_plan(model, others), {"wait": traces.pop("skip", None), **traces})
        return
    refuse(traces, "without")
    screen.format_of("table", file)  # refused before anything is measured
    _profile(read_plan(model, others), own["level"], own["runs"], file)


def _profile(plan: Plan, level: str | Sequence[str], runs: int, file: Path | None) -> None:
    """Profile every case, and show what fits on a screen; the file gets the whole table of modules."""
    from inferlens.cli.progress import Bar
    from inferlens.execution.profile import levels_of, run
    from inferlens.views.profiled.cases import groups
    from inferlens.views.profiled.findings import document as findings_document
    from inferlens.views.profiled.findings import judged, precision_lines
    from inferlens.views.profiled.modules import document as modules_document
    from inferlens.views.renderers.terminal import fitting

    levels = levels_of(level)
    with Bar(screen.errors()) as bar:
        profiles = run(plan, levels, runs, bar)
    folders = [folder for _, folder in profiles]
    loaded = screen.profiles(folders)
    cases, above = groups(loaded), folders[0].parent
    rows = measured([above])
    top = findings_document(judged(loaded, rows), lines=FINDINGS, brief=True, measured=rows).blocks()
    top = [*top, *precision_lines([case for group in cases for case in group])[:PRECISIONS]]
    others = listing([*(f"{level}s" for level in levels), "modules", "roofline"])
    more = f"More: inferlens show {shlex.quote(str(above))} --view findings; likewise inferlens {others}"

    def blocks(lines: int, *, sentences: bool) -> list[Table | str]:
        tables = modules_document(cases, lines=lines, brief=True).blocks()
        return [*top, *(block for block in tables if sentences or not isinstance(block, str)), more]

    def fitted(size: Screen) -> list[Table | str]:
        least = {True: MODULES, False: 1}
        tries = (
            blocks(lines, sentences=sentences)
            for sentences in least
            for lines in range(size.lines, least[sentences] - 1, -1)
        )
        return fitting(tries, size) or blocks(1, sentences=False)

    screen.document(Document(list, dict, screen=fitted))
    if file:
        screen.document(modules_document(cases), output=file)
    if not any(profile.status == "ok" for profile, _ in profiles):
        raise typer.Exit(1)


def refuse(names: Iterable[str], how: str) -> None:
    """Refuse the first option that was given and has no effect ``with`` or ``without`` --torch-profiler."""
    for name in names:
        hint = "--torch-profiler too" if how == "without" else "two commands"
        raise InferlensError(f"--{name.replace('_', '-')} has no effect {how} --torch-profiler.", hint=hint)


def take(plan: Plan, options: Mapping[str, Any]) -> None:
    """Take traces of every case, and say where they are and how to look at them; exit with 1 if there are none."""
    from inferlens.backends.profiling.traces import Tracing
    from inferlens.cli.progress import Bar
    from inferlens.execution.trace import run

    given = {name: value for name, value in options.items() if value is not None}
    board = given.pop("tensorboard", None)
    traces = []
    with Bar(screen.errors()) as bar:
        for trace in run(plan, Tracing(**given), Path(board) if board else None, bar):
            traces.append(trace)
            ran = trace.status == "ok"
            ending = f"a step took {duration(trace.step)}" if ran else f"{trace.status}: {trace.reason}"
            bar.ended(trace.case, ending, ran=ran)
    screen.document(Document(lambda: [trace_table(traces)], data=dict), "table")
    files = [trace.files[0] for trace in traces if trace.files]
    if not files:
        raise typer.Exit(1)
    against = f" --against {files[0]}" if len(files) > 1 else ""
    more = f"; tensorboard --logdir {board}" if board else ""
    screen.note(f"Look at them: inferlens trace {files[-1]}{against}; https://ui.perfetto.dev{more}")


def trace_table(traces: Sequence[Traced]) -> Table:
    """Return a row for each case: the time of a step and of an unprofiled call, and its trace."""

    def size(trace: Traced) -> str:
        return byte_count(sum(file.stat().st_size for file in trace.files) if trace.files else None)

    def events(shown: Sequence[Any]) -> str:
        return f"{sum(part.events for part in shown):,}" if shown else ABSENT

    def files(trace: Traced) -> str:
        return text(" ".join(map(str, trace.files)) or trace.status)

    columns = (
        Column("step", "step", "ms", milliseconds, 0),
        Column("untraced", "unprofiled", "ms", milliseconds, 2),
        Column("cost", "cost", "", ratio, 3),
        Column("shown", "events", "", events, 4),
        Column("", "size", "", size, 5),
        Column("", "trace", "", files, 1, numeric=False, fold=True),
    )
    lines = [Line.of(plain(f"{trace.model} {trace.case.label}"), columns, trace) for trace in traces]
    return Table("", "case", columns, lines, notes=trace_notes(traces))


def trace_notes(traces: Sequence[Traced]) -> list[str]:
    """Return what traces do not show, why there are none, and what else a reader must know; a sentence each."""
    notes: list[str] = []
    for trace in traces:
        texts = [f"{warning.message} {warning.advice}" for warning in trace.warnings]
        texts += [note for part in trace.shown for note in part.notes]
        if trace.status != "ok":
            hint = f" Try: {trace.hint}" if trace.hint else ""
            log = f" What it printed: {trace.log}" if trace.log else ""
            texts.append(f"{trace.reason or trace.status}{hint}{log}")
        notes += [f"{trace.case.label}: {text}" for text in texts]
    return [note for note in dict.fromkeys([*notes, *(trace.unseen for trace in traces)]) if note]


# What profiles show


def measured(paths: Sequence[Path]) -> list[Row]:
    """The rows of all that was measured under ``paths``; none if there are no records."""
    from inferlens.record.store import load_records
    from inferlens.views.rows import rows

    with suppress(InferlensError):
        return rows(load_records(paths).records, notes=False)
    return []


def modules(
    paths: options.Profiles,
    level: Annotated[str | None, typer.Option(help=SHOWN_LEVEL)] = None,
    depth: Annotated[int | None, typer.Option(min=1, help=DEPTH)] = None,
    reference: Annotated[str | None, typer.Option(help=REFERENCE)] = None,
    fused: Annotated[str, typer.Option(help=FUSED)] = "work",
    wide: options.Wide = False,
    columns: options.Columns = None,
    format: options.Format = "table",
    output: options.Output = None,
    bars: options.Bars = False,
) -> None:
    """Show where the time goes by module of the model: modules as rows, backends as columns.

    Profiles of one model, the same inputs and one machine share a table. Time of no known
    module has a row of its own, so that columns of layers add up to a profiled call, and of kernels to all kernels.
    """
    from inferlens.views.profiled.cases import groups
    from inferlens.views.profiled.modules import document

    loaded = groups(screen.profiles(paths, format))
    shown = document(loaded, level=level, depth=depth, reference=reference, fused=fused)  # type: ignore[arg-type]
    screen.document(shown, format, wide=wide, columns=columns, output=output, bars=bars)


def layers(
    paths: options.Profiles,
    sort: Annotated[str, typer.Option(help=LAYERS_SORT)] = "time",
    top: Top = None,
    wide: options.Wide = False,
    columns: options.Columns = None,
    format: options.Format = "table",
    output: options.Output = None,
    bars: options.Bars = False,
    plot: Plot = None,
    trace: Annotated[Path | None, typer.Option(help=TRACE_FILE, show_default=False)] = None,
) -> None:
    """Show the layers of profiled cases: what each is, mean, median and 95th percentile over the runs, and its share.

    Below them stand their sum, the time in no layer, and what profiling cost.
    """
    from inferlens.views.profiled import perfetto
    from inferlens.views.profiled.cases import of_level
    from inferlens.views.profiled.layers_and_kernels import document, shown

    if trace:
        perfetto.check_file(trace)
    drawn_as = picture_format(plot, "layers.svg")
    loaded = screen.profiles(paths, format)
    cases = of_level(loaded, "layer")
    if plot:
        from inferlens.views.profiled.plots import boxes

        written(plot, boxes(shown("layer", cases, sort), drawn_as, top), "--plot")
    if trace:
        written(trace, perfetto.render(loaded, compressed=trace.suffix.lower() == ".gz"), "--trace")
    if not (plot or trace):
        shown_as = document("layer", cases, sort=sort, top=top)
        screen.document(shown_as, format, wide=wide, columns=columns, output=output, bars=bars)


def picture_format(plot: Path | None, example: str) -> str:
    """The format of a picture by its file's name, if it has one."""
    from inferlens.views import picture

    format = plot.suffix.lower().removeprefix(".") if plot else "svg"
    picture.check(format, f"--plot {example}")
    return format


def written(file: Path, drawing: tuple[str | bytes, Sequence[str]], option: str) -> None:
    """Writes a picture or a trace, and says which cases are not in it."""
    screen.save(file, drawing[0], option=option)
    screen.notes(drawing[1])


def kernels(
    paths: options.Profiles,
    by: Annotated[str, typer.Option(help=KERNELS_BY)] = "name",
    sort: Annotated[str, typer.Option(help=KERNELS_SORT)] = "time",
    top: Top = None,
    wide: options.Wide = False,
    columns: options.Columns = None,
    format: options.Format = "table",
    output: options.Output = None,
    bars: options.Bars = False,
) -> None:
    """Show the kernels of cases profiled with --level kernel: times, launches, occupancy, tensor cores, modules.

    Below them stands how long the GPU was busy and idle in a run, and what profiling cost.
    """
    from inferlens.views.profiled.cases import of_level
    from inferlens.views.profiled.layers_and_kernels import document

    cases = of_level(screen.profiles(paths, format), "kernel")
    shown = document("kernel", cases, sort=sort, top=top, by=by)  # type: ignore[arg-type] # which it checks
    screen.document(shown, format, wide=wide, columns=columns, output=output, bars=bars)


def roofline(
    paths: options.Profiles,
    by: Annotated[str, typer.Option(help=FLOORS_BY)] = "layer",
    depth: Annotated[int | None, typer.Option(min=1, help=FLOORS_DEPTH)] = None,
    sort: Annotated[str, typer.Option(help=FLOORS_SORT)] = "won",
    top: Top = None,
    format: options.Format = "table",
    wide: options.Wide = False,
    columns: options.Columns = None,
    output: options.Output = None,
    plot: Plot = None,
) -> None:
    """Show how far layers are from the least time that their work takes on this device, and how much could be gained.

    The least time is the longer of two: the FLOPs at the highest rate of matrix products, and the bytes at the
    bandwidth of copies, both measured on the same device. Several cases have a row each. One case has a row for each
    layer; layers that repeat share a row.
    """
    from inferlens.views.profiled.roofline import document, roofed

    if depth is not None and by != "module":
        raise InferlensError("--depth is for modules.", hint="--by module")
    drawn_as = picture_format(plot, "roofline.svg")
    cases = roofed(screen.profiles(paths, format), by, depth, sort)  # type: ignore[arg-type] # which it checks
    if plot:
        from inferlens.views.profiled.plots import rooflines

        written(plot, rooflines(cases, drawn_as), "--plot")
    else:
        shown = document(cases, top=top, results=str(paths[0]))
        screen.document(shown, format, wide=wide, columns=columns, output=output)


def trace(
    path: Annotated[Path, typer.Argument(help=PATH, metavar="FILE|DIR", show_default=False, allow_dash=True)],
    view: Annotated[str, typer.Option(help=VIEW)] = "overview",
    against: Annotated[Path | None, typer.Option(help=AGAINST, show_default=False)] = None,
    step: Annotated[str | None, typer.Option(help=STEP, show_default=False)] = None,
    by: Annotated[str, typer.Option(help=BY)] = "name",
    top: Annotated[int | None, typer.Option(min=1, help=TOP)] = None,
    depth: Annotated[int | None, typer.Option(min=1, help=TRACE_DEPTH)] = None,
    wide: options.Wide = False,
    columns: options.Columns = None,
    plot: Annotated[Path | None, typer.Option(help=TRACE_PLOT, show_default=False)] = None,
    format: options.Format = "table",
    output: options.Output = None,
) -> None:
    """Show what a trace of torch.profiler says, whoever took it.

    Nothing is measured, and no framework is needed. Damaged traces are read as far as possible, with a note.
    """
    from inferlens.cli import show_trace

    drawn_as = picture_format(plot, "steps.svg")
    if plot:
        from inferlens.views.traced.step_chart import render

        written(plot, (render(path, drawn_as, step=step), []), "--plot")
        return
    show_trace(
        path, view=view, against=against, step=step, by=by, top=top, depth=depth,
        wide=wide, columns=columns, format=format, output=output,
    )  # fmt: skip
