"""``inferlens plot``: draw records as a picture or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

OUTPUT = "The file to write; .svg, .png or .html decides its format."
THEME = "auto, light or dark. [dim]Default: light, and in HTML what the reader's system is set to.[/dim]"


def plot(
    paths: options.Records,
    output: Annotated[Path, typer.Option("--output", "-o", help=OUTPUT)] = Path("compare.svg"),
    reference: options.Reference = None,
    theme: Annotated[str | None, typer.Option(help=THEME)] = None,
) -> None:
    """Draw latency and throughput of every backend side by side, and against the batch size.

    The HTML file is interactive and needs no network.
    """
    from inferlens.cli import screen
    from inferlens.record.store import load_records
    from inferlens.views.chart import Chart

    chart = Chart(reference=reference, format=output.suffix.lower().removeprefix("."), theme=theme or "auto")
    loaded = load_records(paths)
    screen.notes(loaded.problems)
    write(output, chart.render(loaded.records))
    screen.note(f"Wrote {output}.")


def write(output: Path, drawn: str | bytes, option: str = "--output") -> None:
    """Writes the file whole or not at all.

    Raises:
        InferlensError: if it cannot be written there.
    """
    from inferlens.errors import InferlensError
    from inferlens.record.files import write_whole

    try:
        write_whole(output, drawn.encode() if isinstance(drawn, str) else drawn)
    except OSError as error:
        raise InferlensError(
            f"{output} cannot be written: {error.strerror}.", hint=f"{option} with another file"
        ) from error
