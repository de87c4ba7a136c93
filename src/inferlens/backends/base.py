"""The interface between a way of running models and everything else.

A :class:`Backend` reports its :class:`Capabilities` and prepares a model for a case. The :class:`Runner` that it
returns is entered, fed, timed and left. Optional abilities are base classes, and other packages ask for them by type,
never for a backend's name.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from inferlens.backends.clocks import Clock, HostClock, nvtx_range
from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.models.inputs import flatten, on_host, single_or_list
from inferlens.models.model import Array, Format, Model, ModelInfo
from inferlens.record.builds import BuildReport, Partition
from inferlens.record.profile import Layers
from inferlens.record.record import Artefact, Phase, PhaseName, Warning
from inferlens.spec.case import FLAGS, QUANTIZED, Case, Option, TensorSpec, keep_refusal
from inferlens.spec.hints import Hint

Inputs = dict[str, Array]
Outputs = list[Array]

# Options that do nothing on the CPU.
ON_CUDA = (
    "cuda_graph", "tf32", "cudnn_benchmark", "cudnn_conv_algo_search", "prefer_nhwc", "fuse_conv_bias",
    "coordinate_descent_tuning",
)  # fmt: skip


# Options of several backends.
Tf32 = Annotated[
    bool, Meta(description="let fp32 convolutions and matrix products use TF32 on CUDA; off: fp32 is fp32")
]
Ranges = Annotated[
    Literal["minmax", "entropy", "percentile"],
    Meta(description="how the range of a tensor to quantize follows from its values in the calibration"),
]

THREADS = "threads"  # a knob that is not an option of the backend


class Knob(Struct, frozen=True, kw_only=True):
    """A setting that tuning tries: an option of the backend, or ``threads``."""

    name: str
    values: tuple[Option, ...]  # without the default, the most promising first
    devices: tuple[str, ...] = ()  # the devices on which it has an effect; empty: all
    precisions: tuple[str, ...] = ()  # the same for precisions
    variants: tuple[str, ...] = ()  # the same for variants
    needs: tuple[str, ...] = ()  # options without which it has no effect
    excludes: tuple[str, ...] = ()  # options with which it has no effect or fails
    objectives: tuple[str, ...] = ()  # objectives for which it is tried; empty: all
    build: float = 1.0  # about how many times longer preparation takes with it
    helps: tuple[str, ...] = ()  # keys of ``analysis.measures.BOTTLENECKS`` that it may reduce

    def fits(self, case: Case) -> bool:
        """Return whether the knob may have an effect; ``case.options`` holds the options that are not the default."""
        return (
            (not self.devices or case.device in self.devices)
            and (not self.precisions or case.precision in self.precisions)
            and (not self.variants or case.variant in self.variants)
            and all(name in case.options for name in self.needs)
            and not any(name in case.options for name in self.excludes)
        )

    def value_in(self, case: Case) -> Option | None:
        """Return the value in ``case``; ``None`` is the default."""
        return case.threads if self.name == THREADS else case.options.get(self.name)


class Recommendation(Struct, frozen=True):
    """A configuration in which experts deploy the library. By default ``bench`` runs the recommendations."""

    variant: str
    device: str = "cuda"
    options: dict[str, Option] = {}  # the backend's options that differ from their defaults
    precisions: tuple[str, ...] = ()  # empty: all
    convolutional: bool | None = None  # whether the model must have 2-D convolutions; ``None``: any model
    fixed_shapes: bool = False  # whether the options need inputs of one shape

    def fits(self, case: Case, *, convolutional: bool) -> bool:
        """Return whether the recommendation is for the case's device and precision and for such a model."""
        return (
            self.device == case.device
            and case.precision in (self.precisions or (case.precision,))
            and self.convolutional in (None, convolutional)
        )


