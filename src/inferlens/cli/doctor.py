"""``inferlens doctor``: what this machine has, and how to get what it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inferlens.backends.base import Capabilities
    from inferlens.record.record import Environment
    from inferlens.views.table import Table


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
