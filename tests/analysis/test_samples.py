"""Which samples statistics are of, and which records belong together."""

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from inferlens.analysis import samples
from inferlens.analysis.samples import CaseRuns, latencies, latest
from inferlens.record.machine import Marks
from inferlens.record.record import IN_TURNS, Measurement, Record
from inferlens.spec.case import Budget
from inferlens.stats.samples import median
from tests.views.samples import case, failure, in_turns, record

FLAT = tuple(10e-3 * (1 + 1e-4 * ((7 * index) % 11 - 5)) for index in range(200))


def made(latency: tuple[Any, ...] = FLAT, **fields: Any) -> Record:
    return record(samples=latency, **fields)


def with_metric(metric: Any, values: tuple[float, ...], **fields: Any) -> Record:
    measured = [Measurement(metric="latency", unit="s", clock="a clock", samples=FLAT)]
    measured.append(Measurement(metric=metric, unit="s", clock="a clock", samples=values))
    return record(median=None, measurements=tuple(measured), **fields)


RISING = tuple(value * (1 + 0.002 * index) for index, value in enumerate(FLAT))
WAVE = tuple(value * (1.1 + 0.01 * math.sin(index / 12)) for index, value in enumerate(FLAT))


@pytest.mark.parametrize("series", [FLAT, RISING, (*FLAT, *WAVE)], ids=["steady", "never steady", "a slower end"])
def test_what_is_kept_whole(series):
    found = latencies(made(series))
    assert ((*found.samples,), found.not_finite, found.disturbed, found.unsteady) == (series, 0, 0, 0)


def slower(by: float, count: int = 20) -> tuple[float, ...]:
    return tuple(by * seconds for seconds in FLAT[:count])


@pytest.mark.parametrize("between", [0.0, 0.1])
def test_of_a_process_that_took_turns_the_median_is_of_the_fastest_third_of_them(between):
    """In five of nine turns something else runs on the machine; between calls nothing does, or caches are flushed."""
    turns = [(*slower(by, 18), *slower(4.0, 2)) for by in (1.0, 2.0, 1.9, 1.1, 2.0, 1.2, 2.0, 1.3, 1.8)]
    latency = sum(turns, ())
    record, together = in_turns(*turns, between=between, facts={}), in_turns(*turns, between=between)
    assert latencies(record).for_median == latencies(record).samples
    assert (*latencies(together).for_median,) == (*turns[0], *turns[3], *turns[5])
    assert (*latencies(together).samples,) == latency, "tails are of all"
    assert CaseRuns((together,)).latency("p95") == pytest.approx(40e-3, rel=1e-2)


def test_a_median_is_of_a_third_of_the_samples_at_least_and_none_is_below_all_of_them():
    short = in_turns(slower(0.9, 1), slower(1.0, 4), slower(1.1, 4))  # the first turn has one call
    assert {*slower(1.0, 4)} <= {*latencies(short).for_median} <= {*slower(1.0, 4), *slower(1.1, 4)}
    throttled = latencies(in_turns(*[FLAT[:20]] * 5, *[slower(1.3)] * 5))
    assert (len(throttled.samples), throttled.unsteady) == (200, 0)
    assert min(throttled.samples) <= median(throttled.for_median) < 11e-3


@pytest.mark.parametrize("calls", [4, 50])
def test_a_way_that_varies_is_not_faster_for_it(calls):
    draw = np.random.default_rng(0)
    medians = []
    for _ in range(50):
        turns = [tuple(10e-3 * np.exp(0.05 * draw.standard_normal(calls))) for _ in range(12)]
        medians.append(math.log(median(latencies(in_turns(*turns)).for_median) / 10e-3))
    assert abs(np.mean(medians)) < 0.1 * 0.05


def test_of_windows_in_turns_the_rate_is_of_the_fastest():
    rates = (100.0, 60.0, 99.0, 50.0, 55.0, 98.0)
    series = samples.steady_samples(with_metric("throughput", rates, facts={"in turns with": "another"}), "throughput")
    assert ((*series.for_median,), (*series.samples,)) == ((100.0, 99.0), rates)


@pytest.mark.parametrize("status", ["failed", "unsupported"])
def test_what_did_not_run_to_its_end_has_none(status):
    broken = made(status=status)
    assert broken.samples("latency") == FLAT, "they are in the record all the same"
    assert not latencies(broken).samples


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_finite_number_is_left_out(odd):
    series = latencies(made((odd, *FLAT[:50], odd, *FLAT[50:])))
    assert (*series.samples,) == FLAT
    assert (series.not_finite, series.disturbed, series.unsteady) == (2, 0, 0)


