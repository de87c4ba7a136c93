"""Launches, operators and scopes, against what looking at every pair finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferlens.trace import LaunchLinks, read
from inferlens.trace.intervals import Intervals
from tests.trace.samples import H100, event, kernel, launch, shared, text

# Small numbers, so that events begin and end together, are empty, and overlap in every way.
SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 12)), max_size=25)


def test_launches_and_external_ids_say_which_operator_a_kernel_is_of() -> None:
    """Also of a graph, which launches many, and of numbers that come again."""
    events = [
        event("first", 0, 20), launch(5, 2, name="cudaGraphLaunch"), kernel(5, 9, 1, "a"),
        kernel(5, 11, 1, "b", stream=8), event("second", 100, 20), launch(5, 102), kernel(5, 110, 1, "c"),
        event("third", 200, 9, External__id=7), kernel(6, 203, 1, "d", External__id=7), kernel(8, 204, 1, "e"),
    ]  # fmt: skip
    trace = read(text(*events))
    links, names = LaunchLinks(trace), trace.names_of(trace.scopes.row)
    assert [names[place] if place >= 0 else "" for place in links.operator] == ["first", "first", "second", "third", ""]
    assert links.launch.tolist() == [0, 0, 1, -1, -1]


@given(SPANS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 45)), max_size=12))
def test_the_innermost_scope_is_the_last_that_has_begun(
    spans: list[tuple[int, int, int]], moments: list[tuple[int, int]]
) -> None:
    trace = read(text(*[event(f"o{n}", begin, length, tid=tid) for n, (tid, begin, length) in enumerate(spans)]))
    launch_links = LaunchLinks(trace)
    numbers = {int(thread.tid): number for number, thread in enumerate(trace.threads)}
    known = [(tid, at) for tid, at in moments if tid in numbers]
    threads = np.array([numbers[tid] for tid, _ in known], dtype=np.int32)
    times = np.array([at * 1000 for _, at in known], dtype=np.int64)
    rows = trace.scopes.row
    for place, thread, at in zip(launch_links.innermost(threads, times).tolist(), threads, times, strict=True):
        around = [
            each
            for each in range(len(rows))
            if trace.thread[rows[each]] == thread and trace.begin[rows[each]] <= at < trace.ends(rows[each])
        ]
        assert place == (around[-1] if around else -1)  # in the order of begins, outer ones first
        assert launch_links.scopes_around(place, int(at)) == tuple(around)


def test_every_event_of_a_public_trace_is_joined() -> None:
    trace = read(shared(H100))
    links = LaunchLinks(trace)
    assert (links.launch >= 0).all()
    assert (links.operator >= 0).all()
    named = trace.gpu.external >= 0  # Kineto names the operator too, by its external id
    assert (trace.scopes.external[links.operator[named]] == trace.gpu.external[named]).mean() > 0.99


@given(*[st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 15)), max_size=12)] * 2)
def test_sets_of_moments(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    def both_ways(spans: list[tuple[int, int]]) -> tuple[Intervals, set[int]]:
        begin = np.array([begin for begin, _ in spans], dtype=np.int64)
        end = np.array([begin + length for begin, length in spans], dtype=np.int64)
        return Intervals.union(begin, end), {at for a, length in spans for at in range(a, a + length)}

    def moments(intervals: Intervals) -> set[int]:
        assert (intervals.end > intervals.begin).all()
        assert (intervals.begin[1:] >= intervals.end[:-1]).all() or len(intervals) < 2
        return {at for a, b in zip(intervals.begin, intervals.end, strict=True) for at in range(a, b)}

    (a, of_a), (b, of_b) = both_ways(first), both_ways(second)
    assert moments(a) == of_a
    assert a.total == len(of_a)
    both, without = a.both(b), a.without(b)
    assert (moments(both), moments(without)) == (of_a & of_b, of_a - of_b)
    low, high = np.array([-20, -3, 5]), np.array([40, 7, 5])
    inside = [len(of_a & set(range(x, y))) for x, y in zip(low, high, strict=True)]
    assert a.covered(low, high).tolist() == inside


def test_a_trace_without_events_has_no_links() -> None:
    links = LaunchLinks(read(b"[]"))
    assert len(links.launch) == len(links.operator) == len(links.nest.parent) == 0
