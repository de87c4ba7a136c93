"""The seam between a way of running models and everything else.

A :class:`Backend` says what it can do (:class:`Capabilities`) and prepares a model for a case; the :class:`Runner` it
returns is then entered, fed, timed and left. Nothing outside a backend asks for its name: abilities are asked for.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from inferlens.backends.clocks import Clock, HostClock, nvtx_range
from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.models.inputs import flatten, on_host, one_or_all
from inferlens.models.model import Array, Format, Model, ModelInfo
from inferlens.record.build_report import BuildReport
from inferlens.record.layer_profile import Layers
from inferlens.record.partition import Partition
from inferlens.record.record import Artefact, Phase, PhaseName, Warning
from inferlens.spec.case import FLAGS, QUANTIZED, Case, Option, TensorSpec
from inferlens.spec.hints import Hint
from inferlens.spec.keep import keep_refusal

Inputs = dict[str, Array]
Outputs = list[NDArray[np.generic]]

# Options that do nothing on the CPU.
ON_CUDA = (
    "cuda_graph", "tf32", "cudnn_benchmark", "cudnn_conv_algo_search", "prefer_nhwc", "fuse_conv_bias",
    "coordinate_descent_tuning",
)  # fmt: skip


def ordered(inputs: Inputs, specs: tuple[TensorSpec, ...]) -> list[Array]:
    """Return the arrays in the order of ``specs``. Raises InferlensError for an input that is missing or unknown."""
    names = [spec.name for spec in specs]
    unknown = sorted(set(inputs) - set(names))
    missing = [name for name in names if name not in inputs]
    if unknown or missing:
        what = f"The model has no input '{unknown[0]}'." if unknown else f"The input '{missing[0]}' is missing."
        hint = suggestion(unknown[0], names) if unknown else ""
        raise InferlensError(what, expected=f"arrays named {', '.join(names)}", hint=hint)
    return [inputs[name] for name in names]


THREADS = "threads"  # of a case: a knob beside the options of its backend


class Knob(Struct, frozen=True, kw_only=True):
    """Something that is worth trying when a case is tuned: an option of its backend, or ``threads``."""

    name: str
    values: tuple[Option, ...]  # beside the default, the most promising first
    devices: tuple[str, ...] = ()  # of cases where it does something, as ``precisions`` and ``variants``; empty: of all
    precisions: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # options that must have another value than their default for it to do something
    without: tuple[str, ...] = ()  # options beside which it does nothing, or fails, once they are not the default
    objectives: tuple[str, ...] = ()  # for which it is worth a process, by their names; empty: for all
    build: float = 1.0  # how many times longer preparing the case takes with it, about
    helps: tuple[str, ...] = ()  # against which bottlenecks of ``analysis.bottleneck`` it may help

    def fits(self, case: Case) -> bool:
        """Whether it may do something for ``case``, whose options are those that are not the default."""
        here = ((self.devices, case.device), (self.precisions, case.precision), (self.variants, case.variant))
        return (
            all(not item or value in item for item, value in here)
            and all(name in case.options for name in self.needs)
            and not any(name in case.options for name in self.without)
        )

    def setting(self, case: Case) -> Option | None:
        """Its value in ``case``; ``None`` is the default."""
        return case.threads if self.name == THREADS else case.options.get(self.name)


class Recommendation(Struct, frozen=True):
    """A configuration in which the experts of a library deploy it. ``bench`` races these by default."""

    variant: str
    device: str = "cuda"
    options: dict[str, Option] = {}  # the backend's options that differ from their defaults
    precisions: tuple[str, ...] = ()  # of cases that it is for; empty: all
    convolutional: bool | None = None  # whether it is for models with 2-D convolutions; ``None``: for all
    fixed_shapes: bool = False  # whether the options need inputs of one shape. Without them it runs at any shape

    def fits(self, case: Case, *, convolutional: bool) -> bool:
        """Return whether it is for the device and precision of a case, and for a model with or without convolutions."""
        return (
            self.device == case.device
            and case.precision in (self.precisions or (case.precision,))
            and self.convolutional in (None, convolutional)
        )


class Support(Struct, frozen=True):
    """A variant works on a device in these precisions, with models of these formats (empty: those of the backend).

    The first on a device is the default variant there. Models can be brought to the precisions that it ``quantizes``,
    but for layers in those that it ``keeps``; it takes data, save with the options ``without_data`` (``None``: always).
    """

    variant: str
    device: str
    precisions: tuple[str, ...]
    formats: tuple[Format, ...] = ()
    quantizes: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    without_data: dict[str, Option] | None = None

    def needs_data(self, case: Case) -> bool:
        """Whether a model is calibrated with data to quantize it for a case."""
        return self.without_data is None or not self.without_data.items() <= case.options.items()


class Absence(Struct, frozen=True):
    """Why a variant (empty: the backend) is not available here, or on one device, and the command that helps."""

    variant: str
    reason: str
    hint: str = field(default="", name="cure")
    device: str = ""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a backend can do on this machine.

    ``limits`` say why some precision is missing, or what alone it takes, by ``variant/device/precision`` or
    ``device/precision``.
    """

    formats: tuple[Format, ...]  # of models that it takes
    supports: tuple[Support, ...] = ()
    writes: tuple[Support, ...] = ()  # as ``supports``, of what it only quantizes to files here, for another machine
    absent: tuple[Absence, ...] = ()
    limits: dict[str, str] = {}
    libraries: dict[str, str] = {}  # versions of those that it uses
    dynamic_shapes: bool = False  # whether one prepared model runs at several input shapes
    contents: dict[str, tuple[str, ...]] = {}  # what else it has, by title: such as the plugins that are registered

    @property
    def available(self) -> bool:
        return bool(self.supports)

    def takes(self, format: Format) -> tuple[Support, ...]:
        """What works here for models of a format."""
        return tuple(support for support in self.supports if format in (support.formats or self.formats))

    def default_variant(self, device: str, format: Format) -> str | None:
        """The first variant that takes ``format`` on ``device``; ``None`` if none does."""
        return next((support.variant for support in self.takes(format) if support.device == device), None)

    def refusal(self, case: Case, model_info: ModelInfo) -> Unsupported | None:
        """Why ``case`` cannot run here; ``None`` if, as far as can be told beforehand, it can."""
        for absence in self.absent:
            if absence.variant in ("", case.variant) and absence.device in ("", case.device):
                return Unsupported(absence.reason, hint=absence.hint)
        here = [support for support in self.supports if support.variant == case.variant]
        on_device = [support for support in here if support.device == case.device]
        if not on_device:
            devices = [support.device for support in here]
            only = f"on {case.device}, only on {', '.join(devices)}" if devices else "on any device of this machine"
            hint = f"--device {devices[0]}" if devices else ""
            return Unsupported(f"{case.backend_label} does not run {only}.", hint=hint)
        if case.io == "host" and case.device == "cpu":
            return Unsupported("On the CPU every call begins and ends on the host.", hint="without --io host")
        formats = on_device[0].formats or self.formats
        if model_info.format not in formats:
            what = f"{case.backend_label} cannot run a model of format '{model_info.format}'."
            return Unsupported(what, expected=f"format {', '.join(formats)}")
        return self._precision_refusal(case, model_info, on_device[0])

    def _precision_refusal(self, case: Case, model_info: ModelInfo, support: Support) -> Unsupported | None:
        precisions = support.precisions
        keys = (f"{case.variant}/{case.device}/{case.precision}", f"{case.device}/{case.precision}")
        why = next((f": {self.limits[key]}" for key in keys if key in self.limits), "")
        if case.precision not in precisions:
            hint = f"--precision {','.join(name for name in precisions if name not in QUANTIZED)}"
            return Unsupported(f"{case.backend_label} does not run {case.precision} on {case.device}{why}.", hint=hint)
        if model_info.origin and model_info.precision != case.precision:
            what = f"The model was compiled for {model_info.precision}, not for {case.precision}."
            return Unsupported(what, hint=f"--precision {model_info.precision}")
        if case.precision in support.quantizes and model_info.precision not in QUANTIZED:
            if case.calibration or not support.needs_data(case):
                return keep_refusal(case, support.keeps, model_info.precision)
            what = f"To quantize a model to {case.precision} takes data to calibrate it with."
            return Unsupported(what, hint="--calibration DATA, or random for its speed alone")
        if case.precision in QUANTIZED and model_info.precision != case.precision:
            return Unsupported(
                f"The model is not quantized to {case.precision}, and models are run here as they are{why}.",
                hint="an ONNX file with QuantizeLinear and DequantizeLinear nodes",
            )
        return keep_refusal(case, support.keeps, model_info.precision)


