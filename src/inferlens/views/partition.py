"""Torch-TensorRT partitions: how much of a model is in TensorRT, where it leaves it and why, and other options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from inferlens.errors import InferlensError
from inferlens.record.builds import Break, Choice, Partition, Segment
from inferlens.record.record import Warning
from inferlens.spec.case import Case
from inferlens.spec.plan import bench_words, command
from inferlens.units import ABSENT, listing, plural
from inferlens.views.table import Column, Document, Line, Table

T = TypeVar("T")
PARTITION_SCHEMA = "inferlens.partitions/1"
NAMED = 3  # modules and kinds of operators that a row names
UNKNOWN = "unknown"
MOST_PLACES, MOST_CHOICES, MOST_NOTES, MOST_CASES = 4, 3, 2, 8  # rows and sentences that fit on a screen
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


class PartitionResult(NamedTuple):
    """A case, its partition or the error, and the backend's warnings."""

    case: Case
    result: Partition | InferlensError
    warnings: Sequence[Warning] = ()

    @property
    def partition(self) -> Partition | None:
        return self.result if isinstance(self.result, Partition) else None

    @property
    def failure(self) -> str:
        return "" if self.partition else str(self.result)


Partitions = dict[str, Partition]  # partitions, by what tells their cases apart


def partition_document(answers: Sequence[PartitionResult], *, wide: bool = False) -> Document:
    """Return tables of partitions, with ``wide`` all of them."""
    return Document(
        lambda: list(partition_blocks(answers, wide)),
        lambda: partition_data(answers),
        lambda: map(_counts, answers),
    )


def partition_data(answers: Sequence[PartitionResult]) -> Any:
    names = ("case", "partition", "failure", "warnings")
    parts = [{name: getattr(answer, name) for name in names} for answer in answers]
    return {"schema": PARTITION_SCHEMA, "partitions": parts}


def _counts(answer: PartitionResult) -> dict[str, object]:
    """Return the numbers of a partition by their names, or the failure."""
    case, part = answer.case, answer.partition
    numbers = {name: count(part) if part else None for name, count in COUNTS.items()}
    return {"model": case.model, "case": case.label, **numbers, "failure": answer.failure}


def partition_blocks(answers: Sequence[PartitionResult], wide: bool) -> Iterator[Table | str]:
    """Yield the answer, the places and choices of one case or a row for each of several, and notes."""
    shared, labels = distinguish_cases([answer.case for answer in answers])
    partitions = {label: item.partition for label, item in zip(labels, answers, strict=True) if item.partition}
    flavours = {partition.flavour: None for partition in partitions.values() if partition.flavour}
    yield Table(" · ".join([answers[0].case.model, *shared, *flavours]), sentences=_partition_answer(partitions))
    if len(answers) > 1 or wide:
        yield _counts_table(labels, answers, None if wide else MOST_CASES)
    if wide:
        columns = tuple(Column("", label, keep=place, max_width=40) for place, label in enumerate(partitions))
        lines = operators(list(partitions.values()))
        yield Table("Operators in TensorRT / in PyTorch", "operator", columns, lines, fold=True)
    for label, part in partitions.items() if len(answers) == 1 or wide else ():
        title = f" with {label}" if len(answers) > 1 else ""
        yield from _places(part, title, wide)
        yield from _choices(part, title, wide)
    sentences = list(_partition_notes(labels, answers))
    yield from sentences if wide else [*sentences[:MOST_NOTES], "All places, values and notes: --wide"]
    yield Table(sentences=[_next_command(answers, partitions)])


def distinguish_cases(cases: Sequence[Case]) -> tuple[list[str], list[str]]:
    """Return the words that all cases share, and a distinct label per case."""
    case_words = []
    for case in cases:
        batch, weights = f"batch {case.batch}" if case.batch else "", f"weights={case.weights}" if case.weights else ""
        words = [case.backend_label, case.precision, batch, *map(str, case.inputs), weights]
        case_words.append([word for word in (*words, *case.options_label.split()) if word])
    shared = [word for word in case_words[0] if all(word in words for words in case_words)]
    labels = [" ".join(word for word in words if word not in shared) or "default" for words in case_words]
    return shared, labels if len(cases) > 1 else ["the model"]


