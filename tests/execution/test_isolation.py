"""Whatever a case does to its process becomes its own row, and the other rows are right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

import inferlens
from inferlens.execution import cases, child
from inferlens.execution.protocol import Event, TaskAnswer
from inferlens.execution.tasks import BenchmarkJob, BenchmarkResult, Reference
from inferlens.record.store import load_records
from tests import commands

TROUBLES = {
    "raise": ("failed", "this backend was told to fail"),
    "unsupported": ("unsupported", "The operator 'aten.fake' is not supported."),
    "memory error": ("out of memory", "MemoryError"),
    "segfault": ("crashed", "SIGSEGV"),
    "abort": ("crashed", "SIGABRT"),
    "kill": ("crashed", "SIGKILL"),
    "exit": ("crashed", "without an answer"),
}


@pytest.fixture(autouse=True)
def quick_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks none of the backends that import a framework what it can do here: a second or two before every run."""
    ask = cases.probe
    monkeypatch.setattr(cases, "probe", lambda _, python="": ask(["fake"], python))


def bench_fake(tmp_path: Path, option: list[str] | None = None, **words: object) -> list[inferlens.Record]:
    words = {"backend": "fake:steady", "iterations": 50, "warmup": 2, **words}
    return inferlens.bench("fake:demo", option=option, output=str(tmp_path / "results"), quick=True, **words)


def test_every_trouble_is_a_row_and_the_rows_around_it_are_right(tmp_path: Path) -> None:
    troubles = ["none", *TROUBLES, "rubbish", "none"]
    records = bench_fake(tmp_path, [f"fake.trouble={','.join(troubles)}"])
    by_trouble = {record.case.options["trouble"]: record for record in records}
    for trouble in ("none", "rubbish"):
        assert by_trouble[trouble].status == "ok"
        assert by_trouble[trouble].samples("latency") == (0.004,) * 50
    for trouble, (status, words) in TROUBLES.items():
        record = by_trouble[trouble]
        assert (record.status, words in record.reason) == (status, True), trouble
        assert record.environment.cpu
    assert not any("\x1b" in line for record in records for line in record.output_tail)
    on_disk = load_records([tmp_path / "results" / "demo"])
    assert {record.id for record in on_disk.records} == {record.id for record in records}
    assert on_disk.problems == []


def test_a_crash_names_its_phase_and_after_the_last_sample_it_keeps_the_numbers_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    *crashed, late = bench_fake(tmp_path, ["fake.trouble=segfault", "fake.when=prepare,enter,infer,exit"])
    for record, phase in zip(crashed, ("load", "build", "first inference"), strict=True):
        assert record.status == "crashed"
        assert f"during {phase}" in record.reason
        assert any("Segmentation fault" in line for line in record.output_tail)
    assert (late.status, len(late.samples("latency"))) == ("ok", 50)
    assert [(each.code, "SIGSEGV" in each.message) for each in late.warnings] == [("bad-exit", True)]


def test_a_hang_is_killed_at_its_deadline_and_shows_where_it_hung(tmp_path: Path) -> None:
    (record,) = bench_fake(tmp_path, ["fake.trouble=hang"], timeout="3s")
    assert (record.status, "3 s" in record.reason) == ("timed out", True)
    assert any("fake.py" in line for line in record.output_tail)


@pytest.mark.usefixtures("one_process")
def test_the_longest_time_is_also_that_of_throughput_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    words = {"mode": "throughput", "iterations": None, "seconds": "5s"}
    (long,), (short,) = (bench_fake(tmp_path, max_time=each, **words) for each in (None, "200ms"))
    spent = [
        sum(one.measurement("throughput").calls / rate for rate in one.samples("throughput")) for one in (long, short)
    ]
    assert spent == [pytest.approx(5, rel=0.05), pytest.approx(0.2, rel=0.3)]
    assert [[each.code for each in one.warnings] for one in (long, short)] == [[], ["not-reached"]]


@pytest.mark.usefixtures("one_process")
def test_a_wrong_answer_is_seen_and_not_ranked(tmp_path: Path) -> None:
    right, wrong = bench_fake(tmp_path, ["fake.error=0,0.02"])
    assert (right.ranked, right.agreement.agrees) == (True, True)
    assert (wrong.ranked, wrong.agreement.rel_l2) == (False, pytest.approx(0.02, rel=0.01))


