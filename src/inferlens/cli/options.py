"""Parameters of commands: those made from declared options, and those that several commands share.

A command is a function whose positional parameters are its arguments, whose keyword-only parameters are options of what
it shows, and whose ``**words`` take the options declared for it in :mod:`inferlens.spec.commands`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from inferlens.spec.commands import ONE_CASE, options_of
from inferlens.spec.options import DURATION, SHARE, OptionField, option_fields
from inferlens.spec.plan import OPTIONS
from inferlens.views.table import FORMATS

if TYPE_CHECKING:
    from msgspec import Struct

    from inferlens.analysis.ab_result import ABResult, ABSteps
    from inferlens.analysis.comparison import RecordComparison

F = TypeVar("F", bound=Callable[..., Any])


def takes(command: str, *more: type[Struct]) -> Callable[[F], F]:
    """Give a function the declared options of a command, and those of more structs, as parameters for typer."""

    def decorate(function: F) -> F:
        fields = options_of(command) | option_fields(*more)
        own = list(inspect.signature(function, eval_str=True).parameters.values())
        arguments = [each for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
        shown = [each for each in own if each.kind is each.KEYWORD_ONLY]
        options = [parameter(field, several=command not in ONE_CASE) for field in fields.values()]
        every = [*arguments, *options, *shown]
        function.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        function.__annotations__ = {each.name: each.annotation for each in every}
        return function

    return decorate


def parameter(field: OptionField, *, several: bool = True) -> inspect.Parameter:
    """Return the parameter for a declared option; its value is ``None`` if it is not given.

    ``several``: whether it may take several values, with commas.
    """
    option, kind = field.option, str(field.type)
    metavar = option.metavar or {DURATION: "DURATION", SHARE: "PERCENT"}.get(option.unit)
    metavar = metavar or ("NUMBER" if "int" in kind else "TEXT")
    metavar += ",..." * (field.several and several)
    default = field.keyword_default
    info = typer.Option(
        *field.names,
        help=field.help,
        metavar=None if field.type is bool else metavar,
        show_default=False if default in (None, False) else str(default),
        rich_help_panel=option.panel or None,
    )
    value: Any = bool if field.type is bool else list[str] if option.repeatable else str
    annotation = Annotated[value | None, info]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def given(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the command line has."""
    return {name: value for name, value in words.items() if value is not None and value != []}


def _set_ranges(asked: bool) -> None:
    if asked:
        from inferlens.backends.clocks import enable_nvtx

        enable_nvtx()


Models = Annotated[list[str], typer.Argument(help=OPTIONS["model"].option.help)]
Model = Annotated[str, typer.Argument(help="The model: a name, a file or a factory, as for 'inferlens bench'.")]
Nvtx = Annotated[
    bool, typer.Option("--nvtx", callback=_set_ranges, help="Set NVTX ranges around phases and series, for Nsight.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List what would be measured, and how long it may take; run nothing.")
]

# What to show, and how.
Records = Annotated[list[Path], typer.Argument(help="Folders with records, at any depth, or record files.")]
Profiles = Annotated[list[Path], typer.Argument(help="Folders with profiles, at any depth, or profile files.")]
Reference = Annotated[str | None, typer.Option(help=OPTIONS["reference"].help)]
FORMAT = f"{', '.join(FORMATS)}."
Format = Annotated[str, typer.Option("--format", "-f", help=FORMAT)]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Bars = Annotated[bool, typer.Option("--bars", help="Draw the times as bars.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns.")]
Columns = Annotated[str | None, typer.Option(help="The columns to show, by title, with commas; 'help' lists all.")]
_ENDINGS = ".md, .csv, .json, .html, .pdf or .txt decides the format."
Output = Annotated[Path | None, typer.Option("--output", "-o", help=f"Write it to this file; {_ENDINGS}")]
# Of commands that measure, whose --output is the folder of the records: what is printed is written to a file too.
File = Annotated[Path | None, typer.Option("--file", "-o", help=f"Also write the table to this file; {_ENDINGS}")]
_FAIL_ON_BUSY = "Exit with code 5 instead of 0, 1 or 3 if other programs kept the machine busy."
FailOnBusy = Annotated[bool, typer.Option("--fail-on-busy", help=_FAIL_ON_BUSY)]
BUSY_CODE = 5
Top = Annotated[
    int | None,
    typer.Option(min=1, help="Rows of each comparison to show. [dim]Default: as many as fit on a screen.[/dim]"),
]


def exit_code(found: ABResult | ABSteps | RecordComparison, *, fail_on_busy: bool) -> int:
    """Return the exit code of a comparison, which a busy machine changes if that was asked for."""
    return BUSY_CODE if fail_on_busy and found.machine_load.busy and found.exit_code in (0, 1, 3) else found.exit_code
