"""Optimization profiles: for which input shapes (min, opt, max) an engine is made.

As an option they are a text: ``1x3x224x224/2x3x224x224/16x3x224x224`` for a model with one input,
``ids=1x8/1x128/4x512+mask=1x8/1x128/4x512`` for several (an input that is left out keeps the shapes of the case), one
shape alone where it is fixed, and profiles joined by ``;``.
"""

from __future__ import annotations

import re

import msgspec

from inferlens.errors import InferlensError, Unsupported, one_line, suggestion
from inferlens.spec.case import TensorSpec

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]
FORM = "MIN/OPT/MAX, such as 1x3x224x224/2x3x224x224/16x3x224x224; several inputs as a=1x8/1x8/4x8+b=1x8/1x8/4x8; \
several profiles joined by ;"
_SHAPE = re.compile(r"^(scalar|[1-9]\d*(x[1-9]\d*)*)$")


def profiles(text: str, specs: tuple[TensorSpec, ...]) -> tuple[Profile, ...]:
    """Profiles as shapes by input name, in the order of the inputs; one, of the inputs' own, if ``text`` is empty."""
    own: Profile = {spec.name: spec.profile for spec in specs}
    parts = text.split(";") if text.strip() else []
    found = tuple({**own, **_profile(part, specs)} for part in parts) or (own,)
    for name, (least, *_) in [item for profile in found for item in profile.items()]:
        if min(least, default=0) < 0:
            raise InferlensError(
                one_line(f"Sizes of the input '{name}' are free ({shape_text(least)}), and no profile gives them."),
                expected=FORM,
            )
    return found


def check_shapes(profiles: tuple[Profile, ...], index: int, specs: tuple[TensorSpec, ...]) -> None:
    """Checks that the profile that runs takes the shapes that are measured."""
    if index >= len(profiles):
        raise Unsupported(f"There is no profile {index}: the engine has {len(profiles)}, counted from 0.")
    for spec in specs:
        least, _, most = profiles[index][spec.name]
        if not _within(least, spec.shape, most):
            raise Unsupported(
                f"Profile {index} takes {one_line(spec.name)} from {shape_text(least)} to {shape_text(most)}, not "
                f"{shape_text(spec.shape)}.",
                hint="another --option tensorrt.profile, or another batch",
            )


def spread(specs: tuple[TensorSpec, ...], profiles: tuple[Profile, ...]) -> tuple[TensorSpec, ...]:
    """The inputs with the range of sizes that all the profiles take together: what the graph is exported for."""
    found = []
    for spec in specs:
        triples = [profile[spec.name] for profile in profiles]
        least = tuple(min(sizes) for sizes in zip(*(triple[0] for triple in triples), strict=True))
        most = tuple(max(sizes) for sizes in zip(*(triple[2] for triple in triples), strict=True))
        ranged = msgspec.structs.replace(spec, least=least, best=triples[0][1], most=most)
        found.append(spec if least == most else ranged)
    return tuple(found)


def shape_text(shape: Shape) -> str:
    """A shape as text, ``?`` where a size is free, such as ``?x3x224x224``."""
    return "x".join("?" if size < 0 else str(size) for size in shape) or "scalar"


def _profile(text: str, specs: tuple[TensorSpec, ...]) -> Profile:
    known = {spec.name: spec for spec in specs}
    found: Profile = {}
    for part in text.split("+"):
        name, equals, shapes = part.strip().rpartition("=")
        if not equals and len(specs) > 1:
            raise InferlensError(f"'{part.strip()}' does not say which input it is for.", expected=FORM)
        name = name.strip() if equals else specs[0].name
        if name not in known:
            hint = one_line(suggestion(name, known))
            raise InferlensError(f"The model has no input '{name}'.", expected=one_line(", ".join(known)), hint=hint)
        found[name] = _shapes(shapes.strip(), known[name])
    return found


def _shapes(text: str, spec: TensorSpec) -> tuple[Shape, Shape, Shape]:
    words = [word.strip() for word in text.split("/")]
    if len(words) not in (1, 3) or not all(_SHAPE.match(word) for word in words):
        raise InferlensError(f"'{text}' is not a profile of '{one_line(spec.name)}'.", expected=FORM)
    parsed = [() if word == "scalar" else tuple(map(int, word.split("x"))) for word in words]
    least, best, most = parsed * 3 if len(parsed) == 1 else parsed
    if len(best) != len(spec.shape) or not _within(least, best, most):
        raise InferlensError(
            f"'{text}' does not fit '{one_line(spec.name)}', which is {shape_text(spec.shape)}, or does not grow from "
            "min over opt to max."
        )
    return least, best, most


def _within(least: Shape, shape: Shape, most: Shape) -> bool:
    return len(least) == len(shape) == len(most) and all(
        low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
    )
