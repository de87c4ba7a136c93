"""From a plan to its cases: what the models are, what the backends can do here, and how long the cases may take.

Models and backends are looked up in child processes, so that a crash does not end the run. An error that would stop
every case is reported once, before the first case runs. A case that cannot run here is listed with the reason.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from inferlens.backends import BACKENDS, importable_backends, reference_backend
from inferlens.backends.base import Absence, Capabilities, merge_capabilities
from inferlens.errors import InferlensError, Unsupported, one_of, reason, suggestion
from inferlens.execution import child
from inferlens.execution.protocol import Job, PlannedCase
from inferlens.measure import environment
from inferlens.models import factories, resolve
from inferlens.models.model import InputsAtBatch, ModelInfo
from inferlens.models.resolve import feeds
from inferlens.record.record import IN_TURNS, Environment, Record
from inferlens.record.store import load_records, safe_name
from inferlens.spec.case import AXES, FLAGS, MAX_TIME, QUANTIZED, Axis, Case, split_label
from inferlens.spec.plan import Plan, refuse_unknown
from inferlens.stats.samples import median
from inferlens.units import listing

EVERY_VARIANT = "all"
DEFAULT = ""  # a value of an option in a plan: the case without the option
AnyCase = TypeVar("AnyCase", Case, PlannedCase)


def backends_named(plan: Plan) -> tuple[str, ...]:
    """Return the backends that the plan names, or all."""
    registered = BACKENDS.names()
    if not plan.backend or EVERY_VARIANT in plan.backend:
        return registered
    return tuple(dict.fromkeys(split_label(label, registered)[0] for label in plan.backend))


def expand(
    plan: Plan,
    models: Iterable[ModelInfo],
    capabilities: Mapping[str, Capabilities],
    anywhere: Mapping[str, Capabilities] | None = None,
) -> list[PlannedCase]:
    """Return the cases of the plan, without duplicates, in the order in which they will run.

    Args:
        capabilities: the capabilities of the backends of one interpreter. A case that they exclude has the reason.
        anywhere: the capabilities of all interpreters together, if there are several. The cases follow from these.

    Raises InferlensError if the plan names a backend, variant or option that does not exist, or leaves nothing to run.
    """
    check_words(plan)
    planned: dict[str, PlannedCase] = {}
    models = list(models)
    for model in models:
        model.check(plan.trust, required=len(models) == 1)
        for feed in feeds(plan, model):
            for case, note in _cases(plan, model, feed, anywhere or capabilities):
                refusal = model.refusal(feed) or capabilities[case.backend].refusal(case, model)
                planned.setdefault(case.digest, PlannedCase(case, model, refusal, note))
    if not planned:
        raise nothing_runs(models, plan.device, capabilities)
    cases = [dataclasses.replace(entry, fallback=_fallback(entry, plan, planned)) for entry in planned.values()]
    backends = {entry.case.backend for entry in cases}
    for name in plan.option:
        if (backend := name.partition(".")[0]) not in backends:
            raise InferlensError(
                f"The option '{name}' is for a backend that runs none of these cases.",
                hint=f"--backend {backend}, which says why",
            )
    return cases


def refuse_if_none_runs(planned: Sequence[PlannedCase]) -> None:
    """Refuse a plan if none of its cases can run, with the reason of the first case."""
    refusals = [entry.refusal for entry in planned if entry.refusal]
    if len(refusals) < len(planned):
        return
    what = f"{planned[0].case.backend_label}: {refusals[0].what}"
    if len({refusal.what for refusal in refusals}) > 1:
        raise InferlensError(f"No case of this plan can run here. {what}", hint="--dry-run, which lists all reasons")
    raise InferlensError(what, expected=refusals[0].expected, hint=refusals[0].hint)


def cases_on(words: Mapping[str, Any], backend: str) -> list[Case]:
    """Return the cases that ``words`` mean for one model on ``backend``, whether they can run here or not."""
    plan = Plan.from_words({**words, "backend": backend})
    if len(plan.model) != 1:
        raise InferlensError("This command takes one model.", expected="a single name or file")
    (model,) = find(plan.model, plan=plan)
    name = backend.partition(":")[0]
    BACKENDS.get(name)  # report an unknown name before its abilities are checked
    capabilities = probe([name])
    check_words(plan)
    model.check(plan.trust)
    on_cpu = any(support.device == "cpu" for support in capabilities[name].takes(model.format))
    plan = replace(plan, device=plan.device or ("cpu" if on_cpu else "cuda",))
    return [case for feed in feeds(plan, model) for case, _ in _cases(plan, model, feed, capabilities)]


def only_case(cases: Sequence[AnyCase]) -> AnyCase:
    """Return the only case. Raise InferlensError for several, or none."""
    if len(cases) != 1:
        raise InferlensError(f"This command takes one case, not {len(cases)}.", expected="single values, no commas")
    return cases[0]


def _cases(
    plan: Plan, model: ModelInfo, feed: InputsAtBatch, capabilities: Mapping[str, Capabilities]
) -> Iterator[tuple[Case, str]]:
    """Yield the cases of a model with inputs at a batch, and notes that explain the plain cases among them."""
    inputs, batch = feed
    default = default_device(capabilities.values())
    for backend_name, variant in _backends(plan, model, capabilities, plan.device or (default,)):
        backend, ability = BACKENDS.get(backend_name), capabilities[backend_name]
        option_axes = _options_of(plan, backend_name)
        for device in plan.device or (_device_for(ability, variant, default),):
            is_default = plan.recommended and not plan.backend and model.format == "module"
            if is_default and device in backend.excluded_devices:
                continue
            case_variant = variant if variant is not None else _default_variant(model, ability, device)
            defaults = {"precision": model.precision, "batch": batch, "device": device}
            axes = {axis.name: _axis_values(plan, axis, defaults) for axis in AXES}
            for axis_values in itertools.product(*axes.values()):
                words = dict(zip(axes, axis_values, strict=True))
                case = Case(
                    model=model.spec,
                    backend=backend_name,
                    variant=installed(backend_name, ability) if case_variant is None else case_variant,
                    inputs=inputs,
                    weights=plan.weights,
                    calibration=plan.calibration,
                    keep=plan.keep if words["precision"] in QUANTIZED else "",
                    checkout=plan.checkout,
                    seed=plan.seed,
                    **words,
                )
                if plan.recommended and variant is None and not option_axes:
                    yield from list(_recommended(case, model, ability)) or [(case, "")]
                    continue
                for values in itertools.product(*option_axes.values()):
                    pairs = zip(option_axes, values, strict=True)
                    options = {name: value for name, value in pairs if value != DEFAULT}
                    parsed = backend.parse_options(replace(case, options=options))  # with the types of the backend
                    yield replace(case, options={name: getattr(parsed, name) for name in options}), ""


def race_plan(plan: Plan) -> Plan:
    """Return the plan of a race: with recommended ways, and if one option has several values, with its default.

    The default is a case without the option, also if the user named it. Raises InferlensError if the option needs
    another one to have an effect.
    """
    plan = replace(plan, recommended=True)
    swept = [name for name, values in plan.option.items() if len(values) > 1]
    if len(swept) != 1 or DEFAULT in plan.option[swept[0]]:
        return plan
    check_words(plan)
    label, _, name = swept[0].partition(".")
    backend = BACKENDS.get(label)
    needs = [need for knob in backend.knobs if knob.name == name for need in knob.needs]
    if missing := next((need for need in needs if f"{label}.{need}" not in plan.option), ""):
        what = f"{swept[0]} does nothing without {missing}."
        raise InferlensError(what, hint=f"--option {label}.{missing}=VALUE")

    def is_default(value: str) -> bool:
        parsed = backend.parse_options(Case(model="", backend=label, options={name: value}))
        return bool(getattr(parsed, name) == getattr(backend.options(), name))

    others = tuple(value for value in plan.option[swept[0]] if not is_default(value))
    return replace(plan, option={**plan.option, swept[0]: (DEFAULT, *others)})


def _options_of(plan: Plan, backend: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of the plan's options for a backend."""
    prefix = f"{backend}."
    return {name.removeprefix(prefix): values for name, values in plan.option.items() if name.startswith(prefix)}