class Support(Struct, frozen=True):
    """A variant that works on a device in these precisions, for models of ``formats`` (empty: the backend's).

    The first support of a device is its default variant. ``quantizes`` has the precisions to which it quantizes models,
    and ``keeps`` those in which single layers can stay. Quantizing needs calibration data unless the case has the
    options ``without_data`` (``None``: always).
    """

    variant: str
    device: str
    precisions: tuple[str, ...]
    formats: tuple[Format, ...] = ()
    quantizes: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    without_data: dict[str, Option] | None = None


class Absence(Struct, frozen=True):
    """The reason why a variant (empty: the backend) is missing, on one device or all, and a command that helps."""

    variant: str
    reason: str
    hint: str = field(default="", name="cure")
    device: str = ""


class Capabilities(Struct, frozen=True, kw_only=True):
    """The abilities of a backend on this machine.

    ``limits`` has the reason why a precision is missing, by ``variant/device/precision`` or ``device/precision``.
    """

    formats: tuple[Format, ...]  # accepted models
    supports: tuple[Support, ...] = ()
    writes: tuple[Support, ...] = ()  # as ``supports``, for quantized files that another machine runs
    absent: tuple[Absence, ...] = ()
    limits: dict[str, str] = {}
    libraries: dict[str, str] = {}  # versions of the libraries that it uses
    dynamic_shapes: bool = False  # whether one prepared model runs at several input shapes
    contents: dict[str, tuple[str, ...]] = {}  # other contents by title, such as registered plugins

    @property
    def available(self) -> bool:
        return bool(self.supports)

    def takes(self, format: Format) -> tuple[Support, ...]:
        """Return the supports for models of a format."""
        return tuple(support for support in self.supports if format in (support.formats or self.formats))

    def default_variant(self, device: str, format: Format) -> str | None:
        """Return the first variant that takes ``format`` on ``device``, or ``None``."""
        return next((support.variant for support in self.takes(format) if support.device == device), None)

    def refusal(self, case: Case, model_info: ModelInfo) -> Unsupported | None:
        """Return why ``case`` cannot run here, or ``None`` if no reason is visible before it is prepared."""
        for absence in self.absent:
            if absence.variant in ("", case.variant) and absence.device in ("", case.device):
                return Unsupported(absence.reason, hint=absence.hint)
        by_device = {support.device: support for support in self.supports if support.variant == case.variant}
        support = by_device.get(case.device)
        if support is None:
            message, hint = f"{case.backend_label} does not run on any device of this machine.", ""
            if by_device:
                message = f"{case.backend_label} does not run on {case.device}, only on {', '.join(by_device)}."
                hint = f"--device {next(iter(by_device))}"
            return Unsupported(message, hint=hint)
        if case.io == "host" and case.device == "cpu":
            return Unsupported("On the CPU every call begins and ends on the host.", hint="without --io host")
        formats = support.formats or self.formats
        if model_info.format not in formats:
            message = f"{case.backend_label} cannot run a model of format '{model_info.format}'."
            return Unsupported(message, expected=f"format {', '.join(formats)}")
        return self._precision_refusal(case, model_info, support)

    def _precision_refusal(self, case: Case, model_info: ModelInfo, support: Support) -> Unsupported | None:
        keys = (f"{case.variant}/{case.device}/{case.precision}", f"{case.device}/{case.precision}")
        reason = next((f": {self.limits[key]}" for key in keys if key in self.limits), "")
        if case.precision not in support.precisions:
            message = f"{case.backend_label} does not run {case.precision} on {case.device}{reason}."
            unquantized = [name for name in support.precisions if name not in QUANTIZED]
            return Unsupported(message, hint=f"--precision {','.join(unquantized)}")
        if model_info.origin and model_info.precision != case.precision:
            message = f"The model was compiled for {model_info.precision}, not for {case.precision}."
            return Unsupported(message, hint=f"--precision {model_info.precision}")
        if case.precision in support.quantizes and model_info.precision not in QUANTIZED:
            without_data = support.without_data is not None and support.without_data.items() <= case.options.items()
            if case.calibration or without_data:
                return keep_refusal(case, support.keeps, model_info.precision)
            message = f"Quantizing a model to {case.precision} needs calibration data."
            return Unsupported(message, hint="--calibration DATA, or random for its speed alone")
        if case.precision in QUANTIZED and model_info.precision != case.precision:
            return Unsupported(
                f"The model is not quantized to {case.precision}, and is run as it is{reason}.",
                hint="an ONNX file with QuantizeLinear and DequantizeLinear nodes",
            )
        return keep_refusal(case, support.keeps, model_info.precision)


