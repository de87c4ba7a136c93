"""Everything that is known of one or many models on one page: the answer first, then what it stands on.

A section draws what is there, with the tables and charts of the commands; one of which there is nothing is left out.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from inferlens.analysis.graph import build_graph, profile_source
from inferlens.analysis.samples import device_name, latest
from inferlens.errors import InferlensError
from inferlens.record.partition import Partition, partition_in
from inferlens.record.record import Record, machine_name
from inferlens.spec.case import bare
from inferlens.spec.plan import bench_words, budget_words, command
from inferlens.units import byte_count, listing, plural
from inferlens.views import notes, partition
from inferlens.views.graph import render
from inferlens.views.partition import Answer
from inferlens.views.picture import PALETTE, Box, picture, svg
from inferlens.views.plain import plain
from inferlens.views.profiled import findings, layers_and_kernels, modules, plots, roofline
from inferlens.views.profiled.cases import ProfiledCase, groups, of_level
from inferlens.views.profiled.modules import LEVELS
from inferlens.views.raced import tuned as one
from inferlens.views.raced.tuned_chart import spec
from inferlens.views.records import fields_of
from inferlens.views.renderers.csv import written
from inferlens.views.report.blocks import Block, Download, Picture, Report, Section
from inferlens.views.report.found import Found, names, traces
from inferlens.views.report.measured import answer, comparison
from inferlens.views.table import Column, Line, Table

# What runs in TensorRT and what in PyTorch, as records kept it: strips of segments, and how much is in each.

HOW = (
    "Boxes are as wide as their shares of the operators, equally wide where these are not known, in the order of the "
    "graph: blue runs in TensorRT, orange in PyTorch."
)
COLOURS = {"TensorRT": PALETTE[0], "PyTorch": PALETTE[1]}
MOST = 10  # ways of a model


def partitions(found: Found) -> Iterator[Section]:
    """The partitions of each model; those of other batch sizes or precisions that are the same are left out."""
    models: dict[str, dict[tuple[str, str, bytes], Answer]] = {}
    for run in latest(found.records):
        case, part = run.first.case, partition_in(run.first.facts)
        if part:
            known = models.setdefault(case.model, {})
            known.setdefault((case.backend_label, case.options_label, msgspec.json.encode(part)), Answer(case, part))
    for number, (model, every) in enumerate(models.items(), 1):
        answers = list(every.values())[:MOST]
        blocks = list[Block](partition.blocks(answers, wide=False, defaults={}))[:-1]  # the last is a command
        if any(len(part.segments) > 1 for part in _parts(answers)):
            panels = [(name, _boxes(part)) for name, part in zip(_names(answers), _parts(answers), strict=True)]
            drawn = partial(svg, "what runs in TensorRT and what in PyTorch", panels)
            blocks.insert(1, Picture(f"partition-{number}", HOW, drawn, _values(panels)))
        title = f"Torch-TensorRT's partition · {plain(model)}"
        yield Section(f"partitions-{number}", title, blocks, folded=bool(found.profiles.profiles))


def _parts(answers: Sequence[Answer]) -> list[Partition]:
    return [item.result for item in answers if isinstance(item.result, Partition)]


def _names(answers: Sequence[Answer]) -> list[str]:
    shared, labels = partition.told_apart([item.case for item in answers])
    return labels if len(answers) > 1 else [" ".join(shared)]


def _boxes(part: Partition) -> list[Box]:
    """A box for each segment; where the front end does not tell what is in one, all are as wide."""
    sizes = [len(segment.operators) for segment in part.segments]
    told = all(sizes)
    whole = sum(sizes) if told else len(sizes)
    boxes: list[Box] = []
    left, engines = 0.0, 0
    for segment, size in zip(part.segments, sizes, strict=True):
        engines += segment.runs_in == "TensorRT"
        name = f"engine {engines}" if segment.runs_in == "TensorRT" else "PyTorch"
        many = plural(size, "operator") if size else "operators not known"
        modules = list(dict.fromkeys(operator.module for operator in segment.operators if operator.module))
        where = f"{modules[0]} to {modules[-1]}" if len(modules) > 1 else "".join(modules)
        about = "; ".join(filter(None, (name, many, where)))
        wide = (size if told else 1) / whole
        boxes.append(Box(left, wide, 0, (f"{name} · {many}", name, str(engines)), about, COLOURS[segment.runs_in]))
        left += wide
    return boxes


def _values(panels: Sequence[tuple[str, Sequence[Box]]]) -> list[dict[str, object]]:
    return [
        {"case": name, "segment": number, "what": plain(box.about), "share": round(box.wide, 6)}
        for name, boxes in panels
        for number, box in enumerate(boxes, 1)
    ]


# Where the time of profiled cases goes: findings, modules, rooflines, layers and kernels.

MOST_CASES = 8  # of which layers, kernels and rooflines are drawn
FEW = 4  # cases of which all findings, or rooflines, that are open when the page is
MOST_ROWS = 40
MOST_GRAPH, MOST_GRAPHS = 400_000, 1_000_000  # characters of a graph, and of all of them
SOON = 20.0  # seconds in which a graph is laid out
GRAPH = "A box is a layer, or all layers of a module: the darker, the longer it takes; its left band is its precision."
LARGE = "The graph of its layers is too large for this page; 'inferlens graph' draws it into a file of its own."
DEEPEST = 100  # modules are unfolded wholly, and folded on the page


def time(found: Found) -> Iterator[Block]:
    """Findings first, then modules with a column for each case, and each case's own."""
    if found.profiles.profiles:
        yield from _profiled(found)
    yield from partitions(found)


