"""Reading traces: what torch.profiler writes, what older and other writers write, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.errors import InferlensError
from inferlens.trace import Category, Trace, read
from inferlens.trace.reading import builder, source
from tests.trace.samples import H100, V100, event, kernel, launch, of_torch, shared, text, training


def times(trace: Trace) -> list[tuple[str, int, int]]:
    return [(trace.name_of(row), int(trace.begin[row]), int(trace.duration[row])) for row in range(len(trace))]


def test_a_trace_of_torch_is_read_as_json_reads_it() -> None:
    trace = read(of_torch())
    events = [each for each in json.loads(of_torch())["traceEvents"] if each["ph"] == "X"]
    assert [name for name, _, _ in times(trace)] == [each["name"] for each in events]
    for (_, begin, duration), each in zip(times(trace), events, strict=True):
        assert begin == round(Decimal(str(each["ts"])) * 1000)
        assert duration == round(Decimal(str(each["dur"])) * 1000)
    assert trace.notes == ()
    operators = trace.rows(Category.OPERATOR)
    assert "aten::linear" in trace.names_of(operators)
    assert len(trace.allocations) == sum(each["name"] == "[memory]" for each in json.loads(of_torch())["traceEvents"])


def test_shapes_are_there_when_asked_for() -> None:
    trace = read(of_torch())
    names = trace.names_of(trace.scopes.row)
    place = names.index("aten::addmm")
    shapes = json.loads(trace.texts[trace.scopes.shapes[place]])
    assert shapes[:3] == [[16], [2, 8], [8, 16]]


@pytest.mark.parametrize(
    ("path", "events", "gpu", "calls"), [(V100, 44666, 9096, 11923), (H100, 104159, 5165, 9292)], ids=["2021", "2025"]
)
def test_public_traces_of_old_and_new_writers(path: Path, events: int, gpu: int, calls: int) -> None:
    trace = read(shared(path))
    assert (len(trace), len(trace.gpu), len(trace.calls)) == (events, gpu, calls)
    assert trace.notes == ()
    assert (trace.gpu.correlation > 0).all()
    assert (trace.gpu.grid[trace.category[trace.gpu.row] == Category.KERNEL] > 0).all()


def test_gpu_events_have_what_the_profiler_tells_of_them() -> None:
    told = {
        "External id": 5, "registers per thread": 40, "shared memory": 1024, "blocks per SM": 0.5,
        "est. achieved occupancy %": 31, "grid": [7, 2, 1], "block": [128, 1, 1],
    }  # fmt: skip
    gpu = read(text(launch(3, 1), kernel(3, 4, 2, **told), kernel(4, 9, 1, "Memset", "gpu_memset"))).gpu
    assert gpu.grid.tolist() == [[7, 2, 1], [0, 0, 0]]
    assert gpu.block[0].tolist() == [128, 1, 1]
    assert (gpu.registers[0], gpu.shared_memory[0], gpu.stream[0], gpu.device[0], gpu.external[0]) == (
        40,
        1024,
        7,
        0,
        5,
    )
    assert (gpu.blocks_per_sm[0], gpu.occupancy[0]) == (0.5, 31)
    assert gpu.registers[1] == -1
    assert gpu.blocks_per_sm[1] != gpu.blocks_per_sm[1]


@given(st.integers(-(2**60), 2**60), st.integers(0, 2**50))
def test_no_nanosecond_is_lost(begin: int, duration: int) -> None:
    """Also of microseconds since 1970 with three decimals, which no float holds."""

    def decimal(value: int) -> str:
        return f"{'-' if value < 0 else ''}{abs(value) // 1000}.{abs(value) % 1000:03d}"

    made = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": %s, "dur": %s}]}'
    trace = read(made % (decimal(begin).encode(), decimal(duration).encode()))
    assert times(trace) == [("a", begin, duration)]


def test_threads_are_the_same_written_as_numbers_and_as_texts() -> None:
    trace = read(text(event("a", 1, 5, tid=25738), event("b", 2, 1, tid="25738"), event("c", 3, 1, tid="stream 7")))
    assert trace.thread[0] == trace.thread[1] != trace.thread[2]
    assert [(each.pid, each.tid) for each in trace.threads] == [(9, 25738), (9, "stream 7")]


def test_threads_have_names() -> None:
    named = {"ph": "M", "name": "thread_name", "pid": 9, "tid": "1", "args": {"name": "main"}}
    assert read(text(event("a", 1, 5), named)).threads[0].name == "main"


def test_begins_and_ends_alone_are_counted() -> None:
    halves = [{"ph": phase, "name": "a", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1} for phase in "BE"]
    trace = read(text(event("b", 1, 5), *halves))
    assert times(trace) == [("b", 1000, 5000)]
    assert trace.notes == ("2 events are a begin or an end alone, not both in one, and were skipped.",)


def test_events_in_any_order_overlapping_duplicated_or_without_length() -> None:
    events = [event("b", 5, 10), event("a", 0, 8), event("a", 0, 8), event("zero", 3, 0), event("before zero", -5, 2)]
    trace = read(text(*events))
    names = trace.names_of(trace.scopes.row)
    assert names == ["before zero", "a", "a", "zero", "b"]
    assert trace.notes == ()


def test_odd_durations_and_times_are_counted() -> None:
    without = {key: value for key, value in event("a", 1, 1).items() if key != "dur"}
    timeless = {key: value for key, value in event("b", 1, 1).items() if key != "ts"}
    trace = read(text(event("c", 1, -5), without, timeless, event("d", 1e30, 1), event("e", 1, 1)))
    assert times(trace) == [("c", 1000, 0), ("a", 1000, 0), ("e", 1000, 1000)]
    assert trace.notes == (
        "2 events have no time and were skipped.",
        "2 events have no duration, or one below zero; it was taken as zero.",
    )


@pytest.mark.parametrize("packed", [False, True])
def test_text_in_blocks_is_the_same_text(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a block ends: in a name, a number, an escape, an object within arguments."""
    tricky = event('},{ "ph": "X" \\ "', 1, 1, nested=[{"a": [{"b": "]"}]}, {"c": "},\n{"}])
    data = text(
        *[{**tricky, "ts": number, "name": f"{tricky['name']}{number}"} for number in range(60)], metadata="x" * 300
    )
    whole = times(read(data))
    assert len(whole) == 60
    for size in (7, 64, 333, 1000):
        monkeypatch.setattr(source, "BLOCK", size)
        assert times(read(gzip.compress(data) if packed else data)) == whole