def merged(every: Sequence[Capabilities]) -> Capabilities:
    """What a backend can do in some environment, of what it can in each; what is absent is so in all of them."""
    first, *others = every
    absent = [{(absence.variant, absence.device) for absence in can.absent} for can in others]
    return msgspec.structs.replace(
        first,
        formats=tuple(dict.fromkeys(format for can in every for format in can.formats)),
        supports=tuple(
            {(support.variant, support.device): support for can in every for support in can.supports}.values()
        ),
        absent=tuple(
            absence for absence in first.absent if all((absence.variant, absence.device) in its for its in absent)
        ),
    )


@dataclass
class Noted:
    """A phase under way; ``note`` is what the record says of it, such as ``cached``."""

    note: str = ""


@dataclass
class Preparation:
    """What a backend may use and say while it prepares a model: folders, phases, facts, artefacts, warnings."""

    folder: Path  # the case's own folder; what is left here is kept beside the record
    cache: Path  # for artefacts worth keeping between cases; name them by their content
    began: Callable[[PhaseName], None] = lambda _: None  # told the name of each phase as it begins
    now: Callable[[], float] = time.perf_counter  # the clock of the phases, in seconds
    rebuild: bool = False  # whether what the cache already has is to be made anew
    level: str = ""  # what the runner is to be profiled for, such as ``layer``; empty: timed, so nothing may be added
    trust: bool = False  # whether files that can run code may be opened
    exported: Path | None = None  # a folder in which this model is exported already, for this backend and precision
    export_by: Path | None = None  # the file by which processes that are alive at once export the model once
    built: bool = False  # whether a process of this case has put into the cache what it builds
    kept_only: bool = False  # whether what the cache should have is refused, where it is not there, rather than built
    phases: list[Phase] = dataclasses.field(default_factory=list, init=False)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict, init=False)
    artefacts: list[Artefact] = dataclasses.field(default_factory=list, init=False)
    warnings: list[Warning] = dataclasses.field(default_factory=list, init=False)

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[Noted]:
        """Times what happens inside as one phase; a phase that fails is kept too."""
        self.began(name)
        noted = Noted()
        begin = self.now()
        try:
            with nvtx_range(name):
                yield noted
        finally:
            self.phases.append(Phase(name, self.now() - begin, noted.note))

    def keep(self, path: Path, kind: str) -> None:
        """Lists a file under ``folder`` as an artefact of the record."""
        self.artefacts.append(Artefact(str(path.relative_to(self.folder)), kind, path.stat().st_size))

    def warn(self, code: str, message: str, advice: str = "") -> None:
        """Adds a warning to the record, once for each code and message."""
        warning = Warning(code, message, advice)
        if warning not in self.warnings:
            self.warnings.append(warning)


