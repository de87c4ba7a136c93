"""The search space of a tuning: families, and changes of their knobs.

A *family* is a backend's variant in a precision, with the backend's defaults. A *candidate* is a family with some of
its knobs at other values. Two candidates that would run alike are one case: :func:`combined` makes every candidate,
and drops knobs that are at their default or do nothing with the others. Nothing here runs a candidate.
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

import psutil
from msgspec.structs import replace

from inferlens.analysis.measures import bottleneck
from inferlens.analysis.tuning import Advice, Candidate, Point, SkippedCandidate, Trial
from inferlens.backends import BACKENDS, importable_backends, reference_backend
from inferlens.backends.base import THREADS, Backend, Capabilities, Knob
from inferlens.errors import InferlensError, Unsupported, check_choice
from inferlens.execution.cases import EVERY_VARIANT, ModelHandle, ProbeResult, check_words, default_device, probe_plan
from inferlens.execution.protocol import PlannedCase
from inferlens.measure.monitor import usable_cpus
from inferlens.models.model import ModelInfo
from inferlens.record.record import Record
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, Option, split_label
from inferlens.spec.options import count, listed, texts
from inferlens.spec.plan import Plan, Texts, toml_words
from inferlens.units import listing

SPACE_WORDS = ("backends", "precision", "knobs")
Kind = Literal["backend or variant", "precision", "option"]
Names = Mapping[str, tuple[Kind, frozenset[str]]]  # the meaning of a word: families, precisions, or BACKEND.KNOB
FAMILY: Kind = "backend or variant"
PRECISION: Kind = "precision"
KNOB: Kind = "option"
KINDS = (FAMILY, PRECISION, KNOB)
# Times as slow as the best: slower candidates are not followed. CUDA graphs can be four times as fast.
ADVICE_REACH = {"host": 4.0, "layout": 1.3, "memory": 1.3}
LOWER = ("fp16", "bf16")  # precisions that move fewer bytes than fp32


@dataclass(frozen=True)
class SearchSelection:
    """The part of the search space that the user selected; ``knobs`` by backend, without default values."""

    labels: frozenset[str]
    precisions: frozenset[str]
    knobs: Mapping[str, tuple[Knob, ...]]


@dataclass(frozen=True)
class SearchSpace:
    """The candidates of a tuning; ``knobs`` by backend."""

    families: tuple[PlannedCase, ...]
    refused: tuple[PlannedCase, ...]
    knobs: Mapping[str, tuple[Knob, ...]]

    @property
    def references(self) -> list[Case]:
        """The families of the reference backend, those in fp32 first."""
        references = []
        for family in self.families:
            reference = family.reference
            if reference and reference.backend == family.case.backend and not family.case.options:
                references.append(family.case)
        return sorted(references, key=lambda case: case.precision != "fp32")

    @property
    def recommended(self) -> list[Case]:
        """The cases that backends recommend, or their plain cases, in all precisions, by precision."""
        recommended: dict[str, Case] = {}
        plain_labels: dict[str, str] = {}  # by backend, the label of its first variant
        for family in self.families:
            case, dynamic = family.case, any(spec.dynamic for spec in family.case.inputs)
            plain_label = plain_labels.setdefault(case.backend, case.backend_label)
            ways = BACKENDS.get(case.backend).recommended
            if not ways and case.backend_label == plain_label:
                recommended.setdefault(case.digest, case)
            for way in ways:
                if way.variant == case.variant and way.fits(case, convolutional=family.model.convolutional):
                    candidate = combined(case, {} if way.fixed_shapes and dynamic else way.options)
                    values, changes = self.values(case), candidate.options.items() - case.options.items()
                    if any(value not in values.get(name, ()) for name, value in changes):
                        candidate = case  # the user left out one of its options
                    recommended.setdefault(candidate.digest, candidate)
        return list(recommended.values())

    def values(self, case: Case) -> dict[str, tuple[Option, ...]]:
        """Return the values, without the default, of the knobs that may do something in the case's family."""
        values_of: dict[str, dict[Option, None]] = {}
        for knob in self.able(case):
            values_of.setdefault(knob.name, {}).update(dict.fromkeys(knob.values))
        return {name: tuple(values) for name, values in values_of.items()}

    def able(self, case: Case) -> list[Knob]:
        """Return the knobs that may do something in the case's family."""
        knobs = self.knobs.get(case.backend, ())
        return [knob for knob in knobs if replace(knob, needs=(), excludes=()).fits(case)]

    def settings(self, case: Case) -> dict[str, Option]:
        """Return the settings of a candidate that differ from its family."""
        knobs = self.knobs.get(case.backend, ())
        return {knob.name: value for knob in knobs if (value := knob.value_in(case)) is not None}

    def family(self, case: Case) -> Case:
        return combined(case, dict.fromkeys(self.settings(case)))

    def point(self, case: Case) -> Point:
        settings = frozenset(f"{name}={value}" for name, value in self.settings(case).items())
        return Point(self.family(case).label, settings)

    def planned(self, case: Case) -> PlannedCase:
        """Return a candidate with its model."""
        family = next(family for family in self.families if family.case.model == case.model)
        return dataclasses.replace(family, case=case)


