"""Peak memory of the host: this process's own, not that of the one that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inferlens.measure.memory import host_peak

PRINT = "from inferlens.measure.memory import host_peak; print(host_peak())"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_what_is_used_is_in_the_peak_and_a_large_parent_is_not_in_that_of_its_child() -> None:
    parent = f"""
import subprocess, sys
from inferlens.measure.memory import host_peak
large = bytearray(400 << 20)
large[::4096] = b"x" * len(large[::4096])  # every page
print(host_peak())
print(subprocess.run([sys.executable, "-c", {PRINT!r}], capture_output=True, text=True, check=True).stdout)
"""
    printed = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True).stdout
    own, child = map(int, printed.split())
    assert child < 200 << 20 < 400 << 20 < own


def test_where_the_system_does_not_tell_another_source_is_asked(tmp_path: Path) -> None:
    assert host_peak(tmp_path / "missing") > 1 << 20
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\tmany kB\n")
    assert host_peak(tmp_path / "status") > 1 << 20
