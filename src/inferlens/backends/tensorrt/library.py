"""The two flavours of TensorRT, which have the same interface: TensorRT and TensorRT for RTX; and their options.

Abilities of a flavour are read from its module, not from its version. No other file here imports either library.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import warnings
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta, Struct

from inferlens.backends.availability import import_library, unsupported_on_error, warn_ignored_options
from inferlens.backends.base import Absence, Knob, Preparation, Ranges
from inferlens.errors import InferlensError, Unsupported, one_line, reason
from inferlens.models.compiled import AGAIN, Provenance
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec


class FlavourKind(NamedTuple):
    """A flavour's module, its name for people, and the extra that installs it."""

    module: str
    name: str
    extra: str


FLAVOURS = {
    "trt": FlavourKind("tensorrt", "TensorRT", "tensorrt"),
    "rtx": FlavourKind("tensorrt_rtx", "TensorRT for RTX", "tensorrt-rtx"),
}
TRUST_HINT = "--trust, if you trust who built it"
GPU_HINT = "a machine with a GPU, or --backend tensorrt:rtx"
SEVERITIES = ("internal error", "error", "warning")
# Logged after every other error on a machine without a driver; not a cause.
ECHOED_ERROR = re.compile(r"\[checkMacros\.cpp::catchCudaError::\d+\]")
# Loaded plugins by flavour and path, for the whole process. An empty path is TensorRT's own.
_loaded_plugins: set[tuple[str, Path]] = set()


@dataclass(frozen=True)
class Flavour:
    """An installed flavour of TensorRT."""

    variant: str
    key: str
    name: str
    version: str
    module: Any

    @property
    def title(self) -> str:
        """Name and version, such as ``TensorRT for RTX 1.6.1.120``."""
        return f"{self.name} {self.version}"

    @property
    def strongly_typed_only(self) -> bool:
        """Return whether the builder cannot lower precisions."""
        return self.jit or not hasattr(self.module.BuilderFlag, "FP16")  # TensorRT for RTX 1.4 has flags it ignores

    @property
    def jit(self) -> bool:
        """Return whether kernels are compiled when an engine runs, with a runtime cache instead of a timing cache."""
        return hasattr(getattr(self.module, "IRuntimeConfig", None), "create_runtime_cache")

    @property
    def targets(self) -> dict[str, Any]:
        """Compute capabilities (``8.9``) to build for without such a GPU."""
        capability_type = getattr(self.module, "ComputeCapability", None)
        if capability_type is None or not hasattr(self.module.IBuilderConfig, "set_compute_capability"):
            return {}
        names = {name: value for name, value in capability_type.__members__.items() if name.startswith("SM")}
        return {f"{name[2:-1]}.{name[-1]}": value for name, value in names.items()}


def load_flavour(variant: str) -> Flavour:
    """Return the flavour of a variant. Raise Unsupported if it is missing."""
    flavour = find_flavour(variant)
    if isinstance(flavour, Absence):
        raise Unsupported(flavour.reason, hint=flavour.hint)
    return flavour


def find_flavour(variant: str) -> Flavour | Absence:
    """Return the flavour of a variant, or its absence; never raises for a missing library."""
    kind = FLAVOURS[variant]
    loaded: Any = sys.modules.get(kind.module)
    is_alias = Path(getattr(loaded, "__file__", None) or kind.module).parent.name == "tensorrt_rtx" != kind.module
    if is_alias:  # Torch-TensorRT for RTX puts TensorRT for RTX under the name ``tensorrt`` as well
        del sys.modules[kind.module]
    try:
        module, absence = import_library(kind.module, kind.name, kind.extra)
    finally:
        if is_alias:
            sys.modules[kind.module] = loaded
    if absence:
        return Absence(variant, absence.reason, absence.hint)
    return Flavour(variant, kind.module, kind.name, str(module.__version__), module)


def current_gpu() -> Gpu | None:
    """Return the GPU in use, as PyTorch describes it, or ``None``."""
    try:
        import torch
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of a missing driver
        if not torch.cuda.is_available():
            return None
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(name=str(gpu.name), memory=int(gpu.total_memory), compute_capability=f"{gpu.major}.{gpu.minor}")


