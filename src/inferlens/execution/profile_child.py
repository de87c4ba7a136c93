"""The profiling of one case at one level, from its description to its layers or kernels; in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends import BACKENDS
from inferlens.backends.abilities import LayerProfiler
from inferlens.backends.base import Preparation, Runner
from inferlens.backends.onnx.modules import origins
from inferlens.backends.profiling import kernel_runs
from inferlens.errors import Unsupported
from inferlens.execution.protocol import ProfileAnswer, ProfileJob
from inferlens.models import inputs, resolve
from inferlens.models.work import count
from inferlens.record.kernel_profile import Kernels
from inferlens.record.layer_profile import Layers
from inferlens.record.record import ModelFacts, Status
from inferlens.record.work import Work


class Inspection:
    """One profile under way: what has been learned so far, kept even if the next step fails."""

    def __init__(self, job: ProfileJob, preparation: Preparation) -> None:
        self.job = job
        self.preparation = preparation
        self.model: ModelFacts | None = None
        self.work: Work | None = None

    def answer(self, status: Status, reason: str = "", hint: str = "") -> ProfileAnswer:
        """What is known without layers and kernels, as the worker's answer."""
        preparation = self.preparation
        return ProfileAnswer(
            status=status,
            reason=reason,
            hint=hint,
            model=self.model,
            phases=tuple(preparation.phases),
            work=self.work,
            facts=preparation.facts,
            warnings=tuple(preparation.warnings),
        )

    def run(self) -> ProfileAnswer:
        """Loads, prepares, warms up and profiles the case.

        Raises:
            Unsupported: if the backend cannot tell its layers, or there is no GPU that runs kernels.
            Exception: whatever the model or the backend raises.
        """
        job, preparation = self.job, self.preparation
        self._check()
        backend = BACKENDS.get(job.case.backend)()
        with preparation.phase("load"):
            model = resolve.load(job.case, trust=job.trust, live=Path(job.live) if job.live else None)
        self.model = model.facts
        self.work = count(model, job.case, makers)
        runner = backend.prepare(model, job.case, preparation)
        if job.level == "layer" and not isinstance(runner, LayerProfiler):
            raise Unsupported(f"{job.case.backend_label} does not tell its layers.")
        with runner:
            feed = runner.place(inputs.make_inputs(model, job.case.seed))
            with preparation.phase("first inference"):
                runner.infer(feed)
                runner.synchronize()
            with preparation.phase("warm-up"):
                for _ in range(job.warmup):
                    runner.infer(feed)
                runner.synchronize()
            with preparation.phase("steady state"):
                told = self._profiled(runner, feed)
        return msgspec.structs.replace(self.answer("ok"), **told)

    def _check(self) -> None:
        """Refuses what cannot be profiled at this level whatever the model is, before anything is made ready."""
        case = self.job.case
        if self.job.level != "kernel":
            return
        if case.device != "cuda":
            what = f"Kernels are what a GPU runs, and {case.backend_label} runs on the {case.device} here."
            raise Unsupported(what, hint="--level layer, or --device cuda")
        kernel_runs.check()

    def _profiled(self, runner: Runner, feed: Any) -> dict[str, Layers | Kernels]:
        """The layers or the kernels of so many runs, by the name of the answer's field."""
        if self.job.level == "kernel":
            return {"kernels": kernel_runs.kernels_of(runner, feed, self.job.runs, self.job.case.backend_label)}
        assert isinstance(runner, LayerProfiler)
        return {"layers": runner.profile_layers(feed, self.job.runs)}


def makers(path: Path) -> dict[str, tuple[str, ...]]:
    """Of each tensor in an ONNX file, by its name, the paths of the modules whose operator makes it."""
    return {name: node.modules for node in origins(path).nodes for name in node.outputs}
