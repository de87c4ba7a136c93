"""``inferlens backends``: the backends there are, and the options of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from inferlens.backends.base import Backend
    from inferlens.views.table import Table


def backends(
    name: Annotated[str | None, typer.Argument(help="A backend, to list its variants and options.")] = None,
) -> None:
    """List the backends, or one backend's variants and options with their types and defaults."""
    from inferlens.backends import BACKENDS
    from inferlens.cli import screen
    from inferlens.views.table import Document

    if name is None:
        table = overview({each: BACKENDS.get(each) for each in BACKENDS.names()})
        screen.document(Document(lambda: [table], data=dict), "table")
        screen.note("Options of one: inferlens backends NAME. What works here: inferlens doctor")
    else:
        screen.document(Document(lambda: [options_of(BACKENDS.get(name))], data=dict), "table")


def overview(parts: dict[str, type[Backend]]) -> Table:
    """The backends, their variants, and what they are."""
    from inferlens.views.table import Column, Line, Table

    columns = [Column("", title, numeric=False, fold=True) for title in ("variants", "what it is")]
    lines = [Line(name, (" ".join(filter(None, each.variants)), each.summary)) for name, each in parts.items()]
    return Table("", "backend", columns, lines)


def options_of(backend: type[Backend]) -> Table:
    """The options of one, under its name and its variants."""
    from inferlens.views.table import Column, Line, Table

    columns = [Column("", title, numeric=False, fold=True) for title in ("values", "default", "what it does")]
    lines = [Line(f"{backend.name}.{option}", cells) for option, *cells in option_rows(backend)]
    variants = f"variants: {' '.join(backend.variants)}" if backend.variants != ("",) else ""
    return Table(f"{backend.name}: {backend.summary}", "option", columns, lines, about=variants)


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
