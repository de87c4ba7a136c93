"""``inferlens profile``, ``modules``, ``layers``, ``kernels``, ``roofline`` and ``graph``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from inferlens.cli import options, screen
from inferlens.errors import InferlensError, check_choice
from inferlens.spec.commands import own_options
from inferlens.spec.options import OptionSpec, count, option_fields
from inferlens.spec.plan import read_plan
from inferlens.units import byte_count, duration, listing, milliseconds, plural, ratio
from inferlens.views.table import Column, Document, Line, Screen, Table, plain

if TYPE_CHECKING:
    from inferlens.analysis.graph import GraphSource
    from inferlens.execution.profile import CaseTrace
    from inferlens.spec.plan import Plan
    from inferlens.views.rows import Row


FINDINGS, PRECISIONS, MODULES = 3, 3, 9  # findings, lines on precisions, and modules next to several findings
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
PLOT = "Only draw a picture (box plot or roofline) to this file; .svg, .png, .pdf or .html decides the format."
PATHS = "Folders with profiles, at any depth, profile files, .onnx files, or trt_engine_info.json of an engine."
OUTPUT = "The file to write; .svg, .png, .html or .json decides the format."
REGIONS = "module (a frame around each module), fused (each layer lists what it was fused from) or none."
GRAPH_DEPTH = "How deep modules are unfolded; deeper layers become one node. [dim]Default: to about 90 nodes.[/dim]"
TRACE_FILE = "Only write every run as a trace for Perfetto (ui.perfetto.dev) to this file, .json or .json.gz."


# fmt: off
class TakeOptions(Struct, kw_only=True):
    """Options of ``profile --torch-profiler``; the warm-up is that of a plan."""

    torch_profiler: Annotated[bool, OptionSpec("Take traces with torch.profiler instead.", panel=TRACES)] = False
    skip: Annotated[int, OptionSpec("Steps not traced, before each trace.", least=0, panel=TRACES)] = 1
    active: Annotated[int, OptionSpec("Steps in a trace.", panel=TRACES)] = 3
    repeat: Annotated[int, OptionSpec("Traces of each case.", panel=TRACES)] = 1
    stacks: Annotated[bool, OptionSpec(
        "Keep the operators' Python stacks, and the calls of modules.", panel=TRACES,
    )] = False
    memory: Annotated[bool, OptionSpec("Keep what was allocated.", panel=TRACES)] = False
    shapes: Annotated[bool, OptionSpec("Keep the shapes of the operators' inputs.", panel=TRACES)] = False
    tensorboard: Annotated[str | None, OptionSpec(
        "Write traces to this folder, in a log folder for each case, such as pytorch_bs1.", metavar="DIR", panel=TRACES,
    )] = None
# fmt: on


Plot = Annotated[Path | None, typer.Option(help=PLOT, show_default=False)]


@options.takes(TakeOptions)
def profile(model: options.Models, *, file: Path | None = None, nvtx: bool = False, **words: Any) -> None:
    """Find out where the time of a model goes, layer by layer and module by module.

    Each case is timed without a profiler first, then profiled in its own process; both are written to results/MODEL/.
    Findings come first; the table has the model's modules as rows and the backends as columns. With --torch-profiler
    each case is only traced, for 'inferlens trace', TensorBoard and Perfetto.
    """
    options.set_ranges(nvtx)
    traces = {name: field.read(words.pop(name)) for name, field in option_fields(TakeOptions).items() if name in words}
    profile_words, plan_words = own_options("profile", words)
    plan_words["mode"] = "latency"
    if traces.pop("torch_profiler", False):
        alone = ("level", "runs", "rerun", "max_time", "iterations", "seconds", "devices", "ray", "on")
        refuse([name for name in alone if name in words] + ["file"] * (file is not None), "with")
        if "warmup" in plan_words:
            traces["warmup"] = count("warmup", plan_words.pop("warmup"), least=0)
        take(read_plan(model, plan_words), {"wait": traces.pop("skip", None), **traces})
        return
    refuse(traces, "without")
    screen.format_of("table", file)  # refused before anything is measured
    _profile(read_plan(model, plan_words), profile_words["level"], profile_words["runs"], file)


def _profile(plan: Plan, level: str | Sequence[str], runs: int, file: Path | None) -> None:
    """Profile every case, and show what fits on a screen; the file gets the whole table of modules."""
    from inferlens.cli.progress import Bar
    from inferlens.execution.commands import run_profile
    from inferlens.execution.profile import levels_of
    from inferlens.views.profiles.cases import group_profiles, precision_lines
    from inferlens.views.profiles.findings import findings_document, judge_cases
    from inferlens.views.profiles.modules import modules_document

    levels = levels_of(level)
    with Bar(screen.errors()) as bar:
        profiles = run_profile(plan, levels, runs, bar)
    folders = [folder for _, folder in profiles]
    loaded = screen.profiles(folders)
    cases, above = group_profiles(loaded), folders[0].parent
    measured = measured_rows([above])
    judged = judge_cases(loaded, measured)
    lines = precision_lines([case for group in cases for case in group])[:PRECISIONS]
    others = listing([*(f"{level}s" for level in levels), "modules", "roofline"])
    more = f"More: inferlens show {shlex.quote(str(above))} --view findings; likewise inferlens {others}"

    @cache
    def module_blocks(rows: int) -> Sequence[Table | str]:
        command = f"inferlens modules {shlex.quote(str(above))}"
        return modules_document(cases, rows=rows, brief=True, command=command).blocks()

    def tries(size: Screen) -> Iterator[list[Table | str]]:
        for most in range(FINDINGS, 0, -1):
            top = findings_document(judged, most=most, brief=True, measured=measured).blocks()
            for rows in range(size.lines, MODULES - 1 if most > 1 else 0, -1):
                yield [*top, *lines, *module_blocks(rows), more]

    screen.document(Document(list, dict, tries=tries))
    if file:
        screen.document(modules_document(cases), output=file)
    if not any(profile.status == "ok" for profile, _ in profiles):
        raise typer.Exit(1)


def refuse(names: Iterable[str], how: str) -> None:
    """Refuse an option that has no effect; ``how`` is ``with`` or ``without`` --torch-profiler."""
    for name in names:
        hint = "--torch-profiler too" if how == "without" else "two commands"
        raise InferlensError(f"--{name.replace('_', '-')} has no effect {how} --torch-profiler.", hint=hint)


def take(plan: Plan, options: Mapping[str, Any]) -> None:
    """Take traces of every case, and say where they are and how to look at them; exit with 1 if there are none."""
    from inferlens.backends.profiling.runs import Tracing
    from inferlens.cli.progress import Bar
    from inferlens.execution.profile import trace_cases

    tracing = {name: value for name, value in options.items() if value is not None}
    board = tracing.pop("tensorboard", None)
    traces = []
    with Bar(screen.errors()) as bar:
        for trace in trace_cases(plan, Tracing(**tracing), Path(board) if board else None, bar):
            traces.append(trace)
            failure = f"{trace.status}: {trace.reason}"
            bar.ended(trace.case, f"a step took {duration(trace.step)}" if trace.status == "ok" else failure)
    screen.document(Document(lambda: [trace_table(traces)], data=dict), "table")
    files = [trace.files[0] for trace in traces if trace.files]
    if not files:
        raise typer.Exit(1)
    against = f" --against {files[0]}" if len(files) > 1 else ""
    more = f"; tensorboard --logdir {board}" if board else ""
    screen.note(f"Look at them: inferlens trace {files[-1]}{against}; https://ui.perfetto.dev{more}")


def trace_table(traces: Sequence[CaseTrace]) -> Table:
    """Return a row for each case: the time of a step and of an unprofiled call, and its trace."""

    def size(trace: CaseTrace) -> str:
        return byte_count(sum(file.stat().st_size for file in trace.files) if trace.files else None)

    def files(trace: CaseTrace) -> str:
        return " ".join(map(str, trace.files)) or trace.status

    columns = (
        Column("step", "step", "ms", write=milliseconds, keep=0),
        Column("untraced", "unprofiled", "ms", write=milliseconds, keep=2),
        Column("cost", "cost", write=ratio, keep=3),
        Column("contents", "events", write=lambda parts: f"{sum(part.events for part in parts):,}", keep=4),
        Column("size", "size", write_row=size, keep=5),
        Column("files", "trace", write_row=files, keep=1, numeric=False, fold=True),
    )
    lines = [Line.from_row(plain(f"{trace.model} {trace.case.label}"), columns, trace) for trace in traces]
    return Table("", "case", columns, lines, notes=trace_notes(traces))


def trace_notes(traces: Sequence[CaseTrace]) -> list[str]:
    """Return what traces do not show, why there are none, and what else a reader must know; a sentence each."""
    notes: list[str] = []
    for trace in traces:
        texts = [f"{warning.message} {warning.advice}" for warning in trace.warnings]
        texts += [note for part in trace.contents for note in part.notes]
        if trace.status != "ok":
            hint = f" Try: {trace.hint}" if trace.hint else ""
            log = f" What it printed: {trace.log}" if trace.log else ""
            texts.append(f"{trace.reason or trace.status}{hint}{log}")
        notes += [f"{trace.case.label}: {text}" for text in texts]
    return [note for note in dict.fromkeys([*notes, *(trace.unseen for trace in traces)]) if note]


def measured_rows(paths: Sequence[Path]) -> list[Row]:
    """Return the rows of all records under ``paths``; none if there are no records."""
    from inferlens.record.store import load_records
    from inferlens.views.rows import rows

    with suppress(InferlensError):
        return rows(load_records(paths).records)
    return []


@options.takes()
def modules(
    paths: options.Profiles,
    *,
    level: Annotated[str | None, typer.Option(help=SHOWN_LEVEL)] = None,
    depth: Annotated[int | None, typer.Option(min=1, help=DEPTH)] = None,
    reference: Annotated[str | None, typer.Option(help=REFERENCE)] = None,
    fused: Annotated[str, typer.Option(help=FUSED)] = "work",
    format: str = "table",
    **how: Any,
) -> None:
    """Show where the time goes by module of the model: modules as rows, backends as columns.

    Profiles of one model, the same inputs and one machine share a table. Time of no known
    module has a row of its own, so that columns of layers add up to a profiled call, and of kernels to all kernels.
    """
    from inferlens.views.profiles.cases import group_profiles
    from inferlens.views.profiles.modules import modules_document

    loaded = group_profiles(screen.profiles(paths, format))
    shown = modules_document(loaded, level=level, depth=depth, reference=reference, fused=fused)  # type: ignore[arg-type]
    screen.document(shown, format, **how)


@options.takes()
def layers(
    paths: options.Profiles,
    *,
    sort: Annotated[str, typer.Option(help=LAYERS_SORT)] = "time",
    top: int | None = None,
    format: str = "table",
    plot: Plot = None,
    trace: Annotated[Path | None, typer.Option(help=TRACE_FILE, show_default=False)] = None,
    **how: Any,
) -> None:
    """Show the layers of profiled cases: what each is, mean, median and 95th percentile over the runs, and its share.

    Below them stand their sum, the time in no layer, and what profiling cost.
    """
    from inferlens.views.profiles.cases import cases_of_level
    from inferlens.views.profiles.layers_kernels import part_tables, parts_document
    from inferlens.views.profiles.timeline import check_file, render_timeline

    if trace:
        check_file(trace)
    format_of_plot = screen.picture_format(plot, "layers.svg")
    loaded = screen.profiles(paths, format)
    cases = cases_of_level(loaded, "layer")
    if plot:
        from inferlens.views.profiles.roofline import draw_cases

        shown = [replace(case, top=top) for case in part_tables("layer", cases, sort)]
        screen.draw(plot, draw_cases(shown, format_of_plot), "--plot")
    if trace:
        screen.draw(trace, render_timeline(loaded, compressed=trace.suffix.lower() == ".gz"), "--trace")
    if not (plot or trace):
        shown_as = parts_document("layer", cases, sort=sort, top=top, every=bool(how.get("columns")))
        screen.document(shown_as, format, **how)


@options.takes()
def kernels(
    paths: options.Profiles,
    *,
    by: Annotated[str, typer.Option(help=KERNELS_BY)] = "name",
    sort: Annotated[str, typer.Option(help=KERNELS_SORT)] = "time",
    top: int | None = None,
    format: str = "table",
    **how: Any,
) -> None:
    """Show the kernels of cases profiled with --level kernel: times, launches, occupancy, tensor cores, modules.

    Below them stands how long the GPU was busy and idle in a run, and what profiling cost.
    """
    from inferlens.views.profiles.cases import cases_of_level
    from inferlens.views.profiles.layers_kernels import parts_document

    cases = cases_of_level(screen.profiles(paths, format), "kernel")
    every = bool(how.get("columns"))
    shown = parts_document("kernel", cases, sort=sort, top=top, by=by, every=every)  # type: ignore[arg-type]
    screen.document(shown, format, **how)


@options.takes()
def roofline(
    paths: options.Profiles,
    *,
    by: Annotated[str, typer.Option(help=FLOORS_BY)] = "layer",
    depth: Annotated[int | None, typer.Option(min=1, help=FLOORS_DEPTH)] = None,
    sort: Annotated[str, typer.Option(help=FLOORS_SORT)] = "won",
    top: int | None = None,
    format: str = "table",
    plot: Plot = None,
    **how: Any,
) -> None:
    """Show how far layers are from the least time that their work takes on this device, and how much could be gained.

    The least time is the longer of two: the FLOPs at the highest rate of matrix products, and the bytes at the
    bandwidth of copies, both measured on the same device. Several cases have a row each. One case has a row for each
    layer; layers that repeat share a row.
    """
    from inferlens.views.profiles.roofline import case_rooflines, roofline_document

    if depth is not None and by != "module":
        raise InferlensError("--depth is for modules.", hint="--by module")
    format_of_plot = screen.picture_format(plot, "roofline.svg")
    cases = case_rooflines(screen.profiles(paths, format), by, depth, sort)  # type: ignore[arg-type] # which it checks
    if plot:
        from inferlens.views.profiles.roofline import draw_cases

        screen.draw(plot, draw_cases(cases, format_of_plot), "--plot")
    else:
        shown = roofline_document(cases, top=top, results=str(paths[0]))
        screen.document(shown, format, **how)


def graph(
    paths: Annotated[list[Path], typer.Argument(help=PATHS)],
    output: Annotated[Path, typer.Option("--output", "-o", help=OUTPUT)] = Path("graph.svg"),
    regions: Annotated[str, typer.Option(help=REGIONS)] = "module",
    depth: Annotated[int | None, typer.Option(min=1, help=GRAPH_DEPTH)] = None,
) -> None:
    """Draw the layers that a backend executes, and the tensors between them: times as colours, precisions as marks.

    Several cases are drawn side by side. An .onnx file has nodes and no times. The HTML file can be moved and enlarged,
    and needs no network.
    """
    from inferlens.analysis import graph as graph_fold
    from inferlens.views.graph import FORMATS, render_graphs

    format = output.suffix.lower().removeprefix(".")
    check_choice("format of graphs", format, FORMATS)
    check_choice("kind of regions", regions, graph_fold.REGIONS)
    title, sources, problems = sources_of(paths)
    screen.notes(problems)
    graphs = [graph_fold.build_graph(source, regions=regions, depth=depth) for source in sources]
    with screen.busy("Drawing"):
        drawing = render_graphs(graphs, format, title=title, fused=regions == "fused")
    screen.notes(dict.fromkeys(note for graph in graphs for note in graph.notes))
    screen.save(output, drawing)


def sources_of(paths: Sequence[Path]) -> tuple[str, list[GraphSource], list[str]]:
    """Return the title, all graphs that can be drawn under ``paths``, and the problems of reading them.

    Raises InferlensError if a path does not exist, or there is nothing to draw.
    """
    from inferlens.analysis.graph import profile_source
    from inferlens.record.store import LoadedProfiles, load_profiles
    from inferlens.views.profiles.cases import group_profiles

    files = {path: source for path in paths if (source := _file_graph(path))}
    profiles = [path for path in paths if path not in files]
    loaded = load_profiles(profiles) if profiles else LoadedProfiles()
    sources, problems, titles = list(files.values()), list(loaded.problems), [path.name for path in files]
    left_out: dict[str, list[str]] = {}
    for case in (case for group in group_profiles(loaded, "layer") for case in group):
        graph = profile_source(case.profile, case.name, case.headline, case.unprofiled)
        if isinstance(graph, str) or not graph.layers:
            left_out.setdefault(graph if isinstance(graph, str) else "It has no layers.", []).append(case.name)
        else:
            sources.append(graph)
            titles.append(case.profile.case.model)
    for reason, names in left_out.items():
        problems.append(plain(f"Not drawn: {names[0] if len(names) == 1 else plural(len(names), 'case')}. {reason}"))
    if not sources:
        raise InferlensError(f"There is nothing to draw: {' '.join(problems)}", hint="inferlens profile MODEL")
    return plain(" and ".join(dict.fromkeys(titles))), sources, problems


def _file_graph(path: Path) -> GraphSource | None:
    """Return the graph of an ONNX file or of the information on an engine; ``None`` for other files."""
    from inferlens.analysis.graph import GraphSource
    from inferlens.backends.onnx.graph import onnx_layers
    from inferlens.backends.tensorrt.layers import engine_source, is_engine_information
    from inferlens.record.files import FileType, file_kind

    if not path.is_file():
        return None
    if file_kind(path).kind is FileType.ONNX or path.suffix.lower() == ".onnx":
        read = onnx_layers(path)
        about = f"ONNX file · {plural(len(read.layers), 'node')} · no times"
        return GraphSource(
            title=plain(path.name), about=about, layers=read.layers,
            inputs=read.inputs, outputs=read.outputs, notes=read.notes,
        )  # fmt: skip
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InferlensError(f"{path} cannot be read: {error.strerror}.") from error
    return engine_source(data, plain(path.name)) if is_engine_information(data) else None
