"""The commands as one program: each is a function of its own name, whose docstring is its help.

A command's module is imported when it is called, or when the help of all is printed.
"""

from __future__ import annotations

import re
from importlib import import_module
from inspect import getdoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import inferlens
from inferlens.cli import options
from inferlens.errors import InferlensError, suggestion
from inferlens.spec import hints

# The commands in the order of the help, and the modules that have their functions.
COMMANDS = {
    "bench": "", "tune": "", "ab": "bench", "load": "",
    **dict.fromkeys(("show", "compare"), "show"),
    "profile": "", **dict.fromkeys(("modules", "layers", "kernels"), "profile"),
    "report": "show", "trace": "", **dict.fromkeys(("roofline", "graph"), "profile"),
    **dict.fromkeys(("quantize", "export", "partition"), "files"),
    "backends": "backends",
}  # fmt: skip


WAY = "A way is a backend with its variant, its precision and its options."  # ends each help that uses the word
_WAY = re.compile(r"\bways?\b")


class Commands(TyperGroup):
    """The commands by their names."""

    lists_only = False

    def list_commands(self, _: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of all commands, without their options, which take long to make."""
        self.lists_only = True
        super().format_help(ctx, formatter)

    def get_command(self, _: Any, cmd_name: str) -> Any:
        """Return a command from its module."""
        if cmd_name not in COMMANDS:
            return None
        function = getattr(import_module(f"inferlens.cli.{COMMANDS[cmd_name] or cmd_name}"), cmd_name)
        help = "\n\n".join(" ".join(part.split()) for part in (getdoc(function) or "").split("\n\n"))
        if self.lists_only:
            return TyperCommand(cmd_name, help=help, rich_markup_mode="rich")
        options.declare(function)
        program = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        program.command(cmd_name, help=help)(function)
        command: Any = typer.main.get_command(program)
        texts = [help, *(getattr(parameter, "help", "") or "" for parameter in command.params)]
        command.epilog = WAY if any(map(_WAY.search, texts)) else ""
        return command


_WRONG_NUMBER = re.compile(
    r"value for '(--[\w-]+).*: Input should be (?:a valid integer|greater than or equal to (\d+))"
)
_USAGE_ERROR: Any = typer.BadParameter.__base__  # a class of a private module
_NO_WORDS: Any = next((kind for kind in _USAGE_ERROR.__subclasses__() if kind.__name__ == "NoArgsIsHelpError"), ())
app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _backend(name: str) -> Any:
    """Return the class of a backend. Backends are imported only once a hint needs one."""
    from inferlens.backends import BACKENDS

    return BACKENDS.get(name)


def run() -> int:
    """Run the command line and return its exit code. Raises InferlensError if it cannot be parsed."""
    hints.register(_backend)
    try:
        code = app(prog_name="inferlens", standalone_mode=False)
    except _USAGE_ERROR as error:
        if isinstance(error, _NO_WORDS):
            error.show()
            return 2
        raise _refusal(error) from error
    return code if isinstance(code, int) else 0


def _refusal(error: Any) -> InferlensError:
    """Return an error of the command line as ours, with near misses."""
    context = error.ctx
    command = context.command_path if context else "inferlens"
    help = f"{command} --help"
    if context and (wrong := getattr(error, "option_name", None)):  # without it an option lacks its value
        names = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
        return InferlensError(f"{command} has no option '{wrong}'.", hint=suggestion(wrong, names, 1) or help)
    if wrong_number := _WRONG_NUMBER.search(error.format_message()):
        name, least = wrong_number.groups()
        return InferlensError(f"{name} takes a whole number{f', {least} or more' if least else ''}.", hint=help)
    words = context.command.list_commands(context) if context and hasattr(context.command, "list_commands") else []
    named = re.search(r"No such command '(.+?)'", error.format_message())
    if named and words:
        hint = suggestion(named[1], words, 1) or (f"inferlens bench {named[1]}" if "-" not in named[1] else help)
        return InferlensError(f"There is no command '{named[1]}'.", hint=hint)
    return InferlensError(error.format_message(), hint=help)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"inferlens {inferlens.__version__}")
        raise typer.Exit


@app.callback()
def _inferlens(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Which way of running your deep-learning model is fastest on your hardware, and where the time goes."""
