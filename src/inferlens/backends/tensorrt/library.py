"""The two flavours of TensorRT behind one seam: TensorRT itself, and TensorRT for RTX, which has the same interface.

What a flavour can do is asked of its module, not of its version number. No other file here imports either library.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from inferlens.backends.availability import imported, warn_unheeded
from inferlens.backends.base import Absence, Preparation
from inferlens.errors import InferlensError, Unsupported, one_line, suggestion
from inferlens.models.provenance import Provenance
from inferlens.reasons import reason
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec


class Kind(NamedTuple):
    """A flavour's module, its name for people, and the extra that installs it."""

    module: str
    name: str
    extra: str


KINDS = {
    "trt": Kind("tensorrt", "TensorRT", "tensorrt"),
    "rtx": Kind("tensorrt_rtx", "TensorRT for RTX", "tensorrt-rtx"),
}
OTHERS = "a machine with a GPU, or --backend tensorrt:rtx"
SEVERITIES = ("internal error", "error", "warning")
# Logged after every other error on a machine without a driver; not a cause.
ECHO = re.compile(r"\[checkMacros\.cpp::catchCudaError::\d+\]")
# Plugins that were loaded, by flavour and path: once for the whole process. An empty path stands for TensorRT's own.
_loaded: set[tuple[str, Path]] = set()


@dataclass(frozen=True)
class Flavour:
    """One flavour of TensorRT as it is installed here: the module, its name, its name for people, its version."""

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
        """Whether precisions are the network's alone, with no flags that let the builder lower them."""
        return self.jit or not hasattr(self.module.BuilderFlag, "FP16")  # TensorRT for RTX 1.4 has flags it ignores

    @property
    def jit(self) -> bool:
        """Whether kernels are compiled when an engine runs: then there is a runtime cache and no timing cache."""
        return hasattr(getattr(self.module, "IRuntimeConfig", None), "create_runtime_cache")

    @property
    def targets(self) -> dict[str, Any]:
        """Compute capabilities (``8.9``) that engines can be built for without such a GPU; empty if none."""
        known = getattr(self.module, "ComputeCapability", None)
        if known is None or not hasattr(self.module.IBuilderConfig, "set_compute_capability"):
            return {}
        names = {name: value for name, value in known.__members__.items() if name.startswith("SM")}
        return {f"{name[2:-1]}.{name[-1]}": value for name, value in names.items()}


def flavour(variant: str) -> Flavour:
    """The flavour of a variant, its library imported."""
    found = find(variant)
    if isinstance(found, Absence):
        raise Unsupported(found.reason, hint=found.hint)
    return found


def find(variant: str) -> Flavour | Absence:
    """The flavour of a variant, or why it is not here, with the hint; never raises for a missing library."""
    kind = KINDS[variant]
    other: Any = sys.modules.get(kind.module)
    alias = Path(getattr(other, "__file__", None) or kind.module).parent.name == "tensorrt_rtx" != kind.module
    if alias:  # Torch-TensorRT for RTX puts TensorRT for RTX under the name ``tensorrt`` as well
        del sys.modules[kind.module]
    try:
        module, absence = imported(kind.module, kind.name, kind.extra)
    finally:
        if alias:
            sys.modules[kind.module] = other
    if absence:
        return Absence(variant, absence.reason, absence.hint)
    return Flavour(variant, kind.module, kind.name, str(module.__version__), module)


def current_gpu() -> Gpu | None:
    """The GPU in use, as PyTorch describes it; ``None`` where there is none, or no PyTorch to ask."""
    try:
        import torch
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's words about a driver that is missing
        if not torch.cuda.is_available():
            return None
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(name=str(gpu.name), memory=int(gpu.total_memory), compute_capability=f"{gpu.major}.{gpu.minor}")


def words(text: str) -> tuple[str, ...]:
    """The values of an option that takes several, joined by ``+``."""
    return tuple(word.strip() for word in text.split("+") if word.strip())


