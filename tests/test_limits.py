"""How much memory a process may still take: the least of what the system has and of what limits the process."""

import math
import resource
from types import SimpleNamespace

import psutil
import pytest

from inferlens.limits import cpu_quota, memory_left

GIB = 1 << 30


@pytest.mark.parametrize(("group", "most", "member", "left"), [
    ("", "", "", 64 * GIB), ("sys/fs/cgroup/box", "max", "/box", 64 * GIB),
    ("sys/fs/cgroup/box", str(3 * GIB), "/box", 2 * GIB),  # pages of files are given back
    ("sys/fs/cgroup/box", str(GIB // 2), "/box", 0),
    ("sys/fs/cgroup", str(3 * GIB), "", 2 * GIB),  # a container's group is mounted at the top
    ("sys/fs/cgroup", str(3 * GIB), "/docker/abc", 2 * GIB),
])  # fmt: skip
def test_in_a_control_group_it_is_what_the_group_has_left(group, most, member, left, tmp_path, monkeypatch):
    """A system with 64 GiB available; the group has taken 3 GiB, two of them pages of files."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if group:
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "memory.max").write_text(f"{most}\n")
        (tmp_path / group / "memory.current").write_text(f"{3 * GIB}\n")
        (tmp_path / group / "memory.stat").write_text(f"anon {GIB}\nfile {2 * GIB}\n")
    if member:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(f"1:name=systemd:/elsewhere\n0::{member}\n")
    assert memory_left(tmp_path) == left
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB, resource.RLIM_INFINITY))
    assert memory_left(tmp_path) == min(left, GIB)


def test_control_groups_of_version_1_have_a_limit_too(tmp_path):
    folder = tmp_path / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("4096\n")
    assert memory_left(tmp_path) == 4096


@pytest.mark.parametrize(("member", "files", "quota"), [
    ("0::/box", {"box/cpu.max": "50000 100000"}, 0.5),
    ("0::/box/inner", {"box/cpu.max": "150000 100000", "box/inner/cpu.max": "max 100000"}, 1.5),
    ("0::/docker/abc", {"cpu.max": "200000 100000"}, 2.0),  # a container's group is mounted at the top
    ("3:cpu,cpuacct:/box", {"cpu/box/cpu.cfs_quota_us": "50000", "cpu/box/cpu.cfs_period_us": "100000"}, 0.5),
    ("3:cpu:/box", {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "100000"}, math.inf),
    ("3:cpuset:/box", {"cpu/box/cpu.cfs_quota_us": "50000", "cpu/box/cpu.cfs_period_us": "100000"}, math.inf),
    ("0::/box", {"box/cpu.max": "max 100000"}, math.inf),
])  # fmt: skip
def test_the_cpu_quota_is_the_least_of_the_groups_of_both_versions(member, files, quota, tmp_path):
    for name, text in {"proc/self/cgroup": member, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert cpu_quota(tmp_path) == quota
