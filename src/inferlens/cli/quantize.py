"""``inferlens quantize``: a model quantized to a file, and what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

MODEL = "The model, as for 'inferlens bench'."
TO = "int8 or fp8."
CALIBRATION = "Data to find ranges with: a folder of images, an .npz file, package.module:factory."
BACKEND = "What makes the file and runs it. [dim]Default: onnxruntime.[/dim]"
OUTPUT = "The file. [dim]Default: the model's name and precision.[/dim]"
ERRORS = "Show what each layer loses, quantized alone."
WITHIN = "A limit that the file keeps, as error=1e-2 or accuracy-drop=0.5%: layers that lose most stay as they are."
ACCURACY = "Data with labels, or package.module:evaluate, that answers are evaluated on."


def quantize(
    model: Annotated[str, typer.Argument(help=MODEL)],
    to: Annotated[str, typer.Option("--to", help=TO)] = "int8",
    calibration: Annotated[str | None, typer.Option(help=CALIBRATION)] = None,
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=OUTPUT)] = None,
    errors: Annotated[bool, typer.Option("--errors", help=ERRORS)] = False,
    keep: options.Keep = None,
    within: Annotated[str | None, typer.Option(metavar="LIMIT", help=WITHIN)] = None,
    accuracy: Annotated[str | None, typer.Option(help=ACCURACY)] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [dim]Default: where it can be done.[/dim]")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch size. [dim]Default: the model's own.[/dim]")] = None,
    input: options.Inputs = None,
    option: options.Options = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    timeout: options.BuildTimeout = "1h",
    rebuild: options.Rebuild = False,
    format: options.Format = "table",
    json: options.Json = False,
) -> None:
    """Quantize a model to a file that you can keep and run, and see what it is worth.

    What was written is run, and its outputs are compared with those in fp32 on the calibration data. --errors ranks the
    layers by what each loses; --keep leaves layers in fp32; --within finds out which have to stay. The exit code is 1
    if no file keeps the limit.
    """
    from inferlens.cli import screen
    from inferlens.errors import InferlensError, check_choice
    from inferlens.execution.deploy.quantize import quantize as quantized
    from inferlens.views.profiled.quantized import document
    from inferlens.views.table import FORMATS

    format = "json" if json else format
    check_choice("format", format, FORMATS)
    if calibration is None:
        hint = "--calibration DATA, or --calibration random to see how fast it would be"
        raise InferlensError("To quantize a model takes data to calibrate it with.", hint=hint)
    with screen.busy(f"{model} to {to}") as phase:
        found = quantized(
            model, to=to, calibration=calibration, backend=backend, device=device, output=output, keep=keep,
            errors=errors, within=within, accuracy=accuracy, batch=batch, option=option, input=input, weights=weights,
            trust=bool(trust), rebuild=rebuild, seed=seed or 0, timeout=timeout, phase=phase,
        )  # fmt: skip
    screen.document(document(found, model, device or "", layers=errors), format)
    if not found.path:
        raise typer.Exit(1)
