"""The memory and CPU time that the system allows a process, and the control groups that limit them.

A container on a large machine has large caches and little memory. The kernel ends it if it takes more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def memory_left(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still take. ``root`` is where ``/proc`` and ``/sys`` are."""
    import resource

    import psutil

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data = sys.maxsize if soft == resource.RLIM_INFINITY else soft
    return min(int(psutil.virtual_memory().available), data, _of_group(root))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many CPUs' time the control groups of this process allow; infinity without a limit."""
    allowed = math.inf
    for group in control_groups("cpu.", root):
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of version 2, and of version 1
            with suppress(OSError, ValueError):  # "max": nothing limits it; -1 of version 1 says the same
                quota, period = " ".join((group / file).read_text("utf-8") for file in files).split()
                allowed = min(allowed, int(quota) / int(period) if int(quota) > 0 else math.inf)
    return allowed


def control_group(file: str, root: Path) -> Path:
    """Return the folder of the innermost control group of this process that has ``file``; the topmost if none has."""
    groups = control_groups(file, root)
    return next((group for group in groups if (group / file).exists()), root / "sys/fs/cgroup")


def control_groups(file: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups that may have ``file``, inner ones first, of both versions.

    A container's own group is mounted at the top, whatever its path is outside.
    """
    top = root / "sys/fs/cgroup"
    with suppress(OSError, UnicodeDecodeError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or file.partition(".")[0] in controllers.split(","):
                mount = top / file.partition(".")[0] if controllers else top
                group = mount / path.strip("/")
                yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _of_group(root: Path) -> int:
    """Return the bytes that the control group may still take; its whole limit in version 1, very many without one."""
    group = control_group("memory.max", root=root)
    with suppress(OSError, ValueError, KeyError):  # "max": nothing limits it
        taken = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
        # Pages of files count as taken, but the kernel frees them on demand.
        used = int((group / "memory.current").read_text("utf-8")) - int(taken["file"])
        return max(int((group / "memory.max").read_text("utf-8")) - used, 0)
    with suppress(OSError, ValueError):
        return int((root / "sys/fs/cgroup/memory/memory.limit_in_bytes").read_text("utf-8"))
    return sys.maxsize
