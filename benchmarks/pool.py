"""A pool of measured processes: a case, the same once more, and the same made slower, round after round.

Each process is measured as ``inferlens bench --repeats`` does it, by the same code: the watch over the machine, the
warm-up, the default budget, a second try where it was disturbed; five rounds are a run. In each round the three come in
another order, drawn from a seed. With ``calls`` a round has two pairs, each measured as a round of ``inferlens ab``: a
case and the same once more, and a case and the slower one, the two of a pair alive at once and in turns.

What is kept of a process is what statistics are made of: the samples that count. Every process is a line of a file,
written when it has ended, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from inferlens.analysis.interference.samples import latencies
from inferlens.execution.expand import Planned, backends_named, expand
from inferlens.execution.protocol import Observer
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.survey import find, probe
from inferlens.spec.plan import Plan

SEED = 20260
RUN = 5  # rounds in what the library takes for one run: --repeats 5
BASE, TWIN, SLOWER = KINDS = ("base", "twin", "slower")
BESIDE = "base beside slower"  # where calls are interleaved


class Setting(Struct, frozen=True, kw_only=True):
    """What a pool is of; its file's first line."""

    model: str
    backend: str
    slower: float
    threads: int = 1
    calls: bool = False
    device: str = "cpu"
    precision: str = "fp32"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that a round has."""
        return (*KINDS, BESIDE) if self.calls else KINDS

    def plan(self, output: str) -> Plan:
        """The two cases: as it is, and slower."""
        words = {
            "model": self.model, "backend": f"{self.backend},slowed_{self.backend}", "threads": self.threads,
            "device": self.device, "precision": self.precision, "output": output,
            "option": [f"slowed_{self.backend.partition(':')[0]}.slower={self.slower}"],
        }  # fmt: skip
        return Plan.from_words(words)


class Process(Struct, frozen=True, kw_only=True):
    """One measured process.

    Attributes:
        kind: ``base``, ``twin`` (the same case) or ``slower``.
        begin: when it was started, in seconds since 1970.
        seconds: how long it took in all, a second try included.
        samples: the latencies that statistics are of, in seconds and in order of time.
        taken, disturbed, unsteady: samples in all, and those left out.
        why: what disturbed it, and what was done about it; empty if nothing.
        again: whether it was measured twice, as the first time was disturbed.
        load: the system's load average over a minute when it began.
    """

    round: int
    kind: str
    begin: float
    seconds: float
    status: str
    samples: list[float]
    taken: int = 0
    disturbed: int = 0
    unsteady: int = 0
    why: str = ""
    again: bool = False
    load: float = 0.0

    @property
    def still_disturbed(self) -> bool:
        """Whether disturbed samples were kept, for there were too many."""
        return bool(self.samples and self.why and not self.disturbed)

    @property
    def calm(self) -> bool:
        """Whether the watch saw nothing disturb it."""
        return not self.why and not self.again


Round = dict[str, Process]


class Ear(Observer):
    """Hears whether a process was measured twice."""

    again = False

    def doing(self, what: str) -> None:
        """See :class:`~inferlens.execution.protocol.Observer`."""
        self.again |= what.startswith("disturbed")


def read(path: Path) -> tuple[Setting | None, list[Process]]:
    """What a pool's file holds; a line that was cut short is left out."""
    if not path.exists():
        return None, []
    first, *lines = path.read_text().splitlines()
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Process))
        except msgspec.DecodeError:
            continue
    return msgspec.json.decode(first, type=Setting), found


def rounds(processes: Sequence[Process], kinds: Sequence[str] = KINDS) -> list[Round]:
    """The rounds of which all processes ran to their end, in order of time."""
    found: dict[int, Round] = {}
    for one in processes:
        if one.samples:
            found.setdefault(one.round, {})[one.kind] = one
    return [found[number] for number in sorted(found) if len(found[number]) == len(kinds)]


def fill(path: Path, setting: Setting, count: int, seconds: float) -> Iterator[Process]:
    """Measures until the pool has ``count`` rounds or ``seconds`` are over; yields each process when it is on disk.

    Raises:
        ValueError: if the file is of another setting.
    """
    known, before = read(path)
    if known not in (None, setting):
        raise ValueError(f"{path} is a pool of {known}, not of {setting}: name another file")
    done = {(one.round, one.kind) for one in before}
    missing = [turn for turn in turns(count, setting.calls) if (turn[0], turn[1][0]) not in done]
    deadline = time.monotonic() + seconds
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder, path.open("ab") as file:
        if known is None:
            file.write(msgspec.json.encode(setting) + b"\n")
        elif not path.read_bytes().endswith(b"\n"):
            file.write(b"\n")  # ends a line that was cut short
        cases = _cases(setting, folder)
        scheduler, run = _scheduler(setting, folder), -1
        for number, kinds in missing:
            if time.monotonic() > deadline:
                return
            if number // RUN != run:
                scheduler, run = _scheduler(setting, folder), number // RUN
            for one in _measured(scheduler, [cases[kind == SLOWER] for kind in kinds], number, kinds):
                file.write(msgspec.json.encode(one) + b"\n")
                file.flush()
                yield one


def turns(count: int, calls: bool = False) -> list[tuple[int, tuple[str, ...]]]:
    """Number and kinds of what is measured at a time, of ``count`` rounds, in order; with ``calls`` pairs."""
    shuffle = random.Random(SEED)
    found: list[tuple[int, tuple[str, ...]]] = []
    for number in range(count):
        if calls:
            pairs = shuffle.sample([(BASE, TWIN), (BESIDE, SLOWER)], 2)
            found += [(number, tuple(shuffle.sample(pair, 2))) for pair in pairs]
        else:
            found += [(number, (kind,)) for kind in shuffle.sample(KINDS, len(KINDS))]
    return found


def _cases(setting: Setting, folder: str) -> list[Planned]:
    """The case, and the slower one."""
    plan = setting.plan(folder)
    cases = expand(plan, find(plan.model), probe(backends_named(plan)))
    cases.sort(key=lambda planned: planned.case.backend.startswith("slowed"))
    if len(cases) != 2 or any(planned.refusal for planned in cases):
        raise ValueError(f"a case and a slower one were expected, not {cases}")
    return cases


def _scheduler(setting: Setting, folder: str) -> Scheduler:
    scratch = Path(tempfile.mkdtemp(dir=folder))
    return Scheduler(setting.plan(str(scratch / "records")), Ear(), scratch)


def _measured(scheduler: Scheduler, planned: Sequence[Planned], number: int, kinds: Sequence[str]) -> Iterator[Process]:
    ear = scheduler.observer = Ear()
    begin, tick, load = time.time(), time.perf_counter(), os.getloadavg()[0]
    alone = len(planned) == 1
    records = [scheduler.measure(planned[0], number)[0]] if alone else scheduler.measure_interleaved(planned, number)
    seconds = (time.perf_counter() - tick) / len(records)
    found = [latencies(record) for record in records]
    for kind, record, kept in zip(kinds, records, found, strict=True):
        yield Process(
            round=number, kind=kind, begin=round(begin, 3), seconds=round(seconds, 3),
            status=record.status, samples=[round(sample, 9) for sample in kept.samples],
            taken=len(record.samples("latency")), disturbed=kept.disturbed, unsteady=kept.unsteady,
            why=record.marks.why if record.marks else record.reason, again=ear.again,
            load=load,
        )  # fmt: skip
