"""``inferlens ab``: which of two cases is faster, measured in turns until that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from inferlens.cli import options

if TYPE_CHECKING:
    from inferlens.analysis.compare.ab_result import ABResult

A = "What B is compared with: a case in the words of its label, such as pytorch or 'torch_compile:default fp16 batch=8 \
threads=1 dynamic=true'."
SHARED = "of both cases, unless a case says its own."
INTERLEAVE = (
    "calls: both processes of a round run at once and take turns; or processes: one runs after the other, the default \
on a GPU."
)
SCHEMA = "inferlens.ab/1"


def ab(
    model: Annotated[str, typer.Argument(help="What to measure, as for bench; one model.")],
    a: Annotated[str, typer.Argument(help=A, metavar="A")],
    b: Annotated[str, typer.Argument(help="What is compared with A: the same.", metavar="B")],
    precision: Annotated[str | None, typer.Option(help=f"Precision {SHARED}")] = None,
    batch: Annotated[int | None, typer.Option(help=f"Batch size {SHARED}")] = None,
    device: Annotated[str | None, typer.Option(help=f"Device {SHARED}")] = None,
    threads: Annotated[int | None, typer.Option(help=f"CPU threads inside a call {SHARED}")] = None,
    io: Annotated[str | None, typer.Option(help=f"Where a call begins and ends, device or host, {SHARED}")] = None,
    cold: Annotated[bool | None, typer.Option("--cold", help="Flush the device's cache before each sample.")] = None,
    rotate: options.Rotate = None,
    option: Annotated[list[str] | None, typer.Option(help="A backend's option, as BACKEND.OPTION=VALUE.")] = None,
    input: options.Inputs = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    metric: Annotated[str, typer.Option(help="latency, throughput or 'GPU time'.")] = "latency",
    threshold: Annotated[str, typer.Option(help="The smallest difference that matters.")] = "2%",
    level: Annotated[str, typer.Option(help="How sure the verdict is to be.")] = "95%",
    max_rounds: Annotated[int, typer.Option(help="Rounds at most, each a fresh process of A and one of B.")] = 20,
    within: Annotated[str, typer.Option(help="Time for all of it; a round that would end later is not begun.")] = "10m",
    interleave: Annotated[str | None, typer.Option(help=INTERLEAVE, show_default="calls on the CPU")] = None,
    iterations: Annotated[int | None, typer.Option(help="Latency samples of each process.")] = None,
    seconds: Annotated[str | None, typer.Option(help="Time for the latency samples of each process.")] = None,
    max_time: options.MaxTime = None,
    warmup: options.Warmup = None,
    timeout: Annotated[str | None, typer.Option(help="Time each process may take in all.", show_default="15m")] = None,
    output: Annotated[str, typer.Option(help="Folder of the records.")] = "results",
    json: Annotated[bool, typer.Option("--json", help="The answer as data.")] = False,
) -> None:
    """Measure two cases of one model against each other, in turns, until it is decided which is faster.

    Exit codes: 1 if B is slower than A; 4 if one did not run; 3 if it is undecided; else 0. Bad input is 2.
    """
    words = {name: value for name, value in locals().items() if value not in (None, [])}
    from inferlens.cli import screen
    from inferlens.cli.progress import RoundsBar
    from inferlens.execution.ab import ab as measure

    as_json, interrupted = words.pop("json"), False
    bar = RoundsBar(screen.errors())
    with bar:
        try:
            bar.last = measure(**words, observer=bar, on_round=bar.looked)
        except KeyboardInterrupt:
            interrupted = True
    if found := bar.last:
        if as_json:
            fields = msgspec.structs.asdict(found)
            screen.data({"schema": SCHEMA, "exit_code": found.exit_code, "sentence": found.sentence, **fields})
        else:
            screen.text("\n".join([*lines(found), "", *found.notes, found.sentence]))
        screen.note(f"Kept in {output}. Look again: inferlens show {output}")
    if interrupted:
        screen.note("Interrupted; what was measured is kept.")
    raise typer.Exit(found.exit_code if found and not interrupted else 130)


def lines(found: ABResult) -> list[str]:
    """A line for each side: its name, what was run, what it measured."""
    from inferlens import units

    measured = []
    for side in (found.base, found.candidate):
        figure = units.duration if found.rule.metric != "throughput" else lambda rate: f"{units.rate(rate)} calls/s"
        measured.append(side.state if side.median is None else figure(side.median))
    labels = [f"A  {found.a.label}", f"B  {found.b.label}"]
    width = max(map(len, labels))
    return [f"{label:<{width}}  {figure}" for label, figure in zip(labels, measured, strict=True)]
