"""What to ask for so that a case gets what it lacks: hints name what its backend has, and was not asked for already.

The backend itself is asked, through the door that all backends come in by: it alone knows its options and variants, and
which of them do something for a case. Of one that is not installed where records are looked at, nothing is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.registry import Registry
from inferlens.spec.case import Case, Option


class Hint(Struct, frozen=True):
    """How a case gets something; neither where its backend has no such thing, or none that does anything here.

    ``ask``: what to ask for, as the command line has it: an option with its value, or a backend with its variant.
    """

    ask: str = ""
    asked: bool = False


_BACKENDS: Registry[Any] = Registry("inferlens.backends", "backend")


def hint(case: Case, option: str, value: Option = True, facts: Mapping[str, Any] | None = None) -> Hint:
    """How a case gets what an option of that name does at that value, whatever its backend has for it.

    ``facts`` are those of the case's record or profile: what they say may rule a hint out. Of a backend that is not
    there, or does not know the case's options, nothing is known: an empty :class:`Hint`.
    """
    try:
        hint: Hint = _BACKENDS.get(case.backend).hint(case, option, value, facts or {})
    except InferlensError:
        return Hint()
    return hint


def for_the_host(case: Case, facts: Mapping[str, Any]) -> str:
    """What to try where the GPU waits for the host."""
    graph = hint(case, "cuda_graph", facts=facts)
    if graph.asked:
        return "A larger --batch; a CUDA graph was asked for already."
    graphs = f"a CUDA graph ({graph.ask})" if graph.ask else "another backend with a CUDA graph"
    return sentence([graphs, "a larger --batch"])


def one_of(tries: Sequence[str]) -> str:
    """``A``, ``A or B``, ``A, B, or C``: several things to try, of which one may do; empty ones are left out."""
    known = list(filter(None, tries))
    return " or ".join(known) if len(known) < 3 else f"{', '.join(known[:-1])}, or {known[-1]}"


def sentence(tries: Sequence[str]) -> str:
    """The same as a sentence."""
    said = one_of(tries)
    return f"{said[:1].upper()}{said[1:]}."
