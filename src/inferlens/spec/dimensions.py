"""Dimensions by name: every input that has a dimension of one name has one size there.

ONNX files name their free dimensions, such as ``sequence_length``. An exported program calls them by symbols, such as
``s77``. Inputs of a model that names none get usual names by their types and shapes. A name may be a sum of others:
``past_sequence_length + 1``.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from inferlens.errors import InferlensError, check_choice
from inferlens.spec.case import TensorSpec

Specs = tuple[TensorSpec, ...]
Size = tuple[int, int, int, int]  # measured, least, best (0: the measured one), most
USUAL_SIZE = 128


def _sizes(spec: TensorSpec) -> list[Size]:
    least, _, most = spec.profile
    return list(zip(spec.shape, least, spec.best or (0,) * len(spec.shape), most, strict=True))


def with_names(model_specs: Specs, requested: Specs = ()) -> tuple[Specs, Specs]:
    """Return the model's own and the requested inputs with names for their dimensions, or else the usual names.

    Usual names are ``sequence_length`` for the second dimension of the first input with rows of whole numbers and of
    every input that has as many there; ``image_size`` for the last two dimensions of an image or a video, ``height``
    and ``width`` where these differ. Of inputs with several sizes for such a name the first alone keeps it.
    """
    usual = not _has_names(model_specs)
    model_specs = _with_usual_names(model_specs) if usual else model_specs
    names = {spec.name: spec.names for spec in model_specs}
    requested = tuple(replace(spec, names=spec.names or names.get(spec.name, ())) for spec in requested)
    requested = _fitted(requested if model_specs else _with_usual_names(requested))
    return _fitted(model_specs), _without_conflicts(requested) if usual else requested


def without_usual_names(model_specs: Specs, specs: Specs) -> Specs:
    """Return inputs with names only where the model's ``own`` have some: the usual ones follow from the shapes."""
    return specs if _has_names(model_specs) else tuple(replace(spec, names=()) for spec in specs)


def _has_names(specs: Specs) -> bool:
    return any(name for spec in specs for name in spec.names)


def _without_conflicts(specs: Specs) -> Specs:
    """Return the inputs. A name that has several sizes stays only where it has the first of them."""
    sizes: dict[str, int] = {}
    kept = []
    for spec in specs:
        pairs = zip(spec.names, spec.shape, strict=True)
        kept.append(replace(spec, names=tuple(name * (sizes.setdefault(name, size) == size) for name, size in pairs)))
    return tuple(kept)


def _fitted(specs: Specs) -> Specs:
    """Return the inputs, without names for another number of dimensions than they have."""
    return tuple(
        spec if len(spec.names) == len(spec.shape) else replace(spec, names=("",) * len(spec.shape)) for spec in specs
    )


def _with_usual_names(specs: Specs) -> Specs:
    tokens = (spec for spec in specs if len(spec.shape) == 2 and "float" not in spec.dtype)
    length = next((spec.shape[1] for spec in tokens), None)
    return _without_conflicts(tuple(replace(spec, names=_usual_names(spec, length)) for spec in specs))


def _usual_names(spec: TensorSpec, length: int | None) -> tuple[str, ...]:
    names = [""] * len(spec.shape)
    if len(names) in (2, 3) and spec.shape[1] == length:
        names[1] = "sequence_length"
    elif len(names) in (4, 5) and "float" in spec.dtype:
        names[-2:] = ["image_size"] * 2 if spec.shape[-2] == spec.shape[-1] else ["height", "width"]
    return tuple(names)


def _resized(spec: TensorSpec, sizes: Sequence[Size]) -> TensorSpec:
    shape, least, best, most = (tuple(column) for column in zip(*sizes, strict=True))
    if least == most:
        return replace(spec, shape=shape, least=(), best=(), most=())
    best = tuple(size or measured for size, measured in zip(best, shape, strict=True)) if any(best) else ()
    return replace(spec, shape=shape, least=least, best=best, most=most)


