"""What is to be run, and what can be: what models' names mean, what backends can do here, and the cases of both.

Models and backends are asked in processes of their own: one that crashes there takes nothing along. What would stop
every case is found here and said once, before the first case's process starts.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities
from inferlens.errors import InferlensError
from inferlens.execution import child_process
from inferlens.execution.expand import Planned, backends_named, batches, check_words, expand, refuse_if_none_runs
from inferlens.execution.protocol import Job
from inferlens.execution.worker import Child, ending
from inferlens.models import resolve
from inferlens.models.model import ModelInfo
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan
from inferlens.spec.reference import refuse_unknown

TIMEOUT = 300.0


@dataclass(frozen=True)
class Named:
    """A model in a plan's words; of a live module also what is known of it, and the file that it was saved to."""

    spec: Any
    found: list[ModelInfo] | None = None
    live: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """The file of a live module, by its full name."""
        return {each.spec: self.live for each in self.found or ()} if self.live else {}


@contextmanager
def named(model: Any, example_inputs: Any = None) -> Iterator[Named]:
    """A model as a plan names it; the file of a live module is there meanwhile."""
    if isinstance(model, (str, Path)) or (isinstance(model, (list, tuple)) and model):
        if example_inputs is not None:
            raise InferlensError(
                "Example inputs go with a live module, not with a name.", hint="input=['x=1x3x224x224']"
            )
        yield Named([str(name) for name in model] if isinstance(model, (list, tuple)) else str(model))
        return
    from inferlens.models.sources import own_code

    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = Path(folder) / "module"
        found = own_code.save(model, example_inputs, path)
        yield Named(found.spec, [found], str(path))


def cases_of(plan: Plan, model: Named | None = None, *, listed: bool = False) -> list[Planned]:
    """The cases of ``plan``, none of them run; ``model`` is the plan's, where it is a live one.

    Args:
        listed: whether they are only to be looked at, also if none of them can run.

    Raises:
        InferlensError: for all that can be known beforehand to stand against every case.
    """
    check_words(plan)
    cases = expand(plan, *surveyed(plan, model))
    if not listed:
        refuse_if_none_runs(cases)
    refuse_unknown([planned.case for planned in cases], plan.reference)
    return cases


def surveyed(plan: Plan, model: Named | None = None) -> tuple[list[ModelInfo], dict[str, Capabilities]]:
    """What the plan's models are, and what its backends can do here."""
    with ThreadPoolExecutor() as pool:
        able = pool.submit(probe, backends_named(plan))
        return found(plan, model), able.result()


def found(plan: Plan, model: Named | None = None) -> list[ModelInfo]:
    """What the plan's models are, each loaded once to see that it can be, and that it takes the inputs and weights."""
    job = LookupJob(names=plan.model, checkout=plan.checkout, plan=plan)
    if model and model.found:
        job = replace(job, known=model.found, live=model.live)
    outcome = child_process.launch(models, job, timeout=TIMEOUT)
    if not outcome.answered:  # a model that ends the process may do so in a case: the row has the reason
        outcome = child_process.launch(models, replace(job, plan=None), timeout=TIMEOUT)
    return outcome.found(f"Looking up {', '.join(plan.model)} failed")


class NamesJob(Job, frozen=True, kw_only=True):
    """The backends or models to ask about."""

    names: tuple[str, ...]
    checkout: str = ""

    @property
    def place(self) -> str:
        """See :class:`Job`."""
        return self.checkout


def capabilities(job: NamesJob, child: Child) -> dict[str, Capabilities]:  # noqa: ARG001 - there is no case
    """What every backend can do here; one that raises is absent, with the reason."""
    found = {}
    for name in job.names:
        try:
            found[name] = BACKENDS.get(name)().capabilities()
        except Exception as error:
            traceback.print_exc()
            reason = str(error) if isinstance(error, InferlensError) else ending(error)[1]
            found[name] = Capabilities(formats=(), absent=(Absence("", reason),))
    return found


def probe(names: Sequence[str]) -> dict[str, Capabilities]:
    """What each backend can do here."""
    outcome = child_process.launch(capabilities, NamesJob(names=tuple(names)), timeout=TIMEOUT)
    if outcome.result.found is not None:
        return outcome.result.found
    if len(names) == 1:
        reason = f"Asking it crashed: {outcome.result.reason}. {' '.join(outcome.tail[-1:])}".strip()
        return {names[0]: Capabilities(formats=(), absent=(Absence("", reason, "reinstall its libraries"),))}
    return {name: can for each in names for name, can in probe([each]).items()}


class LookupJob(NamesJob, frozen=True, kw_only=True):
    """Models to look up, or already known, and to check for ``plan`` if there is one."""

    known: list[ModelInfo] | None = None
    plan: Plan | None = None
    live: str | None = None


def models(job: LookupJob, child: Child) -> list[ModelInfo]:  # noqa: ARG001 - there is no case
    """What every name means, and what the plan asks of it that it cannot do."""
    found, plan = job.known or [resolve.find(name) for name in job.names], job.plan
    for model in found if job.checkout else ():
        resolve.check_place(model.spec, job.checkout)
    if not plan:
        return found
    checked = []
    for model in found:
        model.check(plan.trust, alone=len(found) == 1)
        case = Case(
            model=model.spec,
            backend="",
            inputs=plan.input,
            weights=plan.weights,
            calibration=plan.calibration,
            keep=plan.keep,
            seed=plan.seed,
        )
        live = Path(job.live) if job.live else None
        checked.append(resolve.check(model, case, batches(plan, model), trust=plan.trust, live=live))
    return checked


def find(names: Sequence[str], checkout: str = "") -> list[ModelInfo]:
    """What each model's name means in a checkout; ``InferlensError`` for the first that means nothing."""
    outcome = child_process.launch(models, LookupJob(names=tuple(names), checkout=checkout), timeout=TIMEOUT)
    return outcome.found(f"Looking up {', '.join(names)} failed")