def search_selection(
    file: str | PathLike[str] | None = None,
    only: Texts = (),
    without: Texts = (),
    measures: Collection[str] = ("latency",),
    *,
    cpus: int | None = None,
) -> SearchSelection:
    """Return the selection: everything, or the part that a space file and ``only`` and ``without`` leave.

    Args:
        file: TOML with lists of ``backends`` and ``precision``, and tables ``knobs.BACKEND`` with the values of knobs.
        only: names of backends, variants (``BACKEND:VARIANT``), precisions and knobs (``KNOB`` or ``BACKEND.KNOB``).
            If a kind is named, the rest of this kind is left out.
        without: names that are left out, as in ``only``.
        measures: names of the objective and the limits. Knobs for other objectives are tried only if they are named.
        cpus: the CPUs of the machine; by default as many as may be used here.

    Raises InferlensError for an unknown name (near misses are suggested), or a value that an option cannot have.
    """
    file_words = toml_words(Path(file), "space file") if file else {}
    for word in file_words:
        check_choice("word of a space file", word, SPACE_WORDS)
    table = file_words.get("knobs", {})
    knobs = _knobs(table, cpus or len(usable_cpus()))
    names = _names(knobs)
    selected: dict[Kind, frozenset[str]] = dict.fromkeys(KINDS, frozenset())
    for kind, meaning in names.values():
        selected[kind] |= meaning
    backends, precisions = file_words.get("backends", ()), file_words.get("precision", ())
    for words, kinds in ((backends, (FAMILY,)), (precisions, (PRECISION,)), (only, KINDS)):
        for kind, meaning in _meanings(texts(words), names, kinds).items():
            selected[kind] &= meaning
    named = _meanings(texts(only), names, KINDS).get(KNOB, frozenset())
    named |= {f"{backend}.{name}" for backend, name in _values_of_file(table)}
    for backend, backend_knobs in knobs.items():
        for knob in backend_knobs:
            if knob.objectives and not {*knob.objectives} & {*measures}:
                selected[KNOB] -= {f"{backend}.{knob.name}"} - named
    for kind, meaning in _meanings(texts(without), names, KINDS).items():
        selected[kind] -= meaning
    selected_knobs = {
        backend: tuple(knob for knob in knobs[backend] if knob.values and f"{backend}.{knob.name}" in selected[KNOB])
        for backend in knobs
    }
    return SearchSelection(selected[FAMILY], selected[PRECISION], selected_knobs)


def explore(plan: Plan, selection: SearchSelection, model: ModelHandle | None = None) -> SearchSpace:
    """Return the search space of a plan's models on this machine; ``model`` is the plan's live one.

    Backends and precisions of the plan narrow the space, too. All candidates have the plan's options, and its threads
    if it names any. Raises InferlensError for a plan or a model that means nothing, or if nothing is left to try.
    """
    selection = narrowed_selection(plan, selection)
    backends = dict.fromkeys(label.partition(":")[0] for label in sorted(selection.labels))
    plan = replace(plan, backend=tuple(backends), recommended=True)  # so that models are searched for convolutions
    return _space(probe_plan(plan, model), selection)


