"""Child processes, which run tasks with a deadline. Several of them can take turns on the machine.

What happens on a crash: :func:`launch` watches the process. However it ends, the parent goes on. :func:`status_of_exit`
turns the end into a status and a reason, with the phase in which it came. The scheduler writes them into the record of
the case, with the last lines that the process printed, and goes on with the next case. A process that crashes after it
has answered keeps its numbers, and the record has the warning ``bad-exit``.

A child leads a process group of its own, so that everything it started ends with it. Its output comes through a pipe
and is kept up to a limit: a child that prints without end cannot fill the disk.

Processes that take turns of some milliseconds are disturbed by the same events of the machine. They load and build side
by side. A process sends a ``TurnRequest`` before it calls its model for the first time, once it is warm, and after
every chunk of calls. The parent answers through a pipe when all processes wait or have ended. So they warm up one after
the other, and then alternate until all have enough samples.

- A process gives up its turn once its own threads are at rest, because threads of libraries spin for some milliseconds
  after a call. The first calls of a turn are no samples (``Turn.lead``), because caches hold the data of others.
- One thread makes the calls of a GPU, and a CPU is slower for moments. So these threads run on one CPU in a turn,
  the same for all processes, and on another one in the next, and their turns are short.
- With ``one_turn`` processes only load and export side by side: a turn lasts until the process ends. A build that
  times kernels takes a turn of its own, too, so that no other build disturbs it.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar, cast

import msgspec

from inferlens.errors import InferlensError
from inferlens.execution.protocol import (
    Event,
    Job,
    Order,
    PhaseStart,
    TaskAnswer,
    TaskResult,
    TurnRequest,
    Value,
    from_json,
    result_from_json,
)
from inferlens.measure.monitor import Monitor
from inferlens.measure.series import Turn
from inferlens.models import factories
from inferlens.record.machine import MachineLog
from inferlens.record.record import PhaseName, Status
from inferlens.record.store import plain_text

GOODBYE = 20.0  # seconds to leave after the answer
KEPT_OUTPUT = 4 << 20
LAST_OUTPUT = 1 << 16
TAIL_LINES = 40
TAIL_WIDTH = 300
# Not with -m, which would import from the working directory before the standard library.
START = "import sys; sys.path = [*filter(None, sys.path)]; from inferlens.execution import {0}; {0}.main()"
HINTS: dict[Status, str] = {
    "timed out": "--timeout with more seconds",
    "out of memory": "a smaller --batch, or a smaller --precision",
    "crashed": "the log beside the record",
}


@dataclass
class Outcome(Generic[Value]):
    """The outcome of a task's process."""

    result: TaskResult[Value]  # what it answered, or how it ended without an answer
    answered: bool = True
    fault: str = ""  # how the process ended badly although it had answered
    tail: tuple[str, ...] = ()  # the last lines it printed, control characters removed, if anything went wrong
    machine: MachineLog | None = None  # what the machine did meanwhile, if it was watched

    def value(self, what: str) -> Value:
        """Return the value of the task.

        Raises InferlensError with the reason of the task, or of its process if there is no answer; ``what`` failed.
        """
        result = self.result
        if result.status == "ok":
            return cast("Value", result.value)
        if result.problem:
            raise result.problem.error()
        if self.answered:
            raise InferlensError(result.reason, hint=result.hint)
        shown = () if result.status == "timed out" else self.tail[-5:]  # without the place in the child's code
        raise InferlensError("\n  ".join((f"{what}: {result.reason}.", *shown)), hint="" if shown else result.hint)


def launch(
    task: str,
    job: Job,
    returns: type[Value],
    *,
    timeout: float,
    log: Path | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
    monitor: Callable[[int], Monitor] | None = None,
    slot: Slot | None = None,
    variables: Mapping[str, str] | None = None,
    started: Callable[[int], None] = lambda _: None,
) -> Outcome[Value]:
    """Run a task in a fresh process and wait for it.

    Args:
        task: a name in ``worker.TASKS``.
        returns: the type of the task's value.
        timeout: seconds after which the process is killed; those spent waiting for a turn do not count.
        log: file for what the process prints; none is written if it prints nothing.
        monitor: makes a monitor of the process with a number, which watches the machine until the process has ended.
        slot: the place of the process among those that take turns.
        variables: environment variables in addition to those of this process.
        started: called with the number of the process.
    """
    if job.interpreter and not os.access(job.interpreter, os.X_OK):  # removed since it was checked
        gone = f"{job.interpreter} could not be started: it is not there"
        return Outcome(TaskResult(status="crashed", reason=gone), answered=False)
    kills = oom_kills()
    process = _Process(slot, job.interpreter, variables or {})
    in_time = True
    try:  # an interrupt before this line leaves a process without an order, which ends by itself
        process.write(Order.of(task, job))
        started(process.process.pid)
        with _watched(monitor and monitor(process.process.pid), slot) as watching:
            in_time = process.listen(time.monotonic() + timeout, on_event)
        if not in_time:
            process.show_stacks()
    finally:
        process.end(patient=in_time)
    if log and process.output:
        log.write_bytes(bytes(process.output))
    outcome: Outcome[Value] = Outcome(TaskResult(), machine=watching.log() if watching else None)
    code = process.process.returncode
    if process.answer:
        outcome.result = result_from_json(process.answer, returns)
        outcome.fault = status_of_exit(code, killed_for_memory=oom_kills() > kills)[1]
        if not in_time:
            outcome.fault = "did not end after it had answered"
    else:
        status, reason = status_of_exit(code, killed_for_memory=oom_kills() > kills)
        if not in_time:
            status, reason = "timed out", f"not done after {timeout:g} s"
        during = f", during {process.phase}" if process.phase else ", while starting"
        reason = (reason or "the process ended without an answer") + during
        outcome.result = TaskResult(status=status, reason=reason, hint=HINTS.get(status, ""))
        outcome.answered = False
    if outcome.result.status != "ok" or outcome.fault:
        outcome.tail = process.tail()
    return outcome


