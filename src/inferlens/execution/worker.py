"""The child process: reads one job from standard input, does it, sends events and the answer through its own pipe.

Started as ``python -m inferlens.execution.worker FD PARENT [FD]``, with a second descriptor if it takes turns with
another process. Standard output and error are free for models and libraries. The process dies with its parent,
offers itself first when the kernel is short of memory, and dumps its stacks on SIGUSR1 so that a hang can be seen.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities, Preparation
from inferlens.errors import InferlensError, Unsupported, is_short_of_memory
from inferlens.execution.benchmark import Flight, reference_outputs, run_case
from inferlens.execution.interleaver import Shared
from inferlens.execution.profile_child import Inspection
from inferlens.execution.protocol import (
    Answered,
    Began,
    CaseJob,
    CeilingsAnswer,
    CeilingsJob,
    Event,
    Failure,
    FindAnswer,
    FindJob,
    Job,
    Learned,
    ProbeAnswer,
    ProbeJob,
    ProfileJob,
    Progressed,
    ReferenceAnswer,
    ReferenceJob,
    TaskAnswer,
    TaskJob,
    TraceJob,
    Waits,
)
from inferlens.execution.trace_child import Recording
from inferlens.measure.turn import Turn
from inferlens.models import resolve
from inferlens.models.model import ModelInfo
from inferlens.record.record import PhaseName, Status

PR_SET_PDEATHSIG = 1


class Pipe:
    """The way back to the parent. Whatever happens on standard output does not touch it."""

    turn = Turn()

    def __init__(self, descriptor: int, answers: int | None = None) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        if answers is not None:
            self.turn = Shared(lambda enough: self.send(Waits(enough)), answers)

    def send(self, event: Event) -> None:
        """Writes one event as a line; a parent that is gone is nothing to complain about."""
        data = msgspec.json.encode(event) + b"\n"
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._descriptor, data) :]

    def answer(self, answer: Struct) -> None:
        """Sends the answer to the job."""
        self.send(Answered(msgspec.Raw(msgspec.json.encode(answer))))

    def keep(self, answer: Struct) -> None:
        """Sends what is to be the answer if the deadline comes before there is a better one."""
        self.send(Learned(msgspec.Raw(msgspec.json.encode(answer))))


def main() -> None:
    """Does the job on standard input."""
    descriptor, parent, *answers = map(int, sys.argv[1:])
    pipe = Pipe(descriptor, *answers)
    be_a_good_child(parent)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    DOING[type(job)](job, pipe)


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


def probe(job: ProbeJob, pipe: Pipe) -> None:
    """Asks every backend what it can do; one that raises is absent, with the reason."""
    pipe.answer(ProbeAnswer({name: _capabilities(name) for name in job.backends}))


def find(job: FindJob, pipe: Pipe) -> None:
    """Looks every model up."""
    found: list[ModelInfo | None] = []
    failures: list[Failure | None] = []
    for name in job.models:
        try:
            found.append(resolve.find(name))
            failures.append(None)
        except InferlensError as error:
            found.append(None)
            failures.append(Failure(what=error.what, expected=error.expected, hint=error.hint))
    pipe.answer(FindAnswer(tuple(found), tuple(failures)))


def reference(job: ReferenceJob, pipe: Pipe) -> None:
    """Runs the reference once and writes its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        outputs, weights = reference_outputs(
            job.case, trust=job.trust, live=job.live, folder=Path(folder), inputs_seed=job.inputs_seed
        )
    arrays: dict[str, Any] = {f"output{index}": value for index, value in enumerate(outputs)}
    np.savez(job.path, **arrays)
    pipe.answer(ReferenceAnswer(weights))


def case(job: CaseJob, pipe: Pipe) -> None:
    """Measures a case; what it raises before it has answered becomes its status and reason."""
    preparation = _preparation(job, pipe)
    flight = Flight(job, preparation, lambda share: pipe.send(Progressed(share)), pipe.answer, pipe.keep, pipe.turn)
    try:
        run_case(flight)
    except BaseException as error:
        if not isinstance(error, InferlensError):
            traceback.print_exc()
        if flight.agreement:  # already answered; the exit code tells that something went wrong afterwards
            sys.exit(1)
        pipe.answer(flight.answer(*_ending(error)))