class Runner(ABC):
    """A model made ready by a backend. The device is not used before entry, and released on exit.

    ``place`` and ``collect`` move data and are never timed; ``infer`` is.
    """

    clock: Clock = HostClock()
    follows_stream: bool = False  # whether calls are enqueued on PyTorch's current stream, if that is not its own

    @abstractmethod
    def __enter__(self) -> Runner:
        """Takes the device: moves, builds, compiles."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases the device."""

    @abstractmethod
    def place(self, inputs: Inputs) -> Any:
        """Inputs in the runner's own form, on its device and in its precision: what ``infer`` takes."""

    @abstractmethod
    def infer(self, feed: Any) -> Any:
        """One call. Enqueues only, where the device has a queue; its outputs stay on the device."""

    def caller(self) -> Callable[[Any], Any] | None:
        """What one thread more may call while others call theirs, each with a feed of its own; ``None`` if none may.

        For devices without a queue, where calls in flight together need threads.
        """
        return None

    def synchronize(self) -> None:  # noqa: B027 - right for devices without a queue
        """Returns when all enqueued work is done."""

    @abstractmethod
    def collect(self, outputs: Any) -> Outputs:
        """The tensors in ``outputs``, any nesting flattened in order, as arrays on the host; floats as float32."""

    def take(self, given: Mapping[str, Any]) -> Any:
        """As :meth:`place`, of tensors too; overridden where what is on the device already need not be copied."""
        return self.place(on_host(given))

    def give(self, outputs: Any) -> Any:
        """Outputs in the model's structure, if known: tensors, which enqueued work may still write, or arrays."""
        return one_or_all(self.collect(outputs))

    @property
    def reuses_outputs(self) -> bool:
        """Whether the next call writes to what ``give`` gave."""
        return False

    def bind(self, feed: Any) -> None:  # noqa: B027 - right for runners that read whatever they are fed with
        """Makes ready for calls with ``feed``: what the first of them would otherwise do. Never timed."""

    def read_by(self, feed: Any) -> list[Any]:
        """The tensors on the device that the next call with ``feed`` will read; its own, if nothing else is bound."""
        return list(flatten(feed))

    def device_memory(self) -> tuple[int, str] | None:
        """Peak device memory by the library's own account and what that counts; ``None`` if it does not tell."""
        return None

    def memory_parts(self) -> dict[str, int]:
        """What the library tells of its device memory: bytes of ``weights``, ``activations``, ``workspace``."""
        return {}


