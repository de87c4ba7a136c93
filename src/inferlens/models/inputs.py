"""The input tensors of a model, from a seed or from the user's example, and the tensors in its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import new_class
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from inferlens.errors import InferlensError, LateModule, check_choice, is_short_of_memory, reason
from inferlens.models.model import Array, Format, Model, ModelInfo
from inferlens.spec.case import TensorSpec, with_batch
from inferlens.units import listing

if TYPE_CHECKING:
    import torch
else:
    torch = LateModule("torch")


# A module that wants its arguments by name, called by position.


def by_position(module: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
    """Return ``module`` with positional arguments in the order of ``names``; ``module`` itself does not change.

    The result has the same parameters and submodules under the same paths, so that profiles and weights use the names
    of the model's author. Outputs with named fields (Transformers) become a tuple of their tensors, so that tracers and
    exporters accept them. Raises InferlensError if something else than the class of ``module`` defines its calls.
    """
    kind = type(module)
    generated = isinstance(module, torch.fx.GraphModule) or kind.__call__ is not torch.nn.Module.__call__
    if generated or "forward" in vars(module) or hasattr(kind, "__deepcopy__"):
        raise InferlensError(
            f"{kind.__name__} has a forward that was replaced, so its inputs cannot be put into another order.",
            expected="inputs in the order of the arguments of forward",
        )

    def forward(self: torch.nn.Module, *values: torch.Tensor) -> Any:
        outputs = kind.forward(self, **dict(zip(names, values, strict=True)))
        if hasattr(outputs, "to_tuple"):
            return tuple(output for output in outputs.to_tuple() if isinstance(output, torch.Tensor))
        return outputs

    identity = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # libraries look for these
    body = {**identity, "forward": forward, "takes_names": True}
    wrapper_kind = new_class(kind.__name__, (kind,), exec_body=lambda namespace: namespace.update(body))
    wrapper: torch.nn.Module = object.__new__(wrapper_kind)
    wrapper.__dict__.update(module.__dict__)
    return wrapper


FORM = "a tensor, a tuple of tensors, or a dict of tensors by argument name"
RANGES = {"uint8": (0, 256), "int8": (-128, 128)}  # other integers are 0 or 1, which fit every use


def make_inputs(model: Model, seed: int) -> dict[str, Array]:
    """Return one array per input, in the order of the arguments.

    An input of the user's example is used unchanged, or repeated or cut along the batch for another batch size. Other
    inputs are drawn by :func:`draw`.
    """
    drawn = draw(model.inputs, seed)
    for spec in model.inputs:
        if spec.name in model.example:
            drawn[spec.name] = np.resize(model.example[spec.name], spec.shape)
    return drawn


def draw(specs: tuple[TensorSpec, ...], seed: int) -> dict[str, Array]:
    """Return random arrays by input name: floats are standard normal, integers uniform in their range.

    Floats have the type of :func:`kind_of`. Integers without a range are 0 or 1, and those of one byte have any value.
    """
    random = np.random.default_rng(seed)
    return {spec.name: _random_array(spec, random) for spec in specs}


def _random_array(spec: TensorSpec, random: np.random.Generator) -> Array:
    if spec.dtype == "bool":
        return random.random(spec.shape) < 0.5
    if "float" in spec.dtype:
        return np.asarray(random.standard_normal(spec.shape), dtype=kind_of(spec))
    low, high = RANGES.get(spec.dtype, (0, 2))
    low = spec.low if spec.low is not None else low
    high = spec.high if spec.high is not None else max(high, low + 1)
    return np.asarray(random.integers(low, high, spec.shape), dtype=spec.dtype)


def kind_of(spec: TensorSpec) -> str:
    """Return the type of the arrays for an input. Half precision comes as ``float32``, which runners convert."""
    return "float32" if "float" in spec.dtype and spec.dtype != "float64" else spec.dtype


def try_inputs(opened: Model, specs: tuple[TensorSpec, ...], model_info: ModelInfo) -> None:
    """Call a module once, at batch 1 if it takes that. Raises InferlensError if it does not take ``specs``."""
    if opened.module is not None and (error := _call_error(opened, specs, model_info)) is not None:
        raise InferlensError(
            f"{model_info.argument or model_info.spec} does not take {', '.join(map(str, specs))}: {reason(error)}.",
            expected=f"inputs such as {', '.join(map(str, opened.inputs)) or 'those that its forward takes'}",
        ) from error


def half_precision(opened: Model) -> str:
    """Return ``fp16`` or ``bf16`` for a module whose weights are all in this precision, else an empty string."""
    if opened.module is None or opened.format != "module":
        return ""
    kinds = {tensor.dtype for tensor in opened.module.parameters() if tensor.is_floating_point()}
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(kinds.pop(), "") if len(kinds) == 1 else ""


def _float_type(opened: Model, program_precision: str) -> torch.dtype:
    """Return the type in which a module takes floats. A stored program takes them in its own precision."""
    precision = half_precision(opened) if opened.format == "module" else program_precision
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)


def guess_input(opened: Model) -> TensorSpec:
    """Return an image as the input of a model without a description of its inputs, if the model takes one.

    Raises InferlensError if it does not.
    """
    error: Exception | None = None
    image, names, embeds = TensorSpec("x", (1, 3, 224, 224)), ["x"], False
    if opened.module is not None:
        image = msgspec.structs.replace(image, name=_argument_names(opened.module, 1)[0])
        names = _needed_arguments(opened.module) or [image.name]
        first = next(part for part in opened.module.modules() if not [*part.children()])
        embeds = len(names) == 1 and isinstance(first, torch.nn.Embedding)
        try:
            with torch.inference_mode():
                opened.module(torch.zeros(image.shape, dtype=_float_type(opened, "fp32")))
            return image
        except Exception as raised:
            error = raised
    tokens = {name for name in names if embeds or name == "tokens" or name.endswith(("ids", "mask"))}
    raise InferlensError(
        "What to feed this model is not known.",
        expected="a factory that returns (model, inputs), or an --input with its shape and type for each argument",
        hint=" ".join(f"--input {name}={'1x128:int64' if name in tokens else '1x3x224x224:float32'}" for name in names)
        + ", with the shapes of your inputs" * (len(tokens) < len(names)),
    ) from error


def _call_error(opened: Model, specs: tuple[TensorSpec, ...], model_info: ModelInfo) -> Exception | None:
    """Return the error of calls at the smallest and the requested batch, if the inputs may be the cause."""
    assert opened.module is not None
    float_type = _float_type(opened, model_info.precision)
    error: Exception | None = None
    smallest = with_batch(specs, 1)
    if any(spec.dynamic for spec in specs):
        smallest = tuple(msgspec.structs.replace(spec, shape=spec.profile[0]) for spec in specs)
    for attempt in dict.fromkeys((smallest, specs)):
        tensors = [torch.from_numpy(array) for array in draw(attempt, 0).values()]
        tensors = [tensor.to(float_type) if tensor.dtype == torch.float32 else tensor for tensor in tensors]
        try:
            with torch.inference_mode():
                opened.module(*tensors)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, LookupError) as raised:
            text = str(raised).lower()
            has_other_cause = isinstance(raised, NotImplementedError) or "not implemented" in text or "cuda" in text
            if has_other_cause or is_short_of_memory(raised):
                return None
            error = raised
        else:
            return None
    return error


def with_example(module: torch.nn.Module, example: Any, *, weights: str, source: str) -> Model:
    """Return ``module`` unchanged, with the inputs of ``example``; without inputs if that is ``None``."""
    by_name = named_tensors(module, example)
    if isinstance(example, dict):
        module = by_position(module, list(by_name))
    return Model(
        format=format_of(module),
        module=module,
        inputs=tuple(spec_of(name, tensor) for name, tensor in by_name.items()),
        example={name: array_of(tensor) for name, tensor in by_name.items()},
        weights=weights,
        source=source,
    )


def named_tensors(module: torch.nn.Module, example: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of ``example`` by input name, in the order of the arguments; empty for ``None``.

    Raises InferlensError if the example is of another form.
    """
    if example is None:
        return {}
    values = [example] if isinstance(example, torch.Tensor) else example
    if isinstance(values, (list, tuple)):
        values = dict(zip(_argument_names(module, len(values)), values, strict=True))
    holds_tensors = isinstance(values, dict) and all(isinstance(value, torch.Tensor) for value in values.values())
    if not holds_tensors or not values:
        raise InferlensError(f"The example inputs are a {type(example).__name__} of something else.", expected=FORM)
    return {str(name): value for name, value in values.items()}


