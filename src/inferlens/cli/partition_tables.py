"""What ``inferlens partition`` prints: counts and operators side by side, and of each case what differs from place to
place. What the cases have in common stands above, what tells them apart heads their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from inferlens.errors import InferlensError
from inferlens.record.partition import Break, Choice, Interruption, Partition, Segment, counted
from inferlens.record.record import Warning
from inferlens.spec.case import Case, Option, TensorSpec
from inferlens.units import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")
SIDES = ("TensorRT", "PyTorch")
NAMED = 3  # modules and kinds of operators that a row names
UNKNOWN = "unknown"


class Answer(NamedTuple):
    """A case, its partition or why there is none, and what the backend warned of."""

    case: Case
    result: Partition | InferlensError
    warnings: Sequence[Warning] = ()


class Known(NamedTuple):
    """A partition, with what tells its case from the others: in one line, and as the lines of a header."""

    label: str
    header: str
    part: Partition


def show(answers: Sequence[Answer], console: Console) -> None:
    """Prints tables: counts and operators, then what PyTorch runs, then what other values would give, then notes."""
    from rich.markup import escape

    cases = [each.case for each in answers]
    corner, headers, labels = "\n".join(differing(cases)), headers_of(cases), labels_of(cases)
    told = zip(labels, headers, answers, strict=True)
    known = [Known(label, header, each.result) for label, header, each in told if isinstance(each.result, Partition)]
    console.print(f"[bold]{escape(headline(cases, known[0].part.flavour))}[/bold]\n")
    console.print(counts_table(known, corner), "")
    if any(each.part.segments for each in known):
        console.print(*operators_table(known, corner), "", sep="\n")
    for rows, members in _alike(known, lambda part: tuple(breaks_of(part))).items():
        console.print(f"[bold]What PyTorch runs[/bold]{escape(_with(members, known))}")
        console.print(breaks_table(rows), "")
    for members in _alike(known, _different_choices).values():
        most = max((each.part for each in members), key=lambda part: len(part.choices))
        which = escape(_with(members, known) + _how_many(most))
        console.print(f"[bold]What min_block_size changes[/bold]{which}")
        console.print(choices_table(most, {each.part.min_block_size for each in members}), "")
    for text in remarks(answers, labels):
        console.print(f"[dim]{escape(text)}[/dim]")
    for label, answer in zip(labels, answers, strict=True):
        if isinstance(answer.result, InferlensError):
            console.print(f"{escape(label)}: {escape(str(answer.result))}")


def aspects(case: Case) -> dict[str, str]:
    """Everything that a case may differ in from others of one command, as it is written there."""
    found = {
        "variant": case.backend_label,
        "precision": case.precision,
        "batch": "" if case.batch is None else str(case.batch),
        "input": ", ".join(map(_sizes_of, case.inputs)),
        "weights": case.weights or "",
        "seed": str(case.seed),
    }
    return found | {name: _value(value) for name, value in sorted(case.options.items())}


def differing(cases: Sequence[Case]) -> list[str]:
    """The names of what tells the cases apart."""
    every = [aspects(case) for case in cases]
    names = dict.fromkeys(name for each in every for name in each)
    return [name for name in names if len({each.get(name) for each in every}) > 1]


def headers_of(cases: Sequence[Case]) -> list[str]:
    """What tells each case apart, a line for each name of :func:`differing`."""
    names = differing(cases)
    found = [aspects(case) | {"variant": case.variant} for case in cases]
    return ["\n".join(each.get(name) or "default" for name in names) for each in found]


def labels_of(cases: Sequence[Case]) -> list[str]:
    """What tells each case from the others, in words; empty for one alone."""
    return [" ".join(_word(name, aspects(case).get(name, "")) for name in differing(cases)) for case in cases]


def headline(cases: Sequence[Case], flavour: str) -> str:
    """The model and what all cases have in common, in one line."""
    apart, shared = differing(cases), aspects(cases[0])
    left_out = {*apart, "weights", "seed"}
    words = [_word(name, value) for name, value in shared.items() if name not in left_out and value]
    return " · ".join([cases[0].model, *words, flavour])


def remarks(answers: Sequence[Answer], labels: Sequence[str]) -> list[str]:
    """What must be said beside the tables; of which case, where it is not said of all."""
    known = [
        (label, [*notes(each.result), *(f"{of.message} {of.advice}".strip() for of in each.warnings)])
        for label, each in zip(labels, answers, strict=True)
        if isinstance(each.result, Partition)
    ]
    said = dict.fromkeys(text for _, texts in known for text in texts)
    whose = {text: [label for label, texts in known if text in texts] for text in said}
    return [text if len(whose[text]) == len(known) else f"With {', '.join(whose[text])}: {text}" for text in said]


def notes(part: Partition) -> list[str]:
    """What must be said beside the tables of one partition."""
    found = [part.note] if part.note else []
    if part.graph_breaks:
        graphs = len({each.graph for each in part.segments})
        found.append(
            f"Dynamo broke the model's graph: counted are the operators of {plural(graphs, 'captured graph')}, each "
            "once, however often it runs. What Python runs between them, operators of PyTorch among it, is in no graph "
            "and is not counted."
        )
    if not part.interruptions:  # of older versions, which did not keep the places
        found += [f"The graph breaks: {reason}" for reason in part.graph_breaks]
    if part.assumed_gpu:
        found.append(
            f"There is no GPU here: one of compute capability {part.assumed_gpu} was assumed. Which operators have a "
            "converter does not depend on it."
        )
    return found


def counts_table(known: Sequence[Known], corner: str) -> Table:
    """Numbers of operators and engines, one column for each partition."""
    table = _table(corner, *(each.header for each in known))
    rows: list[tuple[str, Any]] = [
        ("operators", lambda part: _number(part.operators)),
        ("  in TensorRT", lambda part: _number(part.in_tensorrt)),
        ("  in PyTorch", lambda part: str(len(_names(part.segments, "PyTorch")))),
        ("engines", lambda part: str(len(part.engines))),
        ("operators per engine", lambda part: _sizes(part.engines)),
        ("segments", lambda part: str(len(part.segments))),
    ]
    if any(each.part.graph_breaks for each in known):
        rows[0] = ("operators in graphs", rows[0][1])
        rows.append(("graph breaks (Python)", lambda part: str(len(part.graph_breaks))))
    for title, text in rows:
        table.add_row(title, *(text(each.part) for each in known))
    return table


def operators_table(known: Sequence[Known], corner: str) -> Iterator[Any]:
    """A title, and how often each operator runs in TensorRT and in PyTorch, one column for each partition."""
    counts = [{side: counted(_names(each.part.segments, side)) for side in SIDES} for each in known]
    alone = len(known) == 1
    if not alone:  # words in every cell would not fit beside each other
        yield "[bold]Operators in TensorRT / in PyTorch[/bold]"
    table = _table("operator" if alone else corner, *("runs in" if alone else each.header for each in known))
    for name in dict.fromkeys(name for sides in counts for each in sides.values() for name in each):
        cells = [{side: sides[side].get(name, 0) for side in SIDES} for sides in counts]
        table.add_row(name, *(_split(each) if alone else _slash(each) for each in cells))
    yield table


def breaks_of(part: Partition) -> list[tuple[str, ...]]:
    """Each place where the graph leaves TensorRT, and each where Python runs between graphs, in order: the cells."""
    rows: list[tuple[int, bool, tuple[str, ...]]] = []
    for each in part.breaks:
        segment = part.segments[each.segment]
        where = place(part.segments, each.segment)
        rows.append((segment.graph, False, (where, _modules(each.modules), _operators(each), _reasons(segment))))
    for one in part.interruptions:
        where = f"after graph {one.graph + 1}" if one.graph >= 0 else "before graph 1"
        if part.engines:
            where = place(part.segments, sum(segment.graph <= one.graph for segment in part.segments))
        cells = (where, _modules((one.module,)), _python(one), f"graph break: {one.reason}")
        rows.append((one.graph, True, cells))
    return [cells for _, _, cells in sorted(rows, key=lambda row: row[:2])]


def breaks_table(rows: Sequence[tuple[str, ...]]) -> Table:
    """The cells of :func:`breaks_of`."""
    table = _table("where")
    for title in ("modules", "operators", "why"):
        table.add_column(title, overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    return table


def choices_table(part: Partition, own: set[int]) -> Table:
    """What each ``min_block_size`` gives that changes anything; ``own`` are those of the cases."""
    table = _table("min_block_size", "engines", "operators per engine", "in TensorRT", "segments")
    table.add_column("")
    for choice in part.choices:
        sizes = str(choice.least) if choice.least == choice.most else f"{choice.least} to {choice.most}"
        cells = [str(len(choice.engines)), _sizes(choice.engines), str(sum(choice.engines)), str(choice.segments)]
        table.add_row(sizes, *cells, _marks(choice, part, own), style="bold" if choice == part.fewest else "")
    return table


def place(segments: Sequence[Segment], number: int) -> str:
    """Where a segment stands among the engines."""
    before = sum(each.runs_in == "TensorRT" for each in segments[:number])
    after = sum(each.runs_in == "TensorRT" for each in segments[number:])
    if before and after:
        return f"between engines {before} and {before + 1}"
    return f"after engine {before}" if before else "before engine 1" if after else "the whole graph"


def _alike(known: Sequence[Known], what: Callable[[Partition], T]) -> dict[T, list[Known]]:
    """Partitions that have the same, together; without those that have nothing."""
    groups: dict[T, list[Known]] = {}
    for each in known:
        if found := what(each.part):
            groups.setdefault(found, []).append(each)
    return groups


def _different_choices(part: Partition) -> tuple[Choice, ...]:
    """The choices, without that of the case's own beyond all engines."""
    return tuple(choice for choice in part.choices if choice.engines)


