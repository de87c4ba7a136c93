"""Instances that die or hang under load, and an interrupt: what was measured stays, and nothing runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from inferlens.execution.load import run as load_run
from inferlens.execution.load.run import load_test
from inferlens.execution.protocol import Observer
from inferlens.execution.scheduler import Scheduler
from inferlens.record.load import LoadRecord
from tests.commands import output_of

pytestmark = pytest.mark.usefixtures("without_torch", "probed_here")


def strike(monkeypatch: pytest.MonkeyPatch, number: int, folder: Path) -> None:
    """Send a signal to the instance when its first run is in the folder, so that the second one is under way."""
    launch = Scheduler.launch

    def watched(self: Scheduler, task: str, *arguments: Any, started: Any = None, **words: Any) -> Any:
        def begin(pid: int) -> None:
            started(pid)
            if task == "serve":
                threading.Thread(target=strike_when_saved, args=(pid, number, folder), daemon=True).start()

        return launch(self, task, *arguments, **words, **({"started": begin} if started else {}))

    monkeypatch.setattr(Scheduler, "launch", watched)


def strike_when_saved(pid: int, number: int, folder: Path) -> None:
    while not saved(folder):
        time.sleep(0.02)
    os.kill(pid, number)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "did not answer for")],
    ids=["dies", "hangs"],
)
def test_requests_in_flight_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    monkeypatch.setattr(load_run, "PATIENCE", 2.0)
    strike(monkeypatch, number, tmp_path / "demo" / "load")
    words = {"rate": ("50", "60"), "instances": 1, "batching": "max=1", "seconds": "0.5s", "backend": "fake:steady"}
    records: list[LoadRecord] = []
    load_test("fake:demo", {**words, "output": str(tmp_path), "option": ["fake.sleep=true"]}, Observer(), records)
    (record,) = records
    assert record.status != "ok"
    assert reason in record.reason
    assert (record.runs[0].failed, record.runs[0].answered > 0) == (0, True)
    assert record.runs[1].failed > 0


def saved(folder: Path) -> list[LoadRecord]:
    return [msgspec.json.decode(file.read_bytes(), type=LoadRecord) for file in sorted(folder.glob("*.json"))]


COMMAND = [
    "load", "fake:demo", "-b", "fake:steady,fake:fast", "--option", "fake.sleep=true", "--rate", "100,110",
    "--instances", "1", "--batching", "max=1", "--seconds", "0.25",
]  # fmt: skip


def test_an_interrupt_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "demo" / "load"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen([sys.executable, "-m", "inferlens", *COMMAND], cwd=tmp_path, **pipes)
    end = time.monotonic() + 200
    while len(saved(folder)) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    children = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "the same command goes on" in err
    assert "100 requests/s" in out
    assert "fast sleep=true: the measurement was interrupted" in out
    psutil.wait_procs(children, timeout=5)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    kept, interrupted = saved(folder)
    assert (len(kept.runs), len(interrupted.runs)) == (2, 1)
    output_of(*COMMAND, cwd=tmp_path)
    *_, last = records = saved(folder)
    assert [record.case.variant for record in records] == ["steady", "fast", "fast"]
    assert (records[0].id, last.status, len(last.runs)) == (kept.id, "ok", 2)
