"""``inferlens backends``: the backends there are, and the options of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from inferlens.backends.base import Backend


def backends(
    name: Annotated[str | None, typer.Argument(help="A backend, to list its variants and options.")] = None,
) -> None:
    """List the backends, or one backend's variants and options with their types and defaults."""
    from inferlens.backends import BACKENDS

    if name is None:
        _overview({each: BACKENDS.get(each) for each in BACKENDS.names()})
    else:
        _one(BACKENDS.get(name))


def _overview(parts: dict[str, type[Backend]]) -> None:
    from rich.table import Table

    from inferlens.cli import screen

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("backend", "variants", "what it is"):
        table.add_column(header)
    for name, backend in parts.items():
        table.add_row(name, " ".join(filter(None, backend.variants)), backend.summary)
    screen.output().print(table)
    screen.note("Options of one: inferlens backends NAME. What works here: inferlens doctor")


def _one(backend: type[Backend]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from inferlens.cli import screen

    console = screen.output()
    console.print(f"[bold]{backend.name}[/bold]: {backend.summary}")
    if backend.variants != ("",):
        console.print(f"variants: {' '.join(backend.variants)}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("option", no_wrap=True)
    for header in ("values", "default", "what it does"):
        table.add_column(header, overflow="fold")
    for option, values, default, description in option_rows(backend):
        table.add_row(f"{backend.name}.{option}", escape(values), escape(default), escape(description))
    console.print(table)


def option_rows(backend: type[Backend]) -> list[tuple[str, str, str, str]]:
    """Name, values, default and description of each option of a backend."""
    import msgspec

    from inferlens.backends.configured import values_of

    hints = get_type_hints(backend.options, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(backend.options):
        kind, *extras = get_args(hints[field.name])
        description = next((extra.description for extra in extras if isinstance(extra, msgspec.Meta)), "") or ""
        default = "" if field.default is None else str(field.default)
        rows.append(
            (field.name, values_of(kind), default.lower() if isinstance(field.default, bool) else default, description)
        )
    return rows
