"""The processes of a case: the one that was started, and all that it started, with the CPU time they used.

From ``/proc`` (proc(5)). Processes that outlive the one that started them are not found.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds; the unit of times in /proc


class Tree:
    """A process and its descendants.

    Args:
        pid: the first of them.
        proc: where ``/proc`` is.
        beside: tells of another process, if there is one, that belongs to them with its descendants.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc"), beside: Callable[[], int | None] = lambda: None) -> None:
        self._pid = pid
        self._proc = proc
        self._beside = beside

    def pids(self) -> list[int]:
        """Numbers of all processes that are alive, the first one first; empty once that has ended."""
        found: list[int] = []
        other = self._beside()
        if not (self._proc / str(self._pid)).exists():
            return found
        waiting = [self._pid] if other is None else [other, self._pid]
        while waiting:
            pid = waiting.pop()
            if pid not in found and (self._proc / str(pid)).exists():
                found.append(pid)
                waiting += self._children(pid)
        return found

    def seconds(self) -> float:
        """CPU seconds used by all of them, those included that have ended and were waited for.

        Raises:
            OSError: if the first of them has ended.
        """
        pids = self.pids()
        if not pids:
            raise ProcessLookupError("the case's process has ended")
        return sum(self._seconds(pid) for pid in pids)

    def _seconds(self, pid: int) -> float:
        """User and system time of a process and of its children that were waited for; fields 14 to 17 of ``stat``."""
        try:
            text = (self._proc / str(pid) / "stat").read_text()
        except OSError:
            if pid == self._pid:
                raise
            return 0.0
        fields = text[text.rindex(")") + 2 :].split()  # a process's name may hold anything, also spaces and brackets
        return sum(int(field) for field in fields[11:15]) * TICK

    def _children(self, pid: int) -> list[int]:
        """Children of all threads. The file is there with CONFIG_PROC_CHILDREN, which distributions set."""
        found: list[int] = []
        try:
            threads = os.listdir(self._proc / str(pid) / "task")
        except OSError:  # the process has ended meanwhile
            return found
        for thread in threads:
            with suppress(OSError):  # the thread has
                found += map(int, (self._proc / str(pid) / "task" / thread / "children").read_text().split())
        return found
