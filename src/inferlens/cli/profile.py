"""``inferlens profile``: where the time of a model goes."""

from __future__ import annotations

from typing import Annotated

import typer

from inferlens.cli.bench import BACKEND, BATCH, INPUT, MODEL, OPTION, PRECISION, TIMEOUT, TRUST, WEIGHTS

LEVEL = "What to time, with commas: layer, kernel (on a GPU); or module, for layers as the table of modules."
RUNS = "Profiled calls of each case."
FINDINGS = 5
REBUILD = "Build anew what was built before, such as engines, and measure the device's ceilings again."
MAX_TIME = "Time for the untouched calls of each case."


def profile(
    model: Annotated[list[str], typer.Argument(help=MODEL)],
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    precision: Annotated[str | None, typer.Option(help=PRECISION)] = None,
    batch: Annotated[str | None, typer.Option(help=BATCH)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda. [dim]Default: cuda if it works.[/dim]")] = None,
    threads: Annotated[str | None, typer.Option(help="CPU threads inside a call, with commas.")] = None,
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    input: Annotated[list[str] | None, typer.Option(help=INPUT)] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS)] = None,
    trust: Annotated[bool | None, typer.Option("--trust", help=TRUST)] = None,
    rebuild: Annotated[bool | None, typer.Option("--rebuild", help=REBUILD)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and inputs.", show_default="0")] = None,
    level: Annotated[str, typer.Option(help=LEVEL)] = "layer",
    runs: Annotated[int, typer.Option(help=RUNS, min=1)] = 50,
    max_time: Annotated[str | None, typer.Option(help=MAX_TIME, show_default="10s")] = None,
    timeout: Annotated[str | None, typer.Option(help=TIMEOUT, show_default="15m")] = None,
    output: Annotated[str | None, typer.Option(help="Folder of records and profiles.", show_default="results")] = None,
) -> None:
    """Find out where the time of a model goes, layer by layer and module by module.

    Each case is timed untouched first, then profiled in a process of its own; both are kept under results/MODEL/.
    Findings come first, the most important of each case; the table has the model's modules as rows and the backends as
    columns. 'inferlens findings', 'inferlens layers', 'inferlens kernels' and 'inferlens modules' show more of it.
    """
    from inferlens import profiling
    from inferlens.cli import screen
    from inferlens.cli.bench import read_plan
    from inferlens.cli.findings import show
    from inferlens.cli.modules import modules
    from inferlens.cli.progress import Bar

    words = {
        "model": model, "backend": backend, "precision": precision, "batch": batch, "device": device,
        "threads": threads, "option": option, "input": input, "weights": weights, "trust": trust, "seed": seed,
        "rebuild": rebuild, "mode": "latency", "max_time": max_time, "timeout": timeout, "output": output,
    }  # fmt: skip
    plan, levels = read_plan(words), profiling.levels_of(level)
    with Bar(screen.errors()) as bar:
        profiles = profiling.run(plan, levels, runs, bar)
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
