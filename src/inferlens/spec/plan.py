"""A plan, whose axes multiply into cases, and one case in one text, both as a person writes them.

A plan has the same words on the command line, in a file and in Python. A case is written as its label says it:
``torch_compile:default fp16 batch 8 cuda 4 threads dynamic=true``. Its words may have any order: the backend, the words
of an axis as in a label, ``AXIS=VALUE``, or an option of the backend as ``NAME=VALUE`` or ``BACKEND.NAME=VALUE``.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, check_choice, paths_like, suggestion
from inferlens.spec.case import (
    AXES,
    DEVICES,
    IO,
    MEASURING,
    PRECISIONS,
    QUANTIZED,
    Axis,
    Budget,
    Case,
    TensorSpec,
    bare,
    keep_of,
    shown_together,
)
from inferlens.spec.options import DURATION, WHERE, OptionSpec, listed, option_fields, texts

# Where a plan runs: the launcher of its cases, its address and its devices. Not part of the case.

LOCAL, RAY = "local", "ray"


class Where(Struct, frozen=True, kw_only=True):
    """The place where a plan runs.

    Attributes:
        launcher: the name of the entry point of the launcher that starts its cases.
        address: the address that the launcher connects to.
        on: the devices that measure cases, such as ``cuda:0`` here, or ``H200:2`` elsewhere; empty: the default.
        runtime_env: file (TOML) of the environment to create on other machines; empty: the existing one.
    """

    launcher: str = LOCAL
    address: str = ""
    on: tuple[str, ...] = ()
    runtime_env: str = ""


def where_of(words: Mapping[str, Any]) -> Where:
    """Return where a plan runs, from its words. Raises InferlensError if they contradict one another."""
    given = [name for name in ("devices", "ray", "launcher") if words.get(name)]
    if len(given) > 1:
        raise InferlensError(f"{given[0]} and {given[1]} both say where cases run.", expected="one of them")
    for name in ("on", "runtime_env"):
        if words.get(name) and given in ([], ["devices"]):
            hint = "--devices alone" if given and name == "on" else "--ray auto, or HOST:PORT"
            raise InferlensError(f"{name} is for other machines, but none are given.", hint=hint)
    for name, expected in (("devices", "all, or such as cuda:0,cuda:1"), ("ray", "local, auto, or HOST:PORT")):
        if name in words and not texts(words[name]):
            raise InferlensError(f"{name} names none.", expected=expected)
    launcher = f"{RAY}:{words['ray']}" if words.get("ray") else str(words.get("launcher", ""))
    name, _, address = launcher.partition(":")
    devices = texts(words.get("devices") or words.get("on", ()))
    return Where(launcher=name or LOCAL, address=address, on=devices, runtime_env=str(words.get("runtime_env", "")))


USUAL_SECONDS, THOROUGH_SECONDS = 60.0, 1800.0  # for rounds
THOROUGH_ROUNDS = 10
LONG_SERIES = 10.0  # seconds, with --thorough
OTHERS = ("input", "weights", "calibration", "keep", "seed", "checkout")  # further words of a case, as NAME=VALUE
# What words may be from Python: single values, lists of them, or texts with commas; durations are seconds, or "90s".
Texts = str | Sequence[str]
Duration = float | str
_DIM_FORM = "NAME=128, NAME=32,128 for several, or NAME=1..512:opt=128 for a range, each name once"
_FORM = "a backend, and words such as fp16, batch=8, threads=1, cuda or an option of the backend as NAME=VALUE"
RUNNING = ("bench", "tune", "profile")  # the commands that run a plan
EVERY = (*MEASURING, "export", "quantize", "partition")
BATCHED = tuple(name for name in EVERY if name != "load")
CALLS = ("bench", "profile", "ab")
FILE_ALONE = ("a plan file",)  # no command has these words


# Readers of options that are more than one text or number.


def option_values(value: Any) -> dict[str, tuple[str, ...]]:
    """Return ``{"backend.option": values}`` from that form, ``backend.option=values`` texts, or nested tables."""
    if not isinstance(value, Mapping):
        pairs = [str(text).partition("=") for text in listed(value)]
        for name, equals, _ in pairs:
            if not equals:
                form = "BACKEND.OPTION=VALUE, as inferlens backends NAME lists them"
                raise InferlensError(f"The option '{name}' has no value.", expected=form)
        return {name.strip(): texts(values) for name, _, values in pairs}
    options: dict[str, tuple[str, ...]] = {}
    for name, values in value.items():
        if isinstance(values, Mapping):
            options |= {f"{name}.{option}": texts(choices) for option, choices in values.items()}
        else:
            options[name] = texts(values)
    return options


def dims_of(value: Any) -> tuple[tuple[TensorSpec, ...], ...]:
    """Return every combination of sizes from ``NAME=SIZE,SIZE`` texts, or a table by name. Refuse other forms."""
    given = listed(value)
    if isinstance(value, Mapping):
        given = tuple(f"{name}={','.join(map(str, listed(sizes)))}" for name, sizes in value.items())
    refusal = InferlensError(f"'{', '.join(map(str, given))[:100]}' gives no size of a dimension.", expected=_DIM_FORM)
    try:
        dims = [TensorSpec.parse_list(str(text)) for text in given]
    except InferlensError as error:
        raise refusal from error
    all_dims = [dim for sizes in dims for dim in sizes]
    names = {dim.name for dim in all_dims}
    are_sizes = all(len(dim.shape) == 1 and ":" not in str(dim).removesuffix(":float32") for dim in all_dims)
    if len(names) < len(dims) or not are_sizes:
        raise refusal
    return tuple(itertools.product(*dims))


class Plan(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The cases to measure, and the options of the measurement.

    Attributes:
        option: values by ``backend.option``.
        input: sets of inputs that replace the model's own.
        dim: sets of sizes of the inputs' named dimensions; a size is the shape of a spec.
        keep: layers that are not quantized, as :mod:`inferlens.spec.case` writes them.
        repeats: 0: as many processes as it takes to tell which case is fastest, see ``within`` and ``rounds``.
        rounds: the least number of rounds, decided or not.
        reference: words of a case; empty is the usual one.
        recommended: whether a backend without a variant and options means all that it recommends, as in ``bench``,
            rather than its default variant.
    """

    # fmt: off
    model: Annotated[tuple[str, ...], OptionSpec(
        "What to measure: a name (resnet18, timm:NAME, transformers:NAME, hub:REPO:NAME, inferlens:resnet34), "
        "package.module:factory, path/to/file.py:factory, a .onnx, .pt, .pt2, .engine, .ts or .ep file; several of "
        "them; or one plan file (.toml).",
    )]
    backend: Annotated[tuple[str, ...], OptionSpec(
        "Backends as name or name:variant; 'all' is every variant.", (*RUNNING, "load"), default="all that work here",
        names=("--backend", "-b"))] = ()
    precision: Annotated[tuple[str, ...], OptionSpec(
        "fp32, fp16, bf16, int8 or fp8; int8 and fp8 need a quantized ONNX file or --calibration.",
        (*MEASURING, "export", "partition"), values=(*PRECISIONS, *QUANTIZED),
        default="that of the file, or fp32")] = ()
    batch: Annotated[tuple[int, ...], OptionSpec("Batch size.", BATCHED, default="the model's own")] = ()
    device: Annotated[tuple[str, ...], OptionSpec(
        "cpu or cuda.", (*MEASURING, "quantize"), values=DEVICES, default="cuda if it works")] = ()
    threads: Annotated[tuple[int, ...], OptionSpec("CPU threads inside a call.", MEASURING)] = ()
    io: Annotated[tuple[str, ...], OptionSpec(
        "Where a call begins and ends: device, or host, which includes copies of inputs and outputs.",
        CALLS, values=IO)] = ("device",)
    cold: Annotated[bool, OptionSpec(
        "Flush the device's cache before each latency sample; do not measure throughput.", CALLS)] = False
    rotate: Annotated[bool, OptionSpec(
        "Use a set of inputs larger than the device's cache in turn; do not measure throughput.", CALLS)] = False
    depth: Annotated[tuple[int, ...], OptionSpec(
        "Most calls in flight when throughput is measured.", ("bench",), default="no limit")] = ()
    python: Annotated[tuple[str, ...], OptionSpec(
        "The interpreter of another virtual environment, such as old/bin/python.", RUNNING, default="this one")] = ()
    option: Annotated[dict[str, tuple[str, ...]], OptionSpec(
        "A backend's option, as BACKEND.OPTION=VALUE,VALUE; repeatable. See 'inferlens backends NAME'.", EVERY,
        repeatable=True, read=option_values)] = {}
    input: Annotated[tuple[tuple[TensorSpec, ...], ...], OptionSpec(
        "An input, such as NAME=1x3x224x224:float32, NAME=1x128:int64:0..1000, or NAME=1x32,1x128 for several "
        "shapes; NAME=1..16x3x224x224:opt=2 prepares for a range of sizes; repeatable.", EVERY, repeatable=True,
        read=TensorSpec.parse_all)] = ((),)
    dim: Annotated[tuple[tuple[TensorSpec, ...], ...], OptionSpec(
        "Sizes of a dimension of all inputs by its name, such as sequence_length=32,128 or image_size=224; or a "
        "range: sequence_length=1..512:opt=128; repeatable.", EVERY, repeatable=True, metavar="NAME=SIZE",
        read=dims_of)] = ((),)
    weights: Annotated[str | None, OptionSpec(
        "Name or file of the weights.", EVERY, default="random, from the seed")] = None
    calibration: Annotated[str, OptionSpec(
        "Data for the inputs, and to calibrate int8 and fp8 with: a folder of images, an .npz file or "
        "package.module:factory. Noise (random) is enough to measure speed.", (*MEASURING, "export", "quantize"))] = ""
    keep: Annotated[str, OptionSpec(
        "Layers that stay in fp32, such as fp32:head,features.0: paths of modules or names of nodes; repeatable.",
        (*RUNNING, "export", "quantize"), repeatable=True, read=keep_of)] = ""
    accuracy: Annotated[str, OptionSpec(
        "Labeled data to compute the accuracy of each case and of fp32 with, as for --calibration; or "
        "package.module:evaluate, a function that takes infer.", ("bench", "tune", "ab", "quantize"))] = ""
    checkout: Annotated[str, OptionSpec(
        "The folder of the model's code or files.", FILE_ALONE, default="the working directory")] = ""
    trust: Annotated[bool, OptionSpec(
        "Open files that can run any code: pickles, compiled modules and version-compatible engines.", EVERY)] = False
    rebuild: Annotated[bool, OptionSpec(
        "Build again what was built before; bench builds in each process, so that intervals cover differences "
        "between builds.", ("bench", "profile", "export", "quantize"))] = False
    rerun: Annotated[bool, OptionSpec(
        "Measure again what an earlier run in the output folder has measured.", (*RUNNING, "load"))] = False
    seed: Annotated[int, OptionSpec("Seed of weights and inputs.", EVERY, least=0)] = 0
    budget: Budget = Budget()
    repeats: Annotated[int, OptionSpec(
        "Measure each case in exactly this many processes, in turns with the other cases.", ("bench",),
        default="as many as it takes")] = 0
    within: Annotated[float, OptionSpec(
        "Time for the rounds between the fastest ways, in addition to one measurement of each case; 30m with "
        "--thorough.", ("bench",), DURATION)] = USUAL_SECONDS
    rounds: int = 0
    wait: Annotated[float, OptionSpec(
        "How long to wait for a quiet machine before measuring.", MEASURING, DURATION, default="not at all")] = 0.0
    output: Annotated[str, OptionSpec("Folder of the records.", MEASURING, metavar="DIR")] = "results"
    reference: Annotated[str, OptionSpec(
        "The row to compute speed-ups against, such as 'BACKEND fp32'.", ("bench", "show"),
        default="the plainest row of the backend that outputs were checked against")] = ""
    # fmt: on
    recommended: bool = False
    where: Where = Where()

    @staticmethod
    def from_words(words: Mapping[str, Any]) -> Plan:
        """Return a plan from words as a person writes them: single values, lists, or texts with commas."""
        words = {name: value for name, value in words.items() if value is not None}
        for name in words:
            check_choice("word of a plan", name, sorted(WORDS))
        if not words.get("model"):
            raise InferlensError("The plan names no model.", expected="a name, a file or a factory, such as resnet18")
        values = {name: OPTIONS[name].read(value) for name, value in words.items()}
        fields = {name: values[name] for name in Plan.__struct_fields__ if name in values}
        return Plan(**{**fields, **_race_of(values)}, budget=_budget_of(values), where=where_of(words))


