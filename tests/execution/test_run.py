"""From Python: names, live modules, options, repeats and the race; real backends on a tiny real model."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import msgspec
import pytest
import torch

import inferlens
from inferlens import InferlensError
from inferlens.analysis.notes import case_notes
from inferlens.analysis.race import race
from inferlens.analysis.samples import latest, steady_samples
from inferlens.backends.base import Recommendation
from inferlens.backends.fake import Fake, FakeRunner
from inferlens.errors import Unsupported
from inferlens.execution import child, scheduler
from inferlens.execution import child as processes
from inferlens.execution import race as running
from inferlens.execution.protocol import Observer, PlannedCase, TaskResult
from inferlens.execution.race import budget_of_rounds, fit_in_memory
from inferlens.execution.resume import request_hash
from inferlens.execution.run import measuring_order
from inferlens.execution.scheduler import Scheduler, interference_of
from inferlens.execution.tasks import BenchmarkJob, BenchmarkResult
from inferlens.models.model import ModelInfo
from inferlens.record.machine import Before
from inferlens.record.record import CUT_SHORT, IN_TURNS, Environment, Gpu, Measurement, Memory
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import Plan
from inferlens.views.rows import rows
from tests.analysis.machine_logs import cpu_log, during, gpu_log
from tests.commands import Heard, ended, launch
from tests.views.samples import case, facts
from tests.views.samples import record as sample

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


def test_the_check_catches_a_backend_that_computes_something_else(tmp_path):
    """Tracing fixes a branch."""

    class Branching(torch.nn.Module):
        def forward(self, x):
            return x * 2 if torch.jit.is_tracing() else x

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


# The race: who meets whom, for how long, and what is said at the end.


def raced(folder, latencies, **words):
    told = Heard()
    words = {"backend": "fake:noisy", "warmup": 2, "max_time": "0.5s", **words}
    option = [f"fake.latency={latencies}", *words.pop("option", [])]
    records = inferlens.bench("fake:demo", option=option, output=str(folder), observer=told, **words)
    return list(records), told


def answer(records):
    return race({runs.first.id: runs for runs in latest(records)}).answer


def times(records):
    """How often each case was measured, by its latency."""
    return dict(Counter(str(each.case.options.get("latency", 4.0)) for each in records))


def test_those_within_reach_meet_until_one_is_fastest_and_others_are_measured_once(tmp_path):
    records, told = raced(tmp_path, "4,4.6,20")
    met = 1 + len(told.rounds)
    assert times(records) == {"4.0": met, "4.6": met, "20.0": 1}
    found = answer(records)
    assert (found.kind, found.rounds, found.chance > 0.95, met >= 2) == ("fastest", met, True, True)
    assert told.rounds[0] == (2, ["", "latency=4.6"], told.rounds[0][2])
    assert told.rounds[-1][2].startswith("fake:noisy 1.1")
    assert all(each.facts[IN_TURNS] for each in records)
    assert all(each.measurement("throughput") for each in records)
    assert len({each.run for each in records}) == 1


def test_equals_end_a_race_and_are_named(tmp_path):
    records, told = raced(tmp_path, "4,4.001", backend="fake:steady")
    assert (answer(records).kind, len(answer(records).fastest), len(told.rounds)) == ("fastest", 2, 4)


def test_quick_is_each_case_once_and_repeats_are_as_many_as_asked_for(tmp_path):
    quick, told = raced(tmp_path / "quick", "4,4.6", quick=True)
    assert (times(quick), told.rounds) == ({"4.0": 1, "4.6": 1}, [])
    assert (answer(quick).kind, answer(quick).rounds) == ("likeliest", 0)
    fixed, told = raced(tmp_path / "fixed", "4,4.6", repeats=2)
    assert (times(fixed), told.rounds) == ({"4.0": 2, "4.6": 2}, [])


@pytest.mark.parametrize(("words", "anew"), [({}, {False}), ({"rebuild": True}, {True})])
def test_rebuild_is_for_processes_of_rounds_too(words, anew, tmp_path, monkeypatch):
    given, launch = [], child.launch

    def launched(task, job, returns, **more):
        given.append(job)
        return launch(task, job, returns, **more)

    monkeypatch.setattr(child, "launch", launched)
    records, _ = raced(tmp_path, "4,5", within="1s", **words)
    built = [job.rebuild for job in given if isinstance(job, BenchmarkJob)]
    assert (len(built), {*built}) == (len(records), anew)


def test_when_time_is_over_the_likeliest_is_known_with_its_probability(tmp_path):
    records, told = raced(tmp_path, "4,4.05", within="1us")
    found = answer(records)
    assert (found.kind, len(found.open), len(told.rounds), 0 < found.chance < 1) == ("likeliest", 1, 1, True)


def test_what_fails_or_is_wrong_meets_nobody(tmp_path):
    records, told = raced(tmp_path, "4,4.6", backend="fake:steady", option=["fake.trouble=none,raise"])
    assert {each.status for each in records if each.repeat > 1} == {"ok"}
    assert all(set(names) <= {"latency=4.0 trouble=none", "latency=4.6 trouble=none"} for _, names, _ in told.rounds)


def test_one_after_the_other_where_they_do_not_fit_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "memory_left", lambda: 0)
    records, told = raced(tmp_path, "4,4.6", backend="fake:steady")
    assert len(told.rounds) == 2
    assert not any(IN_TURNS in each.facts for each in records)
    first = [each.case.options.get("latency", 4.0) for each in records if each.repeat][::2]
    assert set(first) == {4.0, 4.6}, "who goes first changes"


@pytest.mark.parametrize(("known", "facts", "fits"), [
    ((40, 40), {}, True), ((40, 80), {}, False),  # GiB of 139
    ((40, None), {}, True), ((80, None), {}, False), ((None, None), {}, False),  # what is unknown counts as the other
    ((None, None), {IN_TURNS: "each other"}, True),  # they have been there together
])  # fmt: skip
def test_room_on_the_gpu(known, facts, fits, monkeypatch):
    monkeypatch.setattr(running, "memory_left", lambda: 2**50)
    of = case("tensorrt", device="cuda")
    peaks = [None if gib is None else gib * 2**30 for gib in known]
    here = Environment(gpus=(Gpu(name="GPU", memory=139 * 2**30),))
    memories = [Memory(host_peak=2**30, device_peak=peak) for peak in peaks]
    records = [sample(of, facts=facts, memory=memory, environment=here) for memory in memories]
    assert fit_in_memory(records) == fits


def test_samples_that_were_asked_for_all_count(tmp_path):
    (only,), _ = raced(tmp_path, "4", iterations=1000, mode="latency", max_time=None)
    assert len(only.samples("latency")) == len(steady_samples(only, "latency").samples) == 1000


def test_what_a_process_of_a_round_measures():
    assert budget_of_rounds(Budget()) == Budget(warmup_seconds=0.1, max_time=2.0)
    assert budget_of_rounds(Budget(mode="throughput", seconds=3.0)) == Budget(mode="throughput", seconds=3.0)
    assert budget_of_rounds(Budget(iterations=50)) == Budget(iterations=50)
    assert budget_of_rounds(Budget(max_time=20.0)).max_time == 5.0
    assert budget_of_rounds(Budget(max_time=0.3)).max_time == 0.3
    concurrent = budget_of_rounds(Budget(), cases=4, rounds=4)
    assert (concurrent.warmup_seconds, concurrent.max_time) == (0.025, 0.5)
    assert budget_of_rounds(Budget(), cases=2, rounds=2).max_time == 2.0


@pytest.mark.parametrize("after", [1, 2])
def test_a_race_that_was_interrupted_at_its_beginning_does_not_hide_the_complete_one(tmp_path, after):
    words = {"backend": "fake:steady", "output": str(tmp_path), "warmup": 2, "max_time": "0.5s"}
    for latencies in ("4,4.6", "4,5"):  # the second case of the second run is a new one
        with pytest.raises(KeyboardInterrupt) if latencies == "4,5" else nullcontext():
            watch = Heard(after) if latencies == "4,5" else None
            inferlens.bench("fake:demo", option=[f"fake.latency={latencies}"], observer=watch, rerun=True, **words)
    runs = latest(inferlens.load_records(tmp_path).records)
    assert [len(each.records) for each in runs] == [2, 2, *[1] * (after - 1)]
    assert [len(each.later) for each in runs] == [1, 0, *[0] * (after - 1)]
    assert race({each.first.id: each for each in runs[:2]}).answer.kind == "fastest"
    said = [note.message for note in case_notes(runs[0]) if note.code == "cut-short"]
    assert said == ["A later run was cut short before all of its processes were measured."]


def test_a_named_reference_takes_part_in_the_first_round(tmp_path):
    records, told = raced(tmp_path, "4,4.1,9", backend="fake:steady", reference="fake:steady latency=9.0")
    assert (times(records)["9.0"], told.rounds[0][:2]) == (1, (2, ["", "latency=4.1"]))
    slow = next(row for row in rows(records, "latency=9.0") if row.place == 1)
    assert (slow.reference, slow.sure, slow.speedup) == ("fake:steady fp32 latency=9.0", True, pytest.approx(9 / 4))


def test_two_rounds_are_concurrent_where_there_are_cpus_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "usable_cpus", lambda: range(4))
    records, told = raced(tmp_path, "4,4.6")
    assert [number for number, *_ in told.rounds] == [*range(3, 2 * len(told.rounds) + 2, 2)]
    for latency in (4.0, 4.6):
        repeats = [each.repeat for each in records if each.case.options.get("latency", 4.0) == latency]
        assert sorted(repeats) == [*range(1, told.rounds[-1][0] + 1)]
    assert (answer(records).kind, answer(records).rounds) == ("fastest", told.rounds[-1][0])
    monkeypatch.setattr(running, "usable_cpus", lambda: range(3))
    _, told = raced(tmp_path / "few", "4,4.6")
    assert [number for number, *_ in told.rounds][:1] == [2]
    _, told = raced(tmp_path / "alone", "4,8", backend="fake:steady")
    assert [(number, len(names)) for number, names, _ in told.rounds] == [(2, 2)]


# What the machine did to a case: marks of its samples, energy and memory.

ON_GPU = case(device="cuda", batch=8)
ON_CPU = case(batch=8)
COUNT = 800
BUSY = during(3.0, 3.5, 3.9, 0.0)  # others' load: of 4 CPUs nearly all


def latencies(count=COUNT):
    """From 1 s to 9 s, without a gap."""
    each = 8 / count
    begins = tuple(1 + index * each for index in range(count))
    return Measurement(metric="latency", unit="s", clock="a clock", samples=(each,) * count, begins=begins)


def windows(count=10):
    """From 1 s to 9 s, without a gap, of 100 calls each."""
    rates = (100 * count / 8,) * count
    return msgspec.structs.replace(latencies(count), metric="throughput", unit="calls/s", samples=rates, calls=100)


def answer_of(*measurements, **fields):
    return TaskResult(model=facts(ON_GPU), value=BenchmarkResult(measurements=measurements or (latencies(),)), **fields)


def test_a_calm_machine_leaves_all_samples():
    found = interference_of(ON_CPU, answer_of(latencies(), windows()), cpu_log())
    assert (found.marks.count, found.marks.disturbed) == (COUNT, ())
    assert (found.window_marks.count, found.window_marks.disturbed) == (10, ())


def test_of_two_in_turns_no_energy_is_told_and_memory_of_the_gpu_where_processes_are_named():
    whole = msgspec.structs.replace(gpu_log(), peak_memory_used=900, before=Before(memory_used=300))
    named = msgspec.structs.replace(whole, peak_case_memory=500)
    told = ((named, True), (whole, True), (whole, False))
    beside, nameless, alone = (interference_of(ON_GPU, answer_of(), log, in_turns=both) for log, both in told)
    assert [each.memory.device_peak for each in (beside, nameless, alone)] == [500, None, 600]
    assert "in turns" in beside.energy.reason


def test_a_short_disturbance_leaves_samples_out():
    """A mean of half a second stands for the interval before it: from 2.5 s to 3.5 s, of windows three of ten."""
    log = cpu_log(others=BUSY, busy=during(3.0, 3.5, 4.0, 1.0))
    marks = interference_of(ON_CPU, answer_of(), log).marks
    first, last = (latencies().begins[place] for place in (marks.discarded[0], marks.discarded[-1]))
    assert (first, last) == (pytest.approx(2.495, abs=0.01), pytest.approx(3.495, abs=0.01))
    assert (marks.touched, marks.clean) == ({"cpu busy": len(marks.discarded)}, True)
    found = interference_of(ON_CPU, answer_of(latencies(), windows()), log)
    assert (found.window_marks.disturbed, found.window_marks.discarded) == ((1, 2, 3), (1, 2, 3))


def test_what_is_not_known_has_no_marks():
    for told, log in ((answer_of(), None), (TaskResult(status="failed"), cpu_log())):
        found = interference_of(ON_CPU, told, log)
        assert (found.machine, found.marks, found.energy, found.cpu_energy) == (None,) * 4
    old = msgspec.structs.replace(latencies(), begins=())
    assert interference_of(ON_CPU, answer_of(old), cpu_log()).marks is None


@pytest.mark.parametrize(("on", "log", "measured", "joules", "items"), [
    (ON_GPU, gpu_log(energy=lambda time: 300 * time), latencies(), 300 * 8 / (COUNT * 8), COUNT * 8),
    (ON_CPU, cpu_log(energy=lambda time: 40 * time), latencies(), 40 * 8 / (COUNT * 8), COUNT * 8),
    (ON_GPU, gpu_log(energy=lambda time: 300 * time), windows(), 300 * 8 / 8000, 10 * 100 * 8),
])  # fmt: skip
def test_energy_is_of_an_item_and_of_the_device(on, log, measured, joules, items):
    found = interference_of(on, answer_of(measured), log)
    energy, other = (found.energy, found.cpu_energy) if on is ON_GPU else (found.cpu_energy, found.energy)
    assert (energy.joules, energy.items, other) == (pytest.approx(joules), items, None)
    flushed = interference_of(msgspec.structs.replace(on, cold=True), answer_of(measured), log)
    energy = flushed.energy or flushed.cpu_energy
    assert (energy.joules, "flushed" in energy.reason) == (None, True)


def test_device_memory_is_that_of_the_watch_with_its_basis():
    own = Memory(host_peak=10, host_basis="ru_maxrss", library_peak=5, library_basis="PyTorch")
    log = msgspec.structs.replace(gpu_log(), peak_case_memory=700)
    found = interference_of(ON_GPU, answer_of(memory=own), log).memory
    assert (found.device_peak, found.host_peak, found.library_peak) == (700, 10, 5)
    assert found.device_basis.startswith("NVML: memory of the case's processes")


@pytest.mark.parametrize(("on", "status", "peak", "found"), [
    (ON_CPU, "ok", 700, None), (ON_GPU, "ok", None, None), (ON_GPU, "out of memory", 700, 700),
], ids=["on the CPU", "not watched", "failed"])  # fmt: skip
def test_device_memory_is_known_of_a_case_that_failed_and_on_the_cpu_is_none(on, status, peak, found):
    log = msgspec.structs.replace(gpu_log(), peak_case_memory=peak)
    memory = interference_of(on, answer_of(status=status, memory=Memory(host_peak=10)), log).memory
    assert (memory.host_peak, memory.device_peak) == (10, found)
