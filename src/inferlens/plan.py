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
from inferlens.case import DEVICES, PRECISIONS, Budget, Case, Option, TensorSpec
from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.models.model import REFERENCES, Found
from inferlens.units import parse_duration

EVERY_VARIANT = "all"


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure.

    Attributes:
        model: names, files or factories.
        backend: ``name`` or ``name:variant``; empty is every backend that works here, ``all`` every variant of them.
        precision, batch, device, threads: the axes; empty is the default of each.
        option: values by ``backend.option``.
        input: inputs that replace the model's own.
        budget: how much measuring each case gets.
    """

    model: tuple[str, ...]
    backend: tuple[str, ...] = ()
    precision: tuple[str, ...] = ("fp32",)
    batch: tuple[int, ...] = ()
    device: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    option: dict[str, tuple[str, ...]] = {}
    input: tuple[TensorSpec, ...] = ()
    weights: str | None = None
    trust: bool = False
    seed: int = 0
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
            model=_texts(words["model"]),
            backend=_texts(words.get("backend", ())),
            precision=_known("precision", words.get("precision", "fp32"), PRECISIONS),
            batch=_counts("batch", words.get("batch", ())),
            device=_known("device", words.get("device", ()), DEVICES),
            threads=_counts("threads", words.get("threads", ())),
            option=_options(words.get("option", {})),
            input=tuple(TensorSpec.parse(text) for text in _listed(words.get("input", ()))),
            weights=words.get("weights"),
            trust=_flag("trust", words.get("trust", False)),
            seed=_count("seed", words.get("seed", 0), least=0),
            budget=_budget(words),
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
    def reference(self) -> Case:
        """The case whose outputs this one's are compared with: fp32, on the CPU, same weights and inputs."""
        label, options = REFERENCES[self.found.format]
        backend, _, variant = label.partition(":")
        variant = variant or BACKENDS.get(backend).variants[0]
        return msgspec.structs.replace(
            self.case, backend=backend, variant=variant, precision="fp32", device="cpu", threads=None,
            options=dict(options),
        )  # fmt: skip


def expand(plan: Plan, found: Iterable[Found], capabilities: Mapping[str, Capabilities]) -> list[Planned]:
    """Every case of the plan, each once, in the order in which they will run.

    Raises:
        InferlensError: if the plan names a backend, variant or option that does not exist, or leaves nothing to run.
    """
    _check_options(plan, capabilities)
    planned: dict[str, Planned] = {}
    for model in found:
        for batch in plan.batch or (model.batch,):
            for case in _cases(plan, model, batch, capabilities):
                refusal = capabilities[case.backend].refusal(case, model.format)
                planned.setdefault(f"{case.digest}", Planned(case, model, refusal))
    if not planned:
        raise InferlensError("No backend here can run this plan.", cure="inferlens doctor")
    return list(planned.values())


def _cases(plan: Plan, model: Found, batch: int | None, capabilities: Mapping[str, Capabilities]) -> Iterator[Case]:
    default = _default_device(capabilities)
    for backend, variant in _backends(plan, model, capabilities, plan.device or (default,)):
        for device in plan.device or (_device_for(capabilities[backend], variant, default),):
            chosen = variant if variant is not None else capabilities[backend].default_variant(device)
            for precision, threads in itertools.product(plan.precision, plan.threads or (None,)):
                for options in _option_sets(plan, backend):
                    case = Case(
                        model=model.spec,
                        backend=backend,
                        variant=BACKENDS.get(backend).variants[0] if chosen is None else chosen,
                        precision=precision,
                        batch=batch,
                        device=device,
                        threads=threads,
                        options=options,
                        inputs=plan.input,
                        weights=plan.weights,
                        seed=plan.seed,
                    )
                    yield msgspec.structs.replace(case, options=_typed(case))


def _backends(
    plan: Plan, model: Found, capabilities: Mapping[str, Capabilities], devices: tuple[str, ...]
) -> Iterator[tuple[str, str | None]]:
    """Backends and variants the plan means; a variant of ``None`` is the default one of the device."""
    reference = REFERENCES[model.format][0].partition(":")[0]
    usable = [
        name
        for name, can in capabilities.items()
        if model.format in can.formats and any(support.device in devices for support in can.supports)
    ]
    usable.sort(key=lambda name: (name != reference, name))
    if not plan.backend:
        yield from ((name, None) for name in usable)
        return
    for label in plan.backend:
        if label == EVERY_VARIANT:
            for name in usable:
                supports = [support for support in capabilities[name].supports if support.device in devices]
                yield from ((name, support.variant) for support in supports)
            continue
        name, variant = split_label(label, list(capabilities))
        variants = BACKENDS.get(name).variants
        if variant == EVERY_VARIANT:
            yield from ((name, each) for each in variants)
        elif variant is not None and variant not in variants:
            raise InferlensError(
                f"Backend '{name}' has no variant '{variant}'.",
                expected=f"one of {', '.join(variants)}" if variants != ("",) else f"'{name}' alone",
                cure=suggestion(variant, variants),
            )
        else:
            yield name, variant


