"""The options of TensorRT: their declaration, and what they do when an engine is built.

A field of :class:`TensorRTOptions` declares an option: its help, when it acts, and a Knob with the values that ``tune``
tries. :func:`builder_config` applies options of the builder, :func:`parse_network` those of the network, and
``EngineRunner`` in ``runner.py`` those of a run. :class:`Acts` decides which options are in the key of the cache.
Several values in one option are joined by ``+``, profiles by ``;``, since commas make axes of a plan.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from inferlens.backends.availability import warn_ignored_options
from inferlens.backends.base import Knob, Preparation, Ranges
from inferlens.backends.onnx.graph import read_nodes
from inferlens.backends.tensorrt.library import (
    TYPES,
    Flavour,
    current_gpu,
    error_summary,
    new_logger,
    option_words,
    resolve_targets,
)
from inferlens.errors import InferlensError, Unsupported, one_line, suggestion
from inferlens.models.compiled import Provenance
from inferlens.spec.case import Case, TensorSpec

LARGEST = 2**31 - 2
Compatible = Literal["none", "ampere_plus", "same_compute_capability"]
Verbosity = Literal["detailed", "layer_names_only", "none"]


class Acts(Enum):
    """The time at which an option acts, which decides the warnings about it and its part in the key of the cache."""

    # TensorRT for RTX 1.6 gave the same engine, byte for byte, at every value of these (docs/tensorrt.md).
    TACTICS = "in the builder's choice of tactics; TensorRT for RTX makes none"
    BUILD = "in the builder"
    SOURCE = "on what is built: the graph, its shapes or GPUs, which have parts of the key of their own"
    RUN = "when an engine runs"
    BOTH = "as a file that is read in a build and in a run; the content is a part of the key"


class TensorRTOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of TensorRT and TensorRT for RTX."""

    cuda_graph: Annotated[
        bool, Meta(description="capture the call in a CUDA graph once and replay it"),
        Acts.RUN, Knob(name="cuda_graph", values=(True,), helps=("host",)),
    ] = False  # fmt: skip
    streams: Annotated[
        int, Meta(description="calls side by side for throughput, each with its own context", ge=1),
        Acts.RUN, Knob(name="streams", values=(2, 4), objectives=("throughput",)),
    ] = 1  # fmt: skip
    tf32: Annotated[
        bool, Meta(description="TF32 in fp32 convolutions and matrix products; off: fp32 is fp32"),
        Acts.BUILD, Knob(name="tf32", values=(True,), variants=("trt",), precisions=("fp32",)),  # rtx always uses it
    ] = False  # fmt: skip
    optimization_level: Annotated[
        int, Meta(description="how long the builder searches, 0 to 5 (trt)", ge=0, le=5),
        Acts.TACTICS, Knob(name="optimization_level", values=(5, 4), variants=("trt",), build=4.0),
    ] = 3  # fmt: skip
    avg_timing_iterations: Annotated[
        int, Meta(description="how often a tactic is timed; the mean counts (trt)", ge=1, le=LARGEST),
        Acts.TACTICS, Knob(name="avg_timing_iterations", values=(8,), variants=("trt",), build=3.0),
    ] = 1  # fmt: skip
    max_num_tactics: Annotated[
        int, Meta(description="most tactics that are tried for a layer; 0: TensorRT's choice (trt)", ge=0, le=LARGEST),
        Acts.TACTICS, Knob(name="max_num_tactics", values=(1000,), variants=("trt",), build=3.0),
    ] = 0  # fmt: skip
    tactic_sources: Annotated[
        str, Meta(description="where tactics come from, joined by +, or none; empty: TensorRT's choice (trt)"),
        Acts.TACTICS,
    ] = ""  # fmt: skip
    sparsity: Annotated[
        bool, Meta(description="let tactics use weights of which two in four are zero (trt)"), Acts.TACTICS
    ] = False
    workspace: Annotated[
        int, Meta(description="most GPU memory for a tactic, in MiB; 0: all of it", ge=0, le=2**43 - 1), Acts.BUILD
    ] = 0
    timing_cache: Annotated[
        str, Meta(description="file that keeps timings of tactics (rtx: compiled kernels)"), Acts.BOTH
    ] = ""
    profiles: Annotated[
        str, Meta(description="optimization profiles, as MIN/OPT/MAX shapes; empty: one, from the inputs"), Acts.SOURCE
    ] = ""
    profile: Annotated[int, Meta(description="which of the profiles runs, from 0", ge=0), Acts.RUN] = 0
    version_compatible: Annotated[
        bool, Meta(description="an engine for later versions of TensorRT too (trt)"), Acts.BUILD
    ] = False
    hardware_compatible: Annotated[
        Compatible, Meta(description="an engine for more models of GPU (trt)"), Acts.BUILD
    ] = "none"
    compute_capability: Annotated[
        str,
        Meta(
            description="GPUs to build for, such as 8.0+8.9; also without a GPU (rtx); empty: the GPU here",
            pattern="^$|[0-9]",
        ),
        Acts.SOURCE,
    ] = ""
    plugins: Annotated[str, Meta(description="libraries of plugins to load, joined by +"), Acts.BOTH] = ""
    refittable: Annotated[bool, Meta(description="an engine whose weights can be replaced"), Acts.BUILD] = False
    profiling_verbosity: Annotated[Verbosity, Meta(description="what the engine keeps of its layers"), Acts.BUILD] = (
        "detailed"
    )
    weakly_typed: Annotated[
        bool, Meta(description="let the builder lower the precision of an fp32 graph (TensorRT 10)"), Acts.BUILD
    ] = False
    ranges: Annotated[Ranges, Acts.SOURCE] = "minmax"


