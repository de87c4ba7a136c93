"""What ``inferlens partition`` prints: how much of a model is in TensorRT, where it leaves it and why, and choices.

One case has its places and choices, several have a row each; ``wide`` has everything of each. JSON has every operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from inferlens.errors import InferlensError
from inferlens.record.partition import Break, Choice, Partition, Segment
from inferlens.record.record import Warning
from inferlens.spec.case import Case, bare
from inferlens.spec.plan import command
from inferlens.units import listing, plural
from inferlens.views.table import Column, Document, Line, Table

T = TypeVar("T")
SCHEMA = "inferlens.partitions/1"
NAMED = 3  # modules and kinds of operators that a row names
UNKNOWN = "unknown"
MOST_PLACES, MOST_CHOICES, MOST_NOTES, MOST_CASES = 4, 3, 2, 10  # rows and sentences that fit on a screen
_PLACES = (("modules", 22), ("operators", 26), ("why", 22))
CHOICES = tuple(
    Column("", title, keep=keep, numeric=bool(title), wide=title == "operators per engine")
    for keep, title in enumerate(("engines", "operators per engine", "in TensorRT", "segments", ""))
)
BREAKS = "graph breaks (Python)"
COUNTS: dict[str, Callable[[Partition], Any]] = {
    "operators": lambda part: part.operators,
    "in TensorRT": lambda part: part.in_tensorrt,
    "in PyTorch": lambda part: len(_names(part, "PyTorch")),
    "engines": lambda part: len(part.engines),
    "segments": lambda part: len(part.segments),
    BREAKS: lambda part: len(part.graph_breaks),
    "operators per engine": lambda part: _sizes(part.engines),
}


class Answer(NamedTuple):
    """A case, its partition or why there is none, and what the backend warned of."""

    case: Case
    result: Partition | InferlensError
    warnings: Sequence[Warning] = ()


Known = dict[str, Partition]  # partitions, by what tells their cases apart


def document(answers: Sequence[Answer], *, wide: bool = False, defaults: Mapping[str, str] | None = None) -> Document:
    """Tables of partitions, with ``wide`` all of them and all rows; and all as data.

    ``defaults`` are those of the backend's options.
    """
    return Document(lambda: list(blocks(answers, wide, defaults or {})), lambda: data(answers), lambda: _csv(answers))


def data(answers: Sequence[Answer]) -> Any:
    """Everything, for JSON."""
    parts = []
    for case, result, warnings in answers:
        partition, failure = (result, "") if isinstance(result, Partition) else (None, str(result))
        parts.append({"case": case, "partition": partition, "failure": failure, "warnings": warnings})
    return {"schema": SCHEMA, "partitions": parts}


def _csv(answers: Sequence[Answer]) -> tuple[list[str], list[list[Any]]]:
    """A row for each case, with its numbers or why there are none."""
    rows = []
    for case, result, _ in answers:
        partition = result if isinstance(result, Partition) else None
        numbers = [of(partition) if partition else None for of in COUNTS.values()]
        rows.append([case.model, case.label, *numbers, "" if partition else str(result)])
    return ["model", "case", *COUNTS, "failure"], rows


def blocks(answers: Sequence[Answer], wide: bool, defaults: Mapping[str, str]) -> Iterator[Table | str]:
    """The answer; of one case what PyTorch runs and what other values would give, of several a row each; notes."""
    shared, labels = told_apart([answer.case for answer in answers])
    known = {
        label: item.result for label, item in zip(labels, answers, strict=True) if isinstance(item.result, Partition)
    }
    flavours = {partition.flavour: None for partition in known.values() if partition.flavour}
    yield Table(" · ".join([answers[0].case.model, *shared, *flavours]), "", (), (), sentences=_answer(known, defaults))
    left = {}
    if len(answers) > 1 or wide:
        yield _counted(labels, answers, None if wide else MOST_CASES)
        left["case"] = len(answers) - MOST_CASES
    if wide:
        columns = tuple(Column("", label, keep=place, most=40) for place, label in enumerate(known))
        lines = operators(list(known.values()))
        yield Table("Operators in TensorRT / in PyTorch", "operator", columns, lines, fold=True)
    if len(answers) == 1 or wide:
        yield from _places(known, wide)
        yield from _choices(known, wide)
        for part in known.values():
            left["place"] = len(part.breaks) + len(part.interruptions) - MOST_PLACES
            left["value"] = len(part.choices) - MOST_CHOICES
    said = list(_said(labels, answers))
    left["note"] = len(said) - MOST_NOTES
    yield from said if wide else said[:MOST_NOTES]
    more = [plural(count, f"more {what}") for what, count in left.items() if count > 0]
    if more and not wide:
        yield f"({', '.join(more)}: --wide)"
    yield Table("", "", (), (), sentences=[_next(answers, known)])


def told_apart(cases: Sequence[Case]) -> tuple[list[str], list[str]]:
    """What the cases have in common, in words, and what tells each from the others."""
    every = []
    for case in cases:
        batch, weights = f"batch {case.batch}" if case.batch else "", f"weights={case.weights}" if case.weights else ""
        words = [case.backend_label, case.precision, batch, *map(str, case.inputs), weights]
        every.append([word for word in (*words, *case.options_label.split()) if word])
    shared = [word for word in every[0] if all(word in words for words in every)]
    labels = [" ".join(word for word in words if word not in shared) or "default" for words in every]
    return shared, labels if len(cases) > 1 else ["the model"]


def _answer(known: Known, defaults: Mapping[str, str]) -> list[str]:
    """How much is in TensorRT; of several, with what most is."""
    if not known:
        return ["Nothing could be partitioned."]
    if len(known) == 1:
        ((_, part),) = known.items()
        left = COUNTS["in PyTorch"](part)
        rest = f"; PyTorch runs {left}, in {plural(len(part.breaks), 'place')}" if left else ""
        rest += f"; Python runs between graphs {plural(len(part.graph_breaks), 'time')}" if part.graph_breaks else ""
        amount = _amount(part)
        return [f"{amount[0].upper()}{amount[1:]}{rest}."]
    most = max(known, key=lambda label: (known[label].in_tensorrt or 0, -len(known[label].segments)))
    same = _alike(known, lambda part: (part.in_tensorrt, part.engines, len(part.segments)))
    equal = next(list(members) for members in same.values() if most in members)
    if len(equal) == len(known):
        return [f"The same with each: {_amount(known[most])}."]
    return [f"Most is in TensorRT with {_either(equal, defaults)}: {_amount(known[most])}."]


def _either(labels: Sequence[str], defaults: Mapping[str, str]) -> str:
    """What cases are called, of one option its name once: ``min_block_size=1 and 5 (default)``."""
    pairs = [label.partition("=") for label in labels[:NAMED]]
    names = {name for name, _, _ in pairs}
    values = [value + " (default)" * (defaults.get(name) == value) for name, _, value in pairs]
    more = [plural(len(labels) - NAMED, "other")] if len(labels) > NAMED else []
    if len(names) == 1 and all(value and " " not in value for _, _, value in pairs):
        return f"{names.pop()}={listing([*values, *more])}"
    return listing([*labels[:NAMED], *more])


def _amount(part: Partition) -> str:
    inside, every = part.in_tensorrt, part.operators
    engines = plural(len(part.engines), "engine")
    if inside is None or every is None or (part.engines and not inside):
        return f"{engines}; how many operators are in them is {UNKNOWN}"
    who = f"all {every:,}" if inside == every else f"{inside:,} of {every:,}"
    return (
        f"{who} operators run in TensorRT, in {engines}" if inside else f"none of {every:,} operators runs in TensorRT"
    )


def _counted(labels: Sequence[str], answers: Sequence[Answer], top: int | None) -> Table:
    """A row for each case: numbers of operators and engines, or that it failed."""
    parts = [answer.result for answer in answers if isinstance(answer.result, Partition)]
    names = [name for name in COUNTS if name != BREAKS or any(part.graph_breaks for part in parts)]
    lines = []
    for label, item in zip(labels[:top], answers[:top], strict=True):
        found = [COUNTS[name](item.result) for name in names] if isinstance(item.result, Partition) else []
        cells = [UNKNOWN if value is None else str(value) for value in found] or ["failed", *[""] * (len(names) - 1)]
        lines.append(Line(label, cells))
    return Table("", "", tuple(Column("", name, keep=place) for place, name in enumerate(names)), lines)


def _places(known: Known, wide: bool) -> Iterator[Table]:
    """What PyTorch runs, place by place."""
    columns = tuple(Column("", title, numeric=False, fold=wide, most=100 if wide else most) for title, most in _PLACES)
    for rows, members in _alike(known, lambda part: tuple(places(part, wide))).items():
        shown = rows if wide else rows[:MOST_PLACES]
        title = f"What PyTorch runs{_with(members, known)}" if wide else ""
        lines = [Line(where, cells) for where, *cells in shown]
        yield Table(title, "PyTorch runs", columns, lines, fold=wide)


def _choices(known: Known, wide: bool) -> Iterator[Table]:
    """What other values of ``min_block_size`` would give; people get those that matter."""
    for members in _alike(known, lambda part: tuple(choice for choice in part.choices if choice.engines)).values():
        own = {member.min_block_size for member in members.values()}
        part = max(members.values(), key=lambda part: len(part.choices))
        if len(part.choices) == 1 and not wide:
            continue
        shown = part.choices if wide else _few(part, own)
        lines = [_choice(choice, own) for choice in shown]
        some = [f"{len(shown)} of {part.ways} results"] if part.ways > len(part.choices) else []
        title = f"What min_block_size changes{_with(members, known)}" if wide else ""
        yield Table(title, "min_block_size", CHOICES, lines, notes=some if wide else [])


def _few(part: Partition, own: set[int]) -> list[Choice]:
    """The case's own and that with the fewest segments, then those with most in TensorRT, in their order."""
    matter = sorted(part.choices, key=lambda choice: (not _holds(choice, own), choice != part.fewest, choice.least))
    return sorted(matter[:MOST_CHOICES], key=lambda choice: choice.least)


