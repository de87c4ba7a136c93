"""The input of a measurement: a :class:`Case` and the :class:`Budget` of measuring it.

Both are data, frozen, and import no framework. A case is a model x backend x variant x precision x batch x device x
threads x options x interpreter; two cases that differ in any of these have different folders and are never mixed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple, get_args

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, Unsupported, check_choice, one_of, suggestion
from inferlens.spec.options import DURATION, SHARE, OptionSpec

PRECISIONS = ("fp32", "fp16", "bf16")
HALF = PRECISIONS[1:]
QUANTIZED = ("fp8", "int8")  # of models that are quantized already, or are to be, with data to calibrate with
DEVICES = ("cpu", "cuda")
IO = ("device", "host")
MODES = ("latency", "throughput", "both")
MEASURING = ("bench", "tune", "profile", "ab", "load")  # the commands that measure
MAX_TIME = 2.0  # seconds of a series; the confidence comes from several processes
DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip

Option = bool | int | float | str
NUMBER = r"[0-9]{1,9}"  # longer ones are no sizes, and int() refuses very long ones with words of its own
SIZE = rf"{NUMBER}(?:\.\.{NUMBER})?"
SHAPE = rf"{SIZE}(?:x{SIZE})*"
# A name may contain any character, as TensorFlow's "x:0" does. It ends at the first "=" that a shape follows, but never
# at the "=" of "...:opt=2".
_TENSOR = re.compile(
    rf"(?P<name>.+?)((?<!:opt)=|=(?![0-9x]*$))(?P<shape>scalar|{SHAPE})(:(?P<dtype>[a-z]\w*))?"
    rf"(:(?P<low>-?[0-9]{{1,18}})\.\.(?P<high>-?[0-9]{{1,18}}))?(:opt=(?P<best>{NUMBER}(x{NUMBER})*))?",
    re.DOTALL,
)
_SHAPES = re.compile(rf"(?P<name>.+?)=(?P<shapes>{SHAPE}(?:,{SHAPE})+)(?P<rest>(?::.*)?)", re.DOTALL)
_FORM = (
    "NAME=1x3x224x224:float32, NAME=1x128:int64:0..1000 for integers in a range, NAME=1x32,1x128:int64 for "
    "several shapes, NAME=1..16x3x224x224 for a range of sizes"
)
Shape = tuple[int, ...]


class TensorSpec(Struct, frozen=True, repr_omit_defaults=True):
    """Name, shape and type of one input tensor.

    ``shape`` is the measured one. ``low`` and ``high`` bound the values of integers (``high`` exclusive). Where sizes
    have a range, ``least``, ``best`` and ``most`` are the shapes that a model is prepared for. An empty ``best`` means
    the measured shape. ``names`` are the names of the dimensions, with an empty text for a dimension without a name.
    """

    name: str
    shape: Shape
    dtype: str = "float32"
    low: int | None = None
    high: int | None = None
    least: Shape = ()
    best: Shape = ()
    most: Shape = ()
    names: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> TensorSpec:
        """Return the spec of ``NAME=1x3x224x224:float32``, ``ids=1x128:int64:0..30522`` or ``x=1..16x3x224x224:opt=2``.

        ``opt`` gives the sizes of the dimensions that have a range, or of all. Without it, a size with a range is
        measured at its upper end unless the batch sets another size. Raises InferlensError if the text has another form
        or names an unknown type.
        """
        refusal = InferlensError(f"'{text[:100]}' does not describe an input.", expected=_FORM)
        match = _TENSOR.fullmatch(text.strip())
        if not match:
            raise refusal
        dtype = match["dtype"] or "float32"
        check_choice("type of inputs", dtype, DTYPES)
        ends = [] if match["shape"] == "scalar" else [size.split("..") for size in match["shape"].split("x")]
        least, most = tuple(int(end[0]) for end in ends), tuple(int(end[-1]) for end in ends)
        low, high = (int(match[key]) if match[key] else None for key in ("low", "high"))
        empty = low is not None and high is not None and low >= high
        if empty or not all(0 < start <= end for start, end in zip(least, most, strict=True)):
            raise refusal
        if least == most and match["best"] is None:
            return TensorSpec(match["name"], least, dtype, low, high)
        best = _best(match["best"], least, most) if match["best"] else ()
        if match["best"] and not best:
            raise refusal
        return TensorSpec(match["name"], best or most, dtype, low, high, least, best, most)

    @staticmethod
    def parse_list(text: str) -> list[TensorSpec]:
        """Return the specs of a text such as ``ids=1x32,1x128:int64``, or the single spec that :meth:`parse` reads."""
        if match := _SHAPES.fullmatch(text.strip()):
            return [TensorSpec.parse(f"{match['name']}={shape}{match['rest']}") for shape in match["shapes"].split(",")]
        return [TensorSpec.parse(text)]

    @staticmethod
    def parse_all(texts: Iterable[str]) -> tuple[tuple[TensorSpec, ...], ...]:
        """Return the sets of inputs that texts describe: the first shapes of all, then the second ones, and so on.

        An input of a single shape has it in every set. Raises InferlensError if an input is given twice, or inputs have
        different numbers of shapes.
        """
        inputs = [TensorSpec.parse_list(text) for text in texts]
        names = [specs[0].name for specs in inputs]
        for name in names:
            if names.count(name) > 1:
                message = f"The input '{name}' is given twice."
                raise InferlensError(message, expected="one --input for each, its shapes with commas")
        counts = {len(specs) for specs in inputs} - {1}
        if len(counts) > 1:
            expected = "as many of each, for shapes that belong together, or one"
            raise InferlensError(f"Inputs have {' and '.join(map(str, sorted(counts)))} shapes.", expected=expected)
        count = max(counts, default=1)
        return tuple(zip(*(specs * (count // len(specs)) for specs in inputs), strict=True)) or ((),)

    @property
    def dynamic(self) -> bool:
        """Return whether the model is prepared for more than the measured shape."""
        return bool(self.most)

    @property
    def profile(self) -> tuple[Shape, Shape, Shape]:
        """Return the smallest shape, the one to be fastest at, and the largest."""
        if not self.most:
            return self.shape, self.shape, self.shape
        return self.least, self.best or self.shape, self.most

    @property
    def text(self) -> str:
        """Return the text that :meth:`parse` reads, with its ranges of sizes."""
        least, _, most = self.profile
        sizes = "x".join(f"{low}" if low == high else f"{low}..{high}" for low, high in zip(least, most, strict=True))
        bounds = "" if self.low is None else f":{self.low}..{self.high}"
        best = f":opt={'x'.join(map(str, self.best))}" if self.best else ""
        return f"{self.name}={sizes or 'scalar'}:{self.dtype}{bounds}{best}"

    @property
    def brief(self) -> str:
        """Return name, shape and type, without the bounds of values."""
        return str(msgspec.structs.replace(self, low=None))

    def __str__(self) -> str:
        return msgspec.structs.replace(self, least=(), best=(), most=()).text


def _best(sizes: str, least: Shape, most: Shape) -> Shape:
    """Return the shape that ``opt=`` sets by sizes of all dimensions, or of those with a range; empty if none fits."""
    given = [int(size) for size in sizes.split("x")]
    free = sum(low < high for low, high in zip(least, most, strict=True))
    if len(given) == free:
        free_sizes = iter(given)
        given = [next(free_sizes) if low < high else low for low, high in zip(least, most, strict=True)]
    if not free or len(given) != len(least):
        return ()
    in_range = all(low <= size <= high for low, size, high in zip(least, given, most, strict=True))
    return tuple(given) if in_range else ()


def with_batch(specs: tuple[TensorSpec, ...], batch: int | None) -> tuple[TensorSpec, ...]:
    """Return ``specs`` at the batch size; ``None`` changes nothing.

    The batch is the first dimension of the first input, and of every input that shares its size or its range of sizes.
    Raises Unsupported if an input's range of sizes does not contain the batch.
    """
    if batch is None or not specs:
        return specs
    first, batched = specs[0], []
    if not first.shape:
        if batch == 1:
            return specs
        raise Unsupported(f"The input '{first.name}' is a single number, without a batch.", expected="batch 1")
    for spec in specs:
        bounds = spec.most and (spec.least[0], spec.most[0])
        same_range = bool(bounds and first.most) and bounds == (first.least[0], first.most[0])
        shares = bool(spec.shape) and (spec.shape[0] == first.shape[0] or same_range)
        if shares and bounds and not bounds[0] <= batch <= bounds[1]:
            message = f"Batch {batch} is outside of the range of the input '{spec.name}'."
            raise Unsupported(message, expected=f"{bounds[0]} to {bounds[1]}")
        batched.append(msgspec.structs.replace(spec, shape=(batch, *spec.shape[1:])) if shares else spec)
    return tuple(batched)


def sizes_of(specs: Sequence[TensorSpec]) -> dict[str, int]:
    """Return the measured sizes of named dimensions; without the batch, and without sums of other names."""
    batch = specs[0].names[:1] if specs else ()
    pairs = (pair for spec in specs for pair in zip(spec.names, spec.shape, strict=False))
    return {name: size for name, size in pairs if name and name not in batch and "+" not in name}


class Axis(NamedTuple):
    """The declaration of a case's field as an axis: a plan has values for it, in its field of the same name.

    Attributes:
        values: the valid words; empty: whole numbers, or true and false for a ``flag``.
        word: the form of a value in a label, such as ``depth {}``; the default value has no word.
        short: its form in the name of a folder; empty: the word without spaces.
        text: whether its values are any texts, such as paths, which are written as ``NAME=VALUE`` and in no folder.
        call: whether it describes how a call is executed, and not the work of the call.
    """

    values: tuple[str, ...] = ()
    default: Any = None
    word: str = "{}"
    short: str = ""
    flag: bool = False
    text: bool = False
    call: bool = False
    name: str = ""

    def words(self, case: Case, *, short: bool = False) -> list[str]:
        """Return the words for a case's value; none for the default."""
        value = getattr(case, self.name)
        if short and self.text:
            return []
        text = ((short and self.short) or self.word).format(value)
        return [] if value == self.default else [text.removesuffix("s") if value == 1 else text]

    def read(self, text: str) -> Any:
        """Return the value that a word of a label stands for; ``None`` if the word is not of this axis."""
        if self.flag:
            return True if text in (self.name, self.word) else None
        if self.text:
            return None
        match = re.fullmatch(self.word.format("(.+)") + "?" * self.word.endswith("s"), text)
        if match and (match[1] in self.values or (not self.values and match[1].isdecimal())):
            return match[1]
        return None