def _how_many(part: Partition) -> str:
    return f" ({len(part.choices)} of {part.ways} results)" if part.ways > len(part.choices) else ""


def _marks(choice: Choice, part: Partition, own: set[int]) -> str:
    here = any(choice.least <= each <= choice.most for each in own)
    return ", ".join(["fewest segments"] * (choice == part.fewest) + ["in use"] * here)


def _with(members: Sequence[Known], known: Sequence[Known]) -> str:
    """Of which cases something is, where it is not of all."""
    labels = ", ".join(each.label for each in members)
    return f" with {labels}" if len(members) < len(known) else ""


def _word(name: str, value: str) -> str:
    """An aspect as a word of a sentence."""
    if name == "batch":
        return f"batch {value or 'of its own'}"
    return value if name in ("variant", "precision", "input") else f"{name}={value or 'default'}"


def _value(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sizes_of(spec: TensorSpec) -> str:
    """An input with its range of sizes, as it was asked for."""
    least, _, most = spec.profile
    sizes = "x".join(str(low) if low == high else f"{low}..{high}" for low, high in zip(least, most, strict=True))
    best = f":opt={'x'.join(map(str, spec.best))}" if spec.best else ""
    return f"{spec.name}={sizes or 'scalar'}{best}"


def _names(segments: Sequence[Segment], side: str) -> list[str]:
    return [operator.name for segment in segments if segment.runs_in == side for operator in segment.operators]


def _modules(modules: Sequence[str | None]) -> str:
    paths = [UNKNOWN if path is None else path or "the model itself" for path in modules]
    return ", ".join(paths) if len(paths) <= NAMED else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"


def _python(one: Interruption) -> str:
    return f"Python, {one.place}" if one.place else "Python"


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


def _slash(sides: dict[str, int]) -> str:
    return "/".join(map(str, sides.values())) if any(sides.values()) else "–"


def _number(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)


def _sizes(engines: Sequence[int | None]) -> str:
    return ", ".join("?" if size is None else str(size) for size in engines) or "–"


def _table(first: str, *numbers: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_header=any((first, *numbers)))
    table.add_column(first, overflow="fold")
    for header in numbers:
        table.add_column(header, justify="right", overflow="fold")
    return table
