"""Parameters of commands: what they show, declared here, and what they measure, declared in :mod:`inferlens.spec`.

A command is a function whose positional parameters are its arguments. The options that are declared for its name are
passed to it by keyword, but only those that were given.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args

from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.spec.commands import ONE_CASE, options_of
from inferlens.spec.options import DURATION, SHARE, OptionField, OptionSpec, option_fields
from inferlens.spec.plan import OPTIONS
from inferlens.views.table import FORMATS

if TYPE_CHECKING:
    from inferlens.analysis.ab_result import ABResult, ABSteps
    from inferlens.analysis.comparison import RecordComparison

F = TypeVar("F", bound=Callable[..., Any])
TABLES = ("modules", "layers", "kernels")
SHOWING = ("show", *TABLES, "roofline")
ENDINGS = ".md, .csv, .json, .html, .pdf or .txt decides the format."
BUSY_CODE = 5
Models = Annotated[list[str], OPTIONS["model"].option]
Model = Annotated[str, OptionSpec("The model: a name, a file or a factory, as for 'inferlens bench'.")]
Records = Annotated[list[Path], OptionSpec("Folders with records, at any depth, or record files.")]
Profiles = Annotated[list[Path], OptionSpec("Folders with profiles, at any depth, or profile files.")]


# fmt: off
class ShownOptions(Struct, kw_only=True):
    """Options of what is shown, and how."""

    format: Annotated[str, OptionSpec(
        f"{', '.join(FORMATS)}.", (*SHOWING, "bench", "tune", "trace", "quantize", "partition", "load"),
        names=("--format", "-f"),
    )] = "table"
    json: Annotated[bool, OptionSpec(
        "The same as --format json.", ("show", "bench", "tune", "ab", "load", "quantize", "partition", "backends"),
    )] = False
    wide: Annotated[bool, OptionSpec(
        "Show all columns and values.", (*SHOWING, "bench", "compare", "trace", "partition", "backends"),
    )] = False
    columns: Annotated[str | None, OptionSpec(
        "The columns to show, by title, with commas; 'help' lists all.", (*SHOWING, "bench", "compare", "trace"),
    )] = None
    top: Annotated[int | None, OptionSpec(
        "Show at most this many rows of each table, the most important first; csv and json have all by default.",
        ("show", "layers", "kernels", "roofline", "bench", "compare", "trace"), default="as many as fit on a screen",
    )] = None
    bars: Annotated[bool, OptionSpec("Draw the times as bars.", (*TABLES, "show", "bench"))] = False
    output: Annotated[Path | None, OptionSpec(
        f"Write it to this file; {ENDINGS}", (*TABLES, "roofline", "trace", "partition", "backends"),
        names=("--output", "-o"),
    )] = None
    file: Annotated[Path | None, OptionSpec(
        f"Also write the table to this file; {ENDINGS}. bench draws a chart with .svg or .png.",
        ("bench", "tune", "ab", "profile", "load"),
        names=("--file", "-o"),
    )] = None
    dry_run: Annotated[bool, OptionSpec(
        "List what would be measured, and how long it may take; run nothing.", ("bench", "tune"),
    )] = False
    nvtx: Annotated[bool, OptionSpec(
        "Set NVTX ranges around phases and series, for Nsight.", ("bench", "profile"),
    )] = False
    fail_on_busy: Annotated[bool, OptionSpec(
        "Exit with code 5 instead of 0, 1 or 3 if other programs kept the machine busy.", ("ab", "compare"),
    )] = False


class TraceOptions(Struct, kw_only=True):
    """Options of ``trace``."""

    view: Annotated[str, OptionSpec(
        "overview, operators, kernels, modules, memory, steps or timeline, with commas.",
    )] = "overview"
    against: Annotated[Path | None, OptionSpec("The base: show what FILE gains and loses against it.")] = None
    step: Annotated[str | None, OptionSpec("Show one step, by its number.", default="all steps")] = None
    by: Annotated[str, OptionSpec(
        "Split the rows of a name: by shapes or stack (of operators), or by operator (of kernels).",
    )] = "name"
    depth: Annotated[int | None, OptionSpec(
        "How deep modules are unfolded.", default="those that take most; all in CSV and JSON",
    )] = None
    plot: Annotated[Path | None, OptionSpec(
        "Only draw the parts of each step, or the mean step of several traces, to this file; .svg, .png, .pdf or "
        ".html decides the format.",
    )] = None
# fmt: on


def fields_of(command: str, *more: type[Struct]) -> dict[str, OptionField]:
    """Return all declared options of a command by name."""
    more = (*more, TraceOptions) if command == "trace" else more
    return options_of(command) | option_fields(*more) | option_fields(ShownOptions, command=command)


def takes(*more: type[Struct]) -> Callable[[F], F]:
    """Make a function a command that takes the declared options of its name, and those of more structs.

    ``--json`` becomes the format of a command that has no parameter of that name.
    """

    def decorate(function: F) -> F:
        own_json = "json" in inspect.signature(function).parameters

        @wraps(function)
        def command(*arguments: Any, **words: Any) -> Any:
            given = {name: value for name, value in words.items() if value not in (None, [])}
            if not own_json and given.pop("json", False):
                given["format"] = "json"
            return function(*arguments, **given)

        command.more = more  # type: ignore[attr-defined]
        return command  # type: ignore[return-value]

    return decorate


def declare(command: Callable[..., Any]) -> None:
    """Give a command the signature that typer reads: its own parameters, and an option for each declared one."""
    if not hasattr(command, "more"):
        return
    name = command.__name__
    fields = fields_of(name, *command.more)
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    arguments = [argument(entry) for entry in parameters if entry.kind is entry.POSITIONAL_OR_KEYWORD]
    declared_names = {*fields, *["format"] * ("json" in fields)}  # --json sets the format
    others = [entry for entry in parameters if entry.kind is entry.KEYWORD_ONLY and entry.name not in declared_names]
    declared = [parameter(field, several=name not in ONE_CASE) for field in fields.values()]
    signature = inspect.Signature([*arguments, *declared, *others])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: entry.annotation for name, entry in signature.parameters.items()}
    del command.more


def argument(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a positional parameter with its help for typer."""
    import typer

    kind, extra = get_args(parameter.annotation)
    info = typer.Argument(help=extra.help, metavar=extra.metavar or None) if isinstance(extra, OptionSpec) else extra
    return parameter.replace(annotation=Annotated[kind, info])