def _space(parts: Sequence[ProbeResult], selection: SearchSelection) -> SearchSpace:
    """Return the search space of all interpreters."""
    backends = {label.partition(":")[0] for label in selection.labels}
    families: dict[str, PlannedCase] = {}
    refused = []
    for part in parts:
        capabilities = {name: ability for name, ability in part.capabilities.items() if name in backends}
        anywhere = {name: ability for name, ability in part.anywhere.items() if name in backends}
        plan = replace(part.plan, recommended=False)
        part = dataclasses.replace(part, capabilities=capabilities, anywhere=anywhere)
        devices = plan.device or (default_device(anywhere.values()),)
        for model in part.models:
            for planned in part.cases(_widened(plan, model, capabilities, selection), [model]):
                case = planned.case
                if not planned.refusal and case.device in devices:
                    case = combined(case, {})
                    families.setdefault(case.digest, dataclasses.replace(planned, case=case))
                    continue
                what = f"{case.backend_label} runs on {case.device}, and what is tried runs on {listing(devices)}."
                refusal = planned.refusal or Unsupported(what, hint=f"--device {case.device}")
                refused.append(dataclasses.replace(planned, refusal=refusal))
    fixed = {*plan.option, *(f"{name}.{THREADS}" for name in capabilities if plan.threads)}
    knobs = {
        name: tuple(knob for knob in selection.knobs[name] if f"{name}.{knob.name}" not in fixed)
        for name in capabilities
    }
    return SearchSpace(tuple(families.values()), tuple(refused), knobs)


def combined(case: Case, changes: Mapping[str, Option | None]) -> Case:
    """Return ``case`` with knobs changed, ``None`` to the default, as the plainest case that runs the same.

    A knob that does not fit the others is dropped. Of two knobs that exclude each other, that is the later one in the
    backend's order. Options that are no knobs stay.
    """
    backend = BACKENDS.get(case.backend)
    values = {THREADS: case.threads, **case.options, **changes}
    threads = values.pop(THREADS)
    options = {name: value for name, value in values.items() if value is not None}
    candidate = backend.effective(replace(case, options=options, threads=threads))
    while unfit := _unfit_knobs(candidate, backend):
        options = {name: value for name, value in candidate.options.items() if name != unfit[-1]}
        candidate = replace(candidate, options=options)
    return candidate


def neighbours(case: Case, space: SearchSpace) -> list[Case]:
    """Return the candidates that differ from ``case`` in one knob: one more, another value, or one less.

    Knobs that a knob needs come along, at their first values, and knobs that exclude it go. Knobs that need a removed
    one go with it.
    """
    results: dict[str, Case] = {}
    values, before = space.values(case), _settings(case)
    plan_options = {name: value for name, value in before.items() if name not in values}
    for name in values:
        linked = _linked_changes(name, case, space)
        for value in (*values[name], None):
            candidate = combined(case, {name: value} if value is None else {**linked, name: value})
            after = _settings(candidate)
            if plan_options.items() <= after.items() and after.get(name) == value != before.get(name):
                results.setdefault(candidate.digest, candidate)
    return list(results.values())


def remedies(case: Case, limit: str, space: SearchSpace) -> set[str]:
    """Return the settings, the variant and the precision of a case that may help against a bottleneck."""
    helping_knobs = {knob.name for knob in space.able(case) if limit in knob.helps}
    result = {f"{name}={value}" for name, value in space.settings(case).items() if name in helping_knobs}
    if limit in BACKENDS.get(case.backend).variant_helps.get(case.variant or "", ()):
        result.add(case.backend_label)
    if limit == "memory" and case.precision in LOWER:
        result.add(case.precision)
    return result


def advised_cases(records: Sequence[Record], distances: Sequence[float], space: SearchSpace) -> Iterator[Case]:
    """Yield the candidates that may help against the bottlenecks of measured ones, those of the fastest first.

    ``distances`` are the logarithms of the time of each record over that of the best.
    """
    for distance, record in sorted(zip(distances, records, strict=True), key=lambda pair: pair[0]):
        limit = bottleneck(record)
        if limit and distance <= math.log(ADVICE_REACH[limit]):
            present = remedies(record.case, limit, space)
            for case in _variations(record.case, space):
                if remedies(case, limit, space) - present:
                    yield case


