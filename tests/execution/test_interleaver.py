"""Two processes in turns: who goes when, and that nothing is measured while the other one is."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.backends.base import Preparation
from inferlens.backends.fake import Fake
from inferlens.execution import child as launch
from inferlens.execution import scheduler as running
from inferlens.execution.child import MORE, OVER, InterleavedTurn, Interleaver, Slot
from inferlens.execution.protocol import Event, Observer, Order, PhaseStart, PlannedCase
from inferlens.execution.scheduler import Interference, MeasureOptions, Scheduler
from inferlens.execution.tasks import BenchmarkJob, Reference
from inferlens.execution.worker import perform
from inferlens.measure import series
from inferlens.measure.series import FixedCount, FixedTime, Turn
from inferlens.models.model import Model, ModelInfo
from inferlens.record.record import Record
from inferlens.spec.case import Budget, Case, TensorSpec
from inferlens.spec.plan import Plan


class Heard:
    """A slot whose answers can be read."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self._answers, theirs = os.pipe()
        os.set_blocking(self._answers, False)
        slot.started(0, theirs)  # no process

    def words(self) -> bytes:
        try:
            return os.read(self._answers, 100)
        except BlockingIOError:
            return b""

    def waits(self, enough: bool = False) -> None:
        self.slot.waits(enough)


def test_one_that_was_killed_while_it_waited_gets_no_turn() -> None:
    first, second = (Heard(slot) for slot in Interleaver(one_turn=True).slots)
    turns: list[str] = []
    first.slot.on_turn = lambda: turns.append("first")
    first.waits()
    first.slot.end()
    second.slot.end()
    assert turns == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system lets no thread choose its CPU")
def test_threads_that_call_a_gpu_run_on_the_same_cpu_in_each_turn() -> None:
    answers, theirs = os.pipe()

    def turns(slot: Slot) -> list[set[int]]:
        turn = InterleavedTurn(lambda _: None, answers, slot.interleaver.seed)
        turn.ready(gpu=True)
        every = []
        for _ in range(20):
            os.write(theirs, MORE)
            turn.wait()
            every.append(os.sched_getaffinity(0))
        return every

    found = []
    for slot in Interleaver().slots:
        with ThreadPoolExecutor(1) as thread:  # what it is kept to ends with it
            found.append(thread.submit(turns, slot).result())
    assert found[0] == found[1]
    assert {len(each) for each in found[0]} == {1}
    assert set().union(*found[0]) == os.sched_getaffinity(0)
    os.close(answers)
    os.close(theirs)


def test_three_go_round_and_nobody_goes_before_all_are_there() -> None:
    first, second, third = every = [Heard(slot) for slot in Interleaver(3).slots]
    first.waits()
    second.waits()
    assert [each.words() for each in every] == [b"", b"", b""]
    third.waits()
    for going in (first, second, third, first):
        assert [each.words() for each in every] == [MORE if each is going else b"" for each in every]
        going.waits()
    assert second.words() == MORE
    second.slot.end()
    assert [each.words() for each in every] == [b"", b"", MORE]
    third.waits(True)
    assert first.words() == MORE
    first.waits(True)
    assert (first.words(), third.words()) == (OVER, OVER)


def test_when_one_has_ended_the_other_goes_on_by_itself() -> None:
    first, second = (Heard(slot) for slot in Interleaver().slots)
    first.waits()
    second.waits()
    first.words()
    first.slot.end()
    for _ in range(2):
        assert second.words() == OVER
        second.waits()


class Scripted(Turn):
    """Another one that takes ten seconds for each of its turns, and has enough after so many."""

    def __init__(self, turns: int) -> None:
        self.over, self.waited, self._left = False, 0.0, turns
        self.asked: list[bool] = []
        self.clock: Any = None

    def wait(self, *, enough: bool = False) -> None:
        self.asked.append(enough)
        self.waited += 10.0
        self.clock._now += 10.0
        self._left -= 1
        self.over = self._left <= 0


