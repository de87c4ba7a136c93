"""The race of ``inferlens bench``: who meets whom, for how long, and what is said at the end."""

from collections import Counter
from contextlib import nullcontext

import pytest

import inferlens
from inferlens.analysis.notes import case_notes
from inferlens.analysis.race import race
from inferlens.analysis.samples import latest, steady_samples
from inferlens.execution import child
from inferlens.execution import race as running
from inferlens.execution.race import budget_of_rounds, fit_in_memory
from inferlens.execution.tasks import BenchmarkJob
from inferlens.record.record import IN_TURNS, Environment, Gpu, Memory
from inferlens.spec.case import Budget
from inferlens.views.rows import rows
from tests.commands import Heard
from tests.views.samples import case, record

pytestmark = pytest.mark.usefixtures("one_process")


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
    records = [record(of, facts=facts, memory=memory, environment=here) for memory in memories]
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
