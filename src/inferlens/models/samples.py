"""Real data to feed a model with: for calibration, for outputs that mean something, and for accuracy.

A data source is one of these:
- a folder of images, which are prepared in the same way as by the model's library,
- an ``.npz`` file with an array per input, by name,
- a Hugging Face dataset that was saved to a folder, with a column per input,
- ``package.module:factory``, a function that returns an iterable,
- ``random``, which is noise and only serves to measure speed.

A sample has no batch dimension. It has a label if images are in a folder per class, if there is an array or a column
``label``, or if the factory gives pairs of a sample and a whole number.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.errors import InferlensError, library
from inferlens.models.factories import import_code
from inferlens.models.inputs import kind_of, make_inputs
from inferlens.models.model import Array, Model
from inferlens.spec.case import Case, TensorSpec

RANDOM = "random"
LABEL = "label"
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
RANDOM_SAMPLES = 8  # more noise would not improve ranges, and takes minutes at a large batch
MOST = 512  # samples for calibration
FORMS = "a folder of images, an .npz file, a folder of a saved Hugging Face dataset, package.module:factory, or random"
Prepare = Callable[[Any], Array]  # converts an image of PIL to the array that the model takes


@dataclass(frozen=True)
class Sample:
    """Arrays by input name, without the batch dimension, and the class of the sample, if it has a label."""

    inputs: Mapping[str, Array]
    label: int | None = None


@dataclass(frozen=True)
class Samples:
    """The samples of a data source, in a fixed order; ``specs`` are the model's inputs with their batch dimension."""

    data: str
    specs: tuple[TensorSpec, ...]
    _files: Sequence[Path]
    _read: Callable[[], Iterator[Sample]]

    @cached_property
    def digest(self) -> str:
        """Return a hash of the content in hexadecimal digits, or the name of the function."""
        digest = hashlib.sha256()
        for file in self._files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:16] if self._files else self.data

    def __iter__(self) -> Iterator[Sample]:
        count = 0
        for sample in self._read():
            count += 1
            yield Sample(self._checked(sample.inputs), sample.label)
        if not count:
            raise InferlensError(f"There are no samples in '{self.data}'.", expected=FORMS)

    def feeds(self, most: int = MOST) -> Iterator[dict[str, Array]]:
        """Yield the first ``most`` samples as feeds of the model's batch size."""
        return (feed for feed, _ in self.batches(max(most, self.specs[0].shape[0])))

    def batches(self, most: int | None = None) -> Iterator[tuple[dict[str, Array], list[Sample]]]:
        """Yield all samples, or the first ``most``, as feeds of the model's batch size, with the samples in each feed.

        A last feed that is too short repeats its samples, which are listed once.
        """
        size = self.specs[0].shape[0]
        samples = itertools.islice(self, most)
        while chunk := list(itertools.islice(samples, size)):
            filled = list(itertools.islice(itertools.cycle(chunk), size))
            feed = {spec.name: np.stack([sample.inputs[spec.name] for sample in filled]) for spec in self.specs}
            yield feed, chunk

    def _checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs in the model's types. Raises InferlensError if they do not fit."""
        arrays = {}
        for spec in self.specs:
            if spec.name not in inputs:
                raise InferlensError(
                    f"The samples in '{self.data}' have no '{spec.name}'.",
                    expected=f"arrays named {', '.join(spec.name for spec in self.specs)}",
                )
            array = np.asarray(inputs[spec.name])
            if array.shape != spec.shape[1:]:
                raise InferlensError(
                    f"A sample in '{self.data}' has the shape {'x'.join(map(str, array.shape)) or 'scalar'} "
                    f"for the input '{spec.name}'.",
                    expected="x".join(map(str, spec.shape[1:])) or "scalar",
                )
            arrays[spec.name] = array.astype(kind_of(spec), copy=False)
            if not np.isfinite(arrays[spec.name]).all():
                raise InferlensError(f"A sample in '{self.data}' has values for '{spec.name}' that are not finite.")
        return arrays


def read_samples(data: str, specs: tuple[TensorSpec, ...], prepare: Callable[[], Prepare]) -> Samples:
    """Return the samples in ``data``, for a model with these inputs.

    ``prepare`` returns the function that converts an image to an array, or raises if the model's library has none.
    Raises InferlensError if there is no such data, or it does not fit.
    """
    if not specs or not all(spec.shape for spec in specs):
        raise InferlensError(f"'{data}' cannot be put into batches: an input of the model is a single number.")
    path = Path(data)
    if path.suffix == ".npz" and path.is_file():
        return Samples(data, specs, [path], lambda: _arrays(path, specs))
    if path.is_dir() and (path / "state.json").exists():
        files = sorted(path.glob("*.arrow"))
        return Samples(data, specs, files, lambda: _rows(files, specs, prepare))
    if path.is_dir():
        images = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGES)
        if not images:
            raise InferlensError(f"There are no images in {data}.", expected=f"files {', '.join(IMAGES)}")
        if len(specs) != 1:
            message = f"The model takes {len(specs)} inputs, and {data} has images."
            raise InferlensError(message, expected="an .npz file")
        return Samples(data, specs, images, lambda: _images(path, images, specs[0], prepare))
    if is_code(data):
        function = import_function(data)
        return Samples(data, specs, (), lambda: _from_function(function(), specs, data))
    raise InferlensError(f"There is no data '{data}'.", expected=FORMS)


