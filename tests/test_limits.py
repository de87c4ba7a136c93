"""How much memory a process may still take: the least of what the system has and of what limits the process."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from inferlens.limits import memory_left

GIB = 1 << 30
SYSTEM = 64 * GIB


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 64 GiB available, and nothing that limits a process."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=SYSTEM))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return tmp_path


def group(folder: Path, most: str) -> None:
    """A control group that has taken 3 GiB, two of them pages of files."""
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{3 * GIB}\n")
    (folder / "memory.stat").write_text(f"anon {GIB}\nfile {2 * GIB}\n")


def member(root: Path, path: str) -> None:
    """The process is in that control group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"1:name=systemd:/elsewhere\n0::{path}\n")


def test_without_a_limit_it_is_what_the_system_has(root: Path) -> None:
    assert memory_left(root) == SYSTEM
    group(root / "sys/fs/cgroup/box", "max")
    member(root, "/box")
    assert memory_left(root) == SYSTEM


def test_in_a_control_group_it_is_what_the_group_has_left(root: Path) -> None:
    group(root / "sys/fs/cgroup/box", str(3 * GIB))
    member(root, "/box")
    assert memory_left(root) == 2 * GIB, "pages of files are given back"
    (root / "sys/fs/cgroup/box/memory.max").write_text(f"{GIB // 2}\n")
    assert memory_left(root) == 0


def test_a_containers_group_is_mounted_at_the_top(root: Path) -> None:
    group(root / "sys/fs/cgroup", str(3 * GIB))
    assert memory_left(root) == 2 * GIB
    member(root, "/docker/abc")
    assert memory_left(root) == 2 * GIB


def test_control_groups_of_version_1_have_a_limit_too(root: Path) -> None:
    folder = root / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    assert memory_left(root) == 4 * GIB


def test_the_shells_limit_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB, resource.RLIM_INFINITY))
    assert memory_left(root) == GIB