def _partition_answer(partitions: Partitions) -> list[str]:
    """Return how much runs in TensorRT, and the best options."""
    if not partitions:
        return ["Nothing could be partitioned."]
    if len(partitions) == 1:
        (part,) = partitions.values()
        left = COUNTS["in PyTorch"](part)
        rest = f"; PyTorch runs {left}, in {plural(len(part.breaks), 'place')}" if left else ""
        rest += f"; Python runs between graphs {plural(len(part.graph_breaks), 'time')}" if part.graph_breaks else ""
        amount = _amount(part)
        return [f"{amount[0].upper()}{amount[1:]}{rest}."]

    def rank(part: Partition) -> tuple[int, int]:
        return part.in_tensorrt or 0, -len(part.segments)

    most = max(partitions.values(), key=rank)
    first, *others = [label for label, part in partitions.items() if rank(part) == rank(most)]
    more = f" and {len(others)} more" * bool(others)
    return [f"Most is in TensorRT with {first}{more}: {_amount(most)}."]


def _amount(part: Partition) -> str:
    inside, total = part.in_tensorrt, part.operators
    engines = plural(len(part.engines), "engine")
    if inside is None or total is None or (part.engines and not inside):
        return f"{engines}; how many operators are in them is {UNKNOWN}"
    if not inside:
        return f"none of {total:,} operators runs in TensorRT"
    subject = f"all {total:,}" if inside == total else f"{inside:,} of {total:,}"
    return f"{subject} operators run in TensorRT, in {engines}"


def _counts_table(labels: Sequence[str], answers: Sequence[PartitionResult], top: int | None) -> Table:
    """Return a row per case with numbers of operators and engines, or its failure."""
    parts = [answer.partition for answer in answers if answer.partition]
    names = [name for name in COUNTS if name != BREAKS or any(part.graph_breaks for part in parts)]
    lines = []
    for label, item in zip(labels[:top], answers[:top], strict=True):
        counts = [COUNTS[name](item.partition) for name in names] if item.partition else []
        cells = [UNKNOWN if value is None else str(value) for value in counts] or ["failed", *[""] * (len(names) - 1)]
        lines.append(Line(label, cells))
    return Table("", "", tuple(Column("", name, keep=place) for place, name in enumerate(names)), lines)


def _places(part: Partition, title: str, wide: bool) -> Iterator[Table]:
    columns = tuple(
        Column("", name, numeric=False, fold=wide, max_width=100 if wide else most) for name, most in _PLACES
    )
    rows = list(places(part))
    if rows:
        lines = [Line(where, cells) for where, *cells in (rows if wide else rows[:MOST_PLACES])]
        yield Table(f"What PyTorch runs{title}" if wide else "", "PyTorch runs", columns, lines, fold=wide)


def _choices(part: Partition, title: str, wide: bool) -> Iterator[Table]:
    """Yield results of other values of ``min_block_size``; by default of its own and of that with fewest segments."""
    choices = [choice for choice in part.choices if choice.engines]
    used = [part.min_block_size]
    shown = choices if wide else [item for item in choices if _holds(item, used) or item == part.fewest]
    if len(shown) > 1 or (wide and shown):
        lines = [_choice(choice, _holds(choice, used)) for choice in shown]
        some = [f"{len(shown)} of {part.ways} results"] if wide and part.ways > len(part.choices) else []
        name = f"What min_block_size changes{title}" if wide else ""
        yield Table(name, "min_block_size", CHOICES, lines, notes=some)


def _partition_notes(labels: Sequence[str], answers: Sequence[PartitionResult]) -> Iterator[str]:
    """Yield failures, backend warnings and notes, each text once."""
    yield from (f"{label}: {item.failure}" for label, item in zip(labels, answers, strict=True) if item.failure)
    labels_by_text: dict[str, list[str]] = {}
    for label, item in zip(labels, answers, strict=True):
        if item.partition:
            warnings = [f"{warning.message} {warning.advice}".strip() for warning in item.warnings]
            for text in (*warnings, *notes(item.partition)):
                labels_by_text.setdefault(text, []).append(label)
    total = sum(not answer.failure for answer in answers)
    for text, text_labels in labels_by_text.items():
        yield text if len(text_labels) == total else f"With {listing(text_labels)}: {text}"


