"""Child processes, which run tasks with a deadline: the parent's side. ``worker`` is the side of the child.

:func:`launch` starts a process, sends it an order, hears its events, and returns its answer. The scheduler calls it for
every process of a case; other modules call it for tasks without a measurement, see :meth:`Outcome.value`.

However a process ends, the parent goes on. What happens on an error and on a crash:

1. A task that raises answers with the status and reason of :func:`status_of_error`, with the phases and the value until
   then. A process that ends without an answer gets those of :func:`status_of_exit`, or ``timed out`` at its deadline.
   The phase in which it ended is part of the reason.
2. :func:`launch` kills all that the process started, and returns an :class:`Outcome` with the last lines it printed. A
   process that crashes after its answer keeps its numbers, and the record has the warning ``bad-exit``.
3. ``Scheduler._keep`` writes the record with this status, reason and output, and the next process starts. If a process
   in turns was out of memory, all of them are measured again, one by one (``race.measure_rounds``).
4. The case has left the race, because ``Record.ranked`` is false. A recommended way is replaced by the plain way of its
   backend (``run.stand_ins_of``). The same command measures the case again (``resume``).

A child leads a process group of its own, so that everything it started ends with it. Its output comes through a pipe
and is kept up to a limit: a child that prints without end cannot fill the disk.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, cast

import msgspec

from inferlens.errors import InferlensError, Unsupported, is_short_of_memory, reason
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
from inferlens.models import factories
from inferlens.record.machine import MachineLog
from inferlens.record.record import PhaseName, Status
from inferlens.record.store import plain_text

if TYPE_CHECKING:
    from inferlens.execution.turns import Slot

GOODBYE = 20.0  # seconds to leave after the answer
KEPT_OUTPUT = 4 << 20  # bytes of the log
LAST_OUTPUT = 1 << 16  # bytes from which the tail of a record is taken
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

    result: TaskResult[Value]  # the answer of the process, or the way in which it ended without one
    answered: bool = True
    fault: str = ""  # how the process ended badly although it had answered
    tail: tuple[str, ...] = ()  # the last lines it printed, control characters removed, if anything went wrong
    machine: MachineLog | None = None  # the log of the machine, if a monitor watched it

    def value(self, failure: str) -> Value:
        """Return the value of the task.

        Raises InferlensError with the reason of the task, or of its process if there is no answer; then it begins with
        ``failure``.
        """
        result = self.result
        if result.status == "ok":
            return cast("Value", result.value)
        if result.problem:
            raise result.problem
        if self.answered:
            raise InferlensError(result.reason, hint=result.hint)
        shown = () if result.status == "timed out" else self.tail[-5:]  # without the place in the child's code
        raise InferlensError("\n  ".join((f"{failure}: {result.reason}.", *shown)), hint="" if shown else result.hint)


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
        log: the file for the output of the process; it is not written without output.
        monitor: makes a monitor of the process with a number, which watches the machine until the process has ended.
        slot: the place of the process among concurrent processes.
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
        watching = monitor(process.process.pid) if monitor else None
        if slot:
            slot.monitor = watching  # it starts with the turn: another process is measured while this one loads
        elif watching:
            watching.start()
        try:
            in_time = process.listen(time.monotonic() + timeout, on_event)
        finally:
            if watching:
                watching.stop()
        if not in_time:
            process.show_stacks()
    finally:
        process.end(patient=in_time)
    if log and process.output:
        log.write_bytes(bytes(process.output))
    status, ending = status_of_exit(process.process.returncode, killed_for_memory=oom_kills() > kills)
    if not in_time:
        status, ending = "timed out", f"not done after {timeout:g} s"
    outcome = process.outcome(returns, status, ending)
    outcome.machine = watching.log() if watching else None
    return outcome


def status_of_error(error: BaseException) -> tuple[Status, str, str]:
    """Return the status, reason and hint of a task that raised ``error``."""
    if isinstance(error, InferlensError):
        return "unsupported" if isinstance(error, Unsupported) else "failed", error.sentence, error.hint
    return "out of memory" if is_short_of_memory(error) else "failed", reason(error), ""


def status_of_exit(code: int, *, killed_for_memory: bool) -> tuple[Status, str]:
    """Return status and reason of a process that ended with ``code`` without an answer; no reason for exit code 0."""
    if code == -signal.SIGKILL and killed_for_memory:
        return "out of memory", "killed by the kernel, which was short of memory"
    if code < 0:
        return "crashed", f"killed by {signal.Signals(-code).name if -code in [*signal.Signals] else f'signal {-code}'}"
    return "crashed", f"the process ended with exit code {code}" if code else ""


class _Process:
    """A child process, its events and its output."""

    def __init__(self, slot: Slot | None, interpreter: str, variables: Mapping[str, str]) -> None:
        self.slot = slot
        self.answer = self._last = self._line = b""
        self.phase: PhaseName | None = None
        self.output = bytearray()
        self._events, events = os.pipe()
        descriptors, arguments = [events], [events, os.getpid()]
        if slot:
            answers, answering = os.pipe()
            descriptors.append(answers)
            arguments += [answers, slot.turns.seed, int(slot.turns.in_turns)]
        python = os.path.abspath(interpreter) if interpreter else sys.executable
        try:
            self.process = subprocess.Popen(
                [python, "-X", "faulthandler", "-c", START.format("worker"), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=True,
                env={**variables_for(interpreter), **variables},
            )
        finally:
            for descriptor in descriptors:
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
        before = self.slot.seconds_waited if self.slot else 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            selector.register(self._printed, selectors.EVENT_READ)
            while selector.get_map():
                waited = self.slot.seconds_waited - before if self.slot else 0.0
                remaining = deadline + waited - time.monotonic()
                if remaining <= 0:
                    return False
                if self.answer and remaining > GOODBYE:
                    deadline = time.monotonic() + GOODBYE - waited
                ready = selector.select(min(remaining, 1.0))
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
                    return True  # it has ended, and a process that it started still holds the pipes
        return True

    def show_stacks(self) -> None:
        """Let the process print its stacks, for the log of a case that hangs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        self.listen(time.monotonic() + 0.5, lambda _: None)

    def end(self, *, patient: bool) -> None:
        """Kill the process and its children, unless they have ended."""
        try:
            if self.answer and patient:  # it has answered; give it a moment to exit normally
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)
        finally:  # also if this is interrupted
            kill_groups([self.process.pid])
            self.process.wait()
            os.close(self._events)
            self._printed.close()

    def outcome(self, returns: type[Value], status: Status, ending: str) -> Outcome[Value]:
        """Return the outcome of a process that has ended; ``ending`` says how, and is empty for exit code 0."""
        if self.answer:
            result = result_from_json(self.answer, returns)
            fault = "did not end after it had answered" if status == "timed out" else ending
            return Outcome(result, fault=fault, tail=self.tail() if result.status != "ok" or fault else ())
        during = f", during {self.phase}" if self.phase else ", while starting"
        result = TaskResult(
            status=status, reason=(ending or "the process ended without an answer") + during, hint=HINTS.get(status, "")
        )
        return Outcome(result, answered=False, tail=self.tail())

    def tail(self) -> tuple[str, ...]:
        """Return the last lines that the process printed."""
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
                self.slot.request_turn(event.enough)
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

    ``CUDA_DEVICE_ORDER`` is set, also over the user's value: CUDA then counts GPUs as nvidia-smi does.

    The import path is the parent's. For another interpreter it is only the part before the standard library, such as
    the folder of a program, without the parent's packages, and tools next to that interpreter come first. The working
    directory is left out, unless ``PYTHONPATH`` names it: the child imports from there last.
    """
    python_path = {*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))}
    paths = [path for path in sys.path if path in python_path or path not in ("", os.getcwd())]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if interpreter:
        library = {*factories.library_paths(), *(path for path in paths if path.endswith(".zip"))}
        paths = list(itertools.takewhile(lambda path: path not in library, paths))
        folder = os.path.dirname(os.path.abspath(interpreter))
        variables["PATH"] = os.pathsep.join(filter(None, (folder, variables.get("PATH", ""))))
        for name in ("PYTHONHOME", "VIRTUAL_ENV"):  # they are the parent's
            variables.pop(name, None)
    return {**variables, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def kill_groups(pids: Iterable[int]) -> None:
    """Kill processes that lead a group, with all that they have started."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