DECLARED = get_type_hints(TensorRTOptions, include_extras=True)


def options_that_act(*times: Acts) -> tuple[str, ...]:
    """Return the names of the options that act at one of these times."""
    return tuple(name for name, hint in DECLARED.items() if any(time in hint.__metadata__ for time in times))


KNOBS = tuple(extra for hint in DECLARED.values() for extra in hint.__metadata__ if isinstance(extra, Knob))
TACTIC_OPTIONS = options_that_act(Acts.TACTICS)
BUILDER_OPTIONS = options_that_act(Acts.TACTICS, Acts.BUILD)  # their values are a part of the key of the cache
RUN_OPTIONS = options_that_act(Acts.RUN, Acts.BOTH)  # options of an engine from a file


def warn_tactic_options(options: TensorRTOptions, flavour: Flavour, preparation: Preparation) -> None:
    """Warn of tactic options where no tactics are timed."""
    if flavour.jit:
        warn_ignored_options(options, TACTIC_OPTIONS, f"{flavour.name} times no tactics.", preparation)


def warn_build_options(case: Case, provenance: Provenance | None, preparation: Preparation) -> None:
    """Warn of build options for an engine from a file that was not built with those values."""
    built = msgspec.structs.asdict(TensorRTOptions()) | (provenance.options if provenance is not None else {})
    for name, value in case.options.items():
        if name not in RUN_OPTIONS and built.get(name) != value:
            preparation.warn("no-effect", f"{name} does nothing: the engine is built already.", "Leave it out there.")


# Optimization profiles, as text: ``1x3x224x224/2x3x224x224/16x3x224x224`` (min, opt, max) for a model with one input,
# ``ids=1x8/1x128/4x512+mask=1x8/1x128/4x512`` for several inputs, and a single shape if it is fixed. An input that is
# left out keeps the shapes of the case.

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]
PROFILE_FORM = (
    "MIN/OPT/MAX, such as 1x3x224x224/2x3x224x224/16x3x224x224; several inputs as a=1x8/1x8/4x8+b=1x8/1x8/4x8; \
several profiles joined by ;"
)
SHAPE_TEXT = re.compile(r"^(scalar|[1-9]\d*(x[1-9]\d*)*)$")