def _next_command(answers: Sequence[PartitionResult], partitions: Partitions) -> str:
    """Return the bench command of the first case that compares values of ``min_block_size``."""
    case = answers[0].case
    sizes = list(dict.fromkeys(part.min_block_size for part in partitions.values()))
    fewest = next((part.fewest for part in partitions.values() if part.fewest), None)
    if fewest and not _holds(fewest, sizes):
        sizes.append(fewest.least)
    asks = [f"{case.backend}.min_block_size={','.join(map(str, sizes[:MOST_CHOICES]))}"] if len(sizes) > 1 else []
    question = "Which is faster?" if asks else "How fast is it?"
    return f"{question} {command('bench', bench_words(case, case.device, asks))}"


def operators(parts: Sequence[Partition]) -> list[Line]:
    """Count each operator in TensorRT and in PyTorch, one cell per partition."""
    sides = [[Counter(_names(part, side)) for side in ("TensorRT", "PyTorch")] for part in parts]
    names = dict.fromkeys(name for counts in sides for side in counts for name in side)
    return [Line(name, ["/".join(str(side[name]) for side in counts) for counts in sides]) for name in names]


def places(part: Partition) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each place that leaves TensorRT and of each graph break, in order."""
    rows: list[tuple[int, bool, tuple[str, ...]]] = []
    for item in part.breaks:
        segment = part.segments[item.segment]
        where = place(part.segments, item.segment)
        cells = (where, _modules(item.modules), _operators(item), _reasons(segment))
        rows.append((segment.graph, False, cells))
    for stop in part.interruptions:
        where = place(part.segments, sum(segment.graph <= stop.graph for segment in part.segments))
        python = f"Python, {stop.place}" if stop.place else "Python"
        cells = (where, _modules((stop.module,)), python, f"graph break: {stop.reason}")
        rows.append((stop.graph, True, cells))
    return (cells for _, _, cells in sorted(rows, key=lambda row: row[:2]))


def place(segments: Sequence[Segment], number: int) -> str:
    """Return the position of a segment among the engines."""
    before = sum(segment.runs_in == "TensorRT" for segment in segments[:number])
    after = sum(segment.runs_in == "TensorRT" for segment in segments[number:])
    if before and after:
        return f"between engines {before} and {before + 1}"
    return f"after engine {before}" if before else "before engine 1" if after else "the whole graph"


def notes(part: Partition) -> list[str]:
    sentences = [part.note] if part.note else []
    if part.graph_breaks:
        sentences.append("What Python runs between the captured graphs is not counted.")
    if part.assumed_gpu:
        sentences.append(f"There is no GPU here: one of compute capability {part.assumed_gpu} was assumed.")
    return sentences


def _holds(choice: Choice, values: Iterable[int]) -> bool:
    return any(choice.least <= value <= choice.most for value in values)


def _choice(choice: Choice, used: bool) -> Line:
    """Return the result of a ``min_block_size`` range, which the case may use."""
    sizes = str(choice.least) if choice.least == choice.most else f"{choice.least} to {choice.most}"
    cells = [str(len(choice.engines)), _sizes(choice.engines), str(sum(choice.engines)), str(choice.segments)]
    return Line(sizes, [*cells, "in use" * used], style="bold" * used)


def _names(part: Partition, side: str) -> list[str]:
    return [operator.name for segment in part.segments if segment.runs_in == side for operator in segment.operators]


def _modules(modules: Sequence[str | None]) -> str:
    paths = [UNKNOWN if path is None else path or "the model itself" for path in modules]
    return ", ".join(paths) if len(paths) <= NAMED else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"


def _operators(graph_break: Break) -> str:
    most = sorted(graph_break.operators.items(), key=lambda pair: -pair[1])
    words = [f"{name} ×{count}" if count > 1 else name for name, count in most[:NAMED]]
    return ", ".join(words) + (f" and {len(most) - NAMED} more kinds" if len(most) > NAMED else "")


def _reasons(segment: Segment) -> str:
    words: dict[str, None] = {}
    for operator in segment.operators:
        detailed = operator.why == "unsupported" and operator.detail
        words[f"{operator.why} ({operator.detail})" if detailed else operator.why] = None
    return ", ".join(filter(None, words)) or ABSENT


def _sizes(engines: Sequence[int | None]) -> str:
    return ", ".join("?" if size is None else str(size) for size in engines) or ABSENT
