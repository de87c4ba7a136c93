"""The second step of a build: the builder's configuration, from the options of a case."""

from __future__ import annotations

from typing import Any

from inferlens.backends.tensorrt.gpu import current_gpu
from inferlens.backends.tensorrt.network import Network
from inferlens.backends.tensorrt.options import Options, words
from inferlens.backends.tensorrt.profiles import Profile, Shape, free
from inferlens.backends.tensorrt.targets import targets as checked
from inferlens.errors import InferlensError, Unsupported, one_line, suggestion

LOWERED = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}  # flags of a weakly typed network, by precision


def configuration(
    network: Network,
    options: Options,
    profiles: tuple[Profile, ...],
    targets: tuple[str, ...] = (),
    precision: str = "fp32",
) -> Any:
    """An ``IBuilderConfig`` for ``network``.

    ``profiles`` are as of :func:`~inferlens.backends.tensorrt.profiles.profiles`, ``targets`` as of
    :func:`~inferlens.backends.tensorrt.targets.targets` (empty: the GPU here). ``precision`` is what a weakly typed
    network may be lowered to; others have their own.

    Raises:
        Unsupported: for an option or a target that this flavour does not have, a profile that does not fit the network,
            or no target where there is no GPU.
    """
    check(network, options)
    targets = checked("+".join(targets), network.flavour, None if targets else current_gpu())
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
    if targets:
        config.num_compute_capabilities = len(targets)
        for index, target in enumerate(targets):
            config.set_compute_capability(network.flavour.targets[target], index)
    for index, profile in enumerate(profiles):
        _add_profile(network, config, profile)
        _check_shared(network, profile, index)
    return config


def check(network: Network, options: Options) -> None:
    """Refuses what the flavour does not have.

    Raises:
        Unsupported: with the reason.
    """
    flavour = network.flavour
    if options.hardware_compatible != "none" and flavour.jit:
        raise Unsupported(
            f"{flavour.name} has no levels of hardware compatibility.",
            hint=f"--option tensorrt.compute_capability={'+'.join(flavour.targets)}, or some of these",
        )
    if options.hardware_compatible != "none":
        level = options.hardware_compatible.upper()
        if not hasattr(getattr(flavour.module, "HardwareCompatibilityLevel", None), level):
            raise Unsupported(f"{flavour.title} has no hardware compatibility '{options.hardware_compatible}'.")
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
    for index in range(network.definition.num_inputs):
        tensor = network.definition.get_input(index)
        if tensor.name not in profile:
            given = ", ".join(profile)
            raise Unsupported(
                one_line(f"The ONNX graph has an input '{tensor.name}', the model was described with {given}.")
            )
        if tensor.is_shape_tensor:
            raise Unsupported(
                f"The values of the input '{one_line(tensor.name)}' decide shapes inside the graph, so they would be "
                "part of a profile.",
                hint="export the model with that input as a constant",
            )
        _check_fixed(tensor, profile[tensor.name])
        made.set_shape(tensor.name, *profile[tensor.name])
    added = config.add_optimization_profile(made)
    if added < 0:
        shapes = "; ".join(f"{name} {triple}" for name, triple in profile.items())
        raise Unsupported(one_line(f"{network.flavour.name} does not take the profile {shapes}."))


def _check_fixed(tensor: Any, shapes: tuple[Shape, Shape, Shape]) -> None:
    """Compares a profile with the sizes that the graph fixes.

    Raises:
        Unsupported: if they differ, or the profile is no range of sizes.
    """
    fixed = tuple(tensor.shape)
    for shape in shapes:
        fits = len(shape) == len(fixed) and all(a in (-1, b) for a, b in zip(fixed, shape, strict=True))
        if not fits and not fixed:
            raise Unsupported(
                f"The ONNX graph tells no shape of its input '{one_line(tensor.name)}', and TensorRT takes that for a "
                "scalar.",
                hint="--backend onnxruntime, or a file that tells it",
            )
        if not fits:
            raise Unsupported(
                f"The ONNX graph was made for {one_line(tensor.name)}={free(fixed)}, not for {free(shape)}.",
                hint="its own shape, or a file exported with dynamic shapes",
            )
    if not all(0 <= least <= best <= most for least, best, most in zip(*shapes, strict=True)):
        raise Unsupported(
            f"The profile of {one_line(tensor.name)}, {'/'.join(map(free, shapes))}, is no range of sizes.",
            expected="whole numbers that grow from min over opt to max",
        )


def _check_shared(network: Network, profile: Profile, index: int) -> None:
    """Sizes of one name are one size, in all inputs.

    Raises:
        Unsupported: if a profile has several ranges for it: the engine would run where they meet alone.
    """
    shared: dict[str, list[tuple[str, int]]] = {}  # input and place, by the name of the size
    for number in range(network.definition.num_inputs):
        tensor = network.definition.get_input(number)
        for place, fixed in enumerate(tensor.shape):
            if fixed == -1 and tensor.get_dimension_name(place):
                shared.setdefault(tensor.get_dimension_name(place), []).append((tensor.name, place))
    for name, uses in shared.items():
        ranges = [tuple(shape[place] for shape in profile[tensor]) for tensor, place in uses]
        unlike = next((number for number, sizes in enumerate(ranges) if sizes != ranges[0]), 0)
        if unlike:
            widest = max(ranges, key=lambda sizes: sizes[2] - sizes[0])
            raise Unsupported(
                one_line(
                    f"In profile {index} the size '{name}' is {_text(ranges[0])} in the input '{uses[0][0]}' and "
                    f"{_text(ranges[unlike])} in '{uses[unlike][0]}': in the ONNX graph they are one."
                ),
                expected="the same MIN/OPT/MAX for both",
                hint=one_line(f"{_alike(profile, uses, widest)} as that profile of --option tensorrt.profiles"),
            )


def _text(sizes: tuple[int, ...]) -> str:
    """A range of one size, such as ``1/2/8``; a fixed one as its number."""
    return str(sizes[0]) if len(set(sizes)) == 1 else "/".join(map(str, sizes))


def _alike(profile: Profile, uses: list[tuple[str, int]], sizes: tuple[int, ...]) -> str:
    """The shapes of inputs in a profile, as the option takes them, with the same range in the given places."""
    shapes = {tensor: [list(shape) for shape in profile[tensor]] for tensor, _ in uses}
    for tensor, place in uses:
        for shape, size in zip(shapes[tensor], sizes, strict=True):
            shape[place] = size
    return "+".join(f"{tensor}={'/'.join(free(tuple(shape)) for shape in triple)}" for tensor, triple in shapes.items())