def test_devices_and_rank_may_stand_before_or_behind_the_events() -> None:
    gpu, ranks = {"id": 0, "name": "G", "numSms": 9}, {"rank": 3, "world_size": 8, "backend": "nccl"}
    plain = json.dumps({"traceEvents": [event("a", 1, 1)], "deviceProperties": [gpu], "distributedInfo": ranks})
    for data in (plain.encode(), text(event("a", 1, 1), deviceProperties=[gpu], distributedInfo=ranks)):
        about = read(data).about
        assert (about.devices[0].name, about.devices[0].multiprocessors) == ("G", 9)
        assert about.distributed is not None
        assert (about.distributed.rank, about.distributed.world_size) == (3, 8)


def test_a_list_alone_is_a_trace_and_needs_no_end() -> None:
    bare = json.dumps([event("a", 1, 1), event("b", 2, 1)]).encode()
    for data in (bare, bare[:-1], bare[:-1] + b","):
        assert [name for name, _, _ in times(read(data))] == ["a", "b"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no trace")
    with pytest.raises(InferlensError, match=r"notes\.txt: This is no trace: it is no JSON"):
        read(path)


def test_training_sample_is_as_it_is_meant() -> None:
    trace = read(training())
    assert (len(trace.gpu), len(trace.calls), len(trace.scopes)) == (6, 8, 10)


def test_columns_that_memory_has_no_room_for_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_UNASKED", 0)
    monkeypatch.setattr(builder, "memory_left", lambda: 1000)
    with pytest.raises(InferlensError, match="larger than memory"):
        read(training())


def test_small_traces_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        raise AssertionError("the system was asked")

    monkeypatch.setattr(builder, "memory_left", asked)
    assert len(read(training())) > 0
