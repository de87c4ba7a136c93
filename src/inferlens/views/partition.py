"""What ``inferlens partition`` prints: counts and operators side by side, and of each case the places and choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from inferlens.errors import InferlensError
from inferlens.record.partition import Break, Choice, Partition, Segment
from inferlens.record.record import Warning
from inferlens.spec.case import Case
from inferlens.views.table import Column, Document, Line, Table

T = TypeVar("T")
SCHEMA = "inferlens.partitions/1"
NAMED = 3  # modules and kinds of operators that a row names
UNKNOWN = "unknown"
PLACES = tuple(Column("", title, numeric=False, fold=True) for title in ("modules", "operators", "why"))
CHOICES = tuple(
    Column("", title, keep=keep, numeric=bool(title))
    for keep, title in enumerate(("engines", "operators per engine", "in TensorRT", "segments", ""))
)
BREAKS = "graph breaks (Python)"
COUNTS: dict[str, Callable[[Partition], Any]] = {
    "operators": lambda part: part.operators,
    "  in TensorRT": lambda part: part.in_tensorrt,
    "  in PyTorch": lambda part: len(_names(part, "PyTorch")),
    "engines": lambda part: len(part.engines),
    "operators per engine": lambda part: _sizes(part.engines),
    "segments": lambda part: len(part.segments),
    BREAKS: lambda part: len(part.graph_breaks),
}


class Answer(NamedTuple):
    """A case, its partition or why there is none, and what the backend warned of."""

    case: Case
    result: Partition | InferlensError
    warnings: Sequence[Warning] = ()


Known = dict[str, Partition]  # partitions, by what tells their cases apart


def document(answers: Sequence[Answer]) -> Document:
    """Tables of partitions, and all of them as data."""
    return Document(lambda: list(blocks(answers)), lambda: data(answers))


def data(answers: Sequence[Answer]) -> Any:
    """Everything, for JSON."""
    parts = []
    for case, result, warnings in answers:
        partition, failure = (result, "") if isinstance(result, Partition) else (None, str(result))
        parts.append({"case": case, "partition": partition, "failure": failure, "warnings": warnings})
    return {"schema": SCHEMA, "partitions": parts}


def blocks(answers: Sequence[Answer]) -> Iterator[Table | str]:
    """Counts and operators, then what PyTorch runs, then what other values would give, then notes and failures."""
    shared, labels = told_apart([each.case for each in answers])
    pairs = list(zip(labels, answers, strict=True))
    known = {label: each.result for label, each in pairs if isinstance(each.result, Partition)}
    parts = list(known.values())
    headline = " · ".join([answers[0].case.model, *shared, *{each.flavour: None for each in parts}])
    columns = tuple(Column("", label, keep=place, most=40) for place, label in enumerate(known))
    yield Table(headline, "", columns, counts(parts))
    yield Table("Operators in TensorRT / in PyTorch", "operator", columns, operators(parts), fold=True)
    for rows, members in _alike(known, lambda part: tuple(places(part))).items():
        lines = [Line(where, cells) for where, *cells in rows]
        yield Table(f"What PyTorch runs{_with(members, known)}", "where", PLACES, lines, fold=True)
    for members in _alike(known, lambda part: tuple(each for each in part.choices if each.engines)).values():
        own = {each.min_block_size for each in members.values()}
        part = max(members.values(), key=lambda part: len(part.choices))
        lines = [_choice(choice, part.fewest, own) for choice in part.choices]
        some = f" ({len(part.choices)} of {part.ways} results)" if part.ways > len(part.choices) else ""
        yield Table(f"What min_block_size changes{_with(members, known)}{some}", "min_block_size", CHOICES, lines)
    said: dict[str, list[str]] = {}
    for label, each in pairs:
        if isinstance(each.result, Partition):
            for text in (*notes(each.result), *(f"{of.message} {of.advice}".strip() for of in each.warnings)):
                said.setdefault(text, []).append(label)
    for text, whose in said.items():
        yield text if len(whose) == len(known) else f"With {', '.join(whose)}: {text}"
    yield from (f"{label}: {each.result}" for label, each in pairs if isinstance(each.result, InferlensError))


def told_apart(cases: Sequence[Case]) -> tuple[list[str], list[str]]:
    """What the cases have in common, in words, and what tells each from the others."""
    every = []
    for case in cases:
        batch, weights = f"batch {case.batch}" if case.batch else "", f"weights={case.weights}" if case.weights else ""
        words = [case.backend_label, case.precision, batch, *map(str, case.inputs), weights]
        every.append([word for word in (*words, *case.options_label.split()) if word])
    shared = [word for word in every[0] if all(word in words for words in every)]
    labels = [" ".join(word for word in words if word not in shared) or "default" for words in every]
    return shared, labels if len(cases) > 1 else ["operators"]


def counts(parts: Sequence[Partition]) -> list[Line]:
    """Numbers of operators and engines, a cell for each partition."""
    return [
        Line(name, [UNKNOWN if (found := of(part)) is None else str(found) for part in parts])
        for name, of in COUNTS.items()
        if name != BREAKS or any(part.graph_breaks for part in parts)
    ]


def operators(parts: Sequence[Partition]) -> list[Line]:
    """How often each operator runs in TensorRT and in PyTorch, a cell for each partition."""
    sides = [[Counter(_names(part, side)) for side in ("TensorRT", "PyTorch")] for part in parts]
    names = dict.fromkeys(name for of in sides for side in of for name in side)
    return [Line(name, ["/".join(str(side[name]) for side in of) for of in sides]) for name in names]


def places(part: Partition) -> Iterator[tuple[str, ...]]:
    """Each place where the graph leaves TensorRT, and each where Python runs between graphs, in order: the cells."""
    rows: list[tuple[int, bool, tuple[str, ...]]] = []
    for each in part.breaks:
        segment = part.segments[each.segment]
        where = place(part.segments, each.segment)
        rows.append((segment.graph, False, (where, _modules(each.modules), _operators(each), _reasons(segment))))
    for one in part.interruptions:
        where = place(part.segments, sum(segment.graph <= one.graph for segment in part.segments))
        python = f"Python, {one.place}" if one.place else "Python"
        rows.append((one.graph, True, (where, _modules((one.module,)), python, f"graph break: {one.reason}")))
    return (cells for _, _, cells in sorted(rows, key=lambda row: row[:2]))


def place(segments: Sequence[Segment], number: int) -> str:
    """Where a segment stands among the engines."""
    before = sum(each.runs_in == "TensorRT" for each in segments[:number])
    after = sum(each.runs_in == "TensorRT" for each in segments[number:])
    if before and after:
        return f"between engines {before} and {before + 1}"
    return f"after engine {before}" if before else "before engine 1" if after else "the whole graph"


def notes(part: Partition) -> list[str]:
    """What must be said beside the tables of one partition."""
    found = [part.note] if part.note else []
    if part.graph_breaks:
        found.append("What Python runs between the captured graphs is not counted.")
    if part.assumed_gpu:
        found.append(f"There is no GPU here: one of compute capability {part.assumed_gpu} was assumed.")
    return found


def _alike(known: Known, what: Callable[[Partition], T]) -> dict[T, Known]:
    """Partitions that have the same, together; without those that have nothing."""
    groups: dict[T, Known] = {}
    for label, part in known.items():
        if found := what(part):
            groups.setdefault(found, {})[label] = part
    return groups


def _with(members: Known, known: Known) -> str:
    """Of which cases something is, where it is not of all."""
    return f" with {', '.join(members)}" if len(members) < len(known) else ""


def _choice(choice: Choice, fewest: Choice | None, own: set[int]) -> Line:
    """What values of ``min_block_size`` give; ``own`` are those of the cases."""
    sizes = str(choice.least) if choice.least == choice.most else f"{choice.least} to {choice.most}"
    here = any(choice.least <= each <= choice.most for each in own)
    marks = ", ".join(["fewest segments"] * (choice == fewest) + ["in use"] * here)
    cells = [str(len(choice.engines)), _sizes(choice.engines), str(sum(choice.engines)), str(choice.segments), marks]
    return Line(sizes, cells, style="bold" if choice == fewest else "")


def _names(part: Partition, side: str) -> list[str]:
    return [operator.name for segment in part.segments if segment.runs_in == side for operator in segment.operators]


def _modules(modules: Sequence[str | None]) -> str:
    paths = [UNKNOWN if path is None else path or "the model itself" for path in modules]
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


def _sizes(engines: Sequence[int | None]) -> str:
    return ", ".join("?" if size is None else str(size) for size in engines) or "–"
