"""Traces that are broken or meant to break: read as far as sense allows, or one clear error; never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
import tracemalloc
import zlib
from itertools import product
from pathlib import Path

import pytest

from inferlens.errors import InferlensError
from inferlens.trace import read
from inferlens.trace.reading import events, source
from inferlens.views.table import FORMATS
from inferlens.views.traced.tables import VIEWS, Selection
from tests.trace.mutations import mutated
from tests.trace.samples import drawn, event, of_torch, text, training

MANY = [event(f"op{number}", number, 1) for number in range(200)]


def test_gzip_in_parts_and_zstd() -> None:
    zstandard = pytest.importorskip("zstandard")
    data = training()
    in_parts = gzip.compress(data[:1000]) + gzip.compress(data[1000:])
    for packed in (gzip.compress(data), in_parts, in_parts + b"\0" * 9, zstandard.ZstdCompressor().compress(data)):
        trace = read(packed)
        assert len(trace) == len(read(data))
        assert trace.notes == ()


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_files_that_end_early_give_what_is_there(share: float) -> None:
    data = text(*MANY)
    cut = read(data[: int(len(data) * share)])
    assert 0.9 * share < len(cut) / len(MANY) <= share + 0.05
    assert "The text ends within the events; the rest is missing." in cut.notes
    packed = gzip.compress(data)
    cut = read(packed[: int(len(packed) * share)])
    assert 0 < len(cut) < len(MANY)
    assert any("The file is damaged" in note for note in cut.notes)


def test_damage_within_a_packed_file_keeps_what_is_before() -> None:
    of = random.Random(1)
    packed = bytearray(gzip.compress(text(*MANY, *(event(f"op{of.random()}", 1, 1) for _ in range(5000)))))
    packed[len(packed) // 2] ^= 0xFF
    trace = read(bytes(packed))
    assert len(trace) > 2000
    assert any("The file is damaged" in note for note in trace.notes)


def test_two_traces_in_one_file() -> None:
    trace = read(text(*MANY) + b"\n" + text(*MANY))
    assert len(trace) == len(MANY)
    assert [note for note in trace.notes if note.startswith("What follows the events cannot be read (")]


def test_numbers_that_are_none() -> None:
    data = text(event("a", 1, 1, x=1.5), event("NaN, Infinity", 2, 1), event("c", 3, 1))
    data = data.replace(b"1.5", b"-Infinity").replace(b'"dur": 1\n', b'"dur": NaN\n', 1)
    trace = read(data)
    assert trace.names_of(trace.scopes.row) == ["a", "NaN, Infinity", "c"]


@pytest.mark.parametrize(
    "name", [b"\\x41", b"\\ud800", b"\xff\xfe", b"tab\there", b"\\u00zz", b"\\u0000\\u001b[31m", b"x" * 10_000]
)
def test_names_that_no_json_has(name: bytes) -> None:
    data = text(*MANY).replace(b"op7\x22", name + b"\x22", 1)
    trace = read(data)
    assert len(trace) == len(MANY)
    for view in VIEWS:
        for format in FORMATS:
            text_of_it = drawn(trace, view, format, Selection(top=None))
            if format != "csv":  # which is data, quoted and otherwise as it is
                assert not {"\x1b", "\x00"} & set(text_of_it)


def test_one_broken_event_takes_no_other_with_it() -> None:
    data = text(*MANY).replace(b'"name": "op50"', b'"name": op50', 1)
    trace = read(data)
    assert len(trace) == len(MANY) - 1
    assert trace.notes == ("1 event could not be read and were skipped.",)


ODD_ARGUMENTS = ([], "text", 5, None, {"External id": "five"}, {"grid": "big"}, {"correlation": 2**70})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("args", value) for value in ODD_ARGUMENTS),
        *product(("name", "cat", "pid", "tid", "ts", "ph"), (None, [], {}, True, 2**70, "x")),
    ],
)
def test_fields_of_any_form(field: str, value: object) -> None:
    trace = read(text(*MANY, {**event("odd", 3, 1), field: value}))
    assert len(MANY) <= len(trace) <= len(MANY) + 1
    if field == "args":
        assert (len(trace), trace.notes) == (len(MANY) + 1, ())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"  \n", "it is empty"),
        (b"\x00" * 5000, "it is no JSON"),
        (b"\x0a\x10perfetto", "it is no JSON"),
        (b"{}", "it has no traceEvents"),
        (b'{"layers": [1, 2]}', "it has no traceEvents"),
        (b'{"traceEvents": 5}', "it has no traceEvents"),
        (b'{"a": {"traceEvents": [{}]}}', "it has no traceEvents"),
        (b'{"a": "\\"traceEvents\\": ["}', "it has no traceEvents"),
        (gzip.compress(b""), "it is empty"),
        (b"\x1f\x8b", "it is empty"),
        (b"\x28\xb5\x2f\xfd", "it is empty"),
    ],
)
def test_what_is_no_trace_is_one_error(data: bytes, says: str) -> None:
    with pytest.raises(InferlensError, match=says):
        read(data)


@pytest.mark.parametrize("data", [b'{"traceEvents": []}', b"[]", b'{"traceEvents": [{"ph": "X"}, {}]}'])
def test_a_trace_of_nothing_can_be_looked_at(data: bytes) -> None:
    trace = read(data)
    assert len(trace) == 0
    for view in VIEWS:
        for format in FORMATS:
            drawn(trace, view, format)


def test_a_trace_of_another_tool_is_read_as_far_as_it_goes() -> None:
    chrome = {"ph": "X", "cat": "devtools.timeline", "name": "Paint", "pid": 1, "tid": 2, "ts": 5, "dur": 7, "tts": 3}
    trace = read(json.dumps({"traceEvents": [chrome, {"ph": "I", "name": "x"}], "metadata": {}}).encode())
    assert trace.names_of(trace.rows(*set(map(int, trace.category)))) == ["Paint"]  # type: ignore[arg-type]
    assert drawn(trace, "overview")


def test_a_bomb_does_not_go_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_RATIO_COUNTS_FROM", 16 * 2**20)
    packer = zlib.compressobj(9, wbits=31)
    start = packer.compress(b'{"traceEvents": [' + json.dumps(MANY[0]).encode())
    padding = b',{"' + b" " * 2**20 + b'": 0}'
    bomb = start + b"".join(packer.compress(padding) for _ in range(200)) + packer.flush()
    assert len(bomb) < 2**20
    tracemalloc.start()
    trace = read(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(trace) == 1
    assert any("unpacks to more than 400 times" in note for note in trace.notes)
    assert peak < 128 * 2**20


def test_an_endless_event_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENT", 2**20)
    monkeypatch.setattr(source, "BLOCK", 2**17)
    data = text(*MANY)[:-30] + b', {"name": "' + b"x" * 2**22 + b'"}]}'
    trace = read(data)
    assert len(trace) >= len(MANY) - 1
    assert any("An event is larger than" in note for note in trace.notes)
    assert any("could not be read" in note for note in trace.notes)


def test_folders_devices_and_what_is_not_there(tmp_path: Path) -> None:
    refused = {tmp_path: "is a folder", Path("/dev/zero"): "is a device", tmp_path / "no": "cannot be read"}
    for path, says in refused.items():
        with pytest.raises(InferlensError, match=says):
            read(path)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(gzip.compress(training())))
    writer.start()
    trace = read(path)
    writer.join()
    assert len(trace) == len(read(training()))


@pytest.mark.parametrize("seed", range(10))
def test_fifty_mutations(seed: int) -> None:
    """Ten times fifty; the benchmark does ten thousand."""
    of = random.Random(seed)
    whole = (training(), of_torch(), of_torch()[:30_000] + b"]}", gzip.compress(training()))
    for number in range(50):
        data = mutated(whole[number % len(whole)], of)
        try:
            trace = read(data)
        except InferlensError:
            continue
        assert drawn(trace, [*VIEWS][number % len(VIEWS)], of.choice([*FORMATS])) is not None


def test_numbers_that_no_column_holds_are_not_known() -> None:
    """Whole numbers of any size are JSON."""
    args = '"args": {"est. achieved occupancy %": 1%s, "blocks per SM": -1%s, "bytes": 1%s, "stream": 4}'
    one = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 4, "ts": 5, "dur": 1%s, ' + args + "}"
    late = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 4, "ts": 1%s, "dur": 1}'
    trace = read(f"[{one}, {late}]".replace("%s", "0" * 400).encode())
    assert (trace.begin.tolist(), trace.duration.tolist(), trace.gpu.stream.tolist()) == ([5000], [0], [4])
    assert str([*trace.gpu.occupancy, *trace.gpu.blocks_per_sm]) == "[np.float64(nan), np.float64(nan)]"
    assert trace.gpu.bytes[0] == 2**63 - 1
