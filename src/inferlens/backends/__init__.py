"""Ways of running a model. ``base`` has the interface; every other module is a backend or shared by some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from inferlens.backends.base import Backend
from inferlens.errors import InferlensError
from inferlens.models.model import Format
from inferlens.registry import Registry

BACKENDS: Registry[Backend] = Registry("inferlens.backends", "backend")


def importable_backends() -> Iterator[type[Backend]]:
    """Yield the backends whose module can be imported; a module of a plug-in may be broken."""
    for name in BACKENDS.names():
        with suppress(InferlensError):
            yield BACKENDS.get(name)


def reference_backend(format: Format) -> str:
    """Return the backend whose fp32 outputs on the CPU are the reference for a format, or an empty string."""
    return next((backend.name for backend in importable_backends() if format in backend.reference_for), "")
