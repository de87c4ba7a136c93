"""Weights of a module: drawn from a seed, loaded from a file, and named by a hash.

Random weights here are not those of a constructor. Outputs are compared between backends, and that proves something
only if every layer shows in the outputs; with the usual initial values it does not: biases drown a small network's
weights, a deep one's signal vanishes, a layer scale of 1e-6 hides whole blocks. :func:`randomize` draws weights with
which every layer counts and activations stay near one, so that fp16 neither overflows nor underflows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferlens.errors import InferlensError, MissingLibrary

if TYPE_CHECKING:
    import torch

BIAS = 0.5  # biases lie in [-BIAS, BIAS]: enough to break scale invariance before a norm, too little to drown weights
BARE = 1.0  # the same for parameters of two and more dimensions that are no weights, such as position embeddings
GAIN = {2: 1.0}  # a layer's output is at most this much larger than its input, by its weight's number of dimensions
OTHER_GAIN = 2.0  # convolutions make up for the half that a ReLU cuts off
STEPS = 16  # biases are centred in steps of a sixteenth, so that no rounding error of a mean shows in them
WRAPPERS = ("state_dict", "model")
SHOWN = 3  # names listed of each kind in an error


def randomize(module: torch.nn.Module, example: tuple[torch.Tensor, ...], seed: int) -> None:
    """Gives ``module`` random weights with which every layer shows in the outputs; in place, from ``seed`` alone.

    Every floating-point parameter is drawn anew, and every batch norm's statistics; then ``example`` goes through the
    module once, and each layer's weight is scaled so that what it adds to its output is near one (as LSUV does, Mishkin
    & Matas 2015, "All you need is a good init", in one pass and without its orthogonal start), and its bias is centred.

    Weights are 24 random bits times a scale of three bits, so no rounding error of a sum shows in them: they are the
    same for any number of threads, and practically always on any machine. The global random state is left alone.

    What cannot be made to matter: the scale of a layer without bias, alone in front of a layer or instance norm; rows
    of an embedding that the inputs do not use; parameters that no forward uses; the bias of an attention's keys, which
    shifts a row of logits as a whole.

    Args:
        module: on the CPU, in fp32; left in eval mode.
        example: its inputs, as positional arguments.
        seed: any integer.

    Raises:
        InferlensError: if the module fails on ``example``; its weights are drawn then, but not scaled.
    """
    import torch

    module.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(seed)
        _draw(module)
        scaled: set[int] = set()
        layers = [part for part in module.modules() if _matrix(part) is not None]
        hooks = [
            part.register_forward_hook(lambda part, inputs, output: _scale(part, inputs, output, scaled))
            for part in layers
        ]
        try:
            module(*example)
        except Exception as error:
            raise InferlensError(
                f"The model fails on its own inputs: {type(error).__name__}: {error}",
                cure="describe its inputs, for example --input x=1x3x224x224",
            ) from error
        finally:
            for hook in hooks:
                hook.remove()


def load_weights(module: torch.nn.Module, file: Path) -> None:
    """Puts the weights of a state dict into ``module``, every one of them.

    Args:
        module: changed in place.
        file: ``.safetensors``, or what ``torch.save`` wrote of a state dict; nothing else in it is unpickled.

    Raises:
        InferlensError: if the file cannot be read, or its names and shapes are not the module's.
    """
    loaded = _state_dict(file)
    own = module.state_dict()
    missing = sorted(own.keys() - loaded.keys())
    unexpected = sorted(loaded.keys() - own.keys())
    other = sorted(name for name in own.keys() & loaded.keys() if own[name].shape != loaded[name].shape)
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
        for kind, names in (("missing", missing), ("not the model's", unexpected), ("of another shape", other))
        if names
    ]
    if problems:
        raise InferlensError(
            f"The weights in {file} do not fit the model. {'; '.join(problems)}.",
            expected="the weights of this very model",
        )
    module.load_state_dict(loaded)


def fingerprint(module: torch.nn.Module) -> str:
    """SHA-256 over names, types, shapes and values of all parameters and buffers, in order."""
    import torch

    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        data = value.detach().cpu().contiguous().reshape(-1)
        digest.update(memoryview(data.view(torch.uint8).numpy()) if data.numel() else b"")
    return digest.hexdigest()


def parameter_count(module: torch.nn.Module) -> int:
    """Number of parameters, shared ones counted once, buffers not at all."""
    return sum(parameter.numel() for parameter in module.parameters())


def _state_dict(file: Path) -> dict[str, Any]:
    """What a weights file holds, by name."""
    import torch

    if not file.is_file():
        raise InferlensError(f"The file of weights {file} does not exist.", expected=".pth, .pt or .safetensors")
    try:
        if file.suffix == ".safetensors":
            loaded: Any = _safetensors(file)
        else:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (InferlensError, MemoryError):
        raise
    except Exception as error:
        raise InferlensError(
            f"{file} cannot be read as weights: {type(error).__name__}.", expected="a state dict, tensors by name"
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InferlensError(f"{file} holds no weights.", expected="a state dict, tensors by name")
    return loaded


def _safetensors(file: Path) -> dict[str, Any]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingLibrary("safetensors", extra="models") from error
    return dict(load_file(file))


def _draw(module: torch.nn.Module) -> None:
    """Draws every parameter, matrices by their fan-in, and batch norms' statistics."""
    for name, value in module.named_parameters():
        if not value.is_floating_point():
            continue
        if name.endswith("bias"):
            _fill(value, BIAS)
        elif value.dim() < 2:  # weights of norms, layer scales
            _fill(value, 0.5, around=1.0)
        elif name.endswith("weight"):
            _fill(value, _power_of_two(math.sqrt(3 / max(1, value[0].numel()))))
        else:
            _fill(value, BARE)
    for name, value in module.named_buffers():
        if name.endswith("running_mean"):
            _fill(value, 0.25)
        elif name.endswith("running_var"):
            _fill(value, 0.5, around=1.0)


