"""Inputs on their way to a runner: in the order of the model's arguments, every one of them and none else."""

from __future__ import annotations

from inferlens.backends.base import Inputs
from inferlens.errors import InferlensError, suggestion
from inferlens.models.model import Array
from inferlens.spec.case import TensorSpec

FLOATS = ("float32", "float16", "bfloat16", "float64")


def ordered(inputs: Inputs, specs: tuple[TensorSpec, ...]) -> list[Array]:
    """The arrays of ``inputs`` in the order of ``specs``.

    Raises:
        InferlensError: if an input is missing, or is none of the model's.
    """
    names = [spec.name for spec in specs]
    unknown = sorted(set(inputs) - set(names))
    missing = [name for name in names if name not in inputs]
    if unknown or missing:
        what = f"The model has no input '{unknown[0]}'." if unknown else f"The input '{missing[0]}' is missing."
        raise InferlensError(
            what,
            expected=f"arrays named {', '.join(names)}",
            hint=suggestion(unknown[0], names) if unknown else "",
        )
    return [inputs[name] for name in names]
