"""The tracing of one case by torch.profiler, from its description to trace files; in a process of its own.

Every file is read again before the answer, so that it says what is in it, and what is not.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from inferlens.backends import BACKENDS
from inferlens.backends.availability import imported
from inferlens.backends.base import Preparation
from inferlens.backends.profiling import step_traces
from inferlens.backends.profiling.layer_runs import clocked_runs
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.protocol import Shown, TraceAnswer, TraceJob
from inferlens.models import inputs, resolve
from inferlens.record.record import ModelFacts, Status
from inferlens.trace import Category, Trace, read
from inferlens.trace.intervals import Intervals
from inferlens.trace.trace import Ints


class Recording:
    """One case's trace under way: what has been learned so far, kept even if the next step fails."""

    def __init__(self, job: TraceJob, preparation: Preparation) -> None:
        self.job = job
        self.preparation = preparation
        self.model: ModelFacts | None = None

    def answer(self, status: Status, reason: str = "", hint: str = "") -> TraceAnswer:
        """What is known without a trace, as the worker's answer."""
        return TraceAnswer(
            status=status,
            reason=reason,
            hint=hint,
            model=self.model,
            phases=tuple(self.preparation.phases),
            warnings=tuple(self.preparation.warnings),
        )

    def run(self) -> TraceAnswer:
        """Loads, prepares, warms up and traces the case.

        Raises:
            Unsupported: without PyTorch.
            Exception: whatever the model or the backend raises.
        """
        job, preparation = self.job, self.preparation
        on_gpu = _sees_gpu() if job.case.device == "cuda" else _sees_host()
        backend = BACKENDS.get(job.case.backend)()
        with preparation.phase("load"):
            model = resolve.load(job.case, trust=job.trust, live=Path(job.live) if job.live else None)
        self.model = model.facts
        about = {"case": job.case.label, "model": model.name, "inputs": [str(spec) for spec in model.inputs]}
        with backend.prepare(model, job.case, preparation) as runner:
            feed = runner.place(inputs.make_inputs(model, job.case.seed))
            with preparation.phase("first inference"):
                runner.infer(feed)
                runner.synchronize()
            with preparation.phase("warm-up"):
                before = clocked_runs(runner, feed, job.untraced).whole
            with preparation.phase("steady state"):
                files = step_traces.write(
                    runner,
                    feed,
                    job.tracing,
                    Path(job.folder),
                    on_gpu=on_gpu,
                    about=msgspec.json.encode(about).decode(),
                )
        shown = tuple(shown_in(read(file)) for file in files)
        if not any(each.steps for each in shown):
            raise InferlensError("torch.profiler wrote no trace.", hint="more --active steps")
        return msgspec.structs.replace(
            self.answer("ok"), files=tuple(file.name for file in files), shown=shown, before=before
        )


def shown_in(trace: Trace) -> Shown:
    """What a trace shows of its steps."""
    rows = trace.rows(Category.ANNOTATION)
    is_step = np.array([name.startswith(step_traces.SPAN) for name in trace.strings], dtype=bool)
    rows = rows[is_step[trace.name[rows]]] if len(rows) else rows
    steps = Intervals.of(trace, rows)
    return Shown(
        steps=tuple((trace.duration[rows] / 1e9).tolist()),
        operators=_covered(trace, trace.rows(Category.OPERATOR), steps),
        gpu=_covered(trace, trace.gpu.row, steps),
        events=len(trace),
        notes=trace.notes,
    )


def _covered(trace: Trace, rows: Ints, steps: Intervals) -> float:
    """The share of the steps' time that events cover."""
    covered = Intervals.of(trace, rows).both(steps).total
    return covered / steps.total if steps.total else 0.0


def _sees_host() -> bool:
    """``False``: there is no GPU to look at.

    Raises:
        Unsupported: without PyTorch.
    """
    _, missing = imported("torch", "PyTorch", "torch")
    if missing:
        raise Unsupported(f"Traces are torch.profiler's. {missing.reason}", hint=missing.hint)
    return False


def _sees_gpu() -> bool:
    """Whether torch.profiler can see what a GPU runs; as :func:`_sees_host` without PyTorch."""
    _sees_host()
    from torch.profiler import ProfilerActivity, supported_activities

    return ProfilerActivity.CUDA in supported_activities()
