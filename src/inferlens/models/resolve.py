"""Names of models: :func:`find` resolves a name, :func:`load` opens the model for a case.

:func:`check` opens it as every case will, to report early what would stop all of them.
"""

from __future__ import annotations

import itertools
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferlens.errors import (
    InferlensError,
    LateModule,
    MissingLibrary,
    Unsupported,
    check_choice,
    is_short_of_memory,
    library,
    paths_like,
    reason,
    suggestion,
)
from inferlens.models import factories
from inferlens.models.compiled import EngineFile, OpenVinoFile, TorchTensorRtFile
from inferlens.models.factories import Factory, Hub, Live
from inferlens.models.files import SUFFIXES, OnnxFile, TorchFile, onnx_graph, weight_files
from inferlens.models.inputs import called_by_name, draw, guess_input, half_precision, try_inputs
from inferlens.models.libraries import FakeSource, Timm, Torchvision, Transformers, Zoo
from inferlens.models.model import InputsAtBatch, LoadRequest, Model, ModelInfo, Source
from inferlens.models.samples import RANDOM, Samples, read_samples
from inferlens.models.weights import fingerprint, load_weights, parameter_count, randomize
from inferlens.record.files import FileType, file_kind
from inferlens.record.record import ModelFacts
from inferlens.spec.case import EXPORTED, Case, TensorSpec, check_kept, kept_layers, with_batch
from inferlens.spec.dimensions import missing_sizes, share_sizes, with_dims, with_names, without_usual_names
from inferlens.spec.plan import Plan

if TYPE_CHECKING:
    import torch
else:
    torch = LateModule("torch")

# The sources that list their names are searched for a bare name in this order.
SOURCES: tuple[Source, ...] = (
    Torchvision(), Timm(), Transformers(), Zoo(), Hub(), Factory(), OnnxFile(), TorchFile(), EngineFile(),
    TorchTensorRtFile(), OpenVinoFile(), Live(), FakeSource(),
)  # fmt: skip
BY_PREFIX = {source.prefix: source for source in SOURCES}
BY_KIND = {kind: source.prefix for source in SOURCES for kind in source.kinds}
# Sources of missing files, and of files with ambiguous content.
BY_SUFFIX = {
    ".onnx": OnnxFile.prefix, **dict.fromkeys(SUFFIXES, TorchFile.prefix),
    **{suffix: kind.prefix for kind in (EngineFile, TorchTensorRtFile, OpenVinoFile) for suffix in kind.suffixes},
}  # fmt: skip


