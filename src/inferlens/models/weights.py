"""Weights of a module: drawn from a seed, loaded from a file, and named by a hash.

Comparing the outputs of backends proves something only if every layer influences them. With the weights of the usual
constructors many layers do not. :func:`randomize` draws weights with which every layer counts and activations stay near
one, so that fp16 neither overflows nor underflows.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferlens.errors import InferlensError, LateModule, library, paths_like, reason
from inferlens.models.model import TRUST
from inferlens.record.files import FileType, file_kind, wrong_file

if TYPE_CHECKING:
    import torch
else:
    torch = LateModule("torch")

# All random numbers are uniform in [-x, x] around a centre. The values are a compromise from measurements. With larger
# biases and less centring, tokens or pixels become alike in deep layers, which then have no influence. With smaller
# biases and more centring, a deep network turns chaotic and multiplies fp16's rounding beyond the tolerance.
CONV_BIAS = 0.5  # a layer norm removes the scale of a convolution in front of it, but not its bias
BIAS = 0.125
BARE = 1.0  # parameters that are neither weights nor biases, such as position embeddings
NORM_WEIGHT = (1.0, 0.5)  # centre and reach
RUNNING_MEAN = (0.0, 0.5)
RUNNING_VAR = (1.0, 0.5)
CENTRING = 0.5  # share of a filter's mean to subtract, because inputs behind a ReLU have a mean

# Root mean square of a layer's output without its bias. It is larger for queries and keys, because attention with small
# logits weighs all tokens alike.
CONV_OUTPUT = 1.0
OUTPUT = 0.5
LOGITS = 2.0
_QUERY_OR_KEY = re.compile(r"(?:^|_)(?:q|k|qk|qkv|query|key|c_attn|wq|wk|wqkv)(?:_|$)", re.IGNORECASE)


def randomize(module: torch.nn.Module, example: tuple[torch.Tensor, ...], seed: int) -> None:
    """Give ``module`` random weights with which every layer influences the outputs, in place.

    All floating-point parameters except scalars, and the statistics of batch norms, are drawn from ``seed``. Then
    ``example`` goes through the module once, and the weight of every layer is scaled at its first use, so that the
    weight's part of the output has a given size. This is LSUV (Mishkin & Matas 2015, "All you need is a good init")
    with powers of two as scales, in one pass, and without the orthogonal start.

    Drawing consists of exact sums and single rounded operations, and scaling by a power of two rounds nothing, so the
    weights are the same bits for any number of threads. The global random state does not change.

    The module is on the CPU, in fp32, and left in eval mode. Raises InferlensError if it fails on ``example``; its
    weights are drawn then, but not scaled.
    """
    module.eval()
    threads = torch.get_num_threads()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1)  # the last bits of a sum depend on the number of threads
        torch.manual_seed(seed)
        _draw(module)
        hooks = list(_scaling_hooks(module))
        try:
            module(*example)
        except Exception as error:
            raise InferlensError(
                f"The model fails on its own inputs: {reason(error)}",
                expected="a model that takes its inputs as positional arguments, on the CPU, in fp32",
            ) from error
        finally:
            torch.set_num_threads(threads)
            for hook in hooks:
                hook.remove()


def _draw(module: torch.nn.Module) -> None:
    drawn: set[int] = set()
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in drawn and parameter.is_floating_point() and parameter.ndim:
                drawn.add(id(parameter))
                _draw_parameter(part, name, parameter)
        for name, buffer in part.named_buffers(recurse=False):
            if name in ("running_mean", "running_var"):
                _draw_uniform(buffer, *(RUNNING_MEAN if name == "running_mean" else RUNNING_VAR))


def _draw_parameter(part: torch.nn.Module, name: str, parameter: torch.Tensor) -> None:
    if "bias" in name:
        _draw_uniform(parameter, 0.0, CONV_BIAS if isinstance(part, torch.nn.modules.conv._ConvNd) else BIAS)
    elif parameter.ndim == 1:  # weights of norms, layer scales
        _draw_uniform(parameter, *NORM_WEIGHT)
    elif "weight" in name:
        fan_in = parameter[0].numel()
        # PyTorch's attention has queries, keys and values in one parameter, and none of its layers has a hook.
        size = LOGITS if name == "in_proj_weight" else 1.0
        # A depthwise filter reads one channel; without its mean it would be a high-pass, which multiplies noise.
        _draw_uniform(parameter, 0.0, size * math.sqrt(3 / fan_in), CENTRING if parameter.shape[1] > 1 else 0.0)
    else:
        _draw_uniform(parameter, 0.0, BARE)


def _draw_uniform(tensor: torch.Tensor, middle: float, reach: float, centring: float = 0.0) -> None:
    """Fill ``tensor`` with numbers in middle ± reach, and subtract ``centring`` of the mean of every row.

    Numbers in [-0.5, 0.5) come first: they are multiples of 2**-24, so their sum in float64 is exact in any order.
    """
    tensor.uniform_().sub_(0.5)
    if centring:
        dimensions = tuple(range(1, tensor.ndim))
        mean = tensor.sum(dimensions, keepdim=True, dtype=torch.float64) / tensor[0].numel()
        tensor.sub_((centring * mean).to(tensor.dtype))
    tensor.mul_(2 * reach).add_(middle)


def _scaling_hooks(module: torch.nn.Module) -> Iterator[Any]:
    """Yield hooks that scale the weight of a layer at its first use, if it has two or more dimensions."""
    scaled: set[int] = set()
    for path, part in module.named_modules():
        # PyTorch's attention does not call its output projection as a module, so the hook is on the attention.
        layer = part.out_proj if isinstance(part, torch.nn.MultiheadAttention) else part
        weight = layer._parameters.get("weight") if not isinstance(layer, torch.jit.ScriptModule) else None
        if weight is None or weight.ndim < 2 or not weight.is_floating_point():
            continue
        target = CONV_OUTPUT if isinstance(layer, torch.nn.modules.conv._ConvNd) else OUTPUT
        target = LOGITS if _QUERY_OR_KEY.search(path.rpartition(".")[2]) else target
        yield part.register_forward_hook(partial(_scale_once, scaled, layer, weight, target))


def _scale_once(
    scaled: set[int], layer: torch.nn.Module, weight: torch.Tensor, target: float, _part: Any, _inputs: Any, output: Any
) -> Any:
    first = output[0] if isinstance(output, tuple) else output
    already_scaled = id(weight) in scaled  # a tied weight, or a layer used twice
    scaled.add(id(weight))
    if already_scaled or not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return None
    first = _scaled_output(layer, weight, first, target)
    return (first, *output[1:]) if isinstance(output, tuple) else first


def _scaled_output(layer: torch.nn.Module, weight: torch.Tensor, output: torch.Tensor, target: float) -> torch.Tensor:
    """Scale ``weight`` so that its part of ``output`` is near ``target``, and return the output after scaling.

    The layer is assumed to be linear in its weight, so that it need not run again.
    """
    bias: torch.Tensor | float = 0.0
    parameter = layer._parameters.get("bias")
    if parameter is not None:
        # The dimensions of a filter come after that of the channels: none in a linear layer, two in a Conv2d.
        bias = parameter.view(-1, *[1] * (weight.ndim - 2))
        if output.ndim < bias.ndim or output.shape[-bias.ndim] != parameter.numel():
            return output  # a layer of another kind, whose weight stays as it was drawn
    product = output - bias
    size = float(product.square().mean().sqrt())
    if not (0 < size < math.inf):
        return output
    scale = 2.0 ** round(math.log2(target / size))
    weight.mul_(scale)
    return product * scale + bias


# Keys under which checkpoints keep weights, the most usual first; averaged weights before those at the end of training.
KEYS = (
    "model_state_dict", "state_dict", "model_state", "ema", "model_ema", "state_dict_ema", "params_ema", "model", "net",
    "network", "module", "params", "weights", "teacher",
)  # fmt: skip
COMPILED = "_orig_mod."  # torch.compile adds it to the names of a module that it wraps


def load_weights(module: torch.nn.Module, file: Path, *, trust: bool = False) -> str:
    """Load the weights in a file into ``module``, and return in words how they were unwrapped, if they were.

    The file was written by ``torch.save`` or safetensors. Its tensors may be below a key, and their names may have a
    prefix; the file must have every name of the module. Nothing in the file is executed without ``trust``. Raises
    InferlensError if it cannot be read, holds something else, or does not fit; the weights are undefined then.
    """
    names = list(module.state_dict())
    state, key = _state_dict(_read_weights(file, trust), file)
    state, prefix = _without_prefix(state, names)
    state = _with_tied(state, module)
    try:
        module.load_state_dict(state)
    except Exception as error:
        raise InferlensError(
            f"The weights in {file} do not fit the model: {reason(error)}",
            expected=f"the {len(names)} tensors of this model, by name and shape",
            hint="the model these weights were saved from",
        ) from error
    return ", ".join([f"key '{key}'"] * bool(key) + [f"without the prefix '{prefix}'"] * bool(prefix))


def _read_weights(file: Path, trust: bool) -> Any:
    if not file.is_file():
        raise InferlensError(f"There is no file {file}.", hint=paths_like(file))
    kind = file_kind(file)
    if kind.kind is FileType.WEIGHTS_INDEX and not kind.packing:
        return _read_parts(file, trust)
    kinds = (FileType.WEIGHTS, FileType.SAFETENSORS, FileType.PICKLE, *[FileType.MODULE] * trust)
    if kind.packing or kind.kind not in kinds:
        raise wrong_file(file, kind, expected="weights: tensors by name, as torch.save or safetensors writes them")
    safetensors = library("safetensors.torch", extra="models") if kind.kind is FileType.SAFETENSORS else None
    try:
        if safetensors:
            return safetensors.load_file(file)
        return torch.load(file, map_location="cpu", weights_only=not trust)  # a pickle can hold code
    except Exception as error:
        cause, hint = type(error).__name__, "copy it again"
        if code := re.search(r"GLOBAL ([\w.]+)", str(error)):
            cause = f"it holds {code[1]}, which can run code"
            hint = f"{TRUST}, or save it again with torch.save(model.state_dict(), file)"
        message = f"{file} cannot be read as weights: {cause}."
        raise InferlensError(
            message, expected="tensors by name; Python objects and code are refused", hint=hint
        ) from error


def _read_parts(index: Path, trust: bool) -> dict[str, Any]:
    """Return the tensors of all files that an index of weights names. The files are in the index's folder."""
    try:
        names = sorted({*msgspec.json.decode(index.read_bytes(), type=WeightsIndex).weight_map.values()})
    except msgspec.DecodeError as error:
        message = f"{index} cannot be read as an index of weights: {error}."
        raise InferlensError(message, hint="copy it again") from error
    parts: dict[str, Any] = {}
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise InferlensError(
                f"{index} names the weights in {name}, which is missing.",
                expected="every file of the index in the same folder",
                hint="copy or download it, too",
            )
        parts |= _read_weights(index.parent / name, trust)
    return parts


