"""Kernels of a run, held against the same kernels in another call that tells where they came from: their *twins*.

A replayed CUDA graph calls nothing that would tell, and what tells in compiled code is worked out from one call that is
looked at. Where that call launched kernels of the same names in the same order, they are the same; where it did not,
nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from inferlens.backends.abilities import Launched, Origin, Origins
from inferlens.backends.profiling.operator_runs import Operator

KERNEL = "kernel"
OTHERS = {"Memcpy ": "copy", "Memset ": "fill"}  # how the profiler's names of these begin
UNPAIRED = (
    "not known: a run launched {} kernels, and the call that tells where they came from {}, not the same in the same "
    "order{}."
)
HINT = "--level layer tells the modules of layers."
FIRST = " (number {} is '{}' there, '{}' here)"


class Twin(Struct, frozen=True):
    """A kernel, copy or fill of the call that tells."""

    name: str
    kind: str = KERNEL
    origin: Origin = Origin()


class Called:
    """A call as something that runs."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def infer(self, feed: Sequence[Any]) -> Any:
        """One call."""
        return self._call(*feed)

    def synchronize(self) -> None:
        """Waits for the GPU."""
        import torch

        torch.cuda.synchronize()


def twins_of(calls: Iterable[tuple[Operator, Origin]]) -> list[Twin]:
    """What some operators launched, in the order in which the GPU ran it."""
    found = [(kernel, origin) for operator, origin in calls for kernel in operator.launched()]
    found.sort(key=lambda each: each[0].begin)
    return [Twin(kernel.name, kind_of(kernel.name), origin) for kernel, origin in found]


def kind_of(name: str) -> str:
    """Whether something of the GPU's is a ``kernel``, a ``copy`` or a ``fill``, by the profiler's name of it."""
    return next((kind for start, kind in OTHERS.items() if name.startswith(start)), KERNEL)


def paired(launched: Sequence[Launched], twins: Sequence[Twin]) -> tuple[Origin, ...] | None:
    """The origin of each by its twin; ``None`` where the two calls did not launch the same in the same order.

    What has a name that no twin has is the run's alone, as what copies the inputs of a CUDA graph, and of no origin.
    Copies and fills are held against their twins too, unless only kernels are the same.
    """
    for kinds in ((KERNEL, *OTHERS.values()), (KERNEL,)):
        there = [twin for twin in twins if twin.kind in kinds]
        names = {twin.name for twin in there}
        places = [place for place, each in enumerate(launched) if each.kind in kinds and each.name in names]
        if places and [launched[place].name for place in places] == [twin.name for twin in there]:
            found = [Origin()] * len(launched)
            for place, twin in zip(places, there, strict=True):
                found[place] = twin.origin
            return tuple(found)
    return None


def origins_by_twins(
    launched: Sequence[Launched], twins: Sequence[Twin], absent: dict[str, str], hint: str = ""
) -> Origins:
    """The origin of each by its twin, or why there is none.

    Args:
        absent: what the twins do not tell, and why; alone where there are none.
        hint: what tells more, where they are not the same.
    """
    found = paired(launched, twins) if twins or not absent else (Origin(),) * len(launched)
    if found is not None:
        return Origins(found, absent)
    here = [each.name for each in launched if each.kind == KERNEL]
    there = [twin.name for twin in twins if twin.kind == KERNEL]
    unlike = [each for each in enumerate(zip(there, here, strict=False), start=1) if each[1][0] != each[1][1]]
    first = FIRST.format(unlike[0][0], *unlike[0][1]) if unlike else ""
    why = UNPAIRED.format(len(here), len(there), first)
    return Origins((Origin(),) * len(launched), {"modules": f"{why} {hint}".rstrip()})
