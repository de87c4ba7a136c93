"""A task done in a fresh process, with a deadline. However the process ends, the parent goes on and knows why.

The child leads a process group of its own, so that everything it started is gone when it is. Its output comes through
a pipe and is kept up to a limit: a child that prints without end cannot fill the disk.
"""

from __future__ import annotations

import itertools
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, cast

import msgspec
from msgspec.structs import replace

from inferlens.errors import InferlensError
from inferlens.execution.interleaver import Slot
from inferlens.execution.protocol import (
    Answered,
    Began,
    Event,
    Found,
    J,
    Order,
    Task,
    TaskResult,
    Waits,
    from_json,
    result_of,
)
from inferlens.measure.environment import in_environment
from inferlens.measure.monitor import Monitor
from inferlens.models import factories
from inferlens.record.machine import MachineLog
from inferlens.record.record import PhaseName, Status

GOODBYE = 20.0  # seconds to leave after the answer
KEPT_OUTPUT = 4 << 20
LAST_OUTPUT = 1 << 16
TAIL_LINES = 40
TAIL_WIDTH = 300
# Not with -m, which would import from the working directory before the standard library.
START = "import sys; sys.path = [*filter(None, sys.path)]; from inferlens.execution import worker; worker.main()"
HINTS: dict[Status, str] = {
    "timed out": "--timeout with more seconds",
    "out of memory": "a smaller --batch, or a smaller --precision",
    "crashed": "the log beside the record",
}
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Outcome(Generic[Found]):
    """How a task's process ended."""

    result: TaskResult[Found]  # what it answered, or how it ended without an answer
    answered: bool = True
    fault: str = ""  # how the process ended badly although it had answered
    tail: tuple[str, ...] = ()  # the last lines it printed, control characters removed, if anything went wrong
    machine: MachineLog | None = None  # what the machine did meanwhile, if it was watched

    def found(self, what: str) -> Found:
        """What the task found.

        Raises InferlensError with the task's own reason; of a process without an answer, with what it was doing.
        """
        result = self.result
        if result.status == "ok":
            return cast("Found", result.found)
        if result.problem:
            raise result.problem.error()
        if self.answered:
            raise InferlensError(result.reason, hint=result.hint)
        shown = () if result.status == "timed out" else self.tail[-5:]  # where it was is of no use to whoever waited
        raise InferlensError("\n  ".join((f"{what}: {result.reason}.", *shown)), hint="" if shown else result.hint)


def launch(
    task: Task[J, Found],
    job: J,
    *,
    timeout: float,
    log: Path | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
    monitor: Callable[[int], Monitor] | None = None,
    slot: Slot | None = None,
    variables: Mapping[str, str] | None = None,
    started: Callable[[int], None] = lambda _: None,
) -> Outcome[Found]:
    """Does ``task``, a function of a module, in a fresh process and waits for it.

    Args:
        timeout: seconds after which the process is killed; those spent waiting for a turn do not count.
        log: file for what the process prints; none is written if it prints nothing.
        monitor: given the process's number, what watches the machine until the process has ended.
        slot: where the process takes turns with others.
        variables: of the environment, beside those of this process.
    """
    kills = oom_kills()
    child: _Process | None = None
    in_time = True
    try:
        if job.interpreter and not os.access(job.interpreter, os.X_OK):  # gone since it was asked
            gone = f"{job.interpreter} could not be started: it is not there"
            return Outcome(TaskResult(status="crashed", reason=gone), answered=False)
        with _unbroken():
            child = _Process(Order.of(task, job), slot, job.interpreter, variables or {})
        started(child.process.pid)
        with _watched(monitor and monitor(child.process.pid), slot) as watching:
            in_time = child.listen(time.monotonic() + timeout, on_event)
        if not in_time:
            child.show_stacks()
    finally:
        if child:
            with _unbroken():  # one who interrupts again while this waits wants no process left either
                child.end(patient=in_time)
    if log and child.output:
        log.write_bytes(bytes(child.output))
    if in_time or child.answer:
        status, reason = _ending(child.process.returncode, in_time, oom_kills() > kills)
    else:
        status, reason = "timed out", f"not done after {timeout:g} s"
    outcome: Outcome[Found] = Outcome(TaskResult(), machine=watching.log() if watching else None)
    if child.answer:
        outcome.result, outcome.fault = _advised(result_of(task, child.answer), job.interpreter), reason
    else:
        during = f", during {child.phase}" if child.phase else ", while starting"
        reason = (reason or "the process ended without an answer") + during
        outcome.result = TaskResult(status=status, reason=reason, hint=HINTS.get(status, ""))
        outcome.answered = False
    if outcome.result.status != "ok" or outcome.fault:
        outcome.tail = child.tail()
    return outcome