def _recommended(case: Case, model: ModelInfo, ability: Capabilities) -> Iterator[tuple[Case, str]]:
    """Yield the recommended ways of the backend of ``case`` that fit it, and notes that explain the plain ones.

    A compiled model is run by the variant that compiled it, which is the variant of ``case``.
    """
    variants = {support.variant for support in ability.takes(model.format) if support.device == case.device}
    dynamic = any(spec.dynamic for spec in case.inputs)
    for way in BACKENDS.get(case.backend).recommended:
        if way.variant not in variants or (model.origin and way.variant != case.variant):
            continue
        if way.fits(case, convolutional=model.convolutional):
            recommended = replace(case, variant=way.variant, options=way.options)
            if way.fixed_shapes and dynamic:
                note = f"In place of {recommended.options_label}, which needs fixed shapes."
                yield replace(recommended, options={}), note
            else:
                yield recommended, ""


def _fallback(entry: PlannedCase, plan: Plan, planned: Mapping[str, PlannedCase]) -> PlannedCase | None:
    """Return the plain way of a case whose options are recommended ones, if the plan does not have it."""
    plain = replace(entry.case, options={})
    if plain.digest in planned or _options_of(plan, plain.backend):
        return None
    return PlannedCase(plain, entry.model, None, f"In place of {entry.case.options_label}, which did not run right.")


