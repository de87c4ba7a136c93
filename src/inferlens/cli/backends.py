"""``inferlens backends`` and ``doctor``: the backends there are, and what this machine has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from inferlens.backends.base import Backend, Capabilities
    from inferlens.record.record import Environment
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

    from inferlens.backends.base import values_of

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


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say what this machine has: hardware, driver, libraries, and each backend, or what helps."""
    from inferlens.backends import BACKENDS
    from inferlens.cli import screen
    from inferlens.execution.survey import probe
    from inferlens.measure import environment
    from inferlens.views.table import Document

    here = environment.collect()
    can = probe(BACKENDS.names())
    contents = {title: names for each in can.values() for title, names in each.contents.items()}
    said = [f"{title}: {', '.join(names) or 'none'}" for title, names in contents.items()]
    blocks: list[Table | str] = [machine(here), backend_table(can), *said]
    document = Document(lambda: blocks, data=lambda: {"environment": here, "backends": can})
    screen.document(document, "json" if json else "table")


def machine(here: Environment) -> Table:
    """The machine, a line for each of its parts."""
    from inferlens.units import byte_count
    from inferlens.views.table import Column, Line, Table

    gpus = [f"{gpu.name}, {byte_count(gpu.memory)}, compute capability {gpu.compute_capability}" for gpu in here.gpus]
    rows = {
        "CPU": f"{here.cpu}, {here.cpu_cores or '?'} cores, {here.cpu_threads or '?'} threads usable",
        "governor": here.governor or "not told by the system",
        "memory": byte_count(here.memory),
        "GPU": "; ".join(gpus) or "none that the NVIDIA driver shows",
        "driver": f"{here.driver} (CUDA {here.cuda_driver})" if here.driver else "no NVIDIA driver",
        "system": here.system + (f", in {here.container}" if here.container else ""),
        "Python": here.python,
        "libraries": ", ".join(f"{name} {version}" for name, version in here.libraries.items()) or "none",
    }
    return Table(
        "Machine",
        "",
        [Column("", "", numeric=False, fold=True)],
        [Line(name, (value,)) for name, value in rows.items()],
    )


def backend_table(capabilities: dict[str, Capabilities]) -> Table:
    """Each backend's variants: where they run, or why not and what helps."""
    from inferlens.views.table import Column, Line, Table

    titles = ("device", "precision", "if not: why, and what helps")
    columns = [Column("", title, numeric=False, fold=title != "device") for title in titles]
    lines = []
    for name, can in sorted(capabilities.items(), key=lambda item: (not item[1].available, item[0])):
        for support in can.supports:
            limits = "; ".join(why for key, why in can.limits.items() if support.device in key.split("/"))
            cells = (support.device, " ".join(support.precisions), limits)
            lines.append(Line(f"✓ {name}:{support.variant}".rstrip(":"), cells))
        for absence in can.absent:
            hint = f" Try: {absence.hint}" if absence.hint else ""
            cells = (absence.device, "", absence.reason + hint)
            lines.append(Line(f"✗ {name}:{absence.variant}".rstrip(":"), cells, style="dim"))
    return Table("Backends", "backend", columns, lines)
