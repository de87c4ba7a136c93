"""``inferlens build``: a TensorRT engine from a model, in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferlens.cli import options

if TYPE_CHECKING:
    from inferlens.record.build_report import BuildReport

MOST_LAYERS = 20
MODEL = "What to build an engine of: a name, package.module:factory, or a file, such as a .onnx."
OUTPUT = "The engine's file, such as model.engine; its description goes to model.engine.json."
BACKEND = "tensorrt:trt or tensorrt:rtx. [dim]Default: the flavour that is installed.[/dim]"
INPUT = "An input, as NAME=1x3x224x224:float32, or NAME=1..16x3x224x224:opt=2 for a range; repeatable."
BUILDS = "How many times to build, never from the cache; the report says how far the builds differ."
CAPABILITY = "GPUs to build for, such as 8.0,8.9; also without a GPU (rtx). [dim]Default: the GPU here.[/dim]"


def build(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[Path, typer.Option("--output", "-o", help=OUTPUT)],
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    precision: options.Precision = None,
    batch: Annotated[int | None, typer.Option(help="Batch size. [dim]Default: the model's own.[/dim]")] = None,
    option: options.Options = None,
    input: Annotated[list[str] | None, typer.Option(help=INPUT)] = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights.", show_default="0")] = None,
    compute_capability: Annotated[str | None, typer.Option(help=CAPABILITY)] = None,
    builds: Annotated[int, typer.Option(help=BUILDS, min=1)] = 1,
    rebuild: options.Rebuild = False,
    timeout: options.BuildTimeout = "1h",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Build a TensorRT engine and write it to a file.

    Its description, what it was built from and for, goes beside it. 'inferlens bench model.engine' runs it. Without a
    GPU, TensorRT for RTX builds for the compute capabilities that are named.
    """
    from inferlens.backends.abilities import Builder
    from inferlens.cli import screen
    from inferlens.errors import InferlensError
    from inferlens.execution.deploy.build import able, single
    from inferlens.execution.deploy.build import build as build_file
    from inferlens.units import parse_duration
    from inferlens.views.table import Document

    backend = backend or able(Builder)[0]
    given = [*(option or ())]
    if compute_capability is not None:
        wanted = [word.strip() for word in compute_capability.replace("+", ",").split(",")]
        name = f"{backend.partition(':')[0]}.compute_capability"
        if any(word.startswith(f"{name}=") for word in given):
            raise InferlensError(f"--compute-capability and --option {name} were both given.", hint="one of them")
        given.append(f"{name}={'+'.join(wanted)}")
    words = {
        "model": model, "precision": precision, "batch": batch, "option": given, "input": input or None,
        "weights": weights, "trust": trust, "seed": seed,
    }  # fmt: skip
    if os.path.isdir(output) or not os.access(output.parent, os.W_OK):
        hint = "--output with a file in a folder that you may write to"
        raise InferlensError(f"{output} cannot be written.", hint=hint)
    if output.suffix not in (".engine", ".plan"):
        raise InferlensError(
            f"{output} is not named .engine or .plan.", hint=f"--output {output.with_suffix('.engine')}"
        )
    seconds = parse_duration(timeout)
    case = single(words, backend)
    with screen.busy(f"{model}: {case.backend_label}") as phase:
        done = build_file(output, case, builds, trust=bool(trust), rebuild=rebuild, timeout=seconds, phase=phase)
    screen.warnings(done.warnings)
    assert done.found
    if json:
        screen.document(Document(list, data=lambda: done.found), "json")
    else:
        screen.text(text(done.found))


def text(report: BuildReport) -> str:
    """The report in lines: size, seconds, flavour, what for, where; and how far builds differ."""
    from inferlens import units

    took = "cached" if report.cached else f"built in {units.duration(report.seconds)}"
    gpu = f"{report.gpu} (compute capability {report.compute_capability})"
    purpose = f"compute capability {units.listing(report.targets)}" if report.targets else gpu
    size = units.byte_count(report.size)
    lines = [f"{report.path}: {size}, {took}, by {report.flavour} {report.version}, for {purpose}."]
    lines += [
        f"  build {number}: {units.duration(build.seconds)}, {units.byte_count(build.size)}, sha256 {build.sha256[:12]}"
        + ("" if build.gpu_seconds is None else f", GPU time {units.duration(build.gpu_seconds)}")
        + (", shared timings" if build.shared_timings else "")
        for number, build in enumerate(report.builds, 1)
    ]
    for differences, how in ((report.differences, ""), (report.shared_differences, ", shared timings")):
        lines += [f"  {each.name}{how}: {' | '.join(each.tactics)}" for each in differences[:MOST_LAYERS]]
        more = len(differences) - MOST_LAYERS
        lines += [f"  and {more} more layers{how}; --json has all"] if more > 0 else []
    return "\n".join([*lines, *report.findings]) + "\n"
