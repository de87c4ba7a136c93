"""What is to be run, and what can be: what models' names mean, what backends can do here, and the cases of both.

Models and backends are asked in processes of their own: one that crashes there takes nothing along. What would stop
every case is found here and said once, before the first case's process starts.
"""

from __future__ import annotations

import dataclasses
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities, merge_capabilities
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution import child_process
from inferlens.execution.expand import Planned, backends_named, check_words, expand, refuse_if_none_runs
from inferlens.execution.protocol import Job
from inferlens.execution.worker import Child
from inferlens.measure import environment, interpreter
from inferlens.models import resolve
from inferlens.models.model import ModelInfo
from inferlens.reasons import reason
from inferlens.record.record import Environment
from inferlens.spec.plan import Plan, refuse_unknown

TIMEOUT = 300.0


@dataclass(frozen=True)
class Named:
    """A model in a plan's words; of a live module also what is known of it, and the file that it was saved to."""

    spec: Any
    found: list[ModelInfo] | None = None
    live: str | None = None


def live_files(*models: Named | None) -> dict[str, str]:
    """The files of live modules, by the full name of each."""
    live = [(model.found or (), model.live) for model in models if model and model.live]
    return {each.spec: file for found, file in live for each in found}


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


@dataclass(frozen=True)
class Surveyed:
    """What the models are to one interpreter, and what its backends can do; ``plan`` is what is to run there.

    ``anywhere`` is what backends can do by some interpreter; ``refusal`` says why its models mean nothing to this one.
    """

    plan: Plan
    found: list[ModelInfo]
    can: dict[str, Capabilities]
    anywhere: dict[str, Capabilities]
    refusal: Unsupported | None = None

    def cases(self, plan: Plan | None = None, found: Sequence[ModelInfo] = ()) -> list[Planned]:
        """Every case of the plan, or of a part of it, and of its models, or some of them."""
        cases, why = expand(plan or self.plan, found or self.found, self.can, self.anywhere), self.refusal
        return [dataclasses.replace(each, refusal=each.refusal or why) for each in cases]


def cases_of(plan: Plan, model: Named | None = None, *, listed: bool = False) -> list[Planned]:
    """Return the cases of ``plan``, none of them run; with ``listed`` also if none can. ``model`` is its live one.

    Raises InferlensError for all that can be known beforehand to stand against every case.
    """
    cases = expanded(plan, model)
    if not listed:
        refuse_if_none_runs(cases)
    refuse_unknown([planned.case for planned in cases], plan.reference)
    return cases


def expanded(plan: Plan, model: Named | None = None) -> list[Planned]:
    """Every case of ``plan``, those of one interpreter after the other; what one lacks is there with the reason."""
    return [each for part in surveyed(plan, model) for each in part.cases()]


def surveyed(plan: Plan, model: Named | None = None) -> list[Surveyed]:
    """Return what the plan's models are, and what its backends can do, by each of its interpreters."""
    check_words(plan)
    check_interpreters(plan.python)
    plans: list[Plan] = []
    models: list[list[ModelInfo]] = []
    able: list[dict[str, Capabilities]] = []
    errors: list[InferlensError | None] = []
    for python in plan.python or ("",):
        plans.append(replace(plan, python=(python,) if python else ()))
        if known := next(filter(None, models), None):  # a name means the same to all
            plans[-1] = replace(plans[-1], model=tuple(info.spec for info in known))
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(probe, backends_named(plan), python)
            its, why = looked_up(plans[-1], model)
        models.append(its)
        errors.append(why)
        able.append(asked.result())
    known = next(filter(None, models), None)
    if known is None:
        raise next(filter(None, errors))
    anywhere = (
        able[0] if len(able) == 1 else {name: merge_capabilities([can[name] for can in able]) for name in able[0]}
    )
    refusals = [unsupported(why) if why else None for why in errors]
    return [
        Surveyed(its_plan, its or known, can, anywhere, why)
        for its_plan, its, can, why in zip(plans, models, able, refusals, strict=True)
    ]


def looked_up(plan: Plan, model: Named | None) -> tuple[list[ModelInfo], InferlensError | None]:
    """What the plan's models are to its interpreter, or why they are nothing to it."""
    try:
        return found(plan, model), None
    except InferlensError as error:
        return [], error


def unsupported(error: InferlensError) -> Unsupported:
    """The same error, as what is said of a case that cannot run."""
    return Unsupported(error.what, expected=error.expected, hint=error.hint)


