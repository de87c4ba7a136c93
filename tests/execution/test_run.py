"""From Python: names, live modules, options; real backends on a tiny real model; the order of repeats."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
import torch

import inferlens
from inferlens import InferlensError
from inferlens.backends.base import Recommendation
from inferlens.backends.fake import Fake, FakeRunner
from inferlens.errors import Unsupported
from inferlens.execution import child as processes
from inferlens.execution import scheduler
from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.resume import request_hash
from inferlens.execution.run import measuring_order
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.tasks import BenchmarkJob
from inferlens.models.model import ModelInfo
from inferlens.record.record import CUT_SHORT
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan
from tests.analysis.machine_logs import cpu_log, during
from tests.commands import Heard, ended, launch
from tests.views.samples import case

LAUNCH = processes.launch
pytestmark = pytest.mark.usefixtures("one_process")


class Tiny(torch.nn.Module):
    """A convolution, a norm, a linear layer."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 12)

    def forward(self, image):
        features = self.body(image)
        return {"scores": self.head(features.mean((2, 3))), "features": [features]}


REAL = "pytorch,torchscript:trace,onnxruntime:cpu,openvino:cpu"


def test_a_live_module_runs_on_every_backend_and_agrees(tmp_path):
    words = {"iterations": 20, "warmup": 3, "output": str(tmp_path), "device": "cpu", "quick": True}
    words |= {"mode": "latency"}
    records = inferlens.bench(Tiny().eval(), torch.randn(2, 3, 16, 16), backend=REAL, **words)
    assert [record.case.backend_label for record in records] == REAL.split(",")
    for record in records:
        assert record.status == "ok", (record.case.label, record.reason, record.output_tail)
        assert record.agreement.agrees, (record.case.label, record.agreement)
        assert (len(record.samples("latency")), record.batch) == (20, 2)
        assert record.memory.host_peak
        assert (record.case.threads, record.facts["threads"]) == (None, 1)  # of the tests' OMP_NUM_THREADS
        assert [phase.name for phase in record.phases][-3:] == ["first inference", "warm-up", "steady state"]
    assert "pytorch-fp32-b2-cpu" in {path.parent.name for path in tmp_path.glob("Tiny/*/record.json")}
    assert "Where does the time go? inferlens.profile(model, example_inputs, backend=" in str(records)


def test_the_check_catches_a_backend_that_computes_something_else(tmp_path, monkeypatch):
    """Tracing fixes a branch. It is a live module too, which goes to the process of the case."""

    class Branching(torch.nn.Module):
        def forward(self, x):
            return x * 2 if torch.jit.is_tracing() else x

    def launched(task, *given, **words):
        return (LAUNCH if task == "benchmark" else launch)(task, *given, **words)

    monkeypatch.setattr(processes, "launch", launched)
    words = {"device": "cpu", "iterations": 5, "warmup": 1, "quick": True, "mode": "latency", "output": tmp_path}
    (record,) = inferlens.bench(Branching(), torch.randn(4, 64), backend="torchscript:trace", **words)
    assert (record.status, record.agreement.agrees, record.ranked) == ("ok", False, False)


def test_single_values_lists_and_texts_with_commas_are_the_same_also_of_models(tmp_path):
    common, models = {"iterations": 5, "output": str(tmp_path), "quick": True}, ["fake:a", "fake:b"]
    one = inferlens.bench(models, backend="fake:steady,fake:fast", batch="1,2", **common)
    two = inferlens.bench(models, backend=["fake:steady", "fake:fast"], batch=[1, 2], rerun=True, **common)
    assert [record.case for record in one] == [record.case for record in two]
    assert [record.model.name for record in one] == ["a"] * 4 + ["b"] * 4
    assert (len({record.run for record in one}), len({record.id for record in one + two})) == (1, 16)
    with pytest.raises(InferlensError, match="live module"):
        inferlens.bench("fake:demo", torch.zeros(1), output=str(tmp_path))