def share_sizes(specs: Specs, fixed: Collection[str], dims: Specs = ()) -> tuple[TensorSpec, ...]:
    """Return the inputs with one size per name: that of ``dims``, or of an input whose sizes the user gave.

    Raises:
        InferlensError: if two sizes were given for one name.
    """
    sources = {dim.name: f"--dim {dim.name}" for dim in dims}
    sizes = {dim.name: _sizes(dim)[0] for dim in dims}
    for spec in sorted(specs, key=lambda spec: spec.name not in fixed):
        for name, size in zip(spec.names, _sizes(spec), strict=True):
            if name and size[0] and sizes.setdefault(name, size) != size and spec.name in fixed:
                ranges = [f"{low}..{high}" if low < high else str(high) for _, low, _, high in (sizes[name], size)]
                raise InferlensError(
                    f"'{name}' is {ranges[0]} in {sources[name]} and {ranges[1]} in {spec.name}.",
                    expected="one size for each name of a dimension",
                    hint=f"--dim {shlex.quote(f'{name}={ranges[0]}')} alone, which all inputs follow",
                )
            sources.setdefault(name, spec.name)
    resized = []
    for spec in specs:
        new_sizes = [
            (_sum(name, sizes) if spec.name not in fixed or not size[0] else None) or size
            for name, size in zip(spec.names, _sizes(spec), strict=True)
        ]
        resized.append(spec if new_sizes == _sizes(spec) else _resized(spec, new_sizes))
    return tuple(resized)


def _terms(name: str) -> list[str]:
    return [term.strip() for term in name.split("+")]


def _sum(name: str, sizes: Mapping[str, Size]) -> Size | None:
    """Return the size of a name, or of a sum of names and numbers; ``None`` if a term has no size."""
    term_sizes = []
    for term in [name] if name in sizes else _terms(name):
        if term not in sizes and not term.isdecimal():
            return None
        term_sizes.append(sizes[term] if term in sizes else (int(term),) * 4)
    measured, least, best, most = (sum(column) for column in zip(*term_sizes, strict=True))
    return measured, least, best if all(size[2] for size in term_sizes) else 0, most


def with_dims(specs: Specs, requested: Specs, dims: Specs) -> tuple[TensorSpec, ...]:
    """Return the requested inputs, and as many more as are needed to set the sizes ``dims``.

    The other inputs follow these sizes.

    Raises:
        InferlensError: if no input has a dimension of a name, or another size is requested for it.
    """
    specs, requested = with_names(specs, requested)
    names = dict.fromkeys(name for spec in (*specs, *requested) for name in spec.names if name)
    if dims and not names:
        hint = "without --dim, an --input for each"
        raise InferlensError("The model's inputs have no named dimensions.", hint=hint)
    for dim in dims:
        check_choice("dimension of an input", dim.name, [*names, *(term for name in names for term in _terms(name))])
    given = {spec.name: spec for spec in requested}
    missing = {dim.name for dim in dims}
    needed = []
    for spec in share_sizes(tuple(({spec.name: spec for spec in specs} | given).values()), given, dims):
        if spec.name in given or any(missing & {name, *_terms(name)} for name in spec.names):
            needed.append(spec)
            missing -= {*spec.names}
    return tuple(needed)


def missing_sizes(specs: Specs) -> InferlensError | None:
    """Return one error that names every input whose shape the model leaves open, and the options that say it all."""
    shapes: list[str] = []
    options: dict[str, None] = {}  # without duplicates
    for spec in specs:
        if 0 not in spec.shape:
            continue
        free = [name for name, size in zip(spec.names, spec.shape, strict=True) if not size]
        sizes = [str(size or name or "?") for name, size in zip(spec.names, spec.shape, strict=True)]
        shapes.append(f"{spec.name} ({' x '.join(sizes)})")
        if "" in free:
            filled = replace(spec, shape=tuple(size or USUAL_SIZE for size in spec.shape))
            options[f"--input {shlex.quote(str(filled))}"] = None
        else:
            terms = [term for name in free for term in _terms(name) if not term.isdecimal()]
            options |= dict.fromkeys(f"--dim {shlex.quote(f'{term}={USUAL_SIZE}')}" for term in terms)
    message = f"The model leaves open the shape of {', '.join(shapes)}."
    return InferlensError(message, expected="a size for each", hint=" ".join(options)) if shapes else None
