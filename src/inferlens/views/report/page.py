"""Everything that is known of one or many models on one page: the answer first, then what it stands on.

A section draws what is there, with the tables and charts of the commands; one of which there is nothing is left out.
"""

from __future__ import annotations

import gzip
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from inferlens.analysis.runs import device_name, latest
from inferlens.errors import InferlensError
from inferlens.record.record import Record, machine_name
from inferlens.spec.case import bare
from inferlens.spec.plan import bench_words, budget_words
from inferlens.units import byte_count, listing, plural
from inferlens.views import notes
from inferlens.views.picture import picture
from inferlens.views.plain import plain
from inferlens.views.raced import tuned as one
from inferlens.views.raced.tuned_chart import spec
from inferlens.views.records import fields_of
from inferlens.views.renderers.csv import written
from inferlens.views.report.blocks import Block, Download, Report, Section
from inferlens.views.report.found import Found
from inferlens.views.report.looked import names
from inferlens.views.report.measured import answer, comparison
from inferlens.views.report.time import time
from inferlens.views.report.traces import traces
from inferlens.views.table import Column, Line, Table

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
    said = dict.fromkeys(_repeat(mine) for mine in models.values())
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
        for name in (name for name in mine[0] if all(name in each for each in mine)):
            values = dict.fromkeys(
                str(each[name]).lower() if each[name] in (True, False) else each[name] for each in mine
            )
            words += ["--option", f"{backend}.{name}={','.join(map(str, values))}"]
    asked = next((each for each in records if not each.repeat), records[0])
    words += budget_words(asked.budget, asked.repeats)
    return plain(f"Repeat it: {shlex.join(['inferlens', 'bench', model, '-b', backends, *words])}")


def environments(records: Sequence[Record]) -> Iterator[Table]:
    """What each machine is."""
    machines: dict[str, list[Record]] = {}
    for record in records:
        machines.setdefault(machine_name(record.environment), []).append(record)
    for name, mine in machines.items():
        yield _environment(name, mine)


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
    for number, each in enumerate(found.tunings, 1):
        *blocks, tried = one.document(each).blocks()
        yield from blocks
        try:
            document = spec(each, colours=found.colours)
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
