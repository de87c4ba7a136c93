"""Cases timed unprofiled, then profiled in a process of their own: what is kept, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import inferlens
from inferlens.errors import InferlensError
from inferlens.execution import child as processes
from inferlens.execution import profile as profiling
from inferlens.execution.child import Outcome
from inferlens.execution.protocol import Observer, TaskResult
from inferlens.execution.scheduler import Scheduler
from inferlens.measure.monitor.cpu import default_threads
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Environment, Gpu
from inferlens.record.store import load_profiles
from inferlens.record.work import Ceilings
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan
from tests import commands


def profiled(folder: Path, *, runs: int = 8, **words: Any) -> list[Profile]:
    words = {"model": "fake:demo", "backend": "fake", "mode": "latency", "warmup": 1, "iterations": 30, **words}
    made = profiling.run(Plan.from_words({**words, "output": str(folder)}), ("layer",), runs, Observer())
    return [profile for profile, _ in made]


def test_a_profile_lies_beside_the_record_of_the_unprofiled_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    (profile,) = profiled(tmp_path, backend="fake:steady", option="fake.latency=10")
    assert (profile.status, profile.level, profile.runs) == ("ok", "layer", 8)
    assert [layer.name for layer in profile.layers.layers] == ["stem", "body.0", "body.1+head"]
    assert all(len(layer.times) == 8 for layer in profile.layers.layers)
    assert profile.layers.whole == pytest.approx((0.01,) * 8)
    assert [phase.name for phase in profile.phases] == ["load", "build", "first inference", "warm-up", "steady state"]
    loaded = load_profiles([tmp_path])
    assert loaded.profiles == [profile]
    assert loaded.records[profile.id].id == profile.record
    assert len(loaded.records[profile.id].samples("latency")) == 30


@pytest.mark.usefixtures("one_process")
def test_what_did_not_run_is_not_profiled_and_a_crash_while_profiling_leaves_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profile,) = profiled(tmp_path / "raised", option="fake.trouble=raise")
    assert (profile.status, profile.layers, "told to fail" in profile.reason) == ("failed", None, True)

    def crashes(task: Any, *more: Any, **words: Any) -> Any:
        if task == "profile":
            return commands.ended("crashed", "killed by SIGSEGV", ("bang",))
        return commands.launch(task, *more, **words)

    monkeypatch.setattr(processes, "launch", crashes)
    (profile,) = profiled(tmp_path)
    assert (profile.status, profile.reason, profile.output_tail) == ("crashed", "killed by SIGSEGV", ("bang",))
    assert load_profiles([tmp_path]).records[profile.id].status == "ok"
    monkeypatch.setattr(processes, "launch", commands.launch)
    monkeypatch.setattr(profiling, "LayerProfiler", type("Nobody", (), {}))
    (profile,) = profiled(tmp_path, backend="fake:steady")
    assert (profile.status, profile.reason) == ("unsupported", "fake:steady does not report its layers.")


@pytest.mark.usefixtures("one_process")
def test_a_live_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(profiling, "ceilings_of", lambda *_: FAST)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    words = {"backend": "pytorch", "iterations": 5, "warmup": 1, "output": str(tmp_path)}
    (made,) = inferlens.profile(module, torch.randn(2, 8), runs=3, **words)
    assert (made.status, made.reason, made.ceilings) == ("ok", "", FAST)
    assert {"0", "1"} <= {path for layer in made.layers.layers for path in layer.modules}
    with pytest.raises(InferlensError, match="go with a live module"):
        inferlens.profile("fake:demo", torch.randn(2, 8))


@pytest.mark.usefixtures("one_process")
def test_several_processes_and_a_folder_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InferlensError, match="one process for each level"):
        profiled(tmp_path, repeats=3)
    (tmp_path / "results").write_text("a file")
    with pytest.raises(InferlensError, match=r"cannot be written: .+"):
        profiled(tmp_path / "results")


def test_levels_are_words_with_commas() -> None:
    assert profiling.levels_of("layer") == ("layer",)
    assert profiling.levels_of("kernel,layer") == ("kernel", "layer")
    assert profiling.levels_of(["module", "layer", "kernel"]) == ("layer", "kernel"), "modules come from layers"
    with pytest.raises(InferlensError, match="no level 'kernels'"):
        inferlens.profile("fake:demo", level="kernels")


@pytest.mark.usefixtures("one_process")
def test_kernels_are_of_a_gpu(tmp_path: Path) -> None:
    """Each level has a profile of its own, and that the CPU has no kernels is known before anything is loaded."""
    made = inferlens.profile(
        "fake:demo", level="layer,kernel", backend="fake:steady", iterations=30, output=str(tmp_path)
    )
    assert [(each.level, each.status) for each in made] == [("layer", "ok"), ("kernel", "unsupported")]
    assert ("Kernels are what a GPU runs" in made[1].reason, made[1].phases) == (True, ())
    assert sorted(path.name for path in tmp_path.rglob("profile-*.json")) == [
        "profile-kernel.json",
        "profile-layer.json",
    ]
    assert inferlens.load_profiles([tmp_path]).profiles == list(made)


# The ceilings of devices: measured once for a machine and kept; they never fail a profile.

MACHINE = Environment(cpu="a processor", cpu_threads=4, gpus=(Gpu(name="a GPU"),), libraries={"torch": "2.14"})
CPU, GPU = Case(model="x:y", backend="pytorch"), Case(model="x:y", backend="tensorrt", device="cuda", threads=2)
FAST = Ceilings(device="a processor", bandwidth=1e9, rates={"fp32": 1e9})


class GpuLaunch:
    """Stands for the process that measures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: list[profiling.CeilingsJob] = []
        self.outcome: Outcome[Ceilings] = Outcome(TaskResult(value=FAST))

    def __call__(self, task: str, job: profiling.CeilingsJob, returns: Any, *, timeout: float) -> Outcome[Ceilings]:
        self.jobs.append(job)
        return self.outcome

    def asked(self, *cases: Case, rebuild: bool = False, **machine: Any) -> list[Ceilings]:
        """The ceilings of one command's cases."""
        scheduler = Scheduler(Plan(model=("x:y",), output=str(self.folder), rebuild=rebuild))
        vars(scheduler.environments)["here"] = msgspec.structs.replace(MACHINE, **machine)
        known: dict[Path, Ceilings] = {}
        return [profiling.ceilings_of(case, scheduler, known) for case in cases]


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuLaunch:
    made = GpuLaunch(tmp_path)
    monkeypatch.setattr(processes, "launch", made)
    return made