def _said(labels: Sequence[str], answers: Sequence[Answer]) -> Iterator[str]:
    """Why some could not be partitioned, what backends warned of, and what else must be known, once each."""
    yield from (f"{label}: {item.result}" for label, item in zip(labels, answers, strict=True) if _failed(item))
    said: dict[str, list[str]] = {}
    for label, item in zip(labels, answers, strict=True):
        if isinstance(item.result, Partition):
            for text in (*(f"{of.message} {of.advice}".strip() for of in item.warnings), *notes(item.result)):
                said.setdefault(text, []).append(label)
    known = sum(not _failed(answer) for answer in answers)
    for text, whose in said.items():
        yield text if len(whose) == known else f"With {listing(whose)}: {text}"


def _failed(answer: Answer) -> bool:
    return isinstance(answer.result, InferlensError)


def _next(answers: Sequence[Answer], known: Known) -> str:
    """The command that says which is faster: with what all cases have, and the values that are worth a try."""
    case = answers[0].case
    words = [bare(case.model), "-b", case.backend_label]
    for name, usual in (("precision", "fp32"), ("batch", 1)):
        asked = [value for value in dict.fromkeys(getattr(of.case, name) for of in answers) if value is not None]
        words += [f"--{name}", ",".join(map(str, asked))] if asked not in ([], [usual]) else []
    words += [word for spec in case.inputs for word in ("--input", spec.asked)]
    words += ["--weights", case.weights] if case.weights else []
    options = [
        option for option in case.options_label.split() if all(option in of.case.options_label for of in answers)
    ]
    parts = list(known.values())
    values = list(dict.fromkeys(part.min_block_size for part in parts))
    if len(parts) == 1 and parts[0].fewest and not _holds(parts[0].fewest, values):
        values.append(parts[0].fewest.least)
    if len(values) > 1:
        options = [option for option in options if not option.startswith("min_block_size=")]
        options.append(f"min_block_size={','.join(map(str, values[:MOST_CHOICES]))}")
    for option in options:
        words += ["--option", f"{case.backend}.{option}"]
    return f"{'Which is faster?' if len(values) > 1 else 'How fast is it?'} {command('bench', words)}"


