"""What a tuning aims at and its limits: words become data, and what means nothing is said."""

import math

import pytest

from inferlens.spec.objective import MEASURES, SHORT, Constraint, Objective
from tests.refusals import refusal


@pytest.mark.parametrize(("word", "name"), [
    ("latency", "latency"), ("latency.p50", "latency"), ("latency.p95", "latency.p95"), ("p99", "latency.p99"),
    ("throughput", "throughput"), ("energy", "energy"), (" memory ", "memory"),
])  # fmt: skip
def test_an_objective_is_a_word(word, name):
    assert Objective.parse(word) == Objective(name)
    assert Objective(name).measure is MEASURES[name]


@pytest.mark.parametrize(("text", "name", "limit"), [
    ("error=1e-2", "error", 0.01), ("error=1%", "error", 0.01), ("memory=2GiB", "memory", 2 * 2**30),
    ("memory=500MB", "memory", 5e8), ("build=10m", "build", 600.0), ("p99=5ms", "latency.p99", 0.005),
    (" latency.p95 = 200us ", "latency.p95", 0.0002), ("latency=4ms", "latency", 0.004), ("energy=0.5J", "energy", 0.5),
    ("energy=20mJ", "energy", 0.02), ("throughput=1000", "throughput", 1000.0),
])  # fmt: skip
def test_a_constraint_is_a_measure_and_its_limit(text, name, limit):
    constraint = Constraint.parse(text)
    assert (constraint.name, constraint.limit) == (name, pytest.approx(limit))


@pytest.mark.parametrize(("text", "message"), [
    ("eror=1", "no constraint 'eror'.*did you mean error"), ("error", "has no limit.*error=1e-2"),
    ("error=2", "'2' is not a relative error"), ("error=", "is not a valid relative error"),
    ("error=0", "Nothing keeps a limit of 0 for error"), ("memory=2", "is not a valid size of memory.*2GiB"),
    ("memory=-2GiB", "is not a valid size of memory"), ("energy=5", "is not a valid energy.*2J"),
    ("p99=fast", "is not a duration"), ("throughput=1e99999", "is not a valid rate"),
    ("accuracy-drop=3", "is not a percentage"),
])  # fmt: skip
def test_what_limits_nothing_is_refused(text, message):
    refusal(message, Constraint.parse, text)


def test_one_limit_for_each_measure():
    assert [constraint.name for constraint in Constraint.parse_all(["error=1%", "p99=5ms"])] == ["error", "latency.p99"]
    refusal(r"limit of latency\.p99 is given twice", Constraint.parse_all, ["p99=5ms", "latency.p99=6ms"])


def test_how_far_a_value_is_beyond_its_limit():
    at_most, at_least = Constraint("latency", 0.004), Constraint("throughput", 100.0)
    assert [at_most.factor(value) for value in (0.002, 0.004, 0.006)] == pytest.approx([0.5, 1, 1.5])
    assert [at_least.factor(value) for value in (200.0, 100.0, 50.0)] == pytest.approx([0.5, 1, 2])
    assert [at_least.factor(0.0), at_most.factor(None), at_least.factor(None)] == [math.inf] * 3
    assert (str(at_most), str(at_least)) == ("median latency at most 4.00 ms", "throughput at least 100 items/s")


@pytest.mark.parametrize("measure", MEASURES.values(), ids=lambda measure: measure.name)
def test_the_form_that_is_shown_is_one_that_is_read(measure):
    name, title, _, show, read, form, *_ = measure
    word, _, limit = form.partition("=")
    assert SHORT.get(word, word) == name
    assert read(limit) > 0
    assert show(read(limit)) != show(None) == "–"
    assert title