def parameter(field: OptionField, *, several: bool = True) -> inspect.Parameter:
    """Return the parameter for a declared option; its value is ``None`` if it is not given.

    ``several``: whether it may take several values, with commas.
    """
    import typer

    option, default, kind = field.option, field.keyword_default, value_kind(field)
    metavar = option.metavar or {DURATION: "DURATION", SHARE: "PERCENT"}.get(option.unit)
    metavar = metavar or {Path: "FILE", int: "NUMBER"}.get(kind) or ("NUMBER" if "int" in str(field.type) else "TEXT")
    info = typer.Option(
        *field.names,
        help=field.help,
        metavar=None if kind is bool else metavar + ",..." * (field.several and several),
        show_default=False if default in (None, False) else str(default),
        rich_help_panel=option.panel or None,
        min=option.least if kind is int else None,
    )
    values: Any = list[str] if option.repeatable else kind
    annotation: Any = Annotated[values | None, info]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def value_kind(field: OptionField) -> Any:
    """Return the type that the command line gives to a value: the options of a plan read texts themselves."""
    kinds = {field.type, *get_args(field.type)}
    return next((kind for kind in (bool, Path, int) if kind in kinds and not field.several), str)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def fast_words(command: str, argument: str, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the words of a command with one path, parsed without typer, which takes long to import.

    ``None`` means that typer has to print the help or the mistake.
    """
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument(argument, type=Path)
    fields = fields_of(command)
    for field in fields.values():
        kind = value_kind(field)
        more = {"action": "store_true"} if kind is bool else {"type": kind}
        parser.add_argument(*field.names, dest=field.name, **more)
    try:
        values = vars(parser.parse_args(words))
        for name in values.keys() & fields.keys():
            if value_kind(fields[name]) is int:
                fields[name].read(values[name])
    except (ValueError, InferlensError):
        return None
    return values


def set_ranges(nvtx: bool) -> None:
    """Set NVTX ranges in all processes, if that is asked for."""
    if nvtx:
        from inferlens.backends.clocks import enable_nvtx

        enable_nvtx()


def exit_code(result: ABResult | ABSteps | RecordComparison, *, fail_on_busy: bool) -> int:
    """Return the exit code of a comparison, which a busy machine changes if that was asked for."""
    busy = fail_on_busy and result.machine_load.busy and result.exit_code in (0, 1, 3)
    return BUSY_CODE if busy else result.exit_code