@pytest.mark.parametrize(("count", "left_out"), [(202, (20, 121)), (7, ())])
def test_disturbed_samples_are_left_out_where_marks_of_this_series_say_so(count, left_out):
    slow = (*FLAT[:20], 0.5, *FLAT[20:120], 0.5, *FLAT[120:])
    series = latencies(made(slow, marks=Marks(count=count, disturbed=(20, 121), discarded=(20, 121))))
    assert (*series.samples,) == (FLAT if left_out else slow)
    assert series.disturbed == len(left_out)


def test_the_warm_up_is_cut():
    series = (*(2 * value for value in FLAT[:60]), *FLAT)
    found = latencies(made(series))
    assert 55 <= found.unsteady <= 65
    assert (*found.samples,) == series[found.unsteady :]
    long = (*(2 * value for value in FLAT), *WAVE)
    assert latencies(made(long)).unsteady == pytest.approx(200, abs=8)


def test_windows_of_throughput_are_not_the_calls_that_the_marks_are_of():
    marks = Marks(count=len(FLAT), disturbed=(3,), discarded=(3,))
    record = with_metric("throughput", FLAT, marks=marks)
    assert (*samples.steady_samples(record, "throughput").samples,) == FLAT
    disturbed = with_metric("throughput", FLAT, window_marks=Marks(count=len(FLAT), disturbed=(0,), discarded=(0,)))
    assert (*samples.steady_samples(disturbed, "throughput").samples,) == FLAT[1:]
    assert (*latencies(disturbed).samples,) == FLAT
    assert not samples.steady_samples(made(), "throughput").samples


def test_rates_of_a_busy_machine_are_kept_as_latencies_are():
    marks = Marks(count=len(FLAT), disturbed=tuple(range(len(FLAT))))
    first = with_metric("throughput", FLAT, window_marks=marks)
    met = made(facts={IN_TURNS: "another"}, repeat=1)
    assert [len(samples) for samples in CaseRuns((first, met)).windows] == [len(FLAT)]


def test_one_run_s_records_of_a_case_are_its_repeats_in_the_order_they_were_made():
    times = ("2026-05-04T10:00:02Z", "2026-05-04T10:00:00Z", "2026-05-04T10:00:01Z")
    (case_runs,) = latest([made(id=time, created=time) for time in times])
    assert [item.id for item in case_runs.records] == sorted(times)
    assert [(*process,) for process in case_runs.processes] == [FLAT, FLAT, FLAT]


def run_of(count: int, day: int, planned: int) -> list[Record]:
    """A run of which ``count`` of ``planned`` processes were measured."""
    return [
        made(id=f"{day}-{index}", run=f"{day}", created=f"2026-05-0{day}T10:00:0{index}Z", repeats=planned)
        for index in range(count)
    ]


def test_a_run_that_was_cut_short_does_not_hide_the_complete_one_before_it():
    (case_runs,) = latest([*run_of(3, 1, 3), *run_of(5, 2, 5), *run_of(1, 3, 5)])
    assert [item.run for item in case_runs.records] == ["2"] * 5
    assert [item.run for item in case_runs.later] == ["3"]
    assert not case_runs.cut_short


@pytest.mark.parametrize("before", [[], run_of(1, 1, 1), run_of(2, 1, 5)])
def test_a_run_that_was_cut_short_counts_where_none_before_it_has_more(before):
    (case_runs,) = latest([*before, *run_of(2, 3, 5)])
    assert [item.run for item in case_runs.records] == ["3"] * 2
    assert case_runs.cut_short
    assert not case_runs.later


def test_a_run_of_throughput_alone_hides_none_that_has_latencies():
    (throughput,) = run_of(1, 4, 1)
    throughput = replace(throughput, budget=Budget(mode="throughput"), measurements=())
    (case_runs,) = latest([*run_of(3, 1, 3), *run_of(3, 2, 3), throughput])
    assert ([item.run for item in case_runs.records], case_runs.of_runs) == (["2"] * 3, 2)
    failed = failure(case(), run="0", created="2025-01-01T00:00:00Z")
    for records in ([throughput], [failed, throughput]):
        (case_runs,) = latest(records)
        assert case_runs.first == throughput


def test_cases_keep_their_place_whatever_comes_later():
    one, other = case(), case("openvino")
    records = [record(one, run="a"), record(other, run="a"), record(one, run="b", created="2027-01-01T00:00:00Z")]
    assert [(case_runs.first.case, case_runs.first.run) for case_runs in latest(records)] == [(one, "b"), (other, "a")]
    assert latest([]) == []


def test_processes_that_failed_are_records_without_samples():
    broken = failure(case(), "crashed", id="broken", created="2026-05-04T09:00:00Z")
    runs = CaseRuns((broken, made()))
    assert (runs.ran, runs.first, [(*process,) for process in runs.processes]) == ((made(),), made(), [FLAT])
    assert (CaseRuns((broken,)).first, CaseRuns((broken,)).processes) == (broken, [])
