from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.analysis.interference import interference_warnings, mark_samples
from inferlens.record.machine import MachineLog
from tests.analysis.interference.logs import cpu_log, during, gpu_log

BEGINS = [i / 100 for i in range(100, 900)]  # 800 samples from 1 s to 9 s
LATENCIES = [0.009] * len(BEGINS)


def test_a_few_disturbed_samples_are_left_out() -> None:
    log = gpu_log(reasons=during(5.0, 5.0, 0x20, 0))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert [round(BEGINS[i], 2) for i in marks.discarded] == [round(4.9 + i / 100, 2) for i in range(20)]
    assert marks.clean
    assert not marks.short
    assert interference_warnings(marks) == (), "the numbers are of the others, and nothing need be known"


def test_many_disturbed_samples_ask_for_another_run_once() -> None:
    log = gpu_log(reasons=during(2.0, 5.0, 0x40, 0))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert marks.short
    assert marks.discarded == ()
    assert not marks.clean
    (warning,) = interference_warnings(marks)
    assert warning.code == "disturbed"
    assert "cool" in warning.advice


@pytest.mark.parametrize(
    ("end", "count", "left_out", "repeat"),
    [(4.5, 800, 400, False), (5.0, 800, 0, False), (9.0, 800, 0, False), (4.5, 36, 0, True), (9.0, 36, 0, False)],
    ids=["half of it", "more than half", "all of it", "half of a short one", "all of a short one"],
)
def test_of_other_programs_the_quiet_half_counts_and_what_was_busy_to_the_end_is_not_measured_again(
    end: float, count: int, left_out: int, repeat: bool
) -> None:
    log = cpu_log(2, busy=2.0, others=during(1.5, end + 0.5, 1.0, 0.0))
    begins = [1 + 8 * i / count for i in range(count)]
    marks = mark_samples(begins, [7 / count] * count, log)
    assert (len(marks.discarded), marks.short) == (pytest.approx(left_out, abs=2), repeat)


def test_the_power_limit_is_the_cases_own_doing() -> None:
    log = gpu_log(reasons=during(2.0, 9.0, 0x04, 0), sm_clock=during(3.0, 5.0, 1_500_000_000, 1_980_000_000))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert not marks.short
    assert marks.discarded == ()
    assert marks.touched == {"power cap": 710}
    (warning,) = interference_warnings(marks)
    assert warning.code == "power-cap"
    assert warning.message.startswith("88.8 % of the samples")


@pytest.mark.parametrize(
    ("log", "kind", "words", "begin", "end"),
    [
        (gpu_log(sm_clock=during(6.0, 99.0, 1_700_000_000, 1_980_000_000)), "clock change", "1700 MHz", 5.9, 9.0),
        (cpu_log(steal=during(4.0, 4.5, 0.5, 0.0)), "steal", "33%", 3.5, 4.5),
        (cpu_log(quota_wait=lambda time: max(0.0, (time - 4) * 0.2)), "cpu quota", "quota", 4.0, 10.0),
        (cpu_log(throttle_events=lambda time: 7 if time >= 4 else 3), "throttled", "heat", 3.5, 4.0),
        (gpu_log(processes={"foreign": during(4.0, 99.0, 1, 0)}), "foreign process", "came", 3.5, 10.0),
    ],
)
def test_what_disturbs(log: MachineLog, kind: str, words: str, begin: float, end: float) -> None:
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert set(marks.touched) == {kind}
    assert words in marks.spans[0].why
    assert (marks.spans[0].begin, marks.spans[0].end) == pytest.approx((begin, end))
    assert marks.short is (kind == "clock change"), "half of the series was quiet, and too much to leave out is hot"
    assert (kind == "cpu quota") is (not marks.disturbed and bool(interference_warnings(marks)))


def test_one_stolen_tick_is_nothing() -> None:
    assert mark_samples(BEGINS, LATENCIES, cpu_log(steal=0.02, busy=0.1)).touched == {}


def test_a_neighbour_on_the_gpu_disturbs_when_it_works() -> None:
    silent = gpu_log(processes={"foreign": 2, "foreign_utilisation": 0.0})
    assert mark_samples(BEGINS, LATENCIES, silent).touched == {}
    working = gpu_log(processes={"foreign": 2, "foreign_utilisation": during(4.0, 4.5, 0.3, 0.0)})
    marks = mark_samples(BEGINS, LATENCIES, working)
    assert set(marks.touched) == {"foreign process"}
    assert "30%" in marks.spans[0].why
    assert (marks.spans[0].begin, marks.spans[0].end) == (3.5, 5.0)


@pytest.mark.parametrize(
    ("cpus", "busy", "others", "disturbed"),
    [
        (4, 1.3, 0.3, False),  # others work, but there are free CPUs
        (2, 2.0, 0.1, False),  # the case alone keeps all CPUs busy
        (2, 1.9, 0.9, True),
        (16, 15.8, 14.8, True),
        (4, 3.4, 2.4, True),  # a CPU is not quite free, and more than half of the machine is somebody else's
        (16, 9.5, 8.5, False),  # more than half is somebody else's, but there are CPUs enough
        (16, 5.0, 4.0, False),
    ],
)
def test_others_disturb_when_the_case_lacks_cpus(cpus: int, busy: float, others: float, disturbed: bool) -> None:
    log = cpu_log(cpus, busy=during(4.0, 4.0, busy, 1.0), others=during(4.0, 4.0, others, 0.0))
    marks = mark_samples(BEGINS, LATENCIES, log)
    assert (set(marks.touched) == {"cpu busy"}) is disturbed
    if disturbed:
        assert [(span.begin, span.end) for span in marks.spans] == [(3.5, 4.0)]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.floats(0, 9), st.floats(0, 3))
def test_exactly_the_samples_that_overlap_are_disturbed(begins: list[float], start: float, length: float) -> None:
    begins = sorted(begins)
    latencies = [0.05] * len(begins)
    log = gpu_log(reasons=during(start, start + length, 0x80, 0))
    marks = mark_samples(begins, latencies, log)
    for i, begin in enumerate(begins):
        touching = any(span.begin < begin + 0.05 and span.end > begin for span in marks.spans)
        touches = any(span.begin <= begin + 0.05 and span.end >= begin for span in marks.spans)
        assert touching <= (i in marks.disturbed) <= touches


def test_holes_in_the_log_hide_nothing() -> None:
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
