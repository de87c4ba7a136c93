"""The output check, which decides whether the outputs of a case are wrong. A wrong case wins no race.

:func:`observe` calls the fp32 reference twice with the same inputs, and learns how the model behaves. :func:`judge`
compares a case's first call, and one after the last sample, with the reference's. Outputs are right if

* shapes and text are equal, and NaN and infinities are in the same places;
* the relative L2 error of every output is at most the tolerance: ``TOLERANCES`` in ``backends/base.py``, by precision.

Random outputs are not compared: they are neither right nor wrong. A model that keeps state is judged by its first two
calls. :func:`apply_quantized_verdict` replaces the tolerance for a quantized case (int8, fp8) whose accuracy was
measured on labeled data: it is right, and its drop in accuracy is reported. Other shapes, NaN and lost state stay
wrong.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from inferlens.analysis.measures import measured_drop
from inferlens.backends.base import TOLERANCES, Inputs, Outputs, Runner
from inferlens.errors import InferlensError
from inferlens.models import resolve, samples
from inferlens.models.inputs import kind_of
from inferlens.models.model import Array, Model
from inferlens.models.samples import Samples, by_name, import_function, is_code
from inferlens.models.weights import bits, buffers
from inferlens.record.record import (
    AGREEMENT,
    KEEPS_STATE,
    NOT_FINITE,
    RANDOM,
    WRITES_INPUTS,
    Accuracy,
    Agreement,
    Behavior,
)
from inferlens.spec.case import QUANTIZED, Case
from inferlens.stats.samples import cosine, flatten, relative_l2
from inferlens.units import listing

if TYPE_CHECKING:
    import torch


LEAST_CLASSES = 10
SAME = 1e-6  # relative L2 error between two calls that counts as none, where a buffer has changed
TEXT = "SUO"  # NumPy's kinds of text


class Expected(NamedTuple):
    """Outputs of the reference's calls; only a model that keeps state has a second call."""

    name: str
    behavior: Behavior
    calls: list[Outputs]


def observe(runner: Runner, model: Model, arrays: Inputs, call: Callable[[Any], Any]) -> tuple[Behavior, list[Outputs]]:
    """Call an entered reference twice; return how the model behaves, and the outputs of the calls that are compared.

    ``call`` makes the first call, with a placed feed.
    """
    behavior: Behavior = {}
    state, generators = buffers(model.module), _generators()
    feed = runner.place(arrays)
    first = runner.collect(call(feed))
    drew_numbers = _generators() != generators
    fresh, changed = runner.place(arrays), list[str]()
    if model.module is not None:  # a graph of ONNX writes to nothing that others read
        changed = [name for name, value in model.module.named_buffers() if not _equal(value, state.get(name))]
        pairs = zip(model.inputs, runner.tensors_read(feed), runner.tensors_read(fresh), strict=False)
        if written := [f"'{spec.name}'" for spec, used, unused in pairs if not _equal(used, unused)]:
            behavior[WRITES_INPUTS] = f"the model writes into its input {listing(written)}"
    second = runner.collect(runner.infer(fresh))
    # Libraries may round a second call otherwise, such as TorchScript, which fuses operators then.
    if compare(second, first, SAME if changed and not drew_numbers else TOLERANCES["fp32"], "").agrees is False:
        if drew_numbers or not changed:
            behavior[RANDOM] = "two calls of the reference with the same inputs give different outputs"
        else:
            where = listing([repr(name) for name in changed[:3]])
            behavior[KEEPS_STATE] = f"the model keeps state in {where}, so a second call gives other outputs"
    values = [flatten(output) for output in first if output.dtype.kind not in TEXT]
    if odd := sum(int((~np.isfinite(value)).sum()) for value in values):
        behavior[NOT_FINITE] = f"{odd:,} of {sum(map(len, values)):,} output values of the reference are NaN or inf"
    return behavior, [first, second] if KEEPS_STATE in behavior else [first]