class WeightsIndex(msgspec.Struct):
    """The index of Hugging Face's checkpoints in several files: the file of every tensor, by name."""

    weight_map: dict[str, str]


def _with_tied(state: dict[str, torch.Tensor], module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the state with tensors that the module has under several names, of which safetensors keeps one."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    by_id = {id(tensor): state[name] for name, tensor in named if name in state}
    names = module.state_dict().keys()
    return {name: by_id[id(tensor)] for name, tensor in named if id(tensor) in by_id and name in names} | state


def unwrapped_module(content: Any) -> tuple[torch.nn.Module | None, str]:
    """Return the module that a checkpoint holds, and its key; ``None`` if there is none."""
    if isinstance(content, torch.nn.Module):
        return content, ""
    entries = content if isinstance(content, Mapping) else {}
    keys = [key for key in (*KEYS, *entries) if isinstance(entries.get(key), torch.nn.Module)]
    return (entries[keys[0]], str(keys[0])) if keys else (None, "")


def _state_dict(content: Any, file: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors by name that a checkpoint holds, and the keys above them."""
    module, key = unwrapped_module(content)
    keys = [key] * bool(key)
    content = module.float().state_dict() if module is not None else content
    while isinstance(content, Mapping):
        state = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
        inner = [key for key, value in content.items() if isinstance(value, Mapping) and _has_tensors(value)]
        usual = [key for key in KEYS if key in inner]
        if state and not usual:
            return state, ".".join(keys)
        if not usual and len(inner) != 1:
            break
        key = (usual or inner)[0]
        keys.append(str(key))
        content = content[key]
    note = f" Several keys have some: {', '.join(map(str, inner))}." if isinstance(content, Mapping) and inner else ""
    raise InferlensError(
        f"{file} has no weights under a usual key.{note}",
        expected="tensors by name, at the top or under a key such as 'model_state_dict', 'state_dict' or 'model'",
        hint="save it again with torch.save(model.state_dict(), file)",
    )


def _has_tensors(content: Mapping[Any, Any]) -> bool:
    return any(
        isinstance(value, torch.Tensor) or (isinstance(value, Mapping) and _has_tensors(value))
        for value in content.values()
    )


def _without_prefix(state: dict[str, torch.Tensor], names: list[str]) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors without the prefix that most of a module's ``names`` have in the state, and that prefix.

    Tensors without the prefix, such as a loss that Lightning keeps with the model, are left out.
    """
    if not any(COMPILED in name for name in names):
        state = {key.replace(COMPILED, ""): value for key, value in state.items()}
    first = next((name for name in names if any(key.endswith(name) for key in state)), "")
    prefixes = {key.removesuffix(first) for key in state if first and key.endswith(first)} | {""}
    best = max(sorted(prefixes, key=len), key=lambda prefix: sum(prefix + name in state for name in names))
    return {key.removeprefix(best): value for key, value in state.items() if key.startswith(best)}, best


def fingerprint(module: torch.nn.Module) -> str:
    """Return the hexadecimal SHA-256 over name, type, shape and bytes of all parameters and persistent buffers.

    Packed weights of a quantized module, which are not tensors, are left out.
    """
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(bits(tensor).numpy(force=True))
    return digest.hexdigest()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the values of a tensor of any type and layout, on the tensor's device."""
    dense = tensor.detach().dequantize() if tensor.is_quantized else tensor.detach().to_dense()
    return dense.contiguous().reshape(-1).view(torch.uint8)


def parameter_count(module: torch.nn.Module) -> int:
    """Return the number of parameters, shared ones once, buffers not counted."""
    return sum(parameter.numel() for parameter in module.parameters())


def buffers(module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """Return copies of a module's buffers, by name."""
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()} if module is not None else {}


def restore(module: torch.nn.Module | None, state: Mapping[str, torch.Tensor]) -> None:
    """Give a module the buffers in ``state`` again, which the calls of tracing and capturing have changed."""
    if module is None:
        return
    for name, buffer in [*module.named_buffers()]:
        if name in state and buffer.shape == state[name].shape:
            buffer.copy_(state[name])
        elif name in state:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, state[name].clone())
