"""The search of a tuning, without processes: proposals in a space whose best is known, and the advice of profiles."""

import itertools
import math
from collections import Counter

import pytest
from msgspec.structs import replace

from inferlens.analysis.measures import bottleneck
from inferlens.analysis.tuning import Advice, Candidate
from inferlens.backends.base import Capabilities, Support
from inferlens.execution.tuning.search import Point, Search, advice_that_paid, advised_cases
from inferlens.record.record import KERNEL_FAMILIES, Measurement
from inferlens.views.tuning import tuning_sentences
from tests.execution.tuning.test_space import space
from tests.execution.tuning.test_tune import KNOB_A, tune
from tests.spec.test_plan import FLOATS, GPU_HOST, RESNET
from tests.views.samples import record

EFFECTS = {"freeze": -0.1, "last": -0.05, "benchmark": 0.0, "spin": 0.2, "graph": -0.2}
FAMILIES = {"eager": 0.5, "compiled": 0.1, "graphed": 0.0, "slow": 1.5}


def log(point):
    """The logarithm of a time; the graph does nothing in one family."""
    effects = {**EFFECTS, **({"graph": 0.0} if point.family == "graphed" else {})}
    return FAMILIES[point.family] + sum(effects[name] for name in point.settings)


def near(point):
    return [Point(point.family, point.settings ^ {name}) for name in EFFECTS]


def run(search, broken=frozenset()):
    """The rounds until it is over."""
    rounds = []
    while points := search.propose():
        rounds.append(points)
        search.add({point: None if point.settings & broken else log(point) for point in points})
        assert len(rounds) < 80
    return rounds


def begun():
    return Search([Point(name) for name in FAMILIES], near, lambda point: 4.0 if point.family == "compiled" else 1.0)


def test_the_best_is_found_and_most_are_not_measured():
    search = begun()
    rounds = run(search)
    every = [
        Point(family, frozenset(chosen))
        for family in FAMILIES
        for count in range(len(EFFECTS) + 1)
        for chosen in itertools.combinations(EFFECTS, count)
    ]
    assert (log(search.best), search.finalists()[0]) == (pytest.approx(min(map(log, every))), search.best)
    assert len({point for points in rounds for point in points}) < len(every) / 3
    assert not any(point.family == "slow" and point.settings for points in rounds for point in points)


def test_families_come_first_the_cheap_ones_before():
    rounds = run(begun())
    first = [point for points in rounds for point in points][: len(FAMILIES) + 1]
    assert all(not point.settings for point in first)
    assert Point("compiled") not in rounds[0]
    for place, points in enumerate(rounds[1:], 1):
        assert points[0] in {each for before in rounds[:place] for each in before}, "the best so far is in every round"


def test_what_is_promising_comes_before_all_else_whatever_it_costs():
    known, other = Point("slow", frozenset(["spin"])), Point("compiled")
    search = Search([*map(Point, FAMILIES)], near, lambda point: 9.0 if point == other else 1.0, first=[other, known])
    assert search.propose() == [other, known, Point("eager")]
    search.add({other: 0.1})
    assert search.propose() == [other, known, Point("eager"), Point("graphed")]


def test_what_takes_far_longer_than_the_others_is_measured_when_nothing_else_promises_a_gain():
    search = Search([Point(name) for name in FAMILIES], near, lambda point: 9.0 if point.family == "compiled" else 1.0)
    rounds = run(search)
    late = next(place for place, points in enumerate(rounds) if any(point.family == "compiled" for point in points))
    assert {point.family for points in rounds[:late] for point in points} == {"eager", "graphed", "slow"}
    assert any(point.settings for points in rounds[:late] for point in points)
    assert search.best.family == "compiled", "and then it is tuned as any other"


def test_a_setting_by_which_a_candidate_failed_is_not_tried_again_in_its_family():
    search = begun()
    rounds = run(search, frozenset(["graph"]))
    tried = [point for points in rounds for point in points if "graph" in point.settings]
    assert max(Counter(point.family for point in tried).values()) <= 3
    assert "graph" not in search.best.settings


def test_what_worked_before_and_fails_once_stays_and_so_do_its_neighbours():
    search = begun()
    run(search)
    best = search.best
    search.add({best: None, Point(best.family): None})
    assert (search.failed, search.best) == (set(), best)
    assert any(point.family == best.family and point.settings - best.settings for point in search.belief.points)


def test_what_breaks_a_limit_is_tuned_only_while_nothing_keeps_it():
    search = begun()
    while points := search.propose():
        search.barred |= {point for point in points if "freeze" not in point.settings}
        search.add({point: log(point) for point in points})
    assert "freeze" in search.best.settings
    assert all("freeze" in point.settings for point in search.finalists())
    tuned = {each.point.family for each in search.observations if len(each.point.settings) > 1}
    assert search.best.family in tuned
    assert len(tuned) < len(FAMILIES)


