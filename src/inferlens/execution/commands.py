"""The commands that measure, for the command line and Python: on this machine, or on the workers that a plan names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inferlens.analysis.tuning import TuningReport
from inferlens.errors import InferlensError, check_choice
from inferlens.execution import profile as profiling
from inferlens.execution import remote, run
from inferlens.execution.cases import ModelHandle, cases_of, model_handle
from inferlens.execution.profile import levels_of
from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.resume import profile_file
from inferlens.execution.tuning import tune
from inferlens.execution.tuning.space import SearchSelection, SearchSpace, explore, search_selection
from inferlens.record.profile import Level, Profile
from inferlens.record.record import Record
from inferlens.record.store import LoadedProfiles, load_profiles
from inferlens.spec.commands import own_options
from inferlens.spec.options import texts
from inferlens.spec.plan import WORDS, Plan, Where, toml_words


def run_bench(plan: Plan, observer: Observer, model: ModelHandle | None = None) -> list[Record]:
    """Measure every case of a plan, and hold a race of those that may be the fastest."""
    return (run.run if plan.where == Where() else remote.bench)(plan, observer, model)


def run_tune(
    request: tune.TuningRequest, selection: SearchSelection, observer: Observer, model: ModelHandle | None = None
) -> list[TuningReport]:
    """Tune all models of a plan at all of their batch sizes."""
    return (tune.tune if request.plan.where == Where() else remote.tune)(request, selection, observer, model)


def run_profile(
    plan: Plan, levels: Sequence[Level], runs: int, observer: Observer, model: ModelHandle | None = None
) -> list[tuple[Profile, Path]]:
    """Measure and profile every case of a plan; return the profiles with their folders."""
    return (profiling.run if plan.where == Where() else remote.profile)(plan, levels, runs, observer, model)


def cases_by_kind(plan: Plan) -> dict[str, list[PlannedCase]]:
    """Return the cases of a plan by kind of worker, also if none of them can run."""
    if plan.where == Where():
        return {"": cases_of(plan, listed=True)}
    with remote.remote_run(plan, Observer(), None) as workers:
        return workers.cases(listed=True)


def spaces_by_kind(plan: Plan, selection: SearchSelection) -> dict[str, SearchSpace]:
    """Return the search spaces of a plan by kind of worker."""
    if plan.where == Where():
        return {"": explore(plan, selection)}
    with remote.remote_run(plan, Observer(), None) as workers:
        return workers.values_by_kind(remote.ExploreJob, SearchSpace, selection=selection)


def bench_model(model: Any, example_inputs: Any, words: Mapping[str, Any], observer: Observer | None) -> list[Record]:
    """Measure what :func:`inferlens.bench` is given; ``words`` are its keywords. ``model`` may be a live module.

    Raises InferlensError if the model or the words mean nothing. A case that fails is a record, not an error.
    """
    with model_handle(model, example_inputs) as handle:
        return run_bench(Plan.from_words({**words, "model": handle.spec}), observer or Observer(), handle)


def tune_model(
    model: Any, example_inputs: Any, words: Mapping[str, Any], observer: Observer | None
) -> list[TuningReport]:
    """Tune what :func:`inferlens.tune` is given; ``words`` are its keywords."""
    options, plan_words = own_options("tune", words)
    with model_handle(model, example_inputs) as handle:
        request, selection = tune_request(Plan.from_words({**plan_words, "model": handle.spec}), options)
        return run_tune(request, selection, observer or Observer(), handle)


def tune_request(plan: Plan, options: Mapping[str, Any]) -> tuple[tune.TuningRequest, SearchSelection]:
    """Return the request and the part of the search space that the options of ``tune`` mean."""
    request = tune.tuning_request(plan, options["objective"], options["within"], options["budget"])
    return request, search_selection(options["space"], options["only"], options["without"], request.measures)


def profile_model(
    model: Any, example_inputs: Any, words: Mapping[str, Any], observer: Observer | None
) -> LoadedProfiles:
    """Profile what :func:`inferlens.profile` is given; ``words`` are its keywords. ``model`` may be a live module.

    Raises InferlensError if the model or the words mean nothing. A case that cannot be profiled says why in its
    profile.
    """
    options, plan_words = own_options("profile", words)
    levels = levels_of(options["level"])
    with model_handle(model, example_inputs) as handle:
        plan = Plan.from_words({**plan_words, "mode": "latency", "model": handle.spec})
        profiles = run_profile(plan, levels, options["runs"], observer or Observer(), handle)
    return load_profiles(*(profile_file(folder, profile.level) for profile, folder in profiles))


# A fleet: a plan on several machines for several objectives.

OBJECTIVES = ("latency", "throughput")
EXPECTED = "a table such as [machines.lab] with the words of a plan that hold there, as ray = '10.0.0.5:6379'"


@dataclass(frozen=True)
class FleetPart:
    """A plan on one machine for one objective, which is an ordinary run of ``bench``."""

    machine: str
    objective: str
    plan: Plan


class Fleet:
    """The parts of a fleet file.

    Raises InferlensError if the file cannot be read, or a word in it means nothing.
    """

    def __init__(self, file: Path) -> None:
        words = toml_words(file, "fleet")
        for name in words:
            check_choice("word of a fleet", name, ("machines", "objectives", *sorted(WORDS)))
        machines = words.pop("machines", None)
        tables = list(machines.values()) if isinstance(machines, dict) else []
        if not tables or not all(isinstance(table, dict) for table in tables):
            raise InferlensError(f"The fleet {file} names no machines.", expected=EXPECTED)
        self.objectives = tuple(dict.fromkeys(texts(words.pop("objectives", ())))) or OBJECTIVES[:1]
        for objective in self.objectives:
            check_choice("objective of a fleet", objective, OBJECTIVES)
        self.output = Path(str(words.pop("output", "results")))
        self.parts = [
            FleetPart(name, objective, self._plan(name, {**words, **table}, objective))
            for objective in self.objectives
            for name, table in machines.items()
        ]

    def _plan(self, machine: str, words: Mapping[str, Any], objective: str) -> Plan:
        if wrong := next((name for name in ("mode", "output") if name in words), None):
            raise InferlensError(f"A fleet has no '{wrong}' of a machine or plan.", hint="objectives, and one output")
        try:
            plan = Plan.from_words({**words, "mode": objective, "output": str(self.folder(objective))})
            return msgspec.structs.replace(plan, recommended=True)
        except InferlensError as error:
            what = f"For the machine '{machine}', {objective}: {error.what}"
            raise InferlensError(what, expected=error.expected, hint=error.hint) from error

    def folder(self, objective: str) -> Path:
        return self.output / objective