def compiled_from(spec, format, **made):
    origin = Case(model=spec, backend="tensorrt", **made)
    return ModelInfo(spec="engine:net.engine", name="net", format="engine", origin=origin, origin_format=format)


def reference_of(found, folder, *, trust=False, seed=0):
    case = Case(model=found.spec, backend="tensorrt", variant="rtx", device="cuda", seed=seed)
    plan = Plan(model=("net.engine",), trust=trust, output=str(folder))
    return Scheduler(plan, Observer(), folder).references.of(PlannedCase(case, found, None))


@pytest.mark.parametrize("trust", [False, True])
def test_a_file_that_names_code_as_its_source_runs_it_only_with_trust(trust, tmp_path):
    """What lies beside a compiled file may come from anywhere."""
    found = compiled_from(spec="factory:nowhere_to_be_found:build", format="module")
    missing = reference_of(found, tmp_path, trust=trust).missing
    assert ("--trust" in missing) is not trust
    assert trust is ("nowhere_to_be_found" in missing and "failed" in missing)


@pytest.mark.parametrize("seed", [0, 1])
def test_what_a_file_was_compiled_from_keeps_its_seed_and_is_fed_with_the_cases(seed, monkeypatch, tmp_path):
    heard = []
    monkeypatch.setattr(processes, "launch", lambda _, job, __, **___: heard.append(job) or ended("crashed"))
    reference_of(compiled_from(spec="fake:net", format="fake", seed=3), tmp_path, seed=seed)
    assert (heard[-1].case.seed, heard[-1].inputs_seed) == (3, seed)


def test_a_runner_that_cannot_be_entered_is_a_row_with_its_reason(tmp_path, monkeypatch):
    def refuse(_):
        raise Unsupported("It takes no such layer.")

    monkeypatch.setattr(FakeRunner, "__enter__", refuse)
    (record,) = inferlens.bench("fake:demo", backend="fake", output=str(tmp_path))
    assert (record.status, record.reason) == ("unsupported", "It takes no such layer.")


# Repeats.

FOUND = ModelInfo(spec="fake:demo", name="demo", format="fake")
ABLE = [PlannedCase(case(backend), FOUND, None) for backend in ("a", "b", "c", "d", "e")]
UNABLE = PlannedCase(case("none"), FOUND, Unsupported("Not here."))


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_each_case_runs_so_often_round_after_round(repeats):
    turns = measuring_order([UNABLE, *ABLE], repeats, seed=0)
    assert [repeat for planned, repeat in turns if planned is UNABLE] == [0], "what cannot run is said once"
    turns = [each for each in turns if each[0] is not UNABLE]
    assert [repeat for _, repeat in turns] == [number for number in range(repeats) for _ in ABLE]
    assert Counter(planned.case.backend for planned, _ in turns) == {planned.case.backend: repeats for planned in ABLE}
    assert measuring_order(ABLE, 6, seed=0) == measuring_order(ABLE, 6, seed=0) != measuring_order(ABLE, 6, seed=1)


CALM = cpu_log(cpus=4)
LOUD = cpu_log(cpus=4, others=during(0.0, 10.0, 3.9, 0.0), busy=4.0)
HOT = cpu_log(cpus=4, throttle_events=lambda time: int(2 * min(time, 1.5)))  # for more than a third of a case


def watch(patch, *logs):
    """Give each attempt the next log of the machine, and its number as a fact; the end of the logs interrupts it.

    An attempt has 400 samples in 4 s of the fake's clock, which is the log's as well.
    """
    numbered = enumerate(logs, 1)

    def attempt(task, job, returns, **words):
        outcome = launch(task, job, returns, **words)
        if not isinstance(job, BenchmarkJob):
            return outcome
        number, log = next(numbered, (0, None))
        if log is None:
            raise KeyboardInterrupt
        if log == "crash":
            return ended("crashed", "It fell.")
        result = msgspec.structs.replace(outcome.result, facts={"attempt": number})
        return replace(outcome, result=result, machine=log)

    patch.setattr(processes, "launch", attempt)


