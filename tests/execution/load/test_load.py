"""Load on instances of the fake backend, which sleeps for the time of a call, also with LoadGen as the driver.

They are real processes where those matter; else they are threads of this process. Instances die and hang under load,
the exported server is measured over HTTP, and records have what limits a rate.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from msgspec.structs import replace

import inferlens
from inferlens.analysis.load import capacity_race
from inferlens.errors import InferlensError
from inferlens.execution.load import dispatcher, tasks
from inferlens.execution.load import run as load_run
from inferlens.execution.load import serve as server
from inferlens.execution.load.run import limited_by, load_template, load_test, run_http, with_observations, with_threads
from inferlens.execution.protocol import Observer
from inferlens.execution.scheduler import Scheduler
from inferlens.record.load import POOL, Deployment, Limit, LoadRecord, LoadRun
from inferlens.record.machine import CpuSamples, GpuSamples, MachineLog
from inferlens.spec.case import Case
from inferlens.spec.commands import own_options
from inferlens.spec.plan import Plan
from inferlens.views.results import winner_plans
from tests.commands import inferlens as command
from tests.commands import output_of, stay

pytestmark = pytest.mark.usefixtures("without_torch", "probed_here")


def measured(output: Path, *backends: str, option: tuple[str, ...] = (), **words: object) -> list[LoadRecord]:
    plan = {"backend": backends or ("fake:steady",), "output": str(output), "option": ("fake.sleep=true", *option)}
    records: list[LoadRecord] = []
    load_test("fake:demo", {**plan, **words}, Observer(), records)
    return records


@pytest.fixture(scope="module")
def at_rates(tmp_path_factory: pytest.TempPathFactory) -> LoadRecord:
    """A call takes 4 ms; two instances serve 500 requests a second at most."""
    output = tmp_path_factory.mktemp("rates")
    words = {"rate": ("100", "1000"), "instances": 2, "batching": "max=1", "seconds": "0.4s"}
    (record,) = measured(output, **words)
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        (again,) = measured(output, **words)
    assert again.id == record.id  # the same command goes on
    return record


def test_a_rate_below_the_capacity_is_served(at_rates: LoadRecord) -> None:
    run = at_rates.runs[0]
    assert (run.rate, run.failed, run.refused) == (100, 0, 0)
    assert run.throughput == pytest.approx(100, rel=0.3)
    assert run.quantiles[0] >= 0.004


def test_a_rate_above_the_capacity_shows_its_queue(at_rates: LoadRecord) -> None:
    run = at_rates.runs[1]
    assert run.throughput <= 501
    assert run.quantiles[2] > 0.1
    assert max(run.queue) > 100
    assert run.busy > 0.6  # less than 1 beside other programs


def test_answers_are_compared_with_the_reference(at_rates: LoadRecord) -> None:
    assert at_rates.agreement.agrees
    assert at_rates.checked > 50
    assert at_rates.mixed_up == 0


@pytest.fixture
def in_threads(one_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run instances and traffic in this process, with shorter measurements before the traffic."""
    monkeypatch.setattr(dispatcher, "SERVICE_SECONDS", 0.1)
    monkeypatch.setattr(dispatcher, "SIMULATED_REQUESTS", 500)


def test_wrong_answers_are_noticed(tmp_path: Path, in_threads: None) -> None:
    words = {"rate": ("100",), "instances": 1, "batching": "max=2", "seconds": "0.2s"}
    (record,) = measured(tmp_path, option=("fake.error=0.5",), **words)
    assert record.agreement.agrees is False
    assert capacity_race([record]) is None


def test_answers_that_went_to_other_requests_are_caught() -> None:
    expected = {0: [np.arange(POOL, dtype=np.float32)[:, None] + 1]}
    right = tasks._checked([([1, 2, 3], [expected[0][0][[1, 2, 3, 3]]])], expected, 0.1, "reference")
    mixed = tasks._checked([([1, 2, 3], [expected[0][0][[2, 1, 3, 3]]])], expected, 0.1, "reference")
    assert (right.agreement.agrees, right.mixed_up) == (True, 0)
    assert (mixed.agreement.agrees, mixed.mixed_up) == (False, 2)
    assert "belong to other requests" in mixed.agreement.reason


def test_an_instance_that_fails_is_a_row_with_its_reason(tmp_path: Path, in_threads: None) -> None:
    (record,) = measured(tmp_path, rate=("50",), instances=1, batching="max=1", option=("fake.trouble=raise",))
    assert record.status != "ok"
    assert "was told to fail" in record.reason


