"""``inferlens profile``: where the time of cases goes.

Each case is measured first with nothing added, and then profiled, level by level, each in a process of its own. What a
profile says of the cost of profiling follows from the record beside it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.base import LayerProfiler
from inferlens.backends.onnx.graph import origins
from inferlens.backends.profiling import kernels as kernel_runs
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution import child_process
from inferlens.execution.launching.parts import CasesJob, launched, scheduled_part, still_known
from inferlens.execution.launching.resume import resumable
from inferlens.execution.protocol import CaseJob, Job, Observer
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.survey import Named, named
from inferlens.execution.worker import Child
from inferlens.measure.monitor.cpu import default_threads
from inferlens.models.work import count as count_work
from inferlens.record.files import write_whole
from inferlens.record.layer_profile import Kernels, Layers, Level, Profile, decode
from inferlens.record.record import WRITES_INPUTS, ModelFacts, Record, Warning
from inferlens.record.store import LoadedProfiles, load_profiles, save_profile
from inferlens.record.work import Ceilings, Work
from inferlens.spec.case import Case
from inferlens.spec.plan import Duration, Numbers, Plan, Texts, count, known

LEVELS: tuple[Level, ...] = get_args(Level)
ALSO: dict[str, Level] = {"module": "layer"}  # words for a level by what it shows
RUNS = 50
WARMUP = 10
RECIPE = "2"  # part of the name of ceilings that are kept: another way of measuring has another
CEILINGS_TIMEOUT = 120.0
CEILINGS_LIBRARY = "torch"
_OWN = ("model", "example_inputs", "level", "runs", "observer")  # keywords of ``profile`` that are no words of a plan


class ProfileJob(CaseJob, frozen=True, kw_only=True):
    """Profile the case at ``level``, in ``runs`` calls after :data:`WARMUP` others."""

    runs: int


class Profiled(Struct, frozen=True, kw_only=True):
    """What was found; the fields are those of a profile."""

    layers: Layers | None = None
    kernels: Kernels | None = None
    work: Work | None = None


def profile_case(job: ProfileJob, child: Child) -> Profiled:
    """Profiles the layers or the kernels of the case; ``Unsupported`` if the backend cannot tell these here."""
    label = job.case.backend_label
    if job.level == "kernel":
        if job.case.device != "cuda":
            what = f"Kernels are what a GPU runs, and {label} runs on the {job.case.device} here."
            raise Unsupported(what, hint="--level layer, or --device cuda")
        kernel_runs.check()
    model = child.load()
    child.found = found = Profiled(work=count_work(model, job.case, makers))
    runner = child.prepare(model)
    if job.level == "layer" and not isinstance(runner, LayerProfiler):
        raise Unsupported(f"{label} does not report its layers.")
    with runner:
        feed, _ = child.ready(model, runner, WARMUP)
        with child.preparation.phase("steady state"):
            if isinstance(runner, LayerProfiler) and job.level == "layer":
                return replace(found, layers=runner.profile_layers(feed, job.runs))
            return replace(found, kernels=kernel_runs.kernels_of(runner, feed, job.runs, label))


def makers(path: Path) -> dict[str, tuple[str, ...]]:
    """Of each tensor in an ONNX file, by its name, the paths of the modules whose operator makes it."""
    return {name: node.modules for node in origins(path).nodes for name in node.outputs}


def profile(
    model: Any,
    example_inputs: Any = None,
    *,
    level: Any = "layer",
    runs: int = RUNS,
    backend: Texts | None = None,
    precision: Texts | None = None,
    batch: Numbers | None = None,
    device: Texts | None = None,
    threads: Numbers | None = None,
    python: Texts | None = None,
    io: Texts | None = None,
    cold: bool = False,
    rotate: bool = False,
    option: Texts | Mapping[str, Any] | None = None,
    input: Texts | None = None,
    dim: Texts | Mapping[str, Numbers] | None = None,
    weights: str | PathLike[str] | None = None,
    calibration: str | PathLike[str] | None = None,
    keep: Texts | None = None,
    trust: bool = False,
    rebuild: bool = False,
    seed: int = 0,
    iterations: int | None = None,
    seconds: Duration | None = None,
    max_time: Duration | None = None,
    warmup: int | None = None,
    timeout: Duration | None = None,
    wait: Duration | None = None,
    devices: Texts | None = None,
    ray: str | None = None,
    on: Texts | None = None,
    output: str | PathLike[str] = "results",
    observer: Observer | None = None,
) -> LoadedProfiles:
    """Profiles a model on the backends of this machine.

    The keywords that are not told of here are those of :func:`inferlens.bench`.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``; a list of names for several models.
        example_inputs: of a live module, as of :func:`inferlens.bench`.
        level: ``layer``, ``kernel``, or both; ``module`` is another word for ``layer``, which is what is traced to
            modules.
        runs: profiled calls of each case and level.
        observer: told what happens; by default nothing is shown.

    Returns:
        One profile for each case and level, those that failed included; ``print`` shows what they come to. They are
        on disk too, beside the records.

    Raises InferlensError if the model or a keyword means nothing. A case that cannot be profiled says why in its
    profile.
    """
    words = {name: value for name, value in locals().items() if name not in _OWN}
    levels, runs = levels_of(level), count("runs", runs)
    with named(model, example_inputs) as model:
        plan = Plan.from_words({**words, "mode": "latency", "model": model.spec})
        found = run(plan, levels, runs, observer or Observer(), model)
    return load_profiles(*(file_of(folder, made.level) for made, folder in found))


def levels_of(value: Any) -> tuple[Level, ...]:
    """The levels that some words name, each once. Modules are no level of their own: layers are traced to them."""
    words = known("level", value, (*LEVELS, *ALSO))
    return tuple(dict.fromkeys(ALSO.get(word, word) for word in words))  # type: ignore[arg-type]


def run(
    plan: Plan, levels: Sequence[Level], runs: int, observer: Observer, model: Named | None = None
) -> list[tuple[Profile, Path]]:
    """Measures and profiles every case of ``plan``, each on disk before the next one; profiles with their folders."""
    if plan.repeats > 1:
        raise InferlensError("A case is profiled in one process for each level.", hint="without --repeats")
    observer.doing("looking at models and backends")
    with launched(plan, observer, model) as under_way:
        cases = under_way.cases()
        observer.planned([planned for each in cases.values() for planned in each])
        with resumable(under_way, (levels, runs)):
            under_way.do(profile_cases, under_way.race_jobs(ProfilePart, cases, levels=tuple(levels), runs=runs))
        folders = [under_way.gathered.folders[record.id] for record in under_way.gathered.records]
    return [(decode(file_of(folder, level).read_bytes()), folder) for folder in folders for level in levels]


def file_of(folder: Path, level: Level) -> Path:
    """Where the profile of a case lies."""
    return folder / f"profile-{level}.json"


class ProfilePart(CasesJob, frozen=True, kw_only=True):
    """Measure and profile cases."""

    levels: tuple[Level, ...]
    runs: int
    void: tuple[Record, ...] = ()  # records of cases that were not profiled at every level

    def again(self, records: Sequence[Record], folders: Mapping[str, Path]) -> ProfilePart:
        """See :class:`CasesJob`; what is not profiled at every level is not known."""
        whole = [each for each in records if all(file_of(folders[each.id], level).exists() for level in self.levels)]
        found = super().again(whole, folders)
        of_all = super().again(records, folders).known
        return cast("ProfilePart", replace(found, void=tuple(each for each in of_all if each not in found.known)))


def profile_cases(job: ProfilePart, observer: Observer) -> None:
    """Measures and profiles the cases."""
    if job.void:
        observer.discarded(job.void)
    with scheduled_part(job, observer, job.planned()) as scheduler:
        known = {record.case.digest for record in still_known(job, scheduler)}
        known_ceilings: dict[Path, Ceilings] = {}
        for planned in (each for each in job.planned() if each.case.digest not in known):
            record, folder = scheduler.measure(planned)
            for level in job.levels:
                observer.doing(f"{planned.case.label}: profiling {level}s")
                made = _profiled(scheduler, record, folder, level, job.runs)
                save_profile(folder, made)
                if made.status == "ok" and made.work and made.work.modules:
                    observer.doing("what the device reaches at best")
                    made = replace(made, ceilings=ceilings_of(planned.case, scheduler, known_ceilings))
                    save_profile(folder, made)
            observer.kept(folder)


def _profiled(scheduler: Scheduler, record: Record, folder: Path, level: Level, runs: int) -> Profile:
    """The profile of a case that was measured; where that failed, with its reason."""
    made = Profile(
        id=uuid.uuid4().hex,
        record=record.id,
        created=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        case=record.case,
        level=level,
        runs=runs,
        status=record.status,
        reason=record.reason,
        hint=record.hint,
        model=record.model,
        environment=record.environment,
    )
    if record.status != "ok":
        return made
    # Not rebuilt: what was built for measuring is what is profiled.
    given = {**scheduler.given(record.case, folder), "rebuild": False}
    job = ProfileJob(**given, level=level, runs=runs)
    outcome = scheduler.do(profile_case, job, log=folder / f"profile-{level}.log")
    result = outcome.result
    facts = result.model or ModelFacts(name="") if outcome.answered else record.model
    return replace(
        made,
        status=result.status,
        reason=result.reason,
        hint=result.hint,
        output_tail=outcome.tail,
        model=replace(facts, name=record.model.name),
        phases=result.phases,
        facts=result.facts,
        warnings=(*result.warnings, *_input_warnings(record)),
        **msgspec.structs.asdict(result.found or Profiled()),
    )


def _input_warnings(record: Record) -> Iterator[Warning]:
    """Yield what a model that writes into its inputs means for a profile."""
    behavior = record.agreement.behavior if record.agreement else {}
    if why := behavior.get(WRITES_INPUTS):
        message = f"{why[0].upper()}{why[1:]}. Each profiled call goes on with what the call before wrote."
        yield Warning("inputs-not-renewed", message, "A model that copies its input first.")


class CeilingsJob(Job, frozen=True, kw_only=True):
    """What :func:`inferlens.measure.ceilings.measure` is given."""

    device: str
    name: str
    threads: int | None = None


def measure_ceilings(job: CeilingsJob, child: Child) -> Ceilings:  # noqa: ARG001 - there is no case
    """Measures what the device reaches at best."""
    from inferlens.measure import ceilings

    return ceilings.measure(job.device, job.name, job.threads)


def ceilings_of(case: Case, scheduler: Scheduler, known: dict[Path, Ceilings]) -> Ceilings:
    """The ceilings of the device and threads of ``case``; without a bandwidth, and with the reason, if there are none.

    They are measured in a process of their own, and kept in the cache folder for as long as machine and library stay.
    Those that something else on the machine made lower are used once, for they are among the ``known``, and not kept.
    """
    machine, cpu = scheduler.environment, case.device == "cpu"
    threads = (case.threads or default_threads()[0]) if cpu else None
    name = (machine.cpu or "CPU") if cpu else machine.gpus[0].name if machine.gpus else case.device
    own: list[object] = [machine.cpu_threads, threads] if cpu else [machine.driver]
    depends = [RECIPE, name, *own, machine.libraries.get(CEILINGS_LIBRARY), sorted(machine.variables.items())]
    file = scheduler.cache / f"ceilings-{hashlib.sha256(msgspec.json.encode(depends)).hexdigest()[:12]}.json"
    if file in known:
        return known[file]
    found = None
    if not scheduler.plan.rebuild:
        with suppress(OSError, msgspec.DecodeError, RecursionError):
            found = msgspec.json.decode(file.read_bytes(), type=Ceilings)
    if found is None:
        job = CeilingsJob(device=case.device, name=name, threads=threads)
        result = child_process.launch(measure_ceilings, job, timeout=CEILINGS_TIMEOUT).result
        found = result.found or Ceilings(device=name, bandwidth=0.0, rates={}, absent={"all": result.reason})
        if result.found and not found.disturbed:
            write_whole(file, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    known[file] = found
    return found
