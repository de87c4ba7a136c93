"""A :class:`Plan`: axes whose values multiply into cases. The same words on the command line, in a file and in Python.

Expanding a plan needs to know what the models are and what the backends can do here; both are data by then.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.backends import BACKENDS
from inferlens.backends.base import Capabilities, split_label
from inferlens.case import DEVICES, IO, PRECISIONS, QUANTIZED, Budget, Case, Option, TensorSpec
from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.models.model import REFERENCES, Found
from inferlens.plan_absences import installed, nothing_runs
from inferlens.plan_budget import BUDGET_WORDS, budget_of
from inferlens.plan_words import count, counts, flag, known, listed, option_values, texts

EVERY_VARIANT = "all"


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure.

    Attributes:
        model: names, files or factories.
        backend: ``name`` or ``name:variant``; empty is every backend that works here, ``all`` every variant of them.
        precision, batch, device, threads, io: the axes; empty is the default of each.
        option: values by ``backend.option``.
        input: inputs that replace the model's own.
        cold: whether the device's cache is flushed before each latency sample.
        rotate: whether inputs rotate through a set that is larger than the device's cache.
        depth: values of how many calls are in flight when throughput is measured; empty is no limit.
        rebuild: whether to build anew what was built before.
        repeats: processes that each case is measured in, in turns with the other cases.
        budget: what is measured of each case, and how much.
    """

    model: tuple[str, ...]
    backend: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    device: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    io: tuple[str, ...] = ("device",)
    cold: bool = False
    rotate: bool = False
    depth: tuple[int, ...] = ()
    option: dict[str, tuple[str, ...]] = {}
    input: tuple[TensorSpec, ...] = ()
    weights: str | None = None
    trust: bool = False
    rebuild: bool = False
    seed: int = 0
    repeats: int = 1
    budget: Budget = Budget()
    output: str = "results"

    @staticmethod
    def from_words(words: Mapping[str, Any]) -> Plan:
        """A plan from words as a person writes them: single values, lists, or texts with commas.

        Raises:
            InferlensError: for an unknown word or a value that does not fit.
        """
        words = {name: value for name, value in words.items() if value is not None}
        for name in words:
            if name not in _WORDS:
                raise InferlensError(
                    f"A plan has no '{name}'.",
                    expected=f"one of {', '.join(sorted(_WORDS))}",
                    cure=suggestion(name, _WORDS),
                )
        if not words.get("model"):
            raise InferlensError("The plan names no model.", cure="inferlens bench resnet18")
        return Plan(
            model=texts(words["model"]),
            backend=texts(words.get("backend", ())),
            precision=known("precision", words.get("precision", ()), (*PRECISIONS, *QUANTIZED)),
            batch=counts("batch", words.get("batch", ())),
            device=known("device", words.get("device", ()), DEVICES),
            threads=counts("threads", words.get("threads", ())),
            io=known("io", words.get("io", "device"), IO),
            cold=flag("cold", words.get("cold", False)),
            rotate=flag("rotate", words.get("rotate", False)),
            depth=counts("depth", words.get("depth", ())),
            option=option_values(words.get("option", {})),
            input=TensorSpec.parse_all(listed(words.get("input", ()))),
            weights=words.get("weights"),
            trust=flag("trust", words.get("trust", False)),
            rebuild=flag("rebuild", words.get("rebuild", False)),
            seed=count("seed", words.get("seed", 0), least=0),
            repeats=count("repeats", words.get("repeats", 1)),
            budget=budget_of(words),
            output=str(words.get("output", "results")),
        )

    @staticmethod
    def from_file(path: Path) -> dict[str, Any]:
        """The words of a plan file (TOML).

        Raises:
            InferlensError: if the file cannot be read or is no TOML.
        """
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InferlensError(f"The plan {path} cannot be read: {error}.", expected="a TOML file") from error


