"""Expands a plan into cases, from what its models are and what the backends can do here; both are data by then.

A case that is known not to run here is there too, with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from inferlens.backends import BACKENDS, importable_backends, reference_backend
from inferlens.backends.base import Capabilities
from inferlens.errors import InferlensError, Unsupported, one_of, suggestion
from inferlens.models.model import InputsAtBatch, ModelInfo
from inferlens.models.resolve import feeds
from inferlens.spec.case import AXES, FLAGS, QUANTIZED, Axis, Case, split_label
from inferlens.spec.plan import Plan
from inferlens.units import listing, plural

EVERY_VARIANT = "all"


@dataclass(frozen=True)
class Planned:
    """A case of a plan, the model it is about, and why it cannot run here, if that is known beforehand.

    ``fallback`` is the plain way to measure if this recommended one fails. ``note`` says what a plain way stands for.
    """

    case: Case
    found: ModelInfo
    refusal: Unsupported | None
    note: str = ""
    fallback: Planned | None = None

    @property
    def reference(self) -> Case | None:
        """The case whose outputs this one's are compared with: fp32, on the CPU, same weights and inputs, here.

        An ONNX graph runs in its own precision there too; ``None`` for a compiled model of unknown origin.
        """
        case, origin = self.case, self.found.origin
        if origin is not None:
            case = msgspec.structs.replace(
                case, model=origin.model, weights=origin.weights, seed=origin.seed, inputs=case.inputs or origin.inputs
            )  # its own example, if it has one, is not in the compiled file
        format = self.found.origin_format or self.found.format
        backend = reference_backend(format)
        if not backend:
            return None
        variant, options = BACKENDS.get(backend).reference_for[format]
        variant = variant or BACKENDS.get(backend).variants[0]
        precision = (origin or self.found).precision if format == "onnx" else "fp32"
        return msgspec.structs.replace(
            case, backend=backend, variant=variant, precision=precision, device="cpu", threads=None,
            options=dict(options), io="device", keep="", python="",
        )  # fmt: skip

    @property
    def evaluated_as(self) -> str:
        """Cases that share this have one evaluation of their references: the batch does not matter to it."""
        return msgspec.structs.replace(self.reference, batch=None).digest if self.reference else ""


def backends_named(plan: Plan) -> tuple[str, ...]:
    """The backends that the plan is about: those it names, or every one."""
    known = BACKENDS.names()
    if not plan.backend or EVERY_VARIANT in plan.backend:
        return known
    return tuple(dict.fromkeys(split_label(label, known)[0] for label in plan.backend))


def expand(
    plan: Plan,
    found: Iterable[ModelInfo],
    capabilities: Mapping[str, Capabilities],
    anywhere: Mapping[str, Capabilities] | None = None,
) -> list[Planned]:
    """Every case of the plan, each once, in the order in which they will run.

    Args:
        capabilities: what that interpreter's backends can do: what they cannot has the reason.
        anywhere: what some interpreter's can, where there are several: it is asked of all of them.

    Raises InferlensError if the plan names a backend, variant or option that does not exist, or leaves nothing to run.
    """
    check_words(plan)
    planned: dict[str, Planned] = {}
    found = list(found)
    for model in found:
        model.check(plan.trust, alone=len(found) == 1)
        for feed in feeds(plan, model):
            for case, note in _cases(plan, model, feed, anywhere or capabilities):
                refusal = model.refusal(feed) or capabilities[case.backend].refusal(case, model)
                planned.setdefault(case.digest, Planned(case, model, refusal, note))
    if not planned:
        raise nothing_runs(found, plan.device, capabilities)
    made = [replace(one, fallback=_fallback(one, plan, planned)) for one in planned.values()]
    run = {each.case.backend for each in made}
    for name in plan.option:
        if (backend := name.partition(".")[0]) not in run:
            raise InferlensError(
                f"The option '{name}' is for a backend that runs none of these cases.",
                hint=f"--backend {backend}, which says why",
            )
    return made


def refuse_if_none_runs(planned: Sequence[Planned]) -> None:
    """Refuses a plan of which every case is known not to run: nothing would be measured."""
    refusals = {each.refusal.what: each.refusal for each in planned if each.refusal}
    if any(each.refusal is None for each in planned) or not refusals:
        return
    first, *others = refusals.values()
    if not others:
        ways = listing([*dict.fromkeys(each.case.backend_label for each in planned)])
        raise InferlensError(f"{ways}: {first.what}", expected=first.expected, hint=first.hint)
    more = f" And {plural(len(others), 'more reason')}."
    raise InferlensError(f"No case of this plan can run here. {first.what}{more}", hint="--dry-run, which lists them")


def cases_on(plan: Plan, model: ModelInfo, capabilities: Mapping[str, Capabilities]) -> list[Case]:
    """Every case of the plan for one model on the backends of ``capabilities``, whether they can run here or not."""
    check_words(plan)
    model.check(plan.trust)
    here = {support.device for can in capabilities.values() for support in can.takes(model.format)}
    plan = msgspec.structs.replace(plan, device=plan.device or ("cpu" if "cpu" in here else "cuda",))
    return [case for feed in feeds(plan, model) for case, _ in _cases(plan, model, feed, capabilities)]


def _cases(
    plan: Plan, model: ModelInfo, feed: InputsAtBatch, capabilities: Mapping[str, Capabilities]
) -> Iterator[tuple[Case, str]]:
    """Yield the cases of a model with inputs at a batch, and what plain ones stand for."""
    inputs, batch = feed
    default = default_device(capabilities.values())
    for backend, variant in _backends(plan, model, capabilities, plan.device or (default,)):
        for device in plan.device or (_device_for(capabilities[backend], variant, default),):
            unasked = plan.recommended and not plan.backend and model.format == "module"
            if unasked and device in BACKENDS.get(backend).excluded_devices:
                continue
            chosen = variant if variant is not None else _default_variant(model, capabilities[backend], device)
            known = {"precision": model.precision, "batch": batch, "device": device}
            axes = {axis.name: _asked(plan, axis, known) for axis in AXES}
            of = {name.partition(".")[2]: each for name, each in plan.option.items() if name.startswith(f"{backend}.")}
            for values in itertools.product(*axes.values()):
                chosen_at = dict(zip(axes, values, strict=True))
                case = Case(
                    model=model.spec,
                    backend=backend,
                    variant=installed(backend, capabilities[backend]) if chosen is None else chosen,
                    inputs=inputs,
                    weights=plan.weights,
                    calibration=plan.calibration,
                    keep=plan.keep if chosen_at["precision"] in QUANTIZED else "",
                    checkout=plan.checkout,
                    seed=plan.seed,
                    **chosen_at,
                )
                if plan.recommended and variant is None and not of:
                    yield from list(_recommended(case, model, capabilities[backend])) or [(case, "")]
                    continue
                for options in itertools.product(*of.values()):
                    asked = msgspec.structs.replace(case, options=dict(zip(of, options, strict=True)))
                    parsed = BACKENDS.get(backend).parse_options(asked)  # with the types that the backend gives them
                    yield msgspec.structs.replace(case, options={name: getattr(parsed, name) for name in of}), ""


def _recommended(case: Case, model: ModelInfo, can: Capabilities) -> Iterator[tuple[Case, str]]:
    """Yield the recommended ways of the backend of ``case`` that fit it, and what plain ones stand for.

    What another variant compiled is run by the variant of ``case``.
    """
    usable = {support.variant for support in can.takes(model.format) if support.device == case.device}
    dynamic = any(spec.dynamic for spec in case.inputs)
    for one in BACKENDS.get(case.backend).recommended:
        if one.variant not in usable or (model.origin and one.variant != case.variant):
            continue
        if one.fits(case, convolutional=model.convolutional):
            way = msgspec.structs.replace(case, variant=one.variant, options=one.options)
            if one.fixed_shapes and dynamic:
                note = f"In place of {way.options_label}, which needs fixed shapes."
                yield msgspec.structs.replace(way, options={}), note
            else:
                yield way, ""


def _fallback(one: Planned, plan: Plan, planned: Mapping[str, Planned]) -> Planned | None:
    """Return the plain way of a case whose options are recommended ones, if the plan does not have it."""
    plain = msgspec.structs.replace(one.case, options={})
    if plain.digest in planned or any(name.startswith(f"{plain.backend}.") for name in plan.option):
        return None
    return Planned(plain, one.found, None, f"In place of {one.case.options_label}, which did not run right.")


def default_device(capabilities: Iterable[Capabilities]) -> str:
    """The device of cases that name none: a GPU, where a backend can use one."""
    return "cuda" if any(support.device == "cuda" for can in capabilities for support in can.supports) else "cpu"


def _asked(plan: Plan, axis: Axis, known: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of an axis that a plan asks for; batch and device are chosen one at a time."""
    asked = getattr(plan, axis.name)
    if axis.name in ("batch", "device"):
        return (known[axis.name],)
    return (asked,) if axis.flag else asked or (known.get(axis.name, axis.default),)