def _advised(result: TaskResult[Found], interpreter: str) -> TaskResult[Found]:
    """The same, with hints for the environment of the interpreter."""
    hint, problem = in_environment(interpreter, result.hint), result.problem
    if problem:
        problem = replace(problem, hint=in_environment(interpreter, problem.hint))
    return replace(result, hint=hint, problem=problem)


@contextmanager
def _watched(monitor: Monitor | None, slot: Slot | None) -> Iterator[Monitor | None]:
    """Watches the machine; of a process that loads while others are measured, from when its turn begins."""
    with ExitStack() as stack:
        if monitor and slot and slot.one_turn:
            slot.on_turn = partial(stack.enter_context, monitor)
        elif monitor:
            stack.enter_context(monitor)
        yield monitor


@contextmanager
def _unbroken() -> Iterator[None]:
    """Keeps interrupts until what is inside is done: a process must be known before it can be ended, and be ended."""
    kept: list[int] = []
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread() or None in usual.values():
        yield
        return
    for number in usual:
        signal.signal(number, lambda number, _: kept.append(number))
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if kept:
            signal.raise_signal(kept[0])


class _Process:
    """A worker process and what has been heard from it."""

    def __init__(self, order: Order, slot: Slot | None, interpreter: str, variables: Mapping[str, str]) -> None:
        self.slot = slot
        self.answer = self._last = self._line = b""
        self.phase: PhaseName | None = None
        self.output = bytearray()
        self._events, theirs = os.pipe()
        passed = [theirs]
        if slot:
            answers, mine = os.pipe()
            passed.append(answers)
        words = map(str, (theirs, os.getpid(), *((answers, slot.seed) if slot else ())))
        python = os.path.abspath(interpreter) if interpreter else sys.executable
        try:
            self.process = subprocess.Popen(
                [python, "-X", "faulthandler", "-c", START, *words],
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
            slot.started(self.process.pid, mine)
        assert self.process.stdin
        assert self.process.stdout
        self._printed = self.process.stdout
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(msgspec.json.encode(order))

    def listen(self, deadline: float, on_event: Callable[[Event], None]) -> bool:
        """Reads until the process has ended and its pipes are empty; ``False`` if the deadline came first.

        What it waits for its turn meanwhile puts the deadline off.
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
        """Has the process print where it is, for the log of a case that hangs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        self.listen(time.monotonic() + 0.5, lambda _: None)

    def end(self, *, patient: bool) -> None:
        """Kills whatever is left of the process and of what it started."""
        if self.answer and patient:  # it has said all; a moment to leave in good order
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._events)
        self._printed.close()

    def tail(self) -> tuple[str, ...]:
        text = self._last.decode(errors="replace")
        lines = [_CONTROL.sub("", line).rstrip()[:TAIL_WIDTH] for line in text.splitlines()]
        return tuple([line for line in lines if line][-TAIL_LINES:])

    def _hear(self, data: bytes, on_event: Callable[[Event], None]) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            event = from_json(line, Event)
            if isinstance(event, Answered):
                self.answer = bytes(event.result)
            elif isinstance(event, Began):
                self.phase = event.phase
            elif isinstance(event, Waits) and self.slot:
                self.slot.waits(event.enough)
            on_event(event)


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since it started; 0 where it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text("utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _ending(code: int, in_time: bool, memory_kill: bool) -> tuple[Status, str]:
    """Status and reason of a process that ended with ``code``; an empty reason if it ended well."""
    if code == -signal.SIGKILL and memory_kill:
        return "out of memory", "killed by the kernel, which was short of memory"
    if not in_time:
        return "crashed", "did not end after it had answered"
    if code < 0:
        return "crashed", f"killed by {signal.Signals(-code).name if -code in [*signal.Signals] else f'signal {-code}'}"
    return "crashed", f"the process ended with exit code {code}" if code else ""


def variables_for(interpreter: str = "") -> dict[str, str]:
    """The parent's environment variables, plus an import path by which the user's own modules are found in the child.

    That is the parent's whole path, but in another environment: there no package of the parent's is found, only what
    comes before its standard library, such as the folder of a program. Tools are looked for in that environment first.
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