class Backend(ABC):
    """A way of running models. Subclasses are found through the entry-point group ``inferlens.backends``."""

    name: ClassVar[str]
    options: ClassVar[type[Struct]]
    summary: ClassVar[str]
    short: ClassVar[str] = ""  # its name where many stand side by side, if there is a shorter one
    variants: ClassVar[tuple[str, ...]] = ("",)
    slow_variants: ClassVar[dict[str, float]] = {}  # how many times longer a build of theirs takes than of the others
    variant_helps: ClassVar[dict[str, tuple[str, ...]]] = {}  # as ``Knob.helps``, of variants beside the first one
    # By the format of a model, or of its origin: variant and options that compute its reference on the CPU.
    reference_for: ClassVar[dict[Format, tuple[str, dict[str, Option]]]] = {}
    distributions: ClassVar[tuple[str, ...]] = ()  # installed packages whose versions belong in a record
    knobs: ClassVar[tuple[Knob, ...]] = ()  # what a tuning tries
    recommended: ClassVar[tuple[Recommendation, ...]] = ()  # what a race runs by default; empty: the default variant
    left_out_on: ClassVar[tuple[str, ...]] = ()  # devices on which a race of modules does not run it unless it is named
    not_run_by_us: ClassVar[tuple[str, ...]] = ()  # variants that are written by their documents alone

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What works on this machine. May import the backend's library; never raises for a missing one."""

    @abstractmethod
    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        """Make ``model`` ready on the host, without the device. Raises Unsupported if it cannot be run this way."""

    def tolerance(self, case: Case) -> float:
        """Largest relative L2 error against the fp32 reference that counts as right for this case."""
        return tolerance_of(case, tf32=getattr(self.parse_options(case), "tf32", False))

    def times_kernels(self, case: Case, *, built: bool = False) -> bool:  # noqa: ARG002
        """Return whether a process times kernels on the device to choose among them, until its first call is over.

        No other process uses the device meanwhile. ``built`` tells that the cache has what a build of the case makes.
        """
        return False

    def exports(self, case: Case) -> str:  # noqa: ARG002
        """The precision of the ONNX graph that a case is prepared from, if that depends on no option; else empty."""
        return ""

    @classmethod
    def parse_options(cls, case: Case) -> Any:
        """Return ``case.options`` as ``cls.options``. Raises InferlensError for unknown options and wrong types."""
        known = cls.options.__struct_fields__
        for name in case.options:
            if name not in known:
                raise InferlensError(
                    f"Backend '{cls.name}' has no option '{name}'.",
                    expected=f"one of {', '.join(sorted(known)) or 'none'}",
                    hint=suggestion(name, {*known, *FLAGS}, spelled=FLAGS) or f"inferlens backends {cls.name}",
                )
        try:
            return msgspec.convert(case.options, cls.options, strict=False)
        except msgspec.ValidationError as error:
            name = str(error).rpartition("$.")[2].rstrip("`")
            hints = get_type_hints(cls.options, include_extras=True)
            raise InferlensError(
                f"The option {cls.name}.{name} does not take '{case.options[name]}'.", expected=values_of(hints[name])
            ) from error

    @classmethod
    def effective(cls, case: Case) -> Case:
        """The plainest case that is run as ``case`` is: without options that are at their defaults.

        Overridden where a variant does what another one does. Nothing is imported for it. Raises InferlensError for
        what :meth:`parse_options` refuses.
        """
        given, default = cls.parse_options(case), cls.options()
        names = [name for name in sorted(case.options) if getattr(given, name) != getattr(default, name)]
        return msgspec.structs.replace(case, options={name: getattr(given, name) for name in names})

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:  # noqa: ARG003
        """How ``case`` gets what ``option`` does at ``value``: here by the option of that name, where there is one.

        Overridden where a variant does it, or an option does nothing for some cases. Asked when records are looked at,
        with the facts of one, so nothing is imported for it. ``option`` is named as most backends name it.
        """
        if option not in cls.options.__struct_fields__ or (option in ON_CUDA and case.device != "cuda"):
            return Hint()
        if getattr(cls.parse_options(case), option) == value:
            return Hint(asked=True)
        return Hint(f"{cls.name}.{option}={str(value).lower() if isinstance(value, bool) else value}")