def merge_capabilities(capabilities: Sequence[Capabilities]) -> Capabilities:
    """Return the union of a backend's capabilities in several environments; ``absent`` has what all of them lack."""
    formats: dict[Format, None] = {}
    supports: dict[tuple[str, str], Support] = {}
    absent = {(absence.variant, absence.device): absence for absence in capabilities[0].absent}
    for capability in capabilities:
        formats |= dict.fromkeys(capability.formats)
        supports |= {(support.variant, support.device): support for support in capability.supports}
        lacking = {(absence.variant, absence.device) for absence in capability.absent}
        absent = {key: absence for key, absence in absent.items() if key in lacking}
    return msgspec.structs.replace(
        capabilities[0], formats=tuple(formats), supports=tuple(supports.values()), absent=tuple(absent.values())
    )


@dataclass
class PhaseNote:
    """A note on the current phase for the record, such as ``cached``."""

    note: str = ""


@dataclass
class Preparation:
    """The settings for a backend that prepares a model, and its reports: phases, facts, artefacts, warnings."""

    folder: Path  # the folder of the case; its files are kept with the record
    cache: Path  # the folder for artefacts that cases share; their names are hashes of their content
    on_phase: Callable[[PhaseName], None] = lambda _: None  # called as each phase begins
    now: Callable[[], float] = time.perf_counter  # the clock of the phases, in seconds
    rebuild: bool = False  # whether cached files are made again
    level: str = ""  # the level to profile at, such as ``layer``; empty: timed, without any instrument
    trust: bool = False  # whether files that can run code may be opened
    export_folder: Path | None = None  # the folder with this model's export for this backend and precision
    export_lock: Path | None = None  # the file that is locked by the process that exports the model for others
    already_built: bool = False  # whether a process of this case has filled the cache
    cached_only: bool = False  # whether a missing file of the cache is an error, and not built
    phases: list[Phase] = dataclasses.field(default_factory=list, init=False)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict, init=False)
    artefacts: list[Artefact] = dataclasses.field(default_factory=list, init=False)
    warnings: list[Warning] = dataclasses.field(default_factory=list, init=False)

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[PhaseNote]:
        """Time the body as one phase. A phase that fails is recorded too."""
        self.on_phase(name)
        phase_note = PhaseNote()
        begin = self.now()
        try:
            with nvtx_range(name):
                yield phase_note
        finally:
            self.phases.append(Phase(name, self.now() - begin, phase_note.note))

    def keep(self, path: Path, kind: str) -> None:
        """List a file under ``folder`` as an artefact of the record."""
        self.artefacts.append(Artefact(str(path.relative_to(self.folder)), kind, path.stat().st_size))

    def warn(self, code: str, message: str, advice: str = "") -> None:
        """Add a warning to the record, once for each code and message."""
        warning = Warning(code, message, advice)
        if warning not in self.warnings:
            self.warnings.append(warning)


