"""The outputs that others are held against, each computed once a run, in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.execution.child_process import Outcome
from inferlens.execution.expand import Planned
from inferlens.execution.measure_case import Reference, ReferenceJob, ReferenceOrigin, reference
from inferlens.execution.protocol import Observer
from inferlens.measure.accuracy import Evaluation
from inferlens.models import resolve
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan


@dataclass
class References:
    """The references of a run's cases, and what they are worth on real data; ``do``, ``given``: of ``Scheduler``."""

    plan: Plan
    observer: Observer
    scratch: Path
    do: Callable[..., Outcome[Any]]
    given: Callable[[Case, Path], dict[str, Any]]
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    _known: dict[str, Reference] = field(default_factory=dict)

    def of(self, planned: Planned) -> Reference:
        """The reference of this case, the same for all cases that share model, inputs and weights.

        By the first of ``--python`` that can, for what is new is compared with what was; else by this interpreter.
        """
        case = planned.reference
        if case is None:
            return Reference(name="", missing="what the file was compiled from is not known")
        if planned.found.origin and resolve.runs_code(case.model) and not self.plan.trust:
            reason = f"the file says that it was compiled from {case.model}, which would be run; --trust does so"
            return Reference(name="", missing=reason)
        for python in dict.fromkeys((*self.plan.python, "", planned.case.python)):
            made = self._outputs(planned, replace(case, python=python))
            if not made.missing:
                break
        return made

    def _outputs(self, planned: Planned, case: Case) -> Reference:
        """What ``case``, the reference of another, computes; or why nothing."""
        seed = planned.case.seed
        key = f"{case.digest}-{seed}"
        if key not in self._known:
            self.observer.doing(f"reference outputs: {case.label}")
            path = str(self.scratch / f"{key}.npz")
            name = f"{case.backend_label} {case.precision} on {case.device}"
            with tempfile.TemporaryDirectory() as folder:
                words = {**self.given(case, Path(folder)), "cache": folder, "rebuild": False}
                wanted = self.plan.accuracy if planned.evaluated_as not in self.evaluations else ""
                job = ReferenceJob(**words, path=path, inputs_seed=seed, accuracy=wanted)
                result = self.do(reference, job, on_event=lambda _: None).result
            if found := result.found:
                hashes = {each: getattr(found, each) for each in ReferenceOrigin.__struct_fields__}
                inputs, memory = result.model.inputs if result.model else (), result.memory.host_peak or 0
                made = Reference(name=name, path=path, inputs=inputs, memory=memory, **hashes)
                if found.evaluation:
                    if found.evaluation.problem:  # it would be every case's
                        raise found.evaluation.problem.error()
                    self.evaluations[planned.evaluated_as] = found.evaluation
            else:
                made = Reference(name=name, missing=f"the reference failed: {result.reason}")
            self._known[key] = made
        return self._known[key]