@pytest.mark.parametrize(("cpus", "logs", "attempts"), [
    (1, [LOUD] * 4, [1, 2, 3, 4]), (1, [HOT, CALM, HOT, HOT, HOT, HOT], [2, 4, 5, 6]),
    (8, [HOT, CALM, HOT, CALM, CALM, HOT], [5, 2, 6, 4]), (1, [HOT, "crash", HOT, CALM, CALM], [1, 3, 4, 5]),
], ids=["busy", "calm at first", "side by side", "crash"])  # fmt: skip
def test_a_case_is_measured_again_after_a_short_disturbance(tmp_path, monkeypatch, cpus, logs, attempts):
    monkeypatch.setattr(scheduler, "usable_cpus", lambda: range(cpus))
    watch(monkeypatch, *logs)
    option = {"fake.latency": "10,10.01", "fake.per_item": "0.1,0.11"}
    words = {"option": option, "quick": True, "iterations": 400, "warmup": 1}
    ear = Heard()
    records = inferlens.bench("fake:demo", backend="fake:noisy", observer=ear, output=str(tmp_path), **words)
    assert sorted(record.facts["attempt"] for record in records) == sorted(attempts)
    assert len(ear.remarks) == len(logs) - 4
    steps = ["load", "build", "first inference", "warm-up", "steady state"]
    assert all([phase.name for phase in record.phases] == steps for record in records)
    assert {record.id for record in inferlens.load_records([tmp_path]).records} == {record.id for record in records}


def test_a_second_attempt_that_is_interrupted_takes_nothing_away(tmp_path, monkeypatch):
    watch(monkeypatch, HOT)
    with pytest.raises(KeyboardInterrupt):
        inferlens.bench("fake:demo", iterations=400, warmup=1, option="fake.latency=10", output=tmp_path)
    (record,) = inferlens.load_records([tmp_path]).records
    assert (record.facts["attempt"], bool(record.marks.disturbed)) == (1, True)


def test_what_a_case_exported_once_is_used_by_its_other_processes(tmp_path):
    words = {"backend": "onnxruntime:cpu", "iterations": 5, "warmup": 1, "output": str(tmp_path), "device": "cpu"}
    words |= {"repeats": 2, "mode": "latency", "threads": 1}
    first, second = inferlens.bench(Tiny().eval(), torch.randn(2, 3, 16, 16), **words)
    notes = [{phase.name: phase.note for phase in record.phases}["export"] for record in (first, second)]
    assert (notes, first.agreement.agrees, second.agreement.agrees) == (["", "cached"], True, True)
    assert len(list(tmp_path.rglob("model.onnx"))) == 1
    again = inferlens.bench(Tiny().eval(), torch.randn(2, 3, 16, 16), rebuild=True, **words)
    assert [{phase.name: phase.note for phase in record.phases}["export"] for record in again] == ["", ""]
    # Of a library's model nothing is left to load then; of one that comes with an example the example is.
    assert all("load" in {phase.name for phase in record.phases} for record in again)
    for record in inferlens.bench("torchvision:squeezenet1_1", input="x=1x3x32x32", **words):
        names = {phase.name for phase in record.phases}
        assert names >= {"export", "build"}
        assert ("load" in names) == (record.repeat == 0)
        assert record.agreement.agrees


FAST = Recommendation("fast", "cpu", {"latency": 8.0})


