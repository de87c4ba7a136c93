"""The GPU that engines are built on and for: its name and compute capability, as PyTorch tells them."""

from __future__ import annotations

import warnings

from inferlens.record.record import Gpu


def current_gpu() -> Gpu | None:
    """The GPU in use; ``None`` where there is none, or no PyTorch to ask."""
    try:
        import torch
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's words about a driver that is missing
        if not torch.cuda.is_available():
            return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        name=str(properties.name),
        memory=int(properties.total_memory),
        compute_capability=f"{properties.major}.{properties.minor}",
    )