def test_nothing_is_proposed_where_nothing_ran():
    search = Search([Point("a")], lambda _: [], lambda _: 1.0)
    assert search.propose() == [Point("a")]
    search.add({Point("a"): None})
    assert search.propose() == []


# What profiles advise a tuning to try, and what the answer says of advice that paid.


pytestmark = pytest.mark.usefixtures("one_process")
COMPILED = Capabilities(
    formats=("module",), supports=(Support("default", "cuda", FLOATS), Support("reduce-overhead", "cuda", FLOATS))
)


def on_gpu(**words):
    machine = {"pytorch": GPU_HOST["pytorch"], "torch_compile": COMPILED}
    return space(machine, RESNET, device="cuda", **words)


def measured(case, *, enqueue=0.1, kernels=None):
    """A record of a call of 1 ms, of which so much is spent to enqueue it."""
    series = {"latency": 1e-3, "enqueue time": enqueue * 1e-3, "GPU time": 0.9e-3}
    measurements = tuple(
        Measurement(metric=name, unit="s", clock="a clock", samples=(seconds,) * 50) for name, seconds in series.items()
    )
    facts = {KERNEL_FAMILIES: kernels} if kernels else {}
    return record(case, measurements=measurements, facts=facts)


def ways(records, found, behind=0.0):
    return [case.way for case in advised_cases(records, [behind] * len(records), found)]


@pytest.mark.parametrize(("enqueue", "kernels", "expected"), [
    (0.95, {"convolution": 1.0}, "host"), (0.1, {"convolution": 0.9, "reformat": 0.1}, "layout"),
    (0.1, {"convolution": 0.4, "elementwise": 0.6}, "memory"), (0.1, {"convolution": 0.8, "elementwise": 0.2}, ""),
    (0.1, None, ""),
])  # fmt: skip
def test_what_limits_a_call(enqueue, kernels, expected):
    case = on_gpu().families[0].case
    assert bottleneck(measured(case, enqueue=enqueue, kernels=kernels)) == expected


def test_calls_that_wait_for_the_host_are_advised_a_cuda_graph():
    found = on_gpu(precision="fp16")
    eager, compiled, _ = (each.case for each in found.families)
    assert ways([measured(eager, enqueue=0.95)], found) == ["pytorch fp16 cuda_graph=true"]
    assert ways([measured(compiled, enqueue=0.95)], found) == ["torch_compile:reduce-overhead fp16"]
    assert ways([measured(eager)], found) == []


def test_conversions_of_layouts_are_advised_every_setting_against_them():
    found = on_gpu(precision="fp16")
    compiled = found.families[1].case
    assert ways([measured(compiled, kernels={"reformat": 0.2})], found) == [
        f"torch_compile:default fp16 {settings}" for settings in ("freezing=true", "channels_last=true")
    ]


def test_what_is_bound_by_memory_is_advised_lower_precisions():
    found = on_gpu(backend="pytorch")
    eager = found.families[0].case
    assert ways([measured(eager, kernels={"elementwise": 0.9})], found) == [
        "pytorch fuse=true", "pytorch fp16", "pytorch bf16",
    ]  # fmt: skip


def test_nothing_is_advised_for_ways_that_are_far_behind():
    found = on_gpu(precision="fp16")
    eager = found.families[0].case
    assert ways([measured(eager, enqueue=0.95)], found, behind=math.log(3)) != []
    assert ways([measured(eager, enqueue=0.95)], found, behind=math.log(5)) == []
    assert ways([measured(eager, kernels={"reformat": 0.2})], found, behind=math.log(1.5)) == []


def test_advice_paid_if_the_winner_has_it_and_is_faster_than_the_ways_that_had_the_limit(tmp_path):
    found = on_gpu(precision="fp16")
    eager, compiled, graphed = (each.case for each in found.families)
    records = [measured(eager, enqueue=0.95), measured(compiled, enqueue=0.95), measured(graphed)]
    tried = [
        Candidate(record=each.id, speedup=speed, low=0.9 * speed, high=1.05 * speed)
        for each, speed in zip(records, (0.2, 0.5, 1.0), strict=True)
    ]
    by_id, way = {each.id: each for each in records}, "torch_compile:default fp16"
    advice = (Advice("torch_compile:reduce-overhead", "host", way, 2.0),)
    assert advice_that_paid(graphed, tried, by_id, found) == advice
    assert advice_that_paid(eager, tried, by_id, found) == ()
    said = " ".join(tuning_sentences(replace(tune(tmp_path, only=KNOB_A), advice=advice)))
    assert f"Advice that paid: torch_compile:reduce-overhead, since calls of {way} waited for the host (2.00x)." in said
