"""Hints: options that would help a case, if its backend has them and the user did not set them already.

Only a backend knows its options and when they have an effect. The room of backends is below this one, so it registers
its lookup with :func:`register`. Without a lookup, or without the backend, there are no hints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.spec.case import Case, Option


class Hint(Struct, frozen=True):
    """The way to get something; both fields are empty if the backend has no option for it that has an effect.

    Attributes:
        ask: the words for the command line: an option with its value, or a backend with its variant.
        asked: whether the case has it already.
    """

    ask: str = ""
    asked: bool = False


Lookup = Callable[[str], Any]  # a class of backends by its name, whose method ``hint`` is asked
_lookups: list[Lookup] = []


def register(lookup: Lookup) -> None:
    """Set the function that returns a backend by its name; it raises InferlensError for an unknown one."""
    _lookups[:] = [lookup]


def hint(case: Case, option: str, value: Option = True, facts: Mapping[str, Any] | None = None) -> Hint:
    """Return the words for an option with a value, under the name that the case's backend has for it.

    ``facts`` of the case's record or profile may rule a hint out. An unknown backend or option gives an empty Hint.
    """
    with suppress(InferlensError):
        return _lookups[0](case.backend).hint(case, option, value, facts or {}) if _lookups else Hint()
    return Hint()


def for_the_host(case: Case, facts: Mapping[str, Any]) -> str:
    """Return the advice for a GPU that waits for the host."""
    graph = hint(case, "cuda_graph", facts=facts)
    if graph.asked:
        return "A larger --batch; a CUDA graph was asked for already."
    graphs = f"a CUDA graph ({graph.ask})" if graph.ask else "another backend with a CUDA graph"
    return sentence([graphs, "a larger --batch"])


def alternatives(tries: Sequence[str]) -> str:
    """Join alternatives as ``A``, ``A or B`` or ``A, B, or C``, without empty ones."""
    *others, last = list(filter(None, tries)) or [""]
    return f"{', '.join(others)}, or {last}" if len(others) > 1 else " or ".join([*others, last])


def sentence(tries: Sequence[str]) -> str:
    text = alternatives(tries)
    return f"{text[:1].upper()}{text[1:]}."
