"""``inferlens export``: write a model to a file, as one of the backends would run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

TO = "The file: .onnx, .pt (TorchScript), .pt2 (exported program), .engine or .plan (TensorRT), .ts or .ep \
(Torch-TensorRT)."
BACKEND = "What makes the file, as name or name:variant. [dim]Default: what writes files of that name.[/dim]"


def export(
    model: Annotated[str, typer.Argument(help="The model, as for 'inferlens bench'.")],
    to: Annotated[Path, typer.Option("--to", help=TO)],
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    precision: options.Precision = None,
    batch: Annotated[str | None, typer.Option(help="Batch size. [dim]Default: the model's own.[/dim]")] = None,
    input: options.Inputs = None,
    option: options.Options = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    timeout: options.BuildTimeout = "1h",
    rebuild: options.Rebuild = False,
) -> None:
    """Write a model to a file that 'inferlens bench' runs and others can load.

    Compiled files have a JSON file beside them: what they were made from, and what they need.
    """
    from inferlens import units
    from inferlens.cli import screen
    from inferlens.execution.build import save, saver, single

    limit = units.parse_duration(timeout)
    words = {
        "model": model, "precision": precision, "batch": batch, "input": input, "option": option, "weights": weights,
        "trust": trust, "seed": seed,
    }  # fmt: skip
    case = single(words, saver(to, backend))
    with screen.busy(f"{model}: {case.backend_label}") as phase:
        done = save(to, case, trust=bool(trust), rebuild=rebuild, phase=phase, timeout=limit)
    screen.warnings(done.warnings)
    seconds = sum(phase.seconds for phase in done.phases)
    size = units.byte_count(to.stat().st_size)
    screen.note(f"Wrote {to}, {size}, in {units.duration(seconds)}. Run it: inferlens bench {to}")
