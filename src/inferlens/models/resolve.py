"""From a name to a model: :func:`find` says what a name means, :func:`load` opens it for a case."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from inferlens.errors import InferlensError, MissingLibrary, Unsupported, library, suggestion
from inferlens.models.model import Model, ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Source
from inferlens.models.sources.compiled import EngineFile, TorchTensorRtFile
from inferlens.models.sources.factory import Factory
from inferlens.models.sources.fake import Fake
from inferlens.models.sources.files import SUFFIXES, TorchFile, is_plain_script
from inferlens.models.sources.hub import Hub
from inferlens.models.sources.libraries import Timm, Torchvision, Zoo
from inferlens.models.sources.live import Live
from inferlens.models.sources.onnx import OnnxFile
from inferlens.models.sources.transformers import Transformers
from inferlens.spec.case import Case, TensorSpec, with_batch

# A bare name is looked up in the sources that list their names, in this order.
SOURCES: tuple[Source, ...] = (
    Torchvision(), Timm(), Transformers(), Zoo(), Hub(), Factory(), OnnxFile(), TorchFile(), EngineFile(),
    TorchTensorRtFile(), Live(), Fake(),
)  # fmt: skip
BY_PREFIX = {source.prefix: source for source in SOURCES}
BY_SUFFIX = {
    ".onnx": "onnx",
    **{suffix: kind.prefix for kind in (EngineFile, TorchTensorRtFile) for suffix in kind.suffixes},
}
IMAGE = TensorSpec("x", (1, 3, 224, 224))


def find(name: str) -> ModelInfo:
    """What ``name`` means: ``SOURCE:NAME``, a model file, ``package.module:factory``, or a bare name.

    Raises:
        InferlensError: if it means nothing; near misses are suggested.
    """
    prefix, colon, rest = name.partition(":")
    if colon and prefix in BY_PREFIX:
        found = BY_PREFIX[prefix].find(rest)
    elif Path(name).suffix in BY_SUFFIX and not is_plain_script(Path(name)):
        found = BY_PREFIX[BY_SUFFIX[Path(name).suffix]].find(name)
    elif name.endswith(SUFFIXES) or Path(name).is_file():
        found = BY_PREFIX["file"].find(name)
    elif colon:
        found = BY_PREFIX["factory"].find(name)
    else:
        found = _bare(name)
    return msgspec.structs.replace(found, asked=name)


def runs_code(spec: str) -> bool:
    """Whether loading the model of this full name runs code that is none of a library's."""
    source = BY_PREFIX.get(spec.partition(":")[0])
    return source is not None and source.runs_code


def load(case: Case, *, trust: bool = False, live: Path | None = None) -> Model:
    """Opens the model of ``case``, with its weights, its inputs and its batch size.

    Args:
        case: ``case.model`` is a full name, as in :attr:`ModelInfo.spec`.
        trust: whether pickles that can run code may be opened.
        live: where the parent process left a live module.

    Raises:
        InferlensError: if the model, its weights or the inputs asked for do not fit together.
    """
    prefix, _, name = case.model.partition(":")
    source = BY_PREFIX.get(prefix)
    if source is None:  # a name from a file, such as the origin of an engine
        raise InferlensError(f"There is no source of models '{prefix}'.", expected=f"one of {', '.join(BY_PREFIX)}")
    request = LoadRequest(seed=case.seed, weights=case.weights, trust=trust, live=live)
    if source.format == "module":
        library("torch", extra="torch").manual_seed(case.seed)
    opened = source.open(name, request)
    if opened.module is not None and opened.format == "module":  # stored programs are what they are
        opened.module.eval().requires_grad_(False)
    weights = _weights(opened, case)
    inputs = _at_batch(opened, _inputs(opened, case.inputs), case)
    _check_batch(opened, inputs)
    _check_shapes(opened, inputs)
    return Model(
        spec=case.model,
        name=name,
        format=opened.format,
        inputs=inputs,
        module=opened.module,
        path=opened.path,
        example={} if case.inputs else opened.example,
        weights=weights,
        source=opened.source,
        parameters=_parameters(opened),
        weights_sha256=_fingerprint(opened),
    )


