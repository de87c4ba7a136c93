"""``inferlens export``, ``quantize`` and ``partition``: files that backends make of a model, and how they divide it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens import units
from inferlens.cli import options, screen
from inferlens.errors import InferlensError, check_choice
from inferlens.spec.commands import own_options
from inferlens.views.table import FORMATS, Document

if TYPE_CHECKING:
    from inferlens.record.builds import BuildReport

MOST_LAYERS = 20
FORMS = "MODEL --to FILE, or --best RESULTS --output FOLDER"
JSON = "Print the report on an engine as JSON."


@options.takes()
def export(
    model: Annotated[str | None, typer.Argument(help="The model, as for 'inferlens bench'.")] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
    **words: Any,
) -> None:
    """Write a model to a file, or the fastest case of some results to a folder.

    MODEL and --to write a file that 'inferlens bench' runs and others can load. A JSON file beside a compiled file says
    what it was made from, and what it needs. For a TensorRT engine a report is printed; TensorRT for RTX builds for the
    compute capabilities that are named, also without a GPU.

    --best and --output write the model's file, a short script that runs it without Inferlens, and a list of packages.
    From a load test, such as results/resnet50/load, they write the best deployment with a server.
    """
    from inferlens.backends.base import Builder
    from inferlens.execution.cases import cases_on, only_case
    from inferlens.execution.deploy import able, build, save, saver

    timeout = own_options("export", words)[0]["timeout"]
    best, output, to = words.pop("best", None), words.pop("output", None), words.pop("to", None)
    more: dict[str, Any] = {name: words.pop(name, False) for name in ("trust", "rebuild")}
    words.pop("timeout", None)
    if best and output and not (words or model or to or json):
        return _deploy(Path(best), Path(output), timeout, **more)
    if model is None or to is None or best or output:
        raise InferlensError("Give either MODEL with --to, or --best with --output.", expected=FORMS)
    path, backend = Path(to), saver(Path(to), words.pop("backend", None))
    builder = backend.partition(":")[0] in able(Builder)
    builds, words = engine_words(words, backend if builder else "", json=json)
    case = only_case(cases_on({**words, "model": model, "trust": more["trust"]}, backend))
    with screen.busy(f"{model}: {case.backend_label}") as phase:
        more |= {"timeout": timeout, "phase": phase}
        done: Any = build(path, case, builds, **more) if builder else save(path, case, **more)
    screen.notes(warning.sentence for warning in done.warnings)
    if builder:
        if json:
            screen.document(Document(list, data=lambda: done.value), "json")
        else:
            screen.text(report_text(done.value))
        return None
    seconds = sum(phase.seconds for phase in done.phases)
    size = units.byte_count(path.stat().st_size)
    screen.note(f"Wrote {path}, {size}, in {units.duration(seconds)}. Run it: inferlens bench {path}")
    return None


def engine_words(words: dict[str, Any], backend: str, *, json: bool) -> tuple[int, dict[str, Any]]:
    """Return how many engines to build, and the other options, with the compute capability as the backend's option.

    Raises InferlensError for options of engines if ``backend`` is empty, which builds none.
    """
    given = [f"--{name.replace('_', '-')}" for name in ("builds", "compute_capability") if name in words]
    if (given or json) and not backend:
        raise InferlensError(f"{[*given, '--json'][0]} is for TensorRT engines.", hint="--to FILE.engine")
    builds = own_options("export", words)[0]["builds"]
    words = {name: value for name, value in words.items() if name != "builds"}
    if (capability := words.pop("compute_capability", None)) is not None:
        name = f"{backend.partition(':')[0]}.compute_capability"
        if any(text.startswith(f"{name}=") for text in words.get("option", ())):
            raise InferlensError(f"--compute-capability and --option {name} were both given.", hint="one of them")
        parts = [part.strip() for part in capability.replace("+", ",").split(",")]
        words["option"] = [*words.get("option", ()), f"{name}={'+'.join(parts)}"]
    return builds, words


def report_text(report: BuildReport) -> str:
    """Return the report in lines: size, seconds, library and target of the engine, and how far builds differ."""
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
        lines += [f"  {layer.name}{how}: {' | '.join(layer.tactics)}" for layer in differences[:MOST_LAYERS]]
        more = len(differences) - MOST_LAYERS
        lines += [f"  and {more} more layers{how}; --json has all"] if more > 0 else []
    return "\n".join([*lines, *report.findings]) + "\n"


def _deploy(results: Path, output: Path, limit: float, **words: bool) -> None:
    """Write the fastest case of ``results``, and say which files there are."""
    from inferlens.execution.deploy import export_best
    from inferlens.views.results import best_case

    if results.name == "load":
        _deploy_load(results, output, limit, trust=words.get("trust", False))
        return
    record, folder = best_case(results)
    with screen.busy(f"{record.model.name}: {record.case.label}") as phase:
        done = export_best(record, folder, output, phase=phase, timeout=limit, **words)
    screen.notes(filter(None, [*(warning.sentence for warning in done.warnings), record.model.weights_note]))
    files = units.listing(sorted(path.name for path in output.iterdir()))
    screen.note(f"Wrote {record.model.name}, {record.case.label}, to {output}: {files}. Run it: python {output}/run.py")


def _deploy_load(results: Path, output: Path, limit: float, *, trust: bool) -> None:
    """Write the best deployment of a load test, with a server."""
    from inferlens.analysis.load import load_tests, read_loads
    from inferlens.execution.load.run import export_deployment

    cache = results.resolve().parents[1] / ".cache"
    with screen.busy(f"{results}") as phase:
        newest = load_tests(read_loads([results], []))[0]
        best = export_deployment(newest, output, cache, phase=phase, timeout=limit, trust=trust)
    screen.note(f"Wrote {best.case.label}, {best.deployment}, to {output}. Serve it: python {output}/serve.py")


@options.takes()
def quantize(model: options.Model, *, format: str = "table", **words: Any) -> None:
    """Quantize a model to a file that you can keep and run, and see what it is worth.

    The file is run, and its outputs are compared with those in fp32 on the calibration data. --errors ranks the layers
    by their error; --keep leaves layers in fp32; --within searches for the layers that have to stay in fp32. The exit
    code is 1 if no file keeps the limit.
    """
    from inferlens.execution.quantize import quantize as quantized
    from inferlens.views.profiles.quantization import quantization_document

    check_choice("format", format, FORMATS)
    if "calibration" not in words:
        hint = "--calibration DATA, or --calibration random to see how fast it would be"
        raise InferlensError("Quantizing a model needs calibration data.", hint=hint)
    with screen.busy(f"{model} to {words.get('to', 'int8')}") as phase:
        result = quantized(model, **words, phase=phase)
    document = quantization_document(result, model, words.get("device", ""), layers=words.get("errors", False))
    screen.document(document, format)
    if not result.path:
        raise typer.Exit(1)


@options.takes()
def partition(
    model: options.Model, *, wide: bool = False, format: str = "table", output: Path | None = None, **words: Any
) -> None:
    """Show which operators run in TensorRT and which in PyTorch, and where the graph breaks.

    Nothing is built, and no GPU is needed. Several values, separated by commas, are shown side by side:
    --option torch_tensorrt.min_block_size=1,5,100 shows what the size of blocks changes. The exit code is 2 if any of
    them failed.
    """
    from inferlens.backends.base import Partitioner
    from inferlens.execution.cases import cases_on
    from inferlens.execution.deploy import able
    from inferlens.execution.deploy import partition as divide
    from inferlens.views.partition import PartitionResult, partition_document

    check_choice("format", format, FORMATS)
    format = screen.format_of(format, output)
    cases = cases_on({**words, "model": model}, words.pop("backend", "") or able(Partitioner)[0])
    answers = []
    for number, case in enumerate(cases, 1):
        with screen.busy(f"{number} of {len(cases)}, {case.label}") as phase:
            try:
                done = divide(case, trust=words.get("trust", False), phase=phase)
                assert done.value
                answers.append(PartitionResult(case, done.value, done.warnings))
            except InferlensError as error:
                answers.append(PartitionResult(case, error))
    failures = [answer.result for answer in answers if isinstance(answer.result, InferlensError)]
    if len(failures) == len(answers):
        raise failures[0]
    screen.document(partition_document(answers, wide=wide), format, wide=wide, output=output)
    if failures:
        raise typer.Exit(2)