def targets(named: tuple[str, ...], flavour: Flavour, gpu: Gpu | None) -> tuple[str, ...]:
    """The named compute capabilities to build for, in ascending order; empty is the GPU here."""
    known = flavour.targets
    if not named and gpu is None:
        raise Unsupported(
            f"There is no GPU here that {flavour.name} could build an engine for.",
            hint=f"--option tensorrt.compute_capability={'+'.join(known)}, or some of these" if known else OTHERS,
        )
    if unknown := [name for name in named if name not in known]:
        raise Unsupported(
            f"{flavour.title} cannot build for compute capability {', '.join(unknown)}.",
            expected=f"some of {', '.join(known)}" if known else "the GPU of the machine",
            hint="leave the option out on a machine with such a GPU: it builds for the GPU there",
        )
    return tuple(name for name in known if name in named)


def log(flavour: Flavour) -> Any:
    """A new logger, whose ``errors`` are texts in order; it must outlive what it is given to."""
    return _log_class(flavour.module)()


@functools.lru_cache(maxsize=2)
def _log_class(module: Any) -> Any:
    """The class of a module's loggers, which must be a subclass of the module's own."""

    class _Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            """Called from TensorRT's threads, which an exception would take down; so nothing here raises."""
            try:
                number = int(severity)
                if number < len(SEVERITIES):
                    sys.stdout.write(f"{SEVERITIES[number]}: {message}\n")
                if number <= 1:
                    self.errors.append(message)
            except Exception:
                return

    return _Log


def condensed(errors: list[str], otherwise: str = "no reason given") -> str:
    """Return the reasons of the errors on one line, each once."""
    texts = ["\n".join(line for line in error.splitlines() if not ECHO.search(line)) for error in errors]
    return "; ".join(dict.fromkeys(reason(text) for text in texts if text.strip())) or otherwise


# Plugins: layers that libraries add to TensorRT, loaded by path and listed by name.


def plugin_files(libraries: str) -> tuple[Path, ...]:
    """The files of libraries of plugins, paths joined by ``+``; nothing is loaded."""
    paths = tuple(Path(name).resolve() for name in words(libraries))
    for path in paths:
        if not path.is_file():
            raise InferlensError(
                f"The plugin library {path} is not a file.", expected="a shared library, such as lib.so"
            )
    return paths


def load_plugins(flavour: Flavour, libraries: str) -> None:
    """Loads libraries of plugins, paths joined by ``+``, and TensorRT's own plugins; each once for the process."""
    for path in (Path(), *plugin_files(libraries)):
        if (flavour.key, path) not in _loaded:
            if path == Path():
                flavour.module.init_libnvinfer_plugins(log(flavour), "")
            else:
                _load_library(flavour, path)
            _loaded.add((flavour.key, path))


def registered_plugins(flavour: Flavour) -> list[str]:
    """Plugins that are registered, TensorRT's own among them, as ``name 1`` or ``namespace::name 1`` (the version)."""
    load_plugins(flavour, "")
    found = flavour.module.get_plugin_registry().all_creators
    names = {f"{getattr(item, 'plugin_namespace', '')}::{item.name} {item.plugin_version}" for item in found}
    return sorted(name.removeprefix("::") for name in names)


def _load_library(flavour: Flavour, path: Path) -> None:
    before = registered_plugins(flavour)
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # says why it cannot be loaded, which the registry does not
    except OSError as error:
        raise Unsupported(
            f"The plugin library {path} cannot be loaded: {reason(error)}.", hint=f"ldd {path} says what it lacks"
        ) from error
    if registered_plugins(flavour) == before:  # it registers its plugins when it is asked to
        flavour.module.get_plugin_registry().load_library(str(path))


# Options. Several values in one option are joined by ``+``, profiles by ``;``, since commas make axes of a plan.

# TensorRT for RTX 1.6 gave the same engine, byte for byte, at every value of these (docs/tensorrt.md).
OF_TACTICS = ("optimization_level", "max_num_tactics", "tactic_sources", "avg_timing_iterations", "sparsity")
LARGEST = 2**31 - 2
Compatible = Literal["none", "ampere_plus", "same_compute_capability"]
Verbosity = Literal["detailed", "layer_names_only", "none"]


class TensorRTOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of TensorRT and TensorRT for RTX."""

    optimization_level: Annotated[int, Meta(description="how long the builder searches, 0 to 5 (trt)", ge=0, le=5)] = 3
    max_num_tactics: Annotated[
        int, Meta(description="most tactics that are tried for a layer; 0: TensorRT's choice (trt)", ge=0, le=LARGEST)
    ] = 0
    tactic_sources: Annotated[
        str, Meta(description="where tactics come from, joined by +, or none; empty: TensorRT's choice (trt)")
    ] = ""
    workspace: Annotated[
        int, Meta(description="most GPU memory for a tactic, in MiB; 0: all of it", ge=0, le=2**43 - 1)
    ] = 0
    avg_timing_iterations: Annotated[
        int, Meta(description="how often a tactic is timed; the mean counts (trt)", ge=1, le=LARGEST)
    ] = 1
    timing_cache: Annotated[str, Meta(description="file that keeps timings of tactics (rtx: compiled kernels)")] = ""
    profiles: Annotated[
        str, Meta(description="optimization profiles, as MIN/OPT/MAX shapes; empty: one, from the inputs")
    ] = ""
    profile: Annotated[int, Meta(description="which of the profiles runs, from 0", ge=0)] = 0
    version_compatible: Annotated[bool, Meta(description="an engine for later versions of TensorRT too (trt)")] = False
    hardware_compatible: Annotated[Compatible, Meta(description="an engine for more models of GPU (trt)")] = "none"
    compute_capability: Annotated[
        str,
        Meta(
            description="GPUs to build for, such as 8.0+8.9; also without a GPU (rtx); empty: the GPU here",
            pattern="^$|[0-9]",
        ),
    ] = ""
    sparsity: Annotated[bool, Meta(description="let tactics use weights of which two in four are zero (trt)")] = False
    plugins: Annotated[str, Meta(description="libraries of plugins to load, joined by +")] = ""
    refittable: Annotated[bool, Meta(description="an engine whose weights can be replaced")] = False
    profiling_verbosity: Annotated[Verbosity, Meta(description="what the engine keeps of its layers")] = "detailed"
    weakly_typed: Annotated[
        bool, Meta(description="let the builder lower the precision of an fp32 graph (TensorRT 10)")
    ] = False
    tf32: Annotated[bool, Meta(description="TF32 in fp32 convolutions and matrix products; off: fp32 is fp32")] = False
    ranges: Annotated[
        Literal["minmax", "entropy", "percentile"],
        Meta(description="how the range of a tensor to quantize follows from its values in the calibration"),
    ] = "minmax"
    cuda_graph: Annotated[bool, Meta(description="capture the call in a CUDA graph once and replay it")] = False
    streams: Annotated[int, Meta(description="calls side by side for throughput, each with its own context", ge=1)] = 1


def heeded(jit: bool) -> tuple[str, ...]:
    """The options that an engine from a file has; ``jit``: of a flavour that compiles kernels when it runs."""
    return ("profile", "cuda_graph", "streams", "plugins", *(["timing_cache"] * jit))


def warn_of_tactics(options: TensorRTOptions, flavour: Flavour, preparation: Preparation) -> None:
    """Warns of options for the choice of tactics where none are timed."""
    if flavour.jit:
        warn_unheeded(options, OF_TACTICS, f"{flavour.name} times no tactics.", preparation)


def warn_of_built(case: Case, provenance: Provenance | None, flavour: Flavour, preparation: Preparation) -> None:
    """Warns of options of the builder for an engine from a file, unless it was built with those values."""
    own = msgspec.structs.asdict(TensorRTOptions()) | (provenance.options if provenance is not None else {})
    for name, value in case.options.items():
        if name not in heeded(flavour.jit) and own.get(name) != value:
            preparation.warn("no-effect", f"{name} does nothing: the engine is built already.", "Leave it out there.")


# Optimization profiles, as text: ``1x3x224x224/2x3x224x224/16x3x224x224`` (min, opt, max) for a model with one input,
# ``ids=1x8/1x128/4x512+mask=1x8/1x128/4x512`` for several inputs, and one shape alone where it is fixed. An input that
# is left out keeps the shapes of the case.

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]
FORM = "MIN/OPT/MAX, such as 1x3x224x224/2x3x224x224/16x3x224x224; several inputs as a=1x8/1x8/4x8+b=1x8/1x8/4x8; \
several profiles joined by ;"
_SHAPE = re.compile(r"^(scalar|[1-9]\d*(x[1-9]\d*)*)$")


def profiles(text: str, specs: tuple[TensorSpec, ...]) -> tuple[Profile, ...]:
    """Profiles as shapes by input name, in the order of the inputs; one, of the inputs' own, if ``text`` is empty."""
    own: Profile = {spec.name: spec.profile for spec in specs}
    parts = text.split(";") if text.strip() else []
    found = tuple({**own, **_profile(part, specs)} for part in parts) or (own,)
    for name, (least, *_) in [item for profile in found for item in profile.items()]:
        if min(least, default=0) < 0:
            raise InferlensError(
                one_line(f"Sizes of the input '{name}' are free ({shape_text(least)}), and no profile gives them."),
                expected=FORM,
            )
    return found


