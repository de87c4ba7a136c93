"""Commands as a person runs them: started, or in the process of the test, where nothing has to be imported again.

What a fresh process is for (a crash, a deadline, a clean import, two results that do not touch) is tested where that is
the subject, and at least one test of bench starts it. What a command says and writes is the same.
"""

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inferlens.cli import main
from inferlens.execution import child as processes
from inferlens.execution import profile, race, scheduler, worker
from inferlens.execution.child import Outcome
from inferlens.execution.protocol import Event, Job, Observer, Order, TaskAnswer, TaskResult, result_from_json
from inferlens.execution.turns import Turns
from inferlens.measure import series
from inferlens.record.record import Record, Status
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan

ONE_BY_ONE = threading.Lock()  # what is printed is redirected for all threads


class Heard(Observer):
    """Keeps the cases, remarks and rounds that it hears of, and interrupts after so many cases."""

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.cases: list[Case] = []
        self.remarks: list[str] = []
        self.rounds: list[tuple[int, list[str], str]] = []

    def done(self, record: Record, folder: Path) -> None:
        self.cases.append(record.case)
        if len(self.cases) == self.after:
            raise KeyboardInterrupt

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def round(self, number: int, contenders: Sequence[Case], standing: str, finals: int = 0) -> None:
        self.rounds.append((number, sorted(each.options_label for each in contenders), standing))


@contextmanager
def redirected(printed: io.StringIO) -> Iterator[None]:
    """Keep what is printed; one thread at a time."""
    with ONE_BY_ONE, redirect_stdout(printed), redirect_stderr(printed):
        yield


def launch(
    task: str,
    job: Job,
    returns: Any,
    *,
    timeout: float,
    log: Path | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
    monitor: object = None,
    slot: object = None,
    variables: object = None,
    started: object = None,
) -> Outcome[Any]:
    """Does what a worker does, here, unwatched and without a deadline; what it prints is kept apart.

    What would go through pipes is JSON all the same. The tasks of a load test run side by side, so they print as usual.
    """
    answered, printed = [], io.StringIO()

    def send(event: Event) -> None:
        event = msgspec.json.decode(msgspec.json.encode(event), type=Event)
        if isinstance(event, TaskAnswer):
            answered.append(bytes(event.result))
        on_event(event)

    order = msgspec.json.decode(msgspec.json.encode(Order.of(task, job)), type=Order)
    with nullcontext() if task in ("serve", "drive") else redirected(printed):
        worker.perform(order, send)
    if log and printed.getvalue():
        log.write_text(printed.getvalue())
    result = result_from_json(answered[0], returns)
    return Outcome(result, tail=() if result.status == "ok" else tuple(printed.getvalue().splitlines()))


def ended(status: Status, reason: str = "", tail: tuple[str, ...] = ()) -> Outcome[Any]:
    """How a process ended that did not answer."""
    return Outcome(TaskResult(status=status, reason=reason), answered=False, tail=tail)


def traced(folder: Path, **words: Any) -> list[profile.CaseTrace]:
    """Cases traced by torch.profiler, without the command."""
    steps = {name: words.pop(name) for name in profile.Tracing.__struct_fields__ if name in words}
    tensorboard = words.pop("tensorboard", None)
    plan = Plan.from_words({"output": str(folder), **words})
    return list(profile.trace_cases(plan, profile.Tracing(**steps), tensorboard, Observer()))


def stay(patch: pytest.MonkeyPatch) -> None:
    """Has everything that would be done in a process of its own done here, as on a machine of two CPUs.

    No garbage is collected before each series: what all tests of this process have made takes a tenth of a second.
    """
    no_collection = {"isenabled": gc.isenabled, "disable": gc.disable, "enable": gc.enable, "collect": lambda: 0}
    patch.setattr(series, "gc", SimpleNamespace(**no_collection))
    for module in (race, scheduler):
        patch.setattr(module, "usable_cpus", lambda: range(2))
    patch.setattr(processes, "launch", launch)
    patch.setattr(Turns, "run", lambda _, functions: [function(None) for function in functions])


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Makes the rounds of a tuning short, and builds its finalists once."""
    patch.setattr(race, "ROUND_WARMUP", 0.01)
    patch.setattr(race, "ROUND_SERIES", 0.05)
    patch.setattr(race, "BUILDS", 1)


def output_of(*arguments: str, cwd: Path) -> str:
    """Return what a command prints that ends well."""
    done = inferlens(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refusal_of(*arguments: str, cwd: Path) -> str:
    """Return the message of a command that is refused, on one line. Nothing else is printed."""
    done = inferlens(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False), done.stderr
    return " ".join(done.stderr.split())


def inferlens(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, in the folder ``cwd``, from which it can import what lies there."""
    command, out, err = ["inferlens", *arguments], io.StringIO(), io.StringIO()
    loaded, code = set(sys.modules), 0
    terminated = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.syspath_prepend(cwd)
        patch.setattr(sys, "argv", command)
        stay(patch)
        try:
            main.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
    signal.signal(signal.SIGTERM, terminated)
    for name in set(sys.modules) - loaded:
        place = getattr(sys.modules[name], "__file__", None)
        if place and os.path.realpath(place).startswith(os.path.realpath(cwd) + os.sep):
            del sys.modules[name]  # another test may have a module of that name in its own folder
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
