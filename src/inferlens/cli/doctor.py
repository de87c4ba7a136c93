"""``inferlens doctor``: what this machine has, and how to get what it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from inferlens.backends.base import Capabilities
    from inferlens.record.record import Environment


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say what this machine has: hardware, driver, libraries, and each backend, or the command that cures it."""
    from rich.markup import escape

    from inferlens.backends import BACKENDS
    from inferlens.cli import screen
    from inferlens.execution.survey import probe
    from inferlens.measure import environment

    here = environment.collect()
    capabilities = probe(BACKENDS.names())
    if json:
        screen.data({"environment": here, "backends": capabilities})
        return
    console = screen.output()
    console.print(machine(here))
    console.print(backend_table(capabilities))
    for can in capabilities.values():
        for title, names in can.contents.items():
            console.print(f"\n[bold]{escape(title)}[/bold]: {escape(', '.join(names) or 'none')}")


def machine(here: Environment) -> Table:
    """The machine as a table of two columns."""
    from rich.markup import escape
    from rich.table import Table

    from inferlens import units

    table = Table(title="Machine", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    gpus = [
        f"{gpu.name}, {units.byte_count(gpu.memory)}, compute capability {gpu.compute_capability}" for gpu in here.gpus
    ]
    rows = {
        "CPU": f"{here.cpu}, {here.cpu_cores or '?'} cores, {here.cpu_threads or '?'} threads usable",
        "governor": here.governor or "not told by the system",
        "memory": units.byte_count(here.memory),
        "GPU": "\n".join(gpus) or "none that the NVIDIA driver shows",
        "driver": f"{here.driver} (CUDA {here.cuda_driver})" if here.driver else "no NVIDIA driver",
        "system": here.system + (f", in {here.container}" if here.container else ""),
        "Python": here.python,
        "libraries": ", ".join(f"{name} {version}" for name, version in here.libraries.items()) or "none",
    }
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    return table


def backend_table(capabilities: dict[str, Capabilities]) -> Table:
    """Each backend's variants: where they run, or why not and the hint."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="\nBackends", title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("", "backend", "device", "precision", "if not: why, and the cure"):
        table.add_column(header, overflow="fold")
    for name, can in sorted(capabilities.items(), key=lambda item: (not item[1].available, item[0])):
        for support in can.supports:
            label = f"{name}:{support.variant}" if support.variant else name
            limits = "; ".join(why for key, why in can.limits.items() if support.device in key.split("/"))
            table.add_row("[green]✓[/green]", label, support.device, " ".join(support.precisions), escape(limits))
        for absence in can.absent:
            label = f"{name}:{absence.variant}" if absence.variant else name
            hint = f"\nTry: {absence.hint}" if absence.hint else ""
            table.add_row("[red]✗[/red]", label, absence.device, "", escape(absence.reason + hint))
    return table
