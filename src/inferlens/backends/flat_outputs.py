"""A module whose outputs are flat, for tracers and exporters that do not know the outputs' own type."""

from __future__ import annotations

from typing import Any

WRAPPED = "module"  # the path of the model in what flat_outputs returns


def flat_outputs(module: Any) -> Any:
    """A module that returns the tensors of ``module``'s outputs as a flat tuple, in the order of ``flatten``."""
    import torch

    from inferlens.models.outputs import flatten

    class FlatOutputs(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *feed: Any) -> Any:
            return tuple(flatten(self.module(*feed)))

    flat = FlatOutputs()
    flat.training = False  # not eval(): an exported program inside is in its mode for good, and refuses
    return flat
