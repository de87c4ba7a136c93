"""``inferlens ab``: which of two things is faster, measured in turns until that is known."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens.cli import options, screen
from inferlens.spec.commands import options_of

if TYPE_CHECKING:
    from inferlens.analysis.ab_result import ABResult, ABSteps

MODEL = "The model, as for bench; with two models the first one."
A = "The first case, such as pytorch or 'torch_compile:default fp16 batch=8 dynamic=true'; or, without B, the second \
model."
HAS_A_LOG = ("failed", "timed out", "out of memory", "crashed")


@options.takes()
def ab(
    model: Annotated[str, typer.Argument(help=MODEL)],
    a: Annotated[str | None, typer.Argument(help=A, metavar="A")] = None,
    b: Annotated[str | None, typer.Argument(help="The second case.", metavar="B")] = None,
    *,
    file: Path | None = None,
    format: str = "table",
    fail_on_busy: bool = False,
    **words: Any,
) -> None:
    """Find out which of two is faster: measure them in turns until it is decided.

    Two ways: inferlens ab resnet18 pytorch onnxruntime:cpu. Two models: inferlens ab base:build candidate:build

    Did my change make it slower? inferlens ab mypackage.models:build --checkout ../old,.

    Did an upgrade make it slower? inferlens ab resnet50 onnxruntime --python old/bin/python,new/bin/python

    Exit codes: 0 if B is not slower, 1 if it is, 2 for bad input, 3 if it is undecided, 4 if one did not run. With
    --fail-on-busy: 5 if other programs kept the machine busy.
    """
    from inferlens.views.comparison import ab_document

    screen.format_of("table", file)
    if "max_rounds" in words:
        words["max_rounds"] = options_of("ab")["max_rounds"].read(words["max_rounds"])
    result, interrupted = measure_sides({"model": model, "a": a, "b": b, **words})
    if result:
        answer = ab_document(result, next_step(result))
        if file:
            screen.document(answer, output=file)
        screen.document(ab_document(result) if format == "json" else answer, format)
    if interrupted:
        screen.note("Interrupted; what was measured is kept.")
    raise typer.Exit(130 if not result or interrupted else options.exit_code(result, fail_on_busy=fail_on_busy))


def measure_sides(words: dict[str, Any]) -> tuple[ABResult | ABSteps | None, bool]:
    """Return the result of two sides, or of the steps between more environments; and whether it was interrupted."""
    from inferlens.cli import progress
    from inferlens.execution.ab import ab as measure
    from inferlens.execution.ab import ab_steps

    with (bar := progress.RoundsBar(screen.errors())):
        words |= {"observer": bar, "on_round": bar.update}
        try:
            if "," in words.get("python", "").partition(",")[2]:
                del words["b"]
                bar.last = ab_steps(case=words.pop("a"), **words)
            else:
                bar.last = measure(**words)
        except KeyboardInterrupt:
            return bar.last, True
    return bar.last, False


def next_step(result: ABResult | ABSteps) -> str:
    """Return the next command: the one that decides it, that shows the log of a failure, or that shows the records."""
    from inferlens.analysis.ab_result import ABSteps

    if isinstance(result, ABSteps):
        return f"The records: inferlens show {shlex.quote(result.steps[-1].output)}"
    for case, side in ((result.a, result.base), (result.b, result.candidate)):
        if side.state in HAS_A_LOG:
            return f"What it printed: inferlens show --log {shlex.quote(case.label)} {shlex.quote(result.output)}"
    if not result.retry_options:
        return f"The records: inferlens show {shlex.quote(result.output)}"
    again = " ".join(f"--{name} {value}" for name, value in result.retry_options.items())
    return f"To decide it: the same command with {again}"
