"""Which processes on the GPU are the case's, and which are surely not.

NVML names processes by numbers of the system's first PID namespace, whoever asks (NVIDIA/nvidia-docker issue 1483). In
a container these are not the numbers of its own ``/proc``, and processes of other containers may be hidden. So:

* once NVML has named one of the case's own processes, its numbers are ours, and every other one is foreign;
* none but the case's is said only in the first namespace, where nobody is hidden;
* what was on the GPU before the case's process existed is foreign, whatever its number means;
* otherwise nothing is said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping

from inferlens.measure.monitor.nvml import Gpu
from inferlens.measure.monitor.table import Value

FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h
UNNAMED = "NVML did not name the case's process by its number here, as in a container"
HIDDEN = "in a container, processes of other containers may be hidden; none was seen"


def in_first_namespace() -> bool:
    """Whether process numbers here are the system's own."""
    try:
        return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number here, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class Neighbours:
    """Tells the case's processes on a GPU from others.

    Args:
        gpu: the GPU.
        tree: asked for the numbers of the case's processes.
        before: numbers on the GPU before the case's process was started.
        first_namespace: whether this process's numbers are the system's.
        alive: whether a process of a number is here.
        wall: seconds of the system's clock, by which NVML stamps utilisation.
    """

    def __init__(
        self,
        gpu: Gpu,
        tree: Callable[[], Collection[int]],
        before: Collection[int] = (),
        first_namespace: bool = False,
        alive: Callable[[int], bool] = is_alive,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._gpu = gpu
        self._tree = tree
        self._before = frozenset(before)
        self._first = first_namespace
        self._alive = alive
        self._case: set[int] = set()
        self._seen = False
        self._stamp = int(wall() * 1e6)

    @property
    def absent(self) -> dict[str, str]:
        """What cannot be said, and why."""
        if not self._seen:
            return {"case_memory": UNNAMED, "foreign": UNNAMED}
        return {} if self._first else {"foreign": HIDDEN}

    def held(self, _: float) -> Mapping[str, Value]:
        """Memory of the case's processes, and the number of others."""
        listed = self._gpu.processes()
        mine = self._mine(listed)
        self._seen = self._seen or bool(mine)
        others = len(self._foreign(listed))
        return {
            "case_memory": _sum([listed[pid] for pid in mine]) if self._seen else None,
            "foreign": others if others or (self._first and self._seen) else None,
        }

    def active(self, _: float) -> Mapping[str, Value]:
        """Share of the multiprocessors' time that others used since the last time."""
        shares, self._stamp = self._gpu.utilisation_since(self._stamp)
        self._mine(shares)
        foreign = self._foreign(shares)
        if not foreign and not (self._first and self._seen):
            return {"foreign_utilisation": None}
        return {"foreign_utilisation": round(min(1.0, sum(shares[pid] for pid in foreign)), 3)}

    def _mine(self, listed: Collection[int]) -> set[int]:
        """Those of the case, also those that have ended since and that NVML still lists."""
        self._case |= set(self._tree())
        self._case -= self._before
        return self._case & set(listed)

    def _foreign(self, listed: Collection[int]) -> set[int]:
        """Those that are surely not the case's."""
        others = set(listed) - self._case
        if self._seen or (self._first and all(self._alive(pid) for pid in others)):
            return others
        return others & self._before


def _sum(held: list[int | None]) -> int | None:
    return None if None in held else sum(each or 0 for each in held)
