"""What answers are worth on real data: an :class:`Evaluation` of a prepared model, and the reference's beside it.

Data is what ``models.samples`` reads: with labels, hits of the largest element are counted; without, the same largest
element as the reference's. Or it is a function of the user's, ``package.module:evaluate``, that takes ``infer``: it
feeds the model with what it likes and gives one number, or one for each sample, of which more is better.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from inferlens.backends.base import Inputs, Outputs, Runner
from inferlens.errors import InferlensError
from inferlens.models import resolve
from inferlens.models.inputs import kind_of
from inferlens.models.model import Array, Model, Problem
from inferlens.models.samples import RANDOM, Samples, by_name, imported, is_code
from inferlens.record.record import AGREEMENT, Accuracy
from inferlens.spec.case import Case

TOP1 = "top-1"
TOP, MORE_THAN = 5, 10  # top-5 is told of more than so many classes
NO_CLASSES = "The data has no labels, and the model's first output is not scores of classes."
FORM = "a function of infer that gives one number, or one for each sample"
Infer = Callable[[Any], Outputs]
Evaluate = Callable[[Infer], Any]


class Evaluation(Struct, frozen=True, kw_only=True):
    """What one process learned: as in :class:`Accuracy`; of samples without labels the ``classes`` it answered.

    ``problem``: what stands against data or function, whatever the case.
    """

    metric: str = ""
    count: int = 0
    values: tuple[float, ...] = ()
    top5: float | None = None
    commonest: float | None = None
    classes: tuple[int, ...] = ()
    problem: Problem | None = None


def data_for(asked: str, case: Case, model: Model) -> Samples | Evaluate:
    """Return the samples, or the user's function, that ``asked`` names. Raises InferlensError if it does not fit."""
    if asked == RANDOM:
        raise InferlensError(
            "--accuracy needs labeled data: random inputs have no labels.",
            expected="real data",
            hint="--accuracy photos/",
        )
    if is_code(asked) and _takes_one(found := imported(asked)):
        return found
    return resolve.samples(asked, case, model.inputs)


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether it needs an argument, as a factory of samples does not."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(parameter.default is parameter.empty and parameter.kind in (0, 1) for parameter in given) == 1


def evaluated(asked: str, case: Case, model: Model, runner: Runner) -> Evaluation:
    """Return what the answers of an entered runner are worth on all of the data. Raises InferlensError for bad data."""
    data = data_for(asked, case, model)

    def infer(feed: Inputs) -> Outputs:
        return runner.collect(runner.infer(runner.place(feed)))

    if isinstance(data, Samples):
        return _of_samples(data, infer)
    return _of_function(asked, data, model, infer)


def _of_samples(data: Samples, infer: Callable[[Inputs], Outputs]) -> Evaluation:
    classes: list[int] = []
    hits: list[bool] = []
    among: list[bool] = []
    counts = Counter[int]()
    for feed, chunk in data.batches():
        scores = _scores(infer(feed), len(chunk))
        labels = [sample.label for sample in chunk if sample.label is not None]
        if (labels and len(labels) < len(chunk)) or (hits and not labels) or (classes and labels):
            raise InferlensError(f"Some samples in '{data.asked}' have a label, and some have none.")
        if scores is None:
            if labels:
                raise InferlensError(
                    f"The samples in '{data.asked}' have labels, but the first output is not scores of classes.",
                    expected="one score for each class", hint="package.module:evaluate, a measure of your own",
                )  # fmt: skip
            return Evaluation(count=0)
        if not labels:
            classes += scores.argmax(axis=1).tolist()
            continue
        number = scores.shape[1]
        if wrong := [label for label in labels if not 0 <= label < number]:
            raise InferlensError(
                f"A sample in '{data.asked}' has the label {wrong[0]}, and the model tells {number} classes apart.",
                expected=f"labels 0 to {number - 1}",
            )
        hits += (scores.argmax(axis=1) == labels).tolist()
        counts.update(labels)
        if number > MORE_THAN:
            of_label = np.take_along_axis(scores, np.asarray(labels)[:, None], axis=1)
            among += ((scores > of_label).sum(axis=1) < TOP).tolist()
    return Evaluation(
        metric=TOP1 if hits else AGREEMENT,
        count=len(hits) or len(classes),
        values=tuple(map(float, hits)),
        top5=float(np.mean(among)) if among else None,
        commonest=max(counts.values()) / len(hits) if hits else None,
        classes=tuple(classes),
    )


