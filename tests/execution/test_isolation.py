"""Whatever a case does to its process becomes its own row, and the other rows are right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import inferlens
from inferlens.execution import survey
from inferlens.execution.benchmark import BenchmarkJob, Measured, Reference, benchmark
from inferlens.execution.subprocess import launch, oom_kills
from inferlens.record.store import load_records
from inferlens.views.rows import rows

TROUBLES = {
    "raise": ("failed", "RuntimeError: this backend was told to fail"),
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
    ask = survey.probe
    monkeypatch.setattr(survey, "probe", lambda _: ask(["fake"]))


def bench_fake(tmp_path: Path, option: list[str] | None = None, **words: object) -> list[inferlens.Record]:
    words = {"backend": "fake:steady", "iterations": 50, "warmup": 2, **words}
    return inferlens.bench("fake:demo", option=option, output=str(tmp_path / "results"), **words)


def test_every_trouble_is_a_row_and_the_rows_around_it_are_right(tmp_path: Path) -> None:
    troubles = ["none", *TROUBLES, "none"]
    records = bench_fake(tmp_path, [f"fake.trouble={','.join(troubles)}"])
    by_trouble = {record.case.options["trouble"]: record for record in records}
    assert by_trouble["none"].status == "ok"
    assert set(by_trouble["none"].samples("latency")) == {0.004}
    for trouble, (status, words) in TROUBLES.items():
        record = by_trouble[trouble]
        assert record.status == status, trouble
        assert words in record.reason, trouble
        assert record.environment.cpu
    on_disk = load_records([tmp_path / "results" / "demo"])
    assert {record.id for record in on_disk.records} == {record.id for record in records}
    assert on_disk.problems == []


@pytest.mark.parametrize("place", ["prepare", "enter", "infer"])
def test_a_crash_names_the_phase_it_happened_in(tmp_path: Path, place: str) -> None:
    (record,) = bench_fake(tmp_path, ["fake.trouble=segfault", f"fake.when={place}"])
    phase = {"prepare": "load", "enter": "build", "infer": "first inference"}[place]
    assert record.status == "crashed"
    assert f"during {phase}" in record.reason
    assert any("Segmentation fault" in line for line in record.output_tail)


def test_a_hang_is_killed_at_its_deadline_and_shows_where_it_hung(tmp_path: Path) -> None:
    (record,) = bench_fake(tmp_path, ["fake.trouble=hang"], timeout="5s")
    assert record.status == "timed out"
    assert "5 s" in record.reason
    assert any("_hang" in line for line in record.output_tail)


def test_the_longest_time_is_also_that_of_throughput_alone(tmp_path: Path) -> None:
    words = {"mode": "throughput", "iterations": None, "seconds": "5s"}
    (long,), (short,) = (bench_fake(tmp_path, max_time=each, **words) for each in (None, "200ms"))
    spent = [
        sum(one.measurement("throughput").calls / rate for rate in one.samples("throughput")) for one in (long, short)
    ]
    assert spent == [pytest.approx(5, rel=0.05), pytest.approx(0.2, rel=0.3)]
    assert long.warnings == ()
    assert [each.message for each in short.warnings] == [
        "Throughput was measured for 200 ms of 5.00 s: the time was up."
    ]


def test_a_deadline_in_the_middle_of_throughput_keeps_the_latencies(tmp_path: Path) -> None:
    options = ["fake.trouble=hang", "fake.when=throughput"]
    (record,) = bench_fake(tmp_path, options, timeout="5s")
    assert (record.status, len(record.samples("latency")), record.samples("throughput")) == ("ok", 50, ())
    assert record.agreement is not None
    assert record.agreement.agrees
    assert [warning.code for warning in record.warnings] == ["throughput-missing"]
    (row,) = rows([record])
    assert (row.median, row.iterations_per_second) == (pytest.approx(0.004), None)
    (alone,) = bench_fake(tmp_path, options, timeout="5s", mode="throughput", iterations=None)
    assert alone.status == "timed out"


def test_rubbish_on_the_output_disturbs_nothing(tmp_path: Path) -> None:
    (record,) = bench_fake(tmp_path, ["fake.trouble=rubbish"])
    assert record.status == "ok"
    assert len(record.samples("latency")) == 50
    assert not any("\x1b" in line for line in record.output_tail)


def test_a_crash_after_the_last_sample_keeps_the_numbers_and_says_so(tmp_path: Path) -> None:
    crashed, raised = bench_fake(tmp_path, ["fake.trouble=segfault,raise", "fake.when=exit"])
    for record, words in ((crashed, "SIGSEGV"), (raised, "exit code 1")):
        assert record.status == "ok"
        assert len(record.samples("latency")) == 50
        (warning,) = record.warnings
        assert warning.code == "bad-exit"
        assert words in warning.message


def test_a_wrong_answer_is_seen_and_not_ranked(tmp_path: Path) -> None:
    right, wrong = bench_fake(tmp_path, ["fake.error=0,0.02"])
    assert right.ranked
    assert right.agreement is not None
    assert right.agreement.agrees
    assert not wrong.ranked
    assert wrong.agreement is not None
    assert wrong.agreement.rel_l2 == pytest.approx(0.02, rel=0.01)


def test_a_missing_reference_is_said_and_counts_as_unchecked(tmp_path: Path) -> None:
    job = BenchmarkJob(
        case=inferlens.Case(model="fake:demo", backend="fake", variant="steady"),
        budget=inferlens.Budget(iterations=5, warmup=1),
        folder=str(tmp_path),
        cache=str(tmp_path),
        reference=Reference(name="fake", missing="the reference failed: no memory"),
    )
    outcome = launch(benchmark, job, timeout=60)
    assert isinstance(outcome.result.found, Measured)
    found = outcome.result.found.agreement
    assert found
    assert (found.agrees, "no memory" in found.reason) == (None, True)


COMMAND = [
    sys.executable, "-m", "inferlens", "bench", "fake:demo", "--backend", "fake:steady", "--iterations", "20",
    "--option", "fake.trouble=none,hang", "--output",
]  # fmt: skip


def start(output: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """The command, once its second case hangs, and the process of that case."""
    command = subprocess.Popen([*COMMAND, str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(600):
        children = psutil.Process(command.pid).children()
        hanging = list(output.glob("demo/*hang*"))
        if children and hanging and list(output.glob("demo/*/record.json")):
            return command, children[0]
        threading.Event().wait(0.05)
    command.kill()
    raise AssertionError(command.communicate())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured_and_leaves_no_child(tmp_path: Path, number: signal.Signals) -> None:
    command, child = start(tmp_path)
    command.send_signal(number)
    printed, noted = command.communicate(timeout=30)
    assert command.returncode == 130, noted
    assert b"fake:steady" in printed
    assert b"Traceback" not in noted
    assert not child.is_running()
    loaded = load_records([tmp_path])
    assert [record.status for record in loaded.records] == ["ok"]
    assert not list(tmp_path.glob("demo/*hang*"))


def test_killed_at_any_moment_the_store_still_reads_and_the_child_dies_too(tmp_path: Path) -> None:
    command, child = start(tmp_path)
    command.kill()
    command.communicate(timeout=30)
    child.wait(timeout=30)
    loaded = load_records([tmp_path])
    assert [record.status for record in loaded.records] == ["ok"]
    assert loaded.problems == []


CGROUP = Path("/sys/fs/cgroup")


def limited_group(limit: int) -> Path | None:
    """A memory control group of our own, where the system lets us have one."""
    for root, file in ((CGROUP / "memory", "memory.limit_in_bytes"), (CGROUP, "memory.max")):
        group = root / f"inferlens-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / file).write_text(str(limit))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        return group
    return None


def test_a_case_killed_by_the_kernel_for_memory_is_called_that(tmp_path: Path) -> None:
    group = limited_group(400 << 20)
    if group is None:
        pytest.skip("no memory control group can be made here")
    before = oom_kills()
    script = (
        "import os, pathlib, inferlens, sys\n"
        f"pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "records = inferlens.bench('fake:demo', backend='fake:steady', iterations=5, output=sys.argv[1],\n"
        "    option=['fake.trouble=eat memory,none'])\n"
        "print([(r.status, r.reason) for r in records])\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        deadline = time.monotonic() + 10
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        group.rmdir()
    assert oom_kills() > before
    assert "('out of memory', 'killed by the kernel, which was short of memory, during first inference')" in done.stdout
    assert "('ok', '')" in done.stdout