def check_shapes(profiles: tuple[Profile, ...], index: int, specs: tuple[TensorSpec, ...]) -> None:
    """Checks that the profile that runs takes the shapes that are measured."""
    if index >= len(profiles):
        raise Unsupported(f"There is no profile {index}: the engine has {len(profiles)}, counted from 0.")
    for spec in specs:
        least, _, most = profiles[index][spec.name]
        if not _within(least, spec.shape, most):
            raise Unsupported(
                f"Profile {index} takes {one_line(spec.name)} from {shape_text(least)} to {shape_text(most)}, not "
                f"{shape_text(spec.shape)}.",
                hint="another --option tensorrt.profile, or another batch",
            )


def spread(specs: tuple[TensorSpec, ...], profiles: tuple[Profile, ...]) -> tuple[TensorSpec, ...]:
    """The inputs with the range of sizes that all the profiles take together: what the graph is exported for."""
    found = []
    for spec in specs:
        triples = [profile[spec.name] for profile in profiles]
        least = tuple(min(sizes) for sizes in zip(*(triple[0] for triple in triples), strict=True))
        most = tuple(max(sizes) for sizes in zip(*(triple[2] for triple in triples), strict=True))
        ranged = msgspec.structs.replace(spec, least=least, best=triples[0][1], most=most)
        found.append(spec if least == most else ranged)
    return tuple(found)


def shape_text(shape: Shape) -> str:
    """A shape as text, ``?`` where a size is free, such as ``?x3x224x224``."""
    return "x".join("?" if size < 0 else str(size) for size in shape) or "scalar"


def _profile(text: str, specs: tuple[TensorSpec, ...]) -> Profile:
    known = {spec.name: spec for spec in specs}
    found: Profile = {}
    for part in text.split("+"):
        name, equals, shapes = part.strip().rpartition("=")
        if not equals and len(specs) > 1:
            raise InferlensError(f"'{part.strip()}' does not say which input it is for.", expected=FORM)
        name = name.strip() if equals else specs[0].name
        if name not in known:
            hint = one_line(suggestion(name, known))
            raise InferlensError(f"The model has no input '{name}'.", expected=one_line(", ".join(known)), hint=hint)
        found[name] = _shapes(shapes.strip(), known[name])
    return found


def _shapes(text: str, spec: TensorSpec) -> tuple[Shape, Shape, Shape]:
    words = [word.strip() for word in text.split("/")]
    if len(words) not in (1, 3) or not all(_SHAPE.match(word) for word in words):
        raise InferlensError(f"'{text}' is not a profile of '{one_line(spec.name)}'.", expected=FORM)
    parsed = [() if word == "scalar" else tuple(map(int, word.split("x"))) for word in words]
    least, best, most = parsed * 3 if len(parsed) == 1 else parsed
    if len(best) != len(spec.shape) or not _within(least, best, most):
        raise InferlensError(
            f"'{text}' does not fit '{one_line(spec.name)}', which is {shape_text(spec.shape)}, or does not grow from "
            "min over opt to max."
        )
    return least, best, most


def _within(least: Shape, shape: Shape, most: Shape) -> bool:
    return len(least) == len(shape) == len(most) and all(
        low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
    )
