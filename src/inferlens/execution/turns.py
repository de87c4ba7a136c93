"""Turns: processes that are alive at the same time use the machine one after the other.

These terms are used in ``execution`` and ``measure``:

- *Concurrent* processes are alive at the same time. They load and build at the same time.
- A *turn* is the time in which one of them has the machine for itself, while the others wait.
- Processes are measured *in turns* if each has many turns of some milliseconds, so that the same events of the machine
  disturb all of them. They warm up one after the other, and then alternate until all have enough samples.
- They are measured *one by one* if each has a single turn, which lasts until it ends.

A process sends a ``TurnRequest`` before its warm-up and, in turns, once it is warm and after every chunk of calls.
A build that times kernels waits for a turn, too, so that no other build disturbs it. The parent answers through a pipe
when all processes wait or have ended. The scheduler makes :class:`Turns` in the parent, with a :class:`Slot` for each
process, and ``child.launch`` reports to the slot what the process does. The child's side is a :class:`SharedTurn`.

- A process gives up its turn once its own threads are at rest, because threads of libraries spin for some milliseconds
  after a call. The first calls of a turn are no samples (``Turn.lead``), because caches hold the data of others.
- One thread makes the calls of a GPU, and a CPU is slower for moments. So these threads run on one CPU in a turn,
  the same for all processes, and on another one in the next, and their turns are short.
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
FINISH = b"f"  # the answer to a request: finish, because all others have enough samples or have ended
Result = TypeVar("Result")


class SharedTurn(Turn):
    """The turns of a concurrent process: many short ones, or a single one that lasts until the process ends.

    ``request`` asks the parent for a turn, with the argument of :meth:`wait`.
    """

    def __init__(self, request: Callable[[bool], None], answers: int, seed: int, in_turns: int) -> None:
        os.set_inheritable(answers, False)
        self._request, self._answers, self._random = request, answers, random.Random(seed)
        self._cpus: Sequence[int] = ()
        self._begun = False
        self.in_turns = bool(in_turns)
        if in_turns:
            self.others_finished = False
            self.chunk_seconds, self.chunk_calls, self.chunks_a_report = 0.15, 4, 3
            self.lead = 0.06  # OpenVINO is slower by a fifth in the first 0.05 s after a pause

    def wait(self, *, enough: bool = False) -> None:
        """See :class:`~inferlens.measure.series.Turn`; returns at once if the parent is gone."""
        if self._begun and not self.in_turns:
            return
        begin = time.perf_counter()
        _rest()
        self._request(enough)
        finish = os.read(self._answers, 1) != MORE
        self.others_finished = finish or not self.in_turns
        if self._cpus:
            os.sched_setaffinity(0, {self._random.choice(self._cpus)})  # of this thread, and of those it will start
        self.seconds_waited += time.perf_counter() - begin
        self._begun = True

    def ready(self, *, gpu: bool) -> None:
        """See :class:`~inferlens.measure.series.Turn`. Turns are too short to collect garbage among all objects."""
        gc.collect()
        gc.freeze()
        if gpu and self.in_turns:
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
    """One process of :class:`Turns`: whether it waits, has enough samples, or has ended.

    ``monitor`` starts with the first turn of the process.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.pid: int | None = None
        self.monitor: Monitor | None = None
        self.requested = self.waiting = self.enough = self.ended = False
        self._answers = -1
        self._waited = self._since = 0.0

    @property
    def seconds_waited(self) -> float:
        """Seconds that the process has spent waiting so far."""
        return self._waited + (time.monotonic() - self._since if self.waiting else 0.0)

    def started(self, pid: int, answers: int) -> None:
        """Register the process, and the descriptor for ``answers``, which is closed when the process ends."""
        with self.turns.lock:
            self.pid, self._answers = pid, answers
            self.turns.advance()

    def request_turn(self, enough: bool) -> None:
        """Register that the process waits for its turn; except for the first time, its last turn is over."""
        with self.turns.lock:
            self.waiting, self.enough, self._since = True, enough, time.monotonic()
            if self.requested:
                self.turns.next = self.turns.after(self)
            self.requested = True
            self.turns.advance()

    def end(self) -> None:
        """Register that the process has ended."""
        with self.turns.lock:
            self.ended = True
            if self._answers >= 0:
                os.close(self._answers)
            self.turns.advance()

    def answer(self, word: bytes) -> None:
        """Answer the request of the process, which then goes on."""
        self._waited, self.waiting = self.seconds_waited, False
        if self.monitor:
            self.monitor.start()
        with suppress(OSError):  # it has ended meanwhile
            os.write(self._answers, word)


class Turns:
    """The turns of some processes. Threads hold the ``lock`` when they change anything.

    Attributes:
        in_turns: whether the processes alternate; otherwise each has a single turn.
        next: the slot whose process has the next turn.
        seed: the seed of the order of CPUs for threads that call a GPU.
        stopped: whether all processes were ended, so that their answers do not count.
    """

    def __init__(self, count: int, *, in_turns: bool) -> None:
        self.in_turns = in_turns
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

    def advance(self) -> None:
        """Let the next process go if all wait or have ended; let all of them go if all have enough samples."""
        if self.stopped:
            kill_groups(self.pids())
        if self.next.ended:
            self.next = self.after(self.next)
        running = [slot for slot in self.slots if not slot.ended]
        if self.next.ended or not self.next.waiting or not all(slot.requested for slot in running):
            return
        if not self.in_turns or (len(running) > 1 and not all(slot.enough for slot in running)):
            self.next.answer(MORE)
            return
        for slot in running:  # nothing is timed any more: the processes end at the same time
            if slot.waiting:
                slot.answer(FINISH)

    def stop(self) -> None:
        """End all processes, and those that are yet to start."""
        with self.lock:
            self.stopped = True
            kill_groups(self.pids())

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
