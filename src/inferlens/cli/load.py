"""``inferlens load``: how many requests a deployment serves within a limit on their latency."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from inferlens.cli import options, screen
from inferlens.cli.bench import INTERRUPTED, read_plan
from inferlens.errors import InferlensError, check_choice
from inferlens.spec.commands import own_options
from inferlens.spec.options import texts
from inferlens.spec.plan import Plan, as_plan
from inferlens.views.table import FORMATS

if TYPE_CHECKING:
    from inferlens.execution.protocol import Observer
    from inferlens.record.load import LoadRecord


@options.takes()
def load(
    model: options.Model, *, format: str = "table", json: bool = False, file: Path | None = None, **words: Any
) -> None:
    """Find the deployment that serves the most requests per second within a limit on their latency.

    Each way is served by processes of its own, with several batch sizes and numbers of instances. Requests arrive at
    random. The latency of a request counts from the moment at which it was due, so it includes waiting. The best
    deployments of all ways meet in rounds until one is the fastest.

    inferlens load resnet50 --within p99=50ms --price 3.2/h

    MODEL may also be a folder such as results/resnet50, whose fastest ways are measured, or http://HOST:PORT of a
    server that 'inferlens export --best results/MODEL/load' has written.
    """
    from inferlens.analysis.load import FOLDER
    from inferlens.cli.progress import Bar
    from inferlens.record.store import safe_name
    from inferlens.views.load import load_document

    format = "json" if json else format
    check_choice("format", format, FORMATS)
    screen.format_of("table", file)
    records: list[LoadRecord] = []
    interrupted = False
    with Bar(screen.errors()) as bar:
        try:
            measure(model, words, bar, records)
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


def measure(
    model: Any, words: Mapping[str, Any], observer: Observer, records: list[LoadRecord], example_inputs: Any = None
) -> None:
    """Measure a model, the winners of a folder, or a server under load; ``records`` gets each record at once."""
    from inferlens.execution.cases import model_handle
    from inferlens.execution.load.run import load_request, run, run_http

    own, others = own_options("load", words)
    name = str(model) if isinstance(model, (str, Path)) else ""
    ways = winner_plans(Path(name), words) if name and Path(name).is_dir() else []
    with model_handle(model, example_inputs) as handle:
        if ways:
            plan = ways[0]
        else:
            plan = read_plan([name], others) if name else Plan.from_words({**others, "model": handle.spec})
        request = load_request(plan, own, ways)
        if name.startswith("http://"):
            records += run_http(request, name)
        else:
            run(request, observer, None if ways else handle, records)


def winner_plans(folder: Path, words: Mapping[str, Any]) -> list[Plan]:
    """Return a plan of each way that won in a folder of records; ``words`` of the command take precedence.

    The sizes are those of the winner, unless the words have some. The output is the folder that has these records.
    """
    from inferlens.record.store import safe_name
    from inferlens.views.results import winners

    _, given = own_options("load", words)
    records = winners(folder, texts(given.pop("backend", ())))
    left_out = {"batch", "depth", "io", "cold", "rotate"} | ({"input"} if {"mix", "dim"} & words.keys() else set())
    ways = [msgspec.toml.decode(as_plan(record.case), type=dict[str, Any]) for record in records]
    ways = [{name: value for name, value in way.items() if name not in left_out} for way in ways]
    if len({str(way.get("input")) for way in ways}) > 1:
        raise InferlensError(f"The winners in {folder} have several sizes.", expected="one", hint="--dim, or --mix")
    name = safe_name(records[0].model.name)
    root = next((one.parent for one in (folder, *folder.parents) if one.name == name), Path("results"))
    unique = {str(way): way for way in ways}
    return [Plan.from_words({"output": str(root), **way, **given}) for way in unique.values()]