def calibration_feeds(model: Model, case: Case) -> Iterator[dict[str, Array]]:
    """Yield the inputs for calibrating the ranges of a model's tensors."""
    if model.samples:
        yield from model.samples.feeds()
    else:
        for number in range(math.ceil(RANDOM_SAMPLES / math.prod(model.inputs[0].shape[:1]))):
            yield make_inputs(model, case.seed + number)


def _arrays(path: Path, specs: tuple[TensorSpec, ...]) -> Iterator[Sample]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise InferlensError(f"{path} cannot be read: {error}.", expected="arrays, written by numpy.savez") from error
    if len(arrays.keys() - {LABEL}) == len(specs) == 1:  # a single array may have any name
        arrays[specs[0].name] = arrays[next(name for name in arrays if name != LABEL)]
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        counts_text = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise InferlensError(f"The arrays in {path} have different numbers of samples ({counts_text}).")
    for index in range(next(iter(counts.values()))):
        inputs = {name: array[index] for name, array in arrays.items() if name != LABEL}
        yield Sample(inputs, int(arrays[LABEL][index]) if LABEL in arrays else None)


def _images(folder: Path, images: Sequence[Path], spec: TensorSpec, prepare: Callable[[], Prepare]) -> Iterator[Sample]:
    """Yield images. A folder inside ``folder`` is a class: its number is the folder's name, or the index of the name.

    All classes take turns, so that the first few samples are of several classes.
    """
    Image = library("PIL.Image", extra="models")
    transform = prepare()
    by_class: dict[str, list[Path]] = {}
    for path in images:
        by_class.setdefault(path.relative_to(folder).parts[0] if path.parent != folder else "", []).append(path)
    names = sorted(by_class.keys() - {""})
    numbered = all(name.isdecimal() for name in names)
    labels = {name: int(name) if numbered else index for index, name in enumerate(names)}
    turns = itertools.zip_longest(*([(path, labels.get(name)) for path in paths] for name, paths in by_class.items()))
    for path, label in filter(None, itertools.chain.from_iterable(turns)):
        try:
            with Image.open(path) as image:
                array = transform(image.convert("RGB"))
        except (OSError, ValueError) as error:
            raise InferlensError(f"The image {path} cannot be read: {error}.") from error
        yield Sample({spec.name: array}, label)


def _rows(files: Sequence[Path], specs: tuple[TensorSpec, ...], prepare: Callable[[], Prepare]) -> Iterator[Sample]:
    """Yield rows of the Arrow files of a dataset: a column for every input, or one of encoded images."""
    polars = library("polars", extra="frames")
    for path in files:
        for row in polars.read_ipc_stream(path).iter_rows(named=True):
            label = row.pop(LABEL, row.pop("labels", None))
            image = next((name for name, value in row.items() if isinstance(value, dict) and "bytes" in value), "")
            if image and len(specs) == 1:
                Image = library("PIL.Image", extra="models")
                with Image.open(io.BytesIO(row[image]["bytes"])) as opened:
                    row = {specs[0].name: prepare()(opened.convert("RGB"))}
            yield Sample(row, label if isinstance(label, int) else None)


def is_code(data: str) -> bool:
    """Return whether the text has the form ``package.module:name``."""
    module, _, name = data.partition(":")
    return bool(module and name) and not Path(data).exists()


def import_function(data: str) -> Callable[..., Any]:
    """Return the function of ``package.module:name``; for another object, a function that returns it."""
    module, _, name = data.partition(":")
    try:
        target = getattr(import_code(module), name)
    except (ImportError, AttributeError) as error:
        raise InferlensError(f"'{data}' cannot be imported: {error}.", expected=FORMS) from error
    return target if callable(target) else lambda: target


def _from_function(values: Iterable[Any], specs: tuple[TensorSpec, ...], data: str) -> Iterator[Sample]:
    for value in values:
        has_label = isinstance(value, tuple) and len(value) == 2 and np.ndim(value[1]) == 0
        inputs = by_name(value[0] if has_label else value, specs)
        if not inputs:
            message = f"{data} yields values of type {type(value).__name__}."
            raise InferlensError(message, expected="arrays, or pairs of them and a label")
        arrays = {name: np.asarray(array) for name, array in inputs.items()}
        yield Sample(arrays, int(value[1]) if has_label else None)


def by_name(values: Any, specs: tuple[TensorSpec, ...]) -> Mapping[str, Any]:
    """Return arrays by input name, from a mapping, arrays in the order of the inputs, or a single array."""
    if isinstance(values, Mapping):
        return values
    arrays = values if isinstance(values, (tuple, list)) else [values]
    return {spec.name: array for spec, array in zip(specs, arrays, strict=False)}
