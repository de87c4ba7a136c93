"""Torch-TensorRT partitions: how much of a model is in TensorRT, where it leaves it and why, and other options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from inferlens.errors import InferlensError
from inferlens.record.builds import Break, Choice, Partition, Segment
from inferlens.record.record import Warning
from inferlens.spec.case import Case, split_shared_words
from inferlens.spec.plan import bench_words, command
from inferlens.units import ABSENT, listing, plural
from inferlens.views.table import Column, Document, Line, Table

T = TypeVar("T")
PARTITION_SCHEMA = "inferlens.partitions/1"
NAMED = 3  # modules and kinds of operators that a row names
UNKNOWN = "unknown"
MOST_PLACES, MOST_CHOICES, MOST_NOTES, MOST_CASES = 4, 3, 2, 8  # rows and sentences that fit on a screen
_PLACES = (("modules", 22), ("operators", 26), ("why", 22))
CHOICES = (
    Column("engines", "engines", keep=0),
    Column("sizes", "operators per engine", keep=1, wide=True),
    Column("in TensorRT", "in TensorRT", keep=2),
    Column("segments", "segments", keep=3),
    Column("in use", "", keep=4, numeric=False),
)
BREAKS = "graph breaks (Python)"
COUNTS: dict[str, Callable[[Partition], Any]] = {
    "operators": lambda part: part.operators,
    "in TensorRT": lambda part: part.in_tensorrt,
    "in PyTorch": lambda part: len(_operator_names(part, "PyTorch")),
    "engines": lambda part: len(part.engines),
    "segments": lambda part: len(part.segments),
    BREAKS: lambda part: len(part.graph_breaks),
    "operators per engine": lambda part: _engine_sizes(part.engines),
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


def partition_document(results: Sequence[PartitionResult], *, wide: bool = False) -> Document:
    """Return tables of partitions, with ``wide`` all of them."""

    def data() -> dict[str, Any]:
        names = ("case", "partition", "failure", "warnings")
        partitions = [{name: getattr(result, name) for name in names} for result in results]
        return {"schema": PARTITION_SCHEMA, "partitions": partitions}

    def csv_row(result: PartitionResult) -> dict[str, Any]:
        counts = {name: count(result.partition) if result.partition else None for name, count in COUNTS.items()}
        return {"model": result.case.model, "case": result.case.label, **counts, "failure": result.failure}

    return Document(lambda: list(partition_blocks(results, wide)), data, lambda: map(csv_row, results))


def partition_blocks(results: Sequence[PartitionResult], wide: bool) -> Iterator[Table | str]:
    """Yield the answer, the places and choices of one case or a row for each of several, and notes."""
    shared, labels = distinguish_cases([result.case for result in results])
    partitions = {label: result.partition for label, result in zip(labels, results, strict=True) if result.partition}
    flavours = {partition.flavour: None for partition in partitions.values() if partition.flavour}
    yield Table(" · ".join([results[0].case.model, *shared, *flavours]), sentences=_partition_answer(partitions))
    if len(results) > 1 or wide:
        yield _counts_table(labels, results, None if wide else MOST_CASES)
    if wide:
        columns = tuple(Column(label, label, keep=place, max_width=40) for place, label in enumerate(partitions))
        lines = operators(list(partitions.values()))
        yield Table("Operators in TensorRT / in PyTorch", "operator", columns, lines, fold=True)
    for label, part in partitions.items() if len(results) == 1 or wide else ():
        title = f" with {label}" if len(results) > 1 else ""
        yield from _places(part, title, wide)
        yield from _choices(part, title, wide)
    sentences = list(_partition_notes(labels, results))
    yield from sentences if wide else [*sentences[:MOST_NOTES], "All places, values and notes: --wide"]
    yield Table(sentences=[_bench_command(results, partitions)])


def distinguish_cases(cases: Sequence[Case]) -> tuple[list[str], list[str]]:
    """Return the words that all cases share, and a distinct label per case."""
    shared, labels = split_shared_words([case.identity_words("device") for case in cases])
    return list(shared.values()), [label or "default" for label in labels] if len(cases) > 1 else ["the model"]


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

    best = max(partitions.values(), key=rank)
    first, *others = [label for label, part in partitions.items() if rank(part) == rank(best)]
    more = f" and {len(others)} more" * bool(others)
    return [f"Most is in TensorRT with {first}{more}: {_amount(best)}."]


def _amount(part: Partition) -> str:
    inside, total = part.in_tensorrt, part.operators
    engines = plural(len(part.engines), "engine")
    if inside is None or total is None or (part.engines and not inside):
        return f"{engines}; how many operators are in them is {UNKNOWN}"
    if not inside:
        return f"none of {total:,} operators runs in TensorRT"
    subject = f"all {total:,}" if inside == total else f"{inside:,} of {total:,}"
    return f"{subject} operators run in TensorRT, in {engines}"


def _counts_table(labels: Sequence[str], results: Sequence[PartitionResult], top: int | None) -> Table:
    """Return a row per case with numbers of operators and engines, or its failure."""
    parts = [result.partition for result in results if result.partition]
    names = [name for name in COUNTS if name != BREAKS or any(part.graph_breaks for part in parts)]
    lines = []
    for label, result in zip(labels[:top], results[:top], strict=True):
        counts = [COUNTS[name](result.partition) for name in names] if result.partition else []
        cells = [UNKNOWN if value is None else str(value) for value in counts] or ["failed", *[""] * (len(names) - 1)]
        lines.append(Line(label, cells))
    return Table("", "", tuple(Column(name, name, keep=place) for place, name in enumerate(names)), lines)


def _places(part: Partition, title: str, wide: bool) -> Iterator[Table]:
    columns = [
        Column(name, name, numeric=False, fold=wide, max_width=100 if wide else width) for name, width in _PLACES
    ]
    rows = list(places(part))
    if rows:
        lines = [Line(where, cells) for where, *cells in (rows if wide else rows[:MOST_PLACES])]
        yield Table(f"What PyTorch runs{title}" if wide else "", "PyTorch runs", columns, lines, fold=wide)


def _choices(part: Partition, title: str, wide: bool) -> Iterator[Table]:
    """Yield the results of the ``min_block_size`` in use and of the one with the fewest segments, or of all."""
    choices, used = [choice for choice in part.choices if choice.engines], [part.min_block_size]
    shown = choices if wide else [choice for choice in choices if _holds(choice, used) or choice == part.fewest]
    if len(shown) <= (0 if wide else 1):
        return
    lines = []
    for choice in shown:
        sizes = str(choice.least) if choice.least == choice.most else f"{choice.least} to {choice.most}"
        engines, in_use = choice.engines, _holds(choice, used)
        cells = [str(len(engines)), _engine_sizes(engines), str(sum(engines)), str(choice.segments), "in use" * in_use]
        lines.append(Line(sizes, cells, style="bold" * in_use))
    counts = [f"{len(shown)} of {part.ways} results"] if wide and part.ways > len(part.choices) else []
    name = f"What min_block_size changes{title}" if wide else ""
    yield Table(name, "min_block_size", CHOICES, lines, notes=counts)


def _partition_notes(labels: Sequence[str], results: Sequence[PartitionResult]) -> Iterator[str]:
    """Yield failures, backend warnings and notes, each text once."""
    labels_by_text: dict[str, list[str]] = {}
    for label, result in zip(labels, results, strict=True):
        if result.partition is None:
            yield f"{label}: {result.failure}"
            continue
        warnings = [f"{warning.message} {warning.advice}".strip() for warning in result.warnings]
        for text in (*warnings, *partition_notes(result.partition)):
            labels_by_text.setdefault(text, []).append(label)
    total = sum(not result.failure for result in results)
    for text, text_labels in labels_by_text.items():
        yield text if len(text_labels) == total else f"With {listing(text_labels)}: {text}"


def _bench_command(results: Sequence[PartitionResult], partitions: Partitions) -> str:
    """Return the bench command of the first case that compares values of ``min_block_size``."""
    case = results[0].case
    sizes = list(dict.fromkeys(part.min_block_size for part in partitions.values()))
    fewest = next((part.fewest for part in partitions.values() if part.fewest), None)
    if fewest and not _holds(fewest, sizes):
        sizes.append(fewest.least)
    asks = [f"{case.backend}.min_block_size={','.join(map(str, sizes[:MOST_CHOICES]))}"] if len(sizes) > 1 else []
    question = "Which is faster?" if asks else "How fast is it?"
    return f"{question} {command('bench', bench_words(case, case.device, asks))}"


def operators(parts: Sequence[Partition]) -> list[Line]:
    """Count each operator in TensorRT and in PyTorch, one cell per partition."""
    sides = [[Counter(_operator_names(part, side)) for side in ("TensorRT", "PyTorch")] for part in parts]
    names = dict.fromkeys(name for counts in sides for side in counts for name in side)
    return [Line(name, ["/".join(str(side[name]) for side in counts) for counts in sides]) for name in names]


def places(part: Partition) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each place that leaves TensorRT and of each graph break, in order."""
    rows: list[tuple[int, bool, tuple[str, ...]]] = []
    for gap in part.breaks:
        segment, where = part.segments[gap.segment], place(part.segments, gap.segment)
        cells = (where, _modules_text(gap.modules), _operators_text(gap), _reasons(segment))
        rows.append((segment.graph, False, cells))
    for stop in part.interruptions:
        where = place(part.segments, sum(segment.graph <= stop.graph for segment in part.segments))
        python = f"Python, {stop.place}" if stop.place else "Python"
        cells = (where, _modules_text((stop.module,)), python, f"graph break: {stop.reason}")
        rows.append((stop.graph, True, cells))
    return (cells for _, _, cells in sorted(rows, key=lambda row: row[:2]))