def taken(tmp_path: Path, rule: Any, turn: Scripted) -> tuple[Any, ...]:
    case = Case(model="fake:demo", backend="fake", variant="steady")
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    runner = Fake().prepare(model, case, Preparation(tmp_path, tmp_path))
    turn.clock = runner.clock
    return series.latency(runner, itertools.repeat({}), rule, lambda _: None, turn=turn)


def test_who_has_enough_goes_on_until_the_other_one_has_and_waiting_is_not_time_spent(tmp_path: Path) -> None:
    turn, rule = Scripted(9), FixedTime(0.1, 1, 10_000)
    (latency,) = taken(tmp_path, rule, turn)
    assert turn.asked == [False] + [True] * 8  # one call to see how long it is, then chunks of 0.2 s
    assert 1 + 8 * 49 <= len(latency.samples) <= 1 + 8 * 50
    assert rule.spent == pytest.approx(len(latency.samples) * 0.004)


def test_who_has_enough_of_calls_that_are_longer_than_a_turn_leaves_the_turns_to_the_other_one(tmp_path: Path) -> None:
    turn = Scripted(9)
    turn.chunk_seconds = 0.003  # a call takes four milliseconds
    (latency,) = taken(tmp_path, FixedTime(0.01, 1, 10_000), turn)
    assert (len(latency.samples), turn.asked) == (3, [False, False, *[True] * 7])


def test_a_number_of_samples_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    turn = Scripted(30)
    (latency,) = taken(tmp_path, FixedCount(20), turn)
    assert (len(latency.samples), len(turn.asked)) == (20, 30)


def cases_in(
    folder: Path, *sides: dict[str, Any], timeout: float = 60.0
) -> tuple[Scheduler, list[tuple[PlannedCase, int]]]:
    """Cases of the fake backend, to be measured in processes of their own."""
    budget = Budget(mode="latency", warmup=3, seconds=0.5, timeout=timeout)
    plan = Plan(model=("fake:demo",), budget=budget, output=str(folder))
    case, found = Case(model="fake:demo", backend="fake"), ModelInfo(spec="fake:demo", name="demo", format="fake")
    every = [
        (PlannedCase(replace(case, variant=variant, options={"clock": "host", **options}), found, None), 0)
        for variant, options in zip(("steady", "fast", "noisy"), sides, strict=False)
    ]
    return Scheduler(plan, Observer(), folder), every


def one_round(folder: Path, *sides: dict[str, Any], timeout: float = 60.0) -> list[Record]:
    """The records of two cases of the fake backend that were measured in turns."""
    scheduler, pair = cases_in(folder, *sides, timeout=timeout)
    return scheduler.measure_together(pair, MeasureOptions(scheduler.plan.budget, only_right=True))


def calls_of(records: list[Record]) -> list[tuple[float, float, int]]:
    """When each call of all of them began and ended, and whose it is."""
    latencies = [record.measurement("latency") for record in records]
    return sorted(
        (begin, begin + taken, place)
        for place, latency in enumerate(latencies)
        if latency
        for begin, taken in zip(latency.begins, latency.values, strict=True)
    )


def test_calls_of_both_alternate_and_never_overlap(tmp_path: Path) -> None:
    pair = one_round(tmp_path, {}, {})
    calls = calls_of(pair)
    assert all(before[1] <= after[0] + 2e-6 for before, after in itertools.pairwise(calls))
    assert sum(a[2] != b[2] for a, b in itertools.pairwise(calls)) >= 8
    assert [record.facts["in turns with"] for record in pair] == [other.case.label for other in reversed(pair)]
    assert all(record.cpu_energy is None or "in turns" in record.cpu_energy.reason for record in pair)


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        ({"trouble": "kill"}, ["crashed", "ok"]),
        ({"trouble": "hang"}, ["timed out", "ok"]),
        ({"trouble": "hang", "when": "exit"}, ["ok", "ok"]),
    ],
    ids=str,
)
def test_one_that_dies_or_hangs_takes_none_of_the_others_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], statuses: list[str]
) -> None:
    monkeypatch.setattr(launch, "GOODBYE", 0.5)
    assert [record.status for record in one_round(tmp_path, options, {}, timeout=4.0)] == statuses


