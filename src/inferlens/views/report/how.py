"""How it was measured: machines and libraries, budgets, what has to be known, and the records to take along."""

from __future__ import annotations

import gzip
import shlex
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from inferlens.analysis.runs import device_name
from inferlens.record.record import Record, machine_name
from inferlens.spec.plan import bench_words, budget_words
from inferlens.units import byte_count, listing
from inferlens.views import notes
from inferlens.views.plain import plain
from inferlens.views.records import fields_of
from inferlens.views.renderers.csv import written
from inferlens.views.report.blocks import Block, Download, Section
from inferlens.views.report.found import Found
from inferlens.views.table import Column, Line, Table

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