@dataclass(frozen=True)
class Planned:
    """A case of a plan, the model it is about, and why it cannot run here, if that is known beforehand."""

    case: Case
    found: Found
    refusal: Unsupported | None

    @property
    def reference(self) -> Case | None:
        """The case whose outputs this one's are compared with: fp32, on the CPU, same weights and inputs.

        An ONNX graph runs in its own precision there too; ``None`` for a compiled model of which nobody tells the
        origin.
        """
        case, origin = self.case, self.found.origin
        if origin is not None:
            case = msgspec.structs.replace(
                case, model=origin.spec, weights=origin.weights, seed=origin.seed, inputs=case.inputs or origin.inputs
            )  # its own example, if it has one, is not in the compiled file
        format = origin.format if origin else self.found.format
        if format not in REFERENCES:
            return None
        label, options = REFERENCES[format]
        backend, _, variant = label.partition(":")
        variant = variant or BACKENDS.get(backend).variants[0]
        precision = (origin or self.found).precision if format == "onnx" else "fp32"
        return msgspec.structs.replace(
            case, backend=backend, variant=variant, precision=precision, device="cpu", threads=None,
            options=dict(options), io="device",
        )  # fmt: skip


def backends_named(plan: Plan) -> tuple[str, ...]:
    """The backends that the plan is about: those it names, or every one.

    Raises:
        InferlensError: if it names one that does not exist.
    """
    known = BACKENDS.names()
    if not plan.backend or EVERY_VARIANT in plan.backend:
        return known
    return tuple(dict.fromkeys(split_label(label, known)[0] for label in plan.backend))


def expand(plan: Plan, found: Iterable[Found], capabilities: Mapping[str, Capabilities]) -> list[Planned]:
    """Every case of the plan, each once, in the order in which they will run.

    Raises:
        InferlensError: if the plan names a backend, variant or option that does not exist, or leaves nothing to run.
    """
    _check_options(plan, capabilities)
    planned: dict[str, Planned] = {}
    found = list(found)
    for model in found:
        model.check(plan.trust, alone=len(found) == 1)
        for batch in plan.batch or (_own_batch(plan, model),):
            for case in _cases(plan, model, batch, capabilities):
                refusal = model.problem.refusal() if model.problem else capabilities[case.backend].refusal(case, model)
                planned.setdefault(f"{case.digest}", Planned(case, model, refusal))
    if not planned:
        raise nothing_runs(found, plan.device, capabilities)
    return list(planned.values())


def cases_on(plan: Plan, model: Found, capabilities: Mapping[str, Capabilities], device: str = "") -> list[Case]:
    """Every case of the plan for one model on the backends of ``capabilities``, whether they can run here or not.

    Raises:
        InferlensError: if the plan names a variant or option that does not exist.
    """
    _check_options(plan, capabilities)
    model.check(plan.trust)
    if not device:
        here = {support.device for can in capabilities.values() for support in can.takes(model.format)}
        device = "cpu" if "cpu" in here else "cuda"
    plan = msgspec.structs.replace(plan, device=plan.device or (device,))
    batches = plan.batch or (_own_batch(plan, model),)
    return [case for batch in batches for case in _cases(plan, model, batch, capabilities)]


def _own_batch(plan: Plan, model: Found) -> int | None:
    """The batch when none was asked for: that of the inputs asked for, else the model's."""
    asked = plan.input[0].shape if plan.input else ()
    return asked[0] if asked else model.batch


def _cases(plan: Plan, model: Found, batch: int | None, capabilities: Mapping[str, Capabilities]) -> Iterator[Case]:
    default = _default_device(capabilities)
    for backend, variant in _backends(plan, model, capabilities, plan.device or (default,)):
        for device in plan.device or (_device_for(capabilities[backend], variant, default),):
            chosen = variant if variant is not None else _default_variant(model, capabilities[backend], device)
            precisions = plan.precision or (model.precision,)
            ways = (plan.threads or (None,), plan.io or IO[:1], plan.depth or (None,))
            for precision, threads, io, depth in itertools.product(precisions, *ways):
                for options in _option_sets(plan, backend):
                    case = Case(
                        model=model.spec,
                        backend=backend,
                        variant=installed(backend, capabilities[backend]) if chosen is None else chosen,
                        precision=precision,
                        batch=batch,
                        device=device,
                        threads=threads,
                        options=options,
                        inputs=plan.input,
                        weights=plan.weights,
                        seed=plan.seed,
                        io=io,
                        cold=plan.cold,
                        rotate=plan.rotate,
                        depth=depth,
                    )
                    yield msgspec.structs.replace(case, options=_typed(case))


