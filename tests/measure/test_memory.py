"""Peak memory of the host: this process's own, not that of the one that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inferlens.measure.memory import host_peak

PRINT = "from inferlens.measure.memory import host_peak; print(host_peak())"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_a_large_parent_is_not_in_the_peak_of_its_child() -> None:
    parent = f"""
import subprocess, sys
large = bytearray(400 << 20)
large[::4096] = b"x" * len(large[::4096])
print(subprocess.run([sys.executable, "-c", {PRINT!r}], capture_output=True, text=True, check=True).stdout)
"""
    printed = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True).stdout
    assert int(printed) < 200 << 20


def test_the_peak_grows_with_what_is_used() -> None:
    grown = """
from inferlens.measure.memory import host_peak
before = host_peak()
used = bytearray(before + (64 << 20))
used[::4096] = b"x" * len(used[::4096])  # every page
print(host_peak() - len(used))
"""
    printed = subprocess.run([sys.executable, "-c", grown], capture_output=True, text=True, check=True).stdout
    assert int(printed) >= 0


def test_where_the_system_does_not_tell_another_source_is_asked(tmp_path: Path) -> None:
    assert host_peak(tmp_path / "missing") > 1 << 20
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\tmany kB\n")
    assert host_peak(tmp_path / "status") > 1 << 20
