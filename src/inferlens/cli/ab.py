"""``inferlens ab``: which of two things is faster, measured in turns until that is known."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens.cli import options, screen

if TYPE_CHECKING:
    from inferlens.analysis.ab_result import ABResult, ABSteps

MODEL = "The model, as for bench; with two models the first one."
A = "The first case, such as pytorch or 'torch_compile:default fp16 batch=8 dynamic=true'; or, without B, the second \
model."
CHECKOUT = "Two folders to import the model's code from, as OLD,NEW; or one folder to compare this one with."
PYTHON = (
    "Interpreters of two environments, as OLD,NEW; or one to compare this one with; or more, to find the step that \
changed the latency."
)
BACKEND = "Backend of each side that names none, as name or name:variant."
SHARED = "of both sides, unless a case names its own."
OWN = ("json", "file", "fail_on_busy")  # options that are no words of the measuring
HAS_A_LOG = ("failed", "timed out", "out of memory", "crashed")


def ab(
    model: Annotated[str, typer.Argument(help=MODEL)],
    a: Annotated[str | None, typer.Argument(help=A, metavar="A")] = None,
    b: Annotated[str | None, typer.Argument(help="The second case.", metavar="B")] = None,
    checkout: Annotated[str | None, typer.Option(help=CHECKOUT)] = None,
    python: Annotated[str | None, typer.Option(help=PYTHON)] = None,
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    precision: Annotated[str | None, typer.Option(help=f"Precision {SHARED}")] = None,
    batch: Annotated[int | None, typer.Option(help=f"Batch size {SHARED}")] = None,
    device: Annotated[str | None, typer.Option(help=f"Device {SHARED}")] = None,
    threads: Annotated[int | None, typer.Option(help=f"CPU threads inside a call {SHARED}")] = None,
    io: Annotated[str | None, typer.Option(help=f"Where a call begins and ends, device or host, {SHARED}")] = None,
    cold: Annotated[bool | None, typer.Option("--cold", help="Flush the device's cache before each sample.")] = None,
    rotate: options.Rotate = None,
    option: Annotated[list[str] | None, typer.Option(help="A backend's option, as BACKEND.OPTION=VALUE.")] = None,
    input: options.Inputs = None,
    dim: options.Dims = None,
    weights: options.Weights = None,
    calibration: options.Calibration = None,
    accuracy: options.Accuracy = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    metric: Annotated[str, typer.Option(help="latency, throughput or 'GPU time'.")] = "latency",
    threshold: Annotated[str, typer.Option(help="The smallest difference that matters.")] = "2%",
    level: Annotated[str, typer.Option(help="Confidence of the verdict.")] = "95%",
    max_rounds: Annotated[int, typer.Option(help="Most rounds, each with a new process for A and for B.")] = 20,
    within: Annotated[
        str,
        typer.Option(help="Time for everything; after three rounds, none begins that would end later."),
    ] = "10m",
    iterations: Annotated[int | None, typer.Option(help="Latency samples of each process.")] = None,
    seconds: Annotated[str | None, typer.Option(help="Time for the latency samples of each process.")] = None,
    max_time: options.MaxTime = None,
    warmup: options.Warmup = None,
    timeout: Annotated[str | None, typer.Option(help="Time limit of each process.", show_default="15m")] = None,
    wait: options.Wait = None,
    output: Annotated[str, typer.Option(help="Folder of the records.")] = "results",
    file: options.File = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    fail_on_busy: options.FailOnBusy = False,
) -> None:
    """Find out which of two is faster: measure them in turns until it is decided.

    Two ways: inferlens ab resnet18 pytorch onnxruntime:cpu. Two models: inferlens ab base:build candidate:build

    Did my change make it slower? inferlens ab mypackage.models:build --checkout ../old,.

    Did an upgrade make it slower? inferlens ab resnet50 onnxruntime --python old/bin/python,new/bin/python

    Exit codes: 0 if B is not slower, 1 if it is, 2 for bad input, 3 if it is undecided, 4 if one did not run. With
    --fail-on-busy: 5 if other programs kept the machine busy.
    """
    words = {name: value for name, value in locals().items() if value not in (None, [])}
    screen.format_of("table", file)
    found, interrupted = measured({name: value for name, value in words.items() if name not in OWN})
    if found:
        show(found, file, json)
    if interrupted:
        screen.note("Interrupted; what was measured is kept.")
    raise typer.Exit(130 if not found or interrupted else options.exit_code(found, fail_on_busy=fail_on_busy))


def measured(words: dict[str, Any]) -> tuple[ABResult | ABSteps | None, bool]:
    """What was found, of two or of the steps between more environments; and whether it was interrupted."""
    from inferlens.cli import progress, screen
    from inferlens.execution.ab import ab as measure
    from inferlens.execution.ab import ab_steps

    with (bar := progress.RoundsBar(screen.errors())):
        words |= {"observer": bar, "on_round": bar.looked}
        try:
            if "," in words.get("python", "").partition(",")[2]:
                bar.last = ab_steps(case=words.pop("a", None), **words)
            else:
                bar.last = measure(**words)
        except KeyboardInterrupt:
            return bar.last, True
    return bar.last, False


def show(found: ABResult | ABSteps, file: Path | None, as_json: bool) -> None:
    """Prints the answer, and what to do next; and writes the file that was asked for."""
    from inferlens.views.raced.ab import document

    last = next_step(found, sys.argv[1:])
    if file:
        screen.document(document(found, last), output=file)
    if as_json:
        screen.document(document(found), "json")
    else:
        screen.document(document(found, last))


def next_step(found: ABResult | ABSteps, arguments: list[str]) -> str:
    """What to do now: the command that decides it, or the one that shows the log of a failure, or the records."""
    from inferlens.analysis.ab_result import ABSteps

    if isinstance(found, ABSteps):
        return f"The records: inferlens show {shlex.quote(found.steps[-1].output)}"
    for case, side in ((found.a, found.base), (found.b, found.candidate)):
        if side.state in HAS_A_LOG:
            return f"What it printed: inferlens show --log {shlex.quote(case.label)} {shlex.quote(found.output)}"
    if not found.retry_options:
        return f"The records: inferlens show {shlex.quote(found.output)}"
    given = iter(arguments)
    kept = []
    for word in given:
        name, equals, _ = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in found.retry_options:
            next(given if not equals else iter(()), None)
        else:
            kept.append(word)
    again = [part for name, value in found.retry_options.items() for part in (f"--{name}", value)]
    return f"To decide it: {shlex.join(['inferlens', *kept, *again])}"
