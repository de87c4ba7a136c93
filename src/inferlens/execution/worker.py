"""The child process: reads one order from standard input, does the task, sends events and the result through a pipe.

Started as ``python -c START FD PARENT [FD SEED]``, with a second descriptor and a seed of the
order of CPUs if it takes turns with another process. Standard output and error are free for models and libraries.
:class:`Child` has what every task on a case does first, and how every task ends.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.backends.base import Backend, Preparation, Runner
from inferlens.backends.clocks import NVTX_VARIABLE
from inferlens.backends.profiling.layers import clocked_runs
from inferlens.errors import InferlensError, Unsupported, is_short_of_memory
from inferlens.execution.interleaver import Shared
from inferlens.execution.protocol import (
    Answered,
    Began,
    CaseJob,
    Event,
    Job,
    Order,
    PartJob,
    Progressed,
    TaskResult,
    Telling,
    Waits,
    as_json,
)
from inferlens.measure.monitor.cpu import default_threads
from inferlens.measure.series import Turn
from inferlens.models import inputs, resolve
from inferlens.models.model import Model, Problem
from inferlens.models.sources import own_code
from inferlens.reasons import reason
from inferlens.record.record import Memory, ModelFacts, Status
from inferlens.units import plural

PR_SET_PDEATHSIG = 1
PROFILED = {"LD_PRELOAD", "CUDA_INJECTION64_PATH", NVTX_VARIABLE}  # Nsight writes as a process ends


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
        self._memory: Memory | None = None
        self._send = send
        self.preparation = Preparation(Path(), Path())
        if isinstance(job, CaseJob):
            self.job = job
            self.preparation = Preparation(
                Path(job.folder), Path(job.cache), lambda phase: send(Began(phase)), time.perf_counter, job.rebuild,
                job.level, job.trust, Path(job.exported) if job.exported else None,
                Path(job.export_by) if job.export_by else None, job.built,
            )  # fmt: skip

    def load(self) -> Model:
        """The case's model; without its module where that was exported already."""
        job = self.job
        if job.known:
            self.model = job.known
            return resolve.exported(job.case, job.known)
        with self.preparation.phase("load"):
            model = resolve.load(job.case, trust=job.trust, live=Path(job.live) if job.live else None)
        self.model = model.facts
        return model

    @property
    def backend(self) -> Backend:
        """The case's backend."""
        return BACKENDS.get(self.job.case.backend)()

    def prepare(self, model: Model) -> Runner:
        """Return the model made ready by the case's backend; the device has not been used yet.

        All ways on the CPU get the same number of threads. The record's case keeps what was asked for.
        """
        case = self.job.case
        if case.device == "cpu" and case.threads is None:
            threads, limit = default_threads()
            case = replace(case, threads=threads)
            if limit:
                message = f"{limit}: every way ran with {plural(threads, 'thread')}."
                self.preparation.warn("limited-threads", message, "--threads N measures with another number.")
        return self.backend.prepare(model, case, self.preparation)

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

    def keep_memory(self) -> None:
        """From now on, what the process takes is not the case's."""
        self._memory = peak_memory(self.runner)

    def deliver(self, found: Any) -> None:
        """Gives the result; once, and where the runner still holds its device, for libraries crash when they let go."""
        if not self.answered:
            self._send(Answered(self._result("ok", found=found)))
        self.answered = True

    def fail(self, error: BaseException) -> None:
        """Gives what was found until ``error``, with its meaning for the case."""
        if not isinstance(error, InferlensError) or error.__cause__:  # the whole text of what a library said
            traceback.print_exc()
        if self.answered:  # the exit code says that something went wrong afterwards
            sys.exit(1)
        problem = Problem.of(error) if isinstance(error, InferlensError) else None
        self._send(Answered(self._result(*ending(error), found=self.found, problem=problem)))

    def _result(
        self, status: Status, reason: str = "", hint: str = "", *, found: Any, problem: Problem | None = None
    ) -> msgspec.Raw:
        preparation = self.preparation
        result = TaskResult(
            status=status,
            reason=reason,
            hint=hint,
            problem=problem,
            model=self.model,
            phases=tuple(preparation.phases),
            warnings=tuple(preparation.warnings),
            facts=preparation.facts,
            artefacts=tuple(preparation.artefacts),
            memory=self._memory or peak_memory(self.runner),
            found=found,
        )
        return msgspec.Raw(as_json(result))


def do(order: Order, send: Callable[[Event], None], turn: Turn | None = None) -> None:
    """Does what is ordered; what it raises becomes status and reason of the result."""
    task, job = order.opened()
    child = Child(job, send, turn)
    try:
        if job.place:
            own_code.enter(Path(job.place))
        child.deliver(task(job, Telling(send) if isinstance(job, PartJob) else child))
    except BaseException as error:
        child.fail(error)


def peak_memory(runner: Runner | None) -> Memory:
    """Peak memory so far, by this process's and the library's own account."""
    library = runner.device_memory() if runner else None
    return Memory(
        host_peak=host_peak(),
        host_basis="peak resident set of the case's process, libraries included",
        library_peak=library[0] if library else None,
        library_basis=library[1] if library else "",
        parts=runner.memory_parts() if runner else {},
    )


def host_peak() -> int:
    """The most that this process ever had resident, in bytes: interpreter, libraries, model, buffers.

    ``VmHWM`` of proc_pid_status(5), where there is one: it begins anew with the program. ``ru_maxrss`` does not, on
    Linux: there a process inherits that of the one that started it (getrusage(2); KiB on Linux, bytes on macOS).
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ending(error: BaseException) -> tuple[Status, str, str]:
    """Status, reason and hint that ``error`` means for a case."""
    if isinstance(error, InferlensError):
        return "unsupported" if isinstance(error, Unsupported) else "failed", error.sentence, error.hint
    return "out of memory" if is_short_of_memory(error) else "failed", reason(error), ""


def main() -> None:
    """Does the order on standard input."""
    descriptor, parent, *turns = map(int, sys.argv[1:])
    os.set_inheritable(descriptor, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # so that a hang can be seen
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
        with suppress(OSError):  # the kernel's first choice when memory is short
            Path("/proc/self/oom_score_adj").write_text("900", "utf-8")

    def send(event: Event) -> None:
        """Writes one event as a line; a parent that is gone is nothing to complain about."""
        data = msgspec.json.encode(event) + b"\n"
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(descriptor, data) :]

    turn = Shared(lambda enough: send(Waits(enough)), *turns) if turns else None
    do(msgspec.json.decode(sys.stdin.buffer.read(), type=Order), send, turn)
    if not os.environ.keys() & PROFILED:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)  # PyTorch takes a second to be taken apart
