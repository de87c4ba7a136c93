"""Models that Inferlens brings along, by name; the module of each is imported when it is built, never before."""

from __future__ import annotations

# Name of a model to "module:factory"; the factory takes no arguments and returns an ``nn.Module``.
ZOO = {"resnet34": "inferlens.models.zoo.resnet34:resnet34"}
