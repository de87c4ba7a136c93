"""Dimensions by name: every input that has a dimension of one name has one size there.

ONNX files name their free dimensions, such as ``sequence_length``. An exported program calls them by symbols, such as
``s77``. A name may be a sum of others: ``past_sequence_length + 1``.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from inferlens.errors import InferlensError, check_choice
from inferlens.spec.case import TensorSpec

Dimensions = Mapping[str, tuple[str, ...]]  # names of an input's dimensions, by the input; empty where one has none
Size = tuple[int, int, int, int]  # measured, least, best (0: the measured one), most
USUAL_SIZE = 128


def _sizes(spec: TensorSpec) -> list[Size]:
    least, _, most = spec.profile
    return list(zip(spec.shape, least, spec.best or (0,) * len(spec.shape), most, strict=True))


def _labels(spec: TensorSpec, names: Dimensions) -> tuple[str, ...]:
    """Return the names of an input's dimensions; empty ones for another number of dimensions than the model has."""
    own = names.get(spec.name, ())
    return own if len(own) == len(spec.shape) else ("",) * len(spec.shape)


def _resized(spec: TensorSpec, sizes: Sequence[Size]) -> TensorSpec:
    shape, least, best, most = (tuple(column) for column in zip(*sizes, strict=True))
    if least == most:
        return replace(spec, shape=shape, least=(), best=(), most=())
    best = tuple(size or usual for size, usual in zip(best, shape, strict=True)) if any(best) else ()
    return replace(spec, shape=shape, least=least, best=best, most=most)


def share_sizes(
    specs: Sequence[TensorSpec], given: Collection[str], names: Dimensions, dims: Sequence[TensorSpec] = ()
) -> tuple[TensorSpec, ...]:
    """Return the inputs with one size for each name: that of ``dims``, or of an input whose sizes the user gave.

    Raises:
        InferlensError: if two sizes were given for one name.
    """
    sources = {dim.name: f"--dim {dim.name}" for dim in dims}
    sizes = {dim.name: _sizes(dim)[0] for dim in dims}
    for spec in sorted(specs, key=lambda spec: spec.name not in given):
        for name, size in zip(_labels(spec, names), _sizes(spec), strict=True):
            if name and size[0] and sizes.setdefault(name, size) != size and spec.name in given:
                said = [f"{low}..{high}" if low < high else str(high) for _, low, _, high in (sizes[name], size)]
                raise InferlensError(
                    f"'{name}' is {said[0]} in {sources[name]} and {said[1]} in {spec.name}.",
                    expected="one size for each name of a dimension",
                    hint=f"--dim {shlex.quote(f'{name}={said[0]}')} alone, which all inputs follow",
                )
            sources.setdefault(name, spec.name)
    shared = []
    for spec in specs:
        own = _sizes(spec)
        follows = [(spec.name not in given or not size[0]) and _sum(name, sizes)
                   for name, size in zip(_labels(spec, names), own, strict=True)]  # fmt: skip
        shared.append(
            _resized(spec, [new or old for new, old in zip(follows, own, strict=True)]) if any(follows) else spec
        )
    return tuple(shared)


def _terms(name: str) -> list[str]:
    return [term.strip() for term in name.split("+")]


def _sum(name: str, sizes: Mapping[str, Size]) -> Size | None:
    """Return the size of a name, or of a sum of names and numbers, if that is known."""
    terms = [name] if name in sizes else _terms(name)
    parts = [sizes.get(term, (int(term),) * 4 if term.isdecimal() else None) for term in terms]
    known = [part for part in parts if part]
    if len(known) < len(parts):
        return None
    measured, least, best, most = (sum(column) for column in zip(*known, strict=True))
    return measured, least, best if all(part[2] for part in known) else 0, most


def with_dims(
    specs: Iterable[TensorSpec], asked: Iterable[TensorSpec], names: Dimensions, dims: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return the inputs asked for, and those that have a dimension in ``dims``, with the sizes of that.

    Raises:
        InferlensError: if no input has a dimension of a name, or another size is asked of it.
    """
    every = dict.fromkeys(name for own in names.values() for name in own if name)
    if not every:
        raise no_names()
    for dim in dims:
        check_choice("dimension of an input", dim.name, [*every, *(term for name in every for term in _terms(name))])
    given = {spec.name: spec for spec in asked}
    shared = share_sizes([*({spec.name: spec for spec in specs} | given).values()], given, names, dims)
    wanted = {dim.name for dim in dims}
    sized = {spec.name for spec in shared for name in _labels(spec, names) if wanted & {name, *_terms(name)}}
    return tuple(spec for spec in shared if spec.name in {*given, *sized})


def no_names() -> InferlensError:
    """Return the error of a model without dimensions that have names."""
    return InferlensError("The model's inputs have no named dimensions.", hint="without --dim, an --input for each")


def missing_sizes(specs: Iterable[TensorSpec], names: Dimensions) -> InferlensError | None:
    """Return one error that names every input whose shape the model leaves open, and the options that say it all."""
    shapes: list[str] = []
    options: dict[str, None] = {}  # each once
    for spec in specs:
        if 0 not in spec.shape:
            continue
        labels = _labels(spec, names)
        free = [name for name, size in zip(labels, spec.shape, strict=True) if not size]
        sizes = [str(size or name or "?") for name, size in zip(labels, spec.shape, strict=True)]
        shapes.append(f"{spec.name} ({' x '.join(sizes)})")
        if "" in free:
            filled = replace(spec, shape=tuple(size or USUAL_SIZE for size in spec.shape))
            options[f"--input {shlex.quote(str(filled))}"] = None
        else:
            terms = [term for name in free for term in _terms(name) if not term.isdecimal()]
            options |= dict.fromkeys(f"--dim {shlex.quote(f'{term}={USUAL_SIZE}')}" for term in terms)
    what = f"The model leaves open the shape of {', '.join(shapes)}."
    return InferlensError(what, expected="a size for each", hint=" ".join(options)) if shapes else None