def _scores(outputs: Outputs, count: int) -> NDArray[np.floating[Any]] | None:
    """The first output as a score for each class, sample by sample; ``None`` if it is none."""
    first = outputs[0] if outputs else np.empty(0)
    fits = first.ndim >= 2 and first.size == first.shape[0] * first.shape[-1] and first.shape[-1] > 1
    if not fits or not np.issubdtype(first.dtype, np.floating):
        return None
    return first.reshape(first.shape[0], -1)[:count].astype(np.float32, copy=False)


def _of_function(asked: str, function: Evaluate, model: Model, infer: Callable[[Inputs], Outputs]) -> Evaluation:
    seen, size = 0, model.inputs[0].shape[0]

    def some(given: Any) -> Outputs:
        nonlocal seen
        arrays = _named(given, model)
        count = len(next(iter(arrays.values())))
        if not 0 < count <= size:
            raise InferlensError(
                f"{asked} gives infer {count} samples.", expected=f"1 to {size}, the batch of the case"
            )
        seen += count
        fill = np.arange(size) % count
        return [value[:count] if value.ndim and len(value) == size else value for value in infer(
            {name: array[fill] for name, array in arrays.items()}
        )]  # fmt: skip

    try:
        found = np.asarray(function(some), dtype=np.float64)
    except InferlensError:
        raise
    except Exception as error:
        raise InferlensError(f"{asked} failed: {type(error).__name__}: {error}.", expected=FORM) from error
    if found.ndim > 1 or not found.size or not np.isfinite(found).all():
        said = f"an array of the shape {'x'.join(map(str, found.shape))}" if found.ndim > 1 or not found.size else "NaN"
        raise InferlensError(f"{asked} gives {said}.", expected=FORM)
    values = tuple(found.ravel().tolist())
    name = asked.rpartition(":")[2]
    return Evaluation(metric=name, count=len(values) if len(values) > 1 else seen, values=values)


def _named(given: Any, model: Model) -> dict[str, Array]:
    """A batch of each input, by its name."""
    known = by_name(given, model.inputs)
    arrays = {spec.name: np.asarray(known[spec.name]) for spec in model.inputs if spec.name in known}
    if len(arrays) < len(model.inputs) or len({array.shape[:1] for array in arrays.values()}) > 1:
        raise InferlensError("infer was not given a batch of each input.", expected=", ".join(map(str, model.inputs)))
    return {spec.name: arrays[spec.name].astype(kind_of(spec), copy=False) for spec in model.inputs}


def beside(data: str, own: Evaluation, name: str, reference: Evaluation | None) -> Accuracy:
    """What a case is worth on data, beside what its ``reference`` in fp32, called ``name``, is on the same samples."""
    known = reference is not None and (own.metric, own.count) == (reference.metric, reference.count)
    accuracy = Accuracy(
        data=data, metric=own.metric, count=own.count, values=own.values, reference=name if known else "",
        top5=own.top5, commonest=own.commonest,
    )  # fmt: skip
    if not own.metric:
        return replace(accuracy, reason=NO_CLASSES)
    if not known or reference is None:
        return (
            accuracy
            if own.values
            else replace(accuracy, metric="", reason="The data has no labels, and there is no reference in fp32.")
        )
    if own.metric == AGREEMENT and own.classes:
        same = (float(ours == theirs) for ours, theirs in zip(own.classes, reference.classes, strict=True))
        return replace(accuracy, values=tuple(same))
    return replace(accuracy, reference_values=reference.values, reference_top5=reference.top5)