def _backends(
    plan: Plan, model: ModelInfo, capabilities: Mapping[str, Capabilities], devices: tuple[str, ...]
) -> Iterator[tuple[str, str | None]]:
    """Backends and variants the plan means; a variant of ``None`` is the default one of the device."""
    reference = reference_backend(model.format)
    here = {
        name: [support.variant for support in can.takes(model.format) if support.device in devices]
        for name, can in capabilities.items()
    }
    usable = [name for name, variants in here.items() if variants]
    usable.sort(key=lambda name: (name != reference, name))
    if not plan.backend:
        yield from ((name, None) for name in usable)
        return
    for label in plan.backend:
        if label == EVERY_VARIANT:
            yield from ((name, each) for name in usable for each in here[name])
            continue
        name, variant = split_label(label, BACKENDS.names())
        variants = BACKENDS.get(name).variants
        if variant == EVERY_VARIANT:
            can = capabilities[name]
            theirs = {one.variant for one in can.supports} - {one.variant for one in can.takes(model.format)}
            yield from ((name, each) for each in variants if each not in theirs)  # not those of other formats alone
        else:
            yield name, variant


def _device_for(can: Capabilities, variant: str | None, default: str) -> str:
    devices = [support.device for support in can.supports if variant is None or support.variant == variant]
    devices = devices or [absence.device for absence in can.absent if absence.device]  # the row then says what it lacks
    return default if default in devices or not devices else devices[0]


