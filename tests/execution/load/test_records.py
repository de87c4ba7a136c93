"""Records of load tests: what a resumed run compares, what limits a rate, and the winners of a folder of records."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import inferlens as public
from inferlens.errors import InferlensError
from inferlens.execution.load.run import limited_by, load_template, run_http, with_observations
from inferlens.record.load import Deployment, Limit, LoadRecord, LoadRun
from inferlens.record.machine import CpuSamples, GpuSamples, MachineLog
from inferlens.spec.case import Case
from inferlens.spec.commands import own_options
from inferlens.spec.plan import Plan
from inferlens.views.results import winner_plans
from tests.commands import inferlens

CASE = Case(model="fake:demo", backend="fake", variant="steady", device="cuda")
RUN = LoadRun(rate=100, begin=10.0, seconds=4.0, answered=400, mean_batch=1.0)


def record(case: Case = CASE, deployment: Deployment | None = None, **fields: Any) -> LoadRecord:
    most = deployment or Deployment()
    return replace(LoadRecord(id="", created="", case=case, requested=most, deployment=most), **fields)


@pytest.mark.parametrize("change", [
    {"seconds": 1.0}, {"search": True}, {"rates": (5.0,)}, {"limit": Limit(0.5)}, {"round": 1},
    {"requested": Deployment(2)}, {"case": replace(CASE, precision="fp16")},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_run_with_other_options_is_measured_again(change: dict[str, Any]) -> None:
    assert record().key == record().key
    assert record(**change).key != record().key


@pytest.mark.parametrize(("limit", "device", "run", "wait"), [
    ("gpu", "cuda", {"gpu": 0.97, "busy": 0.99}, 0.0),
    ("host", "cuda", {"gpu": 0.4, "busy": 0.99, "host": 0.1}, 0.0), ("cpu", "cpu", {"busy": 0.7, "host": 0.95}, 0.0),
    ("instances", "cpu", {"busy": 0.95, "host": 0.5}, 0.0), ("call", "cpu", {"busy": 0.3, "mean_batch": 2.0}, 0.0),
    ("batching", "cpu", {"busy": 0.3, "waited": 0.015}, 0.02), ("queue", "cpu", {"busy": 0.3, "waited": 0.015}, 0.005),
    ("queue", "cpu", {"busy": 0.6, "waited": 0.004}, 0.0),
])  # fmt: skip
def test_what_limits_a_rate_follows_from_the_machine(
    limit: str, device: str, run: dict[str, float], wait: float
) -> None:
    made = record(
        replace(CASE, device=device), Deployment(1, 2, wait), capacity=100.0, runs=(replace(RUN, **run),),
        service=({1: 0.01, 2: 0.03},),
    )  # fmt: skip
    assert limited_by(made) == limit


def test_a_run_has_the_use_of_the_machine_and_the_energy_of_a_request() -> None:
    times = tuple(9 + 0.1 * tick for tick in range(70))
    log = MachineLog(
        interval=0.1,
        cpus=4,
        gpu=GpuSamples(times=times, utilisation=tuple(0.9 if 10 <= time <= 14 else 0.1 for time in times),
                       energy=tuple(200 * time for time in times)),
        cpu=CpuSamples(times=(10.0, 11.0, 12.0, 15.0), busy=(4.0, 1.0, 3.0, 4.0), others=(4.0, 0.5, 0.5, 4.0)),
    )  # fmt: skip
    made = with_observations(record(capacity=100.0, runs=(RUN,)), log)
    run = made.run
    assert run is not None
    assert (run.gpu, run.host, run.others) == (0.9, 0.5, 0.5)
    assert run.energy is not None
    assert run.energy.joules == pytest.approx(2.0, rel=0.01)  # 200 W at 100 requests a second
    assert made.limited_by == "gpu"


def test_the_options_of_a_deployment_are_refused_for_a_server() -> None:
    own, _ = own_options("load", {"scenario": "", "instances": 2})
    with pytest.raises(InferlensError, match="that Inferlens serves itself"):
        run_http(Plan(model=("http://127.0.0.1:1",)), load_template(own), "http://127.0.0.1:1")


@pytest.mark.usefixtures("one_process")
def test_a_folder_of_records_gives_its_winners(tmp_path: Path) -> None:
    inferlens(
        "bench", "fake:demo", "-b", "fake:steady,fake:fast", "--precision", "fp16", "--quick", "--option",
        "fake.sleep=true", cwd=tmp_path,
    )  # fmt: skip
    folder = tmp_path / "results" / "demo"
    (plan,) = winner_plans(folder, {})
    assert (plan.model, plan.backend, plan.precision) == (("fake:demo",), ("fake:fast",), ("fp16",))
    assert plan.option == {"fake.sleep": ("true",)}
    assert plan.output == str(tmp_path / "results")
    (plan,) = winner_plans(folder, {"backend": ["fake:steady"], "seed": 3})
    assert (plan.backend, plan.seed) == (("fake:steady",), 3)
    with pytest.raises(InferlensError, match="No case of onnxruntime"):
        winner_plans(folder, {"backend": ["onnxruntime"]})


@pytest.mark.usefixtures("one_process")
def test_python_has_the_options_of_the_command(tmp_path: Path) -> None:
    assert "within" in inspect.signature(public.load_test).parameters
    with pytest.raises(InferlensError, match="withn"):
        public.load_test("fake:demo", withn="p99=50ms")
    made = public.load_test(
        "fake:demo", backend="fake:steady", option={"fake.sleep": True}, rate=50, seconds=0.2, instances=1,
        batching="max=1", output=tmp_path,
    )  # fmt: skip
    assert [run.rate for run in made[0].runs] == [50]
    assert "50.0 requests/s" in str(made)
    with pytest.raises(InferlensError, match="No way keeps the limit"):
        _ = made.best
