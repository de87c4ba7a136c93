"""The two sides of ``inferlens ab``, from what was asked for to the one case of each.

They are two cases of a model, two models of the same inputs, or one case of a model in two checkouts of its code or in
two environments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends import BACKENDS, reference_backend
from inferlens.backends.base import TOLERANCES, merge_capabilities
from inferlens.errors import InferlensError
from inferlens.execution.expand import EVERY_VARIANT, Planned, backends_named
from inferlens.execution.measure_case import Reference
from inferlens.execution.survey import Named, Surveyed, check_interpreters, find, looked_up, named, probe, unsupported
from inferlens.measure import agreement
from inferlens.models.model import ModelInfo
from inferlens.record.record import Agreement
from inferlens.spec.case import TensorSpec
from inferlens.spec.plan import Plan, option_values, texts, words_of
from inferlens.units import listing

FORMS = "MODEL A B, MODEL_A MODEL_B, MODEL [CASE] --checkout OLD,NEW, or MODEL [CASE] --python OLD,NEW"


@dataclass(frozen=True)
class Asked:
    """A side as it was asked for: its model, its case in words, and the folder of its code."""

    model: Any
    words: Mapping[str, Any]
    checkout: str = ""

    @property
    def python(self) -> str:
        """The interpreter that it runs in."""
        return str(self.words.get("python", ""))


def asked_for(
    model: Any, a: Any, b: str | None, checkouts: Sequence[str], pythons: Sequence[str] = ()
) -> tuple[Asked, Asked]:
    """Both sides: two cases, two models, two checkouts, or two environments."""
    if folders := checkouts or pythons:
        one_case = b is None and (a is None or isinstance(a, str))
        if not one_case or len(folders) > 2 or (checkouts and (pythons or not isinstance(model, str))):
            what = "Checkouts" if checkouts else "Environments"
            raise InferlensError(f"{what} are compared in one case of one model.", expected=FORMS)
    if checkouts:
        old, new = [*checkouts, "."][:2]
        return _side(model, a or "", old), _side(model, a or "", new)
    if pythons:
        old, new = [*pythons, ""][:2]
        return _side(model, a or "", python=old), _side(model, a or "", python=new)
    if b is not None:
        return _side(model, a), _side(model, b)
    if a is None or (isinstance(a, str) and _is_case(a)):
        raise InferlensError(f"What to compare {a or model} with is missing.", expected=FORMS)
    return _side(model), _side(a)


def _side(model: Any, case: str = "", checkout: str = "", python: str = "") -> Asked:
    """A side; a model in text may have words of a case behind it: ``base:build fp16``."""
    words: dict[str, Any] = {}
    if isinstance(model, str) and not os.path.exists(model):
        model, _, own = model.strip().partition(" ")
        words = _words(own) if own.strip() else {}
    words |= {**(_words(case) if case else {}), **({"python": python} if python else {})}
    checkout = words.pop("checkout", "") or checkout
    if checkout and not os.path.isdir(checkout):
        raise InferlensError(
            f"There is no folder {checkout}.",
            expected="a checkout of the model's code",
            hint=f"git worktree add ../{Path(checkout).name} REVISION",
        )
    return Asked(model, words, checkout)


def _words(text: str) -> dict[str, Any]:
    return words_of(text, BACKENDS.names())


def _is_case(text: str) -> bool:
    """Whether a text says a case rather than a model: ``fake:fast`` is one, ``fake:demo`` is not."""
    try:
        words = _words(text)
    except InferlensError:
        return False
    name, _, variant = words.get("backend", "").partition(":")
    return not name or variant in ("", EVERY_VARIANT, *BACKENDS.get(name).variants)


def named_models(asked: Sequence[Asked], example: Any, stack: ExitStack) -> list[Named]:
    """The model of each side, and what it is; that of live modules is there until ``stack`` is closed."""
    a, b = (side.model for side in asked)
    live = [not isinstance(model, (str, Path)) for model in (a, b)]
    one = stack.enter_context(named(a, example if live[0] or not live[1] else None))
    if a is b:
        return [one, one]
    other = stack.enter_context(named(b, example if live[1] or not live[0] else None))
    if one.found and other.found and one.spec == other.spec:  # two modules of one class
        info = msgspec.structs.replace(other.found[0], spec=f"{other.spec} (B)")
        other = replace(other, spec=info.spec, found=[info])
    return [one, other]


def planned_pair(
    asked: Sequence[Asked], models: Sequence[Named], shared: Mapping[str, Any]
) -> tuple[list[Plan], tuple[Planned, Planned]]:
    """A plan for each side, of the words that both share and its own; and the one case of each."""
    check_interpreters(side.python for side in asked)
    infos = _infos(asked, models)
    labels = [
        side.words.get("backend") or shared.get("backend") or reference_backend(found[0].format)
        for side, found in zip(asked, infos, strict=True)
    ]
    backends = [label.partition(":")[0] for label in labels]
    options = option_values(shared.get("option") or {})
    for name in options:
        if name.partition(".")[0] not in backends:
            raise InferlensError(
                f"The option '{name}' is for a backend of neither case.", expected=f"one of {listing(sorted(backends))}"
            )
    plans = []
    for side, found, label, backend in zip(asked, infos, labels, backends, strict=True):
        own = {
            name if "." in name else f"{backend}.{name}": value for name, value in side.words.get("option", {}).items()
        }
        its = {name: values for name, values in options.items() if name.partition(".")[0] == backend}
        words = {**shared, **side.words, "model": [each.spec for each in found], "checkout": side.checkout}
        if side.checkout and Path(words.get("weights", "")).suffix:  # of a file here, not of one in the checkout
            words["weights"] = str(Path(words["weights"]).resolve())
        if side.checkout and "accuracy" in words and Path(words["accuracy"]).exists():  # so is data
            words["accuracy"] = str(Path(words["accuracy"]).resolve())
        plans.append(Plan.from_words({**words, "backend": label, "option": {**its, **own}}))
    names = list(dict.fromkeys(name for plan in plans for name in backends_named(plan)))
    able = {python: probe(names, python) for python in dict.fromkeys(side.python for side in asked)}
    anywhere = {name: merge_capabilities([can[name] for can in able.values()]) for name in names}
    looked: dict[object, tuple[list[ModelInfo], InferlensError | None]] = {}
    for plan, model in zip(plans, models, strict=True):  # of two backends that are fed alike once
        if _loaded(plan) not in looked:
            looked[_loaded(plan)] = looked_up(plan, model)
    errors = [error for _, error in looked.values() if error]
    if errors and (len(able) == 1 or len(errors) == len(looked)):
        raise errors[0]
    known = next(found for found, error in looked.values() if not error)
    parts = []
    for side, plan in zip(asked, plans, strict=True):
        infos_there, why = looked[_loaded(plan)]
        refusal = unsupported(why) if why else None
        parts.append(Surveyed(plan, infos_there or known, able[side.python], anywhere, refusal))
    return plans, _pair([part.cases() for part in parts])


def _loaded(plan: Plan) -> object:
    """What has to be equal for one check of the model to do for two plans."""
    return plan.model, plan.checkout, plan.python, plan.input, plan.dim, plan.weights, plan.batch


def _infos(asked: Sequence[Asked], models: Sequence[Named]) -> list[list[ModelInfo]]:
    names = [() if model.found else texts(model.spec) for model in models]
    found: dict[tuple[str, str], ModelInfo] = {}
    for place in dict.fromkeys(side.checkout for side in asked):  # a process for each
        sides = [(side.python, its) for side, its in zip(asked, names, strict=True) if side.checkout == place]
        if wanted := list(dict.fromkeys(name for _, its in sides for name in its)):
            infos = _find(wanted, place, list(dict.fromkeys(python for python, _ in sides)))
            found |= {(place, name): info for name, info in zip(wanted, infos, strict=True)}
    return [
        model.found or [found[side.checkout, name] for name in its]
        for side, model, its in zip(asked, models, names, strict=True)
    ]


def _find(names: Sequence[str], checkout: str, pythons: Sequence[str]) -> list[ModelInfo]:
    """What names mean to the first interpreter that knows them: they mean the same to both sides."""
    python, *others = pythons
    try:
        return find(names, checkout, python)
    except InferlensError:
        if not others:
            raise
        with suppress(InferlensError):
            return _find(names, checkout, others)
        raise


def _pair(sides: Sequence[Sequence[Planned]]) -> tuple[Planned, Planned]:
    """The one case of each side."""
    for name, side in zip("AB", sides, strict=True):
        if len(side) > 1:
            raise InferlensError(
                f"{name} means {len(side)} cases, such as {side[0].case.label} and {side[-1].case.label}.",
                expected="one model, one value of each axis and one variant",
                hint="inferlens bench, for more than two cases",
            )
    (a,), (b,) = sides
    if a.case == b.case:
        raise InferlensError(
            f"A and B are the same case: {a.case.label}.",
            expected="two that differ",
            hint="inferlens bench --repeats 5, which says how far processes of one case differ",
        )
    return a, b


def compared_outputs(pair: Sequence[Planned], reference: Callable[[Planned], Reference]) -> Agreement | None:
    """How far the reference outputs of B's model agree with those of A's; ``None`` for the same model.

    What counts as agreeing is as of the coarser of the two precisions: a quantized file is not its source to the bit.
    Raises InferlensError if the inputs of the two are known to differ.
    """
    a, b = (planned.case for planned in pair)
    if (a.model, a.checkout) == (b.model, b.checkout) or any(planned.refusal for planned in pair):
        return None
    references = one, other = [reference(planned) for planned in pair]
    if one.inputs and other.inputs:
        check_inputs(one.inputs, other.inputs)
    for name, each in zip("AB", references, strict=True):
        if not each.path:
            return Agreement(reference="A", reason=f"{name} has no reference outputs: {each.missing}")
    if one.inputs_sha256 != other.inputs_sha256:
        return Agreement(reference="A", reason="each brings example inputs of its own")
    allowed = max(TOLERANCES[planned.reference.precision if planned.reference else "fp32"] for planned in pair)
    return agreement.judge(other.expected().calls, one.expected()._replace(name="A"), allowed)


def check_inputs(a: Sequence[TensorSpec], b: Sequence[TensorSpec]) -> None:
    """Refuses two models that do not take the same shapes and types, in whatever names."""
    if [(spec.shape, spec.dtype) for spec in a] != [(spec.shape, spec.dtype) for spec in b]:
        raise InferlensError(
            f"A and B take different inputs: {listing([*map(str, a)])} of A, {listing([*map(str, b)])} of B.",
            expected="two models that are fed alike",
            hint=f"--input {a[0]}, for both",
        )
