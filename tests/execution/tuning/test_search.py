"""The search of a tuning, without processes: the cases it asks for in a space whose best is known, and advice."""

import itertools
import math
import random
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from inferlens.analysis.measures import bottleneck
from inferlens.analysis.tuning import Advice, Candidate, Observation, Point, setting_effects
from inferlens.backends.base import Capabilities, Knob, Recommendation, Support
from inferlens.backends.fake import Fake
from inferlens.execution.protocol import PlannedCase
from inferlens.execution.tuning.search import Search, TimeModel
from inferlens.execution.tuning.space import SearchSpace, advice_that_paid, advised_cases
from inferlens.record.record import KERNEL_FAMILIES, Measurement
from inferlens.spec.case import Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.views.tuning import tuning_sentences
from tests.execution.tuning.test_space import space
from tests.execution.tuning.test_tune import KNOB_A, tune
from tests.spec.test_plan import FAKE, FLOATS, GPU_HOST, RESNET
from tests.views.samples import RIGHT, record

EFFECTS = {"freeze": -0.1, "last": -0.05, "benchmark": 0.0, "spin": 0.2, "graph": -0.2}
FAMILIES = {"eager": 0.5, "compiled": 0.1, "graphed": 0.0, "slow": 1.5}


@pytest.fixture
def planted(monkeypatch):
    """A space whose families are variants of the fake backend, and whose settings are its options."""
    options = msgspec.defstruct("Options", [(name, int, 0) for name in EFFECTS], frozen=True)
    knobs = tuple(Knob(name=name, values=(1,)) for name in EFFECTS)
    for name, value in {"options": options, "variants": tuple(FAMILIES), "knobs": knobs}.items():
        monkeypatch.setattr(Fake, name, value)
    families = (PlannedCase(case(name), FAKE, None) for name in FAMILIES)
    return SearchSpace(tuple(families), (), {"fake": knobs})


def case(family, *settings):
    return Case(model="fake:demo", backend="fake", variant=family, options=dict.fromkeys(settings, 1))


def search_in(planted, *limits):
    return Search(planted, Objective.parse("latency"), Constraint.parse_all(limits))


def log(of):
    """The logarithm of a time; the graph does nothing in one family."""
    effects = {**EFFECTS, **({"graph": 0.0} if of.variant == "graphed" else {})}
    return FAMILIES[of.variant] + sum(effects[name] for name in of.options)


def ran(of, **fields):
    return record(of, samples=(math.exp(log(of)),), **fields)


def failed(of):
    return record(of, median=None, status="crashed")


def run(search, broken=frozenset(), costs=None):
    """The rounds until it is over."""
    rounds = []
    while cases := search.ask(lambda one: (costs or {}).get(one.variant, 1.0)):
        rounds.append(cases)
        search.tell([failed(one) if one.options.keys() & broken else ran(one) for one in cases])
        assert len(rounds) < 80
    return rounds


def test_the_best_is_found_and_most_are_not_measured(planted):
    search = search_in(planted)
    rounds = run(search)
    measured = {one.digest: one for cases in rounds for one in cases}.values()
    assert log(search.best) == pytest.approx(-0.25)
    assert search.finalists(rival=False)[0] == search.best
    assert len(measured) < 2 ** len(EFFECTS) * len(FAMILIES) / 3
    assert {one.variant for one in measured} == {*FAMILIES}
    assert not any(one.variant == "slow" and one.options for one in measured)
    befores = (itertools.chain(*rounds[:place]) for place in range(1, len(rounds)))
    assert all(cases[0] in before for before, cases in zip(befores, rounds[1:], strict=True)), "the best so far"


