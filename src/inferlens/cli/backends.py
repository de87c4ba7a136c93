"""``inferlens backends`` and ``doctor``: the backends there are, and what this machine has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        every = {each: BACKENDS.get(each) for each in BACKENDS.names()}
        rows = {each: [" ".join(filter(None, of.variants)), of.summary] for each, of in every.items()}
        table = _table("", "backend", ("variants", "what it is"), rows)
    else:
        of = BACKENDS.get(name)
        rows = {f"{name}.{option}": cells for option, *cells in option_rows(of)}
        variants = f"variants: {' '.join(of.variants)}" if of.variants != ("",) else ""
        table = _table(f"{name}: {of.summary}", "option", ("values", "default", "what it does"), rows, variants)
    screen.document(Document(lambda: [table], data=dict), "table")
    if name is None:
        screen.note("Options of one: inferlens backends NAME. What works here: inferlens doctor")


def _table(title: str, first: str, titles: Sequence[str], rows: Mapping[str, Sequence[str]], about: str = "") -> Table:
    from inferlens.views.table import Column, Line, Table

    columns = [Column("", title, numeric=False, fold=True) for title in titles]
    return Table(title, first, columns, [Line(name, cells) for name, cells in rows.items()], about=about)


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
        default = default.lower() if isinstance(field.default, bool) else default
        rows.append((field.name, values_of(kind), default, description))
    return rows


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show what this machine has: hardware, driver, libraries, and for each backend whether it works or what helps."""
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

    gpus = [f"{gpu.name}, {byte_count(gpu.memory)}, compute capability {gpu.compute_capability}" for gpu in here.gpus]
    rows = {
        "CPU": f"{here.cpu}, {here.cpu_cores or '?'} cores, {here.cpu_threads or '?'} threads usable",
        "governor": here.governor or "not reported by the system",
        "memory": byte_count(here.memory),
        "GPU": "; ".join(gpus) or "none that the NVIDIA driver shows",
        "driver": f"{here.driver} (CUDA {here.cuda_driver})" if here.driver else "no NVIDIA driver",
        "system": here.system + (f", in {here.container}" if here.container else ""),
        "Python": here.python,
        "libraries": ", ".join(f"{name} {version}" for name, version in here.libraries.items()) or "none",
    }
    return _table("Machine", "", ("",), {name: (value,) for name, value in rows.items()})


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