class Shorthand(Struct, kw_only=True):
    """Options that set several fields of a plan, or where it runs (:class:`Where`)."""

    # fmt: off
    quick: Annotated[bool, OptionSpec("Measure each case once, in one process, for one second.", ("bench",))] = False
    thorough: Annotated[bool, OptionSpec(
        "Measure longer, with ten rounds or more for the fastest ways, as far as --within allows.", ("bench",))] = False
    devices: Annotated[tuple[str, ...], OptionSpec(
        "GPUs to use at the same time, each for other cases: all, or cuda:0,cuda:1.", RUNNING, default="one",
        panel=WHERE)] = ()
    ray: Annotated[str, OptionSpec(
        "Run on a Ray cluster: local (started on this machine), auto or HOST:PORT.", RUNNING, metavar="local|ADDRESS",
        panel=WHERE)] = ""
    on: Annotated[tuple[str, ...], OptionSpec(
        "Kinds of accelerators that measure all cases, such as H200, or H200:2,L4:1 to use two and one at a time.",
        RUNNING, default="the only kind there is", panel=WHERE)] = ()
    launcher: Annotated[str, OptionSpec("What starts cases, as NAME or NAME:ADDRESS.", FILE_ALONE)] = ""
    runtime_env: Annotated[str, OptionSpec(
        "File (TOML) of the environment to make on other machines.", FILE_ALONE)] = ""
    # fmt: on