class Runner(ABC):
    """A prepared model. It uses the device from entry to exit.

    ``place`` and ``collect`` move data and are never timed; ``infer`` is.
    """

    clock: Clock = HostClock()
    follows_stream: bool = False  # whether calls use PyTorch's current stream

    @abstractmethod
    def __enter__(self) -> Runner:
        """Move, build or compile on the device."""

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        """Release the device."""

    @abstractmethod
    def place(self, inputs: Inputs) -> Any:
        """Return the inputs on the device, in the form and precision that ``infer`` takes."""

    @abstractmethod
    def infer(self, feed: Any) -> Any:
        """Call the model. Where the device has a queue, the call is only enqueued. Outputs stay on the device."""

    def thread_caller(self) -> Callable[[Any], Any] | None:
        """Return a call for one more thread, which uses its own feed; ``None`` if threads may not call at once.

        On devices without a queue, several calls are in flight only if several threads call.
        """
        return None

    def synchronize(self) -> None:  # noqa: B027 - right for devices without a queue
        """Wait until all enqueued work is done."""

    @abstractmethod
    def collect(self, outputs: Any) -> Outputs:
        """Return the tensors in ``outputs``, flattened in order, as arrays on the host; floats as float32."""

    def answer(self, inputs: Inputs) -> Outputs:
        """Return the outputs of one call on the host, from inputs on the host."""
        outputs = self.infer(self.place(inputs))
        self.synchronize()
        return self.collect(outputs)

    def take(self, inputs: Mapping[str, Any]) -> Any:
        """Place arrays or tensors; subclasses do not copy tensors that are already on the device."""
        return self.place(on_host(inputs))

    def give(self, outputs: Any) -> Any:
        """Return outputs in the model's structure, if known: arrays, or tensors that enqueued work may still change."""
        return single_or_list(self.collect(outputs))

    @property
    def reuses_outputs(self) -> bool:
        """Return whether the next call overwrites the outputs that ``give`` returned."""
        return False

    def bind(self, feed: Any) -> None:  # noqa: B027 - right for runners that read whatever they are fed with
        """Prepare for calls with ``feed``, so that the first of them does no extra work. Never timed."""

    def tensors_read(self, feed: Any) -> list[Any]:
        """Return the tensors on the device that the next call with ``feed`` reads."""
        return list(flatten(feed))

    def compilations(self) -> int:
        """Return how often this process has compiled a graph; 0 where calls never compile."""
        return 0

    def device_memory(self) -> tuple[int, str] | None:
        """Return the peak device memory in bytes, and how the library counts it; ``None`` if unknown."""
        return None

    def memory_parts(self) -> dict[str, int]:
        """Return the known bytes of ``weights``, ``activations`` and ``workspace`` on the device."""
        return {}


