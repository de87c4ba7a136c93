"""Processes of cases: each one has its own row whatever it does, and several take turns."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

import inferlens
from inferlens import InferlensError
from inferlens.backends.base import Preparation
from inferlens.backends.fake import Fake
from inferlens.execution import child
from inferlens.execution import scheduler as running
from inferlens.execution.protocol import Observer, Order, PhaseStart, PlannedCase
from inferlens.execution.scheduler import MeasureOptions, Scheduler
from inferlens.execution.tasks import BenchmarkJob, BenchmarkResult, Reference
from inferlens.execution.turns import FINISH, MORE, SharedTurn, Turns
from inferlens.execution.worker import perform
from inferlens.measure import series
from inferlens.measure.series import FixedCount, FixedTime, Turn
from inferlens.models.model import Model, ModelInfo
from inferlens.record.store import load_records, lock_folder
from inferlens.spec.case import Budget, Case, TensorSpec
from inferlens.spec.plan import Plan
from tests import commands

TROUBLES = {
    "raise": ("failed", "this backend was told to fail"),
    "unsupported": ("unsupported", "The operator 'aten.fake' is not supported."),
    "memory error": ("out of memory", "MemoryError"), "segfault": ("crashed", "SIGSEGV"),
    "abort": ("crashed", "SIGABRT"), "kill": ("crashed", "SIGKILL"), "exit": ("crashed", "without an answer"),
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("probed_here", "without_torch")


def bench_fake(tmp_path, option=None, **words):
    words = {"backend": "fake:steady", "iterations": 50, "warmup": 2, "mode": "latency", **words}
    return inferlens.bench("fake:demo", option=option, output=str(tmp_path / "results"), quick=True, **words)


def test_every_trouble_is_a_row_and_the_rows_around_it_are_right(tmp_path):
    troubles = ["none", *TROUBLES, "rubbish", "none"]
    records = bench_fake(tmp_path, [f"fake.trouble={','.join(troubles)}"])
    by_trouble = {record.case.options.get("trouble", "none"): record for record in records}
    for trouble in ("none", "rubbish"):
        assert (by_trouble[trouble].status, by_trouble[trouble].samples("latency")) == ("ok", (0.004,) * 50)
    for trouble, (status, words) in TROUBLES.items():
        record = by_trouble[trouble]
        assert (record.status, words in record.reason, record.environment.cpu != "") == (status, True, True), trouble
    assert not any("\x1b" in line for record in records for line in record.output_tail)
    check_crash(by_trouble["segfault"], "first inference")
    on_disk = load_records([tmp_path / "results" / "demo"])
    assert ({record.id for record in on_disk.records}, on_disk.problems) == ({record.id for record in records}, [])


def check_crash(record, phase):
    """A record of a crash names the phase in which it came, and keeps what was printed."""
    assert (record.status, f"during {phase}" in record.reason) == ("crashed", True)
    assert any("Segmentation fault" in line for line in record.output_tail)


def test_a_crash_names_its_phase_and_after_the_last_sample_it_keeps_the_numbers_and_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    _, *crashed, late = bench_fake(tmp_path, ["fake.trouble=segfault", "fake.when=prepare,enter,exit"])
    for record, phase in zip(crashed, ("load", "build"), strict=True):
        check_crash(record, phase)
    assert (late.status, len(late.samples("latency"))) == ("ok", 50)
    assert [(each.code, "SIGSEGV" in each.message) for each in late.warnings] == [("bad-exit", True)]


def test_the_longest_time_is_also_that_of_throughput_alone(tmp_path, monkeypatch, one_process):
    monkeypatch.delenv("OMP_NUM_THREADS")
    words = {"mode": "throughput", "iterations": None, "seconds": "5s"}
    (long,), (short,) = (bench_fake(tmp_path, max_time=each, **words) for each in (None, "200ms"))
    for one, seconds, rel, codes in ((long, 5, 0.05, []), (short, 0.2, 0.3, ["not-reached"])):
        spent = sum(one.measurement("throughput").calls / rate for rate in one.samples("throughput"))
        assert (spent, [each.code for each in one.warnings]) == (pytest.approx(seconds, rel=rel), codes)


def test_two_runs_at_once_of_a_model_do_not_share_a_folder(tmp_path, one_process):
    folder = tmp_path / "results" / "demo"
    with lock_folder(folder), pytest.raises(InferlensError, match=r"Another run measures into .*demo"):
        bench_fake(tmp_path)
    assert not list(folder.iterdir())
    (record,) = bench_fake(tmp_path)
    assert record.status == "ok"


def unchecked(folder, why):
    """A few calls of the fake backend, without a reference."""
    return BenchmarkJob(
        case=inferlens.Case(model="fake:demo", backend="fake", variant="steady"),
        budget=inferlens.Budget(iterations=5, warmup=1), folder=str(folder), cache=str(folder),
        reference=Reference(name="fake", missing=why),
    )  # fmt: skip


def test_a_missing_reference_is_said_and_counts_as_unchecked(tmp_path):
    job = unchecked(tmp_path, "the reference failed: no memory")
    found = commands.launch("benchmark", job, BenchmarkResult, timeout=60).result.value.agreement
    assert (found.agrees, "no memory" in found.reason) == (None, True)


COMMAND = [
    sys.executable, "-m", "inferlens", "bench", "fake:demo", "--backend", "fake:steady", "--iterations", "20",
    "--mode", "latency", "--option", "fake.trouble=none,hang", "--quick", "--output",
]  # fmt: skip


def start(output):
    """The command, once its second case hangs, and the process of that case."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    scratch = os.environ | {"TMPDIR": str(output)}  # of which a killed process leaves some
    command = subprocess.Popen([*COMMAND, str(output)], env=scratch, **pipes)
    for _ in range(600):
        children = psutil.Process(command.pid).children()
        hanging = list(output.glob("demo/*hang*"))
        if children and hanging and list(output.glob("demo/*/record.json")):
            return command, children[0]
        threading.Event().wait(0.05)
    command.kill()
    raise AssertionError(command.communicate())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_it_is_ended_what_was_measured_is_kept_and_no_child_is_left(tmp_path, number):
    command, child = start(tmp_path)
    command.send_signal(number)
    printed, noted = command.communicate(timeout=30)
    child.wait(timeout=30)
    loaded = load_records([tmp_path])
    assert ([record.status for record in loaded.records], loaded.problems) == (["ok"], [])
    if number != signal.SIGKILL:
        assert (command.returncode, b"fake:steady" in printed, b"Traceback" in noted) == (130, True, False), noted
        assert not list(tmp_path.glob("demo/*hang*"))