def check_interpreters(pythons: Iterable[str]) -> None:
    """Refuses the first interpreter that cannot be used."""
    for python in dict.fromkeys(filter(None, pythons)):
        interpreter.check(python, child_process.variables_for(python))


def found(plan: Plan, model: Named | None = None) -> list[ModelInfo]:
    """What the plan's models are, each loaded once to see that it can be, and that it takes the inputs and weights."""
    job = LookupJob(names=plan.model, checkout=plan.checkout, python="".join(plan.python[:1]), plan=plan, checks=True)
    if model and model.found:
        job = replace(job, known=model.found, live=model.live)
    outcome = child_process.launch(models, job, timeout=TIMEOUT)
    if not outcome.answered:  # a model that ends the process may do so in a case: the row has the reason
        outcome = child_process.launch(models, replace(job, checks=False), timeout=TIMEOUT)
    return outcome.found(f"Looking up {', '.join(plan.model)} failed")


class NamesJob(Job, frozen=True, kw_only=True):
    """The backends or models to ask about."""

    names: tuple[str, ...] = ()
    checkout: str = ""
    python: str = ""

    @property
    def place(self) -> str:
        """See :class:`Job`."""
        return self.checkout

    @property
    def interpreter(self) -> str:
        """See :class:`Job`."""
        return self.python


def capabilities(job: NamesJob, child: Child) -> dict[str, Capabilities]:  # noqa: ARG001 - there is no case
    """What every backend can do here; one that raises is absent, with the reason."""
    found = {}
    for name in job.names:
        try:
            found[name] = BACKENDS.get(name)().capabilities()
        except Exception as error:
            traceback.print_exc()
            found[name] = Capabilities(formats=(), absent=(Absence("", reason(error)),))
    return found


def probe(names: Sequence[str], python: str = "") -> dict[str, Capabilities]:
    """What each backend can do here, or by another interpreter."""
    outcome = child_process.launch(capabilities, NamesJob(names=tuple(names), python=python), timeout=TIMEOUT)
    if outcome.result.found is not None:
        return {name: _advised(can, python) for name, can in outcome.result.found.items()}
    if len(names) == 1:
        reason = f"Asking it crashed: {outcome.result.reason}. {' '.join(outcome.tail[-1:])}".strip()
        return {names[0]: Capabilities(formats=(), absent=(Absence("", reason, "reinstall its libraries"),))}
    return {name: can for each in names for name, can in probe([each], python).items()}


def _advised(can: Capabilities, python: str) -> Capabilities:
    """The same, with hints for the environment that they are about."""
    absent = tuple(replace(each, hint=interpreter.in_environment(python, each.hint)) for each in can.absent)
    return replace(can, absent=absent)


def its_environment(job: NamesJob, child: Child) -> Environment:  # noqa: ARG001 - there is no case
    """Where this process runs, with its libraries."""
    return environment.collect()


def environment_by(python: str) -> Environment:
    """Where the processes of an interpreter run; of one that does not tell, the machine alone is known."""
    outcome = child_process.launch(its_environment, NamesJob(python=python), timeout=TIMEOUT)
    return outcome.result.found or replace(environment.collect(), python="", inferlens="", libraries={})


class LookupJob(NamesJob, frozen=True, kw_only=True):
    """Models to look up, or already known; of a plan, whether they are also loaded and checked for it."""

    known: list[ModelInfo] | None = None
    plan: Plan | None = None
    checks: bool = False
    live: str | None = None


def models(job: LookupJob, child: Child) -> list[ModelInfo]:  # noqa: ARG001 - there is no case
    """What every name means, and what the plan asks of it that it cannot do."""
    found, plan = job.known or [resolve.find(name) for name in job.names], job.plan
    live = Path(job.live) if job.live else None
    for model in found if job.checkout else ():
        resolve.check_place(model.spec, job.checkout)
    if not plan:
        return found
    if not job.checks:
        return [resolve.sized(model, plan, live) for model in found]
    for model in found:
        model.check(plan.trust, alone=len(found) == 1)
    checked = [resolve.check(model, plan, live) for model in found]
    return [resolve.with_layers(model) for model in checked] if plan.recommended else checked


def find(names: Sequence[str], checkout: str = "", python: str = "", plan: Plan | None = None) -> list[ModelInfo]:
    """What each model's name means in a checkout; ``InferlensError`` for the first that means nothing."""
    job = LookupJob(names=tuple(names), checkout=checkout, python=python, plan=plan)
    outcome = child_process.launch(models, job, timeout=TIMEOUT)
    return outcome.found(f"Looking up {', '.join(names)} failed")
