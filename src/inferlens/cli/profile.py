"""``inferlens profile``, ``findings``, ``modules``, ``layers``, ``kernels``, ``roofline`` and ``trace``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens.cli import options, screen
from inferlens.cli.bench import read_plan
from inferlens.errors import InferlensError
from inferlens.units import ABSENT, byte_count, duration, listing, milliseconds, ratio
from inferlens.views.table import Column, Document, Line, Screen, Table, count, plain, text

if TYPE_CHECKING:
    from inferlens.execution.trace import Traced
    from inferlens.spec.plan import Plan
    from inferlens.views.rows import Row


LEVEL = "What to time, with commas: layer, kernel (on a GPU) or module (layers, shown as modules)."
FINDINGS, PRECISIONS, MODULES = 5, 3, 9  # lines at the end of a profile; modules at least where words are above them
MAX_TIME = "Time for the unprofiled calls of a case."
REBUILD = "Build again what was built before, such as engines, and measure the device's ceilings again."
BOARD = "Write traces to this folder, in a log folder for each case, such as pytorch_bs1."
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


def _traces(help: str, *names: str, **more: Any) -> Any:
    """An option in the help's panel on traces."""
    return typer.Option(*names, help=help, rich_help_panel="Traces", **more)


Top = Annotated[int | None, typer.Option(min=1, help=ROWS)]
Plot = Annotated[Path | None, typer.Option(help=PLOT, show_default=False)]


def profile(
    model: options.Models,
    backend: options.Backends = None,
    precision: options.Precisions = None,
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
    trust: options.Trust = None,
    rebuild: Annotated[bool | None, typer.Option("--rebuild", help=REBUILD)] = None,
    seed: options.Seed = None,
    level: Annotated[str | None, typer.Option(help=LEVEL, show_default="layer")] = None,
    runs: Annotated[int | None, typer.Option(help="Profiled calls of each case.", min=1, show_default="50")] = None,
    max_time: Annotated[str | None, typer.Option(help=MAX_TIME, show_default="2s")] = None,
    timeout: options.Timeout = None,
    wait: options.Wait = None,
    devices: options.Devices = None,
    ray: options.Ray = None,
    on: options.On = None,
    output: Annotated[str | None, typer.Option(help="Folder of records and profiles.", show_default="results")] = None,
    file: options.File = None,
    torch_profiler: Annotated[bool, _traces("Take traces with torch.profiler instead.", "--torch-profiler")] = False,
    skip: Annotated[int | None, _traces("Steps not traced, before each trace.", min=0, show_default="1")] = None,
    warmup: Annotated[int | None, _traces("Steps then traced and not kept.", min=0, show_default="1")] = None,
    active: Annotated[int | None, _traces("Steps in a trace.", min=1, show_default="3")] = None,
    repeat: Annotated[int | None, _traces("Traces of each case.", min=1, show_default="1")] = None,
    stacks: Annotated[
        bool | None, _traces("Keep the operators' Python stacks, and the calls of modules.", "--stacks")
    ] = None,
    memory: Annotated[bool | None, _traces("Keep what was allocated.", "--memory")] = None,
    shapes: Annotated[bool | None, _traces("Keep the shapes of the operators' inputs.", "--shapes")] = None,
    tensorboard: Annotated[Path | None, _traces(BOARD, metavar="DIR")] = None,
    nvtx: options.Nvtx = False,  # noqa: ARG001 - its callback has done it
) -> None:
    """Find out where the time of a model goes, layer by layer and module by module.

    Each case is timed without a profiler first, then profiled in its own process; both are written to results/MODEL/.
    Findings come first; the table has the model's modules as rows and the backends as columns. With --torch-profiler
    each case is only traced, for 'inferlens trace', TensorBoard and Perfetto.
    """
    where = {"devices": devices, "ray": ray, "on": on}
    words = {
        "model": model, "backend": backend, "precision": precision, "batch": batch, "device": device,
        "threads": threads, "python": python, "option": option, "input": input, "dim": dim, "weights": weights,
        "calibration": calibration, "keep": keep, "trust": trust, "seed": seed, "rebuild": rebuild,
        "mode": "latency", "max_time": max_time, "timeout": timeout, "wait": wait, "output": output, **where,
    }  # fmt: skip
    counts = {"skip": skip, "warmup": warmup, "active": active, "repeat": repeat}
    wanted = {**counts, "stacks": stacks, "memory": memory, "shapes": shapes, "tensorboard": tensorboard}
    if torch_profiler:
        refuse({"level": level, "runs": runs, "max_time": max_time, "file": file, **where}, "with")
        take(read_plan(words), {"wait": wanted.pop("skip"), **wanted})
        return
    refuse(wanted, "without")
    screen.format_of("table", file)  # refused before anything is measured
    _profile(read_plan(words), level or "layer", runs, file)


