"""The profiling of one case at one level, from its description to its layers; runs in a process of its own."""

from __future__ import annotations

from pathlib import Path

from inferlens.backends import BACKENDS
from inferlens.backends.abilities import LayerProfiler
from inferlens.backends.base import Preparation
from inferlens.errors import Unsupported
from inferlens.jobs import ProfileAnswer, ProfileJob
from inferlens.models import inputs, resolve
from inferlens.record import ModelFacts, Status


class Inspection:
    """One profile under way: what has been learned so far, kept even if the next step fails."""

    def __init__(self, job: ProfileJob, preparation: Preparation) -> None:
        self.job = job
        self.preparation = preparation
        self.model: ModelFacts | None = None

    def answer(self, status: Status, reason: str = "", cure: str = "") -> ProfileAnswer:
        """What is known without layers, as the worker's answer."""
        preparation = self.preparation
        return ProfileAnswer(
            status=status,
            reason=reason,
            cure=cure,
            model=self.model,
            phases=tuple(preparation.phases),
            facts=preparation.facts,
            warnings=tuple(preparation.warnings),
        )

    def run(self) -> ProfileAnswer:
        """Loads, prepares, warms up and profiles the case.

        Raises:
            Unsupported: if the backend cannot tell its layers.
            Exception: whatever the model or the backend raises.
        """
        job, preparation = self.job, self.preparation
        backend = BACKENDS.get(job.case.backend)()
        with preparation.phase("load"):
            model = resolve.load(job.case, trust=job.trust, live=Path(job.live) if job.live else None)
        self.model = model.facts
        runner = backend.prepare(model, job.case, preparation)
        if not isinstance(runner, LayerProfiler):
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
                layers = runner.profile_layers(feed, job.runs)
        answer = self.answer("ok")
        return ProfileAnswer(**{name: getattr(answer, name) for name in answer.__struct_fields__} | {"layers": layers})