def advice_that_paid(
    best: Case, candidates: Sequence[Candidate], records: Mapping[str, Record], space: SearchSpace
) -> tuple[Advice, ...]:
    """Return the remedies of the best against bottlenecks of slower cases, each with the fastest case that has it.

    ``records`` has the records of the candidates, by their ids.
    """
    slower: dict[str, list[tuple[float, Case]]] = {}
    for candidate in candidates:
        record = records[candidate.record]
        limit = bottleneck(record) if candidate.speedup and candidate.high and candidate.high < 1 else ""
        if limit and not remedies(record.case, limit, space):
            slower.setdefault(limit, []).append((candidate.speedup or 0.0, record.case))
    advice = []
    for limit, rivals in slower.items():
        speedup, rival = max(rivals, key=lambda pair: pair[0])
        if settings := remedies(best, limit, space):
            advice.append(Advice(", ".join(sorted(settings)), limit, rival.way, 1 / speedup))
    return tuple(advice)


def _variations(case: Case, space: SearchSpace) -> Iterator[Case]:
    """Yield the candidates with one setting changed, then the families with another variant or precision."""
    yield from neighbours(case, space)
    for family in (planned.case for planned in space.families if planned.case.backend == case.backend):
        if (family.precision != case.precision) + (family.variant != case.variant) == 1:
            yield family


def combinations(family: Case, space: SearchSpace, names: Collection[str] | None = None) -> Iterator[Case]:
    """Yield the candidates of a family, the family first; with ``names``, only the candidates of these knobs."""
    knobs = {name: values for name, values in space.values(family).items() if names is None or name in names}
    for combination in itertools.product(*((None, *values) for values in knobs.values())):
        changes = {name: value for name, value in zip(knobs, combination, strict=True) if value is not None}
        case = combined(family, changes)
        if has_changes(case, family, changes):
            yield case


def size(space: SearchSpace) -> int:
    """Return the number of candidates. Independent knobs are counted separately."""
    total = 0
    for family in (planned.case for planned in space.families):
        groups = _linked_groups(space.values(family), BACKENDS.get(family.backend).knobs)
        total += math.prod(sum(1 for _ in combinations(family, space, group)) for group in groups)
    return total


def has_changes(candidate: Case, base: Case, changes: Mapping[str, Option]) -> bool:
    """Return whether a case that was :func:`combined` has all changes, and no others."""
    return _settings(candidate) == {**_settings(base), **changes}


def _settings(case: Case) -> dict[str, Option]:
    """Return the settings that are not at their defaults."""
    return case.options if case.threads is None else {**case.options, THREADS: case.threads}


def _linked_changes(name: str, case: Case, space: SearchSpace) -> dict[str, Option | None]:
    """Return changes of ``case`` for a knob to do something: needed knobs are added, excluding ones are removed."""
    knobs, values, before = space.able(case), space.values(case), _settings(case)
    added = [name]
    for needing in added:  # the list grows, because a needed knob may need others
        needed = [need for knob in knobs if knob.name == needing for need in knob.needs]
        added += [need for need in needed if need in values and need not in (*before, *added)]
    excluded = {exclude for knob in knobs if knob.name in added for exclude in knob.excludes}
    excluded |= {knob.name for knob in knobs if not {*knob.excludes}.isdisjoint(added)}
    return {name: values[name][0] for name in added} | dict.fromkeys(excluded & before.keys())


def _unfit_knobs(case: Case, backend: type[Backend]) -> list[str]:
    """Return the knobs of a case that do not fit its others, in the backend's order."""
    fitting = {knob.name for knob in backend.knobs if knob.fits(case)}
    return [knob.name for knob in backend.knobs if knob.name in case.options and knob.name not in fitting]


def _linked_groups(names: Collection[str], knobs: Sequence[Knob]) -> list[set[str]]:
    """Return names of knobs in groups: a knob is in the group of the knobs that it needs or excludes."""
    groups = [{name} for name in names]
    for knob in knobs:
        linked = {knob.name, *knob.needs, *knob.excludes}
        together = [group for group in groups if group & linked]
        groups = [*(group for group in groups if not group & linked), *([set().union(*together)] if together else [])]
    return groups