def _profiled(found: Found) -> Iterator[Block]:
    loaded, room = found.profiles, MOST_GRAPHS
    every = findings.document(found.judged, whole=True, measured=found.rows).blocks()
    yield Section("findings", "Findings of each case", every, folded=len(found.judged) > FEW)
    grouped = groups(loaded)
    yield from _modules(grouped)
    roofs = roofline.roofed(loaded)[:MOST_CASES]
    drawn_roofs = [item for place, of in enumerate(roofs, 1) for item in plots.pictured(f"roofline-{place}", of)]
    if drawn_roofs:
        yield Section("rooflines", "Rooflines", drawn_roofs, folded=len(roofs) > FEW)
    for level in LEVELS:
        for place, case in enumerate(of_level(loaded, level)[:MOST_CASES], 1):
            if case.profile.level == level and case.profile.status == "ok":
                blocks: list[Block] = [*layers_and_kernels.document(level, [case], top=MOST_ROWS).blocks()]
                if level == "layer":
                    blocks += plots.pictured(f"layers-{place}", layers_and_kernels.shown(level, [case], "time")[0])
                    drawn = _graph(case, place, room)
                    blocks += drawn
                    room -= sum(len(item.svg(False)) for item in drawn if isinstance(item, Picture))
                what = " · ".join([plain(case.name), *[case.headline] * (len(grouped) > 1)])
                yield Section(f"{level}s-{place}", f"{level.capitalize()}s · {what}", blocks, folded=True)


def _modules(grouped: Sequence[Sequence[ProfiledCase]]) -> Iterator[Section]:
    """Of each model with its inputs and machine the modules, as boxes and beneath them as a tree."""
    boxes = {icicle.name: icicle for icicle in plots.icicles(grouped)}
    for number, group in enumerate(grouped, 1):
        head, *tree = modules.document([group], depth=DEEPEST).blocks()
        assert isinstance(head, Table)
        drawn = [boxes[name] for name in (f"modules-{number}",) if name in boxes]
        yield Section(f"tree-{number}", f"Modules · {head.title}", [replace(head, title=""), *drawn, *tree])


def _graph(case: ProfiledCase, place: int, room: int) -> list[Block]:
    """What is executed, as a graph; or, where that is too large or cannot be laid out here, how to have it drawn."""
    source = profile_source(case.profile, case.name, case.headline, case.unprofiled)
    if isinstance(source, str) or not source.layers:
        return []
    try:
        drawn = str(render([build_graph(source)], "svg", title=case.name, deadline=SOON))
    except InferlensError as error:
        return [f"The graph of its layers is not drawn: {error.what}"]
    if len(drawn) > min(MOST_GRAPH, room):
        return [LARGE]
    return [Picture(f"graph-{place}", GRAPH, lambda _: drawn, white=True)]


# How it was measured: machines and libraries, budgets, what has to be known, and the records to take along.

MOST_REPEATED = 12  # commands
MOST_PLAIN = 500_000  # bytes of a table that is not packed
MOST_PACKED = 2_000_000  # bytes of records in a page
_CELL = [Column("", "", numeric=False, fold=True)]


def how_it_was_measured(found: Found) -> Iterator[Block]:
    """Environments, notes, and the data."""
    yield from environments(found.every)
    if found.records:
        yield from _repeated(found.records)
        every = notes.document(found.records, made=found.rows).blocks()
        yield Section("notes", f"Notes: {every[0]}", every[1:], folded=True)
        numbers = written(*fields_of(found.rows)).encode()
        about = "every number of the comparison"
        if len(numbers) > MOST_PLAIN:
            yield Download("table.csv.gz", about, "application/gzip", gzip.compress(numbers, 6, mtime=0))
        else:
            yield Download("table.csv", about, "text/csv", numbers)
    if found.every:
        yield packed(found.every)
    yield from found.problems


def _repeated(records: Sequence[Record]) -> Iterator[str]:
    """The command that measures the cases of each model and machine again, with what was asked for then."""
    models: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        models.setdefault((record.case.model, machine_name(record.environment)), []).append(record)
    said = dict.fromkeys(_repeat(model) for model in models.values())
    yield from list(said)[:MOST_REPEATED]