def parse_profiles(text: str, specs: tuple[TensorSpec, ...]) -> tuple[Profile, ...]:
    """Return profiles as shapes by input name; one with the inputs' own shapes if ``text`` is empty."""
    default: Profile = {spec.name: spec.profile for spec in specs}
    parts = text.split(";") if text.strip() else []
    profiles = tuple({**default, **_profile(part, specs)} for part in parts) or (default,)
    for profile in profiles:
        for name, (least, *_) in profile.items():
            if min(least, default=0) < 0:
                message = f"Sizes of the input '{name}' are free ({shape_text(least)}), and no profile gives them."
                raise InferlensError(one_line(message), expected=PROFILE_FORM)
    return profiles


def check_profile(profiles: tuple[Profile, ...], index: int, specs: tuple[TensorSpec, ...]) -> None:
    """Check that the profile that runs takes the shapes that are measured."""
    if index >= len(profiles):
        raise Unsupported(f"There is no profile {index}: the engine has {len(profiles)}, counted from 0.")
    for spec in specs:
        least, _, most = profiles[index][spec.name]
        if not _within(least, spec.shape, most):
            accepted = f"{one_line(spec.name)} from {shape_text(least)} to {shape_text(most)}"
            message = f"Profile {index} takes {accepted}, not {shape_text(spec.shape)}."
            raise Unsupported(message, hint="another --option tensorrt.profile, or another batch")


def spread_inputs(specs: tuple[TensorSpec, ...], profiles: tuple[Profile, ...]) -> tuple[TensorSpec, ...]:
    """Return the inputs with the range of sizes over all profiles, for which the graph is exported."""
    inputs = []
    for spec in specs:
        triples = [profile[spec.name] for profile in profiles]
        least = tuple(min(sizes) for sizes in zip(*(triple[0] for triple in triples), strict=True))
        most = tuple(max(sizes) for sizes in zip(*(triple[2] for triple in triples), strict=True))
        ranged = msgspec.structs.replace(spec, least=least, best=triples[0][1], most=most)
        inputs.append(spec if least == most else ranged)
    return tuple(inputs)


def shape_text(shape: Shape) -> str:
    """Return a shape as text, ``?`` where a size is free, such as ``?x3x224x224``."""
    return "x".join("?" if size < 0 else str(size) for size in shape) or "scalar"


def _profile(text: str, specs: tuple[TensorSpec, ...]) -> Profile:
    specs_by_name = {spec.name: spec for spec in specs}
    profile: Profile = {}
    for part in text.split("+"):
        name, equals, shapes = part.strip().rpartition("=")
        name = name.strip() if equals or len(specs) > 1 else specs[0].name
        if name not in specs_by_name:
            message = f"The profile '{part.strip()}' names no input of the model, such as {', '.join(specs_by_name)}."
            raise InferlensError(one_line(message), expected=PROFILE_FORM)
        profile[name] = _shapes(shapes.strip(), specs_by_name[name])
    return profile


def _shapes(text: str, spec: TensorSpec) -> tuple[Shape, Shape, Shape]:
    words = [word.strip() for word in text.split("/")]
    parsed = [() if word == "scalar" else tuple(map(int, word.split("x"))) for word in words if SHAPE_TEXT.match(word)]
    if len(words) in (1, 3) and len(parsed) == len(words):
        least, best, most = parsed * 3 if len(parsed) == 1 else parsed
        if len(best) == len(spec.shape) and _within(least, best, most):
            return least, best, most
    message = f"'{text}' is not a profile of '{spec.name}', which is {shape_text(spec.shape)}."
    raise InferlensError(one_line(message), expected=PROFILE_FORM)


def _within(least: Shape, shape: Shape, most: Shape) -> bool:
    return len(least) == len(shape) == len(most) and all(
        low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
    )


# Parsing an ONNX file, and the builder's configuration

# NumPy's names of trt.DataType.
DTYPES = TYPES | {"FP8": "float8", "FP4": "float4", "INT4": "int4", "E8M0": "e8m0"}
PRECISION_FLAGS = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}  # flags of a weakly typed network, by precision
UNREADABLE_TEXTS = ("ParseFromCodedStream", "Failed to parse the ONNX model")
# The last alternatives are for operators that the parser maps to a missing plugin.
NO_OPERATOR_TEXT = re.compile(
    r"^false$|^Op type \S+ is not supported|No importer registered for op|Plugin not found"
    r"|getPluginCreatorVersion\(creator\)"
)


