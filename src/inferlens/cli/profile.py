"""``inferlens profile``: where the time of a model goes."""

from __future__ import annotations

from typing import Annotated

import typer

from inferlens.cli.bench import BACKEND, BATCH, INPUT, MODEL, OPTION, PRECISION, TIMEOUT, TRUST, WEIGHTS

LEVEL = "What to time: layer."
RUNS = "Profiled calls of each case."
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
    seed: Annotated[int | None, typer.Option(help="Seed of weights and inputs.", show_default="0")] = None,
    level: Annotated[str, typer.Option(help=LEVEL)] = "layer",
    runs: Annotated[int, typer.Option(help=RUNS, min=1)] = 50,
    max_time: Annotated[str | None, typer.Option(help=MAX_TIME, show_default="10s")] = None,
    timeout: Annotated[str | None, typer.Option(help=TIMEOUT, show_default="15m")] = None,
    output: Annotated[str | None, typer.Option(help="Folder of records and profiles.", show_default="results")] = None,
) -> None:
    """Find out where the time of a model goes, layer by layer and module by module.

    Each case is timed untouched first, then profiled in a process of its own; both are kept under results/MODEL/. The
    table has the model's modules as rows and the backends as columns. 'inferlens layers' and 'inferlens modules' show
    more of it.
    """
    from inferlens import profiling
    from inferlens.cli import screen
    from inferlens.cli.bench import read_plan
    from inferlens.cli.modules import modules
    from inferlens.cli.progress import Bar
    from inferlens.plan_words import known

    words = {
        "model": model, "backend": backend, "precision": precision, "batch": batch, "device": device,
        "threads": threads, "option": option, "input": input, "weights": weights, "trust": trust, "seed": seed,
        "mode": "latency", "max_time": max_time, "timeout": timeout, "output": output,
    }  # fmt: skip
    plan, levels = read_plan(words), known("level", level, profiling.LEVELS)
    with Bar(screen.errors()) as bar:
        profiles = profiling.run(plan, levels, runs, bar)
    modules([folder for _, folder in profiles])
    folder = profiles[0][1]
    screen.note(f"Kept in {folder.parent}. More: inferlens layers {folder}, inferlens modules {folder.parent}")
    if not any(profile.status == "ok" for profile, _ in profiles):
        raise typer.Exit(1)
