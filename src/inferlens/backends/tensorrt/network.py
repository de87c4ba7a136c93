"""The steps before a build: an ONNX file parsed into a network of TensorRT's, and the builder's configuration."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferlens.backends.onnx.modules import origins
from inferlens.backends.tensorrt.flavours import Flavour, condensed, current_gpu, log, targets, words
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.backends.tensorrt.profiles import Profile, shape_text
from inferlens.errors import InferlensError, Unsupported, one_line, suggestion
from inferlens.record.files import write_whole
from inferlens.spec.case import TensorSpec

# Names of TensorRT's types (trt.DataType), as we and NumPy call them.
DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "BOOL": "bool", "FP8": "float8", "FP4": "float4", "INT4": "int4", "E8M0": "e8m0",
}  # fmt: skip
LOWERED = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}  # flags of a weakly typed network, by precision
UNREADABLE = ("ParseFromCodedStream", "Failed to parse the ONNX model")
# The last is of operators that its parser hands to a plugin which the library does not have.
NO_OPERATOR = re.compile(
    r"^false$|^Op type \S+ is not supported|No importer registered for op|Plugin not found"
    r"|getPluginCreatorVersion\(creator\)"
)


@dataclass
class Network:
    """A parsed network, and what must live as long as it does; ``weakly_typed``: the builder may lower precisions."""

    flavour: Flavour
    log: Any
    builder: Any
    definition: Any
    parser: Any
    weakly_typed: bool = False

    @property
    def tensors(self) -> list[Any]:
        return [self.definition.get_input(index) for index in range(self.definition.num_inputs)]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs in order; a size that is free is -1."""
        return tuple(map(_spec, self.tensors))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs in order; a size that depends on the inputs' is -1."""
        return tuple(_spec(self.definition.get_output(index)) for index in range(self.definition.num_outputs))

    @property
    def layers(self) -> int:
        """Number of layers before the builder fuses them."""
        return int(self.definition.num_layers)


def network(path: Path, flavour: Flavour, *, weakly_typed: bool = False) -> Network:
    """The network of an ONNX file; ``Unsupported`` names what cannot be read, or the node that cannot be run."""
    if weakly_typed and flavour.strongly_typed_only:
        raise Unsupported(
            f"Networks of {flavour.title} are strongly typed: precisions are those of the graph.",
            hint="no weakly_typed; --precision fp16 exports the graph in fp16",
        )
    trt, heard = flavour.module, log(flavour)
    builder = trt.Builder(heard)
    if builder is None:
        raise Unsupported(f"{flavour.title} does not start: {condensed(heard.errors)}")
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    definition = builder.create_network(0 if weakly_typed or typed is None else 1 << int(typed))
    parser = trt.OnnxParser(definition, heard)
    if not parser.parse_from_file(str(path)):
        raise _refusal(path, parser, flavour)
    if not definition.num_layers or not definition.num_outputs:  # the parser takes an empty file for an empty graph
        raise Unsupported(f"{path} is not an ONNX graph, or is empty.", expected="an ONNX file with nodes and outputs")
    return Network(flavour, heard, builder, definition, parser, weakly_typed)


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(str(tensor.name), tuple(int(size) for size in tensor.shape), DTYPES[tensor.dtype.name])


def _refusal(path: Path, parser: Any, flavour: Flavour) -> Unsupported:
    """The error for a file that the parser refused: the first node, its operator, its module, the reason."""
    try:
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        found = [(error.desc().strip(), error.node_name(), error.node_operator()) for error in errors]
    except UnicodeDecodeError:  # names that are no text
        found = []
    if not found or any(item in text for text, *_ in found for item in UNREADABLE):
        return Unsupported(
            f"{flavour.name} cannot read {path}: it is no ONNX file, or cut short or damaged.", hint="export it again"
        )
    text, name, operator = found[0]
    said = condensed([text.replace(f"Invalid Node - {name}", "", 1)], "the parser gives no reason")
    reason = "it has no such operator" if NO_OPERATOR.search(text) else said
    module = ""
    with suppress(Exception):  # this only adds to a message
        module = origins(path).by_name[name].modules[-1]
    label = f" '{name}'" if name else ""
    where = f"the ONNX node{label} ({operator}{f', in the module {module}' if module else ''})"
    return Unsupported(
        one_line(f"{flavour.title} cannot take {where if operator else 'the graph'}: {reason}."),
        hint="another operator in the model, a plugin (option plugins), or --backend onnxruntime:cuda",
    )


