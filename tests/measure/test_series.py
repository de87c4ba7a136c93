"""Series of samples: exact counts and times, when there are enough samples, and the inputs of calls."""

import gc
import itertools
import random
import threading

import pytest

from inferlens.backends.base import Preparation
from inferlens.backends.clocks import HostClock, threaded_window
from inferlens.backends.fake import Fake, FakeRunner
from inferlens.measure import series
from inferlens.measure.series import Feeding, FixedCount, FixedTime, HalfWidth, SteadyState
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.spec.case import Case, TensorSpec
from inferlens.stats.intervals import half_width


def runner(tmp_path, variant="steady", **options):
    case = Case(model="fake:demo", backend="fake", variant=variant, options=options)
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    return Fake().prepare(model, case, Preparation(tmp_path, tmp_path))


def samples_of(fake, rule, progress=lambda _: None):
    return series.latency(fake, itertools.repeat({}), rule, progress)


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_a_fixed_count_takes_exactly_as_many(tmp_path, count):
    results = samples_of(runner(tmp_path), FixedCount(count))
    expected = [("latency", "fake", (0.004,) * count)] * bool(count)
    assert [(item.metric, item.clock, item.samples) for item in results] == expected


def test_samples_come_with_the_time_when_they_began(tmp_path):
    (latency,) = samples_of(runner(tmp_path, "noisy"), FixedCount(500))
    assert latency.begins == pytest.approx([0.0, *itertools.accumulate(latency.samples)][:-1], abs=1e-6)


