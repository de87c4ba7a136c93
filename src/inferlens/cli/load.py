"""``inferlens load``: how many requests a deployment serves within a limit on their latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from inferlens.cli import options, screen
from inferlens.cli.bench import INTERRUPTED, read_plan
from inferlens.errors import check_choice
from inferlens.record.load import parse_price
from inferlens.spec.commands import own_options
from inferlens.views.table import FORMATS


@options.takes()
def load(
    model: options.Model,
    *,
    format: str = "table",
    json: bool = False,
    file: Path | None = None,
    **words: Any,
) -> None:
    """Find the deployment that serves the most requests per second within a limit on their latency.

    Each way is served by processes of its own, with several batch sizes and numbers of instances. Requests arrive at
    random. The latency of a request counts from the moment at which it was due, so it includes waiting. The best
    deployments of all ways meet in rounds until one is the fastest.

    inferlens load resnet50 --within p99=50ms --price 3.2/h

    MODEL may also be http://HOST:PORT of a server that 'inferlens export --best results/MODEL/load' has written.
    """
    from inferlens.cli.progress import Bar
    from inferlens.execution.load.run import load_request, run, run_http
    from inferlens.views.load import load_document

    format = "json" if json else format
    check_choice("format", format, FORMATS)
    screen.format_of("table", file)
    own, others = own_options("load", words)
    price = parse_price(own["price"]) if own["price"] else None
    request = load_request(read_plan([model], others), own)
    with Bar(screen.errors()) as bar:
        try:
            records = run_http(request, model) if model.startswith("http://") else run(request, bar)
        except KeyboardInterrupt:
            screen.note(INTERRUPTED)
            raise typer.Exit(130) from None
    screen.document(load_document(records, price), format, file=file)
    if not any(record.runs for record in records):
        raise typer.Exit(1)