OPTIONS = option_fields(Plan, Shorthand)
WORDS = frozenset(OPTIONS)
BUDGET_WORDS = tuple(option_fields(Budget))
RACE_WORDS = ("quick", "thorough", "within", "repeats")
DURATIONS = tuple(name for name in BUDGET_WORDS if OPTIONS[name].option.unit == DURATION)


def _race_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of processes and rounds. Refuse options that contradict one another."""
    given = [name for name in ("quick", "thorough") if values.get(name)]
    given += [name for name in ("repeats", "within") if name in values]
    if len(given) > 1 and set(given) != {"thorough", "within"}:
        message = f"{given[0]} and {given[1]} both say how often cases are measured."
        raise InferlensError(message, expected="one of them", hint=f"--{given[0]}")
    thorough = "thorough" in given
    within = values.get("within", THOROUGH_SECONDS if thorough else USUAL_SECONDS)
    repeats = values.get("repeats", int("quick" in given))
    return {"repeats": repeats, "within": within, "rounds": THOROUGH_ROUNDS if thorough else 0}


def _budget_of(values: Mapping[str, Any]) -> Budget:
    """Return the budget that the options select. Refuse options that contradict one another."""
    given = {name: values[name] for name in (*BUDGET_WORDS, "within") if name in values}
    if values.get("thorough"):
        given.setdefault("within", THOROUGH_SECONDS)
        if not {"max_time", "iterations", "seconds"} & values.keys():
            given["max_time"] = LONG_SERIES
    budget = Budget(**given)
    _check_sense(budget, values)
    return budget


def _check_sense(budget: Budget, values: Mapping[str, Any]) -> None:
    """Refuse options that contradict one another, or have no effect on the measurement."""
    ends = [name for name in ("iterations", "seconds", "half_width") if name in values]
    if len(ends) > 1:
        message = f"{' and '.join(ends)} both say when a series of samples ends."
        raise InferlensError(message, expected="one of them", hint=f"--{ends[0]}")
    one_at_a_time = [f"--{name}" for name in ("cold", "rotate") if values.get(name)]
    latency_options = [*one_at_a_time, *(name for name in ends if name != "seconds")]
    if budget.mode == "throughput" and latency_options:
        message = f"{latency_options[0]} needs timed single calls, and there are none."
        raise InferlensError(message, hint="--mode latency")
    if "depth" in values and (budget.mode == "latency" or one_at_a_time):
        why = f"with {one_at_a_time[0]}" if one_at_a_time else "in mode latency"
        raise InferlensError(f"depth needs throughput, which is not measured {why}.", hint="without --depth")


def as_plan(case: Case) -> str:
    """Return the text of a plan file whose only case is this one."""
    words: dict[str, Any] = {"model": case.model, "backend": case.backend_label}
    words |= {axis.name: value for axis in AXES if (value := getattr(case, axis.name)) != axis.default}
    words |= {"input": [spec.text for spec in case.inputs]} if case.inputs else {}
    words |= {name: value for name in OTHERS[1:] if (value := getattr(case, name))}
    lines = [f"{name} = {_toml(value)}" for name, value in words.items()]
    options = [f"{name} = {_toml(value)}" for name, value in sorted(case.options.items())]
    return "\n".join([*lines, *(["", f"[option.{case.backend}]", *options] if options else []), ""])


def _toml(value: Any) -> str:
    """Return a value in TOML, which escapes the same characters in a text as JSON, and DEL."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def words_of(text: str, backends: Sequence[str]) -> dict[str, Any]:
    """Return the words of a plan for a case's text; ``backends`` are the names of all backends.

    Without a backend in the text, options have their own names, without a prefix. Raises InferlensError for an unknown
    word or a word that is given twice.
    """
    try:  # quotation marks group words
        remaining = [word for word in (part.rstrip(",") for part in shlex.split(text)) if word]
    except ValueError as error:
        raise InferlensError(f"'{text}' describes no case.", expected=_FORM) from error
    words: dict[str, Any] = {"option": {}}
    backend = ""
    if label := next((word for word in remaining if word.partition(":")[0] in backends), ""):
        remaining.remove(label)
        words["backend"], backend = label, label.partition(":")[0]
    for name, value in _named_values(remaining, backends):
        if name in OTHERS or any(axis.name == name for axis in AXES):
            target, key = words, name
        else:
            target, key = words["option"], name if "." in name or not backend else f"{backend}.{name}"
        if key in target:
            raise InferlensError(f"'{text}' says {name} twice.", expected="one value: it is one case")
        target[key] = value
    return words