def _default_variant(model: ModelInfo, can: Capabilities, device: str) -> str | None:
    """The variant that compiled the model, if that can run it here; else the first that can."""
    own = model.origin.variant if model.origin else ""
    here = [support.variant for support in can.takes(model.format) if support.device == device]
    return own if own and own in here else can.default_variant(device, model.format)


def check_words(plan: Plan) -> None:
    """Refuse backends, variants and options that do not exist, which needs neither the model nor the machine."""
    known = BACKENDS.names()
    named = [split_label(label, known) for label in plan.backend if label != EVERY_VARIANT]
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
            having = [each.name for each in importable_backends() if name in each.options.__struct_fields__]
            hint = f"--option {having[0]}.{name}={values[0] if values else 'VALUE'}" if having else ""
            raise InferlensError(
                f"The option '{name}' names no backend.",
                expected="BACKEND.OPTION=VALUE, as inferlens backends NAME lists them",
                hint=hint or suggestion(name, FLAGS, spelled=FLAGS),
            )
        split_label(backend, known)
        if plan.backend and EVERY_VARIANT not in plan.backend and backend not in [each for each, _ in named]:
            raise InferlensError(
                f"The option '{name}' is for a backend that the plan leaves out.", hint=f"--backend {backend}"
            )
        for value in values:
            BACKENDS.get(backend).parse_options(Case(model="", backend=backend, options={option: value}))


def installed(backend: str, can: Capabilities) -> str:
    """The first variant that lacks nothing but a device; the first of all if every one lacks more.

    Where a backend says what it writes without a device, that is first what is installed.
    """
    lacking = {absence.variant for absence in can.absent if not absence.device}
    variants = [*(support.variant for support in can.writes), *BACKENDS.get(backend).variants]
    return next((each for each in variants if each not in lacking), variants[0])


def nothing_runs(
    found: Sequence[ModelInfo], devices: Sequence[str], capabilities: Mapping[str, Capabilities]
) -> InferlensError:
    """That no backend runs these models on these devices (none: on any), with what those lack that take them."""
    reasons: dict[str, list[str]] = {}
    hints: set[str] = set()
    for model, (name, can) in itertools.product(found, capabilities.items()):
        built_by = model.origin.variant if model.origin else ""
        variant = built_by if built_by in BACKENDS.get(name).variants else installed(name, can)
        for absence in can.absent if model.format in can.formats else ():
            if absence.variant in ("", variant) and (not absence.device or not devices or absence.device in devices):
                labels = reasons.setdefault(absence.reason.rstrip("."), [])
                labels += {f"{name}:{absence.variant}".rstrip(":")} - {*labels}
                hints.add(absence.hint)
                break
    formats = listing(list(dict.fromkeys(model.format for model in found)))
    on = f" on {listing(devices)}" if devices else ""
    said = "; ".join(f"{listing(labels)}: {reason}" for reason, labels in reasons.items())
    return InferlensError(
        f"No backend here runs models of format {formats}{on}.{f' {said}.' if said else ''}",
        hint="".join(hints) if len(hints) == 1 and hints != {""} else "inferlens doctor",
    )
