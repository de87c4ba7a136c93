"""``inferlens partition``: which operators of a model run in TensorRT and which in PyTorch, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens.cli import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from inferlens.case import Case
    from inferlens.errors import InferlensError
    from inferlens.partition import Break, Partition, Segment

SCHEMA = "inferlens.partitions/1"
MODEL = "A name, a file or a factory, as for 'inferlens bench'."
BACKEND = "A backend that divides a model, as name or name:variant."
FORMAT = "table or json."
SIDES = ("TensorRT", "PyTorch")
NAMED = 3  # modules and kinds of operators that a row names


def partition(
    model: Annotated[str, typer.Argument(help=MODEL)],
    backend: Annotated[str, typer.Option("--backend", "-b", help=BACKEND)] = "torch_tensorrt:dynamo",
    option: options.Options = None,
    precision: Annotated[str | None, typer.Option(help="fp32, fp16, bf16, with commas.")] = None,
    batch: options.Batches = None,
    input: options.Inputs = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    seed: options.Seed = None,
    format: Annotated[str, typer.Option("--format", "-f", help=FORMAT)] = "table",
    json: options.Json = False,
) -> None:
    """Show which operators run in TensorRT and which in PyTorch, and where the graph breaks.

    Nothing is built, and no GPU is needed. Options given with commas are shown side by side; so
    --option torch_tensorrt.min_block_size=1,5,100 shows what the size of blocks changes.
    """
    from inferlens import tasks
    from inferlens.cli import screen
    from inferlens.errors import InferlensError
    from inferlens.partition import Partition

    if format not in ("table", "json"):
        raise InferlensError(f"'{format}' is no format of a partition.", expected="table or json")
    words = {
        "model": model, "option": option, "precision": precision, "batch": batch, "input": input, "weights": weights,
        "trust": trust, "seed": seed,
    }  # fmt: skip
    cases = tasks.cases({name: value for name, value in words.items() if value is not None}, backend)
    results: list[tuple[Case, Partition | InferlensError]] = []
    for number, case in enumerate(cases, 1):
        with screen.busy(f"{number} of {len(cases)}, {case.label}") as phase:
            try:
                results.append((case, tasks.run("partition", case, Partition, trust=bool(trust), phase=phase).result))
            except InferlensError as error:
                results.append((case, error))
    failures = [result for _, result in results if isinstance(result, InferlensError)]
    if len(failures) == len(results):
        raise failures[0]
    if json or format == "json":
        sys.stdout.write(document(results))
    else:
        show(results, screen.output())


def document(results: Sequence[tuple[Case, Partition | InferlensError]]) -> str:
    """Everything as JSON."""
    import msgspec

    from inferlens.errors import InferlensError

    parts = [
        {
            "case": case,
            "partition": None if isinstance(result, InferlensError) else result,
            "failure": str(result) if isinstance(result, InferlensError) else "",
        }
        for case, result in results
    ]
    return msgspec.json.format(msgspec.json.encode({"schema": SCHEMA, "partitions": parts}), indent=1).decode() + "\n"


def show(results: Sequence[tuple[Case, Partition | InferlensError]], console: Console) -> None:
    """Prints tables: counts and operators side by side, then what PyTorch runs, then what other sizes would give."""
    from rich.markup import escape

    from inferlens.errors import InferlensError
    from inferlens.partition import Partition

    labels = differences([case for case, _ in results])
    known = [(label, part) for label, (_, part) in zip(labels, results, strict=True) if isinstance(part, Partition)]
    console.print(f"[bold]{escape(headline(results[0][0], known[0][1]))}[/bold]\n")
    console.print(counts_table(known), "")
    console.print(operators_table(known), "")
    for label, part in known:
        if part.breaks:
            console.print(f"[bold]What PyTorch runs[/bold]{f' with {escape(label)}' if label else ''}")
            console.print(breaks_table(part), "")
    if known[0][1].choices:
        console.print("[bold]What min_block_size changes[/bold]")
        console.print(choices_table(known[0][1]), "")
    for text in dict.fromkeys(note for _, part in known for note in notes(part)):
        console.print(f"[dim]{escape(text)}[/dim]")
    for label, (_, result) in zip(labels, results, strict=True):
        if isinstance(result, InferlensError):
            console.print(f"{escape(label)}: {escape(str(result))}")


def headline(case: Case, part: Partition) -> str:
    """Model, front end, precision and inputs in one line."""
    batch = [] if case.batch is None else [f"batch {case.batch}"]
    return " · ".join([case.model, case.backend_label, case.precision, *batch, part.flavour])


def differences(cases: Sequence[Case]) -> list[str]:
    """What tells each case from the others, in words; empty for one alone."""
    words = [
        [case.precision, f"batch {case.batch}", *(f"{name}={value}" for name, value in sorted(case.options.items()))]
        for case in cases
    ]
    shared = set.intersection(*map(set, words))
    return [" ".join(word for word in mine if word not in shared) for mine in words]


def notes(part: Partition) -> list[str]:
    """What must be said beside the tables."""
    found = [part.note] if part.note else []
    if part.assumed_gpu:
        found.append(
            f"There is no GPU here: one of compute capability {part.assumed_gpu} was assumed. Which operators have a "
            "converter does not depend on it."
        )
    return [*found, *(f"The model was compiled into several graphs: {reason}" for reason in part.graph_breaks)]


def counts_table(known: Sequence[tuple[str, Partition]]) -> Table:
    """Numbers of operators and engines, one column for each partition."""
    table = _table("", *(label for label, _ in known))
    rows: list[tuple[str, Any]] = [
        ("operators", lambda part: str(part.operators)),
        ("  in TensorRT", lambda part: str(part.in_tensorrt)),
        ("  in PyTorch", lambda part: str(part.operators - part.in_tensorrt)),
        ("engines", lambda part: str(len(part.engines))),
        ("operators per engine", lambda part: _sizes(part.engines)),
        ("segments", lambda part: str(len(part.segments))),
    ]
    for title, text in rows:
        table.add_row(title, *(text(part) for _, part in known))
    return table


def operators_table(known: Sequence[tuple[str, Partition]]) -> Table:
    """How often each operator runs in TensorRT and in PyTorch, one column for each partition."""
    from inferlens.partition import counted

    counts = [{side: counted(_names(part.segments, side)) for side in SIDES} for _, part in known]
    table = _table("operator", *(label or "runs in" for label, _ in known))
    for name in dict.fromkeys(name for sides in counts for each in sides.values() for name in each):
        table.add_row(name, *(_split({side: sides[side].get(name, 0) for side in SIDES}) for sides in counts))
    return table


def breaks_table(part: Partition) -> Table:
    """Each place where the graph leaves TensorRT."""
    table = _table("where")
    for title in ("modules", "operators", "why"):
        table.add_column(title, overflow="fold")
    for each in part.breaks:
        reasons = _reasons(part.segments[each.segment])
        table.add_row(place(part.segments, each.segment), _modules(each), _operators(each), reasons)
    return table


def choices_table(part: Partition) -> Table:
    """What each ``min_block_size`` gives that changes anything."""
    table = _table("min_block_size", "engines", "operators per engine", "in TensorRT", "segments")
    for choice in part.choices:
        sizes = str(choice.least) if choice.least == choice.most else f"{choice.least} to {choice.most}"
        fewest = choice == part.fewest
        cells = [str(len(choice.engines)), _sizes(choice.engines), str(sum(choice.engines)), str(choice.segments)]
        table.add_row(f"{sizes}{' (fewest segments)' if fewest else ''}", *cells, style="bold" if fewest else "")
    return table


def place(segments: Sequence[Segment], number: int) -> str:
    """Where a segment stands among the engines."""
    before = sum(each.runs_in == "TensorRT" for each in segments[:number])
    after = sum(each.runs_in == "TensorRT" for each in segments[number:])
    if before and after:
        return f"between engines {before} and {before + 1}"
    return f"after engine {before}" if before else "before engine 1" if after else "the whole graph"


def _names(segments: Sequence[Segment], side: str) -> list[str]:
    return [operator.name for segment in segments if segment.runs_in == side for operator in segment.operators]


def _modules(each: Break) -> str:
    paths = [path or "the model itself" for path in each.modules]
    return ", ".join(paths) if len(paths) <= NAMED else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"


def _operators(each: Break) -> str:
    most = sorted(each.operators.items(), key=lambda pair: -pair[1])
    words = [f"{name} ×{count}" if count > 1 else name for name, count in most[:NAMED]]
    return ", ".join(words) + (f" and {len(most) - NAMED} more kinds" if len(most) > NAMED else "")


def _reasons(segment: Segment) -> str:
    words = dict.fromkeys(
        f"{each.why} ({each.detail})" if each.why == "unsupported" and each.detail else each.why
        for each in segment.operators
    )
    return ", ".join(filter(None, words)) or "–"


def _split(sides: dict[str, int]) -> str:
    return ", ".join(f"{count} {side}" for side, count in sides.items() if count) or "–"


def _sizes(engines: Sequence[int | None]) -> str:
    return ", ".join("?" if size is None else str(size) for size in engines) or "–"


def _table(first: str, *numbers: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_header=any((first, *numbers)))
    table.add_column(first, no_wrap=True)
    for header in numbers:
        table.add_column(header, justify="right", overflow="fold")
    return table
