"""Backends: ways of running a model. ``base`` has the seam; every other module is one backend or what some share."""

from __future__ import annotations

from inferlens.backends.base import Backend
from inferlens.registry import Registry

BACKENDS: Registry[Backend] = Registry("inferlens.backends", "backend")