def _profile(plan: Plan, level: str, runs: int | None, file: Path | None) -> None:
    """Profiles every case and shows of it what fits on a screen; the table of modules, all of it, goes to the file."""
    from inferlens.cli.progress import Bar
    from inferlens.execution.profile import RUNS, levels_of, run
    from inferlens.views.profiles import group_profiles, precision_lines
    from inferlens.views.profiles.findings import findings_document as found_in
    from inferlens.views.profiles.findings import judge_cases
    from inferlens.views.profiles.modules import modules_document as modules_of
    from inferlens.views.renderers.terminal import first_fitting

    levels = levels_of(level)
    with Bar(screen.errors()) as bar:
        profiles = run(plan, levels, runs or RUNS, bar)
    folders = [folder for _, folder in profiles]
    loaded = screen.profiles(folders)
    shown, above = group_profiles(loaded), folders[0].parent
    rows = measured([above])
    found = found_in(judge_cases(loaded, rows), lines=FINDINGS, brief=True, measured=rows).blocks()
    found = [*found, *precision_lines([case for group in shown for case in group])[:PRECISIONS]]
    others = listing([*(f"{each}s" for each in levels), "modules", "roofline"])
    more = f"More, and likewise with {others}: inferlens findings {shlex.quote(str(above))}"

    def blocks(lines: int, *, told: bool) -> list[Table | str]:
        tables = modules_of(shown, lines=lines, brief=True).blocks()
        return [*found, *(each for each in tables if told or not isinstance(each, str)), more]

    def fitted(size: Screen) -> list[Table | str]:
        least = {True: MODULES, False: 1}
        tries = (blocks(lines, told=told) for told in least for lines in range(size.lines, least[told] - 1, -1))
        return first_fitting(tries, size) or blocks(1, told=False)

    screen.document(Document(list, dict, screen=fitted))
    if file:
        screen.document(modules_of(group_profiles(loaded)), output=file)
    if not any(profile.status == "ok" for profile, _ in profiles):
        raise typer.Exit(1)


def refuse(words: Mapping[str, Any], how: str) -> None:
    """Refuses the first option that was given and means nothing ``with`` or ``without`` --torch-profiler."""
    for name in (name for name, value in words.items() if value is not None):
        hint = "--torch-profiler too" if how == "without" else "two commands"
        raise InferlensError(f"--{name.replace('_', '-')} has no effect {how} --torch-profiler.", hint=hint)


def take(plan: Plan, wanted: Mapping[str, Any]) -> None:
    """Takes traces of every case, and says where they are and how to look at them; exits with 1 if there are none."""
    from inferlens.backends.profiling.traced_runs import Tracing
    from inferlens.cli.progress import Bar
    from inferlens.execution.trace import run

    given = {name: value for name, value in wanted.items() if value is not None}
    folder = given.pop("tensorboard", None)
    every = []
    with Bar(screen.errors()) as bar:
        for made in run(plan, Tracing(**given), folder, bar):
            every.append(made)
            ending = f"a step took {duration(made.step)}" if made.status == "ok" else f"{made.status}: {made.reason}"
            bar.ended(made.case, ending, ran=made.status == "ok")
    screen.document(Document(lambda: [table(every)], data=dict), "table")
    files = [made.files[0] for made in every if made.files]
    if not files:
        raise typer.Exit(1)
    against = f" --against {files[0]}" if len(files) > 1 else ""
    board = f"; tensorboard --logdir {folder}" if folder else ""
    screen.note(f"Look at them: inferlens trace {files[-1]}{against}; https://ui.perfetto.dev{board}")


def table(every: Sequence[Traced]) -> Table:
    """A row for each case: what a step and an unprofiled call took, and its trace; what must be known beneath."""

    def size(made: Traced) -> str:
        return byte_count(sum(file.stat().st_size for file in made.files) if made.files else None)

    columns = (
        Column("step", "step", "ms", milliseconds, 0),
        Column("untraced", "unprofiled", "ms", milliseconds, 2),
        Column("cost", "cost", "", ratio, 3),
        Column("shown", "events", "", lambda shown: count(sum(each.events for each in shown)) if shown else ABSENT, 4),
        Column("", "size", "", size, 5),
        Column("", "trace", "", lambda made: text(" ".join(map(str, made.files)) or made.status), 1, numeric=False,
               fold=True),
    )  # fmt: skip
    lines = [Line.from_row(plain(f"{made.model} {made.case.label}"), columns, made) for made in every]
    return Table("", "case", columns, lines, notes=notes(every))