def find(name: str) -> ModelInfo:
    """Resolve ``SOURCE:NAME``, a model file, ``package.module:factory``, or a bare name. Suggest near misses."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in BY_PREFIX:
        model_info = BY_PREFIX[prefix].find(rest)
    elif opener := _file_source(Path(name)):
        model_info = BY_PREFIX[opener].find(name)
    elif colon or name.endswith(".py"):
        model_info = BY_PREFIX["factory"].find(name)
    else:
        model_info = _find_bare_name(name)
    return msgspec.structs.replace(model_info, argument=name)


def _file_source(path: Path) -> str:
    """Return the prefix of the source that opens a file, by its content; empty for a path that is not a model file."""
    by_suffix = BY_SUFFIX.get(path.suffix, "")
    if not path.is_file() or path.suffix == ".py":
        return by_suffix
    kind = file_kind(path).kind
    if kind is FileType.EXPORTED and by_suffix == TorchTensorRtFile.prefix:  # such a program may hold no engine
        return by_suffix
    could_be_a_name = path.name == str(path) and not path.suffix
    return BY_KIND.get(kind) or by_suffix or ("" if could_be_a_name else TorchFile.prefix)


def _find_bare_name(name: str) -> ModelInfo:
    all_names: list[str] = []
    missing: MissingLibrary | None = None
    for source in SOURCES:
        try:
            names = source.names()
        except MissingLibrary as error:
            missing = missing or error
            continue
        if name in names:
            return source.find(name)
        all_names += names
    raise InferlensError(
        f"There is neither a file nor a model '{name}'.{f' {missing.what}' if missing else ''}",
        expected="a name of torchvision, timm, transformers or inferlens, a model file, or package.module:factory",
        hint=paths_like(Path(name)) or (missing.hint if missing else suggestion(name, all_names)),
    )


def runs_code(spec: str) -> bool:
    """Return whether loading the model of this full name runs code that does not belong to a library."""
    source = BY_PREFIX.get(spec.partition(":")[0])
    return source is not None and source.runs_code


def files_of(spec: str) -> list[Path]:
    """Return the file of a model of this full name, and the files of its weights; none for a model without a file."""
    prefix, _, name = spec.partition(":")
    path = Path(name)
    if prefix not in ("onnx", "file", "openvino") or not path.is_file():
        return []
    if prefix == "onnx":
        return [path, *weight_files(path, onnx_graph(path))]
    return [path, path.with_suffix(".bin")] if prefix == "openvino" else [path]


def check_place(spec: str, checkout: str) -> None:
    """Raise InferlensError for a model that is not in the checkout, which must be the working directory."""
    path = factories.place(spec)
    if path is None or not path.resolve().is_relative_to(Path.cwd()):
        where = f"comes from {path}" if path else "comes with a library"
        message = f"{spec.removeprefix('factory:')} {where}, not from the checkout {checkout}."
        raise InferlensError(message, expected=f"a factory, package.module:factory, whose code is in {checkout}")


def load(case: Case, *, trust: bool = False, live: Path | None = None) -> Model:
    """Open the model of ``case``, with its weights, its inputs and its batch size.

    Args:
        case: ``case.model`` is a full name, as in :attr:`ModelInfo.spec`.
        trust: whether pickles that can run code may be opened.
        live: the file to which the parent process wrote a live module.

    Raises InferlensError if the model, its weights or the requested inputs do not fit together.
    """
    opened = _open(case, trust, live)
    weights = _weights(opened, case, trust)
    inputs = _inputs(opened, case)
    data = _calibration(case, inputs)
    module, file_hash = opened.module, opened.weights_sha256 or opened.source.rpartition(" ")[2]
    return replace(
        opened,
        spec=case.model,
        name=case.model.partition(":")[2],
        inputs=inputs,
        example=next(data.feeds()) if data else {} if case.inputs else opened.example,
        samples=data,
        weights=weights,
        parameters=opened.parameters if module is None else parameter_count(module),
        weights_sha256=file_hash if module is None else fingerprint(module),
    )


def inputs_are_drawn(case: Case) -> bool:
    """Return whether a case draws its inputs from its seed, and uses neither data nor an example."""
    if case.calibration not in ("", RANDOM):
        return False
    return bool(case.inputs) or BY_PREFIX[case.model.partition(":")[0]].vouched


def _calibration(case: Case, inputs: tuple[TensorSpec, ...]) -> Samples | None:
    return None if case.calibration in ("", RANDOM) else load_samples(case.calibration, case, inputs)


def load_samples(data: str, case: Case, inputs: tuple[TensorSpec, ...]) -> Samples:
    """Return the samples in ``data`` for the inputs of a case's model. Raises InferlensError if they do not fit."""
    prefix, _, name = case.model.partition(":")
    return read_samples(data, inputs, lambda: BY_PREFIX[prefix].preparation(name, inputs[0]))


def exported_model(case: Case, facts: ModelFacts) -> Model:
    """Return the model of ``case`` without its module, for backends that run its exported file."""
    return Model(spec=case.model, **msgspec.structs.asdict(facts))


def _open(case: Case, trust: bool, live: Path | None) -> Model:
    prefix, _, name = case.model.partition(":")
    check_choice("source of models", prefix, BY_PREFIX)  # the name may come from a file, such as a provenance
    source = BY_PREFIX[prefix]
    if source.format == "module":
        library("torch", extra="torch").manual_seed(case.seed)
    factories.import_from_here()
    opened: Model = source.open(name, LoadRequest(weights=case.weights, trust=trust, live=live))
    if opened.module is not None and opened.format == "module":  # stored programs do not change
        opened.module.eval().requires_grad_(False)
        if case.inputs and not opened.inputs:
            return replace(opened, module=called_by_name(opened.module, case.inputs))
    return opened