def _named_values(words: list[str], backends: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every word. An axis may take two words."""
    while words:
        name, equals, value = words[0].partition("=")
        if equals and name and value:
            yield next((axis.name for axis in AXES if axis.flag and axis.word == name), name), value
            words = words[1:]
            continue
        for size, axis in itertools.product((1, 2), AXES):
            if (value := axis.read(" ".join(words[:size]))) is not None:
                yield axis.name, value
                words = words[size:]
                break
        else:
            values = (value for axis in AXES for value in axis.values)
            hint = suggestion(words[0], [*backends, *values, *(axis.name for axis in AXES), *OTHERS])
            raise InferlensError(f"'{words[0]}' is not a word of a case.", expected=_FORM, hint=hint)


def toml_words(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file; ``what`` names it in errors. Raises InferlensError if it cannot be read."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        message = f"The {what} {path} does not exist."
        raise InferlensError(message, expected="a TOML file", hint=paths_like(path)) from error
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InferlensError(f"The {what} {path} cannot be read: {error}.", expected="a TOML file") from error


def read_plan(model: Sequence[str], words: Mapping[str, Any]) -> Plan:
    """Return the plan of the command line, or of the file that it names; the command line takes precedence."""
    files = [name for name in model if name.endswith(".toml")]
    if not files:
        return Plan.from_words({**words, "model": list(model)})
    if len(model) > 1:
        raise InferlensError("A plan file names its models itself.", hint=f"inferlens bench {files[0]}")
    return Plan.from_words({**toml_words(Path(files[0]), "plan"), **words})


# Cases and budgets as the words of commands that can be pasted.

SHARES = ("threshold", "level", "half_width")


def ab_words(a: Case, b: Case, budget: Budget, device: str) -> list[str]:
    """Return two cases and their budget as words of ``inferlens ab``; ``device`` is its default device."""
    per_side = ("depth", "python")  # no options of the command
    shared = [axis for axis in AXES if axis.name not in per_side and getattr(a, axis.name) == getattr(b, axis.name)]
    words = []
    for case in (a, b):
        side_words = [word for axis in AXES if axis not in shared for word in axis.words(case)]
        words.append(" ".join([case.backend_label, *side_words, case.options_label]).rstrip())
    words += _flags(a, shared, device)
    words += _budget_flags(budget, ("iterations", "warmup", *DURATIONS, "threshold", "level"))
    return [*words, *(["--metric", "throughput"] if budget.mode == "throughput" else [])]


def budget_words(budget: Budget, repeats: int) -> list[str]:
    """Return the budget and the repeats of a record as options of ``inferlens bench``."""
    names = ["iterations", "warmup", *DURATIONS, "threshold", "half_width", "mode", "within"]
    words = ["--quick"] if repeats == 1 else ["--repeats", str(repeats)] if repeats else []
    if (budget.within, budget.max_time) == (THOROUGH_SECONDS, LONG_SERIES):
        names, words = [name for name in names if name not in ("within", "max_time")], ["--thorough"]
    return [*words, *_budget_flags(budget, names)]


def _budget_flags(budget: Budget, names: Iterable[str]) -> list[str]:
    """Return the values of a budget that differ from the defaults, as options of a command."""
    flags = list[str]()
    for name in names:
        if (value := getattr(budget, name)) != getattr(Budget(), name):
            shown = value if isinstance(value, (int, str)) else f"{100 * value:g}%" if name in SHARES else f"{value:g}s"
            flags += [f"--{name.replace('_', '-')}", str(shown)]
    return flags


def bench_words(
    case: Case, device: str, asks: Sequence[str] = (), *, others: bool = False, batches: Sequence[int] = ()
) -> list[str]:
    """Return a case as words of ``inferlens bench``.

    Args:
        device: the default device of the command.
        asks: ``BACKEND.OPTION=VALUE``, ``BACKEND:VARIANT``, or ``--precision VALUE``.
        others: whether the words are for every backend, and so without options, which belong to one backend.
        batches: batch sizes that replace that of the case.
    """
    label = next((ask for ask in asks if "=" not in ask and not ask.startswith("--")), case.backend_label)
    options = {f"{case.backend}.{name}": str(value) for name, value in case.options.items()}
    options |= {name: value.lower() for name, value in options.items() if value in ("True", "False")}
    options |= dict(ask.split("=", 1) for ask in asks if "=" in ask)
    words = [] if others else ["-b", label]
    flags = [part for ask in asks if ask.startswith("--") for part in ask.split()]
    replaced = {flag.removeprefix("--") for flag in flags[::2]} | ({"batch"} if batches else set())
    words += _flags(case, [axis for axis in AXES if axis.name not in replaced], device) + flags
    words += ["--batch", ",".join(map(str, batches))] if batches else []
    for name, value in options.items() if not others else ():
        words += ["--option", f"{name}={value}"]
    return [bare(case.model), *words]


def command(what: str, words: Sequence[str], checkout: str = "") -> str:
    """Return the command ``what`` of a model and words to paste, which runs in the checkout if there is one.

    No command can name a live module. For one, return the call from Python, or nothing if there is no such call.
    """
    model, *words = words
    if not model.startswith("live:"):
        line = shlex.join(["inferlens", what, model, *words])
        return f"cd {shlex.quote(checkout)} && {line}" if checkout else line
    if what not in ("ab", "bench", "profile"):
        return ""
    sides = list(takewhile(lambda word: not word.startswith("-"), words))
    keywords: dict[str, list[int | str]] = {}
    for word in words[len(sides) :]:
        if word.startswith("-"):
            name = "backend" if word == "-b" else word.lstrip("-").replace("-", "_")
            values = keywords.setdefault(name, [])
        else:
            values.append(int(word) if word.isdecimal() else word)
    arguments = ["model", *map(json.dumps, sides), "example_inputs"]
    for name, values in keywords.items():
        arguments.append(f"{name}={json.dumps(values if len(values) > 1 else values[0]) if values else True}")
    return f"inferlens.{what}({', '.join(arguments)})"


def _flags(case: Case, axes: Iterable[Axis], device: str) -> list[str]:
    """Return the values of axes, weights, seed and inputs that differ from the defaults, as options of a command."""
    flags: list[str] = []
    omitted = {**{axis.name: axis.default for axis in AXES}, "precision": "fp32", "device": device, "seed": 0}
    for name in (*(axis.name for axis in axes), "weights", "calibration", "keep", "seed"):
        value = getattr(case, name)
        if value not in (None, "") and value != omitted.get(name):
            flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    if case.sizes and case.model.startswith(("factory:", "live:")) and not any(spec.dynamic for spec in case.inputs):
        return flags + [word for name, size in case.sizes.items() for word in ("--dim", f"{name}={size}")]
    return flags + [word for spec in case.inputs for word in ("--input", spec.text)]


# The reference that other cases are compared with, from words such as ``openvino fp16``.


def references(cases: Sequence[Case], usual: Set[str], named: str = "") -> dict[str, Case]:
    """Return the reference of every device: the plainest case that ``named`` fits, whatever the order of ``cases``."""
    candidates = fitting(cases, named) if named else list(cases)

    def rank(device: str, case: Case) -> tuple[Any, ...]:
        return *reference_rank(case, case.label, device, usual, named), len(case.label), case.label

    devices = {case.device for case in cases} if candidates else set()
    return {device: min(candidates, key=partial(rank, device)) for device in devices}


def reference_rank(case: Case, name: str, device: str, usual: Set[str], named: str | None) -> tuple[Any, ...]:
    """Return a sort key; the least is the case that others on ``device`` are compared with.

    It is the case whose label or name is ``named``, or else the plain case. The plain case has a ``usual`` backend (a
    label, such as ``pytorch``). It is on the device, or else on the CPU. It is in fp32 and has the fewest options, the
    default number of threads or else the most, and the usual variant. Without a case of a usual backend the same order
    holds among the others.
    """
    return (
        named not in (case.label, name),
        case.backend not in {label.partition(":")[0] for label in usual},
        case.device != device, case.device != "cpu",
        case.precision != "fp32", len(case.options_label.split()), case.threads is not None, -(case.threads or 0),
        case.backend_label not in usual,
    )  # fmt: skip


def fitting(cases: Sequence[Case], named: str) -> list[Case]:
    """Return the cases whose words include all of ``named``. Words that only a finished case has fit every case."""
    wanted = {word for word in label_words(named) if not re.search(r"[(]|\.\.", word)}
    pairs = zip(cases, shown_together(cases), strict=True)
    return [
        case for case, shown in pairs
        if wanted <= label_words(case.label) | label_words(shown.label) | {case.backend}
    ]  # fmt: skip


def refuse_unknown(cases: Sequence[Case], named: str) -> None:
    """Raise InferlensError for words that fit no case, before anything is measured."""
    if not named or not cases or any(spec.dynamic for case in cases for spec in case.inputs):
        return
    if not fitting(cases, named):
        raise unknown(named, [case.label for case in cases])


def label_words(text: str) -> set[str]:
    """Return the words of a label in one spelling."""
    text = re.sub(r"\bbatch[ =]?(\d+)", r"batch=\1", text.replace(",", " "))
    return set(re.sub(r"\b(\d+) threads?\b", r"threads=\1", text).split())


def unknown(named: str, labels: Sequence[str]) -> InferlensError:
    hint = suggestion(named, {*labels, *(label.partition(" ")[0] for label in labels)})
    labels = list(dict.fromkeys(labels))
    expected = f"one of {', '.join(map(repr, labels[:12]))}{' ...' if len(labels) > 12 else ''}"
    return InferlensError(f"No case fits the reference '{named}'.", expected=expected, hint=hint)
