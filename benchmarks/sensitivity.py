"""How much two percent on one layer's weights shows in the outputs, for every layer of eight models.

The check of a backend's outputs means something only if this is well above the tolerance. By hand, some minutes:
``python -m benchmarks.sensitivity [MODEL ...]``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.agreement import MODELS
from inferlens.backends.base import TOLERANCES
from inferlens.case import Case
from inferlens.measure.agreement import compare
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.models.outputs import flatten
from inferlens.models.resolve import find, load


def main(names: list[str]) -> None:
    """Prints the least sensitive layer of each model."""
    tolerance = TOLERANCES["fp32"]
    table = Table(title=f"Relative L2 error from 2 % on one layer's weights; the tolerance is {tolerance:g}")
    for header in ("model", "layers", "least", "median", "least sensitive layer", "not caught"):
        table.add_column(header)
    for name in names:
        errors = sorted(sensitivities(load(Case(model=find(name).spec, backend="pytorch"))))
        missed = sum(error <= tolerance for error, _ in errors)
        middle = errors[len(errors) // 2][0]
        table.add_row(name, str(len(errors)), f"{errors[0][0]:.1e}", f"{middle:.1e}", errors[0][1], str(missed))
    Console(width=140).print(table)


def sensitivities(model: Model) -> list[tuple[float, str]]:
    """Relative L2 error and name of each layer whose weight is two percent off."""
    assert model.module is not None
    reference = outputs(model)
    found = []
    for layer, weight in model.module.named_parameters():
        if layer.endswith("bias"):
            continue
        kept = weight.clone()
        with torch.no_grad():
            weight.mul_(1.02)
            found.append((compare(outputs(model), reference, 1.0, "itself").rel_l2 or 0.0, layer))
            weight.copy_(kept)
    return found


def outputs(model: Model) -> list[Any]:
    """What the model answers to its seeded inputs."""
    assert model.module is not None
    arrays = [torch.from_numpy(array) for array in make_inputs(model, 0).values()]
    with torch.inference_mode():
        return [tensor.numpy() for tensor in flatten(model.module(*arrays))]


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
