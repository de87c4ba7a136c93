"""Whether a case's outputs are right: each is compared with the reference's as a whole, by relative L2 error.

Of a quantized case accuracy on real data says more than that error, and decides where it is known.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from inferlens.analysis.accuracy import measured_drop
from inferlens.backends.base import Outputs
from inferlens.record.record import Accuracy, Agreement
from inferlens.spec.case import QUANTIZED, Case
from inferlens.stats.output_error import cosine, flat, relative_l2

LEAST_CLASSES = 10


def compare(outputs: Outputs, reference: Outputs, tolerance: float, name: str) -> Agreement:
    """Return how far outputs agree with those of a reference, up to a relative L2 error of ``tolerance`` for each."""
    result = Agreement(reference=name, tolerance=tolerance)
    shapes = [[value.shape for value in outputs], [value.shape for value in reference]]
    if shapes[0] != shapes[1]:
        said = [", ".join("x".join(map(str, shape)) or "scalar" for shape in each) or "none" for each in shapes]
        return replace(result, agrees=False, reason=f"outputs have shapes {said[0]}, the reference's {said[1]}")
    if not all(np.isfinite(value).all() for value in reference):
        return replace(result, reason="the reference's own outputs are not finite")
    pairs = [(flat(ours), flat(theirs)) for ours, theirs in zip(outputs, reference, strict=True) if theirs.size]
    if not pairs:
        return replace(result, reason="the model has no outputs to compare")
    if not all(np.isfinite(ours).all() for ours, _ in pairs):
        return replace(result, agrees=False, reason="outputs are not finite (NaN or Inf)")
    rel_l2 = max(relative_l2(ours, theirs) for ours, theirs in pairs)
    agrees = rel_l2 <= tolerance
    return replace(
        result,
        max_abs=max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs),
        rel_l2=rel_l2,
        cosine=min(cosine(ours, theirs) for ours, theirs in pairs),
        top1=top1(outputs[0], reference[0]),
        agrees=agrees,
        reason="" if agrees else f"relative L2 error {rel_l2:.2g} is above the tolerance {tolerance:.2g}",
    )


def worse(first: Agreement, last: Agreement) -> Agreement:
    """The worse of two agreements of the same case, so that outputs that go wrong while it runs are seen."""
    if first.agrees is not False and last.agrees is False:
        return last
    return last if (last.rel_l2 or 0.0) > (first.rel_l2 or 0.0) and first.agrees is not False else first


def by_accuracy(case: Case, known: Accuracy | None, data: str = "") -> bool:
    """Whether the drop in accuracy says what a quantized case's outputs are worth, and no tolerance does.

    ``data`` names what the case is yet to be evaluated on, where nothing is ``known``.
    """
    return case.precision in QUANTIZED and (measured_drop(known) is not None if known else bool(data))


def judged(found: Agreement | None, case: Case, known: Accuracy | None) -> Agreement | None:
    """The agreement of a case whose accuracy is known; outputs of other shapes, or not finite, stay wrong."""
    if found is None or found.rel_l2 is None or not by_accuracy(case, known):
        return found
    return replace(found, tolerance=None, agrees=True, reason="")


def top1(ours: NDArray[np.generic], theirs: NDArray[np.generic]) -> float | None:
    """Share of rows with the same largest element, where the output looks like scores of classes."""
    if theirs.ndim != 2 or theirs.shape[1] < LEAST_CLASSES or not np.issubdtype(theirs.dtype, np.floating):
        return None
    return float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean())