def tolerance_of(case: Case, *, tf32: bool) -> float:
    """As :meth:`Backend.tolerance`, for a case that may use TF32."""
    return TOLERANCES["tf32" if tf32 and case.precision == "fp32" and case.device == "cuda" else case.precision]


def values_of(hint: Any) -> str:
    """The type of an option as a user writes its values: ``true|false``, ``all|basic``, ``whole number, 0 or more``."""
    kind, meta = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if kind is bool:
        return "true|false"
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    names = {int: "whole number", float: "number", str: "text", type(None): ""}
    text = names[kind] if kind in names else " or ".join(filter(None, map(values_of, get_args(kind))))
    least, most = getattr(meta, "ge", None), getattr(meta, "le", None)
    if least is None:
        return text
    return f"{text}, {least} or more" if most is None else f"{text} from {least} to {most}"


# Relative L2 error against fp32 that counts as right. Unit roundoffs: 6e-8 (fp32), 5e-4 (fp16, TF32), 4e-3 (bf16);
# the factor above them leaves room for the depth of the network and another order of summation. Quantized models are
# compared with themselves, computed in fp32 between their own roundings: what differs is which way a value is rounded.
TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2, "bf16": 1e-1, "fp8": 1e-1, "int8": 1e-1}


# What some backends and runners can do beside running a model: asked for by type, never by a backend's name.


