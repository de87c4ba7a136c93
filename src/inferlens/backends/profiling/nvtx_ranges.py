"""Ranges for NVIDIA's profilers: around phases, each series of samples, and the calls of modules that are profiled.

They are off unless the variable says otherwise, which child processes inherit; then a range is nothing at all. No range
is ever inside of a timed loop: a series is one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from inferlens.errors import library

VARIABLE = "INFERLENS_NVTX"
DOMAIN = "inferlens"


def turn_on() -> None:
    """Have this process, and those that it starts, set ranges. Raises MissingLibrary without the package nvtx."""
    library("nvtx", extra="nvtx")
    os.environ[VARIABLE] = "1"


def on() -> bool:
    """Whether ranges are set."""
    return bool(os.environ.get(VARIABLE))


def span(name: str) -> AbstractContextManager[Any]:
    """A range of that name around what happens inside."""
    if not on():
        return nullcontext()
    made: AbstractContextManager[Any] = library("nvtx", extra="nvtx").annotate(name, domain=DOMAIN)
    return made


def begin_and_end() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """What begins a range of a name, and what ends the last one that began: for hooks, which have no inside."""
    if not on():
        return lambda _: None, lambda: None
    module_type = library("nvtx", extra="nvtx")
    return lambda name: module_type.push_range(name, domain=DOMAIN), lambda: module_type.pop_range(domain=DOMAIN)
