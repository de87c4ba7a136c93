"""What a tuning tries: families, and changes of their knobs.

A *family* is a backend's variant in a precision, with the backend's defaults. A *candidate* is a family with some of
its knobs at other values. Two candidates that would be run alike are one case: :func:`combined` makes every candidate,
and drops what is at its default or does nothing beside the rest. Nothing here runs a candidate.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from inferlens.backends import BACKENDS, importable_backends, reference_backend
from inferlens.backends.base import THREADS, Backend, Capabilities, Knob
from inferlens.errors import InferlensError, Unsupported, check_choice
from inferlens.execution.expand import EVERY_VARIANT, Planned, check_words, default_device
from inferlens.execution.survey import Named, Surveyed, surveyed
from inferlens.measure.monitor.cpu import usable_cpus
from inferlens.models.model import ModelInfo
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, Option, split_label
from inferlens.spec.plan import Plan, Texts, count, listed, texts, toml_words
from inferlens.units import listing

SPACE_WORDS = ("backends", "precision", "knobs")
Kind = Literal["backend or variant", "precision", "option"]
Names = Mapping[str, tuple[Kind, frozenset[str]]]  # what a word means: families, precisions, or BACKEND.KNOB
FAMILY: Kind = "backend or variant"
PRECISION: Kind = "precision"
KNOB: Kind = "option"
KINDS = (FAMILY, PRECISION, KNOB)


@dataclass(frozen=True)
class Tried:
    """What of all that could be tried is; ``knobs``: by backend, with the values beside the default."""

    labels: frozenset[str]
    precisions: frozenset[str]
    knobs: Mapping[str, tuple[Knob, ...]]


@dataclass(frozen=True)
class Space:
    """The candidates of a tuning; ``knobs``: what is tried of them, by backend."""

    families: tuple[Planned, ...]
    refused: tuple[Planned, ...]
    knobs: Mapping[str, tuple[Knob, ...]]

    @property
    def references(self) -> list[Case]:
        """Families of the backend that outputs are checked against, those in fp32 first."""
        both = [(each.case, each.reference) for each in self.families]
        own = [case for case, reference in both if reference and reference.backend == case.backend]
        return sorted((case for case in own if not case.options), key=lambda case: case.precision != "fp32")

    @property
    def recommended(self) -> list[Case]:
        """The ways that backends recommend, or their plain ways, in all precisions, by precision."""
        found: dict[str, Case] = {}
        backends = dict[str, str]()  # of those that recommend nothing the plain variant
        for each in self.families:
            plain = backends.setdefault(each.case.backend, each.case.backend_label)
            if not BACKENDS.get(each.case.backend).recommended and each.case.backend_label == plain:
                found.setdefault(each.case.digest, each.case)
            case, dynamic = each.case, any(spec.dynamic for spec in each.case.inputs)
            for one in BACKENDS.get(case.backend).recommended:
                if one.variant == case.variant and one.fits(case, convolutional=each.found.convolutional):
                    options = {} if one.fixed_shapes and dynamic else one.options
                    way = combined(case, options)
                    values, changes = self.values(case), way.options.items() - case.options.items()
                    if any(value not in values.get(name, ()) for name, value in changes):
                        way = case  # an option of it is left out
                    found.setdefault(way.digest, way)
        return list(found.values())

    def values(self, case: Case) -> dict[str, tuple[Option, ...]]:
        """The values beside the default of each knob that may do something in the case's family."""
        found: dict[str, dict[Option, None]] = {}
        for knob in self.able(case):
            found.setdefault(knob.name, {}).update(dict.fromkeys(knob.values))
        return {name: tuple(values) for name, values in found.items()}

    def able(self, case: Case) -> list[Knob]:
        """The knobs that may do something in the case's family."""
        knobs = self.knobs.get(case.backend, ())
        return [knob for knob in knobs if msgspec.structs.replace(knob, needs=(), excludes=()).fits(case)]

    def settings(self, case: Case) -> dict[str, Option]:
        """What tells a candidate from its family."""
        knobs = self.knobs.get(case.backend, ())
        return {knob.name: value for knob in knobs if (value := knob.value_in(case)) is not None}

    def family(self, case: Case) -> Case:
        """The family of a candidate."""
        return combined(case, dict.fromkeys(self.settings(case)))

    def planned(self, case: Case) -> Planned:
        """A candidate, with the model that it is about."""
        return dataclasses.replace(next(each for each in self.families if each.case.model == case.model), case=case)


