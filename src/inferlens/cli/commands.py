"""The commands as one program: each is a function of its own name, whose docstring is its help.

A command's module is imported when it is called, or when the help of all is printed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

import inferlens

# The commands in the order of the help, and the modules that have their functions.
COMMANDS = {
    "bench": "", "ab": "", **dict.fromkeys(("show", "compare", "plot"), "show"), "notes": "",
    "profile": "", **dict.fromkeys(("findings", "modules", "layers", "kernels"), "profile"),
    "trace": "", "roofline": "profile", "graph": "", "build": "", "export": "", "partition": "",
    **dict.fromkeys(("doctor", "backends"), "backends"),
}  # fmt: skip


class Commands(TyperGroup):
    """The commands by their names."""

    def list_commands(self, _: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, _: Any, cmd_name: str) -> Any:
        """A command, from its module."""
        if cmd_name not in COMMANDS:
            return None
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        alone.command(cmd_name)(getattr(import_module(f"inferlens.cli.{COMMANDS[cmd_name] or cmd_name}"), cmd_name))
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"inferlens {inferlens.__version__}")
        raise typer.Exit


@app.callback()
def _inferlens(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Which way of running your deep-learning model is fastest on your hardware, and where the time goes."""