def test_ceilings_are_measured_once_for_each_machine_library_device_and_number_of_threads(launched: GpuLaunch) -> None:
    assert launched.asked(CPU, CPU) + launched.asked(CPU) == [FAST] * 3
    launched.asked(GPU, msgspec.structs.replace(GPU, threads=4), msgspec.structs.replace(CPU, threads=2))
    assert [(job.name, job.device, job.threads) for job in launched.jobs] == [
        ("a processor", "cpu", default_threads()[0]), ("a GPU", "cuda", None), ("a processor", "cpu", 2),
    ]  # fmt: skip
    for machine in ({"cpu": "another"}, {"libraries": {"torch": "2.15"}}, {"variables": {"OMP_NUM_THREADS": "1"}}):
        launched.asked(CPU, **machine)
    assert len(launched.jobs) == 6
    launched.asked(CPU, CPU, rebuild=True)
    assert len(launched.jobs) == 7


def test_disturbed_or_broken_ceilings_are_not_kept(launched: GpuLaunch, tmp_path: Path) -> None:
    disturbed = msgspec.structs.replace(FAST, disturbed="Somebody interrupted.")
    launched.outcome = Outcome(TaskResult(value=disturbed))
    assert launched.asked(CPU, CPU) == [disturbed] * 2
    launched.outcome = Outcome(TaskResult(value=FAST))
    assert launched.asked(CPU) == [FAST]
    (file,) = (tmp_path / ".cache").iterdir()
    for content in (b"", b"{", b'{"device": 3}', b"[" * 100_000):
        file.write_bytes(content)
        assert launched.asked(CPU) == [FAST]
    assert len(launched.jobs) == 6


@pytest.mark.parametrize(
    "outcome",
    [commands.ended("crashed", "killed by SIGSEGV"), Outcome(TaskResult(status="failed", reason="killed by SIGSEGV"))],
)
def test_ceilings_that_cannot_be_measured_have_a_reason(launched: GpuLaunch, outcome: Outcome[Ceilings]) -> None:
    launched.outcome = outcome
    (found,) = launched.asked(CPU)
    assert (found.bandwidth, found.absent) == (0.0, {"all": "killed by SIGSEGV"})
    assert not list((launched.folder / ".cache").iterdir())


def test_a_profile_of_a_model_that_writes_into_its_input_says_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Halves(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.mul_(0.5) + 1

    (made,) = inferlens.profile(Halves(), torch.ones(1, 3), backend="pytorch", iterations=5, output=tmp_path)
    (message,) = [warning.message for warning in made.warnings if warning.code == "inputs-not-renewed"]
    assert message.startswith("The model writes into its input 'x'. Each profiled call goes on with")