def _fill(value: torch.Tensor, reach: float, around: float = 0.0) -> None:
    """Uniform in ``around`` plus or minus ``reach``."""
    value.uniform_(-1, 1).mul_(reach).add_(around)


def _scale(part: torch.nn.Module, inputs: tuple[Any, ...], output: Any, scaled: set[int]) -> Any:
    """Scales a layer's weight so that what it adds to its output is near one, or :data:`GAIN` times its input if that
    is less; the output as it then is.

    Where there is a bias it takes away what is the same at every position: a network that attends averages its tokens,
    and if that average were kept, tokens would be all alike after a few layers, and where they attend would not matter.
    But what remains of an average is small, and is left small: scaled to one, layer after layer, rounding errors would
    grow with it until fp16 has nothing in common with fp32 (1e-3 in fp32 alone, for a Transformer of six layers).
    """
    import torch

    weight, bias = _matrix(part), part._parameters.get("bias")
    if weight is None or id(weight) in scaled or not isinstance(output, torch.Tensor):
        return output
    scaled.add(id(weight))
    channel = -1 if weight.dim() == 2 else 1
    added = output.movedim(channel, -1) - (0.0 if bias is None else bias)
    flat = added.reshape(-1, added.shape[-1])
    constant = torch.zeros(()) if bias is None or len(flat) == 1 else flat.mean(0)
    size, wanted = _rms(flat), _wanted(inputs, GAIN.get(weight.dim(), OTHER_GAIN))
    if not math.isfinite(size) or size == 0 or wanted == 0:
        return output
    factor = _coarse(wanted / size)
    weight.mul_(factor)
    if bias is None:
        return output * factor
    bias.sub_((constant * factor * STEPS).round() / STEPS)
    return (added * factor + bias).movedim(-1, channel)


def _wanted(inputs: tuple[Any, ...], gain: float) -> float:
    """The size that a layer's output shall have: one, or ``gain`` times its input's; indices have no size."""
    import torch

    if not inputs or not isinstance(inputs[0], torch.Tensor) or not inputs[0].is_floating_point():
        return 1.0
    return min(1.0, gain * _rms(inputs[0]))


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _matrix(part: torch.nn.Module) -> torch.Tensor | None:
    """A layer's weight, if it is a matrix or more; norms have vectors and need no scaling."""
    weight = part._parameters.get("weight")
    return weight if weight is not None and weight.dim() >= 2 and weight.is_floating_point() else None


def _coarse(value: float) -> float:
    """``value`` with three bits of mantissa: too few for the rounding error of a sum to show."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 8) / 8, exponent)


def _power_of_two(value: float) -> float:
    """The power of two nearest to ``value`` by ratio."""
    return float(2.0 ** round(math.log2(value)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for the work inside: sums in parallel are not the same bits with another number of threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
