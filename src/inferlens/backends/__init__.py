"""Backends: ways of running a model. ``base`` has the seam; every other module is one backend or what some share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from inferlens.backends.base import Backend
from inferlens.errors import InferlensError
from inferlens.models.model import Format
from inferlens.registry import Registry
from inferlens.spec import hints

BACKENDS: Registry[Backend] = Registry("inferlens.backends", "backend")
hints.register(BACKENDS.get)


def importable() -> Iterator[type[Backend]]:
    """Every backend whose module can be imported; those of others may be broken."""
    for name in BACKENDS.names():
        with suppress(InferlensError):
            yield BACKENDS.get(name)


def reference_of(format: Format) -> str:
    """The backend whose fp32 outputs on the CPU are the reference for models of a format; empty if there is none."""
    return next((backend.name for backend in importable() if format in backend.reference_for), "")
