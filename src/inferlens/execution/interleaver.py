"""Processes that take turns on the machine, some milliseconds each, so that whatever it does it does to all of them.

They load and build side by side. Each asks for its turn before it calls its model for the first time, once it is warm,
and after each chunk of calls, with the event ``Waits``. The parent answers through a pipe of its own, when all have
asked, and the one whose turn it was asks again or has ended. So one warms up, then the next, and then they alternate
until all have enough samples.

What one leaves to the next must not be in a sample. Libraries' threads spin for some milliseconds after a call: a
process gives up its turn once its own have come to rest. And it finds caches full of another one's data and its threads
asleep: the calls with which a turn begins are not samples (``Turn.lead``).

Calls of a GPU are made by one thread each, and a CPU is slower for moments, or while something else runs on the same
core. So those threads run on one CPU in each turn, the same for all, and on another one in the next, and their turns
are short.

Where each has ``one_turn``, they only load and export side by side: the turn of each lasts until its process has
ended. A build that times kernels takes a turn of its own, too, so that no other build is in what it times.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from inferlens.measure.series import Turn

MORE, OVER = b"m", b"o"  # go on until you have enough; go on, all others have enough or are gone
Outcome = TypeVar("Outcome")


class Shared(Turn):
    """The process's side: ``ask`` tells the parent that this process waits, and whether it has enough samples."""

    chunk_seconds = 0.15
    chunk_calls = 4
    chunks_a_report = 3
    shared = True
    lead = 0.06  # OpenVINO is slower by a fifth in the first 0.05 s after a pause

    def __init__(self, ask: Callable[[bool], None], answers: int, seed: int) -> None:
        os.set_inheritable(answers, False)
        self._ask, self._answers, self._random = ask, answers, random.Random(seed)
        self._cpus: Sequence[int] = ()
        self.over = False
        self.waited = 0.0

    def wait(self, *, enough: bool = False) -> None:
        """See :class:`~inferlens.measure.series.Turn`; returns at once if the parent is gone."""
        begin = time.perf_counter()
        _rest()
        self._ask(enough)
        self.over = os.read(self._answers, 1) != MORE
        if self._cpus:
            os.sched_setaffinity(0, {self._random.choice(self._cpus)})  # of this thread, and of those it will start
        self.waited += time.perf_counter() - begin

    def ready(self, *, gpu: bool) -> None:
        """See :class:`~inferlens.measure.series.Turn`. Turns are too short to collect garbage among all of it."""
        gc.collect()
        gc.freeze()
        if gpu:
            self.chunk_seconds, self.lead = 0.05, 0.02
        if gpu and hasattr(os, "sched_setaffinity"):
            self._cpus = sorted(os.sched_getaffinity(0))


def _rest() -> None:
    """Returns when the threads of this process have been at rest for 3 ms, or after half a second."""
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(0.003)
        if time.process_time() - used < 0.0005:
            return


class Slot:
    """What the parent knows of one of them: its process, and whether it waits, has enough, or has ended."""

    def __init__(self, interleaver: Interleaver) -> None:
        self._interleaver = interleaver
        self.pid: int | None = None
        self.asked = self.waiting = self.enough = self.ended = False
        self.on_turn: Callable[[], object] = lambda: None  # called each time that it is let go
        self._answers = -1
        self._waited = self._since = 0.0

    @property
    def seed(self) -> int:
        """Of the order of CPUs that threads keep to which call a GPU."""
        return self._interleaver.seed

    @property
    def one_turn(self) -> bool:
        """Whether its turn lasts until its process has ended."""
        return self._interleaver.one_turn

    @property
    def processes(self) -> int:
        """The number of processes that take turns, this one included."""
        return len(self._interleaver.slots)

    @property
    def stopped(self) -> bool:
        """Whether all were ended, so that what its process has answered is worth nothing."""
        return self._interleaver.stopped

    @property
    def waited(self) -> float:
        """Seconds that the process has spent waiting, the present ones included."""
        return self._waited + (time.monotonic() - self._since if self.waiting else 0.0)

    def started(self, pid: int, answers: int) -> None:
        """The process has begun, and is answered through the descriptor ``answers``, which is closed when it ends."""
        with self._interleaver.lock:
            self.pid, self._answers = pid, answers
            self._interleaver.look(self)

    def waits(self, enough: bool) -> None:
        """The process has done what it had to, but for the first time, and asks for its turn."""
        with self._interleaver.lock:
            self.waiting, self.enough, self._since = True, enough, time.monotonic()
            if self.asked:
                self._interleaver.next = self._interleaver.after(self)
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
        self.on_turn()
        with suppress(OSError):  # it has ended meanwhile
            os.write(self._answers, word)

    def kill(self) -> None:
        """Ends the process and what it has started."""
        if self.pid and not self.ended:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class Interleaver:
    """Some slots, and which is ``next`` to go. The threads of the processes hold the ``lock`` when anything changes."""

    def __init__(self, count: int = 2, *, one_turn: bool = False) -> None:
        self.one_turn = one_turn
        self.slots = [Slot(self) for _ in range(count)]
        self.next = self.slots[0]
        self.lock = threading.RLock()
        self.seed = random.randrange(1_000_000)
        self.stopped = False

    def pids(self) -> list[int]:
        """The numbers of the processes that have begun, and not ended."""
        return [slot.pid for slot in self.slots if slot.pid is not None and not slot.ended]

    def after(self, slot: Slot) -> Slot:
        """The next one that has not ended; itself, if it is the last."""
        place = self.slots.index(slot)
        ring = [*self.slots[place + 1 :], *self.slots[:place]]
        return next((each for each in ring if not each.ended), slot)

    def look(self, slot: Slot) -> None:
        """Lets the one go whose turn it is, if all wait or have ended; all of them, where all have enough.

        After a change of ``slot``.
        """
        if self.stopped:
            slot.kill()
        mine = self.after(self.next) if self.next.ended else self.next
        left = [each for each in self.slots if not each.ended]
        if mine.ended or not mine.waiting or not all(each.asked for each in left):
            return
        self.next = mine
        if self.one_turn or (len(left) > 1 and not all(each.enough for each in left)):
            mine.go(MORE)
            return
        for each in left:  # nothing is timed any more: they come to their ends side by side
            if each.waiting:
                each.go(OVER)

    def stop(self) -> None:
        """Ends all processes, and those that are yet to start."""
        with self.lock:
            self.stopped = True
            for slot in self.slots:
                slot.kill()

    def run(self, every: Sequence[Callable[[Slot], Outcome]]) -> list[Outcome]:
        """What functions return that run at the same time, each with its slot; an error of one ends all of them."""

        def one(do: Callable[[Slot], Outcome], slot: Slot) -> Outcome:
            try:
                return do(slot)
            except BaseException:
                self.stop()
                raise
            finally:
                slot.end()  # also if it never came to a process

        with ThreadPoolExecutor(len(every), "inferlens-turns") as pool:
            try:
                begun = [pool.submit(one, do, slot) for do, slot in zip(every, self.slots, strict=True)]
                return [each.result() for each in begun]
            except BaseException:
                self.stop()
                raise
