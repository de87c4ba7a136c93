"""``inferlens partition``: which operators of a model run in TensorRT and which in PyTorch, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from inferlens.cli import options

MODEL = "A name, a file or a factory, as for 'inferlens bench'."
BACKEND = "A backend that divides a model, as name or name:variant. [dim]Default: the first that does.[/dim]"
WIDE = "Show everything: every operator, all places and all values."


def partition(
    model: Annotated[str, typer.Argument(help=MODEL)],
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    option: options.Options = None,
    precision: Annotated[str | None, typer.Option(help="fp32, fp16, bf16, with commas.")] = None,
    batch: options.Batches = None,
    input: options.Inputs = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    wide: Annotated[bool, typer.Option("--wide", help=WIDE)] = False,
    format: options.Format = "table",
    output: options.Output = None,
    json: options.Json = False,
) -> None:
    """Show which operators run in TensorRT and which in PyTorch, and where the graph breaks.

    Nothing is built, and no GPU is needed. Options given with commas are shown side by side; so
    --option torch_tensorrt.min_block_size=1,5,100 shows what the size of blocks changes. The exit code is 2 if any of
    them failed.
    """
    from inferlens.backends import BACKENDS
    from inferlens.backends.abilities import Partitioner
    from inferlens.cli import screen
    from inferlens.cli.backends import option_rows
    from inferlens.errors import InferlensError, check_choice
    from inferlens.execution.deploy import build
    from inferlens.views.partition import Answer, document
    from inferlens.views.table import FORMATS

    check_choice("format", format, FORMATS)
    format = screen.format_of("json" if json else format, output)
    words = {
        "model": model, "option": option, "precision": precision, "batch": batch, "input": input, "weights": weights,
        "trust": trust, "seed": seed,
    }  # fmt: skip
    given = {name: value for name, value in words.items() if value is not None}
    cases = build.cases(given, backend or build.able(Partitioner)[0])
    answers = []
    for number, case in enumerate(cases, 1):
        with screen.busy(f"{number} of {len(cases)}, {case.label}") as phase:
            try:
                done = build.partition(case, trust=bool(trust), phase=phase)
                assert done.found
                answers.append(Answer(case, done.found, done.warnings))
            except InferlensError as error:
                answers.append(Answer(case, error))
    failures = [each.result for each in answers if isinstance(each.result, InferlensError)]
    if len(failures) == len(answers):
        raise failures[0]
    defaults = {name: default for name, _, default, _ in option_rows(BACKENDS.get(cases[0].backend))}
    screen.document(document(answers, wide=wide, defaults=defaults), format, wide=wide, output=output)
    if failures:
        raise typer.Exit(2)