def place(segments: Sequence[Segment], number: int) -> str:
    """Return the position of a segment among the engines."""
    before = sum(segment.runs_in == "TensorRT" for segment in segments[:number])
    after = sum(segment.runs_in == "TensorRT" for segment in segments[number:])
    if before and after:
        return f"between engines {before} and {before + 1}"
    return f"after engine {before}" if before else "before engine 1" if after else "the whole graph"


def partition_notes(part: Partition) -> list[str]:
    sentences = [part.note] if part.note else []
    if part.graph_breaks:
        sentences.append("What Python runs between the captured graphs is not counted.")
    if part.assumed_gpu:
        sentences.append(f"There is no GPU here: one of compute capability {part.assumed_gpu} was assumed.")
    return sentences


def _holds(choice: Choice, values: Iterable[int]) -> bool:
    return any(choice.least <= value <= choice.most for value in values)


def _operator_names(part: Partition, side: str) -> list[str]:
    return [operator.name for segment in part.segments if segment.runs_in == side for operator in segment.operators]


def _modules_text(modules: Sequence[str | None]) -> str:
    paths = [UNKNOWN if path is None else path or "the model itself" for path in modules]
    return ", ".join(paths) if len(paths) <= NAMED else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"


def _operators_text(graph_break: Break) -> str:
    counts = sorted(graph_break.operators.items(), key=lambda pair: -pair[1])
    words = [f"{name} ×{count}" if count > 1 else name for name, count in counts[:NAMED]]
    return ", ".join(words) + (f" and {len(counts) - NAMED} more kinds" if len(counts) > NAMED else "")


def _reasons(segment: Segment) -> str:
    words: dict[str, None] = {}
    for operator in segment.operators:
        detailed = operator.why == "unsupported" and operator.detail
        words[f"{operator.why} ({operator.detail})" if detailed else operator.why] = None
    return ", ".join(filter(None, words)) or ABSENT


def _engine_sizes(engines: Sequence[int | None]) -> str:
    return ", ".join("?" if size is None else str(size) for size in engines) or ABSENT