def _bare(name: str) -> ModelInfo:
    known: list[str] = []
    missing: MissingLibrary | None = None
    for source in SOURCES:
        try:
            names = source.names()
        except MissingLibrary as error:
            missing = missing or error
            continue
        if name in names:
            return source.find(name)
        known += names
    if missing:
        raise InferlensError(
            f"No model '{name}' was found, and not every source is here. {missing.what}", hint=missing.hint
        )
    raise InferlensError(
        f"There is no model '{name}'.",
        expected="a name of torchvision, timm, transformers or inferlens, a model file, or package.module:factory",
        hint=suggestion(name, known) or "torchvision:resnet18",
    )


def _weights(opened: Opened, case: Case) -> str:
    """Gives a fresh module its weights; says where they are from."""
    from inferlens.models import inputs as input_arrays
    from inferlens.models import weights

    if case.weights and opened.format != "module":
        raise InferlensError(f"{case.model} brings its own weights.", hint="leave out --weights")
    if case.weights and Path(case.weights).suffix:
        assert opened.module is not None
        weights.load_weights(opened.module, Path(case.weights))
        return f"file {Path(case.weights).name}"
    if case.weights and (opened.fresh or not opened.named_weights):
        raise InferlensError(
            f"{case.model} has no weights by name, so '{case.weights}' means nothing.", hint="--weights with a file"
        )
    if not opened.fresh or opened.module is None:
        return opened.weights or f"made with seed {case.seed}"
    if opened.inputs:
        import torch

        arrays = input_arrays.draw(opened.inputs, case.seed)
        weights.randomize(opened.module, tuple(torch.from_numpy(array) for array in arrays.values()), case.seed)
    return f"random, seed {case.seed}"