def test_recommended_cases_come_before_all_others_whatever_they_cost(planted, monkeypatch):
    ways = (Recommendation("compiled", "cpu"), Recommendation("slow", "cpu", {"spin": 1}))
    monkeypatch.setattr(Fake, "recommended", ways)
    search, costs = search_in(planted), {"compiled": 9.0}
    first = [case("eager"), case("compiled"), case("slow", "spin")]  # the reference before them
    assert search.ask(lambda one: costs.get(one.variant, 1.0)) == first
    search.tell(list(map(ran, first)))
    assert {*FAMILIES} == {one.variant for cases in run(search, costs=costs) for one in [*first, *cases]}


def test_families_that_take_a_little_longer_come_before_settings_of_measured_ones(planted):
    search = search_in(planted)
    search.tell([ran(case("eager"))])
    costs = {"eager": 3.25, "compiled": 9.25, "graphed": 9.25, "slow": 9.25}
    assert {one.variant for one in search.ask(lambda one: costs[one.variant])} == set(FAMILIES)


def test_families_that_take_far_longer_are_measured_when_others_promise_less_for_their_cost(planted):
    search = search_in(planted)
    rounds = run(search, costs={"compiled": 9.0})
    late = next(place for place, cases in enumerate(rounds) if any(one.variant == "compiled" for one in cases))
    assert {one.variant for cases in rounds[:late] for one in cases} == {"eager", "graphed", "slow"}
    assert any(one.options for cases in rounds[:late] for one in cases)
    assert search.best.variant == "compiled", "and then it is tuned as any other"


def test_a_setting_by_which_a_candidate_failed_is_not_tried_again_in_its_family(planted):
    search = search_in(planted)
    tried = [one for cases in run(search, broken={"graph"}) for one in cases if "graph" in one.options]
    assert max(Counter(one.variant for one in tried).values()) <= 3
    assert "graph" not in search.best.options


def test_candidates_that_worked_before_and_fail_once_stay_and_so_do_their_neighbours(planted):
    search = search_in(planted)
    search.tell(list(map(ran, map(case, FAMILIES))))
    search.tell(list(map(failed, map(case, FAMILIES))))
    assert (search.failed, search.best) == (set(), case("graphed"))
    assert any(one.options and one.variant == "graphed" for cases in run(search) for one in cases)


def test_families_that_break_a_limit_are_tuned_only_while_nothing_keeps_it(planted):
    search = search_in(planted, "error=1e-3")
    while cases := search.ask(lambda _: 1.0):
        errors = [1e-6 if "freeze" in one.options else 1e-2 for one in cases]
        search.tell([ran(one, agreement=replace(RIGHT, rel_l2=e)) for one, e in zip(cases, errors, strict=True)])
    assert "freeze" in search.best.options
    finalists = search.finalists(rival=True)
    assert search.excluded(finalists) == {one.digest for one in finalists if "freeze" not in one.options}
    tuned = {one.point.family for one in search.model.observations if len(one.point.settings) > 1}
    assert 0 < len(tuned) < len(FAMILIES)


def test_the_nearest_to_a_limit_can_win_if_all_break_it(planted):
    search = search_in(planted, "latency=1us")
    search.tell(list(map(ran, map(case, FAMILIES))))
    finalists = search.finalists(rival=True)
    assert finalists == [case("graphed"), case("eager")], "the nearest and the reference"
    assert search.excluded(finalists) == {case("eager").digest}


def test_nothing_is_proposed_if_nothing_ran(planted):
    search, rounds = search_in(planted), []
    while cases := search.ask(lambda one: FAMILIES[one.variant]):
        rounds.append([one.variant for one in cases])
        search.tell(list(map(failed, cases)))
    assert rounds == [["eager", "graphed", "compiled"], ["slow"]], "the cheapest first, after the reference"
    assert (search.best, search.finalists(rival=True)) == (None, [])


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


HOST_BOUND, REFORMATTING = {"enqueue": 0.95}, {"kernels": {"reformat": 0.2}}
EAGER_GRAPH = ["pytorch fp16 cuda_graph=true"]


