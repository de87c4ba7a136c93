"""Dimensions by name: every input that has a dimension of one name has one size there.

ONNX files name their free dimensions, such as ``sequence_length``. An exported program calls them by symbols, such as
``s77``. A name may be a sum of others: ``past_sequence_length + 1``.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

import msgspec

from inferlens.errors import InferlensError, check_choice
from inferlens.spec.case import TensorSpec

Dimensions = Mapping[str, tuple[str, ...]]  # names of an input's dimensions, by the input; empty where one has none
Size = tuple[int, int, int, int]  # measured, least, best (0: the measured one), most
USUAL_IMAGE = (1, 3, 224, 224)
USUAL_SIZE = 128


def sizes_of(spec: TensorSpec) -> list[Size]:
    """Return the sizes of each dimension of an input."""
    least, _, most = spec.profile
    return list(zip(spec.shape, least, spec.best or (0,) * len(spec.shape), most, strict=True))


def resized(spec: TensorSpec, sizes: Sequence[Size]) -> TensorSpec:
    """Return the same input with these sizes."""
    shape, least, best, most = (tuple(column) for column in zip(*sizes, strict=True)) if sizes else ((),) * 4
    if least == most:
        return msgspec.structs.replace(spec, shape=shape, least=(), best=(), most=())
    best = tuple(size or usual for size, usual in zip(best, shape, strict=True)) if any(best) else ()
    return msgspec.structs.replace(spec, shape=shape, least=least, best=best, most=most)


def share_sizes(
    specs: Sequence[TensorSpec], given: Collection[str], names: Dimensions, dims: Sequence[TensorSpec] = ()
) -> tuple[TensorSpec, ...]:
    """Return the inputs with one size for each name of a dimension.

    Args:
        given: the inputs whose sizes the user gave; the others follow them.
        names: the names of the dimensions.
        dims: sizes by name.

    Raises:
        InferlensError: if two sizes were given for one name.
    """
    known = {dim.name: (f"--dim {dim.name}", sizes_of(dim)[0]) for dim in dims}
    for spec in sorted(specs, key=lambda spec: spec.name not in given):
        for name, size in zip(names.get(spec.name, ()), sizes_of(spec), strict=False):
            if not name or not size[0]:
                continue
            whose, first = known.setdefault(name, (spec.name, size))
            if first != size and spec.name in given:
                raise InferlensError(
                    f"'{name}' is {_text(first)} in {whose} and {_text(size)} in {spec.name}.",
                    expected="one size for each name of a dimension",
                    hint=f"--dim {shlex.quote(f'{name}={_text(first)}')} alone, which all inputs follow",
                )
    sizes = {name: size for name, (_, size) in known.items()}
    result = []
    for spec in specs:
        own = sizes_of(spec)
        labels = names.get(spec.name, ()) if len(names.get(spec.name, ())) == len(own) else ("",) * len(own)
        free = [spec.name not in given or not size[0] for size in own]
        shared = [(open and _sum(name, sizes)) or size for open, name, size in zip(free, labels, own, strict=True)]
        result.append(resized(spec, shared) if shared != own else spec)
    return tuple(result)


def _sum(name: str, sizes: Mapping[str, Size]) -> Size | None:
    """Return the size of a name, or of a sum of names and numbers, if that is known."""
    if name in sizes:
        return sizes[name]
    terms = [term.strip() for term in name.split("+")]
    parts = [(int(term),) * 4 if term.isdecimal() else sizes.get(term) for term in terms]
    if len(terms) < 2 or None in parts:
        return None
    measured, least, best, most = (sum(column) for column in zip(*filter(None, parts), strict=True))
    return measured, least, best if all(part and part[2] for part in parts) else 0, most


def _text(size: Size) -> str:
    measured, least, _, most = size
    return str(measured) if least == most else f"{least}..{most}"


def with_dims(
    specs: Sequence[TensorSpec], asked: Sequence[TensorSpec], names: Dimensions, dims: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return the inputs asked for, and those that have a dimension in ``dims``, with the sizes of that.

    Raises:
        InferlensError: if no input has a dimension of a name, or another size is asked of it.
    """
    every = list(dict.fromkeys(name for each in names.values() for name in each if name))
    for dim in dims:
        if not every:
            raise InferlensError("The model's inputs have no named dimensions.", hint="--input NAME=SHAPE:TYPE")
        check_choice("dimension of an input", dim.name, every)
    given = {spec.name: spec for spec in asked}
    own = {spec.name: spec for spec in specs}
    wanted = {dim.name for dim in dims}
    shared = share_sizes(tuple((own | given).values()), given, names, dims)
    return tuple(spec for spec in shared if spec.name in given or wanted & _terms(names.get(spec.name, ())))


def _terms(names: Sequence[str]) -> set[str]:
    return {term.strip() for name in names for term in (name, *name.split("+"))}


def missing_sizes(specs: Sequence[TensorSpec], names: Dimensions) -> InferlensError | None:
    """Return one error that names every input whose shape the model leaves open, and the options that say it all."""
    left = [spec for spec in specs if 0 in spec.shape]
    if not left:
        return None
    words, named = [], dict[str, None]()
    for spec in left:
        own = names.get(spec.name, ())
        if all(name for name, size in zip(own, spec.shape, strict=False) if not size) and own:
            terms = [term.strip() for name, size in zip(own, spec.shape, strict=True) if not size
                     for term in name.split("+")]  # fmt: skip
            named |= dict.fromkeys(term for term in terms if not term.isdecimal())
            continue
        image = len(spec.shape) == len(USUAL_IMAGE) and "float" in spec.dtype
        usual = USUAL_IMAGE if image else (USUAL_SIZE,) * len(spec.shape)
        filled = tuple(size or most for size, most in zip(spec.shape, usual, strict=True))
        words.append(f"--input {shlex.quote(str(msgspec.structs.replace(spec, shape=filled)))}")
    words += [f"--dim {shlex.quote(f'{name}={USUAL_SIZE}')}" for name in named]
    if len(left) == 1 and not named:
        return InferlensError(f"The input '{left[0].name}' has a shape that the model leaves open.", hint=words[0])
    shapes = [f"{spec.name} ({_shape(spec, names.get(spec.name, ()))})" for spec in left]
    what = f"The model leaves open the shape of {', '.join(shapes)}."
    return InferlensError(what, expected="a size for each", hint=" ".join(words))


def _shape(spec: TensorSpec, names: Sequence[str]) -> str:
    labels = names or ("",) * len(spec.shape)
    return " x ".join(str(size or name or "?") for size, name in zip(spec.shape, labels, strict=True))