def check(model_info: ModelInfo, plan: Plan, live: Path | None = None) -> ModelInfo:
    """Return the information on a model, with the inputs of ``plan`` and the inputs that the model refuses.

    Raises InferlensError if the model cannot be loaded, or does not take the weights or the inputs.
    """
    source = BY_PREFIX[model_info.spec.partition(":")[0]]
    shared = {name: getattr(plan, name) for name in ("weights", "calibration", "keep", "seed")}
    case = Case(model=model_info.spec, backend="", inputs=plan.input[0], **shared)
    sets_inputs = any(case.inputs) or any(plan.dim[0]) or case.calibration not in ("", RANDOM)
    if source.vouched and not (sets_inputs or case.weights or case.keep):
        return model_info
    try:
        opened = _open(case, plan.trust, live)
        _requested_weights(opened, case, plan.trust)
        if not (case.inputs or opened.inputs):
            opened = replace(opened, inputs=(guess_input(opened),))
        model_info = _with_inputs(model_info, opened, plan)
    except MissingLibrary:
        if any(plan.dim[0]):
            raise
        return model_info  # the backends report it, too
    except Unsupported as error:
        return msgspec.structs.replace(model_info, unfit=tuple((feed, error) for feed in feeds(plan, model_info)))
    except InferlensError:
        raise
    except Exception as error:
        if is_short_of_memory(error):
            return model_info
        raise InferlensError(
            f"{model_info.argument or model_info.spec} cannot be loaded: {reason(error)}{_user_frame(error)}.",
            hint="load it by itself in Python, which shows where this comes from",
        ) from error
    if opened.module is not None:  # names of ONNX nodes are checked after the export
        nodes = [name for name in kept_layers(case) if name.startswith(EXPORTED)]
        check_kept(case, [*(name for name, _ in opened.module.named_modules()), *nodes])
    model_info = msgspec.structs.replace(model_info, precision=half_precision(opened) or model_info.precision)
    specs_by_inputs: dict[tuple[TensorSpec, ...], tuple[TensorSpec, ...]] = {}
    unfit: list[tuple[InputsAtBatch, Unsupported]] = []
    for inputs, batch in feeds(plan, model_info):
        try:
            specs_by_inputs[inputs] = _inputs(opened, msgspec.structs.replace(case, inputs=inputs, batch=batch))
        except Unsupported as error:
            unfit.append(((inputs, batch), error))
    for inputs, specs in specs_by_inputs.items():
        if data := _calibration(case, specs):
            next(data.feeds(1))
        if inputs or not source.vouched:
            try_inputs(opened, specs, model_info)
    return msgspec.structs.replace(model_info, unfit=tuple(unfit), convolutional=_has_convolutions(opened.module))


def feeds(plan: Plan, model_info: ModelInfo) -> list[InputsAtBatch]:
    """Return the inputs that a plan requests at every batch; the default is the batch of the inputs, or the model's."""
    requested = []
    for inputs in model_info.inputs or plan.input:
        default = inputs[0].shape[0] if inputs and inputs[0].shape else model_info.batch
        requested += [(inputs, batch) for batch in plan.batch or (default,)]
    return requested


def with_named_sizes(model_info: ModelInfo, plan: Plan, live: Path | None) -> ModelInfo:
    """Return the information on a model, with the inputs of a plan that gives sizes by name."""
    if not any(plan.dim):
        return model_info
    model_info.check(plan.trust)
    return _with_inputs(model_info, _open(Case(model=model_info.spec, backend=""), plan.trust, live), plan)


def _with_inputs(model_info: ModelInfo, opened: Model, plan: Plan) -> ModelInfo:
    pairs = itertools.product(plan.input, plan.dim)
    return msgspec.structs.replace(
        model_info, inputs=tuple(with_dims(opened.inputs, tensor_specs, dims) for tensor_specs, dims in pairs)
    )


def with_layers(model_info: ModelInfo) -> ModelInfo:
    """Return the information on a library's model with ``convolutional``, without allocating its weights."""
    prefix, _, name = model_info.spec.partition(":")
    source = BY_PREFIX[prefix]
    if source.vouched and model_info.format == "module":
        with suppress(Exception):  # without the library, the field keeps its default
            with torch.device("meta"):
                module = source.open(name, LoadRequest()).module
            return msgspec.structs.replace(model_info, convolutional=_has_convolutions(module))
    return model_info


def _has_convolutions(module: torch.nn.Module | None) -> bool:
    """Return whether a module, which may be one of TorchScript, has 2-D convolutions."""
    for part in module.modules() if module is not None else ():
        if "Conv2d" in (getattr(part, "original_name", ""), *(kind.__name__ for kind in type(part).__mro__)):
            return True
    return False


