"""The child process: reads one order from standard input, does the task, sends events and the result through a pipe.

Started as ``python -m inferlens.execution.worker FD PARENT [FD]``, with a second descriptor if it takes turns with
another process. Standard output and error are free for models and libraries. :class:`Child` has what every task on a
case does first, and how every task ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends import BACKENDS
from inferlens.backends.base import Backend, Preparation, Runner
from inferlens.backends.profiling.layer_runs import clocked_runs
from inferlens.errors import InferlensError, Unsupported, is_short_of_memory
from inferlens.execution.interleaver import Shared
from inferlens.execution.protocol import Answered, Began, CaseJob, Event, Job, Order, Progressed, TaskResult, Waits
from inferlens.measure import memory
from inferlens.measure.series import Turn
from inferlens.models import inputs, resolve
from inferlens.models.model import Model
from inferlens.record.record import ModelFacts, Status

PR_SET_PDEATHSIG = 1


class Child:
    """A task under way: what has been learned so far, kept even if the next step fails.

    ``runner`` is there once it was entered, which is when it can tell what memory it takes; ``found`` is what the task
    has found so far.
    """

    def __init__(self, job: Job, send: Callable[[Event], None], turn: Turn | None = None) -> None:
        self.turn = turn or Turn()
        self.model: ModelFacts | None = None
        self.runner: Runner | None = None
        self.found: Any = None
        self.answered = False
        self._send = send
        self.preparation = Preparation(Path(), Path())
        if isinstance(job, CaseJob):
            self.job = job
            self.preparation = Preparation(
                Path(job.folder), Path(job.cache), lambda phase: send(Began(phase)), time.perf_counter, job.rebuild,
                job.level, job.trust,
            )  # fmt: skip

    def load(self) -> Model:
        """The case's model."""
        job = self.job
        with self.preparation.phase("load"):
            model = resolve.load(job.case, trust=job.trust, live=Path(job.live) if job.live else None)
        self.model = model.facts
        return model

    @property
    def backend(self) -> Backend:
        """The case's backend."""
        return BACKENDS.get(self.job.case.backend)()

    def prepare(self, model: Model) -> Runner:
        """The model made ready by the case's backend; the device is untouched yet."""
        return self.backend.prepare(model, self.job.case, self.preparation)

    def infer_first(self, runner: Runner, feed: Any) -> Any:
        """The outputs of the first call, for which libraries do much that they do once."""
        with self.preparation.phase("first inference"):
            outputs = runner.infer(feed)
            runner.synchronize()
        return outputs

    def ready(self, model: Model, runner: Runner, calls: int) -> tuple[Any, tuple[float, ...]]:
        """What to call an entered runner with, after the first call, and the seconds of so many others to warm up."""
        feed = runner.place(inputs.make_inputs(model, self.job.case.seed))
        self.infer_first(runner, feed)
        with self.preparation.phase("warm-up"):
            return feed, clocked_runs(runner, feed, calls).whole

    def progress(self, share: float) -> None:
        """Says which share of the steady state is done."""
        self._send(Progressed(share))

    def deliver(self, found: Any) -> None:
        """Gives the result; once, and where the runner still holds its device, for libraries crash when they let go."""
        if not self.answered:
            self._send(Answered(self._result("ok", found=found)))
        self.answered = True

    def fail(self, error: BaseException) -> None:
        """Gives what was found until ``error``, with its meaning for the case."""
        if not isinstance(error, InferlensError):
            traceback.print_exc()
        if self.answered:  # the exit code says that something went wrong afterwards
            sys.exit(1)
        self._send(Answered(self._result(*ending(error), found=self.found)))

    def _result(self, status: Status, reason: str = "", hint: str = "", *, found: Any) -> msgspec.Raw:
        preparation = self.preparation
        result = TaskResult(
            status=status,
            reason=reason,
            hint=hint,
            model=self.model,
            phases=tuple(preparation.phases),
            warnings=tuple(preparation.warnings),
            facts=preparation.facts,
            artefacts=tuple(preparation.artefacts),
            memory=memory.peak(self.runner),
            found=found,
        )
        return msgspec.Raw(msgspec.json.encode(result))


def do(order: Order, send: Callable[[Event], None], turn: Turn | None = None) -> None:
    """Does what is ordered; what it raises becomes status and reason of the result."""
    task, job = order.opened()
    child = Child(job, send, turn)
    try:
        child.deliver(task(job, child))
    except BaseException as error:
        child.fail(error)


def ending(error: BaseException) -> tuple[Status, str, str]:
    """Status, reason and hint that ``error`` means for a case."""
    if isinstance(error, InferlensError):
        return "unsupported" if isinstance(error, Unsupported) else "failed", error.sentence, error.hint
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
    return "out of memory" if is_short_of_memory(error) else "failed", text, ""


def main() -> None:
    """Does the order on standard input."""
    descriptor, parent, *answers = map(int, sys.argv[1:])
    os.set_inheritable(descriptor, False)
    be_a_good_child(parent)

    def send(event: Event) -> None:
        """Writes one event as a line; a parent that is gone is nothing to complain about."""
        data = msgspec.json.encode(event) + b"\n"
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(descriptor, data) :]

    turn = Shared(lambda enough: send(Waits(enough)), *answers) if answers else None
    do(msgspec.json.decode(sys.stdin.buffer.read(), type=Order), send, turn)


def be_a_good_child(parent: int) -> None:
    """Die with the parent, be the kernel's first choice when memory is short, show stacks when asked or crashing."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("900")


if __name__ == "__main__":
    # Under the module's own name, by which tasks know it.
    from inferlens.execution import worker

    worker.main()