def status_of_exit(code: int, *, killed_for_memory: bool) -> tuple[Status, str]:
    """Return status and reason of a process that ended with ``code`` without an answer; no reason for exit code 0."""
    if code == -signal.SIGKILL and killed_for_memory:
        return "out of memory", "killed by the kernel, which was short of memory"
    if code < 0:
        return "crashed", f"killed by {signal.Signals(-code).name if -code in [*signal.Signals] else f'signal {-code}'}"
    return "crashed", f"the process ended with exit code {code}" if code else ""


@contextmanager
def _watched(monitor: Monitor | None, slot: Slot | None) -> Iterator[Monitor | None]:
    """Watch the machine; if others are measured while the process loads, begin with its turn."""
    with ExitStack() as stack:
        if monitor and slot and slot.interleaver.one_turn:
            slot.on_turn = partial(stack.enter_context, monitor)
        elif monitor:
            stack.enter_context(monitor)
        yield monitor


class _Process:
    """A child process, its events and its output."""

    def __init__(self, slot: Slot | None, interpreter: str, variables: Mapping[str, str]) -> None:
        self.slot = slot
        self.answer = self._last = self._line = b""
        self.phase: PhaseName | None = None
        self.output = bytearray()
        self._events, events = os.pipe()
        passed = [events]
        if slot:
            answers, answering = os.pipe()
            passed.append(answers)
        words = map(str, (events, os.getpid(), *((answers, slot.interleaver.seed) if slot else ())))
        python = os.path.abspath(interpreter) if interpreter else sys.executable
        try:
            self.process = subprocess.Popen(
                [python, "-X", "faulthandler", "-c", START.format("worker"), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=passed,
                start_new_session=True,
                env={**variables_for(interpreter), **variables},
            )
        finally:
            for descriptor in passed:
                os.close(descriptor)
        if slot:
            slot.started(self.process.pid, answering)
        assert self.process.stdout
        self._printed = self.process.stdout

    def write(self, order: Order) -> None:
        """Write the order, which the process waits for, to its standard input."""
        assert self.process.stdin
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(msgspec.json.encode(order))

    def listen(self, deadline: float, on_event: Callable[[Event], None]) -> bool:
        """Read until the process has ended and its pipes are empty; return ``False`` if the deadline came first.

        Time that the process waits for its turn puts the deadline off.
        """
        before = self.slot.waited if self.slot else 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            selector.register(self._printed, selectors.EVENT_READ)
            while selector.get_map():
                waited = self.slot.waited - before if self.slot else 0.0
                left = deadline + waited - time.monotonic()
                if left <= 0:
                    return False
                if self.answer and left > GOODBYE:
                    deadline = time.monotonic() + GOODBYE - waited
                ready = selector.select(min(left, 1.0))
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd == self._events:
                        self._hear(data, on_event)
                    else:
                        self._last = (self._last + data)[-LAST_OUTPUT:]
                        self.output += data[: max(0, KEPT_OUTPUT - len(self.output))]
                if not ready and self.process.poll() is not None:
                    return True  # ended; somebody it started still holds the pipes
        return True

    def show_stacks(self) -> None:
        """Let the process print its stacks, for the log of a case that hangs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        self.listen(time.monotonic() + 0.5, lambda _: None)

    def end(self, *, patient: bool) -> None:
        """Kill whatever is left of the process and of its children."""
        try:
            if self.answer and patient:  # it has answered; give it a moment to exit normally
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)
        finally:  # also if this is interrupted
            kill_groups([self.process.pid])
            self.process.wait()
            os.close(self._events)
            self._printed.close()

    def tail(self) -> tuple[str, ...]:
        lines = [line.rstrip()[:TAIL_WIDTH] for line in plain_text(self._last.decode(errors="replace")).split("\n")]
        return tuple([line for line in lines if line][-TAIL_LINES:])

    def _hear(self, data: bytes, on_event: Callable[[Event], None]) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            event = from_json(line, Event)
            if isinstance(event, TaskAnswer):
                self.answer = bytes(event.result)
            elif isinstance(event, PhaseStart):
                self.phase = event.phase
            elif isinstance(event, TurnRequest) and self.slot:
                self.slot.waits(event.enough)
            on_event(event)


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed for memory; 0 if that is unknown."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text("utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def variables_for(interpreter: str = "") -> dict[str, str]:
    """Return the parent's environment variables, with an import path for the user's own modules.

    That is the parent's whole path. In another environment it is only the part before the standard library, such as the
    folder of a program, without the parent's packages. Tools of that environment come first.
    The working directory is left out, unless ``PYTHONPATH`` names it: the child imports from there last.
    """
    named = {*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))}
    paths = [path for path in sys.path if path in named or path not in ("", os.getcwd())]
    given = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
    if interpreter:
        library = {*factories.library_paths(), *(path for path in paths if path.endswith(".zip"))}
        paths = list(itertools.takewhile(lambda path: path not in library, paths))
        folder = os.path.dirname(os.path.abspath(interpreter))
        given["PATH"] = os.pathsep.join(filter(None, (folder, given.get("PATH", ""))))
        for name in ("PYTHONHOME", "VIRTUAL_ENV"):  # they are the parent's
            given.pop(name, None)
    return {**given, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


MORE, OVER = b"m", b"o"  # go on until there are enough samples; go on, all others have enough or have ended
Result = TypeVar("Result")


class InterleavedTurn(Turn):
    """The turn of a process among others; ``ask`` tells the parent that it waits, and whether it has enough samples."""

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
    """Return when the threads of this process have been at rest for 3 ms, or after half a second."""
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(0.003)
        if time.process_time() - used < 0.0005:
            return


class Slot:
    """One process of an :class:`Interleaver`: whether it waits, has enough samples, or has ended."""

    def __init__(self, interleaver: Interleaver) -> None:
        self.interleaver = interleaver
        self.pid: int | None = None
        self.requested = self.waiting = self.enough = self.ended = False
        self.on_turn: Callable[[], object] = lambda: None  # called whenever its turn begins
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

    def waits(self, enough: bool) -> None:
        """Register that the process asks for its turn; except for the first time, its last turn is over."""
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

    def go(self, word: bytes) -> None:
        """Let the process go on."""
        self._waited, self.waiting = self.waited, False
        self.on_turn()
        with suppress(OSError):  # it has ended meanwhile
            os.write(self._answers, word)

    def kill(self) -> None:
        """End the process and its children."""
        if self.pid and not self.ended:
            kill_groups([self.pid])


def kill_groups(pids: Iterable[int]) -> None:
    """Kill processes that lead a group, with all that they have started."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


class Interleaver:
    """Some slots, of which ``next`` is the next to go. Threads hold the ``lock`` when they change anything.

    ``one_turn``: a turn lasts until its process ends. ``seed``: of the order of CPUs for threads that call a GPU.
    ``stopped``: all processes were ended, so that their answers do not count.
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
        ring = [*self.slots[place + 1 :], *self.slots[:place]]
        return next((one for one in ring if not one.ended), slot)

    def advance(self, slot: Slot) -> None:
        """Let the next process go, if all wait or have ended; or all of them, if all have enough. ``slot`` changed."""
        if self.stopped:
            slot.kill()
        following = self.after(self.next) if self.next.ended else self.next
        left = [one for one in self.slots if not one.ended]
        if following.ended or not following.waiting or not all(one.requested for one in left):
            return
        self.next = following
        if self.one_turn or (len(left) > 1 and not all(one.enough for one in left)):
            following.go(MORE)
            return
        for one in left:  # nothing is timed any more: they come to their ends side by side
            if one.waiting:
                one.go(OVER)

    def stop(self) -> None:
        """End all processes, and those that are yet to start."""
        with self.lock:
            self.stopped = True
            for slot in self.slots:
                slot.kill()

    def run(self, functions: Sequence[Callable[[Slot], Result]]) -> list[Result]:
        """Run functions at the same time, with their slots. An error of one ends all of them."""

        def run_one(function: Callable[[Slot], Result], slot: Slot) -> Result:
            try:
                return function(slot)
            except BaseException:
                self.stop()
                raise
            finally:
                slot.end()  # also if it never came to a process

        with ThreadPoolExecutor(len(functions), "inferlens-turns") as pool:
            try:
                futures = [pool.submit(run_one, *pair) for pair in zip(functions, self.slots, strict=True)]
                return [future.result() for future in futures]
            except BaseException:
                self.stop()
                raise
