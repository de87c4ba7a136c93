"""Models for the test of a crash on the GPU: one is in order, the other writes to memory that is nobody's."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def write_far_away(pointer: Any) -> None:
    tl.store(pointer + (1 << 42), 1.0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Trespasser(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            write_far_away[(1,)](x)
        return super().forward(x)


def good() -> tuple[nn.Module, Any]:
    return Net(), torch.randn(2, 8)


def illegal_access() -> tuple[nn.Module, Any]:
    return Trespasser(), torch.randn(2, 8)