def tried(
    file: str | PathLike[str] | None = None,
    only: Texts = (),
    without: Texts = (),
    measures: Collection[str] = ("latency",),
    *,
    cpus: int | None = None,
) -> Tried:
    """What is tried: everything, or what a space file and the words of ``only`` and ``without`` leave.

    Args:
        file: TOML with lists of ``backends`` and ``precision``, and tables ``knobs.BACKEND`` with the values of knobs.
        only: names of backends, variants (``BACKEND:VARIANT``), precisions and knobs (``KNOB`` or ``BACKEND.KNOB``):
            of each kind that is named, nothing else.
        measures: what is aimed at and limited; knobs for other objectives are tried only if they are named.
        cpus: how many the machine has; by default as many as may be used here.

    Raises InferlensError for a name that there is not (near misses are suggested), or a value that an option cannot
    have.
    """
    said = toml_words(Path(file), "space file") if file else {}
    for word in said:
        check_choice("word of a space file", word, SPACE_WORDS)
    knobs = _knobs(said.get("knobs", {}), cpus or len(usable_cpus()))
    names = _names(knobs)
    left = {each: frozenset[str]().union(*(of for kind, of in names.values() if kind == each)) for each in KINDS}
    groups = ((said.get("backends", ()), (FAMILY,)), (said.get("precision", ()), (PRECISION,)), (only, KINDS))
    for words, kinds in groups:
        for kind, meant in _meant(texts(words), names, kinds).items():
            left[kind] &= meant
    named = _meant(texts(only), names, KINDS).get(KNOB, frozenset())
    named |= {f"{backend}.{name}" for backend, name in _values_given(said.get("knobs", {}))}
    aims = {f"{backend}.{knob.name}": knob.objectives for backend, each in knobs.items() for knob in each}
    left[KNOB] -= {name for name, those in aims.items() if those and not {*those} & {*measures}} - named
    for kind, meant in _meant(texts(without), names, KINDS).items():
        left[kind] -= meant
    kept = {
        backend: tuple(knob for knob in each if knob.values and f"{backend}.{knob.name}" in left[KNOB])
        for backend, each in knobs.items()
    }
    return Tried(left[FAMILY], left[PRECISION], kept)


def explore(plan: Plan, what: Tried, model: Named | None = None) -> Space:
    """The space of a plan's models on this machine; ``model`` is the plan's, where it is a live one.

    What the plan says of backends and precisions narrows it, too; its options, and threads if it names any, are those
    of all candidates. Raises InferlensError for a plan or a model that means nothing, or if nothing is left to try.
    """
    asked = asked_for(plan, what)
    backends = dict.fromkeys(label.partition(":")[0] for label in sorted(asked.labels))
    plan = msgspec.structs.replace(plan, backend=tuple(backends), recommended=True)  # which asks for convolutions
    return _space(surveyed(plan, model), asked)


def _space(parts: Sequence[Surveyed], what: Tried) -> Space:
    """The space of what is known of each interpreter."""
    backends = {label.partition(":")[0] for label in what.labels}
    families: dict[str, Planned] = {}
    refused = []
    for part in parts:
        able, anywhere = (
            {name: can for name, can in every.items() if name in backends} for every in (part.can, part.anywhere)
        )
        plan = msgspec.structs.replace(part.plan, recommended=False)
        part = dataclasses.replace(part, can=able, anywhere=anywhere)
        devices = plan.device or (default_device(anywhere.values()),)
        cases = (each for model in part.found for each in part.cases(_widened(plan, model, able, what), [model]))
        for planned in cases:
            case = planned.case
            if not planned.refusal and case.device in devices:
                case = combined(case, {})
                families.setdefault(case.digest, dataclasses.replace(planned, case=case))
            else:
                elsewhere = f"{case.backend_label} runs on {case.device}, and what is tried runs on {listing(devices)}."
                why = planned.refusal or Unsupported(elsewhere, hint=f"--device {case.device}")
                refused.append(dataclasses.replace(planned, refusal=why))
    fixed = {*plan.option, *(f"{name}.{THREADS}" for name in able if plan.threads)}
    knobs = {name: tuple(each for each in what.knobs[name] if f"{name}.{each.name}" not in fixed) for name in able}
    return Space(tuple(families.values()), tuple(refused), knobs)


def combined(case: Case, changes: Mapping[str, Option | None]) -> Case:
    """``case`` with knobs changed, ``None`` to the default, as the plainest case that is run so.

    A knob that does not fit beside the others drops out; of two that exclude each other the one that is named later
    among the backend's. Options that are no knobs stay.
    """
    backend = BACKENDS.get(case.backend)
    given = {THREADS: case.threads, **case.options, **changes}
    threads = given.pop(THREADS)
    options = {name: value for name, value in given.items() if value is not None}
    made = backend.effective(msgspec.structs.replace(case, options=options, threads=threads))
    while unfit := _unfit(made, backend):
        options = {name: value for name, value in made.options.items() if name != unfit[-1]}
        made = msgspec.structs.replace(made, options=options)
    return made