def _default_device(capabilities: Mapping[str, Capabilities]) -> str:
    """A GPU if any backend can use one, else the CPU."""
    devices = {support.device for can in capabilities.values() for support in can.supports}
    return "cuda" if "cuda" in devices else "cpu"


def _device_for(can: Capabilities, variant: str | None, default: str) -> str:
    devices = [support.device for support in can.supports if variant is None or support.variant == variant]
    return default if default in devices or not devices else devices[0]


def _option_sets(plan: Plan, backend: str) -> list[dict[str, Option]]:
    """Every combination of the values given for this backend's options."""
    mine = {name.partition(".")[2]: values for name, values in plan.option.items() if name.partition(".")[0] == backend}
    return [dict(zip(mine, values, strict=True)) for values in itertools.product(*mine.values())]


def _typed(case: Case) -> dict[str, Option]:
    """The case's options with the types that the backend gives them."""
    parsed = BACKENDS.get(case.backend).parse_options(case)
    return {name: getattr(parsed, name) for name in case.options}


def _check_options(plan: Plan, capabilities: Mapping[str, Capabilities]) -> None:
    named = [split_label(label, list(capabilities))[0] for label in plan.backend if label != EVERY_VARIANT]
    for name in plan.option:
        backend, dot, _ = name.partition(".")
        if not dot:
            form = "BACKEND.OPTION=VALUE, such as onnxruntime.graph_optimization=all,basic"
            raise InferlensError(f"The option '{name}' names no backend.", expected=form)
        split_label(backend, list(capabilities))
        if plan.backend and EVERY_VARIANT not in plan.backend and backend not in named:
            raise InferlensError(
                f"The option '{name}' is for a backend that the plan leaves out.", cure=f"--backend {backend}"
            )


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _texts(value: Any) -> tuple[str, ...]:
    """Texts from a text with commas, a list of such, or single values of another type."""
    parts = [part.strip() for item in _listed(value) for part in _word(item).split(",")]
    return tuple(part for part in parts if part)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known(axis: str, value: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    texts = _texts(value)
    for text in texts:
        if text not in known:
            raise InferlensError(
                f"'{text}' is no {axis}.", expected=f"one of {', '.join(known)}", cure=suggestion(text, known)
            )
    return texts


def _counts(axis: str, value: Any) -> tuple[int, ...]:
    return tuple(_count(axis, text) for text in _texts(value))


def _count(axis: str, value: Any, least: int = 1) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise InferlensError(f"'{value}' is no value for {axis}.", expected=f"a whole number, {least} or more")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InferlensError(f"'{value}' is no value for {name}.", expected="true or false")
    return value


def _options(value: Any) -> dict[str, tuple[str, ...]]:
    """``{"backend.option": values}`` from that form, from ``backend.option=values`` texts, or from nested tables."""
    if not isinstance(value, Mapping):
        pairs = [str(text).partition("=") for text in _listed(value)]
        for name, equals, _ in pairs:
            if not equals:
                form = "BACKEND.OPTION=VALUE, such as onnxruntime.graph_optimization=all,basic"
                raise InferlensError(f"The option '{name}' has no value.", expected=form)
        return {name.strip(): _texts(values) for name, _, values in pairs}
    flat: dict[str, tuple[str, ...]] = {}
    for name, values in value.items():
        if isinstance(values, Mapping):
            flat |= {f"{name}.{option}": _texts(each) for option, each in values.items()}
        else:
            flat[name] = _texts(values)
    return flat


def _budget(words: Mapping[str, Any]) -> Budget:
    given: dict[str, Any] = {}
    if "warmup" in words:
        given["warmup"] = _count("warmup", words["warmup"], least=0)
    if "iterations" in words:
        given["iterations"] = _count("iterations", words["iterations"])
    for name in ("seconds", "timeout"):
        if name in words:
            given[name] = parse_duration(str(words[name]))
    return Budget(**given)


_WORDS = frozenset(
    ("model", "backend", "precision", "batch", "device", "threads", "option", "input", "weights", "trust", "seed",
     "warmup", "iterations", "seconds", "timeout", "output")
)  # fmt: skip