# Configuration, and the file of timings


def configuration(
    network: Network, options: TensorRTOptions, profiles: tuple[Profile, ...], precision: str = "fp32"
) -> Any:
    """An ``IBuilderConfig`` for ``network``; ``precision`` is what a weakly typed one may be lowered to.

    Raises Unsupported for what this flavour does not have, a profile that does not fit, or no target without a GPU.
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
    for profile in profiles:
        _add_profile(network, config, profile)
    return config


def use_timing_cache(network: Network, config: Any, path: Path) -> Any:
    """Gives ``config`` the timings in ``path``, if any; ``None`` for a flavour that times nothing in a build."""
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
        timing_cache = config.create_timing_cache(path.read_bytes())
        if timing_cache is not None:
            cache.combine(timing_cache, False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, bytes(cache.serialize()))


def _check(network: Network, options: TensorRTOptions) -> None:
    flavour, level = network.flavour, options.hardware_compatible
    known = getattr(flavour.module, "HardwareCompatibilityLevel", None)
    if level != "none" and (flavour.jit or not hasattr(known, level.upper())):
        targets = f"--option tensorrt.compute_capability={'+'.join(flavour.targets)}" if flavour.jit else ""
        raise Unsupported(f"{flavour.title} has no hardware compatibility '{level}'.", hint=targets)
    if options.max_num_tactics and not hasattr(flavour.module.IBuilderConfig, "max_num_tactics"):
        raise Unsupported(f"{flavour.title} has no max_num_tactics.", hint="leave it out, or TensorRT 10.13")
    if options.version_compatible and flavour.jit:
        raise Unsupported(f"{flavour.name} has no lean runtime.", hint="no version_compatible; build after an update")


def _set_flags(network: Network, config: Any, options: TensorRTOptions, precision: str) -> None:
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
            expected = f"none, or some of {', '.join(members)}"
            raise InferlensError(
                f"There is no tactic source '{name}'.", expected=expected, hint=suggestion(name, members)
            )
        mask |= 0 if name == "none" else 1 << int(members[name])
    return mask


def _add_profile(network: Network, config: Any, profile: Profile) -> None:
    """Adds a profile, which must have every input of the graph, at sizes that the graph does not fix otherwise."""
    optimization_profile = network.builder.create_optimization_profile()
    for tensor in network.tensors:
        name, fixed = str(tensor.name), tuple(tensor.shape)
        if name not in profile:
            raise Unsupported(
                one_line(f"The ONNX graph has an input '{name}', the model was described with {', '.join(profile)}.")
            )
        if tensor.is_shape_tensor:
            raise Unsupported(
                one_line(f"The values of the input '{name}' decide shapes inside the graph."),
                hint="export the model with that input as a constant",
            )
        for shape in profile[name]:
            if len(shape) != len(fixed) or not all(a in (-1, b) for a, b in zip(fixed, shape, strict=True)):
                raise Unsupported(
                    one_line(f"The ONNX graph was made for {name}={shape_text(fixed)}, not for {shape_text(shape)}."),
                    hint="its own shape, or a file exported with dynamic shapes",
                )
        optimization_profile.set_shape(name, *profile[name])
    if config.add_optimization_profile(optimization_profile) < 0:
        shapes = "; ".join(f"{name} {triple}" for name, triple in profile.items())
        raise Unsupported(one_line(f"{network.flavour.name} does not take the profile {shapes}."))