def neighbours(case: Case, space: Space) -> list[Case]:
    """The candidates that differ from ``case`` in one knob: one more, another value, or one less.

    What a knob needs comes along with it, at its first value, and what excludes it goes. What needs a knob that is
    taken away goes with it.
    """
    found: dict[str, Case] = {}
    values, before = space.values(case), _set(case)
    for name in values:
        beside = _beside(name, case, space)
        for value in (*values[name], None):
            near = combined(case, {name: value} if value is None else {**beside, name: value})
            after = _set(near)
            allowed = all(after.get(each) == before[each] for each in before if each not in values)  # the plan's own
            if allowed and after.get(name) == value != before.get(name):
                found.setdefault(near.digest, near)
    return list(found.values())


def combinations(family: Case, space: Space, names: Collection[str] | None = None) -> Iterator[Case]:
    """Every candidate of a family, each once, the family first; of some knobs alone where ``names`` are given."""
    values = {name: each for name, each in space.values(family).items() if names is None or name in names}
    for chosen in itertools.product(*((None, *each) for each in values.values())):
        changes = {name: value for name, value in zip(values, chosen, strict=True) if value is not None}
        case = combined(family, changes)
        if as_asked(case, family, changes):
            yield case


def size(space: Space) -> int:
    """How many candidates there are in all. Knobs that have nothing to do with each other are counted apart."""
    total = 0
    for family in (planned.case for planned in space.families):
        groups = _linked(space.values(family), BACKENDS.get(family.backend).knobs)
        total += math.prod(sum(1 for _ in combinations(family, space, group)) for group in groups)
    return total


def as_asked(made: Case, base: Case, changes: Mapping[str, Option]) -> bool:
    """Whether a case that was :func:`combined` has all changes, and nothing else is changed for them."""
    return _set(made) == {**_set(base), **changes}


def _set(case: Case) -> dict[str, Option]:
    """All that is not at its default."""
    return case.options if case.threads is None else {**case.options, THREADS: case.threads}


def _beside(name: str, case: Case, space: Space) -> dict[str, Option | None]:
    """What has to change in ``case`` for a knob to do something: what it needs comes along, what excludes it goes."""
    knobs, values, before = space.able(case), space.values(case), _set(case)
    brought = [name]
    for each in brought:  # which grows: what it needs may need others
        needed = itertools.chain.from_iterable(knob.needs for knob in knobs if knob.name == each)
        brought += [need for need in needed if need in values and need not in (*before, *brought)]
    excluded = {other for knob in knobs if knob.name in brought for other in knob.excludes}
    excluded |= {knob.name for knob in knobs if not {*knob.excludes}.isdisjoint(brought)}
    return {need: values[need][0] for need in brought} | dict.fromkeys(excluded & before.keys())


def _unfit(case: Case, backend: type[Backend]) -> list[str]:
    """Knobs of a case that do not fit beside its others, in the backend's order."""
    fitting = {knob.name for knob in backend.knobs if knob.fits(case)}
    return [knob.name for knob in backend.knobs if knob.name in case.options and knob.name not in fitting]


def _linked(names: Collection[str], knobs: Sequence[Knob]) -> list[set[str]]:
    """Names of knobs in groups: those that need or exclude each other are in one."""
    groups = [{name} for name in names]
    for knob in knobs:
        linked = {knob.name, *knob.needs, *knob.excludes}
        together = [group for group in groups if group & linked]
        groups = [*(group for group in groups if not group & linked), *([set().union(*together)] if together else [])]
    return groups


def _labels(backend: type[Backend]) -> frozenset[str]:
    """A backend with each of its variants."""
    return frozenset(f"{backend.name}:{variant}".rstrip(":") for variant in backend.variants)


def asked_for(plan: Plan, what: Tried) -> Tried:
    """What is tried, as far as the plan asks for it; refused if that is nothing."""
    check_words(plan)
    labels, precisions = what.labels, what.precisions
    if plan.backend and EVERY_VARIANT not in plan.backend:
        named = [split_label(label, BACKENDS.names()) for label in plan.backend]
        whole = [_labels(BACKENDS.get(name)) for name, variant in named if variant in (None, EVERY_VARIANT)]
        labels &= frozenset[str]().union(plan.backend, *whole)
    if plan.precision:
        precisions &= frozenset(plan.precision)
    if not labels or not precisions:
        kind = PRECISION if labels else FAMILY
        raise InferlensError(f"No {kind} is left to try.", expected="one that all of what was asked for has in common")
    return dataclasses.replace(what, labels=labels, precisions=precisions)


