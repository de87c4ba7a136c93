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
    if name:
        return screen.document(_options_document(name), format, output=output)

    from inferlens.backends import BACKENDS
    from inferlens.execution.cases import probe
    from inferlens.measure import environment

    machine, probed = environment.collect(), probe(BACKENDS.names())
    data = {"environment": machine, "backends": probed}
    document = Document(lambda: list(_machine_blocks(machine, probed, wide)), data=lambda: data)
    return screen.document(document, format, output=output)


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
    table = _text_table(f"{name}: {backend.summary}", "option and default", ("what it does",), rows)
    advice = f"Give one as --option {name}.NAME=VALUE" if rows else "It has no options."
    return Document(lambda: [table, variants + advice], data=lambda: data)


def _text_table(title: str, first: str, titles: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    columns = [Column(title, title, numeric=False, fold=True) for title in titles]
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


def _machine_blocks(machine: Environment, probed: Mapping[str, Capabilities], wide: bool) -> Iterator[Table | str]:
    """Yield what works, what does not and what helps, the machine, and the next command."""
    from inferlens.backends import BACKENDS

    works = {name: capabilities for name, capabilities in probed.items() if capabilities.available}
    usable = {name: backend for name, backend in works.items() if backend.takes("module") or backend.takes("onnx")}
    devices = listing(sorted({support.device for backend in usable.values() for support in backend.supports}))
    total = len(probed) - (len(works) - len(usable))  # without backends that run no model
    yield f"{len(usable)} of {plural(total, 'backend')} work here, on {devices or 'nothing'}."
    yield works_table(usable if usable and not wide else works, wide)
    if lacks := missing(probed):
        yield _text_table("", "does not work", ("because", "what helps"), lacks)
    variants = {f"{name}:{support.variant}" for name, backend in works.items() for support in backend.supports}
    untested = [f"{name}:{variant}" for name in probed for variant in BACKENDS.get(name).untested_variants]
    if untested := [name for name in untested if name in variants]:
        yield f"Not run by us, only checked against public sources: {listing(untested)}."
    gpus = "; ".join(f"{gpu.name}, {byte_count(gpu.memory)}" for gpu in machine.gpus) or "no NVIDIA GPU"
    driver = f", driver {machine.driver} (CUDA {machine.cuda_driver})" if machine.driver else ""
    cpu = f"{machine.cpu}, {plural(machine.cpu_threads or 0, 'thread')}, {byte_count(machine.memory)}"
    yield " · ".join([cpu, f"{gpus}{driver}", machine.python, *[machine.system] * wide])
    if wide:
        backends = {name: BACKENDS.get(name) for name in BACKENDS.names()}
        summaries = {name: [" ".join(backend.variants), backend.summary] for name, backend in backends.items()}
        yield _text_table("", "backend", ("variants", "what it is"), summaries)
        libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
        yield f"libraries: {libraries or 'none'}"
        contents = {title: names for backend in probed.values() for title, names in backend.contents.items()}
        yield from (f"{title}: {', '.join(names) or 'none'}" for title, names in contents.items())
    install = next((cells[1] for cells in lacks.values() if cells[1].startswith("pip")), "inferlens bench fake:demo")
    yield "Options of one: inferlens backends NAME"
    yield f"Next: {'inferlens bench resnet18' if usable else install}"


def works_table(probed: Mapping[str, Capabilities], wide: bool) -> Table:
    """Return what each backend can do here; with ``wide`` also why a precision is missing."""
    rows: dict[str, list[str]] = {}
    for name, capabilities in sorted(probed.items(), key=lambda pair: not pair[1].takes("module")):
        variants_by: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for support in capabilities.supports:
            variants_by.setdefault((support.device, support.precisions), []).append(support.variant)
        for (device, precisions), variants in variants_by.items():
            reasons = [why for key, why in capabilities.limits.items() if device in key.split("/")]
            label = f"{name}:{', '.join(variants)}".rstrip(":") + (f" on {device}" if variants != [device] else "")
            rows[label] = [" ".join(precisions), *(["; ".join(dict.fromkeys(reasons))] if wide else [])]
    return _text_table("", "works", ("precisions", *(["why no others"] if wide else [])), rows)


def missing(probed: Mapping[str, Capabilities]) -> dict[str, list[str]]:
    """Return reasons and remedies by backend and variant, or by backend if nothing of it works."""
    absences: dict[tuple[str, str], dict[str, None]] = {}
    for name, capabilities in probed.items():
        for absence in capabilities.absent:
            label = f"{name}:{absence.variant}" if absence.variant else name
            if absence.device and not absence.variant:
                label += f" on {absence.device}"
            label = label if capabilities.available else name
            absences.setdefault((absence.reason, absence.hint), {})[label] = None
    return {", ".join(labels): [reason, hint] for (reason, hint), labels in absences.items()}
