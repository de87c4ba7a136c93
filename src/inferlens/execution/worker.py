"""The child process: reads an order from standard input, runs the task, and sends events and the result through a pipe.

It is started as ``python -c START FD PARENT [FD SEED IN_TURNS]``. The last three are for concurrent processes: the
descriptor for answers, the seed of the order of CPUs, and whether they are measured in turns (1) or one by one (0).
Standard output and error are free for models and libraries. :data:`TASKS` lists all tasks.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import get_type_hints

import msgspec

from inferlens.backends.clocks import NVTX_VARIABLE
from inferlens.execution.protocol import Event, Order, TurnRequest, from_json
from inferlens.execution.tasks import TaskContext
from inferlens.execution.turns import SharedTurn
from inferlens.measure.series import Turn
from inferlens.models import factories

PR_SET_PDEATHSIG = 1
PROFILED = {"LD_PRELOAD", "CUDA_INJECTION64_PATH", NVTX_VARIABLE}  # Nsight writes as a process ends
# Functions of a job and a ``TaskContext``, by name: every case starts a process, which imports its own task alone.
TASKS = {
    "capabilities": "inferlens.execution.cases:capabilities",
    "environment": "inferlens.execution.cases:interpreter_environment",
    "models": "inferlens.execution.cases:look_up_models",
    "reference": "inferlens.execution.tasks:reference",
    "benchmark": "inferlens.execution.tasks:benchmark",
    "profile": "inferlens.execution.profile:profile_case",
    "ceilings": "inferlens.execution.profile:measure_ceilings",
    "trace": "inferlens.execution.profile:trace_case",
    "save": "inferlens.execution.deploy:save_model",
    "build": "inferlens.execution.deploy:build_engines",
    "partition": "inferlens.execution.deploy:partition_model",
    "deploy": "inferlens.execution.deploy:deploy_model",
    "measured outputs": "inferlens.execution.deploy:measured_outputs",
    "script": "inferlens.execution.deploy:run_script",
    "quantize": "inferlens.execution.quantize:quantize_model",
    "part": "inferlens.execution.remote:run_part",
    "serve": "inferlens.execution.load.tasks:serve",
    "drive": "inferlens.execution.load.tasks:drive",
}


def perform(order: Order, send: Callable[[Event], None], turn: Turn | None = None) -> None:
    """Run the task of an order; an exception becomes status and reason of the result."""
    task = resolve_name(TASKS[order.task])
    job = from_json(order.job, get_type_hints(task)["job"])
    context = TaskContext(job, send, turn)
    try:
        if job.place:
            factories.enter(Path(job.place))
        context.deliver(task(job, context))
    except BaseException as error:
        context.fail(error)


def main() -> None:
    """Run the order on standard input."""
    descriptor, parent, *turns = map(int, sys.argv[1:])
    os.set_inheritable(descriptor, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # to show the stacks of a hang
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
        with suppress(OSError):  # the kernel's first choice when memory is short
            Path("/proc/self/oom_score_adj").write_text("900", "utf-8")

    def send(event: Event) -> None:
        """Write an event as a line; a parent that is gone is no error."""
        data = msgspec.json.encode(event) + b"\n"
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(descriptor, data) :]

    turn = SharedTurn(lambda enough: send(TurnRequest(enough)), *turns) if turns else None
    perform(msgspec.json.decode(sys.stdin.buffer.read(), type=Order), send, turn)
    if not os.environ.keys() & PROFILED:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)  # PyTorch takes a second to be taken apart