@pytest.mark.parametrize("rule", [FixedCount(40), FixedTime(0.1, 10, 50), HalfWidth(0.01, 9.0)])
def test_progress_grows_to_one(tmp_path, rule):
    shares = []
    samples_of(runner(tmp_path, "noisy"), rule, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def throughput(fake, *times, **more):
    return series.throughput(fake, itertools.repeat({}), *times, lambda _: None, **more)


def test_throughput_is_calls_over_time_in_windows(tmp_path):
    measured = throughput(runner(tmp_path, latency=2.0), 0.002, 1.0)
    assert (measured.unit, measured.in_flight, measured.calls) == ("calls/s", 1, 50)
    assert measured.samples == pytest.approx([500.0] * series.WINDOWS)
    assert measured.begins == pytest.approx([0.1 * window for window in range(series.WINDOWS)])


def test_a_window_has_several_calls_for_each_place_in_flight_and_each_stream(tmp_path):
    fake = runner(tmp_path)
    fake.clock.asynchronous = True
    assert throughput(fake, 0.004, 0.001, depth=16).calls == 16 * series.LEAST_PER_PLACE
    fake.clock.lanes = 3
    assert throughput(fake, 0.004, 0.001).calls == 3 * series.LEAST_PER_PLACE


@pytest.mark.parametrize(("typical", "calls", "windows"), [(0.004, 25, 10), (0.4, 1, 5), (1.5, 1, 1), (60.0, 1, 1)])
def test_windows_end_in_time(tmp_path, typical, calls, windows):
    measured = throughput(runner(tmp_path, latency=1e3 * typical), typical, 1.0, max_time=2.0)
    assert (measured.calls, len(measured.samples)) == (calls, windows)


def test_chunks_are_short_also_where_much_happens_between_calls(tmp_path):
    fake, rule = runner(tmp_path, latency=0.1), FixedTime(1.0, 1, 10_000)

    def slowly():
        while True:
            fake.clock._now += 0.1
            yield {}

    series.latency(fake, slowly(), rule, lambda _: None)
    assert rule.spent < 1.5


def test_the_collector_is_off_while_calls_are_timed_and_on_again_afterwards(tmp_path):
    fake, states = runner(tmp_path), []
    fake.infer = lambda feed: states.append(gc.isenabled())
    samples_of(fake, FixedCount(3))
    assert (states, gc.isenabled()) == ([False] * 3, True)


def test_threads_share_the_calls_of_a_window_each_with_its_own_feed(tmp_path):
    calls, together, number = [], threading.Barrier(2), itertools.count()

    def infer(feed):
        if next(number) < 2:
            together.wait(10)  # gets through only if two calls are in flight
        calls.append(feed)

    measured = throughput(runner(tmp_path), 0.01, 0.001, depth=2, callers=[(infer, "a"), (infer, "b")])
    assert (measured.in_flight, measured.calls) == (2, 16)
    assert (len(calls), set(calls)) == (16 * series.WINDOWS, {"a", "b"})


def test_a_call_that_fails_in_a_thread_fails_the_window():
    def infer(_):
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        threaded_window([(infer, None), (infer, None)], 4)


# The end of a series: on scripted samples, so to the sample.


def count_samples(rule, samples, chunk=25, pause=0.0):
    """Return how many of the samples the rule takes, in chunks, with a pause after each sample."""
    begin, source = 100.0, iter(samples)
    while not rule.finished:
        some = list(itertools.islice(source, min(chunk, rule.most)))
        assert some, "the rule wants more than there are"
        begins = [begin + place * pause + sum(some[:place]) for place in range(len(some))]
        rule.add(begins, some)
        begin = begins[-1] + some[-1] + pause
    return len(rule.samples)


def noisy(count, spread, seed=0, middle=0.01):
    draw = random.Random(seed)
    return [middle * (1 + spread * draw.gauss(0, 1)) for _ in range(count)]


@pytest.mark.parametrize(("sample", "pause", "most", "count"), [
    (0.01, 0, 5000, pytest.approx(100, abs=1)), (0.01, 0.01, 5000, pytest.approx(51, abs=1)), (0.3, 0, 5000, 10),
    (0.001, 0, 50, 50),
])  # fmt: skip
def test_time_is_from_the_first_begin_to_the_last_end(sample, pause, most, count):
    assert count_samples(FixedTime(1.0, 10, most), [sample] * 5000, chunk=1, pause=pause) == count


@pytest.mark.parametrize(("rule", "missed"), [
    (FixedCount(100), None), (FixedCount(100, 0.3), "30 samples were taken in 300 ms, less than was asked for."),
    (FixedTime(1.0, 10, 5000), None), (HalfWidth(1e-9, 0.5), ""),  # the samples tell
    (FixedTime(1.0, 10, 5000, 0.5), "50 samples were taken in 500 ms, less than was asked for."),
    (FixedTime(0.1, 50, 5000, 0.2), "20 samples were taken in 200 ms, less than was asked for."),
])  # fmt: skip
def test_a_missed_goal_is_reported(rule, missed):
    count_samples(rule, noisy(5000, 0.0), chunk=1)
    assert (rule.missed, rule.reached) == (missed or "", missed is None)


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1])
def test_the_half_width_is_reached_and_not_much_exceeded(spread):
    samples = noisy(series.MOST_SAMPLES, spread)
    count = count_samples(HalfWidth(0.01, 1000.0), samples)
    assert half_width(samples[:count]) <= 0.0101
    assert count < 4 * max(series.LEAST_SAMPLES, series.LEAST_SECONDS / 0.01, (2.5 * spread / 0.01) ** 2)


def test_a_narrow_interval_needs_half_a_second():
    samples = [0.0001 + 1e-9 * (place % 7) for place in range(series.MOST_SAMPLES)]
    assert count_samples(HalfWidth(0.01, 10.0), samples) >= series.LEAST_SECONDS / 0.0001


def test_an_unreachable_interval_ends_at_the_limits():
    wild, rule = noisy(series.MOST_SAMPLES + 1, 0.3), HalfWidth(0.0001, 3.0)
    assert (count_samples(rule, wild), rule.reached) == (pytest.approx(300, abs=30), False)
    assert count_samples(HalfWidth(0.0001, 1e9), wild, chunk=1000) == series.MOST_SAMPLES
    assert count_samples(HalfWidth(0.0001, 3.0), wild, chunk=10, pause=0.02) == pytest.approx(100, abs=10)