@pytest.mark.parametrize(("trouble", "status"), [("raise", "failed"), ("segfault", "crashed")])
def test_the_plain_way_is_measured_in_place_of_a_recommended_one_that_fails(tmp_path, monkeypatch, trouble, status):
    def attempt(task, job, returns, **words):
        crashes = isinstance(job, BenchmarkJob) and job.case.options.get("trouble") == "segfault"
        return ended("crashed", "It fell.") if crashes else launch(task, job, returns, **words)

    monkeypatch.setattr(processes, "launch", attempt)
    # The plain way would not avoid the last one.
    broken = Recommendation("steady", "cpu", {"trouble": trouble, "when": "enter"})
    ways = (broken, FAST, Recommendation("noisy", "cpu", {"trouble": "raise", "when": "prepare"}))
    monkeypatch.setattr(Fake, "recommended", ways)
    records = inferlens.bench("fake:demo", quick=True, iterations=5, output=tmp_path)
    assert [(record.case.way, record.status) for record in records] == [
        (f"fake:steady trouble={trouble} when=enter", status), ("fake:fast latency=8.0", "ok"),
        ("fake:noisy trouble=raise when=prepare", "failed"), ("fake:steady", "ok"),
    ]  # fmt: skip
    note = f"In place of trouble={trouble} when=enter, which did not run right."
    assert [warning.message for warning in records[3].warnings if warning.code == "plain-way"] == [note]
    assert note in " ".join(str(records).split())


# The same command again.


def fake(folder, latencies, **words):
    """Measure cases of the fake backend; return the records, and the remarks about them."""
    ear = words.pop("observer", None) or Heard()
    words = {"backend": "fake:steady", "warmup": 2, "max_time": "0.3s", **words}
    records = inferlens.bench("fake:demo", option=f"fake.latency={latencies}", output=folder, observer=ear, **words)
    return list(records), ear.remarks


def ids(records):
    return {record.id for record in records}


def test_a_complete_command_that_is_repeated_measures_nothing_unless_it_is_asked_to(tmp_path):
    first, remarks = fake(tmp_path, "4,4.6")
    assert remarks == []
    second, remarks = fake(tmp_path, "4,4.6")
    assert (ids(second), remarks) == (ids(first), ["2 of 2 cases measured before; --rerun measures all again."])
    third, remarks = fake(tmp_path, "4,4.6", rerun=True)
    assert (ids(third) & ids(first), remarks) == (set(), [])
    assert ids(inferlens.load_records(tmp_path).records) == ids(first) | ids(third)
    longer, _ = fake(tmp_path, "4,4.6", iterations=7)
    assert not ids(longer) & ids(first + third), "another request"


def test_a_case_that_is_added_joins_the_race(tmp_path):
    first, _ = fake(tmp_path, "4,4.6")
    second, remarks = fake(tmp_path, "4,4.6,3.9")
    assert ids(first) < ids(second)
    assert remarks == ["2 of 3 cases measured before; --rerun measures all again."]
    assert len({record.run for record in second}) == 1
    added = [record.repeat for record in second if record.case.options.get("latency") == 3.9]
    assert added[0] == 0
    assert min(added[1:]) > max(record.repeat for record in first)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_command_goes_on(tmp_path, after):
    with pytest.raises(KeyboardInterrupt):
        fake(tmp_path, "4,4.6", observer=Heard(after))
    left = ids(inferlens.load_records(tmp_path).records)
    records, remarks = fake(tmp_path, "4,4.6")
    assert left <= ids(records)
    assert ids(records) == ids(inferlens.load_records(tmp_path).records)
    assert (len(remarks), len({record.run for record in records})) == (1, 1)
    assert not any(CUT_SHORT in record.facts for record in records)


def test_a_case_that_failed_and_one_with_another_file_are_measured_again(tmp_path):
    words = {"option": ["fake.latency=4", "fake.trouble=none,raise"], "output": tmp_path, "quick": True}
    words |= {"backend": "fake:steady", "iterations": 5}
    right, _ = inferlens.bench("fake:demo", **words)
    again = inferlens.bench("fake:demo", **words)
    assert {record.status: record.id == right.id for record in again} == {"ok": True, "failed": False}
    assert ids(list(again)) == ids(inferlens.load_records(tmp_path).records)
    data, hashes = tmp_path / "data.npz", set()
    for content in (b"1", b"2"):
        data.write_bytes(content)
        hashes.add(request_hash("bench", Plan(model=("fake:demo",), weights=str(data)), "fake:demo", None))
    assert len(hashes) == 2
