"""The order of repeats, and a case that is measured once more because the machine was disturbed."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

import inferlens
from inferlens.errors import Unsupported
from inferlens.execution import subprocess as processes
from inferlens.execution.bench import in_rounds
from inferlens.execution.benchmark import BenchmarkJob
from inferlens.execution.expand import Planned
from inferlens.execution.protocol import Observer, TaskResult
from inferlens.execution.subprocess import Outcome
from inferlens.models.model import ModelInfo
from inferlens.record.machine import MachineLog
from inferlens.record.record import Record
from tests.analysis.interference.logs import cpu_log, during
from tests.commands import launch
from tests.views.samples import case

FOUND = ModelInfo(spec="fake:demo", name="demo", format="fake")
ABLE = [Planned(case(backend), FOUND, None) for backend in ("a", "b", "c", "d", "e")]
UNABLE = Planned(case("none"), FOUND, Unsupported("Not here."))

CALM = cpu_log(cpus=4)
LOUD = cpu_log(cpus=4, others=during(0.0, 10.0, 3.9, 0.0), busy=4.0)


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_each_case_runs_so_often_round_after_round(repeats: int) -> None:
    turns = in_rounds([UNABLE, *ABLE], repeats, seed=0)
    assert [repeat for planned, repeat in turns if planned is UNABLE] == [0], "what cannot run is said once"
    turns = [each for each in turns if each[0] is not UNABLE]
    assert [repeat for _, repeat in turns] == [number for number in range(repeats) for _ in ABLE]
    assert Counter(planned.case.backend for planned, _ in turns) == {planned.case.backend: repeats for planned in ABLE}


def test_the_order_is_drawn_anew_for_each_round_and_from_the_seed() -> None:
    def orders(seed: int) -> list[str]:
        turns = in_rounds(ABLE, 6, seed)
        return ["".join(planned.case.backend for planned, repeat in turns if repeat == each) for each in range(6)]

    assert orders(0) == orders(0) != orders(1)
    assert len(set(orders(0))) > 3


@pytest.mark.usefixtures("one_process")
def test_repeats_are_records_of_one_run(tmp_path: Path) -> None:
    words: dict[str, Any] = {"backend": "fake:steady,fake:fast", "repeats": 3, "iterations": 20, "warmup": 1}
    records = inferlens.bench("fake:demo", output=str(tmp_path), **words)
    assert len({record.run for record in records}) == 1
    assert [(record.repeat, record.repeats) for record in records] == [(n, 3) for n in (0, 0, 1, 1, 2, 2)]
    assert len(list(tmp_path.rglob("record.json"))) == 6


class Machine:
    """Launches as in one process; the machine's log of each attempt is one of those given."""

    def __init__(self, *logs: MachineLog, ending: str = "ok") -> None:
        self.logs = list(logs)
        self.ending = ending
        self.attempts = 0

    def launch(self, task: Any, job: Any, **words: Any) -> Outcome[Any]:
        outcome = launch(task, job, **words)
        if not isinstance(job, BenchmarkJob):
            return outcome
        self.attempts += 1
        outcome.machine = self.logs.pop(0)
        if not self.logs and self.ending == "interrupted":
            raise KeyboardInterrupt
        if not self.logs and self.ending != "ok":
            crashed: TaskResult[Any] = TaskResult(status="crashed", reason="It fell.")
            return Outcome(crashed, answered=False, machine=outcome.machine)
        facts = {**outcome.result.facts, "attempt": self.attempts}
        outcome.result = msgspec.structs.replace(outcome.result, facts=facts)
        return outcome


class Ear(Observer):
    def __init__(self) -> None:
        self.told: list[str] = []
        self.records: list[Record] = []

    def doing(self, what: str) -> None:
        self.told.append(what)

    def done(self, record: Record, folder: Path) -> None:
        self.records.append(record)
        assert (folder / "record.json").exists()


def measured(folder: Path, patch: pytest.MonkeyPatch, machine: Machine) -> tuple[Record, Ear]:
    """A case of 400 samples from 0 s to 4 s of the fake's clock, which is the log's as well."""
    patch.setattr(processes, "launch", machine.launch)
    words: dict[str, Any] = {"warmup": 1, "iterations": 400, "option": "fake.latency=10", "output": str(folder)}
    ear = Ear()
    (record,) = inferlens.bench("fake:demo", backend="fake:noisy", observer=ear, **words)
    assert ear.records == [record]
    assert len(list(folder.rglob("record.json"))) == 1
    return record, ear


@pytest.mark.parametrize(
    ("logs", "disturbed", "why"),
    [((CALM,), 0, ""), ((LOUD, CALM), 0, ""), ((LOUD, LOUD), 400, "all are kept")],
    ids=["calm", "disturbed once", "disturbed twice"],
)
def test_a_disturbed_case_is_measured_once_more_and_the_second_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Any, disturbed: int, why: str
) -> None:
    machine = Machine(*logs)
    record, ear = measured(tmp_path, monkeypatch, machine)
    assert machine.attempts == record.facts["attempt"] == len(logs)
    assert [what for what in ear.told if "disturbed" in what] == [
        f"disturbed, so once more: {record.case.label}" for _ in logs[1:]
    ]
    assert record.marks is not None
    assert (len(record.marks.disturbed), record.marks.discarded, record.marks.repeat) == (disturbed, (), False)
    assert why in record.marks.why
    assert [phase.name for phase in record.phases] == ["load", "build", "first inference", "warm-up", "steady state"]


@pytest.mark.parametrize("ending", ["interrupted", "crashed"])
def test_a_second_time_that_fails_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    with pytest.raises(KeyboardInterrupt) if ending == "interrupted" else nullcontext():
        measured(tmp_path, monkeypatch, Machine(LOUD, CALM, ending=ending))
    (record,) = inferlens.load_records([tmp_path]).records
    assert (record.status, record.facts["attempt"], len(record.samples("latency"))) == ("ok", 1, 400)
    assert (record.marks.repeat, record.marks.discarded, bool(record.marks.disturbed)) == (False, (), True)


@pytest.mark.parametrize(
    ("logs", "attempts", "disturbed"),
    [
        ([LOUD] * 6, [2, 4, 5, 6], [True] * 4),  # after two futile second times there are no more
        ([LOUD, LOUD, LOUD, CALM, LOUD, LOUD, LOUD, CALM], [2, 4, 6, 8], [True, False, True, False]),
    ],
    ids=["loud", "calm now and then"],
)
def test_second_times_end_where_they_are_futile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Any, attempts: list[int], disturbed: list[bool]
) -> None:
    monkeypatch.setattr(processes, "launch", Machine(*logs).launch)
    words: dict[str, Any] = {"warmup": 1, "iterations": 400, "output": str(tmp_path)}
    records = inferlens.bench("fake:demo", backend="fake:noisy", option="fake.latency=10,10.01,10.02,10.03", **words)
    assert [record.facts["attempt"] for record in records] == attempts
    assert [bool(record.marks and record.marks.disturbed) for record in records] == disturbed
    assert {record.id for record in inferlens.load_records([tmp_path]).records} == {record.id for record in records}