def notes(every: Sequence[Traced]) -> list[str]:
    """What traces do not show, why there are none, and what else must be known of a case; a sentence each."""
    found: list[str] = []
    for made in every:
        texts = [f"{each.message} {each.advice}" for each in made.warnings]
        texts += [note for each in made.shown for note in each.notes]
        if made.status != "ok":
            hint = f" Try: {made.hint}" if made.hint else ""
            log = f" What it printed: {made.log}" if made.log else ""
            texts.append(f"{made.reason or made.status}{hint}{log}")
        found += [f"{made.case.label}: {text}" for text in texts]
    return [note for note in dict.fromkeys([*found, *(made.unseen for made in every)]) if note]


# What profiles show


def findings(
    paths: options.Profiles,
    top: Annotated[int | None, typer.Option(min=1, help=TOP_FINDINGS)] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all findings of each case.")] = False,
    format: options.Format = "table",
    output: options.Output = None,
) -> None:
    """Say what takes longer than it has to in profiled cases, with the evidence and what to try.

    Findings come from a fixed list of rules. Those with the largest possible gain come first.
    """
    from inferlens.views.profiles.findings import findings_document, judge_cases

    rows = measured(paths)
    notes = f", or of records: inferlens notes {' '.join(shlex.quote(str(path)) for path in paths)}" if rows else ""
    loaded = screen.profiles(paths, format, notes)
    found = findings_document(judge_cases(loaded, rows), top=top, whole=every, measured=rows)
    screen.document(found, format, output=output)


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
    from inferlens.views.profiles import group_profiles
    from inferlens.views.profiles.modules import modules_document

    loaded = group_profiles(screen.profiles(paths, format))
    shown = modules_document(loaded, level=level, depth=depth, reference=reference, fused=fused)  # type: ignore[arg-type]
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
    from inferlens.views.profiles import cases_of_level
    from inferlens.views.profiles.layers import part_tables, parts_document
    from inferlens.views.profiles.timeline import check_file, render_timeline

    if trace:
        check_file(trace)
    drawn_as = picture_format(plot, "layers.svg")
    loaded = screen.profiles(paths, format)
    cases = cases_of_level(loaded, "layer")
    if plot:
        from inferlens.views.profiles.roofline import boxes

        written(plot, boxes(part_tables("layer", cases, sort), drawn_as, top), "--plot")
    if trace:
        written(trace, render_timeline(loaded, compressed=trace.suffix.lower() == ".gz"), "--trace")
    if not (plot or trace):
        shown_as = parts_document("layer", cases, sort=sort, top=top)
        screen.document(shown_as, format, wide=wide, columns=columns, output=output, bars=bars)


def picture_format(plot: Path | None, example: str) -> str:
    """The format of a picture by its file's name, if it has one."""
    from inferlens.views.picture import check_picture

    format = plot.suffix.lower().removeprefix(".") if plot else "svg"
    check_picture(format, f"--plot {example}")
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
    from inferlens.views.profiles import cases_of_level
    from inferlens.views.profiles.layers import parts_document

    cases = cases_of_level(screen.profiles(paths, format), "kernel")
    shown = parts_document("kernel", cases, sort=sort, top=top, by=by)  # type: ignore[arg-type] # which it checks
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
    from inferlens.views.profiles.roofline import case_rooflines, roofline_document

    if depth is not None and by != "module":
        raise InferlensError("--depth is for modules.", hint="--by module")
    drawn_as = picture_format(plot, "roofline.svg")
    cases = case_rooflines(screen.profiles(paths, format), by, depth, sort)  # type: ignore[arg-type] # which it checks
    if plot:
        from inferlens.views.profiles.roofline import rooflines

        written(plot, rooflines(cases, drawn_as), "--plot")
    else:
        shown = roofline_document(cases, top=top, results=str(paths[0]))
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
        from inferlens.views.trace_documents import render_steps

        written(plot, (render_steps(path, drawn_as, step=step), []), "--plot")
        return
    show_trace(
        path, view=view, against=against, step=step, by=by, top=top, depth=depth,
        wide=wide, columns=columns, format=format, output=output,
    )  # fmt: skip
