"""A ResNet-34 with another order of layers than torchvision's, as published with a five-way comparison.

The unusual parts stay, because they decide what a compiler can fuse. After a convolution comes first the ReLU and then
batch norm, so batch norm cannot be folded into the convolution before it. The shortcut that changes the shape is a 3x3
convolution with a ReLU and no batch norm. Convolutions have biases. The head pools 7x7 to 3x3, not to 1x1, so the
linear layer takes 4608 features. Input is N x 3 x 224 x 224, output N x 1000.
"""

from __future__ import annotations

import torch
from torch import nn

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, channels
FEATURES = 512 * 3 * 3
CLASSES = 1000


class BasicBlock(nn.Module):  # type: ignore[misc]
    """Two 3x3 convolutions with ReLU and batch norm, and a shortcut; ReLU after the addition."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, kernel_size=3, stride=stride, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(channels),
            nn.Conv2d(channels, channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, kernel_size=3, stride=stride, padding=1), nn.ReLU()
            )
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map N x channels_in x H x W to N x channels x H/stride x W/stride."""
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet34(nn.Module):  # type: ignore[misc]
    """Stem, four stages, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3),  # 224 to 112
            nn.ReLU(),
            nn.BatchNorm2d(64),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),  # 112 to 56
        )
        stages: list[nn.Module] = []
        width = 64
        for index, (blocks, channels) in enumerate(STAGES):  # 56, 28, 14, 7
            first = BasicBlock(width, channels, stride=1 if index == 0 else 2)
            stages.append(nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1))))
            width = channels
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AvgPool2d(kernel_size=2)  # 7 to 3; the last row and column are left out
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map N x 3 x 224 x 224 to N x 1000."""
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))