def _labels(backend: type[Backend]) -> frozenset[str]:
    """Return the labels of a backend's variants."""
    return frozenset(f"{backend.name}:{variant}".rstrip(":") for variant in backend.variants)


def narrowed_selection(plan: Plan, selection: SearchSelection) -> SearchSelection:
    """Return the part of the selection that the plan allows. Raises InferlensError if nothing is left."""
    check_words(plan)
    labels, precisions = selection.labels, selection.precisions
    if plan.backend and EVERY_VARIANT not in plan.backend:
        named = [split_label(label, BACKENDS.names()) for label in plan.backend]
        backends = [BACKENDS.get(name) for name, variant in named if variant in (None, EVERY_VARIANT)]
        labels &= frozenset[str]().union(plan.backend, *map(_labels, backends))
    if plan.precision:
        precisions &= frozenset(plan.precision)
    if not labels or not precisions:
        kind = PRECISION if labels else FAMILY
        raise InferlensError(f"No {kind} is left to try.", expected="one that all of what was asked for has in common")
    return dataclasses.replace(selection, labels=labels, precisions=precisions)


def _widened(
    plan: Plan, model: ModelInfo, capabilities: Mapping[str, Capabilities], selection: SearchSelection
) -> Plan:
    """Return the plan of all families of a model, whether they can run or not."""
    backends: list[str] = []
    for name in capabilities:
        labels = _labels(BACKENDS.get(name))
        backends += [f"{name}:{EVERY_VARIANT}"] if labels <= selection.labels else sorted(labels & selection.labels)
    quantizable = {*plan.precision}
    if plan.calibration:
        supports = [support for ability in capabilities.values() for support in ability.supports]
        quantizable |= {name for support in supports for name in support.quantizes}
    precisions = [*PRECISIONS, *(name for name in QUANTIZED if name in quantizable)]
    if model.precision in QUANTIZED or not reference_backend(model.format):  # quantized or compiled already
        precisions = [model.precision]
    selected = [name for name in (*PRECISIONS, *QUANTIZED) if name in selection.precisions]
    precisions = [name for name in precisions if name in selected] or selected  # the refusals then say why none fits
    return replace(plan, backend=tuple(backends), precision=tuple(precisions))


def _names(knobs: Mapping[str, Sequence[Knob]]) -> Names:
    """Return the meaning of every word of ``only`` and ``without``."""
    names: dict[str, tuple[Kind, frozenset[str]]] = {}
    for backend in sorted(importable_backends(), key=lambda backend: "fake" in backend.reference_for):  # listed last
        labels = _labels(backend)
        names |= {label: (FAMILY, frozenset([label])) for label in sorted(labels)}
        names[backend.name] = (FAMILY, labels)
    names |= {name: (PRECISION, frozenset([name])) for name in (*PRECISIONS, *QUANTIZED)}
    for backend_name, backend_knobs in knobs.items():
        for knob in backend_knobs:
            full_name = f"{backend_name}.{knob.name}"
            names[full_name] = (KNOB, frozenset([full_name]))
            others = names[knob.name][1] if knob.name in names else frozenset[str]()
            names[knob.name] = (KNOB, others | {full_name})
    return names


def _meanings(words: Sequence[str], names: Names, kinds: Sequence[Kind]) -> dict[Kind, frozenset[str]]:
    """Return what words mean together, by kind. Raises InferlensError for a word that means none of ``kinds``."""
    choices = [name for name, (kind, _) in names.items() if kind in kinds]
    meanings: dict[Kind, frozenset[str]] = {}
    for word in words:
        check_choice(", ".join(kinds[:-1]) + " or " * (len(kinds) > 1) + kinds[-1], word, choices)
        kind, meaning = names[word]
        meanings[kind] = meanings.get(kind, frozenset()) | meaning
    return meanings


