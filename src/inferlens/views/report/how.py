"""How it was measured: machines and libraries, budgets, what has to be known, and the records to take along."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence

import msgspec

from inferlens.analysis.runs import device_name
from inferlens.record.record import Record, machine_name
from inferlens.units import byte_count, listing
from inferlens.views import notes
from inferlens.views.plain import plain
from inferlens.views.records import fields_of
from inferlens.views.renderers.csv import written
from inferlens.views.report.blocks import Block, Download, Section
from inferlens.views.report.found import Found
from inferlens.views.table import Column, Line, Table

MOST_PACKED = 2_000_000  # bytes of records in a page
_CELL = [Column("", "", numeric=False, fold=True)]


def how_it_was_measured(found: Found) -> Iterator[Block]:
    """Environments, notes, and the data."""
    yield from environments(found.every)
    if found.records:
        every = notes.document(found.records).blocks()
        yield Section("notes", f"Notes: {every[0]}", every[1:], folded=True)
        numbers = written(*fields_of(found.rows)).encode()
        yield Download("table.csv", "every number of the comparison", "text/csv", numbers)
        yield packed(found.records)
    yield from found.problems


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
    """The records with all samples, or how large they would be."""
    data = gzip.compress(b"\n".join(map(msgspec.json.encode, records)), mtime=0)
    about = "the records with all samples, one in each line"
    if len(data) > most:
        return f"Not in this page: {about}, {byte_count(len(data))}."
    return Download(f"{name}.jsonl.gz", about, "application/gzip", data)
