"""The values of records for what a tuning aims at: those that tables show, and how far they miss limits."""

import math
from typing import Any

import pytest

from inferlens.analysis.measures import build_seconds, measure_value, violation_factors, violations
from inferlens.analysis.samples import CaseRuns
from inferlens.record.machine import Energy
from inferlens.record.record import Memory, Phase
from inferlens.spec.objective import MEASURES, Constraint
from inferlens.views.rows import rows
from tests.views.samples import RIGHT, UNCHECKED, WRONG, case, failure, record

GPU_MEMORY = Memory(host_peak=2**30, device_peak=300 * 2**20, device_basis="NVML, the process's own")
ON_GPU = case(batch=8, device="cuda")
# How the rows of tables call the measures.
FIELDS = {
    "latency": "median", "latency.p95": "p95", "latency.p99": "p99", "throughput": "items_per_second",
    "energy": "energy", "build": "build", "error": "error",
}  # fmt: skip


def processes(**fields: Any) -> CaseRuns:
    """Three processes of one case."""
    of = fields.pop("of", ON_GPU)
    return CaseRuns(tuple(
        record(of, median=item * 1e-3, rate=100 / item, id=f"{item}", created=f"2026-05-04T10:0{item}:00Z", repeat=item,
               energy=Energy(joules=item * 1e-2, low=0.0, high=1.0), memory=GPU_MEMORY, **fields)
        for item in (1, 2, 4)
    ))  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_values_are_those_of_the_tables(name):
    for run in (processes(), CaseRuns((record(ON_GPU, rate=80.0),))):
        (row,) = rows(run.records)
        assert measure_value(run, name) == getattr(row, FIELDS[name])


def test_values_by_hand():
    run = processes(agreement=RIGHT)
    assert measure_value(run, "throughput") == pytest.approx(8 * 50.0)
    assert measure_value(run, "energy") == pytest.approx(0.07 / 3)
    assert measure_value(run, "memory") == 300 * 2**20
    assert measure_value(processes(of=case(), phases=()), "memory") == 2**30
    assert (measure_value(run, "build"), measure_value(run, "error")) == (pytest.approx(4.3), 3e-7)


def test_the_worst_process_counts_for_build_and_error():
    slow = record(ON_GPU, id="slow", phases=(Phase("load", 99.0), Phase("export", 2.0), Phase("build", 30.0)))
    run = CaseRuns((record(ON_GPU, phases=(Phase("build", 0.1, "cached"),)), slow))
    assert measure_value(run, "build") == 32.0
    assert build_seconds(record(phases=(Phase("load", 1.0),))) is None
    assert measure_value(CaseRuns((record(), record(agreement=WRONG))), "error") == 0.52


def test_memory_is_that_of_processes_that_did_not_export():
    exports, finds = (record(memory=Memory(host_peak=size), phases=(Phase("export", 2.0, note),))
                      for size, note in ((2**31, ""), (2**28, "cached")))  # fmt: skip
    assert measure_value(CaseRuns((exports, finds)), "memory") == 2**28
    assert measure_value(exports, "memory") is None


@pytest.mark.parametrize(("of", "name"), [
    (failure(case()), "latency"), (failure(case(), memory=GPU_MEMORY), "memory"), (record(), "energy"),
    (record(), "throughput"), (record(samples=(1e-3,) * 50), "latency.p99"), (record(agreement=UNCHECKED), "error"),
    (record(agreement=None), "error"),
    (record(ON_GPU), "memory"),  # the library's own account does not compare
    (record(phases=()), "build"), (record(), "accuracy-drop"),
])  # fmt: skip
def test_what_is_not_known_has_no_value_and_keeps_no_limit(of, name):
    assert measure_value(of, name) is None
    (violation,) = violations(of, [Constraint(name, 1e12)])
    known = (violation.factor, "is not known" in violation.sentence, MEASURES[name].title in violation.sentence)
    assert known == (math.inf, True, True)


def test_violations_are_sorted_and_the_nearest_miss_is_the_least():
    limits = [Constraint("latency", 8e-3), Constraint("memory", 406 * 2**20), Constraint("error", 1e-2)]
    ten = record(samples=(10e-3,) * 200, phases=())
    found = violations(ten, limits)
    assert [violation.constraint.name for violation in found] == ["memory", "latency"]
    assert [violation.factor for violation in found] == pytest.approx([2.0, 1.25])
    assert found[1].sentence == "The median latency is 10.0 ms, beyond the limit of 8.00 ms by 1.25x."
    little = {"memory": Memory(host_peak=2**20), "phases": ()}
    small, fits = (record(samples=(seconds,) * 200, **little) for seconds in (10e-3, 8e-3))
    faster = record(samples=(9e-3,) * 200, phases=())
    nearest = sorted([failure(case()), ten, faster, fits, small], key=lambda item: violation_factors(item, limits))
    assert nearest[:2] == [fits, small]
    assert nearest[2:4] == [faster, ten], "the worst is alike, the next decides"
    assert violation_factors(fits, limits) == violation_factors(failure(case()), []) == ()