def default_device(capabilities: Iterable[Capabilities]) -> str:
    """Return the device of cases that name none: a GPU, if a backend can use one."""
    devices = {support.device for ability in capabilities for support in ability.supports}
    return "cuda" if "cuda" in devices else "cpu"


def _axis_values(plan: Plan, axis: Axis, defaults: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of an axis in a plan; batch and device are chosen one at a time."""
    values = getattr(plan, axis.name)
    if axis.name in ("batch", "device"):
        return (defaults[axis.name],)
    return (values,) if axis.flag else values or (defaults.get(axis.name, axis.default),)


def _backends(
    plan: Plan, model: ModelInfo, capabilities: Mapping[str, Capabilities], devices: tuple[str, ...]
) -> Iterator[tuple[str, str | None]]:
    """Yield the backends and variants of a plan; a variant of ``None`` is the default one of the device."""
    reference = reference_backend(model.format)
    usable: dict[str, list[str]] = {}
    for name in sorted(capabilities, key=lambda name: (name != reference, name)):
        supports = capabilities[name].takes(model.format)
        if variants := [support.variant for support in supports if support.device in devices]:
            usable[name] = variants
    if not plan.backend:
        yield from ((name, None) for name in usable)
        return
    for label in plan.backend:
        if label == EVERY_VARIANT:
            yield from ((name, variant) for name, variants in usable.items() for variant in variants)
            continue
        name, label_variant = split_label(label, BACKENDS.names())
        if label_variant != EVERY_VARIANT:
            yield name, label_variant
            continue
        taking = {support.variant for support in capabilities[name].takes(model.format)}
        for_other_formats = {support.variant for support in capabilities[name].supports} - taking
        yield from ((name, variant) for variant in BACKENDS.get(name).variants if variant not in for_other_formats)


def _device_for(ability: Capabilities, variant: str | None, default: str) -> str:
    devices = [support.device for support in ability.supports if variant is None or support.variant == variant]
    devices = devices or [absence.device for absence in ability.absent if absence.device]  # the row says what is absent
    return default if default in devices or not devices else devices[0]


def _default_variant(model: ModelInfo, ability: Capabilities, device: str) -> str | None:
    """Return the variant that compiled the model, if it can run the model here; else the first variant that can."""
    variants = [support.variant for support in ability.takes(model.format) if support.device == device]
    if model.origin and model.origin.variant and model.origin.variant in variants:
        return model.origin.variant
    return ability.default_variant(device, model.format)


def check_words(plan: Plan) -> None:
    """Refuse backends, variants and options that do not exist, which needs neither the model nor the machine."""
    registered = BACKENDS.names()
    named = [split_label(label, registered) for label in plan.backend if label != EVERY_VARIANT]
    for name, variant in named:
        variants = BACKENDS.get(name).variants
        if variant is not None and variant not in (EVERY_VARIANT, *variants):
            raise InferlensError(
                f"Backend '{name}' has no variant '{variant}'.",
                expected=one_of(variants) if variants != ("",) else f"'{name}' alone",
                hint=suggestion(variant, variants),
            )
    if plan.keep and not {*plan.precision} & {*QUANTIZED}:
        hint = "--precision int8 --calibration DATA"
        raise InferlensError("Nothing is to be quantized, so there are no layers to keep.", hint=hint)
    for name, values in plan.option.items():
        backend, dot, option = name.partition(".")
        if not dot:
            backends = [entry.name for entry in importable_backends() if name in entry.options.__struct_fields__]
            hint = f"--option {backends[0]}.{name}={values[0] if values else 'VALUE'}" if backends else ""
            raise InferlensError(
                f"The option '{name}' names no backend.",
                expected="BACKEND.OPTION=VALUE, as inferlens backends NAME lists them",
                hint=hint or suggestion(name, FLAGS, spelled=FLAGS),
            )
        split_label(backend, registered)
        if plan.backend and EVERY_VARIANT not in plan.backend and backend not in dict(named):
            raise InferlensError(
                f"The option '{name}' is for a backend that the plan leaves out.", hint=f"--backend {backend}"
            )
        for value in set(values) - {DEFAULT}:
            BACKENDS.get(backend).parse_options(Case(model="", backend=backend, options={option: value}))


def installed(backend: str, ability: Capabilities) -> str:
    """Return the first variant that lacks nothing but a device; the first of all if all of them lack more.

    If a backend can write files without a device, their variants come first.
    """
    lacking = {absence.variant for absence in ability.absent if not absence.device}
    variants = [*(support.variant for support in ability.writes), *BACKENDS.get(backend).variants]
    return next((variant for variant in variants if variant not in lacking), variants[0])


def nothing_runs(
    models: Sequence[ModelInfo], devices: Sequence[str], capabilities: Mapping[str, Capabilities]
) -> InferlensError:
    """Return the error that no backend runs the models on the devices (empty: on any), with the reasons."""
    reasons: dict[str, list[str]] = {}
    hints: set[str] = set()
    for model, (name, ability) in itertools.product(models, capabilities.items()):
        built_by = model.origin.variant if model.origin else ""
        variant = built_by if built_by in BACKENDS.get(name).variants else installed(name, ability)
        for absence in ability.absent if model.format in ability.formats else ():
            if absence.variant in ("", variant) and (not absence.device or not devices or absence.device in devices):
                labels = reasons.setdefault(absence.reason.rstrip("."), [])
                labels += {f"{name}:{absence.variant}".rstrip(":")} - {*labels}
                hints.add(absence.hint)
                break
    formats = listing(list(dict.fromkeys(model.format for model in models)))
    on = f" on {listing(devices)}" if devices else ""
    why = "; ".join(f"{listing(labels)}: {reason}" for reason, labels in reasons.items())
    return InferlensError(
        f"No backend here runs models of format {formats}{on}.{f' {why}.' if why else ''}",
        hint="".join(hints) if len(hints) == 1 and hints != {""} else "inferlens backends",
    )


TIMEOUT = 300.0


@dataclass(frozen=True)
class ModelHandle:
    """A model in the words of a plan. A live module also has infos, and the file that it was saved to."""

    spec: Any
    infos: list[ModelInfo] | None = None
    live: str | None = None


def live_files(*models: ModelHandle | None) -> dict[str, str]:
    """Return the files of live modules by their full names."""
    live = [(model.infos or (), model.live) for model in models if model and model.live]
    return {info.spec: file for infos, file in live for info in infos}


@contextmanager
def model_handle(model: Any, example_inputs: Any = None) -> Iterator[ModelHandle]:
    """Yield a model as a plan names it; the file of a live module exists until the end of the context."""
    if isinstance(model, (str, Path)) or (isinstance(model, (list, tuple)) and model):
        if example_inputs is not None:
            raise InferlensError(
                "Example inputs go with a live module, not with a name.", hint="input=['x=1x3x224x224']"
            )
        yield ModelHandle([str(name) for name in model] if isinstance(model, (list, tuple)) else str(model))
        return
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = Path(folder) / "module"
        info = factories.save(model, example_inputs, path)
        yield ModelHandle(info.spec, [info], str(path))


@dataclass(frozen=True)
class ProbeResult:
    """The models of a plan and the capabilities of the backends, as one interpreter sees them.

    ``anywhere`` has the capabilities by any interpreter; ``refusal`` is why this one cannot load the models.
    """

    plan: Plan
    models: list[ModelInfo]
    capabilities: dict[str, Capabilities]
    anywhere: dict[str, Capabilities]
    refusal: Unsupported | None = None

    def cases(self, plan: Plan | None = None, models: Sequence[ModelInfo] = ()) -> list[PlannedCase]:
        """Return the cases of the plan, or of a part of it, and of all models, or some."""
        cases = expand(plan or self.plan, models or self.models, self.capabilities, self.anywhere)
        return [dataclasses.replace(planned, refusal=planned.refusal or self.refusal) for planned in cases]


def cases_of(plan: Plan, model: ModelHandle | None = None, *, listed: bool = False) -> list[PlannedCase]:
    """Return the cases of ``plan``; with ``listed`` also if none of them can run. ``model`` is its live one.

    Raises InferlensError for every foreseeable error that stops all cases.
    """
    cases = [planned for probed in probe_plan(plan, model) for planned in probed.cases()]
    if not listed:
        refuse_if_none_runs(cases)
    refuse_unknown([planned.case for planned in cases], plan.reference)
    return cases


def probe_plan(plan: Plan, model: ModelHandle | None = None) -> list[ProbeResult]:
    """Return the models of the plan and the capabilities of its backends, for all of its interpreters."""
    check_words(plan)
    check_interpreters(plan.python)
    plans = [replace(plan, python=(python,) if python else ()) for python in plan.python] or [plan]
    return probe_plans(plans, [model] * len(plans))


def probe_plans(plans: Sequence[Plan], models: Sequence[ModelHandle | None]) -> list[ProbeResult]:
    """Return the models and the backends of plans, as the one interpreter of each plan sees them.

    Plans with the same models and inputs share a check. Raises the error of a model that no interpreter can load.
    """
    names = tuple(dict.fromkeys(name for plan in plans for name in backends_named(plan)))
    checked: dict[object, list[ModelInfo] | InferlensError] = {}
    parts = []
    with ThreadPoolExecutor() as pool:
        pythons = dict.fromkeys("".join(plan.python) for plan in plans)
        probing = {python: pool.submit(probe, names, python) for python in pythons}
        for plan, model in zip(plans, models, strict=True):
            key = plan.model, plan.checkout, plan.python, plan.input, plan.dim, plan.weights, plan.batch
            if key not in checked:
                checked[key] = _infos_or_error(plan, model)
            parts.append((plan, checked[key]))
        capabilities_by_python = {python: future.result() for python, future in probing.items()}
    errors = [error for error in checked.values() if isinstance(error, InferlensError)]
    if errors and (len(capabilities_by_python) == 1 or len(errors) == len(checked)):
        raise errors[0]
    probed = capabilities_by_python.values()
    anywhere = {name: merge_capabilities([capabilities[name] for capabilities in probed]) for name in names}
    shared = next(infos for infos in checked.values() if isinstance(infos, list))
    results = []
    for plan, infos in parts:
        refusal = None
        if isinstance(infos, InferlensError):
            refusal, infos = Unsupported(infos.what, expected=infos.expected, hint=infos.hint), shared
        results.append(ProbeResult(plan, infos, capabilities_by_python["".join(plan.python)], anywhere, refusal))
    return results


def _infos_or_error(plan: Plan, model: ModelHandle | None) -> list[ModelInfo] | InferlensError:
    try:
        return load_model_info(plan, model)
    except InferlensError as error:
        return error


def check_interpreters(pythons: Iterable[str]) -> None:
    """Refuse interpreters that cannot be used."""
    for python in dict.fromkeys(filter(None, pythons)):
        environment.check(python, child.variables_for(python))


def load_model_info(plan: Plan, model: ModelHandle | None = None) -> list[ModelInfo]:
    """Return the models of the plan. They are loaded once to check that they take the inputs and weights."""
    python = "".join(plan.python[:1])
    job = LookupJob(names=plan.model, place=plan.checkout, interpreter=python, plan=plan, checks=True)
    if model and model.infos:
        job = replace(job, infos=model.infos, live=model.live)
    outcome = child.launch("models", job, list[ModelInfo], timeout=TIMEOUT)
    if not outcome.answered:  # a model that ends the process may do so in a case: the row has the reason
        job = replace(job, checks=False)
        outcome = child.launch("models", job, list[ModelInfo], timeout=TIMEOUT)
    return outcome.value(f"Looking up {', '.join(plan.model)} failed")


def find(names: Sequence[str], checkout: str = "", python: str = "", plan: Plan | None = None) -> list[ModelInfo]:
    """Return the models of names in a checkout. Raises InferlensError for the first name that means nothing."""
    job = LookupJob(names=tuple(names), place=checkout, interpreter=python, plan=plan)
    outcome = child.launch("models", job, list[ModelInfo], timeout=TIMEOUT)
    return outcome.value(f"Looking up {', '.join(names)} failed")


def probe(names: Sequence[str], python: str = "") -> dict[str, Capabilities]:
    """Return the capabilities of backends here, or by another interpreter."""
    job = NamesJob(names=tuple(names), interpreter=python)
    outcome = child.launch("capabilities", job, dict[str, Capabilities], timeout=TIMEOUT)
    if outcome.result.value is not None:
        return {name: _with_hints(ability, python) for name, ability in outcome.result.value.items()}
    if len(names) == 1:
        reason = f"Asking it crashed: {outcome.result.reason}. {' '.join(outcome.tail[-1:])}".strip()
        return {names[0]: Capabilities(formats=(), absent=(Absence("", reason, "reinstall its libraries"),))}
    return {name: probe([name], python)[name] for name in names}


def _with_hints(ability: Capabilities, python: str) -> Capabilities:
    """Return capabilities whose hints install into the environment of an interpreter."""
    hint = environment.in_environment
    return replace(
        ability, absent=tuple(replace(absence, hint=hint(python, absence.hint)) for absence in ability.absent)
    )


class Environments:
    """The machine and its libraries, by the interpreters of cases. This one's is collected in another thread."""

    def __init__(self) -> None:
        self._others: dict[str, Environment] = {}
        self._here = ThreadPoolExecutor(1).submit(environment.collect)

    @cached_property
    def here(self) -> Environment:
        return self._here.result()

    def of(self, case: Case) -> Environment:
        """Return the environment of the case's interpreter, with the revision of the case's checkout."""
        if case.python and case.python not in self._others:
            self._others[case.python] = environment_by(case.python)
        result = self._others.get(case.python) or self.here
        return replace(result, git_revision=environment.git_revision(case.checkout)) if case.checkout else result


def environment_by(python: str) -> Environment:
    """Return the environment of an interpreter; if it cannot tell, the machine alone."""
    outcome = child.launch("environment", NamesJob(interpreter=python), Environment, timeout=TIMEOUT)
    return outcome.result.value or replace(environment.collect(), python="", inferlens="", libraries={})


# The tasks, which run in child processes.


class NamesJob(Job, frozen=True, kw_only=True):
    """The names of the backends or models to look up."""

    names: tuple[str, ...] = ()
    place: str = ""
    interpreter: str = ""


class LookupJob(NamesJob, frozen=True, kw_only=True):
    """The models to look up, or their infos; ``checks``: also load them and check them for the plan."""

    infos: list[ModelInfo] | None = None
    plan: Plan | None = None
    checks: bool = False
    live: str | None = None


def capabilities(job: NamesJob, context: Any) -> dict[str, Capabilities]:  # noqa: ARG001 - there is no case
    """Return the capabilities of backends here; a backend that raises is absent, with the reason."""
    results = {}
    for name in job.names:
        try:
            results[name] = BACKENDS.get(name)().capabilities()
        except Exception as error:
            traceback.print_exc()
            results[name] = Capabilities(formats=(), absent=(Absence("", reason(error)),))
    return results


def interpreter_environment(job: NamesJob, context: Any) -> Environment:  # noqa: ARG001 - there is no case
    """Return the environment of this process."""
    return environment.collect()


def look_up_models(job: LookupJob, context: Any) -> list[ModelInfo]:  # noqa: ARG001 - there is no case
    """Return the models of names. Raises InferlensError if they cannot run as the plan says."""
    infos, plan = job.infos or [resolve.find(name) for name in job.names], job.plan
    live = Path(job.live) if job.live else None
    for model in infos if job.place else ():
        resolve.check_place(model.spec, job.place)
    if not plan:
        return infos
    if not job.checks:
        return [resolve.with_named_sizes(model, plan, live) for model in infos]
    for model in infos:
        model.check(plan.trust, required=len(infos) == 1)
    checked = [resolve.check(model, plan, live) for model in infos]
    return [resolve.with_layers(model) for model in checked] if plan.recommended else checked


# How long cases take: from records of earlier runs, or else from the typical time of phases.

LATENCY_SHARE = 0.8  # of the time for series, if throughput is measured, too
STARTING = 1.0  # seconds until a process has imported its libraries, as far as that is in no phase
PREPARING = 6.0  # to load, export, build and call for the first time
PREPARATION = ("load", "export", "quantize", "build", "first inference")


def seconds_of(cases: Sequence[PlannedCase], plan: Plan) -> list[float]:
    """Return the seconds of the cases in one process, 0 if a case cannot run."""
    seconds = estimator([planned.model.name for planned in cases], plan)
    return [0.0 if planned.refusal else seconds(planned.case) for planned in cases]


def estimator(models: Iterable[str], plan: Plan) -> Callable[[Case], float]:
    """Return a function from a case of the models to its seconds in one process, by records under ``plan.output``."""
    records: list[Record] = []
    for folder in {Path(plan.output) / safe_name(name) for name in models}:
        with suppress(InferlensError):
            records += load_records(folder).records
    return seconds_by(records, plan)


def seconds_by(records: Iterable[Record], plan: Plan) -> Callable[[Case], float]:
    """Return a function from a case to its seconds in one process, by records of the same model.

    The function returns the median over the records of the case's backend. Without records it returns the typical time
    of phases, and half the longest time of a series. Of records in turns only the time to prepare counts, because their
    processes waited for others. If options make a build longer, the time to prepare is multiplied.
    """
    budget = plan.budget
    series = budget.seconds or (budget.max_time or MAX_TIME) / 2
    typical = PREPARING, STARTING + budget.warmup_seconds + series / LATENCY_SHARE
    parts: dict[str, list[tuple[float, float]]] = {}  # by backend: to prepare without options, and the rest
    for record in records:
        if record.status == "ok":
            prepared = preparation_seconds(record)
            rest = STARTING + sum(phase.seconds for phase in record.phases) - prepared
            rest = typical[1] if IN_TURNS in record.facts else rest
            parts.setdefault(record.case.backend_label, []).append((prepared / build_factor(record.case), rest))

    def seconds_for(case: Case) -> float:
        factor = build_factor(case)
        return median([prepared * factor + rest for prepared, rest in parts.get(case.backend_label, [typical])])

    return seconds_for


def preparation_seconds(record: Record, phases: Collection[str] = PREPARATION) -> float:
    """Return the seconds that a process needed for some phases before its first sample."""
    return sum(phase.seconds for phase in record.phases if phase.name in phases)


def build_factor(case: Case) -> float:
    """Return how many times longer preparing a case takes than with the defaults of its backend, about."""
    try:
        backend = BACKENDS.get(case.backend)
        case = backend.effective(case)
    except InferlensError:  # of a record from elsewhere
        return 1.0
    acting = {knob.name: knob.build for knob in backend.knobs if knob.value_in(case) is not None and knob.fits(case)}
    return math.prod(acting.values()) * backend.slow_variants.get(case.variant or "", 1.0)