def judge(calls: Sequence[Outputs], expected: Expected, tolerance: float) -> Agreement:
    """Return how far the outputs of a case agree with the reference's.

    ``calls`` are the first call and a later one with the same inputs: of a model that keeps state the second one, from
    the same start state as the reference's.
    """
    behavior, name = expected.behavior, expected.name
    if RANDOM in behavior:
        return Agreement(reference=name, behavior=behavior, reason="outputs are random: not compared")
    pairs = zip(calls, expected.calls if KEEPS_STATE in behavior else [expected.calls[0]] * len(calls), strict=False)
    results = [compare(*pair, tolerance, name) for pair in pairs]
    result = reduce(worse, results)
    if KEEPS_STATE in behavior and len(results) > 1 and results[0].agrees:
        lost = results[1].agrees is False
        result = replace(result, state="lost" if lost else "kept")
        result = replace(result, reason=f"state lost: in its second call, {result.reason}") if lost else result
    return replace(result, behavior=behavior)


def by_accuracy(case: Case, accuracy: Accuracy | None, data: str = "") -> bool:
    """Return whether a quantized case is assessed by its drop in accuracy, and not by a tolerance.

    Args:
        accuracy: the accuracy of the case; ``None`` before it was evaluated.
        data: the name of the data that the case will be evaluated on; empty if there is none.
    """
    return case.precision in QUANTIZED and (measured_drop(accuracy) is not None if accuracy else bool(data))


def apply_quantized_verdict(agreement: Agreement | None, case: Case, accuracy: Accuracy | None) -> Agreement | None:
    """Return the agreement of a case by its accuracy. Outputs of other shapes, or not finite, stay wrong."""
    if agreement is None or agreement.rel_l2 is None or agreement.state == "lost" or not by_accuracy(case, accuracy):
        return agreement
    return replace(agreement, tolerance=None, agrees=True, reason="")


def compare(outputs: Outputs, reference: Outputs, tolerance: float, name: str) -> Agreement:
    """Return how far outputs agree with those of a reference, up to a relative L2 error of ``tolerance`` per output.

    Text must be equal. NaN, inf and -inf must be in the same places, and the finite rest is compared.
    """
    result = Agreement(reference=name, tolerance=tolerance)
    if [value.shape for value in outputs] != [value.shape for value in reference]:
        reason = f"outputs have shapes {_shapes_text(outputs)}, the reference's {_shapes_text(reference)}"
        return replace(result, agrees=False, reason=reason)
    pairs, texts = [], 0
    for place, (ours, target) in enumerate(zip(outputs, reference, strict=True), 1):
        if ours.dtype.kind in TEXT or target.dtype.kind in TEXT:
            texts += 1
            if not np.array_equal(ours.astype(str), target.astype(str)):
                return replace(result, agrees=False, reason=f"the text of output {place} is not the reference's")
            continue
        values, expected = flatten(ours), flatten(target)
        finite = np.isfinite(values) & np.isfinite(expected)
        if not np.array_equal(values[~finite], expected[~finite], equal_nan=True):
            reason = "NaN or inf is elsewhere than in the reference"
            if np.isfinite(expected).all():
                reason = "outputs are not finite (NaN or Inf)"
            return replace(result, agrees=False, reason=reason)
        if finite.any():
            pairs.append((values[finite], expected[finite]))
    if not pairs:
        empty = not any(value.size for value in reference)
        reason = "the model has no outputs to compare" if empty else "the reference's outputs have no finite number"
        return replace(result, agrees=True) if texts else replace(result, reason=reason)
    rel_l2 = max(relative_l2(ours, target) for ours, target in pairs)
    agrees = rel_l2 <= tolerance
    return replace(
        result,
        max_abs=max(float(np.abs(ours - target).max()) for ours, target in pairs),
        rel_l2=rel_l2,
        cosine=min(cosine(ours, target) for ours, target in pairs),
        top1=top1(outputs[0], reference[0]),
        agrees=agrees,
        reason="" if agrees else f"relative L2 error {rel_l2:.2g} is above the tolerance {tolerance:.2g}",
    )


def _shapes_text(outputs: Outputs) -> str:
    return ", ".join("x".join(map(str, value.shape)) or "scalar" for value in outputs) or "none"


