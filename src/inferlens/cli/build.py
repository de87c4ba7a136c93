"""``inferlens build``: a TensorRT engine from a model, in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferlens.cli import options

if TYPE_CHECKING:
    from inferlens.record.build_report import BuildReport, LayerDifference

MOST_LAYERS = 20
MODEL = "What to build an engine of: a name, package.module:factory, or a file, such as a .onnx."
OUTPUT = "The engine's file, such as model.engine; what it was built from and for goes to model.engine.json."
BACKEND = "tensorrt:trt or tensorrt:rtx. [dim]Default: the flavour that is installed.[/dim]"
INPUT = "An input, as NAME=1x3x224x224:float32, or NAME=1..16x3x224x224:opt=2 for a range; repeatable."
BUILDS = "Build so many times, never from the cache, and say how far the builds differ."
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

    Beside it goes what it was built from and for. 'inferlens bench model.engine' runs it. Without a GPU, TensorRT for
    RTX builds for the compute capabilities that are named.
    """
    from inferlens.backends.abilities import Builder
    from inferlens.cli import screen
    from inferlens.execution.build import able, single
    from inferlens.execution.build import build as build_file
    from inferlens.units import parse_duration

    backend = backend or able(Builder)[0]
    given = [*(option or ())]
    if compute_capability is not None:
        given = with_capability(given, compute_capability, backend.partition(":")[0])
    words = {
        "model": model, "precision": precision, "batch": batch, "option": given, "input": input or None,
        "weights": weights, "trust": trust, "seed": seed,
    }  # fmt: skip
    check_output(output)
    seconds = parse_duration(timeout)
    case = single(words, backend)
    with screen.busy(f"{model}: {case.backend_label}") as phase:
        done = build_file(output, case, builds, trust=bool(trust), rebuild=rebuild, timeout=seconds, phase=phase)
    screen.warnings(done.warnings)
    assert done.found
    if json:
        screen.data(done.found)
    else:
        screen.text(text(done.found))


def with_capability(given: list[str], capability: str, backend: str) -> list[str]:
    """Options, as they were written, and with them the compute capabilities of ``--compute-capability``."""
    from inferlens.errors import InferlensError
    from inferlens.spec.plan import option_values

    wanted = [word.strip() for word in capability.replace("+", ",").split(",") if word.strip()]
    if not wanted:
        raise InferlensError("--compute-capability names no GPU.", expected="such as 8.9, or 8.0,8.9")
    name = f"{backend}.compute_capability"
    said = option_values(given).get(name)
    if said is None:
        return [*given, f"{name}={'+'.join(wanted)}"]
    if {word.strip() for text in said for word in text.split("+")} != set(wanted):
        raise InferlensError(
            f"--compute-capability says {', '.join(wanted)} and --option {name} says {', '.join(said)}.",
            expected="the same, or one of the two",
        )
    return given


def check_output(path: Path) -> None:
    """Refuses a file that could not be benchmarked or not be written, before the time of a build is spent."""
    import tempfile

    from inferlens.errors import InferlensError
    from inferlens.models.provenance import beside

    try:
        if path.is_dir() or beside(path).is_dir():
            taken = path if path.is_dir() else beside(path)
            raise InferlensError(f"{taken} is a folder.", expected="the name of a file", hint="another --output")
        if path.suffix not in (".engine", ".plan"):
            raise InferlensError(f"{path} has no suffix of an engine.", hint=f"--output {path.with_suffix('.engine')}")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{beside(path).name}."):  # as long as they get
            pass
    except OSError as error:
        raise InferlensError(
            f"{path} cannot be written: {error.strerror}.", hint="--output with a folder that you may write to"
        ) from error


def text(report: BuildReport) -> str:
    """The report in lines: size, seconds, flavour, what for, where; and how far builds differ."""
    from inferlens import units

    took = "cached" if report.cached else f"built in {units.duration(report.seconds)}"
    if report.targets:
        purpose = f"compute capability {units.listing(report.targets)}"
    else:
        purpose = f"{report.gpu} (compute capability {report.compute_capability})"
    lines = [
        f"{report.path}: {units.byte_count(report.size)}, {took}, by {report.flavour} {report.version}, for {purpose}."
    ]
    lines += [
        f"  build {number}: {units.duration(build.seconds)}, {units.byte_count(build.size)}, sha256 {build.sha256[:12]}"
        + ("" if build.gpu_seconds is None else f", GPU time {units.duration(build.gpu_seconds)}")
        + (", shared timings" if build.shared_timings else "")
        for number, build in enumerate(report.builds, 1)
    ]
    lines += differing(report.differences, "") + differing(report.shared_differences, ", shared timings")
    return "\n".join([*lines, *report.findings]) + "\n"


def differing(differences: Sequence[LayerDifference], how: str) -> list[str]:
    """Layers that were built differently, a line each; of many the first ones."""
    lines = [f"  {each.name}{how}: {' | '.join(each.tactics)}" for each in differences[:MOST_LAYERS]]
    more = len(differences) - MOST_LAYERS
    return [*lines, f"  and {more} more layers{how}; --json has all"] if more > 0 else lines