def _repeat(records: Sequence[Record]) -> str:
    cases = [record.case for record in records]
    first = min(cases, key=lambda case: len(case.options))
    batches = sorted({case.batch for case in cases if case.batch is not None})
    precisions = list(dict.fromkeys(case.precision for case in cases))
    asks = ["--precision " + ",".join(precisions)] if precisions != ["fp32"] else []
    device = "cuda" if records[0].environment.gpus else "cpu"
    model, *words = bench_words(first, device, asks, others=True, batches=batches)
    backends = ",".join(dict.fromkeys(case.backend_label for case in cases))
    for backend in dict.fromkeys(case.backend for case in cases):
        mine = [case.options for case in cases if case.backend == backend]
        for name in (name for name in mine[0] if all(name in item for item in mine)):
            values = dict.fromkeys(
                str(item[name]).lower() if item[name] in (True, False) else item[name] for item in mine
            )
            words += ["--option", f"{backend}.{name}={','.join(map(str, values))}"]
    record = next((record for record in records if not record.repeat), records[0])
    words += budget_words(record.budget, record.repeats)
    return plain(f"Repeat it: {command('bench', [model, '-b', backends, *words])}")


def environments(records: Sequence[Record]) -> Iterator[Table]:
    """What each machine is."""
    machines: dict[str, list[Record]] = {}
    for record in records:
        machines.setdefault(machine_name(record.environment), []).append(record)
    for name, item in machines.items():
        yield _environment(name, item)


def _environment(name: str, records: Sequence[Record]) -> Table:
    """What a machine is, and with which libraries it measured."""
    environment = records[-1].environment
    days = sorted({record.created[:10] for record in records})
    libraries = {f"{name} {version}" for record in records for name, version in record.environment.libraries.items()}
    facts = {
        "device": listing(list(dict.fromkeys(device_name(record) for record in records))),
        "CPU": f"{environment.cpu}, {environment.cpu_threads} threads" if environment.cpu_threads else environment.cpu,
        "memory": byte_count(environment.memory) if environment.memory else "",
        "GPU driver": environment.driver,
        "system": " ".join(filter(None, [environment.system, environment.container])),
        "Python": environment.python,
        "Inferlens": environment.inferlens,
        "libraries": ", ".join(sorted(libraries)),
        "variables": ", ".join(f"{key}={value}" for key, value in environment.variables.items()),
        "measured": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
    }
    lines = [Line(key, [plain(value)]) for key, value in facts.items() if value]
    return Table(plain(name), "machine", _CELL, lines)


def packed(records: Sequence[Record], name: str = "records", most: int = MOST_PACKED) -> Block:
    """The records with all samples, or that they are too large."""
    about = "the records with all samples, one in each line"
    packer, parts, size = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16), list[bytes](), 0  # as gzip has it
    for record in records:
        parts.append(packer.compress(msgspec.json.encode(record, enc_hook=tuple) + b"\n"))
        size += len(parts[-1])
        if size > most:
            return f"Not in this page: {about}, which are more than {byte_count(most)}."
    return Download(f"{name}.jsonl.gz", about, "application/gzip", b"".join([*parts, packer.flush()]))


# Each tuning: its finals, everything that was tried, and what its settings do.

_FRONT = "The dashed line joins candidates that no other beats in both measures; hollow ones break a limit."


def tuned(found: Found) -> Iterator[Block]:
    """Of each tuning its table, chart, and what was tried."""
    for number, tuned in enumerate(found.tunings, 1):
        *blocks, tried = one.document(tuned).blocks()
        yield from blocks
        try:
            document = spec(tuned, colours=found.colours)
        except InferlensError:
            pass  # nothing was timed
        else:
            yield picture(f"tuning-{number}", _FRONT, document)
        if isinstance(tried, Table):
            yield Section(f"tried-{number}", tried.title, [tried], folded=True)


SECTIONS: dict[str, tuple[str, Callable[[Found], Iterator[Block]]]] = {
    "answer": ("Answer", answer),
    "comparison": ("Comparison", comparison),
    "tuning": ("Tuning", tuned),
    "time": ("Where the time goes", time),
    "traces": ("Traces", traces),
    "how": ("How it was measured", how_it_was_measured),
}


def report(found: Found) -> Report:
    """The page of all that was found."""
    made = ((name, title, list(blocks(found))) for name, (title, blocks) in SECTIONS.items())
    return Report(_title(found), [Section(name, title, blocks) for name, title, blocks in made if blocks])


def _title(found: Found) -> str:
    """The models, and the machines if there are several."""
    records = found.every
    models = list(dict.fromkeys(plain(bare(run.first.case.model)) for run in latest(records)))
    if not models:
        models = names(found.traces)
        return models[0] if len(models) == 1 else f"{len(models)} traces"
    machines = {machine_name(record.environment) for record in records}
    shown = models if len(models) < 5 else [*models[:3], f"{len(models) - 3} more models"]
    return listing(shown) + (f" on {plural(len(machines), 'machine')}" if len(machines) > 1 else "")