def worse(first: Agreement, last: Agreement) -> Agreement:
    """Return the worse of two agreements of the same case, to detect outputs that go wrong while it runs.

    Outputs that cannot be compared, such as NaN, are worse than any error.
    """

    def badness(agreement: Agreement) -> tuple[bool, bool, float]:
        wrong = agreement.agrees is False
        return wrong and agreement.rel_l2 is None, wrong, agreement.rel_l2 or 0.0

    return max(first, last, key=badness)


def top1(ours: NDArray[np.generic], target: NDArray[np.generic]) -> float | None:
    """Return the share of rows with the same largest element, if the output looks like scores of classes."""
    if target.ndim != 2 or target.shape[1] < LEAST_CLASSES or not np.issubdtype(target.dtype, np.floating):
        return None
    return float((ours.argmax(axis=1) == target.argmax(axis=1)).mean())


def _equal(first: torch.Tensor, second: torch.Tensor | None) -> bool:
    """Return whether two tensors are equal to the bit, including NaN."""
    if second is None or first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool((bits(first) == bits(second)).all())


def _generators() -> list[Any]:
    """Return the states of the random generators that a module on the CPU may draw from."""
    torch = sys.modules.get("torch")
    _, keys, *others = np.random.get_state(legacy=True)
    numbers = torch.get_rng_state().numpy().tobytes() if torch else b""
    return [random.getstate(), np.asarray(keys).tobytes(), others, numbers]


# Accuracy on real data. With labels, the hits of the largest output are counted; without labels, the agreement with the
# reference. A function of the user, ``package.module:evaluate``, takes ``infer`` and returns one number, or one number
# per sample; larger is better.

TOP1 = "top-1"
TOP, MORE_THAN = 5, 10  # top-5 is reported for more than ten classes
NO_CLASSES = "The data has no labels, and the model's first output is not scores of classes."
FORM = "a function of infer that gives one number, or one for each sample"
Infer = Callable[[Any], Outputs]
Evaluate = Callable[[Infer], Any]


class Evaluation(Struct, frozen=True, kw_only=True):
    """The evaluation by one process, as in :class:`Accuracy`; ``classes`` are its answers for samples without labels.

    ``problem``: a problem of data or function that concerns every case.
    """

    metric: str = ""
    count: int = 0
    values: tuple[float, ...] = ()
    top5: float | None = None
    commonest: float | None = None
    classes: tuple[int, ...] = ()
    problem: InferlensError | None = None


def data_for(data: str, case: Case, model: Model) -> Samples | Evaluate:
    """Return the labeled samples, or the user's function, that ``data`` names.

    Raises:
        InferlensError: The data are random, cannot be read, or do not fit the inputs of the model.
    """
    if data == samples.RANDOM:
        raise InferlensError(
            "--accuracy needs labeled data: random inputs have no labels.",
            expected="real data",
            hint="--accuracy photos/",
        )
    if is_code(data) and _takes_one(function := import_function(data)):
        return function
    return resolve.load_samples(data, case, model.inputs)