def operators(parts: Sequence[Partition]) -> list[Line]:
    """How often each operator runs in TensorRT and in PyTorch, a cell for each partition."""
    sides = [[Counter(_names(part, side)) for side in ("TensorRT", "PyTorch")] for part in parts]
    names = dict.fromkeys(name for of in sides for side in of for name in side)
    return [Line(name, ["/".join(str(side[name]) for side in of) for of in sides]) for name in names]


def places(part: Partition, details: bool = True) -> Iterator[tuple[str, ...]]:
    """Each place where the graph leaves TensorRT, and each where Python runs between graphs, in order: the cells."""
    rows: list[tuple[int, bool, tuple[str, ...]]] = []
    for item in part.breaks:
        segment = part.segments[item.segment]
        where = place(part.segments, item.segment)
        cells = (where, _modules(item.modules, details), _operators(item, details), _reasons(segment, details))
        rows.append((segment.graph, False, cells))
    for one in part.interruptions:
        where = place(part.segments, sum(segment.graph <= one.graph for segment in part.segments))
        python = f"Python, {one.place}" if one.place else "Python"
        rows.append((one.graph, True, (where, _modules((one.module,), details), python, f"graph break: {one.reason}")))
    return (cells for _, _, cells in sorted(rows, key=lambda row: row[:2]))