@pytest.mark.parametrize(("code", "short", "status", "reason"), [
    (-9, True, "out of memory", "killed by the kernel, which was short of memory"),
    (-9, False, "crashed", "killed by SIGKILL"), (-11, True, "crashed", "killed by SIGSEGV"),
    (-200, False, "crashed", "killed by signal 200"), (3, False, "crashed", "the process ended with exit code 3"),
    (0, True, "crashed", ""),
])  # fmt: skip
def test_the_exit_code_of_a_process_is_a_status_and_a_reason(code, short, status, reason):
    assert child.status_of_exit(code, killed_for_memory=short) == (status, reason)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_what_is_used_is_in_the_peak_and_a_large_parent_is_not_in_that_of_its_child():
    script = "from inferlens.execution.tasks import host_peak; print(host_peak())"
    parent = f"""
import subprocess, sys
large = bytearray(400 << 20)
large[::4096] = b"x" * len(large[::4096])  # every page
{script}
print(subprocess.run([sys.executable, "-c", {script!r}], capture_output=True, text=True, check=True).stdout)
"""
    printed = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True).stdout
    own, child = map(int, printed.split())
    assert child < 200 << 20 < 400 << 20 < own


# Two processes in turns: who goes when, and that nothing is measured while the other one is.


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system lets no thread choose its CPU")
def test_threads_that_call_a_gpu_run_on_the_same_cpu_in_each_turn():
    answers, theirs = os.pipe()

    def turns(slot):
        turn = SharedTurn(lambda _: None, answers, slot.turns.seed, in_turns=True)
        turn.ready(gpu=True)
        every = []
        for _ in range(20):
            os.write(theirs, MORE)
            turn.wait()
            every.append(os.sched_getaffinity(0))
        return every

    found = []
    for slot in Turns(2, in_turns=True).slots:
        with ThreadPoolExecutor(1) as thread:  # what it is kept to ends with it
            found.append(thread.submit(turns, slot).result())
    assert (found[0], {len(each) for each in found[0]}) == (found[1], {1})
    assert set().union(*found[0]) == os.sched_getaffinity(0)
    os.close(answers)
    os.close(theirs)