@pytest.mark.usefixtures("in_threads")
def test_the_way_with_the_shorter_calls_serves_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways that take 8 and 4 ms serve up to 125 and 250 requests a second, if these come evenly."""

    def simulated(record: LoadRecord, _: object, keep: Callable[[LoadRecord], None], end: float) -> LoadRecord:
        seconds = 0.004 if record.case.variant == "fast" else 0.008
        return dispatcher.measure(record, dispatcher.SimulatedInstances(1, lambda *_: seconds), keep, end)

    monkeypatch.setattr(tasks, "measure", simulated)
    words = {"arrivals": "constant", "batching": "max=1", "instances": 1, "within": "p99=50ms"}
    records = measured(tmp_path, "fake:steady", "fake:fast", **words)
    race = capacity_race(records)
    capacities = {record.case.variant: record.capacity for record in records}
    assert race.decided
    assert race.leader == next(record.case.digest for record in records if record.case.variant == "fast")
    assert capacities == {"steady": pytest.approx(125, rel=0.1), "fast": pytest.approx(250, rel=0.1)}


def test_sizes_whose_call_takes_longer_than_the_limit_are_not_prepared(tmp_path: Path, in_threads: None) -> None:
    """A call takes 4 ms, and 104 ms with two requests."""
    words = {"within": "p99=50ms", "instances": 1, "seconds": "0.1s", "budget": "1s"}
    (record, *_) = measured(tmp_path, option=("fake.per_item=100",), **words)
    assert {*record.service[0]} == {1, 2}
    assert record.requested.max_batch == 16


def by_loadgen(folder: Path, scenario: str, rate: str, within: str) -> LoadRecord:
    """Measure calls of 4 ms in a scenario of LoadGen."""
    pytest.importorskip("mlperf_loadgen")
    words = {"instances": 1, "batching": "max=1", "seconds": "0.3s"}
    (record,) = measured(folder, scenario=scenario, rate=(rate,), within=within, **words)
    return record


@pytest.mark.parametrize("scenario", ["server", "single-stream"])
def test_loadgen_drives_the_same_instances(tmp_path: Path, scenario: str, in_threads: None) -> None:
    """Its latency is that of a call; it was once longer by the time that a thread took to start."""
    record = by_loadgen(tmp_path, scenario, "100", "p50=200ms")
    verdict, run = record.loadgen, record.runs[0]
    assert verdict.valid, verdict.reason
    assert Path(verdict.logs, "mlperf_log_detail.txt").exists()
    assert verdict.at_limit == pytest.approx(0.008, abs=0.004)
    if scenario == "server":
        assert verdict.rate == pytest.approx(run.throughput, rel=0.2)


def test_an_invalid_run_of_loadgen_has_its_reason(tmp_path: Path, in_threads: None) -> None:
    verdict = by_loadgen(tmp_path, "server", "200", "p50=1ms").loadgen
    assert not verdict.valid
    assert "Performance constraints satisfied" in verdict.reason


@pytest.mark.parametrize(("device", "instances", "threads"), [("cpu", 2, 2), ("cpu", 8, 1), ("cuda", 1, 1)])
def test_instances_share_the_threads_of_a_cpu(monkeypatch, device, instances, threads):
    monkeypatch.setattr(load_run, "usable_cpus", lambda: [*range(4)])
    case = Case(model="fake:demo", backend="fake", device=device)
    assert with_threads(case, Deployment(instances)).threads == threads


# Records

CASE = Case(model="fake:demo", backend="fake", variant="steady", device="cuda")
RUN = LoadRun(rate=100, begin=10.0, seconds=4.0, answered=400, mean_batch=1.0)


def record_of(case: Case = CASE, deployment: Deployment | None = None, **fields: Any) -> LoadRecord:
    most = deployment or Deployment()
    return replace(LoadRecord(id="", created="", case=case, requested=most, deployment=most), **fields)


@pytest.mark.parametrize("change", [
    {"seconds": 1.0}, {"search": True}, {"rates": (5.0,)}, {"limit": Limit(0.5)}, {"round": 1},
    {"requested": Deployment(2)}, {"case": replace(CASE, precision="fp16")},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_run_with_other_options_is_measured_again(change: dict[str, Any]) -> None:
    assert record_of().key == record_of().key
    assert record_of(**change).key != record_of().key


@pytest.mark.parametrize(("limit", "device", "run", "wait"), [
    ("gpu", "cuda", {"gpu": 0.97, "busy": 0.99}, 0.0),
    ("host", "cuda", {"gpu": 0.4, "busy": 0.99, "host": 0.1}, 0.0), ("cpu", "cpu", {"busy": 0.7, "host": 0.95}, 0.0),
    ("instances", "cpu", {"busy": 0.95, "host": 0.5}, 0.0), ("call", "cpu", {"busy": 0.3, "mean_batch": 2.0}, 0.0),
    ("batching", "cpu", {"busy": 0.3, "waited": 0.015}, 0.02), ("queue", "cpu", {"busy": 0.3, "waited": 0.015}, 0.005),
    ("queue", "cpu", {"busy": 0.6, "waited": 0.004}, 0.0),
])  # fmt: skip
def test_what_limits_a_rate_follows_from_the_machine(limit, device, run, wait):
    made = record_of(
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
    made = with_observations(record_of(capacity=100.0, runs=(RUN,)), log)
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


def test_a_folder_of_records_gives_its_winners(tmp_path: Path, one_process: None) -> None:
    command(
        "bench", "fake:demo", "-b", "fake:steady,fake:fast", "--precision", "fp16", "--quick", "--option",
        "fake.sleep=true", "--iterations", "20", "--warmup", "1", "--mode", "latency", cwd=tmp_path,
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


def test_python_has_the_options_of_the_command(tmp_path: Path, in_threads: None) -> None:
    assert "within" in inspect.signature(inferlens.load_test).parameters
    with pytest.raises(InferlensError, match="withn"):
        inferlens.load_test("fake:demo", withn="p99=50ms")
    made = inferlens.load_test(
        "fake:demo", backend="fake:steady", option={"fake.sleep": True}, rate=50, seconds=0.2, instances=1,
        batching="max=1", output=tmp_path,
    )  # fmt: skip
    assert [run.rate for run in made[0].runs] == [50]
    assert "50.0 requests/s" in str(made)
    with pytest.raises(InferlensError, match="No way keeps the limit"):
        _ = made.best


# The exported server runs without this library

SCRIPT = """
import numpy as np
inputs = [np.zeros(({size}, 2), np.float32)]
def run(x):
    assert x.shape == ({size}, 2), "of another size"
    return 2 * x + offset