class Backend(ABC):
    """A way of running models. Subclasses are registered in the entry-point group ``inferlens.backends``."""

    name: ClassVar[str]
    options: ClassVar[type[Struct]]
    summary: ClassVar[str]
    short: ClassVar[str] = ""  # a shorter name, if there is one
    variants: ClassVar[tuple[str, ...]] = ("",)
    slow_variants: ClassVar[dict[str, float]] = {}  # how many times longer the build of these variants takes
    variant_helps: ClassVar[dict[str, tuple[str, ...]]] = {}  # as ``Knob.helps``, for all variants but the first
    # Variant and options that compute the reference on the CPU, by the format of the model or of its origin.
    reference_for: ClassVar[dict[Format, tuple[str, dict[str, Option]]]] = {}
    aliases: ClassVar[dict[str, str]] = {}  # the backend's names of options, by their most common names
    distributions: ClassVar[tuple[str, ...]] = ()  # packages whose versions belong in a record
    knobs: ClassVar[tuple[Knob, ...]] = ()  # settings that tuning tries
    # Configurations that ``bench`` runs by default; empty: the default variant.
    recommended: ClassVar[tuple[Recommendation, ...]] = ()
    excluded_devices: ClassVar[tuple[str, ...]] = ()  # devices on which ``bench`` runs it only by name
    untested_variants: ClassVar[tuple[str, ...]] = ()  # variants written from documentation alone

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what works on this machine. May import the library; never raises if it is missing."""

    @abstractmethod
    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        """Make ``model`` ready on the host, without the device. Raise Unsupported if it cannot run this way."""

    def tolerance(self, case: Case) -> float:
        """Return the largest relative L2 error against the fp32 reference that counts as right."""
        return precision_tolerance(case, tf32=getattr(self.parse_options(case), "tf32", False))

    def times_kernels(self, case: Case, *, cached: bool = False) -> bool:  # noqa: ARG002
        """Return whether preparing times kernels on the device, so that no other process may use it.

        ``cached`` says that the cache already has the result of the build.
        """
        return False

    def exports(self, case: Case) -> str:  # noqa: ARG002
        """Return the precision of the case's ONNX graph; empty if there is none, or if it depends on options."""
        return ""

    @classmethod
    def parse_options(cls, case: Case) -> Any:
        """Return ``case.options`` as ``cls.options``. Raise InferlensError for unknown options and wrong types."""
        names = cls.options.__struct_fields__
        for name in case.options:
            if name not in names:
                raise InferlensError(
                    f"Backend '{cls.name}' has no option '{name}'.",
                    expected=f"one of {', '.join(sorted(names)) or 'none'}",
                    hint=suggestion(name, {*names, *FLAGS}, spelled=FLAGS) or f"inferlens backends {cls.name}",
                )
        try:
            return msgspec.convert(case.options, cls.options, strict=False)
        except msgspec.ValidationError as error:
            name = str(error).rpartition("$.")[2].rstrip("`")
            hints = get_type_hints(cls.options, include_extras=True)
            message = f"The option {cls.name}.{name} does not take '{case.options[name]}'."
            raise InferlensError(message, expected=option_values(hints[name])) from error

    @classmethod
    def effective(cls, case: Case) -> Case:
        """Return the simplest case that runs like ``case``: options at their defaults are left out.

        Subclasses override it if two variants do the same. It imports nothing. Raises as :meth:`parse_options`.
        """
        options, default = cls.parse_options(case), cls.options()
        names = [name for name in sorted(case.options) if getattr(options, name) != getattr(default, name)]
        return msgspec.structs.replace(case, options={name: getattr(options, name) for name in names})

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:  # noqa: ARG003
        """Return how ``case`` gets the effect of ``option=value``: by default through the option of that name.

        Subclasses override it if a variant has the effect, or if the option has none. ``facts`` are those of a record,
        and ``option`` is the most common name. It imports nothing.
        """
        option = cls.aliases.get(option, option)
        if option not in cls.options.__struct_fields__ or (option in ON_CUDA and case.device != "cuda"):
            return Hint()
        if getattr(cls.parse_options(case), option) == value:
            return Hint(asked=True)
        return Hint(f"{cls.name}.{option}={str(value).lower() if isinstance(value, bool) else value}")


def precision_tolerance(case: Case, *, tf32: bool) -> float:
    """Return the tolerance of a case that may use TF32, as :meth:`Backend.tolerance`."""
    return TOLERANCES["tf32" if tf32 and case.precision == "fp32" and case.device == "cuda" else case.precision]


def option_values(hint: Any) -> str:
    """Return an option's type as users write it: ``true|false``, ``all|basic``, ``whole number, 0 or more``."""
    kind, meta = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if kind is bool:
        return "true|false"
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    names = {int: "whole number", float: "number", str: "text", type(None): ""}
    text = names[kind] if kind in names else " or ".join(filter(None, map(option_values, get_args(kind))))
    least, most = getattr(meta, "ge", None), getattr(meta, "le", None)
    if least is None:
        return text
    return f"{text}, {least} or more" if most is None else f"{text} from {least} to {most}"


# Relative L2 error against fp32 that counts as right. Unit roundoffs are 6e-8 (fp32), 5e-4 (fp16, TF32), 4e-3 (bf16);
# the factor above them leaves room for the depth of the network and another order of summation. A quantized model is
# compared with itself, computed in fp32 between its roundings, so only the direction of a rounding can differ.
TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2, "bf16": 1e-1, "fp8": 1e-1, "int8": 1e-1}


# Optional abilities of backends and runners