def _user_frame(error: BaseException) -> str:
    """Return the line of the user's code that raised an error, such as `` (mine.py, line 3)``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        is_library = "site-packages" in frame.filename or frame.filename == __file__
        if Path(frame.filename).is_relative_to(Path.cwd()) and not is_library:
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


def _requested_weights(opened: Model, case: Case, trust: bool) -> str:
    """Load the requested weights, if they are in a file. Return their origin; empty for random weights."""
    if case.weights and (opened.format != "module" or opened.module is None):
        raise InferlensError(f"{case.model} brings its own weights.", hint="leave out --weights")
    if case.weights and opened.module is not None and Path(case.weights).suffix:
        unwrapped = load_weights(opened.module, Path(case.weights), trust=trust)
        return f"file {Path(case.weights).name}" + f" ({unwrapped})" * bool(unwrapped)
    if case.weights and (opened.fresh or not opened.named_weights):
        message = f"{case.model} has no weights by name, so '{case.weights}' means nothing."
        raise InferlensError(message, hint="--weights with a file")
    if not opened.fresh or opened.module is None:
        return opened.weights or f"made with seed {case.seed}"
    return ""


def _weights(opened: Model, case: Case, trust: bool) -> str:
    """Give a fresh module its weights, and return their origin."""
    if source := _requested_weights(opened, case, trust):
        return source
    if opened.inputs and opened.module is not None:
        arrays = draw(opened.inputs, case.seed)
        randomize(opened.module, tuple(torch.from_numpy(array) for array in arrays.values()), case.seed)
    return f"random, seed {case.seed}"


def _inputs(opened: Model, case: Case) -> tuple[TensorSpec, ...]:
    """Return the model's own inputs, replaced by the requested ones, at the batch of the case.

    Raises an error for sizes and types that the model's file does not take.
    """
    if not opened.inputs:
        return without_usual_names(opened.inputs, with_batch(case.inputs or (guess_input(opened),), case.batch))
    own_specs, requested_specs = with_names(opened.inputs, case.inputs)
    defaults = {spec.name: spec for spec in own_specs}
    requested = {spec.name: spec for spec in requested_specs}
    for name, spec in requested.items():
        check_choice("input", name, defaults)
        if spec.low is None and spec.dtype == defaults[name].dtype:
            requested[name] = msgspec.structs.replace(spec, low=defaults[name].low, high=defaults[name].high)
    at_batch = with_batch(tuple((defaults | requested).values()), case.batch)
    # Inputs that are not requested share the batch of the model's own first input.
    defaults_at_batch = {spec.name: spec for spec in with_batch(own_specs, case.batch)}
    specs = tuple(spec if spec.name in requested else defaults_at_batch[spec.name] for spec in at_batch)
    if case.batch is not None and any(first := specs[0].names[:1]):
        shapes = {spec.name: (case.batch, *spec.shape[1:]) for spec in specs if spec.names[:1] == first}
        specs = tuple(msgspec.structs.replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in specs)
    specs = share_sizes(specs, requested)
    if error := missing_sizes(specs):
        raise error
    for spec in specs:
        _check_sizes(spec, opened)
    return without_usual_names(opened.inputs, specs)


def _check_sizes(spec: TensorSpec, opened: Model) -> None:
    """Raise an error if an input has other sizes or another type than the file fixes."""
    if spec.name not in opened.sizes:
        return
    ranges = opened.sizes[spec.name]
    least, _, most = spec.profile
    dtype = next(own_spec.dtype for own_spec in opened.inputs if own_spec.name == spec.name)
    has_form = spec.dtype == dtype and (ranges is None or len(ranges) == len(spec.shape))
    sizes = zip(least, most, ranges or (), strict=False)
    if has_form and all(low <= small and (high is None or large <= high) for small, large, (low, high) in sizes):
        return
    form = "SHAPE" if ranges is None else "x".join(_range_text(low, high) for low, high in ranges) or "scalar"
    raise (Unsupported if has_form else InferlensError)(
        f"The file does not take {spec}.",
        expected=f"{spec.name}={form}:{dtype}",
        hint="a batch and inputs that it was stored for, or a file stored for a dynamic batch",
    )


def _range_text(low: int, high: int | None) -> str:
    if high is None:
        return "N" if low == 1 else f"{low}..N"
    return str(low) if low == high else f"{low}..{high}"