def place(segments: Sequence[Segment], number: int) -> str:
    """Where a segment stands among the engines."""
    before = sum(segment.runs_in == "TensorRT" for segment in segments[:number])
    after = sum(segment.runs_in == "TensorRT" for segment in segments[number:])
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


def _holds(choice: Choice, values: Iterable[int]) -> bool:
    return any(choice.least <= value <= choice.most for value in values)


def _choice(choice: Choice, own: set[int]) -> Line:
    """What values of ``min_block_size`` give; ``own`` are those of the cases."""
    sizes = str(choice.least) if choice.least == choice.most else f"{choice.least} to {choice.most}"
    used = _holds(choice, own)
    cells = [str(len(choice.engines)), _sizes(choice.engines), str(sum(choice.engines)), str(choice.segments)]
    return Line(sizes, [*cells, "in use" * used], style="bold" * used)


def _names(part: Partition, side: str) -> list[str]:
    return [operator.name for segment in part.segments if segment.runs_in == side for operator in segment.operators]


def _modules(modules: Sequence[str | None], details: bool) -> str:
    paths = [UNKNOWN if path is None else path or "the model itself" for path in modules]
    if not details and len(paths) > 1:
        return f"{paths[0]} and {len(paths) - 1} more"
    return ", ".join(paths) if len(paths) <= NAMED else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"


def _operators(each: Break, details: bool) -> str:
    most = sorted(each.operators.items(), key=lambda pair: -pair[1])
    named = NAMED if details else 1
    words = [f"{name} ×{count}" if count > 1 else name for name, count in most[:named]]
    return ", ".join(words) + (f" and {len(most) - named} more kinds" if len(most) > named else "")


def _reasons(segment: Segment, details: bool) -> str:
    words = dict.fromkeys(
        f"{operator.why} ({operator.detail})"
        if details and operator.why == "unsupported" and operator.detail
        else operator.why
        for operator in segment.operators
    )
    return ", ".join(filter(None, words)) or "–"


def _sizes(engines: Sequence[int | None]) -> str:
    return ", ".join("?" if size is None else str(size) for size in engines) or "–"
