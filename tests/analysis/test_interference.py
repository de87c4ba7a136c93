"""How busy other programs kept the machine: the numbers of records, and the sentence that is said of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inferlens.analysis.interference import (
    MOST_RELATIVE,
    SENSOR_ERROR,
    UPDATE,
    MachineLoad,
    energy_per_item,
    interference_warnings,
    mark_samples,
    mean_load,
    record_load,
)
from inferlens.record.machine import MachineLog, Marks
from tests.analysis.machine_logs import cpu_log, during, gpu_log
from tests.views.samples import on_busy_machine, record

BEGINS = [i / 100 for i in range(100, 900)]  # 800 samples from 1 s to 9 s
LATENCIES = [0.009] * len(BEGINS)


def test_a_few_disturbed_samples_are_left_out():
    log = gpu_log(reasons=during(5.0, 5.0, 0x20, 0))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert [round(BEGINS[i], 2) for i in marks.discarded] == [round(4.9 + i / 100, 2) for i in range(20)]
    # The numbers are of the others, and nothing need be known.
    assert (marks.clean, interference_warnings(marks)) == (True, ())


def test_many_disturbed_samples_all_count():
    log = gpu_log(reasons=during(2.0, 5.0, 0x40, 0))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert (marks.discarded, marks.clean) == ((), False)
    (warning,) = interference_warnings(marks)
    assert (warning.code, "cool" in warning.advice) == ("disturbed", True)


@pytest.mark.parametrize(("end", "count", "left_out"), [(4.5, 800, 400), (5.0, 800, 0), (4.5, 36, 0)],
                         ids=["half of it", "more than half", "half of a short one"])  # fmt: skip
def test_of_other_programs_the_quiet_half_counts(end, count, left_out):
    log = cpu_log(2, busy=2.0, others=during(1.5, end + 0.5, 1.0, 0.0))
    begins = [1 + 8 * i / count for i in range(count)]
    marks = mark_samples(begins, [7 / count] * count, log)
    assert len(marks.discarded) == pytest.approx(left_out, abs=2)


def test_the_power_limit_is_the_cases_own_doing():
    log = gpu_log(reasons=during(2.0, 9.0, 0x04, 0), sm_clock=during(3.0, 5.0, 1_500_000_000, 1_980_000_000))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert (marks.discarded, marks.touched) == ((), {"power cap": 710})
    (warning,) = interference_warnings(marks)
    assert (warning.code, warning.message.partition(" of ")[0]) == ("power-cap", "88.8 %")


@pytest.mark.parametrize(("log", "kind", "words", "begin", "end"), [
    (gpu_log(sm_clock=during(6.0, 99.0, 1_700_000_000, 1_980_000_000)), "clock change", "1700 MHz", 5.9, 9.0),
    (cpu_log(steal=during(4.0, 4.5, 0.5, 0.0)), "steal", "33%", 3.5, 4.5),
    (cpu_log(quota_wait=lambda time: max(0.0, (time - 4) * 0.2)), "cpu quota", "quota", 4.0, 10.0),
    (cpu_log(throttle_events=lambda time: 7 if time >= 4 else 3), "throttled", "heat", 3.5, 4.0),
    (gpu_log(processes={"foreign": during(4.0, 99.0, 1, 0)}), "foreign process", "came", 3.5, 10.0),
    (gpu_log(processes={"foreign": 2, "foreign_utilisation": during(4.0, 4.5, 0.3, 0.0)}), "foreign process", "30%",
     3.5, 5.0),
])  # fmt: skip
def test_what_disturbs(log, kind, words, begin, end):
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert set(marks.touched) == {kind}
    assert words in marks.spans[0].why
    assert (marks.spans[0].begin, marks.spans[0].end) == pytest.approx((begin, end))
    assert (kind == "cpu quota") is (not marks.disturbed and bool(interference_warnings(marks)))


@pytest.mark.parametrize("log", [
    cpu_log(steal=0.02, busy=0.1), gpu_log(processes={"foreign": 2, "foreign_utilisation": 0.0}),
], ids=["a stolen tick", "a silent neighbour on the GPU"])  # fmt: skip
def test_what_does_not_disturb(log):
    assert mark_samples(BEGINS, LATENCIES, log).touched == {}


@pytest.mark.parametrize(("cpus", "busy", "others", "disturbed"), [
    (4, 1.3, 0.3, False),  # others work, but there are free CPUs
    (2, 2.0, 0.1, False),  # the case alone keeps all CPUs busy
    (2, 1.9, 0.9, True), (16, 15.8, 14.8, True),
    (4, 3.4, 2.4, True),  # a CPU is not quite free, and more than half of the machine is somebody else's
    (16, 9.5, 8.5, False),  # more than half is somebody else's, but there are CPUs enough
    (16, 5.0, 4.0, False),
])  # fmt: skip
def test_others_disturb_when_the_case_lacks_cpus(cpus, busy, others, disturbed):
    log = cpu_log(cpus, busy=during(4.0, 4.0, busy, 1.0), others=during(4.0, 4.0, others, 0.0))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert (set(marks.touched) == {"cpu busy"}) is disturbed
    assert [(span.begin, span.end) for span in marks.spans] == [(3.5, 4.0)] * disturbed


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.floats(0, 9), st.floats(0, 3))
def test_exactly_the_samples_that_overlap_are_disturbed(begins, start, length):
    begins = sorted(begins)
    latencies = [0.05] * len(begins)
    log = gpu_log(reasons=during(start, start + length, 0x80, 0))
    marks = mark_samples(begins, latencies, log)
    for i, begin in enumerate(begins):
        touching = any(span.begin < begin + 0.05 and span.end > begin for span in marks.spans)
        touches = any(span.begin <= begin + 0.05 and span.end >= begin for span in marks.spans)
        assert touching <= (i in marks.disturbed) <= touches


def test_holes_in_the_log_hide_nothing():
    """Every second row is empty, as of readings that take long: what is known stands for the time between."""
    seen: list[float] = []

    def holed(time: float) -> int | None:
        seen.append(time)
        return None if len(seen) % 2 else (3 if time < 4 else 5)

    marks = mark_samples(BEGINS, LATENCIES, cpu_log(throttle_events=holed))
    assert [(span.begin, span.end) for span in marks.spans] == [(3.5, 4.5)]
    busy = during(4.0, 4.0, 2.0, 1.0)
    loads = cpu_log(2, busy=busy, others=lambda time: None if time == 3.5 else (1.0 if time == 4.0 else 0.0))
    assert [(span.begin, span.end) for span in mark_samples(BEGINS, LATENCIES, loads).spans] == [(3.0, 4.0)]


AS_IT_WAS = "This is the answer for the machine as busy as it was."
FOREIGN = Marks(count=9, disturbed=tuple(range(9)), touched={"foreign process": 9})
SHARED_GPU = replace(record(), marks=FOREIGN, machine=gpu_log(processes={"foreign": 1, "foreign_utilisation": 0.35}))
LOAD = record_load(on_busy_machine(record()))


@pytest.mark.parametrize(("load", "words"), [
    (LOAD, "used 1.0 of 2 CPUs"), (record_load(SHARED_GPU), "used 35 % of the GPU's time"),
    (replace(record_load(SHARED_GPU), gpu_share=None), "disturbed the machine"),
])  # fmt: skip
def test_a_busy_machine_says_what_other_programs_used(load, words):
    assert load.sentence == f"Other programs {words}. {AS_IT_WAS}"
    assert (LOAD.busy, LOAD.other_cpus, LOAD.cpus) == (True, 1.0, 2)


def test_numbers_are_means_over_time_and_a_quiet_machine_has_no_sentence():
    half = record_load(replace(record(), machine=cpu_log(4, others=during(0.0, 5.0, 2.0, 0.0), busy=4.0, steal=1.0)))
    assert (half.busy, half.other_cpus, half.cpus, half.steal, half.sentence) == (False, 1.0, 4, 0.2, "")
    assert record_load(record()) == MachineLoad()


@pytest.mark.parametrize(("kind", "discarded"), [("cpu busy", (1, 2)), ("throttled", ())])
def test_neither_what_was_left_out_nor_heat_makes_a_machine_busy(kind, discarded):
    marks = Marks(count=9, disturbed=(1, 2), discarded=discarded, touched={kind: 2})
    assert not record_load(replace(on_busy_machine(record()), marks=marks)).busy


@pytest.mark.parametrize(("loud", "quiet", "busy"), [(1, 1, True), (1, 2, False), (0, 1, False), (0, 0, False)])
def test_a_run_is_busy_if_half_of_what_was_watched_is(loud, quiet, busy):
    loads = [MachineLoad(busy=True, other_cpus=1.2, cpus=2)] * loud + [MachineLoad(other_cpus=0.2, cpus=2)] * quiet
    machine_load = mean_load([*loads, MachineLoad()])
    assert machine_load.busy is busy
    if loads:
        assert machine_load.other_cpus == pytest.approx((1.2 * loud + 0.2 * quiet) / (loud + quiet), abs=1e-3)


def test_energy_of_the_counter():
    log = gpu_log(energy=lambda time: 300 * time)
    energy = energy_per_item(log, "cuda", 2.0, 8.0, 600)
    assert energy.joules == pytest.approx(3.0)
    assert energy.high - 3.0 == pytest.approx(3.0 - energy.low) == pytest.approx(3.0 * (UPDATE / 6 + SENSOR_ERROR))
    assert energy.basis.startswith("NVML: counter")
    assert (energy.seconds, energy.items, energy.reason) == (6.0, 600, "")


@pytest.mark.parametrize("late", [0.0, 0.03, 0.07, 0.0999])
def test_a_counter_that_is_updated_late_is_within_the_bounds(late):
    """The counter jumps every 100 ms, and what it shows is up to 100 ms old."""
    log = gpu_log(energy=lambda time: 300 * ((time - late) // UPDATE) * UPDATE)
    energy = energy_per_item(log, "cuda", 2.03, 4.04, 201)
    assert (energy.low or 9.0) <= 3.0 <= (energy.high or 0.0)


RISING = gpu_log(energy=lambda time: 300 * time)
SHARED = gpu_log(energy=lambda time: 300 * time, processes={"foreign_utilisation": during(4.0, 5.0, 0.5, 0.0)})
BUSY = cpu_log(2, energy=lambda time: 40 * time, busy=2.0, others=1.0)
RELOADED = gpu_log(energy=lambda time: 300 * time if time < 5 else 300 * time - 1500)


@pytest.mark.parametrize(("device", "log", "begin", "end", "items", "words"), [
    ("cuda", RISING, 2.0, 2.9, 90, "too few"), ("cuda", RISING, 2.0, 8.0, 0, "too few"),
    ("cuda", RISING, 20.0, 30.0, 600, "too few"), ("cuda", RISING, 8.0, 14.0, 600, "did not cover"),
    ("cuda", RISING, -5.0, 5.0, 600, "did not cover"), ("cuda", RELOADED, 2.0, 8.0, 600, "went back"),
    ("cuda", gpu_log(), 2.0, 8.0, 600, "no counter"),
    ("cuda", MachineLog(interval=0.1, absent={"gpu": "no driver"}), 0, 5, 5, "no driver"),
    ("cuda", SHARED, 2.0, 8.0, 600, "other processes"),
    ("cpu", MachineLog(interval=0.1), 0, 5, 5, "the CPUs were not watched"),
    ("cpu", BUSY, 2.0, 8.0, 600, "other processes"),
])  # fmt: skip
def test_no_value_is_made_up(device, log, begin, end, items, words):
    energy = energy_per_item(log, device, begin, end, items)
    assert (energy.joules, energy.low, energy.high) == (None, None, None)
    assert words in energy.reason
    assert energy_per_item(SHARED, "cuda", 6.0, 9.0, 300).joules == pytest.approx(3.0), "others had gone"


def test_energy_of_the_cpus():
    energy = energy_per_item(cpu_log(energy=lambda time: 40 * time), "cpu", 1.0, 9.0, 80)
    assert energy.joules == pytest.approx(4.0)
    assert energy.high / 4.0 - 1 < SENSOR_ERROR + 0.001 < MOST_RELATIVE
