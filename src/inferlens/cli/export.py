"""``inferlens export``: write a model to a file, as one of the backends would run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

FORMS = "MODEL --to FILE, or --best RESULTS --output FOLDER"
BEST = "Folder of results, whose fastest case is written; or of one case."
OUTPUT = "The new folder that it is written to."
TO = "The file: .onnx, .pt (TorchScript), .pt2 (exported program), .engine or .plan (TensorRT), .ts or .ep \
(Torch-TensorRT)."
BACKEND = "What makes the file, as name or name:variant. [dim]Default: what writes files of that name.[/dim]"


def export(
    model: Annotated[str | None, typer.Argument(help="The model, as for 'inferlens bench'.")] = None,
    to: Annotated[Path | None, typer.Option("--to", help=TO)] = None,
    best: Annotated[Path | None, typer.Option(help=BEST)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=OUTPUT)] = None,
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    precision: options.Precision = None,
    batch: Annotated[str | None, typer.Option(help="Batch size. [dim]Default: the model's own.[/dim]")] = None,
    input: options.Inputs = None,
    option: options.Options = None,
    weights: options.Weights = None,
    calibration: options.Calibration = None,
    keep: options.Keep = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    timeout: options.BuildTimeout = "1h",
    rebuild: options.Rebuild = False,
) -> None:
    """Write a model to a file, or the fastest case of some results to a folder.

    MODEL and --to: a file that 'inferlens bench' runs and others can load. Compiled files have a JSON file beside
    them: what they were made from, and what they need.

    --best and --output: the model's file, a short script that runs it without Inferlens, and the packages it needs.
    """
    from inferlens import units
    from inferlens.cli import screen
    from inferlens.errors import InferlensError
    from inferlens.execution.deploy.build import save, saver, single

    limit = units.parse_duration(timeout)
    words = {
        "model": model, "precision": precision, "batch": batch, "input": input, "option": option, "weights": weights,
        "calibration": calibration, "keep": keep, "seed": seed,
    }  # fmt: skip
    said = [value for value in (*words.values(), to, backend) if value not in (None, [])]
    if best and output and not said:
        _deploy(best, output, limit, trust=bool(trust), rebuild=rebuild)
        return
    if model is None or to is None or best or output:
        raise InferlensError("What is to be written is not said, or said twice.", expected=FORMS)
    case = single({**words, "trust": trust}, saver(to, backend))
    with screen.busy(f"{model}: {case.backend_label}") as phase:
        done = save(to, case, trust=bool(trust), rebuild=rebuild, phase=phase, timeout=limit)
    screen.warnings(done.warnings)
    seconds = sum(phase.seconds for phase in done.phases)
    size = units.byte_count(to.stat().st_size)
    screen.note(f"Wrote {to}, {size}, in {units.duration(seconds)}. Run it: inferlens bench {to}")


def _deploy(results: Path, output: Path, limit: float, **words: bool) -> None:
    """Writes the fastest case of ``results``, and says what was written."""
    from inferlens import units
    from inferlens.cli import screen
    from inferlens.execution.deploy.files import write
    from inferlens.views.python import best_case

    record, folder = best_case(results)
    with screen.busy(f"{record.model.name}: {record.case.label}") as phase:
        done = write(record, folder, output, phase=phase, timeout=limit, **words)
    screen.warnings(done.warnings)
    if record.model.weights.startswith("random"):
        screen.note("Its weights are random: inferlens bench --weights measures and keeps your own.")
    files = units.listing(sorted(path.name for path in output.iterdir()))
    screen.note(f"Wrote {record.model.name}, {record.case.label}, to {output}: {files}. Run it: python {output}/run.py")
