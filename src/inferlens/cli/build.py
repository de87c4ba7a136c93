"""``inferlens build``, ``quantize``, ``export`` and ``partition``: what backends make of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferlens import units
from inferlens.cli import options, screen
from inferlens.errors import InferlensError, check_choice
from inferlens.units import parse_duration
from inferlens.views.table import FORMATS, Document

if TYPE_CHECKING:
    from inferlens.record.build_report import BuildReport


MOST_LAYERS = 20
MODEL = "What to build an engine of: a name, package.module:factory, or a file, such as a .onnx."
OUTPUT = "The engine's file, such as model.engine; its description goes to model.engine.json."
BACKEND = "tensorrt:trt or tensorrt:rtx. [dim]Default: the flavour that is installed.[/dim]"
INPUT = "An input, such as NAME=1x3x224x224:float32, or NAME=1..16x3x224x224:opt=2 for a range; repeatable."
BUILDS = "How many times to build, without the cache; the report says how far the builds differ."
CAPABILITY = "GPUs to build for, such as 8.0,8.9; also without a GPU (rtx). [dim]Default: the GPU here.[/dim]"


def build(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[Path, typer.Option("--output", "-o", help=OUTPUT)],
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=BACKEND)] = None,
    precision: options.Precision = None,
    batch: Annotated[int | None, typer.Option(help="Batch size. [dim]Default: the model's own.[/dim]")] = None,
    option: options.Options = None,
    input: Annotated[list[str] | None, typer.Option(help=INPUT)] = None,
    dim: options.Dims = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights.", show_default="0")] = None,
    compute_capability: Annotated[str | None, typer.Option(help=CAPABILITY)] = None,
    builds: Annotated[int, typer.Option(help=BUILDS, min=1)] = 1,
    rebuild: options.Rebuild = False,
    timeout: options.BuildTimeout = "1h",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a TensorRT engine and write it to a file.

    A description beside it says what it was built from and for. 'inferlens bench model.engine' runs it. Without a GPU,
    TensorRT for RTX builds for the compute capabilities that are named.
    """
    from inferlens.backends.abilities import Builder
    from inferlens.execution.deploy.build import able, single
    from inferlens.execution.deploy.build import build as build_file

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
        "dim": dim or None, "weights": weights, "trust": trust, "seed": seed,
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


THE_MODEL = "The model, as for 'inferlens bench'."
PRECISION = "int8 or fp8."
CALIBRATION = "Data to find value ranges with: a folder of images, an .npz file or package.module:factory."
QUANTIZER = "The backend that makes the file and runs it. [dim]Default: onnxruntime.[/dim]"
QUANTIZED = "The file to write. [dim]Default: named after the model and the precision.[/dim]"
ERRORS = "Show the error of each layer when only it is quantized."
WITHIN = "A limit for the file, such as error=1e-2 or accuracy-drop=0.5%: layers that lose most stay in fp32."
ACCURACY = "Labeled data, or package.module:evaluate, to compute the accuracy with."


def quantize(
    model: Annotated[str, typer.Argument(help=THE_MODEL)],
    to: Annotated[str, typer.Option("--to", help=PRECISION)] = "int8",
    calibration: Annotated[str | None, typer.Option(help=CALIBRATION)] = None,
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=QUANTIZER)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=QUANTIZED)] = None,
    errors: Annotated[bool, typer.Option("--errors", help=ERRORS)] = False,
    keep: options.Keep = None,
    within: Annotated[str | None, typer.Option(metavar="LIMIT", help=WITHIN)] = None,
    accuracy: Annotated[str | None, typer.Option(help=ACCURACY)] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [dim]Default: where it can be done.[/dim]")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch size. [dim]Default: the model's own.[/dim]")] = None,
    input: options.Inputs = None,
    dim: options.Dims = None,
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

    The file is run, and its outputs are compared with those in fp32 on the calibration data. --errors ranks the layers
    by their error; --keep leaves layers in fp32; --within finds out which have to stay in fp32. The exit code is 1 if
    no file keeps the limit.
    """
    from inferlens.execution.deploy.quantize import quantize as quantized
    from inferlens.views.profiles.quantization import quantization_document

    format = "json" if json else format
    check_choice("format", format, FORMATS)
    if calibration is None:
        hint = "--calibration DATA, or --calibration random to see how fast it would be"
        raise InferlensError("Quantizing a model needs calibration data.", hint=hint)
    with screen.busy(f"{model} to {to}") as phase:
        found = quantized(
            model, to=to, calibration=calibration, backend=backend, device=device, output=output, keep=keep,
            errors=errors, within=within, accuracy=accuracy, batch=batch, option=option, input=input, dim=dim,
            weights=weights, trust=bool(trust), rebuild=rebuild, seed=seed or 0, timeout=timeout, phase=phase,
        )  # fmt: skip
    screen.document(quantization_document(found, model, device or "", layers=errors), format)
    if not found.path:
        raise typer.Exit(1)


FORMS = "MODEL --to FILE, or --best RESULTS --output FOLDER"
BEST = "A folder of results, to write its fastest case; or the folder of one case."
EXPORTED = "The new folder to write to."
TO = "The file: .onnx, .pt (TorchScript), .pt2 (exported program), .engine or .plan (TensorRT), .ts or .ep \
(Torch-TensorRT)."
WRITER = "The backend that makes the file, as name or name:variant. [dim]Default: by the ending of the file.[/dim]"


def export(
    model: Annotated[str | None, typer.Argument(help=THE_MODEL)] = None,
    to: Annotated[Path | None, typer.Option("--to", help=TO)] = None,
    best: Annotated[Path | None, typer.Option(help=BEST)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=EXPORTED)] = None,
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=WRITER)] = None,
    precision: options.Precision = None,
    batch: Annotated[str | None, typer.Option(help="Batch size. [dim]Default: the model's own.[/dim]")] = None,
    input: options.Inputs = None,
    dim: options.Dims = None,
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

    MODEL and --to write a file that 'inferlens bench' runs and others can load. A JSON file beside a compiled file says
    what it was made from, and what it needs.

    --best and --output write the model's file, a short script that runs it without Inferlens, and a list of packages.
    """
    from inferlens.execution.deploy.build import save, saver, single

    limit = units.parse_duration(timeout)
    words = {
        "model": model, "precision": precision, "batch": batch, "input": input, "dim": dim, "option": option,
        "weights": weights, "calibration": calibration, "keep": keep, "seed": seed,
    }  # fmt: skip
    said = [value for value in (*words.values(), to, backend) if value not in (None, [])]
    if best and output and not said:
        _deploy(best, output, limit, trust=bool(trust), rebuild=rebuild)
        return
    if model is None or to is None or best or output:
        raise InferlensError("Give either MODEL with --to, or --best with --output.", expected=FORMS)
    case = single({**words, "trust": trust}, saver(to, backend))
    with screen.busy(f"{model}: {case.backend_label}") as phase:
        done = save(to, case, trust=bool(trust), rebuild=rebuild, phase=phase, timeout=limit)
    screen.warnings(done.warnings)
    seconds = sum(phase.seconds for phase in done.phases)
    size = units.byte_count(to.stat().st_size)
    screen.note(f"Wrote {to}, {size}, in {units.duration(seconds)}. Run it: inferlens bench {to}")


