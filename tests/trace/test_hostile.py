"""Traces that are broken or meant to break: read as far as sense allows, or one clear error; never a traceback."""

import functools
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
from inferlens.trace import read as texts
from inferlens.trace.read import read_trace
from inferlens.views.table import FORMATS
from inferlens.views.trace import VIEWS, Selection
from tests.refusals import refusal
from tests.trace.samples import drawn, event, kernel, mutated, of_torch, text, training

packed = functools.partial(gzip.compress, mtime=0)  # the time would be in the names of the tests
MANY = [event(f"op{number}", number, 1) for number in range(200)]
WHOLE = text(*MANY)
PACKED = packed(text(*MANY, *(event(f"op{random.Random(n).random()}", 1, 1) for n in range(2000))))
ENDS, DAMAGED, SKIPPED = "The text ends within", "The file is damaged", "1 event could not be read"


@pytest.mark.parametrize(("data", "least", "most", "note"), [
    (WHOLE[: len(WHOLE) * 3 // 10], 55, 65, ENDS), (WHOLE[: len(WHOLE) * 95 // 100], 185, 195, ENDS),
    (packed(WHOLE)[:-400], 1, 199, DAMAGED),
    (PACKED[: len(PACKED) // 2] + b"!" + PACKED[len(PACKED) // 2 + 1 :], 800, 2200, DAMAGED),
    (packed(WHOLE[:1000]) + packed(WHOLE[1000:]) + b"\0" * 9, 200, 200, ""),
    *((json.dumps(MANY).encode().removesuffix(end), 200, 200, "") for end in (b"", b"]")),
    (WHOLE + b"\n" + WHOLE, 200, 200, "What follows the events cannot be read"),
    (WHOLE.replace(b'"name": "op50"', b'"name": op50'), 199, 199, SKIPPED),
    (WHOLE.replace(b'"dur": 1\n', b'"dur": NaN\n', 1).replace(b'"op7"', b'"NaN, Infinity"'), 200, 200, "1 event"),
    *((WHOLE.replace(b'op7"', name + b'"', 1), 200, 200, "") for name in (b"\\x41", b"\\u00zz", b"\xff")),
    *((text(*MANY, {**MANY[0], "args": args}), 201, 201, "")
      for args in ([], "text", 5, None, {"External id": "five"}, {"grid": "big"}, {"correlation": 2**70})),
    *((text(*MANY, {**MANY[0], field: value}), 200, 201, None)
      for field, value in product(("name", "cat", "pid", "tid", "ts", "ph"), (None, [], {}, True, 2**70, "x"))),
])  # fmt: skip
def test_what_can_be_read_is_read(data, least, most, note):
    trace = read_trace(data)
    assert least <= len(trace) <= most
    assert note is None or (any(item.startswith(note) for item in trace.notes) if note else trace.notes == ())


def lines(*, end=",\n", change=None):
    """Return the events, one a line, with some lines replaced; ``end`` is between them."""
    written = [(change or {}).get(place, json.dumps(item)) for place, item in enumerate(MANY)]
    return ('{"traceEvents": [\n' + end.join(written) + '\n], "distributedInfo": {"rank": 3}}').encode()


LINE = json.dumps(MANY[50])
NESTED = json.dumps({**MANY[50], "args": {"Input Dims": [[1, 2], [3]], "Call stack": "a"}})


@pytest.mark.parametrize(("data", "lost"), [
    (lines(end=" "), 0), (lines(end=",,\n"), 0), (lines(end="\n").replace(b'"dur": 1}', b'"dur": 1,}'), 0),
    (lines(change={50: NESTED.replace("[3]]", "[3],]")}), 0),
    (lines(change={199: LINE + ","}), 0), (b"\xef\xbb\xbf" + lines(), 0),
    (lines(change={50: LINE.replace("50,", '"50.0",').replace("1}", '"1"}')}), 0),
    (lines(change={50: LINE.replace('"ph"', '"ts": 3, "ph": "B", "ph"')}), 0),
    (lines(change={50: LINE.replace("op50", "a, } \x01\t{ NaN, ]}\\x")}), 0),
    (lines(change={50: LINE.replace('"dur": 1', '"dur": -Infinity')}), 0),
    (lines(change={50: LINE.replace('"ts": 50', '"ts": "soon"')}), 1), (lines(change={50: LINE.replace(", ", " ")}), 1),
    (lines(change={50: LINE[:-1]}), 1), (lines(change={50: LINE[:30], 120: LINE[20:]}), 2),
    (lines(change={50: LINE.replace('op50"', "op50")}), 1), (lines(change={50: NESTED.replace("[3]]", "[3]")}), 1),
    (lines(change={50: NESTED.replace("]]", "")}), 1), (lines(change={50: LINE.replace(":", "")}), 1),
    (lines(change={50: "null"}), 1), (lines(change={50: "}}"}), 1), (lines(change={0: LINE[:-5]}), 1),
])  # fmt: skip
@pytest.mark.parametrize("block", [2**19, 700])
def test_damage_loses_at_most_the_damaged_event(data, lost, block, monkeypatch):
    """And the number of lost events is said."""
    monkeypatch.setattr(texts, "BLOCK", block)
    trace = read_trace(data)
    assert len(trace) == len(MANY) - lost
    said = [note for note in trace.notes if "could not be read" in note]
    assert said == ([f"{lost} event{'s' * (lost > 1)} could not be read and were skipped."] if lost else [])
    assert trace.about.distributed.rank == 3


def test_all_events_behind_one_that_lacks_its_end_are_read(monkeypatch):
    """Also if it takes in more of them than one event may be large."""
    monkeypatch.setattr(texts, "BLOCK", 500)
    monkeypatch.setattr(texts, "MOST_EVENT", 5000)
    trace = read_trace(lines(change={50: NESTED.replace("[3]]", "[3")}))
    assert len(trace) == len(MANY) - 1
    assert trace.notes == ("1 event could not be read and were skipped.",)


@pytest.mark.parametrize("data", [
    b"  \n", b"\x00" * 5000, b"{}", b'{"traceEvents": 5}', b'{"a": {"traceEvents": [{}]}}',
    b'{"a": "\\"traceEvents\\": ["}', packed(b""), b"\x1f\x8b", b"\x28\xb5\x2f\xfd",
])  # fmt: skip
def test_what_is_no_trace_is_one_error(data):
    refusal("This is not a trace", read_trace, data)


def test_zstd_and_a_pipe(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    assert len(read_trace(zstandard.ZstdCompressor().compress(WHOLE))) == len(MANY)
    os.mkfifo(path := tmp_path / "pipe")
    writer = threading.Thread(target=lambda: path.write_bytes(packed(WHOLE)))
    writer.start()
    assert len(read_trace(path)) == len(MANY)
    writer.join()


@pytest.mark.parametrize("data", [
    b'{"traceEvents": []}', b'{"traceEvents": [{"ph": "X"}, {}]}',
    b'[{"ph": "X", "cat": "devtools.timeline", "name": "Paint", "pid": 1, "tid": 2, "ts": 5, "dur": 7, "tts": 3}]',
    text(event("\x1b[31m\x00", 1, 1), event("x" * 10_000, 1, 1)),
], ids=["empty", "nothing", "of another tool", "names"])  # fmt: skip
def test_odd_traces_can_be_looked_at(data):
    trace = read_trace(data)
    for view, format in product(VIEWS, FORMATS):
        shown = drawn(trace, view, format, Selection(top=None))
        assert format == "csv" or not {"\x1b", "\x00"} & set(shown)  # which is data, quoted and otherwise as it is


def test_a_bomb_takes_no_memory_and_an_endless_event_ends(monkeypatch):
    packer = zlib.compressobj(9, wbits=31)
    start = packer.compress(b'{"traceEvents": [' + json.dumps(MANY[0]).encode())
    padding = b',{"' + b" " * 2**20 + b'": 0}'
    bomb = start + b"".join(packer.compress(padding) for _ in range(60)) + packer.flush()
    tracemalloc.start()
    assert len(read_trace(bomb)) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 2**20
    monkeypatch.setattr(texts, "MOST_EVENT", 2**20)
    monkeypatch.setattr(texts, "BLOCK", 2**17)
    trace = read_trace(WHOLE[:-30] + b', {"name": "' + b"x" * 2**22 + b'"}]}')
    assert len(trace) >= len(MANY) - 1
    assert any("An event is larger than" in note for note in trace.notes)


@pytest.mark.parametrize("seed", range(3))
def test_fifty_mutations(seed):
    """Three times fifty; the benchmark does ten thousand."""
    of = random.Random(seed)
    whole = (training(), of_torch(), of_torch()[:30_000] + b"]}", packed(training()))
    for number in range(50):
        data = mutated(whole[number % len(whole)], of)
        try:
            trace = read_trace(data)
        except InferlensError:
            continue
        assert drawn(trace, [*VIEWS][number % len(VIEWS)], of.choice([*FORMATS])) is not None


def test_numbers_that_no_column_holds_are_not_known():
    """Whole numbers of any size are JSON."""
    large = 10**400
    odd = {"est. achieved occupancy %": large, "blocks per SM": -large, "registers per thread": large}
    trace = read_trace(text(kernel(1, 5, large, **odd), kernel(2, large, 1)))
    assert (trace.begin.tolist(), trace.duration.tolist(), trace.gpu.stream.tolist()) == ([5000], [0], [7])
    assert str([*trace.gpu.occupancy, *trace.gpu.blocks_per_sm]) == "[np.float64(nan), np.float64(nan)]"
    assert trace.gpu.registers[0] == -1


def test_folders_devices_and_what_is_not_there(tmp_path):
    said = {tmp_path: "is not a file", Path("/dev/zero"): "is not a file", tmp_path / "no": "cannot be read"}
    for path, says in said.items():
        refusal(says, read_trace, path)