def unchecked(folder: Path, why: str) -> BenchmarkJob:
    """A few calls of the fake backend, without a reference."""
    return BenchmarkJob(
        case=inferlens.Case(model="fake:demo", backend="fake", variant="steady"),
        budget=inferlens.Budget(iterations=5, warmup=1),
        folder=str(folder),
        cache=str(folder),
        reference=Reference(name="fake", missing=why),
    )


def test_a_missing_reference_is_said_and_counts_as_unchecked(tmp_path: Path) -> None:
    job = unchecked(tmp_path, "the reference failed: no memory")
    found = commands.launch("benchmark", job, BenchmarkResult, timeout=60).result.value.agreement
    assert (found.agrees, "no memory" in found.reason) == (None, True)


COMMAND = [
    sys.executable, "-m", "inferlens", "bench", "fake:demo", "--backend", "fake:steady", "--iterations", "20",
    "--option", "fake.trouble=none,hang", "--quick", "--output",
]  # fmt: skip


def start(output: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """The command, once its second case hangs, and the process of that case."""
    # What a shell starts in the background ignores interrupts, and so does all that it starts.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    scratch = os.environ | {"TMPDIR": str(output)}  # of which a killed process leaves some
    command = subprocess.Popen([*COMMAND, str(output)], preexec_fn=heed, env=scratch, **pipes)
    for _ in range(600):
        children = psutil.Process(command.pid).children()
        hanging = list(output.glob("demo/*hang*"))
        if children and hanging and list(output.glob("demo/*/record.json")):
            return command, children[0]
        threading.Event().wait(0.05)
    command.kill()
    raise AssertionError(command.communicate())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_is_ended_what_was_measured_is_kept_and_no_child_is_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    command, child = start(tmp_path)
    command.send_signal(number)
    printed, noted = command.communicate(timeout=30)
    child.wait(timeout=30)
    loaded = load_records([tmp_path])
    assert ([record.status for record in loaded.records], loaded.problems) == (["ok"], [])
    if number != signal.SIGKILL:
        assert command.returncode == 130, noted
        assert b"fake:steady" in printed
        assert b"Traceback" not in noted
        assert not list(tmp_path.glob("demo/*hang*"))


def test_a_case_killed_by_the_kernel_for_memory_is_called_that(tmp_path: Path) -> None:
    group = next((root for root in map(Path, ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")) if root.is_dir()), tmp_path)
    limit = (
        group / f"inferlens-test-{os.getpid()}" / ("memory.limit_in_bytes" if group.name == "memory" else "memory.max")
    )
    group = limit.parent
    try:
        group.mkdir()
        limit.write_text(str(400 << 20))
    except OSError:
        if group.exists():
            group.rmdir()
        pytest.skip("no memory control group can be made here")
    script = (
        "import os, pathlib, inferlens, sys\n"
        f"pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "records = inferlens.bench('fake:demo', backend='fake:steady', iterations=5, quick=True, output=sys.argv[1],\n"
        "    option=['fake.trouble=eat memory,none'])\n"
        "print([(r.status, r.reason) for r in records])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    finally:
        deadline = time.monotonic() + 10
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        group.rmdir()
    assert "('out of memory', 'killed by the kernel, which was short of memory, during first inference')" in done.stdout
    assert "('ok', '')" in done.stdout


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_what_is_used_is_in_the_peak_and_a_large_parent_is_not_in_that_of_its_child() -> None:
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


def interrupt_twice(folder: Path) -> None:
    """Interrupt a measurement twice, and check that no process is left."""
    job = unchecked(folder, "none")
    started: list[int] = []
    # To the main thread itself: with os.kill another thread may take the signal, so that it comes after this test.
    again = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))

    def interrupt(event: Event) -> None:
        """Once the process has answered; and again, while it is waited for."""
        started.extend(child.pid for child in psutil.Process().children() if child.pid not in started)
        if isinstance(event, TaskAnswer):
            os.kill(started[-1], signal.SIGSTOP)  # it does not leave by itself
            again.start()
            raise KeyboardInterrupt

    def launched() -> None:
        try:
            child.launch("benchmark", job, BenchmarkResult, timeout=60, on_event=interrupt)
        finally:
            again.join()  # where the process was gone before it was stopped, the second one would meet another test

    with pytest.raises(KeyboardInterrupt):
        launched()
    assert started
    assert not any(map(psutil.pid_exists, started))


def test_who_interrupts_twice_leaves_no_process_either(tmp_path: Path) -> None:
    """In a process of its own, which a late interrupt may end."""
    call = f"import pathlib; from {__name__} import interrupt_twice; interrupt_twice(pathlib.Path({str(tmp_path)!r}))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", call], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