def _takes_one(function: Callable[..., Any]) -> bool:
    """Return whether a function needs an argument, unlike a factory of samples."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(parameter.default is parameter.empty and parameter.kind in (0, 1) for parameter in parameters) == 1


def evaluate(data_name: str, case: Case, model: Model, runner: Runner) -> Evaluation:
    """Return the evaluation of an entered runner on all of the data. Raises InferlensError for bad data."""
    data = data_for(data_name, case, model)
    if isinstance(data, Samples):
        return _evaluate_samples(data, runner.answer)
    return _evaluate_by_function(data_name, data, model, runner.answer)


def _evaluate_samples(data: Samples, infer: Callable[[Inputs], Outputs]) -> Evaluation:
    classes: list[int] = []
    hits: list[bool] = []
    among: list[bool] = []
    counts = Counter[int]()
    for feed, chunk in data.batches():
        scores = _scores(infer(feed), len(chunk))
        labels = [sample.label for sample in chunk if sample.label is not None]
        if (labels and len(labels) < len(chunk)) or (hits and not labels) or (classes and labels):
            raise InferlensError(f"Some samples in '{data.data}' have a label, and some have none.")
        if scores is None:
            if labels:
                raise InferlensError(
                    f"The samples in '{data.data}' have labels, but the first output is not scores of classes.",
                    expected="one score for each class", hint="package.module:evaluate, a measure of your own",
                )  # fmt: skip
            return Evaluation(count=0)
        if not labels:
            classes += scores.argmax(axis=1).tolist()
            continue
        number = scores.shape[1]
        if wrong := [label for label in labels if not 0 <= label < number]:
            raise InferlensError(
                f"A sample in '{data.data}' has the label {wrong[0]}, and the model tells {number} classes apart.",
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
    """Return the first output as scores by sample and class; ``None`` if it has another form."""
    first = outputs[0] if outputs else np.empty(0)
    fits = first.ndim >= 2 and first.size == first.shape[0] * first.shape[-1] and first.shape[-1] > 1
    if not fits or not np.issubdtype(first.dtype, np.floating):
        return None
    return first.reshape(first.shape[0], -1)[:count].astype(np.float32, copy=False)


def _evaluate_by_function(
    data: str, function: Evaluate, model: Model, infer: Callable[[Inputs], Outputs]
) -> Evaluation:
    total, size = 0, model.inputs[0].shape[0]

    def infer_samples(batch: Any) -> Outputs:
        """Return the outputs for up to a batch of samples, which are repeated to fill the batch."""
        nonlocal total
        arrays = _arrays_by_input(batch, model)
        count = len(next(iter(arrays.values())))
        if not 0 < count <= size:
            raise InferlensError(f"{data} gives infer {count} samples.", expected=f"1 to {size}, the batch of the case")
        total += count
        fill = np.arange(size) % count
        outputs = infer({name: array[fill] for name, array in arrays.items()})
        return [value[:count] if value.ndim and len(value) == size else value for value in outputs]

    try:
        scores = np.asarray(function(infer_samples), dtype=np.float64)
    except InferlensError:
        raise
    except Exception as error:
        raise InferlensError(f"{data} failed: {type(error).__name__}: {error}.", expected=FORM) from error
    if scores.ndim > 1 or not scores.size or not np.isfinite(scores).all():
        raise InferlensError(f"{data} gives neither a finite number nor a list of them.", expected=FORM)
    values = tuple(scores.ravel().tolist())
    name = data.rpartition(":")[2]
    return Evaluation(metric=name, count=len(values) if len(values) > 1 else total, values=values)


def _arrays_by_input(batch: Any, model: Model) -> dict[str, Array]:
    """Return a batch per input, by its name."""
    arrays_by_name = by_name(batch, model.inputs)
    arrays = {spec.name: np.asarray(arrays_by_name[spec.name]) for spec in model.inputs if spec.name in arrays_by_name}
    if len(arrays) < len(model.inputs) or len({array.shape[:1] for array in arrays.values()}) > 1:
        raise InferlensError("infer was not given a batch of each input.", expected=", ".join(map(str, model.inputs)))
    return {spec.name: arrays[spec.name].astype(kind_of(spec), copy=False) for spec in model.inputs}


def accuracy_of(data: str, evaluation: Evaluation, name: str, reference: Evaluation | None) -> Accuracy:
    """Return the accuracy of a case on data, and that of its fp32 ``reference``, called ``name``."""
    metric, count = evaluation.metric, evaluation.count
    if reference is None or (metric, count) != (reference.metric, reference.count):
        reference, name = None, ""
    accuracy = Accuracy(
        data=data, metric=metric, count=count, values=evaluation.values, reference=name,
        top5=evaluation.top5, commonest=evaluation.commonest,
    )  # fmt: skip
    if not metric:
        return replace(accuracy, reason=NO_CLASSES)
    if reference is None:
        no_reference = "The data has no labels, and there is no reference in fp32."
        return accuracy if evaluation.values else replace(accuracy, metric="", reason=no_reference)
    if metric == AGREEMENT and evaluation.classes:
        pairs = zip(evaluation.classes, reference.classes, strict=True)
        return replace(accuracy, values=tuple(float(ours == target) for ours, target in pairs))
    return replace(accuracy, reference_values=reference.values, reference_top5=reference.top5)