def _backends(
    plan: Plan, model: Found, capabilities: Mapping[str, Capabilities], devices: tuple[str, ...]
) -> Iterator[tuple[str, str | None]]:
    """Backends and variants the plan means; a variant of ``None`` is the default one of the device."""
    reference = REFERENCES.get(model.format, ("", {}))[0].partition(":")[0]
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
        name, variant = split_label(label, list(capabilities))
        variants = BACKENDS.get(name).variants
        if variant == EVERY_VARIANT:
            elsewhere = _for_others(model, capabilities[name])
            yield from ((name, each) for each in variants if each not in elsewhere)
        elif variant is not None and variant not in variants:
            raise InferlensError(
                f"Backend '{name}' has no variant '{variant}'.",
                expected=f"one of {', '.join(variants)}" if variants != ("",) else f"'{name}' alone",
                cure=suggestion(variant, variants),
            )
        else:
            yield name, variant


def _for_others(model: Found, can: Capabilities) -> set[str]:
    """Variants that are there for models of other formats alone."""
    return {support.variant for support in can.supports} - {support.variant for support in can.takes(model.format)}


def _default_device(capabilities: Mapping[str, Capabilities]) -> str:
    """A GPU if any backend can use one, else the CPU."""
    devices = {support.device for can in capabilities.values() for support in can.supports}
    return "cuda" if "cuda" in devices else "cpu"


def _device_for(can: Capabilities, variant: str | None, default: str) -> str:
    devices = [support.device for support in can.supports if variant is None or support.variant == variant]
    devices = devices or [absence.device for absence in can.absent if absence.device]  # the row then says what it lacks
    return default if default in devices or not devices else devices[0]


def _default_variant(model: Found, can: Capabilities, device: str) -> str | None:
    """The variant that compiled the model, if that can run it here; else the first that can."""
    own = model.origin.variant if model.origin else ""
    here = [support.variant for support in can.takes(model.format) if support.device == device]
    return own if own and own in here else can.default_variant(device, model.format)


def _option_sets(plan: Plan, backend: str) -> list[dict[str, Option]]:
    """Every combination of the values given for this backend's options."""
    mine = {name.partition(".")[2]: values for name, values in plan.option.items() if name.partition(".")[0] == backend}
    return [dict(zip(mine, values, strict=True)) for values in itertools.product(*mine.values())]


def _typed(case: Case) -> dict[str, Option]:
    """The case's options with the types that the backend gives them."""
    parsed = BACKENDS.get(case.backend).parse_options(case)
    return {name: getattr(parsed, name) for name in case.options}


def _check_options(plan: Plan, capabilities: Mapping[str, Capabilities]) -> None:
    known = list(dict.fromkeys((*capabilities, *BACKENDS.names())))
    named = [split_label(label, known)[0] for label in plan.backend if label != EVERY_VARIANT]
    for name in plan.option:
        backend, dot, _ = name.partition(".")
        if not dot:
            form = "BACKEND.OPTION=VALUE, such as onnxruntime.graph_optimization=all,basic"
            raise InferlensError(f"The option '{name}' names no backend.", expected=form)
        split_label(backend, known)
        if plan.backend and EVERY_VARIANT not in plan.backend and backend not in named:
            raise InferlensError(
                f"The option '{name}' is for a backend that the plan leaves out.", cure=f"--backend {backend}"
            )


_WORDS = frozenset(
    ("model", "backend", "precision", "batch", "device", "threads", "option", "input", "weights", "trust", "seed",
     "io", "cold", "rotate", "depth", "repeats", "rebuild", "output", *BUDGET_WORDS)
)  # fmt: skip
