"""What a tuning is asked for in words, and a tuning of each model at each batch size that they name.

Each is a tuning of its own, with its share of the time, and a folder of its own: ``OUTPUT/MODEL``, or in it
``batch-8`` where the model has several batch sizes. Time that one leaves is for those that follow; what the last ones
leave is for more final rounds of those that are not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from inferlens.analysis.tuned import Tuned
from inferlens.errors import InferlensError
from inferlens.execution.expand import refuse_if_none_runs
from inferlens.execution.protocol import Observer
from inferlens.execution.survey import Named, named
from inferlens.execution.tuning.space import Space, Tried, explore, tried
from inferlens.execution.tuning.tune import Request, run
from inferlens.record.store import safe_name
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.plan import Duration, Plan, Texts, texts
from inferlens.units import parse_duration


def requested(plan: Plan, objective: str, within: Texts, budget: Duration) -> Request:
    """What is asked for in words: what is to be best, its limits, and seconds or a text such as ``10m``.

    Raises:
        InferlensError: if one of them means nothing.
    """
    constraints = Constraint.parse_all(texts(within))
    for each in constraints:
        if (needs := each.measure.needs) and not getattr(plan, needs):
            raise InferlensError(f"{each.name} is not known without data to evaluate.", hint=f"--{needs} DATA")
    return Request(
        plan=plan,
        objective=Objective.parse(objective),
        constraints=constraints,
        budget=parse_duration(str(budget)),
    )


def tuned(model: Any, example_inputs: Any, words: Mapping[str, Any], observer: Observer) -> list[Tuned]:
    """Tunes what :func:`inferlens.tune` is given; ``words`` are its keywords."""
    left = dict(words)
    asked = [left.pop(name) for name in ("objective", "within", "budget")]
    what = tried(*(left.pop(name) for name in ("space", "only", "without")))
    with named(model, example_inputs) as model:
        plan = Plan.from_words({**left, "model": model.spec})
        return run_each(requested(plan, *asked), what, observer, model)


def run_each(request: Request, what: Tried, observer: Observer, model: Named | None = None) -> list[Tuned]:
    """Tunes each model of the plan at each of its batch sizes.

    Raises:
        InferlensError: if nothing of one of them can run here; before the first of them is begun.
    """
    observer.doing("looking at models and backends")
    parts = list(_parts(explore(request.plan, what, model)))
    found: list[Tuned] = []

    def tune(place: int, seconds: float) -> Tuned:
        part, one = parts[place], request
        case, name = part.families[0].case, part.families[0].found.name
        home = Path(request.plan.output) / safe_name(name)
        if sum(each.families[0].case.model == case.model for each in parts) > 1:
            home /= f"batch-{case.batch}"
        if len(parts) > 1:
            batch = request.plan.batch and (case.batch,)
            plan = msgspec.structs.replace(request.plan, model=(case.model,), batch=batch)
            one = msgspec.structs.replace(request, plan=plan)
            observer.part(f"{name}, batch {case.batch}" if batch else name)
        return run(one, what, part, home, observer, model, seconds)

    for place in range(len(parts)):
        unused = request.budget - sum(each.seconds for each in found)
        found.append(tune(place, max(request.budget / len(parts), unused / (len(parts) - place))))
    undecided = [place for place, each in enumerate(found) if each.answer.open] if len(parts) > 1 else []
    for count, place in enumerate(undecided):
        unused = request.budget - sum(each.seconds for each in found)
        if unused > 0:
            found[place] = tune(place, found[place].seconds + unused / (len(undecided) - count))
    return found


def _parts(space: Space) -> Iterator[Space]:
    """The space of each model at each batch size."""
    every = (*space.families, *space.refused)
    for key in dict.fromkeys((each.case.model, each.case.batch) for each in every):
        families, refused = (
            tuple(each for each in some if (each.case.model, each.case.batch) == key)
            for some in (space.families, space.refused)
        )
        refuse_if_none_runs([*families, *refused])
        yield replace(space, families=families, refused=refused)