def check_gpu(path: Path, provenance: Provenance, gpu: Gpu, compatible: str) -> None:
    """Refuse a file for another GPU model; ``compatible`` is a value of the option ``hardware_compatible``."""
    same_capability = provenance.compute_capability == gpu.compute_capability
    fits = {
        "none": provenance.gpu == gpu.name and same_capability,
        "same_compute_capability": same_capability,
        "ampere_plus": int(gpu.compute_capability.partition(".")[0] or 0) >= 8,
    }
    if not fits.get(compatible, False):
        raise Unsupported(
            one_line(
                f"{path} was built on and for {provenance.gpu} (compute capability "
                f"{provenance.compute_capability}); here is {gpu.name} ({gpu.compute_capability})."
            ),
            hint=AGAIN,
        )


def option_words(text: str) -> tuple[str, ...]:
    """Return the values of an option that takes several, joined by ``+``."""
    return tuple(word.strip() for word in text.split("+") if word.strip())


def resolve_targets(requested: tuple[str, ...], flavour: Flavour, gpu: Gpu | None) -> tuple[str, ...]:
    """Return the requested compute capabilities in ascending order; empty is the GPU here."""
    available = flavour.targets
    if not requested and gpu is None:
        hint = f"--option tensorrt.compute_capability={'+'.join(available)}, or some of these"
        message = f"There is no GPU here that {flavour.name} could build an engine for."
        raise Unsupported(message, hint=hint if available else GPU_HINT)
    if unknown := [name for name in requested if name not in available]:
        raise Unsupported(
            f"{flavour.title} cannot build for compute capability {', '.join(unknown)}.",
            expected=f"some of {', '.join(available)}" if available else "the GPU of the machine",
            hint="leave the option out on a machine with such a GPU: it builds for the GPU there",
        )
    return tuple(name for name in available if name in requested)


def new_logger(flavour: Flavour) -> Any:
    """Return a new logger with a list of ``errors``; it must outlive the objects that it is given to."""
    return _log_class(flavour.module)()


@functools.lru_cache(maxsize=2)
def _log_class(module: Any) -> Any:
    """Return the class of a module's loggers, which must be a subclass of the module's own."""

    class _Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            """Log a message from a thread of TensorRT, and raise nothing: an exception would end the thread."""
            try:
                number = int(severity)
                if number < len(SEVERITIES):
                    sys.stdout.write(f"{SEVERITIES[number]}: {message}\n")
                if number <= 1:
                    self.errors.append(message)
            except Exception:
                return

    return _Log


def error_summary(errors: list[str], otherwise: str = "no reason given") -> str:
    """Return the distinct reasons of the errors on one line."""
    texts = ["\n".join(line for line in error.splitlines() if not ECHOED_ERROR.search(line)) for error in errors]
    return "; ".join(dict.fromkeys(reason(text) for text in texts if text.strip())) or otherwise


# Plugins: layers that libraries add to TensorRT, loaded by path and listed by name.


def plugin_files(libraries: str) -> tuple[Path, ...]:
    """Return the files of plugin libraries, paths joined by ``+``, without loading them."""
    paths = tuple(Path(name).resolve() for name in option_words(libraries))
    for path in paths:
        if not path.is_file():
            message = f"The plugin library {path} is not a file."
            raise InferlensError(message, expected="a shared library, such as lib.so")
    return paths


def load_plugins(flavour: Flavour, libraries: str) -> None:
    """Load plugin libraries, paths joined by ``+``, and TensorRT's own plugins, once per process."""
    for path in (Path(), *plugin_files(libraries)):
        if (flavour.key, path) in _loaded_plugins:
            continue
        if path == Path():
            flavour.module.init_libnvinfer_plugins(new_logger(flavour), "")
        else:
            plugins_before = registered_plugins(flavour)
            # The registry would not report the reason of a failure.
            with unsupported_on_error(f"The plugin library {path} cannot be loaded", f"ldd {path} says what it lacks"):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            if registered_plugins(flavour) == plugins_before:  # the library does not register plugins by itself
                flavour.module.get_plugin_registry().load_library(str(path))
        _loaded_plugins.add((flavour.key, path))


def registered_plugins(flavour: Flavour) -> list[str]:
    """Return the registered plugins, as ``name 1`` or ``namespace::name 1`` (the version)."""
    load_plugins(flavour, "")
    creators = flavour.module.get_plugin_registry().all_creators
    names = set()
    for creator in creators:
        names.add(f"{getattr(creator, 'plugin_namespace', '')}::{creator.name} {creator.plugin_version}")
    return sorted(name.removeprefix("::") for name in names)


# Options. Several values in one option are joined by ``+``, profiles by ``;``, since commas make axes of a plan.
#
# A field of TensorRTOptions is the declaration of an option: its help, when it acts, and a Knob with the values that
# ``tune`` tries. ``builder_config`` applies options of a build, ``parse_network`` those of the network,
# and ``EngineRunner`` those of a run.

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
