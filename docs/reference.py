"""Writes the reference of the command line and of Python from the code: ``python docs/reference.py``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer

import inferlens
from inferlens.cli.commands import app
from inferlens.views.renderers import escape

DOCS = Path(__file__).parent
MADE = "<!-- Made from the code by `python docs/reference.py`. -->"


def command_line() -> str:
    """Each command: what it does, its arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = ["# Command line", MADE, "What each command takes, as `inferlens COMMAND --help` says it."]
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
        words = " ".join((each.metavar or each.name.upper()) + "..." * (each.nargs == -1) for each in arguments)
        parts += [f"## inferlens {name}", f"    inferlens {name} {words} [options]", said(command.help)]
        rows = [(f"`{each.name.upper()}`", said(each.help), "") for each in arguments]
        rows += [(", ".join(f"`{flag}`" for flag in each.opts), said(each.help), default(each)) for each in options]
        parts.append("\n".join(["| | what it is | default |", "|---|---|---|", *map(row, rows)]))
    return "\n\n".join(parts) + "\n"


def python() -> str:
    """Each public name: how it is called, and what its docstring says."""
    parts = ["# Python", MADE, "What `import inferlens` has, as `help(inferlens.NAME)` says it."]
    for name in inferlens.__all__:
        if name.startswith("_"):
            continue
        value = getattr(inferlens, name)
        parts.append(f"## inferlens.{name}")
        if inspect.isfunction(value):
            parameters = ", ".join(map(shown, inspect.signature(value).parameters.values()))
            parts.append(f"```text\n{name}({parameters})\n```")
        parts.append(f"```text\n{inspect.getdoc(value) or ''}\n```")
    return "\n\n".join(parts) + "\n"


def shown(parameter: inspect.Parameter) -> str:
    """A parameter with its default; its type stands in the docstring where it matters."""
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def said(help: str | None) -> str:
    """A help text as Markdown, without its marks for terminals."""
    text = re.sub(r"\[/?(dim|bold)\]", "", help or "")
    return "\n\n".join(escape(part) for part in text.split("\n\n"))


def default(option: Any) -> str:
    """The value that an option has by itself."""
    if isinstance(option.show_default, str):
        return said(option.show_default)
    return "" if option.default in (None, False, (), []) or callable(option.default) else said(str(option.default))


def row(cells: tuple[str, ...]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cell.replace(chr(10), ' ') for cell in cells)} |"


PAGES = {DOCS / "command-line.md": command_line, DOCS / "python.md": python}

if __name__ == "__main__":
    for path, made in PAGES.items():
        path.write_text(made(), encoding="utf-8")
