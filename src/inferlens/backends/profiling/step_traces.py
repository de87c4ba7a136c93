"""Traces of single steps by torch.profiler, in the files that PyTorch writes for TensorBoard.

A step is one call until its outputs are ready, in a span that says which, and around it PyTorch's ``ProfilerStep#N``.
Nothing else is added to the program: it is traced as it is timed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from inferlens.backends.profiling.layer_runs import Runnable
from inferlens.backends.profiling.traced_runs import OURS, profiler

SPAN = f"{OURS}step "
SUFFIX = ".pt.trace.json.gz"  # by which TensorBoard's plugin knows a trace
ABOUT = "inferlens"  # what stands beside the events and says what was traced


class Tracing(Struct, frozen=True, kw_only=True):
    """Which steps are traced, and what is kept of each, as :func:`torch.profiler.schedule` has it."""

    wait: int = 1  # steps that are let pass, at the begin of each cycle
    warmup: int = 1  # steps after them that are traced and thrown away, in which the profiler sets itself up
    active: int = 3  # steps after these that are kept
    repeat: int = 1  # cycles; each is a file of its own
    stacks: bool = False  # the Python stack of each operator, and the calls of modules
    memory: bool = False  # what was allocated
    shapes: bool = False  # of the operators' inputs

    @property
    def steps(self) -> int:
        """All steps, those that are not kept included."""
        return (self.wait + self.warmup + self.active) * self.repeat


def write(runner: Runnable, feed: Any, tracing: Tracing, folder: Path, *, on_gpu: bool, about: str) -> list[Path]:
    """Traces steps of ``runner.infer(feed)``, which is entered and warm, into files in ``folder``.

    ``about`` is JSON that is kept in each file, as :data:`ABOUT`.

    Returns:
        A file for each cycle, in order: ``<host>_<process>.<nanoseconds>.pt.trace.json.gz``.
    """
    from torch.profiler import ProfilerAction, record_function, schedule, tensorboard_trace_handler

    with profiler(
        on_gpu=on_gpu,
        schedule=schedule(wait=tracing.wait, warmup=tracing.warmup, active=tracing.active, repeat=tracing.repeat),
        on_trace_ready=tensorboard_trace_handler(str(folder), use_gzip=True),
        with_stack=tracing.stacks,
        profile_memory=tracing.memory,
        record_shapes=tracing.shapes,
    ) as profile:
        for number in range(tracing.steps):
            with record_function(f"{SPAN}{number}"):
                runner.infer(feed)
                runner.synchronize()
            if profile.current_action is ProfilerAction.RECORD_AND_SAVE:
                profile.add_metadata_json(ABOUT, about)
            profile.step()
    return sorted(folder.glob(f"*{SUFFIX}"))
