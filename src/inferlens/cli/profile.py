"""``inferlens profile``: where the time of a model goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferlens.cli import options

if TYPE_CHECKING:
    from inferlens.spec.plan import Plan

LEVEL = "What to time, with commas: layer, kernel (on a GPU); or module, for layers as the table of modules."
RUNS = "Profiled calls of each case."
FINDINGS = 5
REBUILD = "Build anew what was built before, such as engines, and measure the device's ceilings again."
MAX_TIME = "Time for the untouched calls of each case."
PANEL = "Traces"
PROFILER = "Take traces with torch.profiler instead."
WAIT = "Steps that are let pass before each trace."
WARMUP = "Steps after them that are traced and thrown away."
ACTIVE = "Steps in a trace."
REPEAT = "Traces of each case, one after the other."
STACKS = "Keep the Python stack of each operator, and the calls of modules."
MEMORY = "Keep what was allocated."
SHAPES = "Keep the shapes of the operators' inputs."
TENSORBOARD = "Write traces here, into a log folder for each case, such as pytorch_bs1."


def profile(
    model: options.Models,
    backend: options.Backends = None,
    precision: options.Precisions = None,
    batch: options.Batches = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda. [dim]Default: cuda if it works.[/dim]")] = None,
    threads: options.Threads = None,
    option: options.Options = None,
    input: options.Inputs = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    rebuild: Annotated[bool | None, typer.Option("--rebuild", help=REBUILD)] = None,
    seed: options.Seed = None,
    level: Annotated[str | None, typer.Option(help=LEVEL, show_default="layer")] = None,
    runs: Annotated[int | None, typer.Option(help=RUNS, min=1, show_default="50")] = None,
    max_time: Annotated[str | None, typer.Option(help=MAX_TIME, show_default="10s")] = None,
    timeout: options.Timeout = None,
    output: Annotated[str | None, typer.Option(help="Folder of records and profiles.", show_default="results")] = None,
    torch_profiler: Annotated[bool, typer.Option("--torch-profiler", help=PROFILER, rich_help_panel=PANEL)] = False,
    wait: Annotated[int | None, typer.Option(help=WAIT, min=0, show_default="1", rich_help_panel=PANEL)] = None,
    warmup: Annotated[int | None, typer.Option(help=WARMUP, min=0, show_default="1", rich_help_panel=PANEL)] = None,
    active: Annotated[int | None, typer.Option(help=ACTIVE, min=1, show_default="3", rich_help_panel=PANEL)] = None,
    repeat: Annotated[int | None, typer.Option(help=REPEAT, min=1, show_default="1", rich_help_panel=PANEL)] = None,
    stacks: Annotated[bool | None, typer.Option("--stacks", help=STACKS, rich_help_panel=PANEL)] = None,
    memory: Annotated[bool | None, typer.Option("--memory", help=MEMORY, rich_help_panel=PANEL)] = None,
    shapes: Annotated[bool | None, typer.Option("--shapes", help=SHAPES, rich_help_panel=PANEL)] = None,
    tensorboard: Annotated[Path | None, typer.Option(help=TENSORBOARD, metavar="DIR", rich_help_panel=PANEL)] = None,
) -> None:
    """Find out where the time of a model goes, layer by layer and module by module.

    Each case is timed untouched first, then profiled in a process of its own; both are kept under results/MODEL/.
    Findings come first, the most important of each case; the table has the model's modules as rows and the backends as
    columns. 'inferlens findings', 'inferlens layers', 'inferlens kernels' and 'inferlens modules' show more of it.
    With --torch-profiler each case is traced and nothing else, for 'inferlens trace', TensorBoard and Perfetto.
    """
    from inferlens.cli import traces
    from inferlens.cli.bench import read_plan

    words = {
        "model": model, "backend": backend, "precision": precision, "batch": batch, "device": device,
        "threads": threads, "option": option, "input": input, "weights": weights, "trust": trust, "seed": seed,
        "rebuild": rebuild, "mode": "latency", "max_time": max_time, "timeout": timeout, "output": output,
    }  # fmt: skip
    wanted = {
        "wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "stacks": stacks, "memory": memory,
        "shapes": shapes, "tensorboard": tensorboard,
    }  # fmt: skip
    if torch_profiler:
        traces.refuse({"level": level, "runs": runs, "max_time": max_time}, "with")
        traces.take(read_plan(words), wanted)
        return
    traces.refuse(wanted, "without")
    _profile(read_plan(words), level or "layer", runs)


def _profile(plan: Plan, level: str, runs: int | None) -> None:
    """Profiles every case and shows the most important of it."""
    from inferlens.cli import screen
    from inferlens.cli.findings import show
    from inferlens.cli.modules import modules
    from inferlens.cli.progress import Bar
    from inferlens.execution.profile import RUNS, levels_of, run

    levels = levels_of(level)
    with Bar(screen.errors()) as bar:
        profiles = run(plan, levels, runs or RUNS, bar)
    folders = [folder for _, folder in profiles]
    show(folders, top=FINDINGS, brief=True)
    screen.text("")
    modules(folders)
    folder, above = folders[0], folders[0].parent
    tables = ", ".join(f"inferlens {each}s {folder}" for each in levels)
    tables += f", inferlens modules {above}, inferlens roofline {above}"
    screen.note(f"Kept in {above}. More: inferlens findings {above}, {tables}")
    if not any(profile.status == "ok" for profile, _ in profiles):
        raise typer.Exit(1)
