"""Two processes that take turns on the machine, some milliseconds each, so that whatever it does it does to both.

A process asks for its turn before it does anything, once it is warm, and after each chunk of calls, with the event
``Waits``. The parent answers through a pipe of its own, when the other one asks or has ended. So the first loads,
builds and warms up, then the second does, and then they alternate until both have enough samples.

What one leaves to the other must not be in a sample. Libraries' threads spin for some milliseconds after a call: a
process lets go when its own have come to rest. And it finds caches full of the other one's data and its threads asleep:
the calls with which a turn begins are not samples (``Turn.lead``).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from inferlens.measure.series import Turn

MORE, OVER = b"m", b"o"  # go on until you have enough; go on, the other one has enough or is gone
Result = TypeVar("Result")


class Shared(Turn):
    """The process's side: ``ask`` tells the parent that this process waits, and whether it has enough samples."""

    chunk_seconds = 0.1
    chunk_calls = 4
    chunks_a_report = 3
    lead = 0.03

    def __init__(self, ask: Callable[[bool], None], answers: int) -> None:
        os.set_inheritable(answers, False)
        self._ask, self._answers = ask, answers
        self.over = False
        self.waited = 0.0

    def wait(self, *, enough: bool = False) -> None:
        """See :class:`~inferlens.measure.series.Turn`; returns at once if the parent is gone."""
        begin = time.perf_counter()
        _rest()
        self._ask(enough)
        self.over = os.read(self._answers, 1) != MORE
        self.waited += time.perf_counter() - begin


def _rest(most: float = 0.5) -> None:
    """Returns when the threads of this process have been at rest for 3 ms, or after ``most`` seconds."""
    end = time.perf_counter() + most
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(0.003)
        if time.process_time() - used < 0.0005:
            return


class Slot:
    """What the parent knows of one of the two: its process, and whether it waits, has enough, or has ended."""

    def __init__(self, interleaver: Interleaver) -> None:
        self._interleaver = interleaver
        self.pid: int | None = None
        self.asked = self.waiting = self.enough = self.ended = False
        self._answers = -1
        self._waited = self._since = 0.0

    @property
    def waited(self) -> float:
        """Seconds that the process has spent waiting, the present ones included."""
        return self._waited + (time.monotonic() - self._since if self.waiting else 0.0)

    def started(self, pid: int, answers: int) -> None:
        """The process has begun, and is answered through the descriptor ``answers``, which is closed when it ends."""
        with self._interleaver.lock:
            self.pid, self._answers = pid, answers
            self._interleaver.look(self)

    def neighbour(self) -> int | None:
        """The number of the other one's process, once it has begun."""
        return self._interleaver.other(self).pid

    def waits(self, enough: bool) -> None:
        """The process has done what it had to, but for the first time, and asks for its turn."""
        with self._interleaver.lock:
            self.waiting, self.enough, self._since = True, enough, time.monotonic()
            if self.asked:
                self._interleaver.next = self._interleaver.other(self)
            self.asked = True
            self._interleaver.look(self)

    def end(self) -> None:
        """The process has ended."""
        with self._interleaver.lock:
            self.ended = True
            if self._answers >= 0:
                os.close(self._answers)
            self._interleaver.look(self)

    def go(self, word: bytes) -> None:
        """Lets the process go on."""
        self._waited, self.waiting = self.waited, False
        with suppress(OSError):  # it has ended meanwhile
            os.write(self._answers, word)

    def kill(self) -> None:
        """Ends the process and what it has started."""
        if self.pid and not self.ended:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class Interleaver:
    """Two slots, and which is ``next`` to go. The threads of both processes hold the ``lock`` when anything changes."""

    def __init__(self) -> None:
        self.slots = (Slot(self), Slot(self))
        self.next = self.slots[0]
        self.lock = threading.RLock()
        self._stopped = False

    def other(self, slot: Slot) -> Slot:
        """The one beside ``slot``."""
        return self.slots[slot is self.slots[0]]

    def look(self, slot: Slot) -> None:
        """Lets the one go whose turn it is, if it waits; if it has ended, the other one. After a change of ``slot``."""
        if self._stopped:
            slot.kill()
        mine = self.other(self.next) if self.next.ended else self.next
        if mine.waiting and not mine.ended:
            theirs = self.other(mine)
            mine.go(OVER if theirs.ended or (mine.enough and theirs.enough) else MORE)

    def stop(self) -> None:
        """Ends both processes, and those that are yet to start."""
        with self.lock:
            self._stopped = True
            for slot in self.slots:
                slot.kill()


def both(first: Callable[[Slot], Result], second: Callable[[Slot], Result]) -> tuple[Result, Result]:
    """What two functions return that run at the same time; what ends one of them ends both, and is raised."""
    interleaver = Interleaver()

    def run(do: Callable[[Slot], Result], slot: Slot) -> Result:
        try:
            return do(slot)
        except BaseException:
            interleaver.stop()
            raise
        finally:
            slot.end()  # also if it never came to a process

    with ThreadPoolExecutor(2, "inferlens-turns") as pool:
        try:
            begun = [pool.submit(run, do, slot) for do, slot in zip((first, second), interleaver.slots, strict=True)]
            return begun[0].result(), begun[1].result()
        except BaseException:
            interleaver.stop()
            raise