def task(job: TaskJob, pipe: Pipe) -> None:
    """Calls the backend's method; what it raises becomes the failure."""
    preparation = _preparation(job, pipe)
    result, failure = None, None
    try:
        backend = BACKENDS.get(job.case.backend)()
        with preparation.phase("load"):
            model = resolve.load(job.case, trust=job.trust)
        arguments = {name: Path(value) if name == "path" else value for name, value in job.arguments.items()}
        result = getattr(backend, job.task)(model, job.case, preparation, **arguments)
    except InferlensError as error:
        failure = Failure(what=error.what, expected=error.expected, hint=error.hint)
    except Exception as error:
        traceback.print_exc()
        failure = Failure(what=f"{type(error).__name__}: {_first_line(error)}")
    pipe.answer(
        TaskAnswer(
            result=msgspec.Raw(msgspec.json.encode(result)),
            failure=failure,
            phases=tuple(preparation.phases),
            facts=preparation.facts,
            warnings=tuple(preparation.warnings),
        )
    )


def profile(job: ProfileJob, pipe: Pipe) -> None:
    """Profiles a case; what it raises becomes its status and reason."""
    _answer_with(Inspection(job, _preparation(job, pipe, job.level)), pipe)


def trace(job: TraceJob, pipe: Pipe) -> None:
    """Traces a case; what it raises becomes its status and reason."""
    _answer_with(Recording(job, _preparation(job, pipe)), pipe)


def _answer_with(attempt: Inspection | Recording, pipe: Pipe) -> None:
    try:
        pipe.answer(attempt.run())
    except BaseException as error:
        if not isinstance(error, InferlensError):
            traceback.print_exc()
        pipe.answer(attempt.answer(*_ending(error)))


def ceilings(job: CeilingsJob, pipe: Pipe) -> None:
    """Measures what the device reaches at best."""
    from inferlens.measure import ceilings

    try:
        pipe.answer(CeilingsAnswer(ceilings=ceilings.measure(job.device, job.name, job.threads)))
    except Exception as error:
        traceback.print_exc()
        pipe.answer(CeilingsAnswer(reason=_ending(error)[1]))


def _preparation(job: CaseJob | ProfileJob | TraceJob | TaskJob, pipe: Pipe, level: str = "") -> Preparation:
    began: Callable[[PhaseName], None] = lambda phase: pipe.send(Began(phase))  # noqa: E731
    return Preparation(Path(job.folder), Path(job.cache), began, time.perf_counter, job.rebuild, level, job.trust)


def _ending(error: BaseException) -> tuple[Status, str, str]:
    """Status, reason and hint that ``error`` means for a case."""
    if isinstance(error, InferlensError):
        return "unsupported" if isinstance(error, Unsupported) else "failed", _sentence(error), error.hint
    text = f"{type(error).__name__}: {_first_line(error)}"
    return "out of memory" if is_short_of_memory(error) else "failed", text, ""


def _capabilities(name: str) -> Capabilities:
    try:
        return BACKENDS.get(name)().capabilities()
    except Exception as error:
        traceback.print_exc()
        reason = str(error) if isinstance(error, InferlensError) else f"{type(error).__name__}: {_first_line(error)}"
        return Capabilities(formats=(), absent=(Absence("", reason),))


def _sentence(error: InferlensError) -> str:
    return f"{error.what} Expected: {error.expected}." if error.expected else error.what


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"


DOING: dict[type[Any], Callable[[Any, Pipe], None]] = {
    ProbeJob: probe,
    FindJob: find,
    ReferenceJob: reference,
    CaseJob: case,
    ProfileJob: profile,
    TraceJob: trace,
    TaskJob: task,
    CeilingsJob: ceilings,
}

if __name__ == "__main__":
    main()