def _widened(plan: Plan, model: ModelInfo, able: Mapping[str, Capabilities], what: Tried) -> Plan:
    """The plan of all families of a model, whether they can run or not."""
    backends: list[str] = []
    for name in able:
        labels = _labels(BACKENDS.get(name))
        backends += [f"{name}:{EVERY_VARIANT}"] if labels <= what.labels else sorted(labels & what.labels)
    fixed = model.precision in QUANTIZED or not reference_backend(model.format)  # quantized or compiled already
    data = plan.calibration and {each for can in able.values() for one in can.supports for each in one.quantizes}
    quantized = tuple(each for each in QUANTIZED if each in (*plan.precision, *(data or ())))
    own = (model.precision,) if fixed else (*PRECISIONS, *quantized)
    asked = [name for name in (*PRECISIONS, *QUANTIZED) if name in what.precisions]
    precision = [name for name in own if name in asked] or asked  # to say why not, if it takes none of them
    return msgspec.structs.replace(plan, backend=tuple(backends), precision=tuple(precision))


def _names(knobs: Mapping[str, Sequence[Knob]]) -> Names:
    """What every word of ``only`` and ``without`` means."""
    names: dict[str, tuple[Kind, frozenset[str]]] = {}
    for backend in sorted(
        importable_backends(), key=lambda each: "fake" in each.reference_for
    ):  # so that errors list it last
        labels = _labels(backend)
        names |= {label: (FAMILY, frozenset([label])) for label in sorted(labels)}
        names[backend.name] = (FAMILY, labels)
    names |= {name: (PRECISION, frozenset([name])) for name in (*PRECISIONS, *QUANTIZED)}
    for backend_name, each in knobs.items():
        for knob in each:
            full = f"{backend_name}.{knob.name}"
            names[full] = (KNOB, frozenset([full]))
            others = names[knob.name][1] if knob.name in names else frozenset[str]()
            names[knob.name] = (KNOB, others | {full})
    return names


def _meant(words: Sequence[str], names: Names, kinds: Sequence[Kind]) -> dict[Kind, frozenset[str]]:
    """What some words mean, by kind."""
    known = [name for name, (kind, _) in names.items() if kind in kinds]
    meant: dict[Kind, frozenset[str]] = {}
    for word in words:
        check_choice(", ".join(kinds[:-1]) + " or " * (len(kinds) > 1) + kinds[-1], word, known)
        kind, these = names[word]
        meant[kind] = meant.get(kind, frozenset()) | these
    return meant


def _knobs(said: Any, cpus: int) -> dict[str, tuple[Knob, ...]]:
    """Every backend's knobs, and threads on the CPU; with the values of a space file, which may name other options."""
    cores = psutil.cpu_count(logical=False) if cpus == psutil.cpu_count() else None
    given = _values_given(said)
    found = {}
    for backend in importable_backends():
        knobs = list(backend.knobs)
        if not any(knob.name == THREADS for knob in knobs):
            counts = dict.fromkeys((cpus // 2, cpus, 1) if cpus > 1 else ())
            knobs.append(Knob(name=THREADS, values=tuple(counts), devices=("cpu",)))
        known = {knob.name for knob in knobs}
        knobs += [Knob(name=name, values=()) for of, name in given if of == backend.name and name not in known]
        found[backend.name] = tuple(
            msgspec.structs.replace(
                knob, values=_checked(backend, knob.name, given.get((backend.name, knob.name), knob.values), cores)
            )
            for knob in knobs
        )
    return found


def _values_given(said: Any) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The values in the tables of a space file, by backend and option; outside of them, of all that have the option."""
    if not isinstance(said, Mapping):
        raise InferlensError(f"'{said}' names no knobs.", expected="tables such as [knobs.BACKEND]")
    given: dict[tuple[str, str], tuple[Any, ...]] = {}
    for name, each in said.items():
        if isinstance(each, Mapping):
            check_choice("backend", name, BACKENDS.names())
            given |= {(name, option): listed(values) for option, values in each.items()}
            continue
        options = {backend.name: (THREADS, *backend.options.__struct_fields__) for backend in importable_backends()}
        check_choice("knob", name, sorted(set().union(*options.values())))
        given |= {(backend, name): listed(each) for backend, known in options.items() if name in known}
    return given


def _checked(backend: type[Backend], name: str, values: Sequence[Any], cores: int | None) -> tuple[Option, ...]:
    """Values of a knob with their types, each once, without the default, which of threads is one for each core."""
    if name == THREADS:
        return tuple(each for each in dict.fromkeys(count(THREADS, value) for value in values) if each != cores)
    if name not in backend.options.__struct_fields__:
        backend.parse_options(Case(model="", backend=backend.name, options={name: ""}))  # says which there are
    cases = [Case(model="", backend=backend.name, options={name: value}) for value in values]
    return tuple(dict.fromkeys(value for case in cases for value in backend.effective(case).options.values()))
