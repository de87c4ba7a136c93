"""What the system lets a process take: the memory that is left for it, and the control group whose limits hold.

A container on a large machine has large caches and little memory, and is ended if it takes more.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path


def memory_left(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may still take: what the system has, or less where it is limited.

    ``root``: where ``/proc`` and ``/sys`` are.
    """
    import resource

    import psutil

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data = sys.maxsize if soft == resource.RLIM_INFINITY else soft
    return min(int(psutil.virtual_memory().available), data, _of_group(root))


def control_group(file: str, root: Path) -> Path:
    """Folder of this process's control group (version 2), or the topmost one if its own does not have ``file``."""
    top = root / "sys/fs/cgroup"  # a container's own group is mounted here, whatever its path is outside
    with suppress(OSError, UnicodeDecodeError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            group = top / line[3:].strip("/")
            if line.startswith("0::") and (group / file).exists():
                return group
    return top


def _of_group(root: Path) -> int:
    """Bytes that the process's control group may still take, in version 1 all it may; very many without a limit."""
    group = control_group("memory.max", root=root)
    with suppress(OSError, ValueError, KeyError):  # "max": nothing limits it
        taken = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Pages of files count as taken, and are given back when memory is asked for.
        used = int((group / "memory.current").read_text()) - int(taken["file"])
        return max(int((group / "memory.max").read_text()) - used, 0)
    with suppress(OSError, ValueError):
        return int((root / "sys/fs/cgroup/memory/memory.limit_in_bytes").read_text())
    return sys.maxsize
