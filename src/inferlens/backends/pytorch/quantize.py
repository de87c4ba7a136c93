"""How much of a module is quantized, where a library quantizes module by module."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from inferlens.models.work.torch_module import taken_apart


def flops_by_module(module: Any, feed: tuple[Any, ...]) -> dict[str, float]:
    """FLOPs of the products in each module, by its path, and of all by the empty one; empty if it cannot be followed.

    Nothing is computed: tensors have no values.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with taken_apart(), FakeTensorMode(allow_non_fake_inputs=True), counter, torch.no_grad():
            module(*feed)
    except Exception:  # code whose path depends on values, for one
        return {}
    own = f"{type(module).__name__}."
    counts = {name: float(sum(each.values())) for name, each in counter.get_flop_counts().items()}
    return {"": counts["Global"]} | {
        name.removeprefix(own): count for name, count in counts.items() if name.startswith(own)
    }


def share_of(work: dict[str, float], quantized: Collection[str]) -> float | None:
    """The share of the work that is in the ``quantized`` modules; ``None`` if the work is not known."""
    if not quantized:
        return 0.0
    return min(sum(work.get(name, 0.0) for name in quantized) / work[""], 1.0) if work.get("") else None