def _knobs(table: Any, cpus: int) -> dict[str, tuple[Knob, ...]]:
    """Return the knobs of every backend, and threads on the CPU, with the values of a space file."""
    cores = psutil.cpu_count(logical=False) if cpus == psutil.cpu_count() else None
    counts = tuple(dict.fromkeys((cpus // 2, cpus, 1) if cpus > 1 else ()))
    knobs_by_backend = {}
    file_values = _values_of_file(table)
    for backend in importable_backends():
        values = {name: values for (owner, name), values in file_values.items() if owner == backend.name}
        knobs = list(backend.knobs)
        names = {knob.name for knob in knobs}
        if THREADS not in names:
            knobs.append(Knob(name=THREADS, values=counts, devices=("cpu",)))
        knobs += [Knob(name=name, values=()) for name in values if name not in {*names, THREADS}]
        knobs_by_backend[backend.name] = tuple(
            replace(knob, values=_checked(backend, knob.name, values.get(knob.name, knob.values), cores))
            for knob in knobs
        )
    return knobs_by_backend


def _values_of_file(table: Any) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return the values in the tables of a space file, by backend and option.

    Values outside of tables are for all backends that have the option.
    """
    if not isinstance(table, Mapping):
        raise InferlensError(f"'{table}' names no knobs.", expected="tables such as [knobs.BACKEND]")
    results: dict[tuple[str, str], tuple[Any, ...]] = {}
    for name, entry in table.items():
        if isinstance(entry, Mapping):
            check_choice("backend", name, BACKENDS.names())
            results |= {(name, option): listed(values) for option, values in entry.items()}
            continue
        options = {backend.name: (THREADS, *backend.options.__struct_fields__) for backend in importable_backends()}
        check_choice("knob", name, sorted(set().union(*options.values())))
        results |= {(backend, name): listed(entry) for backend, knob_names in options.items() if name in knob_names}
    return results


def _checked(backend: type[Backend], name: str, values: Sequence[Any], cores: int | None) -> tuple[Option, ...]:
    """Return values of a knob with their types, without duplicates and the default (of threads: one per core)."""
    if name == THREADS:
        counts = dict.fromkeys(count(THREADS, value) for value in values)
        return tuple(number for number in counts if number != cores)
    if name not in backend.options.__struct_fields__:
        backend.parse_options(Case(model="", backend=backend.name, options={name: ""}))  # raises, and lists the options
    cases = [Case(model="", backend=backend.name, options={name: value}) for value in values]
    return tuple(dict.fromkeys(value for case in cases for value in backend.effective(case).options.values()))


def skipped(space: SearchSpace, selection: SearchSelection, plan: Plan) -> tuple[SkippedCandidate, ...]:
    """Return the backends and precisions that the user left out, then the families that cannot run."""
    selected, allowed = _words(selection), _words(narrowed_selection(plan, selection))
    backends = [backend.name for backend in importable_backends() if [*backend.reference_for] != [backend.name]]
    names = [name for name in (*PRECISIONS, *sorted(backends)) if name not in allowed]
    results = {name: SkippedCandidate(name=name, hint="" if name in selected else "--only") for name in names}
    labels = {planned.case.backend_label for planned in space.families}
    families = {(planned.case.backend_label, planned.case.precision) for planned in space.families}
    for planned in space.refused:
        label, precision, refusal = planned.case.backend_label, planned.case.precision, planned.refusal
        if refusal and (label, precision) not in families:
            name = label if label not in labels else f"{label} {precision}"
            results.setdefault(name, SkippedCandidate(name=name, reason=refusal.what, hint=refusal.hint))
    return tuple(results.values())


def _words(selection: SearchSelection) -> set[str]:
    """Return the names of the precisions and backends that are selected."""
    return {*selection.precisions, *(label.partition(":")[0] for label in selection.labels)}


def unreached(space: SearchSpace, trials: Sequence[Trial]) -> list[SkippedCandidate]:
    """Return backends of which no family was tried because the time was over, and precisions of others."""
    tried = [record.case for trial in trials for record in trial.records]
    digests, labels = {case.digest for case in tried}, {case.backend_label for case in tried}
    untried = [planned.case for planned in space.families if planned.case.digest not in digests]
    names = [case.backend_label + f" {case.precision}" * (case.backend_label in labels) for case in untried]
    reason, hint = "time was over", "a longer --budget"
    return [SkippedCandidate(name=name, reason=reason, hint=hint) for name in dict.fromkeys(names)]
