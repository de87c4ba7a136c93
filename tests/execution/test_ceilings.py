"""Ceilings are measured once for a machine and kept, and never fail a profile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferlens.execution import subprocess as processes
from inferlens.execution.profile import CeilingsCache, CeilingsJob
from inferlens.execution.protocol import TaskResult
from inferlens.execution.subprocess import Outcome
from inferlens.record.record import Environment, Gpu
from inferlens.record.work import Ceilings
from inferlens.spec.case import Case
from tests.commands import ended

MACHINE = Environment(cpu="a processor", cpu_threads=4, gpus=(Gpu(name="a GPU"),), libraries={"torch": "2.14"})
CPU, GPU = Case(model="x:y", backend="pytorch"), Case(model="x:y", backend="tensorrt", device="cuda", threads=2)


class Launched:
    """Stands for the process that measures."""

    def __init__(self, disturbed: str = "") -> None:
        self.jobs: list[CeilingsJob] = []
        self.disturbed = disturbed
        self.outcome: Outcome[Ceilings] | None = None

    def __call__(self, task: object, job: CeilingsJob, *, timeout: float) -> Outcome[Ceilings]:
        self.jobs.append(job)
        made = Ceilings(device=job.name, bandwidth=1e9, rates={"fp32": 1e9}, disturbed=self.disturbed)
        return self.outcome or Outcome(TaskResult(found=made))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    made = Launched()
    monkeypatch.setattr(processes, "launch", made)
    return made


def test_they_are_measured_once_for_each_device_and_number_of_threads(tmp_path: Path, launched: Launched) -> None:
    kept = CeilingsCache(tmp_path, MACHINE)
    assert kept.of(CPU) == kept.of(CPU)
    assert kept.of(CPU).device == "a processor"
    assert kept.of(GPU).device == "a GPU"
    assert CeilingsCache(tmp_path, MACHINE).of(CPU).bandwidth == 1e9
    assert [(job.device, job.threads) for job in launched.jobs] == [("cpu", None), ("cuda", None)]
    kept.of(msgspec.structs.replace(CPU, threads=2))
    assert launched.jobs[-1].threads == 2


def test_another_machine_or_library_has_its_own(tmp_path: Path, launched: Launched) -> None:
    CeilingsCache(tmp_path, MACHINE).of(CPU)
    others = ({"cpu": "another"}, {"libraries": {"torch": "2.15"}}, {"variables": {"OMP_NUM_THREADS": "1"}})
    for fields in others:
        CeilingsCache(tmp_path, msgspec.structs.replace(MACHINE, **fields)).of(CPU)
    assert len(launched.jobs) == 4


def test_a_rebuild_measures_again_once(tmp_path: Path, launched: Launched) -> None:
    CeilingsCache(tmp_path, MACHINE).of(CPU)
    kept = CeilingsCache(tmp_path, MACHINE, rebuild=True)
    kept.of(CPU)
    kept.of(CPU)
    assert len(launched.jobs) == 2


def test_disturbed_ones_are_used_and_not_kept(tmp_path: Path, launched: Launched) -> None:
    launched.disturbed = "Somebody interrupted."
    kept = CeilingsCache(tmp_path, MACHINE)
    assert kept.of(CPU).disturbed == kept.of(CPU).disturbed == "Somebody interrupted."
    assert len(launched.jobs) == 1
    CeilingsCache(tmp_path, MACHINE).of(CPU)
    assert len(launched.jobs) == 2


def test_a_broken_file_is_measured_anew(tmp_path: Path, launched: Launched) -> None:
    CeilingsCache(tmp_path, MACHINE).of(CPU)
    (file,) = tmp_path.iterdir()
    for content in (b"", b"{", b'{"device": 3}', b"[" * 100_000):
        file.write_bytes(content)
        assert CeilingsCache(tmp_path, MACHINE).of(CPU).bandwidth == 1e9
    assert len(launched.jobs) == 5


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (ended("crashed", "killed by SIGSEGV"), "killed by SIGSEGV"),
        (Outcome(TaskResult(status="failed", reason="There is no PyTorch.")), "There is no PyTorch."),
    ],
)
def test_a_failure_is_a_reason(tmp_path: Path, launched: Launched, outcome: Outcome[Ceilings], why: str) -> None:
    launched.outcome = outcome
    found = CeilingsCache(tmp_path, MACHINE).of(CPU)
    assert (found.bandwidth, found.absent) == (0.0, {"all": why})
    assert not list(tmp_path.iterdir())