def _inputs(opened: Opened, asked: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The model's own inputs, with those asked for in their place."""
    if not opened.inputs and opened.module is None and not asked:
        raise InferlensError(
            "Nothing beside the file tells what its inputs are.",
            expected="an --input for each of them",
            hint="--input x=1x3x224x224:float32",
        )
    if not opened.inputs:
        return asked or (_guess(opened),)
    own = {spec.name: spec for spec in opened.inputs}
    for spec in asked:
        if spec.name not in own:
            raise InferlensError(
                f"The model has no input '{spec.name}'.",
                expected=f"one of {', '.join(own)}",
                hint=suggestion(spec.name, own) or _option(opened.inputs[0]),
            )
        if spec.low is None and spec.dtype == own[spec.name].dtype:
            spec = msgspec.structs.replace(spec, low=own[spec.name].low, high=own[spec.name].high)
        own[spec.name] = spec
    for spec in own.values():
        if 0 in spec.shape:
            known = opened.shapes.get(spec.name) is not None
            raise InferlensError(
                f"The input '{spec.name}' has {'dimensions' if known else 'a shape'} that the model leaves open.",
                expected="a size for each" if known else "its shape",
                hint=_option(spec),
            )
    return tuple(own.values())


def _option(spec: TensorSpec) -> str:
    """``--input`` with ``spec``, and with some size where one is open."""
    sizes = tuple(size or 128 for size in spec.shape)
    return f"--input {shlex.quote(str(msgspec.structs.replace(spec, shape=sizes)))}"


def _at_batch(opened: Opened, inputs: tuple[TensorSpec, ...], case: Case) -> tuple[TensorSpec, ...]:
    """``inputs`` at the batch; those not asked for follow the model's own first input, whose size they share."""
    asked = {spec.name for spec in case.inputs}
    own = {spec.name: spec for spec in with_batch(opened.inputs, case.batch)}
    return tuple(spec if spec.name in asked else own.get(spec.name, spec) for spec in with_batch(inputs, case.batch))


def _guess(opened: Opened) -> TensorSpec:
    """An image, if the model takes one: most models whose inputs nobody tells do.

    Raises:
        InferlensError: if it does not.
    """
    import torch

    from inferlens.models.examples import argument_names

    assert opened.module is not None
    spec = msgspec.structs.replace(IMAGE, name=argument_names(opened.module, 1)[0])
    try:
        with torch.inference_mode():
            opened.module(torch.zeros(spec.shape))
    except Exception as error:
        raise InferlensError(
            "What to feed this model is not known, and it takes no image of 1x3x224x224.",
            expected="an --input for each of its arguments",
            hint=_option(TensorSpec(spec.name, (1, 3, 32, 32))),
        ) from error
    return spec


def _check_batch(opened: Opened, inputs: tuple[TensorSpec, ...]) -> None:
    """A model stored for one batch size runs at that alone.

    Raises:
        Unsupported: if the case asks for another.
    """
    own = opened.inputs[0].shape[0] if opened.inputs and opened.inputs[0].shape else None
    if opened.fixed_batch and inputs[0].shape[0] != own:
        raise Unsupported(
            f"The file was stored for batch {own} alone, not for {inputs[0].shape[0]}.",
            hint=f"--batch {own}, or a file stored with a dynamic batch",
        )


def _check_shapes(opened: Opened, inputs: tuple[TensorSpec, ...]) -> None:
    """What a file fixes of its inputs' shapes and types is what it runs at.

    Raises:
        InferlensError: if the case asks for something else.
    """
    own = {spec.name: spec for spec in opened.inputs}
    for spec in inputs:
        if spec.name not in opened.shapes:
            continue
        shape = opened.shapes[spec.name]
        if not _fits(spec, shape) or spec.dtype != own[spec.name].dtype:
            wanted = f"{spec} with a range of sizes" if spec.dynamic else str(spec)
            raise InferlensError(
                f"The file does not take {wanted}.", expected=f"{spec.name}={_form(shape)}:{own[spec.name].dtype}"
            )
        _check_bounds(spec, opened.bounds.get(spec.name, ()))


def _fits(spec: TensorSpec, shape: tuple[int | None, ...] | None) -> bool:
    """Whether the sizes asked for are those of ``shape``, where it tells them."""
    if shape is None:
        return True
    least, _, most = spec.profile
    sizes = zip(least, spec.shape, most, shape, strict=False)
    return len(spec.shape) == len(shape) and all(
        fixed is None or low == size == high == fixed for low, size, high, fixed in sizes
    )


def _form(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return "SHAPE"
    return "x".join("N" if size is None else str(size) for size in shape) or "scalar"


def _check_bounds(spec: TensorSpec, bounds: tuple[tuple[int, int | None], ...]) -> None:
    """The sizes asked for are in the range that the file was stored for.

    Raises:
        Unsupported: if one is not.
    """
    least, _, most = spec.profile
    sizes = zip(least, most, bounds, strict=False)
    if all(low <= a and (high is None or b <= high) for a, b, (low, high) in sizes):
        return
    near = tuple(
        max(low, size if high is None else min(size, high))
        for size, (low, high) in zip(spec.shape, bounds, strict=True)
    )
    alike = near[1:] == spec.shape[1:]
    within = f"--batch {near[0]}" if alike else _option(TensorSpec(spec.name, near, spec.dtype))
    raise Unsupported(
        f"{spec} is outside of the range that the file was stored for.",
        expected=f"{spec.name}={'x'.join(_size_in(*bound) for bound in bounds)}",
        hint=f"{within}, or a file stored for a wider range",
    )


def _size_in(low: int, high: int | None) -> str:
    return str(low) if low == high else f"{low}..{'N' if high is None else high}"


def _fingerprint(opened: Opened) -> str:
    """What tells these weights from others."""
    from inferlens.models import weights

    if opened.weights_sha256:
        return opened.weights_sha256
    return weights.fingerprint(opened.module) if opened.module is not None else opened.source.rpartition(" ")[2]


def _parameters(opened: Opened) -> int | None:
    from inferlens.models import weights

    return weights.parameter_count(opened.module) if opened.module is not None else opened.parameters