class Saver(ABC):
    """An ability of a backend: it writes prepared models to files. ``saves`` has their suffixes, each with its kind."""

    saves: ClassVar[dict[str, str]]

    @abstractmethod
    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes ``model``, prepared for ``case``, to a new file whose suffix is one of ``saves``, or refuses."""


class Quantizer(ABC):
    """An ability of a backend: it writes what it quantized to files that it runs, with the suffix ``quantized_as``.

    What it can write where it cannot run it is in ``Capabilities.writes``.
    """

    quantized_as: ClassVar[str]

    @abstractmethod
    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        """Writes ``model``, quantized as ``case`` says, to ``path``; gives the ONNX graph in fp32 that it made it of.

        The fact ``quantized_share`` is told, where it can be counted.
        """


class Builder(ABC):
    """An ability of a backend: it builds engines, several times if need be, and says what each build took and chose."""

    @abstractmethod
    def build(self, model: Model, case: Case, preparation: Preparation, path: Path, builds: int = 1) -> BuildReport:
        """Builds ``builds`` engines and writes the last to the new file ``path``, or refuses."""


class Partitioner(ABC):
    """An ability of a backend: it says beforehand which operators its compiler would take, and why not the others."""

    @abstractmethod
    def partition(self, model: Model, case: Case, preparation: Preparation) -> Partition:
        """Which operators would be compiled; compiles nothing. Refuses if that cannot be told beforehand."""


class LayerProfiler(ABC):
    """An ability of a runner: it can time its layers, if it was prepared for the level ``layer``."""

    @abstractmethod
    def profile_layers(self, feed: Any, runs: int) -> Layers:
        """Calls ``infer(feed)`` ``runs`` times, one after the other, and times the layers of every call.

        The runner is entered and warm. What is done between the layers is O(1) for each of them; what they are called
        and where they come from is worked out afterwards. Raises Unsupported if the library does not tell here, with
        what would help.
        """


class Launched(Struct, frozen=True, kw_only=True):
    """Something that a GPU ran in one run, as a trace tells of it: everything but its times."""

    name: str
    kind: str = "kernel"  # ``kernel``, ``copy`` or ``fill``
    operator: str = ""  # the innermost operator around its launch, such as ``aten::add``; empty where there was none
    around: tuple[str, ...] = ()  # names of operators and ``record_function`` scopes around its launch, outermost first
    grid: tuple[int, ...] = ()  # blocks of a grid; ``block``: threads of a block; empty for what is no kernel
    block: tuple[int, ...] = ()
    stream: int | None = None


class KernelOrigin(Struct, frozen=True):
    """Where a kernel came from: the layer, as the backend names it, and the modules; empty where that is not known."""

    layer: str = ""
    modules: tuple[str, ...] = ()


class Origins(Struct, frozen=True):
    """One origin for each kernel of a run, in their order; and what is not known of them, and why."""

    of: tuple[KernelOrigin, ...]
    absent: dict[str, str] = {}


class KernelOrigins(ABC):
    """An ability of a runner: it can tell which layers and modules the kernels of a run came from."""

    def scopes(self) -> AbstractContextManager[Any]:
        """Entered around the traced runs: what has to be there for kernels to be told apart. Here: nothing."""
        return nullcontext()

    @abstractmethod
    def origins(self, launched: Sequence[Launched]) -> Origins:
        """Where the kernels of one run came from: all that the GPU ran in it, in the order of their launches.

        Asked after the traced runs, while the runner is entered, and once for runs that are alike.
        """


class Deployer(ABC):
    """An ability of a backend: what it prepares runs without this library too, from a file and by a short script."""

    script_packages: ClassVar[tuple[str, ...]] = ()  # distributions that every script may need

    def packages(self, case: Case) -> tuple[str, ...]:  # noqa: ARG002 - here all cases need the same
        """Distributions that the script may need; those of them that a record names are asked for, in its versions."""
        return self.script_packages

    @abstractmethod
    def deployed_as(self, case: Case) -> str:
        """The suffix of the file that a script for ``case`` loads; refuses a case for which there is none."""

    @abstractmethod
    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes that file, of ``model`` as ``case`` runs it, to the new ``path``."""

    @abstractmethod
    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        """A program in Python that loads ``file`` beside it, runs it on random inputs and prints the latency.

        Its function ``run`` takes the model's inputs in order and returns its outputs.
        """