def test_warmup_lasts_until_calls_are_steady_or_the_time_is_up():
    falling, rule = [0.01 + 0.05 * 0.98**index for index in range(3000)], SteadyState(1.0, 10.0)
    count = count_samples(SteadyState(1.0, 60.0), falling)
    assert count > 200
    assert falling[count] < 0.0102
    count_samples(rule, [0.01 * 1.01**index for index in range(2000)], chunk=5)
    assert not rule.reached
    assert 10.0 <= rule.spent < 15.0


def test_warmup_that_is_steady_takes_a_second_and_ten_calls():
    assert count_samples(SteadyState(1.0, 60.0), noisy(500, 0.01), chunk=10) == pytest.approx(100, abs=15)
    assert count_samples(SteadyState(1.0, 60.0), [5.0] * 50, chunk=1) == 10
    assert count_samples(SteadyState(1.0, 60.0), noisy(50, 0.01, middle=0.2), chunk=1) == pytest.approx(15, abs=1)


# The inputs of calls, and what happens between two calls


CACHE = 1 << 20
MODEL = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3, 64, 64)),))


class LoggingRunner(FakeRunner):
    """Notes its calls and their inputs."""

    def infer(self, feed):
        self.calls.append("infer")
        self.feeds.append(feed["x"])
        return feed

    def bind(self, feed):
        self.calls.append("bind")


@pytest.fixture
def small_cache(monkeypatch):
    monkeypatch.setattr(series, "cache_bytes", lambda _: CACHE)


def feeding(folder, **how):
    case = Case(model="fake:demo", backend="fake", variant="steady", **how)
    preparation = Preparation(folder, folder)
    runner = LoggingRunner(Fake.options(), case, preparation, 1)
    runner.calls, runner.feeds = [], []
    return runner, Feeding(runner, MODEL, case, make_inputs(MODEL, case.seed), preparation), preparation.facts


@pytest.mark.usefixtures("small_cache")
def test_rotating_inputs_are_larger_than_the_cache_and_ready_before_the_call(tmp_path):
    runner, feeds, facts = feeding(tmp_path, rotate=True)
    facts = facts["rotating inputs"]
    assert facts["bytes"] >= series.TIMES_CACHE * CACHE
    HostClock().time(runner.infer, feeds.latency, facts["feeds"] + 1)
    assert runner.calls[:4] == ["bind", "infer", "bind", "infer"]
    assert runner.feeds[0] is runner.feeds[-1]
    assert len({feed.ctypes.data for feed in runner.feeds}) == facts["feeds"]
    assert not any((one == item).all() for one, item in itertools.pairwise(runner.feeds))


@pytest.mark.usefixtures("small_cache")
def test_the_cache_is_flushed_before_each_latency_sample_and_in_none(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(series, "flusher", lambda *_: lambda: order.append("flush"))
    runner, feeds, facts = feeding(tmp_path, cold=True)
    runner.calls = order
    HostClock().time(runner.infer, feeds.latency, 3)
    HostClock().window(runner.infer, feeds.throughput, 2)
    assert order == ["flush", "infer"] * 3 + ["infer"] * 2
    assert facts["flushed_bytes"] == series.TIMES_CACHE * CACHE


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """A function that adds a cache of a CPU to a fake system."""
    monkeypatch.setattr(series, "CPUS", tmp_path)

    def cache(cpu, level, size, shared):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{level}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")

    return cache


def test_last_level_caches_are_counted_once(caches):
    for cpu in range(4):
        caches(cpu, 1, "48K", cpu)
        caches(cpu, 3, "32768K", "0-1" if cpu < 2 else "2-3")
    assert series.cache_bytes("cpu") == 2 * 32 << 20


@pytest.mark.parametrize("size", ["", "many", "-1K"])
def test_a_system_without_a_cache_size_has_an_assumed_cache(tmp_path, caches, size):
    caches(0, 3, size, "0")
    assert series.cache_bytes("cpu") == 0
    assert feeding(tmp_path, cold=True)[2]["flushed_bytes"] == series.TIMES_CACHE * series.ASSUMED_CACHE
