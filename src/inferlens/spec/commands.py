"""The options of the commands: the options of a plan that a command has, and its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct

from inferlens.spec.options import DURATION, SHARE, OptionField, OptionSpec, option_fields
from inferlens.spec.plan import Plan, Shorthand

ONE_CASE = ("ab", "export", "quantize")  # commands whose options take one value
BUILD_TIMEOUT = 3600.0  # seconds
BACKEND, OUTPUT = ("--backend", "-b"), ("--output", "-o")  # names


# fmt: off
class TuneOptions(Struct, kw_only=True):
    """Options of ``tune``."""

    objective: Annotated[str, OptionSpec(
        "What to optimize: latency, latency.p95, latency.p99, throughput, energy or memory.",
        names=("--for",))] = "latency"
    within: Annotated[tuple[str, ...], OptionSpec(
        "A limit that the winner has to keep, such as error=1e-2, memory=2GiB, build=10m, p99=5ms; repeatable.",
        repeatable=True, metavar="LIMIT")] = ()
    budget: Annotated[float, OptionSpec(
        "Time for everything; three final rounds are run even if it is over.", unit=DURATION)] = 600.0
    space: Annotated[str | None, OptionSpec(
        "A TOML file of what to try: backends, precisions and values of options.", metavar="FILE")] = None
    only: Annotated[tuple[str, ...], OptionSpec(
        "Try only these: backends, BACKEND:VARIANT, precisions, and options as NAME or BACKEND.NAME.")] = ()
    without: Annotated[tuple[str, ...], OptionSpec("Do not try these, named as in --only.")] = ()


class ABOptions(Struct, kw_only=True):
    """Options of ``ab``."""

    backend: Annotated[str, OptionSpec(
        "Backend of a side that names none, as name or name:variant.", names=BACKEND)] = ""
    checkout: Annotated[str | None, OptionSpec(
        "Two folders to import the model's code from, as OLD,NEW; or one to compare this one with.")] = None
    python: Annotated[str | None, OptionSpec(
        "Interpreters of two environments, as OLD,NEW; or one to compare this one with; or more, to find the step "
        "that changed the latency.")] = None
    metric: Annotated[str, OptionSpec(
        "latency, throughput, 'GPU time', or capacity: the most requests per second within --limit, as load finds it.",
    )] = "latency"
    limit: Annotated[str, OptionSpec("The limit on the latency of requests, for --metric capacity.")] = "p99=50ms"
    threshold: Annotated[float, OptionSpec("The smallest difference that matters.", unit=SHARE)] = 0.02
    level: Annotated[float, OptionSpec("Confidence of the verdict.", unit=SHARE)] = 0.95
    max_rounds: Annotated[int, OptionSpec("Most rounds, each with a new process for A and for B.")] = 20
    within: Annotated[float, OptionSpec(
        "Time for everything; after three rounds, none begins that would end later.", unit=DURATION)] = 600.0


class ProfileOptions(Struct, kw_only=True):
    """Options of ``profile``."""

    level: Annotated[tuple[str, ...], OptionSpec(
        "What to time: layer, kernel (on a GPU) or module (layers, shown as modules).")] = ("layer",)
    runs: Annotated[int, OptionSpec("Profiled calls of each case.")] = 50


class BuildOptions(Struct, kw_only=True):
    """Options of the commands that write files."""

    timeout: Annotated[float, OptionSpec("Time limit, such as 90s or 1h.", unit=DURATION)] = BUILD_TIMEOUT


class QuantizeOptions(BuildOptions, kw_only=True):
    """Options of ``quantize``."""

    to: Annotated[str, OptionSpec("int8 or fp8.")] = "int8"
    backend: Annotated[str, OptionSpec(
        "The backend that makes the file and runs it.", names=BACKEND,
        default="the first that can on the device")] = ""
    output: Annotated[str, OptionSpec(
        "The file to write.", names=OUTPUT, metavar="FILE",
        default="named after the model and the precision")] = ""
    errors: Annotated[bool, OptionSpec("Show the error of each layer when only it is quantized.")] = False
    within: Annotated[str, OptionSpec(
        "A limit for the file, such as error=1e-2 or accuracy-drop=0.5%: layers that lose most stay in fp32.",
        metavar="LIMIT")] = ""


class ExportOptions(BuildOptions, kw_only=True):
    """Options of ``export``."""

    to: Annotated[str | None, OptionSpec(
        "The file: .onnx, .pt (TorchScript), .pt2 (exported program), .engine or .plan (TensorRT), .ts or .ep "
        "(Torch-TensorRT).", metavar="FILE")] = None
    best: Annotated[str | None, OptionSpec(
        "A folder of results, to write its fastest case; or the folder of one case.", metavar="DIR")] = None
    output: Annotated[str | None, OptionSpec(
        "The new folder to write to.", names=OUTPUT, metavar="DIR")] = None
    backend: Annotated[str, OptionSpec(
        "The backend that makes the file, as name or name:variant.", names=BACKEND,
        default="by the ending of the file")] = ""
    compute_capability: Annotated[str, OptionSpec(
        "GPUs to build an engine for, such as 8.0,8.9; also without a GPU (TensorRT for RTX).",
        default="the GPU here")] = ""
    builds: Annotated[int, OptionSpec(
        "How many times to build an engine, without the cache; the report says how far the builds differ.")] = 1


class PartitionOptions(Struct, kw_only=True):
    """Options of ``partition``."""

    backend: Annotated[str, OptionSpec(
        "A backend that divides a model, as name or name:variant.", names=BACKEND,
        default="the first that does")] = ""


class LoadOptions(Struct, kw_only=True):
    """Options of ``load``."""

    within: Annotated[str, OptionSpec(
        "The limit on the latency of requests: p50, p95 or p99, such as p99=50ms.", metavar="LIMIT")] = "p99=50ms"
    rate: Annotated[tuple[str, ...], OptionSpec(
        "Measure these rates, in requests per second, in place of the highest one within the limit.")] = ()
    concurrency: Annotated[tuple[int, ...], OptionSpec(
        "Measure with so many clients, each with one request under way, in place of a rate.")] = ()
    arrivals: Annotated[str, OptionSpec(
        "poisson (at random), constant, bursts=N, or replay=FILE with a time in seconds a line, stretched to a rate.",
    )] = "poisson"
    mix: Annotated[str, OptionSpec(
        "A CSV file of the sizes of requests: a column for each named dimension, and perhaps one called weight.",
        metavar="FILE")] = ""
    batching: Annotated[str, OptionSpec(
        "How requests share a batch, such as max=16,wait=2ms; max=1: not at all.", default="the best up to 16")] = ""
    instances: Annotated[int, OptionSpec(
        "Processes that each have a runner; on a CPU they share its threads.", least=0, default="the best")] = 0
    queue: Annotated[int, OptionSpec(
        "Most requests that wait; others are refused, and counted.", least=0, default="no limit")] = 0
    give_up: Annotated[float, OptionSpec(
        "Give up requests that waited so long; they are counted.", unit=DURATION, default="never")] = 0.0
    seconds: Annotated[float, OptionSpec(
        "Time of the traffic of each rate, of 20,000 requests at most; for a limit of seconds, set a minute.",
        unit=DURATION)] = 5.0
    scenario: Annotated[str, OptionSpec(
        "Also run a scenario of MLCommons LoadGen at the capacity or the first --rate: server, offline, "
        "single-stream or multi-stream.")] = ""
    price: Annotated[str, OptionSpec(
        "Price of the machine, such as 3.2/h: shows the cost of a million requests.", metavar="PRICE/h")] = ""
    budget: Annotated[float, OptionSpec(
        "Time for everything. It ends no preparation, and no search before a rate has kept the limit.",
        unit=DURATION)] = 600.0
# fmt: on


OWN: dict[str, type[Struct]] = {
    "tune": TuneOptions, "ab": ABOptions, "profile": ProfileOptions, "quantize": QuantizeOptions,
    "export": ExportOptions, "partition": PartitionOptions, "load": LoadOptions,
}  # fmt: skip


def options_of(command: str) -> dict[str, OptionField]:
    """Return the options of a command by name; its own replace those of a plan of the same name."""
    fields = option_fields(Plan, Shorthand, command=command)
    del fields["model"]
    return fields | (option_fields(OWN[command]) if command in OWN else {})


def own_options(command: str, words: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a command's own options, with their defaults, and the other options that were given."""
    given = {name: value for name, value in words.items() if value is not None and value != []}
    fields = option_fields(OWN[command])
    values = {name: field.read(given.pop(name)) if name in given else field.default for name, field in fields.items()}
    return values, given
