"""``inferlens backends``: what works on this machine, and the options of each backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import typer

from inferlens.cli import options, screen
from inferlens.units import byte_count, listing, plural
from inferlens.views.table import Column, Document, Line, Table

if TYPE_CHECKING:
    from inferlens.backends.base import Backend, Capabilities
    from inferlens.record.record import Environment


@options.takes()
def backends(
    name: Annotated[str | None, typer.Argument(help="A backend, to list its variants and options.")] = None,
    *,
    wide: bool = False,
    format: str = "table",
    output: Path | None = None,
) -> None:
    """Say which backends work on this machine and what the others lack, or list the options of one backend.

    With --wide also what each backend is, why precisions are missing, all libraries, and what else a backend has.
    """
    document = _options_document(name) if name else _machine_document(wide)
    screen.document(document, format, output=output)


def _options_document(name: str) -> Document:
    """Return the variants and options of a backend."""
    from inferlens.backends import BACKENDS

    backend = BACKENDS.get(name)
    rows, data = {}, {}
    for option, values, default, description in option_rows(backend):
        data[option] = {"values": values, "default": default, "description": description}
        choices = f" ({values})" if "|" in values and values != "true|false" else ""
        rows[f"{option}={default}"] = [description + choices]
    variants = f"{name}:{', '.join(backend.variants)}. " if backend.variants != ("",) else ""
    table = _table(f"{name}: {backend.summary}", "option and default", ("what it does",), rows)
    advice = f"Give one as --option {name}.NAME=VALUE" if rows else "It has no options."
    return Document(lambda: [table, variants + advice], data=lambda: data)


def _table(title: str, first: str, titles: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    columns = [Column("", title, numeric=False, fold=True) for title in titles]
    return Table(title, first, columns, [Line(name, cells) for name, cells in rows.items()], fold=True)


def option_rows(backend: type[Backend]) -> list[tuple[str, str, str, str]]:
    """Return the name, values, default and description of each option of a backend."""
    import msgspec

    from inferlens.backends.base import option_values

    hints = get_type_hints(backend.options, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(backend.options):
        kind, *extras = get_args(hints[field.name])
        description = next((extra.description for extra in extras if isinstance(extra, msgspec.Meta)), "") or ""
        default = "" if field.default is None else str(field.default)
        default = default.lower() if isinstance(field.default, bool) else default
        rows.append((field.name, option_values(kind), default, description))
    return rows


def _machine_document(wide: bool) -> Document:
    """Return what works on this machine, what does not, and what helps."""
    from inferlens.backends import BACKENDS
    from inferlens.execution.cases import probe
    from inferlens.measure import environment

    here = environment.collect()
    can = probe(BACKENDS.names())
    return Document(lambda: list(_blocks(here, can, wide)), data=lambda: {"environment": here, "backends": can})


def _blocks(here: Environment, can: Mapping[str, Capabilities], wide: bool) -> Iterator[Table | str]:
    """Yield what works, what does not and what helps, the machine, and the next command."""
    from inferlens.backends import BACKENDS

    works, lacks = {name: of for name, of in can.items() if of.available}, missing(can)
    usable = {name: of for name, of in works.items() if of.takes("module") or of.takes("onnx")}
    devices = listing(sorted({support.device for of in usable.values() for support in of.supports}))
    every = len(can) - (len(works) - len(usable))  # without what runs no model
    yield f"{len(usable)} of {plural(every, 'backend')} work here, on {devices or 'nothing'}."
    yield works_table(usable if usable and not wide else works, wide)
    if lacks:
        yield _table("", "does not work", ("because", "what helps"), lacks)
    there = {f"{name}:{support.variant}" for name, capabilities in works.items() for support in capabilities.supports}
    untried = [f"{name}:{item}" for name in can for item in BACKENDS.get(name).untested_variants]
    if untried := [name for name in untried if name in there]:
        yield f"Not run by us, only checked against public sources: {listing(untried)}."
    gpus = [f"{gpu.name}, {byte_count(gpu.memory)}" for gpu in here.gpus]
    driver = f", driver {here.driver} (CUDA {here.cuda_driver})" if here.driver else ""
    cpu = f"{here.cpu}, {plural(here.cpu_threads or 0, 'thread')}, {byte_count(here.memory)}"
    yield f"{cpu} · {'; '.join(gpus) or 'no NVIDIA GPU'}{driver} · {here.python}{f' · {here.system}' if wide else ''}"
    if wide:
        every_backend = {name: BACKENDS.get(name) for name in BACKENDS.names()}
        summaries = {name: [" ".join(item.variants), item.summary] for name, item in every_backend.items()}
        yield _table("", "backend", ("variants", "what it is"), summaries)
        yield f"libraries: {', '.join(f'{name} {version}' for name, version in here.libraries.items()) or 'none'}"
        contents = {title: names for capabilities in can.values() for title, names in capabilities.contents.items()}
        yield from (f"{title}: {', '.join(names) or 'none'}" for title, names in contents.items())
    first = next((cells[1] for cells in lacks.values() if cells[1].startswith("pip")), "inferlens bench fake:demo")
    yield "Options of one: inferlens backends NAME"
    yield f"Next: {'inferlens bench resnet18' if usable else first}"


def works_table(can: Mapping[str, Capabilities], wide: bool = False) -> Table:
    """Return what each backend can do here; with ``wide`` also why a precision is missing."""
    rows: dict[str, list[str]] = {}
    for name, capabilities in sorted(can.items(), key=lambda item: not item[1].takes("module")):
        variants_by: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for support in capabilities.supports:
            variants_by.setdefault((support.device, support.precisions), []).append(support.variant)
        for (device, precisions), variants in variants_by.items():
            reasons = [why for key, why in capabilities.limits.items() if device in key.split("/")]
            label = f"{name}:{', '.join(variants)}".rstrip(":") + (f" on {device}" if variants != [device] else "")
            rows[label] = [" ".join(precisions), *(["; ".join(dict.fromkeys(reasons))] if wide else [])]
    return _table("", "works", ("precisions", *(["why no others"] if wide else [])), rows)


def missing(can: Mapping[str, Capabilities]) -> dict[str, list[str]]:
    """Return why something does not work and what helps, by backend and variant; a backend without any once."""
    absences: dict[tuple[str, str], dict[str, None]] = {}
    for name, capabilities in can.items():
        for absence in capabilities.absent:
            label = f"{name}:{absence.variant}".rstrip(":") + (
                f" on {absence.device}" if absence.device and not absence.variant else ""
            )
            label = label if capabilities.available else name  # of which nothing works
            absences.setdefault((absence.reason, absence.hint), {})[label] = None
    return {", ".join(labels): [reason, hint] for (reason, hint), labels in absences.items()}