@dataclass
class Network:
    """A parsed network, and the objects that must live as long; a ``weakly_typed`` one may be lowered."""

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
        """The inputs in order; a free size is -1."""
        return tuple(map(_spec, self.tensors))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs in order; a size that depends on the inputs is -1."""
        return tuple(_spec(self.definition.get_output(index)) for index in range(self.definition.num_outputs))

    @property
    def layers(self) -> int:
        """The number of layers before the builder fuses them."""
        return int(self.definition.num_layers)


def parse_network(path: Path, flavour: Flavour, *, weakly_typed: bool = False) -> Network:
    """Parse an ONNX file. Raise Unsupported with the unreadable file or the node that cannot run."""
    if weakly_typed and flavour.strongly_typed_only:
        message = f"Networks of {flavour.title} are strongly typed: precisions are those of the graph."
        raise Unsupported(message, hint="no weakly_typed; --precision fp16 exports the graph in fp16")
    trt, logger = flavour.module, new_logger(flavour)
    builder = trt.Builder(logger)
    if builder is None:
        raise Unsupported(f"{flavour.title} does not start: {error_summary(logger.errors)}")
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    definition = builder.create_network(0 if weakly_typed or typed is None else 1 << int(typed))
    parser = trt.OnnxParser(definition, logger)
    if not parser.parse_from_file(str(path)):
        raise _refusal(path, parser, flavour)
    if not definition.num_layers or not definition.num_outputs:  # the parser reads an empty file as an empty graph
        raise Unsupported(f"{path} is not an ONNX graph, or is empty.", expected="an ONNX file with nodes and outputs")
    return Network(flavour, logger, builder, definition, parser, weakly_typed)


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(str(tensor.name), tuple(int(size) for size in tensor.shape), DTYPES[tensor.dtype.name])


def _refusal(path: Path, parser: Any, flavour: Flavour) -> Unsupported:
    """Return the error for a file that the parser refused: the first node, its operator, its module, the reason."""
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    failures = [(error.desc().strip(), error.node_name(), error.node_operator()) for error in errors]
    if not failures or any(unreadable in text for text, *_ in failures for unreadable in UNREADABLE_TEXTS):
        return Unsupported(
            f"{flavour.name} cannot read {path}: it is not an ONNX file, or it is damaged.", hint="export it again"
        )
    text, name, operator = failures[0]
    summary = error_summary([text.replace(f"Invalid Node - {name}", "", 1)], "the parser gives no reason")
    reason = "it has no such operator" if NO_OPERATOR_TEXT.search(text) else summary
    module = ""
    with suppress(Exception):  # this only adds to a message
        module = read_nodes(path).by_name[name].modules[-1]
    label = f" '{name}'" if name else ""
    where = f"the ONNX node{label} ({operator}{f', in the module {module}' if module else ''})"
    return Unsupported(
        one_line(f"{flavour.title} cannot take {where if operator else 'the graph'}: {reason}."),
        hint="another operator in the model, a plugin (option plugins), or --backend onnxruntime:cuda",
    )


# The configuration of a build


def builder_config(
    network: Network, options: TensorRTOptions, profiles: tuple[Profile, ...], precision: str = "fp32"
) -> Any:
    """Return an ``IBuilderConfig``; ``precision`` is that to which a weakly typed network may be lowered.

    Raise Unsupported for an option that this flavour lacks, a profile that does not fit, or no target without a GPU.
    """
    _check_options(network, options)
    named = option_words(options.compute_capability)
    targets = resolve_targets(named, network.flavour, None if named else current_gpu())
    trt, config = network.flavour.module, network.builder.create_builder_config()
    config.builder_optimization_level = options.optimization_level
    config.avg_timing_iterations = options.avg_timing_iterations
    config.profiling_verbosity = getattr(trt.ProfilingVerbosity, options.profiling_verbosity.upper())
    if options.max_num_tactics:
        config.max_num_tactics = options.max_num_tactics
    if options.workspace:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace << 20)
    if options.tactic_sources:
        config.set_tactic_sources(_tactic_sources(trt.TacticSource, options.tactic_sources))
    if options.hardware_compatible != "none":
        level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatible.upper())
        config.hardware_compatibility_level = level
    _set_flags(network, config, options, precision)
    if targets:
        config.num_compute_capabilities = len(targets)
        for index, target in enumerate(targets):
            config.set_compute_capability(network.flavour.targets[target], index)
    for profile in profiles:
        _add_profile(network, config, profile)
    return config


def _check_options(network: Network, options: TensorRTOptions) -> None:
    flavour, level = network.flavour, options.hardware_compatible
    levels = getattr(flavour.module, "HardwareCompatibilityLevel", None)
    if level != "none" and (flavour.jit or not hasattr(levels, level.upper())):
        targets = f"--option tensorrt.compute_capability={'+'.join(flavour.targets)}" if flavour.jit else ""
        raise Unsupported(f"{flavour.title} has no hardware compatibility '{level}'.", hint=targets)
    if options.max_num_tactics and not hasattr(flavour.module.IBuilderConfig, "max_num_tactics"):
        raise Unsupported(f"{flavour.title} has no max_num_tactics.", hint="leave it out, or TensorRT 10.13")
    if options.version_compatible and flavour.jit:
        raise Unsupported(f"{flavour.name} has no lean runtime.", hint="no version_compatible; build after an update")


def _set_flags(network: Network, config: Any, options: TensorRTOptions, precision: str) -> None:
    flags = network.flavour.module.BuilderFlag
    switches = {
        "TF32": options.tf32,  # the builder's default is on
        "SPARSE_WEIGHTS": options.sparsity,
        "REFIT": options.refittable,
        "VERSION_COMPATIBLE": options.version_compatible,
    }
    if network.weakly_typed and precision in PRECISION_FLAGS:
        switches[PRECISION_FLAGS[precision]] = True
    for name, on in switches.items():
        flag = getattr(flags, name, None)
        if flag is None and on:
            raise Unsupported(f"{network.flavour.title} has no builder flag {name}.")
        if flag is not None:
            (config.set_flag if on else config.clear_flag)(flag)


def _tactic_sources(source_type: Any, text: str) -> int:
    """Return tactic sources as TensorRT's bit mask."""
    members = {name.lower(): value for name, value in source_type.__members__.items()}
    mask = 0
    for name in option_words(text.lower()):
        if name not in members and name != "none":
            expected = f"none, or some of {', '.join(members)}"
            message = f"There is no tactic source '{name}'."
            raise InferlensError(message, expected=expected, hint=suggestion(name, members))
        mask |= 0 if name == "none" else 1 << int(members[name])
    return mask


def _add_profile(network: Network, config: Any, profile: Profile) -> None:
    """Add a profile, which must have every input of the graph at sizes that the graph allows."""
    added = network.builder.create_optimization_profile()
    for tensor in network.tensors:
        name, fixed = str(tensor.name), tuple(tensor.shape)
        if name not in profile:
            raise Unsupported(
                one_line(f"The ONNX graph has an input '{name}', the model was described with {', '.join(profile)}.")
            )
        for shape in profile[name]:
            pairs = zip(fixed, shape, strict=False)
            if len(shape) != len(fixed) or not all(allowed in (-1, size) for allowed, size in pairs):
                raise Unsupported(
                    one_line(f"The ONNX graph was made for {name}={shape_text(fixed)}, not for {shape_text(shape)}."),
                    hint="its own shape, or a file exported with dynamic shapes",
                )
        added.set_shape(name, *profile[name])
    if config.add_optimization_profile(added) < 0:
        shapes = "; ".join(f"{name} {triple}" for name, triple in profile.items())
        raise Unsupported(one_line(f"{network.flavour.name} does not take the profile {shapes}."))