@pytest.mark.parametrize(("family", "limited", "behind", "expected"), [
    (0, HOST_BOUND, 1, EAGER_GRAPH), (1, HOST_BOUND, 1, ["torch_compile:reduce-overhead fp16"]), (0, {}, 1, []),
    (1, REFORMATTING, 1, [f"torch_compile:default fp16 {name}=true" for name in ("freezing", "channels_last")]),
    (0, HOST_BOUND, 3, EAGER_GRAPH), (0, HOST_BOUND, 5, []), (0, REFORMATTING, 1.5, []),  # far behind
])  # fmt: skip
def test_advice_against_what_limits_a_call_unless_it_is_far_behind(family, limited, behind, expected):
    found = on_gpu(precision="fp16")
    case = found.families[family].case
    assert ways([measured(case, **limited)], found, behind=math.log(behind)) == expected


def test_what_is_bound_by_memory_is_advised_lower_precisions():
    found = on_gpu(backend="pytorch")
    eager = found.families[0].case
    assert ways([measured(eager, kernels={"elementwise": 0.9})], found) == [
        "pytorch fuse=true", "pytorch fp16", "pytorch bf16",
    ]  # fmt: skip


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


def of(family, *settings):
    return Point(family, frozenset(settings))


def seen(*logs):
    return [Observation(*log) for log in logs]


def test_settings_of_which_nothing_is_known_promise_exactly_the_same():
    """So that the value that a backend names first is tried first."""
    base, settings = of("a"), [of("a", name) for name in "xyz"]
    for logs in (seen(), seen((base, 0.0, 1), (of("b"), 0.3, 1), (of("b", "w"), 0.2, 1))):
        gains = TimeModel.fit(logs).predict([base, of("b"), *settings]).gains(base)
        assert len({gains[point] for point in settings}) == 1


# What settings are said to do, of planted ones: no more than is known, and nothing of what does nothing.

PLANTED = {"a": -0.3, "b": 0.0, "c": 0.0, "d": 0.0}


def drawn_rounds(draw, count, noise=0.05):
    """The default and three candidates in each round; another family beside them."""
    logs = []
    for number in range(count):
        wave = draw.gauss(0, 0.1)
        some = [of("f", *(name for name in PLANTED if draw.random() < 0.5)) for _ in range(3)]
        for point in (of("f"), of("other"), *some):
            log = wave + sum(PLANTED[name] for name in point.settings) + draw.gauss(0, noise)
            logs.append(Observation(point, log, number))
    return logs


@pytest.mark.parametrize("count", [2, 4, 12])
def test_a_setting_that_does_nothing_is_rarely_called_an_effect_also_where_it_looked_best(count):
    draw, lows_and_highs = random.Random(count), []
    for _ in range(400):
        found = setting_effects(drawn_rounds(draw, count), of("f", *PLANTED))
        told = [item for name, item in found.items() if item and not PLANTED[name]]
        lows_and_highs += [max(told)[1:]] if told else []  # of the one that a search would keep
    assert len(lows_and_highs) > 100
    assert sum(low > 1 or high < 1 for low, high in lows_and_highs) <= 0.05 * len(lows_and_highs)


def test_what_rounds_do_not_tell_is_not_said():
    both, point = of("f", "a", "b"), of("f", "c")
    few = seen((of("f"), 0.0, 1), (both, -0.2, 1))
    assert setting_effects(few, both) == {"a": None, "b": None}, "there is nothing left to say how far processes differ"
    more = seen(*((one.point, one.log + 0.01 * number, number) for number in (1, 2, 3) for one in few))
    assert setting_effects(more, both) == {"a": None, "b": None}, "never one without the other"
    assert setting_effects(more, point) == {"a": None, "b": None, "c": None}, "never measured"
    more += seen(*((of("f", "a"), -0.1 + 0.01 * number, number) for number in (1, 2, 3)))
    told = setting_effects(more, both)
    assert [round(item[0], 3) for item in told.values() if item] == [round(math.exp(0.1), 3)] * 2
    assert setting_effects(more, of("f")) == told, "nor does the winner have to have them"