class Scripted(Turn):
    """Another one that takes ten seconds for each of its turns, and has enough after so many."""

    def __init__(self, turns):
        self.others_finished, self.seconds_waited, self._left = False, 0.0, turns
        self.asked = []
        self.clock = None

    def wait(self, *, enough=False):
        self.asked.append(enough)
        self.seconds_waited += 10.0
        self.clock._now += 10.0
        self._left -= 1
        self.others_finished = self._left <= 0


def taken(tmp_path, rule, turn):
    case = Case(model="fake:demo", backend="fake", variant="steady")
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    runner = Fake().prepare(model, case, Preparation(tmp_path, tmp_path))
    turn.clock = runner.clock
    return series.latency(runner, itertools.repeat({}), rule, lambda _: None, turn=turn)


@pytest.mark.parametrize(("turns", "chunk", "rule", "samples", "asked"), [
    (9, 0.2, FixedTime(0.1, 1, 10_000), (1 + 8 * 49, 1 + 8 * 50), [False, *[True] * 8]),  # one call, then chunks
    (9, 0.003, FixedTime(0.01, 1, 10_000), (3, 3), [False, False, *[True] * 7]),  # calls that are longer than a turn
    (30, 0.2, FixedCount(20), (20, 20), None),  # a number that was asked for is kept
], ids=["goes on", "leaves the turns", "keeps the number"])  # fmt: skip
def test_who_has_enough_waits_for_the_other_one_which_is_not_time_spent(turns, chunk, rule, samples, asked, tmp_path):
    turn = Scripted(turns)
    turn.chunk_seconds = chunk
    (latency,) = taken(tmp_path, rule, turn)
    assert samples[0] <= len(latency.samples) <= samples[1]
    assert turn.asked == asked if asked else len(turn.asked) == turns
    assert rule.spent == pytest.approx(len(latency.samples) * 0.004)


def cases_in(folder, *sides, timeout=60.0, seconds=0.1):
    """Cases of the fake backend, to be measured in processes of their own."""
    budget = Budget(mode="latency", warmup=3, seconds=seconds, timeout=timeout)
    plan = Plan(model=("fake:demo",), budget=budget, output=str(folder))
    case, found = Case(model="fake:demo", backend="fake"), ModelInfo(spec="fake:demo", name="demo", format="fake")
    pairs = zip(("steady", "fast", "noisy"), sides, strict=False)
    cases = [replace(case, variant=variant, options={"clock": "host", **options}) for variant, options in pairs]
    return Scheduler(plan, Observer(), folder), [(PlannedCase(case, found, None), 0) for case in cases]


def one_round(folder, *sides, **words):
    """The records of two cases of the fake backend that were measured in turns."""
    scheduler, pair = cases_in(folder, *sides, **words)
    return scheduler.measure_in_turns(pair, MeasureOptions(scheduler.plan.budget, only_right=True))


def calls_of(records):
    """When each call of all of them began and ended, and whose it is."""
    latencies = [record.measurement("latency") for record in records]
    return sorted(
        (begin, begin + taken, place)
        for place, latency in enumerate(latencies)
        if latency
        for begin, taken in zip(latency.begins, latency.values, strict=True)
    )


def test_calls_of_both_alternate_and_never_overlap(tmp_path):
    pair = one_round(tmp_path, {}, {}, seconds=0.5)
    calls = calls_of(pair)
    assert all(before[1] <= after[0] + 2e-6 for before, after in itertools.pairwise(calls))
    assert sum(a[2] != b[2] for a, b in itertools.pairwise(calls)) >= 8
    assert [record.facts["in turns with"] for record in pair] == [other.case.label for other in reversed(pair)]
    assert all(record.cpu_energy is None or "in turns" in record.cpu_energy.reason for record in pair)