offset = 1
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with two instances of a script that returns ``2 x + 1``."""
    folder = tmp_path_factory.mktemp("server")
    settings = {
        "model": "twice", "sizes": [1, 2], "instances": 2, "max_batch": 2, "wait": 0.0, "queue": 0, "seed": 0,
        "inputs": {"x": True}, "specs": [{"name": "x", "shape": [1, 2], "dtype": "float32"}],
    }  # fmt: skip
    for size in settings["sizes"]:
        (folder / f"batch-{size}").mkdir()
        (folder / f"batch-{size}" / "run.py").write_text(SCRIPT.format(size=size))
    (folder / "serve.json").write_text(json.dumps(settings))
    command = [sys.executable, shutil.copy(server.__file__, folder), "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().split()[-1]
        process.send_signal(signal.SIGINT)


def test_a_request_is_answered_by_the_script_or_refused_with_the_reason(url: str) -> None:
    connection, body = HTTPConnection(url.removeprefix("http://")), io.BytesIO()
    np.savez(body, x=np.array([3, 4], np.float32))
    connection.request("POST", "/infer", body.getvalue())
    assert np.load(io.BytesIO(connection.getresponse().read()))["output0"].tolist() == [7, 9]
    connection.request("POST", "/infer", b"no arrays")
    response = connection.getresponse()
    assert (response.status, bool(response.read())) == (400, True)


def test_it_is_measured_over_http(url: str, tmp_path: Path) -> None:
    template = load_template(own_options("load", {"rate": ("50",), "seconds": 0.3})[0])
    (record,) = run_http(Plan(model=(url,), output=str(tmp_path / "results")), template, url)
    assert (record.model.name, record.deployment.instances) == ("twice", 2)
    assert (record.runs[0].rate, record.runs[0].failed) == (50, 0)
    assert record.runs[0].answered


# Instances that die or hang, and an interrupt


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


@pytest.mark.parametrize(("number", "reason"), [
    (signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "did not answer for"),
], ids=["dies", "hangs"])  # fmt: skip
def test_requests_in_flight_have_failed(tmp_path, monkeypatch, number, reason):
    monkeypatch.setattr(load_run, "PATIENCE", 1.0)
    strike(monkeypatch, number, tmp_path / "demo" / "load")
    (record,) = measured(tmp_path, rate=("50", "60"), instances=1, batching="max=1", seconds="0.5s")
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


def test_an_interrupt_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path: Path, in_threads: None) -> None:
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