class Case(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A model, its inputs, and the way to run it: the unit of measurement.

    Attributes:
        model: resolved name, such as ``torchvision:resnet18``.
        backend, variant: such as ``onnxruntime`` and ``cpu``; the variant is empty where a backend has only one.
        precision: ``fp32``, ``fp16`` or ``bf16``; ``fp8`` or ``int8`` of a model that is quantized, already or here.
        batch: first dimension of the inputs; ``None`` is the model's own.
        threads: CPU threads for the work inside one call; ``None``: the default of all ways (``default_threads``).
        options: the requested backend options; others have the backend's defaults.
        inputs: the requested inputs; empty for the model's own.
        weights: name or file of weights; ``None`` is random from ``seed``.
        calibration: data for the inputs and for calibrating quantized tensors. ``random`` draws both from ``seed``,
            so that the outputs have no meaning.
        keep: layers that are not quantized, as :mod:`inferlens.spec.case` writes them.
        io: the memory of a call's inputs and outputs: ``device``, or ``host``, with copies as part of the call.
        cold: whether the device's cache is flushed before every latency sample.
        rotate: whether inputs rotate through a set that is larger than the device's cache.
        depth: calls in flight at a time when throughput is measured; ``None``: as many as the device's queue takes.
        checkout: the folder that the model's code or file is taken from; empty is the working directory.
        python: the interpreter of another virtual environment; empty is the interpreter of the command.
    """

    model: str
    backend: str
    variant: str = ""
    precision: Annotated[str, Axis((*PRECISIONS, *QUANTIZED))] = "fp32"
    batch: Annotated[int | None, Axis(word="batch {}", short="b{}")] = 1
    device: Annotated[str, Axis(DEVICES)] = "cpu"
    threads: Annotated[int | None, Axis(word="{} threads", short="t{}")] = None
    options: dict[str, Option] = {}
    inputs: tuple[TensorSpec, ...] = ()
    weights: str | None = None
    calibration: str = ""
    keep: str = ""
    seed: int = 0
    io: Annotated[str, Axis(IO, default="device", word="{} io", short="{}io", call=True)] = "device"
    cold: Annotated[bool, Axis(default=False, word="cold", flag=True, call=True)] = False
    rotate: Annotated[bool, Axis(default=False, word="rotating", flag=True, call=True)] = False
    depth: Annotated[int | None, Axis(word="depth {}", short="depth{}", call=True)] = None
    checkout: str = ""
    python: Annotated[str, Axis(default="", word="python={}", text=True)] = ""

    @property
    def work(self) -> Hashable:
        """Return the key of the work. Cases with the same key do the same work and race against one another."""
        return self.model, self.batch, self.inputs, self.io, self.cold, self.rotate

    @property
    def sizes(self) -> dict[str, int]:
        """Return the requested sizes by the names of dimensions."""
        return sizes_of(self.inputs)

    @property
    def sizes_label(self) -> str:
        """Return a text such as ``batch 8, sequence_length 32``; empty without sizes."""
        sizes = {"batch": self.batch, **self.sizes}
        return ", ".join(f"{name} {size}" for name, size in sizes.items() if size)

    @property
    def one_at_a_time(self) -> bool:
        """Return whether something happens between any two calls. Throughput then has no meaning."""
        return self.cold or self.rotate

    @property
    def backend_label(self) -> str:
        """Return ``onnxruntime:cpu``, or ``pytorch`` where there is no variant."""
        return f"{self.backend}:{self.variant}" if self.variant else self.backend

    @property
    def option_words(self) -> dict[str, str]:
        """Return the options as ``name=value`` words, by name."""
        values = {
            name: str(value).lower() if isinstance(value, bool) else value for name, value in self.options.items()
        }
        return {name: f"{name}={value}" for name, value in sorted(values.items())}

    @property
    def options_label(self) -> str:
        """Return options, kept layers and the checkout as ``name=value`` words, sorted by name."""
        others = {name: f"{name}={text}" for name in ("keep", "checkout") if (text := getattr(self, name))}
        return " ".join(word for _, word in sorted({**self.option_words, **others}.items()))

    @property
    def label(self) -> str:
        """Return the case in one line, without its model."""
        return " ".join(self.words())

    def words(self, *unsaid: str) -> list[str]:
        """Return the words of the label, without the axes and sizes in ``unsaid``."""
        axis_words = (word for axis in AXES if axis.name not in unsaid for word in axis.words(self))
        sizes = (f"{name}={size}" for name, size in self.sizes.items() if name not in unsaid)
        return [word for word in (self.backend_label, *axis_words, *sizes, self.options_label) if word]

    def identity_words(self, *unsaid: str) -> dict[str, str]:
        """Return the words of a case by field, with its inputs, weights and seed, without the axes in ``unsaid``."""
        axes = {axis.name: " ".join(axis.words(self)) for axis in AXES if axis.name not in unsaid}
        names = ("weights", "seed", "keep", "checkout")
        hidden = {name: f"{name}={value}" for name in names if (value := getattr(self, name))}
        options = {f"{self.backend}.{name}": word for name, word in self.option_words.items()}
        words = {"backend": self.backend_label, **axes, "inputs": ", ".join(map(str, self.inputs)), **hidden, **options}
        return {name: word for name, word in words.items() if word}

    @property
    def way(self) -> str:
        """Return the label without batch, sizes and device, and without the precision if it is fp32."""
        omitted = ["batch", "device", *self.sizes, *(["precision"] if self.precision == "fp32" else [])]
        return " ".join(self.words(*omitted))

    @property
    def runs_own_code(self) -> bool:
        """Return whether the model is code of the user, which a revision of the checkout identifies."""
        return bool(self.checkout) or self.model.partition(":")[0] in ("factory", "hub", "live")

    @property
    def call_mode(self) -> list[str]:
        """Return how the case is called, in words; none for plain calls on the device with warm caches."""
        return [word for axis in CALL_MODE for word in axis.words(self)]

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that two cases share only if they are equal."""
        unnamed = tuple(msgspec.structs.replace(spec, names=()) for spec in self.inputs)
        encoded = msgspec.json.encode(msgspec.structs.replace(self, inputs=unnamed), order="deterministic")
        for later in (b',"python":""', b',"names":[]'):  # records from before these fields keep their digests
            encoded = encoded.replace(later, b"")
        return hashlib.sha256(encoded).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """Return the name of the case's folder: readable, safe in a path, and unique among the cases of a model."""
        words = [word for axis in AXES for word in axis.words(self, short=True)]
        name = "-".join(word for word in (self.backend, self.variant, *words, environment_of(self.python)) if word)
        hidden = (
            self.options, self.inputs, self.weights, self.calibration, self.keep, self.seed, self.checkout, self.python,
        )  # fmt: skip
        if any(hidden):
            options = re.sub(r"[^\w.=-]+", "_", self.options_label.replace(" ", "-"))
            name += f"-{options}" if options and len(options) <= 60 else ""
            name += f"-{self.digest[:6]}"
        return re.sub(r"[^\w.=-]+", "_", name)


AXES = tuple(
    axis._replace(name=field.name)
    for field in msgspec.structs.fields(Case)
    for axis in get_args(field.type)
    if isinstance(axis, Axis)
)
CALL_MODE = tuple(axis for axis in AXES if axis.call)
FLAGS = {axis.name: f"--{axis.name}" for axis in AXES}  # the options of the command line


def environment_of(python: str) -> str:
    """Return the name of an interpreter's environment: its folder, such as ``old`` of ``../old/bin/python``.

    A generic name such as ``.venv`` gets the folder above, too.
    """
    parts = [part for part in PurePath(python).parts if part not in ("/", "..")]
    folders = parts[:-2] if parts[-2:-1] == ["bin"] else parts[-1:]
    generic = bool(folders) and folders[-1].lstrip(".") in ("venv", "env")
    return "/".join(folders[-2 if generic else -1 :])


def shown_together(cases: Sequence[Case]) -> list[Case]:
    """Return the cases with the names of their environments in place of interpreters, if the names differ."""
    names = {case.python: environment_of(case.python) for case in cases}
    if len({*names.values()}) < len(names):
        return list(cases)
    return [msgspec.structs.replace(case, python=names[case.python]) for case in cases]


def case_names(cases: Sequence[Case], *unsaid: str) -> list[str]:
    """Return the labels of cases without the axes ``unsaid``, and without a batch, device and sizes that all share."""
    values = [{"batch": case.batch, "device": case.device, **case.sizes} for case in cases]
    shared = [name for name in values[0] if len({value.get(name) for value in values}) == 1] if values else []
    return [" ".join(case.words(*unsaid, *shared)) for case in shown_together(cases)]


def split_shared_words(cases: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the words, by field, that all cases share, and the other words of each case as its label."""
    shared = {name: word for name, word in cases[0].items() if all(words.get(name) == word for words in cases)}
    return shared, [" ".join(word for name, word in words.items() if name not in shared) for words in cases]


class Budget(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The metrics to measure and the number of samples; not part of the case itself.

    Attributes:
        warmup: ``None``: until the calls are steady, for ``warmup_seconds`` at least.
        seconds: ``None``: until the 95 % interval of the median is ``half_width`` of it to either side.
        max_time: ``None``: :data:`MAX_TIME`, but for series whose end is given by ``iterations`` or ``seconds``.
        timeout: seconds after which the case's process is killed, its preparation included.
        level: the confidence of answers.
        within: the time limit in seconds of the rounds that compare cases.
    """

    # fmt: off
    mode: Annotated[str, OptionSpec("What to measure: latency, throughput or both.", ("bench",), values=MODES)] = "both"
    warmup: Annotated[int | None, OptionSpec(
        "Calls before the first sample.", ("bench", "profile", "ab"), least=0,
        default="until latencies are steady, 1 s at least")] = None
    iterations: Annotated[int | None, OptionSpec(
        "Latency samples of a process.", ("bench", "profile", "ab"), default="as many as --half-width needs")] = None
    warmup_seconds: float = 1.0
    seconds: Annotated[float | None, OptionSpec(
        "Time for the latency samples of a process.", ("bench", "profile", "ab"), DURATION,
        default="as long as --half-width needs")] = None
    half_width: Annotated[float, OptionSpec(
        "End a series when the 95 % interval of its median reaches no further to either side.",
        ("bench",), SHARE)] = 0.01
    max_time: Annotated[float | None, OptionSpec(
        "Time limit of each series of samples and of the warm-up, which lasts 1 s at least.",
        ("bench", "profile", "ab"), DURATION, default=MAX_TIME, positive=True)] = None
    timeout: Annotated[float, OptionSpec(
        "Time limit of each process, such as 90s or 15m.", MEASURING, DURATION, positive=True)] = 900.0
    threshold: Annotated[float, OptionSpec(
        "The smallest difference that matters. Ways that are closer are equally fast.", ("bench",), SHARE)] = 0.02
    # fmt: on
    level: float = 0.95
    within: float | None = None

    @property
    def explicit(self) -> bool:
        """Return whether the user set the number of samples or their time. All samples count then."""
        return self.iterations is not None or self.seconds is not None


def bare(model: str) -> str:
    """Return a model as people type it. The prefix of torchvision, the default source, is removed."""
    return model.removeprefix("torchvision:")


def short_name(model: str) -> str:
    """Return the name of a model without its source; of a factory with its file, such as ``enc.build``."""
    source, _, name = model.partition(":")
    if source != "factory":
        return model.rpartition(":")[2]
    module, _, function = name.partition(":")
    path = PurePath(module.removesuffix(".py"))
    folders = () if path.is_absolute() or ".." in path.parts else path.parts[:-1]
    return ".".join([*folders, path.name, function])


def split_label(text: str, backends: Sequence[str]) -> tuple[str, str | None]:
    """Return ``("onnxruntime", "cpu")`` from ``onnxruntime:cpu``; the variant is ``None`` where there is none."""
    name, colon, variant = text.partition(":")
    check_choice("backend", name, backends)
    return name, variant if colon else None


# Layers that keep their precision in a quantized model, written as ``fp32:head,features.0``. A layer is a module's path
# in PyTorch, with all modules in it, or the name of a node in ONNX. A precision holds for all names up to the next one.

EXPORTED = ("node_", "/")  # how the names of nodes begin that PyTorch's exporters write
_KEEP_FORM = "PRECISION:LAYER,LAYER, such as fp32:head,features.0"


def keep_of(texts: Iterable[str]) -> str:
    """Return kept layers as in :attr:`Case.keep`: sorted, by precision, without duplicates. Refuse other forms."""
    by_precision: dict[str, set[str]] = {}
    for text in map(str, texts):
        for layer, precision in _kept(text):
            if precision not in PRECISIONS or not layer or any(char.isspace() for char in layer):
                raise InferlensError(f"'{text[:100]}' does not say which layers to keep.", expected=_KEEP_FORM)
            by_precision.setdefault(precision, set()).add(layer)
    layers = [layer for names in by_precision.values() for layer in names]
    for layer in layers:
        if layers.count(layer) > 1:
            raise InferlensError(f"The layer '{layer}' is to be kept in two precisions.", expected="one for each layer")
    kept = [(precision, sorted(by_precision[precision])) for precision in PRECISIONS if precision in by_precision]
    return ",".join(f"{precision}:{','.join(names)}" for precision, names in kept)


def kept_layers(case: Case) -> dict[str, str]:
    """Return the precision of every layer that a case keeps, by the layer's name."""
    return dict(_kept(case.keep))


def _kept(text: str) -> Iterator[tuple[str, str]]:
    precision = ""
    for word in filter(None, (part.strip() for part in text.split(","))):
        head, colon, layer = word.partition(":")
        if colon and head in (*PRECISIONS, *QUANTIZED):
            precision, word = head, layer
        yield word, precision


def keep_refusal(case: Case, keeps: tuple[str, ...], precision: str) -> Unsupported | None:
    """Return why a case cannot keep its layers in one of the precisions ``keeps``; ``None`` if it can, or keeps none.

    ``precision`` is that of the model before it is quantized.
    """
    if case.keep and precision in QUANTIZED:
        return Unsupported("The model is quantized already, so no layer can stay as it was.", hint="without --keep")
    refused = sorted({*kept_layers(case).values()} - {*keeps})
    if not refused:
        return None
    if not keeps:
        return Unsupported(f"{case.backend_label} quantizes whole models on {case.device}.", hint="without --keep")
    message = f"{case.backend_label} keeps no layers in {refused[0]} on {case.device}."
    return Unsupported(message, expected=one_of(keeps), hint=f"--keep {keeps[0]}:LAYER")


def check_kept(case: Case, layers: Collection[str]) -> None:
    """Raise Unsupported if a layer to keep is not among ``layers``."""
    for layer in kept_layers(case):
        if layer not in layers:
            raise unknown_layer(layer, layers)


def unknown_layer(name: str, layers: Iterable[str]) -> Unsupported:
    """Return the error for an unknown layer, with the most similar names."""
    layers = [layer for layer in layers if layer]
    hint = suggestion(name, layers) or f"a name such as {layers[0]}" if layers else ""
    return Unsupported(f"There is no layer '{name}' to keep.", expected="names as inferlens profile shows", hint=hint)