def test_those_that_die_or_hang_take_none_of_the_others_time_and_show_where_they_hung(tmp_path, monkeypatch):
    """One that hangs after its answer keeps it."""
    monkeypatch.setattr(child, "GOODBYE", 0.5)
    sides = {"trouble": "kill"}, {"trouble": "hang"}, {"trouble": "hang", "when": "exit"}
    killed, hung, late = one_round(tmp_path, *sides, timeout=4.0)
    assert (killed.status, hung.status, late.status) == ("crashed", "timed out", "ok")
    assert "4 s" in hung.reason
    assert any("fake.py" in line for line in hung.output_tail)


def test_what_ends_one_ends_the_other():
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def fails(_):
        begun.wait()
        raise KeyboardInterrupt

    def waits(slot):
        slot.started(sleeper.pid, -1)
        begun.set()
        return sleeper.wait()

    begun = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        Turns(2, in_turns=True).run([fails, waits])
    assert sleeper.returncode == -signal.SIGKILL


def test_cases_load_concurrently_and_are_measured_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "usable_cpus", lambda: range(6))
    scheduler, every = cases_in(tmp_path, {}, {"trouble": "kill"}, {}, timeout=20.0)
    done = []
    monkeypatch.setattr(scheduler.observer, "done", lambda record, _: done.append(record.case.variant))
    records = scheduler.measure_one_by_one(every)
    assert [each.case.variant for each in records] == ["steady", "fast", "noisy"]
    assert [each.status for each in records] == ["ok", "crashed", "ok"]
    assert sorted(done) == ["fast", "noisy", "steady"], "one that fails in its first call is done before its turn"
    assert records == sorted(records, key=lambda each: each.created)
    assert len([*tmp_path.rglob("record.json")]) == len(records)
    whose = [place for *_, place in calls_of(records)]
    assert whose == sorted(whose)
    for each in (records[0], records[2]):
        assert "in turns with" not in each.facts
        assert each.cpu_energy is None or "in turns" not in each.cpu_energy.reason
        assert each.machine.cpu


def test_who_ends_a_run_keeps_what_was_measured_of_cases_that_loaded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "usable_cpus", lambda: range(4))
    scheduler, every = cases_in(tmp_path, {}, {})
    done = []

    def interrupts(record, folder):
        done.append((record, folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(scheduler.observer, "done", interrupts)
    with pytest.raises(KeyboardInterrupt):
        scheduler.measure_one_by_one(every)
    assert [record.case.variant for record, _ in done] == ["steady"]
    assert [path.parent for path in tmp_path.glob("*/*/record.json")] == [folder for _, folder in done]
    assert not [*tmp_path.glob("*/fake-fast*")]


@pytest.mark.parametrize(("times_kernels", "words", "order"), [
    (False, {}, ["build", "first inference", "turn", "warm-up", "turn"]),
    (True, {}, ["turn", "build", "first inference", "turn", "warm-up", "turn"]),
    (True, {"built": True}, ["build", "first inference", "turn", "warm-up", "turn"]),
    (False, {"in_turns": False}, ["build", "first inference", "turn", "warm-up", "steady state"]),
    (True, {"in_turns": False}, ["turn", "build", "first inference", "warm-up", "steady state"]),
], ids=str)  # fmt: skip
def test_a_build_that_times_kernels_and_a_case_by_itself_wait_for_their_turn(
    times_kernels, words, order, tmp_path, monkeypatch
):
    told = []
    answers, theirs = os.pipe()

    def asked(_):
        told.append("turn")
        os.write(theirs, FINISH if told.count("turn") > 3 else MORE)

    def heard(event):
        if isinstance(event, PhaseStart):
            told.append(event.phase)

    monkeypatch.setattr(Fake, "times_kernels", lambda self, case, *, cached=False: times_kernels and not cached)
    scheduler, ((planned, _),) = cases_in(tmp_path, {})
    turn = SharedTurn(asked, answers, 0, in_turns=words.get("in_turns", True))
    job = BenchmarkJob(
        **scheduler.job_fields(planned.case, tmp_path), built=words.get("built", False), budget=scheduler.plan.budget,
        reference=Reference(name=""),
    )  # fmt: skip
    perform(Order.of("benchmark", job), heard, turn)
    assert told[told.index("load") + 1 :][: len(order)] == order
    os.close(answers)
    os.close(theirs)