class Saver(ABC):
    """A backend that writes prepared models to files; ``saves`` maps their suffixes to their kinds."""

    saves: ClassVar[dict[str, str]]

    @abstractmethod
    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write ``model``, prepared for ``case``, to a new file with a suffix of ``saves``, or raise Unsupported."""


class Quantizer(ABC):
    """A backend that writes quantized models to files with the suffix ``quantized_suffix``.

    ``Capabilities.writes`` lists what it can write but not run here.
    """

    quantized_suffix: ClassVar[str]

    @abstractmethod
    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        """Write the quantized ``model`` to ``path``, and return the fp32 ONNX graph that was quantized.

        Sets the fact ``quantized_share`` if it can be counted.
        """


class Builder(ABC):
    """A backend that builds engines, if need be several times, and reports the time and choices of each build."""

    @abstractmethod
    def build(self, model: Model, case: Case, preparation: Preparation, path: Path, builds: int = 1) -> BuildReport:
        """Build ``builds`` engines and write the last to the new file ``path``, or raise Unsupported."""


class Partitioner(ABC):
    """A backend that predicts which operators its compiler takes, and why it does not take the others."""

    @abstractmethod
    def partition(self, model: Model, case: Case, preparation: Preparation) -> Partition:
        """Return the partition without compiling, or raise Unsupported if it cannot be predicted."""


class LayerProfiler(ABC):
    """A runner that times its layers if it was prepared for the level ``layer``."""

    @abstractmethod
    def profile_layers(self, feed: Any, runs: int) -> Layers:
        """Call ``infer(feed)`` ``runs`` times and time the layers of every call.

        The runner is entered and warm. Names and origins of layers are resolved after the calls, so that the work
        between two layers is constant. Raises Unsupported with a hint if the library reports no layers.
        """


class GpuLaunch(Struct, frozen=True, kw_only=True):
    """A kernel, copy or fill of one run as a trace shows it, without its times."""

    name: str
    kind: str = "kernel"  # ``kernel``, ``copy`` or ``fill``
    operator: str = ""  # the innermost operator around its launch, such as ``aten::add``
    scopes: tuple[str, ...] = ()  # names of operators and ``record_function`` scopes around its launch, outermost first
    grid: tuple[int, ...] = ()  # blocks; empty for a copy or fill
    block: tuple[int, ...] = ()
    stream: int | None = None


class KernelOrigin(Struct, frozen=True):
    """The layer, as the backend names it, and the modules of a kernel; empty where they are unknown."""

    layer: str = ""
    modules: tuple[str, ...] = ()


class KernelSources(Struct, frozen=True):
    """One origin for each kernel of a run, in order; ``absent`` says what is unknown and why."""

    origins: tuple[KernelOrigin, ...]
    absent: dict[str, str] = {}


class KernelTracer(ABC):
    """A runner that knows which layers and modules the kernels of a run came from."""

    def scopes(self) -> AbstractContextManager[Any]:
        """Return a context around the traced runs, which adds scopes that identify the origins of kernels."""
        return nullcontext()

    @abstractmethod
    def kernel_sources(self, launched: Sequence[GpuLaunch]) -> KernelSources:
        """Return the origins of the launches of one run, in their order.

        It is called after the traced runs while the runner is entered, once for runs with equal launches.
        """


class Deployer(ABC):
    """A backend whose prepared models run without Inferlens, from a file and a short script."""

    script_packages: ClassVar[tuple[str, ...]] = ()  # distributions that scripts may need

    def packages(self, case: Case) -> tuple[str, ...]:  # noqa: ARG002 - here all cases need the same
        """Return the distributions that the script may need; a record's versions of them are required."""
        return self.script_packages

    @abstractmethod
    def deploy_suffix(self, case: Case) -> str:
        """Return the suffix of the file that the script loads. Raise Unsupported if there is no such file."""

    @abstractmethod
    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write ``model``, as ``case`` runs it, to the new file ``path``, which the script loads."""

    @abstractmethod
    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        """Return a Python program that loads ``file`` from its own folder and prints the latency on random inputs.

        Its function ``run`` takes the model's inputs in order and returns its outputs.
        """