def test_what_fails_before_it_has_a_process_ends_both() -> None:
    def fails(_: Slot) -> None:
        raise OSError("the disk is full")

    def waits(slot: Slot) -> None:
        heard = Heard(slot)
        heard.waits()
        heard.waits()

    with pytest.raises(OSError, match="disk"):
        Interleaver().run([waits, fails])


def test_what_ends_one_ends_the_other() -> None:
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def fails(_: Slot) -> None:
        begun.wait()
        raise KeyboardInterrupt

    def waits(slot: Slot) -> int:
        slot.started(sleeper.pid, -1)
        begun.set()
        return sleeper.wait()

    begun = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        Interleaver().run([fails, waits])
    assert sleeper.returncode == -signal.SIGKILL


def test_cases_load_side_by_side_and_each_is_measured_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "usable_cpus", lambda: range(6))
    monkeypatch.setattr(Interference, "repeat", False)
    scheduler, every = cases_in(tmp_path, {}, {"trouble": "kill"}, {}, timeout=20.0)
    done: list[str] = []
    monkeypatch.setattr(scheduler.observer, "done", lambda record, _: done.append(record.case.variant))
    records = scheduler.measure_singly(every)
    assert [(each.case.variant, each.status) for each in records] == [
        ("steady", "ok"), ("fast", "crashed"), ("noisy", "ok"),
    ]  # fmt: skip
    assert sorted(done) == ["fast", "noisy", "steady"], "one that fails in its first call is done before its turn"
    assert records == sorted(records, key=lambda each: each.created)
    assert len([*tmp_path.rglob("record.json")]) == len(records)
    whose = [place for *_, place in calls_of(records)]
    assert whose == sorted(whose)
    for each in (records[0], records[2]):
        assert "in turns with" not in each.facts
        assert each.cpu_energy is None or "in turns" not in each.cpu_energy.reason
        assert each.machine
        assert each.machine.cpu


def test_who_ends_a_run_keeps_what_was_measured_of_cases_that_loaded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "usable_cpus", lambda: range(4))
    monkeypatch.setattr(Interference, "repeat", False)
    scheduler, every = cases_in(tmp_path, {}, {})

    done = list[tuple[Record, Path]]()

    def interrupts(record: Record, folder: Path) -> None:
        done.append((record, folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(scheduler.observer, "done", interrupts)
    with pytest.raises(KeyboardInterrupt):
        scheduler.measure_singly(every)
    assert [record.case.variant for record, _ in done] == ["steady"]
    assert [path.parent for path in tmp_path.glob("*/*/record.json")] == [folder for _, folder in done]
    assert not [*tmp_path.glob("*/fake-fast*")]


@pytest.mark.parametrize(
    ("times_kernels", "words", "order"),
    [
        (False, {}, ["build", "first inference", "turn", "warm-up", "turn"]),
        (True, {}, ["turn", "build", "first inference", "turn", "warm-up", "turn"]),
        (True, {"built": True}, ["build", "first inference", "turn", "warm-up", "turn"]),
        (False, {"one_turn": True}, ["build", "first inference", "turn", "warm-up", "steady state"]),
        (True, {"one_turn": True}, ["turn", "build", "first inference", "warm-up", "steady state"]),
    ],
    ids=str,
)
def test_a_build_that_times_kernels_and_a_case_by_itself_wait_for_their_turn(
    times_kernels: bool, words: dict[str, Any], order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Told(Turn):
        def wait(self, *, enough: bool = False) -> None:
            told.append("turn")

    def heard(event: Event) -> None:
        if isinstance(event, PhaseStart):
            told.append(event.phase)

    monkeypatch.setattr(Fake, "times_kernels", lambda self, case, *, cached=False: times_kernels and not cached)
    scheduler, ((planned, _),) = cases_in(tmp_path, {})
    job = BenchmarkJob(
        **scheduler.job_fields(planned.case, tmp_path),
        **words,
        budget=scheduler.plan.budget,
        reference=Reference(name=""),
    )
    perform(Order.of("benchmark", job), heard, Told())
    assert told[told.index("load") + 1 :][: len(order)] == order