def _deploy(results: Path, output: Path, limit: float, **words: bool) -> None:
    """Writes the fastest case of ``results``, and says what was written."""
    from inferlens.execution.deploy.files import write
    from inferlens.views.results import best_case

    record, folder = best_case(results)
    with screen.busy(f"{record.model.name}: {record.case.label}") as phase:
        done = write(record, folder, output, phase=phase, timeout=limit, **words)
    screen.warnings(done.warnings)
    screen.notes(filter(None, [record.model.weights_note]))
    files = units.listing(sorted(path.name for path in output.iterdir()))
    screen.note(f"Wrote {record.model.name}, {record.case.label}, to {output}: {files}. Run it: python {output}/run.py")


DIVIDED = "The model: a name, a file or a factory, as for 'inferlens bench'."
DIVIDER = "A backend that divides a model, as name or name:variant. [dim]Default: the first that does.[/dim]"
WIDE = "Show everything: every operator, all places and all values."


def partition(
    model: Annotated[str, typer.Argument(help=DIVIDED)],
    backend: Annotated[str | None, typer.Option("--backend", "-b", help=DIVIDER)] = None,
    option: options.Options = None,
    precision: Annotated[str | None, typer.Option(help="fp32, fp16 or bf16, with commas.")] = None,
    batch: options.Batches = None,
    input: options.Inputs = None,
    dim: options.Dims = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    wide: Annotated[bool, typer.Option("--wide", help=WIDE)] = False,
    format: options.Format = "table",
    output: options.Output = None,
    json: options.Json = False,
) -> None:
    """Show which operators run in TensorRT and which in PyTorch, and where the graph breaks.

    Nothing is built, and no GPU is needed. Several values, separated by commas, are shown side by side:
    --option torch_tensorrt.min_block_size=1,5,100 shows what the size of blocks changes. The exit code is 2 if any of
    them failed.
    """
    from inferlens.backends import BACKENDS
    from inferlens.backends.abilities import Partitioner
    from inferlens.cli.backends import option_rows
    from inferlens.execution.deploy.build import able
    from inferlens.execution.deploy.build import cases as cases_of
    from inferlens.execution.deploy.build import partition as divide
    from inferlens.views.graph import PartitionResult
    from inferlens.views.graph import partition_document as of_partitions

    check_choice("format", format, FORMATS)
    format = screen.format_of("json" if json else format, output)
    words = {
        "model": model, "option": option, "precision": precision, "batch": batch, "input": input, "dim": dim,
        "weights": weights, "trust": trust, "seed": seed,
    }  # fmt: skip
    given = {name: value for name, value in words.items() if value is not None}
    cases = cases_of(given, backend or able(Partitioner)[0])
    answers = []
    for number, case in enumerate(cases, 1):
        with screen.busy(f"{number} of {len(cases)}, {case.label}") as phase:
            try:
                done = divide(case, trust=bool(trust), phase=phase)
                assert done.found
                answers.append(PartitionResult(case, done.found, done.warnings))
            except InferlensError as error:
                answers.append(PartitionResult(case, error))
    failures = [each.result for each in answers if isinstance(each.result, InferlensError)]
    if len(failures) == len(answers):
        raise failures[0]
    defaults = {name: default for name, _, default, _ in option_rows(BACKENDS.get(cases[0].backend))}
    screen.document(of_partitions(answers, wide=wide, defaults=defaults), format, wide=wide, output=output)
    if failures:
        raise typer.Exit(2)
