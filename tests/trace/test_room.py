"""Traces that memory has no room for: held in files, with the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferlens.errors import InferlensError
from inferlens.trace import launch_links as launch_links
from inferlens.trace import read, room
from inferlens.trace.analysis import Analysis
from inferlens.trace.room import Parts, Room
from inferlens.views.traced import VIEWS
from inferlens.views.traced.render import Part, render
from inferlens.views.traced.sheets import Choice, sheets_of
from tests.trace.samples import H100, V100, of_torch, shared, training

IN_MEMORY, IN_FILES = 2**62, 0
# Reads a trace and draws its tables with only so many MiB more than it has taken until then.
LIMITED = """
import re, resource, sys
from pathlib import Path
from inferlens.trace import read
from inferlens.trace.analysis import Analysis
from inferlens.trace.room import Room
from inferlens.views.profiled import terminal
from inferlens.views.traced.sheets import Choice, sheets_of
import rich.table
taken = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (taken + int(sys.argv[2]) * 2**20,) * 2)
analysis = Analysis(read(Path(sys.argv[1]), Room(int(sys.argv[3]))))
sheets = [sheet for view in ("overview", "operators", "kernels") for sheet in sheets_of(analysis, view, Choice())]
print(terminal.render([sheet.grid() for sheet in sheets], 160, False))
"""


def drawn(source: Path | bytes, most: int) -> str:
    analysis = Analysis(read(source, Room(most)))
    parts = [Part(view, sheets_of(analysis, view, Choice(("shapes", "operator"), None))) for view in VIEWS]
    return render(parts, "all", "json")


@pytest.mark.parametrize("source", [training, of_torch, lambda: shared(V100), lambda: shared(H100)])
def test_files_hold_the_same_as_memory(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn(source(), IN_MEMORY)
    assert drawn(source(), IN_FILES) == whole
    monkeypatch.setattr(room, "_PART", 1000)
    monkeypatch.setattr(launch_links, "_PART", 7)
    assert drawn(source(), IN_FILES) == whole


def test_a_room_that_becomes_full_while_parts_come() -> None:
    room_for_two = Room(2 * 80)
    parts = Parts(room_for_two, ("one", "wide"))
    for number in range(5):
        one = np.arange(4, dtype=np.int64) + 4 * number
        parts.add({"one": one, "wide": np.stack([one.astype(np.int32)] * 3, axis=1)})
        assert room_for_two.full == (number >= 2)
    columns = parts.joined()
    assert columns["one"].tolist() == list(range(20))
    assert (columns["wide"].dtype, columns["wide"].shape) == (np.int32, (20, 3))
    assert columns["wide"][:, 2].tolist() == list(range(20))


def test_small_traces_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        raise AssertionError("the system was asked")

    monkeypatch.setattr(room, "memory_left", asked)
    small = Room()
    small.take(2**20)
    assert not small.full
    monkeypatch.setattr(room, "memory_left", lambda: 2**30)
    small.take(2**26)
    assert not small.full
    small.take(2**27)
    assert small.full


def test_a_disk_without_room_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(InferlensError, match="No space left on device") as raised:
        read(training(), Room(IN_FILES))
    assert "TMPDIR" in raised.value.hint


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400,000 operators, four in each other at a time."""
    path = tmp_path_factory.mktemp("large") / "large.json"
    event = '{"ph":"X","cat":"cpu_op","name":"aten::op%d","pid":1,"tid":1,"ts":%d,"dur":%d,"args":{"External id":%d}}'
    with path.open("w") as file:
        file.write('{"traceEvents":[')
        for number in range(100_000):
            events = (event % (deep, 10 * number + deep, 8 - 2 * deep, number) for deep in range(4))
            file.write(",\n" * (number > 0) + ",\n".join(events))
        file.write("]}")
    return path


def _limited(path: Path, mebibytes: int, most: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(path), str(mebibytes), str(most)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_limit_that_the_columns_do_not_fit_into(large: Path) -> None:
    """What columns take in memory is not there, and the tables are the same."""
    enough, too_little = 2000, 68
    whole = _limited(large, enough, IN_MEMORY)
    assert whole.returncode == 0, whole.stderr
    assert "MemoryError" in _limited(large, too_little, IN_MEMORY).stderr
    in_files = _limited(large, too_little, IN_FILES)
    assert in_files.returncode == 0, in_files.stderr
    assert in_files.stdout == whole.stdout
    assert "400,000 calls" in whole.stdout