def called_by_name(module: torch.nn.Module, specs: Sequence[TensorSpec]) -> torch.nn.Module:
    """Return a module that takes inputs by their names, which are arguments of its ``forward``.

    A single input of a single argument may have any name. Raises InferlensError if a name is no argument, or an
    argument without a default has no input.
    """
    parameters, needed = _arguments(module), _needed_arguments(module)
    names = [spec.name for spec in specs]
    kinds = {parameter.kind for parameter in parameters.values()}
    if not parameters or inspect.Parameter.VAR_POSITIONAL in kinds or len(names) == len(parameters) == 1:
        return module
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in names:
            check_choice("argument of forward", name, parameters)
    if missing := [name for name in needed if name not in names]:
        raise InferlensError(
            f"forward also takes {listing(missing)}.",
            expected=f"an --input for each of {listing(needed)}",
            hint=" ".join(f"--input {msgspec.structs.replace(specs[0], name=name).text}" for name in missing),
        )
    return module if names == [*parameters][: len(names)] else by_position(module, names)


def _arguments(module: torch.nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of ``forward`` by name; none where it has no signature."""
    with suppress(TypeError, ValueError):
        return inspect.signature(module.forward).parameters
    return {}


def _needed_arguments(module: torch.nn.Module) -> list[str]:
    """Return the names of the arguments of ``forward`` that have no default."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = _arguments(module).values()
    return [
        argument.name for argument in parameters if argument.default is argument.empty and argument.kind not in variadic
    ]


def _argument_names(module: torch.nn.Module, count: int) -> list[str]:
    """Return names of the first ``count`` arguments of ``forward``; generated ones where it has no names."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, argument in _arguments(module).items() if argument.kind in kinds]
    return names[:count] if len(names) >= count else [f"input{index}" for index in range(count)]


def format_of(module: torch.nn.Module) -> Format:
    """Return ``torchscript`` for a compiled module, else ``module``."""
    return "torchscript" if isinstance(module, torch.jit.ScriptModule) else "module"


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return shape and type of a tensor. Integers keep the range of their values."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    bounds = (int(tensor.min()), int(tensor.max()) + 1) if "int" in dtype and tensor.numel() else ()
    return TensorSpec(name, tuple(tensor.shape), dtype, *bounds)


def array_of(tensor: torch.Tensor) -> Array:
    """Return a tensor's values on the host. Half precision comes as float32."""
    array: Array = (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy(force=True)
    return array


def on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays in place of tensors, without a copy if possible. NumPy has no bfloat16, which comes as float32."""
    arrays = dict(values)
    for name, value in values.items():
        if hasattr(value, "detach"):
            arrays[name] = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy(force=True)
    return arrays


def flatten(outputs: Any) -> list[torch.Tensor]:
    """Return every tensor in ``outputs``, depth first. Numbers become tensors; ``None`` and texts are skipped."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, (bool, int, float, complex)):
        return [torch.tensor(outputs)]
    if isinstance(outputs, Mapping):
        parts = list(outputs.values())
    elif isinstance(outputs, (list, tuple)):
        parts = list(outputs)
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        parts = [getattr(outputs, field.name) for field in fields(outputs)]
    else:
        return []
    return [tensor for part in parts for tensor in flatten(part)]


def single_or_list(outputs: list[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs


def shapes_fit(inputs: tuple[TensorSpec, ...]) -> bool:
    """Return whether the shapes of every input are consistent and not empty."""
    return all(
        len({len(spec.shape), *map(len, spec.profile)}) == 1
        and all(0 < low <= best <= high for low, best, high in zip(*spec.profile, strict=True))
        and all(size > 0 for size in spec.shape)
        for spec in inputs
    )


def read_arrays(path: str, *kinds: str) -> list[list[Array]]:
    """Return for each kind, such as ``output``, the arrays in a file of samples whose names begin with it."""
    with np.load(path, allow_pickle=False) as file:
        return [[file[name] for name in file.files if name.startswith(kind)] for kind in kinds]
