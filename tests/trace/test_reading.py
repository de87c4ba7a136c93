"""Reading traces: what torch.profiler writes, what older and other writers write, to the nanosecond; what is kept."""

import gzip
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.errors import InferlensError
from inferlens.trace import read as texts
from inferlens.trace.model import Category
from inferlens.trace.read import read_trace
from tests.trace.samples import H100, V100, event, of_torch, shared, text, training


def times(trace):
    return [(trace.name_of(row), int(trace.begin[row]), int(trace.duration[row])) for row in range(len(trace))]


def test_a_trace_of_torch_is_read_as_json_reads_it():
    trace, written = read_trace(of_torch()), json.loads(of_torch())["traceEvents"]
    assert times(trace) == [
        (item["name"], round(Decimal(str(item["ts"])) * 1000), round(Decimal(str(item["dur"])) * 1000))
        for item in written
        if item["ph"] == "X"
    ]
    assert trace.notes == ()
    assert len(trace.allocations) == sum(item["name"] == "[memory]" for item in written)
    place = trace.names_of(trace.scopes.row).index("aten::addmm")
    assert json.loads(trace.texts[trace.scopes.shapes[place]])[:3] == [[16], [2, 8], [8, 16]]


@pytest.mark.parametrize(
    ("path", "events", "gpu", "calls"), [(V100, 44666, 9096, 11923), (H100, 104159, 5165, 9292)], ids=["2021", "2025"]
)
def test_public_traces_of_old_and_new_writers(path, events, gpu, calls):
    trace = read_trace(shared(path))
    assert (len(trace), len(trace.gpu), len(trace.calls), trace.notes) == (events, gpu, calls, ())
    assert (trace.gpu.correlation > 0).all()
    assert (trace.gpu.grid[trace.category[trace.gpu.row] == Category.KERNEL] > 0).all()


@given(st.integers(-(2**60), 2**60), st.integers(0, 2**50))
def test_no_nanosecond_is_lost(begin, duration):
    """Also of microseconds since 1970 with three decimals, which no float holds."""

    def decimal(value):
        return b"%s%d.%03d" % (b"-" if value < 0 else b"", abs(value) // 1000, abs(value) % 1000)

    made = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": %s, "dur": %s}]}'
    assert times(read_trace(made % (decimal(begin), decimal(duration)))) == [("a", begin, duration)]


def test_threads_are_the_same_written_as_numbers_and_as_texts():
    trace = read_trace(
        text(event("a", 1, 5, tid=25738), event("b", 2, 1, tid="25738"), event("c", 3, 1, tid="stream 7"))
    )
    assert trace.thread.tolist() == [0, 0, 1]
    assert trace.threads == (("9", "25738"), ("9", "stream 7"))


def test_odd_durations_times_and_halves_are_counted():
    without = {key: value for key, value in event("a", 1, 1).items() if key != "dur"}
    timeless = {key: value for key, value in event("b", 1, 1).items() if key != "ts"}
    half = {"ph": "B", "name": "a", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1}
    trace = read_trace(text(event("c", 1, -5), without, timeless, event("d", 1e30, 1), event("e", 0, 1), half))
    assert times(trace) == [("c", 1000, 0), ("a", 1000, 0), ("e", 0, 1000)]
    assert trace.names_of(trace.scopes.row) == ["e", "c", "a"]  # in the order of their begins
    assert [note.split()[0] for note in trace.notes] == ["2", "2", "1"]


@pytest.mark.parametrize("packed", [False, True])
def test_text_in_blocks_is_the_same_text(packed, monkeypatch):
    """Wherever a block ends: in a name, a number, an escape, an object within arguments."""
    tricky = event('},{ "ph": "X" \\ "', 1, 1, nested=[{"a": [{"b": "]"}]}, {"c": "},\n{"}])
    data = text(
        *[{**tricky, "ts": number, "name": f"{tricky['name']}{number}"} for number in range(60)], metadata="x" * 300
    )
    whole = times(read_trace(data))
    assert len(whole) == 60
    for size in (7, 64, 333, 1000):
        monkeypatch.setattr(texts, "BLOCK", size)
        assert times(read_trace(gzip.compress(data) if packed else data)) == whole


def test_devices_and_rank_may_stand_before_or_behind_the_events():
    gpu, ranks = {"id": 0, "name": "G", "numSms": 9}, {"rank": 3, "world_size": 8, "backend": "nccl"}
    plain = json.dumps({"traceEvents": [event("a", 1, 1)], "deviceProperties": [gpu], "distributedInfo": ranks})
    for data in (plain.encode(), text(event("a", 1, 1), deviceProperties=[gpu], distributedInfo=ranks)):
        about = read_trace(data).about
        assert (about.devices[0].name, about.devices[0].multiprocessors, about.distributed.rank) == ("G", 9, 3)


def test_columns_that_memory_has_no_room_for_are_one_error(monkeypatch):
    monkeypatch.setattr(texts, "memory_left", lambda: 1000)
    with pytest.raises(InferlensError, match="larger than memory"):
        read_trace(training())
