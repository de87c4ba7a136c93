"""``inferlens load``: how many requests a deployment serves within a limit on their latency."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from inferlens.cli import options, screen
from inferlens.cli.bench import INTERRUPTED
from inferlens.errors import check_choice
from inferlens.views.table import FORMATS

if TYPE_CHECKING:
    from inferlens.record.load import LoadRecord


@options.takes()
def load(
    model: options.Model, *, format: str = "table", json: bool = False, file: Path | None = None, **words: Any
) -> None:
    """Find the deployment that serves the most requests per second within a limit on their latency.

    Each way is served by processes of its own, with several batch sizes and numbers of instances. The latency of a
    request counts from the moment at which it was due, so it includes the time in the queue. The best deployments of
    all ways meet in rounds until one is the fastest.

    inferlens load resnet50 --within p99=50ms --price 3.2/h

    MODEL may also be a folder such as results/resnet50, whose fastest ways are measured, or http://HOST:PORT of a
    server that 'inferlens export --best results/MODEL/load' has written. Other servers cannot be measured.
    """
    from inferlens.analysis.load import FOLDER
    from inferlens.cli.progress import Bar
    from inferlens.execution.load.run import load_test
    from inferlens.record.store import safe_name
    from inferlens.views.load import load_document
    from inferlens.views.results import winner_plans

    format = "json" if json else format
    check_choice("format", format, FORMATS)
    screen.format_of("table", file)
    records: list[LoadRecord] = []
    interrupted = False
    with Bar(screen.errors()) as bar:
        try:
            load_test(model, words, bar, records, winner_plans(model, words))
        except KeyboardInterrupt:
            interrupted = True
    if records:
        output = Path(words.get("output") or "results") / safe_name(records[0].model.name) / FOLDER
        saved = "" if model.startswith("http://") or not output.exists() else str(output)
        screen.document(load_document(records, records[0].price, folder=saved), format, file=file)
    if interrupted:
        screen.note(INTERRUPTED)
        raise typer.Exit(130)
    if not any(record.runs for record in records):
        raise typer.Exit(1)
