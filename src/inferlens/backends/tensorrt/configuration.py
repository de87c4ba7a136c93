"""The second step of a build: the builder's configuration, from the options of a case; and its file of timings.

TensorRT keeps its timings of tactics there, so that builds repeat: they are loaded, used, and merged back. TensorRT for
RTX compiles its kernels when an engine runs and times none here; its cache is the runtime's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inferlens.backends.tensorrt.flavours import current_gpu, targets
from inferlens.backends.tensorrt.network import Network
from inferlens.backends.tensorrt.options import Options, words
from inferlens.backends.tensorrt.profiles import Profile, Shape, shape_text
from inferlens.errors import InferlensError, Unsupported, one_line, suggestion
from inferlens.record.files import write_whole

LOWERED = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}  # flags of a weakly typed network, by precision


def configuration(network: Network, options: Options, profiles: tuple[Profile, ...], precision: str = "fp32") -> Any:
    """An ``IBuilderConfig`` for ``network``.

    ``profiles`` are as of :func:`~inferlens.backends.tensorrt.profiles.profiles`. ``precision`` is what a weakly typed
    network may be lowered to; others have their own.

    Raises:
        Unsupported: for an option or a target that this flavour does not have, a profile that does not fit the network,
            or no target where there is no GPU.
    """
    _check(network, options)
    named = words(options.compute_capability)
    goals = targets(named, network.flavour, None if named else current_gpu())
    trt, config = network.flavour.module, network.builder.create_builder_config()
    config.builder_optimization_level = options.optimization_level
    config.avg_timing_iterations = options.avg_timing_iterations
    config.profiling_verbosity = getattr(trt.ProfilingVerbosity, options.profiling_verbosity.upper())
    if options.max_num_tactics:
        config.max_num_tactics = options.max_num_tactics
    if options.workspace:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace << 20)
    if options.tactic_sources:
        config.set_tactic_sources(_sources(trt.TacticSource, options.tactic_sources))
    if options.hardware_compatible != "none":
        level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatible.upper())
        config.hardware_compatibility_level = level
    _set_flags(network, config, options, precision)
    if goals:
        config.num_compute_capabilities = len(goals)
        for index, target in enumerate(goals):
            config.set_compute_capability(network.flavour.targets[target], index)
    for index, profile in enumerate(profiles):
        _add_profile(network, config, profile)
        _check_shared(network, profile, index)
    return config


def check_timing_cache(file: str) -> None:
    """Refuses a file that could not be read or written, before any work is done; one that is not there yet is made."""
    path = Path(file).absolute()
    at = next(each for each in (path, *path.parents) if each.exists())
    able = path.is_file() if at == path else at.is_dir()
    if file and not (able and os.access(at, os.R_OK | os.W_OK)):
        raise InferlensError(
            f"The timing_cache {file} is no file that can be read and written.", expected="a file, there or to be made"
        )


def use_timing_cache(network: Network, config: Any, path: Path) -> Any:
    """Gives ``config`` the timings in ``path``, none if there is no such file; returns them.

    ``None`` for a flavour that times nothing when it builds.
    """
    if network.flavour.jit:
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, False):  # False: of another GPU is an error
        raise InferlensError(
            f"{path} holds no timings of {network.flavour.title} on this GPU.", hint="another file as timing_cache"
        )
    return cache


def keep_timing_cache(config: Any, path: Path) -> None:
    """Writes the timings of a build to ``path``, with those another process put there meanwhile."""
    cache = config.get_timing_cache()
    if path.is_file():
        other = config.create_timing_cache(path.read_bytes())
        if other is not None:
            cache.combine(other, False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, bytes(cache.serialize()))


def _check(network: Network, options: Options) -> None:
    """Refuses what the flavour does not have."""
    flavour, level = network.flavour, options.hardware_compatible
    known = getattr(flavour.module, "HardwareCompatibilityLevel", None)
    if level != "none" and (flavour.jit or not hasattr(known, level.upper())):
        raise Unsupported(
            f"{flavour.title} has no hardware compatibility '{level}'.",
            hint=f"--option tensorrt.compute_capability={'+'.join(flavour.targets)}, or some of these"
            if flavour.jit
            else "",
        )
    if options.version_compatible and flavour.jit:
        raise Unsupported(
            f"{flavour.name} has no lean runtime, which runs the engines of other versions.",
            hint="no version_compatible; build again after an update",
        )


def _set_flags(network: Network, config: Any, options: Options, precision: str) -> None:
    flags = network.flavour.module.BuilderFlag
    wanted = {
        "TF32": options.tf32,  # the builder's own default is on
        "SPARSE_WEIGHTS": options.sparsity,
        "REFIT": options.refittable,
        "VERSION_COMPATIBLE": options.version_compatible,
    }
    if network.weakly_typed and precision in LOWERED:
        wanted[LOWERED[precision]] = True
    for name, on in wanted.items():
        flag = getattr(flags, name, None)
        if flag is None and on:
            raise Unsupported(f"{network.flavour.title} has no builder flag {name}.")
        if flag is not None:
            (config.set_flag if on else config.clear_flag)(flag)


def _sources(known: Any, text: str) -> int:
    """Tactic sources as the bit mask that TensorRT takes."""
    members = {name.lower(): value for name, value in known.__members__.items()}
    mask = 0
    for name in words(text.lower()):
        if name not in members and name != "none":
            raise InferlensError(
                f"There is no tactic source '{name}'.",
                expected=f"none, or some of {', '.join(members)}",
                hint=suggestion(name, members),
            )
        mask |= 0 if name == "none" else 1 << int(members[name])
    return mask


def _add_profile(network: Network, config: Any, profile: Profile) -> None:
    made = network.builder.create_optimization_profile()
    for tensor in network.tensors:
        if tensor.name not in profile:
            given = ", ".join(profile)
            raise Unsupported(
                one_line(f"The ONNX graph has an input '{tensor.name}', the model was described with {given}.")
            )
        if tensor.is_shape_tensor:
            raise Unsupported(
                one_line(f"The values of the input '{tensor.name}' decide shapes inside the graph."),
                hint="export the model with that input as a constant",
            )
        _check_fixed(tensor, profile[tensor.name])
        made.set_shape(tensor.name, *profile[tensor.name])
    if config.add_optimization_profile(made) < 0:
        shapes = "; ".join(f"{name} {triple}" for name, triple in profile.items())
        raise Unsupported(one_line(f"{network.flavour.name} does not take the profile {shapes}."))


def _check_fixed(tensor: Any, shapes: tuple[Shape, Shape, Shape]) -> None:
    """Refuses a profile that is no range of sizes, or differs from the sizes that the graph fixes."""
    fixed = tuple(tensor.shape)
    for shape in shapes:
        if len(shape) != len(fixed) or not all(a in (-1, b) for a, b in zip(fixed, shape, strict=True)):
            own = shape_text(fixed) if fixed else "a scalar (so TensorRT takes an input whose shape the file lacks)"
            raise Unsupported(
                one_line(f"The ONNX graph was made for {tensor.name}={own}, not for {shape_text(shape)}."),
                hint="its own shape, or a file exported with dynamic shapes",
            )
    if not all(0 <= least <= best <= most for least, best, most in zip(*shapes, strict=True)):
        raise Unsupported(
            one_line(f"The profile of {tensor.name}, {'/'.join(map(shape_text, shapes))}, is no range of sizes."),
            expected="whole numbers that grow from min over opt to max",
        )


def _check_shared(network: Network, profile: Profile, index: int) -> None:
    """Refuses several ranges for a size that inputs share by its name: the engine would run where they meet alone."""
    ranges: dict[str, tuple[str, Shape]] = {}  # the first input and its range, by the name of the size
    for tensor in network.tensors:
        for place, size in enumerate(tensor.shape):
            name = tensor.get_dimension_name(place) if size == -1 else ""
            own = tuple(shape[place] for shape in profile[tensor.name])
            first, known = ranges.setdefault(name, (tensor.name, own)) if name else ("", own)
            if own != known:
                raise Unsupported(
                    one_line(
                        f"In profile {index} the size '{name}' is {'/'.join(map(str, known))} in the input '{first}' "
                        f"and {'/'.join(map(str, own))} in '{tensor.name}': in the ONNX graph they are one."
                    ),
                    expected="the same MIN/OPT/MAX for both",
                    hint="--option tensorrt.profiles",
                )
