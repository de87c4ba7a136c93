"""Turns: processes that are measured at the same time use the machine one after the other.

Processes that take turns of some milliseconds are disturbed by the same events of the machine. They load and build side
by side. A process sends a ``TurnRequest`` before it calls its model for the first time, once it is warm, and after
every chunk of calls. The parent answers through a pipe when all processes wait or have ended. So they warm up one after
the other, and then alternate until all have enough samples.

:class:`InterleavedTurn` is the side of the child, which ``worker`` makes. The scheduler makes an :class:`Interleaver`
in the parent, with a :class:`Slot` for each process. ``child.launch`` reports to the slot what its process does.

- A process gives up its turn once its own threads are at rest, because threads of libraries spin for some milliseconds
  after a call. The first calls of a turn are no samples (``Turn.lead``), because caches hold the data of others.
- One thread makes the calls of a GPU, and a CPU is slower for moments. So these threads run on one CPU in a turn,
  the same for all processes, and on another one in the next, and their turns are short.
- With ``one_turn`` processes only load and export side by side: a turn lasts until the process ends. A build that
  times kernels takes a turn of its own, too, so that no other build disturbs it.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from inferlens.execution.child import kill_groups
from inferlens.measure.monitor import Monitor
from inferlens.measure.series import Turn

MORE = b"m"  # the answer to a request: take samples until there are enough
OVER = b"o"  # the answer to a request: finish, because all others have enough samples or have ended
Result = TypeVar("Result")


class InterleavedTurn(Turn):
    """The turn of a process among others. ``request`` asks the parent for a turn, with the argument of :meth:`wait`."""

    chunk_seconds = 0.15
    chunk_calls = 4
    chunks_a_report = 3
    shared = True
    lead = 0.06  # OpenVINO is slower by a fifth in the first 0.05 s after a pause

    def __init__(self, request: Callable[[bool], None], answers: int, seed: int) -> None:
        os.set_inheritable(answers, False)
        self._request, self._answers, self._random = request, answers, random.Random(seed)
        self._cpus: Sequence[int] = ()
        self.over = False
        self.waited = 0.0

    def wait(self, *, enough: bool = False) -> None:
        """See :class:`~inferlens.measure.series.Turn`; returns at once if the parent is gone."""
        begin = time.perf_counter()
        _rest()
        self._request(enough)
        self.over = os.read(self._answers, 1) != MORE
        if self._cpus:
            os.sched_setaffinity(0, {self._random.choice(self._cpus)})  # of this thread, and of those it will start
        self.waited += time.perf_counter() - begin

    def ready(self, *, gpu: bool) -> None:
        """See :class:`~inferlens.measure.series.Turn`. Turns are too short to collect garbage among all objects."""
        gc.collect()
        gc.freeze()
        if gpu:
            self.chunk_seconds, self.lead = 0.05, 0.02
        if gpu and hasattr(os, "sched_setaffinity"):
            self._cpus = sorted(os.sched_getaffinity(0))


def _rest() -> None:
    """Return when the threads of this process have been at rest for 3 ms, or after half a second."""
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(0.003)
        if time.process_time() - used < 0.0005:
            return


class Slot:
    """One process of an :class:`Interleaver`: whether it waits, has enough samples, or has ended.

    ``monitor`` starts with the first turn of the process.
    """

    def __init__(self, interleaver: Interleaver) -> None:
        self.interleaver = interleaver
        self.pid: int | None = None
        self.monitor: Monitor | None = None
        self.requested = self.waiting = self.enough = self.ended = False
        self._answers = -1
        self._waited = self._since = 0.0

    @property
    def waited(self) -> float:
        """Seconds that the process has spent waiting so far."""
        return self._waited + (time.monotonic() - self._since if self.waiting else 0.0)

    def started(self, pid: int, answers: int) -> None:
        """Register the process, and the descriptor for ``answers``, which is closed when the process ends."""
        with self.interleaver.lock:
            self.pid, self._answers = pid, answers
            self.interleaver.advance(self)

    def request_turn(self, enough: bool) -> None:
        """Register that the process waits for its turn; except for the first time, its last turn is over."""
        with self.interleaver.lock:
            self.waiting, self.enough, self._since = True, enough, time.monotonic()
            if self.requested:
                self.interleaver.next = self.interleaver.after(self)
            self.requested = True
            self.interleaver.advance(self)

    def end(self) -> None:
        """Register that the process has ended."""
        with self.interleaver.lock:
            self.ended = True
            if self._answers >= 0:
                os.close(self._answers)
            self.interleaver.advance(self)

    def answer(self, word: bytes) -> None:
        """Answer the request of the process, which then goes on."""
        self._waited, self.waiting = self.waited, False
        if self.monitor:
            self.monitor.start()
        with suppress(OSError):  # it has ended meanwhile
            os.write(self._answers, word)

    def kill(self) -> None:
        """End the process and its children."""
        if self.pid and not self.ended:
            kill_groups([self.pid])


class Interleaver:
    """The slots of some processes. Threads hold the ``lock`` when they change anything.

    Attributes:
        one_turn: whether a turn lasts until its process ends.
        next: the slot whose process has the next turn.
        seed: the seed of the order of CPUs for threads that call a GPU.
        stopped: whether all processes were ended, so that their answers do not count.
    """

    def __init__(self, count: int = 2, *, one_turn: bool = False) -> None:
        self.one_turn = one_turn
        self.slots = [Slot(self) for _ in range(count)]
        self.next = self.slots[0]
        self.lock = threading.RLock()
        self.seed = random.randrange(1_000_000)
        self.stopped = False

    def pids(self) -> list[int]:
        """Return the numbers of the processes that are alive."""
        return [slot.pid for slot in self.slots if slot.pid is not None and not slot.ended]

    def after(self, slot: Slot) -> Slot:
        """Return the next slot whose process has not ended; the slot itself, if it is the last."""
        place = self.slots.index(slot)
        following = [*self.slots[place + 1 :], *self.slots[:place]]
        return next((other for other in following if not other.ended), slot)

    def advance(self, changed: Slot) -> None:
        """Let the next process go if all wait or have ended; let all of them go if all have enough samples."""
        if self.stopped:
            changed.kill()
        if self.next.ended:
            self.next = self.after(self.next)
        running = [slot for slot in self.slots if not slot.ended]
        if self.next.ended or not self.next.waiting or not all(slot.requested for slot in running):
            return
        if self.one_turn or (len(running) > 1 and not all(slot.enough for slot in running)):
            self.next.answer(MORE)
            return
        for slot in running:  # nothing is timed any more: the processes end side by side
            if slot.waiting:
                slot.answer(OVER)

    def stop(self) -> None:
        """End all processes, and those that are yet to start."""
        with self.lock:
            self.stopped = True
            for slot in self.slots:
                slot.kill()

    def run(self, functions: Sequence[Callable[[Slot], Result]]) -> list[Result]:
        """Run functions at the same time, with their slots. An error in one of them ends all of them."""

        def run_in_slot(function: Callable[[Slot], Result], slot: Slot) -> Result:
            try:
                return function(slot)
            except BaseException:
                self.stop()
                raise
            finally:
                slot.end()  # also if no process was started

        with ThreadPoolExecutor(len(functions), "inferlens-turns") as pool:
            try:
                futures = [pool.submit(run_in_slot, *pair) for pair in zip(functions, self.slots, strict=True)]
                return [future.result() for future in futures]
            except BaseException:
                self.stop()
                raise
